# SPDX-License-Identifier: Apache-2.0
"""Where the bytes of tensors, arrays and buffers are, and lists of indices, without importing
torch, numpy or cupy: objects say it themselves."""
from __future__ import annotations

import array
import ctypes
import errno
import os
import sys
import weakref
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple

from ._errors import invalid, make


class _Buffer(ctypes.Structure):
    """Py_buffer: part of the stable ABI since 3.11, and the same before."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.POINTER(ctypes.c_ssize_t)),
        ("suboffsets", ctypes.POINTER(ctypes.c_ssize_t)),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_Buffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_Buffer)]
_release_buffer.restype = None
_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_STRIDED = 0x18  # PyBUF_STRIDES: read-only ones as well


class Export:
    """Holds a buffer exported: a bytearray cannot be resized meanwhile, a mmap not closed."""

    def __init__(self, owner: Any) -> None:
        self.view = _Buffer()
        _get_buffer(owner, self.view, _STRIDED)
        self.held = True

    def release(self) -> None:
        if self.held:
            self.held = False
            _release_buffer(self.view)

    def __del__(self) -> None:
        if getattr(self, "held", False):
            self.release()


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_capsule_pointer.restype = ctypes.c_void_p
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.argtypes = [ctypes.py_object]
_capsule_name.restype = ctypes.c_char_p
# Where the DLTensor is in what a capsule of that name holds.
_CAPSULES = {b"dltensor": 0, b"dltensor_versioned": 32}
_FLAGS = 24  # of the versioned one
_HOST_DEVICES = (1, 3)  # kDLCPU, kDLCUDAHost
_READ_ONLY = 1


class Layout(NamedTuple):
    """Memory: `rows` times `row` bytes, `stride` bytes apart, from `address`."""

    address: int
    rows: int
    row: int
    stride: int
    keeper: Any  # the memory lives as long as this object
    readonly: Optional[bool]  # None: the object cannot say
    on_host: bool
    shape: Tuple[int, ...]

    @property
    def length(self) -> int:
        """Bytes from the first to the last."""
        return (self.rows - 1) * self.stride + self.row

    def cannot_be_written(self) -> bool:
        return bool(self.readonly) or (self.on_host and refuses_writes(self.address, self.length))


def _contiguous(shape: Sequence[int], item: int) -> Tuple[int, ...]:
    strides = [item] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return tuple(strides)


class Strided(NamedTuple):
    """An array as it lies in memory."""

    address: int  # of its first element
    shape: Tuple[int, ...]
    strides: Optional[Tuple[int, ...]]  # bytes; None: in one run, the last axis fastest
    item: int  # bytes
    keeper: Any  # the memory lives as long as this object
    readonly: Optional[bool]  # None: the object cannot say
    on_host: bool

    def steps(self) -> Tuple[int, ...]:
        """The strides, also where it says None."""
        return _contiguous(self.shape, self.item) if self.strides is None else self.strides


def _fold(about: Strided, any_order: bool) -> Layout:
    """Bring a strided array into the form of rows, or refuse it."""
    shape, strides, item = about.shape, about.steps(), about.item
    axes = [(step, size) for step, size in zip(strides, shape) if size != 1]
    if any(size == 0 for _, size in axes):
        return Layout(about.address, 1, 0, 0, about.keeper, about.readonly, about.on_host, shape)
    if any_order:  # a transposed tensor is one range, too
        axes.sort(reverse=True)
    row = item
    while axes and axes[-1][0] == row:
        row *= axes.pop()[1]
    rows, stride = 1, row
    if axes:
        stride = axes[-1][0]
        while axes and axes[-1][0] == stride * rows:
            rows *= axes.pop()[1]
    if axes or stride < row:
        raise invalid(
            f"an array of shape {shape} with strides of {strides} bytes is neither one range nor "
            f"equal blocks at equal distances: make it contiguous, or give blocks"
        )
    return Layout(
        about.address, rows, row, stride, about.keeper, about.readonly, about.on_host, shape
    )


def strided(thing: Any) -> Strided:
    """Where the bytes of an object are: a torch tensor, what has __cuda_array_interface__ or
    __array_interface__, a buffer (bytearray, mmap, array.array), what has __dlpack__, or a capsule
    of DLPack, which stays unused."""
    if hasattr(thing, "data_ptr") and hasattr(thing, "element_size"):
        item = int(thing.element_size())
        for lazy in ("conj", "neg"):  # the bytes are those of another tensor
            if getattr(thing, f"is_{lazy}", bool)():
                raise invalid(f"a tensor whose {lazy}() is not done yet: use .resolve_{lazy}()")
        shape = tuple(int(size) for size in thing.shape)
        strides = tuple(int(step) * item for step in thing.stride())
        # torch forgets that an array or a buffer that it shares memory with is read-only.
        on_host = str(getattr(getattr(thing, "device", None), "type", "cpu")) == "cpu"
        return Strided(int(thing.data_ptr()), shape, strides, item, thing, None, on_host)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        about = getattr(thing, name, None)
        if about is not None and about.get("data") is not None:
            address, readonly = about["data"]
            item = _item_size(about["typestr"])
            shape, steps = tuple(about["shape"]), about.get("strides")
            on_host = name == "__array_interface__"
            return Strided(int(address), shape, steps, item, thing, bool(readonly), on_host)
    try:
        export = Export(thing)
    except (TypeError, BufferError):
        if hasattr(thing, "__dlpack__"):
            return _from_dlpack(_to_dlpack(thing), thing)
        if type(thing).__name__ == "PyCapsule":
            return _from_dlpack(thing, None)
        raise TypeError(
            f"{type(thing).__name__} is neither a tensor nor a buffer: it has no __dlpack__, no "
            f"__cuda_array_interface__ and no buffer protocol"
        ) from None
    view = export.view
    shape = tuple(view.shape[: view.ndim]) if view.shape else (view.len // view.itemsize,)
    steps = tuple(view.strides[: view.ndim]) if view.strides else None
    return Strided(view.buf or 0, shape, steps, view.itemsize, export, bool(view.readonly), True)


def layout(thing: Any, any_order: bool = False) -> Layout:
    """What strided() takes, as rows. any_order: the order of the axes does not matter."""
    return _fold(strided(thing), any_order)


class Place:
    """Where a tensor or an array has its bytes, which it can exchange for others."""

    __slots__ = ("_ask", "_address")

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._address = ask()

    def check(self, argument: str) -> None:
        """Raise an error that names the argument if the bytes are elsewhere now."""
        if self._ask() != self._address:
            raise invalid(
                f"{argument}: the tensor or array has other memory than when it was registered: "
                f"unregister the region and register it again"
            )


def place_of(thing: Any) -> Optional[Place]:
    """None: its bytes stay where they are, or it does not say."""
    if hasattr(thing, "data_ptr") and hasattr(thing, "element_size"):
        return Place(thing.data_ptr)
    for name in ("__cuda_array_interface__", "__array_interface__"):
        about = getattr(thing, name, None)
        if about is not None and about.get("data") is not None:
            return Place(lambda: int(getattr(thing, name)["data"][0]))
    if type(type(thing)).__module__ == "_ctypes":  # ctypes.resize() looks at no buffer
        return Place(lambda: ctypes.addressof(thing))
    return None


def pins_of(thing: Any) -> List[Any]:
    """What keeps the bytes of a tensor or an array alive and where they are, as far as that is
    possible, though the object itself takes others."""
    if hasattr(thing, "data_ptr") and hasattr(thing, "element_size"):
        storage_of = getattr(thing, "untyped_storage", None) or getattr(thing, "storage", None)
        if storage_of is None:
            return []
        storage = storage_of()
        return [storage, _numpy_view(thing, storage)]
    pins: List[Any] = []
    while hasattr(thing, "__array_interface__"):
        # An exported buffer does not keep an array from being resized, a weak reference does. The
        # array that has the memory knows nothing of its views.
        try:
            pins.append((thing, weakref.ref(thing)))
        except TypeError:
            pass
        thing = getattr(thing, "base", None)
    return pins


def _numpy_view(tensor: Any, storage: Any) -> Any:
    """After this torch refuses to resize the storage, for good. None: it is on a GPU, or torch has
    no numpy."""
    torch = sys.modules.get("torch")
    if torch is None or str(getattr(getattr(tensor, "device", None), "type", "")) != "cpu":
        return None
    try:
        return torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage).numpy()
    except (RuntimeError, TypeError):
        return None


def _item_size(typestr: str) -> int:
    if not typestr[2:].isdigit():
        raise invalid(f"elements of type {typestr!r} are no bytes")
    number = int(typestr[2:])
    return number * 4 if typestr[1] == "U" else number


def _to_dlpack(thing: Any) -> Any:
    """A capsule, if possible of the version that says whether the memory is read-only."""
    try:
        return thing.__dlpack__(max_version=(1, 0))
    except TypeError:  # older than that
        return thing.__dlpack__()


def _from_dlpack(capsule: Any, owner: Any) -> Strided:
    name = _capsule_name(capsule)
    if name not in _CAPSULES:
        raise TypeError(f"a capsule {name!r}: one of DLPack that nobody has used is 'dltensor'")
    managed = _capsule_pointer(capsule, name)
    tensor = _DLTensor.from_address(managed + _CAPSULES[name])
    flags = ctypes.c_uint64.from_address(managed + _FLAGS).value if _CAPSULES[name] else 0
    item = tensor.bits * tensor.lanes // 8
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(s * item for s in tensor.strides[: tensor.ndim]) if tensor.strides else None
    address = (tensor.data or 0) + tensor.byte_offset
    # The capsule that nobody has taken calls the exporter's deleter when it goes.
    readonly = bool(flags & _READ_ONLY) if _CAPSULES[name] else None
    on_host = tensor.device_type in _HOST_DEVICES
    return Strided(address, shape, strides, item, (owner, capsule), readonly, on_host)


_FUTEX = {"x86_64": 202, "aarch64": 98}.get(os.uname().machine)
_FUTEX_WAKE_OP = 5 | 128  # private to the process
_ADD_NOTHING = 1 << 28  # the word at the second address, and wake nobody


def refuses_writes(address: int, length: int) -> bool:
    """Is memory of the host mapped so that it cannot be written, at one of its ends? Nothing is
    changed. Asks the kernel to add 0 to a word there, which it does in one atomic step, with EFAULT
    in place of a signal."""
    if _FUTEX is None or not length:
        return False
    mine = ctypes.c_uint32()
    for at in (address, address + length - 1):
        status = _syscall(
            ctypes.c_long(_FUTEX), ctypes.byref(mine), _FUTEX_WAKE_OP, 0, ctypes.c_long(0),
            ctypes.c_void_p(at & ~3), ctypes.c_uint32(_ADD_NOTHING),
        )  # fmt: skip
        if status < 0 and ctypes.get_errno() == errno.EFAULT:
            return True
    return False


_TOO_LARGE = "a block number is negative or above 2**31 - 1"


class Indices(NamedTuple):
    """A list of block numbers as the library takes it: int32."""

    address: int
    length: int
    keeper: Any


def indices(thing: Any) -> Indices:
    """Integers of 32 or 64 bits as int32, without a Python loop. Contiguous int32 are not copied.
    Of arrays on a GPU the calling thread waits for a copy, after the work that is on its current
    stream: error EBUSY, while that is captured into a graph."""
    torch = sys.modules.get("torch")
    if hasattr(thing, "data_ptr") and hasattr(thing, "element_size"):  # torch
        if thing.is_floating_point() or thing.is_complex() or "bool" in str(thing.dtype):
            raise invalid(f"block numbers are integers, not {thing.dtype}")
        if thing.device.type == "cuda" and torch and torch.cuda.is_current_stream_capturing():
            raise make(
                -errno.EBUSY,
                "block numbers on a GPU cannot be read while torch captures the current stream "
                "into a graph: give them on the CPU, or prepare the transfer before",
            )
        thing = thing.cpu().contiguous()
        size = int(thing.element_size())
        count = int(thing.numel())
        if size == 4:
            return Indices(int(thing.data_ptr()), count, thing)
        if size == 8 and torch is not None:
            narrow = thing.to(torch.int32)
            if not bool((narrow == thing).all()):
                raise invalid(_TOO_LARGE)
            return Indices(int(narrow.data_ptr()), count, narrow)
        raw = ctypes.string_at(int(thing.data_ptr()), count * size)
        return _narrow(raw, size, str(thing.dtype))
    if hasattr(thing, "__cuda_array_interface__") and hasattr(thing, "get"):  # cupy
        thing = thing.get()
    if not _has_buffer(thing):
        if hasattr(thing, "__dlpack__"):
            raise TypeError(f"block numbers in {type(thing).__name__}: give a buffer or a tensor")
        thing = _numbers(thing)  # a list, a range
    view = memoryview(thing)
    kind = view.format.lstrip("@=<")
    if kind not in ("i", "I", "l", "L", "q", "Q"):
        raise invalid(f"block numbers are integers of 32 or 64 bits, not '{view.format}'")
    if view.itemsize == 4 and view.c_contiguous:
        export = Export(thing)
        return Indices(export.view.buf or 0, view.nbytes // 4, export)
    numpy: Any = sys.modules.get("numpy")
    if view.itemsize == 8 and hasattr(numpy, "asarray"):  # ten times as fast as _narrow()
        wide = numpy.asarray(view)
        # As unsigned numbers: negative ones are large.
        if wide.size and int(wide.view(numpy.uint64).max()) >= 2**31:
            raise invalid(_TOO_LARGE)
        narrow = numpy.ascontiguousarray(wide, dtype=numpy.int32)
        export = Export(narrow)
        return Indices(export.view.buf or 0, narrow.size, export)
    return _narrow(view.tobytes(), view.itemsize, f"'{view.format}'")


def _numbers(thing: Any) -> "array.array[int]":
    if not isinstance(thing, range):
        thing = list(thing)
        if bool in set(map(type, thing)):
            raise TypeError("blocks: block numbers are whole numbers, not bool")
    try:
        return array.array("q", thing)
    except TypeError:
        raise TypeError("blocks: block numbers are whole numbers") from None
    except OverflowError:
        raise invalid(f"blocks: {_TOO_LARGE}") from None


def _has_buffer(thing: Any) -> bool:
    try:
        memoryview(thing)
    except TypeError:
        return False
    return True


def _narrow(raw: bytes, size: int, name: str) -> Indices:
    """Little-endian integers of 4 or 8 bytes as int32."""
    if size == 8:
        halves = memoryview(raw).cast("i")
        high = halves[1::2].tobytes()
        if high.count(0) != len(high):
            raise invalid(_TOO_LARGE)
        raw = halves[::2].tobytes()
    elif size != 4:
        raise invalid(f"block numbers are integers of 32 or 64 bits, not {name}")
    count = len(raw) // 4
    kept = ctypes.create_string_buffer(raw, max(len(raw), 1))
    return Indices(ctypes.addressof(kept), count, kept)
