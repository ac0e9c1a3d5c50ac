# SPDX-License-Identifier: Apache-2.0
"""Layouts of weights: which part of which tensor lies where, from what programs have (state_dicts)
to what the library takes, and to the files of `wherry plan`."""
from __future__ import annotations

import ctypes
import os
from ctypes import c_uint64, sizeof
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, NoReturn, Optional, Tuple

from . import _native as native
from ._errors import invalid, text
from ._memory import refuses_writes, strided

# Plain data, as json has it: how members tell each other what they have.
Part = Dict[str, Any]
SIDES = ("sources", "targets")
BUFFER = "buffer"  # the region of a target
_ALIGNMENT = 256  # bytes, of tensors in a target's buffer
_WORDS = {
    "bool": "bool", "uint8": "u8", "int8": "i8", "float8_e4m3fn": "f8e4m3", "float8_e5m2": "f8e5m2",
    "uint16": "u16", "int16": "i16", "float16": "f16", "bfloat16": "bf16", "uint32": "u32",
    "int32": "i32", "float32": "f32", "uint64": "u64", "int64": "i64", "float64": "f64",
    "complex64": "c64", "complex128": "c128",
}  # fmt: skip
_FORMATS = {
    "?": "bool", "B": "u8", "b": "i8", "c": "u8", "H": "u16", "h": "i16", "e": "f16", "I": "u32",
    "i": "i32", "f": "f32", "L": "u64", "l": "i64", "Q": "u64", "q": "i64", "d": "f64",
}  # fmt: skip
# Of a host, in files and in C.
_RATES = {
    "nics": "nics", "nic_GBps": "nic_rate", "nic_us": "nic_latency", "uplink_GBps": "uplink_rate",
    "gpu_GBps": "gpu_rate", "gpu_us": "gpu_latency", "copy_GBps": "copy_rate",
    "memory_GBps": "memory_rate", "engine_GBps": "engine_rate",
}  # fmt: skip


class Slice(NamedTuple):
    """A value of a state_dict: `tensor` is the part of a tensor of `shape` that begins at `begin`,
    an index for each dimension. So a shard is described where there is no DTensor."""

    tensor: Any
    shape: Tuple[int, ...]
    begin: Tuple[int, ...]


class Piece(NamedTuple):
    """What a process has of a tensor."""

    name: str
    local: Any  # its bytes: a tensor, an array, a buffer
    word: str  # the type
    item: int  # bytes
    shape: Tuple[int, ...]  # of the whole tensor
    begin: Tuple[int, ...]
    end: Tuple[int, ...]
    address: int
    strides: Tuple[int, ...]  # bytes
    readonly: bool
    on_host: bool
    keeper: Any  # the memory lives as long as this object

    @property
    def size(self) -> Tuple[int, ...]:
        return tuple(end - begin for begin, end in zip(self.begin, self.end))

    @property
    def bytes(self) -> int:
        return box_bytes(self.begin, self.end, self.item)

    def cannot_be_written(self) -> bool:
        extent = sum(step * (size - 1) for step, size in zip(self.strides, self.size)) + self.item
        return self.readonly or (self.on_host and refuses_writes(self.address, max(extent, 1)))


def box_bytes(begin: Iterable[int], end: Iterable[int], item: int) -> int:
    for first, last in zip(begin, end):
        item *= last - first
    return item


# ---- from a state_dict


def is_torch(thing: Any) -> bool:
    return hasattr(thing, "data_ptr") and hasattr(thing, "element_size")


def device_of(thing: Any) -> str:
    """ "cuda:0", "meta"; "cpu" for all that is not on a GPU."""
    device: Any = getattr(thing, "device", None)
    if hasattr(thing, "__cuda_array_interface__") and not is_torch(thing):  # cupy
        return f"cuda:{int(getattr(device, 'id', 0))}"
    kind = getattr(device, "type", "cpu")
    return f"cuda:{device.index or 0}" if kind == "cuda" else str(kind)


def _refuse(name: str, text: str) -> NoReturn:
    raise invalid(f"tensor {name[:80]!r} {text}")


