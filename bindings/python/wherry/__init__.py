# SPDX-License-Identifier: Apache-2.0
"""Wherry moves bytes between any two memories on any two machines, over the fastest path there is,
and says which path that was.

    import wherry

    with wherry.Engine() as engine:
        kv = engine.register(tensor, name="kv", access="rw")
        peer = engine.connect("wherry://10.0.0.2:7000")
        peer.read("kv", into=kv).wait()

Lengths and offsets are bytes, times are seconds. Calls raise wherry.Error, an OSError with errno
and text. Any thread may use any object. docs/python.md is a tutorial.
"""
from ._engine import (
    Engine,
    Memory,
    Notification,
    Region,
    RegionSlice,
    Remote,
    settings,
)
from ._errors import Cancelled, Error, Invalid, Timeout
from ._native import lib as _lib
from ._peer import Blocks, Peer, Plan
from ._safetensors import load_safetensors
from ._transfer import Route, Transfer
from . import weights

__version__: str = _lib.wh_version().decode()
__all__ = [
    "Blocks",
    "Cancelled",
    "Engine",
    "Error",
    "Invalid",
    "Memory",
    "Notification",
    "Peer",
    "Plan",
    "Region",
    "RegionSlice",
    "Remote",
    "Route",
    "Timeout",
    "Transfer",
    "load_safetensors",
    "settings",
    "weights",
]
