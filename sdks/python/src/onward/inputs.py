"""Builds the input type of a handler from JSON.

    reader(Invoice)({"order": 7, "lines": [...]})   ->   Invoice(order=7, lines=[Line(...), ...])

`reader(annotation)` inspects the type once, when the worker starts, and returns a function that builds values of it. It
refuses a type that cannot be built from JSON, before any task is claimed. The function raises `InvalidInput`, which names
the field: `lines[2].amount: expected a number, got "12"`.

Values are not coerced: `"7"` is not a number, `1` is not `true`. Fields that the type does not have are ignored, so that a
client can send new fields before the worker reads them.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections import abc
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from types import SimpleNamespace
from typing import Any, Callable, Dict, List, Tuple, Union
from uuid import UUID

Reader = Callable[[Any, str], Any]
"""Builds a value from JSON found at a path."""


class InvalidInput(ValueError):
    """The input does not match the type of the handler; the message begins with the place."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path or 'input'}: {message}")
        self.path = path
        self.message = message


def reader(annotation: Any) -> Callable[[Any], Any]:
    """Returns a function that builds values of this type; raises `TypeError` if JSON cannot represent it."""
    read = _reader(annotation, {})
    return lambda value: read(value, "")


def resolve(annotation: Any, namespace: Dict[str, Any]) -> Any:
    """The type of an annotation, which may be text (`from __future__ import annotations`)."""
    holder = SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns=namespace, include_extras=True)["it"]


def _reader(kind: Any, seen: Dict[Any, Reader]) -> Reader:
    if kind in (Any, object):
        return _anything
    if kind in (None, type(None)):
        return _exactly(type(None), "null")
    if kind in _SCALARS:
        return _SCALARS[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is not None:
        return _generic(origin, arguments, kind, seen)
    if hasattr(kind, "__supertype__"):  # NewType
        return _reader(kind.__supertype__, seen)
    if not isinstance(kind, type):
        raise TypeError(f"input cannot be built as `{kind}`: {_ALLOWED}")
    if kind in seen:  # a type that contains itself
        return lambda value, path: seen[kind](value, path)
    seen[kind] = _anything  # replaced below, before anything is read
    seen[kind] = _class(kind, seen)
    return seen[kind]


_ALLOWED = "use a dataclass, a TypedDict, a class with `model_validate`, `dict` or plain JSON types"


def _class(kind: type, seen: Dict[Any, Reader]) -> Reader:
    if callable(getattr(kind, "model_validate", None)):
        return _model(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, seen)
    if issubclass(kind, dict) and hasattr(kind, "__required_keys__"):
        return _typed_dict(kind, seen)
    if issubclass(kind, Enum):
        return _one_of({member.value: member for member in kind})
    if kind in (list, tuple, set, frozenset):
        return _generic(kind, (Any, ...) if kind is tuple else (Any,), kind, seen)
    if kind is dict:
        return _generic(dict, (str, Any), kind, seen)
    raise TypeError(f"input cannot be built as `{kind.__name__}`: {_ALLOWED}")


def _generic(origin: Any, arguments: Tuple[Any, ...], kind: Any, seen: Dict[Any, Reader]) -> Reader:
    name = getattr(kind, "_name", None) or str(origin)
    if hasattr(kind, "__metadata__") or name.endswith(("Required", "Final", "ReadOnly")):  # Annotated[T, …] and the like
        return _reader(arguments[0], seen)
    if origin is typing.Literal:
        return _one_of({value: value for value in arguments})
    if origin is Union or type(kind).__name__ == "UnionType":
        return _union([_reader(part, seen) for part in arguments])
    if origin is tuple and (len(arguments) != 2 or arguments[1] is not ...):
        return _fixed_tuple([_reader(part, seen) for part in arguments])
    if origin in (list, tuple, set, frozenset, abc.Sequence, abc.Iterable, abc.Collection):
        return _list(_reader(arguments[0], seen), list if origin.__module__ == "collections.abc" else origin)
    if origin in (dict, abc.Mapping, abc.MutableMapping):
        if arguments[0] not in (str, Any):
            raise TypeError(f"input cannot be built as `{kind}`: the keys of JSON objects are `str`")
        return _object_of(_reader(arguments[1], seen))
    raise TypeError(f"input cannot be built as `{kind}`: {_ALLOWED}")


def _anything(value: Any, path: str) -> Any:
    return value


def _exactly(kind: type, name: str) -> Reader:
    def read(value: Any, path: str) -> Any:
        if type(value) is not kind:
            raise InvalidInput(path, f"expected {name}, got {_shown(value)}")
        return value

    return read


def _float(value: Any, path: str) -> float:
    if type(value) not in (int, float):
        raise InvalidInput(path, f"expected a number, got {_shown(value)}")
    return float(value)


def _from_text(parse: Callable[[str], Any], name: str) -> Reader:
    def read(value: Any, path: str) -> Any:
        try:
            if isinstance(value, str):
                return parse(value)
        except (ValueError, ArithmeticError):
            pass
        raise InvalidInput(path, f"expected {name} as text, got {_shown(value)}")

    return read


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)


