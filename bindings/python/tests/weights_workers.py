# SPDX-License-Identifier: Apache-2.0
"""The processes of test_weights.py. They import no torch, which takes seconds."""
import time

try:
    import numpy
except ImportError:
    numpy = None

import wherry
from wherry import weights

PATIENCE = 100  # seconds; a busy machine may need some of them


def content(version):
    """Two matrices and a vector, which all sides know."""
    whole = numpy.arange(96 * 64, dtype="u4").reshape(96, 64) * 7 + version
    return {"up": whole, "down": (whole * 3).astype("f4"), "norm": whole[0] + 1}


def shard(name, whole, axis, part, parts):
    if name == "norm":
        return whole.copy()
    size = -(-whole.shape[axis] // parts)
    begin = [0, 0]
    begin[axis] = part * size
    local = numpy.split(whole, range(size, whole.shape[axis], size), axis)[part]
    return weights.Slice(local.copy(), whole.shape, tuple(begin))


def tensors(state_dict):
    return {name: getattr(value, "tensor", value) for name, value in state_dict.items()}


def exchange(pipe):
    def gather(part):
        pipe.send(part)
        return pipe.recv()

    return gather


def shards(version, axis, part, parts):
    return {
        name: shard(name, whole, axis, part, parts) for name, whole in content(version).items()
    }


def trainer(pipe, number, config):
    held = shards(0, 0, number, 2)
    with wherry.Engine(name=f"trainer{number}", **config) as engine:
        with weights.publish(held, engine=engine, gather=exchange(pipe)) as member:
            for version, servers in iter(pipe.recv, None):
                for name, value in tensors(shards(version, 0, number, 2)).items():
                    tensors(held)[name][...] = value
                with member.publish(version) as publication:
                    publication.wait(PATIENCE)
                    until = time.monotonic() + PATIENCE
                    # One that comes back is not waited for before it has connected.
                    while publication.progress.arrived < servers and time.monotonic() < until:
                        time.sleep(0.01)
                    arrived = publication.progress.arrived
                pipe.send(arrived)


def server(pipe, number, config):
    """Two of three have the columns, the third one is a replica of the first."""
    like = shards(0, 1, number % 2, 2)
    with wherry.Engine(name=f"server{number}", **config) as engine:
        with weights.receive(like, engine=engine, gather=exchange(pipe)) as member:
            for version, _ in iter(pipe.recv, None):
                with member.acquire(version - 1, PATIENCE) as view:
                    want = tensors(shards(version, 1, number % 2, 2))
                    good = view.version == version
                    for name, value in want.items():
                        good &= bool((view.tensors[name] == value).all())
                    view.copy_to(like)
                    for name, value in tensors(like).items():
                        good &= bool((want[name] == value).all())
                pipe.send(good)
