# SPDX-License-Identifier: Apache-2.0
"""Signals are handled while a call waits for a peer that does not answer."""
import os
import signal
import socket
import time
import unittest

from test_transfer import Case


class Signals(Case):
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

    def silent(self, call, before=lambda peer: None, **settings):
        """Interrupt call(peer, before(peer)), of a peer that is stopped."""
        engine = self.engine
        if settings:
            engine = type(engine)(timeout="60s", **settings)
            self.addCleanup(engine.close)
        owner = self.own()
        peer = engine.connect(owner.url)
        found = before(peer)
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.waitpid(owner.process.pid, os.WUNTRACED)
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
        os.kill(owner.process.pid, signal.SIGSTOP)
        os.waitpid(owner.process.pid, os.WUNTRACED)
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


if __name__ == "__main__":
    unittest.main()
