"""HTTP by the standard library: one connection, a pool of them, and when a request may be sent again.

    Connection    one keep-alive connection; one request at a time; another thread may break it off
    Transport     picks a connection, understands refusals, repeats what is safe to repeat

The rule for repeating: a request that was never sent (no connection) may always be sent again; one that may have arrived
only if doing it twice is the same as doing it once. Pauses grow and are random ("full jitter"), so that a thousand clients
of a server that comes back do not come back together.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import select
import socket
import threading
import time
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple
from urllib.parse import urlencode, urlsplit

from .errors import OnwardError, OnwardUnavailable
from .values import encode

DEFAULT_URL = "http://127.0.0.1:7420"
CONNECT_TIMEOUT = 10.0
PAUSE_FIRST = 0.1
PAUSE_MAX = 5.0
RETRY_AFTER_MAX = 30.0
AGENT = "onward-python/0.1.0"

Query = Sequence[Tuple[str, str]]


class Answer(NamedTuple):
    """What the server said, when it did not refuse."""

    status: int
    document: Dict[str, Any]

    @property
    def data(self) -> Any:
        return self.document.get("data")


class Address(NamedTuple):
    """Where the server is, and the key to it."""

    secure: bool
    host: str
    port: int
    prefix: str
    api_key: Optional[str]

    @classmethod
    def of(cls, url: Optional[str], api_key: Optional[str]) -> "Address":
        """From arguments, or else `ONWARD_URL` and `ONWARD_API_KEY`."""
        url = url or os.environ.get("ONWARD_URL") or DEFAULT_URL
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"`{url}` is not the address of a server: write `http://host:port`")
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        prefix = parts.path.rstrip("/") + "/api/v1"
        return cls(secure, parts.hostname, port, prefix, api_key or os.environ.get("ONWARD_API_KEY") or None)

    def __str__(self) -> str:
        return f"{'https' if self.secure else 'http'}://{self.host}:{self.port}"


class Connection:
    """One connection, opened when needed and kept. Not for two threads at once, except `break_off` and `hang_up`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        self._http = kind(address.host, address.port, timeout=CONNECT_TIMEOUT)
        self._is_spent = False  # a request was cut short: no other may follow it

    def connect(self, timeout: float) -> socket.socket:
        """The open connection, opened now if there is none. Nothing is sent."""
        link = self._http
        try:
            if link.sock is not None and _is_readable(link.sock):
                link.close()  # the other side closed it while it was idle
            if link.sock is None:
                link.timeout = min(timeout, CONNECT_TIMEOUT)
                link.connect()
            return link.sock
        except OSError as problem:
            self.close()
            raise OnwardUnavailable(f"cannot connect to {self.address}: {problem}", sent=False) from problem

    def exchange(self, method: str, path: str, body: Optional[bytes], headers: Dict[str, str], timeout: float) -> http.client.HTTPResponse:
        """Sends a request and reads the head of its answer. `OnwardUnavailable.sent` says how far it came."""
        socket_ = self.connect(timeout)
        link = self._http
        try:
            socket_.settimeout(timeout)
            try:
                link.request(method, self.address.prefix + path, body, self._headers(headers, body))
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body does not read it: the answer may be there already.
                self._is_spent = True
            return link.getresponse()
        except (OSError, http.client.HTTPException, AttributeError) as problem:  # `AttributeError`: closed under our hands
            self.close()
            raise OnwardUnavailable(f"lost the connection to {self.address}: {problem!r}") from problem

    def request(self, method: str, path: str, body: Any, headers: Dict[str, str], timeout: float) -> Answer:
        """One request, sent once. A refusal raises `OnwardError`."""
        encoded = None if body is None else encode(body)
        response = self.exchange(method, path, encoded, headers, timeout)
        try:
            content = response.read()
        except (OSError, http.client.HTTPException, AttributeError, ValueError) as problem:
            self.close()
            raise OnwardUnavailable(f"lost the connection to {self.address}: {problem!r}") from problem
        if self._is_spent:
            self.close()
        return understood(response.status, content, response.getheader("Retry-After"))

    def close(self) -> None:
        self._http.close()
        self._is_spent = False

    def break_off(self) -> None:
        """Ends a request under way, from another thread: it raises `OnwardUnavailable` there."""
        self._shut(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Says that no more will come, from another thread, but still hears what the server is already saying."""
        self._shut(socket.SHUT_RDWR if self.address.secure else socket.SHUT_WR)

    def _shut(self, how: int) -> None:
        link = self._http.sock
        if link is not None:
            try:
                link.shutdown(how)
            except OSError:
                pass  # it is closed already

    def _headers(self, headers: Dict[str, str], body: Optional[bytes]) -> Dict[str, str]:
        every = {"Accept": "application/json", "User-Agent": AGENT, **headers}
        if body is not None:
            every["Content-Type"] = "application/json"
        if self.address.api_key:
            every["Authorization"] = f"Bearer {self.address.api_key}"
        return every


class Transport:
    """A pool of connections, shared by threads; and the repeating of requests."""

    def __init__(self, address: Address, timeout: float, retries: int) -> None:
        self.address = address
        self.timeout = timeout
        self.retries = retries
        self._lock = threading.Lock()
        self._idle: List[Connection] = []
        self._busy: Set[Connection] = set()
        self._closed = False

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Query = (),
        headers: Optional[Dict[str, str]] = None,
        wait: float = 0.0,
        repeatable: bool = True,
    ) -> Answer:
        """One request and its answer, sent again after trouble as far as that is safe. `wait` is how long the server
        was asked to take; the time-out comes on top."""
        target = f"{path}?{urlencode(query)}" if query else path
        for attempt in range(self.retries + 1):
            try:
                return self._once(method, target, body, headers or {}, wait + self.timeout)
            except OnwardError as problem:
                if attempt == self.retries or self._closed or not _may_repeat(problem, repeatable):
                    raise
                time.sleep(pause(attempt, problem))
        raise AssertionError("the last attempt returns or raises")

    def lines(self, path: str, seconds: float) -> Iterator[str]:
        """The lines of an endless answer, until the server ends it or for so long."""
        deadline = time.monotonic() + seconds
        connection = Connection(self.address)
        with self._lock:
            self._busy.add(connection)
        try:
            link = connection.connect(seconds)
            response = connection.exchange("GET", path, None, {"Accept": "text/event-stream"}, self.timeout)
            if response.status != 200:
                understood(response.status, response.read(), response.getheader("Retry-After"))
            while True:
                link.settimeout(max(0.001, deadline - time.monotonic()))
                line = response.readline()
                if not line:
                    return
                yield line.decode("utf-8", "replace").rstrip("\r\n")
        except socket.timeout:
            return
        except (OSError, http.client.HTTPException, AttributeError, ValueError) as problem:
            raise OnwardUnavailable(f"lost the connection to {self.address}: {problem!r}") from problem
        finally:
            with self._lock:
                self._busy.discard(connection)
            connection.close()

    def close(self) -> None:
        """Closes idle connections and breaks off requests under way."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for connection in idle:
            connection.close()
        for connection in busy:
            connection.break_off()

    def _once(self, method: str, target: str, body: Any, headers: Dict[str, str], timeout: float) -> Answer:
        with self._lock:
            connection = self._idle.pop() if self._idle else Connection(self.address)
            self._busy.add(connection)
        try:
            return connection.request(method, target, body, headers, timeout)
        finally:
            with self._lock:
                self._busy.discard(connection)
                self._idle.append(connection)


def understood(status: int, content: bytes, retry_after: Optional[str]) -> Answer:
    """The answer, or the refusal as an exception."""
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        document = None
    if 200 <= status < 300 and isinstance(document, dict):
        return Answer(status, document)
    refusal = document.get("error") if isinstance(document, dict) else None
    if not isinstance(refusal, dict):
        # Not the words of an Onward server: a proxy in between, or another program altogether.
        shown = content[:200].decode("utf-8", "replace").strip()
        if status in (502, 503, 504):
            raise OnwardUnavailable(f"answered {status}: {shown}", status=status)
        raise OnwardError("unknown_answer", f"not an answer of an Onward server, status {status}: {shown}", status=status)
    error = OnwardError(
        refusal.get("code", "unknown"),
        refusal.get("message", ""),
        refusal.get("hint"),
        refusal.get("at"),
        refusal.get("problems"),
        status,
    )
    error.retry_after = float(retry_after) if retry_after and retry_after.isdigit() else None
    raise error


def pause(attempt: int, problem: Optional[OnwardError] = None) -> float:
    """How long to wait after failure number `attempt` (from 0): random, growing, at least what the server asked for."""
    grown = min(PAUSE_MAX, PAUSE_FIRST * 2 ** min(attempt, 20))
    asked = (problem.retry_after or 0.0) if problem is not None else 0.0
    return min(asked, RETRY_AFTER_MAX) + random.uniform(0.01, grown)


def _may_repeat(problem: OnwardError, repeatable: bool) -> bool:
    if isinstance(problem, OnwardUnavailable):
        return repeatable or not problem.sent
    if problem.status == 503:  # nothing was changed, unless it says so
        return repeatable or problem.code != "outcome_unknown"
    return problem.status == 429 and (problem.retry_after or 0.0) <= RETRY_AFTER_MAX


def _is_readable(link: socket.socket) -> bool:
    """Something to read on a connection that expects nothing: its end, or rubbish."""
    try:
        if hasattr(select, "poll"):  # `select` itself cannot look at more than 1,024 files
            poll = select.poll()
            poll.register(link, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([link], [], [], 0)[0])
    except (OSError, ValueError):
        return True
