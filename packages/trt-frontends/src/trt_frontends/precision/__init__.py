"""Which parts of a model compute in a reduced type: measured on inputs, and reported."""

from __future__ import annotations
