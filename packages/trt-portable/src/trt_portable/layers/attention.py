"""Attention: a facade over two boundary layers, of which the second one computes, and the methods that add it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F

from trt_portable.attributes import boolean, element_type, member, number
from trt_portable.dtypes import FLOATS, round_to
from trt_portable.enums import (
    AttentionIOForm,
    AttentionNormalizationOp,
    CausalMaskKind,
    DataType,
    LayerType,
)
from trt_portable.errors import Refusal
from trt_portable.kernels.operands import attend
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound
from trt_portable.layers.products import multiply
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.layer import ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_rank, require_type
from trt_portable.pybind import Sealed, to_boolean, to_integer
from trt_portable.shape_tensors import Value, as_tensor

MASK, SCALE, QUERY_LENGTHS, KEY_LENGTHS = 3, 4, 5, 6
_SLOTS: Final = 7


class IAttentionBoundaryLayer(ILayer):
    """One end of an attention."""

    _attention: IAttention | None = None

    @property
    def attention(self) -> IAttention | None:
        """The attention that this layer is an end of."""
        return self._attention


class IAttentionInputLayer(IAttentionBoundaryLayer):
    """Where query, key, value and mask enter an attention; it has no outputs of its own."""

    _KIND = LayerType.ATTENTION_INPUT
    _MAX_INPUTS = _SLOTS

    def _contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        return 0, 0

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        return ()


class IAttentionOutputLayer(IAttentionBoundaryLayer):
    """Where the result of an attention leaves it; it computes the whole of it.

    Inputs: 0 query (B, H, S, D), 1 key and 2 value (B, H', S', D), H' dividing H; optional 3 mask,
    4 quantization scale, 5 query lengths, 6 key and value lengths. Nothing is scaled.
    """

    _KIND = LayerType.ATTENTION_OUTPUT
    _MAX_INPUTS = _SLOTS
    _DEFERRED = True

    norm_op = member(AttentionNormalizationOp, AttentionNormalizationOp.SOFTMAX)
    causal_kind = member(CausalMaskKind, CausalMaskKind.NONE)
    decomposable = boolean(False)
    query_form = member(AttentionIOForm, AttentionIOForm.PADDED_BHND)
    key_value_form = member(AttentionIOForm, AttentionIOForm.PADDED_BHND)
    normalization_quantize_to_type = element_type(DataType.FLOAT)

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        query, key, value = inputs[:3]
        assert query is not None and key is not None and value is not None
        require_equal_types((query, key, value), "query, key and value")
        require_type(query, FLOATS, "the query")
        for tensor, what in ((query, "query"), (key, "key"), (value, "value")):
            require_rank(tensor, {3, 4}, f"the {what}")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        query, key, value = inputs[:3]
        assert query is not None and key is not None and value is not None
        for tensor, what, form in (
            (query, "query", self.query_form),
            (key, "key", self.key_value_form),
            (value, "value", self.key_value_form),
        ):
            packed = form is AttentionIOForm.PACKED_NHD
            require_rank(tensor, {3 if packed else 4}, f"the {what} in form {form.name}")
            heads = (tensor._extents or ())[1]
            require(type(heads) is int, f"the head extent of the {what} must be constant")
        heads, groups = (query._extents or ())[1], (key._extents or ())[1]
        require(groups > 0 and heads % groups == 0, f"{heads} query heads for {groups} key heads")
        require((value._extents or ())[1] == groups, "key and value have different numbers of heads")
        depths = {e for e in ((query._extents or ())[-1], (key._extents or ())[-1]) if type(e) is int}
        require(len(depths) <= 1, f"the head sizes {sorted(depths)} of query and key differ")
        self._check_mask(inputs, query, key)
        packed_query = self.query_form is AttentionIOForm.PACKED_NHD
        packed_key = self.key_value_form is AttentionIOForm.PACKED_NHD
        for slot, needed, what in (
            (QUERY_LENGTHS, packed_query, "query_lengths"),
            (KEY_LENGTHS, packed_key, "key_value_lengths"),
        ):
            lengths = inputs[slot] if slot < len(inputs) else None
            require(lengths is not None or not needed, f"packed sequences need {what}")
            if lengths is not None:
                require_type(lengths, {DataType.INT32}, what)
                require_rank(lengths, {1}, what)
        require(packed_query == packed_key or not packed_query, "a packed query needs packed keys")

    def _check_complete(self) -> None:
        scale, kind = self._input(SCALE), self.normalization_quantize_to_type
        if scale is None:
            require(kind is DataType.FLOAT, f"weights quantized to {kind.name} need normalization_quantize_scale")
            return
        require(
            kind in (DataType.FP8, DataType.INT8),
            f"weights with a scale are quantized to FP8 or INT8, not {kind.name}: set normalization_quantize_to_type",
        )
        require_type(scale, FLOATS, "normalization_quantize_scale")
        require((scale._extents or ()) in ((), (1,)), "normalization_quantize_scale has one element")

    def _check_mask(self, inputs: Sequence[ITensor | None], query: ITensor, key: ITensor) -> None:
        mask = inputs[MASK] if len(inputs) > MASK else None
        if mask is None:
            return
        require(self.causal_kind is CausalMaskKind.NONE, "a mask excludes a causal mask")
        require_type(mask, {DataType.BOOL, query._dtype}, "the mask")
        require_rank(mask, {4}, "the mask")
        wanted: tuple[Any, ...] = (query._extents or ())[:2]
        if self.query_form is AttentionIOForm.PADDED_BHND:
            wanted = (*wanted, (query._extents or ())[2], (key._extents or ())[-2])
            for axis, (have, want) in enumerate(zip(mask._extents or (), wanted, strict=False)):
                fixed = type(have) is int and type(want) is int
                require(
                    not fixed or have in ((1, want) if axis < 2 else (want, 1)),
                    f"the mask has extent {have} on axis {axis}, not {want}",
                )

    def _contract(self, inputs: Sequence[Value | None]) -> Bound | None:
        query, key, value, *others = inputs
        assert query is not None and key is not None and value is not None
        if (
            AttentionIOForm.PACKED_NHD in (self.query_form, self.key_value_form)
            or min(query.ndim, key.ndim, value.ndim) < 3
        ):
            return None  # lengths decide
        mask = others[0] if others else None
        return contracts.attention(query.shape, key.shape, value.shape, () if mask is None else mask.shape)

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        operands = [None if value is None else as_tensor(value) for value in inputs]
        query, key, value, mask, scale, query_lengths, key_lengths = (
            *operands,
            *([None] * _SLOTS),
        )[:_SLOTS]
        assert query is not None and key is not None and value is not None
        if self.query_form is AttentionIOForm.PACKED_NHD:
            assert query_lengths is not None and key_lengths is not None
            return (self._packed(query, key, value, mask, scale, query_lengths, key_lengths),)
        if self.key_value_form is AttentionIOForm.PACKED_NHD:
            assert key_lengths is not None
            return (self._packed_keys(query, key, value, mask, scale, key_lengths),)
        if key_lengths is not None:
            steps = torch.arange(key.shape[-2], device=key.device)
            inside = (steps < key_lengths.reshape(-1, 1)).reshape(-1, 1, 1, steps.shape[0])
            mask = _joined(mask, inside)
        return (self._attend(query, key, value, mask, scale),)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attention of (..., H, S, D); a scale makes the weights go through Q/DQ before they meet the values."""
        kind = self.causal_kind
        upper = kind is CausalMaskKind.UPPER_LEFT
        softmax = self.norm_op is AttentionNormalizationOp.SOFTMAX
        fused = softmax and scale is None and query.device.type != "meta" and kind is not CausalMaskKind.LOWER_RIGHT
        fused = fused and key.shape[:-3] == query.shape[:-3]  # others broadcast
        if fused and not (upper and mask is not None):
            return attend(query, key, value, mask, is_causal=upper, factor=self._factor)
        if self._factor != 1.0:
            query = query * self._factor
        repeats = query.shape[-3] // key.shape[-3]
        if repeats != 1:
            key = key.repeat_interleave(repeats, -3)
            value = value.repeat_interleave(repeats, -3)
        scores = multiply(query, key.mT)
        if kind is not CausalMaskKind.NONE:
            mask = _joined(mask, self._causal(query, key))
        if mask is not None and mask.dtype is not torch.bool:
            scores = scores + mask
        elif mask is not None:
            outside = float("-inf") if softmax else 0.0
            scores = torch.where(mask, scores, torch.full((), outside, dtype=scores.dtype, device=scores.device))
        weights = F.softmax(scores, -1) if softmax else scores
        if scale is not None and not query.is_meta:  # extents are inferred before the type is set
            factor = scale.to(torch.float32).reshape(())
            codes = round_to(weights.to(torch.float32) / factor, self.normalization_quantize_to_type)
            weights = (codes.to(torch.float32) * factor).to(weights.dtype)
        return multiply(weights, value)

    @property
    def _factor(self) -> float:
        """Factor of the scores; TensorRT's layer has none."""
        return 1.0

    def _causal(self, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        rows, columns = query.shape[-2], key.shape[-2]
        shift = columns - rows if self.causal_kind is CausalMaskKind.LOWER_RIGHT else 0
        row = torch.arange(rows, device=query.device).unsqueeze(-1)
        return torch.arange(columns, device=query.device) <= row + shift

    def _packed(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: torch.Tensor | None,
        query_ends: torch.Tensor,
        key_ends: torch.Tensor,
    ) -> torch.Tensor:
        """Sequences laid end to end, (tokens, H, D); ends (B + 1,) begin with 0."""
        if query.device.type == "meta":
            return torch.empty_like(query)
        ends, others = query_ends.tolist(), key_ends.tolist()
        parts = []
        for batch in range(len(ends) - 1):
            q, k, v = (
                tensor[low:high].transpose(0, 1).unsqueeze(0)
                for tensor, low, high in (
                    (query, ends[batch], ends[batch + 1]),
                    (key, others[batch], others[batch + 1]),
                    (value, others[batch], others[batch + 1]),
                )
            )
            part = None
            if mask is not None:
                part = mask[min(batch, mask.shape[0] - 1), :, : q.shape[2], : k.shape[2]].unsqueeze(0)
            parts.append(self._attend(q, k, v, part, scale).squeeze(0).transpose(0, 1))
        return torch.cat(parts) if parts else torch.zeros_like(query)

    def _packed_keys(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: torch.Tensor | None,
        key_ends: torch.Tensor,
    ) -> torch.Tensor:
        """Padded queries (B, H, S, D) over packed keys and values (tokens, H, D)."""
        if query.device.type == "meta":
            return torch.empty_like(query)
        ends = key_ends.tolist()
        parts = []
        for batch in range(query.shape[0]):
            k, v = (tensor[ends[batch] : ends[batch + 1]].transpose(0, 1).unsqueeze(0) for tensor in (key, value))
            part = None
            if mask is not None:
                part = mask[min(batch, mask.shape[0] - 1), :, :, : k.shape[2]].unsqueeze(0)
            parts.append(self._attend(query[batch : batch + 1], k, v, part, scale))
        return torch.cat(parts) if parts else torch.zeros_like(query)


def _joined(mask: torch.Tensor | None, inside: torch.Tensor) -> torch.Tensor:
    """A mask that also leaves out what `inside` leaves out."""
    if mask is None:
        return inside
    if mask.dtype is torch.bool:
        return mask & inside
    low = torch.full((), float("-inf"), dtype=mask.dtype, device=mask.device)
    return torch.where(inside, mask, low)


def _forwarded(name: str, doc: str) -> Any:
    """A property of the facade that the output layer holds; a wrong value raises RuntimeError."""

    def read(self: IAttention) -> Any:
        return getattr(self._output, name)

    def write(self: IAttention, value: Any) -> None:
        setattr(self._output, name, value)

    return property(read, write, doc=doc)


def _slot(index: int, doc: str) -> Any:
    """A property of the facade that holds an optional input."""

    def read(self: IAttention) -> ITensor | None:
        return self._output._input(index)

    def write(self: IAttention, tensor: ITensor) -> None:
        self._set_slot(index, tensor)

    return property(read, write, doc=doc)


class IAttention(Sealed):
    """``softmax(Q K^T + mask) V``. The query must be scaled beforehand: nothing is scaled here."""

    def __init__(self) -> None:
        raise TypeError("trt_portable.IAttention: No constructor defined!")

    _input: IAttentionInputLayer
    _output: IAttentionOutputLayer

    norm_op = _forwarded("norm_op", "What turns scores into weights.")
    causal_kind = _forwarded("causal_kind", "The kind of causal mask.")
    decomposable = _forwarded("decomposable", "Whether several kernels may replace a fused one.")
    query_form = _forwarded("query_form", "How query sequences are laid out.")
    key_value_form = _forwarded("key_value_form", "How key and value sequences are laid out.")
    normalization_quantize_to_type = _forwarded(
        "normalization_quantize_to_type", "Type to which weights are quantized: FP8 or INT8."
    )
    mask = _slot(MASK, "bool (True attends) or additive, (B or 1, H or 1, S, S').")
    normalization_quantize_scale = _slot(SCALE, "Scale of quantized weights.")
    query_lengths = _slot(QUERY_LENGTHS, "int32: ends of packed queries, (B + 1,).")
    key_value_lengths = _slot(KEY_LENGTHS, "int32: ends of packed keys, or lengths (B,).")
    num_ranks = _forwarded("num_ranks", "Number of devices.")

    @property
    def name(self) -> str:
        """The name."""
        return self._output.name

    @name.setter
    def name(self, name: str) -> None:
        self._output.name = name
        self._input.name = f"{name} [input]"

    @property
    def metadata(self) -> str:
        """Free text that the inspector shows."""
        return self._output.metadata

    @metadata.setter
    def metadata(self, metadata: str) -> None:
        self._output.metadata = metadata

    @property
    def causal(self) -> bool:
        """Whether a causal mask anchored at the upper left applies."""
        return bool(self._output.causal_kind is CausalMaskKind.UPPER_LEFT)

    @causal.setter
    def causal(self, causal: bool) -> None:
        on = to_boolean(causal)
        self._output.causal_kind = CausalMaskKind.UPPER_LEFT if on else CausalMaskKind.NONE

    @property
    def num_inputs(self) -> int:
        """Number of inputs: query, key and value."""
        return 3

    @property
    def num_outputs(self) -> int:
        """Number of outputs."""
        return 1

    def get_input(self, index: int) -> ITensor | None:
        """Query, key or value."""
        position = to_integer(index)
        return self._output._input(position) if 0 <= position < 3 else None

    def get_output(self, index: int) -> ITensor | None:
        """The result, of the shape of the query."""
        return self._output.get_output(index)

    def set_input(self, index: int, tensor: ITensor) -> bool:
        """Replaces query, key or value; False if refused."""
        position = to_integer(index)
        if not 0 <= position < 3:
            return False
        self._set_slot(position, expect_tensor(tensor, "tensor"))
        return True

    def _set_slot(self, index: int, tensor: ITensor) -> None:
        self._output.set_input(index, tensor)
        self._input.set_input(index, tensor)


class AttentionLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_attention_v2(
        self,
        query: ITensor,
        key: ITensor,
        value: ITensor,
        norm_op: AttentionNormalizationOp,
        causal_kind: CausalMaskKind,
    ) -> IAttention | None:
        """Adds an attention; set ``mask`` and the rest on it.

        Args:
            query: (B, H, S, D), float types, scaled beforehand.
            key: (B, H', S', D), H' dividing H.
            value: (B, H', S', D).
            norm_op: What turns scores into weights.
            causal_kind: The kind of causal mask.
        """
        operands = (
            expect_tensor(query, "query"),
            expect_tensor(key, "key"),
            expect_tensor(value, "value"),
        )
        last = IAttentionOutputLayer._create(norm_op=norm_op, causal_kind=causal_kind)
        try:
            last._inputs = list(operands)
            self._check_inputs(last)
            last._check_operands(operands)
        except Refusal as refusal:
            last._name = self._default_name(last)
            self._reporter.refuse(last._subject(), refusal)
            return None
        first = self._add(IAttentionInputLayer._create(), *operands)
        added = self._add(last, *operands)
        if first is None or added is None:
            return None
        attention = IAttention.__new__(IAttention)
        attention._input, attention._output = first, added
        first._attention = added._attention = attention
        return attention

    def add_attention(
        self,
        query: ITensor,
        key: ITensor,
        value: ITensor,
        norm_op: AttentionNormalizationOp,
        causal: bool,
    ) -> IAttention | None:
        """Adds an attention, causal from the upper left or not at all; see `add_attention_v2`."""
        kind = CausalMaskKind.UPPER_LEFT if to_boolean(causal) else CausalMaskKind.NONE
        return self.add_attention_v2(query, key, value, norm_op, kind)


class ScaledAttentionLayer(IAttentionOutputLayer):
    """``softmax(factor * Q K^T + mask) V``.

    Kernels of attention have the factor at hand; a layer of its own would read and write the query once more.
    """

    _KIND = LayerType.ATTENTION_OUTPUT  # the kind of TensorRT's that comes closest

    factor = number(1.0, "Factor of the scores.")

    @classmethod
    def _plan_type(cls) -> str:
        return "SCALED_ATTENTION"

    @property
    def _factor(self) -> float:
        return self.factor
