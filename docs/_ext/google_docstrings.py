"""Reads docstrings as this project writes them: Google sections, names in single backticks, Markdown tables.

It stands in for the `napoleon` extension, of which it uses the parser. Napoleon itself would take a property's first
line apart at a colon, as a type and its description.
"""

from __future__ import annotations

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config
from sphinx.ext.napoleon.docstring import GoogleDocstring

_CONFIG: Any = Config(napoleon_use_ivar=True, napoleon_use_rtype=False)
_CODE = re.compile(r"(?<![`\\:])`([^`]+)`(?!`)(\w?)")
_SEVERAL_NAMES = re.compile(r"^( +\*{0,2}\w+(?:, \*{0,2}\w+)+):(?= )", re.MULTILINE)
_TABLE = re.compile(r"(?:^ *\|.*\|\n)+", re.MULTILINE)


def to_rst(text: str) -> str:
    """Returns a docstring with backticks as literals, tables as preformatted text, and joint entries in one word."""
    text = _SEVERAL_NAMES.sub(lambda match: match.group().replace(", ", ","), text)
    text = _TABLE.sub(lambda match: _preformatted(match.group()), text)
    return _CODE.sub(_literal, text)


def _literal(match: re.Match[str]) -> str:
    code, following = match.groups()
    # a literal that a letter follows (`Input`s) needs a separator that prints nothing
    return f"``{code}``\\ {following}" if following else f"``{code}``"


def _preformatted(table: str) -> str:
    indent = table[: len(table) - len(table.lstrip())]
    body = "".join(f"    {line}\n" for line in table.splitlines())
    return f"{indent}.. code-block:: text\n\n{body}\n"


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    kind: Any = "method" if what in ("attribute", "data", "property") else what
    converted = to_rst("\n".join([*lines, ""])).split("\n")
    lines[:] = GoogleDocstring(converted, _CONFIG, app, kind, name, obj, options).lines()


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the extension to Sphinx."""
    app.setup_extension("sphinx.ext.autodoc")
    app.connect("autodoc-process-docstring", _process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
