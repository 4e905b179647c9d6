#!/usr/bin/env python3
"""A service that charges once per Idempotency-Key, however often a client repeats the request.

    python3 examples/receiver.py ledger.db [port]     (default 7422, loopback only)

POST / with {"order_id": …, "amount": …}. The service stores the charge and the response together, under the key of the
request. A repeated key gets the stored response. With {"hang_up": true} the service closes the connection after the first
charge, without a response: the worst case, because the client cannot know that the charge happened.
GET / lists the charges. Standard library only.
"""

import json
import sqlite3
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

LEDGER = sqlite3.connect(sys.argv[1])
LEDGER.execute("create table if not exists charges (key text primary key, amount integer, answer text)")


class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        key = self.headers["idempotency-key"]
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"charge": f"ch_{order['order_id']}", "amount": order["amount"]}
        with LEDGER:  # one transaction: either both are there, or neither
            row = (key, order["amount"], json.dumps(answer))
            is_new = LEDGER.execute("insert or ignore into charges values (?, ?, ?)", row).rowcount == 1
        if is_new and order.get("hang_up"):
            return
        (before,) = LEDGER.execute("select answer from charges where key = ?", (key,)).fetchone()
        self.reply(json.loads(before))

    def do_GET(self):
        self.reply([{"key": key, "amount": amount} for key, amount in LEDGER.execute("select key, amount from charges")])

    def reply(self, value):
        data = (json.dumps(value) + "\n").encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    HTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 7422), Handler).serve_forever()
