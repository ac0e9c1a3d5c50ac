# SPDX-License-Identifier: Apache-2.0
"""Weights: from state_dicts to plans, versions in two buffers, and real processes."""
import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import unittest

from test_transfer import Case, needs_numpy, numpy
from weights_workers import PATIENCE, server, trainer

import wherry
from wherry import _layouts, weights


class Meeting:
    """gather= for members that are threads of one process."""

    def __init__(self, count):
        self.barrier = threading.Barrier(count, timeout=PATIENCE)
        self.parts = []

    def __call__(self, part):
        self.parts.append(json.loads(json.dumps(part)))  # as it is after a network
        self.barrier.wait()
        return self.parts


class Together(Case):
    def members(self, *wanted, alter=lambda parts, name: parts, **options):
        """Members in threads; each is (name, publish, receive). Or the errors."""
        meeting, found = Meeting(len(wanted)), [None] * len(wanted)

        def open_one(index, name, publish, receive):
            engine = wherry.Engine(name=name)
            self.addCleanup(engine.close)
            try:
                found[index] = weights.join(
                    publish, receive, engine=engine,
                    gather=lambda part: alter(meeting(part), name), **options,
                )  # fmt: skip
            except wherry.Error as error:
                found[index] = error

        threads = [
            threading.Thread(target=open_one, args=(i, *one)) for i, one in enumerate(wanted)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        return found

    def pair(self, publish, receive, **options):
        found = self.members(("s", publish, None), ("t", None, receive), **options)
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found

    def refused(self, number, *texts, publish, receive, **options):
        """Both sides are refused, with these texts in one line."""
        for one in self.members(("s", publish, None), ("t", None, receive), **options):
            self.assertIsInstance(one, wherry.Error, one)
            self.assertEqual(errno.errorcode[one.errno], errno.errorcode[number], one)
            for text in texts:
                self.assertIn(text, one.strerror)
            self.assertNotIn("\n", one.strerror)


class Versions(Together):
    def setUp(self):
        super().setUp()
        self.data = bytearray(3 << 20)
        self.mine = bytearray(3 << 20)
        self.source, self.target = self.pair({"w": self.data}, {"w": self.mine})

    def fill(self, version):
        self.data[:] = bytes([version]) * len(self.data)

    def offer(self, version):
        self.fill(version)
        return self.source.publish(version)

    def test_pass(self):
        for version in (1, 2, 3):
            with self.offer(version) as publication:
                self.assertEqual(publication.version, version)
                self.assertIs(publication.wait(PATIENCE), publication)
                self.assertTrue(publication.done())
                self.assertEqual(publication.progress, (3 << 20, 3 << 20, 1, 1))
            with self.target.acquire(version - 1, PATIENCE) as view:
                self.assertEqual(view.version, version)
                self.assertEqual(bytes(view.tensors["w"]), bytes([version]) * (3 << 20))
        self.assertEqual(self.mine, bytes(3 << 20))  # the state_dict is written by load() alone
        self.assertEqual(self.target.load(), 3)
        self.assertEqual(self.mine, self.data)
        info = self.target.info()
        self.assertEqual((info.current, info.receiving, info.total), (3, 0, 9 << 20))
        self.assertEqual(self.source.info().published, 3)
        (source,) = self.target.members()
        self.assertEqual((source.name, source.state, source.source), ("s", "connected", True))
        self.assertEqual(source.sent, 9 << 20)
        self.assertIn(source.route.split(",")[0], ("shm", "cuda", "tcp"))
        self.assertIn("9437184 bytes read from it by", self.target.explain())
        self.assertIn("has version 3", publication.explain())
        self.assertIn("'s' publishes", repr(self.source).replace(",", ""))

    def test_numbers_by_themselves(self):
        for version in (1, 2):
            with self.source.publish() as publication:
                self.assertEqual(publication.version, version)

    def test_two_buffers(self):
        """A view stays as it is; one version may come meanwhile, and no second one."""
        self.offer(1).wait(PATIENCE).cancel()
        first = self.target.acquire(0, PATIENCE)
        self.offer(2).wait(PATIENCE).cancel()
        second = self.target.acquire(1, PATIENCE)
        self.assertEqual((first.version, second.version), (1, 2))
        self.assertNotEqual(first.buffer, second.buffer)
        third = self.offer(3)
        with self.assertRaises(wherry.Timeout):
            self.target.acquire(2, 0.3)
        self.assertFalse(third.done())
        self.assertIn("readers keep the version before", self.target.explain())
        self.assertEqual(bytes(first.tensors["w"]), bytes([1]) * (3 << 20))
        first.release()
        first.release()
        with self.raises(errno.EINVAL, "released"):
            first.copy_to({"w": self.mine})
        with self.target.acquire(2, PATIENCE) as view:
            self.assertEqual(view.version, 3)
            self.assertEqual(view.buffer, first.buffer)
            self.assertEqual(bytes(second.tensors["w"]), bytes([2]) * (3 << 20))
        with self.raises(errno.EBUSY, "1 views"):
            self.target.close()
        second.release()
        self.target.close()

    def test_cancelled_by_the_target(self):
        self.target.cancel(2)
        self.offer(2)
        with self.assertRaises(wherry.Timeout):
            self.target.acquire(0, 0.3)
        self.source.retract()
        with self.offer(3):
            self.assertEqual(self.target.load(timeout=PATIENCE), 3)

    def test_cancelled_by_the_source(self):
        old = self.offer(1)
        old.wait(PATIENCE)
        old.cancel()
        new = self.offer(2)
        old.cancel()  # it is not the one that is published
        new.wait(PATIENCE)
        with self.raises(errno.EALREADY, "retract"):
            self.source.publish(3)
        new.cancel()
        with self.raises(errno.EINVAL, "not greater"):
            self.source.publish(2)
        with self.raises(errno.EINVAL, "from 1"):
            self.source.publish(-1)
        try:
            with self.offer(4):
                raise KeyError
        except KeyError:
            self.assertEqual(self.source._offered, 0)

    def test_roles(self):
        with self.raises(errno.EACCES, "no source"):
            self.target.publish(1)
        with self.raises(errno.EACCES, "no target"):
            self.source.acquire(0, 0)
        with self.raises(errno.EACCES, "no target"):
            self.source.cancel(1)

    def test_copy_to_others(self):
        with self.offer(1):
            view = self.target.acquire(0, PATIENCE)
        with view:
            for wrong in ({"w": bytearray(5)}, {"x": self.mine}):
                with self.raises(errno.EINVAL, "the version has"):
                    view.copy_to(wrong)
            with self.raises(errno.EINVAL, "read-only"):
                view.copy_to({"w": bytes(3 << 20)})

    def test_taken_out_of_a_view(self):
        """What a reader takes out is in the next view of the same buffer, and its memory held."""
        for version in (1, 2, 3):
            with self.offer(version) as publication:
                publication.wait(PATIENCE)
            with self.target.acquire(version - 1, PATIENCE) as view:
                self.assertEqual(bytes(view.tensors.pop("w")), bytes([version]) * (3 << 20))
                self.assertEqual(view.tensors, {})

    def test_closed_while_it_waits(self):
        errors = []

        def wait(call):
            try:
                call()
            except wherry.Error as error:
                errors.append(error.errno)

        threads = [
            threading.Thread(target=wait, args=(call,))
            for call in (self.target.acquire, lambda: self.target.wait(7))
        ]
        for thread in threads:
            thread.start()
        while len(self.target.inside) < 2:
            pass
        self.target.close()
        for thread in threads:
            thread.join(PATIENCE)
        self.assertEqual(errors, [errno.EINVAL] * 2)
        with self.raises(errno.EINVAL, "closed"):
            self.target.acquire(0, 0)
        self.target.close()
        self.assertIn("closed", repr(self.target))

    def test_engine_closed(self):
        """With a view that is not released, and with tensors that outlive it."""
        with self.offer(1):
            view = self.target.acquire(0, PATIENCE)
        self.target._engine.close()
        self.assertEqual(bytes(view.tensors["w"])[:3], b"\1\1\1")
        view.release()

    def test_fork(self):
        """A child lets the member alone, although a thread of the parent is in a call of it."""
        with self.offer(1):
            view = self.target.acquire(0, PATIENCE)
        waiting = threading.Thread(target=lambda: self.target.acquire(1, PATIENCE))
        waiting.start()
        while not self.target.inside:
            pass
        child = os.fork()
        if not child:
            signal.alarm(60)
            status = 0
            for call in (view.release, self.source.retract, lambda: self.source.publish(2)):
                try:
                    call()
                    status = 1
                except wherry.Error as error:
                    status = status if error.errno == errno.EPERM else 2
            self.target.close()
            os._exit(status)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        view.release()
        with self.offer(2):
            waiting.join(PATIENCE)
        self.assertFalse(waiting.is_alive())

    def test_signals(self):
        def interrupted(call):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with self.assertRaises(KeyboardInterrupt):
                call()

        self.addCleanup(signal.signal, signal.SIGALRM, signal.getsignal(signal.SIGALRM))
        signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
        self.addCleanup(signal.signal, signal.SIGINT, signal.getsignal(signal.SIGINT))
        signal.signal(signal.SIGINT, signal.default_int_handler)
        interrupted(self.target.acquire)
        interrupted(self.target.load)
        interrupted(lambda: self.source.wait(1))
        interrupted(lambda: self.target.wait(1, PATIENCE))
        hold = threading.Event()
        interrupted(lambda: weights.apart(hold.wait))  # cancel(), close()
        hold.set()
        with self.offer(1):
            self.assertEqual(self.target.load(timeout=PATIENCE), 1)


class Refused(Together):
    def test_types(self):
        other = memoryview(bytearray(8)).cast("H")
        self.refused(
            errno.EINVAL, "tensor 'w'", "u8", "u16", publish={"w": bytearray(8)},
            receive={"w": other},
        )  # fmt: skip

    def test_shapes(self):
        self.refused(
            errno.EINVAL, "tensor 'w'", "8", "9", publish={"w": bytearray(8)},
            receive={"w": bytearray(9)},
        )  # fmt: skip

    def test_missing(self):
        self.refused(
            errno.ENOENT, "tensor 'x'", publish={"w": bytearray(8)}, receive={"x": bytearray(8)}
        )

    def test_sources_contradict(self):
        found = self.members(
            ("a", {"w": bytearray(8)}, None), ("b", {"w": bytearray(9)}, None),
            ("t", None, {"w": bytearray(8)}),
        )  # fmt: skip
        for one in found:
            self.assertIn("'a' has u8 of 1 bytes [8], 'b' has u8 of 1 bytes [9]", str(one))

    def test_topology(self):
        self.refused(
            errno.EINVAL, "nic_GBpps", publish={"w": bytearray(8)}, receive={"w": bytearray(8)},
            topology={"h": {"nic_GBpps": 1}},
        )  # fmt: skip

    def test_names(self):
        for one in self.members(("x", {"w": bytearray(8)}, None), ("x", None, {"w": bytearray(8)})):
            self.assertIn("two members are called 'x'", str(one))

    def test_other_layouts(self):
        """One member has other layouts than the others: both say so, and no byte moves."""

        def alter(parts, name):
            parts = json.loads(json.dumps(parts))
            for part in parts:
                if name == "t" and part["sources"]:
                    part["sources"]["tensors"]["w"][0] = "i8"
                if name == "t" and part["targets"]:
                    part["targets"]["tensors"]["w"][0] = "i8"
            return parts

        source, target = self.pair({"w": bytearray(8)}, {"w": bytearray(8)}, alter=alter)
        publication = source.publish(1)
        with self.raises(errno.EINVAL, "'t' has sources: tensor 'w': i8"):
            target.acquire(0, PATIENCE)
        with self.raises(errno.EINVAL, "'s' has sources: tensor 'w': u8"):
            publication.wait(PATIENCE)
        self.assertEqual(target.info().total, 0)
        with self.raises(errno.EINVAL):
            with source.publish(2) if publication.cancel() else source.publish(2):
                pass

    def test_state_dicts(self):
        engine = self.engine
        for bad in ({}, {"w": bytearray(0)}):
            with self.raises(errno.EINVAL, "no bytes"):
                weights.publish(bad, engine=engine)
        with self.assertRaisesRegex(TypeError, "extra"):
            weights.publish({"extra": object()}, engine=engine)
        for begin, text in (((5,), "is not in it"), ((0, 0), "dimensions")):
            with self.raises(errno.EINVAL, text):
                weights.publish({"w": weights.Slice(bytearray(4), (8,), begin)}, engine=engine)
        if "torch" not in sys.modules:
            with self.raises(errno.EINVAL, "gather="):
                weights.publish({"w": bytearray(8)}, engine=engine)


class Placement:
    """As torch's Shard and Replicate."""

    def __init__(self, dim):
        self.dim = dim


class Shard(Placement):
    pass


class Replicate(Placement):
    pass


class Partial(Placement):
    pass


class Mesh:
    def __init__(self, shape, where):
        self.shape, self.where = shape, where

    def get_coordinate(self):
        return self.where

    def size(self, axis):
        return self.shape[axis]


class Sharded:
    """As a DTensor says where its shard is."""

    def __init__(self, local, shape, mesh, placements):
        self.local, self.shape = local, shape
        self.device_mesh, self.placements = mesh, placements

    def detach(self):
        return self

    def to_local(self):
        return self.local


@needs_numpy
class Layouts(Together):
    def place(self, local, *rest):
        (piece,) = _layouts.pieces_of({"w": Sharded(local, *rest)})
        return piece.begin, piece.end

    def test_placements(self):
        part = numpy.zeros((2, 6), "f4")
        for where, size, rows in ((0, 2, 0), (1, 2, 2), (2, 1, 4)):
            mesh, placements = Mesh([3], [where]), [Shard(0)]
            found = self.place(part[:size], (5, 6), mesh, placements)
            self.assertEqual(found, ((rows, 0), (rows + size, 6)))
        mesh = Mesh([2, 2], [1, 0])
        found = self.place(part[:, :3], (2, 6), mesh, [Replicate(0), Shard(-1)])
        self.assertEqual(found, ((0, 0), (2, 3)))
        found = self.place(part[:1, :], (4, 6), mesh, [Shard(0), Shard(0)])
        self.assertEqual(found, ((2, 0), (3, 6)))
        # The fourth of 3 rows: nothing, and one that is not in the mesh.
        for mesh in (Mesh([4], [3]), Mesh([4], None)):
            empty = Sharded(part[:0], (3, 6), mesh, [Shard(0)])
            self.assertEqual(_layouts.pieces_of({"w": empty}), [])
        with self.raises(errno.EINVAL, "only Shard and Replicate"):
            self.place(part, (2, 6), Mesh([2], [0]), [Partial(0)])
        with self.raises(errno.EINVAL, "local shard"):
            self.place(part, (2, 6), Mesh([2], [0]), [Shard(0)])

    def test_strides(self):
        base = numpy.arange(4 * 6 * 8, dtype="i4").reshape(4, 6, 8)
        held = {"a": base[:, ::2, 1:5], "b": base[:, 1::2, :].T, "c": base[3], "one": base[1, 2, 3]}
        held["one"] = base[1, 2, 3:4].reshape(())
        like = {name: numpy.zeros(value.shape, "i4") for name, value in held.items()}
        like["empty"] = numpy.zeros((0, 3), "f4")
        source, target = self.pair(held, like)
        with source.publish():
            with target.acquire(0, PATIENCE) as view:
                for name, value in held.items():
                    numpy.testing.assert_array_equal(view.tensors[name], value)
                self.assertEqual(view.tensors["empty"].shape, (0, 3))
                turned = {"b": numpy.zeros(held["b"].shape[::-1], "i4").T}
                view.copy_to(turned)
                numpy.testing.assert_array_equal(turned["b"], held["b"])
        with self.assertRaises(ValueError):
            base.base.resize(1 << 20, refcheck=False)
        with self.raises(errno.EINVAL, "overlap"):
            _layouts.as_source(_layouts.pieces_of({"w": numpy.broadcast_to(base[0, 0], (3, 8))}))
        with self.raises(errno.EINVAL, "contiguous"):
            _layouts.as_source(_layouts.pieces_of({"w": base[::-1]}))
        with self.raises(errno.EINVAL, "big-endian"):
            _layouts.pieces_of({"w": base.astype(">i4")})
        with self.raises(errno.EINVAL, "no bytes"):
            _layouts.pieces_of({"w": numpy.array([None])})

    def test_both_roles(self):
        """One process has the old weights and wants a part of them in another shape."""
        old = numpy.arange(4000, dtype="u2").reshape(100, 40)
        part = weights.Slice(numpy.zeros((100, 20), "u2"), (100, 40), (0, 10))
        engine = wherry.Engine(name="both")
        self.addCleanup(engine.close)
        both = weights.join({"w": old}, {"w": part}, engine=engine, gather=lambda one: [one])
        both.publish(5)
        self.assertEqual(both.load(timeout=PATIENCE), 5)
        numpy.testing.assert_array_equal(part.tensor, old[:, 10:30])
        both.wait(5, PATIENCE)

    @unittest.skipUnless(os.environ.get("TEST_COMMAND"), "the command wherry is not built")
    def test_plan_files(self):
        base = numpy.zeros((64, 48), "f2")
        source, _ = self.pair(
            {"w": base[:, ::2], "scale": base[0, 0:1].reshape(())},
            {"w": numpy.zeros((64, 24), "f2"), "scale": numpy.zeros((), "f2")},
            topology={"far": {"nic_GBps": 0.1}}, host="far",
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, name) for name in ("sources.json", "targets.json")]
            rates = {"far": {"nic_GBps": 0.1}}
            for path, layout in zip(files, weights.plan_files(source.parts, rates)):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(layout, file)
            done = subprocess.run(
                [os.environ["TEST_COMMAND"], "plan", "--json", *files],
                stdout=subprocess.PIPE, check=True,
            )  # fmt: skip
        self.assertGreater(json.loads(done.stdout)["expected_us"], 0)
        with self.raises(errno.EINVAL, "[ or @"):
            part = json.loads(json.dumps(source.parts).replace('"w"', '"w[0]"'))
            weights.plan_files(part)


