# SPDX-License-Identifier: Apache-2.0
"""Weights in torch tensors, and the example with DTensors in four processes."""
import errno
import os
import subprocess
import sys
import unittest

from test_transfer import needs_torch, torch
from test_weights import PATIENCE, Together

import wherry
from wherry import _layouts

ROOT = os.environ.get("TEST_SOURCE") or os.path.join(os.path.dirname(__file__), "../../..")


@needs_torch
class Torch(Together):
    def bytes(self, tensor):
        flat = tensor.detach().contiguous().reshape(-1)
        return flat.view(torch.uint8).tolist()

    def test_types(self):
        """All types, views of one storage, parameters, and a target without memory of its own."""
        kinds = ("bool", "uint8", "int8", "int16", "float16", "bfloat16", "float32", "int64",
                 "complex64", "float8_e4m3fn", "float8_e5m2")  # fmt: skip
        raw = torch.arange(64 * 16, dtype=torch.int64).to(torch.uint8) % 2
        held = {kind: raw.to(getattr(torch, kind)).reshape(64, 16) for kind in kinds}
        held["turned"] = held["float32"].t()
        held["parameter"] = torch.nn.Parameter(torch.randn(8, 8, dtype=torch.bfloat16))
        held["scalar"] = torch.tensor(5.0)
        like = {name: torch.empty_like(value, device="meta") for name, value in held.items()}
        source, target = self.pair(held, like, device="cpu")
        mine = {name: torch.zeros_like(value) for name, value in held.items()}
        mine["parameter"] = torch.nn.Parameter(mine["parameter"])
        with source.publish():
            self.assertEqual(target.load(mine, timeout=PATIENCE), 1)
            with target.acquire() as view:
                for name, value in held.items():
                    self.assertEqual(view.tensors[name].dtype, value.dtype)
                    for found in (view.tensors[name], mine[name]):
                        self.assertEqual(self.bytes(found), self.bytes(value), name)

    def test_moved(self):
        parameter = torch.nn.Parameter(torch.ones(8))
        source, target = self.pair({"w": parameter}, {"w": torch.zeros(8)})
        with self.assertRaisesRegex(RuntimeError, "not resizable"):
            parameter.untyped_storage().resize_(0)
        parameter.data = torch.ones(8)
        with self.raises(errno.EINVAL, "other memory"):
            source.publish()

    def test_sparse(self):
        with self.raises(errno.EINVAL, "not strided"):
            _layouts.pieces_of({"w": torch.eye(3).to_sparse()})

    def test_example(self):
        """Two trainers by rows, two servers by columns with replicas: every byte is compared."""
        done = subprocess.run(
            [sys.executable, os.path.join(ROOT, "examples", "python", "weights_torch.py")],
            env={**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(wherry.__file__))},
            stdout=subprocess.PIPE, timeout=220, check=True,
        )  # fmt: skip
        lines = done.stdout.decode().splitlines()
        wanted = [
            f"server{rank}: step {step}, 2597888 bytes are right"
            for rank in (2, 3)
            for step in (1, 2, 3)
        ]
        self.assertEqual(sorted(lines), wanted)


if __name__ == "__main__":
    unittest.main()
