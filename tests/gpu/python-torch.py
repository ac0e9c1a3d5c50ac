#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python package with PyTorch and cupy on a GPU: tensors of every allocator of torch, streams,
graphs, lifetimes, and a loop as a decoder has it, between two processes, whose every byte is
compared.

    python-torch.py [--seconds S] [--only WORD] [--parallel] [--json FILE]

S is how long the loop goes on with each allocator: 10 by default. Exit code 77 without torch or a
GPU. WHERRY_LIBRARY and PYTHONPATH name the library and bindings/python. --device cpu does without a
GPU what can be done there.
"""

import argparse
import errno
import faulthandler
import gc
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback

KIB, MIB = 1 << 10, 1 << 20
SKIP = 77
WAIT = 60  # s: how long anything is waited for
READY, BACK, END = 1, 2, 3  # tags

# Name: the setting of torch, and must two processes be able to use CUDA for its memory?
ALLOCATORS = {
    "default": ("", True),
    "expandable segments": ("expandable_segments:True", False),
    "cudaMallocAsync": ("backend:cudaMallocAsync", False),
    "MemPool": ("", True),
    "graph pool": ("", True),
}
CASES = []


class Skip(Exception):
    pass


def case(function):
    CASES.append(function)
    return function


def need(good, what):
    if not good:
        raise AssertionError(f"not so: {what}")


def say(text):
    """What a case found, below its line."""
    for line in text.rstrip().splitlines():
        print("    " + line, flush=True)


# ---- memory


class Memory:
    """Tensors of one allocator, in this process."""

    def __init__(self, device, allocator):
        import torch

        self.torch = torch
        self.cuda = device == "cuda"
        self.device = device
        self.allocator = allocator
        self.pool = torch.cuda.MemPool() if allocator == "MemPool" else None
        self.graphs = []

    def new(self, length):
        """`length` zeroed bytes of the allocator."""
        torch = self.torch
        if self.pool is not None:
            with torch.cuda.use_mem_pool(self.pool):
                made = torch.zeros(length, dtype=torch.uint8, device=self.device)
        elif self.allocator == "graph pool":
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                made = torch.zeros(length, dtype=torch.uint8, device=self.device)
            graph.replay()
            self.graphs.append(graph)
        else:
            made = torch.zeros(length, dtype=torch.uint8, device=self.device)
        self.settle()
        return made

    def filled(self, length, seed):
        made = self.new(length)
        made.copy_(self.payload(length, seed))
        self.settle()
        return made

    def pinned(self, length):
        made = self.torch.zeros(length, dtype=self.torch.uint8)
        return made.pin_memory() if self.cuda else made

    def payload(self, length, seed):
        """Bytes that depend on the seed, on the CPU."""
        generator = self.torch.Generator().manual_seed(seed)
        return self.torch.randint(0, 256, (length,), dtype=self.torch.uint8, generator=generator)

    def settle(self):
        if self.cuda:
            self.torch.cuda.synchronize()

    def raw(self, tensor):
        return tensor.contiguous().view(self.torch.uint8).reshape(-1)

    def same(self, one, two):
        self.settle()
        return bool(self.torch.equal(self.raw(one).cpu(), self.raw(two).cpu()))

    def sleep(self, seconds):
        """Keep the current stream busy for about so long, on an H100 at 2 GHz."""
        self.torch.cuda._sleep(int(seconds * 2e9))


# ---- the other process


def mark(number):
    return number % 255 + 1


def expected(memory, base, shape, theirs, ours, number):
    """What the decoder has after round `number`: its pages, and 0 elsewhere."""
    torch = memory.torch
    out = torch.zeros_like(base)
    source, target = base.view(shape), out.view(shape)
    target[:, ours] = source[:, theirs] ^ mark(number)
    return out


def serve_loop(memory, engine, regions, decode, length, shapes):
    """The prefill side: new bytes in each round, and a look at what comes back. Returns how many
    rounds there were, and how many of them were wrong."""
    kv, back = regions["kv"], regions["back"]
    base = memory.payload(length, 1).to(memory.device)
    tables = [
        (shape, theirs.to(memory.device), ours.to(memory.device)) for shape, theirs, ours in shapes
    ]
    rounds = wrong = 0
    while True:
        kv.copy_(base ^ mark(rounds))
        memory.settle()
        decode.notify(READY).wait(WAIT)
        notification = engine.notification(WAIT)
        if notification.tag == END:
            return rounds, wrong
        shape, theirs, ours = tables[rounds % len(tables)]
        if not memory.torch.equal(back, expected(memory, base, shape, theirs, ours, rounds)):
            wrong += 1
        rounds += 1


def owner(pipe, device, allocator):
    """Registers what it is asked for and answers; ends with the pipe."""
    faulthandler.enable()
    import wherry

    memory = Memory(device, allocator)
    regions = {}
    decode = None
    with wherry.Engine(name="prefill") as engine:
        pipe.send(engine.url)
        while True:
            try:
                what, *rest = pipe.recv()
            except EOFError:
                return
            try:
                answer = None
                if what == "make":
                    name, kind, length, seed = rest
                    regions[name] = (
                        memory.pinned(length) if kind == "pinned" else memory.new(length)
                    )
                    regions[name].copy_(memory.payload(length, seed))
                    memory.settle()
                    engine.register(regions[name], name=name, access="rw")
                elif what == "same":
                    name, length, seed = rest
                    answer = memory.same(regions[name][:length], memory.payload(length, seed))
                elif what == "loop":
                    url, *rest = rest
                    decode = decode or engine.connect(url)
                    answer = serve_loop(memory, engine, regions, decode, *rest)
                pipe.send((True, answer))
            except BaseException:
                pipe.send((False, traceback.format_exc()))


class Owner:
    def __init__(self, device, allocator):
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=owner, args=(theirs, device, allocator), daemon=True)
        self.process.start()
        theirs.close()
        need(self.pipe.poll(WAIT * 2), "the other process has opened its engine")
        self.url = self.pipe.recv()

    def ask(self, *what):
        self.start(*what)
        return self.answer(WAIT)

    def start(self, *what):
        self.pipe.send(what)

    def answer(self, limit):
        need(self.pipe.poll(limit), "the other process answers")
        good, answer = self.pipe.recv()
        need(good, f"the other process: {answer}")
        return answer

    def end(self):
        self.pipe.close()
        self.process.join(WAIT)
        need(
            self.process.exitcode == 0,
            f"the other process ends with 0, not {self.process.exitcode}",
        )


class Setup:
    """What the cases share: an engine, its peer "self", and the other process."""

    def __init__(self, device, allocator, seconds):
        import torch
        import wherry

        self.torch, self.wherry = torch, wherry
        self.memory = Memory(device, allocator)
        self.cuda = device == "cuda"
        self.device = device
        self.must = "cuda" if self.cuda else None  # within the process
        self.between = "cuda" if self.cuda and ALLOCATORS[allocator][1] else None
        self.seconds = seconds
        self.engine = wherry.Engine(name="decode")
        self.own = self.engine.connect("self")
        self.owner = Owner(device, allocator)
        self.peer = self.engine.connect(self.owner.url)
        self.figures = {}
        self.names = 0

    def name(self):
        self.names += 1
        return f"region-{self.names}"

    def publish(self, thing):
        """Register it with a name of its own, for the peer "self"."""
        name = self.name()
        self.engine.register(thing, name=name, access="rw")
        return name

    def refused(self, code, call, *words):
        try:
            call()
        except self.wherry.Error as error:
            need(error.errno == code, f"{errno.errorcode[code]}, not {error}")
            for word in words:
                need(word in str(error), f"{word!r} is in the text: {error}")
            return str(error)
        raise AssertionError("it was not refused")

    def need_cuda(self):
        if not self.cuda:
            raise Skip("there is no GPU")


# ---- what can be registered


@case
def round_trip(s):
    """Within the process, in a part of an allocation, from and to pinned and pageable memory."""
    memory = s.memory
    gpu = memory.new(8 * MIB)
    s.engine.register(gpu)
    part = gpu[MIB + 512 : 4 * MIB + 512]
    sent = memory.pinned(3 * MIB)
    sent.copy_(memory.payload(3 * MIB, 5))
    source = s.publish(sent)
    transfer = s.own.read(source, into=part, require=s.must).wait(WAIT)
    say(transfer.explain())
    need(memory.same(part, sent), "the GPU has what the pinned tensor had")
    need(not gpu[: MIB + 512].any() and not gpu[4 * MIB + 512 :].any(), "nothing else was touched")
    back = bytearray(3 * MIB)
    s.own.write(s.publish(back), part, require=s.must).wait(WAIT)
    need(back == sent.numpy().tobytes(), "a bytearray has what the GPU had")


@case
def dtypes(s):
    torch, memory = s.torch, s.memory
    names = "uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 complex64 bool"
    names += " float8_e4m3fn float8_e5m2 uint16 uint32 uint64"
    known = [getattr(torch, name) for name in names.split() if hasattr(torch, name)]
    pool = memory.new(2 * MIB * len(known))
    for number, dtype in enumerate(known):
        at = 2 * MIB * number
        one = pool[at : at + MIB].view(dtype)
        two = pool[at + MIB : at + 2 * MIB].view(dtype)
        memory.raw(one).copy_(memory.payload(MIB, number) & (1 if dtype == torch.bool else 255))
        memory.settle()
        s.own.read(s.publish(one), into=s.engine.register(two), require=s.must).wait(WAIT)
        need(memory.same(one, two), f"{dtype}")
    say(" ".join(str(dtype).replace("torch.", "") for dtype in known))


@case
def slices_and_strides(s):
    torch, memory = s.torch, s.memory
    pool = memory.new(256 * 4 * KIB).view(256, 4 * KIB)
    s.engine.register(pool)
    sent = memory.pinned(64 * KIB)
    sent.copy_(memory.payload(64 * KIB, 6))
    source = s.own.find(s.publish(sent))
    s.own.read(source[: 8 * KIB], into=pool[3:5], require=s.must).wait(WAIT)
    need(memory.same(pool[3:5], sent[: 8 * KIB]), "two rows")
    s.own.read(source[: 256 * 64], into=pool[:, 128:192], require=s.must).wait(WAIT)
    need(memory.same(pool[:, 128:192], sent[: 256 * 64]), "a column of 64 bytes, as blocks")
    need(not pool[100, :128].any() and not pool[100, 192:].any(), "nothing beside the column")
    s.own.read(source[:512], into=pool.view(torch.bfloat16)[7, 256:512], require=s.must).wait(WAIT)
    need(memory.same(pool[7, 512:1024], sent[:512]), "a part of a bfloat16 view")
    say(s.refused(errno.EINVAL, lambda: s.own.read(source, into=pool[:, ::3]), "(256, 1366)"))
    s.refused(errno.EINVAL, lambda: s.own.read(source, into=pool.t()[:64]), "(64, 256)")
    s.refused(errno.EINVAL, lambda: s.engine.register(pool[:, :64]), "(256, 64)")
    s.refused(errno.ENOENT, lambda: s.own.read(source[:1024], into=memory.new(1024)), "(1024,)")


@case
def dlpack(s):
    """Objects that have __dlpack__ and nothing else, and capsules."""
    memory = s.memory
    tensor = memory.filled(64 * KIB, 7)

    class Only:
        def __init__(self, inside):
            self.inside = inside

        def __dlpack__(self, **options):
            return self.inside.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.inside.__dlpack_device__()

    back = bytearray(64 * KIB)
    region = s.engine.register(back)
    capsules = [tensor.__dlpack__()]
    try:
        capsules.append(tensor.__dlpack__(max_version=(1, 0)))
    except TypeError:  # an older torch
        pass
    for thing in (Only(tensor), *capsules):
        s.own.read(s.publish(thing), into=region, require=s.must).wait(WAIT)
        need(
            memory.same(s.torch.frombuffer(back, dtype=s.torch.uint8), tensor), type(thing).__name__
        )
        back[:] = bytes(len(back))
    s.torch.utils.dlpack.from_dlpack(capsules[0])
    try:
        s.engine.register(capsules[0])
    except TypeError as error:
        say(str(error))
    else:
        raise AssertionError("a used capsule was not refused")


@case
def cupy_arrays(s):
    s.need_cuda()
    try:
        import cupy
    except ImportError:
        raise Skip("there is no cupy") from None
    memory = s.memory
    one = cupy.arange(1 << 20, dtype=cupy.float32)
    two = cupy.zeros((1024, 1024), dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    name = s.publish(one)
    s.engine.register(two)
    cupy.cuda.Device().synchronize()
    s.own.read(name, into=two, require="cuda", stream=stream).wait(WAIT)
    need(bool((one == two.reshape(-1)).all()), "cupy to cupy, after a stream of cupy")
    pages = cupy.arange(255, -1, -1)
    tensor = memory.new(4 * MIB)
    region = s.engine.register(tensor)
    s.own.read(name, into=region, blocks=(pages, pages.astype(cupy.int32)[::-1], 16 * KIB)).wait(
        WAIT
    )
    turned = cupy.asnumpy(one).view("u1").reshape(256, -1)[::-1].tobytes()
    need(tensor.cpu().numpy().tobytes() == turned, "block numbers in cupy arrays")
    s.own.read(s.own.find(name)[: 1024 * 16], into=two[:, 5:9], require="cuda").wait(WAIT)
    need(bool((two[:, 5:9].reshape(-1) == one[:4096]).all()), "a column of cupy")


@case
def numpy_arrays(s):
    import numpy

    gpu = s.memory.filled(MIB, 8)
    name = s.publish(gpu)
    array = numpy.zeros((16, 65536), dtype="u1")
    s.engine.register(array)
    s.own.read(name, into=array, require=s.must).wait(WAIT)
    need(array.tobytes() == gpu.cpu().numpy().tobytes(), "numpy has the tensor's bytes")
    pages = numpy.arange(255, -1, -1)
    s.own.read(name, into=s.engine.register(array), blocks=(pages, pages[::-1], 4 * KIB)).wait(WAIT)
    turned = gpu.cpu().numpy().reshape(256, -1)[::-1].tobytes()
    need(array.tobytes() == turned, "block numbers of 64 bits, not contiguous")


@case
def indices(s):
    """Block numbers on the CPU and the GPU, of 32 and 64 bits, contiguous or not."""
    torch, memory = s.torch, s.memory
    pages, page = 512, 4 * KIB
    source = memory.filled(pages * page, 9)
    name = s.publish(source)
    target = memory.new(pages * page)
    region = s.engine.register(target)
    theirs = torch.randperm(pages, generator=torch.Generator().manual_seed(3))
    ours = torch.randperm(pages, generator=torch.Generator().manual_seed(4))
    wanted = torch.zeros_like(target).view(pages, page)
    wanted[ours.to(s.device)] = source.view(pages, page)[theirs.to(s.device)]
    for device in dict.fromkeys(("cpu", s.device)):
        for dtype in (torch.int32, torch.int64):
            for step in (1, 2):
                one, two = (
                    (
                        torch.stack([table, table], 1).to(device, dtype).reshape(-1)[::2]
                        if step == 2
                        else table.to(device, dtype)
                    )
                    for table in (theirs, ours)
                )
                target.zero_()
                memory.settle()
                s.own.read(name, into=region, blocks=(one, two, page), require=s.must).wait(WAIT)
                need(memory.same(target, wanted), f"{dtype} on {device}, step {step}")
    table = theirs.to(s.device)
    for wrong in (table.float(), table.to(torch.complex64), table.to(torch.int16), table > 3):
        s.refused(
            errno.EINVAL, lambda: s.own.read(name, into=region, blocks=(wrong, ours, page))
        )  # noqa: B023
    far = torch.tensor([1 << 40], device=s.device)
    s.refused(errno.EINVAL, lambda: s.own.read(name, into=region, blocks=(far, far, page)), "2**31")


# ---- streams


@case
def after_a_stream(s):
    """A transfer begins when the work before it on the stream has ended."""
    s.need_cuda()
    torch, memory = s.torch, s.memory
    for stream in (torch.cuda.Stream(), torch.cuda.current_stream()):
        source = memory.new(8 * MIB)
        target = memory.new(8 * MIB)
        region = s.engine.register(target)
        name = s.publish(source)
        s.own.read(name, into=region, require="cuda").wait(WAIT)  # the first takes longer
        with torch.cuda.stream(stream):
            memory.sleep(0.3)
            source.fill_(200)
        began = time.monotonic()
        transfer = s.own.read(name, into=region, stream=stream, require="cuda")
        taken = time.monotonic() - began
        need(not transfer.done(), "it waits for the stream")
        transfer.wait(WAIT)
        need(bool((target == 200).all()), "it has what the stream wrote")
        need(taken < 0.1, f"submitting does not wait for the stream: {taken:.3f} s")
        say(f"submitting took {taken * 1e6:.0f} us")


@case
def before_a_stream(s):
    """Work on a stream begins when a transfer has ended, also when that was cancelled."""
    s.need_cuda()
    torch, memory = s.torch, s.memory
    source = memory.filled(8 * MIB, 10)
    target = memory.new(8 * MIB)
    region = s.engine.register(target)
    name = s.publish(source)
    gate, stream = torch.cuda.Stream(), torch.cuda.Stream()
    for number in range(20):
        with torch.cuda.stream(gate):
            target.zero_()
            memory.sleep(0.02)
        transfer = s.own.read(name, into=region, stream=gate, require="cuda")
        transfer.make_stream_wait(stream)
        with torch.cuda.stream(stream):
            seen = target.clone()
        stream.synchronize()
        need(transfer.done(), "the stream was held until the transfer had ended")
        need(memory.same(seen, source), f"round {number}: the stream saw the transfer's bytes")
    with torch.cuda.stream(gate):
        memory.sleep(0.2)
    transfer = s.own.read(name, into=region, stream=gate, require="cuda")
    transfer.make_stream_wait(stream)
    transfer.cancel()
    stream.synchronize()
    need(isinstance(transfer.exception(), s.wherry.Cancelled), "it was cancelled")
    memory.settle()


@case
def graph_capture(s):
    """A capture of torch goes on while another thread transfers; a captured stream is refused."""
    s.need_cuda()
    torch, memory = s.torch, s.memory
    source = memory.filled(4 * MIB, 11)
    target = memory.new(4 * MIB)
    region = s.engine.register(target)
    name = s.publish(source)
    plan = s.own.prepare_read(name, into=region, require="cuda")
    page_numbers = torch.arange(16, device="cuda")
    numbers = torch.arange(1024, device="cuda", dtype=torch.float32)
    out = torch.zeros_like(numbers)
    memory.settle()
    found = {}

    def transfers():
        try:
            for _ in range(100):
                plan.submit().wait(WAIT)
            fresh = bytearray(64 * KIB)
            found["new"] = s.own.read(s.own.find(name)[: 64 * KIB], s.engine.register(fresh)).wait(
                WAIT
            )
            found["good"] = True
        except BaseException as error:
            found["error"] = error

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        torch.mul(numbers, 2, out=out)
        thread = threading.Thread(target=transfers)
        thread.start()
        stream = torch.cuda.current_stream()
        say(s.refused(errno.EBUSY, lambda: plan.submit(stream=stream), "captured"))
        given = (page_numbers, page_numbers, 4 * KIB)
        say(s.refused(errno.EBUSY, lambda: s.own.read(name, into=region, blocks=given), "captur"))
        plan.submit().wait(WAIT)  # by this thread, but not on the stream
        thread.join(WAIT)
        out.add_(1)
    need(found.get("good"), f"the other thread's transfers: {found.get('error')}")
    graph.replay()
    need(memory.same(out, numbers * 2 + 1), "the graph works")
    need(memory.same(target, source), "the transfers have moved the bytes")
    # Before and after a graph's replay on a stream.
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        out.zero_()
        graph.replay()
    plan.submit(stream=stream).wait(WAIT)


# ---- lifetimes


def held(s, seed):
    """A region of the peer, its length, a registered tensor, its region, and a transfer of it that
    has not begun or goes on."""
    memory = s.memory
    name, length = s.name(), 64 * MIB if s.cuda else 16 * MIB
    s.owner.ask("make", name, "own", length, 0)
    tensor = memory.filled(length, seed)
    region = s.engine.register(tensor)
    stream = None
    if s.cuda:
        stream = s.torch.cuda.Stream()
        with s.torch.cuda.stream(stream):
            memory.sleep(0.3)
    transfer = s.peer.write(name, region, stream=stream, require=s.between)
    return name, length, tensor, region, transfer


@case
def tensor_deleted(s):
    name, length, tensor, region, transfer = held(s, 12)
    del tensor, region
    gc.collect()
    if s.cuda:
        s.torch.cuda.empty_cache()
    other = [s.memory.new(length).fill_(99) for _ in range(2)]
    transfer.wait(WAIT)
    say(transfer.explain())
    need(
        s.owner.ask("same", name, length, 12), "the bytes of the tensor that nobody names any more"
    )
    del other


@case
def transfer_deleted(s):
    """Nobody waits for it: it goes on."""
    name, length, tensor, region, transfer = held(s, 13)
    del tensor, region, transfer
    gc.collect()
    ends = time.monotonic() + WAIT
    while not s.owner.ask("same", name, length, 13):
        need(time.monotonic() < ends, "it arrives")


@case
def cancelled(s):
    name, length, tensor, region, transfer = held(s, 14)
    transfer.cancel()
    need(transfer.done(), "it has ended")
    late = transfer.exception() is None
    need(late or isinstance(transfer.exception(), s.wherry.Cancelled), f"{transfer.exception()!r}")
    tensor.fill_(99)  # may be used again
    s.memory.settle()
    region.unregister()
    s.peer.write(name, s.engine.register(s.memory.filled(length, 15)), require=s.between).wait(WAIT)
    need(s.owner.ask("same", name, length, 15), "the next transfer is as ever")
    say("it had completed" if late else "it was cancelled in time")


@case
def exception(s):
    name, length, tensor, region, transfer = held(s, 16)
    try:
        with transfer:
            raise KeyError("of the program")
    except KeyError:
        pass
    need(transfer.done(), "the exception has cancelled it")
    tensor.fill_(99)
    region.unregister()
    s.peer.write(name, s.engine.register(s.memory.filled(length, 17)), require=s.between).wait(WAIT)
    need(s.owner.ask("same", name, length, 17), "the next transfer is as ever")


@case
def interpreter_exit(s):
    """Status 0, and no message of a crash, whatever is under way."""
    name = s.name()
    s.owner.ask("make", name, "own", 64 * MIB, 0)
    for how in ("end", "exit", "thread"):
        command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), "--device", s.device]
        command += ["--allocator", s.memory.allocator, "--leave", how, s.owner.url, name]
        done = subprocess.run(
            command, text=True, capture_output=True, check=False, timeout=2 * WAIT
        )
        said = done.stdout + done.stderr
        need(done.returncode == 0, f"{how}: status {done.returncode}\n{said}")
        need("under way" in done.stdout, f"{how}: {said}")
        bad = [
            word
            for word in ("Traceback", "Exception", "rror", "terminate", "Fatal")
            if word in done.stderr
        ]
        need(not bad, f"{how}: {said}")
    need(
        s.peer.read(s.peer.find(name)[:8], into=s.engine.register(bytearray(8))).wait(WAIT).done(),
        "the owner goes on",
    )


def leave(device, allocator, how, url, name):
    """The process of interpreter_exit()."""
    import wherry

    memory = Memory(device, allocator)
    engine = wherry.Engine()
    peer = engine.connect(url)
    tensor = memory.new(64 * MIB)
    region = engine.register(tensor)
    stream = None
    if memory.cuda:
        stream = memory.torch.cuda.Stream()
    plan = peer.prepare_read(name, into=region)
    if memory.cuda:
        with memory.torch.cuda.stream(stream):
            memory.sleep(1)
    transfers = [plan.submit(stream=stream) for _ in range(8)]
    print("under way", transfers[-1].done(), flush=True)
    if how == "exit":
        sys.exit(0)
    if how == "thread":
        threading.Thread(target=transfers[0].exception, daemon=True).start()
        transfers[1].add_done_callback(lambda transfer: None)
    return 0


# ---- between two processes


@case
def pairs(s):
    """Every pair of memories of two processes, both ways."""
    memory, length = s.memory, 16 * MIB
    for kind in ("own", "pinned"):
        name = s.name()
        s.owner.ask("make", name, kind, length, 18)
        for ours in (memory.new(length), memory.pinned(length), bytearray(length)):
            # Pinned memory of torch is not shared: the other process has to copy it.
            require = s.between if kind == "own" else None
            region = s.engine.register(ours)
            where = (
                "bytearray"
                if isinstance(ours, bytearray)
                else f"{ours.device}, pinned {ours.is_pinned()}"
            )
            transfer = s.peer.read(name, into=region, require=require).wait(WAIT)
            tensor = (
                s.torch.frombuffer(ours, dtype=s.torch.uint8)
                if isinstance(ours, bytearray)
                else ours
            )
            need(memory.same(tensor, memory.payload(length, 18)), f"from {kind} to {where}")
            tensor.copy_(memory.payload(length, 19))
            memory.settle()
            s.peer.write(name, region, require=require).wait(WAIT)
            need(s.owner.ask("same", name, length, 19), f"from {where} to {kind}")
            tensor.copy_(memory.payload(length, 18))
            memory.settle()
            s.peer.write(name, region).wait(WAIT)
            say(f"theirs {kind}, ours {where}: {transfer.explain()}")
            del tensor


@case
def pages(s):
    """16,384 blocks of 4 KiB between two processes."""
    torch, memory, length = s.torch, s.memory, 64 * MIB
    name = s.name()
    s.owner.ask("make", name, "own", length, 20)
    target = memory.new(length)
    region = s.engine.register(target)
    theirs, ours = torch.randperm(16384), torch.randperm(16384)
    plan = s.peer.prepare_read(name, into=region, blocks=(theirs, ours, 4 * KIB), require=s.between)
    plan.submit().wait(WAIT)
    source = memory.payload(length, 20)
    wanted = torch.zeros_like(source)
    wanted.view(16384, -1)[ours] = source.view(16384, -1)[theirs]
    need(memory.same(target, wanted), "all pages are where they belong")
    taken = []
    for _ in range(30):
        began = time.perf_counter()
        plan.submit().wait(WAIT)
        taken.append(time.perf_counter() - began)
    taken.sort()
    s.figures["pages_4KiB_GBps"] = round(length / taken[len(taken) // 2] / 1e9, 2)
    say(plan.explain())
    say(f"16,384 x 4 KiB: {s.figures['pages_4KiB_GBps']} GB/s")


@case
def decoder(s):
    """Round after round, pages come in while matrices are multiplied, are compared on the GPU, and
    go back."""
    torch, memory = s.torch, s.memory
    length = (64 if s.cuda else 8) * MIB
    for name in ("kv", "back"):
        s.owner.ask("make", name, "own", length, 1)
    base = memory.payload(length, 1).to(s.device)
    mine = memory.new(length)
    region = s.engine.register(mine)
    steps = []
    for number, (layers, page, dtype) in enumerate(
        (
            (1, 4 * KIB, torch.int32),
            (4, 16 * KIB, torch.int64),
            (1, 64 * KIB, torch.int64),
            (2, 8 * KIB, torch.int32),
        )
    ):
        count = length // layers // page
        generator = torch.Generator().manual_seed(number)
        theirs = torch.randperm(count, generator=generator)[: count * 3 // 5]
        ours = torch.randperm(count, generator=generator)[: count * 3 // 5]
        plans = [
            s.peer.prepare_read(
                "kv",
                into=region,
                blocks=(theirs[part].to(dtype), ours[part].to(dtype), page),
                layers=layers,
                require=s.between,
            )
            for part in (slice(0, None, 2), slice(1, None, 2))
        ]
        steps.append(((layers, count, page), theirs, ours, plans))
        say(f"{layers} x {len(ours)} x {page} B: {plans[0]!r}")
    shapes = [step[:3] for step in steps]
    s.owner.start("loop", s.engine.url, length, shapes)
    give = s.peer.prepare_write("back", region, require=s.between)
    stream = torch.cuda.Stream() if s.cuda else None
    busy = torch.cuda.Stream() if s.cuda else None
    matrix = torch.randn(4096, 4096, device=s.device, dtype=torch.bfloat16) if s.cuda else None
    multiplied, last = 0, None
    rounds = cancels = 0
    began = time.monotonic()
    while True:
        s.engine.notification(WAIT, tag=READY)
        if time.monotonic() - began > s.seconds:
            break
        shape, theirs, ours, plans = steps[rounds % len(steps)]
        if s.cuda and (last is None or last.query()):
            with torch.cuda.stream(busy):
                for _ in range(20):
                    torch.mm(matrix, matrix)
                multiplied += 20
                last = torch.cuda.Event()
                last.record()
        if rounds % 16 == 5:  # one that is cancelled before
            cancels += 1
            plans[0].submit(stream=stream).cancel()
        if s.cuda:
            with torch.cuda.stream(stream):
                mine.zero_()
                transfers = [plan.submit(stream=stream) for plan in plans]
                for transfer in transfers:
                    transfer.make_stream_wait(stream)
                # Nothing has waited on the CPU so far.
                wanted = expected(
                    memory, base, shape, theirs.to(s.device), ours.to(s.device), rounds
                )
                need(torch.equal(mine, wanted), f"every byte of round {rounds} is right")
        else:
            mine.zero_()
            transfers = [plan.submit() for plan in plans]
            for transfer in transfers:
                transfer.wait(WAIT)
            need(
                torch.equal(mine, expected(memory, base, *shapes[rounds % len(steps)], rounds)),
                f"round {rounds}",
            )
        for transfer in transfers:
            transfer.wait(WAIT)
        give.submit(stream=stream, notify=BACK).wait(WAIT)
        rounds += 1
    taken = time.monotonic() - began
    s.peer.notify(END).wait(WAIT)
    theirs_rounds, wrong = s.owner.answer(WAIT)
    need(
        theirs_rounds == rounds and not wrong,
        f"the other side saw {theirs_rounds} rounds, {wrong} of them wrong",
    )
    need(rounds > 0, "a round")
    say(steps[0][3][0].explain())
    compared = 2 * length * rounds
    say(
        f"{rounds} rounds in {taken:.1f} s, {compared / 1e9:.1f} GB compared, {cancels} cancelled, "
        f"{multiplied} products"
    )
    s.figures["decoder"] = {
        "seconds": round(taken, 1),
        "rounds": rounds,
        "compared_bytes": compared,
        "cancelled": cancels,
        "products": multiplied,
    }


# ---- running them


def one_allocator(options):
    """In a process of its own: an allocator is chosen once."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(options.seconds + 280, exit=True)
    try:
        Memory(options.device, options.allocator).new(MIB)
    except (RuntimeError, AttributeError) as error:
        print(f"{error}\n[  SKIPPED ] {options.allocator}: torch does not have it here")
        return 0
    s = Setup(options.device, options.allocator, options.seconds)
    results, failed = {}, False
    for function in CASES:
        name = f"{options.allocator}: {function.__name__}"
        if not wanted(options, options.allocator, function):
            continue
        print(f"[ RUN      ] {name}", flush=True)
        began = time.monotonic()
        try:
            function(s)
            results[function.__name__] = "passed"
            print(f"[       OK ] {name}", flush=True)
        except Skip as reason:
            results[function.__name__] = f"skipped: {reason}"
            print(f"    {reason}\n[  SKIPPED ] {name}", flush=True)
        except BaseException as error:
            failed = True
            results[function.__name__] = f"failed: {error}"
            traceback.print_exc(file=sys.stdout)
            print(f"[  FAILED  ] {name}", flush=True)
        say(f"{time.monotonic() - began:.1f} s")
    s.engine.close()
    s.owner.end()
    if options.json:
        device = s.torch.cuda.get_device_name() if s.cuda else "cpu"
        about = {"torch": s.torch.__version__, "device": device, "cases": results, **s.figures}
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump(about, out)
    return 1 if failed else 0


