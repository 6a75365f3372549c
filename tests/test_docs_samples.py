"""Samples of the documentation name nothing that their page has not imported or made, and its commands are right.

Samples are run when the site is built, with our names imported for the sake of docstrings, which would hide that.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import re
import shlex
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from trtc.app import app
from typer.core import TyperGroup
from typer.testing import CliRunner

from trt_runtime.command_line.commands import _parser

ROOT = Path(__file__).resolve().parent.parent
_SAMPLE = re.compile(r"^( *)```(\{testcode\}|\{doctest\}|python)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_OPTION = re.compile(r"^:\w+:.*\n", re.MULTILINE)
_COMMAND = re.compile(r"^ *(?:\$ )?(?:\S*python -m )?(trtc|trt_runtime) ([^\n]*)$", re.MULTILINE)
_SHELL = re.compile(r"^( *)```(?:sh|console)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
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


_COMMANDS = [
    (page.stem, words)
    for page in sorted(ROOT.glob("docs/**/*.md"))
    for _, body in _SHELL.findall(page.read_text(encoding="utf-8"))
    for program, text in _COMMAND.findall(body.replace("\\\n", ""))
    for words in [[program, *shlex.split(text, comments=True)]]
]


@pytest.mark.parametrize("words", [pytest.param(words, id=f"{page}: {' '.join(words)}") for page, words in _COMMANDS])
def test_commands_are_such_as_the_command_line_takes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program, *left = words
    for word in left:
        if Path(word).suffix:  # a file of the reader
            (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / word).touch()
    if program == "trt_runtime":
        _parser(program).read(left)
        return
    command: Any = typer.main.get_command(app)
    context = command.make_context(program, list(left))
    while isinstance(command, TyperGroup):
        name, command, left = command.resolve_command(context, left)
        context = command.make_context(name, list(left), parent=context)


def _shown_models() -> str:
    """The module `models` that the page about the command line shows, and commands of other pages name."""
    (shown,) = (code for code in _samples_of("command_line") if code.startswith("# models.py"))
    return shown


def _samples_of(page: str) -> list[str]:
    text = (ROOT / "docs" / "howto" / f"{page}.md").read_text(encoding="utf-8")
    return [textwrap.dedent(body) for _, _, body in _SAMPLE.findall(text)]


@pytest.mark.parametrize("page", ["command_line", "accuracy", "mixed_precision", "engine_cache", "profile"])
def test_commands_run_in_the_order_of_their_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of pages that need a model and nothing else: the one that the page about the command line shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRT_ENGINE_CACHE_DIR", str(tmp_path / "engines"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "models", raising=False)
    (tmp_path / "models.py").write_text(_shown_models())
    assert CliRunner().invoke(app, ["compile", "models:classifier", "-o", "model.trtp", "-q"]).exit_code == 0
    commands = [words for found, words in _COMMANDS if found == page and words[0] == "trtc"]
    assert commands
    for words in commands:
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, (words, result.output)
    monkeypatch.delitem(sys.modules, "models", raising=False)


def test_modules_that_pages_run_are_there() -> None:
    named = {
        name
        for page in ROOT.glob("docs/**/*.md")
        for name in re.findall(r"python -m\s+(tools[\w.]*\w)", page.read_text())
    }
    assert "tools.bench.ray_rows" in named
    assert [name for name in sorted(named) if find_spec(name) is None] == []
