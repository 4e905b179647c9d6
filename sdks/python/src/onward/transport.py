"""HTTP with the standard library: one connection, a connection pool, and retries.

    Connection    one keep-alive connection; one request at a time; another thread can abort it
    Transport     picks a connection, parses errors, retries where that is safe

The rule for retries: a request that was never sent (no connection) can always be sent again; one that may have arrived only
if it is idempotent. Delays grow and are random ("full jitter"), so that a thousand clients do not reconnect to a restarted
server all at once.
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
    """A successful response."""

    status: int
    document: Dict[str, Any]

    @property
    def data(self) -> Any:
        return self.document.get("data")


class Address(NamedTuple):
    """The address of a server, and its key."""

    secure: bool
    host: str
    port: int
    prefix: str
    api_key: Optional[str]

    @classmethod
    def of(cls, url: Optional[str], api_key: Optional[str]) -> "Address":
        """From the arguments, or else from `ONWARD_URL` and `ONWARD_API_KEY`."""
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
    """One connection, opened when needed and kept open. Not thread-safe, except for `break_off` and `hang_up`."""

    def __init__(self, address: Address) -> None:
        self.address = address
        kind = http.client.HTTPSConnection if address.secure else http.client.HTTPConnection
        self._http = kind(address.host, address.port, timeout=CONNECT_TIMEOUT)
        self._is_spent = False  # a request was aborted: no other may follow on this connection

    def connect(self, timeout: float) -> socket.socket:
        """The open connection; opens it if needed. Sends nothing."""
        link = self._http
        try:
            if link.sock is not None and _is_readable(link.sock):
                link.close()  # the server closed it while it was idle
            if link.sock is None:
                link.timeout = min(timeout, CONNECT_TIMEOUT)
                link.connect()
            return link.sock
        except OSError as problem:
            self.close()
            raise OnwardUnavailable(f"cannot connect to {self.address}: {problem}", sent=False) from problem

    def exchange(self, method: str, path: str, body: Optional[bytes], headers: Dict[str, str], timeout: float) -> http.client.HTTPResponse:
        """Sends a request and reads the head of the response. `OnwardUnavailable.sent` says whether it may have arrived."""
        socket_ = self.connect(timeout)
        link = self._http
        try:
            socket_.settimeout(timeout)
            try:
                link.request(method, self.address.prefix + path, body, self._headers(headers, body))
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body does not read it, so the response may have arrived already.
                self._is_spent = True
            return link.getresponse()
        except (OSError, http.client.HTTPException, AttributeError) as problem:  # `AttributeError`: closed by another thread
            self.close()
            raise OnwardUnavailable(f"lost the connection to {self.address}: {problem!r}") from problem

    def request(self, method: str, path: str, body: Any, headers: Dict[str, str], timeout: float) -> Answer:
        """Sends one request once. Raises `OnwardError` if the server refuses it."""
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
        """Aborts the current request from another thread; it raises `OnwardUnavailable` there."""
        self._shut(socket.SHUT_RDWR)

    def hang_up(self) -> None:
        """Closes the sending side from another thread, but still reads the response that the server is sending."""
        self._shut(socket.SHUT_RDWR if self.address.secure else socket.SHUT_WR)

    def _shut(self, how: int) -> None:
        link = self._http.sock
        if link is not None:
            try:
                link.shutdown(how)
            except OSError:
                pass  # already closed

    def _headers(self, headers: Dict[str, str], body: Optional[bytes]) -> Dict[str, str]:
        every = {"Accept": "application/json", "User-Agent": AGENT, **headers}
        if body is not None:
            every["Content-Type"] = "application/json"
        if self.address.api_key:
            every["Authorization"] = f"Bearer {self.address.api_key}"
        return every


class Transport:
    """A connection pool, shared by threads, with retries."""

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
        """Sends one request and returns the response; retries where that is safe. `wait` is how long the server was asked to
        hold the request; the timeout comes on top."""
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
        """The lines of a streaming response, until the server ends it or `seconds` have passed."""
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
        """Closes idle connections and aborts current requests."""
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
    """Returns the response, or raises the error it carries."""
    try:
        document = json.loads(content) if content else {}
    except ValueError:
        document = None
    if 200 <= status < 300 and isinstance(document, dict):
        return Answer(status, document)
    refusal = document.get("error") if isinstance(document, dict) else None
    if not isinstance(refusal, dict):
        # Not the response of an Onward server: a proxy in between, or another program.
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
    """The delay after failure number `attempt` (from 0): random, growing, at least what the server asked for."""
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
    """Whether an idle connection has data to read: it was closed, or carries unexpected bytes."""
    try:
        if hasattr(select, "poll"):  # `select.select` supports only file descriptors below 1,024
            poll = select.poll()
            poll.register(link, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([link], [], [], 0)[0])
    except (OSError, ValueError):
        return True
