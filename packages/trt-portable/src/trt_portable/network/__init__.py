"""Defining networks: tensors, layers and what they have in common, regions, and the network as data.

The layers themselves are in `trt_portable.layers`.
"""

from __future__ import annotations
