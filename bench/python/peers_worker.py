# SPDX-License-Identifier: Apache-2.0
"""One side of a transfer by one package, for peers.py, which starts two of these.

    peers_worker.py wherry|nixl|nixl-wherry|mooncake owner|initiator DEVICE

Commands come from stdin, one JSON object a line, and each is answered by one on stdout; the process
ends with stdin. DEVICE is "cuda" if there is a GPU to use, else "cpu".

    {"do": "about"}               the package's version
    {"do": "connect", ...}        the owner's answer to "about" (initiator)
    {"do": "row", ...}            prepare a transfer: op, count, block, memory, require, indices and
                                  source (files); for the initiator also the owner's answer
    {"do": "clear"}               the target
    {"do": "go", "loops": N}      transfer N times, for 0.7 s at most: "us" of each, and "post_us"
                                  of starting each where the package starts and asks
    {"do": "check"}               is every byte of the target right?
    {"do": "explain"}             the route, where the package tells
"""

import array
import base64
import ctypes
import importlib.metadata
import json
import mmap
import os
import statistics
import sys
import time
import traceback

LONGEST = 7e8  # ns of a "go"


class Host:
    """Private pages, or what is given."""

    def __init__(self, length, buffer=None):
        self.length = length
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self.buffer = mmap.mmap(-1, length, flags=flags) if buffer is None else buffer
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self.device = None

    def put(self, data):
        ctypes.memmove(self.address, (ctypes.c_char * len(data)).from_buffer(data), len(data))

    def clear(self):
        ctypes.memset(self.address, 0, self.length)

    def same(self, data):
        compare = ctypes.CDLL(None).memcmp
        compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        there = (ctypes.c_char * len(data)).from_buffer(data)
        return compare(self.address, ctypes.addressof(there), len(data)) == 0


class Tensor:
    """A tensor of torch, on the GPU or pinned."""

    def __init__(self, length, kind):
        import torch

        self.torch = torch
        self.length = length
        self.buffer = torch.zeros(length, dtype=torch.uint8)
        self.buffer = self.buffer.cuda() if kind == "gpu" else self.buffer.pin_memory()
        self.address = self.buffer.data_ptr()
        self.device = 0 if kind == "gpu" else None
        torch.cuda.synchronize()

    def put(self, data):
        self.buffer.copy_(self.torch.frombuffer(data, dtype=self.torch.uint8))
        self.torch.cuda.synchronize()

    def clear(self):
        self.buffer.zero_()
        self.torch.cuda.synchronize()

    def same(self, data):
        there = self.torch.frombuffer(data, dtype=self.torch.uint8).to(self.buffer.device)
        return bool(self.torch.equal(self.buffer, there))


class Package:
    """What the packages share: memory, and what it has to contain."""

    def __init__(self, role):
        self.role = role
        self.memories = {}
        self.memory = None
        self.expected = None
        self.posted = []
        self.prepared = None  # us, where it is only a part of prepare()

    def make(self, kind, length):
        return Host(length) if kind == "private" else Tensor(length, kind)

    def about(self):
        return {}

    def row(self, spec):
        count, block = spec["count"], spec["block"]
        key = (spec["memory"], count * block)
        if key not in self.memories:
            self.memories[key] = self.make(*key)
            self.register(self.memories[key], f"{key[0]}-{key[1]}")
        self.memory = self.memories[key]
        with open(spec["source"], "rb") as file:
            source = bytearray(file.read(count * block))
        lists = array.array("i")
        with open(spec["indices"], "rb") as file:
            lists.fromfile(file, 2 * count)
        source_blocks, target_blocks = lists[:count], lists[count:]
        if (spec["op"] == "read") == (self.role == "initiator"):
            self.expected = bytearray(count * block)
            for one, two in zip(source_blocks, target_blocks):
                begin = one * block
                self.expected[two * block : (two + 1) * block] = source[begin : begin + block]
        else:
            self.memory.put(source)
        if self.role == "owner":
            return self.tell(f"{key[0]}-{key[1]}")
        if spec["op"] == "read":
            theirs, ours = source_blocks, target_blocks
        else:
            theirs, ours = target_blocks, source_blocks
        began = time.perf_counter_ns()
        self.prepare(spec, theirs, ours)
        return {"prepare_us": self.prepared or (time.perf_counter_ns() - began) / 1000}

    def clear(self):
        self.memory.clear()
        return {}

    def check(self):
        return {"good": self.memory.same(self.expected)}

    def go(self, loops):
        taken = []
        self.posted = []
        first = time.perf_counter_ns()
        while len(taken) < loops and time.perf_counter_ns() - first < LONGEST:
            began = time.perf_counter_ns()
            self.transfer()
            taken.append((time.perf_counter_ns() - began) / 1000)
        return {"us": taken, "post_us": self.posted}

    def explain(self):
        return {"text": ""}


