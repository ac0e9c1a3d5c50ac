#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Does it cost anything that two processes of one machine are in two containers?

    containers.py --json FILE [--wherry PROGRAM] [--nixl PYTHON] [--gpu] [--rounds N] [--seconds S]

Two pairs of processes: in common namespaces, and each process in network, PID, IPC, mount and UTS
namespaces of its own, with a cable between the two networks and a folder where they meet. Every
round measures both pairs twice, in turns, so that both see the same state of the CPUs, and takes
the better of each; the ratios are medians over the rounds of a round's ratio. --wherry is the
command (build/tools/wherry), --nixl an interpreter that has NIXL with its UCX; without it, Wherry
is measured alone. --gpu: GPU memory of both processes on GPU 0 instead of host memory, with blocks.
What one pair alone could do has no ratio.

Needs root, unshare, nsenter and ip.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

from peers import KIB, MIB, Process

HERE = os.path.dirname(os.path.abspath(__file__))
APART = "unshare --pid --ipc --mount --uts --fork --kill-child --mount-proc".split()
# As a container has it, a /sys of its own network: UCX finds network devices there.
APART += ["sh", "-c", 'mount -t sysfs sysfs /sys && exec "$@"', "sh"]
INSIDE = "CONTAINERS_INSIDE"
THERE = "10.79.0.2"
RATE, LATENCY = 0.98, 1.1  # what docs/containers.md promises

# Of Wherry: arguments of `wherry bench`, bytes of a block.
HOST = [([], (8, MIB, 64 * MIB))]
GPU = [
    (["--source", "cuda:0"], (8, 64 * MIB)),
    (["--source", "cuda:0", "--blocks", "8192"], (4 * KIB,)),
]


def call(*command, **more):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **more).stdout


def cable():
    """A second network, and a cable between it and ours. Returns the process that keeps it."""
    other = subprocess.Popen(["unshare", "--net", "sleep", "7200"])
    ours = os.readlink("/proc/self/ns/net")
    until = time.monotonic() + 10
    while os.readlink(f"/proc/{other.pid}/ns/net") == ours:
        if time.monotonic() > until:
            raise RuntimeError("unshare --net does not begin")
        time.sleep(0.02)
    call("ip", "link", "set", "lo", "up")
    call("ip", "link", "add", "c0", "type", "veth", "peer", "name", "c1", "netns", str(other.pid))
    call("ip", "address", "add", "10.79.0.1/24", "dev", "c0")
    call("ip", "link", "set", "c0", "up")
    there = f"ip link set lo up; ip address add {THERE}/24 dev c1; ip link set c1 up"
    call("nsenter", f"--net=/proc/{other.pid}/ns/net", "sh", "-ec", there)
    return other


class Pair:
    """Where the two processes of a pair are: what is put before their commands."""

    def __init__(self, name, owner, initiator, address):
        self.name = name
        self.owner = owner
        self.initiator = initiator
        self.address = address
        self.url = None
        self.nixl = None
        self.described = None


