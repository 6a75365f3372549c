"""Folding of per-channel scales into the convolution before them, as batch norms leave them.

A convolution followed by ``x * scale + shift`` is one convolution with other weights. Products of
weights are rounded once more than the two layers would round, as in TensorRT.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import torch

from trt_portable.enums import LayerType, ScaleMode

_FLOATS: Final = frozenset({torch.float32, torch.float16, torch.bfloat16})

Entry = dict[str, Any]


def fold_scales(
    entries: Sequence[Entry],
    weights: Mapping[str, torch.Tensor],
    *,
    is_fixed: Callable[[str, str], bool],
    keep: Collection[int],
) -> tuple[list[Entry], dict[str, torch.Tensor]]:
    """Merges scale layers into convolutions whose results nothing else reads.

    Args:
        entries: Layer entries in executable order.
        weights: Host weights by key.
        is_fixed: Whether the weights of a key in a role can never change.
        keep: Ids of tensors that something besides the layers reads.

    Returns:
        The entries that are left, and the weights of merged convolutions by their new keys.
    """
    uses = Counter(tensor for entry in entries for tensor in entry["inputs"])
    convolutions: dict[int, int] = {}  # where convolutions that a scale may join are in `result`
    result: list[Entry | None] = []
    made: dict[str, torch.Tensor] = {}
    for entry in entries:
        at = convolutions.get(entry["inputs"][0]) if _is_scale(entry) else None
        if at is not None and _fixed(entry, is_fixed):
            convolution = result[at]
            assert convolution is not None
            merged = _merged(convolution, entry, {**weights, **made}, made)
            result[at] = None
            result.append(merged)
            output = merged["outputs"][0]
        elif entry["type"] == LayerType.CONVOLUTION.name and _is_plain(entry, weights) and _fixed(entry, is_fixed):
            result.append(entry)
            output = entry["outputs"][0]
        else:
            result.append(entry)
            continue
        if uses[output] == 1 and output not in keep:
            convolutions[output] = len(result) - 1
    return [entry for entry in result if entry is not None], made


def _is_scale(entry: Entry) -> bool:
    """Whether an entry is ``x * scale + shift`` with one coefficient per channel, or one for all."""
    if entry["type"] != LayerType.SCALE.name or "POWER" in entry["weights"]:
        return False
    attributes = entry["attributes"]
    return bool(attributes["channel_axis"] == 1 and attributes["mode"] != ScaleMode.ELEMENTWISE.name)


def _is_plain(entry: Entry, weights: Mapping[str, torch.Tensor]) -> bool:
    """Whether kernel and bias of a convolution are its own weights."""
    key = entry["weights"].get("KERNEL")
    return len(entry["inputs"]) == 1 and key in weights and weights[key].dtype in _FLOATS


def _fixed(entry: Entry, is_fixed: Callable[[str, str], bool]) -> bool:
    return all(is_fixed(key, role) for role, key in entry["weights"].items())


def _merged(
    convolution: Entry, scale: Entry, weights: Mapping[str, torch.Tensor], made: dict[str, torch.Tensor]
) -> Entry:
    """A convolution that does what a convolution and the scale after it do."""
    kernel = weights[convolution["weights"]["KERNEL"]]
    maps = convolution["attributes"]["num_output_maps"]

    def coefficients(entry: Entry, role: str, default: float) -> torch.Tensor:
        key = entry["weights"].get(role)
        given = torch.tensor([default]) if key is None else weights[key]
        return given.double().expand(maps)

    factor = coefficients(scale, "SCALE", 1.0)
    bias = coefficients(convolution, "BIAS", 0.0) * factor + coefficients(scale, "SHIFT", 0.0)
    product = kernel.reshape(maps, -1).double() * factor.unsqueeze(1)
    name = f"{convolution['name']} + {scale['name']}"
    keys = {"KERNEL": f"{name}:kernel:{len(made)}", "BIAS": f"{name}:bias:{len(made)}"}
    made[keys["KERNEL"]] = product.to(kernel.dtype).reshape(-1)
    made[keys["BIAS"]] = bias.to(kernel.dtype)
    dtype, count = convolution["weight_specs"]["KERNEL"]
    return {
        **convolution,
        "name": name,
        "metadata": " ".join(text for text in (convolution["metadata"], scale["metadata"]) if text),
        "outputs": scale["outputs"],
        "weights": keys,
        "weight_specs": {"KERNEL": [dtype, count], "BIAS": [dtype, maps]},
    }
