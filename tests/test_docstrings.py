"""What docstrings list is what there is: every parameter and every field, by its name."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = sorted(path.parent.name for path in ROOT.glob("packages/*/src"))
ELSEWHERE = re.compile(r"\bsee `[^`]+` for\b", re.IGNORECASE)
"""Says that another docstring lists the rest."""

Definition = ast.ClassDef | ast.FunctionDef


def _entries(docstring: str, heading: str) -> set[str] | None:
    """Names that the sections of a heading begin their entries with; None where there is no such section."""
    sections = re.findall(rf"^{heading}:\n((?:[ ]{{4}}.*\n|[ ]*\n)+)", docstring + "\n", re.MULTILINE)
    if not sections:
        return None
    heads = re.findall(r"^[ ]{4}([\w*][\w*, ]*?)(?: \(.*\))?:(?:\s|$)", "".join(sections), re.MULTILINE)
    return {name.strip(" *") for head in heads for name in head.split(",")}


def _definitions(path: Path) -> Iterator[tuple[Definition, bool]]:
    """Classes and functions, and whether they are members of a class."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    members = {id(item) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            yield node, id(node) in members


def _parameters(function: ast.FunctionDef, *, is_bound: bool) -> set[str]:
    taken = function.args
    named = [*taken.posonlyargs, *taken.args][is_bound:] + taken.kwonlyargs
    return {item.arg for item in (*named, taken.vararg, taken.kwarg) if item is not None}


def _fields(kind: ast.ClassDef) -> set[str]:
    return {
        item.target.id
        for item in kind.body
        if isinstance(item, ast.AnnAssign)
        and isinstance(item.target, ast.Name)
        and "ClassVar" not in ast.unparse(item.annotation)
    }


def _is_dataclass(kind: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(decorator) for decorator in kind.decorator_list)


def _there(node: Definition, heading: str, *, is_member: bool) -> set[str] | None:
    """What a section of a definition has to list; None where that cannot be told."""
    if heading == "Attributes":
        return _fields(node) if isinstance(node, ast.ClassDef) and _is_dataclass(node) else None
    if isinstance(node, ast.FunctionDef):
        is_static = any(ast.unparse(decorator) == "staticmethod" for decorator in node.decorator_list)
        return _parameters(node, is_bound=is_member and not is_static)
    made = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    return _parameters(made[0], is_bound=True) if made else None


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_list_what_there_is(package: str) -> None:
    wrong = []
    for path in sorted((ROOT / "packages" / package / "src").rglob("*.py")):
        for node, is_member in _definitions(path):
            docstring = ast.get_docstring(node) or ""
            for heading in ("Args", "Attributes"):
                listed, there = _entries(docstring, heading), _there(node, heading, is_member=is_member)
                if listed is None or there is None:
                    continue
                missing = set() if ELSEWHERE.search(docstring) else {name for name in there if name[0] != "_"} - listed
                unknown = listed - there if heading == "Args" else set()
                if missing or unknown:
                    place = f"{path.relative_to(ROOT)}:{node.lineno}, {node.name}"
                    wrong.append(f"{place}: misses {sorted(missing)}, has {sorted(unknown)}")
    assert not wrong, "\n".join(wrong)
