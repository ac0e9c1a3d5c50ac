#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hand over a paged KV cache from one process to another: a prefill and a decode side, each with a
page table of its own. One call moves the pages of all layers. With torch the pools are tensors, on
the GPU if there is one; else they are bytearrays.

    $ paged_kv.py
"""
import multiprocessing
import random
import sys

import wherry

try:
    import torch
except ImportError:
    torch = None

LAYERS, PAGES, PAGE = 4, 256, 4096
ROUNDS = 5
READY, DONE = 1, 2  # tags


def pool(fill):
    """LAYERS x PAGES x PAGE bytes."""
    data = fill(LAYERS * PAGES * PAGE)
    if torch is None:
        return bytearray(data)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)


def content(memory):
    return bytes(memory if torch is None else memory.cpu().numpy())


def prefill(url):
    """Owns the pages; says which ones are ready; ends when the decode side has them."""
    memory = pool(random.Random(0).randbytes)
    with wherry.Engine(name="prefill") as engine:
        engine.register(memory, name="kv", access="r")
        decode = engine.connect(url)
        decode.notify(READY, engine.url.encode()).wait()
        engine.notification(60, tag=DONE)


def main():
    with wherry.Engine(name="decode") as engine:
        child = multiprocessing.get_context("spawn").Process(target=prefill, args=(engine.url,))
        child.start()
        memory = pool(bytes)
        kv = engine.register(memory)
        peer = engine.connect(engine.notification(60, tag=READY).data.decode())

        # The page tables: token block i is in their page theirs[i] and goes to ours[i].
        order = random.Random(1)
        theirs = order.sample(range(PAGES), 200)
        ours = order.sample(range(PAGES), 200)
        plan = peer.prepare_read("kv", kv, blocks=(theirs, ours, PAGE), layers=LAYERS)
        for _ in range(ROUNDS):
            # A decoder would pass stream=torch.cuda.current_stream() here.
            transfer = plan.submit().wait()
        print(f"{ROUNDS} times {LAYERS * len(ours)} pages\n{transfer.explain()}", end="")
        peer.notify(DONE).wait()
        child.join()

        source, target = random.Random(0).randbytes(LAYERS * PAGES * PAGE), content(memory)
        for layer in range(LAYERS):
            for one, two in zip(theirs, ours):
                at, to = ((layer * PAGES + page) * PAGE for page in (one, two))
                if source[at : at + PAGE] != target[to : to + PAGE]:
                    sys.exit(f"page {one} of layer {layer} is wrong")


if __name__ == "__main__":
    main()
