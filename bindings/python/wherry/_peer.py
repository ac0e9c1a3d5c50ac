# SPDX-License-Identifier: Apache-2.0
"""Peers, and plans of transfers with them."""
from __future__ import annotations

import errno
import os
import threading
import time
from ctypes import byref, c_size_t, c_uint64, c_void_p, sizeof
from typing import Any, Callable, List, NamedTuple, Optional, Sequence, Tuple, Union

from . import _native as native
from ._engine import (
    CLOSED,
    Core,
    Engine,
    Guard,
    Held,
    Region,
    RegionSlice,
    Remote,
    in_slices,
    lookup,
)
from ._errors import Error, check, invalid, make, text, whole
from ._memory import Place, indices, layout, place_of
from ._native import lib
from ._transfer import Pool, Transfer, explanation, native_stream

_PRIORITIES = {
    "bulk": native.CONSTANTS["WH_PRIORITY_BULK"],
    "latency": native.CONSTANTS["WH_PRIORITY_LATENCY"],
}
_ANSWER = -1.0
_PEER_CLOSED = "the peer is closed"
_submit = lib.wh_batch_submit

Remotes = Union[str, Remote, RegionSlice]
Notify = Union[int, Tuple[int, bytes]]


class Blocks(NamedTuple):
    """Very many pieces of one length. Piece i comes from block source[i] and goes to block
    target[i]; block n begins n strides after the beginning of its region (or layer).

    source, target  integers of 32 or 64 bits: numpy, torch, array, list, range; None: 0, 1, 2 ...
    length          bytes of a block
    source_stride, target_stride  bytes from one block to the next; 0: length
    """

    source: Any
    target: Any
    length: int
    source_stride: int = 0
    target_stride: int = 0


class _Side(NamedTuple):
    """One side of a transfer: `rows` times `row` bytes, `stride` bytes apart."""

    handle: int  # a local region, or the id of a remote one; 0: no bytes, in no region
    offset: int
    length: int
    rows: int
    row: int
    stride: int


