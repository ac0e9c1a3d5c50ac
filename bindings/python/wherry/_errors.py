# SPDX-License-Identifier: Apache-2.0
"""Errors: an errno and the library's text."""
from __future__ import annotations

import errno

from ._native import lib


class Error(OSError):
    """A call or a transfer failed. `errno` is the error's number, `strerror` says what failed and
    what to try."""


class Timeout(Error, TimeoutError):
    """Nothing arrived in the given time. A transfer that was waited for continues."""


class Cancelled(Error):
    """The transfer was cancelled. It no longer touches any memory."""


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
    return Error(errno.EINVAL, text)
