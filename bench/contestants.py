"""The systems in the comparison: how each is installed, started, measured and stopped.

A contestant has a `name`, its configuration in `settings`, and in `workloads` the workloads it runs and in how many turns.
It has two methods. `prepare` installs it once and returns its version. `measure` runs one turn on fresh data in its own
folder and returns the objects that its workload program printed, one per figure. Both raise `Unavailable` with the reason
and leave nothing else behind.
"""

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path

from postgres import Postgres
from tools import INSTALL_PATIENCE, Unavailable, figures, free_port, need_node, npm, npm_machine, run, say, started, wait_for

BENCH = Path(__file__).resolve().parent
PEERS = BENCH / ".peers"
RUNS = {name: [name] for name in ("flow1", "flow10", "latency1", "latency10", "fanout")}
QUEUE = ["queue_enqueue_1", "queue_enqueue_64", "queue_bulk", "queue_drain"]


class Onward:
    name, settings = "us", "in process, SQLite with synchronous=FULL, 256 runs in flight in flow1 and flow10"
    workloads = {**RUNS, "queue": ["queue"]}  # all of QUEUE in one turn

    def __init__(self, binary):
        self.binary = binary

    def prepare(self):
        return run([self.binary, "--version"], 30).split()[-1]

    def measure(self, workload, seconds, folder):
        known = run([self.binary, "bench", "--help"], 30)
        if not re.search(rf"(- |, |: ){workload}\b", known):
            raise Unavailable(f"this onward has no workload `{workload}` in `onward bench`: give a newer one")
        command = [self.binary, "bench", workload, "--seconds", seconds, "--json", "--data", folder]
        return figures(command, seconds, windows=12 * len(QUEUE) if workload == "queue" else 3)


class OnwardOverHttp(Onward):
    name, settings = "us-http", "`onward dev`, SQLite with synchronous=FULL, 256 HTTP calls in flight in flow1 and flow10"
    workloads = RUNS
    step = "noop"

    def prepare(self):
        need_node()
        return super().prepare()

    def measure(self, workload, seconds, folder):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [self.binary, "dev", "--listen", f"127.0.0.1:{port}", "--data", folder / "data"]
        with started(command, folder / "log", env={"ONWARD_LOG": "warn"}) as server:
            wait_for(f"{url}/readyz", server, folder / "log")
            with self.worker(url, folder):
                return figures(["node", BENCH / "peers/onward/workload.mjs", workload, seconds, url, self.step], seconds)

    def worker(self, url, folder):
        return contextlib.nullcontext()


class OnwardWithWorker(OnwardOverHttp):
    name = "us-external"
    settings = f"{OnwardOverHttp.settings}; every step is a task of one Node worker over `POST /work`"
    step = "task"

    def worker(self, url, folder):
        return started(["node", BENCH / "peers/onward/worker.mjs", url], folder / "worker.log")


class DbosOnSqlite:
    name, settings = "dbos-sqlite", "in process, SQLite with WAL and synchronous=FULL, 1 thread"
    workloads = RUNS
    python = PEERS / "dbos/bin/python"

    def prepare(self):
        if not self.python.exists():
            say("installing dbos (pip)")
            try:
                run([sys.executable, "-m", "venv", "--clear", PEERS / "dbos"], INSTALL_PATIENCE)
                run([self.python, "-m", "pip", "install", "--quiet", "dbos"], INSTALL_PATIENCE)
            except Unavailable:
                shutil.rmtree(PEERS / "dbos", ignore_errors=True)  # do not reuse a partial installation
                raise
        return run([self.python, "-c", "import importlib.metadata as m; print(m.version('dbos'))"], 60)

    def measure(self, workload, seconds, folder):
        return self.measure_on(f"sqlite:///{folder / 'dbos.db'}", workload, seconds)

    def measure_on(self, url, workload, seconds):
        return figures([self.python, BENCH / "peers/dbos/workload.py", workload, seconds, url], seconds)


class DbosOnPostgres(DbosOnSqlite):
    name, settings = "dbos-postgres", f"in process, {Postgres.settings}, 16 threads in flow1 and flow10"

    def prepare(self):
        self.postgres = Postgres()
        return f"{super().prepare()} on Postgres {self.postgres.version}"

    def measure(self, workload, seconds, folder):
        with self.postgres.cluster(folder) as server:
            return self.measure_on(f"{server}/bench", workload, seconds)


