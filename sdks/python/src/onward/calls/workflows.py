"""Workflows: definitions, and their runs."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Union

from ..models import Run, Validation, Workflow
from ..protocol import Query, Request, Steps, send
from ..times import DurationLike, duration, seconds
from ..values import encode
from .parts import Labels, Listing, given, label_pairs, new_key, pairs, part, started

Definition = Union[str, Mapping[str, Any]]
"""The definition of a workflow: a dict, or its text in YAML or JSON."""


def trigger(
    workflow: Union[str, Workflow],
    body: Any = None,
    *,
    wait: Optional[DurationLike] = None,
    idempotency_key: Optional[str] = None,
    labels: Optional[Labels] = None,
    callback_url: Optional[str] = None,
    actor: Optional[str] = None,
) -> Steps[Run]:
    """Starts a run of a workflow (its id, name or slug). With `wait` (at most 60 s) it returns the run when it has ended,
    or its current state after that time. `actor` is who starts it: an approval can exclude that person."""
    query = [*label_pairs(labels), *pairs(callback_url=callback_url, actor=actor)]
    if wait is not None:
        query.append(("wait", duration(wait)))
    path, key = f"/workflows/{part(workflow)}/trigger", idempotency_key or new_key()
    return started((yield from send("POST", path, body, query=query, key=key, wait=seconds(wait or 0))))


def create(definition: Definition, *, idempotency_key: Optional[str] = None) -> Steps[Workflow]:
    """Stores a workflow; raises `OnwardError` with every problem of the definition."""
    return Workflow.of((yield written("POST", "/workflows", definition, key=idempotency_key or new_key())).data)


def update(
    workflow: Union[str, Workflow], definition: Definition, *, expected_hash: Optional[str] = None
) -> Steps[Workflow]:
    """Replaces the definition, which makes a new version; or changes `name`, `slug`, `description`, `tags` and `enabled` only.
    With `expected_hash` it is refused (412) if the workflow was changed in the meantime."""
    query = pairs(expected_hash=expected_hash)
    return Workflow.of((yield written("PUT", f"/workflows/{part(workflow)}", definition, query)).data)


def validate(definition: Definition) -> Steps[Validation]:
    """Checks a definition and stores nothing."""
    return Validation.of((yield written("POST", "/workflows/validate", definition)).data)


def get(workflow: Union[str, Workflow], *, version: Union[int, str, None] = None) -> Steps[Workflow]:
    """A workflow with its definition: the current one, or that of a version (a number or a hash)."""
    return Workflow.of((yield from send("GET", f"/workflows/{part(workflow)}", query=pairs(version=version))).data)


def list_all(*, name: Optional[str] = None) -> Listing[Workflow]:
    """Workflows, newest first, fetched page by page. `name` is a prefix."""
    return Listing("/workflows", Workflow.of, pairs(name=name))


def delete(workflow: Union[str, Workflow], *, expected_hash: Optional[str] = None) -> Steps[None]:
    """Deletes a workflow. Its open runs finish."""
    yield from send("DELETE", f"/workflows/{part(workflow)}", query=pairs(expected_hash=expected_hash))


def enable(workflow: Union[str, Workflow]) -> Steps[Workflow]:
    """Allows new runs."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/enable")).data)


def disable(workflow: Union[str, Workflow]) -> Steps[Workflow]:
    """Refuses new runs."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/disable")).data)


def pause(workflow: Union[str, Workflow], note: Optional[str] = None) -> Steps[Workflow]:
    """New runs are accepted and stay `pending` until it is resumed."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/pause", given(note=note))).data)


def resume(workflow: Union[str, Workflow]) -> Steps[Workflow]:
    """Pending runs start."""
    return Workflow.of((yield from send("POST", f"/workflows/{part(workflow)}/resume", {})).data)


def written(method: str, path: str, definition: Definition, query: Query = (), key: Optional[str] = None) -> Request:
    """A request with a definition. Text is sent as YAML, which JSON is a part of."""
    headers = {} if key is None else {"Idempotency-Key": key}
    if isinstance(definition, str):
        return Request(method, path, definition.encode(), "application/yaml", query, headers)
    return Request(method, path, encode(definition), query=query, headers=headers)
