"""HTTP/1.1 for asyncio, with its streams.

    AsyncConnection    one keep-alive connection; one request at a time
    AsyncTransport     a connection pool with retries

`protocol.py` has the rules; this file only does the I/O. It does not use `asyncio.wait_for`, which before Python 3.12 loses
a cancellation that comes when the call ends; `test_cancelled_while_connecting` shows it. A timeout aborts the connection.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import AsyncGenerator, AsyncIterator, Dict, List, NamedTuple, Optional, Set, Tuple

from .errors import OnwardUnavailable
from .protocol import CONNECT_TIMEOUT, Address, Answer, Request, attempts, drive_async, understood
from .transport import is_readable

HEAD_BYTES_MAX = 1 << 16
CHUNK = 1 << 16
IDLE_MAX = 64


class Head(NamedTuple):
    """The status line and the headers of a response; the names in lower case."""

    status: int
    headers: Dict[str, str]
    is_last: bool  # the server closes the connection after this response


class AsyncConnection:
    """One connection, opened when needed and kept open."""

    def __init__(self, address: Address, tls: Optional[ssl.SSLContext]) -> None:
        self.address = address
        self._tls = tls
        self._reader: Optional[asyncio.StreamReader] = None
        self._writer: Optional[asyncio.StreamWriter] = None

    async def exchange(self, request: Request, timeout: float) -> Head:
        """Sends a request and reads the head of the response. `OnwardUnavailable.sent` says whether it may have arrived."""
        content = request.content or b""
        lines = [f"{request.method} {self.address.target(request)} HTTP/1.1", f"Host: {self._host()}"]
        lines += [f"{name}: {value}" for name, value in self.address.headers(request).items()]
        if request.content is not None or request.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(content)}")
        head = "\r\n".join([*lines, "", ""]).encode("ascii")
        reader, writer = await self._connect(timeout)
        with self._closing_on_failure(timeout):
            if len(content) <= CHUNK:
                writer.write(head + content)
                return await _read_head(reader)
            return await self._send_large(reader, writer, head, content)

    async def body(self, head: Head, timeout: float) -> bytes:
        """The whole body of the response."""
        with self._closing_on_failure(timeout):
            content = b"".join([piece async for piece in self._pieces(head)])
        if head.is_last:
            self.close()
        return content

    async def lines(self, head: Head, silence_max: float) -> AsyncIterator[str]:
        """The lines of a body that arrives over time."""
        rest = b""
        pieces = self._pieces(head).__aiter__()
        while True:
            with self._closing_on_failure(silence_max):
                try:
                    piece = await pieces.__anext__()
                except StopAsyncIteration:
                    return
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")

    def close(self) -> None:
        """Closes the connection at once; a request in progress raises `OnwardUnavailable`."""
        writer, self._reader, self._writer = self._writer, None, None
        if writer is not None:
            try:
                writer.transport.abort()
            except RuntimeError:
                pass  # its event loop has ended, and the connection with it

    async def _connect(self, timeout: float) -> Tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._reader is not None and self._writer is not None:
            link = self._writer.get_extra_info("socket")
            is_open = not self._writer.is_closing() and not self._reader.at_eof()
            if is_open and link is not None and not is_readable(link.fileno()):
                return self._reader, self._writer
            self.close()  # the server closed it while it was idle
        limit = min(timeout, CONNECT_TIMEOUT)
        opening = asyncio.ensure_future(
            asyncio.open_connection(self.address.host, self.address.port, ssl=self._tls, limit=HEAD_BYTES_MAX)
        )
        try:
            await asyncio.wait([opening], timeout=limit)
        except asyncio.CancelledError:
            _abandon(opening)
            raise
        if not opening.done():
            _abandon(opening)
            raise OnwardUnavailable(f"cannot connect to {self.address}: no answer within {limit:g} s", sent=False)
        try:
            self._reader, self._writer = opening.result()
        except OSError as problem:
            raise OnwardUnavailable(f"cannot connect to {self.address}: {problem}", sent=False) from problem
        return self._reader, self._writer

    async def _send_large(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, content: bytes) -> Head:
        """A server that refuses a large body does not read it: look for the response while sending."""
        answering = asyncio.ensure_future(_read_head(reader))
        draining: Optional["asyncio.Future[None]"] = None
        try:
            writer.write(head)
            for begin in range(0, len(content), CHUNK):
                if answering.done():
                    break
                writer.write(content[begin : begin + CHUNK])
                draining = asyncio.ensure_future(writer.drain())
                await asyncio.wait([draining, answering], return_when=asyncio.FIRST_COMPLETED)
                if not draining.done() or draining.exception() is not None:
                    break  # the response is here, or the connection is lost
            early = answering.done()
            found = await answering
            return found._replace(is_last=True) if early else found
        finally:
            answering.cancel()
            if draining is not None:
                draining.cancel()

    async def _pieces(self, head: Head) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        reader = self._reader
        if reader is None:
            raise ConnectionError("the connection was closed")
        if head.status in (204, 304):
            return
        if "chunked" in head.headers.get("transfer-encoding", "").lower():
            while True:
                size = int((await reader.readline()).split(b";")[0], 16)
                if size == 0:
                    break
                yield await reader.readexactly(size)
                await reader.readexactly(2)
            while (await reader.readline()).strip():
                pass  # trailers
        elif "content-length" in head.headers:
            size = int(head.headers["content-length"])
            if size < 0:
                raise ValueError("a negative length")
            yield await reader.readexactly(size)
        else:
            while True:
                piece = await reader.read(CHUNK)
                if not piece:
                    self.close()
                    return
                yield piece

    def _closing_on_failure(self, timeout: float) -> "_Closing":
        return _Closing(self, timeout)

    def _host(self) -> str:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return host if self.address.port == (443 if self.address.secure else 80) else f"{host}:{self.address.port}"


class _Closing:
    """Closes the connection when the block fails or takes too long, and says so with `OnwardUnavailable`."""

    def __init__(self, connection: AsyncConnection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._is_late = False

    def __enter__(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout, self._expire)

    def __exit__(self, _: object, problem: Optional[BaseException], __: object) -> None:
        self._timer.cancel()
        if problem is None:
            return
        self._connection.close()
        # `ValueError`: not HTTP, for example a length that is not a number, or a line without end.
        if isinstance(problem, (OSError, EOFError, ValueError, asyncio.LimitOverrunError)):
            why = f"no answer within {self._timeout:g} s" if self._is_late else repr(problem)
            raise OnwardUnavailable(f"lost the connection to {self._connection.address}: {why}") from problem

    def _expire(self) -> None:
        self._is_late = True
        self._connection.close()


class AsyncTransport:
    """A connection pool for the coroutines of one event loop, with retries."""

    def __init__(self, address: Address, timeout: float, retries: int, connections: int) -> None:
        self.address = address
        self.timeout = timeout
        self.retries = retries
        self.connections = connections
        # One for all connections, because it reads the certificates of the system.
        self._tls = ssl.create_default_context() if address.secure else None
        self._closed = False
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._idle: List[AsyncConnection] = []
        self._busy: Set[AsyncConnection] = set()
        self._free: Optional[asyncio.Semaphore] = None

    async def request(self, request: Request) -> Answer:
        """Sends one request and returns the response; retries where that is safe."""
        return await drive_async(attempts(request, self.retries, lambda: self._closed), self._once, asyncio.sleep)

    async def lines(self, request: Request, silence_max: float) -> AsyncGenerator[str, None]:
        """The lines of a streaming response, until the server ends it."""
        self._enter_loop()
        connection = AsyncConnection(self.address, self._tls)
        self._busy.add(connection)
        try:
            head = await connection.exchange(request, self.timeout)
            if head.status != 200:
                understood(head.status, await connection.body(head, self.timeout), head.headers.get("retry-after"))
            async for line in connection.lines(head, silence_max):
                yield line
        finally:
            self._busy.discard(connection)
            connection.close()

    def close(self) -> None:
        """Closes idle connections and aborts current requests."""
        self._closed = True
        for connection in [*self._idle, *self._busy]:
            connection.close()
        self._idle.clear()

    async def _once(self, request: Request) -> Answer:
        async with self._enter_loop():
            if self._closed:
                raise OnwardUnavailable("the client is closed", sent=False)
            connection = self._idle.pop() if self._idle else AsyncConnection(self.address, self._tls)
            self._busy.add(connection)
            timeout = request.wait + self.timeout
            try:
                head = await connection.exchange(request, timeout)
                content = await connection.body(head, timeout)
            except BaseException:  # also a cancellation: the response may still arrive, so nothing may follow it
                connection.close()
                raise
            finally:
                self._busy.discard(connection)
            if self._closed or len(self._idle) >= IDLE_MAX:
                connection.close()
            else:
                self._idle.append(connection)
            return understood(head.status, content, head.headers.get("retry-after"))

    def _enter_loop(self) -> asyncio.Semaphore:
        """Connections belong to one event loop: a program that starts another one gets new connections."""
        loop = asyncio.get_running_loop()
        if self._free is None or self._loop is not loop:
            for connection in self._idle:
                connection.close()
            self._loop, self._idle, self._busy = loop, [], set()
            self._free = asyncio.Semaphore(self.connections)
        return self._free


def _abandon(opening: "asyncio.Task[Tuple[asyncio.StreamReader, asyncio.StreamWriter]]") -> None:
    """Nothing waits for this connection any more; close it if it opens all the same."""

    def close(task: "asyncio.Task[Tuple[asyncio.StreamReader, asyncio.StreamWriter]]") -> None:
        if not task.cancelled() and task.exception() is None:
            task.result()[1].transport.abort()

    opening.cancel()
    opening.add_done_callback(close)


async def _read_head(reader: asyncio.StreamReader) -> Head:
    """The next final head; skips those of status 1xx."""
    while True:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *others = text.split("\r\n")
        version, status = first.split(" ", 2)[:2]
        if not version.startswith("HTTP/1."):
            raise ValueError(f"not HTTP/1.1: {first[:80]!r}")
        split = (line.partition(":") for line in others if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in split}
        if int(status) >= 200:
            is_last = version == "HTTP/1.0" or "close" in headers.get("connection", "").lower()
            return Head(int(status), headers, is_last)
