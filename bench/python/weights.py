#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights from one source to several targets: over shared memory beside memcpy, and over links of
one rate beside one receiver and torch's broadcast; and what `wherry plan` expects of both.

    weights.py --json FILE [--mib N] [--total-mib N] [--processes 1,2,4,8,16,32] [--receivers N]
               [--rate MBIT] [--link-mib N] [--gpu-mib N] [--devices cuda:0] [--rounds N]
               [--source-memory shared|plain] [--wherry PROGRAM] [--skip shm,links,gpu]

shm    one source and 1 to 32 targets on this host, each with all --mib MiB, or less if all targets
       together would have more than --total-mib. Before each, as much is copied by memcpy, in as
       many processes at once as there are CPUs: the limit, and what the plan takes as the rate of
       the host's memory. What one engine copies, the plan's other rate, is measured by one process
       that reads the memory of another, without weights. The JSON has what the plan expects beside
       what the run took.
       The source's memory is the engine's, which others map; with --source-memory plain it is
       the program's own, out of which the kernel copies (process_vm_readv).
links  each member in a network namespace behind a link of --rate Mbit/s in both directions (veth
       and tbf, at a bridge). Time for --receivers targets, for one, and for torch.distributed's
       broadcast by gloo from rank 0 to as many. Needs root, ip and tc; the last one torch. What
       is not there is left out, by name. The plan takes each member as a host with one such NIC.

gpu    two trainers with the rows of --gpu-mib MiB of bf16, and two servers that want the columns,
       four processes on one GPU, or the servers on the last of --devices. Beside it a copy of one
       tensor from the first of --devices to the last, by torch: the limit; and torch.distributed's
       broadcast to three others, by NCCL where there are four GPUs, else by gloo in host memory.
       Needs torch, and three times --gpu-mib of memory ("cpu": of the host, to try it).

