# SPDX-License-Identifier: Apache-2.0
"""Random programs of NIXL's operations, each run with Wherry's plug-in and with NIXL's own UCX. The
bytes of all memories and the notifications have to be the same afterwards; Wherry's in their order.

TESTS_PROGRAMS: how many (default 1000). TESTS_SEED: the first one's seed; a failure names its seed.
"""

import os
import random
import tempfile
import unittest

from agent import Side, each

COUNT = int(os.environ.get("TESTS_PROGRAMS", "1000"))
SEED = int(os.environ.get("TESTS_SEED", "1"))
SIZES = {"a": 200_000, "b": 65_536, "c": 1_000_003}
NAMES = ("alice", "bob")


class Program:
    """Operations of both sides, which mean the same whatever the backend is: no byte is written and
    read, or written twice, by what runs at the same time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.operations = []
        for _ in range(self.random.randrange(1, 12)):
            getattr(self, self.random.choice(("transfers", "transfers", "notify", "fill", "again")))()

    def notifications(self):
        """Those that each side receives, in the order in which they were sent."""
        expected = [], []
        for what, who, *rest in self.operations:
            if what == "notify":
                expected[1 - who].append(rest[0])
            elif what == "move" and rest[1] and rest[2]:
                expected[1 - who].extend([rest[2]] * rest[3])
        return list(expected)

    def pieces(self, op):
        """Pieces of a memory of each side; those of the target do not overlap."""
        here, there = self.random.choice("abc"), self.random.choice("abc")
        count = self.random.choice((1, 1, 2, 5, 30, 300))
        lengths = self.random.choice(
            ((64,), (4096,), (1, 2, 3), (512, 1024, 1536), (1, 100, 5000), (0, 8))
        )
        target, source = (here, there) if op == "read" else (there, here)
        out, at = [], 0
        for _ in range(count):
            at += self.random.choice((0, 0, 1, 64, 4096))
            length = self.random.choice(lengths)
            if at + length > SIZES[target] or length > SIZES[source]:
                break
            out.append((at, self.random.randrange(SIZES[source] - length + 1), length))
            at += length
        self.random.shuffle(out)
        if op == "read":
            pieces = [(here, t, there, s, length) for t, s, length in out]
        else:
            pieces = [(here, s, there, t, length) for t, s, length in out]
        return pieces

    def transfers(self):
        op = self.random.choice(("read", "write"))
        note = self.random.choice((b"", b"", b"note %d" % self.random.randrange(100)))
        who = self.random.randrange(2)
        self.operations.append(("move", who, op, self.pieces(op), note, 1))

    def again(self):
        """A request that is posted several times."""
        op = self.random.choice(("read", "write"))
        who = self.random.randrange(2)
        note = self.random.choice((b"", b"once more"))
        self.operations.append(("move", who, op, self.pieces(op), note, self.random.randrange(2, 5)))

    def notify(self):
        message = self.random.randbytes(self.random.choice((1, 10, 1000, 5000)))
        self.operations.append(("notify", self.random.randrange(2), message))

    def fill(self):
        memory = self.random.choice("abc")
        at = self.random.randrange(SIZES[memory])
        data = self.random.randbytes(self.random.randrange(1, SIZES[memory] - at + 1))
        self.operations.append(("fill", self.random.randrange(2), memory, at, data))


class Pair:
    """Two agents with a backend, which live through all programs."""

    def __init__(self, folder, backend, test):
        environment = {} if backend == "WHERRY" else {"NIXL_PLUGIN_DIR": os.environ["NIXL_UCX_DIR"]}
        self.sides = [Side(folder, name, backend, **environment) for name in NAMES]
        for side in self.sides:
            test.addCleanup(side.end)
        self.bases = [
            {name: side.register(name, size) for name, size in SIZES.items()} for side in self.sides
        ]
        metadata = [side.metadata() for side in self.sides]
        for side, other in zip(self.sides, reversed(metadata)):
            side.load(other)

    def run(self, program):
        """The memories' digests and the notifications of both sides after it."""
        each(self.sides, "clear")
        for what, who, *rest in program.operations:
            side, bases, theirs = self.sides[who], self.bases[who], self.bases[1 - who]
            if what == "fill":
                side.write(rest[0], rest[2], rest[1])
            elif what == "notify":
                side.notify(NAMES[1 - who], rest[0])
            else:
                op, pieces, note, times = rest
                local = [(bases[here] + at, length) for here, at, _, _, length in pieces]
                remote = [(theirs[there] + at, length) for _, _, there, at, length in pieces]
                if not pieces:
                    continue
                side.request("r", op, NAMES[1 - who], local, remote, note)
                for _ in range(times):
                    side.transfer("r", note)
                side.release("r")
        expected = program.notifications()
        got = [side.await_notifications(len(n)) for side, n in zip(self.sides, expected)]
        return each(self.sides, "digests"), [sum(one.values(), []) for one in got]


class Programs(unittest.TestCase):
    def test_do_the_same_as_with_ucx(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        pairs = [Pair(folder.name, backend, self) for backend in ("WHERRY", "UCX")]
        for seed in range(SEED, SEED + COUNT):
            program = Program(seed)
            with self.subTest(seed=seed):
                wherry, ucx = (pair.run(program) for pair in pairs)
                self.assertEqual(wherry[0], ucx[0])
                self.assertEqual(wherry[1], program.notifications())
                # UCX's overtake each other where NIXL has a thread for progress.
                self.assertEqual(*([sorted(one) for one in got] for got in (wherry[1], ucx[1])))


if __name__ == "__main__":
    unittest.main()
