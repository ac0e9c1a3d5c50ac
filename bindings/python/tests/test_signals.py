# SPDX-License-Identifier: Apache-2.0
"""Signals are handled, and tasks cancelled, while a call waits for a peer that does not answer."""
import asyncio
import errno
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest
import urllib.request

import wherry
from wherry import weights
from test_transfer import Case

# It reads what lies in the memory of another process, by a mapping that it keeps.
BORROWER = """
import sys
import wherry
engine = wherry.Engine(name="borrower", listen="none", timeout="60s")
peer = engine.connect(sys.argv[1])
region = engine.register(bytearray(1 << 20))
peer.read("lent", region, require="shm").wait()
print("read", flush=True)
sys.stdin.readline()
"""


def stop(process):
    os.kill(process.pid, signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


class Interrupted(Case):
    """Each call is interrupted by SIGINT, long before its own limit."""

    def setUp(self):
        super().setUp()
        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def interrupted(self, call):
        began = time.monotonic()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            with self.assertRaises(KeyboardInterrupt):
                call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self.assertLess(time.monotonic() - began, 10)


class Signals(Interrupted):
    def silent(self, call, before=lambda peer: None, **settings):
        """Interrupt call(peer, before(peer)), of a peer that is stopped."""
        engine = self.engine
        if settings:
            engine = type(engine)(timeout="60s", **settings)
            self.addCleanup(engine.close)
        owner = self.own()
        peer = engine.connect(owner.url)
        found = before(peer)
        stop(owner.process)
        try:
            self.interrupted(lambda: call(peer, found))
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
        self.assertEqual(peer.find("kv").length, 1 << 20)  # it is as usable as before

    def test_find(self):
        self.silent(lambda peer, _: peer.find("kv"))

    def test_find_that_waits(self):
        self.silent(lambda peer, _: peer.find("kv", timeout=60))

    def test_regions(self):
        self.silent(lambda peer, _: peer.regions(timeout=60))

    def test_unpack(self):
        owner = self.own()
        key = bytes.fromhex(owner.key)
        peer = self.engine.connect(owner.url)
        stop(owner.process)
        try:
            self.interrupted(lambda: peer.unpack(key, timeout=60))
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
        self.assertEqual(peer.unpack(key).length, 1 << 20)

    def test_prepare(self):
        region = self.engine.register(bytearray(1 << 20))
        self.silent(lambda peer, _: peer.prepare_read("kv", region))

    def test_prepare_connections(self):
        """The region is known; the data connections of TCP are not open."""

        def before(peer):
            return peer.find("kv"), peer.engine.register(bytearray(1 << 20))

        self.silent(lambda peer, found: peer.prepare_write(*found), before, require="tcp")

    def test_connect(self):
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            url = f"127.0.0.1:{listener.getsockname()[1]}"
            self.interrupted(lambda: self.engine.connect(url, timeout=60))
        self.assertIn("0 peers", repr(self.engine))

    def test_notification(self):
        self.interrupted(self.engine.notification)

    def reading(self, peer):
        region = peer.engine.register(bytearray(1 << 20))
        peer.read("kv", region, require="tcp").wait()
        return lambda: peer.read("kv", region, require="tcp")

    def test_cancel(self):
        self.silent(lambda _, read: read().cancel(), self.reading)

    def test_close(self):
        """It goes on in a thread; another close() waits for that."""
        owner = self.own()
        engine = wherry.Engine(name="closed", listen="none", timeout="60s")
        start = self.reading(engine.connect(owner.url))
        stop(owner.process)
        try:
            transfer = start()
            self.interrupted(engine.close)
        finally:
            os.kill(owner.process.pid, signal.SIGCONT)
        engine.close()
        self.assertEqual(engine._core.handle, 0)
        self.assertTrue(transfer.done())

    def test_unregister(self):
        memory = self.engine.allocate(1 << 20)
        region = self.engine.register(memory, name="lent", access="r")
        borrower = subprocess.Popen(
            [sys.executable, "-c", BORROWER, self.engine.url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(wherry.__file__))},
        )
        try:
            self.assertEqual(borrower.stdout.readline(), b"read\n")
            stop(borrower)
            self.interrupted(region.unregister)
            os.kill(borrower.pid, signal.SIGCONT)
            region.unregister()  # when the first has ended
            self.assertIn("unregistered", repr(region))
        finally:
            borrower.kill()
            borrower.communicate()


