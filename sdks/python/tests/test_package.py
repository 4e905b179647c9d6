"""The package as users install it, and the types of its documented code. `./test` provides mypy, pytest and the build backend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, Set

PACKAGE = Path(__file__).resolve().parents[1]
GUIDE = PACKAGE.parents[1] / "docs/guides/python.md"


def programs(page: str) -> Dict[str, str]:
    """The Python files that a page writes (`cat > tasks.py <<'PY'`) or shows (a block marked `python`)."""
    written = {name: text for name, text in re.findall(r"cat > (\w+\.py) <<'PY'\n(.*?)^PY$", page, re.M | re.S)}
    shown = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    return {**written, **{f"shown_{n}.py": text for n, text in enumerate(shown)}}


def tree(folder: Path) -> Set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not {"__pycache__", ".mypy_cache"} & set(path.parts)}


def mypy(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", "/dev/null", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE / "src")


@unittest.skipUnless(find_spec("mypy"), "mypy is not installed; ./test installs it")
class Types(unittest.TestCase):
    def test_the_package_is_typed(self) -> None:
        self.assertTrue((PACKAGE / "src/onward/py.typed").exists())
        checked = mypy("onward")
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_the_types_of_expressions(self) -> None:
        file = PACKAGE / "tests/typed.py"
        checked = mypy(str(file))
        wrong = {int(line) for line in re.findall(r"typed\.py:(\d+): error", checked.stdout)}
        expected = {n for n, line in enumerate(file.read_text("utf-8").splitlines(), 1) if line.endswith("# error")}
        self.assertEqual(wrong, expected, checked.stdout)

    def test_the_code_of_the_guide_and_of_the_readme(self) -> None:
        for page in (GUIDE, PACKAGE / "README.md"):
            found = programs(page.read_text("utf-8"))
            self.assertTrue(found, f"{page.name} shows no Python")
            with self.subTest(page=page.name), tempfile.TemporaryDirectory() as folder:
                for name, text in found.items():
                    (Path(folder) / name).write_text(text, "utf-8")
                checked = mypy(*(str(Path(folder) / name) for name in found))
                self.assertEqual(checked.returncode, 0, checked.stdout)


@unittest.skipUnless(find_spec("flit_core"), "flit_core is not installed; ./test installs it")
class Install(unittest.TestCase):
    """`pip install ./sdks/python`, into a temporary folder."""

    folder: tempfile.TemporaryDirectory[str]

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.site = Path(cls.folder.name) / "site"
        cls.before = tree(PACKAGE)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
        cls.installed = subprocess.run([*command, "--target", str(cls.site), str(PACKAGE)], capture_output=True, text=True)

    def test_it_leaves_the_source_as_it_was_and_has_every_module(self) -> None:
        self.assertEqual(self.installed.returncode, 0, self.installed.stderr)
        self.assertEqual(tree(PACKAGE), self.before)
        self.assertEqual(tree(self.site / "onward"), tree(PACKAGE / "src/onward"))

    @unittest.skipUnless(os.environ.get("ONWARD_BINARY") and find_spec("pytest"), "needs ONWARD_BINARY and pytest")
    def test_pytest_finds_the_fixtures_and_runs_the_example_of_the_guide(self) -> None:
        found = programs(GUIDE.read_text("utf-8"))
        (example,) = [text for text in found.values() if "onward_worker" in text]
        for settings, expected in (("", "3 passed"), ("onward_scope = session\nonward_clock = virtual", "4 passed")):
            with self.subTest(settings=settings), tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "tasks.py").write_text(found["tasks.py"], "utf-8")
                (Path(folder) / "test_guide.py").write_text(example, "utf-8")
                (Path(folder) / "test_more.py").write_text(MORE + (MORE_SHARED if settings else ""), "utf-8")
                (Path(folder) / "pytest.ini").write_text(f"[pytest]\n{settings}\n", "utf-8")
                environment = {**os.environ, "PYTHONPATH": str(self.site)}
                command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
                ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
                self.assertIn(expected, ran.stdout, ran.stdout + ran.stderr)

    @unittest.skipUnless(find_spec("pytest"), "needs pytest")
    def test_a_missing_binary_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "test_it.py").write_text("def test_it(onward_client): ...\n", "utf-8")
            environment = {name: value for name, value in os.environ.items() if name != "ONWARD_BINARY"}
            environment.update(PYTHONPATH=str(self.site), PATH=folder)
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
            ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
            self.assertIn("there is no `onward` on the path; set `ONWARD_BINARY`", ran.stdout)


MORE = """
import onward
from onward.testing import Server

def test_a_server_of_its_own(onward_server: Server, onward_client: onward.Client) -> None:
    onward_client.submit("left.v1")
    assert onward_server.url

def test_the_next(onward_client: onward.Client, pytestconfig) -> None:
    shared = pytestconfig.getini("onward_scope") == "session"
    assert len(list(onward_client.tasks.list(type="left.%"))) == shared
"""
MORE_SHARED = """
def test_time(onward_server: Server, onward_client: onward.Client) -> None:
    task = onward_client.submit("late.v1", delay="1d", timeouts={"queue": "1d"})
    onward_server.advance("3d")
    assert onward_client.get(task).status == "failed"
"""
