# SPDX-License-Identifier: Apache-2.0
"""Load a safetensors file: its header is checked here, its bytes go into the tensors by one
transfer."""
from __future__ import annotations

import errno
import importlib
import json
import os
import threading
from typing import Any, Dict, Iterable, List, NamedTuple, NoReturn, Optional, Tuple

from ._engine import Engine, Remote
from ._errors import Error, invalid, make
from ._native import RemoteInfo

# The format's own limit.
HEADER_MAX = 100_000_000
_DIMENSIONS_MAX = 64  # as many as torch and numpy take
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16,
    "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
    "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip
_TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "I32": "int32",
    "U32": "uint32", "I64": "int64", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E5M2": "float8_e5m2",
    "F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip
_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "I32": "<i4", "U32": "<u4",
    "I64": "<i8", "U64": "<u8", "F16": "<f2", "F32": "<f4", "F64": "<f8", "C64": "<c8",
}  # fmt: skip


class Entry(NamedTuple):
    """One tensor of a file; `first` and `last` are offsets of bytes in the file."""

    dtype: str
    shape: Tuple[int, ...]
    first: int
    last: int


def _refuse(text: str) -> NoReturn:
    raise invalid(f"not a valid safetensors file: {text}")


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:80]!r} is there twice")
    return found


def _constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def _count(value: Any, what: str) -> int:
    # True is an int in Python, and 1.0 is none.
    if type(value) is not int or not 0 <= value < 2**63:
        _refuse(f"{what} is not a number from 0 to 2**63 - 1")
    return value


def _counts(value: Any, what: str) -> List[int]:
    if type(value) is not list:
        _refuse(f"{what} is not a list of numbers")
    return [_count(one, what) for one in value]


