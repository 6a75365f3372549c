"""What stands for layers in a capture: quantized ones, experts that split by data, and those sharded over processes.

A linear layer of a quantized checkpoint, as other libraries load it, holds codes, packed by its library, and calls
kernels, caches and hooks of that library, which nothing can trace. While a model is captured, a `StoredLinear` that
holds the same codes stands in its place. Lowering knows codes by what is computed of them, whoever packed them, so this
is all that a format takes:

| library | layers |
|---|---|
| gptqmodel, auto_gptq | GPTQ, with `g_idx` and without; AWQ |
| awq | AWQ of its GEMM layout |
| bitsandbytes | `Linear4bit` (NF4, FP4, scales quantized or not), `Linear8bitLt` |
| compressed_tensors | every format of linear layers, before its first call and after it |
| hqq | `HQQLinear` whose scales are floats, of every number of bits |
| transformers | `FP8Linear`, `FP8Experts`; experts of gpt-oss in MXFP4, which it makes floats of without kernels |
| optimum.quanto | `QLinear` that is frozen, of 2, 4 and 8 bits, whose activations stay floats |

Experts of JetMoe read how many tokens chose each of them, and split the tokens by that; those of DBRX and LongCat-Flash
are a loop over the experts that are hit. What stands for them leaves the counts where they are and multiplies rows in
groups, as experts of other mixtures do.

None of them is imported here. A layer in a layout that is not known stays as it is. A model of which transformers has
made floats when it loaded it, as it does where it has no kernels for codes, is floats in engines; a warning says so.

A sharded model is compiled from the shards of this process, and called with `DTensor`s or shards.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from trt_converters import DYNAMO_CONVERTERS
from trt_core import ExportError, logger
from trt_core.bitsandbytes_operators import codes_in_rows, dequantize_blocks
from trt_core.internals import FakeTensor, pytree
from trt_core.quantization import quantize
from trt_core.temporary import undone
from trt_frontends.example_inputs import ExampleInputs
from trt_lowering.sharded_modules import ShardedModule, is_sharded, require_sharded_alike, shards_of_inputs

_FLOAT8: Final = torch.float8_e4m3fn
_LARGEST_FLOAT8: Final = 448.0
_AWQ_ORDER: Final = (0, 4, 1, 5, 2, 6, 3, 7)
"""Which of the eight codes in 32 bits, from the lowest, belongs to each of eight columns."""
CODES_OF_EXPERTS: Final = "_codes"
"""How names of their codes end, (experts * N, K) each, whose place among the experts' parts they take."""
_FEW_CODES: Final = 16
"""Different codes that four bits say."""
_TOLERANCE: Final = 2.0**-6
"""Largest relative difference of a weight from what its codes say: two roundings to bfloat16."""
_TOLD: Final = weakref.WeakSet[nn.Module]()
"""Models of whose floats a warning has told."""

Inputs = Callable[[torch.Tensor], torch.Tensor]


