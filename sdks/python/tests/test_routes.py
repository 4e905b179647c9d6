"""The routes of both clients against the real binary, if `ONWARD_BINARY` is set."""

from __future__ import annotations

import os
import threading
import time
import unittest
from datetime import datetime, timedelta, timezone
from typing import Any

from onward import Client, OnwardError, Run, TaskFailed, Worker
from onward.testing import Server

from .blocking import Blocking

BINARY = os.environ.get("ONWARD_BINARY")
SHOP = {"name": "shop", "tasks": {"say": {"log": {"message": "hello"}}, "rest": {"needs": ["say"], "sleep": "50ms"}}}
GATE = {"name": "gate", "tasks": {"ask": {"wait_for_webhook": {"timeout": "1h"}}}}


class Cases:
    """Run twice, below."""

    class Base(unittest.TestCase):
        server: Server
        client: Any

        def make(self) -> Any:
            raise NotImplementedError

        @classmethod
        def setUpClass(cls) -> None:
            cls.server = Server()
            cls.server.start()

        @classmethod
        def tearDownClass(cls) -> None:
            cls.server.close()

        def setUp(self) -> None:
            self.client = self.make()
            self.addCleanup(self.client.close)
            for workflow in self.client.workflows.list():
                self.client.workflows.delete(workflow)

        def test_workflows(self) -> None:
            made = self.client.workflows.create(SHOP)
            self.assertEqual((made.name, made.version, made.enabled), ("shop", 1, True))
            text = "name: shop\ntasks:\n  say: { log: { message: héllo } }\n"
            changed = self.client.workflows.update(made, text, expected_hash=made.hash)
            self.assertEqual((changed.id, changed.version), (made.id, 2))
            with self.assertRaises(OnwardError) as caught:
                self.client.workflows.update("shop", SHOP, expected_hash=made.hash)
            self.assertEqual(caught.exception.code, "version_mismatch")
            self.assertEqual(self.client.workflows.get("shop").definition["tasks"]["say"]["log"]["message"], "héllo")
            self.assertEqual(self.client.workflows.get("shop", version=1).hash, made.hash)
            self.assertEqual([each.id for each in self.client.workflows.list(name="sh")], [made.id])
            self.assertFalse(self.client.workflows.disable(made).enabled)
            with self.assertRaises(OnwardError) as caught:
                self.client.trigger("shop")
            self.assertEqual(caught.exception.code, "workflow_disabled")
            self.assertTrue(self.client.workflows.enable(made).enabled)
            self.assertEqual(self.client.workflows.update(made, {"description": "d"}).version, 2)
            self.client.workflows.delete(made)
            self.assertEqual(list(self.client.workflows.list()), [])

        def test_validate(self) -> None:
            self.assertEqual(self.client.workflows.validate(SHOP).steps, ["say", "rest"])
            wrong = self.client.workflows.validate({"name": "x", "tasks": {"a": {"needs": ["b"], "noop": {}}}})
            self.assertEqual((wrong.valid, wrong.problems[0]["code"]), (False, "needs_unknown_step"))
            with self.assertRaises(OnwardError) as caught:
                self.client.workflows.create({"name": "x", "tasks": {}})
            self.assertTrue(caught.exception.problems)

        def test_a_workflow_with_an_unusual_name(self) -> None:
            name = "žluťoučký / kůň? #1 & 100 %"
            self.client.workflows.create({**SHOP, "name": name})
            self.assertEqual(self.client.workflows.trigger(name, {"ů": "🐎"}, wait="10s").input, {"ů": "🐎"})
            self.assertEqual(self.client.workflows.get(name).name, name)

        def test_runs(self) -> None:
            self.client.workflows.create(SHOP)
            done = self.client.trigger("shop", {"n": 1}, wait="10s", labels={"team": "ä b"}, actor="ada")
            self.assertEqual((done.status, done.input, done.raw["trigger"]["actor"]), ("completed", {"n": 1}, "ada"))
            self.assertIn(done.id, [run.id for run in self.client.runs.list(form="graph,script")])
            self.assertNotIn(done.id, [run.id for run in self.client.runs.list(form="task")])
            self.assertEqual([run.id for run in self.client.runs.list(workflow="shop", status="completed", labels={"team": "ä b"})], [done.id])
            again = self.client.runs.replay(done, actor="bob", idempotency_key="replay-1" + done.id)
            same = self.client.runs.replay(done, idempotency_key="replay-1" + done.id)
            self.assertEqual((same.id, same.deduplicated), (again.id, True))
            self.assertEqual(self.client.wait(again, "10s").raw["replayed_from"], done.id)
            self.assertEqual(self.client.runs.get(again).raw["trigger"]["actor"], "bob")
            self.assertEqual(self.client.runs.explain(done)["reason"], "completed")
            self.client.runs.delete(done)
            with self.assertRaises(OnwardError) as caught:
                self.client.runs.get(done.id)
            self.assertEqual(caught.exception.status, 404)

        def test_a_run_as_it_was_and_what_changed_since(self) -> None:
            self.client.workflows.create(SHOP)
            done = self.client.trigger("shop", wait="10s")
            events = list(self.client.events(done))
            rests = next(event.seq for event in events if event.type == "timer.set")
            then = self.client.runs.get(done, at=rests)
            self.assertEqual((then.id, then.status, then.steps["rest"]["status"]), (done.id, "running", "sleeping"))
            self.assertEqual((then.raw["as_of"]["seq"], then.raw["as_of"]["last_seq"]), (rests, len(events)))
            last = self.client.runs.get(done.id, at=len(events)).raw
            del last["as_of"]
            self.assertEqual(last, self.client.runs.get(done).raw)
            diff = self.client.runs.diff(done, rests)
            self.assertEqual((diff["from"]["status"], diff["to"]["status"]), ("running", "completed"))
            (rest,) = diff["steps"]
            self.assertEqual((rest["step"], rest["from"]["status"], rest["to"]["status"]), ("rest", "sleeping", "success"))
            self.assertEqual(self.client.runs.diff(done, 1, to_seq=1)["steps"], [])
            with self.assertRaises(OnwardError) as caught:
                self.client.runs.get(done, at=len(events) + 1)
            self.assertEqual((caught.exception.status, caught.exception.code), (422, "unknown_event"))

        def test_pause_resume_and_cancel(self) -> None:
            self.client.workflows.create(GATE)
            run = self.client.trigger("gate")
            self.assertTrue(self.client.runs.pause(run, note="lunch").raw["paused"])
            self.assertFalse(self.client.runs.resume(run).raw.get("paused"))
            self.assertEqual(self.client.runs.cancel(run, "not needed").status, "cancelled")
            self.assertEqual(self.client.cancel(run).status, "cancelled")
            self.client.workflows.pause("gate", note="maintenance")
            held = self.client.trigger("gate")
            self.assertEqual(self.client.runs.get(held).status, "pending")
            self.client.workflows.resume("gate")
            self.client.runs.cancel(held)

        def test_decisions_about_steps_and_a_cancellation_that_undoes(self) -> None:
            self.client.workflows.create(
                {
                    "name": "stuck",
                    "tasks": {
                        "book": {"task": "book.v1", "compensate": {"log": {"message": "released"}}},
                        "gate": {"needs": ["book"], "wait_for_signal": {"name": "go"}},
                        "nap": {"needs": ["gate"], "sleep": "10d"},
                        "last": {"needs": ["nap"], "wait_for_signal": {"name": "end"}},
                    },
                }
            )
            run = self.client.trigger("stuck")
            planned = self.client.runs.set_step_result(run, "book", {"id": 7}, dry_run=True)
            self.assertEqual((planned["would_run"], planned["would_repeat"]), (["gate"], []))
            self.client.runs.set_step_result(run, "book", {"id": 7}, actor="ann", reason="by hand")
            self.client.runs.set_step_result(run, "gate", None)
            self.client.runs.run_step_now(run, "nap")
            with self.assertRaises(OnwardError) as caught:
                self.client.runs.skip_step(run, "nap")
            self.assertEqual((caught.exception.status, caught.exception.code), (409, "step_settled"))
            self.assertIn(self.client.runs.cancel(run, "no more", compensate=True).status, ("compensating", "cancelled"))
            ended = self.client.wait(run, "10s")
            self.assertEqual(ended.status, "cancelled")
            forked = self.client.runs.fork(run, "gate", results={"book": {"id": 8}}, reason="again", actor="ann")
            shown = self.client.runs.get(forked)
            self.assertEqual(shown.raw["tasks"]["book"]["copied"], "given")
            self.assertEqual(shown.raw["forked_from"], {"run_id": run.id, "step": "gate", "reason": "again"})
            self.assertEqual(self.client.runs.move(forked, 1).raw["version"], 1)
            planned = self.client.runs.bulk("cancel", workflow="stuck", dry_run=True)
            self.assertEqual((planned["matched"], planned["changed"]), (1, 0))
            self.assertEqual(self.client.runs.bulk("cancel", workflow="stuck", reason="done")["changed"], 1)

        def test_signals_approvals_pauses_and_the_output_of_a_run(self) -> None:
            self.client.workflows.create(
                {
                    "name": "order",
                    "output": {"amount": "{{tasks.paid.body.amount}}", "by": "{{tasks.review.body.actor}}"},
                    "tasks": {
                        "review": {"approval": {"prompt": "Ship {{trigger.body.id}}?", "approvers": ["ann", "bob"]}},
                        "paid": {"needs": ["review"], "wait_for_signal": {"name": "order.paid"}},
                        "hold": {"needs": ["paid"], "pause": {}},
                    },
                }
            )
            run = self.client.trigger("order", {"id": 7})
            early = self.client.runs.signal(run, "order.paid", {"amount": 42}, idempotency_key="paid-7")
            self.assertEqual((early.id, early.status, early.deduplicated), (run.id, "waiting", False))
            self.assertTrue(self.client.runs.signal(run, "order.paid", {"amount": 42}, idempotency_key="paid-7").deduplicated)
            (approval,) = self.client.runs.approvals()
            self.assertEqual((approval.run_id, approval.step, approval.prompt), (run.id, "review", "Ship 7?"))
            self.assertEqual(approval.approvers, ["ann", "bob"])
            with self.assertRaises(OnwardError) as caught:
                self.client.runs.approve(approval, actor="eve")
            self.assertEqual((caught.exception.status, caught.exception.code), (403, "not_an_approver"))
            decided = self.client.runs.approve(approval, actor="ann", comment="fine")
            self.assertEqual((decided.run_id, decided.step, decided.decision, decided.repeated), (run.id, "review", "approved", False))
            self.assertTrue(self.client.runs.approve(run, actor="ann", step="review").repeated)
            self.assertEqual(list(self.client.runs.approvals()), [])
            with self.assertRaises(OnwardError) as caught:
                self.client.runs.reject(run, actor="bob", step="review")
            self.assertEqual((caught.exception.status, caught.exception.code), (409, "already_decided"))
            for _ in range(100):
                if any(step["status"] == "waiting" for name, step in self.client.get(run).steps.items() if name == "hold"):
                    break
                time.sleep(0.05)
            self.assertIn(self.client.runs.resume(run, step="hold", actor="ann").status, ("running", "completed"))
            self.assertEqual(self.client.result(run, "10s"), {"amount": 42, "by": "ann"})
            with self.assertRaises(OnwardError) as caught:
                self.client.runs.signal(run, "order.paid")
            self.assertEqual((caught.exception.status, caught.exception.code), (409, "run_ended"))
            denied = self.client.trigger("order", {"id": 8})
            self.assertEqual(self.client.runs.reject(denied, actor="bob").decision, "denied")
            with self.assertRaises(TaskFailed) as failed:
                self.client.result(denied, "10s")
            self.assertEqual(failed.exception.ended.status, "cancelled")

        def test_a_body_that_does_not_fit_raises_with_every_problem(self) -> None:
            schema = {"type": "object", "required": ["id"], "properties": {"n": {"type": "integer"}}}
            self.client.workflows.create({"name": "strict", "input": schema, "tasks": {"a": {"noop": {}}}})
            with self.assertRaises(OnwardError) as caught:
                self.client.trigger("strict", {"n": "1"})
            self.assertEqual((caught.exception.status, caught.exception.code), (422, "invalid_input"))
            self.assertEqual(sorted(problem["at"]["path"] for problem in caught.exception.problems), ["", "/n"])
            self.assertEqual(list(self.client.runs.list(workflow="strict")), [])

        def test_triggers(self) -> None:
            self.client.workflows.create(SHOP)
            made = self.client.triggers.create("nightly", "schedule", "shop", config={"cron": "30 2 * * *"}, note="n")
            self.assertEqual((made.type, made.enabled, made.note), ("schedule", True, "n"))
            self.assertTrue(made.next_at)
            manual = self.client.triggers.create("hand", "manual", "shop", enabled=False)
            self.assertEqual([each.id for each in self.client.triggers.list(workflow="shop")], [manual.id, made.id])
            self.assertEqual([each.id for each in self.client.triggers.list(type="manual", workflow="shop")], [manual.id])
            self.assertTrue(self.client.triggers.enable(manual).enabled)
            run = self.client.triggers.run(manual, {"n": 7})
            self.assertEqual(self.client.wait(run, "10s").input, {"n": 7})
            self.assertFalse(self.client.triggers.disable(manual, note="broken").enabled)
            self.assertEqual(self.client.triggers.get(manual.id).note, "broken")
            self.client.triggers.delete(manual)
            self.assertEqual([each.id for each in self.client.triggers.list(workflow="shop")], [made.id])

        def test_lists_of_tasks_and_bulk(self) -> None:
            kind = f"bulk-{self.id().split('.')[-2].lower()}"
            before = datetime.now(timezone.utc) - timedelta(minutes=1)
            ids = [t.id for t in self.client.submit_many({"type": f"{kind}.v1", "payload": n, "labels": {"team": "a b"}} for n in range(1_203))]
            self.client.submit(f"{kind}.v2")
            listed = [task.id for task in self.client.tasks.list(type=f"{kind}.v1", status="pending", labels={"team": "a b"}, since=before)]
            self.assertEqual((len(listed), set(listed)), (1_203, set(ids)), "three pages, each task once")
            would = self.client.tasks.bulk("cancel", type=f"{kind}.%", dry_run=True)
            self.assertEqual((would.matched, len(would.tasks)), (1_204, 100))
            self.assertEqual(self.client.tasks.bulk("cancel", type=f"{kind}.v1", labels={"team": "a b"}).changed, 1_203)
            self.assertEqual([t.type for t in self.client.tasks.list(type=f"{kind}.%", status="pending")], [f"{kind}.v2"])
            self.assertEqual(self.client.tasks.bulk("delete", type=f"{kind}.%", status="cancelled").changed, 1_203)
            self.assertEqual(self.client.tasks.bulk("delete", type="%", until=before).changed, 0)
            with self.assertRaisesRegex(ValueError, "this would change every task"):
                self.client.tasks.bulk("delete")
            last = next(iter(self.client.tasks.list(type=f"{kind}.%")))
            self.assertEqual(self.client.tasks.get(last).type, f"{kind}.v2")
            self.client.tasks.delete(last)
            self.assertEqual(list(self.client.tasks.list(type=f"{kind}.%")), [])

        def test_a_stream_of_events_until_the_end(self) -> None:
            self.client.workflows.create({"name": "slow", "tasks": {"rest": {"sleep": "700ms"}}})
            run = self.client.trigger("slow")
            events = list(self.client.stream(run))
            self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))
            self.assertEqual((events[0].type, events[-1].type), ("run.created", "run.completed"))
            self.assertEqual([e.seq for e in self.client.stream(run.id, after=2)], [e.seq for e in events[2:]])
            with self.assertRaises(OnwardError) as caught:
                list(self.client.stream("run_01jz8k3w9mz6xq4v7n5t2c0b1d"))
            self.assertEqual(caught.exception.status, 404)

        def test_a_stream_goes_on_after_the_server_was_killed(self) -> None:
            with Server() as server:
                client = self.make_for(server.url)
                self.addCleanup(client.close)
                client.workflows.create({"name": "slow", "tasks": {"one": {"sleep": "1s"}, "two": {"needs": ["one"], "sleep": "2s"}}})
                run = client.trigger("slow")
                threading.Timer(0.5, server.restart).start()
                events = list(client.stream(run))
                self.assertEqual([e.seq for e in events], list(range(1, len(events) + 1)))
                self.assertEqual(events[-1].type, "run.completed")

        def test_large_bodies(self) -> None:
            with self.assertRaises(OnwardError) as caught:
                self.client.submit_many({"type": "a.v1", "payload": "x" * 250_000} for _ in range(200))
            self.assertEqual((caught.exception.status, caught.exception.code), (413, "too_large"))
            text = "ž" * 120_000
            self.assertEqual(self.client.get(self.client.submit("large.v1", text)).input, text)

        def test_wait_for_a_task_and_for_a_run(self) -> None:
            worker = Worker(slots=2)
            worker.task("waited.v1")(lambda value: value)
            with self.server.running(worker):
                self.assertEqual(self.client.result(self.client.submit("waited.v1", [1]), "10s"), [1])
            self.client.workflows.create(SHOP)
            begun = time.monotonic()
            ended = self.client.wait(self.client.trigger("shop"), "10s")
            self.assertIsInstance(ended, Run)
            self.assertTrue(ended.succeeded)
            self.assertLess(time.monotonic() - begun, 5)

        def make_for(self, url: str) -> Any:
            raise NotImplementedError


@unittest.skipUnless(BINARY, "ONWARD_BINARY is not set")
class Synchronous(Cases.Base):
    def make_for(self, url: str) -> Any:
        return Client(url)

    def make(self) -> Any:
        return self.make_for(self.server.url)


@unittest.skipUnless(BINARY, "ONWARD_BINARY is not set")
class Asynchronous(Cases.Base):
    def make_for(self, url: str) -> Any:
        return Blocking(url)

    def make(self) -> Any:
        return self.make_for(self.server.url)
