# SPDX-License-Identifier: Apache-2.0
"""Transfers and notifications in event loops."""
import asyncio
import os
import threading
import unittest
from unittest import mock

import wherry


class Loops(unittest.TestCase):
    def setUp(self):
        self.engine = wherry.Engine(name="loops")
        self.addCleanup(self.engine.close)
        self.other = wherry.Engine(name="other")
        self.addCleanup(self.other.close)
        self.source = bytearray(os.urandom(1 << 20))
        self.other.register(self.source, name="source", access="rw")
        self.target = bytearray(1 << 20)
        self.region = self.engine.register(self.target)
        self.peer = self.engine.connect(self.other.url)

    def run_loop(self, main):
        asyncio.run(asyncio.wait_for(main(), 120))
        self.assertEqual(self.engine._core.loops, {})
        self.assertEqual(self.engine._core.watched, {})

    def test_a_thousand(self):
        async def main():
            remote = self.peer.find("source")
            await asyncio.gather(
                *[
                    self.peer.read(
                        remote[n * 1024 : n * 1024 + 1024],
                        self.region[n * 1024 : n * 1024 + 1024],
                        require="tcp",
                    )
                    for n in range(1000)
                ]
            )

        self.run_loop(main)
        self.assertEqual(self.source[:1024000], self.target[:1024000])

    def test_with(self):
        async def main():
            async with self.peer.read("source", self.region, require="tcp") as transfer:
                pass
            self.assertTrue(transfer.done())
            with self.assertRaises(ZeroDivisionError):
                async with self.peer.read("source", self.region, require="tcp"):
                    raise ZeroDivisionError

        self.run_loop(main)

    def test_failure(self):
        async def main():
            remote = self.peer.find("source")
            transfer = self.peer.read(remote, self.region, require="tcp")
            transfer.cancel()
            try:
                await transfer
            except wherry.Cancelled:
                pass

        self.run_loop(main)

    def test_task_is_cancelled(self):
        """The transfer goes on without the task, and its memory stays."""

        async def main():
            transfer = self.peer.read("source", self.region, require="tcp")

            async def wait():
                await transfer

            task = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
            await transfer

        self.run_loop_leaving(main)

    def run_loop_leaving(self, main):
        asyncio.run(asyncio.wait_for(main(), 120))
        self.assertEqual(self.engine._core.loops, {})

    def test_plan(self):
        async def main():
            plan = self.peer.prepare_read("source", self.region, blocks=(None, None, 4096))
            for _ in range(100):
                self.assertIs(type(await plan.submit()), wherry.Transfer)

        self.run_loop(main)
        self.assertEqual(self.source, self.target)

    def test_callback(self):
        async def main():
            done = asyncio.Event()
            transfer = self.peer.read("source", self.region)
            transfer.add_done_callback(lambda _: done.set())
            await done.wait()

        self.run_loop(main)

    def test_loops_of_threads(self):
        errors = []

        def run():
            async def main():
                for _ in range(50):
                    await self.peer.read("source", self.region, require="tcp")

            try:
                asyncio.run(asyncio.wait_for(main(), 120))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(self.engine._core.loops, {})

    def test_connect(self):
        async def main():
            with self.assertRaisesRegex(ValueError, "url"):
                await self.engine.connect_async(self.other.url + "\0")
            peer = await self.engine.connect_async(self.other.url)
            await peer.read("source", self.region)

        self.run_loop(main)


