"""The producer's side: hand in work, follow it, stop it.

Every method is one request (or one after another, when waiting), and what it returns the server has stored.

**Sending twice.** A request whose answer is lost may have been carried out. So that it can be sent again without doing the
work twice, `submit`, `submit_many` and `trigger` make up an idempotency key when you give none. It protects one call; a
program that may call again after its own crash should give a key of its own, such as the order's number.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Union
from urllib.parse import quote

from .errors import OnwardError, OnwardUnavailable, TaskFailed, WaitTimeout
from .models import Event, Run, Task
from .times import DurationLike, duration, moment, seconds
from .transport import Address, Transport

Ref = Union[str, Task, Run]
"""A task or a run, or the id of one."""

POLL = 20.0
PAGE = 500


class Client:
    """A connection to a server. Threads may share it.

    `url` and `api_key` default to `ONWARD_URL` (else `http://127.0.0.1:7420`) and `ONWARD_API_KEY`. Requests that can be
    repeated safely are sent up to `retries` more times; `timeout` is for one answer.
    """

    def __init__(self, url: Optional[str] = None, api_key: Optional[str] = None, *, timeout: float = 30.0, retries: int = 5) -> None:
        self.address = Address.of(url, api_key)
        self._transport = Transport(self.address, timeout, retries)

    def submit(
        self,
        type: str,
        payload: Any = None,
        *,
        priority: Optional[int] = None,
        run_at: Union[str, datetime, None] = None,
        delay: Optional[DurationLike] = None,
        max_attempts: Optional[int] = None,
        retry: Union[str, Dict[str, Any], None] = None,
        timeouts: Optional[Dict[str, DurationLike]] = None,
        concurrency_key: Optional[str] = None,
        labels: Optional[Dict[str, str]] = None,
        idempotency_key: Optional[str] = None,
        callback_url: Optional[str] = None,
    ) -> Task:
        """Records one task; it is durable when this returns, whether or not a worker exists."""
        body = task_body(
            type,
            payload,
            priority=priority,
            run_at=run_at,
            delay=delay,
            max_attempts=max_attempts,
            retry=retry,
            timeouts=timeouts,
            concurrency_key=concurrency_key,
            labels=labels,
            idempotency_key=idempotency_key,
            callback_url=callback_url,
        )
        return Task.of(self._transport.request("POST", "/tasks", body).data)

    def submit_many(self, tasks: Iterable[Dict[str, Any]]) -> List[Task]:
        """Records up to 10,000 tasks, all or none. Each is a dict with `type` and the arguments of `submit`."""
        bodies = [task_body(**task) for task in tasks]
        if not bodies:
            return []
        return [Task.of(each) for each in self._transport.request("POST", "/tasks", bodies).data]

    def trigger(
        self,
        workflow: str,
        body: Any = None,
        *,
        wait: Optional[DurationLike] = None,
        idempotency_key: Optional[str] = None,
        labels: Optional[Dict[str, str]] = None,
    ) -> Run:
        """Starts a run of a workflow (its id, name or slug). With `wait` (at most 60 s) the run comes back as it is when it
        has ended, or after that time."""
        query = [("label", f"{name}:{value}") for name, value in (labels or {}).items()]
        if wait is not None:
            query.append(("wait", duration(wait)))
        answer = self._transport.request(
            "POST",
            f"/workflows/{quote(workflow, safe='')}/trigger",
            body,
            query=query,
            headers={"Idempotency-Key": idempotency_key or new_key()},
            wait=seconds(wait or 0),
        )
        return Run.of({**answer.data, **({"deduplicated": True} if answer.status == 200 else {})})

    def get(self, ref: Ref) -> Union[Task, Run]:
        """A task or a run as it is now."""
        return self._read(ref)

    def wait(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Union[Task, Run]:
        """The task or run once it has ended, however it ended; `WaitTimeout` if that takes longer than `timeout`."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            left = POLL if deadline is None else max(0.0, min(POLL, deadline - time.monotonic()))
            latest = self.wait_once(ref, left)
            if latest.ended:
                return latest
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(latest)

    def wait_once(self, ref: Ref, at_most: float) -> Union[Task, Run]:
        """One turn of waiting: the task or run when it has ended, or as it is after `at_most` seconds."""
        begun = time.monotonic()
        if is_run(ref):
            self._until_end(id_of(ref), at_most)
            latest = self._read(ref)
        else:
            latest = self._read(ref, wait=at_most)
        if not latest.ended:
            # Answered early, for example by a server that is stopping: the next turn must not come at once.
            time.sleep(max(0.0, min(0.2, begun + at_most - time.monotonic())))
        return latest

    def result(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Any:
        """Waits, and gives the result of a task (the output of a run); `TaskFailed` if there is none."""
        return result_of(self.wait(ref, timeout))

    def events(self, ref: Ref) -> Iterator[Event]:
        """Everything that happened so far, oldest first, page by page."""
        cursor: Optional[str] = None
        while True:
            query = [("limit", str(PAGE))] if is_run(ref) else []  # a task's events come all at once
            query += [("cursor", cursor)] if cursor else []
            document = self._transport.request("GET", f"{path_of(ref)}/events", query=query).document
            yield from map(Event.of, document["data"])
            cursor = document.get("next")
            if not cursor or not document["data"]:
                return

    def cancel(self, ref: Ref, reason: Optional[str] = None) -> Union[Task, Run]:
        """Cancels it. Again is fine; `OnwardError` (409) if it ended another way."""
        self._transport.request("POST", f"{path_of(ref)}/cancel", {} if reason is None else {"reason": reason})
        return self._read(ref)

    def retry(self, ref: Ref) -> Union[Task, Run]:
        """A task that waits for its next attempt is due now. A failed one is released: a new task with the same content
        comes back, the same one however often you ask. A run tries the steps that wait for their next attempt."""
        data = self._transport.request("POST", f"{path_of(ref)}/retry", {}).data
        fresh = data.get("task_id") if isinstance(data, dict) else None
        return self._read(fresh or ref)

    def signal(self, run: Ref, name: str, payload: Any = None) -> Any:
        """Sends a signal to a run. Not repeated if it may have arrived: two signals are not one."""
        path = f"{path_of(run_of(run))}/signals/{quote(name, safe='')}"
        return self._transport.request("POST", path, payload, repeatable=False).data

    def explain(self, ref: Ref, step: Optional[str] = None) -> Dict[str, Any]:
        """Why a run or a task is where it is, and what can be done about it."""
        if not is_run(ref):
            task = ref if isinstance(ref, Task) else Task.of(self._transport.request("GET", path_of(ref)).data)
            ref, step = task.run_id, step or task.step
        query = [("step", step)] if step else []
        explained: Dict[str, Any] = self._transport.request("GET", f"{path_of(ref)}/explain", query=query).data
        return explained

    def request(self, method: str, path: str, body: Any = None, *, query: Iterable[Tuple[str, str]] = ()) -> Any:
        """Any other route below `/api/v1`: the `data` of its answer. Repeated only if it is a `GET`, `PUT` or `DELETE`."""
        return self._transport.request(method, path, body, query=list(query), repeatable=method != "POST").data

    def close(self) -> None:
        """Closes its connections; requests under way in other threads are broken off."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, ref: Ref, wait: float = 0.0) -> Union[Task, Run]:
        query = [("wait", duration(wait))] if wait > 0 else []
        data = self._transport.request("GET", path_of(ref), query=query, wait=wait).data
        return Run.of(data) if is_run(ref) else Task.of(data)

    def _until_end(self, run: str, at_most: float) -> None:
        """Listens to a run's events until the end, or for so long."""
        if at_most <= 0:
            return
        try:
            if "event: end" in self._transport.lines(f"/runs/{quote(run, safe='')}/stream", at_most):
                return
        except OnwardError as problem:
            if not isinstance(problem, OnwardUnavailable) and problem.status != 503:
                raise
            # Otherwise the caller looks at the run, and either comes back or gives up.


def task_body(
    type: str,
    payload: Any = None,
    *,
    run_at: Union[str, datetime, None] = None,
    delay: Optional[DurationLike] = None,
    timeouts: Optional[Dict[str, DurationLike]] = None,
    idempotency_key: Optional[str] = None,
    **others: Any,
) -> Dict[str, Any]:
    """One task as `POST /tasks` takes it: only what was given, so that the server's defaults stay the server's."""
    unknown = set(others) - {"priority", "max_attempts", "retry", "concurrency_key", "labels", "callback_url"}
    if unknown:
        raise TypeError(f"a task has no field `{sorted(unknown)[0]}`")
    body: Dict[str, Any] = {"type": type, "payload": payload, "idempotency_key": idempotency_key or new_key()}
    body.update((name, value) for name, value in others.items() if value is not None)
    if run_at is not None:
        body["run_at"] = moment(run_at)
    if delay is not None:
        body["delay"] = duration(delay)
    if timeouts is not None:
        body["timeouts"] = {name: duration(value) for name, value in timeouts.items()}
    return body


def new_key() -> str:
    """An idempotency key that nobody else has."""
    return f"auto-{uuid.uuid4().hex}"


def is_run(ref: Ref) -> bool:
    return isinstance(ref, Run) or (isinstance(ref, str) and ref.startswith("run_"))


def id_of(ref: Ref) -> str:
    return ref if isinstance(ref, str) else ref.id


def run_of(ref: Ref) -> str:
    """The run something belongs to."""
    if isinstance(ref, Task):
        return ref.run_id
    if not is_run(ref):
        raise ValueError(f"`{id_of(ref)}` is not a run")
    return id_of(ref)


def path_of(ref: Ref) -> str:
    return f"/{'runs' if is_run(ref) else 'tasks'}/{quote(id_of(ref), safe='')}"


def result_of(ended: Union[Task, Run]) -> Any:
    if not ended.succeeded:
        raise TaskFailed(ended)
    return ended.result
