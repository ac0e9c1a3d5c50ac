# SPDX-License-Identifier: Apache-2.0
"""vLLM's NixlConnector, a prefill worker and a decode worker, over the plug-in."""

import random
import tempfile
import unittest

from vllm_worker import Server

BLOCKS = 512


class Vllm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.prefill = cls.start("kv_producer")
        cls.decode = cls.start("kv_consumer")
        for side in (cls.prefill, cls.decode):
            side.wait()
        cls.prefill.fill(1)

    @classmethod
    def start(cls, role, **rest):
        side = Server(cls.folder.name, role, BLOCKS, **rest)
        cls.addClassCleanup(side.end)
        return side

    def hand_over(self, requests, prefill=None):
        """Load the requests, and check the blocks and that the prefill has let go of them."""
        prefill = prefill or self.prefill
        names = [name for name, _, _ in requests]
        prefill.prefilled(names)
        self.decode.load(prefill.address(), requests)
        self.assertEqual(self.decode.until("received", names), [])
        prefill.until("sent", names)
        for name, here, there in requests:
            self.assertEqual(self.decode.digests(here), prefill.digests(there), name)

    def test_a_uses_the_plug_in(self):
        for side in (self.prefill, self.decode):
            with open(f"/proc/{side.process.pid}/maps", encoding="utf-8") as file:
                maps = file.read()
            self.assertIn("libplugin_WHERRY.so", maps)
            self.assertNotIn("libplugin_UCX.so", maps)

    def test_blocks_are_handed_over(self):
        self.hand_over([("one", [3], [400])])
        self.hand_over([("row", list(range(64)), list(range(100, 164)))])

    def test_many_requests_at_once(self):
        order = random.Random(1)
        for turn in range(5):
            here = order.sample(range(BLOCKS), BLOCKS)
            there = order.sample(range(BLOCKS), BLOCKS)
            requests, at = [], 0
            for i, count in enumerate((1, 2, 3, 17, 64, 200, 5, 1)):
                requests.append((f"{turn} {i}", here[at : at + count], there[at : at + count]))
                at += count
            self.prefill.fill(turn + 2)
            self.hand_over(requests)

    def test_statistics_are_true(self):
        self.decode.statistics()
        self.hand_over([("counted", [1, 2, 3], [4, 5, 6])])
        found = self.decode.statistics()
        self.assertEqual(len(found["transfer_duration"]), 1, found)
        self.assertEqual(sum(found["num_failed_transfers"]), 0, found)

    def test_y_a_cache_that_is_registered_anew(self):
        """As sleep mode does."""
        self.decode.unregister()
        self.hand_over([("awake", [7, 8], [9, 10])])

    def test_z_a_prefill_that_dies(self):
        """The decoder says so, and goes on with another one."""
        doomed = self.start("kv_producer").wait()
        doomed.fill(99)
        address = doomed.address()
        self.hand_over([("before", [0, 1], [2, 3])], doomed)
        doomed.kill()
        names = ["orphan 1", "orphan 2"]
        self.decode.load(address, [(names[0], [10, 11], [2, 3]), (names[1], [12], [4])])
        self.assertEqual(self.decode.until("received", names), [10, 11, 12])
        self.hand_over([("after", [20, 21], [22, 23])])

    def test_zz_a_prefill_that_never_was(self):
        address = {**self.prefill.address(), "remote_engine_id": "nobody", "remote_port": 9}
        self.decode.load(address, [("lost", [30], [31])])
        self.assertEqual(self.decode.until("received", ["lost"]), [30])


if __name__ == "__main__":
    unittest.main()
