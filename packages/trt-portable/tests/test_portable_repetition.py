"""Repeated layers of a graph are cut out, so that a compiler sees each kind once."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from trt_portable.builder.inductor.repetition import SplitGraph, spelled_out, split, whole
from trt_portable.builder.inductor.tactic import compile_functional, decompositions
from trt_portable.internals import AsyncCompile, inductor_config

WIDTH = 8
F64 = torch.float64
STRESSED = "TRT_STRESS" in os.environ
"""Whether more and deeper stacks are tried than a change has time for."""
Layer = Callable[[torch.Tensor, Sequence[torch.Tensor]], torch.Tensor]


def traced(
    run: Callable[..., Any], tensors: Sequence[torch.Tensor], *, open_axes: Sequence[int] = ()
) -> fx.GraphModule:
    """The graph of a function of tensors, with symbolic sizes along axes of the last one."""
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    fakes: list[Any] = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors[:-1]]
    kinds = [DimDynamic.DYNAMIC if axis in open_axes else DimDynamic.STATIC for axis in range(tensors[-1].dim())]
    context = StatelessSymbolicContext(kinds)
    fakes.append(mode.from_tensor(tensors[-1], symbolic_context=context, source=ConstantSource("x")))
    with torch.no_grad(), mode, enable_python_dispatcher():
        graph: fx.GraphModule = make_fx(run, dict(decompositions()))(*fakes)
    graph.graph.eliminate_dead_code()
    return graph


def computed(cut: SplitGraph, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the pieces compute, each code by its own operators."""

    def call(code: fx.GraphModule) -> Callable[[list[Any]], Any]:
        def run(arguments: list[Any]) -> Any:
            given = list(arguments)
            arguments.clear()
            return code(*given)

        return run

    return cut.run([call(code) for code in cut.codes], list(tensors))


