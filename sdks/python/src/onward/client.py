"""The client: submit tasks, start runs, follow and change them.

Every method is one request (or several in sequence). When it returns, the server has stored the change. `calls/` says
what each does; this file performs it. Keep it and `aio.py` alike.
"""

from __future__ import annotations

import functools
import inspect
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Optional, Type, TypeVar, Union, overload

from . import calls
from .calls import Listing, Ref
from .errors import OnwardError
from .models import Event, Run, Task
from .protocol import Address, Steps, drive
from .streams import SILENCE_MAX, EventStream
from .times import DurationLike
from .transport import Transport

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

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _perform(self, steps: Steps[T]) -> T:
        return drive(steps, self._transport.request, time.sleep)

    def _items(self, listing: Listing[T]) -> Iterator[T]:
        while listing.has_more:
            yield from self._perform(listing.page())


def performs(steps: "Callable[P, Steps[T]]") -> "Callable[Concatenate[_Performer, P], T]":
    """A method that performs these steps."""

    def method(self: _Performer, /, *args: "P.args", **kwargs: "P.kwargs") -> T:
        return self._perform(steps(*args, **kwargs))

    described(method, steps)
    return method


def iterates(listing: "Callable[P, Listing[T]]") -> "Callable[Concatenate[_Performer, P], Iterator[T]]":
    """A method that returns an iterator over all pages of a list."""

    def method(self: _Performer, /, *args: "P.args", **kwargs: "P.kwargs") -> Iterator[T]:
        return self._items(listing(*args, **kwargs))

    described(method, listing)
    return method


def described(method: Any, source: Callable[..., Any]) -> None:
    """Gives a method the name, the text and the parameters of what it performs, for `help` and editors."""
    functools.update_wrapper(method, source)
    del method.__wrapped__
    signature = inspect.signature(source)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    parameters = [itself, *signature.parameters.values()]
    method.__signature__ = signature.replace(parameters=parameters, return_annotation=inspect.Signature.empty)


class Tasks(_Performer):
    """`client.tasks`: tasks in lists and in bulk."""

    list = iterates(calls.tasks.list_all)
    get = performs(calls.tasks.get_task)
    delete = performs(calls.tasks.delete)
    bulk = performs(calls.tasks.bulk)


class Runs(_Performer):
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


class Workflows(_Performer):
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


class Triggers(_Performer):
    """`client.triggers`"""

    create = performs(calls.triggers.create)
    list = iterates(calls.triggers.list_all)
    get = performs(calls.triggers.get)
    enable = performs(calls.triggers.enable)
    disable = performs(calls.triggers.disable)
    run = performs(calls.triggers.run)
    delete = performs(calls.triggers.delete)