class Notifications(unittest.TestCase):
    def setUp(self):
        self.engine = wherry.Engine(name="receiver")
        self.addCleanup(self.engine.close)
        self.sender = wherry.Engine(name="sender", listen="none")
        self.addCleanup(self.sender.close)
        self.peer = self.sender.connect(self.engine.url)

    def test_take(self):
        with self.assertRaises(wherry.Timeout):
            self.engine.notification(0)
        with self.assertRaises(TimeoutError):
            self.engine.notification(0.01)
        self.peer.notify(2**64 - 1, b"a").wait()
        self.assertEqual(
            self.engine.notification(30),
            wherry.Notification(2**64 - 1, b"a", "sender", self.sender.epoch),
        )

    def test_large_and_empty(self):
        for data in (b"", os.urandom(65536), os.urandom(513)):
            self.peer.notify(1, data).wait()
            self.assertEqual(self.engine.notification(30).data, data)
        with self.assertRaises(wherry.Error):
            self.peer.notify(1, bytes(65537))

    def test_filters(self):
        for tag in (1, 2, 3):
            self.peer.notify(tag).wait()
        self.assertEqual(self.engine.notification(30, tag=2).tag, 2)
        self.assertEqual(self.engine.notification(30, sender="sender").tag, 1)
        with self.assertRaises(wherry.Timeout):
            self.engine.notification(0, sender="nobody")

    def test_async(self):
        async def main():
            async def send():
                for number in range(100):
                    await self.peer.notify(number % 2, b"%d" % number)

            sending = asyncio.ensure_future(send())
            found = []
            async for one in self.engine.notifications():
                found.append(int(one.data))
                if len(found) == 100:
                    break
            await sending
            self.assertEqual(found, list(range(100)))

        asyncio.run(asyncio.wait_for(main(), 120))

    def test_async_filter(self):
        async def main():
            for number in range(10):
                await self.peer.notify(number % 2, b"%d" % number)
            found = []
            async for one in self.engine.notifications(tag=1):
                found.append(int(one.data))
                if len(found) == 5:
                    break
            self.assertEqual(found, [1, 3, 5, 7, 9])

        asyncio.run(asyncio.wait_for(main(), 120))


class Callbacks(unittest.TestCase):
    """Functions that raise what is no Exception."""

    RAISED = (asyncio.CancelledError, SystemExit, KeyboardInterrupt, GeneratorExit)

    def setUp(self):
        self.receiver = wherry.Engine(name="receiver", notifications=1)
        self.addCleanup(self.receiver.close)
        self.engine = wherry.Engine(name="sender", listen="none")
        self.addCleanup(self.engine.close)
        self.peer = self.engine.connect(self.receiver.url)

    def waiting(self):
        """A notification that completes when the receiver takes the one before."""
        self.peer.notify(1).wait()
        return self.peer.notify(2)

    def take(self, count):
        for _ in range(count):
            self.receiver.notification(60)

    def test_later_ones(self):
        """They are called, those of the same transfer, too, and the engine closes."""
        for raised in self.RAISED:
            transfer, done = self.waiting(), threading.Event()

            def fail(_, raised=raised):
                raise raised("of the callback")

            with self.assertLogs("wherry", "ERROR") as log:
                transfer.add_done_callback(fail)
                transfer.add_done_callback(lambda _: done.set())
                self.take(2)
                self.assertTrue(done.wait(60))
                while not log.output:  # after the last one
                    pass
            self.assertIn("of the callback", log.output[0])
        self.engine.close()

    def test_loop(self):
        async def main():
            transfer, done = self.waiting(), asyncio.Event()

            def fail(_):
                raise asyncio.CancelledError("of the callback")

            transfer.add_done_callback(fail)
            transfer.add_done_callback(lambda _: done.set())
            self.take(2)
            await asyncio.wait_for(done.wait(), 60)

        with self.assertLogs("wherry", "ERROR") as log:
            asyncio.run(main())
        self.assertIn("of the callback", log.output[0])

    def test_close(self):
        """A callback that close() calls ends the program, with the engine closed."""
        called = []

        def fail(_):
            called.append("fail")
            raise SystemExit

        with mock.patch.object(self.engine._core, "serve_callbacks"):
            self.waiting().add_done_callback(fail)
            self.peer.notify(3).add_done_callback(lambda _: called.append("other"))
        with self.assertRaises(SystemExit):
            self.engine.close()
        self.assertEqual(sorted(called), ["fail", "other"])
        self.assertEqual(self.engine._core.handle, 0)

    def test_no_thread(self):
        """No thread can be started for a callback: the caller hears of it, and the engine closes."""
        with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("no thread")):
            with self.assertRaises(RuntimeError):
                self.waiting().add_done_callback(lambda _: None)
        self.engine.close()


if __name__ == "__main__":
    unittest.main()
