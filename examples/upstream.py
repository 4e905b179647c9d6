#!/usr/bin/env python3
"""A stub for the services that a workflow calls, so that the examples run offline.

    python3 examples/upstream.py [port]          (default 7421, loopback only)

It answers every request with JSON and records it:

    /fail/<anything>            400, or the status that follows: /fail/404/x answers 404
    a body with card=declined   402
    /flaky/<n>/<anything>       503 for the first n attempts of a step, then 200
    /busy/<seconds>/<anything>  429 with Retry-After for the first attempt, then 200
    /slow/<ms>/<anything>       200, after that many milliseconds
    GET /requests               all recorded requests, oldest first
    GET /requests/last?path=/x  the newest request to that path
    DELETE /requests            delete them

Standard library only.
"""

import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

LOCK = threading.Lock()
REQUESTS = []  # newest last, at most KEPT
KEPT = 1000


def answer(path, body, attempt):
    """Status and JSON for a request."""
    parts = path.strip("/").split("/")
    if parts[0] == "fail":
        status = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else 400
        return status, {"error": "told to fail"}
    if parts[0] == "flaky" and len(parts) > 1 and parts[1].isdigit() and attempt <= int(parts[1]):
        return 503, {"error": "not yet"}
    if parts[0] == "busy" and attempt == 1:
        return 429, {"error": "too many requests"}
    if parts[0] == "slow" and len(parts) > 1 and parts[1].isdigit():
        time.sleep(min(int(parts[1]), 10_000) / 1000)
    if isinstance(body, dict) and body.get("card") == "declined":
        return 402, {"error": "card declined"}
    if parts[0] == "charge":
        return 200, {"charged": True, "amount": 4200}
    return 200, {"ok": True, "path": path}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def serve(self):
        url = urlsplit(self.path)
        length = int(self.headers.get("content-length") or 0)
        raw = self.rfile.read(length)
        if url.path.startswith("/requests"):
            return self.ask(url)
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = raw.decode("utf-8", "replace")
        attempt = int(self.headers.get("x-onward-attempt") or 1)
        status, reply = answer(url.path, body, attempt)
        seen = {
            "method": self.command,
            "path": url.path,
            "query": url.query,
            "headers": {name.lower(): value for name, value in self.headers.items()},
            "body": body,
            "status": status,
        }
        with LOCK:
            REQUESTS.append(seen)
            del REQUESTS[:-KEPT]
        print(f"{self.command} {self.path} {json.dumps(body)} -> {status}", file=sys.stderr, flush=True)
        self.reply(status, reply, url.path.split("/")[2] if status == 429 else None)

    def ask(self, url):
        wanted = parse_qs(url.query).get("path", [None])[0]
        with LOCK:
            if self.command == "DELETE":
                REQUESTS.clear()
            found = [r for r in REQUESTS if wanted is None or r["path"] == wanted]
        if url.path == "/requests/last":
            return self.reply(200, found[-1]) if found else self.reply(404, {"error": "no such request yet"})
        return self.reply(200, found)

    def reply(self, status, value, retry_after=None):
        data = (json.dumps(value) + "\n").encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if retry_after:
            self.send_header("retry-after", retry_after)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = serve

    def log_message(self, *_):
        pass


def main():
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 7421
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    print(f"upstream ready http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
