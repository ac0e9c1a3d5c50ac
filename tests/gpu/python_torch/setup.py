# SPDX-License-Identifier: Apache-2.0
"""What the cases share: torch's allocators, memory of each, and the process on the other side."""

import errno
import faulthandler
import multiprocessing
import pathlib
import traceback

KIB, MIB = 1 << 10, 1 << 20
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
# What starts the processes: an allocator is chosen once in each.
SCRIPT = str(pathlib.Path(__file__).resolve().parents[1] / "python-torch.py")


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
