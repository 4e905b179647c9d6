#!/usr/bin/env python3
"""Checks a worker, in any language, against the cases of `cases.json`, with the real binary.

    run.py [--binary PATH] [--case NAME]... [--verbose] -- COMMAND [ARGUMENT]...

For each case it starts a server and the worker (with the given command and `ONWARD_URL`), submits tasks of the agreed types,
performs the actions of the case, and compares the state that the API returns afterwards. It needs only Python's standard
library and no SDK. Exit codes: 0 all passed, 1 some failed, 2 usage.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Dict, List, Optional

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0}
CASE_SECONDS = 60.0
TASK_FIELDS = ("type", "payload", "retry", "max_attempts", "priority", "timeouts", "labels")


class Failed(Exception):
    """The case failed; the message says what happened instead."""


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)(ms|s|m)", text)
    assert found, f"`{text}` is not a duration"
    return int(found[1]) * UNITS[found[2]]


class Server:
    """The real binary, with data that survives a restart."""

    def __init__(self, binary: str, folder: Path) -> None:
        self.binary, self.folder = binary, folder
        self.url = ""
        self.process: Optional[subprocess.Popen] = None

    def start(self) -> None:
        listen = self.url.split("//")[-1] or "127.0.0.1:0"
        output, errors = self.folder / "server.out", self.folder / "server.log"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONWARD_")}
        with output.open("wb") as out, errors.open("ab") as log:
            command = [self.binary, "dev", "--listen", listen, "--data", str(self.folder / "data")]
            self.process = subprocess.Popen(command, stdout=out, stderr=log, env=environment)
        for _ in range(3000):
            ready = re.search(r"onward ready (\S+)", output.read_text())
            if ready:
                self.url = ready[1]
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise Failed(f"the server did not start:\n{errors.read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request; raises on errors. Retries while the server is starting."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/v1{path}", content, {"Content-Type": "application/json"}, method=method)
        for attempt in range(50):
            try:
                with urllib.request.urlopen(request, timeout=30) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as refusal:
                raise Failed(f"{method} {path}: {refusal.code} {refusal.read().decode()}") from None
            except OSError:
                if attempt == 49:
                    raise
                time.sleep(0.1)


class Worker:
    """The program under test."""

    def __init__(self, command: List[str], folder: Path) -> None:
        self.command, self.folder = command, folder
        self.process: Optional[subprocess.Popen] = None

    def start(self, url: str) -> None:
        with (self.folder / "worker.log").open("ab") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log, env={**os.environ, "ONWARD_URL": url})

    def stop(self, within: float) -> None:
        """Sends SIGTERM; the worker must exit in time and with code 0."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            raise Failed(f"the worker did not end within {within:g} s of SIGTERM") from None
        self.process = None
        if code != 0:
            raise Failed(f"the worker ended with exit code {code} after SIGTERM")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def check(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            raise Failed(f"the worker ended by itself with exit code {self.process.returncode}")


class Case:
    """One running case: its tasks, and the actions on server and worker."""

    def __init__(self, case: Dict[str, Any], server: Server, worker: Worker) -> None:
        self.case, self.server, self.worker = case, server, worker
        self.tasks: Dict[str, Dict[str, Any]] = {}  # by id, as submitted

    def play(self) -> None:
        begun = time.monotonic()
        self.submit(self.case["submit"])
        for step in self.case.get("then", []):
            self.do(step)
        ended = self.until_all_ended(begun + CASE_SECONDS)
        took = time.monotonic() - begun
        for task in ended:
            self.compare(task, took)

    def submit(self, templates: List[Dict[str, Any]]) -> None:
        bodies = []
        for template in templates:
            body = {name: template[name] for name in TASK_FIELDS if name in template}
            if "payload_bytes" in template:
                body["payload"] = {"text": "0123456789" * (template["payload_bytes"] // 10)}
            for n in range(template.get("count", 1)):
                bodies.append(json.loads(json.dumps(body).replace('"{n}"', str(n))))
        for body, made in zip(bodies, self.server.call("POST", "/tasks", bodies)["data"]):
            self.tasks[made["task_id"]] = body

    def do(self, step: Dict[str, Any]) -> None:
        if "until" in step:
            self.until(step["until"], seconds(step.get("within", "30s")))
        elif "check" in step:
            self.until(step["check"], 0.0)
        elif "submit" in step:
            self.submit(step["submit"])
        elif "cancel" in step:
            for id, body in self.tasks.items():
                if body["type"] == step["cancel"]:
                    self.server.call("POST", f"/tasks/{id}/cancel", {})
        elif "pause" in step:
            time.sleep(seconds(step["pause"]))
        elif step.get("server") == "kill":
            self.server.kill()
        elif step.get("server") == "start":
            self.server.start()
        elif step.get("worker") == "stop":
            self.worker.stop(seconds(step["within"]))
        elif step.get("worker") == "start":
            self.worker.start(self.server.url)
        else:
            raise ValueError(f"`{step}` is not a step of a case")

    def until(self, counts: Dict[str, int], within: float) -> None:
        """Waits until this many tasks have each status: exactly 0, or at least the given number."""
        deadline = time.monotonic() + within
        while True:
            seen: Dict[str, int] = {}
            for id in self.tasks:
                status = self.server.call("GET", f"/tasks/{id}")["data"]["status"]
                seen[status] = seen.get(status, 0) + 1
            if all(seen.get(status, 0) >= count if count else seen.get(status, 0) == 0 for status, count in counts.items()):
                return
            if time.monotonic() >= deadline:
                raise Failed(f"expected {counts} within {within:g} s, saw {seen}")
            self.worker.check()
            time.sleep(0.02)

    def until_all_ended(self, deadline: float) -> List[Dict[str, Any]]:
        ended = []
        for id in self.tasks:
            while True:
                task = self.server.call("GET", f"/tasks/{id}?wait=1s")["data"]
                if task["status"] in ("succeeded", "failed", "cancelled"):
                    ended.append(task)
                    break
                self.worker.check()
                if time.monotonic() > deadline:
                    raise Failed(f"`{id}` ({task['type']}) is still `{task['status']}`: {json.dumps(task)[:500]}")
        return ended

    def compare(self, task: Dict[str, Any], took: float) -> None:
        expected = self.case["expect"]
        expected = expected.get(task["type"], expected)
        submitted = self.tasks[task["id"]].get("payload")
        for name in ("status", "attempt", "result", "error"):
            if name not in expected:
                continue
            wanted = submitted if expected[name] == "payload" else expected[name]
            if not _fits(task.get(name), wanted, is_part=name == "error"):
                raise Failed(f"`{name}` of `{task['id']}` should be {_short(wanted)}, is {_short(task.get(name))} ({_short(task.get('error'))})")
        if expected.get("error_contains", "") not in (task.get("error") or {}).get("message", ""):
            raise Failed(f"the error should name `{expected['error_contains']}`: {_short(task['error'])}")
        if "takes" in expected and took < seconds(expected["takes"]):
            raise Failed(f"it took {took:.2f} s, which is less than {expected['takes']}")
        if "events_contain" in expected:
            events = json.dumps(self.server.call("GET", f"/tasks/{task['id']}/events")["data"], ensure_ascii=False)
            if expected["events_contain"] not in events:
                raise Failed(f"no event of `{task['id']}` says `{expected['events_contain']}`: {_short(events)}")


def _fits(value: Any, wanted: Any, is_part: bool) -> bool:
    """Equal; for an error only the named fields are compared."""
    if is_part and isinstance(wanted, dict) and isinstance(value, dict):
        return all(value.get(name) == each for name, each in wanted.items())
    return value == wanted and type(value) is type(wanted)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else text[:297] + "…"


def play(case: Dict[str, Any], binary: str, command: List[str], verbose: bool) -> bool:
    """Each case has its own server and worker, so that a failing case does not affect the next."""
    folder = Path(tempfile.mkdtemp(prefix="onward-conformance-"))
    server, worker = Server(binary, folder), Worker(command, folder)
    begun = time.monotonic()
    try:
        server.start()
        worker.start(server.url)
        Case(case, server, worker).play()
        print(f"ok      {case['name']} ({time.monotonic() - begun:.1f} s)", flush=True)
        return True
    except Failed as failure:
        print(f"FAILED  {case['name']}: {case['about']}\n        {failure}", flush=True)
        log = folder / "worker.log"
        if verbose and log.exists():
            print(log.read_text("utf-8", "replace")[-4000:])
        return False
    finally:
        worker.kill()
        server.kill()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.environ.get("ONWARD_BINARY") or shutil.which("onward"), help="default: ONWARD_BINARY, else `onward` on the path")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--verbose", action="store_true", help="show the output of the worker when a case fails")
    parser.add_argument("command", nargs="+", help="starts the worker under test")
    given = parser.parse_args()
    if not given.binary:
        parser.error("there is no `onward` on the path; give --binary")
    cases = json.loads((Path(__file__).parent / "cases.json").read_text("utf-8"))["cases"]
    unknown = set(given.case or []) - {case["name"] for case in cases}
    if unknown:
        parser.error(f"there is no case `{sorted(unknown)[0]}`")
    chosen = [case for case in cases if not given.case or case["name"] in given.case]
    passed = sum(play(case, given.binary, given.command, given.verbose) for case in chosen)
    print(f"{passed} of {len(chosen)} conformance cases passed")
    return 0 if passed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