class StoredLinear(nn.Module):
    """A linear layer that dequantizes its weight at every call: `(codes - zeros) * scale`, or `table[codes] * scale`.

    Attributes:
        codes: (N, K), int8, uint8 or float8_e4m3fn.
        scale: (N / r, K / c), one for each block of r rows and c columns; where columns have a group each, (N, groups);
            where rows have one, (groups, K).
        outer: 0-d, float32, what scales in float8_e4m3fn are scaled by, or None.
        zeros: As the scale, or None.
        table: What the codes are places in, or None.
        group: (K,), int64, the group of each column, or None.
        rows: (N,), int64, the group of each row, or None.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    bias: torch.Tensor | None
    outer: torch.Tensor | None
    zeros: torch.Tensor | None
    table: torch.Tensor | None
    group: torch.Tensor | None
    rows: torch.Tensor | None

    def __init__(
        self,
        codes: torch.Tensor,
        scale: torch.Tensor,
        bias: torch.Tensor | None,
        *,
        dtype: torch.dtype,
        zeros: torch.Tensor | None = None,
        table: torch.Tensor | None = None,
        group: torch.Tensor | None = None,
        rows: torch.Tensor | None = None,
        outer: torch.Tensor | None = None,
        compute: torch.dtype | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        """Makes a layer of what another one holds; nothing is copied.

        Args:
            codes, scale, zeros, table, group, rows, outer: See the class.
            bias: (N,), or None.
            dtype: Type that the weight is rounded to.
            compute: Type of the product; by default that of the input.
            inputs: What is done to the input first, a module or not; by default nothing.
        """
        super().__init__()
        held = {"codes": codes, "scale": scale, "zeros": zeros, "table": table, "group": group, "outer": outer}
        held |= {"rows": rows, "bias": bias}
        for name, value in held.items():
            self.register_buffer(name, None if value is None else value.detach())
        self.dtype, self.compute, self.inputs = dtype, compute, inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns `x @ weight.T + bias`, in the type of `x`."""
        given = x.dtype
        if self.inputs is not None:
            x = self.inputs(x)
        x = x if self.compute is None else x.to(self.compute)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return functional.linear(x, self.weight().to(x.dtype), bias).to(given)

    @property
    def stored_bytes(self) -> int:
        """What an engine holds of it: codes, in four bits where there are sixteen of them at most, and the rest."""
        different = torch.bincount(self.codes.view(torch.uint8).flatten(), minlength=256).count_nonzero()
        codes = self.codes.numel() // (2 if int(different) <= _FEW_CODES else 1)
        return codes + sum(held.nbytes for held in self.buffers(recurse=False) if held is not self.codes)

    def weight(self) -> torch.Tensor:
        """Returns the weight (N, K) in its own type."""
        scale = self.scale if self.outer is None else self.scale.to(torch.float32) * self.outer
        codes = self.codes if self.table is None else self.table[self.codes.to(torch.int64)]
        if self.group is not None or self.rows is not None:
            place: Any = (slice(None), self.group) if self.rows is None else self.rows
            zeros = None if self.zeros is None else self.zeros[place]
            return self._scaled(codes, scale[place], zeros).to(self.dtype)
        (rows, columns), (high, wide) = codes.shape, scale.shape
        if rows % high or columns % wide:  # the last blocks are smaller
            zeros = None if self.zeros is None else _spread(self.zeros, rows, columns)
            return self._scaled(codes, _spread(scale, rows, columns), zeros).to(self.dtype)
        if high == rows:
            parts, blocks = (rows, wide, columns // wide), (rows, wide, 1)
        else:
            parts, blocks = (high, rows // high, wide, columns // wide), (high, 1, wide, 1)  # type: ignore[assignment]
        zeros = None if self.zeros is None else self.zeros.view(blocks)
        return self._scaled(codes.view(parts), scale.view(blocks), zeros).reshape(rows, columns).to(self.dtype)

    def _scaled(self, codes: torch.Tensor, scale: torch.Tensor, zeros: torch.Tensor | None) -> torch.Tensor:
        scale = scale.to(torch.float32)
        codes = codes.to(torch.float32)
        return (codes if zeros is None else codes - zeros.to(torch.float32)) * scale


def _spread(held: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Returns what blocks have one of for each of their elements; the last blocks may be smaller."""
    high, wide = held.shape
    tall = held.repeat_interleave(-(-rows // high), 0)[:rows]
    return tall.repeat_interleave(-(-columns // wide), 1)[:, :columns]


@contextlib.contextmanager
def open_stored_layers(model: Any) -> Iterator[Any]:
    """Inside the block a model's quantized layers are `StoredLinear`s; a model without such is left alone.

    Args:
        model: What is captured; layers are taken out of it and put back.

    Yields:
        The model, or what stands in its place where it is such a layer itself.
    """
    if not isinstance(model, nn.Module):
        yield model
        return
    opened = {module: found for module in nn.Module.modules(model) if (found := _opened(module)) is not None}
    if not opened:
        _tell_floats(model)
        yield model
        return
    undo = contextlib.ExitStack()
    with undone(undo.close):
        for module in nn.Module.modules(model):
            for name, child in list(module._modules.items()):
                if child in opened:
                    module._modules[name] = opened[child]
                    undo.callback(module._modules.__setitem__, name, child)
            _pause_offloading(module, undo)
        _tell_floats(model)
        yield opened.get(model, model)


def _tell_floats(model: nn.Module) -> None:
    """Warns, once, of each model that transformers has loaded from codes, which leaves a mark, and that holds none."""
    for part in nn.Module.modules(model):
        if "is_quantized" not in vars(part) or part in _TOLD or _holds_codes(part):
            continue
        if not any(base.__module__.startswith("transformers.") for base in type(part).__mro__):
            continue
        _TOLD.add(part)
        logger.warning(
            "transformers has dequantized the checkpoint of %s, so engines hold its weights as floats, too: load it "
            "where transformers has kernels for its codes, or quantize it again, by torchao for one",
            type(part).__name__,
        )


def _holds_codes(model: nn.Module) -> bool:
    """Whether anything of a model has few bits, is packed into words, or is of a type of its library."""
    plain, packed = (torch.Tensor, nn.Parameter), (torch.int16, torch.int32)
    held = [*model.parameters(), *model.buffers()]
    return any(
        type(value) not in plain or value.dtype in packed or (value.dtype.itemsize == 1 and value.dtype != torch.bool)
        for value in held
    )


def _opened(module: nn.Module) -> nn.Module | None:
    reader = _reader_of(module)
    tensors = [value for value in (*vars(module).get("_buffers", {}).values(),) if isinstance(value, torch.Tensor)]
    if reader is None or any(value.is_meta or isinstance(value, FakeTensor) for value in tensors):
        return None
    try:
        with torch.no_grad():
            found = reader(module)
    except (AttributeError, KeyError, RuntimeError, ValueError) as error:  # another release's layout
        logger.warning("%s is captured as it is: its codes cannot be read (%s)", type(module).__name__, error)
        return None
    return None if found is None else found.train(module.training)


def _reader_of(module: nn.Module) -> Callable[[Any], nn.Module | None] | None:
    if getattr(module, "quantization_scheme", None) is not None and isinstance(module, nn.Linear):
        return _compressed_tensors
    library, name = type(module).__module__.partition(".")[0], type(module).__name__
    if library in ("gptqmodel", "auto_gptq", "awq") and hasattr(module, "qweight") and hasattr(module, "qzeros"):
        return _gptq if getattr(module, "g_idx", None) is not None else _awq
    if library == "bitsandbytes" and isinstance(module, nn.Linear):
        is_small = hasattr(module, "compute_dtype")
        return _bitsandbytes_4bit if is_small else _bitsandbytes_8bit if hasattr(module, "state") else None
    if library == "optimum" and name == "QLinear" and hasattr(module.weight, "_data"):
        return _quanto
    if library == "hqq" and name == "HQQLinear":
        return _hqq
    if library != "transformers":
        return None
    if name == "FP8Linear":
        return _transformers_float8 if module.weight.dtype is _FLOAT8 else None
    return _EXPERTS.get(name)


class GroupedExperts(nn.Module):
    """Linear layers of experts, each for a group of rows; how many rows each has stays a tensor.

    Args:
        experts: The layers, with a `weight` (experts, N, K), which is shared.
    """

    weight: torch.Tensor

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.weight = experts.weight

    def forward(self, inputs: torch.Tensor, expert_size: torch.Tensor) -> torch.Tensor:
        """Returns the rows (n, K), which come expert by expert, times the weights: (n, N)."""
        return _grouped(inputs, self.weight.mT, expert_size.cumsum(0).to(torch.int32))


def _grouped(rows: torch.Tensor, matrices: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Returns rows (n, K), which come group by group, times their group's matrix (K, N); zeros behind the last end."""
    product: torch.Tensor = torch.ops.transformers.grouped_mm_fallback(rows, matrices, ends)
    return product


class RoutedExperts(nn.Module):
    """Experts that are a loop over those that some token chose, computed in groups of rows.

    Args:
        experts: The loop, whose parameters are shared.
    """

    _count: int

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> Any:
        """Returns, for each token, what its experts give, by their weights; as the loop does.

        Args:
            hidden_states: (tokens, K), or (rows, length, K).
            top_k_index, top_k_weights: (tokens, k).
        """
        tokens = hidden_states.reshape(-1, hidden_states.shape[-1])
        chosen = top_k_index.flatten()
        order = chosen.argsort(stable=True)
        ends = (chosen[:, None] == torch.arange(self._count, device=chosen.device)).sum(0).cumsum(0).to(torch.int32)
        owners = order // top_k_index.shape[1]
        made = self._compute(tokens[owners], ends, chosen[order]) * top_k_weights.flatten()[order][:, None]
        return torch.zeros_like(tokens).index_add(0, owners, made.to(tokens.dtype)).view_as(hidden_states)

    def _compute(self, rows: torch.Tensor, ends: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        """Returns what the experts of rows give, which come expert by expert."""
        raise NotImplementedError


class _DbrxExperts(RoutedExperts):
    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.mlp = experts.mlp
        self._count = int(experts.num_experts)

    def _compute(self, rows: torch.Tensor, ends: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        mlp: Any = self.mlp
        gate, up, down = (held.view(self._count, -1, rows.shape[1]) for held in (mlp.w1, mlp.v1, mlp.w2))
        return _grouped(mlp.activation_fn(_grouped(rows, gate.mT, ends)) * _grouped(rows, up.mT, ends), down, ends)


class _LongcatExperts(RoutedExperts):
    """Those after the first ones give what they are given."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj, self.act_fn = experts.gate_up_proj, experts.down_proj, experts.act_fn
        self._count = int(experts.num_routed_experts)

    def _compute(self, rows: torch.Tensor, ends: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        gate, up = _grouped(rows, self.gate_up_proj[: self._count].mT, ends).chunk(2, -1)
        made = _grouped(self.act_fn(gate) * up, self.down_proj.mT, ends)
        return torch.where(experts[:, None] < self._count, made, rows)


class _Float8Experts(RoutedExperts):
    """Those of transformers in float8: rows are rounded in groups before each product, as in its linear layers."""

    def __init__(self, experts: Any) -> None:
        super().__init__()
        self.num_experts = self._count = int(experts.num_experts)
        self._names = ("gate_up_proj" if experts.has_gate else "up_proj", "down_proj")
        self._between = getattr(experts, "_apply_gate" if experts.has_gate else "act_fn")
        self.inputs = _Float8Groups(None if experts.block_size is None else int(experts.block_size[1]), None)
        for name in self._names:
            codes, scale = getattr(experts, name), getattr(experts, f"{name}_scale_inv").to(torch.float32)
            (rows, columns), (high, wide) = codes.shape[1:], scale.shape[1:]
            if rows % high or columns % wide:
                raise ValueError(f"blocks of {tuple(scale.shape)} do not divide matrices of {tuple(codes.shape)}")
            stack = StoredLinear(codes.flatten(0, 1), scale.flatten(0, 1), None, dtype=torch.float32)
            self.add_module(f"{name}{CODES_OF_EXPERTS}", stack)

    def _compute(self, rows: torch.Tensor, ends: torch.Tensor, experts: torch.Tensor) -> torch.Tensor:
        return self._product(self._names[1], self._between(self._product(self._names[0], rows, ends)), ends)

    def _product(self, name: str, rows: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        weight = getattr(self, f"{name}{CODES_OF_EXPERTS}").weight().to(rows.dtype)
        return _grouped(self.inputs(rows), weight.view(self._count, -1, rows.shape[1]).mT, ends)


def _float8_experts(experts: Any) -> nn.Module | None:
    """Returns experts in float8; None for those of four bits, and those whose activations have scales already."""
    held = (experts.down_proj.dtype, experts.activation_scheme)
    return _Float8Experts(experts) if held == (_FLOAT8, "dynamic") else None


class CountingGate(nn.Module):
    """What chooses experts for tokens, and counts for each expert how many chose it, in a tensor.

    Args:
        gate: The one that reads the counts; its `layer` is shared.
    """

    def __init__(self, gate: Any) -> None:
        super().__init__()
        self.layer: nn.Module = gate.layer
        self._top_k, self._experts = int(gate.top_k), int(gate.num_experts)

    def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns, expert by expert, which choice each is, of which token, and its share; the counts, and the scores.

        Args:
            hidden_states: (tokens, K).
        """
        scores = self.layer(hidden_states).float()
        best, chosen = scores.topk(self._top_k, dim=1)
        shares = best.softmax(1).type_as(hidden_states).flatten()
        experts = chosen.flatten()
        counts = (experts[:, None] == torch.arange(self._experts, device=experts.device)).sum(0)
        order = experts.argsort(stable=True)
        return order, order // self._top_k, shares[order], counts, scores


_STACKS: Final = ("gate_up_proj", "down_proj")
"""Matrices of the experts of gpt-oss, (experts, K, N) each."""

_MXFP4_BLOCK: Final = 32
"""Elements along K that share a power of two in MXFP4."""


def _gpt_oss(experts: Any) -> nn.Module | None:
    """Returns experts that hold codes, where their matrices are numbers of MXFP4 to the last bit; None for others."""
    held = {name: _stack_of_mxfp4(getattr(experts, name)) for name in _STACKS}
    if None in held.values():
        return None
    kind: Any = type(experts)
    made: nn.Module = object.__new__(_holding_codes(kind))
    vars(made).update(vars(experts))
    for name in ("_parameters", "_buffers", "_modules"):
        vars(made)[name] = {key: value for key, value in vars(experts)[name].items() if key not in held}
    for name, stack in held.items():
        made.add_module(f"{name}{CODES_OF_EXPERTS}", stack)
    return made


@functools.cache
def _holding_codes(kind: Any) -> type:
    """A class of experts that makes its matrices of codes at each call."""

    def made_of(codes: str, experts: str) -> property:
        def matrices(self: Any) -> torch.Tensor:
            held: StoredLinear = getattr(self, codes)
            return held.weight().view(getattr(self, experts), -1, held.codes.shape[1]).mT

        return property(matrices)

    return type(kind.__name__, (kind,), {name: made_of(f"{name}{CODES_OF_EXPERTS}", "num_experts") for name in _STACKS})


def _stack_of_mxfp4(matrices: torch.Tensor) -> StoredLinear | None:
    """Reads codes off the matrices of experts, (experts, K, N): those of (experts * N, K), or None.

    A block's power of two is the one by which its largest number is 4 or 6, the largest codes.
    """
    count, depth, columns = matrices.shape
    if depth % _MXFP4_BLOCK or not matrices.numel():
        return None
    codes = torch.empty(count, columns, depth, dtype=_FLOAT8, device=matrices.device)
    shape = (count, columns, depth // _MXFP4_BLOCK)
    scales = torch.empty(shape, dtype=torch.bfloat16, device=matrices.device)  # has every power of two of float32
    for matrix, kept, powers in zip(matrices.detach(), codes, scales, strict=True):
        blocks = matrix.mT.to(torch.float32).unflatten(-1, (-1, _MXFP4_BLOCK))
        exponents = torch.frexp(blocks.abs().amax(-1, keepdim=True)).exponent
        scale = torch.ldexp(torch.ones(exponents.shape, device=exponents.device), exponents - 3)
        found = _as_float8(blocks / scale, 4)
        if not torch.equal(found.to(torch.float32) * scale, blocks):
            return None
        kept.copy_(found.flatten(-2))
        powers.copy_(scale.squeeze(-1))
    return StoredLinear(codes.flatten(0, 1), scales.flatten(0, 1), None, dtype=matrices.dtype)


_EXPERTS: Final[dict[str, Callable[[Any], nn.Module | None]]] = {
    "GptOssExperts": _gpt_oss,
    "FP8Experts": _float8_experts,
    "JetMoeParallelExperts": GroupedExperts,
    "JetMoeTopKGating": CountingGate,
    "DbrxExperts": _DbrxExperts,
    "LongcatFlashExperts": lambda experts: None if experts.gate_up_proj is None else _LongcatExperts(experts),
}
"""What stands for experts of transformers that hold codes, or read how many tokens chose each, by names of classes."""


def _pause_offloading(module: nn.Module, undo: contextlib.ExitStack) -> None:
    """Takes away for a while what compressed-tensors does around calls, which is to move and decompress tensors."""
    hook, hooks = getattr(module, "ct_decompress_hook", None), vars(module)["_forward_pre_hooks"]
    if hook is not None and hook.id in hooks:
        undo.callback(hooks.__setitem__, hook.id, hooks.pop(hook.id))
    original = vars(module).get("_original_forward_func")
    if original is not None and "forward" in vars(module):
        undo.callback(vars(module).__setitem__, "forward", vars(module)["forward"])
        vars(module)["forward"] = original.__get__(module)
    for name in ("_parameters", "_buffers"):
        held = vars(module)[name]
        if hasattr(held, "offloaded_values"):  # a mapping that copies what it is given
            undo.callback(vars(module).__setitem__, name, held)
            vars(module)[name] = dict(held.items())


def unpack_words(words: torch.Tensor, bits: int, axis: int) -> torch.Tensor:
    """Returns codes that are packed densely in integers of 32 bits along an axis, the first in the lowest bits.

    Args:
        words: int32; the extent of the axis is one that whole codes fill.
        bits: 1 to 8.
        axis: The axis.

    Returns:
        uint8, with 32 / bits times the extent along the axis.
    """
    stream = words.movedim(axis, -1).contiguous()
    if 32 % bits == 0:
        shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
        codes = stream[..., None].bitwise_right_shift(shifts).bitwise_and(2**bits - 1).to(torch.uint8)
    else:
        shifts = torch.arange(32, dtype=torch.int32, device=words.device)
        single = stream[..., None].bitwise_right_shift(shifts).bitwise_and(1).to(torch.uint8).flatten(-2)
        weights = 2 ** torch.arange(bits, dtype=torch.uint8, device=words.device)
        codes = (single.unflatten(-1, (-1, bits)) * weights).sum(-1, dtype=torch.uint8)[..., None]
    return codes.flatten(-2).movedim(-1, axis)


def _gptq(module: Any) -> StoredLinear | None:
    bits, scales = int(module.bits), module.scales
    depth, columns = module.g_idx.shape[0], scales.shape[1]
    if module.qweight.dtype is torch.uint8:
        codes, scales, zeros = _repacked(module)
        codes = codes[:, module.ret_idx.argsort()]  # columns are sorted by group there
    else:
        codes = unpack_words(module.qweight, bits, 0)[:depth, :columns].t()
        zeros = unpack_words(module.qzeros, bits, 1)[:, :columns]
    zeros = zeros.to(torch.int32)
    if codes.shape != (columns, depth):
        raise ValueError(f"codes of shape {tuple(codes.shape)} for a weight of {(columns, depth)}")
    if type(module).__module__.startswith("auto_gptq"):  # others add the 1 that files lack when they load them
        zeros = zeros + 1
    group = module.g_idx.to(torch.int64) % scales.shape[0]
    even = torch.arange(depth, device=group.device) // max(1, depth // scales.shape[0])
    return StoredLinear(
        codes.contiguous(),
        scales.t().contiguous(),
        module.bias,
        dtype=scales.dtype,
        zeros=zeros.t().contiguous(),
        group=None if torch.equal(group, even) else group,
    )


def _awq(module: Any) -> StoredLinear | None:
    scales, bits = module.scales, int(getattr(module, "bits", None) or module.w_bit)
    groups, columns = scales.shape
    if module.qweight.dtype is torch.uint8:
        codes, scales, zeros = _repacked(module)
    elif bits != 4 or module.qweight.shape[1] * 8 != columns or module.qweight.shape[0] % groups:
        return None
    else:
        order = torch.tensor(_AWQ_ORDER, device=scales.device)
        codes, zeros = (
            unpack_words(words, 4, 1).unflatten(1, (-1, 8))[..., order].flatten(1)
            for words in (module.qweight, module.qzeros)
        )
        codes = codes.t().contiguous()
    return StoredLinear(codes, scales.t().contiguous(), module.bias, dtype=scales.dtype, zeros=zeros.t().contiguous())


def _repacked(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Reads what gptqmodel has packed for PyTorch's product of int4 on CPUs, as it does in a layer's first call.

    No function undoes that order. So the places of codes are packed, four bits at a time, and say where codes go.

    Returns:
        (N, K) uint8 codes, (groups, N) float16 scales, as layers have them before that, and (groups, N) uint8 zeros.
    """
    words, scales = module.qweight, module.scales.to(torch.float32)
    rows, depth = words.shape[0], 2 * words.shape[1]
    places = torch.arange(rows * depth, device="cpu").view(rows, depth)
    whence = torch.zeros(rows * depth, dtype=torch.int64, device="cpu")
    for shift in range(0, (rows * depth - 1).bit_length(), 4):
        packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu((places >> shift & 15).to(torch.int32), 1)
        whence |= _halves(packed).to(torch.int64) << shift
    codes = torch.empty(rows * depth, dtype=torch.uint8, device="cpu")
    codes[whence] = _halves(words)
    shifts = torch.where(scales == 0, 0.0, module.qzeros.to(torch.float32) / scales)  # (8 - zero) * scale
    return codes.view(rows, depth), scales.to(torch.float16), (8 - shifts).round().to(torch.uint8)


def _halves(words: torch.Tensor) -> torch.Tensor:
    return torch.stack([words & 15, words >> 4], -1).flatten()


def _bitsandbytes_4bit(module: Any) -> StoredLinear | None:
    data, state = module.weight.data, module.weight.quant_state
    if state is None:
        return None
    (rows, columns), size, steps = state.shape, state.blocksize, state.absmax
    tiled = bool(getattr(state, "packing_format_for_cpu", False))
    codes = codes_in_rows(data, (rows, columns), tiled=tiled)
    if tiled:  # scales are (K / size, N)
        steps = steps.t().reshape(-1)
    elif state.nested:
        nested = state.state2
        steps = dequantize_blocks(steps, nested.absmax, nested.code, nested.blocksize, torch.float32) + state.offset
    if columns % size:  # blocks do not end with rows
        steps = steps.repeat_interleave(size)[: rows * columns]
        size = 1
    return StoredLinear(
        codes,
        steps.to(torch.float32).view(rows, columns // size),
        module.bias,
        dtype=state.dtype,
        table=state.code.to(torch.float32),
        compute=module.compute_dtype,
    )


class _Rows(nn.Module):
    """What bitsandbytes makes of the input of `Linear8bitLt`: rows in int8, but columns with a large element."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.threshold = threshold

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input as it is after quantization, in float32."""
        half, axes = x.to(torch.float16).to(torch.float32), tuple(range(x.dim() - 1))
        apart = None
        if self.threshold > 0:
            large = half.abs() >= self.threshold
            half = torch.where(large, 0.0, half)
            apart = large.any(axes[0], keepdim=True) if len(axes) == 1 else large.flatten(0, -2).any(0)
        largest = half.abs().amax(-1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)
        # rows of 16 bits often lie in the middle of two codes, where a quotient in its place is another one
        kept = (half * (127.0 / largest)).round() * (largest / 127.0)
        return kept if apart is None else torch.where(apart, x.to(torch.float32), kept)


def _bitsandbytes_8bit(module: Any) -> StoredLinear | None:
    holder = module.state if module.state.CB is not None else module.weight
    if module.state.has_fp16_weights or getattr(holder, "CB", None) is None:
        return None
    return StoredLinear(
        holder.CB,
        (holder.SCB.to(torch.float32) / 127.0).reshape(-1, 1),
        module.bias,
        dtype=torch.float32,
        compute=torch.float32,
        inputs=_Rows(float(module.state.threshold)),
    )


class _Float8Groups(nn.Module):
    """Rounds groups of an input's rows to float8, with a scale for each group, or one that is known."""

    scale: torch.Tensor | None

    def __init__(self, size: int | None, scale: torch.Tensor | None) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("scale", None if scale is None else scale.detach().to(torch.float32).reshape(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input as it is after quantization, in its own type."""
        wide = x.to(torch.float32)
        if self.scale is not None:
            bounded = (wide / self.scale).clamp(-_LARGEST_FLOAT8, _LARGEST_FLOAT8)
            return (bounded.to(_FLOAT8).to(torch.float32) * self.scale).to(x.dtype)
        parts = wide if self.size is None else wide.unflatten(-1, (-1, self.size))
        largest = parts.abs().amax(-1, keepdim=True)
        scale = torch.where(largest > 0, largest, 1.0) / _LARGEST_FLOAT8
        kept = (parts / scale).to(_FLOAT8).to(torch.float32) * scale
        return kept.reshape(x.shape).to(x.dtype)


def _transformers_float8(module: Any) -> StoredLinear | None:
    scale, size = module.weight_scale_inv.to(torch.float32), module.block_size
    columns = module.weight.shape[1]
    if size is not None and columns % size[1]:
        return None
    static = module.activation_scale if module.activation_scheme == "static" else None
    inputs = _Float8Groups(None if size is None else int(size[1]), static)
    if size is None:
        scale = scale.reshape(1, 1)
    return StoredLinear(module.weight, scale, module.bias, dtype=torch.float32, inputs=inputs)


def _quanto(module: Any) -> StoredLinear:
    weight = module.weight.data
    if getattr(module, "activation_qtype", None) is not None:
        raise ValueError("its activations are tensors of the library, too")
    if hasattr(weight, "weight_qbits_tensor") and type(weight).__name__ != "WeightQBitsTensor":
        weight = weight.weight_qbits_tensor()  # packed for the kernels of one library
    parts: list[Any] = [getattr(weight, name, None) for name in ("_data", "_scale", "_shift")]
    data, scale, shift = parts
    rows, columns = weight.shape
    axis = weight.axis
    if data.dtype not in (torch.int8, torch.uint8, _FLOAT8) or axis not in (0, None):
        raise ValueError(f"its codes are {data.dtype}, along axis {axis}")
    codes = (data.unpack() if hasattr(data, "unpack") else data).reshape(rows, columns)
    scale = scale.reshape(1, 1) if scale.numel() == 1 else scale.reshape(rows, -1)
    zeros = None
    if shift is not None:
        zeros = shift.reshape(scale.shape)
        if zeros.is_floating_point():  # the library takes scale * code - shift
            if not bool(scale.all()):
                raise ValueError("a scale is 0")
            zeros = zeros.to(torch.float32) / scale.to(torch.float32)
    return StoredLinear(codes, scale, module.bias, dtype=weight.dtype, zeros=zeros)


def _hqq(module: Any) -> StoredLinear:
    """Reads codes that lie in strips of rows, the first in the highest bits; zero points are floats there."""
    facts, words = module.meta, module.W_q.detach()
    if "scale" not in facts or "zero" not in facts:
        raise ValueError("its scales are codes, too")
    if facts["packing"] is None:
        codes = words.to(torch.uint8)
    else:
        words = words.view(facts["unpack_view_dtype"]) if facts["view_as_float"] else words
        bits = int(facts["packing"][0])
        strips = range((10 if bits == 3 else 8 // bits) - 1, -1, -1)  # ten codes in 32 bits
        codes = torch.cat([words >> bits * strip & 2**bits - 1 for strip in strips]).to(torch.uint8)
    (rows, columns), groups = facts["shape"], facts["scale"].numel()
    order = None
    if facts["axis"] == 1:
        blocks = (rows, groups // rows)
    else:  # rows of a group lie apart
        blocks = (groups // columns, columns)
        order = torch.arange(rows, device=codes.device) % max(blocks[0], 1)
    return StoredLinear(
        codes.flatten()[: rows * columns].view(rows, columns),  # the last strip may not be full
        facts["scale"].view(blocks),
        module.bias,
        dtype=module.compute_dtype,
        zeros=facts["zero"].view(blocks),
        rows=order,
    )


class _CompressedInputs(nn.Module):
    """What compressed-tensors makes of the input of a layer, by its own functions."""

    def __init__(self, module: Any, args: Any) -> None:
        super().__init__()
        library = sys.modules["compressed_tensors.quantization.lifecycle.forward"]
        self._kept = library.fake_quantize
        self._chosen = library.compute_dynamic_scales_and_zp
        self.arguments = args
        for name in ("scale", "zero_point", "global_scale"):
            value = getattr(module, f"input_{name}", None)
            self.register_buffer(name, None if value is None else value.detach())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input as it is after quantization."""
        scale: Any = self.scale
        zero: Any = self.zero_point
        if self.arguments.dynamic:
            scale, zero = self._chosen(value=x, args=self.arguments, module=self, global_scale=self.global_scale)
        kept: torch.Tensor = self._kept(
            x=x, scale=scale, zero_point=zero, args=self.arguments, global_scale=self.global_scale
        )
        return kept


def _compressed_tensors(module: Any) -> StoredLinear | None:
    """Reads codes off the weight that the library makes of what it holds, whatever it packs them into."""
    scheme, status = module.quantization_scheme, module.quantization_status.value
    weights = scheme.weights
    if status not in ("compressed", "decompressed") or weights is None or scheme.output_activations is not None:
        return None
    held = dict(module.named_parameters(recurse=False)) | dict(module.named_buffers(recurse=False))
    if status == "compressed":
        base = sys.modules["compressed_tensors.compressors.base"]
        formats = sys.modules["compressed_tensors.compressors.format"]
        name = scheme.format or formats.infer_module_format(type(module), scheme)
        held = base.BaseCompressor.get_value_from_registry(getattr(name, "value", name)).decompress(held, scheme)
    weight, scale, zeros = held["weight"], held["weight_scale"], held.get("weight_zero_point")
    scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
    zeros = None if zeros is None or weights.symmetric else zeros.reshape(scale.shape)
    group, outer = held.get("weight_g_idx"), held.get("weight_global_scale")
    group = group.to(torch.int64) if group is not None and bool((group >= 0).all()) else None
    outer = None if outer is None else 1.0 / outer.to(torch.float32).reshape(())

    def spread(values: torch.Tensor) -> torch.Tensor:
        wide = values.to(torch.float32)
        return _spread(wide, *weight.shape) if group is None else wide[:, group]

    steps = weight.to(torch.float32) / spread(scale if outer is None else scale.to(torch.float32) * outer)
    if zeros is not None:
        steps = steps + spread(zeros)
    is_integer = weights.type == "int"
    codes = steps.round().clamp(-128, 127).to(torch.int8) if is_integer else _as_float8(steps, int(weights.num_bits))
    small = scale.to(_FLOAT8)
    found = StoredLinear(
        codes,
        small if outer is not None and torch.equal(scale.to(torch.float32), small.to(torch.float32)) else scale,
        module.bias,
        dtype=weight.dtype,
        zeros=zeros,
        group=group,
        outer=outer,
        inputs=None if scheme.input_activations is None else _CompressedInputs(module, scheme.input_activations),
    )
    least = float(weight.abs().max()) * 1e-6
    is_same = torch.isclose(found.weight().float(), weight.float(), rtol=_TOLERANCE, atol=least)
    return found if bool(is_same.all()) else None


def _as_float8(steps: torch.Tensor, bits: int) -> torch.Tensor:
    kept: torch.Tensor = quantize(steps, torch.ones((), device=steps.device), _FLOAT8, bits)
    return kept


def open_shards(module: Any, examples: ExampleInputs | None) -> tuple[Any, ExampleInputs | None]:
    """Returns a model and inputs that this process can capture alone; those without `DTensor`s as they are.

    Args:
        module: A module, or whatever else can be compiled.
        examples: What it is captured for.
    """
    if not isinstance(module, nn.Module) or examples is None:
        return module, examples
    args, kwargs, shardings = shards_of_inputs(examples.args, examples.kwargs)
    if not shardings and not is_sharded(module):
        return module, examples
    return ShardedModule(module, shardings, tuple(DYNAMO_CONVERTERS)), ExampleInputs(args, kwargs)


def opened_after(error: ExportError, module: Any) -> ShardedModule:
    """Returns the shell of a module that makes `DTensor`s of plain tensors in `forward`, as its capture has shown.

    Args:
        error: What capturing it ended with.
        module: What was captured.

    Raises:
        ExportError: The same, where it ended for another reason.
    """
    if isinstance(module, ShardedModule) or "DTensor" not in str(error.__cause__):
        raise error
    return ShardedModule(module, whole=tuple(DYNAMO_CONVERTERS))


def keep_boundary(module: Any, compiled: nn.Module) -> None:
    """Lets a compiled model take and return `DTensor`s where the model does.

    Args:
        module: What was captured.
        compiled: What it was compiled to; it takes and returns shards.
    """
    if not isinstance(module, ShardedModule) or not (module.boundary.inputs or module.boundary.outputs):
        return
    boundary = module.boundary

    def take_shards(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        return require_sharded_alike(args, kwargs, boundary.inputs)

    def put_together(_: nn.Module, args: Any, result: Any) -> Any:
        flat, spec = pytree.tree_flatten(result)
        for index, sharding in boundary.outputs.items():
            flat[index] = sharding.distributed(flat[index])
        return pytree.tree_unflatten(flat, spec)

    compiled.register_forward_pre_hook(take_shards, with_kwargs=True)
    compiled.register_forward_hook(put_together)
