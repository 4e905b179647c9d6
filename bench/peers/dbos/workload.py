"""DBOS for Python: one workload, one line of JSON.

    python workload.py <workload> <seconds> <system database url>

Workflows and steps are plain functions, called directly: no queue, because a queue polls. One thread
drives SQLite, which takes one writer at a time and was no faster with eight; sixteen drive Postgres.
SQLite is switched to its write-ahead log, which DBOS leaves off and which makes it about three times
faster here; `synchronous` stays FULL, SQLite's default.
"""

import asyncio
import json
import sqlite3
import sys
import threading
import time

from dbos import DBOS

FANOUT = 1_000
workload, seconds, url = sys.argv[1], float(sys.argv[2]), sys.argv[3]
store = "sqlite" if url.startswith("sqlite") else "postgres"
threads_max = 1 if store == "sqlite" or not workload.startswith("flow") else 16


@DBOS.step()
def noop(number):
    return number


@DBOS.step()
async def noop_async(number):
    return number


@DBOS.workflow()
def chain(steps):
    for number in range(steps):
        noop(number)
    return steps


@DBOS.workflow()
async def fanout(steps):
    return len(await asyncio.gather(*(noop_async(number) for number in range(steps))))


def run_in_sequence(call, expected, until, samples):
    """One run after the other until the window closes; returns the milliseconds of each."""
    while time.monotonic() < until:
        started = time.monotonic()
        if call(expected) != expected:
            raise RuntimeError("a workflow returned something else")
        samples.append((time.monotonic() - started) * 1_000)


def drive(call, expected):
    samples, failures = [], []

    def guarded():
        try:
            run_in_sequence(call, expected, began + seconds, samples)
        except Exception as error:
            failures.append(error)

    began = time.monotonic()
    threads = [threading.Thread(target=guarded) for _ in range(threads_max)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return samples, time.monotonic() - began


def all_succeeded(expected):
    rows = DBOS.list_workflows(load_input=False, load_output=False, limit=expected + 1)
    return len(rows) == expected and all(row.status == "SUCCESS" for row in rows)


if store == "sqlite":
    file = sqlite3.connect(url.removeprefix("sqlite:///"))
    file.execute("PRAGMA journal_mode = WAL")
    file.close()
DBOS(config={"name": "bench", "system_database_url": url, "log_level": "WARNING"})
DBOS.launch()

loop = asyncio.new_event_loop()  # one loop for all asynchronous calls: DBOS remembers the first
if workload == "fanout":
    steps, warm, elapsed, samples = FANOUT, 0, None, []
    run_in_sequence(lambda steps: loop.run_until_complete(fanout(steps)), steps, time.monotonic() + seconds, samples)
else:
    steps, warm = int(workload.removeprefix("flow").removeprefix("latency")), 1
    chain(steps)
    samples, elapsed = drive(chain, steps)

samples.sort()
rate, unit = None, None
if workload.startswith("flow"):
    rate, unit = len(samples) * steps / elapsed, "runs/s" if steps == 1 else "steps/s"


def share(part):
    return samples[min(int(len(samples) * part), len(samples) - 1)]


print(json.dumps({
    "workload": workload, "store": store, "rate_per_s": rate, "unit": unit,
    "p50_ms": share(0.50), "p95_ms": share(0.95), "p99_ms": share(0.99),
    "ok": all_succeeded(len(samples) + warm),
}))
DBOS.destroy()