class Wherry(Package):
    def __init__(self, role):
        super().__init__(role)
        import wherry

        self.engine = wherry.Engine(listen=None if role == "owner" else "none")
        self.version = wherry.__version__

    def make(self, kind, length):
        if kind == "shared":
            return Host(length, self.engine.allocate(length))
        return super().make(kind, length)

    def about(self):
        return {"url": self.engine.url, "version": self.version}

    def connect(self, about):
        self.peer = self.engine.connect(about["url"])

    def register(self, memory, name):
        memory.region = self.engine.register(memory.buffer, name=name, access="rw")

    def tell(self, name):
        return {"name": name}

    def prepare(self, spec, theirs, ours):
        prepare = self.peer.prepare_read if spec["op"] == "read" else self.peer.prepare_write
        if spec["op"] == "read":
            blocks = (theirs, ours, spec["block"])
        else:
            blocks = (ours, theirs, spec["block"])
        self.plan = prepare(
            spec["owner"]["name"],
            self.memory.region,
            blocks=blocks if spec["count"] > 1 else None,
            require=spec["require"] or None,
        )

    def transfer(self):
        began = time.perf_counter_ns()
        running = self.plan.submit()
        self.posted.append((time.perf_counter_ns() - began) / 1000)
        running.wait()

    def explain(self):
        return {"text": self.plan.explain()}


class Nixl(Package):
    backend = "UCX"

    def __init__(self, role):
        super().__init__(role)
        try:
            import nixl_cu13 as nixl

            self.version = importlib.metadata.version("nixl-cu13")
        except ImportError:
            import nixl._api as nixl

            self.version = importlib.metadata.version("nixl")
        config = nixl.nixl_agent_config(backends=[self.backend])
        self.agent = nixl.nixl_agent(f"{role}-{os.getpid()}", config)
        self.known = {}

    def about(self):
        return {"version": self.version}

    def connect(self, about):
        pass

    def place(self, memory):
        return "DRAM" if memory.device is None else "VRAM"

    def register(self, memory, name):
        entry = [(memory.address, memory.length, memory.device or 0, "")]
        self.agent.register_memory(entry, self.place(memory))

    def tell(self, name):
        metadata = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {
            "metadata": metadata,
            "address": self.memory.address,
            "device": self.memory.device,
            "place": self.place(self.memory),
        }

    def prepare(self, spec, theirs, ours):
        import numpy

        owner, block = spec["owner"], spec["block"]
        if owner["metadata"] not in self.known:
            name = self.agent.add_remote_agent(base64.b64decode(owner["metadata"]))
            self.known[owner["metadata"]] = name
        name = self.known[owner["metadata"]]

        def descriptors(address, device, blocks):
            out = numpy.zeros((len(blocks), 3), dtype=numpy.uint64)
            out[:, 0] = address + numpy.asarray(blocks, dtype=numpy.uint64) * block
            out[:, 1] = block
            out[:, 2] = device or 0
            return out

        mine = descriptors(self.memory.address, self.memory.device, ours)
        there = descriptors(owner["address"], owner["device"], theirs)
        local = self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", mine, self.place(self.memory))
        remote = self.agent.prep_xfer_dlist(name, there, owner["place"])
        numbers = numpy.arange(len(ours), dtype=numpy.int32)
        taken = []
        # A server makes a request for each transfer. The first one also opens the way to the peer.
        for _ in range(5):
            if taken:
                self.agent.release_xfer_handle(self.handle)
            began = time.perf_counter_ns()
            self.handle = self.agent.make_prepped_xfer(
                spec["op"].upper(), local, numbers, remote, numbers
            )
            taken.append((time.perf_counter_ns() - began) / 1000)
        self.prepared = statistics.median(taken)

    def transfer(self):
        began = time.perf_counter_ns()
        state = self.agent.transfer(self.handle)
        self.posted.append((time.perf_counter_ns() - began) / 1000)
        while state == "PROC":
            state = self.agent.check_xfer_state(self.handle)
        if state != "DONE":
            raise RuntimeError(f"nixl: {state}")


