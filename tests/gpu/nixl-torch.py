#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NIXL's agents with Wherry's plug-in, in two torch processes: every pair of memories that tensors
have, in both directions, one piece and lists of pieces, every byte compared.

    nixl-torch.py --plugin FILE.so [--unpack FILE.tar.xz] [--only WORD] [--device cpu]

NIXL is what Python finds, or the folder nixl/ of an archive, as bench/python/peers.py has it. With
two GPUs or more, memory of another GPU is one more kind. Exits with 77 where there is no torch, no
GPU or no NIXL. --device cpu does without a GPU what can be done there.
"""

import argparse
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "nixl"), str(HERE.parents[1] / "bench" / "python")]
from agent import LIMIT, Failed, Side  # noqa: E402

SKIP = 77
KIB, MIB = 1 << 10, 1 << 20
LENGTH = 8 * MIB
PAYLOAD = 251  # a prime: the bytes of two places differ unless they lie so far apart


def payload(torch, seed, length):
    return torch.randint(
        0, PAYLOAD, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


class Tensors:
    """Runs in the process: an agent of NIXL's Python interface, and tensors by name."""

    def __init__(self, name, backend, options, device):
        import torch

        try:
            import nixl_cu13 as nixl
        except ImportError:
            import nixl._api as nixl
        self.torch = torch
        self.cuda = device == "cuda"
        config = nixl.nixl_agent_config(backends=[])
        self.agent = nixl.nixl_agent(name, config)
        self.agent.create_backend(backend, options or {})
        self.tensors, self.registered = {}, {}
        self.requests = {}

    def make(self, name, kind, length):
        """Register a zeroed tensor. Returns its address, and NIXL's kind and device of it."""
        torch = self.torch
        gpu = int(kind[3:] or 0) if kind.startswith("gpu") else None
        if gpu is not None:
            made = torch.zeros(length, dtype=torch.uint8, device=f"cuda:{gpu}")
        else:
            made = torch.zeros(length, dtype=torch.uint8)
            if kind == "pinned":
                made = made.pin_memory()
        self.settle()
        self.tensors[name] = made
        place = "DRAM" if gpu is None else "VRAM"
        # As a user passes tensors.
        self.registered[name] = self.agent.register_memory(made)
        return {"address": made.data_ptr(), "place": place, "device": gpu or 0}

    def drop(self, name):
        self.agent.deregister_memory(self.registered.pop(name))
        del self.tensors[name]

    def settle(self):
        if self.cuda:
            for gpu in range(self.torch.cuda.device_count()):
                self.torch.cuda.synchronize(gpu)

    def fill(self, name, seed):
        """Bytes that follow from a seed; 0: zeros."""
        tensor = self.tensors[name]
        if seed:
            tensor.copy_(payload(self.torch, seed, tensor.numel()))
        else:
            tensor.zero_()
        self.settle()

    def wrong(self, name, seed, pieces):
        """How many bytes are not as after copying (target, source, length) pieces of the bytes of
        a seed into zeros?"""
        there = payload(self.torch, seed, LENGTH)
        expected = self.torch.zeros(LENGTH, dtype=self.torch.uint8)
        for target, source, length in pieces:
            expected[target : target + length] = there[source : source + length]
        self.settle()
        return int((self.tensors[name].cpu() != expected).sum())

    def metadata(self):
        return self.agent.get_agent_metadata()

    def load(self, metadata):
        name = self.agent.add_remote_agent(metadata)
        return name.decode() if isinstance(name, bytes) else name

    def forget(self, name):
        self.agent.remove_remote_agent(name)

    def request(self, name, op, peer, here, there, pieces, note=b""):
        """`here` and `there` are what make() returned; pieces: (ours, theirs, length)."""

        def descriptors(memory, which):
            entries = [(memory["address"] + one[which], one[2], memory["device"]) for one in pieces]
            return self.agent.get_xfer_descs(entries, memory["place"])

        self.requests[name] = self.agent.initialize_xfer(
            op, descriptors(here, 0), descriptors(there, 1), peer, note
        )

    def transfer(self, name):
        state = self.agent.transfer(self.requests[name])
        ends = time.monotonic() + LIMIT
        while state == "PROC":
            if time.monotonic() > ends:
                raise TimeoutError(name)
            state = self.agent.check_xfer_state(self.requests[name])
        if state != "DONE":
            raise RuntimeError(f"{name}: {state}")

    def release(self, name):
        self.agent.release_xfer_handle(self.requests.pop(name))

    def await_and_check(self, peer, name, seed, pieces):
        """Wait for a notification; the bytes it is behind have to be there."""
        ends = time.monotonic() + LIMIT
        while time.monotonic() < ends:
            notes = self.agent.get_new_notifs()
            if notes.get(peer):
                return [bytes(note) for note in notes[peer]], self.wrong(name, seed, pieces)
        raise TimeoutError("no notification")

    def close(self):
        self.requests.clear()
        for name in list(self.registered):
            self.drop(name)
        self.agent = None


