# SPDX-License-Identifier: Apache-2.0
"""The C interface of libwherry, declared by hand after include/wherry/*.h.

tests/test_native.py compares every struct and constant here with the headers.
"""
from __future__ import annotations

import ctypes
import os
from ctypes import (
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

CONSTANTS = {
    "WH_READ": 1,
    "WH_WRITE": 2,
    "WH_ACCESS_READ": 1,
    "WH_ACCESS_WRITE": 2,
    "WH_ACCESS_LIST": 4,
    "WH_PRIORITY_BULK": 0,
    "WH_PRIORITY_LATENCY": 1,
    "WH_MEMORY_PAGEABLE": 1,
    "WH_MEMORY_HUGE": 2,
    "WH_MEMORY_SHARED": 3,
    "WH_MEMORY_PINNED": 4,
    "WH_MEMORY_MAPPED": 5,
    "WH_MEMORY_DEVICE": 6,
    "WH_MEMORY_VMM": 7,
    "WH_MEMORY_MANAGED": 8,
    "WH_MEMORY_POOL": 9,
    "WH_MEMORY_FILE": 10,
    "WH_FILE_WRITE": 1,
    "WH_FILE_CREATE": 2,
    "WH_FILE_GROW": 4,
    "WH_FILE_DURABLE_NONE": 0,
    "WH_FILE_DURABLE_DATA": 1,
    "WH_FILE_DURABLE_ALL": 2,
    "WH_KEY_MAX": 128,
    "WH_NOTIFICATION_MAX": 65536,
    "WH_ANSWER": -1,
    "WH_FOREVER": 2**63 - 1,
    "WH_WEIGHTS_UNUSED": 0,
    "WH_WEIGHTS_CONNECTING": 1,
    "WH_WEIGHTS_CONNECTED": 2,
    "WH_WEIGHTS_LOST": 3,
    "WH_WEIGHTS_REFUSED": 4,
}
READ, WRITE = CONSTANTS["WH_READ"], CONSTANTS["WH_WRITE"]
FOREVER, ANSWER = CONSTANTS["WH_FOREVER"], CONSTANTS["WH_ANSWER"]
NOTIFICATION_MAX = CONSTANTS["WH_NOTIFICATION_MAX"]


class ConfigRow(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("environment", c_char_p),
        ("fallback", c_char_p),
        ("type", c_char_p),
        ("help", c_char_p),
    ]


class EngineOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("listen", c_char_p),
        ("config", POINTER(c_char_p)),
        ("log", c_void_p),
        ("log_arg", c_void_p),
        ("registry", c_char_p),
        ("log_level", c_uint32),
        ("flags", c_uint32),
    ]


class PeerOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("timeout", c_int64),
        ("queue", c_void_p),
        ("user", c_uint64),
    ]


class PeerInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("epoch", c_uint64),
        ("state", c_uint32),
        ("regions", c_uint32),
        ("name", c_char * 64),
        ("address", c_char * 64),
    ]


class Completion(Structure):
    _fields_ = [
        ("batch", c_void_p),
        ("peer", c_void_p),
        ("user", c_uint64),
        ("status", c_int32),
        ("reserved", c_uint32 * 3),
    ]


class Notification(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("buffer", c_void_p),
        ("capacity", c_uint64),
        ("length", c_uint64),
        ("tag", c_uint64),
        ("epoch", c_uint64),
        ("sender", c_char * 64),
        ("source", c_uint64),
        ("reserved", c_uint64 * 2),
    ]


class NotificationFilter(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sender", c_char_p),
        ("tag", c_uint64),
        ("tag_mask", c_uint64),
        ("reserved", c_uint64 * 2),
    ]


class MemoryOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("kind", c_uint32),
        ("flags", c_uint32),
        ("location", c_char_p),
    ]


class Grant(Structure):
    _fields_ = [("peer", c_char_p), ("access", c_uint32), ("reserved", c_uint32)]


class RegionOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("access", c_uint32),
        ("grant_count", c_uint32),
        ("grants", POINTER(Grant)),
    ]


class FileOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("offset", c_uint64),
        ("length", c_uint64),
        ("flags", c_uint32),
        ("durable", c_uint32),
        ("region", POINTER(RegionOptions)),
    ]


class RemoteInfo(Structure):
    _fields_ = [
        ("id", c_uint64),
        ("address", c_uint64),
        ("length", c_uint64),
        ("access", c_uint32),
        ("kind", c_uint32),
        ("name", c_char * 64),
        ("reserved", c_uint64 * 4),
    ]


