"""Tasks, runs, workflows, triggers and events, as the API returns them.

Only common fields are attributes. `raw` has the whole response, including fields of later releases.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Generic, List, Mapping, Optional, TypeVar

TASK_ENDS = frozenset({"succeeded", "failed", "cancelled"})
RUN_ENDS = frozenset({"completed", "failed", "cancelled", "timeout"})

R = TypeVar("R", covariant=True)


@dataclass(frozen=True)
class Task(Generic[R]):
    """A task. Right after `submit` only `id`, `run_id`, `status` and `deduplicated` are set; `Client.get` returns the rest.

    `result` is plain JSON. `Client.result` builds `returns` from it, the type that the task's handler returns; it is known
    for a task that was submitted with its function.
    """

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
    returns: Any = field(default=None, repr=False, compare=False)

    @property
    def ended(self) -> bool:
        return self.status in TASK_ENDS

    @property
    def succeeded(self) -> bool:
        return self.status == "succeeded"

    @classmethod
    def of(cls, data: Dict[str, Any], returns: Any = None) -> "Task[Any]":
        return Task(
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
            returns=returns,
        )


@dataclass(frozen=True)
class Run:
    """A run of a workflow. Right after `trigger` without `wait` only `id`, `status` and `deduplicated` are known; lists leave
    out `input`, `output` and `steps`."""

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
class Approval:
    """A step that waits for a decision, and what approvers are shown. `shown_hash` stands for exactly that."""

    run_id: str
    workflow: str
    step: str
    prompt: str
    items: Any = None
    approvers: List[str] = field(default_factory=list)
    deadline: Optional[str] = None
    shown_hash: Optional[str] = None
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Approval":
        return cls(
            run_id=data["run_id"],
            workflow=data["workflow"],
            step=data["step"],
            prompt=data["prompt"],
            items=data.get("items"),
            approvers=data.get("approvers") or [],
            deadline=data.get("deadline"),
            shown_hash=data.get("shown_hash"),
            raw=data,
        )


@dataclass(frozen=True)
class Decision:
    """What was decided about an approval: `approved` or `denied`. `status` is that of the run afterwards; `repeated` says that
    the same was decided before."""

    run_id: str
    step: str
    decision: str
    status: str
    repeated: bool = False
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Decision":
        return cls(data["id"], data["step"], data["decision"], data["status"], bool(data.get("repeated")), data)


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


@dataclass(frozen=True)
class Workflow:
    """A workflow. Only `workflows.get` returns its `definition`."""

    id: str
    name: str
    slug: str
    version: int
    hash: str
    enabled: bool = True
    definition: Optional[Mapping[str, Any]] = None
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Workflow":
        return cls(
            id=data["id"],
            name=data["name"],
            slug=data["slug"],
            version=data["version"],
            hash=data["hash"],
            enabled=data.get("enabled", True),
            definition=data.get("definition"),
            raw=data,
        )


@dataclass(frozen=True)
class Validation:
    """Whether a definition is valid, and every problem in it."""

    valid: bool
    hash: Optional[str] = None
    form: Optional[str] = None
    steps: List[str] = field(default_factory=list)
    problems: List[Dict[str, Any]] = field(default_factory=list)
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Validation":
        return cls(data["valid"], data.get("hash"), data.get("form"), data.get("steps") or [], data.get("problems") or [], data)


@dataclass(frozen=True)
class Trigger:
    """A schedule, a webhook or a manual trigger of a workflow."""

    id: str
    name: str
    type: str
    workflow_id: str
    enabled: bool = True
    note: Optional[str] = None
    config: Dict[str, Any] = field(default_factory=dict)
    next_at: Optional[str] = None
    webhook_url: Optional[str] = None
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "Trigger":
        return cls(
            id=data["id"],
            name=data["name"],
            type=data["type"],
            workflow_id=data["workflow_id"],
            enabled=data.get("enabled", True),
            note=data.get("note"),
            config=data.get("config") or {},
            next_at=data.get("next_at"),
            webhook_url=data.get("webhook_url"),
            raw=data,
        )


@dataclass(frozen=True)
class BulkResult:
    """What `tasks.bulk` did, or would do. `tasks` has the first 100 ids; if `more` is true, call it again."""

    matched: int
    changed: int
    tasks: List[str] = field(default_factory=list)
    more: bool = False
    raw: Dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, data: Dict[str, Any]) -> "BulkResult":
        return cls(data["matched"], data["changed"], data.get("tasks") or [], bool(data.get("more")), data)
