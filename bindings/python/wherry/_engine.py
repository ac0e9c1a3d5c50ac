# SPDX-License-Identifier: Apache-2.0
"""Engines, regions, peers and notifications."""
from __future__ import annotations

import asyncio
import collections
import contextlib
import ctypes
import errno
import itertools
import logging
import math
import operator
import os
import threading
import time
import weakref
from ctypes import POINTER, byref, c_char_p, c_size_t, c_uint64, c_void_p, sizeof
from typing import (
    TYPE_CHECKING,
    Any,
    AsyncIterator,
    Callable,
    Dict,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Tuple,
    Union,
)

from . import _native as native
from ._errors import Timeout, check, invalid, make, text, whole
from ._memory import Export, Layout, layout, pins_of, place_of, refuses_writes
from ._native import lib

if TYPE_CHECKING:
    from ._peer import Peer

# How long one wait in the library lasts at most, in s: Python sees signals between two of them.
SLICE = 0.05
_ACCESS = {
    "": 0,
    "r": native.CONSTANTS["WH_ACCESS_READ"],
    "w": native.CONSTANTS["WH_ACCESS_WRITE"],
    "rw": native.CONSTANTS["WH_ACCESS_READ"] | native.CONSTANTS["WH_ACCESS_WRITE"],
}
_KINDS = {
    name[len("WH_MEMORY_"):].lower(): number
    for name, number in native.CONSTANTS.items()
    if name.startswith("WH_MEMORY_")
}
_KIND_NAMES = {number: name for name, number in _KINDS.items()}
_NOT_ALLOCATED = ("device", "vmm", "pool", "file")
CLOSED = "the engine is closed"
_LEVELS = {1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}


