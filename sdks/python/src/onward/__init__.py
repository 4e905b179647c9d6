"""Onward from Python: hand in work, and do it.

    import onward

    client = onward.Client()                                  # the producer's side
    task = client.submit("billing.invoice.v1", {"order": 7})

    worker = onward.Worker()                                  # the worker's side

    @worker.task("billing.invoice.v1")
    def invoice(order: dict) -> dict:
        return {"invoice": 4200 + order["order"]}

    worker.run()

Both sides talk to the server alone, never to each other, so either may be written in another language or not run at
all for a while. Only the standard library is used.
"""

from .aio import AsyncClient
from .client import Client
from .errors import OnwardError, OnwardUnavailable, TaskFailed, WaitTimeout
from .models import Event, Run, Task
from .outcomes import Cancelled, Fail, Retry, Snooze
from .worker import Context, Worker

__all__ = [
    "AsyncClient",
    "Cancelled",
    "Client",
    "Context",
    "Event",
    "Fail",
    "OnwardError",
    "OnwardUnavailable",
    "Retry",
    "Run",
    "Snooze",
    "Task",
    "TaskFailed",
    "WaitTimeout",
    "Worker",
]
__version__ = "0.1.0"
