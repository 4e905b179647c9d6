"""A Postgres for one turn: new, durable, on loopback, and removed afterwards."""

import contextlib
import glob
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

from tools import Unavailable, free_port, run, started, until_ready


class Postgres:
    settings = "Postgres with fsync and synchronous_commit on"

    def __init__(self):
        programs = sorted(glob.glob("/usr/lib/postgresql/*/bin"), key=lambda path: float(path.split("/")[4]))
        found = shutil.which("initdb", path=os.pathsep.join([*reversed(programs), os.environ.get("PATH", "")]))
        if not found:
            raise Unavailable("no initdb: install the package `postgresql`")
        self.programs = Path(found).parent
        self.user = unprivileged_user()
        self.version = run([self.programs / "postgres", "--version"], 30).split()[2]

    @contextlib.contextmanager
    def cluster(self, folder, **more):
        """Starts a new server on a free loopback port, with a random password and the given settings; returns its address,
        without a database."""
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
            **more,
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", data, *options]
        with started(command, folder / "log", stop_with=signal.SIGINT, **as_user) as server:
            is_ready = [self.programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", port]
            until_ready(lambda: subprocess.run([str(part) for part in is_ready]).returncode == 0, server, folder / "log")
            yield f"postgresql://bench:{password}@127.0.0.1:{port}"


def unprivileged_user():
    """The user to run Postgres as, because it refuses to run as root. None if this process is not root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("Postgres does not run as root, and there is no unprivileged user to run it as")
