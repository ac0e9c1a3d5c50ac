# SPDX-License-Identifier: Apache-2.0
"""Load a safetensors file: its header is checked here, its bytes go into the tensors by transfers
of some hundred MiB."""
from __future__ import annotations

import errno
import importlib
import json
import os
import threading
import traceback
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, NoReturn, Optional, Tuple

from ._engine import Engine, Remote
from ._errors import Error, invalid, make
from ._native import RemoteInfo

# The format's own limit.
HEADER_MAX = 100_000_000
_GROUP = 128 << 20  # bytes of tensors that one transfer reads
_ALIGNED = 512  # bytes: where torch begins what it allocates
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


def _choose(framework: Optional[str], device: str) -> Any:
    if framework not in (None, "torch", "numpy"):
        raise invalid(f'framework is "torch" or "numpy", not {framework!r}')
    for name in (framework,) if framework else ("torch", "numpy"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if name == "numpy" and device != "cpu":
            raise invalid(f"numpy has no memory on {device!r}: install torch")
        return module
    raise make(-errno.ELIBACC, f"{framework or 'neither torch nor numpy'} cannot be imported")


def _lacks(name: str, entry: Entry, framework: str) -> Error:
    return make(-errno.EOPNOTSUPP, f"{name[:80]!r}: {framework} here has no type {entry.dtype}")


def _torch_type(torch: Any, name: str, entry: Entry) -> Any:
    dtype = getattr(torch, _TORCH.get(entry.dtype, ""), None)
    if dtype is None:
        raise _lacks(name, entry, "torch")
    return dtype


def _empty_torch(torch: Any, name: str, entry: Entry, device: str) -> Any:
    return torch.empty(entry.shape, dtype=_torch_type(torch, name, entry), device=device)


def _empty_numpy(numpy: Any, name: str, entry: Entry, _: str) -> Any:
    if entry.dtype not in _NUMPY:
        raise _lacks(name, entry, "numpy")
    return numpy.empty(entry.shape, dtype=_NUMPY[entry.dtype])


def _groups(entries: Dict[str, Entry]) -> Iterator[List[str]]:
    """The names of tensors that have bytes, in the file's order, _GROUP bytes at a time."""
    group: List[str] = []
    left = _GROUP
    for name in sorted(entries, key=lambda name: entries[name].first):
        if entries[name].last == entries[name].first:
            continue
        group.append(name)
        left -= entries[name].last - entries[name].first
        if left <= 0:
            yield group
            group, left = [], _GROUP
    if group:
        yield group


def _pack(entries: List[Entry]) -> Tuple[List[int], int, List[Tuple[int, int, int]]]:
    """Tensors in one memory, in this order: the offset of each, the length of all, and what is to
    be read: (first byte in the file, in the memory, length)."""
    places: List[int] = []
    runs: List[Tuple[int, int, int]] = []
    end = 0
    for entry in entries:
        place = -(-end // _ALIGNED) * _ALIGNED
        length = entry.last - entry.first
        places.append(place)
        end = place + length
        if runs:
            first, there, before = runs[-1]
            if (first + before, there + before) == (entry.first, place):
                runs[-1] = (first, there, before + length)
                continue
        runs.append((entry.first, place, length))
    return places, end, runs


class _Loader:
    """Makes tensors, registers their memory, and reads them."""

    def __init__(self, engine: Engine, module: Any, device: str, entries: Dict[str, Entry]) -> None:
        self._engine = engine
        self._module = module
        self._device = device
        self._entries = entries
        self._regions: List[Any] = []
        self.tensors: Dict[str, Any] = dict.fromkeys(entries)  # in the header's order

    def _empty(self, name: str) -> Any:
        empty = _empty_numpy if self._module.__name__ == "numpy" else _empty_torch
        return empty(self._module, name, self._entries[name], self._device)

    def _register(self, memory: Any) -> Any:
        # Without pins, which torch remembers for as long as there is the tensor.
        self._regions.append(self._engine._register(memory, None, "", False, None, []))
        return self._regions[-1]

    def _make_each(self, group: List[str]) -> Tuple[List[Any], List[Tuple[int, int]]]:
        """Where to read the group's bytes to, and which these are."""
        into = []
        for name in group:
            self.tensors[name] = self._empty(name)
            into.append(self._register(self.tensors[name]))
        return into, [(self._entries[name].first, self._entries[name].last) for name in group]

    def _make_packed(self, group: List[str]) -> Tuple[List[Any], List[Tuple[int, int]]]:
        """The same in one memory of torch. Registering memory of a GPU takes tens of microseconds,
        beside copies more."""
        torch = self._module
        entries = [self._entries[name] for name in group]
        types = [_torch_type(torch, *pair) for pair in zip(group, entries)]
        places, length, runs = _pack(entries)
        memory = torch.empty((length,), dtype=torch.uint8, device=self._device)
        for name, entry, type_, place in zip(group, entries, types, places):
            part = memory[place : place + entry.last - entry.first]
            self.tensors[name] = part.view(type_).view(entry.shape)
        # torch hands out memory while work of its current stream still uses it.
        torch.cuda.current_stream(self._device).synchronize()
        region = self._register(memory)
        return (
            [region[there : there + length] for _, there, length in runs],
            [(first, first + length) for first, _, length in runs],
        )

    def read(self, fd: int) -> None:
        """Read all tensors. Each group of them is a transfer, which runs while memory for the next
        ones is allocated and registered."""
        make = self._make_packed if self._device.startswith("cuda") else self._make_each
        entries = self._entries
        transfers: List[Any] = []
        for name, entry in entries.items():
            if entry.last == entry.first:
                self.tensors[name] = self._empty(name)
        end = max((entry.last for entry in entries.values()), default=0)
        groups = list(_groups(entries))
        if not groups:
            return
        file = self._engine.register_file(fd, length=end)
        try:
            with self._engine.connect("self") as peer:
                source = Remote(RemoteInfo(id=file.id, length=end))
                try:
                    for group in groups:
                        into, places = make(group)
                        parts = [source[first:last] for first, last in places]
                        transfers.append(peer.read(parts, into))
                    while transfers:  # no name for one: the peer closes when none is left
                        transfers[0].wait()
                        del transfers[0]
                except BaseException as error:
                    traceback.clear_frames(error.__traceback__)  # wait()'s has a transfer
                    raise
                finally:
                    # After an error or Ctrl-C: nothing may be written into memory that is let go.
                    while transfers:
                        transfers.pop().cancel()
        finally:
            for region in self._regions:
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
    """The tensors of a safetensors file, by name. Their bytes go from the file straight into their
    memory; no other copy of the file is made. On a GPU tensors share memory, some 128 MiB at a
    time: it is free again when all of those that share it are gone.

    device     "cpu", or with torch "cuda:0"
    framework  "torch" or "numpy"; None: torch, or numpy where torch is missing
    names      only these tensors
    engine     the engine that reads; None: one that is opened by the first such call and kept until
               the process ends

    Error EINVAL: the file is not valid; EOPNOTSUPP: the framework lacks a type; ENOENT: there is no
    such file or tensor; EIO: the file has become shorter meanwhile."""
    device = str(device)
    module = _choose(framework, device)
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
        loader = _Loader(engine if engine is not None else _own_engine(), module, device, entries)
        loader.read(fd)
        return loader.tensors
    finally:
        os.close(fd)
