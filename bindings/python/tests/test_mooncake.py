# SPDX-License-Identifier: Apache-2.0
"""wherry.mooncake: the methods of mooncake.engine, and transfers with the real one."""
import ctypes
import http.server
import inspect
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock
import urllib.parse

import test_signals

ROOT = os.environ.get("TEST_SOURCE") or os.path.join(os.path.dirname(__file__), "../../..")
COMMAND = os.environ.get("TEST_COMMAND", "")
SCRIPT = """
import sys
from mooncake.engine import TransferEngine
engine = TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
address = engine.allocate_managed_buffer(4096)
engine.write_bytes_to_buffer(address, b"from the script", 15)
print(engine.get_rpc_port(), flush=True)
sys.stdin.readline()
print(engine.read_bytes_from_buffer(address, 15).decode(), flush=True)
"""


class Store(http.server.ThreadingHTTPServer):
    """Mooncake's metadata by HTTP. `values` can be emptied, as by a restart."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Keys)
        self.values, self.changed = {}, threading.Condition()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/metadata"
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def end(self):
        self.shutdown()
        self.server_close()

    def wait(self, holds):
        """Until holds(values)."""
        with self.changed:
            return self.changed.wait_for(lambda: holds(self.values), 60)


class Keys(http.server.BaseHTTPRequestHandler):
    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query)["key"][0]
        with self.server.changed:
            values = self.server.values
            found = values.get(key)
            if self.command == "PUT":
                found, values[key] = b"", body
            elif self.command == "DELETE" and found is not None:
                del values[key]
            self.server.changed.notify_all()
        self.send_response(404 if found is None else 200)
        self.send_header("Content-Length", str(len(found or b"")))
        self.end_headers()
        self.wfile.write(found or b"")

    do_GET = do_PUT = do_DELETE = answer

    def log_message(self, *_):
        pass


@unittest.skipUnless(
    os.path.exists(os.path.join(os.path.dirname(os.environ.get("WHERRY_LIBRARY", "")),
                                "libwherry-registry.so.0")), "libwherry was built without registries"
)  # fmt: skip
class Named(unittest.TestCase):
    """Engines in a metadata store."""

    def setUp(self):
        from wherry import mooncake

        self.mooncake = mooncake
        self.store = Store()
        self.addCleanup(self.store.end)
        self.engine = mooncake.TransferEngine()
        self.addCleanup(self.engine.__del__)
        self.assertEqual(self.engine.initialize("127.0.0.1", self.store.url, "tcp", ""), 0)
        self.address = self.engine.allocate_managed_buffer(4096)
        self.assertNotEqual(self.address, 0)

    def lose(self):
        """The store loses all keys, then one of the two, and gets them again."""
        with self.store.changed:
            before = dict(self.store.values)
            self.store.values.clear()
        [segment] = [key for key in before if "/ram/" in key]

        def whole(values):
            if set(values) != set(before):
                return False
            both = (json.loads(one[segment])["buffers"] for one in (values, before))
            return next(both) == next(both)

        self.assertTrue(self.store.wait(whole))
        with self.store.changed:
            del self.store.values[segment]
        self.assertTrue(self.store.wait(whole))

    def test_empty_store(self):
        self.lose()
        self.engine.__del__()
        self.assertEqual(self.store.values, {})

    @unittest.skipUnless(os.path.exists(COMMAND), "the command is not built")
    def test_serve(self):
        """`wherry serve` publishes again, and says so."""
        self.engine.__del__()
        served = subprocess.Popen(
            [COMMAND, "serve", "--memory", "host:1MiB:kv", "--mooncake-metadata", self.store.url],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.addCleanup(served.communicate)
        self.addCleanup(served.kill)
        self.assertTrue(self.store.wait(lambda values: len(values) == 2))
        self.lose()
        served.terminate()
        _, said = served.communicate(timeout=60)
        self.assertIn("published again", said.decode())
        self.assertEqual(self.store.values, {})

    def test_fork(self):
        """A child lets its parent's engine alone, whatever it calls."""
        before = dict(self.store.values)
        self.assertEqual(len(before), 2)
        child = os.fork()
        if not child:
            signal.alarm(60)
            results = [
                self.engine.unregister_memory(self.address),
                self.engine.transfer_sync_read("127.0.0.1", self.address, self.address, 8),
                self.engine.get_batch_transfer_status([1]),
            ]
            said = "has forked" in self.mooncake.wherry_error_text()
            self.engine.__del__()
            os._exit(0 if said and max(results) < 0 else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(self.store.values, before)
        self.assertEqual(self.engine.unregister_memory(self.address), 0)


class Mooncake(unittest.TestCase):
    def setUp(self):
        from wherry import mooncake

        self.mooncake = mooncake
        self.engine = mooncake.TransferEngine()
        self.assertEqual(self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as script:
            script.write(SCRIPT)
        self.addCleanup(os.unlink, script.name)
        path = os.path.dirname(os.path.dirname(mooncake.__file__))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wherry.mooncake", script.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
        )
        self.addCleanup(self.process.communicate)
        self.addCleanup(self.process.kill)
        self.target = f"127.0.0.1:{int(self.process.stdout.readline())}"
        self.there = self.engine.get_first_buffer_address(self.target)
        self.assertNotEqual(self.there, 0)
        self.memory = ctypes.create_string_buffer(4096)
        self.here = ctypes.addressof(self.memory)
        self.assertEqual(self.engine.register_memory(self.here, 4096), 0)

    def test_sync(self):
        engine = self.engine
        self.assertEqual(engine.transfer_sync_read(self.target, self.here, self.there, 15), 0)
        self.assertEqual(self.memory.raw[:15], b"from the script")
        self.memory.raw = b"from the tests " + bytes(4081)
        self.assertEqual(engine.transfer_sync_write(self.target, self.here, self.there, 15), 0)
        out, _ = self.process.communicate(b"\n", timeout=60)
        self.assertEqual(out.decode().strip(), "from the tests")

    def test_batches(self):
        engine = self.engine
        ours = [self.here + 64 * n for n in range(32)]
        theirs = [self.there + 128 * (31 - n) for n in range(32)]
        lengths = [64] * 32
        data = os.urandom(2048)
        self.memory.raw = data + bytes(2048)
        self.assertEqual(engine.batch_transfer_sync_write(self.target, ours, theirs, lengths), 0)
        batch = engine.batch_transfer_async_read(
            self.target, [one + 2048 for one in ours], theirs, lengths
        )
        self.assertGreater(batch, 0)
        self.assertEqual(engine.get_batch_transfer_status([batch]), 0)
        self.assertEqual(self.memory.raw[2048:], data)

    def test_nothing(self):
        """Requests without bytes, and batches without requests, with a notification each."""
        from wherry import mooncake

        engine, note = self.engine, mooncake.TransferNotify("step", "nothing")
        for write in (engine.batch_transfer_sync_write, engine.batch_transfer_sync_read):
            self.assertEqual(write(self.target, [], [], []), 0)
            self.assertEqual(write(self.target, [0, self.here], [0, self.there], [0, 0]), 0)
        self.assertEqual(engine.transfer_sync_read(self.target, 0, self.there, 0), 0)
        batch = engine.batch_transfer_async_write(self.target, [], [], [])
        self.assertGreater(batch, 0)
        self.assertEqual(engine.get_batch_transfer_status([batch]), 0)
        other, got = mooncake.TransferEngine(), []
        self.assertEqual(other.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        target = f"127.0.0.1:{other.get_rpc_port()}"
        self.assertEqual(engine.batch_transfer_sync(target, [], [], [], 1, note), 0)
        self.assertEqual(engine.batch_transfer_sync(target, [0], [0], [0], 1, note), 0)
        while len(got) < 2:
            got += other.get_notifies()
            time.sleep(0.001)
        self.assertEqual([one.msg for one in got], ["nothing"] * 2)

    def test_conversions(self):
        from wherry import mooncake

        engine, note = self.engine, mooncake.TransferNotify("step", "a\0b")
        for kind, name, call in (
            (ValueError, "length", lambda: engine.transfer_sync_read(self.target, 0, 0, -1)),
            (ValueError, "length", lambda: engine.transfer_sync_read(self.target, 0, 0, 2**64)),
            (TypeError, "length", lambda: engine.transfer_sync_read(self.target, 0, 0, 1.5)),
            (ValueError, "target_hostname", lambda: engine.transfer_sync_read("a\0", 0, 0, 1)),
            (ValueError, "notify.msg",
             lambda: engine.transfer_sync(self.target, 0, 0, 0, 1, note)),
            (ValueError, "capacity", lambda: engine.register_memory(self.here, -1)),
            (ValueError, "capacities", lambda: engine.batch_register_memory([1], [2**64])),
        ):  # fmt: skip
            with self.assertRaisesRegex(kind, name):
                call()

    def test_submit(self):
        batch = self.engine.transfer_submit_write(self.target, self.here, self.there, 4096)
        self.assertGreaterEqual(batch, 0)
        while self.engine.transfer_check_status(batch) == 0:
            pass
        self.assertEqual(self.engine.transfer_check_status(batch), -1)  # it is freed

    def test_waiting_uses_no_cpu(self):
        """A transfer to a peer that is stopped: the thread sleeps, and handles signals."""
        from wherry import mooncake

        # Through the peer's memory it would need no answer.
        with unittest.mock.patch.dict(os.environ, WHERRY_TRANSPORTS="tcp"):
            engine = mooncake.TransferEngine()
            self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        self.assertEqual(engine.register_memory(self.here, 4096), 0)
        self.assertEqual(engine.transfer_sync_write(self.target, self.here, self.there, 4096), 0)
        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)
        try:
            batch = engine.batch_transfer_async_write(
                self.target, [self.here], [self.there], [4096]
            )
            before = time.process_time()
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with self.assertRaises(KeyboardInterrupt):
                engine.get_batch_transfer_status([batch])
            self.assertLess(time.process_time() - before, 0.2)
        finally:
            os.kill(self.process.pid, signal.SIGCONT)
        self.assertEqual(engine.get_batch_transfer_status([batch]), 0)

    def test_about(self):
        for one in json.loads(self.engine.get_local_topology()).values():
            self.assertEqual(len(one), 2)
        self.assertEqual(self.engine.send_probe(self.target), 0)
        self.assertEqual(self.engine.send_probe("127.0.0.1:1"), -102)
        self.assertEqual(self.engine.warmup_efa_segment(self.target), 0)
        self.assertEqual(self.engine.write_bytes_to_buffer(self.here, "text", 4), 0)
        self.assertEqual(self.engine.read_bytes_from_buffer(self.here, 4), b"text")

    def test_not_implemented(self):
        from wherry import mooncake

        self.assertFalse(mooncake.SharedSegment.supported())
        for call in (
            self.engine.get_engine,
            self.engine.get_engine_ptr,
            mooncake.RpcInterface,
            mooncake.create_rpc_client,
            lambda: mooncake.SharedSegment.create("name", 1, 1, 0),
        ):
            with self.assertRaises(NotImplementedError):
                call()

    def test_errors(self):
        self.assertEqual(self.engine.transfer_sync_write("127.0.0.1:1", self.here, 0, 8), -1)
        self.assertEqual(self.engine.transfer_sync_read(self.target, self.here, 8, 8), -1)
        self.assertEqual(self.engine.transfer_sync_read(self.target, 8, self.there, 8), -1)
        self.assertLess(self.engine.unregister_memory(8), 0)
        self.assertIn("no memory is registered", self.mooncake.wherry_error_text())
        self.assertEqual(self.engine.transfer_sync_write("127.0.0.1:1", self.here, 0, 8), -1)
        self.assertIn("127.0.0.1:1", self.mooncake.wherry_error_text())
        self.assertEqual(self.engine.get_batch_transfer_status([7]), -1)
        self.assertEqual(self.engine.unregister_memory(self.here), 0)
        self.assertEqual(self.engine.get_notifies(), [])


class Signals(test_signals.Interrupted):
    """Ctrl-C, while a call waits for one that takes connections and says nothing."""

    def setUp(self):
        super().setUp()
        from wherry import mooncake

        self.other = mooncake.TransferEngine()
        self.addCleanup(self.other.__del__)
        self.silent = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(self.silent.close)
        self.url = f"127.0.0.1:{self.silent.getsockname()[1]}"

    def test_segment(self):
        self.assertEqual(self.other.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        here = self.other.allocate_managed_buffer(4096)
        self.interrupted(lambda: self.other.transfer_sync_write(self.url, here, 0, 8))

    def test_store(self):
        store = f"http://{self.url}/metadata"
        self.interrupted(lambda: self.other.initialize("127.0.0.1", store, "tcp", ""))

    def test_memory(self):
        """The store stands still while memory is published and withdrawn."""
        store = Store()
        self.addCleanup(store.end)
        self.assertEqual(self.other.initialize("127.0.0.1", store.url, "tcp", ""), 0)
        here = self.other.allocate_managed_buffer(4096)
        with store.changed:
            self.interrupted(lambda: self.other.allocate_managed_buffer(4096))
        with store.changed:
            self.interrupted(lambda: self.other.unregister_memory(here))


# In the real module's interpreter: serves memory, then moves it both ways. Prints what it has.
REAL = """
import json, os, sys
from mooncake import engine as module

engine = module.TransferEngine()
assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
address = engine.allocate_managed_buffer(1 << 20)
engine.write_bytes_to_buffer(address, "from the real one", 17)
methods = {
    name: getattr(module.TransferEngine, name).__doc__.split(chr(10))[0]
    for name in dir(module.TransferEngine)
    if callable(getattr(module.TransferEngine, name)) and not name.startswith("_")
}
about = {
    "names": [name for name in dir(module) if not name.startswith("_")],
    "methods": {name: text for name, text in methods.items() if text.startswith(name + "(")},
    "port": engine.get_rpc_port(),
    "address": address,
}
print("ABOUT " + json.dumps(about), flush=True)
target, there = sys.stdin.readline().split()
print("WAS " + engine.read_bytes_from_buffer(address + 4096, 8).decode(), flush=True)
assert engine.transfer_sync_read(target, address + 8192, int(there), 65536) == 0
assert engine.transfer_sync_write(target, address + 8192, int(there) + 65536, 65536) == 0
print("END", flush=True)
os._exit(0)
"""


class Real(unittest.TestCase):
    """The module from PyPI, in another process."""

    def setUp(self):
        from wherry import mooncake

        self.mooncake = mooncake
        if "TESTS_EMULATED" in os.environ:
            self.skipTest("its wheel is for this machine, not for the emulated one")
        found = subprocess.run(
            [os.path.join(ROOT, "scripts", "mooncake")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            check=False,
        )
        if found.returncode:
            self.skipTest(found.stderr.decode().strip() or "scripts/mooncake has failed")
        self.process = subprocess.Popen(
            [found.stdout.decode().strip(), "-c", REAL],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.addCleanup(self.process.communicate)
        self.addCleanup(self.process.kill)
        self.about = json.loads(self.said("ABOUT"))

    def said(self, word):
        """The rest of the next line that begins with that word."""
        for line in self.process.stdout:
            text = line.decode("utf-8", "replace")
            if text.startswith(word):
                return text[len(word) :].strip()
        self.fail(f"the real module's process has ended before it said {word}")

    def test_names(self):
        """Everything that the real module has is here, and its methods take the same arguments."""
        self.assertEqual(set(self.about["names"]) - set(dir(self.mooncake)), set())
        for name, text in self.about["methods"].items():
            ours = inspect.signature(getattr(self.mooncake.TransferEngine, name)).parameters
            theirs = text[text.index("(") + 1 : text.rindex(") ->")]
            wanted = [part for part in theirs.split(", ") if ":" in part]
            self.assertEqual(len(ours), len(wanted), f"{name}: {text}")
            for part, parameter in list(zip(wanted, ours.values()))[1:]:
                if not part.startswith("arg"):
                    self.assertEqual(part.split(":")[0], parameter.name, text)
                self.assertEqual("=" in part, parameter.default is not inspect.Parameter.empty)

    def test_both_directions(self):
        engine = self.mooncake.TransferEngine()
        self.assertEqual(engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""), 0)
        here = engine.allocate_managed_buffer(1 << 20)
        target, there = f"127.0.0.1:{self.about['port']}", self.about["address"]
        self.assertEqual(engine.send_probe(target), 0)
        # Its buffers are parts of one memory.
        self.assertGreater(engine.get_first_buffer_address(target), 0)
        self.assertEqual(engine.transfer_sync_read(target, here, there, 17), 0)
        self.assertEqual(engine.read_bytes_from_buffer(here, 17), b"from the real one")
        engine.write_bytes_to_buffer(here, b"by wherr", 8)
        self.assertEqual(
            engine.batch_transfer_sync_write(target, [here] * 2, [there + 4096] * 2, [4, 8]), 0
        )
        data = os.urandom(65536)
        engine.write_bytes_to_buffer(here, data, len(data))
        self.process.stdin.write(f"127.0.0.1:{engine.get_rpc_port()} {here}\n".encode())
        self.process.stdin.flush()
        self.assertEqual(self.said("WAS"), "by wherr")
        self.said("END")
        self.assertEqual(engine.read_bytes_from_buffer(here + 65536, 65536), data)


if __name__ == "__main__":
    unittest.main()
