"""Plans: the container that a built engine is stored in, what it says, and the weights that it holds."""

from __future__ import annotations