A time is the median over the rounds, from publish() until all targets have all. It needs a quiet
machine: the JSON has the load before and after. Every byte is compared.
0: done; 2: a process failed; 69: nothing could be measured.
"""
import argparse
import collections
import contextlib
import ctypes
import datetime
import json
import mmap
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

import wherry

MIB = 1 << 20
PIECE = 4 * MIB  # that weights are read in,
REQUESTS = 6  # so many at once from each member
TENSORS = 16  # that the bytes are divided into
PATIENCE = 600
LINK_MBIT_TO_GBPS = 1 / 8000
TCP_SHARE = 1448 / 1514  # of a link's bits that are payload: Ethernet, IP, TCP with timestamps


# ---- members


def state_dict(size):
    # Pages that nobody touches take no memory: a target's state_dict only describes.
    return {f"layer{i}": mmap.mmap(-1, size // TENSORS) for i in range(TENSORS)}


def cpu_times():
    """Of all CPUs since the start: idle, and all, in ticks."""
    with open("/proc/stat", encoding="utf-8") as file:
        ticks = [int(one) for one in file.readline().split()[1:9]]
    return ticks[3], sum(ticks)


def idle_share(before, after):
    """How much of all CPUs nobody used: if there is none, they are the limit."""
    return (after[0] - before[0]) / max(1, after[1] - before[1])


def source_memory(options, engine, size):
    if options.source_memory == "plain":
        return mmap.mmap(-1, size)
    return memoryview(engine.allocate(size)).cast("B")


def doing(text):
    """Filling memory takes up to a minute; standard output gets the rows alone."""
    print(text, file=sys.stderr, flush=True)


def say(**what):
    print(json.dumps(what), flush=True)


def gather(part):
    say(part=part)
    return json.loads(sys.stdin.readline())["parts"]


def member(options):
    """A process of its own: told what to do by lines on stdin."""
    listen = f"{options.address}:0" if options.address else None
    settings = {"require": options.require} if options.require else {}
    join = wherry.weights.publish if options.role == "source" else wherry.weights.receive
    with wherry.Engine(options.name, listen=listen, **settings) as engine:
        topology = json.loads(options.topology)
        state = state_dict(options.size)
        if options.role == "source":
            state = {
                name: source_memory(options, engine, len(one)) for name, one in state.items()
            }
        with join(state, engine=engine, gather=gather, host=options.host, topology=topology) as us:
            for line in sys.stdin:
                version = json.loads(line)["version"]
                if options.role == "source":
                    for memory in state.values():
                        memory[:] = bytes([version % 251]) * len(memory)
                    say(ready=version)
                    sys.stdin.readline()
                    began = time.perf_counter()
                    with us.publish(version) as publication:
                        publication.wait(PATIENCE)
                        say(seconds=time.perf_counter() - began, bytes=us.info().total)
                    continue
                with us.acquire(version - 1, PATIENCE) as view:
                    sys.stdin.readline()  # all have it: comparing takes CPU time
                    for memory in view.tensors.values():
                        if bytes(memory).count(version % 251) != len(memory):
                            sys.exit(f"{options.name}: version {version} has wrong bytes")
                say(there=version, explain=us.explain())


# As src/weights/run/phases.c says it; "#" stands for a number.
PHASES = re.compile(
    (
        r"version \d+ took # ms: # ms from .*?, # ms to the first read, # ms reading "
        r"\(none under way for # of them\), # ms for the last check; # reads of # MiB, "
        r"# under way at once, # at most; # looks of # ms"
    ).replace("#", r"([0-9.]+)")
)
PHASE_NAMES = ("ms", "until_published_ms", "to_first_read_ms", "reading_ms", "idle_ms",
               "last_check_ms", "reads", "MiB_per_read", "mean_reads", "most_reads", "looks",
               "look_ms")  # fmt: skip


def phases(told):
    """Where the last version's time went, from a target's explanation."""
    found = PHASES.search(told)
    return dict(zip(PHASE_NAMES, map(float, found.groups()))) if found else None


class Process:
    def __init__(self, stack, command, **environment):
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        stack.callback(self.process.wait)
        stack.callback(self.process.kill)

    def tell(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self):
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{' '.join(self.process.args)}: ended with {self.process.wait()}")
        return json.loads(line)


def this(*arguments):
    return [sys.executable, os.path.abspath(__file__), *arguments]


def expect(options, parts, topology):
    """What `wherry plan` expects, in seconds; None: there is no command."""
    if not options.wherry:
        return None
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, name) for name in ("sources.json", "targets.json")]
        for path, layout in zip(paths, wherry.weights.plan_files(parts, topology)):
            with open(path, "w", encoding="utf-8") as file:
                json.dump(layout, file)
        done = subprocess.run(
            [options.wherry, "plan", "--json", *paths], stdout=subprocess.PIPE, check=True
        )
    return json.loads(done.stdout)["expected_us"] / 1e6


def spread(options, size, targets, topology, places, require=""):
    """One source and `targets` others. places(i): what is put before member i's command, its
    address and its host. Returns a row."""
    with contextlib.ExitStack() as stack:
        members = []
        for index in range(targets + 1):
            before, address, host = places(index)
            role = "target" if index else "source"
            members.append(
                Process(
                    stack,
                    [*before, *this("--member", "--role", role, "--name", f"member{index}")]
                    + ["--size", str(size), "--address", address, "--host", host]
                    + ["--require", require, "--topology", json.dumps(topology)]
                    + ["--source-memory", options.source_memory],
                )
            )
        parts = [one.hear()["part"] for one in members]
        for one in members:
            one.tell(parts=parts)
        seconds, idle, told = [], [], ""
        for version in range(1, options.rounds + 3):
            for one in members:
                one.tell(version=version)
            members[0].hear()
            before = cpu_times()
            members[0].tell(go=version)
            took = members[0].hear()["seconds"]
            idle.append(idle_share(before, cpu_times()))
            for one in members[1:]:
                one.tell(compare=version)
            told = [one.hear()["explain"] for one in members[1:]][-1]
            if version > 2:  # the first one connects, and both touch the pages of a buffer first
                seconds.append(took)
        for one in members:
            one.process.stdin.close()
            if one.process.wait(PATIENCE):
                raise RuntimeError("a member failed")
    expected = expect(options, parts, topology)
    took = statistics.median(seconds)
    return {
        "targets": targets, "source_memory": options.source_memory, "bytes": size,
        "seconds": took, "all_seconds": seconds,
        "GBps": targets * size / took / 1e9, "expected_seconds": expected,
        "run_of_expected": took / expected if expected else None, "explain": told,
        "phases": phases(told), "cpu_idle": statistics.median(idle[2:]),
    }  # fmt: skip


# ---- shared memory beside memcpy


def copier(size):
    """A process that copies by memcpy when it is told."""
    source, target = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
    ctypes.memset(source, 1, size)
    ctypes.memset(target, 2, size)
    for _ in sys.stdin:
        began = time.perf_counter()
        ctypes.memmove(target, source, size)
        say(seconds=time.perf_counter() - began)


def memcpy(options, size):
    """GB/s of all CPUs together: each copies its share of `size`, at the same time."""
    count, rates = os.cpu_count(), []
    with contextlib.ExitStack() as stack:
        copiers = [
            Process(stack, this("--copier", "--size", str(size // count))) for _ in range(count)
        ]
        for _ in range(options.rounds + 1):
            for one in copiers:
                one.tell()
            slowest = max(one.hear()["seconds"] for one in copiers)
            rates.append(size // count * count / slowest / 1e9)
    return statistics.median(rates[1:])


def pair(options):
    """A process that shows its memory, or reads another's when it is told."""
    size = options.size
    with wherry.Engine(require="local") as engine:
        if not options.address:
            memory = source_memory(options, engine, size)
            memory[:] = b"\1" * size
            engine.register(memory, name="block", access="r")
            say(url=engine.url)
            sys.stdin.readline()
            return
        peer = engine.connect(options.address)
        block, here = peer.find("block"), engine.register(engine.allocate(size))
        for _ in sys.stdin:
            began, reads = time.perf_counter(), collections.deque()
            for at in range(0, size, PIECE):
                if len(reads) == REQUESTS:
                    reads.popleft().wait()
                reads.append(peer.read(block[at : at + PIECE], into=here[at : at + PIECE]))
            for one in reads:
                one.wait()
            say(seconds=time.perf_counter() - began)


