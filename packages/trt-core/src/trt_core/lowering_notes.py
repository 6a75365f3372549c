"""Notes that lowering leaves on nodes for whoever decides where they run."""

from __future__ import annotations

from typing import Final

LEFT_COMPLEX: Final = "left_complex"
"""Key of `fx.Node.meta`: why a node still computes with complex numbers; its verdict repeats it."""