class TransferItem(Structure):
    _fields_ = [
        ("local", c_void_p),
        ("local_offset", c_uint64),
        ("remote", c_uint64),
        ("remote_offset", c_uint64),
        ("length", c_uint64),
        ("op", c_uint32),
        ("reserved", c_uint32),
    ]


class Base(Structure):
    _fields_ = [
        ("local", c_void_p),
        ("local_offset", c_uint64),
        ("remote", c_uint64),
        ("remote_offset", c_uint64),
        ("reserved", c_uint64 * 2),
    ]


class BlocksDesc(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("op", c_uint32),
        ("reserved", c_uint32),
        ("block_length", c_uint64),
        ("count", c_uint64),
        ("bases", POINTER(Base)),
        ("base_count", c_uint64),
        ("local_offsets", c_void_p),
        ("local_stride", c_uint64),
        ("remote_offsets", c_void_p),
        ("remote_stride", c_uint64),
        ("local_indices", c_void_p),
        ("remote_indices", c_void_p),
        ("local_addresses", c_void_p),
        ("remote_addresses", c_void_p),
    ]


class BatchOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("queue", c_void_p),
        ("callback", c_void_p),
        ("callback_arg", c_void_p),
        ("user", c_uint64),
        ("priority", c_uint32),
        ("reserved", c_uint32),
        ("require", c_char_p),
    ]


class Stream(Structure):
    _fields_ = [("size", c_size_t), ("stream", c_void_p), ("device", c_char_p)]


class Route(Structure):
    _fields_ = [
        ("transport", c_char * 16),
        ("detail", c_char * 48),
        ("bytes", c_uint64),
        ("transfers", c_uint64),
        ("refused", c_char * 192),
        ("inapplicable", c_uint32),
        ("reserved", c_uint32 * 15),
    ]


class WeightsTensor(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("type", c_char_p),
        ("shape", POINTER(c_uint64)),
        ("dims", c_uint32),
        ("item_bytes", c_uint32),
        ("reserved", c_uint64 * 2),
    ]


class WeightsHost(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("nics", c_uint32),
        ("reserved0", c_uint32),
        ("nic_rate", c_double),
        ("nic_latency", c_double),
        ("uplink_rate", c_double),
        ("gpu_rate", c_double),
        ("gpu_latency", c_double),
        ("copy_rate", c_double),
        ("memory_rate", c_double),
        ("engine_rate", c_double),
        ("reserved", c_uint64),
    ]


class WeightsEngine(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("host", c_char_p),
        ("location", c_char_p),
        ("url", c_char_p),
        ("reserved", c_uint64 * 2),
    ]


class WeightsRegion(Structure):
    _fields_ = [
        ("name", c_char_p),
        ("bytes", c_uint64),
        ("engine", c_uint32),
        ("reserved0", c_uint32),
        ("reserved", c_uint64 * 2),
    ]


class WeightsSlice(Structure):
    # The last three are addresses of numbers: POINTER costs a conversion for each of many slices.
    _fields_ = [
        ("tensor", c_uint32),
        ("region", c_uint32),
        ("offset", c_uint64),
        ("begin", c_void_p),
        ("end", c_void_p),
        ("stride", c_void_p),
        ("reserved", c_uint64 * 2),
    ]


class WeightsLayout(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("label", c_char_p),
        ("hosts", POINTER(WeightsHost)),
        ("tensors", POINTER(WeightsTensor)),
        ("engines", POINTER(WeightsEngine)),
        ("regions", POINTER(WeightsRegion)),
        ("slices", POINTER(WeightsSlice)),
        ("host_count", c_uint32),
        ("tensor_count", c_uint32),
        ("engine_count", c_uint32),
        ("region_count", c_uint32),
        ("slice_count", c_uint32),
        ("reserved", c_uint32),
    ]


class WeightsMemory(Structure):
    _fields_ = [("region", c_char_p), ("address", c_void_p * 2), ("reserved", c_uint64 * 2)]


class WeightsOptions(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("sources", POINTER(WeightsLayout)),
        ("targets", POINTER(WeightsLayout)),
        ("memory", POINTER(WeightsMemory)),
        ("memory_count", c_uint32),
        ("reserved", c_uint32),
        ("allocate", POINTER(MemoryOptions)),
        ("name", c_char_p),
        ("chunk", c_uint64),
        ("piece", c_uint64),
    ]


