"""Operators for steps of decoding: where graphs get them, and that they compute what was there."""

from __future__ import annotations

import copy
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from triton_interpreter import run_interpreted

import trt_portable as trt
from trt_portable.builder.autotune.low_precision_choice import Case
from trt_portable.builder.inductor import decoding
from trt_portable.builder.inductor.decoding import (
    ATTENTION,
    CODES_ONE_ROW,
    PRODUCT,
    UPDATING_ATTENTION,
    Form,
    attend,
    codes_call,
    codes_forms_for,
    multiply,
    write_decoding_operators,
)
from trt_portable.builder.inductor.own_operators import OwnOperators
from trt_portable.builder.inductor.tactic import LaunchRecorder, decompositions
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, ProductForm, assembly, levels_of

ATEN = torch.ops.aten


class _Graph:
    """Writes a graph with metadata down, call by call."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.mode = FakeTensorMode()

    def take(self, *shape: int, dtype: torch.dtype = torch.float16) -> fx.Node:
        node = self.graph.placeholder(f"x{len(self.graph.nodes)}")
        with self.mode:
            node.meta["val"] = torch.empty(shape, dtype=dtype, device="cuda")
        return node

    def call(self, operator: Any, *arguments: Any, **keywords: Any) -> fx.Node:
        node = self.graph.call_function(operator, arguments, keywords)
        with self.mode:
            node.meta["val"] = operator(*fx.map_arg(arguments, lambda each: each.meta["val"]), **keywords)
        return node

    def module(self, *results: fx.Node) -> fx.GraphModule:
        self.graph.output(results)
        return fx.GraphModule({}, self.graph)


def _calls(module: fx.GraphModule, name: str) -> list[fx.Node]:
    calls = module.graph.find_nodes(
        op="call_function", target=getattr(torch.ops.trt_portable, name.partition("::")[2]).default
    )
    return list(calls)


def _linear(rows: int, columns: int = 512, depth: int = 256, *, has_bias: bool = False) -> fx.GraphModule:
    graph = _Graph()
    x, matrix = graph.take(rows, depth), graph.take(columns, depth)
    turned = graph.call(ATEN.permute.default, matrix, [1, 0])
    if has_bias:
        return graph.module(graph.call(ATEN.addmm.default, graph.take(columns), x, turned))
    return graph.module(graph.call(ATEN.mm.default, x, turned))


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 16])
def test_products_of_few_rows_become_operators(rows: int, has_bias: bool) -> None:
    module = _linear(rows, has_bias=has_bias)
    operands = [torch.randn(rows, 256), torch.randn(512, 256), *[torch.randn(512)] * has_bias]
    wanted = module(*operands)[0]
    write_decoding_operators(module)
    assert len(_calls(module, PRODUCT)) == 1
    torch.testing.assert_close(module(*operands)[0], wanted)


@pytest.mark.parametrize("sizes", [(17, 512, 256), (1, 64, 256), (1, 512, 64), (1, 512, 264)])
def test_other_products_stay(sizes: tuple[int, int, int]) -> None:
    module = _linear(*sizes)
    write_decoding_operators(module)
    assert not _calls(module, PRODUCT)


def _attention(*, heads: int, groups: int, queries: int = 1, length: int = 192, width: int = 32, masks: int = 1) -> Any:
    """A graph of attention as decoders write it: keys lie with places first, and are repeated for their heads."""
    graph = _Graph()
    query = graph.take(2, heads, queries, width)
    caches = []
    for _ in range(2):
        lying = graph.call(ATEN.permute.default, graph.take(length, 2, groups, width), [1, 2, 0, 3])
        if heads == groups:
            caches.append(lying)
            continue
        apart = graph.call(ATEN.view.default, lying, [2, groups, 1, length, width])
        spread = graph.call(ATEN.expand.default, apart, [2, groups, heads // groups, length, width])
        copied = graph.call(ATEN.clone.default, spread, memory_format=torch.contiguous_format)
        caches.append(graph.call(ATEN.view.default, copied, [2, heads, length, width]))
    mask = graph.take(masks, 1, queries, length)
    seen = graph.call(ATEN.expand.default, mask, [2, heads, queries, length])
    operator = ATEN._scaled_dot_product_efficient_attention.default
    made = graph.graph.call_function(operator, (query, *caches, seen, False), {"scale": 0.3})
    result = graph.graph.call_function(lambda pair, at: pair[at], (made, 0))
    import operator as python

    result.target = python.getitem
    return graph.module(result)


def _operands(heads: int, groups: int, queries: int = 1, length: int = 192, width: int = 32, masks: int = 1) -> Any:
    query = torch.randn(2, heads, queries, width)
    keys, values = (torch.randn(length, 2, groups, width) for _ in range(2))
    mask = torch.zeros(masks, 1, queries, length)
    mask[..., 70:] = -torch.inf
    mask[-1, ..., :5] = -torch.inf
    return query, keys, values, mask


@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 8, "groups": 2},
        {"heads": 8, "groups": 8},
        {"heads": 4, "groups": 1, "queries": 3},
        {"heads": 8, "groups": 2, "masks": 2},
    ],
)
def test_attention_of_few_queries_reads_keys_as_they_lie(sizes: dict[str, int]) -> None:
    module, operands = _attention(**sizes), _operands(**sizes)
    write_decoding_operators(module)
    (call,) = _calls(module, ATTENTION)
    assert call.args[1].meta["val"].shape[1] == sizes["groups"]
    assert not module.graph.find_nodes(op="call_function", target=ATEN.clone.default)
    query, keys, values, mask = operands
    heads = sizes["heads"] // sizes["groups"]
    wide = [each.permute(1, 2, 0, 3).repeat_interleave(heads, 1) for each in (keys, values)]
    wanted = F.scaled_dot_product_attention(query, *wide, mask, scale=0.3)
    torch.testing.assert_close(module(*operands)[0], wanted)


@pytest.mark.parametrize("sizes", [{"heads": 8, "groups": 8, "queries": 65}, {"heads": 8, "groups": 2, "length": 64}])
def test_other_attention_stays(sizes: dict[str, int]) -> None:
    module = _attention(**sizes)
    write_decoding_operators(module)
    assert not _calls(module, ATTENTION)


def _layer(
    *,
    batch: int = 1,
    turned: str = "by splits",
    reads_later: bool = False,
    gain_of: str = "float16",
    is_flattened: bool = False,
) -> fx.GraphModule:
    """The graph of a layer as decoders write it: norm, queries, keys and values, turned, cached, attended to.

    Args:
        batch: Rows.
        turned: How queries and keys are turned by their places; "" where they are not.
        reads_later: Return the new cache of keys as well.
        gain_of: In half precision, or `float32`, where the norm is another one.
        is_flattened: As where weights are quantized: products are of matrices whose extents are spelled out once more.
    """
    heads, groups, length, width = 8, 2, 192, 32
    depth, shared = heads * width, groups * width
    graph = _Graph()
    residual, keys, values = graph.take(batch, 1, depth), *[graph.take(batch, groups, length, width) for _ in "kv"]
    gain = graph.take(depth, dtype=getattr(torch, gain_of))
    epsilon = graph.take(1, dtype=torch.float32)
    matrices = [graph.take(depth + 2 * shared, depth), graph.take(depth, depth)]
    start, mask = graph.take(batch, dtype=torch.int64), graph.take(1, 1, 1, length)
    turns = [graph.take(batch, 1, 1, width) for _ in "cs"]
    wide = graph.call(torch.ops.prims.convert_element_type.default, residual, torch.float32)
    mean = graph.call(ATEN.mean.dim, graph.call(ATEN.mul.Tensor, wide, wide), [2], True)
    shaped = graph.call(ATEN.view.default, epsilon, [1, 1, 1])
    root = graph.call(ATEN.sqrt.default, graph.call(ATEN.add.Tensor, mean, shaped))
    scaled = graph.call(ATEN.mul.Tensor, wide, graph.call(ATEN.reciprocal.default, root))
    scaled = graph.call(torch.ops.prims.convert_element_type.default, scaled, torch.float16)
    normed = graph.call(ATEN.mul.Tensor, graph.call(ATEN.view.default, gain, [1, 1, depth]), scaled)
    normed = graph.call(torch.ops.prims.convert_element_type.default, normed, torch.float16)
    flat = graph.call(ATEN.view.default, normed if gain_of != "float16" else normed.args[0], [batch, depth])
    product = graph.call(ATEN.mm.default, flat, graph.call(ATEN.permute.default, matrices[0], [1, 0]))
    sizes = [depth, shared, shared]
    parts = graph.call(ATEN.split_with_sizes.default, graph.call(ATEN.view.default, product, [batch, 1, -1]), sizes, 2)
    query, key, value = (
        graph.call(ATEN.view.default, graph.call(operator.getitem, parts, at), [batch, -1, 1, width]) for at in range(3)
    )
    if turned:
        query, key = (_turn(graph, each, width, *turns, by_slices=turned == "by slices") for each in (query, key))
    begin = graph.call(ATEN.unsqueeze.default, start, -1)
    place = graph.call(ATEN.clamp_min.default, graph.call(ATEN.add.Tensor, begin, 0), 0)
    place = graph.call(ATEN.clamp_max.default, place, length - 1)
    kept = graph.call(ATEN.lt.Scalar, begin, length)
    kept = graph.call(ATEN.unsqueeze.default, graph.call(ATEN.unsqueeze.default, kept, 1), -1)
    first = graph.call(ATEN.arange.default, batch, device="cuda")
    first = graph.call(ATEN.expand.default, graph.call(ATEN.view.default, first, [-1, 1, 1]), [batch, groups, 1])
    second = graph.call(ATEN.arange.default, groups, device="cuda")
    second = graph.call(ATEN.expand.default, graph.call(ATEN.view.default, second, [1, -1, 1]), [batch, groups, 1])
    third = graph.call(ATEN.expand.default, graph.call(ATEN.unsqueeze.default, place, 1), [batch, groups, 1])
    new, spread = [], []
    for cache, row in ((keys, key), (values, value)):
        old = graph.call(ATEN._unsafe_index.Tensor, cache, [first, second, third])
        new.append(
            graph.call(
                ATEN.index_put.default, cache, [first, second, third], graph.call(ATEN.where.self, kept, row, old)
            )
        )
        apart = graph.call(ATEN.unsqueeze.default, new[-1], 2)
        wider = graph.call(ATEN.expand.default, apart, [batch, groups, heads // groups, length, width])
        copied = graph.call(ATEN.clone.default, wider, memory_format=torch.contiguous_format)
        spread.append(graph.call(ATEN.view.default, copied, [batch, heads, length, width]))
    seen = graph.call(ATEN.expand.default, mask, [batch, heads, 1, length])
    attention = ATEN._scaled_dot_product_efficient_attention.default
    made = graph.graph.call_function(attention, (query, *spread, seen, False), {"scale": 0.2})
    mixed = graph.graph.call_function(operator.getitem, (made, 0))
    mixed.meta["val"] = query.meta["val"]
    mixed = graph.call(ATEN.view.default, graph.call(ATEN.permute.default, mixed, [0, 2, 1, 3]), [batch, depth])
    out = graph.call(ATEN.mm.default, mixed, graph.call(ATEN.permute.default, matrices[1], [1, 0]))
    out = graph.call(ATEN.view.default, out, [batch, depth]) if is_flattened else out
    total = graph.call(ATEN.add.Tensor, residual, graph.call(ATEN.view.default, out, [batch, 1, depth]))
    for cache, made in zip((keys, values), new, strict=True):
        graph.graph.call_function(ATEN.copy_.default, (cache, made)).meta["val"] = cache.meta["val"]
    return graph.module(total, *new[:1] * reads_later)


def _turn(graph: _Graph, x: fx.Node, width: int, cosines: fx.Node, sines: fx.Node, *, by_slices: bool) -> fx.Node:
    half = width // 2
    if by_slices:
        first, second = (graph.call(ATEN.slice.Tensor, x, 3, at, at + half) for at in (0, half))
    else:
        parts = graph.call(ATEN.split_with_sizes.default, x, [half] * 2, 3)
        first, second = (graph.call(operator.getitem, parts, at) for at in range(2))
    swapped = graph.call(ATEN.cat.default, [graph.call(ATEN.neg.default, second), first], 3)
    return graph.call(
        ATEN.add.Tensor, graph.call(ATEN.mul.Tensor, x, cosines), graph.call(ATEN.mul.Tensor, swapped, sines)
    )


def _attended(query: Any, keys: Any, values: Any, mask: Any, _: bool, *, scale: float) -> tuple[torch.Tensor]:
    """The operator where there is none."""
    return (F.scaled_dot_product_attention(query, keys, values, mask, scale=scale),)


def _layer_operands(batch: int) -> list[torch.Tensor]:
    caches = [torch.randn(batch, 2, 192, 32) for _ in "kv"]
    shapes = [(384, 256), (256, 256)]
    matrices = [torch.randn(shape) / 16 for shape in shapes]
    start, mask = torch.tensor([7, 150][:batch]), torch.zeros(1, 1, 1, 192)
    mask[..., 20:40] = -torch.inf
    turns = [torch.randn(batch, 1, 1, 32) for _ in "cs"]
    floats = [torch.randn(batch, 1, 256), *caches, torch.rand(256), torch.tensor([1e-5]), *matrices]
    return [
        *(each.half() if each.numel() > 1 else each for each in floats),
        start,
        mask.half(),
        *(each.half() for each in turns),
    ]


def test_what_the_layer_of_caches_computes_is_taken_in_by_attention() -> None:
    network = trt.Builder(trt.Logger()).create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    cache, row = (network.add_input(f"x{length}", trt.float16, (1, 2, length, 32)) for length in (192, 1))
    start = network.add_input("s", trt.int32, (1,))
    layer = network.add_kv_cache_update(cache, row, start, trt.KVCacheMode.LINEAR)

    def step(query: Any, keys: Any, values: Any, key: Any, value: Any, place: Any, mask: Any) -> Any:
        caches = [layer._compute([held, new, place])[0] for held, new in ((keys, key), (values, value))]
        seen = mask.expand(1, 8, 1, 192)
        wide = [each.unsqueeze(2).expand(1, 2, 4, 192, 32).reshape(1, 8, 192, 32) for each in caches]
        made = ATEN._scaled_dot_product_efficient_attention.default(query, *wide, seen, False, scale=0.2)[0]
        keys.copy_(caches[0])
        values.copy_(caches[1])
        return (made,)

    with FakeTensorMode():
        one = torch.empty(1, 2, 1, 32, dtype=torch.float16, device="cuda")
        held = torch.empty(1, 2, 192, 32, dtype=torch.float16, device="cuda")
        place = torch.empty(1, dtype=torch.int64, device="cuda")
        query, mask = (torch.empty(1, *some, dtype=torch.float16, device="cuda") for some in ((8, 1, 32), (1, 1, 192)))
        module = make_fx(step, dict(decompositions()))(query, held, held.clone(), one, one.clone(), place, mask)
    module.graph.eliminate_dead_code()  # as what traces does
    write_decoding_operators(module)
    assert len(_calls(module, UPDATING_ATTENTION)) == 1
    assert not module.graph.find_nodes(op="call_function", target=ATEN.index_put.default)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("turned", ["", "by splits", "by slices"])
def test_a_layer_of_a_step_takes_norms_residuals_turns_and_caches_in(batch: int, turned: str) -> None:
    module = _layer(batch=batch, turned=turned)
    plain = fx.GraphModule(module, copy.deepcopy(module.graph))
    for node in plain.graph.nodes:
        node.kwargs = {**node.kwargs, "device": "cpu"} if "device" in node.kwargs else node.kwargs
        if node.target is ATEN._scaled_dot_product_efficient_attention.default:
            node.target = _attended
    plain.recompile()
    write_decoding_operators(module)
    (attention,) = _calls(module, UPDATING_ATTENTION)
    assert (attention.args[6] is not None) is bool(turned)
    first, second = _calls(module, PRODUCT)
    assert (first.args[3] is not None, first.args[5], second.args[3]) == (True, None, None)
    assert second.args[5] is not None
    left = {node.target for node in module.graph.nodes if node.op == "call_function"}
    assert left.isdisjoint(
        {ATEN.copy_.default, ATEN.index_put.default, ATEN.cat.default, ATEN.mean.dim, ATEN.add.Tensor}
    )
    operands = _layer_operands(batch)
    wanted, found = ([each.clone() for each in operands] for _ in "ab")
    torch.testing.assert_close(module(*found)[0], plain(*wanted)[0], atol=4e-3, rtol=4e-3)
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, atol=4e-3, rtol=4e-3)
    assert not torch.equal(found[1], operands[1])


def _gated(
    *, rows: int = 1, by_slices: bool = True, half: int = 256, reads_later: bool = False, is_flattened: bool = False
) -> fx.GraphModule:
    """The graph of a gate as decoders write it; the first `half` of 512 columns go through SiLU."""
    graph = _Graph()
    x, matrix = graph.take(rows, 256), graph.take(512, 256)
    product = graph.call(ATEN.mm.default, x, graph.call(ATEN.permute.default, matrix, [1, 0]))
    product = graph.call(ATEN.view.default, product, [rows, 512] if is_flattened else [rows, 1, 512])
    if by_slices:
        axis = product.meta["val"].dim() - 1
        gate, up = (graph.call(ATEN.slice.Tensor, product, axis, at, at + 256) for at in (256 - half, half))
    else:
        parts = graph.call(ATEN.split_with_sizes.default, product, [256, 256], -1)
        gate, up = (graph.call(operator.getitem, parts, at) for at in range(2))
    gate, up = (graph.call(ATEN.view.default, each, [rows, 1, 256]) if is_flattened else each for each in (gate, up))
    wide = graph.call(torch.ops.prims.convert_element_type.default, gate, torch.float32)
    power = graph.call(ATEN.exp.default, graph.call(ATEN.neg.default, wide))
    silu = graph.call(ATEN.div.Tensor, wide, graph.call(ATEN.add.Tensor, power, 1))
    silu = graph.call(torch.ops.prims.convert_element_type.default, silu, torch.float16)
    return graph.module(graph.call(ATEN.mul.Tensor, silu, up), *[up] * reads_later)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("by_slices", [False, True])
@pytest.mark.parametrize("is_flattened", [False, True])
def test_a_gate_is_taken_into_its_product(rows: int, by_slices: bool, is_flattened: bool) -> None:
    module = _gated(rows=rows, by_slices=by_slices, is_flattened=is_flattened)
    operands = torch.randn(rows, 256).half(), torch.randn(512, 256).half() / 16
    wanted = module(*operands)[0]
    write_decoding_operators(module, 2)
    (call,) = _calls(module, PRODUCT)
    assert call.args[6:] == (True, True)
    assert {node.target for node in module.graph.nodes if node.op == "call_function"} == {
        call.target,
        ATEN.view.default,
    }
    torch.testing.assert_close(module(*operands)[0], wanted, atol=4e-3, rtol=4e-3)


def _by_codes(module: fx.GraphModule) -> None:
    """Makes products of codes of the products with a matrix that lies turned; only the shapes make sense then."""
    for node in list(module.graph.find_nodes(op="call_function", target=ATEN.mm.default)):
        x, turned = node.args
        columns = node.meta["val"].shape[1]
        with module.graph.inserting_before(node):
            scales = module.graph.call_function(ATEN.zeros.default, ([1, columns],))
            given = (x, turned.args[0], *[None] * 4, scales, None, None, (), 0, False)
            made = module.graph.call_function(decoding._operators()[decoding.CODES_PRODUCT], given)
        scales.meta["val"] = node.meta["val"].new_empty((1, columns))
        made.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(made)


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_a_gate_is_taken_into_a_product_of_codes_for_few_rows(rows: int) -> None:
    module = _gated(rows=rows)
    _by_codes(module)
    write_decoding_operators(module, 2)
    (call,) = _calls(module, decoding.CODES_PRODUCT)
    found = FakeTensorProp(module).propagate(torch.empty(rows, 256).half(), torch.empty(512, 256).half())
    assert found[0].shape == (rows, 1, 256)
    names = [node.target for node in module.graph.nodes if node.op == "call_function"]
    if rows > 16:
        assert call.args[11] is False and ATEN.mul.Tensor in names
        return
    assert call.args[7:] == (None, None, (), 0, True)
    assert call.meta["val"].shape == (rows, 256) and set(names) == {ATEN.zeros.default, call.target, ATEN.view.default}


@pytest.mark.parametrize("kind", [{"half": 0}, {"reads_later": True}])
def test_other_gates_stay(kind: dict[str, Any]) -> None:
    module = _gated(**kind)
    write_decoding_operators(module)
    assert [call.args[6:] for call in _calls(module, PRODUCT)] == [(False, False)]


@pytest.mark.parametrize("hidden", [-65504.0, -torch.inf, -1.0])
def test_masks_that_hide_are_read_as_what_they_were_made_of(hidden: float) -> None:
    graph = _Graph()
    query, *caches = (graph.take(1, 8, length, 32) for length in (1, 192, 192))
    seen = graph.take(1, 1, 1, 192, dtype=torch.bool)
    numbers = [graph.call(ATEN.scalar_tensor.default, each, dtype=torch.float16) for each in (0.0, hidden)]
    mask = graph.call(ATEN.where.self, seen, *numbers)
    made = graph.graph.call_function(
        ATEN._scaled_dot_product_cudnn_attention.default, (query, *caches, mask, False), {"scale": 0.3}
    )
    module = graph.module(graph.graph.call_function(operator.getitem, (made, 0)))
    write_decoding_operators(module)
    (call,) = _calls(module, ATTENTION)
    assert (call.args[3].meta["val"].dtype is torch.bool) is (hidden < -1)
    operands = [torch.randn(1, 8, length, 32) for length in (1, 192, 192)]
    shown = torch.rand(1, 1, 1, 192) > 0.5
    wanted = F.scaled_dot_product_attention(*operands, torch.where(shown, 0.0, hidden), scale=0.3)
    for node in module.graph.nodes:
        node.kwargs = {**node.kwargs, "dtype": torch.float32} if "dtype" in node.kwargs else node.kwargs
    module.recompile()
    torch.testing.assert_close(module(*operands, shown)[0], wanted)


@pytest.mark.parametrize("is_flattened", [False, True])
def test_products_of_codes_take_norms_and_residuals_in(is_flattened: bool) -> None:
    module = _layer(is_flattened=is_flattened)
    _by_codes(module)
    write_decoding_operators(module)
    first, second = _calls(module, decoding.CODES_PRODUCT)
    assert first.args[3] is not None and first.args[4] is not None and first.args[5] is None
    assert second.args[3] is None and second.args[5] is not None
    assert first.args[7:] == second.args[7:] == (None, None, (), 0, False)


def test_what_is_read_elsewhere_or_made_otherwise_is_not_taken_in() -> None:
    module = _layer(reads_later=True)
    write_decoding_operators(module)
    assert not _calls(module, UPDATING_ATTENTION)
    assert len(_calls(module, ATTENTION)) == 1
    module = _layer(gain_of="float32")
    write_decoding_operators(module)
    assert all(call.args[3] is None for call in _calls(module, PRODUCT))


def test_kernels_of_a_graph_are_known_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each form for each kind of call once, whatever a library would have been asked for."""
    pytest.importorskip("triton")
    from trt_portable.builder.inductor.tactic import _teach_own_operators, kernels_of

    monkeypatch.setattr(decoding, "starts_early", lambda device: False)
    graph, own = _Graph(), _teach_own_operators()
    product, attention = (decoding._operators()[name] for name in (PRODUCT, ATTENTION))
    made = []
    for columns in (512, 512, 768):
        given = (graph.take(3, 256), graph.take(columns, 256), graph.take(columns), graph.take(256), graph.take(1))
        made.append(graph.call(product, *given, None, False, True))
    keys = [graph.take(1, 2, 256, 64) for _ in range(2)]
    made.append(graph.call(attention, graph.take(1, 8, 1, 64), *keys, graph.take(1, 1, 1, 256), 0.125))
    with torch.no_grad():
        calls = kernels_of(graph.module(*made), own, dynamic=False)
    names = [call.kernel.__name__ for call in calls]
    products = [*["few_rows_product", "normalize_rows", "few_rows_product"] * len(decoding.SEVERAL_ROWS)]
    assert names == [*products * 2, "attend_to_part", "join_parts"]
    assert {call.arguments[-1] for call in calls if call.kernel.__name__ == "few_rows_product"} == {512, 768}
    tiles = [call.settings["TILE_COLUMNS"] for call in calls if call.settings.get("IS_NORMALIZED")]
    assert tiles == [form.columns for form in decoding.SEVERAL_ROWS] * 2


