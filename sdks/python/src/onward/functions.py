"""`TaskFunction`: a handler as `@worker.task` returns it. It can be called, and submitted.

    @worker.task("billing.invoice.v1", retry={"max_attempts": 5}, timeout="30s")
    def invoice(order: Order, ctx: onward.Context) -> Invoice: ...

    invoice(order, ctx)                     # calls the function, here and now
    task = invoice.submit(order)            # a task of this type, with the options of the decorator
    client.result(task)                     # an `Invoice`

The type parameters are the parameters of the function, its input, its result, and what a call returns (for `async def` a
coroutine of the result).
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Dict, Generic, TypeVar, overload

from .inputs import resolve
from .models import Task

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec, Protocol, Unpack

    from .calls import TaskOptions
    from .client import Client
    from .worker import Context

    P = ParamSpec("P")
else:  # typing has no ParamSpec before 3.10
    Protocol, P = object, TypeVar("P")

I = TypeVar("I")
R = TypeVar("R")
C = TypeVar("C")


class TaskFunction(Generic[P, I, R, C]):
    """A function that is registered for a task type."""

    def __init__(self, type: str, function: Callable[..., Any], defaults: Dict[str, Any], client: "Callable[[], Client]") -> None:
        functools.update_wrapper(self, function)
        self.type = type
        self.function = function
        self.defaults = {name: value for name, value in defaults.items() if value is not None}
        self._client = client

    __qualname__: str

    def __call__(self, *args: "P.args", **kwargs: "P.kwargs") -> C:
        called: C = self.function(*args, **kwargs)
        return called

    @overload
    def submit(self: "TaskFunction[..., Context, R, Any]", payload: Any = None, **options: "Unpack[TaskOptions]") -> Task[R]: ...
    @overload
    def submit(self, payload: I, **options: "Unpack[TaskOptions]") -> Task[R]: ...
    def submit(self, payload: Any = None, **options: Any) -> Task[Any]:
        """Submits a task of this type, with the client of the worker. Takes the same options as `Client.submit`, which also
        takes this function instead of a type: `await client.submit(invoice, order)`."""
        return self._client().submit(self, payload, **options)

    def options(self, given: Dict[str, Any]) -> Dict[str, Any]:
        """The options of a submit: those that are given, else those of the decorator."""
        if self.type.endswith("%"):
            raise ValueError(f"`{self.type}` is a prefix, not a type: submit a whole type by its name")
        return {**self.defaults, **{name: value for name, value in given.items() if value is not None}}

    @property
    def returns(self) -> Any:
        """The type of the result; `None` if it is not annotated."""
        function = inspect.unwrap(self.function)
        annotation = getattr(function, "__annotations__", {}).get("return", Any)
        try:
            found = resolve(annotation, getattr(function, "__globals__", {}))
        except NameError:  # a type that only the type checker knows
            return None
        return None if found in (Any, object, type(None)) else found

    def __reduce__(self) -> str:
        return str(self.__qualname__)  # pickled by its name, as functions are

    def __repr__(self) -> str:
        return f"<TaskFunction {getattr(self, '__qualname__', self.function)!s} of `{self.type}`>"


class Registration(Protocol):
    """What `worker.task(type)` returns: the decorator."""

    @overload
    def __call__(
        self, function: "Callable[Concatenate[I, P], Coroutine[Any, Any, R]]"
    ) -> "TaskFunction[Concatenate[I, P], I, R, Coroutine[Any, Any, R]]": ...
    @overload
    def __call__(self, function: "Callable[Concatenate[I, P], R]") -> "TaskFunction[Concatenate[I, P], I, R, R]": ...
    @overload
    def __call__(
        self, function: "Callable[[], Coroutine[Any, Any, R]]"
    ) -> "TaskFunction[[], Any, R, Coroutine[Any, Any, R]]": ...
    @overload
    def __call__(self, function: "Callable[[], R]") -> "TaskFunction[[], Any, R, R]": ...
    def __call__(self, function: Any) -> Any: ...
