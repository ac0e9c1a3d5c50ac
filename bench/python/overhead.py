#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs beside C, by shm between two processes, in us, medians:

  submit       submitting 16,384 prepared blocks of 4 KiB, right after 64 MiB have been moved
  submit_warm  the same after a few reads of 8 B more: code and data are in the caches again
  read_8B      a prepared read of 8 B, from the submission to its end
  one_block    a read of one block of 80,000 B, with all that is to be made for it
  many_blocks  the same of 10,000 blocks of 8 B; with numbers in array("i"), numpy int32 and int64

overhead.py [--json FILE] CALLS

CALLS is the program of calls.c (build/bench/calls). WHERRY_LIBRARY and PYTHONPATH say which library
and package; both should be of the same build.
"""
import argparse
import array
import json
import platform
import statistics
import subprocess
import sys
import time

import wherry
from wherry._native import lib

try:
    import numpy
except ImportError:
    numpy = None

TURNS, ROUNDS = 500, 5
OWNER = """
import sys, wherry
e = wherry.Engine()
m = e.allocate(64 << 20)
e.register(m, name="m", access="rw")
print(e.url, flush=True)
sys.stdin.readline()
"""


def median(call, times=TURNS):
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def submission(submit, end, before=()):
    taken = []
    for _ in range(50):
        for call in before:
            call()
        began = time.perf_counter_ns()
        running = submit()
        taken.append(time.perf_counter_ns() - began)
        end(running)
        del running
    return statistics.median(taken) / 1000


class Peer:
    def __init__(self, url):
        self.engine = wherry.Engine(listen="none")
        self.region = self.engine.register(self.engine.allocate(64 << 20))
        self.peer = self.engine.connect(url)
        self.remote = self.peer.find("m")
        pages = array.array("i", range(16384))
        self.plan = self.peer.prepare_read(self.remote, self.region, blocks=(pages, pages, 4096))
        self.small = self.peer.prepare_read(self.remote[0:8], self.region[0:8])

    def read(self, numbers, length):
        self.peer.read(self.remote, self.region, blocks=(numbers, numbers, length)).wait()

    def by_package(self):
        """A dictionary of medians."""
        self.plan.submit().wait()
        found = {
            "submit": submission(self.plan.submit, lambda running: running.wait()),
            "submit_warm": submission(
                self.plan.submit,
                lambda running: running.wait(),
                [lambda: self.small.submit().wait()] * 3,
            ),
            "read_8B": median(lambda: self.small.submit().wait()),
        }
        one, many = array.array("i", [0]), array.array("i", range(10000))
        found["one_block"] = median(lambda: self.read(one, 80000))
        found["many_blocks"] = median(lambda: self.read(many, 8))
        for kind in ("int32", "int64") if numpy else ():
            numbers = numpy.arange(10000, dtype=kind)
            found["many_blocks_numpy_" + kind] = median(lambda: self.read(numbers, 8))
        return found

    def by_ctypes(self):
        """The same by calls of the library's functions only."""

        def submit(batch):
            lib.wh_batch_submit(batch)
            return batch

        def end(batch):
            lib.wh_batch_wait_for(batch, 1 << 62)
            lib.wh_batch_status(batch)

        large, small = self.plan._new(), self.small._new()
        found = {
            "submit": submission(lambda: submit(large), end),
            "submit_warm": submission(
                lambda: submit(large), end, [lambda: end(submit(small))] * 3
            ),
            "read_8B": median(lambda: end(submit(small))),
        }
        self.peer._core.free_batch(large)
        self.peer._core.free_batch(small)
        return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("calls", help="the program of calls.c")
    options = parser.parse_args()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    url = owner.stdout.readline().decode().strip()
    peer = Peer(url)
    rounds = {"c_us": [], "ctypes_us": [], "python_us": []}
    for _ in range(ROUNDS):  # in turns, so that other load meets all of them
        result = json.loads(subprocess.check_output([options.calls, url, str(TURNS)]))
        rounds["c_us"].append(result.pop("c_us"))
        rounds["ctypes_us"].append(peer.by_ctypes())
        rounds["python_us"].append(peer.by_package())
    peer.engine.close()
    owner.communicate(b"\n")
    result["python"] = platform.python_version()
    result["rounds"], result["turns"] = ROUNDS, TURNS
    for side, found in rounds.items():
        result[side] = {
            name: round(statistics.median(one[name] for one in found), 3) for name in found[0]
        }
        result[side.replace("_us", "_least_us")] = {
            name: round(min(one[name] for one in found), 3) for name in found[0]
        }
    print(f"{'us':24}{'C':>10}{'ctypes':>10}{'Python':>10}")
    names = dict.fromkeys(name for found in rounds.values() for name in found[0])
    for name in names:
        row = [result[side].get(name) for side in rounds]
        print(f"{name:24}" + "".join(f"{'-' if one is None else one:>10}" for one in row))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
            file.write("\n")


if __name__ == "__main__":
    main()