class Weights(Interrupted):
    """The weights are opened while nobody waits for that any more."""

    def test_open(self):
        real, results, closed = weights.lib, [], []
        left, ended = threading.Event(), threading.Event()

        class Slow:
            def __getattr__(self, name):
                return getattr(real, name)

            def wh_weights_open(self, *arguments):
                left.wait(60)
                results.append(real.wh_weights_open(*arguments))
                return results[-1]

            def wh_weights_close(self, handle):
                closed.append(handle)
                status = real.wh_weights_close(handle)
                ended.set()
                return status

        self.addCleanup(setattr, weights, "lib", real)
        weights.lib = Slow()
        arrays = {"a": bytearray(4096)}, {"a": bytearray(4096)}
        self.interrupted(lambda: weights.join(*arrays, gather=lambda part: [part]))
        gc.collect()
        left.set()
        self.assertTrue(ended.wait(60))
        for thread in threading.enumerate():
            if thread.name == "wherry apart":
                thread.join(60)
        self.assertEqual(results, [0])
        self.assertEqual(len(closed), 1)


class Tasks(Case):
    """Tasks that wait for a peer that does not answer end when they are cancelled."""

    def setUp(self):
        super().setUp()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.listener.close)
        self.url = f"127.0.0.1:{self.listener.getsockname()[1]}"

    def run_loop(self, main):
        """asyncio.run(), which also waits for the threads of the loop."""
        began = time.monotonic()
        asyncio.run(main())
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(self.engine._core.loops, {})

    def test_connect(self):
        async def main():
            task = asyncio.ensure_future(self.engine.connect_async(self.url, timeout=60))
            accept = asyncio.get_running_loop().run_in_executor(None, self.listener.accept)
            self.addCleanup((await accept)[0].close)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.run_loop(main)
        self.assertIn("0 peers", repr(self.engine))

    def test_connect_at_the_end(self):
        """What asyncio.run() finds running it cancels."""

        async def main():
            self.task = asyncio.ensure_future(self.engine.connect_async(self.url, timeout=60))
            await asyncio.sleep(0)

        self.run_loop(main)
        self.assertTrue(self.task.cancelled())

    def test_connect_to_a_closed_engine(self):
        async def main():
            task = asyncio.ensure_future(self.engine.connect_async(self.url, timeout=60))
            await asyncio.sleep(0)
            self.engine.close()
            with self.raises(errno.EINVAL, "closed"):
                await task

        self.run_loop(main)

    def test_connect_fails(self):
        async def main():
            self.listener.close()
            with self.raises(errno.ECONNREFUSED):
                await self.engine.connect_async(self.url, timeout=60)
            with self.raises(errno.EINVAL):
                await self.engine.connect_async("not a:url:")

        self.run_loop(main)
        self.assertIn("0 peers", repr(self.engine))

    def test_async_with(self):
        """Cancelling a transfer of a peer that has stopped: the task can be cancelled meanwhile."""
        owner = self.own()
        engine = wherry.Engine(name="with", listen="none", timeout="60s")
        self.addCleanup(engine.close)
        peer = engine.connect(owner.url)
        region = engine.register(bytearray(1 << 20))
        peer.read("kv", region, require="tcp").wait()
        self.addCleanup(os.kill, owner.process.pid, signal.SIGCONT)
        stop(owner.process)

        async def main():
            leaving = asyncio.Event()

            async def leave():
                async with peer.read("kv", region, require="tcp"):
                    leaving.set()
                    raise ZeroDivisionError

            task = asyncio.ensure_future(leave())
            await leaving.wait()
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task

        self.run_loop(main)


@unittest.skipUnless(
    os.path.exists(os.path.join(os.path.dirname(os.environ.get("WHERRY_LIBRARY", "")),
                                "libwherry-registry.so.0")), "libwherry was built without registries"
)  # fmt: skip
class Registry(Interrupted):
    """An engine that waits for its registry."""

    def test_open(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            registry = f"http://127.0.0.1:{listener.getsockname()[1]}"
            self.interrupted(lambda: wherry.Engine(name="x", registry=registry, timeout="60s"))

    @unittest.skipUnless(os.environ.get("TEST_COMMAND"), "the command is not built")
    def test_killed(self):
        """The name of an engine that was killed elsewhere: the next one says for what it waits."""
        served = subprocess.Popen(
            [os.environ["TEST_COMMAND"], "registry", "--listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
        )
        self.addCleanup(served.communicate)
        self.addCleanup(served.kill)
        url = served.stdout.readline().split()[0].decode()
        epoch = "0123456789abcdef"
        record = {"schema": 1, "name": "w", "epoch": epoch, "address": "h:1", "lease_ms": 2000}
        put = urllib.request.Request(
            f"{url}/?key=wherry%2Fengine%2Fw&lease=2000&owner={epoch}",
            json.dumps(record).encode(),
            method="PUT",
        )
        urllib.request.urlopen(put).close()
        with self.assertLogs("wherry", "WARNING") as log:
            wherry.Engine("w", registry=url, lease="2s").close()
        self.assertIn("waiting for its lease to end", log.output[0])


if __name__ == "__main__":
    unittest.main()
