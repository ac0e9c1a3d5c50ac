# SPDX-License-Identifier: Apache-2.0
"""mooncake.engine on top of Wherry: TransferEngine with the methods of Mooncake's module, by
libtransfer_engine.so, Wherry's library with Mooncake's C interface (docs/mooncake.md).

    sys.modules["mooncake.engine"] = wherry.mooncake

or `python -m wherry.mooncake script.py`. Two such engines use the best of Wherry's routes, one of
Mooncake's engines and this one Mooncake's TCP. Methods return 0 or a negative number, as there;
wherry_error_text() has the reason.
"""
from __future__ import annotations

import ctypes
import enum
import json
import runpy
import socket
import struct
import sys
import threading
import types
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from . import _native as native
from ._engine import SLICE, apart
from ._errors import text, whole

_COMPLETED, _FAILED = 4, (2, 3, 5, 6)  # STATUS_...
_INVALID_BATCH = 2**64 - 1
_MAX_FRAME = 1 << 20


class _Request(Structure):
    _fields_ = [
        ("opcode", c_int),
        ("source", c_void_p),
        ("target_id", c_int32),
        ("target_offset", c_uint64),
        ("length", c_uint64),
    ]


class _Status(Structure):
    _fields_ = [("status", c_int), ("transferred_bytes", c_uint64)]


class _Notify(Structure):
    _fields_ = [("name", c_char_p), ("msg", c_char_p)]


class _Buffer(Structure):
    _fields_ = [("addr", c_void_p), ("length", c_size_t)]


_E = c_void_p
_FUNCTIONS: Dict[str, Any] = {
    "createTransferEngine": (_E, [c_char_p, c_char_p, c_char_p, c_uint64, c_int]),
    "destroyTransferEngine": (None, [_E]),
    "getLocalIpAndPort": (c_int, [_E, c_char_p, c_size_t]),
    "registerLocalMemory": (c_int, [_E, c_void_p, c_size_t, c_char_p, c_int]),
    "unregisterLocalMemory": (c_int, [_E, c_void_p]),
    "registerLocalMemoryBatch": (c_int, [_E, POINTER(_Buffer), c_size_t, c_char_p]),
    "unregisterLocalMemoryBatch": (c_int, [_E, POINTER(c_void_p), c_size_t]),
    "openSegment": (c_int32, [_E, c_char_p]),
    "allocateBatchID": (c_uint64, [_E, c_size_t]),
    "submitTransfer": (c_int, [_E, c_uint64, POINTER(_Request), c_size_t]),
    "submitTransferWithNotify": (c_int, [_E, c_uint64, POINTER(_Request), c_size_t, _Notify]),
    "getTransferStatus": (c_int, [_E, c_uint64, c_size_t, POINTER(_Status)]),
    "freeBatchID": (c_int, [_E, c_uint64]),
    "getNotifsFromEngine": (POINTER(_Notify), [_E, POINTER(c_int)]),
    "freeNotifsMsgBuf": (c_int, [POINTER(_Notify), c_int]),
    "genNotifyInEngine": (c_int, [_E, c_uint64, _Notify]),
    "warmupEfaSegment": (c_int, [_E, c_char_p]),
    "wherryErrorText": (c_char_p, []),
    "wherrySegmentIsReady": (c_int, [_E, c_char_p]),
    "wherryWaitBatch": (c_int, [_E, c_uint64, c_int64]),
}


def _load() -> ctypes.CDLL:
    where = native.find("libtransfer_engine.so", "WHERRY_MOONCAKE_LIBRARY")
    try:
        library = ctypes.CDLL(where)
        library.wherryErrorText
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"wherry.mooncake: cannot open Wherry's libtransfer_engine.so: {error}; set "
            f"WHERRY_MOONCAKE_LIBRARY to its path"
        ) from error
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


_lib = _load()


# The reason of a call that this thread had another one make, and what its own was then.
_elsewhere = threading.local()


