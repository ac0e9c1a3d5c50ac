#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Windows onto PyTorch's memory, of each of its allocators, through libgdrapi.so.2: what is written through them
torch sees, and the reverse; and what is said where there is none.

    torch-windows.py LIBRARY      exit code 77 without torch, or without a GPU
"""
import ctypes
import os
import subprocess
import sys

MIB = 1 << 20
SKIP = 77
REFUSED = 3

# The allocator's setting; what is said where rm has no window onto its memory; and must there be none?
ALLOCATORS = [
    ("default", "", None, False),
    ("expandable segments", "expandable_segments:True", "create it for POSIX descriptors", False),
    ("cudaMallocAsync", "backend:cudaMallocAsync", "take cuMemAlloc", True),
]


class Handle(ctypes.Structure):
    _fields_ = [("h", ctypes.c_ulong)]


def check(good, what):
    if not good:
        sys.exit(f"not so: {what}")


def round_trip(library, tensor, torch):
    gdr = ctypes.CDLL(library)
    gdr.gdr_open.restype = ctypes.c_void_p
    g = ctypes.c_void_p(gdr.gdr_open())
    check(g.value, "gdr_open")
    handle, length, va = Handle(), 3 * MIB, ctypes.c_void_p()
    page = -tensor.data_ptr() % 65536  # a mapping begins a page of the GPU
    address = ctypes.c_ulong(tensor.data_ptr() + page)
    if gdr.gdr_pin_buffer_v2(g, address, ctypes.c_size_t(length), 0, ctypes.byref(handle)):
        sys.exit(REFUSED)
    check(gdr.gdr_map(g, handle, ctypes.byref(va), ctypes.c_size_t(length)) == 0, "gdr_map")
    sent = bytes((7 * i + 3) % 251 for i in range(length))
    check(gdr.gdr_copy_to_mapping(handle, va, sent, ctypes.c_size_t(length)) == 0, "copy to")
    got = ctypes.create_string_buffer(length)
    check(gdr.gdr_copy_from_mapping(handle, got, va, ctypes.c_size_t(1)) == 0, "copy from")
    seen = bytes(tensor[page:page + length].cpu().tolist())
    check(seen == sent, "torch sees what was written through the window")
    tensor.fill_(77)
    torch.cuda.synchronize()
    check(gdr.gdr_copy_from_mapping(handle, got, va, ctypes.c_size_t(length)) == 0, "copy from")
    check(got.raw == bytes([77]) * length, "the window shows what torch wrote")
    check(gdr.gdr_unmap(g, handle, va, ctypes.c_size_t(length)) == 0, "gdr_unmap")
    check(gdr.gdr_unpin_buffer(g, handle) == 0, "gdr_unpin_buffer")
    check(gdr.gdr_close(g) == 0, "gdr_close")


def one(library):
    """In a process of its own: an allocator is chosen once."""
    try:
        import torch
    except ImportError:
        sys.exit(SKIP)
    if not torch.cuda.is_available():
        sys.exit(SKIP)
    # A block that was cut, and one of its own.
    for bytes_ in (4 * MIB, 32 * MIB):
        round_trip(library, torch.zeros(bytes_, dtype=torch.uint8, device="cuda"), torch)


def run(library, setting, order):
    environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=setting, WHERRY_WINDOW=order, GDRCOPY_ENABLE_LOGGING="1")
    return subprocess.run([sys.executable, __file__, "--one", library], env=environment, text=True,
                          capture_output=True, check=False, timeout=200)


def main():
    failed = False
    if sys.argv[1] == "--one":
        one(sys.argv[2])
        return 0
    library = os.path.abspath(sys.argv[1])
    for name, setting, remedy, never in ALLOCATORS:
        for order in ("rm", "rm,rm-watch"):
            done = run(library, setting, order)
            if done.returncode == SKIP:
                print("skipped: there is no torch here, or no GPU for it")
                return SKIP
            good = done.returncode == 0 and not (never and order == "rm")
            if done.returncode == REFUSED and remedy and order == "rm":
                good = remedy in done.stderr and "rm-watch in the setting window" in done.stderr
            print(f"[{'       OK ' if good else '  FAILED  '}] {name}, {order}: exit code {done.returncode}")
            if done.stderr.strip():
                print(done.stderr.strip())
            failed = failed or not good
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
