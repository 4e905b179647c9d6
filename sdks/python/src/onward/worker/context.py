"""What a handler knows about its attempt, and can say while it runs.

Nothing here waits for the network: what is said is handed to the worker's own threads, which bundle it and keep the
lease alive meanwhile. All of it may be called from any thread.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Protocol

from ..outcomes import Cancelled, shorten
from ..values import encode, snapshot

PROGRESS_BYTES_MAX = 4_096
LEVELS = ("debug", "info", "warning", "error")


class Voice(Protocol):
    """Who listens to a context: the worker's session, or a test."""

    def beat(self, token: str, progress: Any) -> None: ...

    def log(self, token: str, line: Dict[str, str]) -> None: ...


class Context:
    """The attempt a handler is called for.

    | | |
    |---|---|
    | `attempt`, `max_attempts` | which try this is, from 1, and how many there are |
    | `task_id`, `run_id`, `type`, `step`, `workflow` | what it belongs to |
    | `idempotency_key` | the same for every attempt: pass it on to whatever you call |
    | `progress` | what an earlier attempt saved, or `None` |
    | `cancelled` | nobody wants the result any more |
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
        """A line among the task's events, for people. Kept in order; sent within a second, and before the end is reported."""
        if level not in LEVELS:
            raise ValueError(f"`{level}` is not a level: {', '.join(f'`{each}`' for each in LEVELS)}")
        self._voice.log(self._token, {"level": level, "message": shorten(str(message))})

    def heartbeat(self, progress: Any = None) -> None:
        """Says that this attempt is alive. The worker does that by itself; call it to save `progress` (any JSON, up to 4 KB),
        which the next attempt finds in `ctx.progress`. Called often, the latest counts; it is saved before a failure is reported."""
        if progress is None:
            self._voice.beat(self._token, None)
            return
        size = len(encode(progress))
        if size > PROGRESS_BYTES_MAX:
            raise ValueError(f"progress is {size} bytes, at most {PROGRESS_BYTES_MAX} are kept: save a position, not the work")
        self.progress = progress
        self._voice.beat(self._token, snapshot(progress))

    def check(self) -> None:
        """Raises `Cancelled` if nobody wants the result any more. For handlers that are not `async` and take long."""
        if self.cancelled:
            raise Cancelled()
