"""Libraries that run networks on the CPU as whole models, where they are installed."""

from __future__ import annotations

from typing import Final

NAMES: Final = ("openvino", "onnxruntime")
"""Their packages, which are also the names of tactics."""
