"""Layers of transformers: attention, rotary embedding, key-value cache, mixture of experts.

Attention is a facade over two boundary layers, of which the second one computes, and the methods that add it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

import torch
import torch.nn.functional as F

from trt_portable.dims import Dims, DimsLike, as_dims
from trt_portable.dtypes import FLOATS, INDICES, round_to
from trt_portable.enums import (
    AttentionIOForm,
    AttentionNormalizationOp,
    CausalMaskKind,
    DataType,
    KVCacheMode,
    LayerType,
    MoEActType,
)
from trt_portable.errors import Refusal, optional, present
from trt_portable.kernels.operands import attend
from trt_portable.layer_properties import boolean, dims, element_type, integer, member, number
from trt_portable.layers import contracts
from trt_portable.layers.contracts import Bound
from trt_portable.layers.products import multiply
from trt_portable.layers.quantization import quantize_blocks
from trt_portable.network.definition import LayerFactory, expect_tensor
from trt_portable.network.inference import are_symbolic, attended
from trt_portable.network.layer import Facts, ILayer, ITensor
from trt_portable.network.rules import require, require_equal_types, require_rank, require_tensor, require_type
from trt_portable.pybind import Sealed, forwarded, to_boolean, to_integer
from trt_portable.shape_tensors import Value, as_tensor, tensor_at

if TYPE_CHECKING:
    from trt_portable.network.symbols import Symbols


class IRotaryEmbeddingLayer(ILayer):
    """Rotates pairs of elements by angles that grow with the position.

    Inputs: 0 x (B, H, S, D); 1 and 2 cosines and sines (B, S, R / 2), or (positions, R / 2) with
    optional 3, position ids (B, S).
    """

    _KIND = LayerType.ROTARY_EMBEDDING
    _LIKE_FIRST_INPUT = True
    _MAX_INPUTS = 4
    _DEFERRED = True

    interleaved = boolean(False, "Whether pairs are neighbours, or half the rotated part apart.")
    rotary_embedding_dim = integer(0, "Elements that are rotated, R; 0 for all.")

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        x, cosines, sines = map(present, inputs[:3])
        require_equal_types((x, cosines, sines), "input and caches")
        require_tensor(x, "the input", FLOATS, ranks={4})
        part = self.rotary_embedding_dim
        require(part >= 0 and part % 2 == 0, f"{part} elements cannot be rotated in pairs")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        x, cosines, sines = map(present, inputs[:3])
        ids = optional(inputs, 3)
        for cache in (cosines, sines):
            require_rank(cache, {3 if ids is None else 2}, "a cache")
        require_tensor(ids, "the position ids", INDICES, ranks={2})
        depth = (x._extents or ())[-1]
        part = self.rotary_embedding_dim or depth
        half = (cosines._extents or ())[-1]
        if type(part) is int and type(half) is int:
            require(half * 2 == part, f"caches of {half} for {part} rotated elements")
        if type(depth) is int and type(part) is int:
            require(part <= depth, f"{part} elements of {depth} cannot be rotated")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        x, cosines, sines = map(as_tensor, inputs[:3])
        ids = tensor_at(inputs, 3)
        if ids is not None:
            at = ids.reshape(-1)
            cosines, sines = (
                cache.index_select(0, at).reshape([*ids.shape, cache.shape[-1]]) for cache in (cosines, sines)
            )
        cosines, sines = cosines.unsqueeze(1), sines.unsqueeze(1)
        part: Any = self.rotary_embedding_dim or x.shape[-1]
        turned = x.narrow(-1, 0, part)
        half = part // 2
        if self.interleaved:
            pairs = turned.unflatten(-1, (half, 2))
            first, second = pairs.select(-1, 0), pairs.select(-1, 1)
        else:
            first, second = turned.narrow(-1, 0, half), turned.narrow(-1, half, half)
        real = first * cosines - second * sines
        imaginary = first * sines + second * cosines
        if self.interleaved:
            result = torch.stack((real, imaginary), -1).flatten(-2)
        else:
            result = torch.cat((real, imaginary), -1)
        if self.rotary_embedding_dim:
            rest = x.narrow(-1, part, x.shape[-1] - part)
            result = torch.cat((result, rest), -1)
        return (result,)


class IKVCacheUpdateLayer(ILayer):
    """A cache with new keys or values written at each sequence's position; in place in an engine.

    Inputs: 0 cache (B, H, Smax, D), 1 update (B, H, S, D) or packed (tokens, H, D), 2 write indices
    (B,); optional 3 update lengths: (B,) when padded, ends (B + 1,) when packed. What would be written
    outside the cache is dropped.
    """

    _KIND = LayerType.KV_CACHE_UPDATE
    _LIKE_FIRST_INPUT = True
    _MAX_INPUTS = 4
    _DEFERRED = True
    _ALIASES: ClassVar[dict[int, int]] = {0: 0}

    cache_mode = member(KVCacheMode, KVCacheMode.LINEAR, "How the cache is addressed.")
    update_form = member(AttentionIOForm, AttentionIOForm.PADDED_BHND, "How the update is laid out.")

    @property
    def update_lengths(self) -> ITensor | None:
        """The lengths or ends of the sequences of the update."""
        return self._input(3)

    @update_lengths.setter
    def update_lengths(self, tensor: ITensor) -> None:
        self.set_input(3, tensor)

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        cache, update, places = map(present, inputs[:3])
        require_equal_types((cache, update), "cache and update")
        others = {DataType.INT8, DataType.FP8} | INDICES  # codes and counters, which TensorRT's layer refuses
        require_tensor(cache, "the cache", FLOATS | others, ranks={4})
        require_rank(update, {3, 4}, "the update")
        require_tensor(places, "the write indices", INDICES, ranks={1})

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        cache, update, lengths = present(inputs[0]), present(inputs[1]), optional(inputs, 3)
        packed = self.update_form is AttentionIOForm.PACKED_NHD
        require_rank(update, {3 if packed else 4}, f"an update in form {self.update_form.name}")
        require(lengths is not None or not packed, "a packed update needs update_lengths")
        require_tensor(lengths, "the update lengths", {DataType.INT32}, ranks={1})
        pairs = ((1, 1), (3, 2)) if packed else ((0, 0), (1, 1), (3, 3))
        for axis, other in pairs:
            have, want = (update._extents or ())[other], (cache._extents or ())[axis]
            require(
                type(have) is not int or type(want) is not int or have == want,
                f"the update has extent {have} where the cache has {want}",
            )

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        cache, places, rows = self._written(inputs)
        return (torch.ops.aten._unsafe_index_put.default(cache, places, rows),)

    def _compute_in_place(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        """As `_compute`, in the memory of the cache, of which nothing but the new rows is written."""
        cache, update, start = map(as_tensor, inputs[:3])
        lengths = tensor_at(inputs, 3)
        if cache.device.type == "cpu" and update.dim() == 4 and lengths is None:
            _copy_rows(cache, update, start.tolist())
            return (cache,)
        _, places, rows = self._written(inputs)
        return (cache.index_put_(tuple(places), rows),)

    def _written(self, inputs: Sequence[Value | None]) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor]:
        """The cache, where it is written, as indices of its first three axes, and what is written there.

        As many rows are written as the update has. In place of one that is dropped, the nearest one that is not is
        written once more; where all are, what the cache has there already.
        """
        cache, update, start = map(as_tensor, inputs[:3])
        lengths = tensor_at(inputs, 3)
        batch, heads, most, _ = cache.shape
        is_packed = self.update_form is AttentionIOForm.PACKED_NHD
        count: Any = update.shape[0 if is_packed else 2]
        begin = start.to(torch.int64).unsqueeze(-1)
        low, high = (-begin).clamp(min=0), most - 1 - begin
        if lengths is not None:
            last = (lengths[1:] - lengths[:-1] if is_packed else lengths).to(torch.int64).unsqueeze(-1) - 1
            high = torch.where(last < high, last, high)
        source = torch.arange(count, device=cache.device)
        source = torch.where(source < low, low, source)
        source = torch.where(source > high, high, source)
        is_kept = (source >= low) & (source < count)
        place = (begin + source).clamp(0, most - 1)  # those of no row leave 64 bits
        source = torch.where(is_kept, source, torch.zeros_like(source))
        every = [batch, heads, count]
        first = torch.arange(batch, device=cache.device).reshape(-1, 1, 1).expand(every)
        second = torch.arange(heads, device=cache.device).reshape(1, -1, 1).expand(every)
        if is_packed:
            assert lengths is not None
            at = source + lengths[:-1].unsqueeze(-1)
            at = torch.where(at < count, at, torch.zeros_like(at))
            rows = update.index_select(0, at.reshape(-1)).reshape([*at.shape, *update.shape[1:]]).transpose(1, 2)
        elif type(count) is int and count == 1:
            rows = update
        else:
            rows = _pick(update, [first, second, source.unsqueeze(1).expand(every)])
        places = [first, second, place.unsqueeze(1).expand(every)]
        return cache, places, torch.where(is_kept.unsqueeze(1).unsqueeze(-1), rows, _pick(cache, places))


_pick: Any = torch.ops.aten._unsafe_index.Tensor
"""Indexing by places that are known to be inside."""


def _copy_rows(cache: torch.Tensor, update: torch.Tensor, starts: Sequence[int]) -> None:
    """Writes an update in place, each row of the batch from a place of its own on; what lies outside is dropped."""
    most, count = cache.shape[2], update.shape[2]
    is_one = len(set(starts)) == 1
    for row, start in enumerate(starts[:1] if is_one else starts):
        rows = slice(None) if is_one else slice(row, row + 1)
        low, high = max(-start, 0), min(most - start, count)
        if low < high:
            cache[rows, :, start + low : start + high].copy_(update[rows, :, low:high])


_GATE, _BIAS, _QUANTIZER = 3, 6, 9


class IMoELayer(ILayer):
    """A mixture of experts: the weighted sum of the chosen experts' feed-forward networks.

    Inputs: 0 hidden states (B, S, D), 1 chosen experts (B, S, K), integers, 2 their scores (B, S, K);
    3 gate and 4 up (E, D, I), 5 down (E, I, D); optional 6 to 8 their biases (E, I), (E, I), (E, D);
    optional 9 the scale of quantized activations.
    """

    _KIND = LayerType.MOE
    _MAX_INPUTS = 10
    _DEFERRED = True

    activation_type = member(MoEActType, MoEActType.SILU, "The activation of the gate.")
    quantization_to_type = element_type(DataType.FLOAT, "FP8 or FP4; FLOAT turns it off.")
    quantization_block_shape = dims(Dims(), "Extents of a block of dynamic quantization.")
    dyn_q_output_scale_type = element_type(DataType.FLOAT, "Type of computed scales.")
    swiglu_param_limit = number(float("inf"), "Bound of gate and up.")
    swiglu_param_alpha = number(1.0, "Factor inside the sigmoid.")
    swiglu_param_beta = number(0.0, "Added to up.")

    def set_gated_weights(
        self, fc_gate_weights: ITensor, fc_up_weights: ITensor, fc_down_weights: ITensor, activation_type: MoEActType
    ) -> None:
        """Gives the weights of the experts.

        Args:
            fc_gate_weights: (E, D, I).
            fc_up_weights: (E, D, I).
            fc_down_weights: (E, I, D).
            activation_type: The activation of the gate.
        """
        self.activation_type = activation_type
        for index, tensor in enumerate((fc_gate_weights, fc_up_weights, fc_down_weights)):
            self.set_input(_GATE + index, tensor)

    def set_gated_biases(self, fc_gate_biases: ITensor, fc_up_biases: ITensor, fc_down_biases: ITensor) -> None:
        """Gives the biases of the experts: (E, I), (E, I), (E, D)."""
        for index, tensor in enumerate((fc_gate_biases, fc_up_biases, fc_down_biases)):
            self.set_input(_BIAS + index, tensor)

    def set_quantization_static(self, fc_down_activation_scale: ITensor, data_type: DataType) -> None:
        """Quantizes the activations before the last product by a given scale."""
        self.quantization_to_type = data_type
        self.quantization_block_shape = Dims()
        self.set_input(_QUANTIZER, fc_down_activation_scale)

    def set_quantization_dynamic_dbl_q(
        self,
        fc_down_activation_dbl_q_scale: ITensor,
        data_type: DataType,
        block_shape: DimsLike,
        dyn_q_output_scale_type: DataType,
    ) -> None:
        """Quantizes the activations before the last product by computed scales."""
        self.quantization_to_type = data_type
        self.quantization_block_shape = as_dims(block_shape)
        self.dyn_q_output_scale_type = dyn_q_output_scale_type
        self.set_input(_QUANTIZER, fc_down_activation_dbl_q_scale)

    def set_swiglu_params(self, limit: float, alpha: float, beta: float) -> None:
        """Sets the parameters of the gated unit."""
        self.swiglu_param_limit = limit
        self.swiglu_param_alpha = alpha
        self.swiglu_param_beta = beta

    def _check_operands(self, inputs: Sequence[ITensor | None]) -> None:
        hidden, experts, scores = map(present, inputs[:3])
        require_tensor(hidden, "the hidden states", FLOATS, ranks={3})
        require_tensor(experts, "the chosen experts", INDICES, ranks={3})
        require_tensor(scores, "the scores", FLOATS, ranks={3})

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        weights = [tensor for tensor in inputs[_GATE:_BIAS] if tensor is not None]
        require(len(weights) == 3, "set_gated_weights must give gate, up and down")
        for tensor in weights:
            require_rank(tensor, {3}, "the weights of experts")
            require(type((tensor._extents or ())[0]) is int, "the number of experts must be constant")
        biases = [tensor for tensor in inputs[_BIAS:_QUANTIZER] if tensor is not None]
        require(len(biases) in (0, 3), "set_gated_biases must give all biases or none")

    def _compute(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        hidden, experts, scores, gate, up, down = map(as_tensor, inputs[:_BIAS])
        gate_b, up_b, down_b, scale = (tensor_at(inputs, at) for at in range(_BIAS, self._MAX_INPUTS))
        total = torch.zeros_like(hidden)
        for expert in range(gate.shape[0]):
            chosen = torch.where(experts == expert, scores, torch.zeros_like(scores)).sum(-1, True)
            opened = multiply(hidden, gate[expert])
            raised = multiply(hidden, up[expert])
            if gate_b is not None and up_b is not None:
                opened, raised = opened + gate_b[expert], raised + up_b[expert]
            inner = self._quantized(self._gated(opened, raised), scale)
            result = multiply(inner, down[expert])
            if down_b is not None:
                result = result + down_b[expert]
            total = total + (result * chosen).to(total.dtype)
        return (total,)

    def _gated(self, opened: torch.Tensor, raised: torch.Tensor) -> torch.Tensor:
        limit = self.swiglu_param_limit
        if limit != float("inf"):
            opened, raised = opened.clamp(max=limit), raised.clamp(-limit, limit)
        if self.activation_type is MoEActType.SILU:
            opened = opened * torch.sigmoid(self.swiglu_param_alpha * opened)
        return opened * (raised + self.swiglu_param_beta)

    def _quantized(self, inner: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        """The activations as quantization and dequantization leave them."""
        to_type = self.quantization_to_type
        if to_type is DataType.FLOAT or scale is None:
            return inner
        if to_type not in (DataType.FP8, DataType.FP4):
            raise Refusal(f"activations are quantized to FP8 or FP4, not {to_type.name}")
        if not len(self.quantization_block_shape):
            step = scale.to(torch.float32)
            kept = round_to(inner.to(torch.float32) / step, to_type).to(torch.float32) * step
            return kept.to(inner.dtype)
        block = list(self.quantization_block_shape)[-inner.ndim :]
        data, scales = quantize_blocks(inner, block, to_type, self.dyn_q_output_scale_type, scale)
        wide = scales.to(torch.float32) * scale.to(torch.float32)
        for axis, (whole, blocks) in enumerate(zip(inner.shape, scales.shape, strict=True)):
            wide = wide.repeat_interleave(whole // blocks, axis)
        return (data.to(torch.float32) * wide).to(inner.dtype)


class TransformerLayers(LayerFactory):
    """The methods that add layers of this family."""

    def add_rotary_embedding(
        self, input: ITensor, cos_cache: ITensor, sin_cache: ITensor, interleaved: bool, rotary_embedding_dim: int
    ) -> IRotaryEmbeddingLayer | None:
        """Adds a rotary embedding; position ids are input 3.

        Args:
            input: (B, H, S, D), float types.
            cos_cache: (B, S, R / 2), or (positions, R / 2) with position ids.
            sin_cache: As `cos_cache`.
            interleaved: Whether pairs are neighbours.
            rotary_embedding_dim: Elements that are rotated, R; 0 for all.
        """
        layer = IRotaryEmbeddingLayer._create(interleaved=interleaved, rotary_embedding_dim=rotary_embedding_dim)
        return self._add(layer, input=input, cos_cache=cos_cache, sin_cache=sin_cache)

    def add_kv_cache_update(
        self, cache: ITensor, update: ITensor, write_indices: ITensor, cache_mode: KVCacheMode
    ) -> IKVCacheUpdateLayer | None:
        """Adds an update of a key or value cache.

        Args:
            cache: (B, H, Smax, D).
            update: (B, H, S, D), same type.
            write_indices: (B,), int32 or int64.
            cache_mode: LINEAR.
        """
        return self._add(
            IKVCacheUpdateLayer._create(cache_mode=cache_mode), cache=cache, update=update, write_indices=write_indices
        )

    def add_moe(
        self, hidden_states: ITensor, selected_experts_for_tokens: ITensor, scores_for_selected_experts: ITensor
    ) -> IMoELayer | None:
        """Adds a mixture of experts; give it weights with ``set_gated_weights``.

        Args:
            hidden_states: (B, S, D).
            selected_experts_for_tokens: (B, S, K), int32 or int64.
            scores_for_selected_experts: (B, S, K).
        """
        return self._add(
            IMoELayer._create(),
            hidden_states=hidden_states,
            selected_experts_for_tokens=selected_experts_for_tokens,
            scores_for_selected_experts=scores_for_selected_experts,
        )


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

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        return () if are_symbolic([tensor for tensor in self._inputs if tensor is not None]) else None

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
        query, key, value = map(present, inputs[:3])
        require_equal_types((query, key, value), "query, key and value")
        require_type(query, FLOATS, "the query")
        for tensor, what in ((query, "query"), (key, "key"), (value, "value")):
            require_rank(tensor, {3, 4}, f"the {what}")

    def _check(self, inputs: Sequence[ITensor | None]) -> None:
        query, key, value = map(present, inputs[:3])
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
            lengths = optional(inputs, slot)
            require(lengths is not None or not needed, f"packed sequences need {what}")
            require_tensor(lengths, what, {DataType.INT32}, ranks={1})
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
        mask = optional(inputs, MASK)
        if mask is None:
            return
        require(self.causal_kind is CausalMaskKind.NONE, "a mask excludes a causal mask")
        require_tensor(mask, "the mask", {DataType.BOOL, query._dtype}, ranks={4})
        wanted: tuple[Any, ...] = (query._extents or ())[:2]
        if self.query_form is AttentionIOForm.PADDED_BHND:
            wanted = (*wanted, (query._extents or ())[2], (key._extents or ())[-2])
            for axis, (have, want) in enumerate(zip(mask._extents or (), wanted, strict=False)):
                fixed = type(have) is int and type(want) is int
                require(
                    not fixed or have in ((1, want) if axis < 2 else (want, 1)),
                    f"the mask has extent {have} on axis {axis}, not {want}",
                )

    def _known_facts(self, symbols: Symbols) -> tuple[Facts, ...] | None:
        query, key, value, *others = self._inputs
        padded = AttentionIOForm.PADDED_BHND
        if (self.query_form, self.key_value_form) != (padded, padded) or any(other is not None for other in others[1:]):
            return None  # lengths decide
        return attended(present(query), present(key), present(value), others[0] if others else None)

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
        query, key, value = map(as_tensor, inputs[:MASK])
        mask, scale, query_lengths, key_lengths = (tensor_at(inputs, at) for at in range(MASK, _SLOTS))
        is_packed = self.query_form is AttentionIOForm.PACKED_NHD
        if is_packed or self.key_value_form is AttentionIOForm.PACKED_NHD:
            ends = present(query_lengths) if is_packed else None
            return (self._packed(query, key, value, mask, scale, ends, present(key_lengths)),)
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
        softmax = self.norm_op is AttentionNormalizationOp.SOFTMAX
        is_upper = kind is CausalMaskKind.UPPER_LEFT and mask is None
        fused = softmax and scale is None and query.device.type != "meta"
        fused = fused and key.shape[:-3] == query.shape[:-3]  # others broadcast
        if kind is not CausalMaskKind.NONE and not (fused and is_upper):
            mask = _joined(mask, self._causal(query, key))
        if fused:
            return attend(query, key, value, mask, is_causal=is_upper, factor=self._factor)
        if self._factor != 1.0:
            query = query * self._factor
        repeats = query.shape[-3] // key.shape[-3]
        if repeats != 1:
            key = key.repeat_interleave(repeats, -3)
            value = value.repeat_interleave(repeats, -3)
        scores = multiply(query, key.mT)
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
        query_ends: torch.Tensor | None,
        key_ends: torch.Tensor,
    ) -> torch.Tensor:
        """Keys and values laid end to end, (tokens, H, D), and queries too, or padded ones, (B, H, S, D).

        Ends of sequences, (B + 1,), begin with 0; padded queries have none.
        """
        if query.device.type == "meta":
            return torch.empty_like(query)
        starts, ends = None if query_ends is None else query_ends.tolist(), key_ends.tolist()
        parts = []
        for batch in range(len(query) if starts is None else len(starts) - 1):

            def sequence(tokens: torch.Tensor, ends: list[int], batch: int = batch) -> torch.Tensor:
                return tokens[ends[batch] : ends[batch + 1]].transpose(0, 1).unsqueeze(0)

            q = query[batch : batch + 1] if starts is None else sequence(query, starts)
            k, v = sequence(key, ends), sequence(value, ends)
            part = None
            if mask is not None:
                part = mask[min(batch, mask.shape[0] - 1), :, : q.shape[2], : k.shape[2]].unsqueeze(0)
            made = self._attend(q, k, v, part, scale)
            parts.append(made if starts is None else made.squeeze(0).transpose(0, 1))
        return torch.cat(parts) if parts else torch.zeros_like(query)


def _joined(mask: torch.Tensor | None, inside: torch.Tensor) -> torch.Tensor:
    """A mask that also leaves out what `inside` leaves out."""
    if mask is None:
        return inside
    if mask.dtype is torch.bool:
        return mask & inside
    low = torch.full((), float("-inf"), dtype=mask.dtype, device=mask.device)
    return torch.where(inside, mask, low)


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

    norm_op = forwarded("_output", "norm_op", "What turns scores into weights.")
    causal_kind = forwarded("_output", "causal_kind", "The kind of causal mask.")
    decomposable = forwarded("_output", "decomposable", "Whether several kernels may replace a fused one.")
    query_form = forwarded("_output", "query_form", "How query sequences are laid out.")
    key_value_form = forwarded("_output", "key_value_form", "How key and value sequences are laid out.")
    normalization_quantize_to_type = forwarded(
        "_output", "normalization_quantize_to_type", "Type to which weights are quantized: FP8 or INT8."
    )
    mask = _slot(MASK, "bool (True attends) or additive, (B or 1, H or 1, S, S').")
    normalization_quantize_scale = _slot(SCALE, "Scale of quantized weights.")
    query_lengths = _slot(QUERY_LENGTHS, "int32: ends of packed queries, (B + 1,).")
    key_value_lengths = _slot(KEY_LENGTHS, "int32: ends of packed keys, or lengths (B,).")
    num_ranks = forwarded("_output", "num_ranks", "Number of devices.")
    metadata = forwarded("_output", "metadata", "Free text that the inspector shows.")

    @property
    def name(self) -> str:
        """The name."""
        return self._output.name

    @name.setter
    def name(self, name: str) -> None:
        self._output.name = name
        self._input.name = f"{name} [input]"

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
        self, query: ITensor, key: ITensor, value: ITensor, norm_op: AttentionNormalizationOp, causal: bool
    ) -> IAttention | None:
        """Adds an attention, causal from the upper left or not at all; see `add_attention_v2`."""
        kind = CausalMaskKind.UPPER_LEFT if to_boolean(causal) else CausalMaskKind.NONE
        return self.add_attention_v2(query, key, value, norm_op, kind)


class ScaledAttentionLayer(IAttentionOutputLayer):
    """``softmax(factor * Q K^T + mask) V``.

    Kernels of attention have the factor at hand; a layer of its own would read and write the query once more.
    """

    _KIND = LayerType.ATTENTION_OUTPUT  # the kind of TensorRT's that comes closest
    _PLAN_TYPE = "SCALED_ATTENTION"

    factor = number(1.0, "Factor of the scores.")

    @property
    def _factor(self) -> float:
        return self.factor
