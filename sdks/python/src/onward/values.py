"""Converts Python values to JSON: payloads, results and progress.

Dataclasses become objects, models with `model_dump` (such as Pydantic's) dump themselves, enums become their values, times
RFC 3339, sets and tuples lists. Values that JSON cannot represent (bytes, NaN, arbitrary objects) raise `TypeError` or
`ValueError`, because a lossy conversion could not be read back.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from .times import timestamp


def encode(value: Any) -> bytes:
    """The value as JSON text in UTF-8, without escapes, which would make text in most languages up to three times as long."""
    return json.dumps(value, default=plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def snapshot(value: Any) -> Any:
    """A copy of the value as plain lists and dicts; later changes to the original do not affect it."""
    return json.loads(encode(value))


def plain(value: Any) -> Any:
    """Converts one level of a value that JSON does not support; `json` calls it again for nested values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if callable(getattr(value, "model_dump", None)) and not isinstance(value, type):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return timestamp(value)
    if isinstance(value, (set, frozenset)):
        return list(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    raise TypeError(f"a `{type(value).__name__}` cannot be written as JSON")