class TensorSide(Side):
    def __init__(self, folder, name, options, device):
        self.name = name
        arguments = (name, "WHERRY", options, device)
        self.begin(folder, {"NIXL_PLUGIN_DIR": folder}, Tensors, arguments)
        self.call("open")


# ---- what is transferred


def one_piece(_):
    return [(4096, 8192, LENGTH - 12288)]


def odd_piece(_):
    return [(1, 3, 1234567)]


def blocks(order):
    """1,500 blocks of 4 KiB in random places."""
    count = LENGTH // (4 * KIB)
    ours, theirs = order.sample(range(count), 1500), order.sample(range(count), 1500)
    return [(one * 4 * KIB, two * 4 * KIB, 4 * KIB) for one, two in zip(ours, theirs)]


def mixed(order):
    """Pieces of many lengths, aligned to nothing; those of ours do not overlap, nor do theirs."""
    pieces, at = [], 0
    while True:
        length = order.choice((8, 100, 4096, 4097, 12288, 65536, 3))
        at += order.choice((0, 0, 1, 64))
        if at + length > LENGTH:
            break
        pieces.append((at, LENGTH - at - length, length))
        at += length
    order.shuffle(pieces)
    return pieces


SHAPES = {"one piece": one_piece, "an odd piece": odd_piece, "blocks": blocks, "mixed": mixed}


def flipped(pieces, op):
    """(target, source, length) of a transfer."""
    return pieces if op == "READ" else [(two, one, length) for one, two, length in pieces]


class Cases:
    def __init__(self, options, folder):
        self.options = options
        self.folder = folder
        self.failed = self.passed = 0
        self.seed = 0

    def side(self, name, options=None):
        return TensorSide(self.folder, name, options, self.options.device)

    def run(self, name, function, *arguments):
        if self.options.only not in name:
            return
        print(f"[ RUN      ] {name}", flush=True)
        began = time.monotonic()
        try:
            function(*arguments)
            self.passed += 1
            print(f"[       OK ] {name} ({time.monotonic() - began:.1f} s)", flush=True)
        except Exception:
            self.failed += 1
            traceback.print_exc(file=sys.stdout)
            print(f"[  FAILED  ] {name}", flush=True)

    def pair(self, owner, initiator, theirs, ours):
        """One pair of memories, all shapes, both ways."""
        there, here = owner.make("m", theirs, LENGTH), initiator.make("m", ours, LENGTH)
        try:
            peer = initiator.load(owner.metadata())
            owner.load(initiator.metadata())
            for shape, pieces_of in SHAPES.items():
                for op in ("READ", "WRITE"):
                    self.seed += 1
                    pieces = pieces_of(random.Random(self.seed))
                    source, target = (owner, initiator) if op == "READ" else (initiator, owner)
                    initiator.request("r", op, peer, here, there, pieces, b"note")
                    for again in range(2):  # what is posted again goes through kept state
                        seed = 1000 * self.seed + again
                        source.fill("m", seed)
                        target.fill("m", 0)
                        initiator.transfer("r")
                        notes, wrong = owner.await_and_check(
                            initiator.name,
                            "m",
                            seed,
                            flipped(pieces, op) if op == "WRITE" else [(0, 0, LENGTH)],
                        )
                        if op == "READ":
                            wrong += initiator.wrong("m", seed, flipped(pieces, op))
                        if wrong or notes != [b"note"]:
                            raise AssertionError(f"{shape}, {op}: {wrong} bytes wrong, {notes}")
                    initiator.release("r")
        finally:
            # NIXL refuses other metadata of an address that it knows: both forget the other.
            initiator.forget(owner.name)
            owner.forget(initiator.name)
            owner.drop("m")
            initiator.drop("m")

    def layers(self, owner, initiator, kind):
        """A KV cache of eight layers, of which one request reads the same pages."""
        count, page = 8, 16 * KIB
        there = [owner.make(f"layer {i}", kind, LENGTH) for i in range(count)]
        here = [initiator.make(f"layer {i}", kind, LENGTH) for i in range(count)]
        peer = initiator.load(owner.metadata())
        order = random.Random(8)
        pages = LENGTH // page
        ours, theirs = order.sample(range(pages), 200), order.sample(range(pages), 200)
        pieces = [(one * page, two * page, page) for one, two in zip(ours, theirs)]
        for i in range(count):
            owner.fill(f"layer {i}", 50 + i)
            initiator.fill(f"layer {i}", 0)
        flat_here, flat_there = dict(here[0], address=0), dict(there[0], address=0)
        flat = [
            (here[i]["address"] + one, there[i]["address"] + two, length)
            for one, two, length in pieces
            for i in range(count)
        ]
        initiator.request("layers", "READ", peer, flat_here, flat_there, flat)
        initiator.transfer("layers")
        initiator.release("layers")
        wrong = [initiator.wrong(f"layer {i}", 50 + i, pieces) for i in range(count)]
        initiator.forget(peer)
        for i in range(count):
            owner.drop(f"layer {i}")
            initiator.drop(f"layer {i}")
        if any(wrong):
            raise AssertionError(f"wrong bytes in each layer: {wrong}")

    def killed(self, kind):
        """The owner is killed; the other side gets an error, and a new owner of that name works."""
        owner, initiator = self.side("owner"), self.side("initiator")
        try:
            here = initiator.make("m", kind, LENGTH)
            for attempt in range(2):
                there = owner.make("m", kind, LENGTH)
                owner.fill("m", 70 + attempt)
                initiator.fill("m", 0)
                peer = initiator.load(owner.metadata())
                initiator.request("r", "READ", peer, here, there, [(0, 0, LENGTH)])
                initiator.transfer("r")
                if initiator.wrong("m", 70 + attempt, [(0, 0, LENGTH)]):
                    raise AssertionError("wrong bytes")
                owner.kill()
                try:
                    for _ in range(1000):
                        initiator.transfer("r")
                    raise AssertionError("a killed owner's memory is still read")
                except Failed:
                    pass
                initiator.release("r")
                initiator.forget(peer)
                owner.end()
                owner = self.side("owner")
        finally:
            initiator.end()
            owner.end()


