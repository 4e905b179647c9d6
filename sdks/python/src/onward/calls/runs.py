"""Runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional, Union

from ..models import Run
from ..protocol import Steps, send
from .parts import Labels, Listing, Time, given, label_pairs, new_key, pairs, part, started

if TYPE_CHECKING:
    from typing_extensions import Literal


def get(run: Union[str, Run]) -> Steps[Run]:
    """The current state of a run."""
    return Run.of((yield from send("GET", f"/runs/{part(run)}")).data)


def list_all(
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


def cancel(run: Union[str, Run], reason: Optional[str] = None) -> Steps[Run]:
    """Cancels a run. Repeating it is safe; raises `OnwardError` (409) if it has ended otherwise."""
    yield from send("POST", f"/runs/{part(run)}/cancel", given(reason=reason))
    return (yield from get(run))


def replay(
    run: Union[str, Run], *, version: "Literal['pinned', 'latest']" = "pinned", idempotency_key: Optional[str] = None
) -> Steps[Run]:
    """Starts a new run with the input of an old one, on the same version of the workflow or on the latest."""
    return started((yield from send("POST", f"/runs/{part(run)}/replay", {"version": version}, key=idempotency_key or new_key())))


def pause(run: Union[str, Run], note: Optional[str] = None) -> Steps[Run]:
    """No further step of the run starts until it is resumed."""
    yield from send("POST", f"/runs/{part(run)}/pause", given(note=note))
    return (yield from get(run))


def resume(run: Union[str, Run]) -> Steps[Run]:
    """A paused run continues."""
    yield from send("POST", f"/runs/{part(run)}/resume", {})
    return (yield from get(run))


def delete(run: Union[str, Run]) -> Steps[None]:
    """Erases a run that has ended."""
    yield from send("DELETE", f"/runs/{part(run)}")
