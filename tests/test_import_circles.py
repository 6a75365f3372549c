"""No module imports itself through others, at the top of files or inside functions; type annotations are free to.

Nor through the packages that modules lie in, as far as imports at the top of files go: any module can be the first.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))


def modules_of(source: Path) -> dict[str, Path]:
    """The modules under a source folder, by dotted name."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _is_for_annotations(node: ast.AST) -> bool:
    """Whether a node is ``if TYPE_CHECKING:``."""
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _imports(node: ast.AST, *, of_functions: bool = True) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements below a node that run."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not of_functions:
        return
    children: list[ast.AST] = list(ast.iter_child_nodes(node))
    if _is_for_annotations(node):
        children = list(node.orelse)  # type: ignore[attr-defined]
    for child in children:
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            yield child
        yield from _imports(child, of_functions=of_functions)


_parsed = functools.lru_cache(1)(ast.parse)


def imported_modules(name: str, text: str, known: set[str], *, is_package: bool, of_functions: bool = True) -> set[str]:
    """The known modules that a module's text imports."""
    found: set[str] = set()
    for statement in _imports(_parsed(text), of_functions=of_functions):
        if isinstance(statement, ast.Import):
            found.update(alias.name for alias in statement.names)
            continue
        base = statement.module or ""
        if statement.level:
            package = name.split(".")[: None if is_package else -1]
            package = package[: len(package) - statement.level + 1]
            base = ".".join([*package, base] if base else package)
        for alias in statement.names:
            inner = f"{base}.{alias.name}"
            found.add(inner if inner in known else base)
    return (found & known) - {name}


def with_packages(name: str, imported: set[str]) -> set[str]:
    """Imported modules, with the packages that run before them: those around them that are not around the importer."""
    return {part for module in imported for part in _with_parents(module)} - set(_with_parents(name))


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts) + 1)]


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that reach each other (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            group = stack[at:]
            del stack[at:]
            if len(group) > 1:
                found.append(sorted(group))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_package_has_a_circle_of_imports(package: str) -> None:
    modules = modules_of(ROOT / "packages" / package / "src")
    known = set(modules)
    graph: dict[str, set[str]] = {}
    first: dict[str, set[str]] = {}
    for name, path in modules.items():
        text, is_package = path.read_text(encoding="utf-8"), path.name == "__init__.py"
        graph[name] = imported_modules(name, text, known, is_package=is_package)
        at_top = imported_modules(name, text, known, is_package=is_package, of_functions=False)
        first[name] = with_packages(name, at_top)
    for found in (circles(graph), circles(first)):
        assert not found, "modules that import each other:\n" + "\n".join(map(" ".join, found))


def test_packages_are_run_before_their_modules() -> None:
    assert with_packages("p.q.m", {"p.r.s.t", "p.q.n"}) == {"p.r", "p.r.s", "p.r.s.t", "p.q.n"}


def test_the_scan_sees_every_import_that_runs() -> None:
    text = """
from typing import TYPE_CHECKING
import p.a
from p import b, thing
from . import c
from .d import other
from .. import x
def f():
    from p.e import more
    class K:
        import p.f
if TYPE_CHECKING:
    from p.g import hidden
else:
    import p.h
"""
    known = {"p", *(f"p.{letter}" for letter in "abcdefgh"), "p.q", "p.q.c", "p.q.d", "p.x"}
    expected = {"p", "p.a", "p.b", "p.e", "p.f", "p.h", "p.q.c", "p.q.d", "p.x"}
    assert imported_modules("p.q.m", text, known, is_package=False) == expected
    at_top = imported_modules("p.q.m", text, known, is_package=False, of_functions=False)
    assert at_top == expected - {"p.e", "p.f"}


def test_circles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set(), "f": {"d"}}
    assert circles(graph) == [["a", "b", "c"]]
    assert circles({"a": {"b"}, "b": set()}) == []
