"""The structure that docs/architecture.md promises: import order, sizes, unique names, light imports."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "choral"
DOCS = SOURCE.parent.parent / "docs"
FILES = sorted(SOURCE.rglob("*.py"))
LAYERS = [
    {"errors", "validation", "term_lists", "options", "diarization", "transcript", "config", "storage", "common"},
    {"remote", "kernels"},
    {"audio", "model"},
    {"speakers"},
    {"engine"},
    {"longform"},
    {"serving"},
    {"api", "subtitles", "formats"},
    {"compat", "jobs"},
    {"server"},
    {"ray"},
    {"bench"},
    {"cli"},
]
EVERYWHERE = {"__init__", "__main__"}  # the package itself; it imports lazily


def layer_of(module: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if module in layer)


def imported_modules(tree: ast.Module) -> set[str]:
    """The Choral modules that a file imports, including inside functions but not for type checking."""
    hints = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    skipped = {id(child) for hint in hints for child in ast.walk(hint)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in skipped:
            parts = node.module.split(".")
            if parts == ["choral"]:
                found |= {alias.name for alias in node.names if not alias.name.startswith("__")}
            elif parts[0] == "choral":
                found.add(parts[1])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    if own in EVERYWHERE:
        return
    for module in imported_modules(ast.parse(path.read_text())):
        assert layer_of(module) <= layer_of(own), f"{own} must not import {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno + 1 <= 60, f"{node.name} is too long"


def test_one_name_has_one_meaning() -> None:
    """No two classes of the package share a name, and no two modules but those a reader expects in every package.

    The names in `compat` are those of other packages.
    """
    expected = {"__init__", "routes", "settings", "metrics", "worker"}  # cli/worker.py is the command
    own = [path for path in FILES if SOURCE / "compat" not in path.parents]
    modules = [path.stem for path in own if path.stem not in expected]
    classes = [
        node.name for path in own for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    ]
    assert [name for name, n in Counter(modules).items() if n > 1] == []
    assert [name for name, n in Counter(classes).items() if n > 1] == []


@pytest.mark.parametrize("page", ["architecture.md", "structures.md"])
def test_files_named_in_the_docs_exist(page: str) -> None:
    names = set(re.findall(r"`([a-z_0-9/]+\.py)`|\(([a-z_0-9/]+\.py)[,)]", (DOCS / page).read_text()))
    paths = {first or second for first, second in names}
    assert len(paths) > 15
    known = {str(path.relative_to(SOURCE)) for path in FILES}
    assert [path for path in sorted(paths) if not any(f"/{file}".endswith(f"/{path}") for file in known)] == []


def test_most_functions_are_short() -> None:
    lengths = sorted(
        (node.end_lineno or 0) - node.lineno + 1
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    assert lengths[len(lengths) * 9 // 10] <= 20


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import choral", ["numpy", "torch", "av", "onnxruntime", "rich", "ctranslate2", "redis"]),
        ("import choral; choral.jobs.Client", ["numpy", "torch", "av", "onnxruntime", "prometheus_client"]),
        ("import choral; choral.load", ["torch", "av", "onnxruntime", "rich", "ctranslate2"]),
        ("import choral; choral.formats.srt", ["numpy", "torch", "av", "onnxruntime"]),
    ],
)
def test_imports_are_light(statement: str, absent: list[str]) -> None:
    code = f"{statement}\nimport sys\nprint([name for name in {absent!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
