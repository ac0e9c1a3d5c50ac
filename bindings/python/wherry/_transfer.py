# SPDX-License-Identifier: Apache-2.0
"""Transfers that run or have run."""
from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
from ctypes import byref, c_size_t, c_uint64, sizeof
from typing import Any, Callable, Generator, List, NamedTuple, Optional

from . import _native as native
from ._engine import CLOSED, Core, apart, call_all, in_slices, start
from ._errors import Cancelled, Error, Timeout, check, make, whole
from ._native import batch_status, lib

_RUNNING, _AGAIN = -errno.EINPROGRESS, (errno.EAGAIN,)


class Route(NamedTuple):
    """What one transport did for a transfer."""

    transport: str
    detail: str
    bytes: int
    transfers: int
    refused: str  # why it was not used where it would have been better; "": it was not refused


class Pool(List[int]):
    """Batches for the next use, of a peer or a plan that is open."""

    open = True

    def put(self, core: Core, batch: int) -> None:
        """Keep it, or free it. Inside a guard."""
        if self.open and len(self) < 16:
            self.append(batch)
            if self.open:
                return
            self.empty(core)  # it was closed just now
        else:
            core.free_batch(batch)

    def empty(self, core: Core) -> None:
        try:
            while True:
                core.free_batch(self.pop())
        except IndexError:
            pass


class Transfer:
    """A running or completed submission. Wait for it with wait(), `with`, `await` or
    add_done_callback(). It goes on if nobody waits; the memory stays registered and alive until it
    has ended."""

    __slots__ = ("_core", "_batch", "_peer", "_idle", "__weakref__")

    def __init__(self, core: Core, batch: int, peer: Any, idle: Optional[Pool]) -> None:
        self._core = core
        self._batch = batch
        self._peer = peer
        self._idle = idle  # where the batch goes for its next use

    def _slice(self, limit: int) -> int:
        if self._core.closed:
            raise make(-errno.ECANCELED, CLOSED)
        return int(lib.wh_batch_wait_for(self._batch, limit))

    def _error(self, status: int) -> Error:
        """The error with which it has ended. Inside a guard."""
        text: bytes = lib.wh_batch_error_text(self._batch) or b""
        return make(status, text.decode("utf-8", "replace"))

    def done(self) -> bool:
        """Has it completed, well or not? Does not block."""
        try:
            with self._core.transfers:
                return bool(lib.wh_batch_test(self._batch) == 0)
        except Cancelled:
            return True

    def wait(self, timeout: Optional[float] = None) -> "Transfer":
        """Wait up to `timeout` s (None: without a limit) until it completes. Raises its error if it
        has failed, Cancelled if it was cancelled, and Timeout if it continues. Signals such as
        Ctrl-C are handled meanwhile; the transfer continues then, too."""
        core = self._core
        inside = core.inside
        inside.append(None)  # `with core.transfers`, in half the time
        try:
            if core.closed:
                raise make(-errno.ECANCELED, CLOSED)
            status = batch_status(self._batch)
            if status == _RUNNING:
                status = in_slices(self._slice, timeout, _AGAIN)
                if status == -errno.EAGAIN:
                    raise Timeout(errno.ETIMEDOUT, f"the transfer continues after {timeout} s")
                check(status)
                status = batch_status(self._batch)
            if status:
                raise self._error(status)
            return self
        finally:
            inside.pop()

    def cancel(self) -> None:
        """Cancel it. When this returns, it touches the memory of neither side any more. It is then
        Cancelled, unless it had completed. Blocks for about a round trip. Raises Timeout if the
        peer does not answer, or was lost and the transfer has failed: bytes may still arrive in its
        memory then. After Ctrl-C cancelling goes on in a thread."""
        if self.done():
            self._cancel()
        else:
            apart(self._cancel)

    def _cancel(self) -> None:
        try:
            with self._core.transfers:
                check(lib.wh_batch_cancel(self._batch))
        except Cancelled:  # the engine is closed, which has done it
            pass

    def _drop(self) -> None:
        """Cancel it because of an exception, which is not replaced."""
        try:
            self.cancel()
        except Timeout:
            pass

    def exception(self) -> Optional[BaseException]:
        """The error with which it has ended; None: success, or it is running."""
        try:
            with self._core.transfers:
                if lib.wh_batch_test(self._batch) == 0:
                    status = batch_status(self._batch)
                    return self._error(status) if status else None
        except Cancelled as error:
            return error
        return None

    @property
    def progress(self) -> int:
        """Bytes that are settled so far."""
        out = c_uint64()
        with self._core.transfers:
            check(lib.wh_batch_progress(self._batch, byref(out)))
        return out.value

    def explain(self) -> str:
        """The routes that it took, as text for people."""
        with self._core.transfers:
            return explanation(self._batch)

    def routes(self) -> List[Route]:
        """The routes that it took, best first."""
        with self._core.transfers:
            return _routes(self._batch)

    def make_stream_wait(self, stream: Any) -> None:
        """Work that is put on the CUDA stream from now on starts when this has ended."""
        with self._core.transfers:
            check(lib.wh_batch_make_stream_wait(self._batch, byref(native_stream(stream))))

    def add_done_callback(self, call: Callable[["Transfer"], Any]) -> None:
        """Call call(self) once when it has completed: in the running event loop, if there is one,
        else in a thread of the engine."""
        core = self._core
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            core.watch(self._batch, lambda: call(self))
            core.serve_callbacks()
            return

        async def later() -> None:
            await self._completed()
            call_all([lambda: call(self)])

        task = loop.create_task(later())
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)

    async def _completed(self) -> None:
        """Wait in the event loop."""
        core = self._core
        if self.done():
            return
        loop = asyncio.get_running_loop()
        ready, complete = core.wait_in(loop)
        core.loop_enter(loop)
        try:
            core.watch(self._batch, complete)
            await ready
        finally:
            core.loop_leave(loop)

    async def _wait_async(self) -> "Transfer":
        await self._completed()
        return self.wait(0)

    def __await__(self) -> Generator[Any, None, "Transfer"]:
        return self._wait_async().__await__()

    def __enter__(self) -> "Transfer":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.wait()
        else:
            self._drop()

    async def __aenter__(self) -> "Transfer":
        return self

    async def __aexit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            await self
        else:
            ready, complete = self._core.wait_in(asyncio.get_running_loop())

            def drop() -> None:
                try:
                    self._drop()
                finally:
                    complete()

            # Not of the loop's own, which waits for its threads at the end.
            if not start(drop):
                drop()
            await ready

    def __del__(self) -> None:
        core, idle = self._core, self._idle
        inside = core.inside
        inside.append(None)
        try:
            if core.closed:
                return
            if idle is not None and batch_status(self._batch) != _RUNNING:
                idle.put(core, self._batch)
            else:
                core.free_batch(self._batch)
        finally:
            inside.pop()

    def __repr__(self) -> str:
        if self._core.closed:
            state = "engine closed"
        elif not self.done():
            state = f"running, {self.progress} B settled"
        else:
            error = self.exception()
            state = f"{self.progress} B, done" if error is None else f"failed: {error}"
        return f"<wherry.Transfer {state}>"


