"""Autotuning: what may be the fastest is held to an oracle, timed, and remembered in the timing cache."""

from __future__ import annotations
