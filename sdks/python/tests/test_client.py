"""The client against a fake server."""

from __future__ import annotations

import asyncio
import socket
import time
import unittest
from datetime import datetime, timezone

from onward import AsyncClient, Client, OnwardError, OnwardUnavailable, TaskFailed, WaitTimeout

from .fake import Fake, Refused


class Producing(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.down)
        self.client = Client(self.fake.url, "pk_secret", timeout=5)
        self.addCleanup(self.client.close)

    def test_submit_sends_what_was_given_and_nothing_else(self) -> None:
        task = self.client.submit(
            "a.v1",
            {"n": 1},
            priority=5,
            run_at=datetime(2027, 1, 1, tzinfo=timezone.utc),
            max_attempts=2,
            retry="never",
            timeouts={"attempt": 5},
            concurrency_key="k",
            labels={"team": "x"},
            idempotency_key="order-7",
            callback_url="http://127.0.0.1/done",
        )
        self.assertEqual((task.status, task.deduplicated), ("pending", False))
        self.assertEqual(
            self.fake.calls[-1][2],
            {
                "type": "a.v1",
                "payload": {"n": 1},
                "priority": 5,
                "run_at": "2027-01-01T00:00:00Z",
                "max_attempts": 2,
                "retry": "never",
                "timeouts": {"attempt": "5000ms"},
                "concurrency_key": "k",
                "labels": {"team": "x"},
                "idempotency_key": "order-7",
                "callback_url": "http://127.0.0.1/done",
            },
        )
        self.assertEqual(self.fake.headers[-1]["Authorization"], "Bearer pk_secret")
        self.assertTrue(self.client.submit("a.v1", {"n": 1}, idempotency_key="order-7").deduplicated)
        self.client.submit("a.v1", delay="5s")
        self.assertEqual(sorted(self.fake.calls[-1][2]), ["delay", "idempotency_key", "payload", "type"])

    def test_a_submit_whose_answer_was_lost_is_sent_again_and_makes_one_task(self) -> None:
        self.fake.break_next(2)
        task = self.client.submit("a.v1", 1)
        self.assertEqual(len(self.fake.tasks), 1)
        self.assertTrue(task.deduplicated)
        keys = {body["idempotency_key"] for _, _, body in self.fake.calls}
        self.assertEqual((len(self.fake.calls), len(keys)), (3, 1))

    def test_submit_many_gives_each_task_a_key(self) -> None:
        self.fake.break_next(1)
        tasks = self.client.submit_many({"type": "a.v1", "payload": n} for n in range(3))
        self.assertEqual([self.fake.tasks[t.id]["input"] for t in tasks], [0, 1, 2])
        self.assertEqual(len(self.fake.tasks), 3)
        self.assertEqual(self.client.submit_many([]), [])
        with self.assertRaisesRegex(TypeError, "no field `priorty`"):
            self.client.submit_many([{"type": "a.v1", "priorty": 1}])

    def test_a_request_that_may_have_arrived_is_sent_twice_only_if_that_is_safe(self) -> None:
        self.fake.break_next(1)
        with self.assertRaises(OnwardUnavailable) as caught:
            self.client.request("POST", "/other", {"n": 1})
        self.assertTrue(caught.exception.sent)
        self.assertEqual([call[:2] for call in self.fake.calls], [("POST", "/other")])

    def test_a_deletion_whose_answer_was_lost_has_succeeded(self) -> None:
        self.fake.break_next(1)
        self.client.workflows.delete("gone")
        self.assertEqual([call[:2] for call in self.fake.calls], [("DELETE", "/workflows/gone")] * 2)
        with self.assertRaises(OnwardError) as caught:
            self.client.workflows.delete("gone")
        self.assertEqual(caught.exception.status, 404)

    def test_a_connection_that_was_closed_while_idle_is_noticed_before_sending(self) -> None:
        self.client.get(self.fake.add("a.v1"))
        self.fake.down()
        self.fake.up()
        with self.assertRaises(OnwardError) as caught:
            self.client.request("POST", "/other")
        self.assertEqual(caught.exception.status, 404, "the answer of the new server")

    def test_an_error_has_every_field_of_the_refusal(self) -> None:
        problem = {"code": "invalid_body", "message": "no", "at": {"path": "type"}}
        self.fake.refuse = lambda *_: Refused(422, "invalid_body", "no", hint="h", at={"path": "type"}, problems=[problem])
        with self.assertRaises(OnwardError) as caught:
            self.client.submit("a.v1")
        e = caught.exception
        self.assertEqual((e.code, e.message, e.hint, e.at, e.problems, e.status), ("invalid_body", "no", "h", {"path": "type"}, [problem], 422))
        self.assertEqual(len(self.fake.calls), 1, "a refusal is not tried again")

    def test_a_busy_server_is_retried(self) -> None:
        answers = [Refused(503, "overloaded"), Refused(503, "outcome_unknown"), None]
        self.fake.refuse = lambda *_: answers.pop(0)
        self.client.submit("a.v1")
        self.assertEqual(answers, [])

    def test_an_unreachable_server(self) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            client = Client(f"http://127.0.0.1:{held.getsockname()[1]}", retries=1)
            with self.assertRaises(OnwardUnavailable) as caught:
                client.submit("a.v1")
            self.assertFalse(caught.exception.sent)

    def test_addresses(self) -> None:
        for url in ("localhost:7420", "ftp://x", ""):
            if url:
                with self.subTest(url=url), self.assertRaises(ValueError):
                    Client(url)

    def test_wait_for_the_end_and_the_result(self) -> None:
        id = self.fake.add("a.v1", {"n": 1})
        with self.assertRaises(WaitTimeout) as caught:
            self.client.wait(id, timeout=0.1)
        self.assertEqual(caught.exception.latest.status, "pending")
        self.fake.tasks[id].update(status="succeeded", result=3)
        self.assertEqual(self.client.result(id), 3)
        self.fake.tasks[id].update(status="failed", error={"code": "declined", "message": "no"})
        with self.assertRaises(TaskFailed) as failed:
            self.client.result(id)
        self.assertEqual((failed.exception.code, failed.exception.ended.id), ("declined", id))

    def test_wait_for_a_run(self) -> None:
        run = self.client.trigger("order flow", {"n": 1}, wait="5s", labels={"team": "x"}, idempotency_key="k")
        self.assertEqual(self.fake.calls[-1][1], "/workflows/order%20flow/trigger?label=team%3Ax&wait=5s")
        self.assertEqual(self.fake.headers[-1]["Idempotency-Key"], "k")
        self.client.trigger("flow", actor="eve & co")
        self.assertEqual(self.fake.calls[-1][1], "/workflows/flow/trigger?actor=eve+%26+co")
        ended = self.client.wait(run, timeout=5)
        self.assertEqual((ended.status, self.client.result(run)), ("completed", {"n": 1}))

    def test_events_come_page_by_page(self) -> None:
        id = self.fake.add("a.v1")
        for n in range(1_200):
            self.fake._event(self.fake.tasks[id], "step.heartbeat", {"n": n})
        self.assertEqual([e.seq for e in self.client.events(id)], list(range(1, 1_202)))
        self.assertEqual(self.fake.calls[-1][1], f"/tasks/{id}/events?cursor=1200")

    def test_cancel_retry_and_explain(self) -> None:
        id = self.fake.add("a.v1")
        self.assertEqual(self.client.cancel(id, "not needed").status, "cancelled")
        self.assertNotEqual(self.client.retry(id).id, id)
        self.assertEqual(self.client.explain(id)["reason"], "waiting_for_worker")
        self.assertTrue(self.fake.calls[-1][1].endswith("/explain?step=task"))
        with self.assertRaises(OnwardError) as caught:
            self.client.get("task_no_worker")
        self.assertEqual(caught.exception.code, "not_found")

    def test_an_answer_that_is_not_json_is_an_error(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            import threading

            def page() -> None:
                link, _ = other.accept()
                link.recv(10_000)
                link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>")
                link.close()

            threading.Thread(target=page, daemon=True).start()
            client = Client(f"http://127.0.0.1:{other.getsockname()[1]}")
            self.addCleanup(client.close)
            with self.assertRaises(OnwardError) as caught:
                client.get("task_1")
            self.assertEqual(caught.exception.code, "unknown_answer")


class Async(unittest.IsolatedAsyncioTestCase):
    async def test_the_same_with_coroutines(self) -> None:
        with Fake() as fake:
            async with AsyncClient(fake.url) as client:
                task = await client.submit("a.v1", {"n": 1})
                with self.assertRaises(WaitTimeout):
                    await client.wait(task, timeout=0.05)
                waiting = asyncio.ensure_future(client.result(task, timeout=5))
                await asyncio.sleep(0.05)
                with fake.lock:
                    fake.tasks[task.id].update(status="succeeded", result=3)
                    fake.lock.notify_all()
                self.assertEqual(await waiting, 3)
                self.assertEqual([event.type async for event in client.events(task)], ["run.created"])
                many = await asyncio.gather(*(client.submit("a.v1", n) for n in range(50)))
                self.assertEqual(len({each.id for each in many}), 50)

    async def test_closing_aborts_open_requests_and_those_that_queue(self) -> None:
        with Fake() as fake:
            client, id = AsyncClient(fake.url, connections=2), fake.add("a.v1")
            waiting = [asyncio.ensure_future(client.wait(id)) for _ in range(5)]
            await asyncio.sleep(0.1)
            begun = time.monotonic()
            await client.close()
            ended = await asyncio.gather(*waiting, return_exceptions=True)
            self.assertTrue(all(isinstance(each, OnwardUnavailable) for each in ended), ended)
            self.assertLess(time.monotonic() - begun, 5)
            calls = len(fake.calls)
            sync = Client(fake.url)
            sync.close()
            with self.assertRaisesRegex(OnwardUnavailable, "the client is closed"):
                await client.submit("a.v1")
            with self.assertRaisesRegex(OnwardUnavailable, "the client is closed"):
                sync.submit("a.v1")
            self.assertEqual(len(fake.calls), calls)
