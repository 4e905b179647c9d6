"""The outcome of a handler: it returns, or it raises.

    return value            succeeded, with this result
    raise AnyException      failed; retried according to the task's retry policy
    raise Retry(…)          failed; retried after the given delay
    raise Fail(…)           failed permanently, without a retry
    raise Snooze("1h")      runs again later; not charged as an attempt
    raise Cancelled()       stopped, because the task was cancelled or its lease was lost (raised by `ctx.check()`)

`entry_for` converts an exception into an entry of the protocol. It does no I/O.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any, Dict, Optional

from .times import DurationLike, duration

MESSAGE_BYTES_MAX = 4_096
CODE_BYTES_MAX = 100
_SDK = str(Path(__file__).parent)


class Fail(Exception):
    """The task fails permanently."""

    def __init__(self, message: str, code: Optional[str] = None) -> None:
        super().__init__(message, code)
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


class Retry(Exception):
    """The attempt failed; `after` is the delay before the next one, instead of the task's retry policy."""

    def __init__(self, message: str, after: Optional[DurationLike] = None, code: Optional[str] = None) -> None:
        super().__init__(message, after, code)
        self.message = message
        self.after = None if after is None else duration(after)
        self.code = code

    def __str__(self) -> str:
        return self.message


class Snooze(Exception):
    """The task runs again after `delay`; the attempt is not charged."""

    def __init__(self, delay: DurationLike) -> None:
        super().__init__(delay)
        self.delay = duration(delay)


class Cancelled(Exception):
    """The result is no longer needed: the task was cancelled, or its lease was lost to another worker."""

    def __init__(self, reason: str = "cancelled") -> None:
        super().__init__(reason)


def entry_for(raised: BaseException) -> Dict[str, Any]:
    """The entry in `done` for an attempt that raised this."""
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
    try:
        message = str(raised)
    except Exception:  # an exception of the program may fail even at this
        message = ""
    return {"error": error(message or name, snake_case(name))}


def traceback_of(raised: BaseException) -> Optional[str]:
    """The end of the traceback, for the task's log; `None` if the handler chose its outcome and no other exception caused it.

    The server's error has no field for it. The last lines are kept, because they name the place and the exception.
    """
    if isinstance(raised, (Snooze, Cancelled)) or (isinstance(raised, (Fail, Retry)) and raised.__cause__ is None):
        return None
    frames = raised.__traceback__
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename.startswith(_SDK):
        frames = frames.tb_next  # begin in the handler, not in the SDK that called it
    try:
        text = "".join(traceback.format_exception(type(raised), raised, frames)).rstrip()
    except Exception:
        return None
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return encoded.decode()
    return "…" + encoded[3 - MESSAGE_BYTES_MAX :].decode("utf-8", "ignore")


def error(message: str, code: Optional[str]) -> Dict[str, str]:
    """An error entry of the protocol, truncated to the length that the server accepts."""
    if not code:
        return {"message": shorten(message)}
    printable = "".join(each if each.isprintable() else "?" for each in str(code))
    return {"message": shorten(message), "code": printable.encode("utf-8", "replace")[:CODE_BYTES_MAX].decode("utf-8", "ignore")}


def shorten(text: str) -> str:
    """At most 4 KB of text, cut between characters. Lone surrogates, which are not valid text, become `?`."""
    encoded = str(text).encode("utf-8", "replace")
    if len(encoded) <= MESSAGE_BYTES_MAX:
        return encoded.decode()
    return encoded[: MESSAGE_BYTES_MAX - 3].decode("utf-8", "ignore") + "…"


def snake_case(name: str) -> str:
    """`ConnectionError` is `connection_error`, `HTTPError` is `http_error`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    return words.strip("_").lower()