class Restate:
    name, settings = "restate", "one node, log fsynced, 4 partitions, Node service, 256 HTTP calls in flight in flow1 and flow10"
    workloads = RUNS
    modules = PEERS / "restate/node_modules"

    def prepare(self):
        need_node()
        machine = npm_machine()
        self.server = self.modules / f"@restatedev/restate-server-{sys.platform}-{machine}/bin/restate-server"
        if not self.server.exists() or not (self.modules / "@restatedev/restate-sdk").exists():
            say("installing @restatedev/restate-server and @restatedev/restate-sdk (npm)")
            npm(self.modules.parent, "install", "@restatedev/restate-server", "@restatedev/restate-sdk")
        if not self.server.exists():
            raise Unavailable(f"the package has no server for {sys.platform} on {machine}")
        return run([self.server, "--version"], 30).split()[-1]

    def measure(self, workload, seconds, folder):
        ingress, admin, node, service = (free_port() for _ in range(4))
        # Node resolves packages relative to the program, so copy the program beside the packages.
        program = self.modules.parent / "service.mjs"
        shutil.copyfile(BENCH / "peers/restate/service.mjs", program)
        ports = {
            "RESTATE_BIND_PORT": node, "RESTATE_INGRESS__BIND_PORT": ingress, "RESTATE_ADMIN__BIND_PORT": admin,
            "RESTATE_BASE_DIR": folder / "data",
        }
        quiet = {"PORT": service, "NODE_ENV": "production", "RESTATE_LOGGING": "ERROR"}
        config = BENCH / "peers/restate/restate.toml"
        with contextlib.ExitStack() as stack:
            stack.enter_context(started(["node", program], folder / "service.log", env=quiet))
            command = [self.server, "--no-logo", "--config-file", config]
            server = stack.enter_context(started(command, folder / "log", env=ports))
            wait_for(f"http://127.0.0.1:{admin}/health", server, folder / "log")
            wait_for(f"http://127.0.0.1:{ingress}/restate/health", server, folder / "log")
            urls = [f"http://127.0.0.1:{port}" for port in (ingress, admin, service)]
            return figures(["node", BENCH / "peers/restate/workload.mjs", workload, seconds, *urls], seconds)


class QueueOnPostgres:
    """A job queue for Node. `peers/queue` pins its version and that of Node, because it needs a recent Node."""

    workloads = {"queue": QUEUE}  # a new database for each figure, so that old data does not slow the next one
    source, home = BENCH / "peers/queue", PEERS / "queue"

    def prepare(self):
        self.postgres = Postgres()
        self.install()
        pinned = self.home / f"node_modules/node-{sys.platform}-{npm_machine()}/bin/node"
        self.node = pinned if pinned.exists() else need_node("22.18")
        package = json.loads((self.home / "node_modules" / self.name / "package.json").read_text())
        node = run([self.node, "--version"], 30).lstrip("v")
        return f"{package['version']} on Postgres {self.postgres.version}, Node {node}"

    def install(self):
        lock, installed = (self.source / "package-lock.json").read_text(), self.home / "installed.json"
        if not installed.exists() or installed.read_text() != lock:
            say("installing graphile-worker and pg-boss (npm)")
            shutil.rmtree(self.home, ignore_errors=True)
            self.home.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copyfile(self.source / name, self.home / name)
            npm(self.home, "ci")
            installed.write_text(lock)
        # Node resolves packages relative to the program, so copy the program beside the packages.
        for program in self.source.glob("*.mjs"):
            shutil.copyfile(program, self.home / program.name)

    def measure(self, figure, seconds, folder):
        with self.postgres.cluster(folder) as server:
            command = [self.node, self.home / "workload.mjs", self.name, figure, seconds, f"{server}/postgres"]
            return figures(command, seconds, windows=12)


class GraphileWorker(QueueOnPostgres):
    name = "graphile-worker"
    settings = f"{Postgres.settings}; a connection a client; drain: 24 jobs at once, 2,000 fetched ahead, completed in batches"


class PgBoss(QueueOnPostgres):
    name = "pg-boss"
    settings = f"{Postgres.settings}; a connection a client; drain: 2 workers, batches of 1,000, no pause while they are full"
