"""The state of a worker, without threads, sockets or a clock."""

from __future__ import annotations

import unittest
from typing import Any, Dict, List, Optional

from onward import OnwardError
from onward.worker.state import GIVE_BACK, Batch, WorkerState, Job


class IgnoredContextCalls:
    def beat(self, token: str, progress: Any) -> None: ...

    def log(self, token: str, line: Dict[str, str]) -> None: ...


def item(number: int, lease_ms: int = 30_000) -> Dict[str, Any]:
    return {"task_id": f"task_{number}", "claim_token": f"token_{number}", "type": "a.v1", "lease_ms": lease_ms}


def acked(batch: Batch, status: str = "recorded", **more: Any) -> Dict[str, Any]:
    acks = [{"task_id": report.job.task["task_id"], "status": status} for report in batch.done]
    leases = [{"task_id": beat.job.task["task_id"], "lease_until": "soon", "cancel": False} for beat in batch.beats]
    return {"acks": acks, "leases": leases, "tasks": [], **more}


class StateTest(unittest.TestCase):
    def setUp(self) -> None:
        self.state = WorkerState(slots=2)

    def take(self, *numbers: int, now: float = 0.0) -> List[Job]:
        return self.state.take([item(n) for n in numbers], IgnoredContextCalls(), now)

    def batch(self, now: float = 0.0) -> Batch:
        batch = self.state.batch(now)
        assert batch is not None
        return batch

    def settle(self, batch: Optional[Batch], answer: Dict[str, Any], now: float = 0.0) -> Any:
        return self.state.settle(batch, answer, IgnoredContextCalls(), now, now)

    def test_a_report_stays_until_it_is_acknowledged(self) -> None:
        (job,) = self.take(1)
        self.state.finish(job, {"result": 1})
        first = self.batch()
        self.state.end(first)  # the call failed
        again = self.batch()
        self.assertEqual([r.entry for r in again.done], [{"task_id": "task_1", "claim_token": "token_1", "result": 1}])
        self.settle(again, acked(again))
        self.assertIsNone(self.state.batch(0.0))

    def test_only_the_first_end_of_a_job_counts(self) -> None:
        (job,) = self.take(1)
        self.state.finish(job, GIVE_BACK)
        self.state.finish(job, {"result": 1})
        self.assertEqual(len(self.state.outbox), 1)

    def test_a_free_slot_is_offered_once(self) -> None:
        self.assertEqual(self.state.claim_credits(0.0), (2, None))
        self.state.claim_slots = 2
        self.assertEqual(self.state.free(), 0)
        self.state.claim_slots = None
        one, _ = self.take(1, 2)
        self.state.finish(one, {"result": 1})
        self.assertEqual(self.state.claim_credits(0.0), (None, None), "the report goes first")
        batch = self.batch()
        self.assertEqual((batch.credits, self.state.free()), (1, 0), "and offers the free slot")
        self.assertEqual(self.state.claim_credits(0.0), (None, None))
        self.settle(batch, acked(batch, tasks=[item(3)]))
        self.assertEqual((sorted(self.state.jobs), self.state.free()), (["token_2", "token_3"], 0))

    def test_when_all_slots_are_busy_a_claim_for_no_tasks_waits_for_cancels(self) -> None:
        one, _ = self.take(1, 2)
        credits, again = self.state.claim_credits(10.0)
        self.assertEqual((credits, again), (None, 0.25), "not for very short tasks")
        self.assertEqual(self.state.claim_credits(10.25), (0, None))
        self.state.claim_slots = 0
        self.assertFalse(self.state.is_starved())
        self.state.finish(one, {"result": 1})
        self.assertFalse(self.state.is_starved(), "the report may bring a task")
        batch = self.batch()
        self.settle(batch, acked(batch))
        self.assertTrue(self.state.is_starved(), "it did not: claim one")

    def test_heartbeats_are_due_every_third_of_a_lease_and_share_a_call(self) -> None:
        self.take(1)
        self.state.take([item(2)], IgnoredContextCalls(), 2.0)
        self.assertEqual(self.state.due_at(), 10.0)
        self.assertIsNone(self.state.batch(9.9))
        batch = self.batch(10.0)
        self.assertEqual([beat.entry["task_id"] for beat in batch.beats], ["task_1", "task_2"])
        self.settle(batch, acked(batch), now=10.0)
        self.assertEqual(self.state.due_at(), 20.0)

    def test_progress_is_sent_at_once_but_not_too_often_and_the_latest_counts(self) -> None:
        self.take(1)
        self.state.beat("token_1", {"page": 1}, 1.0)
        batch = self.batch(1.0)
        self.state.beat("token_1", {"page": 2}, 1.01)
        self.state.beat("token_1", {"page": 3}, 1.02)
        self.assertEqual(batch.beats[0].entry["progress"], {"page": 1})
        self.settle(batch, acked(batch), now=1.0)
        self.assertEqual(self.state.due_at(), 1.2)
        self.assertEqual(self.batch(1.2).beats[0].entry["progress"], {"page": 3})

    def test_progress_is_saved_before_a_failure_is_reported_but_not_before_a_result(self) -> None:
        one, two = self.take(1, 2)
        self.state.beat("token_1", {"page": 1}, 0.0)
        self.state.beat("token_2", {"page": 1}, 0.0)
        self.state.finish(one, {"error": {"message": "no"}})
        self.state.finish(two, {"result": 1})
        first = self.batch()
        self.assertEqual([r.job for r in first.done], [two])
        self.assertEqual([b.job for b in first.beats], [one])
        self.settle(first, acked(first))
        self.assertEqual([r.job for r in self.batch().done], [one])

    def test_log_lines_are_sent_after_a_second_or_with_the_report(self) -> None:
        one, _ = self.take(1, 2)
        self.state.log("token_1", {"message": "a"}, 0.0)
        self.state.log("token_2", {"message": "b"}, 0.5)
        self.assertEqual(self.state.due_at(), 1.0)
        self.state.finish(one, {"result": 1})
        batch = self.batch(0.6)
        self.assertEqual(batch.logs, [(one, [{"message": "a"}])])
        self.state.logged(one, 1)
        self.assertEqual(one.lines, [])

    def test_too_many_log_lines_are_counted_not_kept(self) -> None:
        (job,) = self.take(1)
        for _ in range(1_500):
            self.state.log("token_1", {"message": "a"}, 0.0)
        self.state.logged(job, 1_000)
        self.state.log("token_1", {"message": "b"}, 0.0)
        self.assertEqual([line["message"] for line in job.lines], ["500 lines were left out here", "b"])

    def test_a_cancel_arrives_with_a_heartbeat_or_by_itself(self) -> None:
        one, two = self.take(1, 2)
        batch = self.batch(10.0)
        answer = acked(batch)
        answer["leases"][0]["cancel"] = True
        answer["leases"].append({"task_id": "task_2", "lease_until": None, "cancel": True})
        changes = self.settle(batch, answer)
        self.assertEqual(changes.stopped, [one, two])
        self.assertTrue(one.context.cancelled and two.context.cancelled)
        self.assertEqual(self.settle(None, {"leases": [{"task_id": "task_2", "cancel": True}], "tasks": []}).stopped, [], "a job is stopped once")

    def test_a_lost_lease_stops_the_job(self) -> None:
        (job,) = self.take(1)
        batch = self.batch(10.0)
        changes = self.settle(batch, {"acks": [], "leases": [{"task_id": "task_1", "lease_until": None, "cancel": False}], "tasks": []})
        self.assertEqual((changes.stopped, job.why), ([job], "lease_lost"))
        self.state.beat("token_1", {"page": 1}, 20.0)
        self.assertEqual(self.state.due_at(), float("inf"), "no heartbeats without a lease")

    def test_a_task_that_arrives_while_stopping_is_given_back(self) -> None:
        self.state.is_taking = False
        self.assertEqual(self.take(1), [])
        batch = self.batch()
        self.assertEqual((batch.done[0].entry["snooze"], batch.credits), ("0s", 0))

    def test_large_results_are_sent_in_several_calls(self) -> None:
        self.state.slots = 10
        for job in self.take(*range(10)):
            self.state.finish(job, {"result": "x" * 300_000})
        sizes = []
        while self.state.outbox:
            batch = self.batch()
            sizes.append(len(batch.done))
            self.settle(batch, acked(batch))
        self.assertEqual(sizes, [3, 3, 3, 1])

    def test_an_entry_that_the_server_refuses_does_not_block_the_others(self) -> None:
        one, two = self.take(1, 2)
        self.state.finish(one, {"result": "bad"})
        self.state.finish(two, {"result": "good"})
        batch = self.batch()
        self.state.end(batch)
        bad, good = batch.parts()
        problem = OnwardError("too_large", "too large", status=413)
        self.state.refuse(bad, problem, 0.0)
        self.settle(good, acked(good))
        substitute = self.batch()
        entry = substitute.done[0].entry
        self.assertEqual((entry["error"]["code"], entry["final"]), ("refused_result", True))
        self.state.refuse(substitute.parts()[0], problem, 0.0)
        self.assertEqual(self.state.outbox, [], "the substitute was refused, too: the lease will expire")
