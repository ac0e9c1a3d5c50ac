# SPDX-License-Identifier: Apache-2.0
"""What servers do with NIXL's agents, call by call.

Pull is the order of calls of NixlConnector in vLLM 0.33.0 (vllm/distributed/kv_transfer/
kv_connector/v1/nixl: base_worker.py, pull_worker.py); tests/nixl/server runs vLLM itself. Push is
that of SGLang 0.5.23 (sglang/srt/disaggregation/nixl/conn.py), in which several threads send at the
same time and the tokens beside the pages go in a transfer of their own. The rest is what happens to
agents of servers in the long run.
"""

import os
import random
import tempfile
import threading
import time
import unittest

from agent import LIMIT, Agent, Failed, Side
from test_agents import MIB, pattern

LAYERS, BLOCKS, SIZE = 8, 256, 4096


class ServerAgent(Agent):
    """Runs in the process: an agent with a KV cache of LAYERS regions, each of BLOCKS blocks."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lists = {}

    # ---- set-up

    def cache(self, seed):
        """Register all layers in one call."""
        layers = [self.add(f"layer {i}", BLOCKS * SIZE, seed + i) for i in range(LAYERS)]
        self.all = self.b.nixlRegDList(
            self.b.DRAM_SEG, [(one.address, one.length, 0, "") for one in layers]
        )
        self.agent.registerMem(self.all, [self.handle])
        return [one.address for one in layers]

    def add(self, name, length, seed):
        self.register(name, length, pattern(length, seed), registered=False)
        return self.memories[name]

    def forget_cache(self):
        self.agent.deregisterMem(self.all, [self.handle])

    def register_cache_again(self):
        self.agent.registerMem(self.all, [self.handle])

    def prepare(self, name, agent, bases):
        """One list of all blocks of all layers, of which transfers take indices."""
        whose = agent or self.b.NIXL_INIT_AGENT
        pieces = [(base + i * SIZE, SIZE) for base in bases for i in range(BLOCKS)]
        made = self.agent.prepXferDlist(whose, self.descriptors(pieces), [self.handle])
        self.lists[name] = made

    def release_list(self, name):
        self.agent.releasedDlistH(self.lists.pop(name))

    def block(self, number):
        return b"".join(self.read(f"layer {i}", number * SIZE, SIZE) for i in range(LAYERS))

    def blocks(self, numbers):
        return [self.block(number) for number in numbers]

    # ---- transfers

    def launch(self, name, op, lists, here, there, notification=b""):
        """`here` and `there`: the blocks' numbers, the same in all layers."""
        import numpy

        local, remote = (
            numpy.concatenate([numpy.array(ids, numpy.int32) + i * BLOCKS for i in range(LAYERS)])
            for ids in (here, there)
        )
        operation = self.b.NIXL_READ if op == "read" else self.b.NIXL_WRITE
        self.requests[name] = self.agent.makeXferReq(
            operation,
            self.lists[lists[0]],
            local,
            self.lists[lists[1]],
            remote,
            notification,
            [],
        )
        self.agent.postXferReq(self.requests[name])

    def complete(self, names):
        """Poll all of them in turn, as a model runner does, and release each when it is done."""
        ends = time.monotonic() + LIMIT
        names = list(names)
        while names:
            for name in list(names):
                if self.done(name):
                    self.release(name)
                    names.remove(name)
            if time.monotonic() > ends:
                raise TimeoutError(names)

    def push(self, peer, tasks, pages):
        """Each thread sends its tasks. A task: its blocks, those of the peer, and the place of its
        first tokens in a memory of each side."""
        failed = []

        def work(number):
            try:
                for task, (here, there, mine, theirs) in enumerate(tasks):
                    if task % pages != number:
                        continue
                    name = f"push {task}"
                    self.launch(name, "write", ("here", "there"), here, there)
                    self.request(f"{name} tokens", "write", peer, [(mine, 64)], [(theirs, 64)])
                    self.agent.postXferReq(self.requests[f"{name} tokens"])
                    self.complete([name, f"{name} tokens"])
            except Exception as error:
                failed.append(f"{number}: {error!r}")

        threads = [threading.Thread(target=work, args=(n,)) for n in range(pages)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return failed

    def poll_while_loading(self, metadata, lists, rounds):
        """A thread loads agents, as a handshake does, while this one polls transfers."""
        failed = []

        def shake_hands():
            try:
                for one in metadata:
                    self.load(one)
            except Exception as error:
                failed.append(repr(error))

        thread = threading.Thread(target=shake_hands)
        thread.start()
        for i in range(rounds):
            self.launch("polled", "read", lists, [i % BLOCKS], [(7 * i) % BLOCKS], b"%d" % i)
            self.complete(["polled"])
        thread.join()
        return failed

    def reopen(self, count):
        """Agents that come and go; each has memory and says so to itself."""
        for i in range(count):
            former = self.another(f"{self.name} {i}")
            here = self.register("passing", MIB, bytes(MIB))
            there = self.register("by", MIB)
            self.move("write", self.name, [(here, MIB)], [(there, MIB)], b"%d" % i)
            self.await_notifications(1)
            self.agent = self.handle = None
            self.another(former)

    def fork(self):
        """A child ends what it has inherited, and has an agent of its own. Its exit status."""
        child = os.fork()
        if not child:
            status = 1
            try:
                self.forget_cache()
                self.lists.clear()
                self.close()
                own = ServerAgent("child", self.backend, None, False)
                here, there = own.register("here", MIB, b"x" * MIB), own.register("there", MIB)
                own.move("write", "child", [(here, MIB)], [(there, MIB)])
                status = own.read("there") != b"x" * MIB
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def remember(self):
        """So that another() finds the first agent, too."""
        self.agents[self.name] = (self.agent, self.handle)


class Server(Side):
    def __init__(self, folder, name, threads=False, **environment):
        self.begin(folder, environment, ServerAgent, (name, "WHERRY", None, threads))
        self.call("open")


class Pair(unittest.TestCase):
    threads = False

    def start(self, name, **environment):
        side = Server(self.folder.name, name, self.threads, **environment)
        self.addCleanup(side.end)
        return side

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.prefill, self.decode = self.start("prefill"), self.start("decode")
        self.there = self.prefill.cache(100)
        self.here = self.decode.cache(200)

    def shake_hands(self, side, other, bases, addresses):
        side.load(other.metadata())
        side.prepare("here", "", bases)
        side.prepare("there", addresses[0], addresses[1])


class Pull(Pair):
    """vLLM: the decoder reads, and its notification lets the prefill free the blocks."""

    def setUp(self):
        super().setUp()
        self.shake_hands(self.decode, self.prefill, self.here, ("prefill", self.there))

    def pull(self, requests):
        names = [name for name, _, _ in requests]
        for name, here, there in requests:
            message = f"{name}:1".encode()
            self.decode.launch(name, "read", ("here", "there"), here, there, message)
        self.decode.complete(names)
        # The prefill has not loaded the decoder's metadata: it learns its name all the same.
        found = self.prefill.await_notifications(len(names))
        self.assertEqual(sorted(found["decode"]), sorted(f"{name}:1".encode() for name in names))
        for name, here, there in requests:
            self.assertTrue(self.decode.blocks(here) == self.prefill.blocks(there), name)

    def test_requests(self):
        order = random.Random(3)
        for turn in range(4):
            here, there = (order.sample(range(BLOCKS), BLOCKS) for _ in range(2))
            requests, at = [], 0
            for i, count in enumerate((1, 7, 100, 3, 60)):
                requests.append((f"{turn}.{i}", here[at : at + count], there[at : at + count]))
                at += count
            self.pull(requests)

    def test_only_a_notification(self):
        """A full hit of the prefix cache; and heartbeats."""
        for message in (b"cached:1", b"HB:a,b,c"):
            self.decode.notify("prefill", message)
        found = self.prefill.await_notifications(2)
        self.assertEqual(found, {"decode": [b"cached:1", b"HB:a,b,c"]})

    def test_sleep_and_awake(self):
        """All is released, and made again with the same addresses."""
        self.pull([("first", [1, 2], [3, 4])])
        for name in ("here", "there"):
            self.decode.release_list(name)
        self.decode.forget("prefill")
        self.decode.forget_cache()
        self.decode.register_cache_again()
        self.prefill.forget_cache()
        self.prefill.register_cache_again()
        self.shake_hands(self.decode, self.prefill, self.here, ("prefill", self.there))
        self.pull([("second", [5, 6, 7], [8, 9, 10])])

    def test_a_prefill_that_changed_is_loaded_again(self):
        self.prefill.register("more", MIB)
        self.decode.load(self.prefill.metadata())
        self.pull([("after", [1], [2])])

    def test_handshakes_beside_transfers(self):
        self.decode.end()
        self.decode = Server(self.folder.name, "decode", threads=True)
        self.addCleanup(self.decode.end)
        self.here = self.decode.cache(200)
        self.shake_hands(self.decode, self.prefill, self.here, ("prefill", self.there))
        others = [self.start(f"other {i}") for i in range(3)]
        for other in others:
            other.cache(5)
        metadata = [other.metadata() for other in others] * 20
        self.assertEqual(self.decode.poll_while_loading(metadata, ("here", "there"), 300), [])
        self.prefill.await_notifications(300)

    def test_a_prefill_that_dies(self):
        self.pull([("before", [1, 2], [3, 4])])
        self.prefill.kill()
        with self.assertRaisesRegex(Failed, "Disconnect|Backend|NotFound"):
            # What is mapped is read even then; a notification tells.
            for _ in range(LIMIT):
                self.decode.launch("late", "read", ("here", "there"), [5], [6], b"late:1")
                self.decode.complete(["late"])
                time.sleep(0.1)
        other = self.prefill = self.start("successor")
        there = other.cache(300)
        self.decode.load(other.metadata())
        self.decode.prepare("there", "successor", there)
        self.pull([("again", [7, 8], [9, 10])])

    def test_forgetting_a_peer_with_transfers_under_way(self):
        for i in range(20):
            name = f"r{i}"
            self.decode.launch(name, "read", ("here", "there"), list(range(200)), list(range(200)))
            self.decode.forget("prefill")
            self.decode.release(name)
            self.decode.release_list("there")
            self.decode.load(self.prefill.metadata())
            self.decode.prepare("there", "prefill", self.there)
        self.pull([("after", [1], [2])])

    def test_connecting_before_anything_is_loaded(self):
        early = self.start("early")
        with self.assertRaises(Failed):
            early.connect("prefill")
        early.load(self.prefill.metadata())
        early.connect("prefill")

    def test_agents_that_come_and_go(self):
        self.decode.remember()
        self.decode.reopen(20)
        self.pull([("after", [1], [2])])

    def test_a_fork(self):
        self.pull([("before", [1], [2])])
        for side in (self.prefill, self.decode):
            self.assertEqual(side.fork(), 0, side.said())
            self.assertNotIn("wherry", side.said())
        self.pull([("after", [3, 4], [5, 6])])

    def test_memory_that_is_registered_twice(self):
        self.prefill.register_cache_again()
        fresh = self.start("fresh")
        for side in (self.decode, fresh):
            side.load(self.prefill.metadata())
        self.pull([("twice", [1], [2])])
        # The second registration outlives the first.
        self.prefill.forget_cache()
        self.pull([("once", [3], [4])])
        self.prefill.forget_cache()
        with self.assertRaises(Failed):
            self.decode.launch("late", "read", ("here", "there"), [5], [6])
            self.decode.complete(["late"])

    def test_large_memory_goes_in_any_order(self):
        length = 256 * MIB
        addresses = {}
        for name in ("x", "y", "z"):
            addresses[name] = self.prefill.register(name, length)
        here = self.decode.register("m", length)
        self.decode.load(self.prefill.metadata())
        for name in ("y", "x", "z"):
            self.prefill.write(name, name.encode() * MIB, length - MIB)
            at = addresses[name] + length - MIB
            self.decode.move("read", "prefill", [(here, MIB)], [(at, MIB)])
            self.assertEqual(self.decode.read("m", 0, MIB), name.encode() * MIB)
            self.prefill.deregister(name)
        self.pull([("after", [1], [2])])


class Push(Pair):
    """SGLang: threads of the prefill write pages and tokens; the decoder is told by other means."""

    threads = True

    def test_requests_of_several_threads(self):
        self.shake_hands(self.prefill, self.decode, self.there, ("decode", self.here))
        mine = self.prefill.register("tokens", 64 * 64, pattern(64 * 64, 9))
        theirs = self.decode.register("tokens", 64 * 64)
        self.prefill.load(self.decode.metadata())
        order = random.Random(5)
        here, there = (order.sample(range(BLOCKS), BLOCKS) for _ in range(2))
        tasks = [
            (here[4 * i : 4 * i + 4], there[4 * i : 4 * i + 4], mine + 64 * i, theirs + 64 * i)
            for i in range(64)
        ]
        self.assertEqual(self.prefill.push("decode", tasks, 8), [])
        self.assertTrue(self.decode.blocks(there) == self.prefill.blocks(here))
        self.assertEqual(self.decode.read("tokens"), pattern(64 * 64, 9))


if __name__ == "__main__":
    unittest.main()