# ---- processes


@needs_numpy
class Processes(unittest.TestCase):
    def start_one(self, call, number, config):
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        child = spawn.Process(target=call, args=(theirs, number, config))
        child.start()
        theirs.close()
        self.addCleanup(child.join)
        self.addCleanup(child.kill)
        self.addCleanup(ours.close)
        self.children.append((child, ours))
        return ours

    def start(self, *wanted, **config):
        self.children = []
        for call, number in wanted:
            self.start_one(call, number, config)
        parts = [self.hear(pipe) for _, pipe in self.children]
        for _, pipe in self.children:
            pipe.send(parts)
        return parts

    def hear(self, pipe):
        self.assertTrue(pipe.poll(PATIENCE), "nothing is heard of a process")
        return pipe.recv()

    def tell(self, version, servers):
        """Pass one version; this many servers get it."""
        for _, pipe in self.children:
            pipe.send((version, servers))
        answers = [self.hear(pipe) for _, pipe in self.children]
        self.assertEqual(answers, [servers, servers] + [True] * servers)

    def versions(self, versions, **config):
        self.start((trainer, 0), (trainer, 1), (server, 0), (server, 1), (server, 2), **config)
        for version in versions:
            self.tell(version, 3)
        self.end()

    def end(self):
        for child, pipe in self.children:
            pipe.send(None)
            child.join(PATIENCE)
            self.assertEqual(child.exitcode, 0)

    def test_rows_to_columns(self):
        self.versions((1, 2, 3, 10))

    def test_tcp(self):
        self.versions((1, 2), require="tcp")

    def test_a_server_dies(self):
        """The others go on. It comes back with the parts that all have kept."""
        parts = self.start((trainer, 0), (trainer, 1), (server, 0), (server, 1))
        self.tell(1, 2)
        child, pipe = self.children.pop()
        child.kill()
        child.join(PATIENCE)
        self.tell(2, 1)
        pipe = self.start_one(server, 1, {})
        mine = self.hear(pipe)
        pipe.send([one for one in parts if one["engine"] != mine["engine"]] + [mine])
        self.tell(3, 2)
        self.end()


if __name__ == "__main__":
    unittest.main()