@pytest.mark.parametrize(
    "allocate",
    [
        torch.empty_like,
        lambda x: torch.empty(x.shape),
        lambda x: torch.empty_strided(x.shape, (1, 2)),
        lambda x: x.new_empty((4,), dtype=torch.half),
        lambda x: x.new_empty_strided((2, 2), (1, 2)),
    ],
)
def test_memory_is_no_operator_in_a_recording(allocate: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A kernel behind an operator waits for all before it, where one behind a kernel starts early."""
    x = torch.zeros(2, 3)
    recorder = LaunchRecorder([x], OwnOperators())
    with torch.no_grad(), recorder:
        made = allocate(x)
    dtype = str(made.dtype).removeprefix("torch.")
    assert recorder.steps == [["empty", 1, list(made.shape), list(made.stride()), dtype]]


def test_no_matrix_is_copied_inside_of_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, result, seen = torch.randn(8, 8), torch.empty(8), list[torch.Tensor]()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    ways = {"library": seen.append, "kernel": lambda _: pytest.fail("nothing can be measured here")}
    decoding._run_fastest(ways, matrix, result, "inside of a capture")
    assert [each is matrix for each in seen] == [True]


def test_matrices_are_copied_before_a_way_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, result, recorded = torch.randn(1 << 20), torch.empty(8), list[int]()

    def record(executable: Any, *_: Any) -> None:
        with monkeypatch.context() as capture:
            capture.setattr(torch.Tensor, "clone", lambda _: pytest.fail("a copy inside of a capture"))
            executable.run(())
        recorded.append(len(seen))

    def way(each: torch.Tensor) -> None:
        seen.append(each)
        result.fill_(1)

    seen: list[torch.Tensor] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("trt_portable.builder.autotune.autotuner.record_run", record)
    monkeypatch.setattr("trt_portable.builder.autotune.autotuner.race_on_device", lambda runs: dict.fromkeys(runs, 1.0))
    decoding._run_fastest({"one": way, "other": way}, matrix, result, "before a way is recorded")
    assert len(recorded) == 2


_INTERPRETED = """
import os
import torch
from trt_portable.builder.inductor import decoding
from trt_portable.builder.inductor import triton_kernels as kernels
from trt_portable.dtypes import FP4_VALUES

torch.manual_seed(0)
for rows, depth, columns in ((1, 64, 40), (1, 96, 33), (3, 64, 40), (8, 96, 33), (16, 64, 17)):
    x, matrix, bias = torch.randn(rows, depth).half(), torch.randn(columns, depth).half(), torch.randn(columns).half()
    result = torch.full((rows, columns), torch.nan, dtype=torch.half)
    gain, epsilon, residual = torch.rand(depth).half(), torch.tensor([0.5]), torch.randn(rows, columns).half()
    for has_bias, is_normalized, has_residual, is_gated in (
        (0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (1, 1, 1, 0), (0, 1, 0, 1), (1, 0, 0, 1)
    ):
        if is_gated and columns % 2:
            continue
        result = torch.full((rows, columns // (1 + is_gated)), torch.nan, dtype=torch.half)
        kernel = kernels.one_row_product if rows == 1 else kernels.few_rows_product
        kernel[(-(-columns // 16),)](
            x, matrix, bias, gain, epsilon, residual, result, columns,
            **({"IS_WEIGHT": 1} if rows == 1 else {"ROWS": rows}), DEPTH=depth, HAS_BIAS=has_bias,
            IS_NORMALIZED=is_normalized, HAS_RESIDUAL=has_residual, IS_GATED=is_gated,
            TILE_COLUMNS=16, TILE_DEPTH=64, IS_EARLY=False,
        )
        left = x.float()
        if is_normalized:
            left = left * torch.rsqrt(left.square().mean(-1, keepdim=True) + epsilon) * gain.float()
        wanted = torch.nn.functional.linear(left, matrix.float(), bias.float() if has_bias else None)
        wanted = wanted + residual.float() if has_residual else wanted
        if is_gated:
            gate, up = wanted.chunk(2, -1)
            wanted = torch.nn.functional.silu(gate) * up
        torch.testing.assert_close(result.float(), wanted, atol=2e-2, rtol=2e-3)



class OnGpu(torch.Tensor):
    is_cuda = True


def go_each_way(ways, matrix, result, *form):
    library = result.clone()
    ways["library"](matrix)
    library.copy_(result)
    for way in ways.values():
        result.fill_(torch.nan)
        way(matrix)
        torch.testing.assert_close(result.float(), library.float(), atol=3e-2, rtol=4e-3)
    counts.append(len(ways))


counts, chosen = [], decoding._run_fastest
decoding._run_fastest, decoding.SEVERAL_ROWS = go_each_way, (decoding.Form(16, 64, 4, 1), decoding.Form(32, 64, 4, 1))
x, matrix, bias = torch.randn(3, 96).half(), torch.randn(33, 96).half(), torch.randn(33).half()
gain, epsilon, residual = torch.rand(96).half(), torch.tensor([0.5]), torch.randn(3, 33).half()
for optional in ((None,) * 4, (bias,), (None, gain, epsilon), (bias, gain, epsilon, residual)):
    decoding.multiply(x.as_subclass(OnGpu), matrix, *optional)
decoding.multiply(x.as_subclass(OnGpu), matrix[:32], None, gain, epsilon, None, True)
assert counts == [3, 3, 5, 5, 5], counts
decoding._run_fastest = chosen
x, gain, epsilon = torch.randn(3, 96).half(), torch.rand(96).half(), torch.tensor([0.5])
result = torch.full((3, 96), torch.nan, dtype=torch.half)
decoding.normalization_call(x, gain, epsilon, result).start()
wanted = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon) * gain.float()
torch.testing.assert_close(result.float(), wanted, atol=2e-3, rtol=2e-3)
import numpy as np
import trt_portable as trt
from triton import language as tl
from triton.runtime.interpreter import TensorHandle
from trt_portable.builder.inductor import triton_kernels
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, ProductForm, by_bits, levels_of


def take_apart(words, y, slots, assembly):  # what the assembly does: there is no interpreter of that
    raw = words.handle.data.view(np.uint32)
    bits, taken = 32 // int(slots), []
    for slot in range(int(slots)):
        part, place = divmod(slot, int(slots) // 2)
        ends = (place, place + int(slots) // 2) if is_apart else (2 * place, 2 * place + 1)
        found = np.empty(raw.shape, dtype=np.float16)
        for end in range(2):
            code = raw[..., part::2] >> (bits * ends[end]) & (2**bits - 1)
            if table is not None:
                found[..., end::2] = table[code]
            elif kind == "fp8":
                found[..., end::2] = torch.from_numpy(code.astype(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
            else:
                found[..., end::2] = code.astype(np.int64) - (code >> bits - 1).astype(np.int64) * 2**bits
        taken.append(tl.tensor(TensorHandle(found, tl.float16), tl.block_type(tl.float16, list(raw.shape))))
    return tuple(taken)


def multiply_fragments(low, high, x, totals):  # eight rows of low and of high, eight columns of x, 16 numbers each
    units = [each.handle.data.astype(np.float32).reshape(-1, 8, 16) for each in (low, high, x)]
    sums = [np.einsum("urk,uck->urc", rows, units[2]).reshape(-1, 2) for rows in units[:2]]
    return tl.tensor(TensorHandle(totals.handle.data + np.concatenate(sums, 1), tl.float32), totals.type)


triton_kernels.multiply_fragments = multiply_fragments
triton_kernels.multiply_pairs = lambda one, other: one * other
triton_kernels.take_apart = take_apart
many = (decoding.Form(32, 0, 4, 1, 16),)
several = (decoding.Form(16, 64, 2, 1),)
one = (decoding.Form(16, 2, 1, 2), decoding.Form(8, 1, 1, 4))
decoding.codes_forms_for = lambda rows, *, is_gated=False: (
    one[: 2 - is_gated] if rows == 1 else several if rows <= 16 else many
)
few, levels, names = PRODUCT_KERNELS["few_rows"], tuple(number / 8 for number in range(-9, 7)), []
cases = [
    (1, 128, 9, 1, "int8", False, 0), (1, 256, 20, 1, "int4", True, 1), (1, 256, 9, 4, "levels", False, 0),
    (1, 128, 9, 4, "fp8", False, 1), (1, 192, 9, 3, "int8", True, 1), (3, 256, 33, 4, "int8", True, 1),
    (2, 256, 17, 1, "int4", True, 0), (2, 256, 18, 16, "levels", False, 1), (2, 384, 17, 3, "fp4", False, 0),
    (17, 256, 33, 4, "int8", True, 0), (20, 256, 33, 2, "int4", False, 0), (20, 256, 17, 8, "fp4", False, 0),
]
if "TRT_STRESS" in os.environ:
    cases += [
        (1, 256, 9, 4, "int8", True, 1), (1, 384, 20, 3, "int4", True, 0), (3, 256, 33, 1, "int8", True, 1),
        (3, 256, 33, 4, "int8", False, 0), (16, 256, 17, 8, "int4", True, 1), (2, 384, 34, 3, "int4", True, 1),
        (2, 256, 17, 16, "fp4", False, 1), (17, 256, 33, 1, "int8", False, 0), (40, 256, 64, 4, "int8", True, 0),
        (33, 256, 40, 1, "int8", True, 0), (20, 512, 48, 4, "int4", False, 0), (20, 256, 33, 8, "fp4", False, 0),
    ]
for rows, depth, columns, groups, kind, has_offset, folds in cases:
    dtype = trt.int4 if kind == "levels" else getattr(trt, kind)
    given = levels if kind == "levels" else ()
    form = ProductForm(columns, depth, dtype, trt.float16, trt.float16, (columns, groups), False, has_offset, given)
    is_apart, table = kind in ("int4", "int8"), np.array(levels_of(form), np.float16) if levels_of(form) else None
    high = 127 if kind == "int8" else 8
    codes = torch.randint(-high, high, (columns, depth), dtype=torch.int8)
    codes = torch.randn(columns, depth).to(torch.float8_e4m3fn) if kind == "fp8" else codes
    codes = torch.tensor(FP4_VALUES)[codes.int() & 15] if kind == "fp4" else codes
    scale = torch.rand(2 if has_offset else 1, columns, groups) / 16
    matrix, prepared = few.prepare(codes, scale if has_offset else scale[0], form)
    values = torch.tensor(by_bits(levels))[codes.int() & 15] if kind == "levels" else codes.float()
    wide = scale.repeat_interleave(depth // groups, 2)
    values = values * wide[0] - (wide[1] if has_offset else 0)
    x, bias, gain = (torch.randn(*shape).half() for shape in ((rows, depth), (columns,), (depth,)))
    epsilon, residual = torch.tensor([0.5]), torch.randn(rows, columns).half()
    folded = (bias, gain, epsilon, residual) if folds else (None,) * 4
    left = x.float()
    if folds:
        left = left * torch.rsqrt(left.square().mean(-1, keepdim=True) + epsilon) * gain.float()
    wanted = left @ values.t() + (bias.float() + residual.float() if folds else 0)
    parts = few.parts(prepared, form)
    for index in range(len(decoding.codes_forms_for(rows))):
        result = torch.full((rows, columns), torch.nan, dtype=torch.half)
        decoding.codes_call(x, matrix, *folded, *parts, None, levels_of(form), 0, False, result, index).start()
        assert float((result.float() - wanted).norm() / wanted.norm()) < 4e-3, (rows, depth, groups, kind, index)
    ways = [0, 1] if rows <= 16 and folds else []  # the norm inside, and apart
    for way in ways:
        decoding.fastest = lambda starts, *_, **__: names.append(list(starts)[way]) or names[-1]
        found = decoding.multiply_by_codes(x, matrix, *folded, *parts, None, levels_of(form), 0)
        assert float((found.float() - wanted).norm() / wanted.norm()) < 4e-3, (rows, depth, groups, kind, way)
    if folds and columns % 2 == 0:
        gate, up = (wanted - residual.float()).chunk(2, -1)
        for way in ways[: 1 + (rows > 1 and columns < 20)]:
            decoding.fastest = lambda starts, *_, **__: list(starts)[way]
            found = decoding.multiply_by_codes(x, matrix, *folded[:3], None, *parts, None, levels_of(form), 0, True)
            assert found.shape == (rows, columns // 2)
            error = found.float() - gate * torch.sigmoid(gate) * up
            assert float(error.norm() / (gate * up).norm()) < 6e-3, (rows, depth, groups, kind, way)
    result = torch.full((columns, depth), torch.nan, dtype=torch.half)
    decoding.decoding_call(matrix, *parts, levels_of(form), result).start()
    torch.testing.assert_close(result.float(), values, atol=4e-3, rtol=2e-3)

assert any(name.startswith("apart") for name in names) and any(not name.startswith("apart") for name in names)
kind, is_apart, table = "int4", True, None
for columns, has_offset in ((32, True), (20, False)):  # matrices that begin within a tile of 16 rows, too
    form = ProductForm(3 * columns, 256, trt.int4, trt.float16, trt.float16, (3 * columns, 2), False, has_offset, ())
    codes, scale = torch.randint(-8, 8, (3 * columns, 256), dtype=torch.int8), torch.rand(2, 3 * columns, 2) / 16
    matrix, prepared = few.prepare(codes, scale if has_offset else scale[0], form)
    wide = scale.repeat_interleave(128, 2)
    values = (codes * wide[0] - (wide[1] if has_offset else 0)).reshape(3, columns, 256)
    x, places = torch.randn(4, 256).half(), torch.tensor([2, 0, -1, 3])
    is_there = ((places >= 0) & (places < 3)).unsqueeze(1)
    wanted = torch.einsum("sk,snk->sn", x.float(), values[places.clamp(0, 2)]) * is_there
    for index in range(len(one)):
        result = torch.full((4, columns), torch.nan, dtype=torch.half)
        parts = few.parts(prepared, form)
        decoding.codes_call(x, matrix, *[None] * 4, *parts, places, (), 3, False, result, index).start()
        assert float((result.float() - wanted).norm() / wanted.norm()) < 4e-3, (columns, index)

for batch, groups, heads, queries, length, masks in ((2, 2, 4, 2, 150, 2), (1, 3, 1, 1, 128, 1), (2, 1, 8, 1, 320, 1)):
    query = torch.randn(batch, groups * heads, queries, 32).half()
    keys, values = (torch.randn(length, batch, groups, 32).half().permute(1, 2, 0, 3) for _ in range(2))
    mask = torch.zeros(masks, 1, queries, length).half()
    mask[..., 40:] = -torch.inf
    mask[-1, ..., :5] = -torch.inf
    seen = mask == 0 if batch == 1 else mask  # both say the same
    parts = -(-length // decoding._part_of(batch * groups, length))
    rows = decoding._rows_of(heads * queries)
    sums = torch.full((batch * groups, parts, rows, 32), torch.nan)
    maxima, weights = (torch.full((batch * groups, parts, rows), torch.nan) for _ in range(2))
    result = torch.empty(batch, queries, groups * heads, 32, dtype=torch.half)
    decoding.parts_call(query, keys, values, seen, *[None] * 5, sums, maxima, weights, 0.2).start()
    decoding.joining_call(sums, maxima, weights, result, groups).start()
    wide = [each.float().repeat_interleave(heads, 1) for each in (keys, values)]
    wanted = torch.nn.functional.scaled_dot_product_attention(query.float(), *wide, mask.float(), scale=0.2)
    torch.testing.assert_close(result.transpose(1, 2).float(), wanted, atol=2e-3, rtol=2e-3)
    nothing = torch.zeros_like(mask, dtype=torch.bool)
    decoding.parts_call(query, keys, values, nothing, *[None] * 5, sums, maxima, weights, 0.2).start()
    decoding.joining_call(sums, maxima, weights, result, groups).start()
    assert not result.any()  # what sees nothing

for batch, groups, heads, length, turns, places in (
    (2, 2, 4, 150, 2, (3, 149)), (1, 3, 1, 128, 1, (0,)), (2, 1, 8, 320, 0, (64, 320)), (2, 1, 2, 130, 1, (-1, 39)),
):
    whole = torch.randn(batch, (groups * heads + 2 * groups) * 32).half()
    query, new_keys, new_values = (
        part.reshape(batch, -1, 1, 32) for part in whole.split([groups * heads * 32, groups * 32, groups * 32], 1)
    )
    keys, values = (torch.randn(batch, groups, length, 32).half() for _ in range(2))
    mask = torch.zeros(1, 1, 1, length).half()
    mask[..., 40:60] = -torch.inf
    start = torch.tensor(places)
    angles = torch.randn(turns, 1, 1, 16).repeat(1, 1, 1, 2)
    turned = (angles.cos().half(), angles.sin().half()) if turns else (None, None)
    updates = (new_keys, new_values, start, *turned)
    wanted_keys, wanted_values = keys.clone(), values.clone()
    wanted = decoding.attend_in_place(query, wanted_keys, wanted_values, *updates, mask, 0.2)
    parts = -(-length // decoding._part_of(batch * groups, length))
    rows = decoding._rows_of(heads)
    sums = torch.full((batch * groups, parts, rows, 32), torch.nan)
    maxima, weights = (torch.full((batch * groups, parts, rows), torch.nan) for _ in range(2))
    result = torch.empty(batch, 1, groups * heads, 32, dtype=torch.half)
    decoding.parts_call(query, keys, values, mask, *updates, sums, maxima, weights, 0.2).start()
    decoding.joining_call(sums, maxima, weights, result, groups).start()
    torch.testing.assert_close(result.float(), wanted.float(), atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(keys, wanted_keys, atol=4e-3, rtol=4e-3)
    assert torch.equal(values, wanted_values)
"""


@pytest.mark.slow
def test_the_kernels_compute_what_they_should_where_triton_interprets_them() -> None:
    pytest.importorskip("triton")
    run_interpreted(_INTERPRETED)


@pytest.mark.parametrize("form", CODES_ONE_ROW[::3])
def test_fragments_lie_in_the_threads_that_tensor_cores_read(form: Form) -> None:
    """Triton chooses which thread has what; it is compiled for a GPU, which need not be there."""
    triton = pytest.importorskip("triton")
    from trt_portable.builder.inductor.triton_kernels import one_row_codes_product as kernel

    assembled = assembly(torch.int8, torch.bfloat16, ())
    fixed = dict.fromkeys(("HAS_BIAS", "HAS_RESIDUAL", "HAS_OFFSETS", "IS_NORMALIZED", "IS_EARLY"), True)
    fixed |= {"DEPTH": 2048, "GROUP": 64, "SLOTS": 4, "WORDS": 16, "ASSEMBLY": assembled, "MATRICES": 0}
    fixed |= {"TILE_COLUMNS": form.columns, "TILE_UNITS": form.depth, "STAGES": form.stages, "THREADS": 32 * form.warps}
    fixed["IS_GATED"] = form.columns == 16
    kinds = {"codes": "*i8", "epsilon": "*fp32", "places": "*i64", "columns": "i32", "all_columns": "i32"}
    signature = {name: "constexpr" if name in fixed else kinds.get(name, "*bf16") for name in kernel.arg_names}
    attributes = {(index,): [["tt.divisibility", 16]] for index, name in enumerate(signature) if name not in fixed}
    places = {(kernel.arg_names.index(name),): value for name, value in fixed.items()}
    source = triton.compiler.ASTSource(kernel, signature, places, attributes)
    target = triton.backends.compiler.GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=target, options={"num_warps": form.warps, "num_stages": 1}).asm["ttgir"]
    products = [line for line in made.splitlines() if "mma.sync" in line]
    layouts = dict(re.findall(r"^(#\w+) = #ttg.blocked<(.*)>", made, re.MULTILINE))
    tiles = 2048 // 64 * form.columns // 16 // form.depth
    assert len(products) == 2 * 4 * tiles
    for name in {name for line in products for name in re.findall(r", (#\w+)>", line)}:
        assert "sizePerThread = [1, 4], threadsPerWarp = [32, 1]" in layouts[name]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize(("columns", "depth"), [(2048, 2048), (3072, 2048), (2048, 8192), (1000, 272)])
def test_products_on_a_gpu(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    x, matrix = torch.randn(rows, depth, dtype=dtype).cuda(), torch.randn(columns, depth, dtype=dtype).cuda()
    wanted = x.float() @ matrix.float().t()
    torch.testing.assert_close(multiply(x, matrix, None).float(), wanted, atol=depth**0.5 * 0.02, rtol=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [512, 4096])
@pytest.mark.parametrize(("heads", "groups", "queries"), [(32, 8, 1), (8, 8, 1), (32, 8, 4)])
def test_attention_on_a_gpu(heads: int, groups: int, queries: int, length: int) -> None:
    query = torch.randn(2, heads, queries, 64, dtype=torch.float16, device="cuda")
    keys, values = (torch.randn(2, groups, length, 64, dtype=torch.float16, device="cuda") for _ in range(2))
    mask = torch.zeros(1, 1, queries, length, dtype=torch.float16, device="cuda")
    mask[..., length // 3 :] = -torch.inf
    wide = [each.repeat_interleave(heads // groups, 1) for each in (keys, values)]
    wanted = F.scaled_dot_product_attention(query, *wide, mask, scale=0.125)
    found = attend(query, keys, values, mask, 0.125).transpose(1, 2)
    torch.testing.assert_close(found, wanted, atol=2e-3, rtol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 4, 300])
@pytest.mark.parametrize(("kind", "groups"), [("int8", 1), ("int8", 16), ("int4", 1), ("int4", 16), ("levels", 64)])
@pytest.mark.parametrize("has_offset", [False, True])
@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_products_of_codes_on_a_gpu(
    monkeypatch: Any, rows: int, kind: str, groups: int, has_offset: bool, half: str
) -> None:
    columns, depth, levels = 1000, 2048, tuple(number / 8 for number in range(-9, 7)) if kind == "levels" else ()
    types, dtype = {"int8": trt.int8}.get(kind, trt.int4), getattr(trt, half)
    form = ProductForm(columns, depth, types, dtype, dtype, (columns, groups), False, has_offset, levels)
    case = Case(form, (rows,), False, False, None).trial(torch.device("cuda"))
    few: Any = PRODUCT_KERNELS["few_rows"]
    codes, scale = case.prepare(few)
    x = torch.randn(rows, depth, dtype=getattr(torch, half), device="cuda")
    gain, residual = torch.rand(depth, device="cuda").to(x.dtype), torch.randn(rows, columns, device="cuda").to(x.dtype)
    epsilon, parts = torch.tensor([0.5], device="cuda"), few.parts(scale, form)
    folded: tuple[torch.Tensor | None, ...] = (None, gain, epsilon, residual)
    wide = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon) * gain.float()
    if rows > 16:
        wide, residual, folded = x.float(), residual[0], (residual[0], None, None, None)
    wanted = wide @ few.decoded(codes, scale, form, torch.float32).t() + residual.float()
    count = len(codes_forms_for(rows))
    for index in range(count):
        result = torch.full((rows, columns), torch.nan, dtype=x.dtype, device="cuda")
        codes_call(x, codes, *folded, *parts, None, levels_of(form), 0, False, result, index).start()
        assert float((result.float() - wanted).norm() / wanted.norm()) < 1e-2, index
    if rows > 16:
        return
    ways: list[str] = []

    def choose(starts: Any, *_: Any, number: int, **__: Any) -> str:
        ways[:] = starts
        return ways[number % len(ways)]

    for way in range(2 * count):
        monkeypatch.setattr(decoding, "fastest", functools.partial(choose, number=way))
        found = decoding.multiply_by_codes(x, codes, *folded, *parts, None, levels_of(form), 0)
        assert float((found.float() - wanted).norm() / wanted.norm()) < 1e-2, ways[way % len(ways)]
    assert sum(name.startswith("apart") for name in ways) == (count if rows > 1 else 0)
    gate, up = (wanted - residual.float()).chunk(2, -1)
    wanted = F.silu(gate) * up
    for way in range(len(ways)):
        monkeypatch.setattr(decoding, "fastest", functools.partial(choose, number=way))
        found = decoding.multiply_by_codes(x, codes, *folded[:3], None, *parts, None, levels_of(form), 0, True)
        assert float((found.float() - wanted).norm() / wanted.norm()) < 2e-2, ways[way]


@pytest.mark.gpu
@pytest.mark.parametrize("columns", [160, 200])  # matrices that begin within a tile of 16 rows, too
@pytest.mark.parametrize("has_offset", [False, True])
def test_products_of_chosen_codes_on_a_gpu(columns: int, has_offset: bool) -> None:
    count, depth = 3, 512
    form = ProductForm(
        count * columns, depth, trt.int4, trt.bfloat16, trt.bfloat16, (count * columns, 4), has_offset=has_offset
    )
    few: Any = PRODUCT_KERNELS["few_rows"]
    codes, scale = Case(form, (1,), False, False, None).trial(torch.device("cuda")).prepare(few)
    x, places = torch.randn(5, depth, dtype=torch.bfloat16, device="cuda"), torch.tensor([2, 0, 1, 3, 2], device="cuda")
    matrices = few.decoded(codes, scale, form, torch.float32).reshape(count, columns, depth)
    wanted = torch.einsum("sk,snk->sn", x.float(), matrices[places.clamp(max=2)]) * (places < count)[:, None]
    for index in range(len(codes_forms_for(1))):
        result = torch.full((5, columns), torch.nan, dtype=x.dtype, device="cuda")
        parts = few.parts(scale, form)
        codes_call(x, codes, *[None] * 4, *parts, places, levels_of(form), count, False, result, index).start()
        assert float((result.float() - wanted).norm() / wanted.norm()) < 1e-2, index
