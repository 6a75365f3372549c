"""What compilers get: weights in the layouts they want, operators they know, graphs as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode

import trt_portable as trt
from trt_portable.builder.inductor import tactic
from trt_portable.builder.inductor.own_operators import teach_cudnn_operators
from trt_portable.builder.inductor.tactic import (
    TracedProgram,
    _has_odd_rows,
    _is_functional,
    _wants_channels_last,
    decompositions,
    fused_layout,
    graph_of,
    order_collectives,
    rolled_by_parts,
    trace_program,
)
from trt_portable.execution.loaded_network import FLAT, WeightLayout, load_network
from trt_portable.fusion import cuda_products
from trt_portable.fusion.programs import interpreted_program, traced_program
from trt_portable.layers.collective import collective_operator, rehearsal

C = 8
LAST = torch.channels_last


@pytest.fixture
def engine(network: Any, load: Any) -> trt.ICudaEngine:
    """Patches of an image, a convolution with ReLU, one with a residual too, a deconvolution, all in a row."""

    def weights(*shape: int) -> np.ndarray:
        return (np.random.default_rng(0).standard_normal(shape) / 4).astype(np.float16)

    def relu(x: Any) -> Any:
        return network.add_activation(x, trt.ActivationType.RELU).get_output(0)

    x = network.add_input("x", trt.float16, (2, 3, 16, 16))
    patches = network.add_convolution_nd(x, C, (4, 4), weights(C, 3, 4, 4), weights(C))
    patches.stride_nd = (4, 4)
    layers = [network.add_convolution_nd(patches.get_output(0), C, (3, 3), weights(C, C, 3, 3), weights(C))]
    first = relu(layers[0].get_output(0))
    layers.append(network.add_convolution_nd(first, C, (3, 3), weights(C, C, 3, 3), weights(C)))
    for layer in layers:
        layer.padding_nd = (1, 1)
    second = relu(network.add_elementwise(layers[1].get_output(0), first, trt.ElementWiseOperation.SUM).get_output(0))
    up = network.add_deconvolution_nd(second, 4, (2, 2), weights(C, 4, 2, 2), weights(4))
    up.stride_nd = (2, 2)
    flat = network.add_shuffle(up.get_output(0))
    flat.reshape_dims = (2, -1)
    flat.get_output(0).name = "y"
    network.mark_output(flat.get_output(0))
    return load(network)


def traced(engine: Any, make_program: Any) -> tuple[fx.GraphModule, list[torch.Tensor]]:
    """The graph that Inductor gets, and the weights that it takes first."""
    state = engine._state
    image, layers = load_network(state.structure, state.info, state.device)
    tensors = [state.weights.tensor(index) for index in range(len(state.weights.slots))]
    found = trace_program(
        image,
        layers,
        tensors,
        state.info,
        device=state.device,
        dynamic=False,
        make_program=make_program,
        layout=fused_layout,
        decompositions=decompositions(),
    )
    graph, read = graph_of(found)
    return graph, [found.parameters[at].value for at in read]


def called(graph: fx.GraphModule) -> list[str]:
    return [node.target.name() for node in graph.graph.nodes if node.op == "call_function"]


def test_a_graph_computes_what_the_layers_do(engine: Any) -> None:
    graph, weights = traced(engine, interpreted_program)
    assert _is_functional(graph)
    for node, tensor in zip(graph.graph.find_nodes(op="placeholder"), weights, strict=False):
        assert node.meta["val"].stride() == tensor.stride()
    assert [tensor.is_contiguous(memory_format=LAST) for tensor in weights if tensor.dim() == 4] == [True] * 4
    x = torch.randn(2, 3, 16, 16, dtype=torch.float16)
    with torch.inference_mode():
        (found,) = graph(*weights, x)
        torch.testing.assert_close(found, engine._state.program.run([x])[0], rtol=4e-3, atol=4e-3)


def test_fused_convolutions_and_patches_are_traced(engine: Any, monkeypatch: Any) -> None:
    teach_cudnn_operators()

    def on_cuda(fused: Any, inputs: Any) -> tuple[Any, ...]:
        return (fused._kernel(inputs[0], inputs),)

    monkeypatch.setattr(cuda_products._Fused, "__call__", on_cuda)
    graph, _ = traced(engine, traced_program)
    assert _is_functional(graph)
    names = called(graph)
    assert names.count("aten::cudnn_convolution_relu") == names.count("aten::cudnn_convolution_add_relu") == 1
    assert names.count("aten::convolution") == 0 and names.count("aten::addmm") == names.count("aten::mm") == 1
    for node in graph.graph.nodes:
        if node.op == "call_function" and "cudnn" in node.target.name():
            assert node.meta["val"].shape == (2, C, 4, 4)
            assert node.meta["val"].is_contiguous(memory_format=LAST)


@pytest.mark.parametrize(
    ("kind", "is_one_kernel"), [("RELU", True), ("GELU_TANH", True), ("GELU_ERF", False), ("SIGMOID", False)]
)
def test_linear_maps_are_traced_with_the_activations_that_cublas_has(
    network: Any, load: Any, monkeypatch: Any, kind: str, is_one_kernel: bool
) -> None:
    generator = np.random.default_rng(0)
    matrix, bias = (generator.standard_normal(shape).astype(np.float16) for shape in ((C, C), (1, C)))
    none = trt.MatrixOperation.NONE
    x = network.add_input("x", trt.float16, (4, C))
    y = network.add_matrix_multiply(x, none, network.add_constant((C, C), matrix).get_output(0), none).get_output(0)
    added = network.add_constant((1, C), bias).get_output(0)
    y = network.add_elementwise(y, added, trt.ElementWiseOperation.SUM).get_output(0)
    network.mark_output(network.add_activation(y, trt.ActivationType[kind]).get_output(0))
    engine = load(network)

    def on_cuda(fused: Any, inputs: Any) -> tuple[Any, ...]:
        return (fused._kernel(inputs[0], inputs),)

    monkeypatch.setattr(cuda_products._Fused, "__call__", on_cuda)
    graph, weights = traced(engine, traced_program)
    names = called(graph)
    assert _is_functional(graph)
    assert names.count("aten::_addmm_activation") == is_one_kernel and names.count("aten::addmm") == (not is_one_kernel)
    given = torch.randn(4, C).half()
    with torch.inference_mode():
        (found,), (wanted,) = graph(*weights, given), engine._state.program.run([given])
    torch.testing.assert_close(found, wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_extents_and_layout_of_a_fused_convolution(stride: int, layout: torch.memory_format) -> None:
    teach_cudnn_operators()
    geometry: Any = ([stride, stride], [1, 1], [1, 1])
    with FakeTensorMode():
        x = torch.empty(2, C, 9, 7, dtype=torch.float16, device="meta")
        kernel = torch.empty(4, C, 3, 3, dtype=torch.float16, device="meta").contiguous(memory_format=layout)
        wanted = torch.ops.aten.convolution(x, kernel, None, *geometry, False, [0, 0], 1)
        found = torch.ops.aten.cudnn_convolution_relu(x, kernel, None, *geometry, 1)
        summed = torch.ops.aten.cudnn_convolution_add_relu(x, kernel, found, 1.0, None, *geometry, 1)
    assert found.shape == summed.shape == wanted.shape
    assert found.is_contiguous(memory_format=layout)


@pytest.mark.parametrize(
    ("columns", "inner", "is_odd"),
    [(16, 24, False), (16, 20, True), (17, 24, True), (1, 24, False)],
    ids=["even", "inner", "columns", "a few"],
)
def test_padding_is_tried_for_rows_that_kernels_cannot_read_fast(columns: int, inner: int, is_odd: bool) -> None:
    graph = fx.symbolic_trace(lambda a, b: torch.ops.aten.mm.default(a, b))
    first, second, product, _ = graph.graph.nodes
    first.meta["val"] = torch.empty(5, inner, dtype=torch.float16)
    second.meta["val"] = torch.empty(inner, columns, dtype=torch.float16)
    product.meta["val"] = torch.empty(5, columns, dtype=torch.float16)
    assert _has_odd_rows(graph) is is_odd


@pytest.mark.parametrize(
    ("batch", "groups", "others", "is_last"),
    [
        ("n", (1,), 0, True),
        (4, (1,), 0, False),
        ("n", (1, 2, 2), 0, False),
        ("n", (16,), 0, True),
        ("n", (1,), 300, False),
    ],
    ids=["varying", "one size", "groups", "depthwise", "hardly any"],
)
def test_where_channels_come_last(batch: Any, groups: tuple[int, ...], others: int, is_last: bool) -> None:
    """Of graphs whose sizes vary; for one size Inductor finds out by itself."""
    env = ShapeEnv(specialize_zero_one=False)
    count = batch if isinstance(batch, int) else tactic._number(env, 1, 4, 8, batch, True)

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        for each in groups:
            x = torch.conv2d(x, torch.ones(16, 16 // each, 3, 3), None, 1, 1, 1, each)
        for _ in range(others):
            x = x.relu()
        return (x,)

    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True):
        graph = make_fx(run)(torch.empty(count, 16, 8, 8))
    assert _wants_channels_last(graph) is is_last
    assert not [guard for guard in env.guards if "Eq" in str(guard.expr)]  # nothing is assumed of sizes


@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("channels", "maps", "is_last"), [(1, 8, True), (2, 8, False), (1, 1, False)])
def test_convolutions_of_one_channel_write_maps_last(channels: int, maps: int, is_last: bool, varies: bool) -> None:
    env = ShapeEnv(specialize_zero_one=False)
    width = tactic._number(env, 8, 16, 64, "width", True) if varies else 16

    def run(x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.conv2d(x.unsqueeze(2), torch.ones(maps, channels, 1, 3, dtype=x.dtype)),)

    with FakeTensorMode(shape_env=env, allow_non_fake_inputs=True):
        graph = make_fx(run)(torch.empty(2, channels, width).half())
    tactic._lay_single_channels_last(graph.graph)
    (node,) = graph.graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    x = node.args[0].meta["val"]  # type: ignore[union-attr]
    assert x.shape[:3] == (2, channels, 1) and (x.stride()[1:] == (1, x.shape[3], 1)) is is_last
    assert not env.guards  # nothing is assumed of sizes
    graph.recompile()
    given = torch.randn(2, channels, 16).half()
    torch.testing.assert_close(graph(given), run(given))


@pytest.mark.parametrize(
    "chosen",
    [lambda x: x[:, 1:], lambda x: x.exp().view(4, 1, 4, 16), lambda x: x.mT.reshape(4, 1, 16, 4), lambda x: x[:, :1]],
    ids=["a later channel", "computed", "turned", "the first channel"],
)
def test_parts_of_images_are_not_taken_for_whole_ones(chosen: Any) -> None:
    """What a view lies in need not lie as the view says, once a compiler has laid it out."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        graph = make_fx(lambda x: torch.conv2d(chosen(x), torch.ones(8, 1, 1, 3).half()))(
            torch.empty(2, 2, 4, 16).half()
        )
    before = str(graph.graph)
    tactic._lay_single_channels_last(graph.graph)
    assert str(graph.graph) == before


