"""Runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Optional, Union
from urllib.parse import quote

from ..models import Approval, Decision, Run
from ..protocol import Steps, send
from .parts import Labels, Listing, Time, given, label_pairs, new_key, pairs, part, started

if TYPE_CHECKING:
    from typing_extensions import Literal

_SAME: Any = object()
"""The input of the run that is forked."""


def get(run: Union[str, Run], *, at: Optional[int] = None) -> Steps[Run]:
    """The current state of a run; with `at`, as it was right after the event with this `seq`."""
    return Run.of((yield from send("GET", f"/runs/{part(run)}", query=pairs(at=at))).data)


def diff(run: Union[str, Run], from_seq: int, to_seq: Optional[int] = None) -> Steps[Dict[str, Any]]:
    """What changed in a run between two events, given by their `seq`; by default up to the last one."""
    query = pairs(**{"from": from_seq, "to": to_seq})
    data: Dict[str, Any] = (yield from send("GET", f"/runs/{part(run)}/diff", query=query)).data
    return data


def list_all(
    *,
    workflow: Optional[str] = None,
    type: Optional[str] = None,
    form: Optional[str] = None,
    status: Optional[str] = None,
    labels: Optional[Labels] = None,
    since: Optional[Time] = None,
    until: Optional[Time] = None,
) -> Listing[Run]:
    """Runs, newest first, fetched page by page. `form` and `status` may name several: `graph,script`, `failed,timeout`."""
    query = pairs(workflow=workflow, type=type, form=form, status=status, since=since, until=until)
    return Listing("/runs", Run.of, [*query, *label_pairs(labels)])


def cancel(run: Union[str, Run], reason: Optional[str] = None, *, compensate: bool = False) -> Steps[Run]:
    """Cancels a run. With `compensate`, it first undoes what it did. Repeating it is safe; raises `OnwardError` (409) if it has
    ended otherwise."""
    yield from send("POST", f"/runs/{part(run)}/cancel", given(reason=reason, compensate=compensate or None))
    return (yield from get(run))


def replay(
    run: Union[str, Run],
    *,
    version: "Literal['pinned', 'latest']" = "pinned",
    actor: Optional[str] = None,
    allow_irreversible: bool = False,
    idempotency_key: Optional[str] = None,
) -> Steps[Run]:
    """Starts a new run with the input of an old one, on the same version of the workflow or on the latest. With
    `allow_irreversible`, also if that repeats what can be neither undone nor repeated."""
    path = f"/runs/{part(run)}/replay"
    body = given(version=version, actor=actor, allow_irreversible=allow_irreversible or None)
    return started((yield from send("POST", path, body, key=idempotency_key or new_key())))


def fork(
    run: Union[str, Run],
    from_step: str,
    *,
    input: Any = _SAME,
    results: Optional[Dict[str, Any]] = None,
    allow_irreversible: bool = False,
    reason: Optional[str] = None,
    actor: Optional[str] = None,
    idempotency_key: Optional[str] = None,
) -> Steps[Run]:
    """Starts a new run that takes over the results of one that has ended and runs `from_step` again, with what depends on
    it. `results` gives results by step: these steps do not run."""
    body = given(
        results=results, allow_irreversible=allow_irreversible or None, reason=reason, actor=actor, **{"from": from_step}
    )
    if input is not _SAME:
        body["input"] = input
    return started((yield from send("POST", f"/runs/{part(run)}/fork", body, key=idempotency_key or new_key())))


def move(
    run: Union[str, Run], version: Optional[int] = None, *, reason: Optional[str] = None, actor: Optional[str] = None
) -> Steps[Run]:
    """An open run goes on with another version of its workflow, by default the current one. Raises `OnwardError` (409) if
    the version lacks one of its steps, or something is at work."""
    yield from send("POST", f"/runs/{part(run)}/move", given(version=version, reason=reason, actor=actor))
    return (yield from get(run))


def bulk(
    action: "Literal['cancel', 'retry', 'replay']",
    *,
    workflow: Optional[str] = None,
    status: Optional[str] = None,
    labels: Optional[Labels] = None,
    since: Optional[Time] = None,
    until: Optional[Time] = None,
    dry_run: bool = False,
    compensate: bool = False,
    allow_irreversible: bool = False,
    version: "Optional[Literal['pinned', 'latest']]" = None,
    cursor: Optional[str] = None,
    reason: Optional[str] = None,
    actor: Optional[str] = None,
) -> Steps[Dict[str, Any]]:
    """Cancels, retries or replays every run that matches, at most 1,000 in one call: answers `matched`, `changed`, `refused`
    and, if there may be more, `next`, the `cursor` of the next call."""
    label = [f"{key}:{value}" for key, value in (labels or {}).items()]
    if len(label) > 1:
        raise ValueError("a bulk call takes one label")
    selected = dict(pairs(workflow=workflow, status=status, label=label[0] if label else None, since=since, until=until))
    options = given(
        dry_run=dry_run or None,
        compensate=compensate or None,
        allow_irreversible=allow_irreversible or None,
        version=version,
        cursor=cursor,
        reason=reason,
        actor=actor,
    )
    data: Dict[str, Any] = (
        yield from send("POST", "/runs/bulk", {"action": action, "filter": selected, **options})
    ).data
    return data


def pause(run: Union[str, Run], note: Optional[str] = None) -> Steps[Run]:
    """No further step of the run starts until it is resumed."""
    yield from send("POST", f"/runs/{part(run)}/pause", given(note=note))
    return (yield from get(run))


def resume(run: Union[str, Run], *, step: Optional[str] = None, actor: Optional[str] = None) -> Steps[Run]:
    """A paused run continues, or a `pause` step of it; `step` is needed only if several wait."""
    yield from send("POST", f"/runs/{part(run)}/resume", given(step=step, actor=actor))
    return (yield from get(run))


def skip_step(
    run: Union[str, Run], step: str, *, reason: Optional[str] = None, actor: Optional[str] = None, dry_run: bool = False
) -> Steps[Dict[str, Any]]:
    """Skips a step of an open run. Like the two below: with `dry_run` it changes nothing, and answers `would_run` and
    `would_repeat`; raises `OnwardError` (409) if the step has settled."""
    return (yield from _decide_step(run, step, "skip", given(reason=reason, actor=actor, dry_run=dry_run or None)))


def set_step_result(
    run: Union[str, Run],
    step: str,
    result: Any,
    *,
    reason: Optional[str] = None,
    actor: Optional[str] = None,
    dry_run: bool = False,
) -> Steps[Dict[str, Any]]:
    """Lets a step of an open run succeed with this body."""
    body = {"result": result, **given(reason=reason, actor=actor, dry_run=dry_run or None)}
    return (yield from _decide_step(run, step, "result", body))


def run_step_now(
    run: Union[str, Run], step: str, *, reason: Optional[str] = None, actor: Optional[str] = None, dry_run: bool = False
) -> Steps[Dict[str, Any]]:
    """Ends the sleep of a step, or the time before its next attempt."""
    return (yield from _decide_step(run, step, "run-now", given(reason=reason, actor=actor, dry_run=dry_run or None)))


def _decide_step(run: Union[str, Run], step: str, verb: str, body: Dict[str, Any]) -> Steps[Dict[str, Any]]:
    path = f"/runs/{part(run)}/steps/{quote(step, safe='')}/{verb}"
    data: Dict[str, Any] = (yield from send("POST", path, body)).data
    return data


def signal(run: Union[str, Run], name: str, payload: Any = None, *, idempotency_key: Optional[str] = None) -> Steps[Run]:
    """Sends a signal to a run. One that arrives before a step waits for it is kept. Returns the run with its new status; raises
    `OnwardError` (409) if the run has ended."""
    path = f"/runs/{part(run)}/signals/{quote(name, safe='')}"
    return Run.of((yield from send("POST", path, payload, key=idempotency_key or new_key())).data)


def approve(
    run: Union[str, Run, Approval],
    *,
    actor: str,
    comment: Optional[str] = None,
    step: Optional[str] = None,
    shown_hash: Optional[str] = None,
) -> Steps[Decision]:
    """Approves a step that waits for an approval. With an `Approval`, exactly what it shows. The same decision again changes
    nothing; raises `OnwardError` if the step was decided otherwise (409) or the actor may not decide (403)."""
    return (yield from _decide("approve", run, actor, comment, step, shown_hash))


def reject(
    run: Union[str, Run, Approval],
    *,
    actor: str,
    comment: Optional[str] = None,
    step: Optional[str] = None,
    shown_hash: Optional[str] = None,
) -> Steps[Decision]:
    """Rejects a step that waits for an approval, as `approve` approves it."""
    return (yield from _decide("reject", run, actor, comment, step, shown_hash))


def _decide(
    verb: str, run: Union[str, Run, Approval], actor: str, comment: Optional[str], step: Optional[str], shown_hash: Optional[str]
) -> Steps[Decision]:
    if isinstance(run, Approval):
        step, shown_hash = step or run.step, shown_hash or run.shown_hash
        run = run.run_id
    body = given(actor=actor, comment=comment, step=step, shown_hash=shown_hash)
    return Decision.of((yield from send("POST", f"/runs/{part(run)}/{verb}", body)).data)


def approvals() -> Listing[Approval]:
    """Approvals that wait for a decision, oldest run first, fetched page by page."""
    return Listing("/approvals", Approval.of, ())


def delete(run: Union[str, Run]) -> Steps[None]:
    """Erases a run that has ended."""
    yield from send("DELETE", f"/runs/{part(run)}")
