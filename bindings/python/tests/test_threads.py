# SPDX-License-Identifier: Apache-2.0
"""Sixteen threads on one engine: every byte is compared; plans are shared; transfers are cancelled,
and plans and engines closed, while others use them.

WHERRY_TEST_SECONDS is how long, in all (10)."""
import array
import errno
import os
import random
import threading
import time
import unittest

import wherry
from test_transfer import Case

THREADS = 16
SECONDS = float(os.environ.get("WHERRY_TEST_SECONDS", "10"))
PART = (1 << 20) // THREADS


class Threads(Case):
    def setUp(self):
        # A machine with other work may stop a peer for long.
        self.engine = wherry.Engine(name="case", timeout="60s")
        self.addCleanup(self.engine.close)

    def run_threads(self, work, share):
        """work(number) again and again in every thread, for a share of the time; returns how many
        times in all. The first exception is raised here."""
        end = time.monotonic() + SECONDS * share
        failed, counts = [], [0] * THREADS

        def run(number):
            try:
                while time.monotonic() < end and not failed:
                    work(number)
                    counts[number] += 1
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
        return sum(counts)

    def test_bytes(self):
        """Each thread writes to the first half of its part of the owner's memory and reads it back,
        by every way to start and to wait; all submit one plan, which fills the second halves."""
        peer = self.engine.connect(self.own().url)
        remote = peer.find("kv")
        sent, got = bytearray(1 << 20), bytearray(1 << 20)
        ours, back = self.engine.register(sent), self.engine.register(got)
        same = bytes(range(255, -1, -1)) * (PART // 512) * THREADS
        odd = array.array("i", range(1, 2 * THREADS, 2))
        whole = self.engine.register(bytearray(same))
        plan = peer.prepare_write(
            remote, whole, blocks=(range(THREADS), odd, PART // 2), require="tcp"
        )
        self.addCleanup(plan.close)
        pages = array.array("q", random.sample(range(PART // 2 // 512), PART // 2 // 512))

        def work(number):
            first, last = number * PART, number * PART + PART // 2
            data = os.urandom(PART // 2)
            sent[first:last] = data
            part, mine = remote[first:last], ours[first:last]
            way = random.randrange(3)
            require = random.choice((None, "tcp"))
            if way == 0:
                with peer.write(part, mine, require=require):
                    pass
            elif way == 1:
                peer.write(part, mine, blocks=(pages, pages, 512), require=require).wait()
            else:
                done = threading.Event()
                transfer = peer.write(part, mine, priority="latency", require=require)
                transfer.add_done_callback(lambda _: done.set())
                self.assertTrue(done.wait(60))
                transfer.wait()
            running = plan.submit()
            peer.read(part, back[first:last]).wait(60)
            self.assertEqual(got[first:last], data)
            running.wait(60)
            after = slice(last, last + PART // 2)
            peer.read(remote[after], back[after]).wait(60)
            self.assertEqual(got[after], same[: PART // 2])

        self.assertGreater(self.run_threads(work, 0.5), 0)

    def test_cancel(self):
        """Transfers are cancelled by two threads each, while plans come and go."""
        peer = self.engine.connect(self.own().url)
        remote = peer.find("kv")
        region = self.engine.register(bytearray(1 << 20))
        shared = [peer.prepare_write(remote, region, require="tcp")]

        def work(number):
            plan = shared[0]
            try:
                transfer = plan.submit()
            except wherry.Error as error:  # closed by another thread
                self.assertEqual(error.errno, errno.EINVAL)
                return
            other = threading.Thread(target=transfer.cancel)
            other.start()
            transfer.cancel()
            self.assertTrue(transfer.done())
            try:
                transfer.wait()
            except wherry.Cancelled:
                pass
            other.join()
            if not random.randrange(50):
                shared[0] = peer.prepare_write(remote, region, require="tcp")
                plan.close()

        self.assertGreater(self.run_threads(work, 0.2), 0)

    def test_close(self):
        """Engines are closed while sixteen threads use them."""
        end = time.monotonic() + SECONDS * 0.3
        url = self.own().url
        while True:
            with wherry.Engine(listen="none", timeout="60s") as engine:
                peer = engine.connect(url)
                remote = peer.find("kv")
                region = engine.register(bytearray(1 << 20))
                plan = peer.prepare_read(remote, region, warm=False)
                busy, failed = threading.Semaphore(0), []

                def work():
                    try:
                        while True:
                            one = plan.submit()
                            peer.read(remote[0:64], region[0:64])
                            busy.release()
                            one.wait()
                            peer.find("kv")
                    except wherry.Error as error:
                        if error.errno not in (errno.EINVAL, errno.ECANCELED):
                            failed.append(error)
                    except BaseException as error:
                        failed.append(error)

                threads = [threading.Thread(target=work) for _ in range(THREADS)]
                for thread in threads:
                    thread.start()
                for _ in range(random.randrange(4 * THREADS)):
                    busy.acquire(timeout=60)
            for thread in threads:
                thread.join()
            self.assertEqual(failed, [])
            if time.monotonic() > end:
                break

    def test_close_a_peer(self):
        """Peers are closed while threads use them: no handle is used after that."""
        end = time.monotonic() + SECONDS * 0.2
        url = self.own().url
        region = self.engine.register(bytearray(4096))
        while True:
            peer = self.engine.connect(url)
            remote = peer.find("kv")
            busy, failed = threading.Semaphore(0), []

            def work(number):
                try:
                    while True:
                        busy.release()
                        if number == 0:  # it waits until the peer is closed
                            peer.find("never", timeout=600)
                        elif number % 2:
                            peer.regions()
                        else:
                            peer.read(remote[0:64], region[0:64]).wait()
                except wherry.Error as error:
                    if error.errno != errno.EINVAL or "the peer is closed" not in str(error):
                        failed.append(error)
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(n,)) for n in range(THREADS)]
            for thread in threads:
                thread.start()
            for _ in range(THREADS + random.randrange(4 * THREADS)):
                busy.acquire(timeout=60)
            try:
                peer.close()
            except wherry.Error as error:  # a transfer is not yet freed; no call has gone on
                self.assertEqual(error.errno, errno.EBUSY)
                while any(thread.is_alive() for thread in threads):
                    try:
                        peer.close()
                    except wherry.Error:
                        time.sleep(0.001)
            for thread in threads:
                thread.join()
            peer.close()
            self.assertEqual(failed, [])
            with self.raises(errno.EINVAL, "the peer is closed"):
                peer.find("kv")
            if time.monotonic() > end:
                break


if __name__ == "__main__":
    unittest.main()
