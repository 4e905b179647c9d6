"""The state of a worker: the tasks it holds, the reports it has to send, its free slots.

    take ──▶ jobs ──finish──▶ outbox ──settle (acknowledged)──▶ gone
               │                 ▲
               └─ heartbeats ────┴── batch: one `/work` call

Pure: no threads, no sockets, no clock (`now` is an argument), so every rule below is tested without any of them. The
session calls it under its lock.

Rules. A report stays in the outbox until the server has acknowledged it, however often it has to be sent. Free slots are
offered either in the open claim or in the current report, never in both. Unsaved progress is sent before the failure that
needs it, and log lines before the result of their attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..errors import OnwardError
from ..outcomes import error
from ..values import encode
from .context import Context, Voice

ENTRIES_MAX = 1_000
BATCH_BYTES_MAX = 1 << 20
LINES_MAX = 1_000
LINES_PER_CALL = 100
LOGS_EVERY = 1.0
PROGRESS_EVERY = 0.2
FULL_FOR = 0.25
GIVE_BACK = {"snooze": "0s"}


@dataclass(eq=False)
class Job:
    """One task that this worker holds, under one claim token."""

    task: Dict[str, Any]
    context: Context
    lease: float
    beat_at: float
    progress: Any = None
    progress_seq: int = 0  # the number of the latest progress that the handler saved …
    progress_sent: int = 0  # … and the number of the latest progress that the server has
    sent_at: float = float("-inf")
    lines: List[Dict[str, str]] = field(default_factory=list)
    lines_at: float = float("inf")
    lines_lost: int = 0
    why: Optional[str] = None  # why it should stop: `cancelled`, `lease_lost`, `stopping`
    runner: Any = None  # the asyncio task of an async handler

    @property
    def token(self) -> str:
        return str(self.task["claim_token"])

    @property
    def ids(self) -> Dict[str, str]:
        return {"task_id": self.task["task_id"], "claim_token": self.token}


@dataclass(eq=False)
class Report:
    """The result of a job, until the server has acknowledged it."""

    job: Job
    entry: Dict[str, Any]
    size: int
    is_substitute: bool = False

    @property
    def waits_for_progress(self) -> bool:
        return self.job.progress_seq > self.job.progress_sent and "result" not in self.entry


class Beat(NamedTuple):
    """A heartbeat in a batch; `progress_seq` is the number of the progress sent with it."""

    job: Job
    progress_seq: int
    entry: Dict[str, Any]


@dataclass(eq=False)
class Batch:
    """The content of one call."""

    done: List[Report]
    beats: List[Beat]
    logs: List[Tuple[Job, List[Dict[str, str]]]]
    credits: int = 0

    def parts(self) -> List["Batch"]:
        """Each entry in its own batch, for when the server refuses them together."""
        return [Batch([report], [], []) for report in self.done] + [Batch([], [beat], []) for beat in self.beats]


class Changes(NamedTuple):
    """What the session has to do after a response."""

    started: List[Job]
    stopped: List[Job]
    refused: List[Tuple[Report, str]]  # results that did not count, and the server's reason


class WorkerState:
    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.jobs: Dict[str, Job] = {}
        self.outbox: List[Report] = []
        self.is_taking = True
        self.claim_slots: Optional[int] = None  # slots offered in the open claim
        self.report_slots = 0  # slots offered in the current report
        self.is_reporting = False
        self._full_since: Optional[float] = None

    # Tasks held.

    def take(self, tasks: List[Dict[str, Any]], voice: Voice, now: float) -> List[Job]:
        """Accepts tasks from the server. A stopping worker gives them back at once."""
        started = []
        for task in tasks:
            if task["claim_token"] in self.jobs:
                continue
            lease = task.get("lease_ms", 30_000) / 1000
            job = Job(task, Context(task, voice), lease, now + lease / 3)
            self.jobs[job.token] = job
            if self.is_taking:
                started.append(job)
            else:
                self.finish(job, GIVE_BACK)
        return started

    def finish(self, job: Job, outcome: Optional[Dict[str, Any]]) -> None:
        """A job has ended; `None` if there is nothing to report. Only its first end counts."""
        if self.jobs.pop(job.token, None) is None:
            return
        if outcome is not None:
            self.outbox.append(Report(job, {**job.ids, **outcome}, len(encode(outcome))))

    def stop(self, job: Job, why: str) -> bool:
        """The result is no longer needed. True if the job was not marked before."""
        if job.why is not None or job.token not in self.jobs:
            return False
        job.why = why
        job.context.cancelled = True
        if why != "stopping":
            job.beat_at = float("inf")  # no lease to renew
        return True

    def beat(self, token: str, progress: Any, now: float) -> None:
        """The handler sent a heartbeat, perhaps with progress. Several in a row become one call."""
        job = self.jobs.get(token)
        if job is None or job.beat_at == float("inf"):
            return
        if progress is not None:
            job.progress = progress
            job.progress_seq += 1
        job.beat_at = min(job.beat_at, max(now, job.sent_at + PROGRESS_EVERY))

    def log(self, token: str, line: Dict[str, str], now: float, is_last: bool = False) -> None:
        """A line for the task's log. The last one, a traceback, is kept even if there are too many."""
        job = self.jobs.get(token)
        if job is None:
            return
        if len(job.lines) >= LINES_MAX and not is_last:
            job.lines_lost += 1
            return
        if job.lines_lost:
            job.lines.append({"level": "warning", "message": f"{job.lines_lost} lines were left out here"})
            job.lines_lost = 0
        job.lines.append(line)
        job.lines_at = min(job.lines_at, now + LOGS_EVERY)

    # Free slots.

    def free(self) -> int:
        return self.slots - len(self.jobs) - (self.claim_slots or 0) - self.report_slots if self.is_taking else 0

    def claim_credits(self, now: float) -> Tuple[Optional[int], Optional[float]]:
        """How many tasks to claim next, or `None` and when to ask again (`None`: when something changes).

        A report always goes first, and claims tasks for the free slots. When all slots have been busy for a short time, a
        claim for no tasks is opened, because cancels arrive on an open claim.
        """
        if self.is_reporting or self._has_reports():
            return None, None
        free = self.free()
        if free > 0:
            self._full_since = None
            return min(free, ENTRIES_MAX), None
        if self._full_since is None:
            self._full_since = now
        left = self._full_since + FULL_FOR - now
        return (0, None) if left <= 0 else (None, left)

    def is_starved(self) -> bool:
        """A claim for no tasks is open although slots are free: a claim for tasks should replace it."""
        return self.claim_slots == 0 and self.free() > 0 and not self.is_reporting and not self._has_reports()

    # Reports and heartbeats.

    def due_at(self) -> float:
        """When the next batch is due; it may be past."""
        if self._has_reports() or any(report.waits_for_progress for report in self.outbox):
            return float("-inf")
        return min((min(job.beat_at, job.lines_at) for job in self.jobs.values()), default=float("inf"))

    def batch(self, now: float) -> Optional[Batch]:
        """Everything that is due, with the free slots. `settle` or `fail` it before the next."""
        if self.due_at() > now:
            return None
        done: List[Report] = []
        size = 0
        for report in self.outbox:
            if report.waits_for_progress:
                continue
            if done and (len(done) == ENTRIES_MAX or size + report.size > BATCH_BYTES_MAX):
                break
            done.append(report)
            size += report.size
        saving = [report.job for report in self.outbox if report.waits_for_progress]
        # A heartbeat that is due soon is sent together with one that is due.
        beating = [job for job in self.jobs.values() if job.beat_at <= now + job.lease / 12]
        beats = [self._beat(job) for job in (saving + beating)[:ENTRIES_MAX]]
        logging = [job for job in self.jobs.values() if job.lines_at <= now]
        logging += [report.job for report in done] + saving
        logs = [(job, job.lines[:]) for job in logging if job.lines]
        self.is_reporting = True
        self.report_slots = max(0, min(self.free(), ENTRIES_MAX))
        return Batch(done, beats, logs, self.report_slots)

    def logged(self, job: Job, count: int) -> None:
        """The server has the first log lines of a job, or will never accept them."""
        del job.lines[:count]
        job.lines_at = float("inf")

    def settle(self, batch: Optional[Batch], answer: Dict[str, Any], voice: Voice, sent: float, now: float) -> Changes:
        """The server responded (to a batch that was sent at `sent`, or to the open claim)."""
        refused: List[Tuple[Report, str]] = []
        stopped: List[Job] = []
        leases = answer["leases"]
        if batch is not None:
            self.end(batch)
            for report, ack in zip(batch.done, answer["acks"]):
                self.outbox.remove(report)
                if ack.get("status") != "recorded":
                    refused.append((report, ack.get("status", "")))
            for beat, lease in zip(batch.beats, leases):
                job = beat.job
                job.progress_sent = max(job.progress_sent, beat.progress_seq)
                job.sent_at = sent
                job.beat_at = sent + (job.lease / 3 if job.progress_seq == job.progress_sent else PROGRESS_EVERY)
                if lease.get("cancel") or not lease.get("lease_until"):
                    if self.stop(job, "cancelled" if lease.get("cancel") else "lease_lost"):
                        stopped.append(job)
            leases = leases[len(batch.beats) :]
        cancelled = {lease["task_id"] for lease in leases if lease.get("cancel")}
        stopped += [job for job in self.jobs.values() if job.task["task_id"] in cancelled and self.stop(job, "cancelled")]
        return Changes(self.take(answer["tasks"], voice, now), stopped, refused)

    def end(self, batch: Batch) -> None:
        """The call has ended; if it failed, everything in it must be sent again."""
        self.is_reporting = False
        self.report_slots = 0

    def refuse(self, part: Batch, problem: OnwardError, now: float) -> None:
        """The server refuses this entry permanently. It must block neither its task nor the other entries."""
        for report in part.done:
            self.outbox.remove(report)
            if not report.is_substitute:
                outcome = {"error": error(f"the server refused the report: {problem}", "refused_result"), "final": True}
                self.outbox.append(Report(report.job, {**report.job.ids, **outcome}, len(encode(outcome)), True))
        for beat in part.beats:
            beat.job.progress_sent = max(beat.job.progress_sent, beat.progress_seq)
            beat.job.beat_at = now + beat.job.lease / 3

    def _has_reports(self) -> bool:
        return any(not report.waits_for_progress for report in self.outbox)

    def _beat(self, job: Job) -> Beat:
        entry: Dict[str, Any] = dict(job.ids)
        if job.progress_seq > job.progress_sent:
            entry["progress"] = job.progress
        return Beat(job, job.progress_seq, entry)
