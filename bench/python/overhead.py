#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the Python package costs, in us, medians:

  submit    submitting 16,384 prepared blocks of 4 KiB
  8 B       a prepared read of 8 B by shm, from the submission to its end
  10,000    a read of 10,000 blocks, and of one block of as many bytes, with all that is to be made

WHERRY_LIBRARY=build/src/libwherry.so.0 PYTHONPATH=bindings/python bench/python/overhead.py
`wherry bench` has the figures of C.
"""
import array
import statistics
import subprocess
import sys
import time

import wherry
from wherry._native import lib

OWNER = """
import sys, wherry
e = wherry.Engine()
m = e.allocate(64 << 20)
e.register(m, name="m", access="rw")
print(e.url, flush=True)
sys.stdin.readline()
"""


def median(call, times=300):
    taken = []
    for _ in range(times):
        began = time.perf_counter_ns()
        call()
        taken.append(time.perf_counter_ns() - began)
    return statistics.median(taken) / 1000


def main():
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with wherry.Engine(listen="none") as engine:
        memory = engine.allocate(64 << 20)
        region = engine.register(memory)
        peer = engine.connect(owner.stdout.readline().decode().strip())
        remote = peer.find("m")
        pages = array.array("i", range(16384))
        plan = peer.prepare_read(remote, region, blocks=(pages, pages, 4096))
        plan.submit().wait()
        taken, c_taken = [], []
        for _ in range(50):
            began = time.perf_counter_ns()
            transfer = plan.submit()
            taken.append(time.perf_counter_ns() - began)
            transfer.wait()
            batch = transfer._batch
            began = time.perf_counter_ns()
            lib.wh_batch_submit(batch)
            c_taken.append(time.perf_counter_ns() - began)
            transfer.wait()
        print(f"submit 16,384 prepared blocks {statistics.median(taken) / 1000:8.1f} us")
        print(f"  of that in the library      {statistics.median(c_taken) / 1000:8.1f} us")
        small = peer.prepare_read(remote[0:8], region[0:8])
        cost = median(lambda: small.submit().wait(), 3000)
        print(f"8 B, prepared                 {cost:8.1f} us")
        batch = small.submit().wait()._batch

        def by_c():
            lib.wh_batch_submit(batch)
            lib.wh_batch_wait_for(batch, 1 << 62)

        cost = median(by_c, 3000)
        print(f"  by two calls of the library {cost:8.1f} us")
        cost = median(lambda: peer.read(remote[0:8], region[0:8]).wait(), 3000)
        print(f"8 B                           {cost:8.1f} us")
        many = array.array("i", range(10000))
        few = array.array("i", [0])
        one = median(lambda: peer.read(remote, region, blocks=(few, few, 80000)).wait())
        all_ = median(lambda: peer.read(remote, region, blocks=(many, many, 8)).wait())
        print(f"1 block of 80,000 B           {one:8.1f} us")
        print(f"10,000 blocks of 8 B          {all_:8.1f} us")
    owner.communicate(b"\n")


if __name__ == "__main__":
    main()
