"""The client for asyncio programs: the same methods as `Client`, as coroutines and asynchronous iterators.

Nothing here blocks the event loop or uses threads. Cancelling a call stops it; the server may still execute the request.
`calls/` says what each method does; this file performs it. Keep it and `client.py` alike.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Coroutine, Optional, Type, TypeVar, Union, overload

from . import calls
from .calls import Listing, Ref
from .client import described
from .errors import OnwardError
from .models import Event, Run, Task
from .protocol import Address, Steps, drive_async
from .streams import SILENCE_MAX, EventStream
from .times import DurationLike
from .transport_async import AsyncTransport

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Unpack

    from .calls import TaskOptions
    from .functions import TaskFunction
    from .worker import Context

    P = ParamSpec("P")

T = TypeVar("T")
I = TypeVar("I")


class _Performer:
    """Performs steps over a transport."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def _perform(self, steps: Steps[T]) -> T:
        return await drive_async(steps, self._transport.request, asyncio.sleep)

    async def _items(self, listing: Listing[T]) -> AsyncIterator[T]:
        while listing.has_more:
            for item in await self._perform(listing.page()):
                yield item


def performs(steps: "Callable[P, Steps[T]]") -> "Callable[Concatenate[_Performer, P], Coroutine[Any, Any, T]]":
    """A coroutine method that performs these steps."""

    async def method(self: _Performer, /, *args: "P.args", **kwargs: "P.kwargs") -> T:
        return await self._perform(steps(*args, **kwargs))

    described(method, steps)
    return method


def iterates(listing: "Callable[P, Listing[T]]") -> "Callable[Concatenate[_Performer, P], AsyncIterator[T]]":
    """A method that returns an asynchronous iterator over all pages of a list."""

    def method(self: _Performer, /, *args: "P.args", **kwargs: "P.kwargs") -> AsyncIterator[T]:
        return self._items(listing(*args, **kwargs))

    described(method, listing)
    return method


class AsyncTasks(_Performer):
    """`client.tasks`: tasks in lists and in bulk."""

    list = iterates(calls.tasks.list_all)
    get = performs(calls.tasks.get_task)
    delete = performs(calls.tasks.delete)
    bulk = performs(calls.tasks.bulk)


class AsyncRuns(_Performer):
    """`client.runs`"""

    list = iterates(calls.runs.list_all)
    get = performs(calls.runs.get)
    diff = performs(calls.runs.diff)
    cancel = performs(calls.runs.cancel)
    explain = performs(calls.tasks.explain)
    replay = performs(calls.runs.replay)
    pause = performs(calls.runs.pause)
    resume = performs(calls.runs.resume)
    fork = performs(calls.runs.fork)
    move = performs(calls.runs.move)
    bulk = performs(calls.runs.bulk)
    skip_step = performs(calls.runs.skip_step)
    set_step_result = performs(calls.runs.set_step_result)
    run_step_now = performs(calls.runs.run_step_now)
    signal = performs(calls.runs.signal)
    approve = performs(calls.runs.approve)
    reject = performs(calls.runs.reject)
    approvals = iterates(calls.runs.approvals)
    delete = performs(calls.runs.delete)


class AsyncWorkflows(_Performer):
    """`client.workflows`"""

    create = performs(calls.workflows.create)
    update = performs(calls.workflows.update)
    validate = performs(calls.workflows.validate)
    get = performs(calls.workflows.get)
    list = iterates(calls.workflows.list_all)
    delete = performs(calls.workflows.delete)
    enable = performs(calls.workflows.enable)
    disable = performs(calls.workflows.disable)
    pause = performs(calls.workflows.pause)
    resume = performs(calls.workflows.resume)
    trigger = performs(calls.workflows.trigger)


class AsyncTriggers(_Performer):
    """`client.triggers`"""

    create = performs(calls.triggers.create)
    list = iterates(calls.triggers.list_all)
    get = performs(calls.triggers.get)
    enable = performs(calls.triggers.enable)
    disable = performs(calls.triggers.disable)
    run = performs(calls.triggers.run)
    delete = performs(calls.triggers.delete)


