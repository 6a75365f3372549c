"""The tables of a plan: the fields that each entry has which is no dataclass, all of them and no others.

A change of a table, of a dataclass, or of the attributes of a layer makes another format: plans of one are foreign to
readers of the other. So it comes with another `FORMAT_VERSION`, and readers refuse other versions before they look.
A test holds the tables against the version.
"""

from __future__ import annotations

from typing import Any, Final

from trt_core.files import typed
from trt_portable.dims import MAX_RANK

FORMAT_VERSION: Final = 25
"""Version of the container, of every table below and of every dataclass that a plan holds."""

DOCUMENT: Final = ("provider", "provider_version", "torch_version", "features", "network", "engine")
NETWORK: Final = (
    *("name", "flags", "inputs", "outputs", "shape_outputs", "tensors", "weight_names", "refittable", "layers"),
)
LAYER: Final = (
    *("type", "name", "metadata", "num_ranks", "inputs", "outputs", "attributes", "weights", "weight_specs"),
    "implementation",
)
REGION: Final = ("boundary", "body")
"""What loops and conditionals have beside the fields of a layer."""
LOOP: Final = (*REGION, "recurrence")
PLUGIN: Final = ("name", "version", "namespace", "data_inputs", "formats")
"""What the field `plugin` of a plugin's layer holds, beside what a version of plugins adds."""
PLUGIN_V3: Final = ("fields",)
PLUGIN_V2: Final = ("serialized",)
PLUGIN_FIELD: Final = ("name", "type", "dtype", "data")
WEIGHTS: Final = ("dtype", "shape", "data_offsets")
COMPILED: Final = ("operands", "kernels", "steps", "outputs", "slots")
LAUNCH_STEPS: Final = ("empty", "view", "kernel", "op", "late")
UNPLANNED: Final = (("kernel",), ("empty", "kernel"))
"""Steps that a "late" one holds beside its operator: what computes the same at once, in memory of its own or not."""
KERNEL: Final = ("name", "blob", "types", "warps", "shared_bytes", "early")
WEIGHTS_OPERAND: Final = ("weights", "shape", "order")
PREPARED_OPERAND: Final = ("prepared",)
EXTENT_SYMBOL: Final = "{}.{}"
"""What extents call that of an input: its number, and the axis."""


def extents(value: Any, place: str) -> tuple[int, ...]:
    """Extents of a tensor: integers from -1, at most eight.

    Raises:
        BadField: Something else.
    """
    return typed.integers(value, place, -1, most=MAX_RANK)