def test_a_graph_that_writes_in_place_takes_the_long_way() -> None:
    assert not _is_functional(fx.symbolic_trace(lambda x: torch.ops.aten.relu_.default(x)))


def test_many_caches_that_are_updated_at_the_end_are_recognized_at_once() -> None:
    graph = fx.Graph()
    caches = [graph.placeholder(f"cache_{at}") for at in range(64)]
    doubled = [graph.call_function(torch.ops.aten.mul.Tensor, (cache, 2)) for cache in caches]
    for cache, value in zip(caches, doubled, strict=True):
        graph.call_function(torch.ops.aten.copy_.default, (cache, value))
    graph.output(())
    assert _is_functional(fx.GraphModule(torch.nn.Module(), graph))  # a look at what follows each took 2^64 steps


def test_a_copy_before_other_work_is_no_update_at_the_end() -> None:
    graph = fx.Graph()
    cache = graph.placeholder("cache")
    graph.call_function(
        torch.ops.aten.copy_.default, (cache, graph.call_function(torch.ops.aten.neg.default, (cache,)))
    )
    graph.output(graph.call_function(torch.ops.aten.neg.default, (cache,)))
    assert not _is_functional(fx.GraphModule(torch.nn.Module(), graph))


@pytest.mark.parametrize("shape", [(4, 3, 2, 2), (4, 3, 1, 1), (4, 1, 3, 3)])
def test_layouts_of_weights(shape: tuple[int, ...]) -> None:
    flat = torch.arange(float(np.prod(shape)))
    layout = WeightLayout.channels_last(shape)
    assert WeightLayout.read(layout.to_json()) == layout
    found = layout.of(flat)
    assert found.is_contiguous(memory_format=LAST) and torch.equal(found, flat.view(shape))
    assert layout.of(found).data_ptr() == found.data_ptr()
    assert torch.equal(FLAT.of(found), flat) and FLAT.of(flat).data_ptr() == flat.data_ptr()