class Bench:
    def __init__(self, options, folder, stack):
        self.options = options
        self.folder = folder
        self.stack = stack
        self.environment = None
        self.versions = {}
        self.rows = {}
        self.failed = {}  # of NIXL, by the pair's name
        other = cable()
        self.stack.callback(other.wait)
        self.stack.callback(other.kill)
        self.pairs = [
            Pair("common", [], [], "127.0.0.1"),
            Pair("apart", ["nsenter", f"--net=/proc/{other.pid}/ns/net", *APART], APART, THERE),
        ]
        self.log = open(os.path.join(folder, "log"), "w+b")
        for name in [name for name in os.environ if name.startswith("WHERRY_")]:
            del os.environ[name]
        os.mkdir(os.path.join(folder, "meet"))
        key = os.path.join(folder, "key")
        call(options.wherry, "key", "make", key)
        os.environ["WHERRY_KEYFILE"] = key
        os.environ["WHERRY_MEET"] = os.path.join(folder, "meet")
        os.environ["WHERRY_RDMA"] = "off"

    # ---- Wherry ----

    def serve(self, pair):
        memory = "vmm:cuda:0:64MiB:target" if self.options.gpu else "host:64MiB:target"
        told = os.path.join(self.folder, f"served-{pair.name}")
        with open(told, "w", encoding="utf-8") as out:
            server = subprocess.Popen(
                [*pair.owner, self.options.wherry, "serve", "--memory", memory]
                + ["--listen", f"{pair.address}:7000"],
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.stack.callback(server.wait)
        self.stack.callback(server.kill)
        until = time.monotonic() + 60
        while not pair.url:
            with open(told, encoding="utf-8") as text:
                lines = text.read().splitlines()
            pair.url = next((line for line in lines if line.startswith("wherry://")), None)
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"wherry serve, {pair.name}: {' '.join(lines)}")
            time.sleep(0.02)

    def wherry(self, pair, number):
        transport = "cuda" if self.options.gpu else "shm"
        for arguments, sizes in GPU if self.options.gpu else HOST:
            text = call(
                *[*pair.initiator, self.options.wherry, "bench", "--peer", pair.url],
                *["--transport", transport, "--op", "both", *arguments],
                *["--size", ",".join(map(str, sizes)), "--seconds", str(self.options.seconds)],
                *["--json", os.path.join(self.folder, "bench.json")],
            )
            with open(os.path.join(self.folder, "bench.json"), encoding="utf-8") as file:
                found = json.load(file)
            self.environment = self.environment or found["environment"]
            if len(found["results"]) != 2 * len(sizes):
                raise RuntimeError(f"wherry bench, {pair.name}: {text}")
            for row in found["results"]:
                key = ("wherry", row["op"], row["size_bytes"], row["blocks"])
                route = f"{row['transport']}, {row['route_detail']}"
                small = row["size_bytes"] == 8
                value = row["latency_us"]["p50"] if small else row["bandwidth_GBps"]
                self.add(key, pair, number, value, route)

    # ---- NIXL ----

    def nixl_start(self, pair):
        environment = dict(os.environ)
        for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
            environment.pop(name, None)
        worker = [self.options.nixl, os.path.join(HERE, "peers_worker.py"), "nixl"]
        device = "cuda" if self.options.gpu else "cpu"
        owner = Process([*pair.owner, *worker, "owner", device], environment, self.log)
        self.stack.callback(owner.end)
        initiator = Process([*pair.initiator, *worker, "initiator", device], environment, self.log)
        self.stack.callback(initiator.end)
        about = owner.ask("about")
        self.versions["nixl"] = about["version"]
        initiator.ask("connect", **about)
        pair.nixl = owner, initiator

    def nixl(self, pair, number):
        owner, initiator = pair.nixl
        memory = "gpu" if self.options.gpu else "private"
        for op in ("read", "write"):
            for block in (8, MIB, 64 * MIB):
                spec = {
                    "op": op,
                    "count": 1,
                    "block": block,
                    "require": "",
                    "transport": "default",
                    "memory": memory,
                    "indices": os.path.join(self.folder, "indices"),
                    "source": os.path.join(self.folder, "source"),
                }
                told = owner.ask("row", **spec)
                initiator.ask("row", owner=told, name=told.get("name", ""), **spec)
                (initiator if op == "read" else owner).ask("clear")
                initiator.ask("go", loops=1)
                went = initiator.ask("go", loops=200 if block == 8 else 16)["us"]
                if not (initiator if op == "read" else owner).ask("check")["good"]:
                    raise RuntimeError(f"nixl, {pair.name}: the bytes are wrong")
                us = statistics.median(went)
                value = us if block == 8 else block / us / 1000
                route = initiator.ask("explain")["text"]
                self.add(("nixl", op, block, 1), pair, number, value, route)

    def nixl_try(self, pair, number):
        """NIXL that fails in a pair is left out from there on, and the results say why."""
        if pair.name in self.failed:
            return
        try:
            self.nixl(pair, number)
        except RuntimeError as error:
            self.failed[pair.name] = str(error)
            print(f"nixl, {pair.name}: {error}", file=sys.stderr, flush=True)

    # ---- rows ----

    def add(self, key, pair, number, value, route):
        row = self.rows.setdefault(key, {"values": {}, "routes": {}})
        values = row["values"].setdefault(pair.name, {})
        better = min if key[2] == 8 else max
        values[number] = better(value, values.get(number, value))
        row["routes"][pair.name] = route

    def run(self):
        with open(os.path.join(self.folder, "source"), "wb") as file:
            file.write(random.Random(1).randbytes(64 * MIB))
        with open(os.path.join(self.folder, "indices"), "wb") as file:
            file.write(bytes(8))  # one block of the source, one of the target
        for pair in self.pairs:
            self.serve(pair)
            if self.options.nixl:
                self.nixl_start(pair)
        for number in range(self.options.rounds):
            first, second = self.pairs[:: 1 if number % 2 else -1]
            for pair in (first, second, second, first):
                self.wherry(pair, number)
                if self.options.nixl:
                    self.nixl_try(pair, number)
            print(f"round {number + 1} of {self.options.rounds}", file=sys.stderr, flush=True)

    def results(self):
        out = []
        for (package, op, block, blocks), found in self.rows.items():
            common, apart = (found["values"].get(pair.name, {}) for pair in self.pairs)
            ratios = [apart[number] / common[number] for number in apart if number in common]
            ratio = statistics.median(ratios) if ratios else None
            small = block == 8
            row = {
                "package": package,
                "op": op,
                "block_bytes": block,
                "blocks": blocks,
                "unit": "us" if small else "GBps",
                "common": round(statistics.median(common.values()), 4) if common else None,
                "apart": round(statistics.median(apart.values()), 4) if apart else None,
                "ratio": round(ratio, 4) if ratios else None,
                "ratios": [round(each, 3) for each in ratios],
                "routes": found["routes"],
            }
            if package == "wherry" and ratios:
                row["limit"] = LATENCY if small else RATE
                row["met"] = ratio <= LATENCY if small else ratio >= RATE
            out.append(row)
        return out