def engine_rate(options, size):
    """GB/s that one engine copies from another process."""
    rates = []
    with contextlib.ExitStack() as stack:
        owner = Process(stack, this("--pair", "--size", str(size),
                                    "--source-memory", options.source_memory))  # fmt: skip
        reader = Process(
            stack, this("--pair", "--size", str(size), "--address", owner.hear()["url"])
        )
        for _ in range(options.rounds + 1):
            reader.tell()
            rates.append(size / reader.hear()["seconds"] / 1e9)
    return statistics.median(rates[1:])


def shm(options):
    rows, most = [], options.total_mib or memory_mib() // 4
    doing("shm    filling memory, and copying by one engine")
    engine = engine_rate(options, min(options.mib, most // 2) * MIB)
    print(f"shm    one engine copies {engine:.3f} GB/s")
    for targets in options.processes:
        size = max(TENSORS, min(options.mib, most // targets) // TENSORS * TENSORS) * MIB
        doing(f"shm    {targets} targets: filling memory, copying by all CPUs, spreading")
        limit = memcpy(options, size)
        topology = {"here": {"memory_GBps": limit, "engine_GBps": min(engine, limit)}}
        row = spread(options, size, targets, topology, lambda _: ([], "", "here"), "local")
        rows.append({**row, "memcpy_GBps": limit, "engine_GBps": engine,
                     "of_memcpy": row["GBps"] / limit})  # fmt: skip
        print(
            f"shm    {targets} targets  {size // MIB} MiB  {row['seconds']:8.3f} s  "
            f"{row['GBps']:7.3f} GB/s  memcpy {limit:.3f} GB/s  "
            f"of it {100 * row['GBps'] / limit:.0f} %  {planned(row)}"
        )
    return rows


def memory_mib():
    with open("/proc/meminfo", encoding="utf-8") as file:
        return next(int(line.split()[1]) >> 10 for line in file if "MemAvailable" in line)


def planned(row):
    if not row["expected_seconds"]:
        return "no plan"
    return f"plan {row['expected_seconds']:.3f} s, run {100 * row['run_of_expected']:.0f} % of it"


# ---- links


def call(*command):
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Network:
    """Namespaces at a bridge in a namespace of its own, behind links of one rate."""

    def __init__(self, stack, count, mbit):
        self.stack = stack
        self.middle = self.namespace()
        inside = self.inside(self.middle)
        call(*inside, "ip", "link", "add", "middle", "type", "bridge")
        call(*inside, "ip", "link", "set", "middle", "up")
        self.members = [self.namespace() for _ in range(count)]
        for index, one in enumerate(self.members):
            port = f"p{index}"
            call(*inside, "ip", "link", "add", port, "type", "veth", "peer", "name", "l0",
                 "netns", str(one.pid))  # fmt: skip
            call(*inside, "ip", "link", "set", port, "master", "middle", "up")
            there, address = self.inside(one), f"{self.address(index)}/16"
            call(*there, "ip", "link", "set", "lo", "up")
            call(*there, "ip", "address", "add", address, "dev", "l0")
            call(*there, "ip", "link", "set", "l0", "up")
            for where, device in ((inside, port), (there, "l0")):
                call(*where, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate",
                     f"{mbit}mbit", "burst", "256kb", "latency", "50ms")  # fmt: skip

    def namespace(self):
        ours = os.readlink("/proc/self/ns/net")
        process = subprocess.Popen(["unshare", "--net", "sleep", "7200"])
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        until = time.monotonic() + PATIENCE
        while os.readlink(f"/proc/{process.pid}/ns/net") == ours:
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("unshare --net does not work here")
            time.sleep(0.02)
        return process

    @staticmethod
    def inside(process):
        return ["nsenter", f"--net=/proc/{process.pid}/ns/net"]

    @staticmethod
    def address(index):
        return f"10.81.0.{index + 1}"


def broadcast(options):
    """A rank of torch's broadcast from rank 0."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if options.role == "nccl" else "gloo"
    device = f"cuda:{options.rank}" if backend == "nccl" else "cpu"
    dist.init_process_group(
        backend, init_method=f"tcp://{options.address}:7100", rank=options.rank,
        world_size=options.world, timeout=datetime.timedelta(seconds=PATIENCE),
    )  # fmt: skip
    data = [
        torch.zeros(options.size // TENSORS, dtype=torch.uint8, device=device)
        for _ in range(TENSORS)
    ]
    for number in range(options.rounds + 1):
        if options.rank == 0:
            for one in data:
                one.fill_(number)
        dist.barrier()
        began = time.perf_counter()
        for one in data:
            dist.broadcast(one, 0)
        wait_for_gpu(torch, device)
        dist.barrier()
        if any(int(one[0]) != number for one in data):
            sys.exit("the broadcast has wrong bytes")
        say(seconds=time.perf_counter() - began)
    dist.destroy_process_group()


def gloo(options, network, size, receivers):
    with contextlib.ExitStack() as stack:
        ranks = [
            Process(
                stack,
                [*network.inside(network.members[rank]), *this("--broadcast", "--rank", str(rank))]
                + ["--world", str(receivers + 1), "--size", str(size)]
                + ["--rounds", str(options.rounds), "--address", network.address(0)],
                GLOO_SOCKET_IFNAME="l0",
            )
            for rank in range(receivers + 1)
        ]
        rounds = [max(one.hear()["seconds"] for one in ranks) for _ in range(options.rounds + 1)]
    return {"targets": receivers, "bytes": size, "seconds": statistics.median(rounds[1:]),
            "all_seconds": rounds[1:]}  # fmt: skip


def links(options):
    doing(f"links  {options.receivers} targets: spreading to one, then to all")
    size, found = options.link_mib * MIB, {}
    rate = options.rate * LINK_MBIT_TO_GBPS * TCP_SHARE
    hosts = [f"host{index}" for index in range(options.receivers + 1)]
    topology = {host: {"nics": 1, "nic_GBps": rate, "nic_us": 100} for host in hosts}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["WHERRY_KEYFILE"] = os.path.join(folder, "key")
        stack.callback(os.environ.pop, "WHERRY_KEYFILE")
        call(options.wherry, "key", "make", os.environ["WHERRY_KEYFILE"])
        network = Network(stack, options.receivers + 1, options.rate)

        def place(index):
            inside = network.inside(network.members[index])
            return inside, network.address(index), hosts[index]

        for key, targets in (("one", 1), ("all", options.receivers)):
            row = found[key] = spread(options, size, targets, topology, place, "tcp")
            print(
                f"links  {targets} targets  {row['seconds']:8.3f} s  {planned(row)}  "
                f"CPUs idle {100 * row['cpu_idle']:.0f} %"
            )
        found["all_of_one"] = found["all"]["seconds"] / found["one"]["seconds"]
        print(f"links  {options.receivers} targets take {found['all_of_one']:.2f} times as long")
        if has_torch():
            found["gloo"] = gloo(options, network, size, options.receivers)
            found["gloo_of_all"] = found["gloo"]["seconds"] / found["all"]["seconds"]
            print(f"gloo   {options.receivers} targets  {found['gloo']['seconds']:8.3f} s, "
                  f"{found['gloo_of_all']:.2f} times as long")  # fmt: skip
        else:
            print("left out: torch's broadcast: torch is not installed")
    return {"rate_Mbit": options.rate, "payload_GBps": rate, **found}


# ---- one GPU

TRAINERS = SERVERS = 2
COLUMNS = 16384  # of each matrix
ROWS_AT_ONCE = 1024  # that are filled or compared


def shard(options, index):
    """The box of each matrix that a trainer holds or a server wants: rows, columns."""
    rows = options.size // (TENSORS * 2 * COLUMNS)
    if options.role == "source":
        return (rows * index // TRAINERS, rows * (index + 1) // TRAINERS), (0, COLUMNS), rows
    return (0, rows), (COLUMNS * index // SERVERS, COLUMNS * (index + 1) // SERVERS), rows


def values(torch, rows, columns, number, device):
    """What a matrix has there: 16 bits that depend on the place and on `number`."""
    down = torch.arange(*rows, dtype=torch.int32, device=device)[:, None]
    across = torch.arange(*columns, dtype=torch.int32, device=device)[None, :]
    return (down * 31 + across * 17 + number * 7919).to(torch.int16)


def each_part(torch, tensor, box, number, call):
    (top, bottom), columns, _ = box
    for at in range(top, bottom, ROWS_AT_ONCE):
        end = min(at + ROWS_AT_ONCE, bottom)
        part = tensor[at - top : end - top].view(torch.int16)
        call(part, values(torch, (at, end), columns, number, tensor.device))


def wait_for_gpu(torch, device):
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def gpu_member(options):
    """A trainer or a server, told what to do by lines on stdin."""
    import torch

    trains, index = options.role == "source", options.rank
    box = shard(options, index)
    size, shape = [end - begin for begin, end in box[:2]], (box[2], COLUMNS)
    begin = (box[0][0], box[1][0])
    made = {
        f"layer{i}": torch.empty(size, dtype=torch.bfloat16,
                                 device=options.address if trains else "meta")
        for i in range(TENSORS)
    }  # fmt: skip
    state = {name: wherry.weights.Slice(one, shape, begin) for name, one in made.items()}
    join = wherry.weights.publish if trains else wherry.weights.receive
    more = {} if trains else {"device": options.address}
    with wherry.Engine(options.name, require="local") as engine:
        with join(state, engine=engine, gather=gather, host="here", **more) as us:
            for line in sys.stdin:
                version = json.loads(line)["version"]
                if trains:
                    for i, one in enumerate(made.values()):
                        each_part(torch, one, box, version * TENSORS + i, torch.Tensor.copy_)
                    wait_for_gpu(torch, options.address)  # a training step is no part of this
                    say(ready=version)
                    sys.stdin.readline()
                    began = time.perf_counter()
                    with us.publish(version) as publication:
                        publication.wait(PATIENCE)
                        say(seconds=time.perf_counter() - began, explain=us.explain())
                        sys.stdin.readline()
                    continue
                wrong = []
                with us.acquire(version - 1, PATIENCE) as view:
                    sys.stdin.readline()
                    for i in range(TENSORS):
                        each_part(torch, view.tensors[f"layer{i}"], box, version * TENSORS + i,
                                  lambda is_, want: wrong.append((is_ != want).any()))  # fmt: skip
                if any(bool(one) for one in wrong):
                    sys.exit(f"{options.name}: version {version} has wrong bytes")
                say(there=version, explain=us.explain())


def gpu_copy(options):
    """GB/s of torch's copy of one tensor, when it is told."""
    import torch

    first, last = options.address.split(",")
    source = torch.ones(options.size, dtype=torch.uint8, device=first)
    target = torch.zeros(options.size, dtype=torch.uint8, device=last)
    for _ in sys.stdin:
        began = time.perf_counter()
        target.copy_(source)
        wait_for_gpu(torch, first)
        wait_for_gpu(torch, last)
        say(GBps=options.size / (time.perf_counter() - began) / 1e9)


def gpu_limit(options, size, first, last):
    with contextlib.ExitStack() as stack:
        one = Process(
            stack, this("--gpu-copy", "--size", str(size), "--address", f"{first},{last}")
        )
        rates = []
        for _ in range(options.rounds + 1):
            one.tell()
            rates.append(one.hear()["GBps"])
    return statistics.median(rates[1:])


def gpu_spread(options, size, first, last):
    with contextlib.ExitStack() as stack:
        members = [
            Process(stack, this("--gpu-member", "--role", role, "--name", f"{role}{rank}",
                                "--rank", str(rank), "--size", str(size), "--address", device))
            for role, count, device in (("source", TRAINERS, first), ("target", SERVERS, last))
            for rank in range(count)
        ]  # fmt: skip
        parts = [one.hear()["part"] for one in members]
        for one in members:
            one.tell(parts=parts)
        trainers, servers, seconds = members[:TRAINERS], members[TRAINERS:], []
        for version in range(1, options.rounds + 3):
            for one in members:
                one.tell(version=version)
            for one in trainers:
                one.hear()
            for one in trainers:
                one.tell(go=version)
            heard = [one.hear() for one in trainers]
            took = max(one["seconds"] for one in heard)
            for one in members:
                one.tell(all_have=version)
            told = [one.hear()["explain"] for one in servers]
            if version > 2:
                seconds.append(took)
        for one in members:
            one.process.stdin.close()
            if one.process.wait(PATIENCE):
                raise RuntimeError("a member failed")
    return {"seconds": statistics.median(seconds), "all_seconds": seconds, "explain": told,
            "phases": [phases(one) for one in told],
            "trainers_explain": [one["explain"] for one in heard],
            "trainers_seconds": [one["seconds"] for one in heard]}  # fmt: skip


def gpu_broadcast(options, size):
    import torch

    nccl = torch.cuda.device_count() >= 4
    if not nccl:
        size = min(size, options.broadcast_mib * MIB)
    with contextlib.ExitStack() as stack:
        ranks = [
            Process(stack, this("--broadcast", "--rank", str(rank), "--world", "4")
                    + ["--size", str(size), "--rounds", str(options.rounds)]
                    + ["--address", "127.0.0.1", "--role", "nccl" if nccl else "gloo"],
                    GLOO_SOCKET_IFNAME="lo")
            for rank in range(4)
        ]  # fmt: skip
        rounds = [max(one.hear()["seconds"] for one in ranks) for _ in range(options.rounds + 1)]
    took = statistics.median(rounds[1:])
    return {"backend": "nccl" if nccl else "gloo", "bytes": size, "receivers": 3,
            "seconds": took, "GBps": size / took / 1e9}  # fmt: skip


def gpu(options):
    doing(f"gpu    {options.devices}: filling memory, copying, spreading")
    devices = options.devices.split(",")
    first, last, size = devices[0], devices[-1], options.gpu_mib * MIB
    limit = gpu_limit(options, max(size // TENSORS, 64 * MIB), first, last)
    row = gpu_spread(options, size, first, last)
    row = {"devices": devices, "trainers": TRAINERS, "servers": SERVERS, "bytes": size, **row,
           "GBps": size / row["seconds"] / 1e9, "copy_GBps": limit}  # fmt: skip
    row["of_copy"] = row["GBps"] / limit
    print(f"gpu    {size // MIB} MiB by rows to {size // MIB} MiB by columns  "
          f"{row['seconds']:8.3f} s  {row['GBps']:7.3f} GB/s  copy {limit:.3f} GB/s  "
          f"of it {100 * row['of_copy']:.0f} % (aim 90)")  # fmt: skip
    if has_torch():
        row["broadcast"] = told = gpu_broadcast(options, size)
        print(f"{told['backend']:6} broadcast of {told['bytes'] // MIB} MiB to 3 others  "
              f"{told['seconds']:8.3f} s  {told['GBps']:7.3f} GB/s")  # fmt: skip
    else:
        print("left out: torch's broadcast: this torch has no gloo")
    return row


def cannot_gpu(options):
    """Why there is no GPU for that here; "": there is."""
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    there = torch.cuda.device_count()
    lacks = [one for one in options.devices.split(",")
             if one.startswith("cuda") and int(one.partition(":")[2] or 0) >= there]  # fmt: skip
    return f"torch finds no {', '.join(lacks)}" if lacks else ""


def has_torch():
    with contextlib.suppress(ImportError):
        import torch.distributed as dist

        return dist.is_available() and dist.is_gloo_available()
    return False


def cannot_link(options):
    """Why there are no links here; "": there are."""
    if not options.wherry:
        return "no command wherry, which makes a key; give --wherry"
    missing = [name for name in ("ip", "tc", "unshare", "nsenter") if not shutil.which(name)]
    if missing:
        return f"{', '.join(missing)}: not installed"
    return "" if os.geteuid() == 0 else "not root"


# ---- the report


def environment():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((line.split(":")[1].strip() for line in file if "model name" in line), "")
    return {
        "host_cpus": os.cpu_count(), "cpu": model, "kernel": platform.release(),
        "python": platform.python_version(), "wherry": wherry.__version__,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "load_before": os.getloadavg(),
    }  # fmt: skip


def numbers(text):
    return [int(word) for word in text.split(",")]


def arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json")
    parser.add_argument("--mib", type=int, default=2048)
    parser.add_argument("--total-mib", type=int, default=0, help="0: a quarter of the memory")
    parser.add_argument("--processes", type=numbers, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--receivers", type=int, default=8)
    parser.add_argument("--rate", type=int, default=1000)
    parser.add_argument("--link-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--source-memory", choices=("shared", "plain"), default="shared")
    parser.add_argument("--wherry", default=shutil.which("wherry"))
    parser.add_argument("--skip", default="")
    parser.add_argument("--gpu-mib", type=int, default=16384)
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--broadcast-mib", type=int, default=2048, help="by gloo, at most")
    for flag in ("--member", "--copier", "--pair", "--broadcast", "--gpu-member", "--gpu-copy"):
        parser.add_argument(flag, action="store_true", help=argparse.SUPPRESS)  # its own processes
    for text in ("--role", "--name", "--host", "--address", "--require", "--topology"):
        parser.add_argument(text, default="", help=argparse.SUPPRESS)
    for number in ("--size", "--rank", "--world"):
        parser.add_argument(number, type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = arguments()
    sys.stdout.reconfigure(line_buffering=True)
    if options.member:
        return member(options)
    if options.copier:
        return copier(options.size)
    if options.pair:
        return pair(options)
    if options.gpu_member:
        return gpu_member(options)
    if options.gpu_copy:
        return gpu_copy(options)
    if options.broadcast:
        return broadcast(options)
    found = {"schema": 1, "benchmark": "weights", "environment": environment()}
    skip = options.skip.split(",")
    if not options.wherry:
        print("left out: the plan: no command wherry; give --wherry")
    if "shm" not in skip:
        found["shm"] = shm(options)
    why = cannot_link(options)
    if "links" not in skip and why:
        print(f"left out: links: {why}")
    elif "links" not in skip:
        found["links"] = links(options)
    why = cannot_gpu(options)
    if "gpu" not in skip and why:
        print(f"left out: gpu: {why}")
    elif "gpu" not in skip:
        found["gpu"] = gpu(options)
    found["environment"]["load_after"] = os.getloadavg()
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1)
            file.write("\n")
    return 0 if {"shm", "links", "gpu"} & set(found) else 69


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