@pytest.mark.parametrize("fields", [{"shape": [2, 2], "order": "channels_last"}, {"shape": None, "order": "sideways"}])
def test_layouts_that_make_no_sense(fields: Any) -> None:
    with pytest.raises(ValueError):
        WeightLayout.read(fields)


@pytest.mark.parametrize(
    ("shifts", "dims"),
    [((1,), (0,)), ((-2, 7), (2, 1)), ((3, 4), ()), ((0, 5), (1, 2)), ((2,), (-1,)), ((3, 2), (0, 0))],
)
def test_a_roll_is_its_parts(shifts: tuple[int, ...], dims: tuple[int, ...]) -> None:
    shifts = shifts if dims else shifts[:1]
    for shape in ((3, 4, 5), (3, 0, 5)):
        x = torch.arange(float(np.prod(shape))).reshape(shape)
        found = rolled_by_parts(x, shifts, dims)
        assert torch.equal(found, torch.roll(x, shifts, dims))
        assert found.data_ptr() != x.data_ptr() or not x.numel()
    assert decompositions()[torch.ops.aten.roll.default] is rolled_by_parts


def test_outputs_of_graphs_are_dense() -> None:
    """As memory that is bound to outputs is: rows first, and none of them padded."""

    def layers(weights: list[torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x + 1, x.transpose(0, 1), x.permute(2, 0, 1) * 2

    with FakeTensorMode():
        x = torch.empty(2, 3, 4)
        graph = make_fx(layers)([], x)
    made, _ = graph_of(TracedProgram(graph, (), ()))
    x = torch.randn(2, 3, 4)
    for found, wanted in zip(made(x), layers([], x), strict=True):
        assert found.is_contiguous() and torch.equal(found, wanted)
    last = made.graph.output_node()
    assert [node.meta["val"].is_contiguous() for node in last.args[0]] == [True] * 3


def test_settings_that_libraries_make_for_the_process_do_not_reach_engines(monkeypatch: Any) -> None:
    """As torchao makes them when it quantizes a model: each kernel of a build would be tuned for seconds."""
    from trt_portable.internals import inductor_config

    names = ("coordinate_descent_tuning", "coordinate_descent_check_all_directions", "max_autotune")
    seen: list[list[bool]] = []

    def compile_nothing(graph: Any) -> None:
        seen.append([getattr(inductor_config, name) for name in names])

    monkeypatch.setattr(tactic, "compile_functional", compile_nothing)
    with inductor_config.patch(dict.fromkeys(names, True)):
        for options in ({}, {"max_autotune": True}):
            with FakeTensorMode():
                graph = make_fx(lambda x: (x + 1,))(torch.empty(2, 3))
            tactic.compile_graph(graph, [torch.ones(2, 3)], options)
    assert seen == [[False] * 3, [False, False, True]]


def test_a_compiler_starts_collectives_in_the_order_of_the_network() -> None:
    collective = collective_operator()

    def run(weights: list[torch.Tensor], x: torch.Tensor) -> tuple[torch.Tensor]:
        parts = [collective(each, "ALL_GATHER", "", -1, [0, 1], "", str(at)) for at, each in enumerate(weights)]
        for part in reversed(parts):  # less memory is held if the first one, which is large, is gathered last
            x = torch.mm(x, part)
        return (x,)

    given = [torch.ones(128, 4), torch.ones(8, 256), torch.ones(2, 16), torch.ones(4, 4)]
    mode = FakeTensorMode()
    *weights, x = map(mode.from_tensor, given)
    with mode:
        traced = make_fx(run)(weights, x)
    traced.graph.set_codegen(fx.graph.CodeGen())
    traced.recompile()
    order_collectives(traced)
    labels = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is collective:
                labels.append(args[-1])
            return func(*args, **(kwargs or {}))

    with rehearsal(), Watch():
        tactic.compile_graph(traced, given, {})(list(given))
    assert labels == ["0", "1", "2"]


def test_collectives_that_follow_from_each_other_need_nothing_to_hold_them() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for label in ("a", "b"):
        x = graph.call_function(collective_operator(), (x, "ALL_REDUCE", "sum", -1, [0, 1], "", label))
        x = graph.call_function(torch.ops.aten.relu.default, (x,))
    graph.output((x,))
    module = fx.GraphModule({}, graph)
    order_collectives(module)
    assert not any(node.kwargs for node in module.graph.nodes)
