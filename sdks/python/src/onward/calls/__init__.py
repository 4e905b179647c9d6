"""Every operation of the clients as steps (see `protocol.py`): which requests it sends, and what it makes of the answers.

`Client` and `AsyncClient` only perform these; a route, a parameter and a rule therefore stand here once.

    tasks.py      tasks; and what can be done with a task or a run alike (`get`, `wait`, `result`, …)
    runs.py, workflows.py, triggers.py
    parts.py      what they share

**Idempotency.** If a response is lost, the server may have executed the request. To make a repeat safe, everything that
creates something generates an idempotency key when you give none. It protects one call. A program that may repeat a call
after its own crash should pass its own key, such as the order number.
"""

from __future__ import annotations

from typing import Any

from ..protocol import Query, Steps, send
from . import runs, tasks, triggers, workflows
from .parts import Listing, Ref
from .tasks import TaskOptions

__all__ = ["Listing", "Ref", "TaskOptions", "request", "runs", "tasks", "triggers", "workflows"]


def request(method: str, path: str, body: Any = None, *, query: Query = ()) -> Steps[Any]:
    """Calls any other route below `/api/v1` and returns its `data`. Retried only for `GET`, `PUT` and `DELETE`."""
    return (yield from send(method, path, body, query=list(query), repeatable=method not in ("POST", "PATCH"))).data
