"""The context of a handler: the attempt it runs for, and what it can send while it runs.

Nothing here waits for the network: the worker's own threads batch and send it, and keep the lease alive. All methods can
be called from any thread.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Protocol

from ..outcomes import Cancelled, shorten
from ..values import encode, snapshot

PROGRESS_BYTES_MAX = 4_096
LEVELS = ("debug", "info", "warning", "error")


class Voice(Protocol):
    """The receiver of what a context sends: the worker's session, or a test."""

    def beat(self, token: str, progress: Any) -> None: ...

    def log(self, token: str, line: Dict[str, str]) -> None: ...


class Context:
    """The attempt a handler is called for.

    | | |
    |---|---|
    | `attempt`, `max_attempts` | the number of this attempt, from 1, and the maximum |
    | `task_id`, `run_id`, `type`, `step`, `workflow` | the task that it belongs to |
    | `idempotency_key` | the same for every attempt: pass it to the services you call |
    | `progress` | the progress an earlier attempt saved, or `None` |
    | `cancelled` | true when the task was cancelled or its lease was lost |
    """

    def __init__(self, task: Dict[str, Any], voice: Voice) -> None:
        self.task_id: str = task["task_id"]
        self.run_id: str = task.get("run_id", "")
        self.type: str = task["type"]
        self.step: Optional[str] = task.get("step")
        self.workflow: Optional[str] = task.get("workflow")
        self.attempt: int = task.get("attempt", 1)
        self.max_attempts: Optional[int] = task.get("max_attempts")
        self.idempotency_key: str = task.get("idempotency_key") or self.task_id
        self.progress: Any = task.get("progress")
        self.cancelled = False
        self._token: str = task.get("claim_token", "")
        self._voice = voice

    def log(self, message: object, level: str = "info") -> None:
        """Adds a line to the task's events. Lines keep their order; they are sent within a second, before the result."""
        if level not in LEVELS:
            raise ValueError(f"`{level}` is not a level: {', '.join(f'`{each}`' for each in LEVELS)}")
        self._voice.log(self._token, {"level": level, "message": shorten(str(message))})

    def heartbeat(self, progress: Any = None) -> None:
        """Sends a heartbeat. The worker also does that by itself; call it to save `progress` (any JSON, up to 4 KB), which the
        next attempt finds in `ctx.progress`. The latest call counts; it is saved before a failure is reported."""
        if progress is None:
            self._voice.beat(self._token, None)
            return
        size = len(encode(progress))
        if size > PROGRESS_BYTES_MAX:
            raise ValueError(f"progress is {size} bytes, at most {PROGRESS_BYTES_MAX} are kept: save a position, not the work")
        self.progress = progress
        self._voice.beat(self._token, snapshot(progress))

    def check(self) -> None:
        """Raises `Cancelled` if the task was cancelled or its lease was lost. For long handlers that are not `async`."""
        if self.cancelled:
            raise Cancelled()