class Client(_Performer):
    """A client of one server. Threads may share it.

    `url` and `api_key` default to `ONWARD_URL` (else `http://127.0.0.1:7420`) and `ONWARD_API_KEY`. Requests that are safe
    to repeat are retried up to `retries` times. `timeout` limits the wait for one response.
    """

    def __init__(self, url: Optional[str] = None, api_key: Optional[str] = None, *, timeout: float = 30.0, retries: int = 5) -> None:
        self.address = Address.of(url, api_key)
        super().__init__(Transport(self.address, timeout, retries))
        self.tasks = Tasks(self._transport)
        self.runs = Runs(self._transport)
        self.workflows = Workflows(self._transport)
        self.triggers = Triggers(self._transport)

    @overload
    def submit(self, type: str, payload: Any = None, **options: "Unpack[TaskOptions]") -> Task[Any]: ...
    @overload
    def submit(
        self, type: "TaskFunction[..., Context, T, Any]", payload: Any = None, **options: "Unpack[TaskOptions]"
    ) -> Task[T]: ...
    @overload
    def submit(self, type: "TaskFunction[..., I, T, Any]", payload: I, **options: "Unpack[TaskOptions]") -> Task[T]: ...
    def submit(self, type: Any, payload: Any = None, **options: Any) -> Task[Any]:
        """Submits one task, by its type or by the function that is registered for it. It is durable when this returns; no
        worker needs to exist."""
        return self._perform(calls.tasks.submit(type, payload, **options))

    submit_many = performs(calls.tasks.submit_many)
    trigger = performs(calls.workflows.trigger)

    @overload
    def get(self, ref: Task[T]) -> Task[T]: ...
    @overload
    def get(self, ref: Run) -> Run: ...
    @overload
    def get(self, ref: str) -> Union[Task[Any], Run]: ...
    def get(self, ref: Ref) -> Any:
        """The current state of a task or a run."""
        return self._perform(calls.tasks.get(ref))

    @overload
    def wait(self, ref: Task[T], timeout: Optional[DurationLike] = None) -> Task[T]: ...
    @overload
    def wait(self, ref: Run, timeout: Optional[DurationLike] = None) -> Run: ...
    @overload
    def wait(self, ref: str, timeout: Optional[DurationLike] = None) -> Union[Task[Any], Run]: ...
    def wait(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Any:
        """Waits for the end of a task or run, whatever the outcome; raises `WaitTimeout` after `timeout`."""
        return self._perform(calls.tasks.wait(ref, timeout))

    @overload
    def result(self, ref: Ref, timeout: Optional[DurationLike] = None, *, type: Type[T]) -> T: ...
    @overload
    def result(self, ref: Task[T], timeout: Optional[DurationLike] = None) -> T: ...
    @overload
    def result(self, ref: Union[Run, str], timeout: Optional[DurationLike] = None) -> Any: ...
    def result(self, ref: Ref, timeout: Optional[DurationLike] = None, *, type: Any = None) -> Any:
        """Waits, and returns the result of a task (the output of a run); raises `TaskFailed` if there is none. The result is
        built as `type`, or as what the function returns that the task was submitted with; else it is plain JSON."""
        return self._perform(calls.tasks.result(ref, timeout, type))

    @overload
    def cancel(self, ref: Task[T], reason: Optional[str] = None, compensate: bool = False) -> Task[T]: ...
    @overload
    def cancel(self, ref: Run, reason: Optional[str] = None, compensate: bool = False) -> Run: ...
    @overload
    def cancel(
        self, ref: str, reason: Optional[str] = None, compensate: bool = False
    ) -> Union[Task[Any], Run]: ...
    def cancel(self, ref: Ref, reason: Optional[str] = None, compensate: bool = False) -> Any:
        """Cancels a task or run. With `compensate`, it first undoes what it did. Repeating it is safe; raises `OnwardError`
        (409) if it has ended otherwise."""
        return self._perform(calls.tasks.cancel(ref, reason, compensate))

    @overload
    def retry(self, ref: Task[T]) -> Task[T]: ...
    @overload
    def retry(
        self,
        ref: Run,
        from_step: Optional[str] = None,
        allow_irreversible: bool = False,
        reason: Optional[str] = None,
    ) -> Run: ...
    @overload
    def retry(
        self,
        ref: str,
        from_step: Optional[str] = None,
        allow_irreversible: bool = False,
        reason: Optional[str] = None,
    ) -> Union[Task[Any], Run]: ...
    def retry(
        self,
        ref: Ref,
        from_step: Optional[str] = None,
        allow_irreversible: bool = False,
        reason: Optional[str] = None,
    ) -> Any:
        """Makes the next attempt of a task due now. Releases a failed task: returns a new task with the same content, the same
        one on every repeat. A run that failed or timed out goes on, with `from_step` from an earlier step; one that is open
        retries the steps that wait for their backoff."""
        return self._perform(calls.tasks.retry(ref, from_step, allow_irreversible, reason))

    events = iterates(calls.tasks.events)
    explain = performs(calls.tasks.explain)
    request = performs(calls.request)

    def stream(self, ref: Ref, *, after: int = 0) -> Iterator[Event]:
        """The events of a run (for a task, of its run) as they happen, from the first or from the one after `after`, until the
        run has ended. Connects again after a lost connection, without a gap; raises `OnwardUnavailable` when that fails
        `retries` times in a row."""
        stream = EventStream(self._perform(calls.tasks.stream_path(ref)), after, self._transport.retries)
        while not stream.ended:
            problem: Optional[OnwardError] = None
            try:
                for line in self._transport.lines(stream.request(), SILENCE_MAX):
                    event = stream.feed(line)
                    if event is not None:
                        yield event
                    if stream.ended:
                        return
            except OnwardError as raised:
                problem = raised
            time.sleep(stream.lost(problem))

    def close(self) -> None:
        """Closes its connections and aborts requests in other threads."""
        self._transport.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
