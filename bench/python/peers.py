#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The Python packages of Wherry, NIXL and Mooncake side by side, and Wherry's C beside its Python.

    peers.py --json FILE [--wherry PYTHON] [--nixl PYTHON] [--mooncake PYTHON] [--c PROGRAM] [--gpu]
             [--plugin FILE.so] [--rounds N] [--seconds S] [--only WORD] [--unpack FILE.tar.xz]
    peers.py --install --json FILE [--wheel FILE.whl]

Each package has an interpreter, which has it installed; WHERRY_LIBRARY and PYTHONPATH are passed
on to Wherry's alone. Without one, or with "", it is left out. --c is build/bench/python-peer. --plugin is
Wherry's plug-in for NIXL (build/compat/libplugin_WHERRY.so): NIXL's agent is measured with it, too,
beside its own UCX, and rows by TCP on a GPU are added. --unpack takes
NIXL and Mooncake from an archive, for this interpreter: its folders nixl/ and mooncake/ are what
PYTHONPATH needs, system/ libraries that are used where the system has none of the name.

In every round each package in turn starts two processes, which prepare each transfer once and then
submit it a few times. The target is cleared before, and afterwards all of its bytes are compared,
in each round. C takes turns with Python within the round, with the same owner. Figures are medians
over the rounds of a round's median.

