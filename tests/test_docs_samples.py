"""The samples of a page of the documentation name nothing that the page has not imported or made.

They are run when the site is built, with our names imported for the sake of docstrings, which would hide that.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
_SAMPLE = re.compile(r"^( *)```(\{testcode\}|\{doctest\}|python)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"^:\w+:.*\n", re.MULTILINE)
PAGES = [path for path in sorted(ROOT.glob("docs/**/*.md")) if _SAMPLE.search(path.read_text(encoding="utf-8"))]


def _code(page: Path) -> str:
    """What a reader would have typed at the end of the page."""
    parts = []
    for _, kind, body in _SAMPLE.findall(page.read_text(encoding="utf-8")):
        text = textwrap.dedent(body)
        if kind == "{doctest}":
            text = "".join(example.source for example in doctest.DocTestParser().get_examples(text))
        parts.append(_OPTION.sub("", text))
    return "\n".join(parts)


def _bound_by(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return {node.id}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.arg):
        return {node.arg}
    if isinstance(node, ast.alias):
        return {(node.asname or node.name).partition(".")[0]}
    if isinstance(node, ast.ExceptHandler) and node.name:
        return {node.name}
    return set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT / "docs").as_posix())
def test_samples_name_only_what_their_page_makes(page: Path) -> None:
    nodes = list(ast.walk(ast.parse(_code(page))))
    known = set(dir(builtins)).union(*map(_bound_by, nodes))
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert not read - known, "a reader who types this in has not got them"
