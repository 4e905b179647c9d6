"""Every operation of the clients as steps (see `protocol.py`): which requests it sends, and what it makes of the answers.

`Client` and `AsyncClient` only perform these; a route, a parameter and a rule therefore stand here once.

**Idempotency.** If a response is lost, the server may have executed the request. To make a repeat safe, everything that
creates something generates an idempotency key when you give none. It protects one call. A program that may repeat a call
after its own crash should pass its own key, such as the order number.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any, Callable, Dict, Generic, Iterable, List, Mapping, Optional, TypedDict, TypeVar, Union
from urllib.parse import quote

from .errors import OnwardError, TaskFailed, WaitTimeout
from .inputs import InvalidInput, reader
from .models import BulkResult, Event, Run, Task, Trigger, Validation, Workflow
from .protocol import Answer, Query, Request, Sleep, Steps, send
from .times import DurationLike, duration, seconds, timestamp
from .values import encode

if TYPE_CHECKING:
    from typing_extensions import Literal

    from .functions import TaskFunction

T = TypeVar("T")
Time = Union[str, datetime]
Labels = Mapping[str, str]
Ref = Union[str, Task[Any], Run]
"""A task or a run, or the id of one."""
Definition = Union[str, Mapping[str, Any]]
"""The definition of a workflow: a dict, or its text in YAML or JSON."""

POLL = 20.0
PAGE = 500


class TaskOptions(TypedDict, total=False):
    """What `submit` takes besides type and payload; the fields of `POST /tasks`. `timeout` is short for
    `timeouts={"attempt": …}`."""

    priority: Optional[int]
    run_at: Optional[Time]
    delay: Optional[DurationLike]
    max_attempts: Optional[int]
    retry: Union[str, Mapping[str, Any], None]
    timeout: Optional[DurationLike]
    timeouts: Optional[Mapping[str, DurationLike]]
    concurrency_key: Optional[str]
    labels: Optional[Labels]
    idempotency_key: Optional[str]
    callback_url: Optional[str]


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


# Tasks and runs.


def submit(type: Union[str, "TaskFunction[..., Any, Any, Any]"], payload: Any = None, **options: Any) -> Steps[Task[Any]]:
    """Submits one task. It is durable when this returns; no worker needs to exist."""
    returns = None
    if not isinstance(type, str):
        options, returns, type = type.options(options), type.returns, type.type
    answer = yield from send("POST", "/tasks", task_body(type, payload, **options))
    return Task.of(answer.data, returns)


def submit_many(tasks: Iterable[Mapping[str, Any]]) -> Steps[List[Task[Any]]]:
    """Submits up to 10,000 tasks, all or none. Each is a dict with `type` and the arguments of `submit`."""
    bodies = [task_body(**task) for task in tasks]
    if not bodies:
        return []
    return [Task.of(each) for each in (yield from send("POST", "/tasks", bodies)).data]


def get(ref: Ref, wait: float = 0.0) -> Steps[Any]:
    """The current state of a task or a run."""
    query = [("wait", duration(wait))] if wait > 0 else []
    data = (yield from send("GET", path_of(ref), query=query, wait=wait)).data
    return Run.of(data) if is_run(ref) else Task.of(data, ref.returns if isinstance(ref, Task) else None)


def get_task(task: Union[str, Task[Any]]) -> Steps[Task[Any]]:
    """The current state of a task."""
    return Task.of((yield from send("GET", f"/tasks/{part(task)}")).data, task.returns if isinstance(task, Task) else None)


def get_run(run: Union[str, Run]) -> Steps[Run]:
    """The current state of a run."""
    return Run.of((yield from send("GET", f"/runs/{part(run)}")).data)


def wait(ref: Ref, timeout: Optional[DurationLike] = None) -> Steps[Any]:
    """Waits for the end of a task or run, whatever the outcome; raises `WaitTimeout` after `timeout`."""
    deadline = None if timeout is None else time.monotonic() + seconds(timeout)
    while True:
        begun = time.monotonic()
        left = POLL if deadline is None else max(0.0, min(POLL, deadline - begun))
        latest = yield from get(ref, left)
        if latest.ended:
            return latest
        if deadline is not None and time.monotonic() >= deadline:
            raise WaitTimeout(latest)
        # After an early response, for example from a server that is stopping, do not ask again at once.
        yield Sleep(max(0.0, min(0.2, begun + left - time.monotonic())))


def result(ref: Ref, timeout: Optional[DurationLike] = None, type: Any = None) -> Steps[Any]:
    """Waits, and returns the result of a task (the output of a run); raises `TaskFailed` if there is none. The result is built
    as `type` or, without it, as what the function returns that the task was submitted with; else it is plain JSON."""
    ended = yield from wait(ref, timeout)
    if not ended.succeeded:
        raise TaskFailed(ended)
    kind = type if type is not None else getattr(ended, "returns", None)
    if kind is None:
        return ended.result
    try:
        return reader(kind)(ended.result)
    except InvalidInput as problem:
        place = f"the result of `{ended.id}`" + (f", `{problem.path}`" if problem.path else "")
        raise OnwardError("invalid_result", f"{place}: {problem.message}") from problem


def events(ref: Ref) -> Listing[Event]:
    """All events so far, oldest first, fetched page by page."""
    return Listing(f"{path_of(ref)}/events", Event.of, (), is_paged=is_run(ref))  # the events of a task are not paged


def stream_path(ref: Ref) -> Steps[str]:
    """The path of the stream of the run that a task or run belongs to."""
    if isinstance(ref, str) and not is_run(ref):
        ref = yield from get_task(ref)
    return f"/runs/{quote(ref.run_id if isinstance(ref, Task) else id_of(ref), safe='')}/stream"


def cancel(ref: Ref, reason: Optional[str] = None) -> Steps[Any]:
    """Cancels a task or run. Repeating it is safe; raises `OnwardError` (409) if it has ended otherwise."""
    yield from send("POST", f"{path_of(ref)}/cancel", given(reason=reason))
    return (yield from get(ref))


def retry(ref: Ref) -> Steps[Any]:
    """Makes the next attempt of a task due now. Releases a failed task: returns a new task with the same content, the same
    one on every repeat. For a run, retries the steps that wait for their backoff."""
    data = (yield from send("POST", f"{path_of(ref)}/retry", {})).data
    fresh = data.get("task_id") if isinstance(data, dict) else None
    if not fresh:
        return (yield from get(ref))
    return Task.of((yield from send("GET", path_of(fresh))).data, ref.returns if isinstance(ref, Task) else None)


def explain(ref: Ref, step: Optional[str] = None) -> Steps[Dict[str, Any]]:
    """Why a run or a task is in its current state, and which actions are possible."""
    if not is_run(ref):
        task = ref if isinstance(ref, Task) and ref.step else (yield from get_task(id_of(ref)))
        ref, step = task.run_id, step or task.step
    data: Dict[str, Any] = (yield from send("GET", f"{path_of(ref)}/explain", query=pairs(step=step))).data
    return data


def list_tasks(
    *,
    type: Optional[str] = None,
    status: Optional[str] = None,
    labels: Optional[Labels] = None,
    since: Optional[Time] = None,
    until: Optional[Time] = None,
) -> Listing[Task[Any]]:
    """Tasks, newest first, fetched page by page. `type` may end in `%`."""
    return Listing("/tasks", Task.of, [*pairs(type=type, status=status, since=since, until=until), *label_pairs(labels)])


def delete_task(task: Union[str, Task[Any]]) -> Steps[None]:
    """Deletes a task; an open one is cancelled."""
    yield from send("DELETE", f"/tasks/{part(task)}")


def bulk(
    action: "Literal['cancel', 'retry', 'delete']",
    *,
    type: Optional[str] = None,
    status: Optional[str] = None,
    labels: Optional[Labels] = None,
    since: Optional[Time] = None,
    until: Optional[Time] = None,
    dry_run: bool = False,
) -> Steps[BulkResult]:
    """Cancels, retries or deletes all tasks that match, up to 10,000 at a time. With `dry_run` it only counts them."""
    chosen = dict([*pairs(type=type, status=status, since=since, until=until), *label_pairs(labels)])
    if len(labels or {}) > 1:
        raise ValueError("a bulk request filters by one label at most")
    if not chosen:
        raise ValueError('this would change every task: give a filter; `type="%"` selects all of them')
    return BulkResult.of((yield from send("POST", "/tasks/bulk", {"action": action, "filter": chosen, "dry_run": dry_run})).data)


def list_runs(
    *,
    workflow: Optional[str] = None,
    type: Optional[str] = None,
    status: Optional[str] = None,
    labels: Optional[Labels] = None,
    since: Optional[Time] = None,
    until: Optional[Time] = None,
) -> Listing[Run]:
    """Runs, newest first, fetched page by page. `status` may name several: `failed,timeout`."""
    query = pairs(workflow=workflow, type=type, status=status, since=since, until=until)
    return Listing("/runs", Run.of, [*query, *label_pairs(labels)])


def cancel_run(run: Union[str, Run], reason: Optional[str] = None) -> Steps[Run]:
    """Cancels a run. Repeating it is safe; raises `OnwardError` (409) if it has ended otherwise."""
    yield from send("POST", f"/runs/{part(run)}/cancel", given(reason=reason))
    return (yield from get_run(run))


def replay_run(
    run: Union[str, Run], *, version: "Literal['pinned', 'latest']" = "pinned", idempotency_key: Optional[str] = None
) -> Steps[Run]:
    """Starts a new run with the input of an old one, on the same version of the workflow or on the latest."""
    return started((yield from send("POST", f"/runs/{part(run)}/replay", {"version": version}, key=idempotency_key or new_key())))


def pause_run(run: Union[str, Run], note: Optional[str] = None) -> Steps[Run]:
    """No further step of the run starts until it is resumed."""
    yield from send("POST", f"/runs/{part(run)}/pause", given(note=note))
    return (yield from get_run(run))


def resume_run(run: Union[str, Run]) -> Steps[Run]:
    """A paused run continues."""
    yield from send("POST", f"/runs/{part(run)}/resume", {})
    return (yield from get_run(run))


def delete_run(run: Union[str, Run]) -> Steps[None]:
    """Erases a run that has ended."""
    yield from send("DELETE", f"/runs/{part(run)}")


# Workflows.


def trigger(
    workflow: Union[str, Workflow],
    body: Any = None,
    *,
    wait: Optional[DurationLike] = None,
    idempotency_key: Optional[str] = None,
    labels: Optional[Labels] = None,
    callback_url: Optional[str] = None,
) -> Steps[Run]:
    """Starts a run of a workflow (its id, name or slug). With `wait` (at most 60 s) it returns the run when it has ended,
    or its current state after that time."""
    query = [*label_pairs(labels), *pairs(callback_url=callback_url)]
    if wait is not None:
        query.append(("wait", duration(wait)))
    path, key = f"/workflows/{part(workflow)}/trigger", idempotency_key or new_key()
    return started((yield from send("POST", path, body, query=query, key=key, wait=seconds(wait or 0))))


def create_workflow(definition: Definition, *, idempotency_key: Optional[str] = None) -> Steps[Workflow]:
    """Stores a workflow; raises `OnwardError` with every problem of the definition."""
    return Workflow.of((yield written("POST", "/workflows", definition, key=idempotency_key or new_key())).data)


def update_workflow(
    workflow: Union[str, Workflow], definition: Definition, *, expected_hash: Optional[str] = None
) -> Steps[Workflow]:
    """Replaces the definition, which makes a new version; or changes `name`, `slug`, `description`, `tags` and `enabled` only.
    With `expected_hash` it is refused (412) if the workflow was changed in the meantime."""
    query = pairs(expected_hash=expected_hash)
    return Workflow.of((yield written("PUT", f"/workflows/{part(workflow)}", definition, query)).data)


def validate_workflow(definition: Definition) -> Steps[Validation]:
    """Checks a definition and stores nothing."""
    return Validation.of((yield written("POST", "/workflows/validate", definition)).data)


def get_workflow(workflow: Union[str, Workflow], *, version: Union[int, str, None] = None) -> Steps[Workflow]:
    """A workflow with its definition: the current one, or that of a version (a number or a hash)."""
    return Workflow.of((yield from send("GET", f"/workflows/{part(workflow)}", query=pairs(version=version))).data)


def list_workflows(*, name: Optional[str] = None) -> Listing[Workflow]:
    """Workflows, newest first, fetched page by page. `name` is a prefix."""
    return Listing("/workflows", Workflow.of, pairs(name=name))


def delete_workflow(workflow: Union[str, Workflow], *, expected_hash: Optional[str] = None) -> Steps[None]:
    """Deletes a workflow. Its open runs finish."""
    yield from send("DELETE", f"/workflows/{part(workflow)}", query=pairs(expected_hash=expected_hash))


def enable_workflow(workflow: Union[str, Workflow]) -> Steps[Workflow]:
    """Allows new runs."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/enable")).data)


