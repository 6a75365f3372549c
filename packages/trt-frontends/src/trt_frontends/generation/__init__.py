"""Compiles language models for generating text: a step that holds its caches, and encoders of what is not its text.

Read `compilation` (what is called), `steps` and `caches` (a model as a step), `sources` and `encoders` (texts, pictures
and sounds), `report` (what a step costs), `messages` (what is refused).
"""

from __future__ import annotations

from trt_frontends.generation.compilation import compile_generation

__all__ = ["compile_generation"]
