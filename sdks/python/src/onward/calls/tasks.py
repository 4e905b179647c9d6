"""Tasks; and what can be done with a task or a run alike."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Mapping, Optional, TypedDict, Union
from urllib.parse import quote

from ..errors import OnwardError, TaskFailed, WaitTimeout
from ..inputs import InvalidInput, reader
from ..models import BulkResult, Event, Run, Task
from ..protocol import Sleep, Steps, send
from ..times import DurationLike, duration, seconds, timestamp
from .parts import Labels, Listing, Ref, Time, given, id_of, is_run, label_pairs, new_key, pairs, part, path_of

if TYPE_CHECKING:
    from typing_extensions import Literal

    from ..functions import TaskFunction

POLL = 20.0


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


def cancel(ref: Ref, reason: Optional[str] = None, compensate: bool = False) -> Steps[Any]:
    """Cancels a task or run. With `compensate`, it first undoes what it did. Repeating it is safe; raises `OnwardError` (409)
    if it has ended otherwise."""
    yield from send("POST", f"{path_of(ref)}/cancel", given(reason=reason, compensate=compensate or None))
    return (yield from get(ref))


def retry(
    ref: Ref,
    from_step: Optional[str] = None,
    allow_irreversible: bool = False,
    reason: Optional[str] = None,
) -> Steps[Any]:
    """Makes the next attempt of a task due now. Releases a failed task: returns a new task with the same content, the same
    one on every repeat. A run that failed or timed out goes on, with `from_step` from an earlier step; one that is open
    retries the steps that wait for their backoff."""
    options = {"from": from_step, "allow_irreversible": allow_irreversible or None, "reason": reason}
    data = (yield from send("POST", f"{path_of(ref)}/retry", given(**options))).data
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


def list_all(
    *,
    type: Optional[str] = None,
    status: Optional[str] = None,
    labels: Optional[Labels] = None,
    since: Optional[Time] = None,
    until: Optional[Time] = None,
) -> Listing[Task[Any]]:
    """Tasks, newest first, fetched page by page. `type` may end in `%`."""
    return Listing("/tasks", Task.of, [*pairs(type=type, status=status, since=since, until=until), *label_pairs(labels)])


def delete(task: Union[str, Task[Any]]) -> Steps[None]:
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
