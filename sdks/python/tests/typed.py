"""Checked by mypy, never run: what the type of each expression is, and what is an error. A line that ends in `# error` must be
one."""

from dataclasses import dataclass
from typing import Any, Dict, List, Union

from typing_extensions import assert_type

import onward


@dataclass
class Order:
    id: int


@dataclass
class Invoice:
    number: str


worker = onward.Worker()
client = onward.Client()
other = onward.AsyncClient()


@worker.task("with.context.v1", retry={"max_attempts": 5}, timeout="30s", priority=5)
def with_context(order: Order, ctx: onward.Context) -> Invoice:
    return Invoice(str(order.id))


@worker.task("coroutine.v1")
async def coroutine(order: Order) -> List[Invoice]:
    return []


@worker.task("only.context.v1")
def only_context(ctx: onward.Context) -> int:
    return 1


@worker.task("nothing.v1")
def nothing() -> str:
    return ""


@worker.task("anything.v1")
def anything(value: Any) -> Dict[str, Any]:
    return {}


def functions(ctx: onward.Context) -> None:
    assert_type(with_context(Order(1), ctx), Invoice)
    assert_type(with_context.submit(Order(1), labels={"team": "x"}, delay="5s"), onward.Task[Invoice])
    assert_type(client.submit(with_context, Order(1)), onward.Task[Invoice])
    assert_type(only_context.submit(), onward.Task[int])
    assert_type(nothing.submit(), onward.Task[str])
    assert_type(anything.submit([1]), onward.Task[Dict[str, Any]])
    with_context(7, ctx)  # error
    with_context(Order(1))  # error
    with_context.submit(7)  # error
    with_context.submit()  # error
    with_context.submit(Order(1), priorty=1)  # error
    client.submit(with_context, 7)  # error


def results(task: onward.Task[Invoice], run: onward.Run) -> None:
    assert_type(client.result(task), Invoice)
    assert_type(client.result(client.submit("a.v1", 1)), Any)
    assert_type(client.result(run), Any)
    assert_type(client.result("task_1", type=Invoice), Invoice)
    assert_type(client.result(run, "5s", type=List[Invoice]), List[Invoice])
    assert_type(client.wait(task, 5), onward.Task[Invoice])
    assert_type(client.get(run), onward.Run)
    assert_type(client.get("task_1"), Union[onward.Task[Any], onward.Run])
    assert_type(client.cancel(task, "reason"), onward.Task[Invoice])
    client.wait(7)  # error
    client.tasks.bulk("remove")  # error
    client.workflows.create(definition=7)  # error
    client.signal(run, "paid")  # error


def lists() -> None:
    for task in client.tasks.list(type="a.%", status="failed"):
        assert_type(task, onward.Task[Any])
    for event in client.stream("run_1"):
        assert_type(event, onward.Event)
    assert_type(client.workflows.trigger("shop", {"n": 1}, wait="5s"), onward.Run)
    assert_type(client.tasks.bulk("retry", type="a.v1", dry_run=True), onward.BulkResult)


async def coroutines(run: onward.Run) -> None:
    task = await other.submit(coroutine, Order(1))
    assert_type(task, onward.Task[List[Invoice]])
    assert_type(await other.result(task), List[Invoice])
    assert_type(await coroutine(Order(1)), List[Invoice])
    assert_type(await other.wait(run), onward.Run)
    assert_type(await other.triggers.create("n", "schedule", "shop", config={"cron": "* * * * *"}), onward.Trigger)
    async for found in other.runs.list(status="failed"):
        assert_type(found, onward.Run)
    async for event in other.stream(task):
        assert_type(event, onward.Event)
    await other.submit(coroutine, 7)  # error
    await other.runs.list()  # error
