"""Text from a compiled step, a token at a time: what `trt_frontends.compile_generation` makes, and files hold.

Read `limits` (what a step was compiled for), `generator` (what is called), `inputs` and `options` (what callers and
configurations say), `reading` (calls of the step), `choosing` and `decoding` (tokens), `assistants` (guesses).
"""

from __future__ import annotations

from trt_runtime.generation.choosing import LogitsProcessor, StoppingCriterion
from trt_runtime.generation.generator import TextGenerator
from trt_runtime.generation.inputs import Streamer
from trt_runtime.generation.limits import GenerationLimits, SourceLimits

__all__ = [
    "GenerationLimits",
    "LogitsProcessor",
    "SourceLimits",
    "StoppingCriterion",
    "Streamer",
    "TextGenerator",
]
