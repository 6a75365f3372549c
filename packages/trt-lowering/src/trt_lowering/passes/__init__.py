"""The lowering passes, a module for each kind."""

from __future__ import annotations
