# SPDX-License-Identifier: Apache-2.0
"""The weights of a model, from the processes that hold them to many others, in another shape.

    # a trainer                                      # a server
    trained = wherry.weights.publish(state_dict)     served = wherry.weights.receive(state_dict)
    with trained.publish(step) as publication:       with served.acquire(after=last) as view:
        publication.wait()                               use(view.version, view.tensors)

A state_dict maps names to torch tensors, numpy arrays or buffers. Those that are DTensors say
themselves which part is here; others are whole, or a wherry.weights.Slice says of what they are a
part. Versions reach all receivers whole, and directly from the memory of those who have the bytes
(docs/weights.md). Times are seconds, sizes bytes. Any thread may use any object; the library is
called without the GIL, and calls that wait handle signals, Ctrl-C too.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import threading
import time
from ctypes import byref, c_void_p, sizeof
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from . import _native as native
from ._engine import Engine, Guard, apart, in_slices, start
from ._errors import Error, Timeout, check, invalid, make, whole
from ._errors import text as checked
from ._layouts import (
    BUFFER,
    Part,
    Piece,
    Slice,
    as_source,
    as_target,
    both,
    device_of,
    has_moved,
    is_torch,
    pieces_of,
    this_host,
)
from ._memory import pins_of
from ._native import lib

__all__ = [
    "Info",
    "Member",
    "MemberInfo",
    "Progress",
    "Publication",
    "Slice",
    "View",
    "join",
    "plan_files",
    "publish",
    "receive",
]
Gather = Callable[[Part], Iterable[Part]]
_STATES = ("unused", "connecting", "connected", "lost", "refused")
_AGAIN = (errno.EAGAIN,)


class Info(NamedTuple):
    """What Member.info() says of this process."""

    published: int  # as a source: the last version; 0: none
    current: int  # as a target: the version that readers get; 0: none
    receiving: int  # the version that is being received; 0: none
    bytes: int  # of one version
    received: int  # of them, of `receiving`
    total: int  # bytes that have been received since it was opened
    steps: int  # of the plan that bring bytes here
    members: int  # in all


class MemberInfo(NamedTuple):
    """Another member, as this one knows it."""

    name: str
    state: str  # "unused", "connecting", "connected", "lost", "refused"
    source: bool
    target: bool
    published: int  # its last version, as a source
    current: int  # the newest that it has whole, as a target
    receiving: int  # the version that it receives; 0: none
    received: int  # bytes of that
    sent: int  # bytes that this member has read from it
    error: str  # why it is not connected; "": no reason is known
    route: str  # by which those bytes came: "tcp, 4 connections"; "": none has come


class Progress(NamedTuple):
    """How far a version has come."""

    bytes: int  # that have arrived, over all targets
    total: int  # that will, if none is lost
    arrived: int  # targets that have all
    targets: int


class Publication:
    """A version that Member.publish() offers. In `with member.publish(...)` the end of the block
    waits for all targets, and an exception does not; both cancel it."""

    def __init__(self, member: "Member", version: int) -> None:
        self._member = member
        self.version = version

    def wait(self, timeout: Optional[float] = None) -> "Publication":
        """Wait up to `timeout` s (None: without a limit) until all targets have it, but for those
        that were lost. Timeout: not in that time. Error EINVAL: a member has other layouts; EACCES:
        one refuses this one. It remains published."""
        self._member.wait(self.version, timeout)
        return self

    def done(self) -> bool:
        """Have all targets it? Does not block."""
        try:
            self._member.wait(self.version, 0)
        except Timeout:
            return False
        return True

    @property
    def progress(self) -> Progress:
        """How much has arrived at the others; who has left does not count. Does not block."""
        return self._member._progress(self.version)

    def cancel(self) -> None:
        """The memory of this member may change again, at once. Targets that have not read all of it
        take the rest from other targets, or wait for the next version. Does not block."""
        member = self._member
        member._engine._core.here()
        with member._lock:  # a later version stays
            if member._offered == self.version:
                member.retract()

    def explain(self) -> str:
        """Who has it, who is missing, as text for people."""
        return self._member.explain()

    def __enter__(self) -> "Publication":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            if kind is None:
                self.wait()
        finally:
            self.cancel()

    def __repr__(self) -> str:
        return f"<wherry.weights.Publication of version {self.version} by {self._member!r}>"


class View:
    """A version that is whole. Its bytes do not change until release(), or the end of `with`.

    tensors  by the names of the state_dict: tensors or arrays over one of the two buffers, without
             a copy; of a shard the local part. They may be read until release(). They stay valid
             memory afterwards, but another version is written there.
    buffer   0 or 1: which of the two"""

    def __init__(self, member: "Member", native_view: native.WeightsView) -> None:
        self._member = member
        self._native: Optional[native.WeightsView] = native_view
        self.version = int(native_view.version)
        self.buffer = int(native_view.buffer)
        self._all = member._tensors[self.buffer]
        self.tensors: Dict[str, Any] = dict(self._all)

    def copy_to(self, state_dict: Mapping[str, Any]) -> None:
        """Copy into tensors, arrays or DTensors with the same names, shapes and types as those that
        were given to receive(); any strides will do. Parameters are written in place."""
        member = self._member
        if self._native is None:
            raise invalid(f"{self!r} has been released")
        wanted = {piece.name: piece for piece in member._wanted}
        pieces = pieces_of(state_dict)
        for piece in pieces:
            other = wanted.get(piece.name)
            if other is None or (other.word, other.begin, other.end) != piece[2:3] + piece[5:7]:
                have = f"{other.word} from {other.begin} to {other.end}" if other else "nothing"
                raise invalid(
                    f"tensor {piece.name[:80]!r} is {piece.word} from {piece.begin} to "
                    f"{piece.end}, the version has {have}"
                )
            if piece.cannot_be_written():
                raise invalid(f"tensor {piece.name[:80]!r} is read-only")
        for piece in pieces:
            _assign(piece, self._all[piece.name])
        _synchronize(pieces)

    def release(self) -> None:
        """Give it back, so that the next version but one can be received. Waits for the current
        streams of torch on the GPUs that the buffers are on; other work that reads them has ended.
        A second call does nothing."""
        member = self._member
        member._engine._core.here()
        _synchronize(member._wanted)
        with member._lock:
            view, self._native = self._native, None
            if view is not None:
                member._views.discard(self)
                if member._handle:
                    with member._calls:
                        check(lib.wh_weights_release(member._handle, byref(view)))

    def __enter__(self) -> "View":
        return self

    def __exit__(self, *_: Any) -> None:
        self.release()

    def __repr__(self) -> str:
        state = ", released" if self._native is None else ""
        return f"<wherry.weights.View of version {self.version}, buffer {self.buffer}{state}>"


class Member:
    """A process that publishes or receives weights, or both. Made by publish(), receive(), join().

    It registers the memory of the state_dict that it publishes, and holds it until close(). What it
    receives comes into two buffers of its own: readers get the one that has a whole version, the
    next version comes into the other."""

    def __init__(
        self,
        publish: Optional[Mapping[str, Any]],
        receive: Optional[Mapping[str, Any]],
        *,
        engine: Optional[Engine],
        gather: Optional[Gather],
        name: str = "weights",
        host: Optional[str] = None,
        device: Any = None,
        topology: Optional[Mapping[str, Any]] = None,
        chunk: int = 0,
        piece: int = 0,
    ) -> None:
        self._own = engine is None
        self._handle = 0
        self.closed = False
        self.inside: List[None] = []  # for Guard
        self._calls = Guard(self, errno.EINVAL, "the member is closed")
        self._lock = threading.RLock()
        self._ending = threading.Lock()  # of _leave(), which Ctrl-C leaves running
        self._views: "set[View]" = set()
        self._offered = self._last = 0
        self._tensors: Tuple[Dict[str, Any], Dict[str, Any]] = ({}, {})
        self._buffers: "List[_Buffer]" = []  # whatever becomes of the tensors
        self._state_dict = receive
        self._held = pieces_of(publish) if publish is not None else []
        self._source_dict = dict(publish or {})
        self._pins = [pins_of(piece.local) for piece in self._held]
        self._wanted = pieces_of(receive) if receive is not None else []
        if not self._held and not self._wanted:
            raise invalid("the state_dict has no bytes that are here")
        if host is not None:
            checked(host, "host")
        gather = gather or _torch_gather()
        self._engine = engine or Engine(name=f"weights-{os.getpid()}")
        try:
            place = _places(self._held, self._wanted, device)
            source, addresses = as_source(self._held)
            ours: Part = {
                "engine": self._engine.name,
                "url": self._engine.url,
                "host": host or this_host(),
                "location": place if place.startswith("cuda") else "host",
                "sources": source if self._held else None,
                "targets": as_target(self._wanted) if self._wanted else None,
            }
            #: What all members have told: a member that comes back can give it as
            #: gather=lambda part: parts.
            self.parts: List[Part] = list(gather(ours))
            self._sources, self._targets = both(self.parts, topology or {})
            self._open(name, addresses, place, chunk, piece)
        except BaseException as error:
            # After Ctrl-C the opening may go on, and then leave.
            if self._own and (isinstance(error, Exception) or not start(self._give_up)):
                self._engine.close()
            raise

    def _give_up(self) -> None:
        """Close the member's own engine when what goes on in it has ended."""
        while not self._engine.closed:
            with contextlib.suppress(OSError):
                self._engine.close()

    def _open(
        self, name: str, addresses: Dict[str, Tuple[int, ...]], place: str, chunk: int, piece: int
    ) -> None:
        core = self._engine._core
        if self._wanted:
            size = as_target(self._wanted)["regions"][BUFFER]
            buffers = [_Buffer(self._engine, self._wanted, size, place) for _ in range(2)]
            self._buffers = buffers
            addresses = {**addresses, BUFFER: tuple(buffer.address for buffer in buffers)}
            self._tensors = tuple(  # type: ignore[assignment]
                {**_empty_ones(self._state_dict or {}), **buffer.tensors(self._wanted)}
                for buffer in buffers
            )
        keep: List[Any] = []
        memory = (native.WeightsMemory * len(addresses))()
        for entry, (region, where) in zip(memory, addresses.items()):
            entry.region = region.encode()
            entry.address[: len(where)] = where
        options = native.WeightsOptions(
            size=sizeof(native.WeightsOptions),
            sources=ctypes.pointer(self._sources.native(keep)),
            targets=ctypes.pointer(self._targets.native(keep)),
            memory=memory,
            memory_count=len(memory),
            name=checked(name, "name"),
            chunk=whole(chunk, "chunk"),
            piece=whole(piece, "piece"),
        )
        out = c_void_p()

        # What the options point to has to live as long as this goes on after Ctrl-C.
        def begin(_keep: List[Any] = keep) -> None:
            with core.calls:
                check(lib.wh_weights_open(core.handle, byref(options), byref(out)))
                self._handle = out.value or 0
                core.weights[self._handle] = self._end

        # One that fails may wait for peers that read from it already.
        apart(begin, self._leave)

    # ---- a source

    def publish(self, version: Optional[int] = None) -> Publication:
        """Offer what is in the memory of the state_dict as `version`, a number that is greater than
        all before (None: the one after the last). The memory must not change until the publication
        is cancelled or retract() is called. Waits for the current streams of torch on the GPUs of
        the tensors, for nothing else. Error EALREADY: the version before was not retracted; EACCES:
        this process receives only."""
        self._engine._core.here()
        for piece in self._held:
            if has_moved(piece, self._source_dict[piece.name]):
                raise invalid(f"tensor {piece.name[:80]!r} has other memory than when it was opened"
                              f": close this and publish the state_dict anew")  # fmt: skip
        _synchronize(self._held)
        with self._lock:
            if version is None:
                version = self._last + 1
            if isinstance(version, int) and not 0 < version < 2**64:
                raise invalid(f"a version is a number from 1, not {version}")
            version = whole(version, "version")
            with self._calls:
                check(lib.wh_weights_publish(self._handle, version))
            self._offered = self._last = version
        return Publication(self, version)

    def retract(self) -> None:
        """As Publication.cancel(), of whichever version is published."""
        self._engine._core.here()
        with self._lock:
            with self._calls:
                check(lib.wh_weights_retract(self._handle))
            self._offered = 0

    def wait(self, version: int, timeout: Optional[float] = None) -> None:
        """Wait up to `timeout` s until `version` or a later one is here, if this is a target, and
        at all targets, if this is a source. Timeout and errors as for Publication.wait()."""
        with self._calls:
            status = in_slices(
                lambda limit: self._slice(lib.wh_weights_wait, version, limit), timeout, _AGAIN
            )
            if status == -errno.EAGAIN:
                raise Timeout(
                    errno.ETIMEDOUT,
                    f"not all have version {version} after {timeout} s: explain() says who",
                )
            check(status)

    def _slice(self, call: Any, *arguments: Any) -> int:
        if self.closed or self._engine.closed:
            raise invalid("the member is closed")
        return int(call(self._handle, *arguments))

    def _progress(self, version: int) -> Progress:
        sizes = self._targets.bytes()
        sizes.pop(self._engine.name, None)
        there = arrived = 0
        for member in self.members():
            if member.name not in sizes:
                continue
            if member.current >= version:
                arrived += 1
                there += sizes[member.name]
            elif member.receiving == version:
                there += min(member.received, sizes[member.name])
        return Progress(there, sum(sizes.values()), arrived, len(sizes))

    # ---- a target

    def acquire(self, after: int = 0, timeout: Optional[float] = None) -> View:
        """The newest version that is here, if it is greater than `after`; waits up to `timeout` s
        (None: without a limit) for one, else raises Timeout. Several threads may have views. While
        one of the version before the newest is kept, the next one cannot be received. Error EINVAL:
        a source has other layouts, with both sides in one line; EACCES: one refuses this process,
        or this process publishes only."""
        view = native.WeightsView(size=sizeof(native.WeightsView))
        after = whole(after, "after")
        with self._calls:
            status = in_slices(
                lambda limit: self._slice(lib.wh_weights_acquire, after, limit, byref(view)),
                timeout,
                _AGAIN,
            )
            if status == -errno.EAGAIN:
                raise Timeout(
                    errno.ETIMEDOUT,
                    f"no version after {after} has come in {timeout} s: explain() says why",
                )
            check(status)
            found = View(self, view)
            with self._lock:
                if self.closed:  # meanwhile
                    check(lib.wh_weights_release(self._handle, byref(view)))
                    raise invalid("the member is closed")
                self._views.add(found)
        return found

    def load(
        self,
        state_dict: Optional[Mapping[str, Any]] = None,
        after: int = 0,
        timeout: Optional[float] = None,
    ) -> int:
        """acquire(), copy into `state_dict` (None: the one that was given to receive()), release.
        Returns the version. Nobody may use the tensors meanwhile: they change one by one."""
        target = state_dict if state_dict is not None else self._state_dict
        with self.acquire(after, timeout) as view:
            view.copy_to(target or {})
            return view.version

    def cancel(self, version: int) -> None:
        """Give up `version` and all before it: what is being received of them is thrown away. The
        version that readers get stays, and later ones are received as usual. Returns when nothing
        is written to the other buffer any more, which may take the setting `timeout` if a member
        does not answer; after Ctrl-C it goes on in a thread."""
        with self._calls:
            self._slice(lambda _: 0)

        version = whole(version, "version")

        def call() -> None:
            with self._calls:
                check(lib.wh_weights_cancel(self._handle, version))

        apart(call)

    # ---- what it does

    def info(self) -> Info:
        """What this member has. Does not block."""
        info = native.WeightsInfo(size=sizeof(native.WeightsInfo))
        with self._calls:
            check(lib.wh_weights_info(self._handle, byref(info)))
        return Info(*[int(getattr(info, name)) for name in Info._fields])

    def members(self) -> List[MemberInfo]:
        """The other members; sources come first. Does not block."""
        found = []
        with self._calls:
            for index in range(self.info().members):
                one = native.WeightsMember(size=sizeof(native.WeightsMember))
                check(lib.wh_weights_member(self._handle, index, byref(one)))
                name = one.name.decode("utf-8", "replace")
                if name == self._engine.name:
                    continue
                found.append(
                    MemberInfo(
                        name, _STATES[one.state], bool(one.roles & 1), bool(one.roles & 2),
                        one.published, one.current, one.receiving, one.received, one.sent,
                        one.error.decode("utf-8", "replace"),
                        one.route.decode("utf-8", "replace"),
                    )
                )  # fmt: skip
        return found

    def explain(self) -> str:
        """What this member has, from whom, by which route, and what is missing: text for people."""
        with self._calls:
            length = check(lib.wh_weights_explain(self._handle, None, 0)) + 1024
            text = ctypes.create_string_buffer(length)
            check(lib.wh_weights_explain(self._handle, text, length))
        return text.value.decode("utf-8", "replace")

    # ---- the end

    def close(self) -> None:
        """Leave. Others that read from here take the rest from another member. Error EBUSY: a view
        is not released, or a peer on this host has not let go of the memory; call again. It may
        take the setting `timeout`; after Ctrl-C it goes on in a thread."""
        if os.getpid() != self._engine._core.pid:
            return  # it is the parent's
        if self._handle and not self._engine.closed:
            apart(lambda: check(self._leave()))
        if self._own:
            self._engine.close()

    def _leave(self) -> int:
        with self._lock:
            if not self._handle:
                return 0
            if self._views:
                raise make(-errno.EBUSY, f"{len(self._views)} views are not released")
            self.closed = True
        with self._ending:
            while self.inside:  # their next slice ends
                time.sleep(0.001)
            if not self._handle:  # another thread has left
                return 0
            status = int(lib.wh_weights_close(self._handle))
            with self._lock:
                if status == 0:
                    self._engine._core.weights.pop(self._handle, None)
                    self._handle = 0
                    self._held, self._source_dict, self._pins = [], {}, []
                    self._buffers = []
                    self._engine._core.end()
            return status

    def _end(self) -> int:
        """The engine is being closed."""
        for view in list(self._views):
            with contextlib.suppress(OSError):
                view.release()
        try:
            return self._leave()
        except Error as error:
            return -(error.errno or errno.EBUSY)

    def __enter__(self) -> "Member":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a member belongs to its process: open another one there")

    def __repr__(self) -> str:
        if not self._handle:
            return f"<wherry.weights.Member {self._engine.name!r}, closed>"
        words = (("publishes", self._held), ("receives", self._wanted))
        roles = [word for word, has in words if has]
        return f"<wherry.weights.Member {self._engine.name!r}, {' and '.join(roles)}>"