class Peer:
    """Another engine. Its transfers and plans use `remote`, the name of a region of the peer, what
    find() returned, or a part of that, and `into` or `data`, a Region, a part of it, or a tensor
    that lies in one."""

    def __init__(self, engine: Engine, core: Core, handle: int, url: str) -> None:
        self.engine = engine
        self.url = url
        self._core = core
        self._handle = handle
        self._idle = Pool()  # batches with the default options
        self.closed = False  # no call begins any more
        self.inside: List[None] = []  # as many as there are calls that use the handle
        self.calls = Guard(self, errno.EINVAL, _PEER_CLOSED)

    def _use(self) -> int:
        self._core.use()
        if self.closed:
            raise invalid(_PEER_CLOSED)
        return self._handle

    def find(self, name: str, timeout: float = _ANSWER) -> Remote:
        """The peer's region of that name. Waits up to `timeout` s for it to be registered; by
        default for the peer's answer only. Error ENOENT: there is none."""
        wanted, out = text(name, "name"), native.RemoteInfo()

        def find(limit: int) -> int:
            return int(lib.wh_peer_find(self._use(), wanted, limit, byref(out)))

        with self._core.calls, self.calls:
            if timeout == _ANSWER:
                check(self._answered(find, None))
            else:
                check(in_slices(find, timeout, (errno.ENOENT, errno.ECONNRESET), 1.0))
        return Remote(out)

    def _answered(self, call: Callable[[int], int], timeout: Optional[float]) -> int:
        """call(ns), which waits until a region is registered, but for the peer's answer only, with
        signals handled meanwhile. Inside a guard."""
        status = call(1)  # asks the peer, and keeps what it answers later
        if status != -errno.ENOENT:
            return status
        cursor, one, count = c_uint64(), native.RemoteInfo(), c_size_t(1)

        def answer(limit: int) -> int:
            cursor.value, count.value = 0, 1
            return int(
                lib.wh_peer_list(self._use(), byref(cursor), byref(one), byref(count), limit)
            )

        # The answers to a peer's questions come in their order.
        return in_slices(answer, timeout, (errno.ETIMEDOUT,), 1.0) or call(1)

    def unpack(self, key: bytes, timeout: Optional[float] = 5.0) -> Remote:
        """The peer's region of a key that Region.key() made there."""
        out = native.RemoteInfo()

        def unpack(limit: int) -> int:
            return int(lib.wh_peer_unpack_key(self._use(), key, len(key), limit, byref(out)))

        with self._core.calls, self.calls:
            check(self._answered(unpack, timeout))
        return Remote(out)

    def regions(self, timeout: Optional[float] = 5.0) -> List[Remote]:
        """The regions that the peer lists. Waits up to `timeout` s for each of its answers."""
        found: List[Remote] = []
        cursor, out, count = c_uint64(0), (native.RemoteInfo * 256)(), c_size_t()

        def ask(limit: int) -> int:
            count.value = 256
            return int(lib.wh_peer_list(self._use(), byref(cursor), out, byref(count), limit))

        with self._core.calls, self.calls:
            while True:
                check(in_slices(ask, timeout, (errno.ETIMEDOUT,), 1.0))
                found += [Remote(info) for info in out[: count.value]]
                if not cursor.value:
                    return found

    def read(
        self,
        remote: Any,
        into: Any,
        *,
        blocks: Any = None,
        layers: Any = None,
        priority: str = "bulk",
        require: Optional[str] = None,
        stream: Any = None,
        notify: Optional[Notify] = None,
    ) -> Transfer:
        """Start to read from the peer's memory into ours.

        blocks    Blocks, or a tuple (source, target, bytes of a block): one call whatever their
                  number
        layers    with blocks: a number of layers into which both sides are divided, or pairs of
                  offsets in bytes (source, target) where each layer begins; `remote` and `into` may
                  be lists of the same length instead, one region for each layer
        priority  "bulk" or "latency"
        require   the only transport to use: "shm", "cuda", "rdma", "tcp"
        stream    start after the work that is on this CUDA stream (torch, cupy, or its address)
        notify    a tag, or (tag, bytes): the peer gets it after the last byte
        """
        return self._start(
            native.READ, remote, into, blocks, layers, priority, require, stream, notify
        )

    def write(
        self,
        remote: Any,
        data: Any,
        *,
        blocks: Any = None,
        layers: Any = None,
        priority: str = "bulk",
        require: Optional[str] = None,
        stream: Any = None,
        notify: Optional[Notify] = None,
    ) -> Transfer:
        """Start to write our memory into the peer's; the arguments are as for read()."""
        return self._start(
            native.WRITE, remote, data, blocks, layers, priority, require, stream, notify
        )

    def notify(self, tag: int, data: bytes = b"") -> Transfer:
        """Send a notification alone: a number of 64 bits and up to 64 KiB."""
        with self._core.calls, self.calls:
            return self._submit(self._batch("bulk", None), self._idle, None, (tag, data))

    def prepare_read(
        self,
        remote: Any,
        into: Any,
        *,
        blocks: Any = None,
        layers: Any = None,
        priority: str = "bulk",
        require: Optional[str] = None,
        warm: bool = True,
    ) -> "Plan":
        """A read that can be submitted many times; the arguments are as for read(). It is checked
        and converted here. warm: also choose the routes and open the connections, which waits for
        them, up to 30 s."""
        return Plan(self, native.READ, remote, into, blocks, layers, priority, require, warm)

    def prepare_write(
        self,
        remote: Any,
        data: Any,
        *,
        blocks: Any = None,
        layers: Any = None,
        priority: str = "bulk",
        require: Optional[str] = None,
        warm: bool = True,
    ) -> "Plan":
        """A write that can be submitted many times; as prepare_read()."""
        return Plan(self, native.WRITE, remote, data, blocks, layers, priority, require, warm)

    @property
    def state(self) -> str:
        """"connected", "lost", "stale" or "unreachable"."""
        state: bytes = lib.wh_peer_state_name(self._info().state)
        return state.decode()

    def _info(self) -> native.PeerInfo:
        info = native.PeerInfo(size=sizeof(native.PeerInfo))
        with self._core.calls, self.calls:
            check(lib.wh_peer_info(self._use(), byref(info)))
        return info

    def close(self) -> None:
        """Close the connections. Calls of other threads end with an error. Error EBUSY: transfers
        or plans of this peer exist."""
        core = self._core
        core.here()
        with core.lock:
            if self.closed or core.closed:
                return
            self.closed = True
        try:
            with core.calls:
                ends = time.monotonic() + 10
                while self.inside:
                    if time.monotonic() > ends:
                        raise make(-errno.EBUSY, "Peer.close: other threads use the peer")
                    time.sleep(0.001)
                self._idle.empty(core)
                core.reap(len(core.orphans))
                check(lib.wh_peer_close(self._handle))
                core.peers.pop(self._handle, None)
        except BaseException:
            self.closed = False
            raise

    def __enter__(self) -> "Peer":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        try:
            self.close()
        except Error:
            if kind is None:
                raise
            # What has ended the block says more. The peer is closed with the engine.

    def __repr__(self) -> str:
        if self.closed or self._core.closed:
            return f"<wherry.Peer {self.url!r}, closed>"
        info = self._info()
        return f"<wherry.Peer {info.name.decode()!r} at {info.address.decode()}, {self.state}>"

    # ---- starting

    def _batch(self, priority: str, require: Optional[str]) -> int:
        """An empty batch."""
        handle = self._use()
        if priority not in _PRIORITIES:
            raise invalid(f'priority is "bulk" or "latency", not {priority!r}')
        if priority == "bulk" and require is None:
            try:
                batch = self._idle.pop()
            except IndexError:
                pass
            else:
                check(lib.wh_batch_clear(batch))
                return batch
        return self._core.new_batch(handle, _PRIORITIES[priority], require)

    def _start(
        self,
        op: int,
        remote: Any,
        local: Any,
        blocks: Any,
        layers: Any,
        priority: str,
        require: Optional[str],
        stream: Any,
        notify: Optional[Notify],
    ) -> Transfer:
        core = self._core
        with core.calls, self.calls:
            items, native_blocks = self._describe(op, remote, local, blocks, layers)
            try:
                batch = self._batch(priority, require)
                idle = self._idle if priority == "bulk" and require is None else None
                _fill(core, batch, items, native_blocks)
            finally:
                if native_blocks:  # the batch keeps what it needs
                    lib.wh_blocks_free(native_blocks)
            return self._submit(batch, idle, stream, notify)

    def _submit(
        self, batch: int, idle: Optional[Pool], stream: Any, notify: Optional[Notify]
    ) -> Transfer:
        """Inside a guard."""
        core = self._core
        try:
            if notify is not None:
                tag, data = _notification(notify)
                check(lib.wh_batch_notify(batch, tag, data, len(data)))
            if stream is None:
                status = lib.wh_batch_submit(batch)
            else:
                status = lib.wh_batch_submit_after(batch, byref(native_stream(stream)))
            if status:
                check(status)
        except BaseException:
            core.free_batch(batch)
            raise
        return Transfer(core, batch, self, idle)

    # ---- what to move

    def _remote(self, remote: Any, op: int) -> _Side:
        if isinstance(remote, str):
            remote = self.find(remote)
        offset, length = 0, None
        if isinstance(remote, RegionSlice):
            remote, offset, length = remote
        if not isinstance(remote, Remote):
            raise TypeError(
                f"remote is the name of a region of the peer, or what find() returns, not "
                f"{type(remote).__name__}"
            )
        offset = whole(offset, "remote")
        length = remote.length if length is None else whole(length, "remote")
        held = self._held(remote)
        if held is not None:  # a region's rights bind peers only
            held.check("remote", op == native.WRITE)
        return _Side(remote.id, offset, length, 1, length, length)

    def _local(self, local: Any, op: int) -> _Side:
        offset, length = 0, None
        if isinstance(local, RegionSlice):
            local, offset, length = local
        if isinstance(local, Region):
            if local._core is not self._core:
                raise invalid("the region belongs to another engine")
            length = local.length if length is None else length
            handle = local._use()
            held = self._core.regions.get(handle)
            if held is not None:
                held.check(_argument(op), op == native.READ)
            offset, length = whole(offset, _argument(op)), whole(length, _argument(op))
            return _Side(handle, offset, length, 1, length, length)
        about = layout(local)
        if not about.length:
            return _Side(0, 0, 0, 1, 0, 0)  # in no region
        handle, offset = lookup(self._core, about)
        held = self._core.regions.get(handle)
        if op == native.READ and held is not None:
            held.check_writable("into", about.readonly)
        return _Side(handle, offset, about.length, about.rows, about.row, about.stride)

    def _held(self, remote: Remote) -> Optional[Held]:
        """The memory of a region, if it is one of this engine by its peer "self"."""
        if self.url != "self":
            return None
        return self._core.regions.get(self._core.own.get(remote.id, 0))

    def _place(self, thing: Any) -> Optional[Place]:
        """Where either side of a transfer has its bytes, if these are here and may move."""
        if isinstance(thing, RegionSlice):
            thing = thing.region
        if isinstance(thing, Remote):
            held = self._held(thing)
        elif isinstance(thing, Region):
            held = self._core.regions.get(thing._handle)
        else:
            return place_of(thing)
        return held.place if held is not None else None

    def _describe(
        self, op: int, remote: Any, local: Any, blocks: Any, layers: Any
    ) -> Tuple[Any, Optional[int]]:
        """An array of transfers, or native blocks."""
        several = isinstance(remote, (list,)) or isinstance(local, (list,))
        ours = local if isinstance(local, list) else [local]
        theirs = remote if isinstance(remote, list) else [remote]
        locals_ = [self._local(one, op) for one in ours]
        remotes = [self._remote(one, op) for one in theirs]
        if several and len(locals_) != len(remotes):
            raise invalid(f"{len(remotes)} remote regions for {len(locals_)} local ones")
        if blocks is not None:
            return None, self._blocks(op, remotes, locals_, Blocks(*blocks), layers)
        if layers is not None:
            raise invalid("layers need blocks")
        if len(locals_) == 1 and locals_[0].rows > 1:
            side = locals_[0]
            if op == native.READ:
                rows = Blocks(None, None, side.row, target_stride=side.stride)
            else:
                rows = Blocks(None, None, side.row, source_stride=side.stride)
            self._fits(remotes[0].length, side.rows * side.row)
            return None, self._blocks(op, remotes, locals_, rows, None, side.rows)
        items = (native.TransferItem * len(locals_))()
        for item, ours, theirs in zip(items, locals_, remotes):
            if ours.rows > 1:
                raise invalid("arrays with gaps cannot be in a list")
            self._fits(theirs.length, ours.length)
            item.local, item.local_offset = ours.handle or None, ours.offset
            item.remote, item.remote_offset = theirs.handle, theirs.offset
            item.length, item.op = ours.length, op
        return items, None

    @staticmethod
    def _fits(remote: int, local: int) -> None:
        if remote < local:
            raise make(
                -errno.ERANGE,
                f"{local} B of ours do not fit {remote} B of the peer: give a part of the region",
            )

    def _blocks(
        self,
        op: int,
        remotes: Sequence[_Side],
        locals_: Sequence[_Side],
        blocks: Blocks,
        layers: Any,
        count: int = 0,
    ) -> int:
        reading = op == native.READ
        blocks = Blocks(*blocks[:2], *map(whole, blocks[2:], Blocks._fields[2:]))
        if any(side.rows > 1 for side in locals_) and not count:
            raise invalid("blocks of an array with gaps: give the region that it lies in")
        source = None if blocks.source is None else indices(blocks.source)
        target = None if blocks.target is None else indices(blocks.target)
        ours, theirs = (target, source) if reading else (source, target)
        if source is not None and target is not None and source.length != target.length:
            raise invalid(f"{source.length} source blocks for {target.length} target blocks")
        given = source or target
        if given is not None:
            count = given.length
        bases = self._bases(reading, remotes, locals_, layers)
        if not len(bases):  # no layers, or no regions
            count, bases = 0, (native.Base * 1)()
        elif given is None and not count:
            step = max(blocks.length, blocks.source_stride, blocks.target_stride)
            room = min(locals_[0].length, remotes[0].length)
            count = room // max(step, 1)
            count //= layers if isinstance(layers, int) else 1
            if room and not count:
                raise invalid(f"blocks: one of {blocks.length} B does not fit {room} B")
        desc = native.BlocksDesc(
            size=sizeof(native.BlocksDesc),
            op=op,
            block_length=blocks.length,
            count=count,
            bases=bases,
            base_count=len(bases),
            local_stride=blocks.target_stride if reading else blocks.source_stride,
            remote_stride=blocks.source_stride if reading else blocks.target_stride,
            local_indices=ours.address if ours else None,
            remote_indices=theirs.address if theirs else None,
        )
        out = c_void_p()
        check(lib.wh_blocks_new(self._use(), byref(desc), byref(out)))
        return out.value or 0

    @staticmethod
    def _bases(
        reading: bool, remotes: Sequence[_Side], locals_: Sequence[_Side], layers: Any
    ) -> Any:
        pairs = [(ours, theirs, 0, 0) for ours, theirs in zip(locals_, remotes)]
        if layers is not None:
            if len(pairs) != 1:
                raise invalid("layers divide one region, not a list of them")
            ours, theirs = locals_[0], remotes[0]
            if isinstance(layers, int):
                if isinstance(layers, bool) or layers < 1 or ours.length % layers or theirs.length % layers:
                    raise invalid(
                        f"{theirs.length} and {ours.length} B cannot be divided into {layers} "
                        f"layers"
                    )
                starts = [
                    (layer * (ours.length // layers), layer * (theirs.length // layers))
                    for layer in range(layers)
                ]
            else:
                starts = [(two, one) if reading else (one, two) for one, two in layers]
            pairs = [(ours, theirs, here, there) for here, there in starts]
        bases = (native.Base * len(pairs))()
        for base, (ours, theirs, here, there) in zip(bases, pairs):
            here, there = whole(ours.offset + here, "layers"), whole(theirs.offset + there, "layers")
            base.local, base.local_offset = ours.handle, here
            base.remote, base.remote_offset = theirs.handle, there
        return bases


def _notification(notify: Notify) -> Tuple[int, bytes]:
    """The tag and the bytes. bytes(5) would be five of them, and b"ab" a tag and a length."""
    if isinstance(notify, tuple) and len(notify) == 2:
        tag, data = notify
    elif hasattr(notify, "__index__"):
        tag, data = notify, b""
    else:
        raise TypeError(f"notify is a tag or (tag, bytes), not {type(notify).__name__}")
    try:
        data = bytes(memoryview(data))
    except TypeError:
        raise TypeError(f"data of a notification is bytes, not {type(data).__name__}") from None
    return whole(tag, "tag"), data


def _argument(op: int) -> str:
    """What the local memory is called."""
    return "into" if op == native.READ else "data"


def _fill(core: Core, batch: int, items: Any, blocks: Optional[int]) -> None:
    """Add an array of transfers or native blocks; on errors free the batch."""
    try:
        if items is not None:
            check(lib.wh_batch_add(batch, items, len(items)))
        else:
            check(lib.wh_batch_add_blocks(batch, blocks))
    except BaseException:
        core.free_batch(batch)
        raise


class Plan:
    """A prepared transfer. Each submit() starts it once more; several may run at a time."""

    def __init__(
        self,
        peer: Peer,
        op: int,
        remote: Any,
        local: Any,
        blocks: Any,
        layers: Any,
        priority: str,
        require: Optional[str],
        warm: bool,
    ) -> None:
        self.peer = peer
        self._core = peer._core
        self._op = "read" if op == native.READ else "write"
        self._options = (_PRIORITIES.get(priority, 0), require)
        self._idle = Pool()
        self._lock = threading.Lock()  # of closing, and of using self._blocks
        self._blocks: Optional[int] = None
        remotes = remote if isinstance(remote, list) else [remote]
        with self._core.calls, peer.calls:
            found = [peer.find(one) if isinstance(one, str) else one for one in remotes]
            remote = found if isinstance(remote, list) else found[0]
            ours = local if isinstance(local, list) else [local]
            self._items, self._blocks = peer._describe(op, remote, local, blocks, layers)
            # Before anything is submitted again.
            self._places = [
                (place, argument)
                for argument, things in ((_argument(op), ours), ("remote", found))
                for place in map(peer._place, things)
                if place is not None
            ]
            if self._blocks:
                self._core.blocks[self._blocks] = None
            if warm:
                self._warm(op, found, ours)

    def _warm(self, op: int, remotes: Sequence[Any], locals_: Sequence[Any]) -> None:
        peer = self.peer
        theirs = sorted({peer._remote(one, op).handle for one in remotes})
        ours = sorted({peer._local(one, op).handle for one in locals_} - {0})
        if not theirs or not ours:  # there is nothing to move
            return
        handles, ids = (c_void_p * len(ours))(*ours), (c_uint64 * len(theirs))(*theirs)

        def prepare(limit: int) -> int:
            return int(
                lib.wh_peer_prepare(peer._use(), handles, len(ours), ids, len(theirs), limit)
            )

        # What one call has begun the next one goes on with.
        check(in_slices(prepare, 30.0, (errno.ETIMEDOUT,), 1.0))

    def _new(self) -> int:
        """A filled batch. Inside a guard."""
        self._core.here()
        with self._lock, self.peer.calls:
            if not self._idle.open:
                raise invalid("the plan is closed")
            batch = self._core.new_batch(self.peer._use(), *self._options)
            _fill(self._core, batch, self._items, self._blocks)
        return batch

    def submit(self, stream: Any = None, notify: Optional[Notify] = None) -> Transfer:
        """Start it: after the work that is on the CUDA stream now, if one is given. notify: a tag,
        or (tag, bytes), which the peer gets after the last byte."""
        core, idle = self._core, self._idle
        inside = core.inside
        inside.append(None)  # `with core.calls`, in half the time
        try:
            if core.closed:
                raise invalid(CLOSED)
            for place, argument in self._places:
                place.check(argument)
            try:
                batch = idle.pop()
            except IndexError:
                batch = self._new()
            if stream is not None or notify is not None:
                # The batch keeps its notification, so it is not used again.
                again = idle if notify is None else None
                return self.peer._submit(batch, again, stream, notify)
            status = _submit(batch)
            if status:
                core.free_batch(batch)
                check(status)
            return Transfer(core, batch, self.peer, idle)
        finally:
            inside.pop()

    def explain(self) -> str:
        """The routes that it would take, or took last, as text for people."""
        with self._core.calls:
            batch = self._new()
            try:
                return explanation(batch)
            finally:
                self._idle.put(self._core, batch)

    def close(self) -> None:
        """Free it. Submissions that run go on."""
        core = self._core
        if core.closed or os.getpid() != core.pid:
            return
        try:
            with core.calls:
                with self._lock:
                    self._idle.open = False
                    blocks, self._blocks = self._blocks, None
                self._idle.empty(core)
                if blocks:
                    core.blocks.pop(blocks, None)
                    lib.wh_blocks_free(blocks)
        except Error:  # the engine has just been closed
            pass

    def __enter__(self) -> "Plan":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_lock", None) is not None:
            self.close()

    def __repr__(self) -> str:
        what = f"{len(self._items)} ranges" if self._items is not None else "blocks"
        if not self._idle.open:
            what += ", closed"
        return f"<wherry.Plan {self._op}, {what}, {self.peer!r}>"