class AsyncClient(_Performer):
    """A client of one server, for the coroutines of one event loop. See `Client` for the arguments.

    At most `connections` requests are open at once, those that wait included but not streams; further ones queue.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        timeout: float = 30.0,
        retries: int = 5,
        connections: int = 1_000,
    ) -> None:
        self.address = Address.of(url, api_key)
        super().__init__(AsyncTransport(self.address, timeout, retries, connections))
        self.tasks = AsyncTasks(self._transport)
        self.runs = AsyncRuns(self._transport)
        self.workflows = AsyncWorkflows(self._transport)
        self.triggers = AsyncTriggers(self._transport)

    @overload
    async def submit(self, type: str, payload: Any = None, **options: "Unpack[TaskOptions]") -> Task[Any]: ...
    @overload
    async def submit(
        self, type: "TaskFunction[..., Context, T, Any]", payload: Any = None, **options: "Unpack[TaskOptions]"
    ) -> Task[T]: ...
    @overload
    async def submit(self, type: "TaskFunction[..., I, T, Any]", payload: I, **options: "Unpack[TaskOptions]") -> Task[T]: ...
    async def submit(self, type: Any, payload: Any = None, **options: Any) -> Task[Any]:
        """Submits one task, by its type or by the function that is registered for it. It is durable when this returns; no
        worker needs to exist."""
        return await self._perform(calls.tasks.submit(type, payload, **options))

    submit_many = performs(calls.tasks.submit_many)
    trigger = performs(calls.workflows.trigger)

    @overload
    async def get(self, ref: Task[T]) -> Task[T]: ...
    @overload
    async def get(self, ref: Run) -> Run: ...
    @overload
    async def get(self, ref: str) -> Union[Task[Any], Run]: ...
    async def get(self, ref: Ref) -> Any:
        """The current state of a task or a run."""
        return await self._perform(calls.tasks.get(ref))

    @overload
    async def wait(self, ref: Task[T], timeout: Optional[DurationLike] = None) -> Task[T]: ...
    @overload
    async def wait(self, ref: Run, timeout: Optional[DurationLike] = None) -> Run: ...
    @overload
    async def wait(self, ref: str, timeout: Optional[DurationLike] = None) -> Union[Task[Any], Run]: ...
    async def wait(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Any:
        """Waits for the end of a task or run, whatever the outcome; raises `WaitTimeout` after `timeout`."""
        return await self._perform(calls.tasks.wait(ref, timeout))

    @overload
    async def result(self, ref: Ref, timeout: Optional[DurationLike] = None, *, type: Type[T]) -> T: ...
    @overload
    async def result(self, ref: Task[T], timeout: Optional[DurationLike] = None) -> T: ...
    @overload
    async def result(self, ref: Union[Run, str], timeout: Optional[DurationLike] = None) -> Any: ...
    async def result(self, ref: Ref, timeout: Optional[DurationLike] = None, *, type: Any = None) -> Any:
        """Waits, and returns the result of a task (the output of a run); raises `TaskFailed` if there is none. The result is
        built as `type`, or as what the function returns that the task was submitted with; else it is plain JSON."""
        return await self._perform(calls.tasks.result(ref, timeout, type))

    @overload
    async def cancel(self, ref: Task[T], reason: Optional[str] = None, compensate: bool = False) -> Task[T]: ...
    @overload
    async def cancel(self, ref: Run, reason: Optional[str] = None, compensate: bool = False) -> Run: ...
    @overload
    async def cancel(
        self, ref: str, reason: Optional[str] = None, compensate: bool = False
    ) -> Union[Task[Any], Run]: ...
    async def cancel(self, ref: Ref, reason: Optional[str] = None, compensate: bool = False) -> Any:
        """Cancels a task or run. With `compensate`, it first undoes what it did. Repeating it is safe; raises `OnwardError`
        (409) if it has ended otherwise."""
        return await self._perform(calls.tasks.cancel(ref, reason, compensate))

    @overload
    async def retry(self, ref: Task[T]) -> Task[T]: ...
    @overload
    async def retry(
        self,
        ref: Run,
        from_step: Optional[str] = None,
        allow_irreversible: bool = False,
        reason: Optional[str] = None,
    ) -> Run: ...
    @overload
    async def retry(
        self,
        ref: str,
        from_step: Optional[str] = None,
        allow_irreversible: bool = False,
        reason: Optional[str] = None,
    ) -> Union[Task[Any], Run]: ...
    async def retry(
        self,
        ref: Ref,
        from_step: Optional[str] = None,
        allow_irreversible: bool = False,
        reason: Optional[str] = None,
    ) -> Any:
        """Makes the next attempt of a task due now. Releases a failed task: returns a new task with the same content, the same
        one on every repeat. A run that failed or timed out goes on, with `from_step` from an earlier step; one that is open
        retries the steps that wait for their backoff."""
        return await self._perform(calls.tasks.retry(ref, from_step, allow_irreversible, reason))

    events = iterates(calls.tasks.events)
    explain = performs(calls.tasks.explain)
    request = performs(calls.request)

    async def stream(self, ref: Ref, *, after: int = 0) -> AsyncIterator[Event]:
        """The events of a run (for a task, of its run) as they happen, from the first or from the one after `after`, until the
        run has ended. Connects again after a lost connection, without a gap; raises `OnwardUnavailable` when that fails
        `retries` times in a row."""
        stream = EventStream(await self._perform(calls.tasks.stream_path(ref)), after, self._transport.retries)
        while not stream.ended:
            problem: Optional[OnwardError] = None
            lines = self._transport.lines(stream.request(), SILENCE_MAX)
            try:
                async for line in lines:
                    event = stream.feed(line)
                    if event is not None:
                        yield event
                    if stream.ended:
                        return
            except OnwardError as raised:
                problem = raised
            finally:
                await lines.aclose()  # not when the garbage collector finds it: that may be after the event loop has ended
            await asyncio.sleep(stream.lost(problem))

    async def close(self) -> None:
        """Closes its connections and aborts open requests."""
        self._transport.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
