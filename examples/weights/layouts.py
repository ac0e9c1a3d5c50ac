#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a layout for `wherry plan`: a model's tensors over a number of GPUs, as JSON on stdout.

    layouts.py dense fsdp 16 --name trainer > trainers.json
    layouts.py dense tp 16 --group 8 --name server > servers.json
    wherry plan trainers.json servers.json

MODEL is dense (16 GB), large (472 GB), trillion (1 TB in 8 bits), or LAYERSxHIDDENxFFNxEXPERTS.
SPLIT:
  fsdp   each tensor's first dimension that is long enough over all GPUs
  tp     the dimension of tensor parallelism over groups of --group GPUs; each group has all
  ep     the experts over groups of --group GPUs; all GPUs have the rest
  whole  each GPU has everything
"""

import argparse
import json

MODELS = {
    "dense": (32, 4096, 14336, 1, "bf16"),
    "large": (94, 4096, 1536, 128, "bf16"),
    "trillion": (60, 7168, 2048, 384, "f8e4m3"),
}
ITEM_BYTES = {"bf16": 2, "f8e4m3": 1}


def model(name):
    """Names, shapes and the dimension for tensor parallelism (None: replicated)."""
    if name in MODELS:
        layers, hidden, ffn, experts, dtype = MODELS[name]
    else:
        layers, hidden, ffn, experts = (int(part) for part in name.split("x"))
        dtype = "bf16"
    tensors = {"embed": ([16 * hidden, hidden], 0)}
    for i in range(layers):
        tensors[f"layers.{i}.qkv"] = ([3 * hidden, hidden], 0)
        tensors[f"layers.{i}.out"] = ([hidden, hidden], 1)
        tensors[f"layers.{i}.up"] = ([experts, 2 * ffn, hidden], 1)
        tensors[f"layers.{i}.down"] = ([experts, hidden, ffn], 2)
        tensors[f"layers.{i}.norm"] = ([hidden], None)
    return tensors, dtype


def ranges(shape, dim, part, parts):
    """The part's range in `dim`, as even as it gets; all of the others. None: it is empty."""
    box = [[0, size] for size in shape]
    if dim is not None:
        box[dim] = [part * shape[dim] // parts, (part + 1) * shape[dim] // parts]
    return box if all(begin < end for begin, end in box) else None


def box_of(split, shape, dim, rank, count, group):
    if split == "fsdp":
        dims = range(len(shape))
        long = [dim for dim in dims if shape[dim] >= count]
        return ranges(shape, long[0] if long else max(dims, key=shape.__getitem__), rank, count)
    if split == "tp":
        return ranges(shape, dim, rank % group, group)
    if split == "ep" and len(shape) == 3:
        return ranges(shape, 0, rank % group, group)
    return ranges(shape, None, 0, 1)


def engine(options, tensors, dtype, rank):
    slices, offset = [], 0
    for name, (shape, dim) in tensors.items():
        box = box_of(options.split, shape, dim, rank, options.gpus, options.group or options.gpus)
        if box is None:
            continue
        text = ",".join(f"{begin}:{end}" for begin, end in box)
        slices.append(f"{name}[{text}]@{options.name}+{offset}")
        size = ITEM_BYTES[dtype]
        for begin, end in box:
            size *= end - begin
        offset += size
    return {
        "host": f"{options.host or options.name}{rank // options.per_host}",
        "gpu": options.first_gpu + rank % options.per_host,
        "regions": {options.name: max(offset, 1)},
        "slices": slices,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("model")
    parser.add_argument("split", choices=["fsdp", "tp", "ep", "whole"])
    parser.add_argument("gpus", type=int)
    parser.add_argument("--group", type=int, help="GPUs that have one copy together")
    parser.add_argument("--per-host", type=int, default=8)
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--name", default="gpu", help="of engines and their regions")
    parser.add_argument("--host", help="of hosts; by default the engines' name")
    parser.add_argument("--topology", type=json.loads, default={}, help="as JSON")
    options = parser.parse_args()
    tensors, dtype = model(options.model)
    layout = {
        "schema": 1,
        "topology": options.topology,
        "tensors": {k: {"dtype": dtype, "shape": shape} for k, (shape, _) in tensors.items()},
        "engines": {
            f"{options.name}-{rank}": engine(options, tensors, dtype, rank)
            for rank in range(options.gpus)
        },
    }
    print(json.dumps(layout, indent=1))


if __name__ == "__main__":
    main()
