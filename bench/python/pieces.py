#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A KV cache in very many small pieces, through NIXL's agent: 112,000 pieces of 44 KiB in random
places (4.9 GB), as a server with vLLM was reported to read for one long prompt.

    pieces.py --json FILE --plugin FILE.so [--backends WHERRY,UCX] [--pieces N] [--bytes N]
              [--rounds N] [--nixl FOLDER] [--c PROGRAM]

Two processes, each with a tensor of torch: on GPU 0 both, or on GPUs 0 and 1 where there are two.
For each backend and round the initiator makes a request, posts it and asks until it is done. Every
byte is compared, on the GPU. --nixl is what PYTHONPATH needs to import NIXL. --c is
build/bench/python-peer, which describes the machine.
"""

import argparse
import base64
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time


def work(role, backend, pieces, size, rounds):
    """One side. Lines of JSON on standard output and input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import numpy
    import torch

    try:
        import nixl_cu13 as nixl
    except ImportError:
        import nixl._api as nixl

    def tell(**answer):
        print(json.dumps(answer), file=answers, flush=True)

    two = torch.cuda.device_count() > 1
    device = torch.device("cuda", 1 if two and role == "initiator" else 0)
    torch.cuda.set_device(device)
    order = torch.Generator().manual_seed(55434)
    theirs = torch.randperm(pieces, generator=order)
    ours = torch.randperm(pieces, generator=order)
    # Piece i of the owner: the numbers 8-byte word by word from i * words on.
    words = size // 8
    memory = torch.zeros((pieces, words), dtype=torch.int64, device=device)
    if role == "owner":
        for i in range(0, pieces, 4096):
            n = min(4096, pieces - i)
            memory[i : i + n] = torch.arange(
                i * words, (i + n) * words, dtype=torch.int64, device=device
            ).view(n, words)
    torch.cuda.synchronize()
    agent = nixl.nixl_agent(role, nixl.nixl_agent_config(backends=[backend]))
    entry = [(memory.data_ptr(), pieces * size, device.index, "")]
    agent.register_memory(entry, "VRAM")
    if role == "owner":
        tell(
            metadata=base64.b64encode(agent.get_agent_metadata()).decode(),
            address=memory.data_ptr(),
            device=device.index,
        )
        sys.stdin.readline()
        os._exit(0)
    owner = json.loads(sys.stdin.readline())
    name = agent.add_remote_agent(base64.b64decode(owner["metadata"]))

    def descriptors(address, gpu, numbers):
        out = numpy.zeros((pieces, 3), dtype=numpy.uint64)
        out[:, 0] = address + numbers.numpy().astype(numpy.uint64) * numpy.uint64(size)
        out[:, 1] = size
        out[:, 2] = gpu
        return out

    local = agent.prep_xfer_dlist(
        "NIXL_INIT_AGENT", descriptors(memory.data_ptr(), device.index, ours), "VRAM"
    )
    remote = agent.prep_xfer_dlist(
        name, descriptors(owner["address"], owner["device"], theirs), "VRAM"
    )
    numbers = numpy.arange(pieces, dtype=numpy.int32)
    found = []
    for _ in range(rounds):
        memory.zero_()
        torch.cuda.synchronize()
        begun = time.perf_counter_ns()
        handle = agent.make_prepped_xfer("READ", local, numbers, remote, numbers)
        made = time.perf_counter_ns()
        state = agent.transfer(handle)
        posted = time.perf_counter_ns()
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        ended = time.perf_counter_ns()
        if state != "DONE":
            raise RuntimeError(state)
        agent.release_xfer_handle(handle)
        for i in range(0, pieces, 4096):
            n = min(4096, pieces - i)
            right = theirs[i : i + n].to(device).view(n, 1) * words + torch.arange(
                words, device=device
            )
            if not bool(torch.equal(memory[ours[i : i + n].to(device)], right)):
                raise RuntimeError("the bytes are wrong")
        found.append([(made - begun) / 1e3, (posted - made) / 1e3, (ended - made) / 1e3])
    tell(rounds=found, gpu=torch.cuda.get_device_name(), gpus=2 if two else 1)
    os._exit(0)


def measure(backend, options, environment, log):
    command = [sys.executable, os.path.abspath(__file__), "--work"]
    rest = [backend, str(options.pieces), str(options.bytes), str(options.rounds)]
    sides = [
        subprocess.Popen(
            [*command, role, *rest],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
        for role in ("owner", "initiator")
    ]
    owner, initiator = sides
    try:
        told = owner.stdout.readline()
        initiator.stdin.write(told)
        initiator.stdin.flush()
        answer = json.loads(initiator.stdout.readline() or b'{"error": "it ended"}')
    finally:
        for side in sides:
            side.kill()
            side.wait()
    if "error" in answer:
        return {"backend": backend, **answer}
    prepare, post, total = (statistics.median(column) for column in zip(*answer["rounds"]))
    return {
        "backend": backend,
        "gpu": answer["gpu"],
        "gpus": answer["gpus"],
        "prepare_us": round(prepare, 1),
        "post_us": round(post, 1),
        "us": round(total, 1),
        "GBps": round(options.pieces * options.bytes / total / 1000, 2),
        "posting_share": round(post / total, 4),
        "verified": True,
        "rounds_us": [[round(us, 1) for us in one] for one in answer["rounds"]],
    }


def machine(program):
    """The environment, as all results have it."""
    if not program:
        return {}
    asked = subprocess.run([program], input=b'{"do": "machine"}\n', capture_output=True, check=True)
    return json.loads(asked.stdout)


def main():
    if sys.argv[1:2] == ["--work"]:
        role, backend, *rest = sys.argv[2:]
        return work(role, backend, *map(int, rest))
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", required=True)
    parser.add_argument("--plugin", metavar="FILE.so", required=True)
    parser.add_argument("--backends", default="WHERRY,UCX")
    parser.add_argument("--pieces", type=int, default=112000)
    parser.add_argument("--bytes", type=int, default=44 << 10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nixl", metavar="FOLDER")
    parser.add_argument("--c", metavar="PROGRAM")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as log:
        shutil.copy(options.plugin, os.path.join(folder, "libplugin_WHERRY.so"))
        for backend in options.backends.split(","):
            environment = dict(os.environ)
            if options.nixl:
                environment["PYTHONPATH"] = options.nixl
            if backend == "WHERRY":
                environment["NIXL_PLUGIN_DIR"] = folder
            row = measure(backend, options, environment, log)
            results.append(row)
            print(json.dumps(row), flush=True)
        if any("error" in row for row in results):
            log.seek(0)
            print(log.read().decode(errors="replace")[-4000:])
    result = {
        "schema": 1,
        "environment": machine(options.c),
        "pieces": options.pieces,
        "bytes": options.bytes,
        "results": results,
    }
    with open(options.json, "w", encoding="utf-8") as out:
        json.dump(result, out, indent=1)
        out.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