class WeightsView(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("version", c_uint64),
        ("addresses", POINTER(c_void_p)),
        ("count", c_uint32),
        ("buffer", c_uint32),
    ]


class WeightsInfo(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("published", c_uint64),
        ("current", c_uint64),
        ("receiving", c_uint64),
        ("bytes", c_uint64),
        ("received", c_uint64),
        ("total", c_uint64),
        ("steps", c_uint32),
        ("members", c_uint32),
    ]


class WeightsMember(Structure):
    _fields_ = [
        ("size", c_size_t),
        ("name", c_char * 64),
        ("state", c_uint32),
        ("roles", c_uint32),
        ("published", c_uint64),
        ("current", c_uint64),
        ("receiving", c_uint64),
        ("received", c_uint64),
        ("sent", c_uint64),
        ("error", c_char * 256),
        ("route", c_char * 72),
    ]


# The names of the structs in C.
STRUCTS: dict[str, type[Structure]] = {
    "wh_config_row": ConfigRow,
    "wh_engine_options": EngineOptions,
    "wh_peer_options": PeerOptions,
    "wh_peer_info": PeerInfo,
    "wh_completion": Completion,
    "wh_notification": Notification,
    "wh_notification_filter": NotificationFilter,
    "wh_memory_options": MemoryOptions,
    "wh_grant": Grant,
    "wh_region_options": RegionOptions,
    "wh_file_options": FileOptions,
    "wh_remote": RemoteInfo,
    "wh_transfer": TransferItem,
    "wh_base": Base,
    "wh_blocks_desc": BlocksDesc,
    "wh_batch_options": BatchOptions,
    "wh_stream": Stream,
    "wh_route": Route,
    "wh_weights_tensor": WeightsTensor,
    "wh_weights_host": WeightsHost,
    "wh_weights_engine": WeightsEngine,
    "wh_weights_region": WeightsRegion,
    "wh_weights_slice": WeightsSlice,
    "wh_weights_layout": WeightsLayout,
    "wh_weights_memory": WeightsMemory,
    "wh_weights_options": WeightsOptions,
    "wh_weights_view": WeightsView,
    "wh_weights_info": WeightsInfo,
    "wh_weights_member": WeightsMember,
}