--install measures `pip install` in a fresh environment and the first program of first/; a FILE that
exists keeps its other results.
"""

import argparse
import array
import contextlib
import ctypes
import json
import os
import random
import selectors
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
KIB, MIB = 1 << 10, 1 << 20
LIMIT = 60  # s: the longest answer

# block, count, loops in a round
HOST = [(4 * KIB, 16384, 3), (64 * KIB, 64, 16), (MIB, 16, 8), (8, 1, 1000)]
GPU = [(4 * KIB, 16384, 5), (64 * KIB, 64, 20), (MIB, 16, 20), (64 * MIB, 1, 10), (8, 1, 300)]
FIRST = {"wherry": "with_wherry.py", "nixl": "with_nixl.py", "mooncake": "with_mooncake.py"}
PIP = {"wherry": "wherry", "nixl": "nixl", "mooncake": "mooncake-transfer-engine-non-cuda"}


class Way:
    """A package by one transport: what its processes need, and the memories of both sides."""

    def __init__(self, package, transport, memories, require="", sizes=(), **environment):
        self.package = package
        self.sizes = sizes  # the bytes of a block that are measured; (): all
        self.transport = transport
        self.memories = memories  # pairs (owner, initiator)
        self.require = require
        self.environment = environment


HOST_WAYS = [
    Way("wherry", "default", [("private", "private"), ("shared", "shared")]),
    Way("nixl", "default", [("private", "private")]),
    Way("mooncake", "default", [("private", "private")]),
    Way("wherry", "tcp", [("private", "private")], "tcp"),
    Way("nixl", "tcp", [("private", "private")], UCX_TLS="tcp"),
    Way("nixl-wherry", "default", [("private", "private")]),
    Way("nixl-wherry", "spin", [("private", "private")], sizes=(8,), WHERRY_SPIN="1"),
    Way("nixl-wherry", "tcp", [("private", "private")], WHERRY_REQUIRE="tcp"),
]
GPU_PAIRS = [("gpu", "gpu"), ("gpu", "pinned"), ("pinned", "gpu")]
GPU_WAYS = [
    Way("wherry", "default", GPU_PAIRS),
    Way("nixl", "default", GPU_PAIRS),
    Way("mooncake", "default", GPU_PAIRS),
    Way("mooncake", "nvlink_intra", [("gpu", "gpu")], MC_INTRA_NVLINK="1"),
    Way("nixl-wherry", "default", GPU_PAIRS),
]
# With the plug-in also by TCP, with one connection and with four.
GPU_TCP_WAYS = [
    Way(
        package,
        f"tcp x {connections}",
        [("gpu", "gpu")],
        sizes=(64 * MIB,),
        WHERRY_REQUIRE="tcp",
        WHERRY_CONNECTIONS=connections,
    )
    for connections in ("1", "4")
    for package in ("wherry", "nixl-wherry")
] + [Way("nixl", "tcp", [("gpu", "gpu")], sizes=(64 * MIB,), UCX_TLS="tcp,cuda_copy")]


class Process:
    """A worker; its answers are dictionaries."""

    def __init__(self, command, environment, log):
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
        )
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def ask(self, what, **rest):
        self.process.stdin.write(json.dumps({"do": what, **rest}).encode() + b"\n")
        self.process.stdin.flush()
        if not self.selector.select(LIMIT):
            raise RuntimeError(f"no answer in {LIMIT} s")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process ended with {self.process.wait(5)}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def end(self):
        self.selector.close()
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def new_row():
    return {"rounds": {}, "prepare": [], "post": []}


class Bench:
    def __init__(self, options):
        self.options = options
        self.rows = {}
        self.versions = {}
        self.machine = {}
        self.gpu = None
        self.folder = tempfile.mkdtemp(prefix="peers-")
        self.source = os.path.join(self.folder, "source")
        with open(self.source, "wb") as file:
            file.write(random.Random(1).randbytes(64 * MIB))
        self.plugins = os.path.join(self.folder, "plugins")
        os.mkdir(self.plugins)
        if options.plugin:
            shutil.copy(options.plugin, os.path.join(self.plugins, "libplugin_WHERRY.so"))
        self.log = open(os.path.join(self.folder, "log"), "w+b")

    def indices(self, count):
        """The file of the source's blocks and the target's, both in random order."""
        path = os.path.join(self.folder, f"indices-{count}")
        if not os.path.exists(path):
            order = random.Random(count)
            with open(path, "wb") as file:
                for _ in range(2):
                    file.write(array.array("i", order.sample(range(count), count)).tobytes())
        return path

    def python(self, way):
        """The interpreter of the way's package; None: it is left out."""
        if way.package == "nixl-wherry":
            return self.options.plugin and self.options.nixl
        return getattr(self.options, way.package)

    def start(self, way, role):
        environment = dict(os.environ, **way.environment)
        python = self.python(way)
        if way.package != "wherry":
            for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
                environment.pop(name, None)
            if self.options.unpacked:
                wheel = way.package.partition("-")[0]
                environment["PYTHONPATH"] = os.path.join(self.options.unpacked, wheel)
                environment["LD_LIBRARY_PATH"] = os.path.join(self.options.unpacked, "missing")
        if way.package == "nixl-wherry":
            environment["NIXL_PLUGIN_DIR"] = self.plugins
        device = "cuda" if self.options.gpu else "cpu"
        worker = os.path.join(HERE, "peers_worker.py")
        return Process([python, worker, way.package, role, device], environment, self.log)

    def start_c(self, way):
        """The side in C, with the same library."""
        library = os.path.dirname(os.environ.get("WHERRY_LIBRARY", ""))
        environment = dict(os.environ, **way.environment)
        if library:
            environment["LD_LIBRARY_PATH"] = library
        return Process([self.options.c], environment, self.log)

    def round(self, way, number, memories):
        """All rows of one package and transport, by new processes. Returns the memories that are
        left when a row has failed."""
        with contextlib.ExitStack() as stack:

            def begin(process):
                stack.callback(process.end)
                return process

            try:
                owner = begin(self.start(way, "owner"))
                about = owner.ask("about")
                initiators = {"python": begin(self.start(way, "initiator"))}
                self.versions[way.package] = about["version"]
                self.gpu = about.get("gpu")
                initiators["python"].ask("connect", **about)
                if way.package == "wherry" and self.options.c:
                    initiators["c"] = begin(self.start_c(way))
                    self.machine = self.machine or initiators["c"].ask("machine")
                    initiators["c"].ask("connect", url=about["url"])
            except (RuntimeError, OSError, KeyError) as error:
                print(f"{way.package}, {way.transport}: {error}", flush=True)
                self.versions.setdefault(way.package, f"failed: {error}")
                return []
            for at, (theirs, ours) in enumerate(memories):
                for row in self.wanted(way, theirs, ours):
                    if not self.row(way, owner, initiators, theirs, ours, *row, number):
                        return memories[at + 1 :]
        return []

    def name(self, way, theirs, ours, op, block, count):
        key = (op, block, count, theirs, ours, way.transport)
        return f"{way.package} {' '.join(map(str, key))}"

    def wanted(self, way, theirs, ours):
        """The rows of a pair of memories: what is done, block, count, loops."""
        return [
            (op, block, count, loops)
            for block, count, loops in (GPU if self.options.gpu else HOST)
            for op in ("read", "write")
            if (not way.sizes or block in way.sizes)
            and self.options.only in self.name(way, theirs, ours, op, block, count)
        ]

    def row(self, way, owner, initiators, theirs, ours, op, block, count, loops, number):
        """One round of one row. False: the processes are of no more use."""
        key = (op, block, count, theirs, ours, way.transport)
        name = self.name(way, theirs, ours, op, block, count)
        spec = {
            "op": op,
            "count": count,
            "block": block,
            "require": way.require,
            "transport": way.transport,
            "indices": self.indices(count),
            "source": self.source,
        }
        order = list(initiators.items())
        if number % 2:
            order.reverse()
        try:
            told = owner.ask("row", memory=theirs, **spec)
            for language, initiator in order:
                rest = {"owner": told, "name": told.get("name", "")}
                answer = initiator.ask("row", memory=ours, **spec, **rest)
                found = self.rows.setdefault((way.package, language, *key), new_row())
                found["prepare"].append(answer.get("prepare_us", 0))
            # A first time, which is not measured; then in turns.
            for turn in range(3):
                for language, initiator in order:
                    target = initiator if op == "read" else owner
                    target.ask("clear")
                    went = initiator.ask("go", loops=loops if turn else 1)
                    if not target.ask("check")["good"]:
                        raise RuntimeError("the bytes are wrong")
                    found = self.rows[(way.package, language, *key)]
                    if turn:
                        found["rounds"].setdefault(number, []).extend(went["us"])
                        found["post"] += went.get("post_us", [])
            for language, initiator in order:
                found = self.rows[(way.package, language, *key)]
                found["route"] = initiator.ask("explain")["text"]
        except RuntimeError as error:
            print(f"{name}: {error}", flush=True)
            found = self.rows.setdefault((way.package, "python", *key), new_row())
            found["error"] = str(error)
            return False
        return True

    def run(self):
        ends = time.monotonic() + self.options.seconds
        ways = GPU_WAYS if self.options.gpu else HOST_WAYS
        if self.options.gpu and self.options.plugin:
            ways = ways + GPU_TCP_WAYS
        ways = [
            way
            for way in ways
            if self.python(way) and any(self.wanted(way, *pair) for pair in way.memories)
        ]
        for number in range(self.options.rounds):
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                began = time.monotonic()
                if began > ends:
                    print("stopped: --seconds are over", flush=True)
                    return
                memories = way.memories
                while memories:
                    memories = self.round(way, number, memories)
                print(
                    f"round {number + 1} of {self.options.rounds}: {way.package}, {way.transport}: "
                    f"{time.monotonic() - began:.1f} s",
                    flush=True,
                )

    def results(self):
        """The rows as they are written."""
        out = []
        for key, found in self.rows.items():
            package, language, op, block, count, theirs, ours, transport = key
            medians = {turn: statistics.median(us) for turn, us in found["rounds"].items() if us}
            row = {
                "package": package,
                "language": language,
                "op": op,
                "block_bytes": block,
                "blocks": count,
                "owner_memory": theirs,
                "initiator_memory": ours,
                "transport": transport,
                "us": None,
                "GBps": None,
                "rounds_us": [round(us, 2) for us in medians.values()],
                "verified": bool(medians) and "error" not in found,
                "route": found.get("route", ""),
            }
            if medians:
                row["us"] = round(statistics.median(medians.values()), 2)
                row["GBps"] = round(block * count / row["us"] / 1000, 4)
                # Of the last step before the first transfer, and of starting one.
                row["prepare_us"] = round(statistics.median(found["prepare"]), 1)
                if found["post"]:
                    row["post_us"] = round(statistics.median(found["post"]), 2)
            if "error" in found:
                row["error"] = found["error"]
            beside = "wherry" if package == "nixl-wherry" else package
            other = self.rows.get((beside, "c", *key[2:]), {"rounds": {}})["rounds"]
            ratios = [
                statistics.median(other[turn]) / medians[turn]
                for turn in medians
                if other.get(turn)
            ]
            if language == "python" and ratios:
                row["c_us"] = round(statistics.median(map(statistics.median, other.values())), 2)
                # Of the speed in C.
                row["ratio_to_c"] = round(statistics.median(ratios), 4)
                row["ratios_to_c"] = [round(ratio, 3) for ratio in ratios]
            out.append(row)
        return out


