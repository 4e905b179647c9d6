"""One function per task type, and how it is called.

The first parameter is the input, built from its annotation (see `onward.inputs`); without an annotation it is the plain
JSON. The optional second parameter is the `Context`. A function whose only parameter is a `Context` gets just that.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from ..inputs import reader, resolve
from .context import Context

Function = Callable[..., Any]


class Handler:
    """A registered function. `prepare` inspects its types; before that they are unknown."""

    def __init__(self, type: str, function: Function) -> None:
        self.type = type
        self.function = function
        called = function if inspect.isroutine(function) else getattr(function, "__call__", function)
        self.is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)
        self._parameters = _positional(function)
        self._read: Callable[[Any], Any] = lambda value: value
        self._shape = ""  # "", "i" (input), "c" (context) or "ic"

    def prepare(self) -> None:
        """Reads the annotations. Not at registration, because a type may be defined below the function."""
        namespace = getattr(inspect.unwrap(self.function), "__globals__", {})
        kinds = [_resolved(parameter, namespace, self.type) for parameter in self._parameters]
        if kinds and kinds[0] is Context:
            self._shape = "c"
            return
        self._shape = "i" if kinds else ""
        if len(kinds) > 1 and (kinds[1] is Context or self._parameters[1].default is inspect.Parameter.empty):
            self._shape = "ic"
        if kinds and kinds[0] is not inspect.Parameter.empty:
            try:
                self._read = reader(kinds[0])
            except TypeError as problem:
                raise TypeError(f"the handler of `{self.type}`: {problem}") from None

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


def _positional(function: Function) -> List[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    everything = inspect.signature(function).parameters.values()
    required = [each for each in everything if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    if len(required) > 2 or any(each.kind not in kinds for each in required):
        raise TypeError(f"`{getattr(function, '__name__', function)}` cannot be a handler: it is called with the input and the context")
    return [each for each in everything if each.kind in kinds][:2]


def _resolved(parameter: inspect.Parameter, namespace: Dict[str, Any], type: str) -> Any:
    if parameter.annotation is inspect.Parameter.empty:
        return inspect.Parameter.empty
    try:
        return resolve(parameter.annotation, namespace)
    except NameError as problem:
        raise TypeError(f"the handler of `{type}`: {problem}; define the type of `{parameter.name}` at the top level of its module") from None
