"""Running: engines, execution contexts, the programs they run, and the tools that look into engines."""

from __future__ import annotations
