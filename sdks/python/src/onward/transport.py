"""HTTP for threads, with `http.client`.

    Connection    one keep-alive connection; one request at a time; another thread can abort it
    Transport     a connection pool with retries

`protocol.py` has the rules; this file only does the I/O.
"""

from __future__ import annotations

import http.client
import select
import socket
import threading
import time
from typing import Iterator, List, Set

from .errors import OnwardUnavailable
from .protocol import CONNECT_TIMEOUT, Address, Answer, Request, attempts, drive, understood


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
            if link.sock is not None and is_readable(link.sock.fileno()):
                link.close()  # the server closed it while it was idle
            if link.sock is None:
                link.timeout = min(timeout, CONNECT_TIMEOUT)
                link.connect()
            return link.sock
        except OSError as problem:
            self.close()
            raise OnwardUnavailable(f"cannot connect to {self.address}: {problem}", sent=False) from problem

    def exchange(self, request: Request, timeout: float) -> http.client.HTTPResponse:
        """Sends a request and reads the head of the response. `OnwardUnavailable.sent` says whether it may have arrived."""
        target, headers = self.address.target(request), self.address.headers(request)
        socket_ = self.connect(timeout)
        link = self._http
        try:
            socket_.settimeout(timeout)
            try:
                link.request(request.method, target, request.content, headers)
            except (BrokenPipeError, ConnectionResetError):
                # A server that refuses a large body does not read it, so the response may have arrived already.
                self._is_spent = True
            return link.getresponse()
        except (OSError, http.client.HTTPException, AttributeError) as problem:  # `AttributeError`: closed by another thread
            self.close()
            raise OnwardUnavailable(f"lost the connection to {self.address}: {problem!r}") from problem

    def request(self, request: Request, timeout: float) -> Answer:
        """Sends one request once. Raises `OnwardError` if the server refuses it."""
        response = self.exchange(request, timeout)
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

    def request(self, request: Request) -> Answer:
        """Sends one request and returns the response; retries where that is safe."""
        return drive(attempts(request, self.retries, lambda: self._closed), self._once, time.sleep)

    def lines(self, request: Request, silence_max: float) -> Iterator[str]:
        """The lines of a streaming response, until the server ends it."""
        connection = Connection(self.address)
        with self._lock:
            self._busy.add(connection)
        try:
            link = connection.connect(self.timeout)
            response = connection.exchange(request, self.timeout)
            if response.status != 200:
                understood(response.status, response.read(), response.getheader("Retry-After"))
            link.settimeout(silence_max)
            while True:
                line = response.readline()
                if not line:
                    return
                yield line.decode("utf-8", "replace").rstrip("\r\n")
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

    def _once(self, request: Request) -> Answer:
        with self._lock:
            if self._closed:
                raise OnwardUnavailable("the client is closed", sent=False)
            connection = self._idle.pop() if self._idle else Connection(self.address)
            self._busy.add(connection)
        try:
            return connection.request(request, request.wait + self.timeout)
        finally:
            with self._lock:
                self._busy.discard(connection)
                if not self._closed:
                    self._idle.append(connection)
                else:
                    connection.close()


def is_readable(descriptor: int) -> bool:
    """Whether an idle connection has data to read: it was closed, or carries unexpected bytes."""
    try:
        if hasattr(select, "poll"):  # `select.select` supports only file descriptors below 1,024
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([descriptor], [], [], 0)[0])
    except (OSError, ValueError):
        return True
