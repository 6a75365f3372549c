"""The report: what was decided, as data, and its renderings."""

from __future__ import annotations
