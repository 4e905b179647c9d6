"""Helpers that install, start, watch and stop third-party programs.

A process is always stopped through the handle it was started with. Failures raise `Unavailable` with the
reason.
"""

import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

INSTALL_PATIENCE = 600
START_PATIENCE = 60


class Unavailable(Exception):
    """This contestant cannot run; the text says why."""


def say(words):
    print(words, file=sys.stderr, flush=True)


def run(command, patience, **options):
    """Runs a program to its end and returns its output."""
    done = execute(command, patience, **options)
    if done.returncode != 0:
        raise failure(done)
    return done.stdout.strip()


def figures(command, seconds, windows=3):
    """The objects that a workload program prints, one a line.

    It may take as long as `windows` windows; `onward bench` measures its ceiling in a second one. It may also exit
    with 1 if one of its figures says that a check failed.
    """
    done = execute(command, patience=windows * seconds + 180)
    try:
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    except ValueError:
        found = []
    if done.returncode != 0 and (done.returncode != 1 or all(figure.get("ok") for figure in found)):
        raise failure(done)
    if not found:
        raise Unavailable(f"no figures in its output: {last_words(done.stdout)}")
    return found


def execute(command, patience, **options):
    command = [str(part) for part in command]
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=patience, **options)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not there") from None
    except subprocess.TimeoutExpired:
        raise Unavailable(f"`{Path(command[0]).name}` took longer than {patience:.0f} s") from None
    except OSError as error:
        raise Unavailable(f"cannot start {command[0]}: {error}") from None


def failure(done):
    return Unavailable(f"`{Path(done.args[0]).name}` ended with {done.returncode}: {last_words(done.stderr or done.stdout)}")


@contextlib.contextmanager
def started(command, log, env=None, stop_with=signal.SIGTERM, **options):
    """Runs a server while the block runs."""
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


def need_node(oldest="20.0"):
    """The installed Node, unless it is too old."""
    version = run(["node", "--version"], 30)
    if [int(part) for part in version.lstrip("v").split(".")] < [int(part) for part in oldest.split(".")]:
        raise Unavailable(f"node {version} is too old, {oldest} is needed")
    return "node"


def npm(folder, *words):
    """Runs npm in a folder of peers, without install scripts: no package needs one, and one sends telemetry."""
    if not shutil.which("npm"):
        raise Unavailable("no npm")
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    run(["npm", *words, "--prefix", folder, *flags], INSTALL_PATIENCE)


def npm_machine():
    """The npm name of this processor architecture."""
    return {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
