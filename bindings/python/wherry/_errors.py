# SPDX-License-Identifier: Apache-2.0
"""Errors: an errno and the library's text."""
from __future__ import annotations

import errno
import operator
from typing import Any

from ._native import lib


class Error(OSError):
    """A call or a transfer failed. `errno` is the error's number, `strerror` says what failed and
    what to try."""


class Timeout(Error, TimeoutError):
    """Nothing arrived in the given time. A transfer that was waited for continues."""


class Cancelled(Error):
    """The transfer was cancelled. It no longer touches any memory."""


class Invalid(Error, ValueError):
    """An argument is wrong (EINVAL)."""


def make(status: int, text: str) -> Error:
    """The exception for a negative errno."""
    number = -status
    if number == errno.ECANCELED:
        return Cancelled(number, text or "the transfer was cancelled")
    if number == errno.ETIMEDOUT:
        return Timeout(number, text)
    return Error(number, text)


def check(status: int) -> int:
    """Raise the error of this thread's last call if `status` is negative."""
    if status < 0:
        raise make(status, (lib.wh_error_text() or b"").decode("utf-8", "replace"))
    return status


def invalid(text: str) -> Error:
    """An argument is wrong."""
    return Invalid(errno.EINVAL, text)


def whole(value: Any, argument: str, most: int = 2**64 - 1) -> int:
    """A number from 0 to `most`, which ctypes would cut to its size."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{argument} is a whole number, not {type(value).__name__} {value!r}")
    number = operator.index(value)
    if not 0 <= number <= most:
        raise invalid(f"{argument} is a number from 0 to {most}, not {number}")
    return number


def text(value: Any, argument: str) -> bytes:
    """Text for the library, which would end it at a NUL."""
    if not isinstance(value, str):
        raise TypeError(f"{argument} is text, not {type(value).__name__}")
    if "\0" in value:
        raise invalid(f"{argument}: {value[:80]!r} has a NUL")
    return value.encode()
