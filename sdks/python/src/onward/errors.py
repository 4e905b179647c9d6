"""The exceptions of the client.

There is one class for all refusals, because the server's error has all the details: a stable `code` to branch on, a
`message`, a `hint`, and the place. `OnwardUnavailable` is its one special case: no response at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .models import Run, Task


class OnwardError(Exception):
    """The server refused a request. Branch on `code` (`idempotency_key_reused`, `not_found`, …), show the rest to users."""

    def __init__(
        self,
        code: str,
        message: str,
        hint: Optional[str] = None,
        at: Optional[Dict[str, Any]] = None,
        problems: Optional[List[Dict[str, Any]]] = None,
        status: Optional[int] = None,
    ) -> None:
        super().__init__(code, message, hint, at, problems, status)
        self.code = code
        self.message = message
        self.hint = hint
        self.at = at
        self.problems = problems or []
        self.status = status
        self.retry_after: Optional[float] = None

    def __str__(self) -> str:
        place = f" (at `{self.at['path']}`)" if self.at and self.at.get("path") else ""
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.code}: {self.message}{place}{hint}"


class OnwardUnavailable(OnwardError):
    """No usable response: the server is unreachable, or the connection broke.

    `sent` says whether the server may have received the request. If it is false, nothing can have happened.
    """

    def __init__(self, message: str, sent: bool = True, status: Optional[int] = None) -> None:
        super().__init__("unavailable", message, status=status)
        self.args = (message, sent, status)
        self.sent = sent


class TaskFailed(OnwardError):
    """`Client.result` was called for a task or run that ended without a result. `ended` is the task or the run."""

    def __init__(self, ended: "Task[Any] | Run") -> None:
        error = ended.error or {}
        super().__init__(
            error.get("code") or ended.status,
            error.get("message") or f"`{ended.id}` ended as `{ended.status}`",
        )
        self.args = (ended,)
        self.ended = ended


class WaitTimeout(TimeoutError):
    """The task or run did not end within the timeout of `Client.wait`. It continues; wait again, or look at `latest`."""

    def __init__(self, latest: "Task[Any] | Run") -> None:
        super().__init__(f"`{latest.id}` has not ended, it is `{latest.status}`")
        self.args = (latest,)
        self.latest = latest

    def __str__(self) -> str:
        return f"`{self.latest.id}` has not ended, it is `{self.latest.status}`"
