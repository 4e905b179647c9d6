"""Requests and responses, without any I/O: what both clients send, how they read answers, and when they try again.

    Request     one HTTP request below `/api/v1`
    Steps       an operation as a generator: it yields `Request` and `Sleep`, is sent each `Answer`, and returns its value
    attempts    one request with its retries, as steps
    understood  the answer of a response, or the error that it carries

The synchronous client and the asyncio client perform the same steps with their own transports (`drive`, `drive_async`), so
that every rule stands here once.

The rule for retries: a request that was never sent (no connection) can always be sent again; one that may have arrived only
if it is idempotent. Delays grow and are random ("full jitter"), so that a thousand clients do not reconnect to a restarted
server all at once.
"""

from __future__ import annotations

import json
import os
import random
from dataclasses import dataclass, field
from typing import Any, Awaitable, Callable, Dict, Generator, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union
from urllib.parse import urlencode, urlsplit

from .errors import OnwardError, OnwardUnavailable
from .values import encode

DEFAULT_URL = "http://127.0.0.1:7420"
CONNECT_TIMEOUT = 10.0
PAUSE_FIRST = 0.1
PAUSE_MAX = 5.0
RETRY_AFTER_MAX = 30.0
AGENT = "onward-python/0.1.0"

T = TypeVar("T")
Query = Sequence[Tuple[str, str]]


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

    def target(self, request: "Request") -> str:
        """The path and query of the request line."""
        return self.prefix + request.path + (f"?{urlencode(request.query)}" if request.query else "")

    def headers(self, request: "Request") -> Dict[str, str]:
        """All headers except `Host` and `Content-Length`."""
        headers = {"Accept": "application/json", "User-Agent": AGENT, **request.headers}
        if request.content is not None:
            headers["Content-Type"] = request.media
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        for name, value in headers.items():
            if not value.isascii() or not value.isprintable():
                raise ValueError(f"the header `{name}` must be printable ASCII, not {value!r}")
        return headers


@dataclass(frozen=True)
class Request:
    """One request. `wait` is how long the server is asked to hold it; the client's timeout comes on top."""

    method: str
    path: str
    content: Optional[bytes] = None
    media: str = "application/json"
    query: Query = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    wait: float = 0.0
    repeatable: bool = True

    def __post_init__(self) -> None:
        if not self.path.startswith("/") or not self.path.isascii() or not self.path.isprintable() or " " in self.path:
            raise ValueError(f"`{self.path}` is not a path: begin with `/` and percent-encode other characters")


class Sleep(NamedTuple):
    """A step that waits."""

    seconds: float


class Answer(NamedTuple):
    """A successful response."""

    status: int
    document: Dict[str, Any]

    @property
    def data(self) -> Any:
        return self.document.get("data")


Steps = Generator[Union[Request, Sleep], Any, T]


def send(
    method: str,
    path: str,
    body: Any = None,
    *,
    query: Query = (),
    key: Optional[str] = None,
    wait: float = 0.0,
    repeatable: bool = True,
) -> Steps[Answer]:
    """The step of one request with a JSON body; `None` is no body. `key` is its idempotency key."""
    content = None if body is None else encode(body)
    headers = {} if key is None else {"Idempotency-Key": key}
    answer: Answer = yield Request(method, path, content, query=query, headers=headers, wait=wait, repeatable=repeatable)
    return answer


def attempts(request: Request, retries: int, is_closed: Callable[[], bool]) -> Steps[Answer]:
    """One request, sent again where that is safe."""
    may_be_done = False
    for attempt in range(retries + 1):
        try:
            answer: Answer = yield request
            return answer
        except OnwardError as problem:
            if may_be_done and request.method == "DELETE" and problem.status == 404:
                return Answer(204, {})  # an earlier attempt deleted it, and its answer was lost
            is_lost = isinstance(problem, OnwardUnavailable) and problem.sent
            may_be_done = may_be_done or is_lost or problem.code == "outcome_unknown"
            if attempt == retries or is_closed() or not may_repeat(problem, request.repeatable):
                raise
            delay = pause(attempt, problem)
        yield Sleep(delay)
    raise AssertionError("the last attempt returns or raises")


def drive(steps: Steps[T], perform: Callable[[Request], Answer], sleep: Callable[[float], None]) -> T:
    """Performs the steps one after the other."""
    answer: Optional[Answer] = None
    problem: Optional[OnwardError] = None
    while True:
        try:
            step = steps.send(answer) if problem is None else steps.throw(problem)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = problem = None
        if isinstance(step, Sleep):
            sleep(step.seconds)
            continue
        try:
            answer = perform(step)
        except OnwardError as raised:
            problem = raised


async def drive_async(
    steps: Steps[T], perform: Callable[[Request], Awaitable[Answer]], sleep: Callable[[float], Awaitable[None]]
) -> T:
    """The same with coroutines. A cancellation ends it wherever it waits."""
    answer: Optional[Answer] = None
    problem: Optional[OnwardError] = None
    while True:
        try:
            step = steps.send(answer) if problem is None else steps.throw(problem)
        except StopIteration as end:
            value: T = end.value
            return value
        answer = problem = None
        if isinstance(step, Sleep):
            await sleep(step.seconds)
            continue
        try:
            answer = await perform(step)
        except OnwardError as raised:
            problem = raised


def understood(status: int, content: bytes, retry_after: Optional[str]) -> Answer:
    """Returns the response, or raises the error it carries."""
    try:
        document = json.loads(content) if content else {}
    except (ValueError, RecursionError):
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


def may_repeat(problem: OnwardError, repeatable: bool) -> bool:
    if isinstance(problem, OnwardUnavailable):
        return repeatable or not problem.sent
    if problem.status == 503:  # nothing was changed, unless it says so
        return repeatable or problem.code != "outcome_unknown"
    return problem.status == 429 and (problem.retry_after or 0.0) <= RETRY_AFTER_MAX
