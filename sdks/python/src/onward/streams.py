"""Server-sent events, without any I/O: lines in, events out, and where to go on after a lost connection."""

from __future__ import annotations

import json
from typing import Optional

from .errors import OnwardError, OnwardUnavailable
from .models import Event
from .protocol import Request, may_repeat, pause

SILENCE_MAX = 45.0
"""Seconds without a byte after which a stream is taken for lost; the server sends a comment every 15 s."""


class EventStream:
    """The events of one run, each once and in order, over as many connections as it takes."""

    def __init__(self, path: str, after: int, retries: int) -> None:
        self.ended = False
        self._path = path
        self._retries = retries
        self._failures = 0
        self._last = after
        self._event = ""
        self._data = ""

    def request(self) -> Request:
        """The request for everything after the last event. Drops an unfinished message of the connection before."""
        self._event = self._data = ""
        last = {"Last-Event-ID": str(self._last)} if self._last else {}
        return Request("GET", self._path, headers={"Accept": "text/event-stream", **last})

    def feed(self, line: str) -> Optional[Event]:
        """Takes one line, without its end; returns the event that it completes."""
        name, _, value = line.partition(":")
        value = value[1:] if value.startswith(" ") else value
        if name == "event":
            self._event = value
        elif name == "data":
            self._data = f"{self._data}\n{value}" if self._data else value
        elif line == "":
            return self._message()
        return None

    def lost(self, problem: Optional[OnwardError]) -> float:
        """The connection ended before the stream did. Returns the delay before the next one, or raises the problem."""
        problem = problem or OnwardUnavailable("the stream ended early")
        if self._failures == self._retries or not may_repeat(problem, True):
            raise problem
        self._failures += 1
        return pause(self._failures - 1, problem)

    def _message(self) -> Optional[Event]:
        event, data, self._event, self._data = self._event, self._data, "", ""
        if event == "end":
            self.ended = True
        if event or not data:
            return None
        try:
            found = Event.of(json.loads(data))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise OnwardUnavailable(f"an event of the stream is not understood: {data[:200]}") from None
        if found.seq <= self._last:
            return None
        self._last, self._failures = found.seq, 0
        return found
