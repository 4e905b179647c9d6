"""The client for asyncio programs: the same methods as `Client`, as coroutines and asynchronous iterators.

Nothing here blocks the event loop or uses threads. Cancelling a call stops it; the server may still execute the request.
`calls.py` says what each method does; this file performs it. Keep it and `client.py` alike.
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

    list = iterates(calls.list_tasks)
    get = performs(calls.get_task)
    delete = performs(calls.delete_task)
    bulk = performs(calls.bulk)


class AsyncRuns(_Performer):
    """`client.runs`"""

    list = iterates(calls.list_runs)
    get = performs(calls.get_run)
    cancel = performs(calls.cancel_run)
    explain = performs(calls.explain)
    replay = performs(calls.replay_run)
    pause = performs(calls.pause_run)
    resume = performs(calls.resume_run)
    delete = performs(calls.delete_run)


class AsyncWorkflows(_Performer):
    """`client.workflows`"""

    create = performs(calls.create_workflow)
    update = performs(calls.update_workflow)
    validate = performs(calls.validate_workflow)
    get = performs(calls.get_workflow)
    list = iterates(calls.list_workflows)
    delete = performs(calls.delete_workflow)
    enable = performs(calls.enable_workflow)
    disable = performs(calls.disable_workflow)
    pause = performs(calls.pause_workflow)
    resume = performs(calls.resume_workflow)
    trigger = performs(calls.trigger)


class AsyncTriggers(_Performer):
    """`client.triggers`"""

    create = performs(calls.create_trigger)
    list = iterates(calls.list_triggers)
    get = performs(calls.get_trigger)
    enable = performs(calls.enable_trigger)
    disable = performs(calls.disable_trigger)
    run = performs(calls.run_trigger)
    delete = performs(calls.delete_trigger)


class AsyncClient(_Performer):
    """A client of one server, for the coroutines of one event loop. See `Client` for the arguments.

    At most `connections` requests are open at once, those that wait included; further ones queue.
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
        return await self._perform(calls.submit(type, payload, **options))

    submit_many = performs(calls.submit_many)
    trigger = performs(calls.trigger)

    @overload
    async def get(self, ref: Task[T]) -> Task[T]: ...
    @overload
    async def get(self, ref: Run) -> Run: ...
    @overload
    async def get(self, ref: str) -> Union[Task[Any], Run]: ...
    async def get(self, ref: Ref) -> Any:
        """The current state of a task or a run."""
        return await self._perform(calls.get(ref))

    @overload
    async def wait(self, ref: Task[T], timeout: Optional[DurationLike] = None) -> Task[T]: ...
    @overload
    async def wait(self, ref: Run, timeout: Optional[DurationLike] = None) -> Run: ...
    @overload
    async def wait(self, ref: str, timeout: Optional[DurationLike] = None) -> Union[Task[Any], Run]: ...
    async def wait(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Any:
        """Waits for the end of a task or run, whatever the outcome; raises `WaitTimeout` after `timeout`."""
        return await self._perform(calls.wait(ref, timeout))

    @overload
    async def result(self, ref: Ref, timeout: Optional[DurationLike] = None, *, type: Type[T]) -> T: ...
    @overload
    async def result(self, ref: Task[T], timeout: Optional[DurationLike] = None) -> T: ...
    @overload
    async def result(self, ref: Union[Run, str], timeout: Optional[DurationLike] = None) -> Any: ...
    async def result(self, ref: Ref, timeout: Optional[DurationLike] = None, *, type: Any = None) -> Any:
        """Waits, and returns the result of a task (the output of a run); raises `TaskFailed` if there is none. The result is
        built as `type`, or as what the function returns that the task was submitted with; else it is plain JSON."""
        return await self._perform(calls.result(ref, timeout, type))

    @overload
    async def cancel(self, ref: Task[T], reason: Optional[str] = None) -> Task[T]: ...
    @overload
    async def cancel(self, ref: Run, reason: Optional[str] = None) -> Run: ...
    @overload
    async def cancel(self, ref: str, reason: Optional[str] = None) -> Union[Task[Any], Run]: ...
    async def cancel(self, ref: Ref, reason: Optional[str] = None) -> Any:
        """Cancels a task or run. Repeating it is safe; raises `OnwardError` (409) if it has ended otherwise."""
        return await self._perform(calls.cancel(ref, reason))

    @overload
    async def retry(self, ref: Task[T]) -> Task[T]: ...
    @overload
    async def retry(self, ref: Run) -> Run: ...
    @overload
    async def retry(self, ref: str) -> Union[Task[Any], Run]: ...
    async def retry(self, ref: Ref) -> Any:
        """Makes the next attempt of a task due now. Releases a failed task: returns a new task with the same content, the same
        one on every repeat. For a run, retries the steps that wait for their backoff."""
        return await self._perform(calls.retry(ref))

    events = iterates(calls.events)
    explain = performs(calls.explain)
    request = performs(calls.request)

    async def stream(self, ref: Ref, *, after: int = 0) -> AsyncIterator[Event]:
        """The events of a run (for a task, of its run) as they happen, from the first or from the one after `after`, until the
        run has ended. Connects again after a lost connection, without a gap."""
        stream = EventStream(await self._perform(calls.stream_path(ref)), after, self._transport.retries)
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
