"""Pure functions: conversion to JSON, durations, the meaning of exceptions."""

from __future__ import annotations

import json
import unittest
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any

from onward import Fail, OnwardError, Retry, Snooze
from onward.outcomes import entry_for, shorten, snake_case
from onward.times import duration, seconds, timestamp
from onward.values import encode, snapshot


class Size(Enum):
    BIG = "big"


@dataclass
class Point:
    x: int
    inner: Any = None


class Dumped:
    def model_dump(self, mode: str) -> Any:
        return {"mode": mode}


class Json(unittest.TestCase):
    def test_values_become_plain_json(self) -> None:
        for value, expected in [
            (Point(1, [Point(2)]), {"x": 1, "inner": [{"x": 2, "inner": None}]}),
            ({"s": Size.BIG, "t": (1, 2), "d": Decimal("1.10")}, {"s": "big", "t": [1, 2], "d": "1.10"}),
            (datetime(2027, 1, 1, tzinfo=timezone.utc), "2027-01-01T00:00:00Z"),
            (date(2027, 1, 1), "2027-01-01"),
            ({1}, [1]),
            (Dumped(), {"mode": "json"}),
            ("žluťoučký 🐎", "žluťoučký 🐎"),
        ]:
            with self.subTest(value=value):
                self.assertEqual(json.loads(encode(value)), expected)

    def test_values_that_json_cannot_represent_are_refused(self) -> None:
        for value in (b"bytes", float("nan"), object(), {(1, 2): 3}, datetime(2027, 1, 1)):
            with self.subTest(value=value), self.assertRaises((TypeError, ValueError)):
                encode(value)

    def test_a_snapshot_does_not_change_with_the_original(self) -> None:
        original = {"n": [1]}
        taken = snapshot(original)
        original["n"].append(2)
        self.assertEqual(taken, {"n": [1]})


class Times(unittest.TestCase):
    def test_durations(self) -> None:
        for value, length, written in [
            ("250ms", 0.25, "250ms"),
            ("30s", 30, "30s"),
            ("5m", 300, "5m"),
            ("2h", 7200, "2h"),
            ("1d", 86400, "1d"),
            (1.5, 1.5, "1500ms"),
            (timedelta(minutes=1), 60, "60000ms"),
            (0, 0, "0ms"),
        ]:
            with self.subTest(value=value):
                self.assertEqual((seconds(value), duration(value)), (length, written))
        for value in ("", "5", "5 parsecs", "-1s", -1, None, True, float("inf"), float("nan")):
            with self.subTest(value=value), self.assertRaises(ValueError):
                seconds(value)  # type: ignore[arg-type]

    def test_times_need_a_time_zone(self) -> None:
        self.assertEqual(timestamp(datetime(2027, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))), "2027-01-01T00:00:00Z")
        with self.assertRaisesRegex(ValueError, "has no time zone"):
            timestamp(datetime(2027, 1, 1))


class Outcomes(unittest.TestCase):
    def test_the_raised_exception_decides_the_outcome(self) -> None:
        for raised, expected in [
            (ValueError("bad"), {"error": {"message": "bad", "code": "value_error"}}),
            (KeyError(), {"error": {"message": "KeyError", "code": "key_error"}}),
            (Fail("no"), {"error": {"message": "no"}, "final": True}),
            (Fail("no", "card_declined"), {"error": {"message": "no", "code": "card_declined"}, "final": True}),
            (Retry("busy"), {"error": {"message": "busy"}}),
            (Retry("busy", after="5s"), {"error": {"message": "busy"}, "retry_after": "5s"}),
            (Retry("busy", after=timedelta(seconds=1)), {"error": {"message": "busy"}, "retry_after": "1000ms"}),
            (Snooze("1h"), {"snooze": "1h"}),
        ]:
            with self.subTest(raised=raised):
                self.assertEqual(entry_for(raised), expected)

    def test_names_in_snake_case(self) -> None:
        for name, expected in [("HTTPError", "http_error"), ("ConnectionError", "connection_error"), ("_X", "x"), ("Oauth2Failed", "oauth2_failed")]:
            self.assertEqual(snake_case(name), expected)

    def test_long_messages_are_cut_between_characters(self) -> None:
        cut = shorten("é" * 5000)
        self.assertLessEqual(len(cut.encode()), 4096)
        self.assertTrue(cut.endswith("é…"))
        self.assertEqual(shorten("a\ud800b"), "a?b")

    def test_the_text_of_a_refusal(self) -> None:
        problem = OnwardError("invalid_body", "`priorty` is not a field", "did you mean `priority`?", {"path": "priorty"}, [], 422)
        self.assertEqual(str(problem), "invalid_body: `priorty` is not a field (at `priorty`); did you mean `priority`?")
