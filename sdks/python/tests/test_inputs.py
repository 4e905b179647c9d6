"""Building typed input from JSON, and naming the field that is wrong."""

from __future__ import annotations

import unittest
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from enum import Enum
from typing import Any, Dict, List, Literal, NewType, Optional, Set, Tuple, TypedDict, Union
from uuid import UUID

from onward.inputs import InvalidInput, reader, resolve


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Line:
    amount: float
    note: Optional[str] = None
    parts: List[Line] = field(default_factory=list)


class Address(TypedDict):
    street: str
    tags: Dict[str, List[int]]


class Partial(TypedDict, total=False):
    a: int


@dataclass
class Invoice:
    order: int
    lines: List[Line]
    colour: Colour = Colour.RED
    due: Optional[datetime] = None
    address: Optional[Address] = None

    def __post_init__(self) -> None:
        if self.order < 0:
            raise ValueError("an order's number is not negative")


class Model:
    """Has the interface of a Pydantic model."""

    class Wrong(ValueError):
        def errors(self) -> List[Dict[str, Any]]:
            return [{"loc": ("items", 2, "n"), "msg": "Input should be a valid integer"}]

    @classmethod
    def model_validate(cls, value: Any) -> "Model":
        if value != {"fine": True}:
            raise cls.Wrong()
        return cls()


OrderNumber = NewType("OrderNumber", int)


class Building(unittest.TestCase):
    def test_values_of_every_kind(self) -> None:
        for kind, given, expected in [
            (Any, {"a": [1]}, {"a": [1]}),
            (dict, {"a": 1}, {"a": 1}),
            (list, [1, "a"], [1, "a"]),
            (int, 7, 7),
            (float, 7, 7.0),
            (str, "é", "é"),
            (bool, True, True),
            (None, None, None),
            (Optional[int], None, None),
            (Union[int, str], "a", "a"),
            (Tuple[int, str], [1, "a"], (1, "a")),
            (Tuple[int, ...], [1, 2], (1, 2)),
            (Set[int], [1, 1], {1}),
            (Dict[str, int], {"a": 1}, {"a": 1}),
            (Literal["x", 1], 1, 1),
            (Colour, "blue", Colour.BLUE),
            (OrderNumber, 7, 7),
            (Partial, {}, {}),
            (datetime, "2027-01-01T00:00:00Z", datetime(2027, 1, 1, tzinfo=timezone.utc)),
            (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
            (Decimal, "12.30", Decimal("12.30")),
        ]:
            with self.subTest(kind=kind):
                built = reader(kind)(given)
                self.assertEqual((built, type(built)), (expected, type(expected)))

    def test_dataclasses_nest_and_ignore_unknown_fields(self) -> None:
        built = reader(Invoice)(
            {"order": 7, "lines": [{"amount": 2, "parts": [{"amount": 1.5}]}], "address": {"street": "s", "tags": {"a": [1]}}, "new": 1}
        )
        self.assertEqual(built, Invoice(7, [Line(2.0, parts=[Line(1.5)])], address={"street": "s", "tags": {"a": [1]}}))
        self.assertIsInstance(reader(Model)({"fine": True}), Model)

    def test_an_error_names_the_place(self) -> None:
        for kind, given, expected in [
            (Invoice, 1, "input: expected an object, got 1"),
            (Invoice, {"lines": []}, "order: is missing"),
            (Invoice, {"order": "7", "lines": []}, 'order: expected a whole number, got "7"'),
            (Invoice, {"order": True, "lines": []}, "order: expected a whole number, got true"),
            (Invoice, {"order": None, "lines": []}, "order: expected a whole number, got null"),
            (Invoice, {"order": 1, "lines": {}}, "lines: expected a list, got an object"),
            (Invoice, {"order": 1, "lines": [{"amount": 1}, {"amount": "x"}]}, 'lines[1].amount: expected a number, got "x"'),
            (Invoice, {"order": 1, "lines": [], "colour": "green"}, 'colour: expected one of `red`, `blue`, got "green"'),
            (Invoice, {"order": 1, "lines": [], "due": "soon"}, 'due: expected a time (RFC 3339) as text, got "soon"'),
            (Invoice, {"order": 1, "lines": [], "address": {"street": "s", "tags": {"a": [[]]}}}, "address.tags.a[0]: expected a whole number, got a list of 0"),
            (Invoice, {"order": -1, "lines": []}, "input: an order's number is not negative"),
            (Address, {"street": "s"}, "tags: is missing"),
            (Literal[1], True, "input: expected one of `1`, got true"),
            (Tuple[int, int], [1], "input: expected a list of 2, got a list of 1"),
            (Model, {}, "items[2].n: Input should be a valid integer"),
        ]:
            with self.subTest(kind=kind, given=given):
                with self.assertRaises(InvalidInput) as caught:
                    reader(kind)(given)
                self.assertEqual(str(caught.exception), expected)

    def test_types_that_json_cannot_represent_are_refused_at_registration(self) -> None:
        for kind in (bytes, complex, Dict[int, int], type("Plain", (), {}), List[bytes]):
            with self.subTest(kind=kind):
                with self.assertRaisesRegex(TypeError, "input cannot be built as"):
                    reader(kind)

    def test_an_annotation_may_be_text(self) -> None:
        self.assertIs(resolve("Invoice", globals()), Invoice)
        self.assertEqual(resolve("Optional[int]", globals()), Optional[int])
