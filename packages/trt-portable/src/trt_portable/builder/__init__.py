"""Building: from a network and a configuration to a plan."""

from __future__ import annotations