def wanted(options, allocator, function):
    return options.only in f"{allocator}: {function.__name__}"


def start(options, name, part):
    """A process for one allocator. In parallel it writes to the file PART.out."""
    command = [sys.executable, os.path.abspath(__file__), "--allocator", name, "--json", part]
    command += ["--device", options.device, "--seconds", str(options.seconds)]
    command += ["--only", options.only]
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[name][0])
    with open(part + ".out", "wb") as out:
        to = out if options.parallel else None
        return subprocess.Popen(command, env=environment, stdout=to, stderr=to)


def ended(name, part, process, options, results):
    """Wait for it and take its results. Has it failed?"""
    try:
        status = process.wait(options.seconds + 300)
    except subprocess.TimeoutExpired:
        process.kill()
        status = process.wait()
    with open(part + ".out", encoding="utf-8", errors="replace") as text:
        print(text.read(), end="", flush=True)
    if status:
        print(f"[  FAILED  ] {name}: its process ended with {status}", flush=True)
    if os.path.exists(part):
        with open(part, encoding="utf-8") as text:
            results[name] = json.load(text)
    return status != 0


def available(device):
    try:
        import torch
    except ImportError:
        return "there is no torch here"
    if device == "cuda" and not torch.cuda.is_available():
        return "torch has no GPU here"
    return ""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument(
        "--only", default="", help="the allocators and cases whose names contain it"
    )
    parser.add_argument("--parallel", action="store_true", help="all allocators at the same time")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", help="where to write the results")
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    parser.add_argument("--leave", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.leave:
        return leave(options.device, options.allocator, *options.leave)
    if options.allocator:
        return one_allocator(options)
    reason = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv = sys.argv[1:]; import runpy\n"
            "print(runpy.run_path(sys.argv[0])['available'](sys.argv[1]))",
            os.path.abspath(__file__),
            options.device,
        ],
        text=True,
        capture_output=True,
        check=False,
        timeout=120,
    )
    said = reason.stdout.strip() or reason.stderr.strip()
    if said:
        print(f"skipped: {said.splitlines()[-1]}")
        return SKIP
    names = [name for name in ALLOCATORS if options.device == "cuda" or name == "default"]
    names = [name for name in names if any(wanted(options, name, one) for one in CASES)]
    failed, results = False, {}
    with tempfile.TemporaryDirectory() as folder:
        running = []
        for number, name in enumerate(names):
            part = os.path.join(folder, str(number))
            running.append((name, part, start(options, name, part)))
            if not options.parallel:
                failed |= ended(*running.pop(), options, results)
        for one in running:
            failed |= ended(*one, options, results)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump({"schema": 1, "allocators": results}, out, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