def publish(
    state_dict: Mapping[str, Any],
    *,
    engine: Optional[Engine] = None,
    gather: Optional[Gather] = None,
    **options: Any,
) -> Member:
    """Become a source of these tensors. Each member calls this, receive() or join() once: they tell
    each other what they have and want, and compute one plan.

    state_dict  names and tensors: of torch (DTensors with the placements Shard and Replicate say
                which part is here), arrays of numpy and cupy, buffers, or Slices of them. They stay
                where they are, and are not copied. The keyword arguments are those of join()."""
    return Member(state_dict, None, engine=engine, gather=gather, **options)


def receive(
    state_dict: Mapping[str, Any],
    *,
    engine: Optional[Engine] = None,
    gather: Optional[Gather] = None,
    **options: Any,
) -> Member:
    """Become a target that wants these tensors, or the parts of them that are here.

    state_dict  as for publish(). Only names, shapes and types count, so tensors on torch's device
                "meta" will do, with device=. Its memory is written by load() alone: versions come
                into two buffers, which View.tensors shows. The keyword arguments are those of
                join()."""
    return Member(None, state_dict, engine=engine, gather=gather, **options)


def join(
    publish: Optional[Mapping[str, Any]] = None,
    receive: Optional[Mapping[str, Any]] = None,
    *,
    engine: Optional[Engine] = None,
    gather: Optional[Gather] = None,
    **options: Any,
) -> Member:
    """Become a source, a target, or both. Error EINVAL: two members contradict each other, with
    both sides in one line; ENOENT: a target wants what no source holds.

    engine    whose name others know it by, each member another one. None: one that listens on
              loopback and is closed with the member
    gather    gives this member's part (plain data, as json takes it) to all others, and returns the
              parts of all, in any order. None: torch.distributed.all_gather_object() of the
              default group. It may wait
    name      tells several sets of weights of one engine apart, "weights"
    host      which members are on one host, so that bytes enter it once: any text. None: the kernel
              that they run on
    device    "cpu" or "cuda:0": where the buffers of a target are. None: where its tensors are
    topology  {host: {"nics": 8, "nic_GBps": 48, ...}}: rates for the plan, the same for all members
              (docs/weights.md)
    chunk, piece  bytes, the same for all members: parts of tensors that may take different ways,
              and pieces that are handed on; 0: 64 MiB and 4 MiB

    Blocks while gather waits, the plan is computed and memory is registered, not on other members:
    a signal is handled after the latter two."""
    return Member(publish, receive, engine=engine, gather=gather, **options)