def _word(name: str, thing: Any, item: int) -> str:
    dtype = getattr(thing, "dtype", None)
    if dtype is None:
        kind = memoryview(thing).format.lstrip("@=<")
        return _FORMATS.get(kind) or _refuse(name, f"has elements of format {kind!r}")
    if getattr(dtype, "byteorder", "=") == ">":
        _refuse(name, f"is big-endian ({dtype})")
    if getattr(dtype, "hasobject", False):
        _refuse(name, f"has elements that are no bytes ({dtype})")
    text = str(getattr(dtype, "name", None) or str(dtype).rpartition(".")[2])
    return _WORDS.get(text) or text[:15]


def _of_dtensor(name: str, tensor: Any) -> Optional[Slice]:
    """The shard of this process, as torch.chunk() divides; None: it has none."""
    mesh, shape = tensor.device_mesh, tuple(int(size) for size in tensor.shape)
    where = mesh.get_coordinate()
    if where is None:
        return None
    begin, end = [0] * len(shape), list(shape)
    for axis, placement in enumerate(tensor.placements):
        kind = type(placement).__name__
        if kind == "Replicate":
            continue
        if kind != "Shard":
            _refuse(name, f"is placed {placement} on mesh dimension {axis}: only Shard and "
                    f"Replicate have a place of their own; give wherry.weights.Slice")  # fmt: skip
        dim = placement.dim % len(shape)
        chunk = -(-(end[dim] - begin[dim]) // int(mesh.size(axis)))
        first = begin[dim] + chunk * int(where[axis])
        begin[dim], end[dim] = min(first, end[dim]), min(first + chunk, end[dim])
    local = tensor.detach().to_local()
    if tuple(local.shape) != tuple(last - first for first, last in zip(begin, end)):
        _refuse(name, f"has a local shard of {tuple(local.shape)}, not of {begin} to {end}")
    return Slice(local, shape, tuple(begin))


def _piece(name: str, value: Any) -> Optional[Piece]:
    """None: nothing of it is here."""
    if hasattr(value, "placements") and hasattr(value, "to_local"):
        value = _of_dtensor(name, value)
        if value is None:
            return None
    text(name, "the name of a tensor")
    local = value.tensor if isinstance(value, Slice) else value
    if str(getattr(local, "layout", "torch.strided")) != "torch.strided":
        _refuse(name, f"is {local.layout}, not strided")
    try:
        about = strided(local)
    except TypeError as error:
        raise TypeError(f"{name[:80]!r}: {error}") from None
    shape, begin = about.shape, (0,) * len(about.shape)
    if isinstance(value, Slice):
        shape, begin = tuple(map(int, value.shape)), tuple(map(int, value.begin))
    end = tuple(first + size for first, size in zip(begin, about.shape))
    if not len(shape) == len(begin) == len(about.shape):
        _refuse(name, f"has {len(shape)} dimensions, its begin {len(begin)}, its part "
                f"{len(about.shape)}")  # fmt: skip
    if any(not 0 <= first <= last <= most for first, last, most in zip(begin, end, shape)):
        _refuse(name, f"of shape {shape}: the part from {begin} to {end} is not in it")
    keeper = local.detach() if is_torch(local) else about.keeper
    return Piece(name, local, _word(name, local, about.item), about.item, shape, begin, end,
                 about.address, about.steps(), bool(about.readonly), about.on_host,
                 keeper)  # fmt: skip


def pieces_of(state_dict: Mapping[str, Any]) -> List[Piece]:
    """What this process has of each tensor, by name. Those without elements are left out."""
    found = [_piece(name, value) for name, value in sorted(state_dict.items())]
    return [piece for piece in found if piece is not None and piece.bytes]


def has_moved(piece: Piece, value: Any) -> bool:
    """Has the tensor other memory than when the piece was made of it? Each version asks this of
    each tensor, so torch's own ones are asked for no more than their address and strides."""
    local = value.tensor if isinstance(value, Slice) else value
    if local is piece.local and is_torch(local) and local.data_ptr() == piece.address:
        if tuple(step * piece.item for step in local.stride()) == piece.strides:
            return False
    now = _piece(piece.name, value)
    return now is None or (now.address, now.strides) != (piece.address, piece.strides)


# ---- what one process has, or wants


def _side(pieces: List[Piece], regions: Dict[str, int], slices: List[Any]) -> Dict[str, Any]:
    tensors = {piece.name: [piece.word, piece.item, list(piece.shape)] for piece in pieces}
    return {"tensors": tensors, "regions": regions, "slices": slices}


def as_source(pieces: List[Piece]) -> Tuple[Dict[str, Any], Dict[str, Tuple[int, ...]]]:
    """The tensors where they lie: what is told of them, and the regions' addresses. Tensors that
    share bytes share a region."""
    groups: List[List[Any]] = []  # first byte, end, pieces
    for piece in sorted(pieces, key=lambda piece: (piece.address, piece.name)):
        extent = piece.item
        for step, size in zip(piece.strides, piece.size):
            if size > 1 and step < piece.item:
                _refuse(piece.name, f"has strides of {piece.strides} bytes: its elements overlap, "
                        f"or go backwards; make it contiguous")  # fmt: skip
            extent += step * (size - 1)
        if groups and piece.address < groups[-1][1]:
            groups[-1][1] = max(groups[-1][1], piece.address + extent)
            groups[-1][2].append(piece)
        else:
            groups.append([piece.address, piece.address + extent, [piece]])
    # In an order that is the same when the program runs again.
    groups.sort(key=lambda group: min(piece.name for piece in group[2]))
    regions = {f"s{index}": end - first for index, (first, end, _) in enumerate(groups)}
    slices = [
        [piece.name, f"s{index}", piece.address - first, list(piece.begin), list(piece.end),
         list(piece.strides)]
        for index, (first, _, inside) in enumerate(groups)
        for piece in sorted(inside, key=lambda piece: piece.name)
    ]  # fmt: skip
    addresses: Dict[str, Tuple[int, ...]] = {
        f"s{index}": (group[0],) for index, group in enumerate(groups)
    }
    return _side(pieces, regions, slices), addresses


def as_target(pieces: List[Piece]) -> Dict[str, Any]:
    """The tensors one behind the other in one region."""
    slices, at = [], 0
    for piece in pieces:
        slices.append([piece.name, BUFFER, at, list(piece.begin), list(piece.end), None])
        at += -(-piece.bytes // _ALIGNMENT) * _ALIGNMENT
    return _side(pieces, {BUFFER: at} if pieces else {}, slices)


def this_host() -> str:
    """The same for all processes of one kernel, in containers, too."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return os.uname().nodename


# ---- what all have


class Layout:
    """One side of all members: "sources" or "targets"."""

    def __init__(self, parts: List[Part], side: str, topology: Mapping[str, Any]) -> None:
        self.side = side
        self.topology = topology
        self.parts = [part for part in parts if part.get(side)]
        self.tensors: Dict[str, Any] = {}
        owner: Dict[str, str] = {}
        for part in self.parts:
            for name, about in part[side]["tensors"].items():
                first = self.tensors.setdefault(name, about)
                owner.setdefault(name, part["engine"])
                if list(first) != list(about):
                    _refuse(name, f"of {side}: {owner[name]!r} has {_about(first)}, "
                            f"{part['engine']!r} has {_about(about)}")  # fmt: skip

    def bytes(self) -> Dict[str, int]:
        """Of each engine's slices."""
        return {
            part["engine"]: sum(
                box_bytes(begin, end, self.tensors[name][1])
                for name, _, _, begin, end, _ in part[self.side]["slices"]
            )
            for part in self.parts
        }

    def json(self) -> Dict[str, Any]:
        """As `wherry plan` reads it (docs/weights.md)."""
        engines = {}
        for part in self.parts:
            engine = engines[part["engine"]] = {
                "host": part["host"],
                "regions": part[self.side]["regions"],
                "slices": [_slice_text(one) for one in part[self.side]["slices"]],
            }
            if part["location"].startswith("cuda:"):
                engine["gpu"] = int(part["location"][5:])
        tensors = {
            name: {"dtype": word, "shape": shape}
            if word in _WORDS.values()
            else {"dtype": word, "shape": shape, "item_bytes": item}
            for name, (word, item, shape) in self.tensors.items()
        }
        found = {"schema": 1, "tensors": tensors, "engines": engines}
        hosts = {part["host"] for part in self.parts}
        known = {name: rates for name, rates in self.topology.items() if name in hosts}
        if known:
            found["topology"] = {"hosts": known}
        return found

    def native(self, keep: List[Any]) -> native.WeightsLayout:
        """As C has it; what it points to is put into `keep`."""
        parts, side = self.parts, self.side
        hosts = (native.WeightsHost * len(self.topology))(
            *[_native_host(name, rates) for name, rates in sorted(self.topology.items())]
        )
        tensors = (native.WeightsTensor * len(self.tensors))()
        for entry, (name, (word, item, shape)) in zip(tensors, sorted(self.tensors.items())):
            sizes = (c_uint64 * len(shape))(*shape)
            keep.append(sizes)
            entry.name, entry.type, entry.item_bytes = name.encode(), word.encode(), item
            entry.shape, entry.dims = sizes, len(shape)
        number = {name: index for index, name in enumerate(sorted(self.tensors))}
        engines = (native.WeightsEngine * len(parts))()
        regions: List[Tuple[int, str, int]] = []
        slices: List[Tuple[int, List[Any]]] = []
        for index, (entry, part) in enumerate(zip(engines, parts)):
            entry.name, entry.host = part["engine"].encode(), part["host"].encode()
            entry.location, entry.url = part["location"].encode(), part["url"].encode() or None
            at = {name: len(regions) + i for i, name in enumerate(part[side]["regions"])}
            regions += [(index, name, size) for name, size in part[side]["regions"].items()]
            slices += [(at[one[1]], one) for one in part[side]["slices"]]
        areas = (native.WeightsRegion * len(regions))()
        for area, (index, name, size) in zip(areas, regions):
            area.name, area.bytes, area.engine = name.encode(), size, index
        boxes = (native.WeightsSlice * len(slices))()
        for box, (region, (name, _, offset, begin, end, strides)) in zip(boxes, slices):
            numbers = (c_uint64 * (3 * len(begin) or 1))(*begin, *end, *(strides or ()))
            keep.append(numbers)
            row, at_numbers = len(begin) * sizeof(c_uint64), ctypes.addressof(numbers)
            box.tensor, box.region, box.offset = number[name], region, offset
            box.begin, box.end = at_numbers, at_numbers + row
            box.stride = at_numbers + 2 * row if strides and begin else None
        keep += [hosts, tensors, engines, areas, boxes]
        return native.WeightsLayout(
            size=sizeof(native.WeightsLayout), label=side.encode(), hosts=hosts, tensors=tensors,
            engines=engines, regions=areas, slices=boxes, host_count=len(hosts),
            tensor_count=len(tensors), engine_count=len(engines), region_count=len(areas),
            slice_count=len(boxes),
        )  # fmt: skip


def _about(tensor: Any) -> str:
    word, item, shape = tensor
    return f"{word} of {item} bytes {list(shape)}"


def _slice_text(one: Any) -> str:
    name, region, offset, begin, end, strides = one
    if any(letter in name for letter in "[@"):
        _refuse(name, "cannot be in a file of `wherry plan`: its name has [ or @")
    ranges = ", ".join(f"{first}:{last}" for first, last in zip(begin, end))
    text = f"{name} [{ranges}]" if ranges else name
    text += f" @ {region} + {offset}"
    return text + (" / " + ", ".join(map(str, strides)) if strides else "")


def _native_host(name: str, rates: Mapping[str, Any]) -> native.WeightsHost:
    unknown = sorted(set(rates) - set(_RATES))
    if unknown:
        raise invalid(f"topology of host {name!r}: {unknown[0]!r} is none of {', '.join(_RATES)}")
    return native.WeightsHost(
        name=text(name, "topology"), **{_RATES[key]: value for key, value in rates.items()}
    )


def both(parts: Iterable[Part], topology: Mapping[str, Any]) -> Tuple[Layout, Layout]:
    """The two layouts, the same from the same parts in any order."""
    ordered = sorted(parts, key=lambda part: str(part["engine"]))
    for first, second in zip(ordered, ordered[1:]):
        if first["engine"] == second["engine"]:
            raise invalid(f"two members are called {first['engine']!r}: name the engines apart")
    return Layout(ordered, SIDES[0], topology), Layout(ordered, SIDES[1], topology)
