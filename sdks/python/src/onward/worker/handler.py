"""One function per task type, and how it is called.

The first parameter is the input, built from its annotation (see `onward.inputs`); without an annotation it is the plain
JSON. The optional second parameter is the `Context`. A function whose only parameter is a `Context` gets just that. Further
parameters need defaults: there is nothing to fill them with, so a function that requires them is refused.
"""

from __future__ import annotations

import builtins
import inspect
import typing
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ..inputs import reader, resolve
from .context import Context

Function = Callable[..., Any]


class Handler:
    """A registered function. `prepare` inspects its types; before that they are unknown."""

    def __init__(self, type: str, function: Function) -> None:
        self.type = type
        self.function = function
        called: Any = getattr(function, "__call__", None)  # of an object with this method
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        self._parameters = _positional(type, function)
        self._namespace: Dict[str, Any] = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            self._shape_of([resolved(each, self._namespace, type) for each in self._parameters])
        except NotDefined:
            pass  # a type may be defined below the function: `prepare` looks again
        self._read: Callable[[Any], Any] = lambda value: value
        self._shape = ""  # "", "i" (input), "c" (context) or "ic"

    def prepare(self) -> None:
        """Reads the annotations, when every type is defined."""
        kinds = [resolved(parameter, self._namespace, self.type) for parameter in self._parameters]
        self._shape = self._shape_of(kinds)
        if "i" in self._shape and kinds[0] is not inspect.Parameter.empty:
            try:
                self._read = reader(kinds[0])
            except TypeError as problem:
                raise TypeError(f"the handler of `{self.type}`: {problem}") from None

    def _shape_of(self, kinds: List[Any]) -> str:
        """Which of the input and the context the function gets; raises `TypeError` for a parameter that gets neither."""
        empty = inspect.Parameter.empty
        shape = "c" if kinds and _is_context(kinds[0]) else "i" if kinds else ""
        for parameter, kind in list(zip(self._parameters, kinds))[1:]:
            if shape == "i" and (_is_context(kind) or (parameter.default is empty and kind in (empty, Any, object))):
                shape = "ic"
            elif parameter.default is empty:
                _refuse(self.type, self.function, parameter)
        return shape

    def arguments(self, value: Any, context: Context) -> Tuple[Any, ...]:
        """The arguments of the call; raises `InvalidInput` if the input does not match."""
        return tuple(self._read(value) if each == "i" else context for each in self._shape)


def find(handlers: Dict[str, Handler], type: str) -> Optional[Handler]:
    """The handler of exactly this type, or of the longest matching prefix (`notify.%`)."""
    if type in handlers:
        return handlers[type]
    fitting = [name for name in handlers if name.endswith("%") and type.startswith(name[:-1])]
    return handlers[max(fitting, key=len)] if fitting else None


def claimed(types: Optional[Iterable[str]], handlers: Dict[str, Handler]) -> List[str]:
    """The types the worker claims: those it was given, or those it has handlers for."""
    names = list(types) if types is not None else sorted(handlers)
    if not handlers:
        raise ValueError('there is nothing to do: register a function with `@worker.task("some.type.v1")`')
    if not 1 <= len(names) <= 100:
        raise ValueError(f"a worker claims 1 to 100 types, not {len(names)}: give `types` with prefixes such as `billing.%`")
    return names


class NotDefined(TypeError):
    """The annotation of a parameter names a type that is not defined (yet)."""


def resolved(parameter: inspect.Parameter, namespace: Dict[str, Any], type: str) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return inspect.Parameter.empty
    try:
        return resolve(parameter.annotation, namespace)
    except (NameError, AttributeError) as problem:
        hint = f"define the type of `{parameter.name}` at the top level of its module"
        raise NotDefined(f"the handler of `{type}`: {problem}; {hint}") from None


def _positional(type: str, function: Function) -> List[inspect.Parameter]:
    """The parameters that a call can fill: those that can be given by position."""
    everything = inspect.signature(function).parameters.values()
    for each in everything:
        if each.kind is each.KEYWORD_ONLY and each.default is each.empty:
            _refuse(type, function, each)
    return [each for each in everything if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _is_context(kind: Any) -> bool:
    if isinstance(kind, builtins.type):
        return issubclass(kind, Context)
    return any(_is_context(each) for each in typing.get_args(kind))  # `Optional[Context]`


def _refuse(type: str, function: Function, parameter: inspect.Parameter) -> None:
    name = getattr(function, "__name__", function)
    raise TypeError(
        f"`{name}` cannot be the handler of `{type}`: there is no value for its parameter `{parameter.name}`; "
        "a handler takes the input and then, optionally, the context (`ctx: onward.Context`), and others need defaults"
    )