_P, _OUT = c_void_p, POINTER(c_void_p)
# The result and the arguments of each function.
FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "wh_version": (c_char_p, []),
    "wh_error_text": (c_char_p, []),
    "wh_config_row": (POINTER(ConfigRow), [c_size_t]),
    "wh_engine_open": (c_int, [POINTER(EngineOptions), _OUT]),
    "wh_engine_close": (c_int, [_P]),
    "wh_engine_url": (c_char_p, [_P]),
    "wh_engine_name": (c_char_p, [_P]),
    "wh_engine_epoch": (c_uint64, [_P]),
    "wh_engine_notification": (
        c_int,
        [_P, POINTER(NotificationFilter), POINTER(Notification), c_int64],
    ),
    "wh_engine_notification_fd": (c_int, [_P]),
    "wh_peer_open": (c_int, [_P, c_char_p, POINTER(PeerOptions), _OUT]),
    "wh_peer_close": (c_int, [_P]),
    "wh_peer_info": (c_int, [_P, POINTER(PeerInfo)]),
    "wh_peer_status": (c_int, [_P]),
    "wh_peer_state_name": (c_char_p, [c_uint32]),
    "wh_peer_find": (c_int, [_P, c_char_p, c_int64, POINTER(RemoteInfo)]),
    "wh_peer_list": (
        c_int,
        [_P, POINTER(c_uint64), POINTER(RemoteInfo), POINTER(c_size_t), c_int64],
    ),
    "wh_peer_unpack_key": (c_int, [_P, c_char_p, c_size_t, c_int64, POINTER(RemoteInfo)]),
    "wh_peer_prepare": (
        c_int,
        [_P, POINTER(c_void_p), c_size_t, POINTER(c_uint64), c_size_t, c_int64],
    ),
    "wh_queue_new": (c_int, [_P, _OUT]),
    "wh_queue_free": (c_int, [_P]),
    "wh_queue_take": (c_int, [_P, POINTER(Completion), c_size_t, c_int64]),
    "wh_queue_fd": (c_int, [_P]),
    "wh_memory_alloc": (c_int, [_P, c_size_t, POINTER(MemoryOptions), _OUT]),
    "wh_memory_free": (c_int, [_P, _P]),
    "wh_region_register": (c_int, [_P, _P, c_size_t, POINTER(RegionOptions), _OUT]),
    "wh_file_register": (c_int, [_P, c_char_p, POINTER(FileOptions), _OUT]),
    "wh_file_register_fd": (c_int, [_P, c_int, POINTER(FileOptions), _OUT]),
    "wh_region_unregister": (c_int, [_P]),
    "wh_region_unregister_for": (c_int, [_P, c_int64]),
    "wh_region_id": (c_uint64, [_P]),
    "wh_region_lookup": (c_int, [_P, _P, c_size_t, _OUT, POINTER(c_uint64)]),
    "wh_region_pack_key": (c_int, [_P, c_char_p, POINTER(c_size_t)]),
    "wh_blocks_new": (c_int, [_P, POINTER(BlocksDesc), _OUT]),
    "wh_blocks_free": (c_int, [_P]),
    "wh_batch_new": (c_int, [_P, POINTER(BatchOptions), _OUT]),
    "wh_batch_add": (c_int, [_P, POINTER(TransferItem), c_size_t]),
    "wh_batch_add_blocks": (c_int, [_P, _P]),
    "wh_batch_notify": (c_int, [_P, c_uint64, c_char_p, c_size_t]),
    "wh_batch_clear": (c_int, [_P]),
    "wh_batch_submit": (c_int, [_P]),
    "wh_batch_submit_after": (c_int, [_P, POINTER(Stream)]),
    "wh_batch_make_stream_wait": (c_int, [_P, POINTER(Stream)]),
    "wh_batch_test": (c_int, [_P]),
    "wh_batch_progress": (c_int, [_P, POINTER(c_uint64)]),
    "wh_batch_wait_for": (c_int, [_P, c_int64]),
    "wh_batch_status": (c_int, [_P]),
    "wh_batch_cancel": (c_int, [_P]),
    "wh_batch_free": (c_int, [_P]),
    "wh_batch_error_text": (c_char_p, [_P]),
    "wh_batch_routes": (c_int, [_P, POINTER(Route), POINTER(c_size_t)]),
    "wh_batch_explain": (c_int, [_P, c_char_p, c_size_t]),
    "wh_weights_open": (c_int, [_P, POINTER(WeightsOptions), _OUT]),
    "wh_weights_close": (c_int, [_P]),
    "wh_weights_publish": (c_int, [_P, c_uint64]),
    "wh_weights_retract": (c_int, [_P]),
    "wh_weights_wait": (c_int, [_P, c_uint64, c_int64]),
    "wh_weights_acquire": (c_int, [_P, c_uint64, c_int64, POINTER(WeightsView)]),
    "wh_weights_release": (c_int, [_P, POINTER(WeightsView)]),
    "wh_weights_cancel": (c_int, [_P, c_uint64]),
    "wh_weights_info": (c_int, [_P, POINTER(WeightsInfo)]),
    "wh_weights_member": (c_int, [_P, c_uint32, POINTER(WeightsMember)]),
    "wh_weights_explain": (c_int, [_P, c_char_p, c_size_t]),
}


def find(soname: str, variable: str) -> str:
    """Where a library is: in the package, where `variable` says, or where the loader looks."""
    inside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", soname)
    if os.path.exists(inside):
        return inside
    return os.environ.get(variable) or soname


def load() -> ctypes.CDLL:
    """Open libwherry and declare its functions. OSError: it cannot be found."""
    where = find("libwherry.so.0", "WHERRY_LIBRARY")
    try:
        library = ctypes.CDLL(where)
    except OSError as error:
        raise ImportError(
            f"wherry: cannot open its library: {error}; install the wheel (pip install wherry) or "
            f"libwherry, or set WHERRY_LIBRARY to the path of libwherry.so.0"
        ) from error
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


lib = load()

# wh_batch_status() through ctypes.PyDLL, which keeps the GIL and so costs half as much. Only a
# function that neither takes a lock nor calls back may be called like this: a thread of the engine
# that holds a lock may itself be waiting for the GIL, in a function for the log. This one reads two
# atomic variables, and formats the text of an error that has happened. wh_batch_test() makes
# progress, and wh_batch_submit() plans, copies and wakes threads: both need `lib`.
batch_status = ctypes.PyDLL(lib._name).wh_batch_status
batch_status.restype, batch_status.argtypes = FUNCTIONS["wh_batch_status"]