class NixlOnWherry(Nixl):
    """NIXL's agent, with Wherry's plug-in, which lies in NIXL_PLUGIN_DIR."""

    backend = "WHERRY"


class Mooncake(Package):
    def __init__(self, role):
        super().__init__(role)
        from mooncake.engine import TransferEngine

        self.engine = TransferEngine()
        if self.engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", ""):
            raise RuntimeError("mooncake: initialize")
        names = [one.metadata["Name"] for one in importlib.metadata.distributions()]
        self.name = next(name for name in names if name and name.startswith("mooncake"))

    def about(self):
        version = importlib.metadata.version(self.name)
        return {"version": f"{self.name} {version}", "port": self.engine.get_rpc_port()}

    def connect(self, about):
        self.session = f"127.0.0.1:{about['port']}"

    def register(self, memory, name):
        if self.engine.register_memory(memory.address, memory.length):
            raise RuntimeError("mooncake: register_memory")

    def tell(self, name):
        return {"address": self.memory.address, "gpu": self.memory.device is not None}

    def prepare(self, spec, theirs, ours):
        block, owner = spec["block"], spec["owner"]["address"]
        engine = self.engine
        read = spec["op"] == "read"
        self.call = engine.batch_transfer_sync_read if read else engine.batch_transfer_sync_write
        local = [self.memory.address + number * block for number in ours]
        remote = [owner + number * block for number in theirs]
        # By TCP a call fails with a list of 4,096 blocks, and works with 1,024.
        gpu = self.memory.device is not None or spec["owner"]["gpu"]
        self.longest = len(local) if gpu and spec["transport"] != "default" else 1024
        parts = [slice(at, at + self.longest) for at in range(0, len(local), self.longest)]
        self.lists = [(local[part], remote[part], [block] * len(local[part])) for part in parts]

    def transfer(self):
        for part in self.lists:
            status = self.call(self.session, *part)
            if status:
                raise RuntimeError(f"mooncake: {status}")

    def explain(self):
        return {"text": f"at most {self.longest} blocks a call"}


PACKAGES = {
    "wherry": Wherry,
    "nixl": Nixl,
    "nixl-wherry": NixlOnWherry,
    "mooncake": Mooncake,
}


def main():
    # What the packages print is no answer.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    package, role, device = sys.argv[1:4]
    if device == "cuda":
        import torch

        torch.zeros(1, device="cuda")
    worker = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            worker = worker or PACKAGES[package](role)
            what = command["do"]
            if what == "connect":
                worker.connect(command)
                answer = {}
            elif what == "row":
                answer = worker.row(command)
            elif what == "go":
                answer = worker.go(command["loops"])
            else:
                answer = getattr(worker, what)()
                if what == "about" and device == "cuda":
                    answer["gpu"] = torch.cuda.get_device_name()
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    # Do not measure how the packages end.
    os._exit(0)


if __name__ == "__main__":
    main()
