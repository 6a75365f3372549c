"""Models beside each other: inputs for both, calls under the same conditions, and how far results are apart."""

from __future__ import annotations