def show(rows):
    print(f"{'':32s}{'common':>12s}{'apart':>12s}{'ratio':>8s}")
    for row in rows:
        unit = "us" if row["block_bytes"] == 8 else "GB"
        text = f"{row['package']} {row['op']} {row['block_bytes']} B x {row['blocks']}".ljust(32)
        for name in ("common", "apart"):
            text += "-".rjust(12) if row[name] is None else f"{row[name]:9.2f} {unit}"
        text += "-".rjust(8) if row["ratio"] is None else f"{row['ratio']:8.3f}"
        print(text + ("" if row.get("met", True) else "  missed"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--wherry", default=shutil.which("wherry"), metavar="PROGRAM")
    parser.add_argument("--nixl", metavar="PYTHON")
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.3, help="for each row and round")
    options = parser.parse_args()
    if not options.wherry:
        parser.error("there is no command `wherry`; name one by --wherry")
    options.wherry = os.path.abspath(options.wherry)
    if INSIDE not in os.environ:  # the cable's ends are to be in no network that others use
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.argv])
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="containers-"))
        bench = Bench(options, folder, stack)
        load = os.getloadavg()[0]
        bench.run()
        rows = bench.results()
        with open(options.json, "w", encoding="utf-8") as file:
            about = {"schema": 1, "environment": bench.environment, "versions": bench.versions}
            about["rounds"], about["seconds"] = options.rounds, options.seconds
            about["nixl_failed"] = bench.failed
            about["load_average_before"] = round(load, 2)
            json.dump({**about, "results": rows}, file, indent=2)
            file.write("\n")
    show(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
