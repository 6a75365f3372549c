"""The page about generating text names what `generate` takes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from trt_runtime import TextGenerator
from trt_runtime.generation.options import TOKEN_OPTIONS

PAGE = Path(__file__).parents[1] / "docs/howto/generate_text.md"


def test_the_page_names_every_argument_of_generate() -> None:
    rows = re.findall(r"^\| (`[a-z_`, ]+) \|", PAGE.read_text(), re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    parameters = inspect.signature(TextGenerator.generate).parameters.values()
    taken = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}
    taken |= set(TOKEN_OPTIONS)
    assert named == taken - {"input_ids", "attention_mask"}  # those stand in the table of models