class _LogRecord(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("level", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("area", c_char_p),
        ("text", c_char_p),
    ]


_LogFunction = ctypes.CFUNCTYPE(None, c_void_p, POINTER(_LogRecord))


def nanoseconds(timeout: Optional[float]) -> int:
    """Seconds, or None for no limit, in ns."""
    if timeout is None or timeout == math.inf:
        return native.FOREVER
    if timeout < 0:
        raise invalid("a timeout is not negative")
    return min(int(timeout * 1e9), native.FOREVER)


def in_slices(
    call: Callable[[int], int],
    timeout: Optional[float],
    again: Tuple[int, ...],
    longest: float = SLICE,
) -> int:
    """Call call(ns) until it returns something other than the negative of one of `again`, or the
    time is over. Signals are handled between the calls. Each call may take twice as long as the one
    before, up to `longest` s: those that ask a peer begin anew."""
    if timeout is not None and timeout <= SLICE:
        return call(nanoseconds(timeout))
    deadline = None if timeout is None else time.monotonic() + timeout
    part = SLICE
    while True:
        left = part if deadline is None else min(part, max(0.0, deadline - time.monotonic()))
        part = min(2 * part, longest)
        status = call(int(left * 1e9))
        if -status not in again or (deadline is not None and time.monotonic() >= deadline):
            return status


def start(call: Callable[[], None]) -> bool:
    """Run it in a thread of its own. False: there can be none, as when the interpreter exits."""
    try:
        threading.Thread(target=call, name="wherry apart", daemon=True).start()
    except RuntimeError:
        return False
    return True


def apart(call: Callable[[], None], undo: Optional[Callable[[], None]] = None) -> None:
    """Run what cannot be interrupted in a thread, if this one handles signals. After Ctrl-C it goes
    on there; then undo() follows if it succeeds."""
    if threading.current_thread() is not threading.main_thread():
        call()
        return
    lock, ended, failed = threading.Lock(), threading.Event(), []
    left = False  # by the caller

    def run() -> None:
        try:
            call()
        except BaseException as error:
            failed.append(error)
        with lock:
            ended.set()
        if left and undo is not None and not failed:
            undo()

    if not start(run):
        call()
        return
    try:
        while not ended.wait(SLICE):
            pass
    except BaseException:
        with lock:
            left = not ended.is_set()
        if not left and undo is not None and not failed:
            undo()
        raise
    if failed:
        raise failed[0]


class Guard:
    """`with guard:` a call uses the native handles of `owner`, whose close() waits for its end.
    Raises an error of that number and text if the owner is closed."""

    __slots__ = ("owner", "number", "text")

    def __init__(self, owner: Any, number: int, text: str = CLOSED) -> None:
        self.owner = owner  # its members: closed, and inside, a list of as many as there are calls
        self.number = number
        self.text = text

    def __enter__(self) -> None:
        owner = self.owner
        # Before looking: close() sets `closed` and looks here then.
        owner.inside.append(None)
        if owner.closed:
            owner.inside.pop()
            raise make(-self.number, self.text)

    def __exit__(self, *_: Any) -> None:
        self.owner.inside.pop()


class Core:
    """The native handles of one engine, in one place, so that they can be given back in the right
    order whatever the program has forgotten. It lives until the engine is closed, at the latest
    when the interpreter exits, and holds every registered object."""

    def __init__(self, handle: int, log: Any) -> None:
        self.handle = handle
        self.pid = os.getpid()
        self.closed = False  # no call begins any more
        self.closing = False
        self.log = log  # the C callback, which must outlive the engine
        self.lock = threading.RLock()  # a signal's handler may come back
        self.batches: Dict[int, int] = {}  # native batch: its user number
        self.blocks: Dict[int, None] = {}
        self.peers: Dict[int, None] = {}
        self.regions: Dict[int, Optional[Held]] = {}  # native region: its memory; None: a file
        self.own: Dict[int, int] = {}  # the id of a region: the native region
        # Native weights: what releases their views and closes them.
        self.weights: Dict[int, Callable[[], int]] = {}
        self.memories: Dict[int, None] = {}  # addresses of wh_memory_alloc()
        self.orphans: "collections.deque[int]" = collections.deque()
        # As many as there are calls in progress: close() lets them end. Adding and taking away are
        # atomic, without the GIL, too.
        self.inside: List[None] = []
        self.calls = Guard(self, errno.EINVAL)
        self.transfers = Guard(self, errno.ECANCELED)
        self.numbers = itertools.count(1)
        self.watched: Dict[int, List[Tuple[int, Callable[[], None]]]] = {}
        self.opening: Dict[int, Callable[[], None]] = {}  # user numbers of peers
        self.loops: Dict[Any, List[int]] = {}  # event loop: [its descriptor, its waiters]
        self.thread: Optional[threading.Thread] = None
        out = c_void_p()
        check(lib.wh_queue_new(handle, byref(out)))
        self.queue = out.value or 0
        check(lib.wh_queue_new(handle, byref(out)))
        self.opened = out.value or 0  # completions of connecting

    def here(self) -> None:
        """Before anything that takes a lock or waits for threads: in a forked child there are none
        that would let it go on."""
        if os.getpid() != self.pid:
            raise make(-errno.EPERM, "the process has forked since it opened the engine")

    # ---- batches

    def use(self) -> int:
        if self.closed:
            raise invalid(CLOSED)
        return self.handle

    def number(self) -> int:
        self.here()
        with self.lock:  # not atomic without the GIL
            return next(self.numbers)

    def new_batch(self, peer: int, priority: int, require: Optional[str]) -> int:
        self.reap()
        user = self.number()
        options = native.BatchOptions(
            size=sizeof(native.BatchOptions),
            queue=self.queue,
            user=user,
            priority=priority,
            require=text(require, "require") if require else None,
        )
        out = c_void_p()
        check(lib.wh_batch_new(peer, byref(options), byref(out)))
        batch = out.value or 0
        self.batches[batch] = user
        return batch

    def free_batch(self, batch: int) -> None:
        """Free it, or later if it is running."""
        self.inside.append(None)
        try:
            if self.closed or os.getpid() != self.pid:
                return
            # Its address may be given to a new batch as soon as it is free.
            user = self.batches.pop(batch, 0)
            if lib.wh_batch_free(batch):
                self.batches[batch] = user
                self.orphans.append(batch)
        finally:
            self.inside.pop()

    def reap(self, most: int = 4) -> None:
        """Free some batches that nobody holds any more and that have ended."""
        for _ in range(min(len(self.orphans), most)):
            try:
                self.free_batch(self.orphans.popleft())
            except IndexError:
                return

    # ---- completions for those that do not wait in a thread

    def watch(self, batch: int, call: Callable[[], None]) -> None:
        """Call `call` once when the batch has completed, maybe before this returns."""
        self.here()
        with self.transfers:
            user = self.batches[batch]
            with self.lock:
                self.watched.setdefault(user, []).append((batch, call))
            calls = self._ended(user)
        call_all(calls)

    def _ended(self, user: int) -> List[Callable[[], None]]:
        """What is to be called if the batch has completed. Inside a guard."""
        with self.lock:
            entries = self.watched.get(user)
            # An earlier submission of the same batch may have been meant.
            if not entries or lib.wh_batch_test(entries[0][0]) == -errno.EAGAIN:
                return []
            del self.watched[user]
        return [call for _, call in entries]

    def _take(self, timeout: int) -> Tuple[List[Callable[[], None]], bool]:
        """What is to be called, and whether there may be more. Inside a guard."""
        out = (native.Completion * 64)()
        count = lib.wh_queue_take(self.queue, out, 64, timeout)
        calls: List[Callable[[], None]] = []
        for one in out[: max(count, 0)]:
            if one.peer:
                opened = self.opening.pop(one.user, None)
                calls += [opened] if opened else []
            else:
                calls += self._ended(one.user)
        return calls, count == 64

    def drain(self, timeout: int = 0) -> None:
        """Call those who watch batches that have completed. Waits up to `timeout` ns for one."""
        more = True
        while more and not self.closed:
            try:
                with self.calls:
                    calls, more = self._take(timeout)
            except OSError:  # it has just been closed
                return
            call_all(calls)
            timeout = 0

    def loop_enter(self, loop: Any) -> None:
        entry = self.loops.get(loop)
        if entry is None:
            with self.transfers:
                # A descriptor of its own can be closed after the queue, too.
                entry = self.loops[loop] = [os.dup(lib.wh_queue_fd(self.queue)), 0]
            loop.add_reader(entry[0], self.drain)
        entry[1] += 1

    def loop_leave(self, loop: Any) -> None:
        entry = self.loops[loop]
        entry[1] -= 1
        if not entry[1]:
            del self.loops[loop]
            loop.remove_reader(entry[0])
            os.close(entry[0])

    def wait_in(self, loop: Any) -> Tuple["asyncio.Future[None]", Callable[[], None]]:
        """A future of the running loop, and what completes it, from any thread."""
        ready = loop.create_future()

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        def complete() -> None:
            try:
                inside = asyncio.get_running_loop() is loop
            except RuntimeError:
                inside = False
            if inside:
                wake()
                return
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(wake)

        return ready, complete

    def abandon(self, peer: int) -> None:
        """Close a peer that was not reached. Waiting for that would last as long as its name is
        looked up. If the engine is being closed, that closes the peer."""
        self.inside.append(None)
        if self.closed:
            self.inside.pop()
            return
        del self.peers[peer]

        def close() -> None:
            lib.wh_peer_close(peer)
            self.inside.pop()

        if lib.wh_peer_status(peer) != -errno.EINPROGRESS or not start(close):
            close()

    def serve_callbacks(self) -> None:
        """Start the thread that runs callbacks, if it does not run. It ends with the last one."""
        with self.lock:
            if self.thread is None and self.watched and not self.closed:
                thread = threading.Thread(
                    target=self._callbacks, name="wherry callbacks", daemon=True
                )
                thread.start()  # which may fail; it waits for the lock
                self.thread = thread

    def _callbacks(self) -> None:
        while True:
            with self.lock:
                if self.closed or not self.watched:
                    self.thread = None
                    return
            try:
                self.drain(int(SLICE * 1e9))
            except BaseException as error:  # there is nothing here that it could end
                _log_failure(error)
                if not isinstance(error, (KeyboardInterrupt, SystemExit)):
                    time.sleep(SLICE)  # not of a callback: memory is short

    # ---- the end

    def close(self) -> None:
        """Cancel what runs and give everything back. In a forked child nothing is done."""
        if os.getpid() != self.pid:  # the lock may be held by a thread that is not here
            self.closed = self.closing = True
            return
        with self.lock:
            if self.closing:
                return
            self.closing = True
        try:
            try:
                if not self.closed:
                    self.drain()
            finally:
                self._quiesce()
        except BaseException:
            if self.handle:  # it was interrupted, and can be repeated
                self.closing = False
            raise

    def _quiesce(self) -> None:
        """Let the calls of other threads end, cancel what runs, and give all back."""
        self.closed = True
        for _ in range(10000):
            if not self.inside and self.thread in (None, threading.current_thread()):
                break
            time.sleep(0.001)
        else:
            raise make(-errno.EBUSY, "Engine.close: other threads use the engine")
        apart(self._cancel)
        calls: List[Callable[[], None]] = []
        more = True
        while more:
            found, more = self._take(0)
            calls += found
        calls += self.opening.values()  # they see that it is closed
        self.opening.clear()
        try:
            call_all(calls)
        finally:
            apart(self._give_back)

    def _cancel(self) -> None:
        self.inside.append(None)  # a close() that comes again waits for it
        for batch in list(self.batches):
            lib.wh_batch_cancel(batch)
        self.inside.pop()

    def _give_back(self) -> None:
        """Repeatable, as far as it went."""
        self.inside.append(None)
        try:
            self._give_all_back()
        finally:
            self.inside.pop()

    def _give_all_back(self) -> None:
        for batch in list(self.batches):
            if lib.wh_batch_free(batch) == 0:
                del self.batches[batch]
        for end in list(self.weights.values()):
            end()
        for blocks in self.blocks:
            lib.wh_blocks_free(blocks)
        self.blocks.clear()
        for peer in self.peers:
            lib.wh_peer_close(peer)
        self.peers.clear()
        for region in list(self.regions):
            self.release(region)
        lib.wh_queue_free(self.queue)
        lib.wh_queue_free(self.opened)
        self.queue = self.opened = 0
        self.end()

    def release(self, region: int) -> int:
        """Unregister; the object that is registered goes only if nobody touches it any more."""
        status: int = lib.wh_region_unregister(region)
        if status == 0:
            held = self.regions.pop(region, None)
            if held is not None:
                self.own.pop(held.id, None)
                held.release()
        return status

    def end(self) -> None:
        """Close the engine, once the last memory that it has allocated is free."""
        held = self.memories or self.regions or self.weights
        if self.closed and not held and self.handle:
            if lib.wh_engine_close(self.handle) == 0:
                self.handle = 0
                _live.discard(self)

    def free_memory(self, address: int) -> None:
        """The last view of allocated memory has gone."""
        if os.getpid() != self.pid:
            return
        if lib.wh_memory_free(self.handle, address) == 0:
            self.memories.pop(address, None)
            self.end()


def call_all(calls: List[Callable[[], None]]) -> None:
    """Call each, whatever those before it raise. As in asyncio, SystemExit and KeyboardInterrupt are
    raised again, here at the end, and all else is logged."""
    ending: Optional[BaseException] = None
    for call in calls:
        try:
            call()
        except (KeyboardInterrupt, SystemExit) as error:
            ending = error
        except BaseException as error:  # asyncio.CancelledError, too
            _log_failure(error)
    if ending is not None:
        raise ending


def _log_failure(error: BaseException) -> None:
    text = "a function that waited for a transfer failed"
    logging.getLogger("wherry").error(text, exc_info=error)


class Held:
    """The memory of a region: what keeps it, where it is, and whether transfers may write it."""

    __slots__ = ("id", "keeper", "pins", "place", "_readonly", "_address", "_length", "_refused")

    def __init__(self, number: int, memory: Any, about: Layout, pins: List[Any]) -> None:
        self.id = number  # of the region
        self.keeper = about.keeper
        self.pins = pins
        self.place = place_of(memory)
        self._readonly = bool(about.readonly)
        self._address, self._length = about.address, about.length
        # By the kernel; None: it has not been asked.
        self._refused: Optional[bool] = None if about.on_host else False

    def release(self) -> None:
        """Let go of the object; buffers can be resized and closed again."""
        if isinstance(self.keeper, Export):
            self.keeper.release()
        self.pins, self.place = [], None

    def check(self, argument: str, writes: bool) -> None:
        """Raise an error that names the argument if a transfer must not use it."""
        place = self.place
        if place is not None:
            place.check(argument)
        if writes:
            self.check_writable(argument)

    def check_writable(self, argument: str, readonly: Optional[bool] = None) -> None:
        """Raise an error that names the argument if a transfer must not write it. `readonly` is
        what another object says that lies in it; None: it cannot say."""
        if self._refused is None:
            self._refused = refuses_writes(self._address, self._length)
        if self._refused or (self._readonly if readonly is None else readonly):
            raise invalid(f"{argument}: the memory is read-only")


# Engines that are open: what they hold lives as long as they do.
_live: "set[Core]" = set()


class Region:
    """Memory that transfers may use. `region[a:b]` are its bytes from a to b; negative ones count
    from the end, and [a:a] are none.

    It stays registered, and its tensor alive, until unregister(), the end of its `with`, or until
    the engine is closed; dropping this object changes nothing."""

    def __init__(
        self, core: Core, handle: int, about: Layout, name: str, access: str, shared: bool
    ) -> None:
        self._core = core
        self._handle = handle
        self._shared = shared  # peers may use it, so unregister() may wait for one
        self._ending = threading.Lock()  # of unregister(), which Ctrl-C leaves running
        self.name = name
        self.access = access
        self.address = about.address
        self.length = about.length
        self.shape = about.shape

    @property
    def id(self) -> int:
        """Unique among the engine's regions."""
        with self._core.calls:
            return int(lib.wh_region_id(self._use()))

    def _use(self) -> int:
        self._core.use()
        if not self._handle:
            raise invalid(f"{self!r} is no longer registered")
        return self._handle

    def key(self) -> bytes:
        """The region's name for Peer.unpack(), for programs with a control plane of their own. It
        is a name, not a right."""
        room = native.CONSTANTS["WH_KEY_MAX"]
        buffer = ctypes.create_string_buffer(room)
        length = c_size_t(room)
        with self._core.calls:
            check(lib.wh_region_pack_key(self._use(), buffer, byref(length)))
        return buffer.raw[: length.value]

    def unregister(self) -> None:
        """When it returns, nobody reads or writes the memory. Error EBUSY: a transfer uses it, or a
        peer has not let go of it; the tensor is held further on, and the call can be repeated."""
        if self._handle and not self._core.closed:
            self._core.here()
            if self._shared:
                apart(self._unregister)
            else:
                self._unregister()

    def _unregister(self) -> None:
        with self._ending, self._core.calls:
            if self._handle:
                check(self._core.release(self._handle))
                self._handle = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> "RegionSlice":
        return RegionSlice(self, *_range(part, self.length, repr(self)))

    def __enter__(self) -> "Region":
        return self

    def __exit__(self, *_: Any) -> None:
        self.unregister()

    def __repr__(self) -> str:
        state = "" if self._handle and not self._core.closed else ", unregistered"
        name = f"{self.name!r}, " if self.name else ""
        return f"<wherry.Region {name}{self.length} B, access {self.access!r}{state}>"


class RegionSlice(NamedTuple):
    """A part of a region: `length` bytes from `offset`."""

    region: Any
    offset: int
    length: int


class Remote:
    """A region of a peer, as Peer.find() returns it. `remote[a:b]` are its bytes from a to b."""

    __slots__ = ("id", "address", "length", "access", "kind", "name")

    def __init__(self, info: native.RemoteInfo) -> None:
        self.id = int(info.id)
        self.address = int(info.address)  # in the peer's address space
        self.length = int(info.length)  # bytes
        self.access = ("r" if info.access & 1 else "") + ("w" if info.access & 2 else "")
        self.kind = _KIND_NAMES.get(info.kind, "unknown")
        self.name = info.name.decode("utf-8", "replace")

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> RegionSlice:
        return RegionSlice(self, *_range(part, self.length, repr(self)))

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"<wherry.Remote {name}{self.length} B of {self.kind}, access {self.access!r}>"


def _range(part: slice, length: int, name: str) -> Tuple[int, int]:
    if not isinstance(part, slice) or part.step not in (None, 1):
        raise invalid(f"{name}: a part is [first:last], in bytes")
    ends = []
    for end, default in ((part.start, 0), (part.stop, length)):
        if isinstance(end, bool) or not (end is None or hasattr(end, "__index__")):
            raise TypeError(f"{name}: [{part.start!r}:{part.stop!r}] are whole numbers of bytes")
        at = default if end is None else operator.index(end)
        ends.append(at + length if at < 0 else at)
    first, last = ends
    if not 0 <= first <= last <= length:
        raise make(-errno.ERANGE, f"{name}: [{part.start}:{part.stop}] does not lie in it")
    return first, last - first


class Notification(NamedTuple):
    """A notification that a peer has sent. All bytes of its transfer are visible."""

    tag: int
    data: bytes
    sender: str  # the name of the sending engine
    epoch: int  # of the sending engine


def _region_options(
    name: Optional[str], access: str, listed: bool, grants: Optional[Dict[str, str]]
) -> native.RegionOptions:
    kept = [
        native.Grant(peer=text(peer, "grants"), access=_access(rights))
        for peer, rights in (grants or {}).items()
    ]
    array = (native.Grant * len(kept))(*kept)
    return native.RegionOptions(
        size=sizeof(native.RegionOptions),
        name=text(name, "name") if name is not None else None,
        access=_access(access) | (native.CONSTANTS["WH_ACCESS_LIST"] if listed else 0),
        grant_count=len(kept),
        grants=array if kept else None,
    )


def _rights(grants: Optional[Dict[str, str]]) -> List[Tuple[str, str]]:
    """Of each peer that is granted some: how an error calls them, and the rights."""
    return [(f"grants[{peer!r}]", rights) for peer, rights in (grants or {}).items()]


_DURABLE = {
    word: native.CONSTANTS[f"WH_FILE_DURABLE_{word.upper()}"] for word in ("none", "data", "all")
}


class Engine:
    """An engine: its listener, its threads, its transports. One per process is usually enough.

    name      the name that other engines see
    listen    where to listen, "0.0.0.0:7000"; "none": nowhere; by default a free port of loopback
    registry  where engines find each other by name, "http://HOST:PORT", "etcd://...", "redis://..."
    log       a function (level, area, text), or True for logging.getLogger("wherry"). By default
              nothing, but with a registry warnings go there: opening may wait for the lease of an
              engine that was killed, and says so
    settings  the rows of `wherry config`, as keyword arguments: require="cuda", keyfile=...,
              tls=True, tls_cert=... Times are numbers of seconds, or text with a unit: timeout=2,
              timeout="500ms"

    A forked child cannot use it (Error EPERM); with multiprocessing, use spawn or open another one.
    """

    def __init__(
        self,
        name: Optional[str] = None,
        *,
        listen: Optional[str] = None,
        registry: Optional[str] = None,
        log: Union[None, bool, Callable[[int, str, str], None]] = None,
        **settings: Any,
    ) -> None:
        rows = [text(f"{row}={_setting(row, value)}", row) for row, value in settings.items()]
        config = (c_char_p * (len(rows) + 1))(*rows, None)
        named = registry or settings.get("registry") or os.environ.get("WHERRY_REGISTRY")
        function = _log_function(_warn if log is None and named else log)
        options = native.EngineOptions(
            size=sizeof(native.EngineOptions),
            name=text(name, "name") if name is not None else None,
            listen=text(listen, "listen") if listen is not None else None,
            registry=text(registry, "registry") if registry is not None else None,
            config=ctypes.cast(config, POINTER(c_char_p)),
            log=ctypes.cast(function, c_void_p) if function else None,
        )
        out = c_void_p()

        def begin() -> None:
            check(lib.wh_engine_open(byref(options), byref(out)))

        def end() -> None:
            lib.wh_engine_close(out)

        if named:
            apart(begin, end)  # the registry may be silent, or still have the name
        else:
            begin()
        self._core = Core(out.value or 0, function)
        _live.add(self._core)
        # Also when the interpreter exits.
        self._end = weakref.finalize(self, self._core.close)
        self.name: str = lib.wh_engine_name(self._core.handle).decode()
        self.url: str = lib.wh_engine_url(self._core.handle).decode()
        self.epoch = int(lib.wh_engine_epoch(self._core.handle))

    def close(self) -> None:
        """Cancel all transfers, close the peers and let go of all registered memory."""
        self._core.close()
        self._end.detach()

    @property
    def closed(self) -> bool:
        return self._core.closed

    def register(
        self,
        memory: Any,
        name: Optional[str] = None,
        access: str = "",
        *,
        listed: bool = False,
        grants: Optional[Dict[str, str]] = None,
    ) -> Region:
        """Register the bytes of a tensor, an array or a buffer for transfers.

        memory  a torch tensor, what has __cuda_array_interface__ or __dlpack__, or a buffer
                (numpy, bytearray, mmap, Memory): one range without gaps. It lives, and a buffer
                cannot be resized, until the region is unregistered. Text or a pathlib.Path is the
                path of a file, as for register_file().
        name    by which peers find it
        access  what peers may do: "r", "w", "rw"; "" for this engine's own use. "w" needs memory
                that can be written, as reading into it does
        listed  peers see it in Peer.regions()
        grants  for the peers of these names their rights instead
        """
        if isinstance(memory, (str, os.PathLike)):
            return self.register_file(memory, name, access, listed=listed, grants=grants)
        return self._register(memory, name, access, listed, grants, pins_of(memory))

    def _register(
        self,
        memory: Any,
        name: Optional[str],
        access: str,
        listed: bool,
        grants: Optional[Dict[str, str]],
        pins: List[Any],
    ) -> Region:
        """register(), held by these besides."""
        core = self._core
        about = layout(memory, any_order=True)
        if not about.length:
            raise invalid(f"memory: an array of shape {about.shape} has no bytes to register")
        if about.rows != 1:
            raise invalid(
                f"an array of shape {about.shape} has gaps: register the one that it is a part of"
            )
        options = _region_options(name, access, listed, grants)
        for argument, rights in [("access", access), *_rights(grants)]:
            if "w" in rights and about.cannot_be_written():
                raise invalid(f"{argument} allows writing, but the memory is read-only")
        out = c_void_p()
        with core.calls:
            check(
                lib.wh_region_register(
                    core.handle, about.address, about.length, byref(options), byref(out)
                )
            )
            handle = out.value or 0
            held = Held(int(lib.wh_region_id(handle)), memory, about, pins)
            core.regions[handle] = held
            core.own[held.id] = handle
        return Region(core, handle, about, name or "", access, bool(access or grants))

    def register_file(
        self,
        file: Any,
        name: Optional[str] = None,
        access: str = "",
        *,
        offset: int = 0,
        length: int = 0,
        write: bool = False,
        create: bool = False,
        grow: bool = False,
        durable: str = "none",
        listed: bool = False,
        grants: Optional[Dict[str, str]] = None,
    ) -> Region:
        """Register a range of a regular file for transfers (docs/files.md).

        file     a path, an open file, or a descriptor, which is duplicated
        offset   of the region's first byte in the file
        length   of the region in bytes; 0: up to the file's end
        write    transfers may write to it; implied by an access with "w", create and grow
        create   create the file if it is not there
        grow     the range may reach past the file's end: writes make the file longer
        durable  what a crash of the machine cannot undo when a transfer into the file has
                 completed: "none", "data" (fdatasync), "all" (fsync)
        name, access, listed, grants  as for register()
        """
        core = self._core
        if durable not in _DURABLE:
            raise invalid(f"durable is one of {', '.join(_DURABLE)}, not {durable!r}")
        rights = [access, *(grants or {}).values()]
        write = write or create or grow or any("w" in right for right in rights)
        region = _region_options(name, access, listed, grants)
        options = native.FileOptions(
            size=sizeof(native.FileOptions),
            offset=whole(offset, "offset"),
            length=whole(length, "length"),
            flags=(native.CONSTANTS["WH_FILE_WRITE"] if write else 0)
            | (native.CONSTANTS["WH_FILE_CREATE"] if create else 0)
            | (native.CONSTANTS["WH_FILE_GROW"] if grow else 0),
            durable=_DURABLE[durable],
            region=ctypes.pointer(region),
        )
        out = c_void_p()
        with core.calls:
            # `file` stays: the last reference to an open file closes its descriptor.
            where = file.fileno() if hasattr(file, "fileno") else file
            if not length:  # as long as the file is now
                with contextlib.suppress(OSError, ValueError, OverflowError):  # the library says what is wrong with it
                    options.length = max(os.stat(where).st_size - offset, 0)
            if isinstance(where, int):
                where = whole(where, "file", 2**31 - 1)
                check(lib.wh_file_register_fd(core.handle, where, byref(options), byref(out)))
            else:
                path = os.fsencode(where)
                if b"\0" in path:
                    raise invalid(f"file: {path[:80]!r} has a NUL")
                check(lib.wh_file_register(core.handle, path, byref(options), byref(out)))
            handle = out.value or 0
            core.regions[handle] = None
        length = options.length
        about = Layout(0, 1, length, length, None, not write, False, (length,))
        return Region(core, handle, about, name or "", access, bool(access or grants))

    def allocate(
        self, length: int, kind: str = "shared", location: Optional[str] = None
    ) -> "Memory[Any]":
        """Allocate `length` zeroed bytes: kind "shared" (engines of this host can map it),
        "pageable", "huge", "pinned", "mapped", "managed". location: "cuda:0", "numa:1"."""
        if kind not in _KINDS or kind in _NOT_ALLOCATED:
            known = ", ".join(name for name in _KINDS if name not in _NOT_ALLOCATED)
            raise invalid(f"kind is one of {known}, not {kind!r}: allocate GPU memory with torch")
        options = native.MemoryOptions(
            size=sizeof(native.MemoryOptions),
            kind=_KINDS[kind],
            location=text(location, "location") if location else None,
        )
        length = whole(length, "length", 2**63 - 1)
        out = c_void_p()
        with self._core.calls:
            check(lib.wh_memory_alloc(self._core.handle, length, byref(options), byref(out)))
            address = out.value or 0
            self._core.memories[address] = None
        memory: "Memory[Any]" = (ctypes.c_char * length).from_address(address)
        weakref.finalize(memory, self._core.free_memory, address).atexit = False
        return memory

    def connect(self, url: str, timeout: float = 0.0) -> "Peer":
        """Connect to another engine: "wherry://HOST:PORT", "HOST:PORT", with a registry its name,
        or "self". Waits up to `timeout` s; 0: 5 s, or the setting `timeout` if that is longer."""
        from ._peer import Peer

        core = self._core
        options = native.PeerOptions(
            size=sizeof(native.PeerOptions), timeout=nanoseconds(timeout), queue=core.opened
        )
        out, done = c_void_p(), (native.Completion * 16)()
        with core.calls:
            check(lib.wh_peer_open(core.handle, text(url, "url"), byref(options), byref(out)))
            handle = out.value or 0
            core.peers[handle] = None
            try:
                while lib.wh_peer_status(handle) == -errno.EINPROGRESS:
                    core.use()  # is it being closed?
                    # Another thread may take the completion of this one.
                    lib.wh_queue_take(core.opened, done, 16, int(SLICE * 1e9 / 5))
                check(lib.wh_peer_status(handle))
            except BaseException:
                core.abandon(handle)
                raise
        return Peer(self, core, handle, url)

    async def connect_async(self, url: str, timeout: float = 0.0) -> "Peer":
        """connect() without blocking the event loop. A task that is cancelled meanwhile gives it
        up."""
        from ._peer import Peer

        where = text(url, "url")
        core, loop = self._core, asyncio.get_running_loop()
        ready, complete = core.wait_in(loop)
        options, out = native.PeerOptions(
            size=sizeof(native.PeerOptions),
            timeout=nanoseconds(timeout),
            queue=core.queue,
            user=core.number(),
        ), c_void_p()
        core.loop_enter(loop)
        try:
            with core.calls:
                core.opening[options.user] = complete
                check(lib.wh_peer_open(core.handle, where, byref(options), byref(out)))
                handle = out.value or 0
                core.peers[handle] = None
            try:
                await ready
                with core.calls:
                    check(lib.wh_peer_status(handle))
            except BaseException:
                core.abandon(handle)
                raise
        finally:
            core.opening.pop(options.user, None)
            core.loop_leave(loop)
        return Peer(self, core, handle, url)

    def notification(
        self,
        timeout: Optional[float] = None,
        *,
        tag: Optional[int] = None,
        sender: Optional[str] = None,
    ) -> Notification:
        """Take the oldest notification, of this tag and sender if given. Waits up to `timeout` s;
        None: without a limit. Timeout: there was none."""
        core = self._core
        wanted = native.NotificationFilter(
            size=sizeof(native.NotificationFilter),
            sender=text(sender, "sender") if sender is not None else None,
            tag=0 if tag is None else whole(tag, "tag"),
            tag_mask=0 if tag is None else 2**64 - 1,
        )
        room = 512
        with core.calls:
            while True:
                buffer = ctypes.create_string_buffer(room)
                out = native.Notification(
                    size=sizeof(native.Notification),
                    buffer=ctypes.addressof(buffer),
                    capacity=room,
                )

                def take(limit: int) -> int:
                    return int(
                        lib.wh_engine_notification(core.use(), byref(wanted), byref(out), limit)
                    )

                status = in_slices(take, timeout, (errno.EAGAIN,))
                if status == -errno.EMSGSIZE:
                    room = native.NOTIFICATION_MAX
                    continue
                if status == -errno.EAGAIN:
                    raise Timeout(errno.ETIMEDOUT, f"no notification came in {timeout} s")
                check(status)
                data = buffer.raw[: out.length]
                return Notification(out.tag, data, out.sender.decode("utf-8", "replace"), out.epoch)

    async def notifications(
        self, *, tag: Optional[int] = None, sender: Optional[str] = None
    ) -> AsyncIterator[Notification]:
        """All notifications from now on, of this tag and sender if given: `async for`. Ends when
        the engine is closed."""
        loop = asyncio.get_running_loop()
        core = self._core
        while not core.closed:
            try:
                yield self.notification(0, tag=tag, sender=sender)
                continue
            except Timeout:
                pass
            if tag is None and sender is None:
                await self._arrival(loop)
                continue
            # Others than the wanted ones may keep the descriptor readable: wait in a thread.
            try:
                yield await loop.run_in_executor(
                    None, lambda: self.notification(SLICE, tag=tag, sender=sender)
                )
            except Timeout:
                continue

    async def _arrival(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait until the descriptor of notifications is readable, or for a second."""
        ready = loop.create_future()
        with self._core.calls:
            descriptor = os.dup(check(lib.wh_engine_notification_fd(self._core.handle)))

        def wake() -> None:
            if not ready.done():
                ready.set_result(None)

        loop.add_reader(descriptor, wake)
        alarm = loop.call_later(1.0, wake)  # the engine may have been closed
        try:
            await ready
        finally:
            alarm.cancel()
            loop.remove_reader(descriptor)
            os.close(descriptor)

    def __enter__(self) -> "Engine":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("an engine belongs to its process: open another one there")

    def __repr__(self) -> str:
        if self._core.closed:
            return f"<wherry.Engine {self.name!r}, closed>"
        where = self.url or "does not listen"
        core = self._core
        return (
            f"<wherry.Engine {self.name!r}, {where}, {len(core.regions)} regions, "
            f"{len(core.peers)} peers>"
        )


# Memory of Engine.allocate(): a ctypes array, for memoryview(), numpy.frombuffer() and
# torch.frombuffer(). It is freed with the last of its views.
Memory = ctypes.Array


# Settings that are times: the library counts their numbers in ms.
_TIMES: List[str] = []


def _rows() -> Iterator[native.ConfigRow]:
    for index in itertools.count():
        row = lib.wh_config_row(index)
        if not row:
            return
        yield row.contents


def _is_time(row: str) -> bool:
    if not _TIMES:
        _TIMES.extend(about.name.decode() for about in _rows() if about.type == b"ms")
    return row in _TIMES


def _time(row: str, value: Any) -> str:
    """Seconds, or text with a unit, as the library takes it."""
    if isinstance(value, str):
        if value.strip().isdigit():
            raise invalid(f'{row}: {value!r} has no unit: give "{value.strip()}s", or a number, '
                          f"which is seconds")  # fmt: skip
        return value
    if isinstance(value, bool):
        raise TypeError(f"{row} is a number of seconds or text with a unit, not bool")
    seconds = float(value)
    if not 0 <= seconds < math.inf:
        raise invalid(f"{row} is a number of seconds, not {value!r}")
    return f"{math.ceil(round(seconds * 1e3, 6))}ms"


def _setting(row: str, value: Any) -> str:
    if _is_time(row):
        return _time(row, value)
    if isinstance(value, bool):
        return "1" if value else "0"
    return os.fspath(value) if hasattr(value, "__fspath__") else str(value)


def _access(text: str) -> int:
    try:
        return _ACCESS["rw" if text == "wr" else text]
    except KeyError:
        raise invalid(f'access is "r", "w", "rw" or "", not {text!r}') from None


def _warn(level: int, area: str, text: str) -> None:
    if _LEVELS.get(level) == logging.WARNING:
        logging.getLogger("wherry").warning("%s: %s", area, text)


def _log_function(log: Any) -> Any:
    if not log:
        return None
    logger = logging.getLogger("wherry")

    def line(_: Any, record: Any) -> None:
        entry = record.contents
        area, said = entry.area.decode(), entry.text.decode("utf-8", "replace")
        if log is True:
            logger.log(_LEVELS.get(entry.level, logging.INFO), "%s: %s", area, said)
        else:
            log(entry.level, area, said)

    return _LogFunction(line)


def settings() -> Dict[str, Tuple[str, str, str]]:
    """Every setting: its environment variable, its default and what it is for."""
    return {
        about.name.decode(): (
            about.environment.decode(),
            about.fallback.decode() + ("ms" if about.type == b"ms" else ""),
            about.help.decode(),
        )
        for about in _rows()
    }
    return found


def lookup(core: Core, about: Layout) -> Tuple[int, int]:
    """The region of this engine that holds the memory, and the offset in it. Inside a guard."""
    out, offset = c_void_p(), c_uint64()
    if lib.wh_region_lookup(core.handle, about.address, about.length, byref(out), byref(offset)):
        raise make(
            -errno.ENOENT,
            f"memory of shape {about.shape} at {about.address:#x} lies in no region: register it",
        )
    return out.value or 0, offset.value