def wherry_error_text() -> str:
    """The reason of this thread's last failed call. Not in Mooncake's module."""
    own = _lib.wherryErrorText() or b""
    if getattr(_elsewhere, "own", None) == own:
        own = _elsewhere.reason
    return own.decode("utf-8", "replace")


def _apart(call: Callable[[], int], undo: Optional[Callable[[int], Any]] = None) -> int:
    """What call() returns, which may wait for a store or a peer; signals are handled meanwhile.
    After Ctrl-C it goes on, and then undo(result) follows."""
    results: List[int] = []
    reason = b""

    def run() -> None:
        nonlocal reason
        results.append(call())
        reason = _lib.wherryErrorText() or b""

    apart(run, (lambda: undo(results[0])) if undo else None)
    if reason:
        _elsewhere.own, _elsewhere.reason = _lib.wherryErrorText() or b"", reason
    return results[0]


class TransferOpcode(enum.IntEnum):
    Read = 0
    Write = 1


Read, Write = TransferOpcode.Read, TransferOpcode.Write
# What Mooncake's module was built with. libwherry opens libcuda when it first meets a GPU; the
# others are transports of Mooncake's own.
SUPPORT_CUDA = True
SUPPORT_EFA = SUPPORT_HIP = SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False


class TransferNotify:
    """A notification: two texts."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify({self.name!r}, {self.msg!r})"


class TransferEngine:
    """One engine of Mooncake's kind. Addresses are integers, lengths bytes. `location` and
    `transport_hint` are ignored: Wherry finds out where memory is and chooses the routes."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._engine: int = 0
        self._name = ""
        self._metadata = ""
        self._lock = threading.Lock()
        self._sizes: Dict[int, int] = {}  # batch: its requests
        self._managed: Dict[int, Any] = {}  # address: the memory of allocate_managed_buffer()
        self._calls: List[None] = []  # one for each that may go on in another thread
        self._unwanted: int = 0  # to be destroyed behind them

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Open the engine. Protocol and device are ignored: Wherry chooses the routes. 0 or -1."""
        if self._engine:
            return -1
        store = text(metadata_server, "metadata_server")
        name = text(local_hostname, "local_hostname")
        self._engine = _apart(
            lambda: _lib.createTransferEngine(store, name, b"", 0, 1) or 0,
            lambda engine: engine and _lib.destroyTransferEngine(engine),
        )
        if not self._engine:
            return -1
        buffer = ctypes.create_string_buffer(128)
        _lib.getLocalIpAndPort(self._engine, buffer, 128)
        self._name = buffer.value.decode()
        self._metadata = metadata_server
        return 0

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
    ) -> int:
        """initialize() with a metadata store of the given type: "http", "etcd", "redis"."""
        if metadata_type and "://" not in metadata_server and metadata_server != "P2PHANDSHAKE":
            metadata_server = f"{metadata_type}://{metadata_server}"
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port at which the engine listens."""
        return int(self._name.rpartition(":")[2])

    def __del__(self) -> None:
        if getattr(self, "_engine", 0):
            self._unwanted, self._engine = self._engine, 0
            self._destroy()

    def _destroy(self) -> None:
        with self._lock:
            engine = 0 if self._calls else self._unwanted
            self._unwanted -= engine
        if engine:
            _lib.destroyTransferEngine(engine)

    def _call(
        self, function: Any, *arguments: Any, undo: Optional[Callable[[int], Any]] = None
    ) -> int:
        """Call what may wait, as _apart() does."""
        engine = self._engine
        self._calls.append(None)

        def run() -> int:
            try:
                return int(function(engine, *arguments))
            finally:
                self._calls.pop()
                self._destroy()

        return _apart(run, undo)

    # ---- memory

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Let other engines read and write the memory, and use it as a source. 0 or negative."""
        address, length = whole(buffer_addr, "buffer_addr"), whole(capacity, "capacity")

        def undo(status: int) -> None:
            if status == 0:
                self.unregister_memory(address)

        return self._call(_lib.registerLocalMemory, address, length, b"*", 1, undo=undo)

    def unregister_memory(self, buffer_addr: int) -> int:
        return self._call(_lib.unregisterLocalMemory, buffer_addr)

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        if len(buffer_addresses) != len(capacities):
            return -1
        pairs = [
            _Buffer(whole(address, "buffer_addresses"), whole(capacity, "capacities"))
            for address, capacity in zip(buffer_addresses, capacities)
        ]
        array = (_Buffer * len(pairs))(*pairs)

        def undo(status: int) -> None:
            if status == 0:
                self.batch_unregister_memory(buffer_addresses)

        return self._call(_lib.registerLocalMemoryBatch, array, len(array), b"*", undo=undo)

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        array = (c_void_p * len(buffer_addresses))(*buffer_addresses)
        return self._call(_lib.unregisterLocalMemoryBatch, array, len(array))

    def allocate_managed_buffer(self, length: int) -> int:
        """Registered memory of the engine; its address, or 0."""
        memory = ctypes.create_string_buffer(length)
        address = ctypes.addressof(memory)
        self._managed[address] = memory  # before: after Ctrl-C registering goes on
        if self.register_memory(address, length):
            del self._managed[address]
            return 0
        return address

    def free_managed_buffer(self, user_tensor: int, length: int) -> int:
        if user_tensor not in self._managed:
            return -1
        status = self.unregister_memory(user_tensor)
        if status == 0:
            del self._managed[user_tensor]
        return status

    def write_bytes_to_buffer(
        self, dest_address: int, src_ptr: Union[bytes, str], length: int
    ) -> int:
        if isinstance(src_ptr, str):
            src_ptr = src_ptr.encode()
        if length > len(src_ptr):
            return -1
        ctypes.memmove(dest_address, src_ptr, length)
        return 0

    def read_bytes_from_buffer(self, source_address: int, length: int) -> bytes:
        return ctypes.string_at(source_address, length)

    def get_first_buffer_address(self, segment_name: str) -> int:
        """The address of the first memory of an engine that is found at HOST:PORT; 0: none, or it
        is found by a metadata store."""
        if self._metadata != "P2PHANDSHAKE":
            return 0
        try:
            buffers = _ask_segment(segment_name)["buffers"]
            return int(buffers[0]["addr"]) if buffers else 0
        except (OSError, ValueError, KeyError, struct.error):
            return 0

    # ---- transfers

    def _start(
        self,
        target: str,
        buffers: Sequence[int],
        peers: Sequence[int],
        lengths: Sequence[int],
        opcode: int,
        notify: Any = None,
    ) -> int:
        """A batch, or a negative number."""
        count, note = len(buffers), None
        if notify is not None:
            note = _Notify(text(notify.name, "notify.name"), text(notify.msg, "notify.msg"))
        if not count == len(peers) == len(lengths):
            return -1
        name = text(target, "target_hostname")
        if _lib.wherrySegmentIsReady(self._engine, name):
            segment = _lib.openSegment(self._engine, name)
        else:
            segment = self._call(_lib.openSegment, name)
        if segment < 0:
            return -1
        requests = (_Request * count)()
        for request, source, offset, length in zip(requests, buffers, peers, lengths):
            request.opcode = opcode
            request.source = whole(source, "buffer")
            request.target_id = segment
            request.target_offset = whole(offset, "peer_buffer_address")
            request.length = whole(length, "length")
        batch = int(_lib.allocateBatchID(self._engine, count))
        if batch == _INVALID_BATCH:
            return -1
        if notify is None or not count:
            status = _lib.submitTransfer(self._engine, batch, requests, count)
        else:
            status = _lib.submitTransferWithNotify(self._engine, batch, requests, count, note)
        if not status and notify is not None and not count:  # no request says whom to notify
            status = self._call(_lib.genNotifyInEngine, segment, note)
        if status:
            _lib.freeBatchID(self._engine, batch)
            return -1
        with self._lock:
            self._sizes[batch] = count
        return batch

    def _check(self, batch: int) -> int:
        """1: done, and freed; 0: not yet; -1: failed, -2: timed out, and freed."""
        count = self._sizes.get(batch)
        if count is None:
            return -1
        status, worst = _Status(), 1
        for task in range(count):
            if _lib.getTransferStatus(self._engine, batch, task, byref(status)):
                return -1
            if status.status in _FAILED:
                worst = min(worst, -2 if status.status == 5 else -1)
            elif status.status != _COMPLETED:
                return 0
        if _lib.freeBatchID(self._engine, batch):
            return 0
        with self._lock:
            self._sizes.pop(batch, None)
        return worst

    def _finish(self, batch: int) -> int:
        """Wait for it; signals are handled meanwhile."""
        if batch < 0:
            return -1
        while True:
            _lib.wherryWaitBatch(self._engine, batch, int(SLICE * 1e9))
            result = self._check(batch)
            if result:
                return 0 if result == 1 else -1

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: int,
        notify: Any = None,
        transport_hint: str = "",
    ) -> int:
        """Move `length` bytes and wait. 0 or -1."""
        return self._finish(
            self._start(target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify)
        )

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, 1)

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, 0)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: int,
        notify: Any = None,
        transport_hint: str = "",
    ) -> int:
        return self._finish(
            self._start(target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify)
        )

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, 1)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, 0)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: int,
        transport_hint: str = "",
    ) -> int:
        """Start a batch; its number for get_batch_transfer_status(), 0 on errors."""
        batch = self._start(target_hostname, buffers, peer_buffer_addresses, lengths, opcode)
        return max(batch, 0)

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, 1
        )

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, 0
        )

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Wait for these batches. 0: all have succeeded; -1: not all."""
        return min([self._finish(batch) for batch in batch_ids], default=0)

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Start a write; its number for transfer_check_status(), or -1."""
        return self._start(target_hostname, [buffer], [peer_buffer_address], [length], 1)

    def transfer_check_status(self, batch_id: int) -> int:
        """1: done; 0: not yet; -1: failed; -2: timed out."""
        return self._check(batch_id)

    # ---- about engines

    def get_local_topology(self, device_name: Optional[str] = None) -> str:
        """The NICs of this machine as JSON: for each NUMA node those that are near, and the others;
        of the names in `device_name` only, if it is given, separated by commas."""
        wanted = set(device_name.split(",")) if device_name else None
        found: Dict[str, int] = {}
        for nic in sorted(Path("/sys/class/infiniband").glob("*")):
            if wanted is None or nic.name in wanted:
                found[nic.name] = _number(nic / "device" / "numa_node")
        nodes = [int(one.name[4:]) for one in Path("/sys/devices/system/node").glob("node[0-9]*")]
        topology = {
            f"cpu:{node}": [
                [name for name, at in found.items() if at == node],
                [name for name, at in found.items() if at != node],
            ]
            for node in sorted(nodes or [0])
        }
        return json.dumps(topology)

    def send_probe(self, peer_server_name: str) -> int:
        """Does the engine at HOST:PORT answer? 0, or -102."""
        try:
            _ask_segment(peer_server_name)
        except (OSError, ValueError, struct.error):
            return -102
        return 0

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Nothing: there is no EFA. 0."""
        return int(_lib.warmupEfaSegment(self._engine, segment_name.encode()))

    def get_engine(self) -> Any:
        raise NotImplementedError(f"TransferEngine.get_engine: {_NO_CPP}")

    def get_engine_ptr(self) -> int:
        raise NotImplementedError(f"TransferEngine.get_engine_ptr: {_NO_CPP}")

    # ---- on CUDA streams

    def transfer_read_on_cuda(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        raise NotImplementedError(f"TransferEngine.transfer_read_on_cuda: {_NO_STREAM}")

    def transfer_write_on_cuda(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        raise NotImplementedError(f"TransferEngine.transfer_write_on_cuda: {_NO_STREAM}")

    def batch_transfer_read_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        raise NotImplementedError(f"TransferEngine.batch_transfer_read_on_cuda: {_NO_STREAM}")

    def batch_transfer_write_on_cuda(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        stream_ptr: int = 0,
        transport_hint: str = "",
    ) -> None:
        raise NotImplementedError(f"TransferEngine.batch_transfer_write_on_cuda: {_NO_STREAM}")

    # ---- notifications

    def get_notifies(self) -> List[TransferNotify]:
        """Take all notifications that have arrived."""
        count = c_int()
        array = _lib.getNotifsFromEngine(self._engine, byref(count))
        found = [
            TransferNotify((one.name or b"").decode(), (one.msg or b"").decode())
            for one in (array[: count.value] if array else [])
        ]
        if array:
            _lib.freeNotifsMsgBuf(array, count.value)
        return found


_NO_CPP = "there is no C++ object mooncake::TransferEngine behind wherry.mooncake"
_NO_STREAM = (
    "Mooncake's C interface, which wherry.mooncake uses, knows no streams; use wherry's own "
    "Peer.read(stream=...), or wait for the stream and call the method without _on_cuda"
)
_NO_RPC = "wherry.mooncake moves memory; it has no RPC of Python objects (use notifications)"


def _number(path: Path) -> int:
    try:
        return max(int(path.read_text()), 0)
    except (OSError, ValueError):
        return 0


class RpcInterface:
    """Mooncake's RPC of Python objects, which Wherry lacks: raises NotImplementedError."""

    def __init__(self) -> None:
        raise NotImplementedError(f"{type(self).__name__}: {_NO_RPC}")


CoroRPCInterface = RpcInterface


class ReceivedData(RpcInterface):
    """What Mooncake's RPC gives to its handlers."""


class ReceivedTensor(RpcInterface):
    """What Mooncake's RPC gives to its handlers."""


def create_rpc_client(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    raise NotImplementedError(f"create_rpc_client: {_NO_RPC}")


def create_rpc_server(local_rank: int = 0, world_size: int = 1) -> RpcInterface:
    raise NotImplementedError(f"create_rpc_server: {_NO_RPC}")


class InnerTransferEngine:
    """Mooncake's C++ object, which is not here: raises NotImplementedError."""

    def __init__(self) -> None:
        raise NotImplementedError(f"InnerTransferEngine: {_NO_CPP}")


class SharedSegment:
    """Mooncake's memory of several processes. Programs ask supported() first: it is false."""

    def __init__(self) -> None:
        raise NotImplementedError("SharedSegment: Wherry shares Engine.allocate() by itself")

    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool:
        return False

    @classmethod
    def create(cls, *_: Any, **__: Any) -> Any:
        return cls()


def _ask_segment(name: str) -> Any:
    """What the engine at HOST:PORT publishes (docs/mooncake.md, "The formats")."""
    host, _, port = name.rpartition(":")
    question = b"{}"
    with socket.create_connection((host.strip("[]"), int(port)), timeout=5) as control:
        control.sendall(struct.pack("<QB", len(question) + 1, 1) + question)
        with control.makefile("rb") as answer:
            length, _kind = struct.unpack("<QB", answer.read(9))
            if not 1 < length <= _MAX_FRAME:
                raise ValueError("the answer has a wrong length")
            return json.loads(answer.read(length - 1))


def install() -> None:
    """Make `import mooncake.engine` find this module."""
    parent = sys.modules.setdefault("mooncake", types.ModuleType("mooncake"))
    module = sys.modules["wherry.mooncake"]
    setattr(parent, "engine", module)
    sys.modules["mooncake.engine"] = module


def _main() -> None:
    if len(sys.argv) < 2:
        sys.exit("usage: python -m wherry.mooncake SCRIPT [ARGUMENT...]")
    import wherry.mooncake

    wherry.mooncake.install()
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
