"""The Python SDK of Onward: submit tasks, and process them.

    import onward

    client = onward.Client()                                  # submits tasks
    task = client.submit("billing.invoice.v1", {"order": 7})

    worker = onward.Worker()                                  # processes tasks

    @worker.task("billing.invoice.v1")
    def invoice(order: dict) -> dict:
        return {"invoice": 4200 + order["order"]}

    worker.run()

Clients and workers talk only to the server, never to each other. Either can be written in another language, and neither
needs the other to be running. The SDK uses only the standard library.
"""

from .aio import AsyncClient
from .client import Client
from .errors import OnwardError, OnwardUnavailable, TaskFailed, WaitTimeout
from .functions import TaskFunction
from .logs import LogHandler
from .models import Approval, BulkResult, Decision, Event, Run, Task, Trigger, Validation, Workflow
from .outcomes import Cancelled, Fail, Retry, Snooze
from .worker import Context, Worker

__all__ = [
    "Approval",
    "AsyncClient",
    "BulkResult",
    "Cancelled",
    "Client",
    "Context",
    "Decision",
    "Event",
    "Fail",
    "LogHandler",
    "OnwardError",
    "OnwardUnavailable",
    "Retry",
    "Run",
    "Snooze",
    "Task",
    "TaskFailed",
    "TaskFunction",
    "Trigger",
    "Validation",
    "WaitTimeout",
    "Worker",
    "Workflow",
]
__version__ = "0.1.0"