def pre_norm(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Attention without heads, then a gated product; each behind a norm and beside a residual."""
    normed = torch.nn.functional.layer_norm(x, (WIDTH,), weights[0])
    q, k, v = (normed @ each for each in weights[1:4])
    scores = (q @ k.transpose(-1, -2) / WIDTH).softmax(-1)
    x = x + scores @ v
    normed = torch.nn.functional.layer_norm(x, (WIDTH,), weights[4])
    return x + (torch.nn.functional.silu(normed @ weights[5]) * (normed @ weights[6])) @ weights[7]


def post_norm(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """The same parts, with norms behind the residuals."""
    scores = (x @ weights[1] @ (x @ weights[2]).transpose(-1, -2)).softmax(-1)
    x = torch.nn.functional.layer_norm(x + scores @ (x @ weights[3]), (WIDTH,), weights[0])
    return torch.nn.functional.layer_norm(
        x + torch.nn.functional.gelu(x @ weights[5]) @ weights[7], (WIDTH,), weights[4]
    )


def weights_of(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(WIDTH, WIDTH, generator=generator, dtype=F64) / 4 for _ in range(8)]
    made[0], made[4] = (torch.rand(WIDTH, generator=generator, dtype=F64) + 0.5 for _ in range(2))
    return made


def stack(layers: Sequence[Layer], *, all_outputs: bool = False) -> tuple[Callable[..., Any], list[torch.Tensor]]:
    """A function of the weights of layers, one after the other, and of what the first one takes; and these weights."""

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, found = tensors[-1], []
        for at, layer in enumerate(layers):
            x = layer(x, tensors[8 * at : 8 * at + 8])
            found.append(x)
        return tuple(found) if all_outputs else (x,)

    return run, [tensor for at in range(len(layers)) for tensor in weights_of(at)]


def cached(x: torch.Tensor, weights: Sequence[torch.Tensor], cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to a cache (1, 9, WIDTH) of which the first places are written, and the cache as it is then."""
    normed = torch.nn.functional.layer_norm(x, (WIDTH,), weights[0])
    kept = torch.ops.aten.slice_scatter.default(cache, normed @ weights[1], 1, 0, 5)
    scores = (normed @ weights[2] @ kept.transpose(-1, -2)).softmax(-1)
    return x + (scores @ kept) @ weights[3], kept


def with_caches(depth: int, *, reads_before: bool = False) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """A graph that updates a cache for each of its layers at its end, and what it takes.

    With ``reads_before`` the end reads the first cache as it was.
    """

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, caches, kept = tensors[-1], tensors[-1 - depth : -1], []
        for at, cache in enumerate(caches):
            x, new = cached(x, tensors[8 * at : 8 * at + 8], cache)
            kept.append(new)
        return (x + caches[0][:, :5] if reads_before else x, *kept)

    generator = torch.Generator().manual_seed(1)
    caches = [torch.randn(1, 9, WIDTH, generator=generator, dtype=F64) for _ in range(depth)]
    x = torch.randn(1, 5, WIDTH, generator=generator, dtype=F64)
    tensors = [*(weight for at in range(depth) for weight in weights_of(at)), *caches, x]
    graph = traced(run, tensors)
    holders = graph.graph.find_nodes(op="placeholder")[-1 - depth : -1]
    last = graph.graph.output_node()
    result, *kept = last.args[0]  # type: ignore[misc]
    with graph.graph.inserting_before(last):
        for holder, value in zip(holders, kept, strict=True):
            graph.graph.call_function(torch.ops.aten.copy_.default, (holder, value)).meta["val"] = holder.meta["val"]
    last.args = ((result,),)
    graph.recompile()
    return graph, tensors


def test_layers_that_update_caches_share_one_code_and_write_at_the_end_of_theirs() -> None:
    depth = 6
    graph, tensors = with_caches(depth)
    expected = [tensor.clone() for tensor in tensors]
    (result,) = graph(*expected)
    cut = split(graph)
    assert len(cut.pieces) >= depth and len(cut.codes) < depth
    assert sum(node.target is torch.ops.aten.copy_.default for code in cut.codes for node in code.graph.nodes) < depth
    torch.testing.assert_close(computed(cut, tensors), [result])
    torch.testing.assert_close(tensors, expected)
    before = with_caches(depth)[1]
    assert not any(torch.equal(cache, old) for cache, old in zip(tensors[-7:-1], before[-7:-1], strict=True))


def test_what_is_read_again_as_it_was_is_written_after_that() -> None:
    graph, tensors = with_caches(6, reads_before=True)
    expected = [tensor.clone() for tensor in tensors]
    (result,) = graph(*expected)
    torch.testing.assert_close(computed(split(graph), tensors), [result])
    torch.testing.assert_close(tensors, expected)


@pytest.mark.sampled
@pytest.mark.parametrize("layer", [pre_norm, post_norm])
@pytest.mark.parametrize("all_outputs", [False, True])
@pytest.mark.parametrize("open_axes", [(), (0, 1)])
def test_equal_layers_share_one_code(layer: Layer, all_outputs: bool, open_axes: tuple[int, ...]) -> None:
    counts = {}
    for depth in (4, 12 if STRESSED else 7):
        run, weights = stack([layer] * depth, all_outputs=all_outputs)
        x = torch.randn(3, 5, WIDTH, dtype=F64)
        cut = split(traced(run, [*weights, x], open_axes=open_axes))
        assert len(cut.pieces) >= depth
        counts[depth] = sum(len(code.graph.nodes) for code in cut.codes)
        for given_x in (x, *([torch.randn(4, 7, WIDTH, dtype=F64)] if open_axes else [])):
            for found, wanted in zip(computed(cut, [*weights, given_x]), run(*weights, given_x), strict=True):
                torch.testing.assert_close(found, wanted)
    assert len(set(counts.values())) == 1  # what is compiled does not grow with depth


def test_two_stacks_are_two_codes() -> None:
    run, weights = stack([pre_norm] * 4 + [post_norm] * 4)
    x = torch.randn(3, 5, WIDTH, dtype=F64)
    cut = split(traced(run, [*weights, x]))
    shared = [code for code in range(len(cut.codes)) if sum(piece.code == code for piece in cut.pieces) > 1]
    assert len(shared) == 2
    torch.testing.assert_close(computed(cut, [*weights, x])[0], run(*weights, x)[0])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("layer", [pre_norm, *[post_norm] * STRESSED, cached])
def test_pieces_start_the_kernels_that_the_whole_starts(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that a compiler fuses in the whole is parted by a cut."""
    started: list[object] = []
    kernel = lambda *arguments: started.append(arguments)  # noqa: E731 - counts, and computes nothing
    monkeypatch.setattr(AsyncCompile, "cpp_pybinding", lambda *_, **__: kernel)
    if layer is cached:
        graph, tensors = with_caches(4)
    else:
        run, weights = stack([layer] * 4)
        tensors = [*weights, torch.randn(3, 5, WIDTH, dtype=F64)]
        graph = traced(run, tensors)
    counts = []
    for cut in (split(graph), whole(graph)):
        with inductor_config.patch(fx_graph_cache=False):
            codes = [compile_functional(code) for code in cut.codes]
        started.clear()
        cut.run(codes, list(tensors))
        counts.append(len(started))
    assert counts[0] == counts[1] > 4


def test_chains_without_products_stay_whole() -> None:
    """Cut anywhere, a chain of pointwise operators would be several kernels."""

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        for _ in range(60):
            x = torch.sin(x) * 1.5 + 0.25
        return (x,)

    x = torch.randn(3, 5)
    cut = split(traced(run, [x]))
    assert len(cut.pieces) == 1
    torch.testing.assert_close(computed(cut, [x])[0], run(x)[0])


def test_constants_and_tables_are_not_made_for_each_layer() -> None:
    """Small constants are made where they are read, and a table of angles, which all layers read, once."""

    def layer(x: torch.Tensor, weights: Sequence[torch.Tensor], table: torch.Tensor) -> torch.Tensor:
        mask = torch.full((5, 5), -1e4).triu(1)
        scores = ((x * table) @ weights[1] @ (x @ weights[2]).transpose(-1, -2) + mask).softmax(-1)
        x = x + scores @ (x @ weights[3])
        return x + torch.relu(x @ weights[5]) @ weights[7]

    def run(*tensors: torch.Tensor) -> tuple[torch.Tensor]:
        x = tensors[-1]
        table = torch.cos(x[0] * 0.5)
        for at in range(8):
            x = layer(x, tensors[8 * at : 8 * at + 8], table)
        return (x,)

    weights = [tensor for at in range(8) for tensor in weights_of(at)]
    x = torch.randn(3, 5, WIDTH, dtype=F64)
    cut = split(traced(run, [*weights, x]))
    assert len(cut.codes) < len(cut.pieces)
    assert sum(node.target is torch.ops.aten.cos.default for code in cut.codes for node in code.graph.nodes) == 1
    torch.testing.assert_close(computed(cut, [*weights, x])[0], run(*weights, x)[0])


def test_layers_that_differ_in_a_number_are_not_taken_for_one() -> None:
    def scaled(factor: float) -> Layer:
        return lambda x, weights: pre_norm(x, weights) * factor

    run, weights = stack([scaled(1 + at / 10) for at in range(6)])
    x = torch.randn(3, 5, WIDTH, dtype=F64)
    torch.testing.assert_close(computed(split(traced(run, [*weights, x])), [*weights, x])[0], run(*weights, x)[0])


@settings(max_examples=50 if STRESSED else 5, deadline=None)
@given(
    kinds=st.lists(st.sampled_from((0, 0, 0, 1, 2)), min_size=2, max_size=9 if STRESSED else 6),
    tied=st.booleans(),
    all_outputs=st.booleans(),
    open_axes=st.sampled_from(((), (0,), (0, 1))),
)
def test_pieces_compute_what_the_whole_computes(
    kinds: list[int], tied: bool, all_outputs: bool, open_axes: tuple[int, ...]
) -> None:
    """Layers of several kinds in any order, with weights of their own or the same ones."""

    def scaled(x: torch.Tensor, weights: Sequence[torch.Tensor]) -> torch.Tensor:
        return pre_norm(x, weights) * 0.5

    run, weights = stack([(pre_norm, post_norm, scaled)[kind] for kind in kinds], all_outputs=all_outputs)
    if tied:
        taken = weights[:8]
        weights = taken * len(kinds)
        example = torch.randn(2, 3, WIDTH, dtype=F64)

        def run_tied(*tensors: torch.Tensor) -> Any:
            return run(*tensors[:8] * len(kinds), tensors[-1])

        graph = traced(run_tied, [*taken, example], open_axes=open_axes)
    else:
        graph = traced(run, [*weights, torch.randn(2, 3, WIDTH, dtype=F64)], open_axes=open_axes)
        taken = weights
    x = torch.randn(4 if 0 in open_axes else 2, 6 if 1 in open_axes else 3, WIDTH, dtype=F64)
    for cut in (split(graph), whole(graph)):
        for found, wanted in zip(computed(cut, [*taken, x]), run(*weights, x), strict=True):
            torch.testing.assert_close(found, wanted)


def test_a_length_that_follows_by_divisions_is_a_symbol_inside_of_layers() -> None:
    """Layers behind a convolution with strides, which the compiler sees as layers behind texts of any length."""
    run, weights = stack([pre_norm] * 4)

    def shortened(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        sound = torch.nn.functional.conv1d(tensors[-1].transpose(1, 2), tensors[0], stride=3).transpose(1, 2)
        return run(*tensors[1:-1], sound)

    kernel = torch.randn(WIDTH, WIDTH, 5, dtype=F64, generator=torch.Generator().manual_seed(2))
    cut = split(traced(shortened, [kernel, *weights, torch.randn(2, 40, WIDTH, dtype=F64)], open_axes=(0, 1)))
    layer = next(code for number, code in enumerate(cut.codes) if sum(p.code == number for p in cut.pieces) > 1)
    sizes = {
        extent.node.expr
        for node in layer.graph.nodes
        for value in [node.meta.get("val")]
        if isinstance(value, torch.Tensor)
        for extent in value.shape
        if isinstance(extent, torch.SymInt)
    }
    symbols = {size for size in sizes if size.is_Symbol}
    assert len(symbols) == 2 and sizes - symbols == {math.prod(symbols)}
    env = next(node.meta["val"].node.shape_env for node in layer.graph.nodes if node.name == "size_0")
    assert sum(not spelled_out(symbol, env).is_Symbol for symbol in symbols) == 1
    for length in (17, 40, 41):
        tensors = [kernel, *weights, torch.randn(3, length, WIDTH, dtype=F64)]
        torch.testing.assert_close(computed(cut, tensors), list(shortened(*tensors)))
