"""The client: submit tasks, trigger runs, follow and cancel them.

Every method is one request (or several in sequence, when waiting). When it returns, the server has stored the change.

**Idempotency.** If a response is lost, the server may have executed the request. To make a repeat safe, `submit`,
`submit_many` and `trigger` generate an idempotency key when you give none. It protects one call. A program that may repeat
a call after its own crash should pass its own key, such as the order number.
"""

from __future__ import annotations

import time
import uuid
from datetime import datetime
from typing import Any, Dict, Iterable, Iterator, List, Optional, Tuple, Union
from urllib.parse import quote

from .errors import OnwardError, OnwardUnavailable, TaskFailed, WaitTimeout
from .models import Event, Run, Task
from .times import DurationLike, duration, seconds, timestamp
from .transport import Address, Transport

Ref = Union[str, Task, Run]
"""A task or a run, or the id of one."""

POLL = 20.0
PAGE = 500


class Client:
    """A client of one server. Threads may share it.

    `url` and `api_key` default to `ONWARD_URL` (else `http://127.0.0.1:7420`) and `ONWARD_API_KEY`. Requests that are safe
    to repeat are retried up to `retries` times. `timeout` limits the wait for one response.
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
        """Submits one task. It is durable when this returns; no worker needs to exist."""
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
        """Submits up to 10,000 tasks, all or none. Each is a dict with `type` and the arguments of `submit`."""
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
        """Starts a run of a workflow (its id, name or slug). With `wait` (at most 60 s) it returns the run when it has ended,
        or its current state after that time."""
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
        """The current state of a task or a run."""
        return self._read(ref)

    def wait(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Union[Task, Run]:
        """Waits for the end of a task or run, whatever the outcome; raises `WaitTimeout` after `timeout`."""
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            left = POLL if deadline is None else max(0.0, min(POLL, deadline - time.monotonic()))
            latest = self.wait_once(ref, left)
            if latest.ended:
                return latest
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(latest)

    def wait_once(self, ref: Ref, at_most: float) -> Union[Task, Run]:
        """One turn of waiting: returns the task or run when it has ended, or its state after `at_most` seconds."""
        begun = time.monotonic()
        if is_run(ref):
            self._until_end(id_of(ref), at_most)
            latest = self._read(ref)
        else:
            latest = self._read(ref, wait=at_most)
        if not latest.ended:
            # An early response, for example from a server that is stopping: do not start the next turn at once.
            time.sleep(max(0.0, min(0.2, begun + at_most - time.monotonic())))
        return latest

    def result(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Any:
        """Waits, and returns the result of a task (the output of a run); raises `TaskFailed` if there is none."""
        return result_of(self.wait(ref, timeout))

    def events(self, ref: Ref) -> Iterator[Event]:
        """All events so far, oldest first, fetched page by page."""
        cursor: Optional[str] = None
        while True:
            query = [("limit", str(PAGE))] if is_run(ref) else []  # the events of a task are not paged
            query += [("cursor", cursor)] if cursor else []
            document = self._transport.request("GET", f"{path_of(ref)}/events", query=query).document
            yield from map(Event.of, document["data"])
            cursor = document.get("next")
            if not cursor or not document["data"]:
                return

    def cancel(self, ref: Ref, reason: Optional[str] = None) -> Union[Task, Run]:
        """Cancels a task or run. Repeating it is safe; raises `OnwardError` (409) if it has ended otherwise."""
        self._transport.request("POST", f"{path_of(ref)}/cancel", {} if reason is None else {"reason": reason})
        return self._read(ref)

    def retry(self, ref: Ref) -> Union[Task, Run]:
        """Makes the next attempt of a task due now. Releases a failed task: returns a new task with the same content, the same
        one on every repeat. For a run, retries the steps that wait for their backoff."""
        data = self._transport.request("POST", f"{path_of(ref)}/retry", {}).data
        fresh = data.get("task_id") if isinstance(data, dict) else None
        return self._read(fresh or ref)

    def signal(self, run: Ref, name: str, payload: Any = None) -> Any:
        """Sends a signal to a run. Not retried if it may have arrived, because signals are not idempotent."""
        path = f"{path_of(run_of(run))}/signals/{quote(name, safe='')}"
        return self._transport.request("POST", path, payload, repeatable=False).data

    def explain(self, ref: Ref, step: Optional[str] = None) -> Dict[str, Any]:
        """Why a run or a task is in its current state, and which actions are possible."""
        if not is_run(ref):
            task = ref if isinstance(ref, Task) else Task.of(self._transport.request("GET", path_of(ref)).data)
            ref, step = task.run_id, step or task.step
        query = [("step", step)] if step else []
        explained: Dict[str, Any] = self._transport.request("GET", f"{path_of(ref)}/explain", query=query).data
        return explained

    def request(self, method: str, path: str, body: Any = None, *, query: Iterable[Tuple[str, str]] = ()) -> Any:
        """Calls any other route below `/api/v1` and returns its `data`. Retried only for `GET`, `PUT` and `DELETE`."""
        return self._transport.request(method, path, body, query=list(query), repeatable=method != "POST").data

    def close(self) -> None:
        """Closes its connections and aborts requests in other threads."""
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
        """Follows the events of a run until it ends, at most this long."""
        if at_most <= 0:
            return
        try:
            if "event: end" in self._transport.lines(f"/runs/{quote(run, safe='')}/stream", at_most):
                return
        except OnwardError as problem:
            if not isinstance(problem, OnwardUnavailable) and problem.status != 503:
                raise
            # Otherwise the caller looks at the run, and either calls again or gives up.


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
    """The body of `POST /tasks` for one task. Has only the given fields, so that the server's defaults apply."""
    unknown = set(others) - {"priority", "max_attempts", "retry", "concurrency_key", "labels", "callback_url"}
    if unknown:
        raise TypeError(f"a task has no field `{sorted(unknown)[0]}`")
    body: Dict[str, Any] = {"type": type, "payload": payload, "idempotency_key": idempotency_key or new_key()}
    body.update((name, value) for name, value in others.items() if value is not None)
    if run_at is not None:
        body["run_at"] = timestamp(run_at)
    if delay is not None:
        body["delay"] = duration(delay)
    if timeouts is not None:
        body["timeouts"] = {name: duration(value) for name, value in timeouts.items()}
    return body


def new_key() -> str:
    """A unique idempotency key."""
    return f"auto-{uuid.uuid4().hex}"


def is_run(ref: Ref) -> bool:
    return isinstance(ref, Run) or (isinstance(ref, str) and ref.startswith("run_"))


def id_of(ref: Ref) -> str:
    return ref if isinstance(ref, str) else ref.id


def run_of(ref: Ref) -> str:
    """The id of the run that a task or run belongs to."""
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
