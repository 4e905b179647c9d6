"""Who takes part in the comparison: how each is installed, started, measured and ended.

A contestant has a `name`, says in `settings` how it was set up, and has two methods. `prepare` installs it and
returns its version, once. `measure` runs one workload on fresh data in a folder of its own and returns the
object that its workload program printed. Either raises `Unavailable` with the reason; nothing else stays
behind, whatever happens: a process is ended by the handle it was started with.
"""

import contextlib
import glob
import json
import os
import platform
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

BENCH = Path(__file__).resolve().parent
PEERS = BENCH / ".peers"
INSTALL_PATIENCE = 600
START_PATIENCE = 60


class Unavailable(Exception):
    """This contestant cannot take part; the text says why."""


class Onward:
    name, settings = "us", "in process, SQLite with synchronous=FULL, 256 runs in flight in flow1 and flow10"

    def __init__(self, binary):
        self.binary = binary

    def prepare(self):
        return run([self.binary, "--version"], 30).split()[-1]

    def measure(self, workload, seconds, folder):
        return figures([self.binary, "bench", workload, "--seconds", seconds, "--json", "--data", folder], seconds)


class OnwardOverHttp(Onward):
    name, settings = "us-http", "`onward dev`, SQLite with synchronous=FULL, 256 HTTP calls in flight in flow1 and flow10"

    def prepare(self):
        need_node()
        return super().prepare()

    def measure(self, workload, seconds, folder):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        command = [self.binary, "dev", "--listen", f"127.0.0.1:{port}", "--data", folder / "data"]
        with started(command, folder / "log", env={"ONWARD_LOG": "warn"}) as server:
            wait_for(f"{url}/readyz", server, folder / "log")
            return figures(["node", BENCH / "peers/onward/workload.mjs", workload, seconds, url], seconds)


class DbosOnSqlite:
    name, settings = "dbos-sqlite", "in process, SQLite with WAL and synchronous=FULL, 1 thread"
    python = PEERS / "dbos/bin/python"

    def prepare(self):
        if not self.python.exists():
            say("installing dbos (pip)")
            try:
                run([sys.executable, "-m", "venv", "--clear", PEERS / "dbos"], INSTALL_PATIENCE)
                run([self.python, "-m", "pip", "install", "--quiet", "dbos"], INSTALL_PATIENCE)
            except Unavailable:
                shutil.rmtree(PEERS / "dbos", ignore_errors=True)  # half an installation must not pass for one
                raise
        return run([self.python, "-c", "import importlib.metadata as m; print(m.version('dbos'))"], 60)

    def measure(self, workload, seconds, folder):
        return self.measure_on(f"sqlite:///{folder / 'dbos.db'}", workload, seconds)

    def measure_on(self, url, workload, seconds):
        return figures([self.python, BENCH / "peers/dbos/workload.py", workload, seconds, url], seconds)


class DbosOnPostgres(DbosOnSqlite):
    name, settings = "dbos-postgres", "in process, Postgres with fsync and synchronous_commit on, 16 threads in flow1 and flow10"

    def prepare(self):
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
        found = shutil.which("initdb", path=os.pathsep.join([*reversed(programs), os.environ.get("PATH", "")]))
        if not found:
            raise Unavailable("no initdb: install the package `postgresql`")
        self.programs = Path(found).parent
        self.user = unprivileged_user()
        server = run([self.programs / "postgres", "--version"], 30).split()[2]
        return f"{super().prepare()} on Postgres {server}"

    def measure(self, workload, seconds, folder):
        with self.cluster(folder) as url:
            return self.measure_on(url, workload, seconds)

    @contextlib.contextmanager
    def cluster(self, folder):
        """A new Postgres on a free port of loopback, with a password nobody else knows."""
        port, password, data = free_port(), secrets.token_hex(16), folder / "postgres"
        data.mkdir(mode=0o700)
        secret = folder / "password"
        secret.write_text(password)
        as_user = {}
        if self.user:
            for path in (data, secret):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)
            as_user = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": [], "cwd": data}
        run([self.programs / "initdb", "-D", data, "-U", "bench", "-A", "scram-sha-256", "--pwfile", secret], 120, **as_user)
        secret.unlink()
        settings = {
            "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": "",
            "fsync": "on", "synchronous_commit": "on", "full_page_writes": "on", "shared_buffers": "256MB",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", data, *options]
        with started(command, folder / "log", stop_with=signal.SIGINT, **as_user) as server:
            is_ready = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port]
            until_ready(lambda: subprocess.run([str(part) for part in is_ready]).returncode == 0, server, folder / "log")
            yield f"postgresql://bench:{password}@127.0.0.1:{port}/bench"


