# SPDX-License-Identifier: Apache-2.0
# The first program with Wherry: one process reads 1 MiB of another.
import multiprocessing

import wherry


def owner(pipe):
    with wherry.Engine() as engine:
        data = bytearray(b"kv" * 524288)
        engine.register(data, name="kv", access="r")
        pipe.send(engine.url)
        pipe.recv()


if __name__ == "__main__":
    pipe, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=owner, args=(theirs,)).start()
    with wherry.Engine() as engine:
        data = bytearray(1 << 20)
        engine.connect(pipe.recv()).read("kv", into=engine.register(data)).wait()
        print(data == b"kv" * 524288)
    pipe.send("done")
