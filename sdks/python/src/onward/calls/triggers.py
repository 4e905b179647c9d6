"""Triggers: schedules, webhooks and manual ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Mapping, Optional, Union

from ..models import Run, Trigger, Workflow
from ..protocol import Steps, send
from .parts import Listing, given, id_of, new_key, pairs, part, started

if TYPE_CHECKING:
    from typing_extensions import Literal


def create(
    name: str,
    type: "Literal['schedule', 'webhook', 'manual']",
    workflow: Union[str, Workflow],
    *,
    config: Optional[Mapping[str, Any]] = None,
    variable_mapping: Optional[Mapping[str, str]] = None,
    input: Any = None,
    enabled: Optional[bool] = None,
    note: Optional[str] = None,
    idempotency_key: Optional[str] = None,
) -> Steps[Trigger]:
    """Creates a trigger: `create("nightly", "schedule", "report", config={"cron": "30 2 * * *"})`."""
    fields = given(config=config, variable_mapping=variable_mapping, input=input, enabled=enabled, note=note)
    body = {"name": name, "type": type, "workflow": id_of(workflow), **fields}
    return Trigger.of((yield from send("POST", "/triggers", body, key=idempotency_key or new_key())).data)


def list_all(*, type: Optional[str] = None, workflow: Union[str, Workflow, None] = None) -> Listing[Trigger]:
    """Triggers, newest first, fetched page by page."""
    return Listing("/triggers", Trigger.of, pairs(type=type, workflow=None if workflow is None else id_of(workflow)))


def get(trigger: Union[str, Trigger]) -> Steps[Trigger]:
    """A trigger by its id."""
    return Trigger.of((yield from send("GET", f"/triggers/{part(trigger)}")).data)


def enable(trigger: Union[str, Trigger], note: Optional[str] = None) -> Steps[Trigger]:
    """A schedule counts from now; earlier fire times are not caught up on."""
    return Trigger.of((yield from send("POST", f"/triggers/{part(trigger)}/enable", given(note=note))).data)


def disable(trigger: Union[str, Trigger], note: Optional[str] = None) -> Steps[Trigger]:
    """The trigger starts no run until it is enabled."""
    return Trigger.of((yield from send("POST", f"/triggers/{part(trigger)}/disable", given(note=note))).data)


def run(
    trigger: Union[str, Trigger], variables: Any = None, *, actor: Optional[str] = None, idempotency_key: Optional[str] = None
) -> Steps[Run]:
    """Fires a trigger now; `variables` is the body of the run, over the input of the trigger."""
    path, body = f"/triggers/{part(trigger)}/run", given(variables=variables, actor=actor)
    return started((yield from send("POST", path, body, key=idempotency_key or new_key())))


def delete(trigger: Union[str, Trigger]) -> Steps[None]:
    """Deletes a trigger with its log."""
    yield from send("DELETE", f"/triggers/{part(trigger)}")
