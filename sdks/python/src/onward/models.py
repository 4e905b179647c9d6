"""Tasks, runs and events, as the API returns them.

Only common fields are attributes. `raw` has the whole response, including fields of later releases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Optional

TASK_ENDS = frozenset({"succeeded", "failed", "cancelled"})
RUN_ENDS = frozenset({"completed", "failed", "cancelled", "timeout"})


@dataclass(frozen=True)
class Task:
    """A task. Right after `submit` only `id`, `run_id`, `status` and `deduplicated` are set; `Client.get` returns the rest."""

    id: str
    run_id: str
    status: str
    type: Optional[str] = None
    input: Any = None
    result: Any = None
    error: Optional[Dict[str, Any]] = None
    attempt: int = 0
    max_attempts: Optional[int] = None
    progress: Any = None
    labels: Dict[str, str] = field(default_factory=dict)
    step: Optional[str] = None
    deduplicated: bool = False
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.status in TASK_ENDS

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Task":
        return cls(
            id=data.get("id") or data["task_id"],
            run_id=data.get("run_id", ""),
            status=data.get("status", "pending"),
            type=data.get("type"),
            input=data.get("input"),
            result=data.get("result"),
            error=data.get("error"),
            attempt=data.get("attempt") or 0,
            max_attempts=data.get("max_attempts"),
            progress=data.get("progress"),
            labels=data.get("labels") or {},
            step=data.get("step"),
            deduplicated=bool(data.get("deduplicated")),
            raw=data,
        )


@dataclass(frozen=True)
class Run:
    """A run of a workflow. Right after `trigger` without `wait` only `id`, `status` and `deduplicated` are known."""

    id: str
    status: str
    workflow: Optional[str] = None
    input: Any = None
    output: Any = None
    error: Optional[Dict[str, Any]] = None
    steps: Dict[str, Any] = field(default_factory=dict)
    deduplicated: bool = False
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.status in RUN_ENDS

    @property
    def succeeded(self) -> bool:
        return self.status == "completed"

    @property
    def result(self) -> Any:
        """The output of the run, under the same name as the result of a task."""
        return self.output

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Run":
        return cls(
            id=data.get("id") or data["run_id"],
            status=data.get("status", "running"),
            workflow=data.get("workflow"),
            input=data.get("input"),
            output=data.get("output"),
            error=data.get("error"),
            steps=data.get("tasks") or {},
            deduplicated=bool(data.get("deduplicated")),
            raw=data,
        )


@dataclass(frozen=True)
class Event:
    """One line of the history; `seq` counts 1..n without gaps."""

    seq: int
    at: str
    type: str
    step: Optional[str] = None
    attempt: Optional[int] = None
    data: Dict[str, Any] = field(default_factory=dict)
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Event":
        return cls(
            seq=data["seq"],
            at=data["at"],
            type=data["type"],
            step=data.get("step"),
            attempt=data.get("attempt"),
            data=data.get("data") or {},
            raw=data,
        )