def plan_files(
    parts: Iterable[Part], topology: Optional[Mapping[str, Any]] = None
) -> Tuple[Dict[str, Any], Dict[str, Any]]:
    """The layouts of sources and targets for `wherry plan`, to be written by json.dump(), from
    Member.parts. Error EINVAL: a tensor's name cannot be in such a file."""
    sources, targets = both(parts, topology or {})
    return sources.json(), targets.json()


# ---- frameworks


def _torch_gather() -> Gather:
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        raise invalid("give gather=: torch.distributed is not initialised, by which members would "
                      "tell each other what they have")  # fmt: skip

    def gather(part: Part) -> List[Part]:
        found: List[Any] = [None] * distributed.get_world_size()
        distributed.all_gather_object(found, part)
        return found

    return gather


def _places(held: List[Piece], wanted: List[Piece], device: Any) -> str:
    """Where this member's memory is: "cpu" or "cuda:0". A target's is in one place."""
    if not wanted:
        return device_of(held[0].local)
    places = {str(device)} if device is not None else {device_of(p.local) for p in wanted}
    place = places.pop()
    if places or not (place == "cpu" or place.startswith("cuda")):
        raise invalid(f"the tensors are on {', '.join(sorted([place, *places]))}: give device=, "
                      f"one place for the buffers")  # fmt: skip
    if place.startswith("cuda") and not all(is_torch(piece.local) for piece in wanted):
        raise invalid("buffers on a GPU are for torch tensors")
    return "cuda:0" if place == "cuda" else place