def _entry(name: str, about: Any, data: int) -> Entry:
    quoted = repr(name[:80])
    if type(about) is not dict:
        _refuse(f"{quoted} is not an object")
    dtype = about.get("dtype")
    if type(dtype) is not str or dtype not in _BITS:
        _refuse(f"{quoted} has the unknown dtype {str(dtype)[:40]!r}")
    shape = _counts(about.get("shape"), f"the shape of {quoted}")
    if len(shape) > _DIMENSIONS_MAX:
        _refuse(f"{quoted} has {len(shape)} dimensions, more than {_DIMENSIONS_MAX}")
    offsets = _counts(about.get("data_offsets"), f"data_offsets of {quoted}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        _refuse(f"data_offsets of {quoted} are not [first, last]")
    bits = _BITS[dtype]
    for size in shape:
        bits *= size
    if bits != 8 * (offsets[1] - offsets[0]):
        _refuse(f"{quoted} of {dtype} {shape} does not have {offsets[1] - offsets[0]} bytes")
    return Entry(dtype, tuple(shape), data + offsets[0], data + offsets[1])


def _check_metadata(metadata: Any) -> Dict[str, str]:
    if type(metadata) is not dict or any(type(text) is not str for text in metadata.values()):
        _refuse("__metadata__ does not map text to text")
    found: Dict[str, str] = metadata
    return found


def header_length(first: bytes, size: int) -> int:
    """The length of the header, from the file's first 8 bytes and its size."""
    if len(first) < 8:
        _refuse(f"it has {len(first)} bytes")
    length = int.from_bytes(first[:8], "little")
    if length > HEADER_MAX:
        _refuse(f"a header of {length} bytes is longer than {HEADER_MAX}")
    if length < 2 or 8 + length > size:
        _refuse(f"a header of {length} bytes does not fit a file of {size}")
    return length


def parse_header(header: bytes, size: int) -> Tuple[Dict[str, Entry], Dict[str, str]]:
    """The tensors and the metadata of a file of `size` bytes, from its header without the 8 bytes
    of its length. The tensors cover all bytes behind the header, and none twice. Raises Error."""
    if header[:1] != b"{":
        _refuse("its header does not begin with {")
    try:
        found = json.loads(
            header.decode("utf-8"), object_pairs_hook=_object, parse_constant=_constant
        )
        for name in found:  # \ud800 alone is JSON, and no text
            name.encode("utf-8")
    except RecursionError:
        _refuse("its header is nested too deeply")
    except ValueError as error:
        _refuse(f"its header: {str(error)[:200]}")
    if type(found) is not dict:
        _refuse("its header is no object")
    metadata = _check_metadata(found.pop("__metadata__", {}))
    data = 8 + len(header)
    entries = {name: _entry(name, about, data) for name, about in found.items()}
    end, before = data, "the header"
    for name, entry in sorted(entries.items(), key=lambda item: item[1][2:]):
        if entry.first != end:
            how = "overlaps" if entry.first < end else "leaves a gap behind"
            _refuse(f"{name[:80]!r} {how} {before}")
        end, before = entry.last, repr(name[:80])
    if end != size:
        _refuse(f"its tensors end at byte {end} of {size}")
    return entries, metadata


def _read_header(fd: int) -> Tuple[Dict[str, Entry], Dict[str, str]]:
    size = os.fstat(fd).st_size
    length = header_length(os.pread(fd, 8, 0), size)
    header = bytearray()
    while len(header) < length:
        part = os.pread(fd, length - len(header), 8 + len(header))
        if not part:
            _refuse("it has become shorter")
        header += part
    return parse_header(bytes(header), size)


# ---- tensors

_own: Optional[Tuple[int, Engine]] = None  # process id; a forked child cannot use its parent's
_own_lock = threading.Lock()


def _own_engine() -> Engine:
    """The engine of calls that name none. It is kept: opening one takes milliseconds, and with a
    GPU seconds, and models have many files. It is closed when the interpreter exits."""
    global _own, _own_lock
    with _own_lock:
        if _own is None or _own[0] != os.getpid() or _own[1].closed:
            _own = os.getpid(), Engine(listen="none")
        return _own[1]


def _own_forked() -> None:
    global _own_lock
    _own_lock = threading.Lock()  # another thread may have held it


os.register_at_fork(after_in_child=_own_forked)


def _choose(framework: Optional[str], device: str) -> Tuple[str, Any]:
    if framework not in (None, "torch", "numpy"):
        raise invalid(f'framework is "torch" or "numpy", not {framework!r}')
    for name in (framework,) if framework else ("torch", "numpy"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "numpy" and device != "cpu":
            raise invalid(f"numpy has no memory on {device!r}: install torch")
        return name, module
    raise make(-errno.ELIBACC, f"{framework or 'neither torch nor numpy'} cannot be imported")


def _lacks(name: str, entry: Entry, framework: str) -> Error:
    return make(-errno.EOPNOTSUPP, f"{name[:80]!r}: {framework} here has no type {entry.dtype}")


def _empty_torch(torch: Any, name: str, entry: Entry, device: str) -> Any:
    dtype = getattr(torch, _TORCH.get(entry.dtype, ""), None)
    if dtype is None:
        raise _lacks(name, entry, "torch")
    return torch.empty(entry.shape, dtype=dtype, device=device)


def _empty_numpy(numpy: Any, name: str, entry: Entry, device: str) -> Any:
    if entry.dtype not in _NUMPY:
        raise _lacks(name, entry, "numpy")
    return numpy.empty(entry.shape, dtype=_NUMPY[entry.dtype])


def _read(engine: Engine, fd: int, entries: Dict[str, Entry], tensors: Dict[str, Any]) -> None:
    """One transfer from the file into the memory of all tensors."""
    wanted = [name for name, entry in entries.items() if entry.last > entry.first]
    if not wanted:
        return
    regions: List[Any] = []
    end = max(entries[name].last for name in wanted)
    file = engine.register_file(fd, length=end)
    try:
        for name in wanted:
            regions.append(engine.register(tensors[name]))
        with engine.connect("self") as peer:
            source = Remote(RemoteInfo(id=file.id, length=end))
            parts = [source[entries[name].first : entries[name].last] for name in wanted]
            transfer = peer.read(parts, regions)
            try:
                transfer.wait()
            finally:
                transfer.cancel()  # Ctrl-C: nothing may be written into memory that is let go
                del transfer
    finally:
        for region in regions:
            region.unregister()
        file.unregister()


def load_safetensors(
    path: Any,
    device: Any = "cpu",
    *,
    framework: Optional[str] = None,
    names: Optional[Iterable[str]] = None,
    engine: Optional[Engine] = None,
) -> Dict[str, Any]:
    """The tensors of a safetensors file, by name. Their bytes go from the file into their memory by
    one transfer; no other copy of the file is made.

    device     "cpu", or with torch "cuda:0"
    framework  "torch" or "numpy"; None: torch, or numpy where torch is missing
    names      only these tensors
    engine     the engine that reads; None: one that is opened by the first such call and kept until
               the process ends

    Error EINVAL: the file is not valid; EOPNOTSUPP: the framework lacks a type; ENOENT: there is no
    such file or tensor; EIO: the file has become shorter meanwhile."""
    device = str(device)
    kind, module = _choose(framework, device)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise make(-(error.errno or errno.EIO), f"{os.fsdecode(path)}: {error.strerror}") from None
    try:
        try:
            entries, _ = _read_header(fd)
        except OSError as error:
            text = error.strerror or ""
            raise make(-(error.errno or errno.EIO), f"{os.fsdecode(path)}: {text}") from None
        if names is not None:
            names = list(names)
            missing = [name for name in names if name not in entries]
            if missing:
                raise make(-errno.ENOENT, f"{os.fsdecode(path)} has no tensor {missing[0]!r}")
            entries = {name: entries[name] for name in names}
        empty = _empty_torch if kind == "torch" else _empty_numpy
        tensors = {name: empty(module, name, entry, device) for name, entry in entries.items()}
        _read(engine if engine is not None else _own_engine(), fd, entries, tensors)
        return tensors
    finally:
        os.close(fd)
