"""Attention: a facade over two boundary layers, and the methods that add it."""

from __future__ import annotations

from typing import Any

from trt_portable.arguments import to_boolean, to_integer
from trt_portable.enums import AttentionNormalizationOp, CausalMaskKind
from trt_portable.errors import Refusal
from trt_portable.layers.attention_ends import (
    KEY_LENGTHS,
    MASK,
    QUERY_LENGTHS,
    SCALE,
    IAttentionInputLayer,
    IAttentionOutputLayer,
)
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.tensor import ITensor
from trt_portable.sealed import Sealed


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
