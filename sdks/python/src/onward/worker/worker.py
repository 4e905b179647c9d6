"""A worker: functions by task type, and running them until told to stop."""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import socket
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar, Union

from ..aio import AsyncClient
from ..client import Client
from ..times import DurationLike, duration, seconds
from ..transport import Address
from .handler import Handler, claimed
from .session import Session

F = TypeVar("F", bound=Callable[..., Any])


class Worker:
    """Claims tasks and runs your functions on them.

        worker = onward.Worker()

        @worker.task("billing.invoice.v1")
        def invoice(order: Order, ctx: onward.Context) -> dict: ...

        worker.run()

    `slots` is how many tasks it holds at once, `lease` how long the server waits for a sign of life before somebody else gets
    them (heartbeats go out by themselves every third of it). `types` are names or prefixes (`billing.%`) to claim; by default
    those that have handlers. `drain` is how long tasks under way get to finish when it is stopped. The server is the one of
    `client`, else `ONWARD_URL` and `ONWARD_API_KEY` when it starts.
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

    def task(self, type: str) -> Callable[[F], F]:
        """Registers a function for a task type, or for all that begin alike (`notify.%`). The function itself stays as it
        is, and can be called in tests like any other."""

        def register(function: F) -> F:
            if self._session is not None:
                raise RuntimeError("register handlers before the worker starts: it has told the server what it does")
            if type in self._handlers:
                raise ValueError(f"`{type}` has a handler already")
            self._handlers[type] = Handler(type, function)
            return function

        return register

    def run(self) -> None:
        """Works until SIGTERM or Ctrl-C, then finishes what it holds; a second signal hands it back at once. For the main
        thread of a program. `OnwardError` if the server refuses this worker."""
        asyncio.run(self._run_with_signals())

    async def serve(self) -> None:
        """The same inside a program that has an event loop: works until `stop()`. Async handlers run on this loop. Signals are
        left to the program; cancelling this coroutine hands everything back at once."""
        if self._session is not None:
            raise RuntimeError("this worker is running already")
        types = claimed(self.types, self._handlers)
        for handler in self._handlers.values():
            handler.prepare()
        address = Address.of(None, None) if self.client is None else self.client.address
        session = Session(address, self._handlers, self._fields(types), self.slots)
        self._session, self._hurry = session, asyncio.Event()
        try:
            session.start()
            await session.ended.wait()
            await session.drain(self.drain, self._hurry)
        finally:
            try:
                await session.close()
            finally:
                self._session = None
        if session.problem is not None:
            raise session.problem

    def stop(self) -> None:
        """Asks it to finish, from any thread; asked again, it hands back what it holds without waiting."""
        session, hurry = self._session, self._hurry
        if session is None or hurry is None:
            return

        def tell() -> None:
            (hurry if session.ended.is_set() else session.ended).set()

        session.loop.call_soon_threadsafe(tell)

    def _fields(self, types: List[str]) -> Dict[str, Any]:
        """What every call says about this worker."""
        fields: Dict[str, Any] = {"worker_id": self.id, "types": types, "lease": self.lease, "slots": self.slots}
        if self.runtime is not None:
            fields["runtime"] = self.runtime
        if self.version is not None:
            fields["version"] = self.version
        return fields

    async def _run_with_signals(self) -> None:
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for each in signals:
            try:
                loop.add_signal_handler(each, self.stop)
            except NotImplementedError:  # Windows
                signal.signal(each, lambda *_: self.stop())
        try:
            await self.serve()
        finally:
            for each in signals:
                try:
                    loop.remove_signal_handler(each)
                except NotImplementedError:
                    signal.signal(each, signal.SIG_DFL)