def unpack(archive, folder):
    """nixl/ and mooncake/, and of system/ what the loader does not have, as missing/."""
    subprocess.run(["tar", "-xJf", archive, "-C", folder], check=True)
    system, missing = os.path.join(folder, "system"), os.path.join(folder, "missing")
    os.mkdir(missing)
    for name in os.listdir(system) if os.path.isdir(system) else []:
        try:
            ctypes.CDLL(name)
        except OSError:
            os.link(os.path.join(system, name), os.path.join(missing, name))
    print("not on this machine:", *sorted(os.listdir(missing)), flush=True)


def size_of(block):
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if block >= unit:
            return f"{block // unit} {name}"
    return f"{block} B"


def show(rows):
    """A table: a line for each transfer, GB/s, or us for 8 bytes."""
    packages = [
        ("wherry", "python"),
        ("wherry", "c"),
        ("nixl-wherry", "python"),
        ("nixl", "python"),
        ("mooncake", "python"),
    ]
    print(
        f"\n{'':46s}"
        + "".join(f"{name + (' C' if by == 'c' else ''):>12s}" for name, by in packages)
    )
    lines = {}
    for row in rows:
        line = (
            f"{row['op']:6s}{size_of(row['block_bytes']):>7s} x {row['blocks']:<6d}"
            f"{row['owner_memory']}-{row['initiator_memory']} {row['transport']}"
        )
        lines.setdefault(line, {})[(row["package"], row["language"])] = row
    for line, found in lines.items():
        text = f"{line:46s}"
        for package in packages:
            row = found.get(package, {})
            small = row.get("block_bytes") == 8
            value = row.get("us" if small else "GBps")
            text += (
                f"{'-' if value is None else f'{value:.1f} us' if small else f'{value:.2f}':>12s}"
            )
        ratio = found.get(packages[0], {}).get("ratio_to_c")
        print(text + (f"   Python/C {ratio:.3f}" if ratio else ""))


