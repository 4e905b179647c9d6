"""Fixtures for pytest, which finds this module by itself once the package is installed.

    def test_an_invoice(onward_client, onward_worker):
        onward_worker(worker)
        task = onward_client.submit("billing.invoice.v1", {"id": 7})
        assert onward_client.result(task, timeout="10s") == {"number": "INV-7"}

| fixture | |
|---|---|
| `onward_server` | an `onward.testing.Server`, with no data; the binary is `ONWARD_BINARY`, else `onward` on the path |
| `onward_client` | a `Client` of it |
| `onward_worker` | a function that runs a worker against it until the test has ended |

Each test has a server of its own. With `onward_scope = session` (or `module`, …) in the configuration of pytest, tests share
one and must keep their types and names apart. `onward_clock = virtual` lets tests move time with `onward_server.advance`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Callable, Iterator

import pytest

if TYPE_CHECKING:  # only when a test uses a fixture: this module is loaded with every run of pytest
    from .client import Client
    from .testing import Server
    from .worker import Worker


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("onward_scope", "the scope of the fixture `onward_server`", default="function")
    parser.addini("onward_clock", "the clock of the fixture `onward_server`: `real` or `virtual`", default="real")


def _scope(fixture_name: str, config: pytest.Config) -> Any:
    return config.getini("onward_scope")


@pytest.fixture(scope=_scope)
def onward_server(pytestconfig: pytest.Config) -> "Iterator[Server]":
    """A real server on a free port, stopped and removed afterwards."""
    from .testing import Server

    with Server(clock=pytestconfig.getini("onward_clock")) as server:
        yield server


@pytest.fixture
def onward_client(onward_server: "Server") -> "Iterator[Client]":
    """A client of `onward_server`."""
    with onward_server.client() as client:
        yield client


@pytest.fixture
def onward_worker(onward_server: "Server") -> "Iterator[Callable[[Worker], Worker]]":
    """Call it with a worker: it runs against `onward_server` until the test has ended."""
    with contextlib.ExitStack() as running:
        yield lambda worker: running.enter_context(onward_server.running(worker))
