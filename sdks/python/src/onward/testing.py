"""For tests: a real server, a worker beside the test, and a context to call a handler with.

    from onward.testing import Server

    with Server() as server, server.running(worker):
        task = server.client().submit("billing.invoice.v1", {"order": 7})
        assert server.client().result(task, timeout="5s") == {"invoice": 4207}

The server is the real binary (`onward dev`) with its data in a folder that is removed afterwards. With `clock="virtual"`
the test moves its time, so an hour of backoff takes milliseconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional

from .client import Client
from .times import DurationLike, duration
from .worker import Context, Worker

READY = re.compile(rb"onward ready (http://\S+)")


class Server:
    """An `onward dev` server on a free port. `binary` defaults to `ONWARD_BINARY`, else `onward` on the path."""

    def __init__(self, binary: Optional[str] = None, *, clock: str = "real", arguments: Optional[List[str]] = None) -> None:
        found = binary or os.environ.get("ONWARD_BINARY") or shutil.which("onward")
        if not found:
            raise FileNotFoundError("there is no `onward` on the path; set `ONWARD_BINARY` or give `binary`")
        self.binary = found
        self.clock = clock
        self.arguments = arguments or []
        self.folder = Path(tempfile.mkdtemp(prefix="onward-test-"))
        self.url = ""
        self._process: Optional["subprocess.Popen[bytes]"] = None
        self._clients: List[Client] = []

    def __enter__(self) -> "Server":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def client(self) -> Client:
        """A client of this server; closed with it."""
        client = Client(self.url)
        self._clients.append(client)
        return client

    def start(self, within: float = 30.0) -> None:
        """Starts the server and waits until it is ready; after `stop` or `kill`, on the same address and with the same data."""
        listen = self.url.split("//")[-1] or "127.0.0.1:0"
        command = [self.binary, "dev", "--listen", listen, "--data", str(self.folder / "data"), "--clock", self.clock, *self.arguments]
        output = (self.folder / "stdout").open("wb")
        errors = (self.folder / "stderr").open("ab")
        # Environment variables for another server must not reach this one.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_") or name == "ONWARD_LOG"}
        with output, errors:
            self._process = subprocess.Popen(command, stdout=output, stderr=errors, env=environment)
        deadline = time.monotonic() + within
        while time.monotonic() < deadline:
            found = READY.search((self.folder / "stdout").read_bytes())
            if found:
                self.url = found[1].decode()
                return
            if self._process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"the server did not start:\n{self.log()}")

    def stop(self) -> None:
        """Sends SIGTERM and waits for the exit."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """`kill -9`: only acknowledged changes are on disk."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Kills the server and starts it again."""
        self.kill()
        self.start()

    def advance(self, by: DurationLike) -> Dict[str, Any]:
        """Moves a virtual clock; returns when everything that was due has happened."""
        with Client(self.url) as client:
            moved: Dict[str, Any] = client.request("POST", "/dev/clock", {"advance": duration(by)})
        return moved

    def log(self) -> str:
        """The log of the server."""
        path = self.folder / "stderr"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    @contextlib.contextmanager
    def running(self, worker: Worker, *, log_records: bool = False) -> Iterator[Worker]:
        """Runs the worker against this server while the block runs; then stops it as SIGTERM would."""
        with running(worker, self.client(), log_records=log_records):
            yield worker

    def close(self) -> None:
        """Stops the server and removes its data."""
        for client in self._clients:
            client.close()
        self._end(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: int) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait()


@contextlib.contextmanager
def running(worker: Worker, client: Client, *, log_records: bool = False) -> Iterator[Worker]:
    """Runs a worker in its own thread while the block runs; re-raises its exception."""
    raised: List[BaseException] = []
    started = threading.Event()

    async def serve() -> None:
        serving = asyncio.ensure_future(worker.serve(log_records=log_records))
        await asyncio.sleep(0)
        started.set()
        await serving

    def work() -> None:
        try:
            asyncio.run(serve())
        except BaseException as problem:
            raised.append(problem)
        finally:
            started.set()

    before, worker.client = worker.client, client
    thread = threading.Thread(target=work, name="onward-worker", daemon=True)
    thread.start()
    started.wait()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join()
        worker.client = before
    if raised:
        raise raised[0]


class _Quiet:
    """Records what a handler sends through its context."""

    def __init__(self) -> None:
        self.lines: List[str] = []
        self.beats: List[Any] = []

    def beat(self, token: str, progress: Any) -> None:
        self.beats.append(progress)

    def log(self, token: str, line: Dict[str, str]) -> None:
        self.lines.append(line["message"])


def context(**fields: Any) -> Context:
    """A context to call a handler with, without any server: `context(attempt=2, progress={"page": 7})`."""
    task = {"task_id": "task_test", "run_id": "run_test", "type": "test.v1", "attempt": 1, "max_attempts": 3, **fields}
    return Context(task, _Quiet())