# Callbacks in event loops, which hold no tasks themselves.
_tasks: "set[asyncio.Task[None]]" = set()


def native_stream(stream: Any) -> native.Stream:
    """A CUDA stream of torch or cupy, of the protocol __cuda_stream__, or its address."""
    device = getattr(stream, "device", None)
    index = getattr(device, "index", None)
    if index is None:
        index = getattr(stream, "device_id", None)
    if isinstance(stream, int):
        handle = whole(stream, "stream")
    elif hasattr(stream, "cuda_stream"):
        handle = int(stream.cuda_stream)
    elif hasattr(stream, "__cuda_stream__"):
        about = stream.__cuda_stream__
        handle = int((about() if callable(about) else about)[1])
    elif hasattr(stream, "ptr"):
        handle = int(stream.ptr)
    else:
        raise TypeError(f"{type(stream).__name__} is not a CUDA stream")
    name = f"cuda:{index}".encode() if isinstance(index, int) and index >= 0 else None
    return native.Stream(size=sizeof(native.Stream), stream=handle or None, device=name)


def explanation(batch: int) -> str:
    room = 4096
    while True:
        buffer = ctypes.create_string_buffer(room)
        length = check(lib.wh_batch_explain(batch, buffer, room))
        if length < room:
            return buffer.value.decode("utf-8", "replace")
        room = length + 1


def _routes(batch: int) -> List[Route]:
    room = 16
    while True:
        out, count = (native.Route * room)(), c_size_t(room)
        status = lib.wh_batch_routes(batch, out, byref(count))
        if status != -errno.ENOSPC:
            check(status)
            break
        room = count.value
    return [
        Route(
            one.transport.decode(),
            one.detail.decode("utf-8", "replace"),
            one.bytes,
            one.transfers,
            one.refused.decode("utf-8", "replace"),
        )
        for one in out[: count.value]
    ]
