"""The tables of a program's graph: the fields that each object has, all of them and no others.

Whoever changes one gives the format another version (`program_file.PROGRAM`); a test holds the tables against it.
"""

from __future__ import annotations

from typing import Final

PROGRAM: Final = (
    "torch_version",
    "writer_version",
    "libraries",
    "symbols",
    "profiles",
    "signature",
    "storages",
    "tensors",
    "engines",
    "steps",
    "output",
    "refit",
    "metadata",
)
SIGNATURE: Final = ("names", "positional", "structure", "leaves", "conditions")
TENSOR_INPUT: Final = ("tensor", "shape", "device")
NUMBER_INPUT: Final = ("number", "symbol")
FIXED_INPUT: Final = ("fixed",)
TENSOR: Final = ("names", "parameter", "dtype", "storage", "offset", "shape", "strides", "device")
REFIT: Final = ("table", "constants")
"""`table` is of the same form as that of an engine's header."""
ENGINE: Final = ("name", "section", "header")
TENSOR_TYPE: Final = ("tensor", "shape")
STEPS: Final[dict[str, tuple[str, ...]]] = {
    "engine": ("do", "engine", "inputs"),
    "operator": ("do", "name", "overload", "args", "kwargs", "result"),
    "number": ("do", "function", "args"),
    "size": ("do", "tensor", "axis"),
    "item": ("do", "sequence", "index"),
    "write": ("do", "target", "source"),
    "control_flow": ("do", "operator", "bodies", "operands", "result"),
}
"""By what a step does."""
BODY: Final = ("inputs", "steps", "output")
