"""The package as users install it, and the types of its documented code. `./test` provides mypy, pytest and the build backend."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import unittest
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Dict, List, Set

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
    def test_a_build_leaves_the_source_as_it_was_and_has_every_module(self) -> None:
        before = tree(PACKAGE)
        with tempfile.TemporaryDirectory() as folder:
            command: List[str] = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
            command += ["--no-index", "--wheel-dir", folder, str(PACKAGE)]
            built = subprocess.run(command, capture_output=True, text=True, cwd=folder)
            self.assertEqual(built.returncode, 0, built.stderr)
            (wheel,) = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as opened:
                packed = {name for name in opened.namelist() if name.startswith("onward/")}
                packed = {name for name in packed if "__pycache__" not in name}
        self.assertEqual(tree(PACKAGE), before)
        modules = PACKAGE / "src"
        self.assertEqual(packed, {name for name in tree(modules) if (modules / name).is_file()})
