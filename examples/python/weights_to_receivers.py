#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Send the weights of a model to three receivers after every step of a training. Each receiver
reads them itself, all at the same time, and compares every byte. With torch the weights are
tensors, on the GPU if there is one; with numpy arrays, else bytearrays.

    $ weights_to_receivers.py
"""
import multiprocessing
import random
import sys
import time

import wherry

try:
    import torch
except ImportError:
    torch = None
try:
    import numpy
except ImportError:
    numpy = None

RECEIVERS, STEPS = 3, 4
LAYERS = {"embedding": 16 << 20, "attention": 4 << 20, "mlp": 12 << 20}  # bytes
HELLO, NEW, GOT, FAILED = 1, 2, 3, 4  # tags


def memory(data):
    """The bytes as a tensor, an array or a bytearray."""
    if torch is not None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).to(device)
    if numpy is not None:
        return numpy.frombuffer(data, dtype=numpy.uint8).copy()
    return bytearray(data)


def content(tensor):
    return bytes(tensor.cpu().numpy() if torch is not None else tensor)


def weights(step):
    """What the layers hold after a step: here random bytes, so that all sides know them."""
    source = random.Random(step)
    return {name: source.randbytes(length) for name, length in LAYERS.items()}


def receive(number, url):
    """Reads all layers when the trainer says so, until it says that it was the last step."""
    layers = {name: memory(bytes(length)) for name, length in LAYERS.items()}
    with wherry.Engine(name=f"receiver-{number}") as engine:
        ours = [engine.register(layer) for layer in layers.values()]
        trainer = engine.connect(url)
        plan = trainer.prepare_read(list(layers), ours)
        trainer.notify(HELLO, engine.url.encode()).wait()
        for step in range(STEPS):
            engine.notification(60, tag=NEW)
            began = time.perf_counter()
            transfer = plan.submit().wait()
            speed = sum(LAYERS.values()) / (time.perf_counter() - began) / 1e9
            good = all(content(layers[name]) == data for name, data in weights(step).items())
            routes = ", ".join(route.transport for route in transfer.routes() if route.bytes)
            text = f"step {step}, receiver {number}: {speed:.1f} GB/s by {routes}"
            trainer.notify(GOT if good else FAILED, text.encode()).wait()


def main():
    processes = multiprocessing.get_context("spawn")
    layers = {name: memory(bytes(length)) for name, length in LAYERS.items()}
    with wherry.Engine(name="trainer") as engine:
        for name, layer in layers.items():
            engine.register(layer, name=name, access="r")
        children = [
            processes.Process(target=receive, args=(number, engine.url))
            for number in range(RECEIVERS)
        ]
        for child in children:
            child.start()
        urls = [engine.notification(60, tag=HELLO).data.decode() for _ in children]
        receivers = [engine.connect(url) for url in urls]
        for step in range(STEPS):
            # Nobody reads now: all have confirmed the last step.
            for name, data in weights(step).items():
                layers[name][:] = memory(data)
            if torch is not None and torch.cuda.is_available():
                torch.cuda.synchronize()
            for receiver in receivers:
                receiver.notify(NEW)
            for _ in receivers:
                answer = engine.notification(60)
                print(answer.data.decode())
                if answer.tag != GOT:
                    sys.exit("wrong bytes have arrived")
        for child in children:
            child.join()
    print(f"{STEPS * RECEIVERS} times {sum(LAYERS.values())} bytes, every one compared")


if __name__ == "__main__":
    main()
