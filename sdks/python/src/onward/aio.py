"""The client for asyncio programs.

It runs the synchronous client in threads: one implementation of HTTP, retries and idempotency, and no third-party library.
Each call, including `wait`, occupies one of `threads` threads until it returns, so at most that many run at once; further
calls queue. Cancelling a call stops waiting for it; the server may still execute the request.
"""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import Any, Callable, Dict, Iterable, List, Optional, TypeVar, Union

from .client import POLL, Client, Ref, result_of
from .errors import WaitTimeout
from .models import Event, Run, Task
from .times import DurationLike, seconds

T = TypeVar("T")


class AsyncClient:
    """`Client` with coroutines as methods; see `Client` for what each does."""

    def __init__(
        self,
        url: Optional[str] = None,
        api_key: Optional[str] = None,
        *,
        timeout: float = 30.0,
        retries: int = 5,
        threads: int = 32,
    ) -> None:
        self.sync = Client(url, api_key, timeout=timeout, retries=retries)
        self.address = self.sync.address
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="onward-client")

    async def submit(
        self,
        type: str,
        payload: Any = None,
        *,
        priority: Optional[int] = None,
        run_at: Union[str, datetime, None] = None,
        delay: Optional[DurationLike] = None,
        max_attempts: Optional[int] = None,
        retry: Union[str, Dict[str, Any], None] = None,
        timeouts: Optional[Dict[str, DurationLike]] = None,
        concurrency_key: Optional[str] = None,
        labels: Optional[Dict[str, str]] = None,
        idempotency_key: Optional[str] = None,
        callback_url: Optional[str] = None,
    ) -> Task:
        return await self._do(
            self.sync.submit,
            type,
            payload,
            priority=priority,
            run_at=run_at,
            delay=delay,
            max_attempts=max_attempts,
            retry=retry,
            timeouts=timeouts,
            concurrency_key=concurrency_key,
            labels=labels,
            idempotency_key=idempotency_key,
            callback_url=callback_url,
        )

    async def submit_many(self, tasks: Iterable[Dict[str, Any]]) -> List[Task]:
        return await self._do(self.sync.submit_many, tasks)

    async def trigger(
        self,
        workflow: str,
        body: Any = None,
        *,
        wait: Optional[DurationLike] = None,
        idempotency_key: Optional[str] = None,
        labels: Optional[Dict[str, str]] = None,
    ) -> Run:
        return await self._do(
            self.sync.trigger, workflow, body, wait=wait, idempotency_key=idempotency_key, labels=labels
        )

    async def get(self, ref: Ref) -> Union[Task, Run]:
        return await self._do(self.sync.get, ref)

    async def wait(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Union[Task, Run]:
        # In short turns, so that a cancelled wait releases its thread at the end of a turn.
        deadline = None if timeout is None else time.monotonic() + seconds(timeout)
        while True:
            left = POLL if deadline is None else max(0.0, min(POLL, deadline - time.monotonic()))
            latest = await self._do(self.sync.wait_once, ref, left)
            if latest.ended:
                return latest
            if deadline is not None and time.monotonic() >= deadline:
                raise WaitTimeout(latest)

    async def result(self, ref: Ref, timeout: Optional[DurationLike] = None) -> Any:
        return result_of(await self.wait(ref, timeout))

    async def events(self, ref: Ref) -> List[Event]:
        """All events, as a list."""
        return await self._do(lambda: list(self.sync.events(ref)))

    async def cancel(self, ref: Ref, reason: Optional[str] = None) -> Union[Task, Run]:
        return await self._do(self.sync.cancel, ref, reason)

    async def retry(self, ref: Ref) -> Union[Task, Run]:
        return await self._do(self.sync.retry, ref)

    async def signal(self, run: Ref, name: str, payload: Any = None) -> Any:
        return await self._do(self.sync.signal, run, name, payload)

    async def explain(self, ref: Ref, step: Optional[str] = None) -> Dict[str, Any]:
        return await self._do(self.sync.explain, ref, step)

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        return await self._do(self.sync.request, method, path, body)

    async def close(self) -> None:
        self.sync.close()
        self._threads.shutdown(wait=False)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _do(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        call = functools.partial(function, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call)
