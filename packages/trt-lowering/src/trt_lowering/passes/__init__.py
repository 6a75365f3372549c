"""The lowering passes, one module each."""

from __future__ import annotations