class _Buffer:
    """Memory of one version: on a GPU of torch, else memory that other processes can map."""

    def __init__(self, engine: Engine, pieces: List[Piece], size: int, place: str) -> None:
        if place == "cpu":
            self.memory: Any = engine.allocate(size)
            self.address = ctypes.addressof(self.memory)
        else:
            torch: Any = sys.modules["torch"]
            self.memory = torch.empty(size, dtype=torch.uint8, device=place)
            torch.cuda.current_stream(place).synchronize()  # the memory may have been in use
            self.address = int(self.memory.data_ptr())
        self.flat: Any = None  # of torch

    def _tensor(self, piece: Piece, offset: int) -> Any:
        part = slice(offset, offset + piece.bytes)
        if is_torch(piece.local):
            torch: Any = sys.modules["torch"]
            if self.flat is None:
                on_gpu = is_torch(self.memory)
                self.flat = (
                    self.memory if on_gpu else torch.frombuffer(self.memory, dtype=torch.uint8)
                )
            return self.flat[part].view(piece.local.dtype).reshape(piece.size)
        numpy: Any = sys.modules.get("numpy")
        if numpy is not None and isinstance(piece.local, numpy.ndarray):
            flat = numpy.frombuffer(self.memory, dtype=numpy.uint8)[part]
            return flat.view(piece.local.dtype).reshape(piece.size)
        return memoryview(self.memory).cast("B")[part]

    def tensors(self, pieces: List[Piece]) -> Dict[str, Any]:
        offsets = [one[2] for one in as_target(pieces)["slices"]]
        return {piece.name: self._tensor(piece, at) for piece, at in zip(pieces, offsets)}


def _empty_ones(state_dict: Mapping[str, Any]) -> Dict[str, Any]:
    """Tensors without elements: there is nothing to receive of them."""
    return {
        name: value
        for name, value in state_dict.items()
        if 0 in tuple(getattr(value, "shape", ())) and not isinstance(value, Slice)
    }


def _assign(piece: Piece, value: Any) -> None:
    if is_torch(piece.local):
        piece.keeper.copy_(value)  # detached: no gradient sees it
    elif hasattr(piece.local, "__array_interface__"):
        piece.local[...] = value
    else:
        memoryview(piece.local).cast("B")[:] = value


def _synchronize(pieces: List[Piece]) -> None:
    """Wait for torch's current streams of the GPUs that the pieces are on."""
    torch = sys.modules.get("torch")
    for device in {device_of(piece.local) for piece in pieces if is_torch(piece.local)}:
        if torch is not None and device.startswith("cuda"):
            torch.cuda.current_stream(device).synchronize()