def disable_workflow(workflow: Union[str, Workflow]) -> Steps[Workflow]:
    """Refuses new runs."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/disable")).data)


def pause_workflow(workflow: Union[str, Workflow], note: Optional[str] = None) -> Steps[Workflow]:
    """New runs are accepted and stay `pending` until it is resumed."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/pause", given(note=note))).data)


def resume_workflow(workflow: Union[str, Workflow]) -> Steps[Workflow]:
    """Pending runs start."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/resume", {})).data)


# Triggers.


def create_trigger(
    name: str,
    type: "Literal['schedule', 'webhook', 'manual']",
    workflow: Union[str, Workflow],
    *,
    config: Optional[Mapping[str, Any]] = None,
    variable_mapping: Optional[Mapping[str, str]] = None,
    enabled: Optional[bool] = None,
    note: Optional[str] = None,
    idempotency_key: Optional[str] = None,
) -> Steps[Trigger]:
    """Creates a trigger: `create("nightly", "schedule", "report", config={"cron": "30 2 * * *"})`."""
    fields = given(config=config, variable_mapping=variable_mapping, enabled=enabled, note=note)
    body = {"name": name, "type": type, "workflow": id_of(workflow), **fields}
    return Trigger.of((yield from send("POST", "/triggers", body, key=idempotency_key or new_key())).data)


def list_triggers(*, type: Optional[str] = None, workflow: Union[str, Workflow, None] = None) -> Listing[Trigger]:
    """Triggers, newest first, fetched page by page."""
    return Listing("/triggers", Trigger.of, pairs(type=type, workflow=None if workflow is None else id_of(workflow)))


def get_trigger(trigger: Union[str, Trigger]) -> Steps[Trigger]:
    """A trigger by its id."""
    return Trigger.of((yield from send("GET", f"/triggers/{part(trigger)}")).data)


def enable_trigger(trigger: Union[str, Trigger], note: Optional[str] = None) -> Steps[Trigger]:
    """A schedule counts from now; earlier fire times are not caught up on."""
    return Trigger.of((yield from send("POST", f"/triggers/{part(trigger)}/enable", given(note=note))).data)


def disable_trigger(trigger: Union[str, Trigger], note: Optional[str] = None) -> Steps[Trigger]:
    """The trigger starts no run until it is enabled."""
    return Trigger.of((yield from send("POST", f"/triggers/{part(trigger)}/disable", given(note=note))).data)


def run_trigger(trigger: Union[str, Trigger], variables: Any = None, *, idempotency_key: Optional[str] = None) -> Steps[Run]:
    """Fires a trigger now; `variables` is the body of the run."""
    path, body = f"/triggers/{part(trigger)}/run", given(variables=variables)
    return started((yield from send("POST", path, body, key=idempotency_key or new_key())))


def delete_trigger(trigger: Union[str, Trigger]) -> Steps[None]:
    """Deletes a trigger with its log."""
    yield from send("DELETE", f"/triggers/{part(trigger)}")


def request(method: str, path: str, body: Any = None, *, query: Query = ()) -> Steps[Any]:
    """Calls any other route below `/api/v1` and returns its `data`. Retried only for `GET`, `PUT` and `DELETE`."""
    return (yield from send(method, path, body, query=list(query), repeatable=method not in ("POST", "PATCH"))).data


# Helpers.


def task_body(
    type: str,
    payload: Any = None,
    *,
    run_at: Optional[Time] = None,
    delay: Optional[DurationLike] = None,
    timeout: Optional[DurationLike] = None,
    timeouts: Optional[Mapping[str, DurationLike]] = None,
    idempotency_key: Optional[str] = None,
    **others: Any,
) -> Dict[str, Any]:
    """The body of `POST /tasks` for one task. Has only the given fields, so that the server's defaults apply."""
    unknown = set(others) - {"priority", "max_attempts", "retry", "concurrency_key", "labels", "callback_url"}
    if unknown:
        raise TypeError(f"a task has no field `{sorted(unknown)[0]}`")
    body: Dict[str, Any] = {"type": type, "payload": payload, "idempotency_key": idempotency_key or new_key()}
    body.update(given(**others))
    if run_at is not None:
        body["run_at"] = timestamp(run_at)
    if delay is not None:
        body["delay"] = duration(delay)
    limits = {**({} if timeout is None else {"attempt": timeout}), **(timeouts or {})}
    if limits:
        body["timeouts"] = {name: duration(value) for name, value in limits.items()}
    return body


def started(answer: Answer) -> Run:
    """A run that was just created; or, with status 200, by an earlier request with the same key."""
    return Run.of({**answer.data, **({"deduplicated": True} if answer.status == 200 else {})})


def written(method: str, path: str, definition: Definition, query: Query = (), key: Optional[str] = None) -> Request:
    """A request with a definition. Text is sent as YAML, which JSON is a part of."""
    headers = {} if key is None else {"Idempotency-Key": key}
    if isinstance(definition, str):
        return Request(method, path, definition.encode(), "application/yaml", query, headers)
    return Request(method, path, encode(definition), query=query, headers=headers)


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
