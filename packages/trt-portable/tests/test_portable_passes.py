"""The builder's passes: each computes what the layers as they stand compute, with fewer of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.builder.passes import fold_constants
from trt_portable.layers.sources import IIdentityLayer
from trt_portable.plan.nodes import Node, PassError, PlanGraph, PlanPass
from trt_portable.plan.weight_table import WeightTable

SUM, PROD, POW = (trt.ElementWiseOperation[name] for name in ("SUM", "PROD", "POW"))
NONE, TRANSPOSE = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE

Define = Callable[[trt.INetworkDefinition], None]


@pytest.fixture
def both(builder: trt.Builder, load: Any, execute: Any) -> Callable[..., Counter[str]]:
    """Runs a network with and without fusions, holds the results to each other, and counts the layers fused."""

    def both(define: Define, shapes: Any = None, flags: Any = (), **inputs: torch.Tensor) -> Counter[str]:
        engines = []
        for fused in (False, True):
            network = builder.create_network()
            define(network)
            if not fused:
                network.mark_unfused_tensors_as_debug_tensors()
            engines.append(load(network, shapes, flags=flags))
        plain, rewritten = (execute(engine.create_execution_context(), inputs) for engine in engines)
        for name, wanted in plain.items():
            torch.testing.assert_close(rewritten[name], wanted, rtol=1e-4, atol=1e-5)
        return Counter(layer["type"] for layer in engines[1]._state.structure["layers"])

    return both


def output(network: trt.INetworkDefinition, tensor: trt.ITensor, name: str = "y") -> None:
    tensor.name = name
    network.mark_output(tensor)


def attend(mask: np.ndarray, rows: int = 4) -> Define:
    def define(network: trt.INetworkDefinition) -> None:
        query, key, value = (network.add_input(name, trt.float32, (2, 3, rows, 8)) for name in "qkv")
        attention = network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
        attention.decomposable = True
        numbers = network.add_constant(mask.shape, mask.astype(np.int32)).get_output(0)
        attention.mask = network.add_cast(numbers, trt.bool).get_output(0)
        output(network, attention.get_output(0))

    return define


TRIANGLE = np.tril(np.ones((1, 1, 4, 4)))


@pytest.mark.parametrize(
    ("mask", "is_gone"),
    [
        (TRIANGLE, True),
        (np.repeat(TRIANGLE, 3, 1), True),
        (np.ones((1, 1, 4, 4)), True),
        (np.tril(np.ones((1, 1, 4, 4)), 1), False),
        (1 - np.triu(np.ones((1, 1, 4, 4))) + np.eye(4) * (np.arange(4) != 2), False),
    ],
)
def test_constant_masks(both: Any, mask: np.ndarray, is_gone: bool) -> None:
    q, k, v = (torch.randn(2, 3, 4, 8) for _ in "qkv")
    assert both(attend(mask), q=q, k=k, v=v)["CONSTANT"] == (not is_gone)


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("swapped", [True, False])
@pytest.mark.parametrize(("factor", "cubic"), [(0.5, 0.044715), (0.4995, 0.044715), (0.5, 0.0447)])
def test_gelu_written_out(both: Any, constant: Any, power: bool, swapped: bool, factor: float, cubic: float) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        def apply(first: trt.ITensor, second: trt.ITensor, operation: Any) -> trt.ITensor:
            pair = (second, first) if swapped and operation is not POW else (first, second)
            return network.add_elementwise(*pair, operation).get_output(0)

        def number(value: float) -> trt.ITensor:
            return constant(network, [[value]])

        x = network.add_input("x", trt.float32, (3, 5))
        cube = apply(x, number(3.0), POW) if power else apply(x, apply(x, x, PROD), PROD)
        inner = apply(apply(x, apply(cube, number(cubic), PROD), SUM), number(0.7978845608), PROD)
        gate = apply(network.add_activation(inner, trt.ActivationType.TANH).get_output(0), number(1.0), SUM)
        output(network, apply(apply(x, number(factor), PROD), gate, PROD))

    found = both(define, x=torch.randn(3, 5))
    assert (found == Counter({"ACTIVATION": 1})) == ((factor, cubic) == (0.5, 0.044715))


@pytest.mark.parametrize("kind", [trt.float16, trt.bfloat16])
def test_coefficients_of_a_gelu_are_known_in_half_precision(network: Any, load: Any, constant: Any, kind: Any) -> None:
    x = network.add_input("x", kind, (3, 5))

    def apply(first: trt.ITensor, second: trt.ITensor | float, operation: Any) -> trt.ITensor:
        if isinstance(second, float):
            second = network.add_cast(constant(network, [[second]]), kind).get_output(0)
        return network.add_elementwise(first, second, operation).get_output(0)

    inner = apply(apply(x, apply(apply(x, 3.0, POW), 0.044715, PROD), SUM), math.sqrt(2 / math.pi), PROD)
    gate = apply(network.add_activation(inner, trt.ActivationType.TANH).get_output(0), 1.0, SUM)
    output(network, apply(apply(x, 0.5, PROD), gate, PROD))
    assert [layer["type"] for layer in load(network)._state.structure["layers"]] == ["ACTIVATION"]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    columns=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    transposed=st.booleans(),
    biased=st.sampled_from(["all", "none", "first"]),
    dynamic=st.booleans(),
    read_twice=st.booleans(),
)
def test_products_of_one_tensor(
    both: Any, columns: list[int], transposed: bool, biased: str, dynamic: bool, read_twice: bool
) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (-1 if dynamic else 2, 3, 5))
        generator = np.random.default_rng(0)
        for index, count in enumerate(columns):
            matrix = generator.standard_normal((1, count, 5) if transposed else (1, 5, count)).astype(np.float32)
            weight = network.add_constant(matrix.shape, matrix).get_output(0)
            y = network.add_matrix_multiply(x, NONE, weight, TRANSPOSE if transposed else NONE).get_output(0)
            if read_twice and index == 0:
                output(network, network.add_activation(y, trt.ActivationType.RELU).get_output(0), "twice")
            if biased == "all" or (biased == "first" and index == 0):
                bias = generator.standard_normal((1, 1, count)).astype(np.float32)
                y = network.add_elementwise(y, network.add_constant(bias.shape, bias).get_output(0), SUM).get_output(0)
            y = network.add_activation(y, trt.ActivationType.TANH).get_output(0)
            output(network, y, f"y{index}")

    shapes = {"x": ((1, 3, 5), (2, 3, 5), (4, 3, 5))} if dynamic else None
    found = both(define, shapes, x=torch.randn(2, 3, 5))
    if len(columns) > 1 and not (biased == "first" or read_twice):
        assert found["LINEAR"] == 1
        assert found["SLICE"] == len(columns)
    assert found["LINEAR"] <= len(columns) and not found["MATRIX_MULTIPLY"]


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    columns=st.lists(st.integers(1, 4), min_size=2, max_size=3),
    transposed=st.booleans(),
    scaled=st.sampled_from(["whole", "rows", "blocks"]),
    dtype=st.sampled_from([trt.int8, trt.int4, trt.fp8]),
    biased=st.booleans(),
)
def test_products_of_one_tensor_with_codes(
    both: Any, columns: list[int], transposed: bool, scaled: str, dtype: Any, biased: bool
) -> None:
    """Query, key and value of a model whose weights have few bits: one product of codes."""

    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (3, 8))
        generator = np.random.default_rng(0)

        def constant(values: np.ndarray) -> Any:
            values = np.ascontiguousarray(values, dtype=np.float32)
            return network.add_constant(values.shape, values).get_output(0)

        for index, count in enumerate(columns):
            count = 2 * count
            matrix = generator.integers(-7, 8, (count, 8))
            extents = {"whole": (), "rows": (count,), "blocks": (count, 2)}[scaled]
            scale = generator.uniform(0.1, 1, extents)
            if transposed and scaled == "blocks":
                scale = scale.T
            one = constant(np.ones(()))
            codes = network.add_quantize(constant(matrix if not transposed else matrix.T), one, dtype).get_output(0)
            layer = network.add_dequantize(codes, constant(scale), trt.float32)
            layer.axis = int(transposed)
            y = network.add_matrix_multiply(x, NONE, layer.get_output(0), NONE if transposed else TRANSPOSE).get_output(
                0
            )
            if biased:
                y = network.add_elementwise(y, constant(generator.standard_normal((1, count))), SUM).get_output(0)
            output(network, network.add_activation(y, trt.ActivationType.TANH).get_output(0), f"y{index}")

    found = both(define, x=torch.randn(3, 8))
    assert found["LOW_PRECISION_PRODUCT"] == found["PREPARED_MATRIX"] == 1
    assert found["SLICE"] == len(columns)


def test_products_of_codes_that_cannot_be_one_stay(both: Any) -> None:
    """Of another type, rectified, or seen outside."""

    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (3, 8))
        for index, dtype in enumerate((trt.int8, trt.fp8, trt.int8, trt.int8)):
            values = np.random.default_rng(index).integers(-7, 8, (4, 8)).astype(np.float32)
            matrix, one = (
                network.add_constant(each.shape, each).get_output(0) for each in (values, np.ones((), np.float32))
            )
            codes = network.add_quantize(matrix, one, dtype).get_output(0)
            weight = network.add_dequantize(codes, one, trt.float32).get_output(0)
            y = network.add_matrix_multiply(x, NONE, weight, TRANSPOSE).get_output(0)
            if index != 3:
                kind = trt.ActivationType.RELU if index == 2 else trt.ActivationType.TANH
                y = network.add_activation(y, kind).get_output(0)
            output(network, y, f"y{index}")

    assert both(define, x=torch.randn(3, 8))["LOW_PRECISION_PRODUCT"] == 4


def test_products_that_a_refit_may_change_stay(both: Any) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (2, 5))
        for index in range(2):
            weight = network.add_constant((5, 3), np.full((5, 3), index + 1.0, np.float32)).get_output(0)
            output(network, network.add_matrix_multiply(x, NONE, weight, NONE).get_output(0), f"y{index}")

    found = both(define, flags=[trt.BuilderFlag.REFIT], x=torch.randn(2, 5))
    assert found["LINEAR"] == 2


def test_a_pass_that_breaks_the_order_is_named() -> None:
    class Reverse(PlanPass):
        name = "reverse"

        def call(self, graph: PlanGraph) -> int:
            graph.nodes = graph.nodes[::-1]
            return 1

    nodes = [Node(IIdentityLayer, str(at), (at,), (at + 1,)) for at in range(2)]
    graph = PlanGraph(nodes, {}, WeightTable(), (0,), frozenset({2}), lambda key, role: True)
    with pytest.raises(PassError, match="pass reverse: layer '1' reads tensors \\[1\\] too early"):
        Reverse()(graph)
    with pytest.raises(PassError, match="computed no more"):

        class Drop(Reverse):
            def call(self, graph: PlanGraph) -> int:
                graph.nodes = []
                return 1

        Drop()(graph)


def move(network: trt.INetworkDefinition, tensor: trt.ITensor, kind: str) -> trt.ITensor:
    """One layer that moves elements, or nothing at all, behind a tensor."""
    shape = tuple(tensor.shape)
    if kind == "identity":
        return network.add_identity(tensor).get_output(0)
    if kind == "cast":
        return network.add_cast(tensor, tensor.dtype).get_output(0)
    if kind == "whole slice":
        return network.add_slice(tensor, (0,) * len(shape), shape, (1,) * len(shape)).get_output(0)
    if kind == "reverse":
        return network.add_slice(tensor, tuple(n - 1 for n in shape), shape, (-1,) * len(shape)).get_output(0)
    if kind == "join one":
        return network.add_concatenation([tensor]).get_output(0)
    if kind == "gelu":
        return network.add_activation(tensor, trt.ActivationType.GELU_ERF).get_output(0)
    if kind in ("product", "bias"):
        if kind == "bias":
            number = np.linspace(1, 2, shape[-1] if shape else 1, dtype=np.float32)
            row = network.add_constant((*[1] * (len(shape) - 1), len(number))[: len(shape)], number).get_output(0)
            return network.add_elementwise(tensor, row, SUM).get_output(0)
        if len(shape) < 2:
            return tensor
        square = np.linspace(-1, 1, shape[-1] ** 2, dtype=np.float32) / shape[-1]
        matrix = network.add_constant((*[1] * (len(shape) - 2), shape[-1], shape[-1]), square).get_output(0)
        return network.add_matrix_multiply(tensor, NONE, matrix, NONE).get_output(0)
    if kind in ("first", "half"):
        axis = next((axis for axis, extent in enumerate(shape) if extent > 1), None)
        if axis is None or len(shape) < 2:
            return tensor
        size = [*shape]
        size[axis] = 1 if kind == "first" else max(1, shape[axis] // 2)
        start = [0] * len(shape)
        start[axis] = shape[axis] - size[axis]
        return network.add_slice(tensor, tuple(start), tuple(size), (1,) * len(shape)).get_output(0)
    if kind in ("squeeze", "unsqueeze"):
        if (kind == "squeeze") != (1 in shape):
            return tensor
        axis = shape.index(1) if kind == "squeeze" else len(shape)
        axes = network.add_constant((1,), np.array([axis], np.int32)).get_output(0)
        return (network.add_squeeze if kind == "squeeze" else network.add_unsqueeze)(tensor, axes).get_output(0)
    layer = network.add_shuffle(tensor)
    if kind in ("transpose", "both"):
        layer.first_transpose = (*range(1, len(shape)), 0)
    if kind in ("flatten", "both"):
        layer.reshape_dims = (-1,)
    if kind == "split":
        layer.reshape_dims = (2, 3, -1) if math.prod(shape) % 6 == 0 else (1, -1)
    if kind == "keep":
        layer.reshape_dims = (0,) * len(shape)
    if kind == "behind":
        layer.reshape_dims = (3, -1) if math.prod(shape) % 3 == 0 else (2, -1) if math.prod(shape) % 2 == 0 else (1, -1)
        layer.second_transpose = (1, 0)
    return layer.get_output(0)


MOVES = (
    *("identity", "cast", "whole slice", "reverse", "join one", "gelu", "squeeze", "unsqueeze"),
    *("transpose", "both", "flatten", "split", "keep", "behind", "nothing", "product", "bias", "first", "half"),
)


@given(kinds=st.lists(st.sampled_from(MOVES), min_size=1, max_size=8), seen=st.integers(0, 8), product=st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_of_movements(both: Any, kinds: list[str], seen: int, product: bool) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        tensor = network.add_input("x", trt.float32, (6, 4))
        if product:
            matrix = network.add_constant((4, 4), np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4))
            tensor = network.add_matrix_multiply(tensor, NONE, matrix.get_output(0), NONE).get_output(0)
        for index, kind in enumerate(kinds):
            if index == seen:  # somebody reads what lies between two movements
                output(network, network.add_unary(tensor, trt.UnaryOperation.NEG).get_output(0), "between")
            tensor = move(network, tensor, kind)
        output(network, network.add_unary(tensor, trt.UnaryOperation.ABS).get_output(0))

    both(define, x=torch.randn(6, 4))


def test_movements_that_undo_each_other_are_gone(both: Any) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        tensor = network.add_input("x", trt.float32, (2, 3, 4))
        for kind in ("identity", "transpose", "transpose", "cast", "transpose", "flatten", "flatten", "split", "keep"):
            tensor = move(network, tensor, kind)
        tensor = move(network, move(network, tensor, "whole slice"), "join one")
        output(network, network.add_unary(tensor, trt.UnaryOperation.ABS).get_output(0))

    assert both(define, x=torch.randn(2, 3, 4)) == Counter(UNARY=1, SHUFFLE=0)


def test_transposes_of_open_extents_become_one(both: Any) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        tensor = network.add_input("x", trt.float32, (-1, 3, -1))
        for kind in ("transpose", "transpose"):
            tensor = move(network, tensor, kind)
        output(network, network.add_unary(tensor, trt.UnaryOperation.ABS).get_output(0))

    shapes = {"x": ((1, 3, 2), (2, 3, 4), (4, 3, 8))}
    assert both(define, shapes, x=torch.randn(2, 3, 5)) == Counter(UNARY=1, SHUFFLE=1)


def test_a_reshape_between_a_product_and_its_activation_comes_behind(both: Any) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        x = network.add_input("x", trt.float32, (6, 4))
        matrix = network.add_constant((4, 8), np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
        tensor = network.add_matrix_multiply(x, NONE, matrix.get_output(0), NONE).get_output(0)
        tensor = move(network, move(network, tensor, "split"), "gelu")
        flat = network.add_shuffle(tensor)
        flat.reshape_dims = (6, 8)
        output(network, network.add_unary(flat.get_output(0), trt.UnaryOperation.ABS).get_output(0))

    assert both(define, x=torch.randn(6, 4)) == Counter(CONSTANT=1, LINEAR=1, ACTIVATION=1, UNARY=1)


def _self_attention(heads: int) -> Callable[[trt.INetworkDefinition], None]:
    """Attention and a residual as `nn.MultiheadAttention(batch_first=True)` writes it: (N, L, 8 heads) to the same."""
    width = 8 * heads
    rng: Any = None

    def shuffled(network: Any, tensor: Any, first: Any = None, dims: Any = None, second: Any = None) -> Any:
        layer = network.add_shuffle(tensor)
        if first is not None:
            layer.first_transpose = first
        if dims is not None:
            layer.reshape_dims = dims
        if second is not None:
            layer.second_transpose = second
        return layer.get_output(0)

    def linear(network: Any, x: Any, columns: int) -> Any:
        ones = (1,) * (len(x.shape) - 2)
        matrix = network.add_constant((*ones, columns, width), rng.standard_normal((columns, width)).astype(np.float32))
        y = network.add_matrix_multiply(x, NONE, matrix.get_output(0), TRANSPOSE).get_output(0)
        bias = network.add_constant((*ones, 1, columns), rng.standard_normal(columns).astype(np.float32)).get_output(0)
        return network.add_elementwise(y, bias, SUM).get_output(0)

    def define(network: trt.INetworkDefinition) -> None:
        nonlocal rng
        rng = np.random.default_rng(0)
        x = network.add_input("x", trt.float32, (-1, 5, width))
        packed = shuffled(network, linear(network, shuffled(network, x, (1, 0, 2)), 3 * width), dims=(5, -1, 3, width))
        packed = shuffled(network, packed, (2, 0, 1, 3))
        parts = []
        for at in range(3):
            part = network.add_slice(packed, (at,), (1,), (1,))
            part.axes = (0,)
            parts.append(shuffled(network, part.get_output(0), dims=(5, -1, 8), second=(1, 0, 2)))
        split = [shuffled(network, part, dims=(-1, heads, 5, 8)) for part in parts]
        attention = network.add_attention(*split, trt.AttentionNormalizationOp.SOFTMAX, False)
        attention.decomposable = True
        mixed = shuffled(network, attention.get_output(0), (2, 0, 1, 3), (-1, width))
        back = shuffled(network, linear(network, mixed, width), dims=(5, -1, width), second=(1, 0, 2))
        output(network, network.add_elementwise(back, x, SUM).get_output(0))

    return define


def test_movements_around_attention_cancel(both: Any) -> None:
    shapes = {"x": ((1, 5, 24), (2, 5, 24), (6, 5, 24))}
    counts = both(_self_attention(3), shapes, x=torch.randn(4, 5, 24))
    assert counts["SHUFFLE"] == 4 and counts["SLICE"] == 3  # heads apart, and together again


class _Positions:
    """Integers of open extents, as exporters write masks of them.

    Args:
        network: Gets the layers.
        like: A tensor (N, H, L, D), whose L is open.
    """

    def __init__(self, network: Any, like: Any) -> None:
        self.network = network
        shape = network.add_shape(like).get_output(0)
        self.length = network.add_slice(shape, (2,), (1,), (1,)).get_output(0)

    def number(self, value: int, rank: int = 4) -> Any:
        return self.network.add_constant((1,) * rank, np.full((1,) * rank, value, np.int64)).get_output(0)

    def range(self, start: int, shape: tuple[int, ...], step: int = 1) -> Any:
        fill = self.network.add_fill((1,), trt.FillOperation.LINSPACE, trt.int64)
        for index, value in enumerate((self.length, self.number(start, 0), self.number(step, 1))):
            fill.set_input(index, value)
        reshaped = self.network.add_shuffle(fill.get_output(0))
        reshaped.reshape_dims = shape
        return reshaped.get_output(0)

    def both(self, first: Any, second: Any, operation: str) -> Any:
        return self.network.add_elementwise(first, second, trt.ElementWiseOperation[operation]).get_output(0)

    def negated(self, tensor: Any) -> Any:
        return self.network.add_unary(tensor, trt.UnaryOperation.NOT).get_output(0)

    def anew(self) -> Any:
        """Whether a position begins another sequence, counted: always 0, in as many words."""
        positions = self.range(0, (1, -1))
        before = self.both(self.part(positions, 0, 1), self.number(1, 2), "SUB")
        joined = self.network.add_concatenation([before, positions])
        joined.axis = 1
        later, earlier = (self.part(joined.get_output(0), start) for start in (1, 0))
        is_next = self.both(self.both(later, earlier, "SUB"), self.number(1, 2), "EQUAL")
        numbers = self.network.add_cast(self.negated(is_next), trt.int64).get_output(0)
        axis = self.network.add_constant((), np.array(1, np.int32)).get_output(0)
        return self.network.add_cumulative(numbers, axis, trt.CumulativeOperation.SUM, False, False).get_output(0)

    def part(self, tensor: Any, start: int, size: int | None = None) -> Any:
        layer = self.network.add_slice(tensor, (start,), (size or 1,), (1,))
        layer.axes = (1,)
        if size is None:
            layer.set_input(2, self.length)
        return layer.get_output(0)

    def row_and_column(self, tensor: Any) -> tuple[Any, Any]:
        found = []
        for shape in ((1, 1, -1, 1), (1, 1, 1, -1)):
            layer = self.network.add_shuffle(tensor)
            layer.reshape_dims = shape
            found.append(layer.get_output(0))
        return found[0], found[1]


def _mask(kind: str, at: _Positions) -> Any:
    rows, columns = at.range(0, (1, 1, -1, 1)), at.range(0, (1, 1, 1, -1))
    causal = at.negated(at.both(columns, rows, "GREATER"))
    if kind == "all":
        return at.negated(at.both(columns, at.number(0), "LESS"))
    if kind == "most":
        return at.negated(at.both(at.range(-1, (1, 1, 1, -1)), at.number(0), "LESS"))
    if kind == "causal":
        return causal
    if kind == "packed":
        return at.both(causal, at.both(*at.row_and_column(at.anew()), "EQUAL"), "AND")
    if kind.startswith("window"):
        first = at.both(rows, at.number(int(kind.split()[1])), "SUB")
        return at.both(causal, at.both(columns, first, "GREATER"), "AND")
    if kind == "before":
        return at.both(columns, rows, "LESS")
    if kind == "later":
        return at.negated(at.both(rows, columns, "GREATER"))
    if kind == "every other":
        return at.negated(at.both(at.range(0, (1, 1, 1, -1), 2), rows, "GREATER"))
    assert kind == "shifted"
    return at.negated(at.both(columns, at.range(1, (1, 1, -1, 1)), "GREATER"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "is_gone"),
    [
        *(("all", True), ("causal", True), ("packed", True), ("window 9", True)),
        *(("window 8", False), ("window 0", False)),  # sequences have 9 places at most
        *(("most", False), ("before", False), ("later", False), ("every other", False), ("shifted", False)),
    ],
)
def test_masks_of_open_extents(both: Any, kind: str, is_gone: bool) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        query, key, value = (network.add_input(name, trt.float32, (2, 3, -1, 8)) for name in "qkv")
        attention = network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
        attention.decomposable = True
        attention.mask = _mask(kind, _Positions(network, query))
        output(network, attention.get_output(0))

    shapes = dict.fromkeys("qkv", ((2, 3, 1, 8), (2, 3, 4, 8), (2, 3, 9, 8)))
    for length in (1, 5, 9):
        counts = both(define, shapes, **{name: torch.randn(2, 3, length, 8) for name in "qkv"})
        assert (counts["FILL"] == 0) == is_gone


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("of_query", "of_key", "reader", "gone"),
    [
        (0.125, None, "", 1),
        (0.3, 0.7, "", 2),
        (None, 2.0, "", 1),
        (-0.5, None, "", 0),
        (0.5, -2.0, "", 1),
        (0.0, None, "", 0),
        (0.5, None, "query", 0),
        (0.5, None, "output", 0),
        (None, None, "", 0),
    ],
)
def test_factors_of_queries_and_keys(
    both: Any, of_query: float | None, of_key: float | None, reader: str, gone: int, causal: bool
) -> None:
    """Those that are gone are a factor of the scores."""

    def define(network: trt.INetworkDefinition) -> None:
        query, key, value = (network.add_input(name, trt.float32, (2, 3, 4, 8)) for name in "qkv")
        scaled = []
        for tensor, factor in ((query, of_query), (key, of_key)):
            if factor is not None:
                number = network.add_constant((1, 1, 1, 1), np.array([factor], np.float32)).get_output(0)
                tensor = network.add_elementwise(number, tensor, PROD).get_output(0)
            scaled.append(tensor)
        attention = network.add_attention(*scaled, value, trt.AttentionNormalizationOp.SOFTMAX, causal)
        attention.decomposable = True
        y = attention.get_output(0)
        if reader == "query":
            y = network.add_elementwise(y, scaled[0], SUM).get_output(0)
        if reader == "output":
            output(network, scaled[0], "scaled")
        output(network, y)

    counts = both(define, **{name: torch.randn(2, 3, 4, 8) for name in "qkv"})
    assert (counts["SCALED_ATTENTION"], counts["ATTENTION_OUTPUT"]) == ((1, 0) if gone else (0, 1))
    products = sum(factor is not None for factor in (of_query, of_key))
    assert counts["ELEMENTWISE"] == products - gone + (reader == "query")


def test_factors_that_a_refit_may_change_stay(both: Any) -> None:
    def define(network: trt.INetworkDefinition) -> None:
        query, key, value = (network.add_input(name, trt.float32, (2, 3, 4, 8)) for name in "qkv")
        number = network.add_constant((1, 1, 1, 1), np.array([0.5], np.float32)).get_output(0)
        query = network.add_elementwise(query, number, PROD).get_output(0)
        attention = network.add_attention(query, key, value, trt.AttentionNormalizationOp.SOFTMAX, False)
        attention.decomposable = True
        output(network, attention.get_output(0))

    inputs = {name: torch.randn(2, 3, 4, 8) for name in "qkv"}
    assert both(define, flags=[trt.BuilderFlag.REFIT], **inputs)["ATTENTION_OUTPUT"] == 1


def test_a_plan_describes_no_tensor_that_nobody_names(network: Any, load: Any, constant: Any) -> None:
    x = network.add_input("x", trt.float32, (6, 4))
    product = network.add_matrix_multiply(x, NONE, constant(network, np.ones((4, 4))), NONE).get_output(0)
    total = network.add_elementwise(product, constant(network, np.ones((1, 4))), SUM).get_output(0)
    output(network, move(network, move(network, total, "identity"), "transpose"))
    structure = load(network)._state.structure
    named = {tensor for layer in structure["layers"] for tensor in (*layer["inputs"], *layer["outputs"])}
    assert {tensor["id"] for tensor in structure["tensors"]} == named
    assert len(named) == 5  # input, matrix, bias, sum, and what is turned


@pytest.mark.parametrize("is_joined_with_the_one_before", [False, True])
def test_constants_that_grow_out_of_constants_are_left_to_run_time(
    is_joined_with_the_one_before: bool, builder: trt.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of some bytes had the builder take memory without end."""
    monkeypatch.setattr(fold_constants, "_ALWAYS_FOLDED_BYTES", 1 << 10)
    monkeypatch.setattr(fold_constants, "_LEAST_ROOM", 1 << 12)
    network = builder.create_network()
    parts = [network.add_constant((4,), np.ones(4, np.float32)).get_output(0)] * 2
    for _ in range(18):
        joined = network.add_concatenation(parts).get_output(0)
        parts = [parts[1] if is_joined_with_the_one_before else joined, joined]
    total = network.add_reduce(parts[1], trt.ReduceOperation.SUM, 1, False).get_output(0)
    network.mark_output(total)
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    assert plan is not None
    assert len(bytes(plan)) < 1 << 16


def test_a_constant_that_is_too_large_to_be_folded_is_not_computed(
    builder: trt.Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = builder.create_network()
    one = network.add_constant((1, 1), np.ones((1, 1), np.float32)).get_output(0)
    tiled = network.add_slice(one, (0, 0), (1 << 20, 1 << 20), (1, 1))
    tiled.mode = trt.SampleMode.WRAP
    network.mark_output(network.add_reduce(tiled.get_output(0), trt.ReduceOperation.MAX, 3, False).get_output(0))
    computed = fold_constants._compute
    kinds = []
    monkeypatch.setattr(fold_constants, "_compute", lambda *args: kinds.append(args[0].type) or computed(*args))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is not None
    assert trt.LayerType.SLICE not in kinds
