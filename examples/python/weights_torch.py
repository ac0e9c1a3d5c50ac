#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two trainers give their weights to two servers after every step; four processes of torch. The
trainers have the rows of each matrix, as DTensors on a mesh of their own; the servers want the
columns, and whole copies of the rest, on another mesh. Each server compares every byte.

    $ weights_torch.py
"""
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import wherry

STEPS, TRAINERS, SERVERS = 3, (0, 1), (2, 3)
SHAPES = {"embedding": (1000, 512), "up": (1536, 512), "down": (512, 1536), "norm": (512,)}


def model(step):
    """What the weights are after a step: random numbers that all processes know."""
    source = torch.Generator().manual_seed(step)
    return {
        name: torch.randn(shape, generator=source).to(torch.bfloat16)
        for name, shape in SHAPES.items()
    }


def placement(name, trains):
    """The trainers divide everything by rows, the servers the two matrices of the MLP by columns;
    each server has all of the embedding and of the norm: replicas."""
    if trains:
        return Shard(0)
    return Shard(1) if name in ("up", "down") else Replicate()


def state_dict(step, mesh, trains):
    """This process's shards as DTensors."""
    rank, count = mesh.get_local_rank(), mesh.size()
    found = {}
    for name, whole in model(step).items():
        where = placement(name, trains)
        local = whole.chunk(count, where.dim)[rank] if where.is_shard() else whole
        shape, stride = whole.shape, whole.stride()
        found[name] = DTensor.from_local(
            local.contiguous(), mesh, [where], run_check=False, shape=shape, stride=stride
        )
    return found


def train(engine, mesh):
    weights = state_dict(0, mesh, True)
    with wherry.weights.publish(weights, engine=engine) as member:
        for step in range(1, STEPS + 1):
            for name, new in state_dict(step, mesh, True).items():  # the optimizer's step
                weights[name].to_local().copy_(new.to_local())
            with member.publish(step) as publication:
                publication.wait(100)
        dist.barrier()  # the servers have looked at the last version


def serve(engine, mesh):
    mine = state_dict(0, mesh, False)
    with wherry.weights.receive(mine, engine=engine) as member:
        step = 0
        while step < STEPS:
            with member.acquire(after=step, timeout=100) as view:
                step = view.version  # a trainer may have been faster
                view.copy_to(mine)  # or use view.tensors, without a copy
                for name, want in state_dict(step, mesh, False).items():
                    if not torch.equal(view.tensors[name], want.to_local()):
                        sys.exit(f"step {step}: wrong bytes in {name}")
                    if not torch.equal(mine[name].to_local(), want.to_local()):
                        sys.exit(f"step {step}: wrong bytes in the copy of {name}")
                size = sum(tensor.nbytes for tensor in view.tensors.values())
                print(f"{engine.name}: step {view.version}, {size} bytes are right", flush=True)
        dist.barrier()


def process(rank, folder):
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all are on this machine
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=4)
    # Each process takes part in making both meshes, and is in one.
    trainers, servers = (DeviceMesh("cpu", list(ranks)) for ranks in (TRAINERS, SERVERS))
    if rank in TRAINERS:
        with wherry.Engine(name=f"trainer{rank}") as engine:
            train(engine, trainers)
    else:
        with wherry.Engine(name=f"server{rank}") as engine:
            serve(engine, servers)
    dist.destroy_process_group()


def main():
    with tempfile.TemporaryDirectory() as folder:
        processes.spawn(process, args=(folder,), nprocs=4)


if __name__ == "__main__":
    main()
