"""A running worker: the threads that talk to the server and the threads that run handlers.

    claimer    one claim that waits for tasks, open whenever slots are free
    reporter   short calls, as soon as a task has ended or a heartbeat is due; they also claim tasks for the slots that
               became free, so the response brings the next tasks at once
    handlers   each `def` in its own thread, `async def` on the event loop of the caller of `serve`

Results never wait for an open claim, because the claim has its own connection. A separate thread renews leases, so a handler
that blocks (even one that blocks the event loop by mistake) loses nothing. `WorkerState` makes all decisions; this file only
executes them, under one lock.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from typing import Any, Callable, Dict, Optional

from ..errors import OnwardError, OnwardUnavailable
from ..inputs import InvalidInput
from ..logs import current
from ..outcomes import Fail, Retry, Snooze, entry_for, error, traceback_of
from ..protocol import Address, Request, pause
from ..transport import Connection
from ..values import encode
from .state import GIVE_BACK, LINES_PER_CALL, Batch, WorkerState, Job
from .handler import Handler, find

log = logging.getLogger("onward.worker")

CLAIM_WAIT = 20.0
ANSWER_TIMEOUT = 30.0
EARLY = 0.5
RESULT_BYTES_MAX = 16 << 20
HANG_UP = 2.0
FLUSH = 5.0


class Session:
    """One run of a worker, from its first claim until everything is reported or given back."""

    def __init__(self, address: Address, handlers: Dict[str, Handler], fields: Dict[str, Any], slots: int) -> None:
        self.fields = fields  # sent with every `/work` call
        self.handlers = handlers
        self.state = WorkerState(slots)
        self.lock = threading.Condition()
        self.loop = asyncio.get_running_loop()
        self.problem: Optional[Exception] = None  # why it cannot work at all
        self.ended = asyncio.Event()
        self._claim = Connection(address)
        self._report = Connection(address)
        self._works = False  # the server has accepted this worker before
        self._closing_since: Optional[float] = None
        self._claimer = threading.Thread(target=self._hold, args=(self._claim_loop, self._claim), name="onward-claimer", daemon=True)
        self._reporter = threading.Thread(target=self._hold, args=(self._report_loop, self._report), name="onward-reporter", daemon=True)

    def start(self) -> None:
        self._claimer.start()
        self._reporter.start()

    def _hold(self, loop: Callable[[], None], connection: Connection) -> None:
        """Closes the connection when its thread ends; and stops the worker if one of its threads fails."""
        try:
            loop()
        except Exception as problem:
            self._give_up(problem)
        finally:
            connection.close()

    # Shutdown, from the event loop.

    async def drain(self, seconds: float, hurry: asyncio.Event) -> None:
        """Stops claiming and waits for the current tasks: at most this long, or until `hurry`."""
        with self.lock:
            self.state.is_taking = False
            self.lock.notify_all()
        begun = time.monotonic()
        while self._claimer.is_alive() or self.state.jobs:
            passed = time.monotonic() - begun
            if self._claimer.is_alive():
                # A response that is arriving is still read, and its tasks are given back; a silent claim is aborted.
                if passed < HANG_UP:
                    self._claim.hang_up()
                else:
                    self._claim.break_off()
            if passed >= seconds or hurry.is_set():
                break
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        """Stops what still runs, gives it back, and reports until everything is sent or the server is silent for too long."""
        with self.lock:
            self.state.is_taking = False
            for job in list(self.state.jobs.values()):
                if self.state.stop(job, "stopping"):
                    self._stop_handler(job)
        begun = time.monotonic()
        while self.state.jobs and time.monotonic() - begun < 1.0:
            await asyncio.sleep(0.02)
        self._claim.break_off()
        with self.lock:
            for job in list(self.state.jobs.values()):
                log.warning("%s (%s) did not stop; its task is given back to the server", job.task["task_id"], job.task["type"])
                self.state.finish(job, GIVE_BACK)
            self._closing_since = time.monotonic()
            self.lock.notify_all()
        while self._reporter.is_alive() and time.monotonic() - self._closing_since < FLUSH + 1.0:
            await asyncio.sleep(0.02)
        if self.state.outbox:
            log.error("%d results could not be reported; their leases will expire", len(self.state.outbox))
        for connection in (self._claim, self._report):
            connection.break_off()

    # The claimer.

    def _claim_loop(self) -> None:
        failures = 0
        while True:
            credits = self._await_room()
            if credits is None:
                return
            sent = time.monotonic()
            try:
                body = {**self.fields, "credits": credits, "wait": f"{CLAIM_WAIT:.0f}s"}
                answer = self._work(self._claim, body, CLAIM_WAIT + ANSWER_TIMEOUT)
                failures = 0
            except OnwardError as problem:
                with self.lock:
                    was_starved = self.state.is_starved()
                    self.state.claim_slots = None
                if was_starved or not self.state.is_taking:
                    continue  # aborted by this worker
                if not self._works and (not _is_temporary(problem) or problem.status in (401, 403)):
                    self._give_up(problem)
                    return
                self._rest(problem, failures)
                failures += 1
                continue
            with self.lock:
                self._works = True
                self.state.claim_slots = None
                self._absorb(None, answer, sent)
                if not answer["tasks"] and not answer["leases"] and time.monotonic() - sent < CLAIM_WAIT / 2:
                    # An empty response without a wait: the server is stopping, or does not hold a claim for no tasks open.
                    # Claim again, but not at once.
                    self.lock.wait_for(lambda: not self.state.is_taking or (credits == 0 and self.state.free() > 0), EARLY)

    def _await_room(self) -> Optional[int]:
        """Waits until there is a reason to claim; returns how many tasks to claim, or `None` when stopping."""
        with self.lock:
            while self.state.is_taking:
                credits, again = self.state.claim_credits(time.monotonic())
                if credits is not None:
                    self.state.claim_slots = credits
                    return credits
                self.lock.wait(again)
            return None

    # The reporter.

    def _report_loop(self) -> None:
        failures = 0
        while True:
            batch = self._await_batch()
            if batch is None:
                return
            try:
                self._send_logs(batch)
                self._send(batch)
                failures = 0
            except OnwardError as problem:
                with self.lock:
                    self.state.end(batch)
                if self._is_late():
                    return
                self._rest(problem, failures)
                failures += 1

    def _await_batch(self) -> Optional[Batch]:
        """Waits until something is due and returns it; `None` when closing and everything is sent."""
        with self.lock:
            while True:
                now = time.monotonic()
                if self._closing_since is not None and (not self.state.outbox or self._is_late()):
                    return None
                is_starved = self.state.is_starved()
                if is_starved:
                    self._claim.break_off()
                batch = self.state.batch(now)
                if batch is not None:
                    return batch
                left = self.state.due_at() - now
                self.lock.wait(min(left, 0.1) if is_starved else left if left < 3600 else None)

    def _send(self, batch: Batch) -> None:
        """One `/work` call. If the server refuses it, sends each entry alone, to find the one at fault."""
        sent = time.monotonic()
        body = {
            **self.fields,
            "credits": batch.credits,
            "wait": "0s",
            "done": [report.entry for report in batch.done],
            "heartbeats": [beat.entry for beat in batch.beats],
        }
        try:
            answer = self._work(self._report, body, ANSWER_TIMEOUT)
        except OnwardError as problem:
            if _is_temporary(problem):
                raise
            parts = batch.parts()
            if len(parts) > 1:
                for part in parts:
                    self._send(part)
                return
            log.error("the server refused a report: %s", problem)
            with self.lock:
                self.state.end(batch)
                self.state.refuse(batch, problem, time.monotonic())
                self.lock.notify_all()
            return
        if len(answer["acks"]) < len(batch.done):
            raise OnwardUnavailable("the server did not acknowledge every entry")
        with self.lock:
            self._absorb(batch, answer, sent)

    def _work(self, connection: Connection, body: Dict[str, Any], timeout: float) -> Dict[str, Any]:
        answer = connection.request(Request("POST", "/work", encode(body)), timeout).data
        if not isinstance(answer, dict) or not all(isinstance(answer.get(name), list) for name in ("acks", "leases", "tasks")):
            raise OnwardUnavailable("the answer of `/work` is not understood")
        return answer

    def _send_logs(self, batch: Batch) -> None:
        """Log lines have their own route. If the server refuses them, the result still counts."""
        for job, lines in batch.logs:
            for begin in range(0, len(lines), LINES_PER_CALL):
                some = lines[begin : begin + LINES_PER_CALL]
                body = {"claim_token": job.token, "lines": some}
                try:
                    self._report.request(Request("POST", f"/tasks/{job.task['task_id']}/logs", encode(body)), ANSWER_TIMEOUT)
                except OnwardError as problem:
                    if _is_temporary(problem):
                        raise
                    log.warning("log lines of %s were refused: %s", job.task["task_id"], problem)
                with self.lock:
                    self.state.logged(job, len(some))

    # Responses.

    def _absorb(self, batch: Optional[Batch], answer: Dict[str, Any], sent: float) -> None:
        """Acts on a response. Called with the lock held."""
        changes = self.state.settle(batch, answer, self, sent, time.monotonic())
        for report, why in changes.refused:
            log.warning("the server did not accept the result of %s (%s): %s", report.job.task["task_id"], report.job.task["type"], why)
        for job in changes.stopped:
            log.info("%s (%s) was stopped: %s", job.task["task_id"], job.task["type"], job.why)
            self._stop_handler(job)
        for job in changes.started:
            self._launch(job)
        self.lock.notify_all()

    def _stop_handler(self, job: Job) -> None:
        """Cancels an async handler; any other handler sees `ctx.cancelled`."""
        self._on_loop(lambda: job.runner and job.runner.cancel())

    # Handlers.

    def _launch(self, job: Job) -> None:
        handler = find(self.handlers, job.task["type"])
        if handler is None:
            known = ", ".join(f"`{name}`" for name in sorted(self.handlers))
            message = f"this worker has no handler for `{job.task['type']}`, only for {known}"
            self.state.finish(job, {"error": error(message, "no_handler")})
        elif handler.is_async:
            self._on_loop(lambda: self._spawn(handler, job))
        else:
            threading.Thread(target=self._run, args=(handler, job), name=f"onward-{job.task['task_id']}", daemon=True).start()

    def _run(self, handler: Handler, job: Job) -> None:
        current.set(job.context)
        try:
            value = handler.function(*handler.arguments(job.task.get("input"), job.context))
        except BaseException as raised:  # also `SystemExit`: it ends the attempt, not the worker
            self._raised(job, raised)
        else:
            self._returned(job, value)

    def _spawn(self, handler: Handler, job: Job) -> None:
        job.runner = self.loop.create_task(self._run_async(handler, job))
        job.runner.add_done_callback(lambda task: self._unstarted(job) if task.cancelled() else None)
        if job.why is not None:
            job.runner.cancel()

    def _unstarted(self, job: Job) -> None:
        """Ends the job of a coroutine that was cancelled before its first step, which never sees the cancel."""
        self._raised(job, asyncio.CancelledError())

    async def _run_async(self, handler: Handler, job: Job) -> None:
        current.set(job.context)
        try:
            value = await handler.function(*handler.arguments(job.task.get("input"), job.context))
        except BaseException as raised:
            self._raised(job, raised)
        else:
            self._returned(job, value)

    def _returned(self, job: Job, value: Any) -> None:
        try:
            encoded = encode(value)
            outcome: Dict[str, Any] = {"result": json.loads(encoded)}  # a copy: the handler may change it later
        except Exception as problem:  # a model of the program may raise anything when it is converted
            outcome = {"error": error(f"the result cannot be written as JSON: {problem!r}", "invalid_result"), "final": True}
        else:
            if len(encoded) > RESULT_BYTES_MAX:
                message = f"the result is {len(encoded)} bytes, at most {RESULT_BYTES_MAX} are kept: put it somewhere and return where"
                outcome = {"error": error(message, "result_too_large"), "final": True}
        self._finish(job, outcome)

    def _raised(self, job: Job, raised: BaseException) -> None:
        says_what = isinstance(raised, (Fail, Retry, Snooze))
        if isinstance(raised, InvalidInput):
            outcome: Optional[Dict[str, Any]] = {"error": error(str(raised), "invalid_input"), "final": True}
        elif job.why is not None and not says_what:
            # It stopped on request. If the server requested it, no report is needed.
            outcome = GIVE_BACK if job.why == "stopping" else None
        else:
            outcome = entry_for(raised)
            trace = traceback_of(raised)
            if trace is not None:
                with self.lock:
                    self.state.log(job.token, {"level": "error", "message": trace}, time.monotonic(), is_last=True)
            if not says_what:
                log.warning("%s (%s), attempt %s failed", job.task["task_id"], job.task["type"], job.context.attempt, exc_info=raised)
        self._finish(job, outcome)

    def _finish(self, job: Job, outcome: Optional[Dict[str, Any]]) -> None:
        with self.lock:
            self.state.finish(job, outcome)
            self.lock.notify_all()

    # Calls from contexts (`Voice`).

    def beat(self, token: str, progress: Any) -> None:
        with self.lock:
            self.state.beat(token, progress, time.monotonic())
            self.lock.notify_all()

    def log(self, token: str, line: Dict[str, str]) -> None:
        with self.lock:
            self.state.log(token, line, time.monotonic())
            self.lock.notify_all()

    # Helpers.

    def _rest(self, problem: OnwardError, failures: int) -> None:
        """Waits before a retry, longer each time, but ends the wait when the worker stops."""
        seconds = pause(failures, problem)
        log.warning("%s; retrying in %.1f s", problem, seconds)
        with self.lock:
            self.lock.wait_for(lambda: not self.state.is_taking, seconds)
        if not self.state.is_taking:
            time.sleep(min(seconds, 0.2))  # stopping: reports are still sent, with shorter waits

    def _is_late(self) -> bool:
        return self._closing_since is not None and time.monotonic() - self._closing_since > FLUSH

    def _give_up(self, problem: Exception) -> None:
        self.problem = problem
        self._on_loop(self.ended.set)

    def _on_loop(self, call: Any) -> None:
        try:
            self.loop.call_soon_threadsafe(call)
        except RuntimeError:
            pass  # the loop is closed: the program is ending


def _is_temporary(problem: OnwardError) -> bool:
    """Whether a retry of the request can succeed. True for a refused key, because an operator can fix the key."""
    if isinstance(problem, OnwardUnavailable) or problem.status is None:
        return True
    return problem.status >= 500 or problem.status in (401, 403, 408, 425, 429)
