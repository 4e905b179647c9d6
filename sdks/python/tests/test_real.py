"""Tests against the real binary, if `ONWARD_BINARY` is set. ../conformance has what every worker must do; these tests cover
this SDK only."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List

import onward
from onward.testing import Server

logging.getLogger("onward.worker").setLevel(logging.CRITICAL)

BINARY = os.environ.get("ONWARD_BINARY")


@unittest.skipUnless(BINARY, "ONWARD_BINARY is not set")
class Real(unittest.TestCase):
    def setUp(self) -> None:
        self.server = Server()
        self.addCleanup(self.server.close)
        self.server.start()
        self.client = self.server.client()
        self.worker = onward.Worker(slots=4, lease="2s", drain="5s")

    def test_a_task_waits_for_the_first_worker(self) -> None:
        task = self.client.submit("a.v1", {"n": 1}, labels={"team": "x"}, priority=5, timeouts={"attempt": 5, "total": "1h"})
        self.assertEqual(self.client.get(task).status, "pending")
        self.assertEqual(self.client.explain(task)["reason"], "waiting_for_worker")
        self.worker.task("a.v1")(lambda value: {"got": value})
        with self.server.running(self.worker):
            self.assertEqual(self.client.result(task, 10), {"got": {"n": 1}})
        types = [event.type for event in self.client.events(task)]
        self.assertEqual((types[0], types[-1]), ("run.created", "run.completed"))
        self.assertEqual([event.seq for event in self.client.events(task)], list(range(1, len(types) + 1)))

    def test_the_same_key_is_the_same_task(self) -> None:
        first = self.client.submit("a.v1", {"n": 1}, idempotency_key="order-7")
        again = self.client.submit("a.v1", {"n": 1}, idempotency_key="order-7")
        self.assertEqual((again.id, again.deduplicated), (first.id, True))
        with self.assertRaises(onward.OnwardError) as caught:
            self.client.submit("a.v1", {"n": 2}, idempotency_key="order-7")
        self.assertEqual((caught.exception.code, caught.exception.status), ("idempotency_key_reused", 422))

    def test_refusals_name_the_field(self) -> None:
        with self.assertRaises(onward.OnwardError) as caught:
            self.client.submit_many({"type": "a.v1", "payload": "x" * 250_000} for _ in range(200))
        self.assertEqual((caught.exception.status, caught.exception.code), (413, "too_large"))
        with self.assertRaises(onward.OnwardError) as caught:
            self.client.submit("not a type")
        self.assertEqual(caught.exception.status, 422)
        self.assertTrue(caught.exception.problems)

    def test_a_delayed_task_starts_later(self) -> None:
        self.worker.task("a.v1")(lambda value: value)
        with self.server.running(self.worker):
            delayed = self.client.submit("a.v1", 1, delay="1s")
            at = self.client.submit("a.v1", 2, run_at=datetime.now(timezone.utc) + timedelta(seconds=1))
            with self.assertRaises(onward.WaitTimeout):
                self.client.wait(delayed, timeout=0.3)
            self.assertEqual((self.client.result(delayed, 10), self.client.result(at, 10)), (1, 2))

    def test_cancel_and_retry(self) -> None:
        broken = threading.Event()
        broken.set()

        @self.worker.task("a.v1")
        def work(value: Any) -> Any:
            if broken.is_set():
                raise onward.Fail("out of paper", code="no_paper")
            return value

        with self.server.running(self.worker):
            failed = self.client.wait(self.client.submit("a.v1", 7), 10)
            self.assertEqual((failed.status, failed.error["code"]), ("failed", "no_paper"))
            with self.assertRaises(onward.TaskFailed):
                self.client.result(failed)
            broken.clear()
            released = self.client.retry(failed)
            self.assertNotEqual(released.id, failed.id)
            self.assertEqual(self.client.result(released, 10), 7)
            self.assertEqual(self.client.retry(failed).id, released.id)
        waiting = self.client.submit("unclaimed.v1")
        self.assertEqual(self.client.cancel(waiting, "not needed").status, "cancelled")
        self.assertEqual(self.client.cancel(waiting).status, "cancelled")

    def test_a_task_step_of_a_run_that_is_waited_for(self) -> None:
        definition = {"name": "shop", "tasks": {"bill": {"task": "bill.v1", "input": {"order": "{{trigger.body.order}}"}}}}
        self.client.request("POST", "/workflows", definition)

        @self.worker.task("bill.v1")
        async def bill(value: Dict[str, Any], ctx: onward.Context) -> Dict[str, Any]:
            return {"order": value["order"], "step": ctx.step, "run": ctx.run_id}

        with self.server.running(self.worker):
            run = self.client.trigger("shop", {"order": 7}, labels={"team": "x"})
            ended = self.client.wait(run, 10)
        self.assertIsInstance(ended, onward.Run)
        self.assertEqual(ended.status, "completed")
        self.assertEqual(ended.steps["bill"]["body"], {"order": 7, "step": "bill", "run": run.id})
        self.assertTrue(self.client.trigger("shop", {"order": 8}, wait="100ms").id)

    def test_all_slots_busy_and_still_cancelled_within_two_seconds(self) -> None:
        self.worker.lease = "1h"
        stopped: List[float] = []

        @self.worker.task("a.v1")
        def loops(value: Any, ctx: onward.Context) -> None:
            while not ctx.cancelled:
                time.sleep(0.01)
            stopped.append(time.monotonic())

        with self.server.running(self.worker):
            tasks = self.client.submit_many({"type": "a.v1"} for _ in range(4))
            while any(self.client.get(task).status != "leased" for task in tasks):
                time.sleep(0.02)
            time.sleep(0.5)
            begun = time.monotonic()
            for task in tasks:
                self.client.cancel(task)
            while len(stopped) < 4 and time.monotonic() < begun + 5:
                time.sleep(0.01)
            self.assertEqual(len(stopped), 4)
            self.assertLess(max(stopped) - begun, 2)

    def test_log_records_and_the_traceback_are_events_of_the_task(self) -> None:
        @self.worker.task("a.v1")
        def work(value: Any) -> None:
            logging.getLogger("shop").error("stock is %s", "žádný")
            raise ConnectionError("refused \x00 \ud800")

        with self.server.running(self.worker, log_records=True):
            ended = self.client.wait(work.submit(1, max_attempts=1), 10)
        self.assertEqual(ended.error, {"code": "connection_error", "message": "refused \x00 ?"})
        events = list(self.client.events(ended))
        lines = [line for event in events if event.type == "step.log" for line in event.data["lines"]]
        self.assertEqual(lines[0], {"level": "error", "message": "stock is žádný"})
        self.assertIn("in work\n", lines[1]["message"])
        types = [event.type for event in events]
        self.assertLess(types.index("step.log"), types.index("step.failed"))

    def test_a_result_that_is_too_large_fails_the_task(self) -> None:
        self.worker.task("big.v1")(lambda value: "x" * (32 << 20))
        self.worker.task("small.v1")(lambda value: value)
        with self.server.running(self.worker):
            big = self.client.submit("big.v1")
            small = [self.client.submit("small.v1", n) for n in range(10)]
            ended = self.client.wait(big, 30)
            self.assertEqual([self.client.result(task, 30) for task in small], list(range(10)))
        self.assertEqual((ended.status, ended.error["code"]), ("failed", "result_too_large"))

    def test_workers_that_start_and_stop_lose_and_repeat_nothing(self) -> None:
        done: List[int] = []

        def start() -> Any:
            worker = onward.Worker(slots=4, lease="3s", drain="5s")

            @worker.task("a.v1")
            def work(value: int) -> int:
                time.sleep(0.01)
                done.append(value)
                return value

            return self.server.running(worker)

        tasks = self.client.submit_many({"type": "a.v1", "payload": n, "max_attempts": 1} for n in range(300))
        for _ in range(8):
            with start(), start():
                time.sleep(0.15)
        with start():
            results = [self.client.result(task, 30) for task in tasks]
        self.assertEqual(results, list(range(300)))
        self.assertEqual(sorted(done), list(range(300)), "each was done exactly once")

    def test_coroutines(self) -> None:
        self.worker.task("a.v1")(lambda value: value)

        async def program() -> List[Any]:
            async with onward.AsyncClient(self.server.url) as client:
                self.worker.client = client
                serving = asyncio.ensure_future(self.worker.serve())
                tasks = await client.submit_many({"type": "a.v1", "payload": n} for n in range(20))
                results = await asyncio.gather(*(client.result(task, 20) for task in tasks))
                self.worker.stop()
                await serving
                return results

        self.assertEqual(asyncio.run(program()), list(range(20)))


@unittest.skipUnless(BINARY, "ONWARD_BINARY is not set")
class VirtualTime(unittest.TestCase):
    def test_a_virtual_clock_skips_an_hour_of_retries(self) -> None:
        worker = onward.Worker(slots=1)

        @worker.task("a.v1")
        def work(value: Any, ctx: onward.Context) -> int:
            if ctx.attempt < 3:
                raise RuntimeError("not yet")
            return ctx.attempt

        with Server(clock="virtual") as server, server.running(worker):
            client = server.client()
            task = client.submit("a.v1")
            for attempt, away in ((1, "66s"), (2, "264s")):
                deadline = time.monotonic() + 10
                while client.get(task).raw.get("next_attempt_at") is None or client.get(task).attempt != attempt:
                    self.assertLess(time.monotonic(), deadline)
                    time.sleep(0.02)
                server.advance(away)
            self.assertEqual(client.result(task, 10), 3)


@unittest.skipUnless(BINARY, "ONWARD_BINARY is not set")
class Killed(unittest.TestCase):
    def test_the_helper_restarts_its_server_with_its_data(self) -> None:
        with Server() as server:
            url, client = server.url, server.client()
            task = client.submit("a.v1", {"n": 1})
            server.restart()
            self.assertEqual(server.url, url)
            self.assertEqual(client.get(task).input, {"n": 1})
