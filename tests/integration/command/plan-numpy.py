# SPDX-License-Identifier: Apache-2.0
"""Random pairs of layouts through `wherry plan`, executed with numpy: plan-numpy.py WHERRY DIRECTORY."""

import json
import random
import subprocess
import sys

import numpy

PAIRS = 60
TYPES = {"u8": numpy.uint8, "bf16": numpy.uint16, "f32": numpy.float32, "i64": numpy.int64}


def boxes(shape, choice):
    """The tensor in random parts, each one to three times, and some parts more."""
    parts = [[(0, size) for size in shape]]
    for _ in range(choice.randrange(5)):
        box = parts.pop(choice.randrange(len(parts)))
        long = [i for i, (begin, end) in enumerate(box) if end - begin > 1]
        if not long:
            parts.append(box)
            continue
        dim = choice.choice(long)
        at = choice.randrange(box[dim][0] + 1, box[dim][1])
        parts.append(box[:dim] + [(box[dim][0], at)] + box[dim + 1 :])
        parts.append(box[:dim] + [(at, box[dim][1])] + box[dim + 1 :])
    parts = [box for box in parts for _ in range(choice.randrange(1, 4))]
    for _ in range(choice.randrange(3)):
        starts = [choice.randrange(size) for size in shape]
        parts.append([(b, choice.randrange(b + 1, s + 1)) for b, s in zip(starts, shape)])
    return parts


class Side:
    """One layout: its JSON, and numpy's views of the slices in its engines' memory."""

    def __init__(self, name, tensors, choice):
        self.slices = []
        engines = {}
        for i in range(6):
            engines[f"{name}{i}"] = {"host": f"h{i % 3}", "gpu": i, "regions": {}, "slices": []}
        used = dict.fromkeys(engines, 0)
        for tensor, (dtype, shape) in tensors.items():
            item = numpy.dtype(TYPES[dtype]).itemsize
            for box in boxes(shape, choice):
                engine = choice.choice(list(engines))
                text = ",".join(f"{begin}:{end}" for begin, end in box)
                sizes = [end - begin for begin, end in box]
                order = list(range(len(sizes)))
                choice.shuffle(order)
                strides, stride = [0] * len(sizes), item
                for dim in order:
                    strides[dim] = stride
                    stride *= sizes[dim]
                    stride += item * choice.randrange(2)
                text = f"{tensor}[{text}]@{name}+{used[engine]}"
                text += "/" + ",".join(map(str, strides)) if strides else ""
                engines[engine]["slices"].append(text)
                self.slices.append((engine, tensor, box, used[engine], sizes, strides))
                used[engine] += -(-stride // 8) * 8 + 8
        for engine, said in engines.items():
            said["regions"] = {name: used[engine] + 8}
        self.memory = {e: numpy.zeros(used[e] + 8, numpy.uint8) for e in engines}
        self.json = {
            "schema": 1,
            "tensors": {t: {"dtype": d, "shape": list(s)} for t, (d, s) in tensors.items()},
            "engines": engines,
        }

    def views(self, tensors):
        for engine, tensor, box, offset, sizes, strides in self.slices:
            dtype = numpy.dtype(TYPES[tensors[tensor][0]])
            view = numpy.ndarray(sizes, dtype, self.memory[engine].data, offset, strides)
            yield tensor, tuple(slice(begin, end) for begin, end in box), view


def execute(steps, source, target):
    for index, step in enumerate(steps):
        assert step["after"] is None or step["after"] < index
        reads = (target if step["from_target"] else source).memory[step["from"]]
        writes = target.memory[step["to"]]
        moved = 0
        for piece in step["pieces"]:
            size = piece["block_bytes"]
            for at in numpy.ndindex(*piece["counts"]):
                begin = piece["from_offset"] + int(numpy.dot(at, piece["from_strides"]))
                to = piece["to_offset"] + int(numpy.dot(at, piece["to_strides"]))
                writes[to : to + size] = reads[begin : begin + size]
                moved += size
        assert moved == step["size_bytes"]


def try_pair(wherry, directory, choice):
    tensors, values = {}, {}
    for i in range(choice.randrange(1, 4)):
        dims = choice.randrange(5)
        shape = tuple(choice.randrange(1, 12 if dims < 4 else 5) for _ in range(dims))
        dtype = choice.choice(list(TYPES))
        tensors[f"w.{i}"] = dtype, shape
        values[f"w.{i}"] = numpy.array(
            numpy.random.randint(1, 255, shape), TYPES[dtype]
        )
    sides = [Side(name, tensors, choice) for name in ("source", "target")]
    paths = []
    for name, side in zip("ab", sides):
        paths.append(f"{directory}/{name}.json")
        with open(paths[-1], "w", encoding="utf-8") as file:
            json.dump(side.json, file)
    for tensor, box, view in sides[0].views(tensors):
        view[...] = values[tensor][box]
    command = [wherry, "plan", *paths, "--json", "--steps", "--chunk", "300", "--piece", "64"]
    plan = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    execute(plan["steps"], *sides)
    for tensor, box, view in sides[1].views(tensors):
        assert numpy.array_equal(view, values[tensor][box]), (tensor, box)
    return len(plan["steps"])


def main():
    steps = 0
    for seed in range(PAIRS):
        numpy.random.seed(seed)
        steps += try_pair(sys.argv[1], sys.argv[2], random.Random(seed))
    print(f"{PAIRS} pairs, {steps} steps")
    assert steps > 10 * PAIRS


main()