_SCALARS: Dict[Any, Reader] = {
    str: _exactly(str, "text"),
    bool: _exactly(bool, "`true` or `false`"),
    int: _exactly(int, "a whole number"),
    float: _float,
    datetime: _from_text(_moment, "a time (RFC 3339)"),
    date: _from_text(date.fromisoformat, "a date"),
    UUID: _from_text(UUID, "a UUID"),
    Decimal: _from_text(Decimal, "a decimal number"),
}


def _one_of(allowed: Dict[Any, Any]) -> Reader:
    names = ", ".join(f"`{value}`" for value in allowed)

    def read(value: Any, path: str) -> Any:
        for candidate, meaning in allowed.items():
            if candidate == value and type(candidate) is type(value):
                return meaning
        raise InvalidInput(path, f"expected one of {names}, got {_shown(value)}")

    return read


def _union(parts: List[Reader]) -> Reader:
    def read(value: Any, path: str) -> Any:
        problems = []
        for part in parts:
            try:
                return part(value, path)
            except InvalidInput as problem:
                problems.append(problem)
        raise max(problems, key=lambda problem: len(problem.path))  # the most deeply nested problem is the most specific

    return read


def _list(item: Reader, kind: Callable[[List[Any]], Any]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list):
            raise InvalidInput(path, f"expected a list, got {_shown(value)}")
        return kind([item(each, f"{path}[{i}]") for i, each in enumerate(value)])

    return read


def _fixed_tuple(items: List[Reader]) -> Reader:
    def read(value: Any, path: str) -> Any:
        if not isinstance(value, list) or len(value) != len(items):
            raise InvalidInput(path, f"expected a list of {len(items)}, got {_shown(value)}")
        return tuple(item(each, f"{path}[{i}]") for i, (item, each) in enumerate(zip(items, value)))

    return read


def _object_of(item: Reader) -> Reader:
    def read(value: Any, path: str) -> Any:
        return {name: item(each, _at(path, name)) for name, each in _object(value, path).items()}

    return read


def _dataclass(kind: Any, seen: Dict[Any, Reader]) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    fields = [field for field in dataclasses.fields(kind) if field.init]
    readers = {field.name: _reader(hints[field.name], seen) for field in fields}
    required = {f.name for f in fields if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING}

    def read(value: Any, path: str) -> Any:
        given = _fields(_object(value, path), readers, required, path)
        try:
            return kind(**given)
        except InvalidInput:
            raise
        except (TypeError, ValueError) as problem:  # raised by `__post_init__`
            raise InvalidInput(path, str(problem)) from problem

    return read


def _typed_dict(kind: Any, seen: Dict[Any, Reader]) -> Reader:
    hints = typing.get_type_hints(kind, include_extras=True)
    readers = {name: _reader(hint, seen) for name, hint in hints.items()}
    # With `from __future__ import annotations` the class does not record its `NotRequired[…]`.
    optional = {name for name, hint in hints.items() if str(typing.get_origin(hint)).endswith("NotRequired")}
    return lambda value, path: _fields(_object(value, path), readers, kind.__required_keys__ - optional, path)


def _model(kind: Any) -> Reader:
    def read(value: Any, path: str) -> Any:
        try:
            return kind.model_validate(value)
        except (TypeError, ValueError) as problem:
            raise InvalidInput(*_first_problem(problem, path)) from problem

    return read


def _first_problem(problem: Exception, path: str) -> Tuple[str, str]:
    """Pydantic reports the place in `errors()`; other libraries have no common format."""
    errors = getattr(problem, "errors", None)
    first = errors()[0] if callable(errors) and errors() else {}
    for part in first.get("loc", ()):
        path = f"{path}[{part}]" if isinstance(part, int) else _at(path, str(part))
    return path, first.get("msg") or str(problem)


def _fields(value: Dict[str, Any], readers: Dict[str, Reader], required: Any, path: str) -> Dict[str, Any]:
    for name in readers:
        if name in required and name not in value:
            raise InvalidInput(_at(path, name), "is missing")
    return {name: read(value[name], _at(path, name)) for name, read in readers.items() if name in value}


def _object(value: Any, path: str) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidInput(path, f"expected an object, got {_shown(value)}")
    return value


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    """A short description of the value; never the whole payload."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "…"
