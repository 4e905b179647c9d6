"""Functions that are registered for a type: called, submitted, and their results."""

from __future__ import annotations

import asyncio
import inspect
import pickle
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Dict, List, Optional

import onward
from onward import AsyncClient

from .test_worker import Case


@dataclass
class Order:
    id: int


@dataclass
class Invoice:
    number: str
    due: Optional[datetime] = None


@onward.Worker().task("doubled.v1")
def doubled(value: int) -> int:
    return 2 * value


class Submitting(Case):
    def setUp(self) -> None:
        super().setUp()
        self.worker.client = self.client

        @self.worker.task("invoice.v1", retry={"max_attempts": 5}, timeout="30s", priority=5)
        def invoice(order: Order, ctx: onward.Context) -> Invoice:
            """Writes an invoice."""
            return Invoice(f"INV-{order.id}", datetime(2027, 1, 1, tzinfo=timezone.utc))

        @self.worker.task("listed.v1")
        async def listed(count: int) -> List[Invoice]:
            return [Invoice(str(n)) for n in range(count)]

        self.invoice, self.listed = invoice, listed

    def sent(self) -> Dict[str, Any]:
        """The task that was submitted last."""
        body = [body for _, path, body in self.fake.calls if path == "/tasks"][-1]
        return {name: value for name, value in body.items() if name != "idempotency_key"}

    def test_the_options_of_the_decorator_are_defaults(self) -> None:
        self.invoice.submit(Order(7))
        expected = {"type": "invoice.v1", "payload": {"id": 7}, "retry": {"max_attempts": 5}, "timeouts": {"attempt": "30s"}, "priority": 5}
        self.assertEqual(self.sent(), expected)
        self.invoice.submit(Order(7), priority=1, timeout=5, retry="never", labels={"a": "b"})
        self.assertEqual(self.sent(), {**expected, "priority": 1, "timeouts": {"attempt": "5000ms"}, "retry": "never", "labels": {"a": "b"}})
        self.invoice.submit(Order(7), timeouts={"total": "1h"}, priority=0)
        self.assertEqual((self.sent()["timeouts"], self.sent()["priority"]), ({"attempt": "30s", "total": "1h"}, 0))
        self.client.submit("invoice.v1", {"id": 7})
        self.assertEqual(self.sent(), {"type": "invoice.v1", "payload": {"id": 7}}, "only for the function")

    def test_the_result_has_the_type_that_the_function_returns(self) -> None:
        with self.running():
            task = self.invoice.submit(Order(7))
            expected = Invoice("INV-7", datetime(2027, 1, 1, tzinfo=timezone.utc))
            self.assertEqual(self.client.result(task, 5), expected)
            self.assertEqual(self.client.result(self.client.get(task), 5), expected)
            self.assertEqual(self.client.result(task.id, 5), {"number": "INV-7", "due": "2027-01-01T00:00:00Z"})
            self.assertEqual(self.client.result(task.id, 5, type=Invoice), expected)
            self.assertEqual(self.client.result(self.listed.submit(2), 5), [Invoice("0"), Invoice("1")])
            with self.assertRaises(onward.OnwardError) as caught:
                self.client.result(task, 5, type=Order)
            self.assertEqual(str(caught.exception), f"invalid_result: the result of `{task.id}`, `id`: is missing")
            with self.assertRaisesRegex(TypeError, "cannot be built as `bytes`"):
                self.client.result(task, 5, type=bytes)

    def test_coroutines(self) -> None:
        async def program() -> Any:
            async with AsyncClient(self.fake.url) as client:
                task = await client.submit(self.listed, 1, priority=3)
                self.assertEqual(self.sent()["priority"], 3)
                return await client.result(task, 5)

        with self.running():
            self.assertEqual(asyncio.run(program()), [Invoice("0")])
        self.worker.client = AsyncClient(self.fake.url)
        with self.assertRaisesRegex(TypeError, "await client.submit"):
            self.listed.submit(1)

    def test_it_is_still_the_function(self) -> None:
        self.assertEqual((self.invoice.__name__, self.invoice.__doc__), ("invoice", "Writes an invoice."))
        self.assertEqual(list(inspect.signature(self.invoice).parameters), ["order", "ctx"])
        self.assertEqual(asyncio.run(self.listed(0)), [])
        self.assertIn("of `invoice.v1`", repr(self.invoice))
        again = self.worker.task("second.v1")(self.invoice)
        again.submit(Order(1))
        self.assertEqual(self.sent()["type"], "second.v1")

    def test_it_is_pickled_by_its_name(self) -> None:
        self.assertIs(pickle.loads(pickle.dumps(doubled)), doubled)
        with self.assertRaises((pickle.PicklingError, AttributeError)):
            pickle.dumps(self.invoice)  # a local function, as before

    def test_a_prefix_cannot_be_submitted(self) -> None:
        @self.worker.task("notify.%")
        def notify(value: Any) -> None: ...

        with self.assertRaisesRegex(ValueError, "`notify.%` is a prefix"):
            notify.submit(1)

    def test_input_that_is_not_json_is_refused_before_it_is_sent(self) -> None:
        calls = len(self.fake.calls)
        with self.assertRaises(TypeError):
            self.listed.submit(b"x")  # type: ignore[arg-type]
        with self.assertRaises(ValueError):
            self.listed.submit(float("nan"))  # type: ignore[arg-type]
        self.assertEqual(len(self.fake.calls), calls)
