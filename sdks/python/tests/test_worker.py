"""Workers against a fake server: what handlers see, what is reported, and faults."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import unittest
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Optional

import onward
from onward.testing import context, running

from .fake import Fake, Refused

logging.getLogger("onward.worker").setLevel(logging.CRITICAL)


@dataclass
class Order:
    number: int
    note: Optional[str] = None


def log_lines(client: onward.Client, task: Any) -> List[Dict[str, Any]]:
    return [line for event in client.events(task) if event.type == "step.log" for line in event.data["lines"]]


class Case(unittest.TestCase):
    slots = 4
    lease = "30s"

    def setUp(self) -> None:
        self.fake = Fake()
        self.addCleanup(self.fake.down)
        self.client = onward.Client(self.fake.url)
        self.addCleanup(self.client.close)
        self.worker = onward.Worker(slots=self.slots, lease=self.lease, drain="5s")

    def running(self) -> Any:
        return running(self.worker, self.client)


class Handlers(Case):
    def test_input_is_built_from_the_annotation_and_results_may_be_dataclasses(self) -> None:
        @self.worker.task("order.v1")
        def order(order: Order) -> Order:
            return Order(order.number + 1, "next")

        @self.worker.task("plain.v1")
        async def plain(value: Any, ctx: onward.Context) -> Dict[str, Any]:
            return {"value": value, "attempt": ctx.attempt, "max": ctx.max_attempts, "type": ctx.type, "key": ctx.idempotency_key, "run": ctx.run_id}

        @self.worker.task("bare.v1")
        def bare() -> None: ...

        @self.worker.task("context.v1")
        def only_context(ctx: onward.Context) -> str:
            return ctx.task_id

        @self.worker.task("many.%")
        def many(value: int, ctx, dry_run=False):  # type: ignore[no-untyped-def]
            return [ctx.type, value, dry_run]

        with self.running():
            for type, payload, expected in [
                ("order.v1", {"number": 7}, {"number": 8, "note": "next"}),
                ("plain.v1", {"ž": "🐎"}, {"value": {"ž": "🐎"}, "attempt": 1, "max": 3, "type": "plain.v1", "key": "run_000002:task", "run": "run_000002"}),
                ("bare.v1", {"x": 1}, None),
                ("context.v1", None, "task_000004"),
                ("many.a.v1", 1, ["many.a.v1", 1, False]),
            ]:
                with self.subTest(type=type):
                    self.assertEqual(self.client.result(self.fake.add(type, payload), 5), expected)
        fields = self.fake.works()[0]
        self.assertEqual(fields["types"], ["bare.v1", "context.v1", "many.%", "order.v1", "plain.v1"])
        self.assertEqual((fields["runtime"], fields["slots"], fields["lease"]), ("python", 4, "30s"))

    def test_wrong_input_fails_permanently_and_names_the_field(self) -> None:
        calls: List[Order] = []

        @self.worker.task("order.v1")
        def order(order: Order) -> None:
            calls.append(order)

        with self.running():
            ended = self.fake.ended(self.fake.add("order.v1", {"number": "seven"}))
        self.assertEqual(ended["error"], {"code": "invalid_input", "message": 'number: expected a whole number, got "seven"'})
        self.assertEqual((ended["status"], ended["attempt"], calls), ("failed", 1, []))

    def test_the_raised_exception_decides_the_outcome(self) -> None:
        seen: List[int] = []

        @self.worker.task("fails.v1")
        def fails(value: Any, ctx: onward.Context) -> None:
            raise ConnectionError(f"attempt {ctx.attempt}")

        @self.worker.task("final.v1")
        async def final(value: Any) -> None:
            raise onward.Fail("card declined", code="card_declined")

        @self.worker.task("soon.v1")
        def soon(value: Any, ctx: onward.Context) -> int:
            if ctx.attempt == 1:
                raise onward.Retry("busy", after="10ms")
            return ctx.attempt

        @self.worker.task("snooze.v1")
        def snooze(value: Any, ctx: onward.Context) -> int:
            seen.append(ctx.attempt)
            if len(seen) == 1:
                raise onward.Snooze("10ms")
            return ctx.attempt

        @self.worker.task("unsaid.v1")
        def unsaid(value: Any) -> Any:
            return b"bytes"

        @self.worker.task("model.v1")
        def model(value: Any) -> Any:
            class Model:
                def model_dump(self, mode: str) -> Any:
                    raise LookupError("no such field")

            return Model()

        @self.worker.task("exits.v1")
        def exits(value: Any) -> None:
            sys.exit("no")

        with self.running():
            fails_, final_, soon_, snooze_, unsaid_ = (
                self.fake.ended(self.fake.add(f"{type}.v1")) for type in ("fails", "final", "soon", "snooze", "unsaid")
            )
            exits_ = self.fake.ended(self.fake.add("exits.v1", max_attempts=1))
            model_ = self.fake.ended(self.fake.add("model.v1"))
        self.assertEqual((fails_["status"], fails_["attempt"]), ("failed", 3))
        self.assertEqual(fails_["error"], {"code": "connection_error", "message": "attempt 3"})
        self.assertEqual((final_["attempt"], final_["error"]), (1, {"code": "card_declined", "message": "card declined"}))
        self.assertEqual((soon_["result"], soon_["attempt"]), (2, 2))
        self.assertEqual((snooze_["result"], seen), (1, [1, 1]))
        self.assertEqual((unsaid_["error"]["code"], unsaid_["attempt"]), ("invalid_result", 1))
        self.assertEqual(exits_["error"]["code"], "system_exit")
        self.assertEqual((model_["error"]["code"], model_["attempt"]), ("invalid_result", 1))

    def test_progress_reaches_the_next_attempt_even_if_it_was_saved_just_before_the_failure(self) -> None:
        @self.worker.task("pages.v1")
        def pages(value: Any, ctx: onward.Context) -> Any:
            if ctx.progress is None:
                for page in range(1, 8):
                    ctx.heartbeat(progress={"page": page})
                raise RuntimeError("stopped at page 7")
            return ctx.progress

        with self.running():
            self.assertEqual(self.client.result(self.fake.add("pages.v1"), 5), {"page": 7})

    def test_log_lines_arrive_in_order_and_before_the_end(self) -> None:
        @self.worker.task("log.v1")
        def log(value: Any, ctx: onward.Context) -> None:
            for n in range(250):
                ctx.log(f"line {n}", level="debug")

        with self.running():
            task = self.client.wait(self.fake.add("log.v1"), 5)
        lines = [line["message"] for line in log_lines(self.client, task)]
        self.assertEqual(lines, [f"line {n}" for n in range(250)])

    def test_a_failure_leaves_the_end_of_its_traceback_in_the_log(self) -> None:
        class Silent(Exception):
            def __str__(self) -> str:
                raise RuntimeError("not even this")

        def deep(n: int) -> None:
            if n == 0:
                raise KeyError("ž" * 50)
            exec(f"def f{n}():\n  deep({n - 1})\nf{n}()", {"deep": deep})

        @self.worker.task("short.v1")
        def short(value: Any, ctx: onward.Context) -> None:
            for n in range(2_000):
                ctx.log(n)
            raise ConnectionError("refused")

        @self.worker.task("deep.v1")
        async def deeply(value: Any) -> None:
            deep(200)

        @self.worker.task("caused.v1")
        def caused(value: Any) -> None:
            try:
                int("x")
            except ValueError as problem:
                raise onward.Fail("not a number") from problem

        @self.worker.task("chosen.v1")
        def chosen(value: Any) -> None:
            raise onward.Fail("card declined", code="c" * 300)

        @self.worker.task("silent.v1")
        def silent(value: Any) -> None:
            raise Silent

        found: Dict[str, List[Dict[str, Any]]] = {}
        with self.running():
            for name in ("short", "deep", "caused", "chosen", "silent"):
                id = self.fake.add(f"{name}.v1", max_attempts=1)
                self.assertEqual(self.fake.ended(id)["status"], "failed")
                found[name] = [line for line in log_lines(self.client, id) if line["level"] == "error"]
        self.assertEqual(self.fake.tasks[id]["error"], {"code": "silent", "message": "Silent"})
        (line,) = found["short"]
        self.assertRegex(line["message"], r'^Traceback \(most recent call last\):\n  File ".*test_worker.py", line \d+, in short\n')
        self.assertTrue(line["message"].endswith("ConnectionError: refused"))
        (line,) = found["deep"]
        self.assertLessEqual(len(line["message"].encode()), 4_096)
        self.assertTrue(line["message"].startswith("…") and line["message"].endswith("ž'"), line["message"][-100:])
        self.assertIn("ValueError: invalid literal", found["caused"][0]["message"])
        self.assertEqual((found["chosen"], len(found["silent"])), ([], 1))

    def test_progress_that_is_too_large_raises_in_the_handler(self) -> None:
        with self.assertRaisesRegex(ValueError, "at most 4096 are kept"):
            context().heartbeat(progress="x" * 5_000)

    def test_a_handler_can_be_called_like_any_function(self) -> None:
        @self.worker.task("order.v1")
        def order(order: Order, ctx: onward.Context) -> int:
            ctx.log("hello")
            return order.number * ctx.attempt

        self.assertEqual(order(Order(7), context(attempt=2)), 14)

    def test_a_parameter_that_nothing_fills_is_refused_at_registration(self) -> None:
        def three(value: Any, ctx: onward.Context, retries: int) -> None: ...
        def no_context(value: Any, factor: int) -> None: ...
        def context_first(ctx: onward.Context, value: int) -> None: ...
        def by_name(value: Any, *, verbose: bool) -> None: ...
        def untyped(value, ctx, more):  # type: ignore[no-untyped-def]
            ...

        for function, name in ((three, "retries"), (no_context, "factor"), (context_first, "value"), (by_name, "verbose"), (untyped, "more")):
            with self.subTest(function=function.__name__):
                expected = f"`{function.__name__}` cannot be the handler of `a.v1`: there is no value for its parameter `{name}`"
                with self.assertRaisesRegex(TypeError, expected):
                    self.worker.task("a.v1")(function)

        def fine(value: Any, ctx: Optional[onward.Context] = None, *more: int, verbose: bool = False, **others: Any) -> None: ...

        self.worker.task("a.v1")(fine)
        self.worker.task("b.v1")(lambda value, ctx: None)

        def later(value: Any, ctx: "NotThere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

        self.worker.task("c.v1")(later)
        with self.assertRaisesRegex(TypeError, "NotThere.*define the type of `ctx`"), self.running():
            pass

    def test_functions_that_cannot_be_handlers_are_refused(self) -> None:
        self.worker.task("b.v1")(lambda value: None)
        with self.assertRaisesRegex(ValueError, "has a handler already"):
            self.worker.task("b.v1")(lambda value: None)

        @self.worker.task("c.v1")
        def bytes_(value: bytes) -> None: ...

        with self.assertRaisesRegex(TypeError, "the handler of `c.v1`: input cannot be built as `bytes`"), self.running():
            pass
        with self.assertRaisesRegex(ValueError, "there is nothing to do"), running(onward.Worker(), self.client):
            pass
        for wrong in ({"slots": 0}, {"slots": 1_001}, {"lease": "500ms"}, {"lease": "2h"}):
            with self.subTest(wrong=wrong), self.assertRaises(ValueError):
                onward.Worker(**wrong)  # type: ignore[arg-type]


class Cancelling(Case):
    slots = 2

    def test_an_async_handler_is_cancelled_and_a_plain_one_sees_the_flag(self) -> None:
        stopped: List[str] = []

        @self.worker.task("async.v1")
        async def sleeps(value: Any, ctx: onward.Context) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                stopped.append(f"async {ctx.cancelled}")

        @self.worker.task("plain.v1")
        def loops(value: Any, ctx: onward.Context) -> None:
            try:
                while True:
                    ctx.check()
                    time.sleep(0.01)
            finally:
                stopped.append(f"plain {ctx.cancelled}")

        # Both slots are busy and the lease is long: only the claim for no tasks can bring the cancel.
        ids = [self.fake.add("async.v1"), self.fake.add("plain.v1")]
        with self.running():
            self.fake.until(lambda: all(self.fake.tasks[id]["status"] == "leased" for id in ids))
            begun = time.monotonic()
            for id in ids:
                self.client.cancel(id)
            self.fake.until(lambda: len(stopped) == 2)
            self.assertLess(time.monotonic() - begun, 1)
        self.assertEqual(sorted(stopped), ["async True", "plain True"])
        self.assertFalse(any(body.get("done") for body in self.fake.works()), "no report is sent")

    def test_a_claim_for_no_tasks_is_replaced_when_a_slot_is_free(self) -> None:
        release = threading.Event()

        @self.worker.task("waits.v1")
        def waits(value: Any) -> None:
            release.wait(10)

        with self.running():
            first = [self.fake.add("waits.v1"), self.fake.add("waits.v1")]
            self.fake.until(lambda: any(body["credits"] == 0 and body["wait"] == "20s" for body in self.fake.works()))
            release.set()
            for id in first:
                self.fake.ended(id)
            begun = time.monotonic()
            self.fake.ended(self.fake.add("waits.v1"))
            self.assertLess(time.monotonic() - begun, 2)


class Leases(Case):
    lease = "1s"

    def test_a_task_that_takes_longer_than_its_lease_is_kept_alive_even_if_it_blocks_the_loop(self) -> None:
        @self.worker.task("slow.v1")
        def slow(value: Any) -> str:
            time.sleep(2)
            return "slow"

        @self.worker.task("blocks.v1")
        async def blocks(value: Any) -> str:
            time.sleep(2)
            return "blocks"

        with self.running():
            ids = [self.fake.add("slow.v1"), self.fake.add("blocks.v1")]
            for id in ids:
                self.fake.ended(id)
        self.assertEqual([self.fake.tasks[id]["attempt"] for id in ids], [1, 1])

    def test_a_lost_lease_stops_the_handler_and_its_result_does_not_count(self) -> None:
        seen: List[Any] = []

        @self.worker.task("lost.v1")
        def lost(value: Any, ctx: onward.Context) -> str:
            deadline = time.monotonic() + 5
            while ctx.attempt == 1 and not ctx.cancelled and time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append((ctx.attempt, ctx.cancelled))
            return f"attempt {ctx.attempt}"

        with self.running():
            id = self.fake.add("lost.v1")
            self.fake.until(lambda: self.fake.tasks[id]["status"] == "leased")
            with self.fake.lock:
                self.fake.tasks[id]["_until"] = 0.0
            self.assertEqual(self.client.result(id, 5), "attempt 2")
            self.fake.until(lambda: len(seen) == 2)
        self.assertIn((1, True), seen)


class Accidents(Case):
    def setUp(self) -> None:
        super().setUp()
        self.ran: List[Any] = []

        @self.worker.task("work.v1")
        def work(value: Any) -> Any:
            self.ran.append(value)
            return value

    def test_a_result_whose_answer_was_lost_is_reported_again(self) -> None:
        with self.running():
            self.fake.until(lambda: self.fake.works())
            self.fake.refuse = lambda method, path, body: self._cut_first_report(body)
            self.assertEqual(self.client.result(self.fake.add("work.v1", 1), 5), 1)
        reports = [body["done"] for body in self.fake.works() if body.get("done")]
        self.assertGreaterEqual(len(reports), 2)
        self.assertEqual(reports[0], reports[1])
        self.assertEqual(self.ran, [1])

    def _cut_first_report(self, body: Any) -> None:
        if isinstance(body, dict) and body.get("done"):
            self.fake._breaks, self.fake._break_after = 0, True
            self.fake.refuse = lambda *_: None
            self.fake._done(body["done"][0])
            raise ConnectionAbortedError("carried out, but the answer is lost")

    def test_a_server_that_is_down_for_a_while(self) -> None:
        gate, begun = threading.Event(), []

        @self.worker.task("gated.v1")
        def gated(value: Any) -> Any:
            begun.append(value)
            gate.wait(10)
            return value

        with self.running():
            held = [self.fake.add("gated.v1", n) for n in range(2)]
            # Not when they are leased: the response with the tasks may still be in transit, and would be cut.
            self.fake.until(lambda: len(begun) == 2)
            self.fake.down()
            gate.set()
            time.sleep(0.5)
            calls = len(self.fake.calls)
            self.fake.up()
            self.assertEqual([self.fake.ended(id, 20)["result"] for id in held], [0, 1])
            self.assertEqual([self.fake.tasks[id]["attempt"] for id in held], [1, 1])
            self.assertEqual(self.client.result(self.fake.add("work.v1", 7), 20), 7)
            self.assertLess(len(self.fake.calls) - calls, 30, "it does not storm a server that comes back")

    def test_an_entry_that_the_server_refuses_does_not_block_the_rest(self) -> None:
        def refuse(method: str, path: str, body: Any) -> Optional[Refused]:
            big = any(entry.get("result") == "big" for entry in (body or {}).get("done", [])) if path == "/work" else False
            return Refused(413, "too_large", "over the limit of the run") if big else None

        self.fake.refuse = refuse
        with self.running():
            ids = [self.fake.add("work.v1", payload) for payload in (1, "big", 2)]
            ended = [self.fake.ended(id) for id in ids]
        self.assertEqual([task["status"] for task in ended], ["succeeded", "failed", "succeeded"])
        self.assertEqual(ended[1]["error"]["code"], "refused_result")
        self.assertIn("over the limit of the run", ended[1]["error"]["message"])

    def test_a_worker_that_the_server_refuses_ends_with_an_error(self) -> None:
        for status, code in ((422, "invalid_body"), (404, "unknown_route"), (401, "unauthorised")):
            self.fake.refuse = lambda *_: Refused(status, code)
            with self.subTest(code=code):
                with self.assertRaises(onward.OnwardError) as caught, self.running():
                    time.sleep(1)
                self.assertEqual(caught.exception.code, code)

    def test_invalid_answers_do_not_end_the_worker(self) -> None:
        answer, wrong = self.fake.answer, [None, [], {"tasks": None}, {"acks": [], "leases": [], "tasks": 7}]

        def broken(method: str, path: str, *rest: Any) -> Any:
            return (200, {"data": wrong.pop()}) if path == "/work" and wrong else answer(method, path, *rest)

        self.fake.answer = broken  # type: ignore[method-assign]
        with self.running():
            self.assertEqual(self.client.result(self.fake.add("work.v1", 1), 10), 1)

    def test_a_type_without_a_handler_is_left_to_others(self) -> None:
        self.worker.types = ["%"]
        with self.running():
            ended = self.fake.ended(self.fake.add("other.v1", max_attempts=2))
        self.assertEqual((ended["error"]["code"], ended["attempt"]), ("no_handler", 2))

    def test_many_tasks_use_few_calls(self) -> None:
        with self.running():
            self.fake.until(lambda: self.fake.works())
            ids = [task.id for task in self.client.submit_many({"type": "work.v1", "payload": n} for n in range(500))]
            for n, id in enumerate(ids):
                self.assertEqual(self.fake.ended(id, 20)["result"], n)
        self.assertEqual(sorted(self.ran), list(range(500)))
        self.assertLess(len(self.fake.works()), 500, "results and claims travel together")

    def test_a_server_that_answers_claims_at_once_is_not_flooded(self) -> None:
        self.fake.is_hasty = True
        with self.running():
            time.sleep(1)
            self.assertLess(len(self.fake.calls), 5)
            self.assertEqual(self.client.result(self.fake.add("work.v1", 1), 5), 1)

    def test_an_idle_worker_sends_few_calls(self) -> None:
        with self.running():
            time.sleep(1)
            self.assertEqual(len(self.fake.calls), 1)


class Stopping(Case):
    def test_draining_finishes_tasks_and_gives_the_rest_back(self) -> None:
        self.worker.drain = 0.5
        started = threading.Barrier(4)

        @self.worker.task("short.v1")
        def short(value: Any) -> str:
            started.wait(5)
            time.sleep(0.2)
            return "done"

        @self.worker.task("long.v1")
        def long(value: Any) -> None:
            started.wait(5)
            time.sleep(30)

        @self.worker.task("async.v1")
        async def sleeps(value: Any) -> None:
            await asyncio.get_running_loop().run_in_executor(None, started.wait, 5)
            await asyncio.sleep(30)

        ids = [self.fake.add(f"{name}.v1") for name in ("short", "long", "async")]
        begun = time.monotonic()
        with self.running():
            started.wait(5)
        self.assertLess(time.monotonic() - begun, 4)
        self.assertEqual([self.fake.tasks[id]["status"] for id in ids], ["succeeded", "pending", "pending"])
        self.assertEqual([self.fake.tasks[id]["attempt"] for id in ids], [1, 0, 0], "handed back, not charged")

    def test_an_idle_worker_stops_at_once(self) -> None:
        self.worker.task("a.v1")(lambda value: value)
        with self.running():
            self.fake.until(lambda: self.fake.works())
            begun = time.monotonic()
        self.assertLess(time.monotonic() - begun, 1)

    def test_a_worker_stops_without_a_server(self) -> None:
        has_begun = threading.Event()

        @self.worker.task("a.v1")
        def work(value: Any) -> None:
            has_begun.set()
            time.sleep(0.3)

        self.fake.add("a.v1")
        with self.running():
            self.assertTrue(has_begun.wait(10))
            self.fake.down()
            begun = time.monotonic()
        self.assertLess(time.monotonic() - begun, 10)

    def test_cancelling_serve_gives_all_tasks_back(self) -> None:
        self.worker.client = self.client
        begun: List[Any] = []

        @self.worker.task("a.v1")
        async def sleeps(value: Any) -> None:
            begun.append(value)
            await asyncio.sleep(60)

        id = self.fake.add("a.v1")

        async def program() -> None:
            serving = asyncio.ensure_future(self.worker.serve())
            while not begun:  # a leased task that has not arrived cannot be given back
                await asyncio.sleep(0.01)
            serving.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await serving

        asyncio.run(program())
        self.assertEqual((self.fake.tasks[id]["status"], self.fake.tasks[id]["attempt"]), ("pending", 0))

    def test_a_signal_drains_the_command_and_a_second_one_hurries_it(self) -> None:
        folder = Path(__file__).parent
        environment = {**os.environ, "ONWARD_URL": self.fake.url, "PYTHONPATH": str(folder.parent / "src")}
        for signals, statuses in ((1, ["succeeded"]), (2, ["pending"])):
            with self.subTest(signals=signals):
                id = self.fake.add("sleepy.v1", {"seconds": 1.0 if signals == 1 else 30.0})
                process = subprocess.Popen([sys.executable, "-m", "onward.worker", "sleepy:worker"], cwd=folder, env=environment, stderr=subprocess.DEVNULL)
                try:
                    self.fake.until(lambda: self.fake.tasks[id]["progress"] == "begun")
                    for _ in range(signals):
                        process.send_signal(signal.SIGTERM)
                        time.sleep(0.2)
                    self.assertEqual(process.wait(10), 0)
                finally:
                    process.kill()
                    process.wait()
                self.assertEqual([self.fake.tasks[id]["status"]], statuses)

    def test_the_command_names_what_is_missing(self) -> None:
        folder = Path(__file__).parent
        environment = {**os.environ, "PYTHONPATH": str(folder.parent / "src")}
        ran = subprocess.run([sys.executable, "-m", "onward.worker", "sleepy:missing"], cwd=folder, env=environment, capture_output=True, text=True)
        self.assertEqual((ran.returncode, ran.stderr), (2, "`sleepy` has no worker `missing`\n"))
