"""Durations and times, converted to the format of the API."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Union

DurationLike = Union[str, int, float, timedelta]
"""`"250ms"`, `"30s"`, `"5m"`, `"2h"`, `"1d"`, a number of seconds, or a `timedelta`."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_WRITTEN = re.compile(r"(\d+)\s*(ms|s|m|h|d)")


def seconds(value: DurationLike) -> float:
    """A duration in seconds; raises `ValueError` if it is not one."""
    if isinstance(value, timedelta):
        length = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        length = float(value)
    else:
        found = _WRITTEN.fullmatch(value.strip()) if isinstance(value, str) else None
        if found is None:
            raise ValueError(f"`{value}` is not a duration: write `250ms`, `30s`, `5m`, `2h`, `1d` or a number of seconds")
        length = int(found[1]) * _UNITS[found[2]]
    if not 0 <= length < float("inf"):
        raise ValueError(f"`{value}` is not a duration: it must not be negative or endless")
    return length


def duration(value: DurationLike) -> str:
    """A duration in the format of the API. Text is checked and sent unchanged."""
    length = seconds(value)
    return value.strip() if isinstance(value, str) else f"{round(length * 1000)}ms"


def timestamp(value: Union[str, datetime]) -> str:
    """A time in the format of the API. A `datetime` without a time zone is refused, because it is ambiguous."""
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise ValueError(f"`{value.isoformat()}` has no time zone; use `datetime.now(timezone.utc)` and the like")
    return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
