"""A server in this process that implements docs/reference/workers.md, for tests without the binary.

It stores nothing and decides little. Unlike the real server it can inject faults: `break_next(n)` cuts connections, `refuse`
returns a given error, `down` and `up` stop and start it on the same port. `calls` records all requests.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Callable, Dict, List, Optional, Tuple
from urllib.parse import parse_qs, urlsplit

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
ENDS = ("succeeded", "failed", "cancelled")


def seconds(text: Any) -> float:
    if isinstance(text, (int, float)):
        return float(text)
    unit = "ms" if text.endswith("ms") else text[-1]
    return int(text[: -len(unit)]) * UNITS[unit]


class Refused(Exception):
    def __init__(self, status: int, code: str, message: str = "no", **more: Any) -> None:
        super().__init__(code)
        self.status = status
        self.error = {"code": code, "message": message, **more}


class Fake:
    """Starts when it is created; `with Fake() as fake:` stops it."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.tasks: Dict[str, Dict[str, Any]] = {}
        self.calls: List[Tuple[str, str, Any]] = []
        self.headers: List[Dict[str, str]] = []
        self.refuse: Callable[[str, str, Any], Optional[Refused]] = lambda method, path, body: None
        self.stream: List[str] = []
        self.is_hasty = False  # answers every claim at once
        self._breaks = 0
        self._break_after = True
        self._server: Optional[ThreadingHTTPServer] = None
        self._port = 0
        self._links: List[Any] = []
        self.up()

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def up(self) -> None:
        fake = self

        class Handler(_Handler):
            owner = fake

        ThreadingHTTPServer.allow_reuse_address = True
        ThreadingHTTPServer.daemon_threads = True
        ThreadingHTTPServer.request_queue_size = 128
        self._server = ThreadingHTTPServer(("127.0.0.1", self._port), Handler)
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def down(self) -> None:
        """Like `kill -9`: every connection breaks."""
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        with self.lock:
            links, self._links = self._links, []
        for link in links:
            try:
                link.shutdown(2)
            except OSError:
                pass

    def break_next(self, count: int, after: bool = True) -> None:
        """Cuts the next connections: after the request was executed, or before."""
        with self.lock:
            self._breaks, self._break_after = count, after

    def add(self, type: str, payload: Any = None, **more: Any) -> str:
        with self.lock:
            return self._add({"type": type, "payload": payload, **more})[0]["id"]

    def cancel(self, id: str) -> None:
        with self.lock:
            self._cancel(id)

    def until(self, is_so: Callable[[], Any], within: float = 10.0) -> Any:
        """Waits until a condition holds, and returns its value."""
        deadline = time.monotonic() + within
        with self.lock:
            while True:
                found = is_so()
                if found:
                    return found
                if time.monotonic() > deadline:
                    raise AssertionError(f"not so after {within} s: {json.dumps(list(self.tasks.values()), default=str)[:2000]}")
                self.lock.wait(0.05)

    def ended(self, id: str, within: float = 10.0) -> Dict[str, Any]:
        self.until(lambda: self.tasks[id]["status"] in ENDS, within)
        return self.tasks[id]

    def works(self) -> List[Any]:
        """Bodies of all `/work` calls so far."""
        return [body for _, path, body in list(self.calls) if path == "/work"]

    # Routes. All are called with the lock held.

    def answer(self, method: str, path: str, query: Dict[str, str], body: Any, is_gone: Callable[[], bool]) -> Tuple[int, Any]:
        parts = path.strip("/").split("/")
        if path == "/tasks" and method == "POST":
            if isinstance(body, list):
                pairs = [self._add(each) for each in body]
                return 201, {"data": [self._submitted(*pair) for pair in pairs]}
            task, is_new = self._add(body)
            return (201 if is_new else 200), {"data": self._submitted(task, is_new)}
        if path == "/work":
            return 200, {"data": self._work(body, is_gone)}
        if parts[0] == "workflows" and parts[-1] == "trigger":
            return 201, {"data": {"run_id": "run_1", "status": "running"}}
        if parts[0] == "runs":
            return self._run(method, parts, body)
        if parts[0] == "tasks" and len(parts) >= 2:
            task = self.tasks.get(parts[1])
            if task is None:
                raise Refused(404, "not_found", f"no task `{parts[1]}`")
            return self._task(task, method, parts[2:], query, body)
        raise Refused(404, "unknown_route", f"no route {method} {path}")

    def _task(self, task: Dict[str, Any], method: str, rest: List[str], query: Dict[str, str], body: Any) -> Tuple[int, Any]:
        if method == "GET" and not rest:
            deadline = time.monotonic() + seconds(query.get("wait", "0s"))
            while task["status"] not in ENDS and time.monotonic() < deadline:
                self.lock.wait(deadline - time.monotonic())
            return 200, {"data": {name: value for name, value in task.items() if not name.startswith("_")}}
        if rest == ["events"]:
            begin, limit = int(query.get("cursor", 0)), int(query.get("limit", 50))
            page = task["_events"][begin : begin + limit]
            more = begin + limit < len(task["_events"])
            return 200, {"data": page, "next": str(begin + limit) if more else None}
        if rest == ["cancel"]:
            if task["status"] in ("succeeded", "failed"):
                raise Refused(409, "run_ended")
            self._cancel(task["id"])
            return 200, {"data": {"id": task["id"], "status": "cancelled"}}
        if rest == ["retry"]:
            new, _ = self._add({"type": task["type"], "payload": task["input"]})
            return 201, {"data": {"task_id": new["id"], "run_id": new["run_id"], "replayed_from": task["run_id"]}}
        if rest == ["logs"]:
            if body["claim_token"] != task["_token"]:
                raise Refused(409, "stale_claim")
            if not 1 <= len(body["lines"]) <= 100 or any(len(line["message"].encode()) > 4_096 for line in body["lines"]):
                raise Refused(422, "invalid_body", "at most 100 lines of 4 KB")
            self._event(task, "step.log", {"lines": body["lines"]})
            return 200, {"data": {"task_id": task["id"], "status": "recorded"}}
        raise Refused(404, "unknown_route")

    def _run(self, method: str, parts: List[str], body: Any) -> Tuple[int, Any]:
        if parts[2:] == ["explain"]:
            return 200, {"data": {"run_id": parts[1], "reason": "waiting_for_worker"}}
        if len(parts) == 2:
            return 200, {"data": {"id": parts[1], "status": "completed", "output": {"n": 1}, "tasks": {}}}
        raise Refused(404, "unknown_route", "no such route")

    def _add(self, body: Dict[str, Any]) -> Tuple[Dict[str, Any], bool]:
        key = body.get("idempotency_key")
        for task in self.tasks.values():
            if key and task["_key"] == (body["type"], key):
                return task, False
        number = len(self.tasks) + 1
        task = {
            "id": f"task_{number:06}",
            "run_id": f"run_{number:06}",
            "step": "task",
            "type": body["type"],
            "status": "pending",
            "input": body.get("payload"),
            "result": None,
            "error": None,
            "attempt": 0,
            "max_attempts": body.get("max_attempts", 3),
            "progress": None,
            "labels": body.get("labels", {}),
            "_key": (body["type"], key),
            "_token": None,
            "_said": {},
            "_due": time.monotonic(),
            "_until": 0.0,
            "_worker": None,
            "_cancels": set(),
            "_events": [],
            "_grants": 0,
            "_retry": body.get("retry_in", 0.05),
        }
        self.tasks[task["id"]] = task
        self._event(task, "run.created", {})
        self.lock.notify_all()
        return task, True

    def _submitted(self, task: Dict[str, Any], is_new: bool) -> Dict[str, Any]:
        return {"task_id": task["id"], "run_id": task["run_id"], "status": task["status"], "deduplicated": not is_new}

    def _event(self, task: Dict[str, Any], type: str, data: Any) -> None:
        task["_events"].append({"seq": len(task["_events"]) + 1, "at": "2027-01-01T00:00:00Z", "type": type, "data": data})

    def _cancel(self, id: str) -> None:
        task = self.tasks[id]
        if task["status"] == "leased":
            task["_cancels"].add(task["_worker"])
        task["status"] = "cancelled"
        self.lock.notify_all()

    def _work(self, body: Dict[str, Any], is_gone: Callable[[], bool]) -> Dict[str, Any]:
        worker, has_reports = body["worker_id"], bool(body.get("done") or body.get("heartbeats"))
        acks = [self._done(each) for each in body.get("done", [])]
        leases = [self._heartbeat(each) for each in body.get("heartbeats", [])]
        self.lock.notify_all()
        deadline = time.monotonic() + seconds(body.get("wait", "20s"))
        server = self._server
        while True:
            if is_gone():
                raise ConnectionAbortedError("no listener")
            tasks = self._claim(body)
            cancelled = [task for task in self.tasks.values() if worker in task["_cancels"]]
            if has_reports or self.is_hasty or tasks or cancelled or time.monotonic() >= deadline or self._server is not server:
                for task in cancelled:
                    task["_cancels"].discard(worker)
                    leases.append({"task_id": task["id"], "lease_until": None, "cancel": True})
                return {"acks": acks, "leases": leases, "tasks": tasks}
            self.lock.wait(min(0.05, max(0.0, deadline - time.monotonic())))

    def _done(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        task, token = self.tasks[entry["task_id"]], entry["claim_token"]
        content = json.dumps({name: entry[name] for name in sorted(entry)})
        if token in task["_said"]:
            status = "recorded" if task["_said"][token] == content else "stale_claim"
        elif task["status"] == "cancelled":
            status = "cancelled"
        elif token != task["_token"]:
            status = "stale_claim"
        else:
            status = "recorded"
            task["_said"][token] = content
            task["_token"] = None
            self._end_attempt(task, entry)
        return {"task_id": task["id"], "status": status}

    def _end_attempt(self, task: Dict[str, Any], entry: Dict[str, Any]) -> None:
        now = time.monotonic()
        if "snooze" in entry:
            task.update(status="pending", attempt=task["attempt"] - 1, _due=now + seconds(entry["snooze"]))
        elif "error" in entry:
            over = entry.get("final") or task["attempt"] >= task["max_attempts"]
            after = seconds(entry["retry_after"]) if "retry_after" in entry else task["_retry"]
            task.update(status="failed" if over else "pending", error=entry["error"], _due=now + after)
        else:
            task.update(status="succeeded", result=entry.get("result"))

    def _heartbeat(self, entry: Dict[str, Any]) -> Dict[str, Any]:
        task = self.tasks[entry["task_id"]]
        if task["status"] != "leased" or task["_token"] != entry["claim_token"]:
            return {"task_id": task["id"], "lease_until": None, "cancel": task["status"] == "cancelled"}
        if "progress" in entry:
            task["progress"] = entry["progress"]
        task["_until"] = time.monotonic() + task["_lease"]
        return {"task_id": task["id"], "lease_until": "2027-01-01T00:00:30Z", "cancel": False}

    def _claim(self, body: Dict[str, Any]) -> List[Dict[str, Any]]:
        now, given = time.monotonic(), []
        for task in self.tasks.values():
            if task["status"] == "leased" and task["_until"] < now:
                task.update(status="pending", _token=None, _due=now)
        for task in self.tasks.values():
            if len(given) == body.get("credits", 0):
                break
            if task["status"] != "pending" or task["_due"] > now or not any(_fits(task["type"], t) for t in body["types"]):
                continue
            task["attempt"] += 1
            task["_grants"] += 1
            token = f"{task['id']}-{task['_grants']}"
            lease = seconds(body["lease"])
            task.update(status="leased", _token=token, _worker=body["worker_id"], _lease=lease, _until=now + lease)
            item = {name: task[name] for name in ("type", "input", "attempt", "max_attempts", "run_id", "step", "progress")}
            item.update(task_id=task["id"], claim_token=token, lease_ms=lease * 1000, lease_until="2027-01-01T00:00:30Z")
            item.update(workflow=None, idempotency_key=f"{task['run_id']}:task")
            given.append(item)
        return given


def _fits(type: str, pattern: str) -> bool:
    return type.startswith(pattern[:-1]) if pattern.endswith("%") else type == pattern


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: Fake

    def setup(self) -> None:
        self.disable_nagle_algorithm = True
        super().setup()
        with self.owner.lock:
            self.owner._links.append(self.connection)

    def _serve(self) -> None:
        fake, split = self.owner, urlsplit(self.path)
        path = split.path[len("/api/v1") :]
        query = {name: values[-1] for name, values in parse_qs(split.query).items()}
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        with fake.lock:
            fake.calls.append((self.command, path + ("?" + split.query if split.query else ""), body))
            fake.headers.append(dict(self.headers))
            breaks = fake._breaks > 0
            fake._breaks -= breaks
            if breaks and not fake._break_after:
                self.close_connection = True
                return
            if path.endswith("/stream"):
                return self._stream(fake.stream)
            try:
                refusal = fake.refuse(self.command, path, body)
                if refusal is not None:
                    raise refusal
                status, document = fake.answer(self.command, path, query, body, self._is_gone)
            except Refused as refusal:
                status, document = refusal.status, {"error": refusal.error}
        if breaks:
            self.close_connection = True
            return
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _is_gone(self) -> bool:
        try:
            return self.connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return False

    def _stream(self, lines: List[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for line in lines:
            self.wfile.write(line.encode() + b"\n")
        self.wfile.flush()
        self.close_connection = True

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def handle(self) -> None:
        try:
            super().handle()
        except (OSError, ValueError):
            pass  # the client disconnected, perhaps in the middle of a request

    def log_message(self, *_: object) -> None:
        pass
