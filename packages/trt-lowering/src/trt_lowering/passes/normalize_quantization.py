"""Writes quantization in one form: `trt::quantize` and `trt::dequantize`, whatever library it comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_core.attributes import is_state, read_attribute
from trt_core.bitsandbytes_operators import FORMS
from trt_core.internals import FakeTensor, OpOverload
from trt_core.modelopt_operators import bits_of_blocks, outer_scale
from trt_core.operators import argument
from trt_core.quantization import (
    QUANTIZED,
    dequantize,
    fake_quantize_blocks,
    limits,
    quantize,
    quantize_in_blocks,
    simple_scale,
    spread,
)
from trt_lowering.contract import OperatorPass
from trt_lowering.expansion import inline_module, trace_call

Form = Callable[[Mapping[str, Any]], Any]
"""Computes a call in another form, from the operator's arguments by name."""


def choose(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    """Chooses scale and zero point in float32, where PyTorch widens the scale to a type that engines do not have."""
    symmetric = "symmetric" in _name(node)
    if not _serves(node, _WHOLE) or (symmetric and argument(node, "dtype") is not torch.int8):
        return None
    low, high = float(argument(node, "quant_min")), float(argument(node, "quant_max"))
    least = argument(node, "eps")

    def form(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        wide = given["input"].to(torch.float32)
        smallest, largest = wide.amin().clamp(max=0.0), wide.amax().clamp(min=0.0)
        if symmetric:
            scale = (torch.maximum(-smallest, largest) / ((high - low) / 2)).clamp(min=least)
            return scale, torch.zeros_like(scale, dtype=torch.int64)
        scale = ((largest - smallest) / (high - low)).clamp(min=least)
        zero = (low - (smallest / scale).round()).clamp(low, high)
        return scale, zero.to(torch.int64)

    return form


def choose_per_token(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    """Chooses a scale and zero point for each row in float32; see `choose`."""
    if not _serves(node, _ROWS) or argument(node, "dtype") is not torch.int8:
        return None

    def form(given: Mapping[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        wide = given["input"].to(torch.float32)
        smallest = wide.amin(-1, keepdim=True).clamp(max=0.0)
        largest = wide.amax(-1, keepdim=True).clamp(min=0.0)
        scale = ((largest - smallest) / 255.0).clamp(min=torch.finfo(torch.float32).eps)
        below, above = smallest / scale, largest / scale
        # the end of the range that is off by less decides
        zero = torch.where(below + above - 1.0 > 0.0, -128.0 - below, 127.0 - above)
        return scale, zero.clamp(-128.0, 127.0).round().to(torch.int64)

    return form


def _serves(node: fx.Node, readers: frozenset[str]) -> bool:
    """Whether what a call chooses is read by operators alone that take scales of any float type."""
    return all(_name(reader) in readers for item in node.users for reader in item.users)


_WHOLE: Final = frozenset(
    f"quantized_decomposed::{name}.tensor" for name in ("quantize_per_tensor", "dequantize_per_tensor")
)
_ROWS: Final = frozenset(f"quantized_decomposed::{name}" for name in ("quantize_per_token", "dequantize_per_token"))


def _name(node: fx.Node) -> str:
    return node.target.name() if isinstance(node.target, OpOverload) else ""


Reader = Callable[[fx.GraphModule, fx.Node], "Form | None"]
"""Says how a call is written in the one form, None where it cannot be."""


class NormalizeQuantization(OperatorPass):
    """Rewrites calls that quantize and dequantize, so that later passes know one form of them, without zero points.

    Those of weights become a shift behind it. Activations with zero points, other types, and scales that are computed
    from data are left to decompositions and converters.

    Requires: values on nodes; no in-place operator but write backs.
    Ensures: values on nodes.
    """

    name = "normalize_quantization"

    def call(self, gm: fx.GraphModule) -> int:
        """Traces each call's new form and puts it in place."""
        changes = 0
        for node in list(gm.graph.nodes):
            if not isinstance(node.target, OpOverload) or self.stays(node.target):
                continue
            reader = _READERS.get(node.target.name())
            form = None if reader is None else reader(gm, node)
            body = None if form is None else trace_call(node, _by_name(node.target, form))
            if body is not None:
                inline_module(gm, node, body)
                changes += 1
        return changes


def _by_name(target: OpOverload, form: Form) -> Callable[..., Any]:
    names = [declared.name for declared in target._schema.arguments]

    def call(*args: Any, **kwargs: Any) -> Any:
        return form({**dict(zip(names, args, strict=False)), **kwargs})

    return call


_Scale = Callable[[Mapping[str, Any]], tuple[torch.Tensor, int]]
"""The scale among a call's arguments, as `trt::quantize` takes it, and its axis."""

_ScaleOf = Callable[[fx.Node], _Scale | None]
"""Says how a call names its scale, None where that cannot be written in the one form."""


def _of_tensor(node: fx.Node) -> _Scale | None:
    return None if _rank(node) == 0 else lambda given: (_as_scale(given["scale"], given["input"]), -1)


def _of_channels(node: fx.Node) -> _Scale:
    axis = argument(node, "axis") % _rank(node)
    return lambda given: (given["scales"].to(torch.float32), axis)


def _of_groups(node: fx.Node) -> _Scale:
    return lambda given: (given["scales"].to(torch.float32), -1)


def _of_blocks(node: fx.Node) -> _Scale | None:
    blocks = _blocks(node)
    if blocks is None:
        return None
    return lambda given: simple_scale(given["scale"].to(torch.float32).reshape(blocks), given["input"].shape)


def _quantizes(scale_of: _ScaleOf) -> Reader:
    def read(gm: fx.GraphModule, node: fx.Node) -> Form | None:
        low, scale = _lowest(node), scale_of(node)
        if low is None or scale is None or not _is_symmetric(gm, node):
            return None
        return lambda given: _quantize(given["input"], *scale(given), low)

    return read


def _dequantizes(scale_of: _ScaleOf, *, in_few_bits: bool = False) -> Reader:
    """Reads dequantizations; those in few bits have 4 where their range says so, others where they are shifted."""

    def read(gm: fx.GraphModule, node: fx.Node) -> Form | None:
        has_zero_point, scale, dtype = _has_zero_point(gm, node), scale_of(node), node.meta["val"].dtype
        if has_zero_point is None or scale is None:
            return None

        def form(given: Mapping[str, Any]) -> Any:
            steps, axis = scale(given)
            if not has_zero_point:
                return dequantize(given["input"], steps, dtype, _bits(node) if in_few_bits else 8, axis)
            zero = next(value for name, value in given.items() if name.startswith("zero_point"))
            zero = zero if isinstance(zero, torch.Tensor) else _as_scale(zero, given["input"])
            return dequantize_shifted(given["input"], steps, zero, dtype, _bits(node), axis)

        return form

    return read


def _fake_quantize_per_channel(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    low = _lowest(node, torch.int8)
    known = is_known(argument(node, "scale")) and _is_zero(gm, argument(node, "zero_point"))
    if low is None or not known:
        return None
    axis = argument(node, "axis") % _rank(node)

    def form(given: Mapping[str, Any]) -> Any:
        scale = given["scale"].to(torch.float32)
        return dequantize(_quantize(given["self"], scale, axis, low), scale, given["self"].dtype, 8, axis)

    return form


def _weight_in_blocks(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    """Stores a weight as the values and the scales that ModelOpt computes from it at every call."""
    bits = bits_of_blocks(
        *(argument(node, name) for name in ("num_bits", "exponent_bits", "scale_num_bits", "scale_exponent_bits"))
    )
    return None if bits is None else _in_blocks(node, bits, lambda given: given["amax"])


def _in_blocks(node: fx.Node, bits: int, amax: Callable[[Mapping[str, Any]], Any] | None) -> Form | None:
    is_weight = is_known(argument(node, "input")) and is_known(argument(node, "outer" if amax is None else "amax"))
    if amax is None and not is_weight:
        return None  # it has this form

    def form(given: Mapping[str, Any]) -> Any:
        input, block_size, outer = given["input"], given["block_size"], given.get("outer")
        if amax is not None and bits == 4:
            largest = amax(given)
            outer = outer_scale(input.abs().amax() if largest is None else largest)
        if not is_weight:
            return fake_quantize_blocks(input, outer, block_size, bits)
        values, scale = quantize_in_blocks(input, outer, block_size, bits)
        return dequantize(values, scale, input.dtype, bits, -1, outer)

    return form


def _of_bitsandbytes(gm: fx.GraphModule, node: fx.Node) -> Form | None:
    """Unpacks a weight, and multiplies by it, in PyTorch's own operators, by which weights in few bits are known."""
    compute = FORMS[_name(node)]
    return lambda given: compute(**given)


_READERS: Final[dict[str, Reader]] = {
    **dict.fromkeys(FORMS, _of_bitsandbytes),
    "quantized_decomposed::quantize_per_tensor": _quantizes(_of_tensor),
    "quantized_decomposed::quantize_per_tensor.tensor": _quantizes(_of_tensor),
    "quantized_decomposed::dequantize_per_tensor": _dequantizes(_of_tensor),
    "quantized_decomposed::dequantize_per_tensor.tensor": _dequantizes(_of_tensor),
    "quantized_decomposed::quantize_per_channel": _quantizes(_of_channels),
    "quantized_decomposed::dequantize_per_channel": _dequantizes(_of_channels),
    "quantized_decomposed::dequantize_per_channel_group": _dequantizes(_of_groups, in_few_bits=True),
    "quantized_decomposed::choose_qparams.tensor": choose,
    "quantized_decomposed::choose_qparams_symmetric.tensor": choose,
    "quantized_decomposed::choose_qparams_per_token_asymmetric": choose_per_token,
    "quantized_decomposed::_choose_qparams_per_token_asymmetric_impl": choose_per_token,
    "aten::fake_quantize_per_channel_affine": _fake_quantize_per_channel,
    "tensorrt::dynamic_block_quantize_op": _weight_in_blocks,
    "tensorrt::dynamic_block_quantize_op.overload": _weight_in_blocks,
    "trt::fake_quantize_blocks": lambda gm, node: _in_blocks(node, argument(node, "bits"), None),
    "torchao::quantize_affine": _quantizes(_of_blocks),
    "torchao::dequantize_affine": _dequantizes(_of_blocks, in_few_bits=True),
}


def _quantize(input: torch.Tensor, scale: torch.Tensor, axis: int, low: float) -> Any:
    """Quantizes to int8, of which symmetric ranges leave out the lowest value."""
    if low > limits(torch.int8)[0]:
        input = torch.clamp(input, min=(low * spread(scale, input, axis)).to(input.dtype))
    return quantize(input, scale, torch.int8, 8, axis)


def is_known(value: Any) -> bool:
    """Whether a value follows from numbers and parameters that the graph does not write to, by views and casts."""
    while isinstance(value, fx.Node) and value.op == "call_function" and value.target in _MOVES:
        value = value.args[0]
    return not isinstance(value, fx.Node) or (value.op == "get_attr" and not is_state(value))


_MOVES: Final = frozenset(
    {
        *(torch.ops.aten._to_copy.default, torch.ops.aten.to.dtype, torch.ops.aten.t.default),
        *(torch.ops.aten.transpose.int, torch.ops.aten.permute.default, torch.ops.aten.reshape.default),
        *(torch.ops.aten.view.default, torch.ops.aten.flatten.using_ints, torch.ops.aten.squeeze.dim),
        *(torch.ops.aten.unsqueeze.default, torch.ops.aten.detach.default),
    }
)


def _is_symmetric(gm: fx.GraphModule, node: fx.Node) -> bool:
    """Whether a call has a scale that is known, no zero point but 0, and values of a type that Q/DQ layers have."""
    scale, zero_point = _scale_and_zero_point(node)
    input: Any = argument(node, "input")
    values = {input.meta["val"].dtype, node.meta["val"].dtype}
    return len(values & QUANTIZED) == 1 and is_known(scale) and _is_zero(gm, zero_point)


def _has_zero_point(gm: fx.GraphModule, node: fx.Node) -> bool | None:
    """Whether a dequantization has zero points; None where they, or its types, keep it from having the one form."""
    if _is_symmetric(gm, node):
        return False
    scale, zero_point = _scale_and_zero_point(node)
    input: Any = argument(node, "input")
    is_stored = input.meta["val"].dtype in (torch.int8, torch.uint8) and is_known(input)
    return True if is_stored and is_known(scale) and is_known(zero_point) and zero_point is not None else None


def _scale_and_zero_point(node: fx.Node) -> tuple[Any, Any]:
    assert isinstance(node.target, OpOverload)
    names = [declared.name for declared in node.target._schema.arguments]
    zero_point = next(name for name in names if name.startswith("zero_point"))
    return argument(node, next(name for name in names if name.startswith("scale"))), argument(node, zero_point)


def _is_zero(gm: fx.GraphModule, value: Any) -> bool:
    if not isinstance(value, fx.Node):
        return not value
    while value.op == "call_function" and value.target in _MOVES:
        value = value.args[0]
    if value.op != "get_attr" or is_state(value):
        return False
    found = read_attribute(gm, str(value.target))
    if not isinstance(found, torch.Tensor) or isinstance(found, FakeTensor) or found.is_meta:
        return False
    return not bool(found.any())


def _lowest(node: fx.Node, dtype: torch.dtype | None = None) -> float | None:
    """Returns the lowest value that a call quantizes to: that of int8 or the one above; None for other ranges."""
    low, high = limits(torch.int8)
    given = argument(node, "quant_min"), argument(node, "quant_max")
    if (dtype or node.meta["val"].dtype) is not torch.int8 or given not in ((None, None), (low, high), (low + 1, high)):
        return None
    return low if given[0] is None else float(given[0])


def _rank(node: fx.Node) -> int:
    return int(node.meta["val"].dim())


def _bits(node: fx.Node) -> int:
    low, high = argument(node, "quant_min"), argument(node, "quant_max")
    least = 0 if node.args[0].meta["val"].dtype is torch.uint8 else -8  # type: ignore[union-attr]
    return 4 if low is not None and high is not None and low >= least and high <= least + 15 else 8


def _as_scale(scale: Any, input: torch.Tensor) -> torch.Tensor:
    if isinstance(scale, torch.Tensor):
        return scale.to(torch.float32).reshape(())
    return torch.full((), float(scale), dtype=torch.float32, device=input.device)


def _blocks(node: fx.Node) -> list[int] | None:
    """Returns the number of blocks along each axis; None where extents are symbolic beside more than one block."""
    input = node.args[0]
    assert isinstance(input, fx.Node)
    shape, sizes = input.meta["val"].shape, argument(node, "block_size")
    counts: list[int] = []
    for extent, size in zip(shape, sizes, strict=True):
        if not isinstance(extent, int) or not isinstance(size, int):
            return None
        counts.append(extent // size)
    return counts


def dequantize_shifted(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, dtype: torch.dtype, bits: int, axis: int
) -> torch.Tensor:
    """Returns `(values - zero) * scale` as `values * scale - zero * scale`, of which the first is a dequantization.

    Both are computed in float32, whatever the result is rounded to. Unsigned values are stored as signed ones, which
    moves them and their zero points by half of the range.

    Args:
        values: int8, or uint8, whose lowest half becomes the negative numbers.
        scale: float32, in one of the shapes that `trt::dequantize` takes.
        zero: As many elements as the scale has, in their order; any type.
        dtype: Type of the result.
        bits: 8, or 4 where the values are that few.
        axis: As `trt::dequantize` takes it.
    """
    shift = 0
    if values.dtype is torch.uint8:
        shift = 2 ** (bits - 1)
        values = (values.to(torch.int32) - shift).to(torch.int8)
    wide: torch.Tensor = dequantize(values, scale, torch.float32, bits, axis)
    offset = (zero.reshape(scale.shape).to(torch.float32) - shift) * scale
    if scale.dim() == 1:
        offset = offset.reshape([-1 if index == axis else 1 for index in range(values.dim())])
    if scale.dim() < 2:
        return (wide - offset).to(dtype)
    parts, blocks = parts_of_blocks(values.shape, scale.shape)
    return (wide.reshape(parts) - offset.reshape(blocks)).reshape(values.shape).to(dtype)


def parts_of_blocks(shape: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the shapes in which the elements of blocks have an axis of their own, and what is one for each block."""
    parts: list[int] = []
    blocks: list[int] = []
    for extent, count in zip(shape, counts, strict=True):
        if count in (1, extent):
            parts.append(extent)
            blocks.append(count)
        else:
            parts += [count, extent // count]
            blocks += [count, 1]
    return parts, blocks
