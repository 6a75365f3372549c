"""Networks as such: inputs, outputs, names, inference after changes, refusals, strictness, shape tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import trt_portable as trt
from trt_portable.network.inference import Inference
from trt_portable.network.serialization import network_to_json

A = trt.ActivationType
E = trt.ElementWiseOperation
O = trt.MatrixOperation  # noqa: E741 (a matrix operation, not a zero)
U = trt.UnaryOperation


def test_inputs_and_outputs(network: Any, logger: Any) -> None:
    x = network.add_input("x", trt.float32, (-1, 3))
    assert (x.name, x.dtype, tuple(x.shape), x.is_network_input) == ("x", trt.float32, (-1, 3), True)
    assert network.add_input("x", trt.float32, (2,)) is None
    assert network.add_input("y", trt.float32, (-2,)) is None
    network.mark_output(x)
    assert network.num_outputs == 0
    assert "identity" in logger.errors[-1]
    y = network.add_identity(x).get_output(0)
    network.mark_output(y)
    assert y.is_network_output
    assert network.get_output(0) is y
    assert (network.get_output(1), network.get_input(9), network.get_layer(-1)) == (None, None, None)
    network.unmark_output(y)
    assert network.num_outputs == 0
    with pytest.raises(IndexError):
        network[5]
    assert isinstance(network[0], trt.IIdentityLayer)


def test_setters_change_what_follows(network: Any) -> None:
    x = network.add_input("x", trt.float32, (1, 4, 8, 8))
    layer = network.add_convolution_nd(x, 2, (3, 3), np.zeros((2, 4, 3, 3), np.float32))
    after = network.add_activation(layer.get_output(0), A.RELU).get_output(0)
    assert tuple(after.shape) == (1, 2, 6, 6)
    layer.padding_nd = (1, 1)
    assert tuple(after.shape) == (1, 2, 8, 8)
    layer.stride_nd = (2, 2)
    assert tuple(after.shape) == (1, 2, 4, 4)
    x.shape = (3, 4, 10, 10)
    assert tuple(after.shape) == (3, 2, 5, 5)


def test_a_setter_may_break_a_layer_and_mend_it(network: Any, logger: Any) -> None:
    x = network.add_input("x", trt.float32, (2, 6))
    layer = network.add_shuffle(x)
    layer.reshape_dims = (5, -1)
    with pytest.raises(ValueError, match="__len__"):
        len(layer.get_output(0).shape)
    assert "12 elements" in logger.errors[0]
    layer.reshape_dims = (4, -1)
    assert tuple(layer.get_output(0).shape) == (4, 3)


def test_a_dynamic_extent_meets_others(network: Any, constant: Any) -> None:
    x, y = (network.add_input(name, trt.float32, (-1, 4)) for name in "xy")
    ten = network.add_constant((10, 1), trt.Weights(np.zeros(10, np.float32))).get_output(0)
    one = network.add_constant((1, 1), trt.Weights(np.zeros(1, np.float32))).get_output(0)
    for other, extent in ((ten, 10), (one, -1), (y, -1)):
        assert network.add_elementwise(x, other, E.SUM).get_output(0).shape[0] == extent
    # What was assumed for one layer stays there: x may still have extent 1 at run time.
    assert tuple(x.shape) == (-1, 4)
    assert tuple(network.add_activation(x, A.RELU).get_output(0).shape) == (-1, 4)


def test_small_integer_arithmetic_on_extents_is_followed(network: Any, constant: Any) -> None:
    x = network.add_input("x", trt.float32, (-1, 6, 4))
    shape = network.add_shape(x).get_output(0)
    middle = network.add_gather(shape, constant(network, 1, np.int32), 0).get_output(0)
    half = network.add_elementwise(middle, constant(network, 2, np.int64), E.FLOOR_DIV).get_output(0)
    layer = network.add_fill((), trt.FillOperation.RANDOM_UNIFORM)
    layer.set_input(0, network.add_unsqueeze(half, constant(network, [0], np.int32)).get_output(0))
    assert tuple(layer.get_output(0).shape) == (3,)


def test_shape_inputs_are_found_backwards(network: Any) -> None:
    x, dims = network.add_input("x", trt.float32, (-1, 4)), network.add_input("dims", trt.int32, (2,))
    data = network.add_input("data", trt.int32, (2,))
    layer = network.add_shuffle(x)
    layer.set_input(1, network.add_elementwise(dims, dims, E.MAX).get_output(0))
    network.mark_output(layer.get_output(0))
    network.mark_output(network.add_unary(data, U.NEG).get_output(0))
    assert (dims.is_shape_tensor, dims.is_execution_tensor) == (True, False)
    assert (data.is_shape_tensor, data.is_execution_tensor) == (False, True)
    assert (x.is_shape_tensor, x.is_execution_tensor) == (False, True)
    assert tuple(layer.get_output(0).shape) == (-1, -1)


def _tensor(network: Any, name: str, dtype: Any = trt.float32, shape: Any = (2, 3)) -> Any:
    return network.add_input(name, dtype, shape)


def _refused(name: str) -> Any:
    def operands(network: Any, *kinds: Any) -> list[Any]:
        return [
            _tensor(network, f"t{i}", *(kind if isinstance(kind, tuple) else (kind,))) for i, kind in enumerate(kinds)
        ]

    f, h, i, j, b, u = trt.float32, trt.float16, trt.int32, trt.int64, trt.bool, trt.uint8
    cases = {
        "arithmetic mixes types": lambda n: n.add_elementwise(*operands(n, f, h), E.SUM),
        "arithmetic mixes integers": lambda n: n.add_elementwise(*operands(n, i, j), E.SUM),
        "arithmetic on bool": lambda n: n.add_elementwise(*operands(n, b, b), E.PROD),
        "logic on integers": lambda n: n.add_elementwise(*operands(n, i, i), E.AND),
        "power of integers": lambda n: n.add_elementwise(*operands(n, i, i), E.POW),
        "comparison of bool": lambda n: n.add_elementwise(*operands(n, b, b), E.LESS),
        "ranks differ": lambda n: n.add_elementwise(*operands(n, f, (f, (3,))), E.SUM),
        "extents clash": lambda n: n.add_elementwise(*operands(n, f, (f, (4, 3))), E.SUM),
        "uint8 inside": lambda n: n.add_elementwise(*operands(n, u, u), E.SUM),
        "floor of integers": lambda n: n.add_unary(*operands(n, i), U.FLOOR),
        "not of integers": lambda n: n.add_unary(*operands(n, i), U.NOT),
        "sigmoid of integers": lambda n: n.add_activation(*operands(n, i), A.SIGMOID),
        "integer condition": lambda n: n.add_select(*operands(n, i, f, f)),
        "branches of two types": lambda n: n.add_select(*operands(n, b, f, h)),
        "constant of another size": lambda n: n.add_constant((3,), trt.Weights(np.zeros(2, np.float32))),
        "cast of uint8 to int32": lambda n: n.add_cast(*operands(n, u), i),
        "cast to fp8": lambda n: n.add_cast(*operands(n, f), trt.fp8),
        "sum of bool": lambda n: n.add_reduce(*operands(n, b), trt.ReduceOperation.SUM, 1, False),
        "no axes": lambda n: n.add_reduce(*operands(n, f), trt.ReduceOperation.SUM, 0, False),
        "axes beyond the rank": lambda n: n.add_reduce(*operands(n, f), trt.ReduceOperation.SUM, 4, False),
        "scalar reduced": lambda n: n.add_reduce(*operands(n, (f, ())), trt.ReduceOperation.SUM, 1, False),
        "k too large": lambda n: n.add_topk(*operands(n, (f, (2, 5000))), trt.TopKOperation.MAX, 3841, 2),
        "k beyond the extent": lambda n: n.add_topk(*operands(n, f), trt.TopKOperation.MAX, 4, 2),
        "top-k on two axes": lambda n: n.add_topk(*operands(n, f), trt.TopKOperation.MAX, 1, 3),
        "top-k of a vector": lambda n: n.add_topk(*operands(n, (f, (9,))), trt.TopKOperation.MAX, 1, 1),
        "integer matrices": lambda n: n.add_matrix_multiply(*(t := operands(n, i, i))[:1], O.NONE, t[1], O.TRANSPOSE),
        "inner extents differ": lambda n: n.add_matrix_multiply(*(t := operands(n, f, f))[:1], O.NONE, t[1], O.NONE),
        "leading dims differ": lambda n: n.add_matrix_multiply(
            *(t := operands(n, (f, (5, 2, 3)), (f, (3, 2))))[:1], O.NONE, t[1], O.NONE
        ),
        "concatenation mixes types": lambda n: n.add_concatenation(operands(n, f, h)),
        "concatenation of nothing": lambda n: n.add_concatenation([]),
        "float indices": lambda n: n.add_gather(*operands(n, f, f), 0),
        "negative gather axis": lambda n: n.add_gather(*operands(n, f, i), -1),
        "scatter of bool": lambda n: n.add_scatter(*operands(n, b, i, b), trt.ScatterMode.ELEMENT),
        "non-zero of uint8": lambda n: n.add_non_zero(*operands(n, u)),
        "softmax of integers": lambda n: n.add_softmax(*operands(n, i)),
        "convolution of rank 3": lambda n: n.add_convolution_nd(
            *operands(n, (f, (1, 2, 8))), 2, (3,), np.zeros((2, 2, 3), np.float32)
        ),
        "dynamic channels": lambda n: n.add_convolution_nd(
            *operands(n, (f, (1, -1, 8, 8))), 2, (1, 1), np.zeros(4, np.float32)
        ),
        "pooling of rank 3": lambda n: n.add_pooling_nd(*operands(n, (f, (1, 2, 8))), trt.PoolingType.MAX, (2,)),
        "normalization ranks differ": lambda n: n.add_normalization_v2(*operands(n, f, (f, (3,)), (f, (3,))), 2),
        "quantization of integers": lambda n: n.add_quantize(*operands(n, i, (f, ())), trt.int8),
        "quantization to float": lambda n: n.add_quantize(*operands(n, f, (f, ())), trt.float16),
        "attention mixes types": lambda n: n.add_attention(
            *operands(n, *[(t, (1, 1, 2, 2)) for t in (f, f, h)]), trt.AttentionNormalizationOp.SOFTMAX, False
        ),
        "grid of another type": lambda n: n.add_grid_sample(*operands(n, (f, (1, 1, 2, 2)), (h, (1, 2, 2, 2)))),
        "assertion on integers": lambda n: n.add_assertion(*operands(n, (i, ())), "no"),
        "a plugin compiled ahead of time": lambda n: n.add_plugin(lambda: None, aot=True),
    }
    return cases if not name else cases[name]


@pytest.mark.parametrize("name", list(_refused("")))
def test_refusals_answer_none_and_say_why(network: Any, logger: Any, name: str) -> None:
    assert _refused(name)(network) is None
    assert len(logger.errors) == 1
    assert len(logger.errors[0]) > 40
    assert network.num_layers == 0


@pytest.mark.parametrize("name", list(_refused("")))
def test_refusals_raise_in_strict_mode(network: Any, logger: Any, name: str) -> None:
    with trt.strict(), pytest.raises(trt.NetworkError):
        _refused(name)(network)
    assert not logger.errors


def test_a_refusal_names_layer_operands_and_rule(network: Any, logger: Any) -> None:
    x, y = _tensor(network, "left"), _tensor(network, "right", trt.float16)
    network.add_elementwise(x, y, E.SUM)
    for part in ("ElementWise", "'left' FLOAT (2, 3)", "'right' HALF (2, 3)", "same type"):
        assert part in logger.errors[0]


@pytest.mark.parametrize(
    "call",
    [
        lambda n, x: n.add_activation(None, A.RELU),
        lambda n, x: n.add_activation(x, 0),
        lambda n, x: n.add_activation(x, U.EXP),
        lambda n, x: n.add_input("y", "float32", (1,)),
        lambda n, x: n.add_input("y", trt.float32, (1.5,)),
        lambda n, x: n.add_input("y", trt.float32, 3),
        lambda n, x: n.add_reduce(x, trt.ReduceOperation.SUM, 1.0, True),
        lambda n, x: n.add_reduce(x, trt.ReduceOperation.SUM, 1, "yes"),
        lambda n, x: n.add_constant((1,), [1.0]),
        lambda n, x: n.add_concatenation([x, None]),
        lambda n, x: n.add_identity(x).set_input(0, None),
        lambda n, x: n.set_weights_name("w", "w"),
        lambda n, x: trt.IIdentityLayer(),
    ],
)
def test_wrong_python_types_raise(network: Any, call: Any) -> None:
    with pytest.raises(TypeError):
        call(network, _tensor(network, "x"))


def test_tensors_of_another_network_are_refused(builder: Any, network: Any, logger: Any) -> None:
    other = builder.create_network()
    assert network.add_identity(_tensor(other, "x")) is None
    assert "another network" in logger.errors[0]


def test_the_same_weights_are_stored_once(network: Any) -> None:
    shared = np.random.rand(4, 4).astype(np.float32)
    for _ in range(3):
        network.mark_output(network.add_constant((4, 4), shared).get_output(0))
    structure, weights = network_to_json(network)
    assert list(weights) == ["w0"]
    assert weights["w0"].data_ptr() == shared.ctypes.data
    assert [entry["weights"] for entry in structure["layers"]] == [{"CONSTANT": "w0"}] * 3


def test_names_of_weights(network: Any) -> None:
    first, second = np.zeros(2, np.float32), np.zeros(2, np.float32)
    network.add_constant((2,), first)
    assert network.set_weights_name(first, "first")
    assert not network.set_weights_name(second, "second")
    network.add_constant((2,), second)
    assert not network.set_weights_name(second, "first")
    assert not network.mark_weights_refittable("second")
    assert network.mark_weights_refittable("first")
    assert network.are_weights_marked_refittable("first")
    assert network.unmark_weights_refittable("first")


def test_weights() -> None:
    data = torch.tensor([1.5, 2.5], dtype=torch.bfloat16)
    weights = trt.Weights(trt.bfloat16, data.data_ptr(), 2)
    assert (weights.dtype, len(weights), weights.size, weights.nbytes) == (trt.bfloat16, 2, 2, 4)
    assert weights.numpy() is weights
    assert len(trt.Weights()) == 0
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert np.shares_memory(trt.Weights(array).numpy(), array)
    for wrong in (np.zeros(2), np.zeros((2, 3), np.float32).T, np.zeros(2, np.uint16)):
        with pytest.raises(ValueError, match=r"numpy type|contiguous"):
            trt.Weights(wrong)


def test_dims() -> None:
    assert tuple(trt.Dims([1, -1])) == (1, -1)
    assert trt.Dims((2, 3))[0:2] == (2, 3)
    assert (trt.Dims2(1, 2), trt.Dims3((1, 2, 3)), trt.Dims4(1, 2, 3, 4)) == ((1, 2), (1, 2, 3), (1, 2, 3, 4))
    assert (trt.DimsHW(4, 5).h, trt.DimsHW(4, 5).w) == (4, 5)
    assert len(trt.Permutation([1, 0])) == trt.Dims.MAX_DIMS == 8
    for wrong in (trt.Dims, trt.Permutation):
        with pytest.raises(ValueError, match="at most 8"):
            wrong(range(9))
    with pytest.raises(ValueError, match="exactly 2"):
        trt.Dims2((1, 2, 3))


def test_enumerations_are_no_integers() -> None:
    assert int(trt.LayerType.MOE) == 55
    assert trt.DataType.FLOAT != 0
    assert trt.DataType(3) is trt.int32
    assert str(trt.DataType.HALF) == "DataType.HALF"
    assert trt.DataType.INT4.itemsize == 0.5
    with pytest.raises(TypeError):
        trt.DataType.HALF + 1  # type: ignore[operator]


def test_element_types_and_volumes() -> None:
    assert trt.nptype(trt.float16) is np.float16
    with pytest.raises(TypeError, match="numpy"):
        trt.nptype(trt.bfloat16)
    assert (trt.volume((2, 3)), trt.volume(())) == (6, 1)


def test_a_deep_network_can_change_at_its_root(network: Any) -> None:
    x = network.add_input("x", trt.float32, (4, 4))
    first = network.add_activation(x, A.RELU)
    tensor = first.get_output(0)
    for _ in range(3000):
        tensor = network.add_activation(tensor, A.RELU).get_output(0)
    x.shape = (7, 2)
    assert tuple(tensor.shape) == (7, 2)


def test_what_was_inferred_once_is_remembered(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    run = Inference._run

    def counted(inference: Any, layer: Any, sources: Any) -> Any:
        nonlocal calls
        calls += 1
        return run(inference, layer, sources)

    monkeypatch.setattr(Inference, "_run", counted)
    tensor = network.add_input("x", trt.float32, (-1, 4))
    for _ in range(50):
        tensor = network.add_activation(tensor, A.RELU).get_output(0)
    assert calls == 1


def test_an_einsum_is_checked_without_saying_its_equation(network: trt.INetworkDefinition) -> None:
    """The whole equation stood in a message for each operand, which nobody read: quadratic in their number."""
    said: list[str] = []

    class Equation(str):
        __slots__ = ()

        def __repr__(self) -> str:
            said.append(self)
            return super().__repr__()

    x = network.add_input("x", trt.float32, (2, 3))
    layer = network.add_einsum([x] * 40, ",".join(["ab"] * 40) + "->ab")
    layer.__dict__[type(layer).equation.slot] = Equation(layer.equation)
    layer._check(layer._inputs)
    assert len(said) <= 1
