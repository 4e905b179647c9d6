"""The worker: claims tasks, runs handlers, reports results.

    worker.py     the public interface: `Worker`, which registers handlers and runs until it is stopped
    handler.py    one function and how it is called: typed input, context
    context.py    the attempt a handler runs for, and what it can send while it runs
    state.py      the worker's state, pure: tasks held, reports to send, free slots
    session.py    the threads that talk to the server and run handlers
"""

from .context import Context
from .worker import Worker

__all__ = ["Context", "Worker"]
