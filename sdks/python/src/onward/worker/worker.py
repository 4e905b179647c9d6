"""`Worker`: registers one function per task type and runs them until it is stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Union

from ..aio import AsyncClient
from ..client import Client
from ..functions import Registration, TaskFunction
from ..logs import LogHandler
from ..times import DurationLike, duration, seconds
from ..protocol import Address
from .handler import Handler, claimed
from .session import Session


class Worker:
    """Claims tasks and runs your functions on them.

        worker = onward.Worker()

        @worker.task("billing.invoice.v1")
        def invoice(order: Order, ctx: onward.Context) -> dict: ...

        worker.run()

    `slots` is how many tasks the worker holds at once. `lease` is how long the server waits for a heartbeat before another
    worker gets the tasks (heartbeats are sent automatically every third of it). `types` are the type names or prefixes
    (`billing.%`) to claim; by default those that have handlers. `drain` is how long current tasks may take to finish when
    the worker is stopped. The server is the one of `client`, else `ONWARD_URL` and `ONWARD_API_KEY` when it starts.
    """

    def __init__(
        self,
        client: Union[Client, AsyncClient, None] = None,
        *,
        id: Optional[str] = None,
        slots: int = 10,
        lease: DurationLike = "30s",
        types: Optional[Iterable[str]] = None,
        runtime: Optional[str] = "python",
        version: Optional[str] = None,
        drain: DurationLike = "25s",
    ) -> None:
        if not 1 <= slots <= 1_000:
            raise ValueError(f"`slots` must be 1 to 1,000, not {slots}")
        if not 1 <= seconds(lease) <= 3_600:
            raise ValueError(f"`lease` must be 1s to 1h, not `{lease}`")
        self.client = client
        self.id = id or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
        self.slots = slots
        self.lease = duration(lease)
        self.types = None if types is None else list(types)
        self.runtime = runtime
        self.version = version
        self.drain = seconds(drain)
        self._handlers: Dict[str, Handler] = {}
        self._session: Optional[Session] = None
        self._hurry: Optional[asyncio.Event] = None

    def task(
        self,
        type: str,
        *,
        retry: Union[str, Mapping[str, Any], None] = None,
        timeout: Optional[DurationLike] = None,
        priority: Optional[int] = None,
    ) -> Registration:
        """Registers a function for a task type, or for all types with a prefix (`notify.%`). Returns a `TaskFunction`: tests can
        call it like the function, and `submit` submits a task of this type. `retry`, `timeout` (of one attempt) and
        `priority` are the defaults of such tasks; tasks that are submitted in another way have their own."""

        def register(function: Any) -> Any:
            if self._session is not None:
                raise RuntimeError("register handlers before the worker starts: the server already has its list of types")
            if type in self._handlers:
                raise ValueError(f"`{type}` has a handler already")
            if isinstance(function, TaskFunction):  # one function for several types
                function = function.function
            self._handlers[type] = Handler(type, function)
            return TaskFunction(type, function, {"retry": retry, "timeout": timeout, "priority": priority}, self._submitter)

        return register

    def _submitter(self) -> Client:
        """The client that `TaskFunction.submit` uses."""
        if isinstance(self.client, AsyncClient):
            raise TypeError("this worker has an `AsyncClient`: write `await client.submit(function, payload)`")
        if self.client is None:
            self.client = Client()
        return self.client

    def run(self, *, log_records: bool = False) -> None:
        """Runs until SIGTERM or Ctrl-C, then finishes its tasks; a second signal gives them back to the server. Call it from the
        main thread. Raises `OnwardError` if the server refuses this worker. With `log_records`, records that handlers log
        with the `logging` module also appear in the log of their task (see `LogHandler`)."""
        asyncio.run(self._run_with_signals(log_records))

    async def serve(self, *, log_records: bool = False) -> None:
        """The same for a program with an event loop: runs until `stop()`. Async handlers run on this loop. The program
        handles signals itself; cancelling this coroutine gives all tasks back to the server."""
        if self._session is not None:
            raise RuntimeError("this worker is running already")
        types = claimed(self.types, self._handlers)
        for handler in self._handlers.values():
            handler.prepare()
        address = Address.of(None, None) if self.client is None else self.client.address
        session = Session(address, self._handlers, self._fields(types), self.slots)
        self._session, self._hurry = session, asyncio.Event()
        records = LogHandler() if log_records else None
        if records is not None:
            logging.getLogger().addHandler(records)
        try:
            session.start()
            await session.ended.wait()
            await session.drain(self.drain, self._hurry)
        finally:
            try:
                await session.close()
            finally:
                self._session = None
                if records is not None:
                    logging.getLogger().removeHandler(records)
        if session.problem is not None:
            raise session.problem

    def stop(self) -> None:
        """Stops the worker gracefully, from any thread; a second call gives its tasks back without waiting."""
        session, hurry = self._session, self._hurry
        if session is None or hurry is None:
            return

        def request_stop() -> None:
            (hurry if session.ended.is_set() else session.ended).set()

        session.loop.call_soon_threadsafe(request_stop)

    def _fields(self, types: List[str]) -> Dict[str, Any]:
        """The description of this worker that every call carries."""
        fields: Dict[str, Any] = {"worker_id": self.id, "types": types, "lease": self.lease, "slots": self.slots}
        if self.runtime is not None:
            fields["runtime"] = self.runtime
        if self.version is not None:
            fields["version"] = self.version
        return fields

    async def _run_with_signals(self, log_records: bool) -> None:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for each in signals:
            try:
                loop.add_signal_handler(each, self.stop)
            except NotImplementedError:  # Windows
                signal.signal(each, lambda *_: self.stop())
        try:
            await self.serve(log_records=log_records)
        finally:
            for each in signals:
                try:
                    loop.remove_signal_handler(each)
                except NotImplementedError:
                    signal.signal(each, signal.SIG_DFL)