def kinds_of(device):
    import torch

    if device == "cpu":
        return ["pageable"]
    more = ["gpu1"] if torch.cuda.device_count() > 1 else []
    return ["gpu0", "pinned", "pageable", *more]


def unavailable(device):
    """Why nothing can be run here; "" if it can."""
    try:
        import torch

        try:
            import nixl_cu13  # noqa: F401
        except ImportError:
            import nixl._api  # noqa: F401
    except ImportError as error:
        return str(error)
    if device == "cuda" and not torch.cuda.is_available():
        return "torch has no GPU here"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--plugin", metavar="FILE.so", required=True)
    parser.add_argument("--unpack", metavar="FILE.tar.xz")
    parser.add_argument("--only", default="", help="the cases whose names contain it")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.unpack:
            from peers import unpack

            unpack(options.unpack, folder)
            os.environ["PYTHONPATH"] = os.path.join(folder, "nixl")
            os.environ["LD_LIBRARY_PATH"] = os.path.join(folder, "missing")
            # Once more, because the loader reads LD_LIBRARY_PATH when a process starts.
            command = [sys.executable, __file__, "--plugin", options.plugin]
            command += ["--only", options.only, "--device", options.device]
            return subprocess.run(command, check=False).returncode
        reason = unavailable(options.device)
        if reason:
            print(f"skipped: {reason}")
            return SKIP
        shutil.copy(options.plugin, os.path.join(folder, "libplugin_WHERRY.so"))
        cases = Cases(options, folder)
        kinds = kinds_of(options.device)
        for required in ("", "cuda") if options.device == "cuda" else ("",):
            backend = {"require": required} if required else {}
            owner, initiator = cases.side("owner", backend), cases.side("initiator", backend)
            for theirs in kinds:
                # By CUDA another process reaches GPU memory alone.
                if required and not theirs.startswith("gpu"):
                    continue
                for ours in kinds:
                    name = f"{theirs} to and from {ours}{', cuda required' * bool(required)}"
                    cases.run(name, cases.pair, owner, initiator, theirs, ours)
                if not required:
                    cases.run(f"layers of {theirs}", cases.layers, owner, initiator, theirs)
            owner.end()
            initiator.end()
        for kind in kinds:
            cases.run(f"an owner of {kind} is killed", cases.killed, kind)
    print(f"{cases.passed} passed, {cases.failed} failed", flush=True)
    return 1 if cases.failed else 0


if __name__ == "__main__":
    sys.exit(main())