class Restate:
    name, settings = "restate", "one node, log fsynced, 4 partitions, Node service, 256 HTTP calls in flight in flow1 and flow10"
    modules = PEERS / "restate/node_modules"

    def prepare(self):
        need_node()
        machine = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
        self.server = self.modules / f"@restatedev/restate-server-{sys.platform}-{machine}/bin/restate-server"
        if not self.server.exists() or not (self.modules / "@restatedev/restate-sdk").exists():
            say("installing @restatedev/restate-server and @restatedev/restate-sdk (npm)")
            if not shutil.which("npm"):
                raise Unavailable("no npm")
            # Without install scripts: the only one among the dependencies reports the installation to somebody.
            flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
            packages = ["@restatedev/restate-server", "@restatedev/restate-sdk"]
            run(["npm", "install", "--prefix", self.modules.parent, *flags, *packages], INSTALL_PATIENCE)
        if not self.server.exists():
            raise Unavailable(f"the package has no server for {sys.platform} on {machine}")
        return run([self.server, "--version"], 30).split()[-1]

    def measure(self, workload, seconds, folder):
        ingress, admin, node, service = (free_port() for _ in range(4))
        # Node looks for packages beside the program, so a copy of it goes beside the packages.
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


def say(words):
    print(words, file=sys.stderr, flush=True)


def run(command, patience, **options):
    """Runs a program to its end and returns what it printed."""
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience, **options)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{Path(command[0]).name}` took longer than {patience:.0f} s") from None
    except OSError as error:
        raise Unavailable(f"cannot start {command[0]}: {error}") from None
    if done.returncode != 0:
        raise Unavailable(f"`{Path(command[0]).name}` ended with {done.returncode}: {last_words(done.stderr or done.stdout)}")
    return done.stdout.strip()


def figures(command, seconds):
    """The line of JSON that a workload program prints; `onward bench` measures its ceiling in a second window."""
    lines = run(command, patience=3 * seconds + 180).splitlines()
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError):
        raise Unavailable(f"no figures in its output: {last_words(' '.join(lines))}") from None


@contextlib.contextmanager
def started(command, log, env=None, stop_with=signal.SIGTERM, **options):
    """A server for as long as the block lasts."""
    environment = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
    with open(log, "wb") as out:
        try:
            process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, **options
            )
        except OSError as error:
            raise Unavailable(f"cannot start {command[0]}: {error}") from None
    try:
        yield process
    finally:
        process.send_signal(stop_with)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(url, server, log):
    def answers():
        try:
            with urllib.request.urlopen(url, timeout=2) as response:
                return response.status == 200
        except (urllib.error.URLError, OSError):
            return False

    until_ready(answers, server, log)


def until_ready(is_ready, server, log):
    give_up = time.monotonic() + START_PATIENCE
    while not is_ready():
        if server.poll() is not None:
            raise Unavailable(f"the server ended with {server.returncode}: {last_words(Path(log).read_text(errors='replace'))}")
        if time.monotonic() > give_up:
            raise Unavailable(f"the server was not ready after {START_PATIENCE} s")
        time.sleep(0.1)


def last_words(text):
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-400:] or "it said nothing"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def need_node():
    version = run(["node", "--version"], 30)
    if int(version.lstrip("v").split(".")[0]) < 20:
        raise Unavailable(f"node {version} is too old, 20 is needed")


def unprivileged_user():
    """Postgres refuses to run as root; whom it runs as instead. None when this is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("Postgres does not run as root, and there is neither a user postgres nor nobody")
