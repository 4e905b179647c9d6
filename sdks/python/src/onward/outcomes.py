"""How a handler says what becomes of its task: it returns, or it raises.

    return value            succeeded, with this result
    raise AnyException      failed; tried again as the task's retry policy says
    raise Retry(…)          the same, saying when
    raise Fail(…)           failed for good: no retry helps
    raise Snooze("1h")      not now; comes back later and is not charged as an attempt
    raise Cancelled()       stopped because nobody wants the result (what `ctx.check()` raises)

`entry_for` turns what was raised into the words of the protocol. It does no I/O.
"""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

from .times import DurationLike, duration

MESSAGE_BYTES_MAX = 4_096


class Fail(Exception):
    """The task fails now and is not tried again."""

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


class Retry(Exception):
    """The attempt failed; `after` says when the next one is due, instead of the task's retry policy."""

    def __init__(self, message: str, after: Optional[DurationLike] = None, code: Optional[str] = None) -> None:
        super().__init__(message, after, code)
        self.message = message
        self.after = None if after is None else duration(after)
        self.code = code

    def __str__(self) -> str:
        return self.message


class Snooze(Exception):
    """Not now. The task comes back after `delay`; the attempt is not counted."""

    def __init__(self, delay: DurationLike) -> None:
        super().__init__(delay)
        self.delay = duration(delay)


class Cancelled(Exception):
    """Nobody wants the result any more: the task was cancelled, or the lease was lost to somebody else."""

    def __init__(self, reason: str = "cancelled") -> None:
        super().__init__(reason)


def entry_for(raised: BaseException) -> Dict[str, Any]:
    """What `done` says about an attempt that ended by raising this."""
    if isinstance(raised, Snooze):
        return {"snooze": raised.delay}
    if isinstance(raised, Fail):
        return {"error": error(raised.message, raised.code), "final": True}
    if isinstance(raised, Retry):
        entry: Dict[str, Any] = {"error": error(raised.message, raised.code)}
        if raised.after is not None:
            entry["retry_after"] = raised.after
        return entry
    name = type(raised).__name__
    return {"error": error(str(raised) or name, snake_case(name))}


def error(message: str, code: Optional[str]) -> Dict[str, str]:
    """An error as the protocol wants it, cut to a length that the server takes."""
    return {"message": shorten(message), "code": code} if code else {"message": shorten(message)}


def shorten(text: str) -> str:
    """At most 4 KB of text, never half a character. Lone surrogates, which are no text at all, become `?`."""
    encoded = str(text).encode("utf-8", "replace")
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return encoded.decode()
    return encoded[: MESSAGE_BYTES_MAX - 3].decode("utf-8", "ignore") + "…"


def snake_case(name: str) -> str:
    """`ConnectionError` is `connection_error`, `HTTPError` is `http_error`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.strip("_").lower()
