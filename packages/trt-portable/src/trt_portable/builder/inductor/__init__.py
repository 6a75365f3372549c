"""The tactic `inductor`: PyTorch's compiler, kernels of our own that it calls, and the recording of what it made."""

from __future__ import annotations
