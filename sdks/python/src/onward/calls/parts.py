"""What the operations share: references to objects, queries, lists, and runs that were just started."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any, Callable, Dict, Generic, List, Mapping, Optional, TypeVar, Union
from urllib.parse import quote

from ..models import Run, Task, Trigger, Workflow
from ..protocol import Answer, Query, Steps, send
from ..times import timestamp

T = TypeVar("T")
Time = Union[str, datetime]
Labels = Mapping[str, str]
Ref = Union[str, Task[Any], Run]
"""A task or a run, or the id of one."""

PAGE = 500


class Listing(Generic[T]):
    """A list that the server returns page by page."""

    def __init__(self, path: str, read: Callable[[Dict[str, Any]], T], query: Query, is_paged: bool = True) -> None:
        self.has_more = True
        self._path = path
        self._read = read
        self._query = [*query, *([("limit", str(PAGE))] if is_paged else [])]
        self._cursor: Optional[str] = None

    def page(self) -> Steps[List[T]]:
        """The next page."""
        query = [*self._query, *([("cursor", self._cursor)] if self._cursor else [])]
        document = (yield from send("GET", self._path, query=query)).document
        self._cursor = document.get("next")
        self.has_more = bool(self._cursor and document["data"])
        return [self._read(each) for each in document["data"]]


def started(answer: Answer) -> Run:
    """A run that was just created; or, with status 200, by an earlier request with the same key."""
    return Run.of({**answer.data, **({"deduplicated": True} if answer.status == 200 else {})})


def new_key() -> str:
    """A unique idempotency key."""
    return f"auto-{uuid.uuid4().hex}"


def given(**fields: Any) -> Dict[str, Any]:
    """The fields that are not `None`."""
    return {name: value for name, value in fields.items() if value is not None}


def pairs(**fields: Any) -> Query:
    """The parameters of a query that are not `None`."""
    return [(name, timestamp(value) if isinstance(value, datetime) else str(value)) for name, value in given(**fields).items()]


def label_pairs(labels: Optional[Labels]) -> Query:
    return [("label", f"{name}:{value}") for name, value in (labels or {}).items()]


def is_run(ref: Ref) -> bool:
    return isinstance(ref, Run) or (isinstance(ref, str) and ref.startswith("run_"))


def id_of(ref: Union[str, Task[Any], Run, Workflow, Trigger]) -> str:
    return ref if isinstance(ref, str) else ref.id


def part(ref: Union[str, Task[Any], Run, Workflow, Trigger]) -> str:
    """An id or a name as one part of a path."""
    return quote(id_of(ref), safe="")


def path_of(ref: Ref) -> str:
    return f"/{'runs' if is_run(ref) else 'tasks'}/{part(ref)}"
