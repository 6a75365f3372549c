"""What stands behind the `torch.compile` backend: one module for each thing that a call must get right."""

from __future__ import annotations