def lines_of(path):
    """Lines with code."""
    with open(path, encoding="utf-8") as text:
        return sum(1 for line in text if line.strip() and not line.lstrip().startswith("#"))


def first_programs():
    return {
        name: {"lines": lines_of(os.path.join(HERE, "first", file))} for name, file in FIRST.items()
    }


def used_bytes(folder):
    total = 0
    for place, _, files in os.walk(folder):
        for name in files:
            total += os.lstat(os.path.join(place, name)).st_blocks * 512
    return total


def install(options):
    """pip install in a fresh environment, and the first program."""
    found = first_programs()
    for name, row in found.items():
        what = options.wheel if name == "wherry" and options.wheel else PIP[name]
        if name == "wherry" and not options.wheel:
            row["error"] = "no --wheel"
            continue
        with tempfile.TemporaryDirectory(prefix="peers-") as folder:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            before = used_bytes(folder)
            python = os.path.join(folder, "bin", "python")
            environment = {key: text for key, text in os.environ.items() if key != "PYTHONPATH"}
            began = time.monotonic()
            pip = [python, "-m", "pip", "install", "-q", "--no-cache-dir", "--no-compile", what]
            done = subprocess.run(pip, env=environment, check=False, text=True, capture_output=True)
            row["pip_seconds"] = round(time.monotonic() - began, 2)
            row["command"] = "pip install " + os.path.basename(what)
            if done.returncode:
                row["error"] = done.stderr[-500:]
                continue
            row["installed_MB"] = round((used_bytes(folder) - before) / 1e6, 1)
            program = os.path.join(HERE, "first", FIRST[name])
            begun = time.monotonic()
            done = subprocess.run(
                [python, program],
                env=environment,
                check=False,
                text=True,
                capture_output=True,
                timeout=120,
            )
            row["program_seconds"] = round(time.monotonic() - begun, 2)
            row["seconds_to_first_transfer"] = round(time.monotonic() - began, 2)
            row["exit_status"] = done.returncode
            if not done.stdout.rstrip().endswith("True"):
                row["error"] = (done.stderr or done.stdout)[-500:]
        print(name, json.dumps(row), flush=True)
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    for package in FIRST:
        parser.add_argument("--" + package, metavar="PYTHON")
    parser.add_argument("--c", metavar="PROGRAM")
    parser.add_argument("--plugin", metavar="FILE.so", help="Wherry's plug-in for NIXL")
    parser.add_argument("--gpu", action="store_true", help="tensors of torch on GPU 0 and pinned")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=480, help="start nothing after them")
    parser.add_argument("--only", default="", help="the rows whose names contain it")
    parser.add_argument("--unpack", metavar="FILE.tar.xz", help="where NIXL and Mooncake are")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--wheel", help="Wherry's, for --install")
    options = parser.parse_args()
    options.unpacked = None
    if options.install:
        result = {"schema": 1}
        if os.path.exists(options.json):  # beside what was measured before
            with open(options.json, encoding="utf-8") as text:
                result = json.load(text)
        result["first"] = install(options)
    else:
        bench = Bench(options)
        try:
            if options.unpack:
                options.unpacked = os.path.join(bench.folder, "unpacked")
                os.mkdir(options.unpacked)
                unpack(options.unpack, options.unpacked)
                for package in ("nixl", "mooncake"):
                    if getattr(options, package) is None:
                        setattr(options, package, sys.executable)
            bench.run()
            rows = bench.results()
            bench.log.seek(0)
            said = bench.log.read().decode(errors="replace")
            if any("error" in row for row in rows) or any(
                version.startswith("failed") for version in bench.versions.values()
            ):
                print("---- the end of what the processes said\n" + said[-6000:])
        finally:
            bench.log.close()
            shutil.rmtree(bench.folder, ignore_errors=True)
        show(rows)
        result = {
            "schema": 1,
            "environment": {**bench.machine, "gpu": bench.gpu, "packages": bench.versions},
            "rounds": options.rounds,
            "first": first_programs(),
            "results": rows,
        }
    with open(options.json, "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
