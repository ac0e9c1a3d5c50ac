# SPDX-License-Identifier: Apache-2.0
"""wherry.mooncake: the methods of mooncake.engine."""
import ctypes
import os
import subprocess
import sys
import tempfile
import unittest

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


class Mooncake(unittest.TestCase):
    def setUp(self):
        from wherry import mooncake

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

    def test_submit(self):
        batch = self.engine.transfer_submit_write(self.target, self.here, self.there, 4096)
        self.assertGreaterEqual(batch, 0)
        while self.engine.transfer_check_status(batch) == 0:
            pass
        self.assertEqual(self.engine.transfer_check_status(batch), -1)  # it is freed

    def test_errors(self):
        self.assertEqual(self.engine.transfer_sync_write("127.0.0.1:1", self.here, 0, 8), -1)
        self.assertEqual(self.engine.transfer_sync_read(self.target, self.here, 8, 8), -1)
        self.assertEqual(self.engine.transfer_sync_read(self.target, 8, self.there, 8), -1)
        self.assertLess(self.engine.unregister_memory(8), 0)
        self.assertEqual(self.engine.unregister_memory(self.here), 0)
        self.assertEqual(self.engine.get_notifies(), [])


if __name__ == "__main__":
    unittest.main()
