"""The worker for the conformance cases, in Python. ../conformance/README.md says what each type does."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import onward

worker = onward.Worker(slots=4, lease="2s", drain="3s")


@worker.task("conformance.echo.v1")
async def echo(value: Any) -> Any:
    return value


@worker.task("conformance.fail.v1")
def fail(value: dict) -> None:
    raise RuntimeError(value["message"])


@worker.task("conformance.final.v1")
def final(value: dict) -> None:
    raise onward.Fail(value["message"], code="card_declined")


@worker.task("conformance.snooze.v1")
def snooze(value: Any, ctx: onward.Context) -> Any:
    if ctx.progress is None:
        ctx.heartbeat(progress={"snoozed": True})
        raise onward.Snooze("1s")
    return ctx.progress


@worker.task("conformance.slow.v1")
def slow(value: dict) -> dict:
    time.sleep(value["seconds"])
    return value


@worker.task("conformance.progress.v1")
def progress(value: Any, ctx: onward.Context) -> dict:
    if ctx.progress is None:
        ctx.heartbeat(progress={"page": 7})
        raise RuntimeError("stopped after page 7")
    return {"resumed_from": ctx.progress, "attempt": ctx.attempt}


@worker.task("conformance.cancel.v1")
async def cancel(value: Any) -> None:
    await asyncio.sleep(3600)


@worker.task("conformance.log.v1")
def log(value: dict, ctx: onward.Context) -> None:
    ctx.log(value["message"])


@dataclass
class Parcel:
    name: str
    count: int


@worker.task("conformance.typed.v1")
def typed(parcel: Parcel) -> dict:
    return {"label": f"{parcel.count} × {parcel.name}"}


if __name__ == "__main__":
    worker.run()
