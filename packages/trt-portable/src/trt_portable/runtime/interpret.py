"""Interpretation: PyTorch's kernels, layer by layer, with neighbours fused where that changes no meaning."""

from __future__ import annotations

from trt_portable.runtime.fusion import fuse_linear
from trt_portable.runtime.image import ProgramImage
from trt_portable.runtime.program import Program


def interpreted_program(image: ProgramImage) -> Program:
    """The program that runs the layers of an image."""
    return Program(fuse_linear(image.calls, image.visible), image.inputs, image.outputs)
