"""Sends records of the standard `logging` module to the log of the task that a handler works on.

    logging.getLogger().addHandler(onward.LogHandler())      # or: worker.run(log_records=True)

A context variable says which task that is. Each handler runs in a thread or an asyncio task of its own, which has its own
variable; code that a handler awaits or starts with `asyncio.to_thread` or `create_task` inherits it. A record from anywhere
else (another thread, the program itself) belongs to no task and is not sent.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Optional

if TYPE_CHECKING:
    from .worker import Context

current: "ContextVar[Optional[Context]]" = ContextVar("onward_task", default=None)
"""The context of the handler that runs here."""


class LogHandler(logging.Handler):
    """A handler of the `logging` module that adds records to the log of the current task. Records of the SDK itself are left
    out. A record is sent once, also if several of these handlers see it."""

    def filter(self, record: logging.LogRecord) -> Any:
        # Here and not in `emit`, which is called with a lock held: the worker logs while it holds its own lock, and `emit`
        # waits for that lock.
        if current.get() is None or record.name.split(".")[0] == "onward" or getattr(record, "onward_sent", False):
            return False
        return super().filter(record)

    def emit(self, record: logging.LogRecord) -> None:
        context = current.get()
        if context is None:
            return
        try:
            context.log(self.format(record), level_of(record.levelno))
            record.onward_sent = True
        except Exception:
            self.handleError(record)


def level_of(number: int) -> str:
    """The level of the server for a level of `logging`."""
    if number < logging.INFO:
        return "debug"
    if number < logging.WARNING:
        return "info"
    return "warning" if number < logging.ERROR else "error"
