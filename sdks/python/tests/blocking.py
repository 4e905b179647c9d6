"""`Blocking`: an `AsyncClient` that looks like a `Client`, so that one test covers both."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, Iterator

from onward import AsyncClient


class Blocking:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._target: Any = AsyncClient(*args, **kwargs)

    def close(self) -> None:
        self._loop.run_until_complete(self._target.close())
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def __getattr__(self, name: str) -> Any:
        return _Part(self._loop, getattr(self._target, name))


class _Part:
    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self._loop = loop
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return _Part(self._loop, getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        got = self._target(*args, **kwargs)
        if inspect.isawaitable(got):
            return self._loop.run_until_complete(_awaited(got))
        return self._items(got)

    def _items(self, items: Any) -> Iterator[Any]:
        while True:
            try:
                yield self._loop.run_until_complete(items.__anext__())
            except StopAsyncIteration:
                return


async def _awaited(it: Any) -> Any:
    return await it
