"""The worker's side: claim tasks, run handlers, report.

    worker.py     what programs use: `Worker`, registering handlers, running until told to stop
    handler.py    one function and how it is called: typed input, context
    context.py    what a handler knows about its attempt, and can say while it runs
    desk.py       the bookkeeping, pure: what is held, what is to be reported, how much may be taken on
    session.py    the threads that talk to the server and run handlers
"""

from .context import Context
from .worker import Worker

__all__ = ["Context", "Worker"]
