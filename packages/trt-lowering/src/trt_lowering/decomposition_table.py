"""Which operators are decomposed, and by what."""

from __future__ import annotations

import enum
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx
from torch.nn import functional

from trt_core import CompilationSettings
from trt_core.internals import OpOverload, has_kernel, schema_name
from trt_core.modelopt_operators import modelopt_quantize, modelopt_quantize_blocks
from trt_core.operators import is_random, is_size_query
from trt_core.quantization import fake_quantize
from trt_lowering.internals import DisableTorchFunction, DispatchKey, core_decompositions, decomposition_table
from trt_lowering.open_sizes import OPEN_SIZES
from trt_lowering.operator_traits import SILENT_ALIASES, is_data_dependent, is_kept_in_torch
from trt_lowering.small_matrices import SMALL_MATRICES


def fake_quantize_per_tensor(
    self: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> torch.Tensor:
    """Decomposes `aten::fake_quantize_per_tensor_affine`, which quantization-aware training leaves in a model."""
    if zero_point == 0 and (quant_min, quant_max) == (-128, 127):
        return fake_quantize(self, torch.full((), scale, dtype=torch.float32, device=self.device))
    steps = (self * (1.0 / scale)).round() + zero_point
    return (steps.clamp(quant_min, quant_max) - zero_point) * scale


def quantize_per_token(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Decomposes `quantized_decomposed::quantize_per_token`: one scale for each row, in float32."""
    steps = input.to(torch.float32) * scales.to(torch.float32).reciprocal() + zero_points
    return steps.round().clamp(quant_min, quant_max).to(dtype)


def dequantize_per_token(
    input: torch.Tensor,
    scales: torch.Tensor,
    zero_points: torch.Tensor,
    quant_min: int,
    quant_max: int,
    dtype: torch.dtype,
    output_dtype: torch.dtype,
) -> torch.Tensor:
    """Decomposes `quantized_decomposed::dequantize_per_token`; see `quantize_per_token`."""
    steps = input.to(torch.float32) - zero_points.to(torch.float32)
    return (steps * scales.to(torch.float32)).to(output_dtype)


def scaled_mm(
    self: torch.Tensor,
    mat2: torch.Tensor,
    scale_a: Sequence[torch.Tensor],
    recipe_a: Sequence[int],
    swizzle_a: Sequence[int],
    scale_b: Sequence[torch.Tensor],
    recipe_b: Sequence[int],
    swizzle_b: Sequence[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    contraction_dim: Sequence[int] = (),
    use_fast_accum: bool = False,
) -> torch.Tensor:
    """Decomposes `aten::_scaled_mm_v2`, which `torch.nn.functional.scaled_mm` calls, into `aten::_scaled_mm`.

    Raises:
        NotImplementedError: There are scales of blocks, or several levels of them.
    """
    plain = all(list(recipe) in ([0], [1]) for recipe in (recipe_a, recipe_b))  # of tensors, of rows
    if not plain or any((*swizzle_a, *swizzle_b, *contraction_dim)):
        raise NotImplementedError("scales of blocks")
    rows, columns = scale_a[0], scale_b[0]
    if list(recipe_a) == list(recipe_b) == [1]:
        rows, columns = rows.reshape(-1, 1), columns.reshape(1, -1)
    return torch._scaled_mm(
        self, mat2, scale_a=rows, scale_b=columns, bias=bias, out_dtype=out_dtype, use_fast_accum=use_fast_accum
    )


def _from_library(name: str) -> Callable[..., Any]:
    """Returns an operator of `quantized_decomposed` as PyTorch's own module defines it, in other operators."""

    def run(*args: Any, **kwargs: Any) -> Any:
        module = importlib.import_module("torch.ao.quantization.fx._decomposed")
        return getattr(module, name)(*args, **kwargs)

    return run


QUANTIZATION_DECOMPOSITIONS: Final[dict[str, Callable[..., Any]]] = {
    "tensorrt::quantize_op": modelopt_quantize,
    "tensorrt::dynamic_block_quantize_op": modelopt_quantize_blocks,
    "tensorrt::dynamic_block_quantize_op.overload": modelopt_quantize_blocks,
    "aten::_scaled_mm_v2": scaled_mm,
    "aten::fake_quantize_per_tensor_affine": fake_quantize_per_tensor,
    "quantized_decomposed::quantize_per_token": quantize_per_token,
    "quantized_decomposed::dequantize_per_token": dequantize_per_token,
    **{
        f"quantized_decomposed::{operator}": _from_library(function)
        for operator, function in {
            "choose_qparams_per_token": "choose_qparams_per_token",
            "quantize_per_tensor.tensor2": "quantize_per_tensor_tensor2",
            "dequantize_per_tensor.tensor2": "dequantize_per_tensor_tensor2",
            "quantize_per_channel_group": "quantize_per_channel_group",
            "dequantize_per_channel_group": "dequantize_per_channel_group",
        }.items()
    },
}
"""Decompositions by operator."""


def short_time_fourier_transform(
    self: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Decomposes `aten::stft.center`, whose own kernel cuts frames out by strides.

    Args:
        self: (T,) or (N, T).
        n_fft, hop_length, win_length, center, pad_mode, normalized, onesided, return_complex: As `torch.stft` has them.
        window: (win_length,).
        align_to_window: Asked for by inverse transforms only.

    Returns:
        (N, frequencies, frames), complex; without N as the input, and with the parts in a last dimension of 2 where
        `return_complex` is False.
    """
    if align_to_window or not return_complex:
        raise NotImplementedError("forms of the short-time Fourier transform that PyTorch deprecates")
    signal = self if self.dim() == 2 else self.unsqueeze(0)
    if center:
        signal = torch.nn.functional.pad(signal.unsqueeze(1), [n_fft // 2] * 2, mode=pad_mode).squeeze(1)
    frames = signal.unfold(-1, n_fft, hop_length or n_fft // 4)
    length = win_length or n_fft
    if window is not None or length < n_fft:
        shape = torch.ones(length, dtype=self.dtype, device=self.device) if window is None else window
        left = (n_fft - length) // 2
        frames = frames * torch.nn.functional.pad(shape, [left, n_fft - length - left])
    norm = "ortho" if normalized else "backward"
    one_side = not self.is_complex() if onesided is None else onesided
    found = torch.fft.rfft(frames, norm=norm) if one_side else torch.fft.fft(frames, norm=norm)
    found = found.transpose(1, 2)
    squeezed: torch.Tensor = found if self.dim() == 2 else found.squeeze(0)
    return squeezed


def _quantized_and_mask(self: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


_RESULTS: Final[dict[str, Callable[..., Any]]] = {
    "aten::_transformer_encoder_layer_fwd": lambda src, *_, **__: torch.empty_like(src),  # PyTorch has it since 2.13
    "aten::fake_quantize_per_tensor_affine_cachemask": _quantized_and_mask,
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _quantized_and_mask,
    "aten::fake_quantize_per_channel_affine_cachemask": _quantized_and_mask,
}
"""Shapes of results that PyTorch may not know, by operator."""


@functools.cache
def declare_results() -> None:
    """Tells PyTorch the shapes of the results of operators that it does not know itself.

    Without them code that calls these is captured, by export and by Dynamo, for fixed sizes only. It knows
    them for every backend then.
    """
    for name, result in _RESULTS.items():
        if not has_kernel(name, "Meta"):
            torch.library.register_fake(name, result)


def transformer_encoder_layer(
    src: torch.Tensor,
    embed_dim: int,
    num_heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Decomposes `aten::_transformer_encoder_layer_fwd`, which `nn.TransformerEncoderLayer` calls at inference.

    Args:
        src: (N, L, E).
        mask: Nonzero where a key takes no part: (L, L) with `mask_type` 0, (N, L) with 1, (N, heads, L, L) with 2.
        mask_type: Which of the three.
        embed_dim, num_heads, use_gelu, norm_first, eps: As the layer has them.
        qkv_weight, qkv_bias: (3 E, E) and (3 E,): of queries, keys and values.
        proj_weight, proj_bias: (E, E) and (E,): behind the attention.
        norm_weight_1, norm_bias_1, norm_weight_2, norm_bias_2: (E,) each: of both norms.
        ffn_weight_1, ffn_bias_1, ffn_weight_2, ffn_bias_2: (F, E), (F,), (E, F) and (E,): of the feed-forward part.
    """

    def first_norm(value: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(value, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def second_norm(value: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(value, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    def attention(value: torch.Tensor) -> torch.Tensor:
        parts = functional.linear(value, qkv_weight, qkv_bias).chunk(3, dim=-1)
        query, key, content = (part.unflatten(-1, (num_heads, -1)).transpose(1, 2) for part in parts)
        found = functional.scaled_dot_product_attention(query, key, content, _keys_that_count(mask, mask_type))
        return functional.linear(found.transpose(1, 2).flatten(2), proj_weight, proj_bias)

    def feed_forward(value: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(value, ffn_weight_1, ffn_bias_1)
        active = functional.gelu(hidden) if use_gelu else functional.relu(hidden)
        return functional.linear(active, ffn_weight_2, ffn_bias_2)

    if norm_first:
        attended = src + attention(first_norm(src))
        return attended + feed_forward(second_norm(attended))
    attended = first_norm(src + attention(src))
    return second_norm(attended + feed_forward(attended))


def _keys_that_count(mask: torch.Tensor | None, mask_type: int | None) -> torch.Tensor | None:
    if mask is None:
        return None
    counts = mask.to(torch.bool).logical_not()
    return counts[:, None, None, :] if mask_type == 1 else counts


def is_in(
    elements: torch.Tensor, test_elements: torch.Tensor, *, assume_unique: bool = False, invert: bool = False
) -> torch.Tensor:
    """Decomposes `aten::isin`: compares each with each where numbers of elements vary.

    PyTorch's own compares or sorts, whichever so many elements make faster, and asks for their numbers.

    Args:
        elements, test_elements: Any shapes; the result has that of the first, and says which are among the second.
        assume_unique: Whether none is there twice, which does not matter here.
        invert: Whether the result says the opposite.
    """
    if all(isinstance(count, int) for count in (elements.numel(), test_elements.numel())):
        known: Callable[..., torch.Tensor] = decomposition_table[torch.ops.aten.isin.Tensor_Tensor]
        return known(elements, test_elements, assume_unique=assume_unique, invert=invert)
    found = (elements.unsqueeze(-1) == test_elements.flatten()).any(-1)
    return found.logical_not() if invert else found


def margins_of_labels(self: torch.Tensor, target: torch.Tensor, reduction: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Decomposes `aten::multilabel_margin_loss_forward`: PyTorch's own counts what stands behind the last label.

    Args:
        self: (N, C) or (C,).
        target: Labels, as many as `self` has elements; those of a row end at the first -1.
        reduction: 0 for a loss of each row, 1 for their mean, 2 for their sum.

    Returns:
        The loss, and 1 at each element whose number is a label, else 0.
    """
    rows, labels = torch.atleast_2d(self), torch.atleast_2d(target)
    classes = rows.shape[1]
    numbers = torch.arange(classes, device=self.device)
    ends = torch.where(labels == -1, numbers, classes).amin(1, keepdim=True)
    is_label = numbers < ends
    known = torch.where(is_label, labels, 0)
    chosen = (is_label.unsqueeze(2) & (known.unsqueeze(2) == numbers)).any(1)
    margins = (1 - rows.gather(1, known).unsqueeze(2) + rows.unsqueeze(1)).clamp_min(0)
    counts = is_label.unsqueeze(2) & chosen.logical_not().unsqueeze(1)
    losses = torch.where(counts, margins, 0).sum((1, 2)) / classes
    loss = losses.mean() if reduction == 1 else losses.sum() if reduction == 2 else losses.reshape(self.shape[:-1])
    return loss, chosen.to(self.dtype).reshape(target.shape)


def gated_cell(
    input: torch.Tensor,
    hx: torch.Tensor,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> torch.Tensor:
    """Decomposes `aten::gru_cell`, whose own kernel writes to parts of its products.

    Args:
        input: (N, inputs).
        hx: (N, H), the state, which the result is like.
        w_ih, w_hh: (3 * H, inputs) and (3 * H, H): what resets, what keeps, what is new.
        b_ih, b_hh: (3 * H,).
    """
    reset, kept, new = functional.linear(input, w_ih, b_ih).chunk(3, 1)
    reset_of_state, kept_of_state, new_of_state = functional.linear(hx, w_hh, b_hh).chunk(3, 1)
    proposed = (new + new_of_state * (reset_of_state + reset).sigmoid()).tanh()
    return (hx - proposed) * (kept_of_state + kept).sigmoid() + proposed


def long_memory_cell(
    input: torch.Tensor,
    hx: Sequence[torch.Tensor],
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None = None,
    b_hh: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Decomposes `aten::lstm_cell`, whose own kernel writes to parts of its products.

    Args:
        input: (N, inputs).
        hx: (N, H) twice, the state and what is remembered, which the results are like.
        w_ih, w_hh: (4 * H, inputs) and (4 * H, H): what is taken in, what is remembered, what is new, what is shown.
        b_ih, b_hh: (4 * H,).
    """
    gates = functional.linear(hx[0], w_hh, b_hh) + functional.linear(input, w_ih, b_ih)
    taken, remembered, new, shown = gates.chunk(4, 1)
    memory = remembered.sigmoid() * hx[1] + taken.sigmoid() * new.tanh()
    return shown.sigmoid() * memory.tanh(), memory


def _one_by_one(name: str, inputs: Sequence[torch.Tensor], *arguments: Any) -> list[torch.Tensor]:
    """Decomposes a collective of several tensors into one of each, which what waits for them is given singly."""
    operators: Any = torch.ops._c10d_functional
    operator = getattr(operators, name)
    return [operator(tensor, *arguments) for tensor in inputs]


COLLECTIVE_DECOMPOSITIONS: Final[dict[str, Callable[..., Any]]] = {
    f"_c10d_functional::{name}_coalesced": functools.partial(_one_by_one, name)
    for name in ("all_gather_into_tensor", "all_reduce", "reduce_scatter_tensor")
}
"""Decompositions of `_c10d_functional`, by operator."""


_UNFAITHFUL: Final = frozenset(
    f"aten::{name}.{overload}"
    for name in ("linspace", "logspace")
    for overload in ("Tensor_Tensor", "Tensor_Scalar", "Scalar_Tensor")
)
"""Operators whose decomposition differs from them: integer results are truncated from other intermediate values."""

_ONE_LIBRARY: Final = frozenset({"aten::lstm.input"})
"""Operators that PyTorch decomposes on the CPU into one of oneDNN's, which nothing converts and no program may hold."""

_OWN: Final[dict[str, Callable[..., Any]]] = {
    "aten::_transformer_encoder_layer_fwd": transformer_encoder_layer,
    **QUANTIZATION_DECOMPOSITIONS,
    **COLLECTIVE_DECOMPOSITIONS,
    **OPEN_SIZES,
    "aten::isin.Tensor_Tensor": is_in,
    **SMALL_MATRICES,
    "aten::multilabel_margin_loss_forward": margins_of_labels,
    "aten::gru_cell": gated_cell,
    "aten::lstm_cell": long_memory_cell,
    "aten::stft.center": short_time_fourier_transform,
    "aten::_neg_view": torch.neg,
}
"""Decompositions by operator."""

Preserve = Callable[[OpOverload], bool]
"""Says whether an operator has a converter, and therefore stays whole."""


class Source(enum.Enum):
    """Where a decomposition comes from, which decides how far it is trusted."""

    OWN = "a table of ours, for operators that PyTorch does not decompose, or not into operators that convert"
    COMPOSITE = "the operator's own composite kernel"
    CORE = "the core ATen table"
    REFERENCE = "PyTorch's wider table"


@dataclass(frozen=True)
class Decomposition:
    """A decomposition of one operator.

    Attributes:
        function: Computes the operator out of others, with the operator's arguments.
        source: Where it comes from. A `REFERENCE` decomposition is used only when everything that it leads to has a
            converter: it may lead far away from ATen, and a whole operator in PyTorch beats its fragments there.
    """

    function: Callable[..., Any]
    source: Source


class DecompositionRules:
    """Decides for each operator whether it stays whole.

    Args:
        preserve: Whether an operator has a converter.
        settings: `torch_executed_ops` stay whole; `enable_experimental_decompositions` decomposes whatever the core
            ATen decompositions cover, even with a converter.
    """

    def __init__(self, preserve: Preserve, settings: CompilationSettings) -> None:
        self._preserve = preserve
        self._settings = settings
        self._kept: dict[OpOverload, bool] = {}

    def keeps(self, target: OpOverload) -> bool:
        """Whether the operator stays whole by rule, before asking whether a decomposition exists."""
        known = self._kept.get(target)
        if known is None:
            known = self._kept[target] = self._decide(target)
        return known

    def keeps_call(self, node: fx.Node) -> bool:
        """Whether a call of an operator stays whole by rule.

        An `einsum` of one tensor does not: where it names axes only, it returns a view.
        """
        target = node.target
        assert isinstance(target, OpOverload)
        if target is torch.ops.aten.einsum.default and len(node.args[1]) == 1:  # type: ignore[arg-type]
            return is_kept_in_torch(target, self._settings)
        return self.keeps(target)

    def has_converter(self, target: OpOverload) -> bool:
        """Whether the operator counts as a goal of decomposition."""
        return is_size_query(target) or self._preserve(target)

    def whole_program_table(self) -> dict[OpOverload, Callable[..., Any]]:
        """Returns the table with which `ExportedProgram.run_decompositions` keeps the same operators whole.

        Operators whose schema declares a view cannot be kept by it and are decomposed to simpler views. Those that may
        return their operand without saying so are taken apart: a write to what they return would reach nothing else.
        """
        table = torch.export.default_decompositions()
        for target in list(table):
            if not isinstance(target, OpOverload):
                continue
            if is_random(target) or (self.keeps(target) and schema_name(target) not in SILENT_ALIASES):
                del table[target]
            elif target.name() in _OWN:
                table[target] = _OWN[target.name()]
        return table  # type: ignore[return-value]

    def _decide(self, target: OpOverload) -> bool:
        if is_size_query(target) or is_data_dependent(target) or target.name() in _UNFAITHFUL | _ONE_LIBRARY:
            return True
        if is_kept_in_torch(target, self._settings):
            return True
        if not self._preserve(target):
            return False
        if not self._settings.enable_experimental_decompositions:
            return True
        found = find_decomposition(target)
        return found is None or found.source is Source.REFERENCE


@functools.cache
def find_decomposition(target: OpOverload) -> Decomposition | None:
    """Returns the decomposition of an operator, None when PyTorch has none."""
    own = _OWN.get(target.name())
    if own is not None:
        return Decomposition(own, Source.OWN)
    if is_composite(target):
        return Decomposition(functools.partial(_run_composite, target), Source.COMPOSITE)
    core = _core_table().get(target)
    if core is not None:
        return Decomposition(core, Source.CORE)
    reference = decomposition_table.get(target)
    if reference is not None:
        return Decomposition(reference, Source.REFERENCE)
    return None


@functools.cache
def is_composite(target: OpOverload) -> bool:
    """Whether the operator is defined by other operators (`CompositeImplicitAutograd`)."""
    key = DispatchKey.CompositeImplicitAutograd
    return key in target.py_kernels or has_kernel(target.name(), key)


def _run_composite(target: OpOverload, *args: Any, **kwargs: Any) -> Any:
    # a torch function mode of the tracer would send the call back to the operator itself
    with DisableTorchFunction():
        return target.decompose(*args, **kwargs)


@functools.lru_cache(maxsize=1)
def _core_table() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = core_decompositions()
    return table
