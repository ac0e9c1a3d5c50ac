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
import faulthandler
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback

import python_torch.within  # noqa: F401: it adds its cases
from python_torch.across import leave
from python_torch.setup import ALLOCATORS, CASES, MIB, SCRIPT, Memory, Setup, Skip, say

SKIP = 77


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
    command = [sys.executable, SCRIPT, "--allocator", name, "--json", part]
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
    parser.add_argument("--available", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--allocator", help=argparse.SUPPRESS)
    parser.add_argument("--leave", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.leave:
        return leave(options.device, options.allocator, *options.leave)
    if options.allocator:
        return one_allocator(options)
    if options.available:
        print(available(options.device))
        return 0
    reason = subprocess.run(
        [sys.executable, SCRIPT, "--available", "--device", options.device],
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
