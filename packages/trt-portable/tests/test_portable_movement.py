"""Layers that move data, against numpy indexing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt

M = trt.SampleMode
RELAXED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def _numbers(shape: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(int(np.prod(shape))).reshape(tuple(shape)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int64, torch.bool])
def test_shuffle_transposes_reshapes_transposes(run_network: Any, dtype: torch.dtype) -> None:
    x = _numbers((2, 3, 4), dtype)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_shuffle(tensor)
        layer.first_transpose = (2, 0, 1)
        layer.reshape_dims = (0, 3, -1)
        layer.second_transpose = (1, 2, 0)
        return layer

    (found,) = run_network(define, x)
    assert torch.equal(found, x.permute(2, 0, 1).reshape(4, 3, 2).permute(1, 2, 0))


@RELAXED
@given(order=st.permutations(range(4)), dynamic=st.lists(st.integers(0, 3), max_size=2))
def test_transpose_alone(run_network: Any, order: list[int], dynamic: list[int]) -> None:
    x = _numbers((2, 3, 4, 5))

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_shuffle(tensor)
        layer.first_transpose = trt.Permutation(order)
        return layer

    (found,) = run_network(define, x, dynamic=[(0, axis) for axis in dynamic])
    assert torch.equal(found, x.permute(order))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (3, 0, 2, 1)])
@pytest.mark.parametrize("dynamic", [[0], [0, 2], [1, 3]])
def test_an_extent_is_inferred_behind_any_transpose(
    run_network: Any, order: tuple[int, ...], dynamic: list[int]
) -> None:
    x, targets = _numbers((2, 3, 4, 6)), [(0, -1), (-1, 0), (0, 0, -1), (-1,), (0, -1, 2)]

    def define(network: Any, tensor: Any) -> list[Any]:
        layers = []
        for target in targets:
            layer = network.add_shuffle(tensor)
            layer.first_transpose, layer.reshape_dims = order, target
            layers.append(layer)
        return layers

    moved = x.permute(order)
    for found, target in zip(run_network(define, x, dynamic=[(0, axis) for axis in dynamic]), targets, strict=True):
        assert torch.equal(found, moved.reshape([want or moved.shape[axis] for axis, want in enumerate(target)]))


def test_reshape_by_computed_extents_keeps_what_is_static(network: Any, constant: Any) -> None:
    x = network.add_input("x", trt.float32, (-1, 3, 8))
    batch = network.add_slice(network.add_shape(x).get_output(0), (0,), (1,), (1,)).get_output(0)
    target = network.add_concatenation([batch, constant(network, [-1], np.int64)])
    layer = network.add_shuffle(x)
    layer.set_input(1, target.get_output(0))
    assert tuple(layer.get_output(0).shape) == (-1, 24)
    assert layer.reshape_dims is None
    assert target.get_output(0).is_shape_tensor
    assert not x.is_shape_tensor


def test_zero_is_a_placeholder_unless_it_is_not(run_network: Any) -> None:
    x = torch.zeros(3, 0)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_shuffle(tensor)
        layer.reshape_dims = (0, 5)
        layer.zero_is_placeholder = False
        return layer

    assert run_network(define, x)[0].shape == (0, 5)


@st.composite
def _slices(draw: Any) -> tuple[list[int], list[int], list[int], list[int]]:
    shape, starts, sizes, strides = [], [], [], []
    for _ in range(draw(st.integers(1, 3))):
        extent = draw(st.integers(1, 5))
        start = draw(st.integers(0, extent - 1))
        stride = draw(st.integers(-2, 2))
        room = (extent - 1 - start) if stride > 0 else start
        size = draw(st.integers(0, 4 if stride == 0 else room // abs(stride) + 1))
        shape.append(extent), starts.append(start), sizes.append(size), strides.append(stride)
    return shape, starts, sizes, strides


@RELAXED
@given(case=_slices(), dynamic=st.booleans(), given_as=st.sampled_from(["attributes", "inputs"]))
def test_slice_within_bounds(run_network: Any, constant: Any, case: Any, dynamic: bool, given_as: str) -> None:
    shape, starts, sizes, strides = case
    x = _numbers(shape)

    def define(network: Any, tensor: Any) -> Any:
        if given_as == "attributes":
            return network.add_slice(tensor, starts, sizes, strides)
        layer = network.add_slice(tensor, (), (), ())
        for index, numbers in enumerate((starts, sizes, strides), start=1):
            layer.set_input(index, constant(network, numbers, np.int64))
        return layer

    (found,) = run_network(define, x, dynamic=dynamic)
    places = [[a + i * s for i in range(n)] for a, n, s in zip(starts, sizes, strides, strict=True)]
    assert np.array_equal(found.numpy(), x.numpy()[np.ix_(*[np.array(p, np.int64) for p in places])])


@pytest.mark.parametrize(
    ("mode", "padding"), [(M.FILL, "constant"), (M.CLAMP, "edge"), (M.REFLECT, "reflect"), (M.WRAP, "wrap")]
)
@pytest.mark.parametrize("dynamic", [False, True])
def test_slice_out_of_bounds(run_network: Any, constant: Any, mode: Any, padding: str, dynamic: bool) -> None:
    x = _numbers((2, 4)) + 1

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_slice(tensor, (0, -3), (2, 9), (1, 1))
        layer.mode = mode
        if mode is M.FILL:
            layer.set_input(4, constant(network, 7.0))
        return layer

    (found,) = run_network(define, x, dynamic=dynamic)
    options = {"constant_values": 7} if mode is M.FILL else {}
    assert np.array_equal(found.numpy(), np.pad(x.numpy(), ((0, 0), (3, 2)), mode=padding, **options))


@RELAXED
@given(data=st.data(), mode=st.sampled_from([M.WRAP, M.FILL]), kind=st.sampled_from([torch.float32, torch.int8]))
def test_windows_that_leave_their_axes(run_network: Any, data: st.DataObject, mode: Any, kind: torch.dtype) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    starts = [data.draw(st.integers(-6, 6)) for _ in shape]
    sizes = [data.draw(st.sampled_from([extent, 0, 1, 5])) for extent in shape]
    kind = torch.float32 if mode is M.FILL else kind
    x = (_numbers(shape) + 1).to(kind)

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_slice(tensor, starts, sizes, [1] * len(shape))
        layer.mode = mode
        return layer

    (found,) = run_network(define, x)
    places = [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    wrapped = x.numpy()[np.ix_(*[place % extent for place, extent in zip(places, shape, strict=True)])]
    inside = [(place >= 0) & (place < extent) for place, extent in zip(places, shape, strict=True)]
    expected = wrapped if mode is M.WRAP else np.where(np.all(np.meshgrid(*inside, indexing="ij"), axis=0), wrapped, 0)
    assert np.array_equal(found.numpy(), expected)


def test_slice_of_some_axes(run_network: Any) -> None:
    x = _numbers((2, 3, 4))

    def define(network: Any, tensor: Any) -> Any:
        layer = network.add_slice(tensor, (1,), (2,), (1,))
        layer.axes = (-2,)
        return layer

    assert torch.equal(run_network(define, x)[0], x[:, 1:3])


def test_strict_bounds_are_checked_while_defining_and_while_running(
    network: Any, logger: Any, load: Any, execute: Any
) -> None:
    x = network.add_input("x", trt.float32, (4,))
    assert not network.add_slice(x, (2,), (3,), (1,)).get_output(0).shape._is_valid
    assert "outside its extent 4" in logger.errors[0]
    other = trt.Builder(logger).create_network()
    y = other.add_input("y", trt.float32, (-1,))
    other.mark_output(other.add_slice(y, (2,), (3,), (1,)).get_output(0))
    engine = load(other, {"y": ((1,), (5,), (8,))})
    context = engine.create_execution_context()
    assert torch.equal(next(iter(execute(context, {"y": _numbers((5,))}).values())), torch.tensor([2.0, 3.0, 4.0]))
    with pytest.raises(RuntimeError, match="outside its extent 4"):
        execute(context, {"y": _numbers((4,))})


@RELAXED
@given(extents=st.lists(st.integers(0, 3), min_size=1, max_size=4), axis=st.integers(0, 2), dynamic=st.booleans())
def test_concatenation(run_network: Any, extents: list[int], axis: int, dynamic: bool) -> None:
    parts = []
    for extent in extents:
        shape = [2, 3, 4]
        shape[axis] = extent
        parts.append(_numbers(shape))

    def define(network: Any, *tensors: Any) -> Any:
        layer = network.add_concatenation(list(tensors))
        layer.axis = axis
        return layer

    places = [(number, axis) for number in range(len(parts))] if dynamic else ()
    assert torch.equal(run_network(define, *parts, dynamic=places)[0], torch.cat(parts, axis))


def test_concatenation_defaults_to_the_third_axis_from_the_end(network: Any) -> None:
    x = network.add_input("x", trt.float32, (2, 3, 4, 5))
    assert network.add_concatenation([x, x]).axis == 1


@pytest.mark.parametrize("axes", [[0], [-1], [0, 2], [2, -4]])
def test_squeeze_and_unsqueeze(run_network: Any, constant: Any, axes: list[int]) -> None:
    x = _numbers((1, 5, 1, 1))

    def squeeze(network: Any, tensor: Any) -> Any:
        return network.add_squeeze(tensor, constant(network, axes, np.int32))

    places = {axis % 4 for axis in axes}
    wanted = x.reshape([e for axis, e in enumerate(x.shape) if axis not in places])
    assert torch.equal(run_network(squeeze, x)[0], wanted)
    assert torch.equal(run_network(squeeze, x, dynamic=[(0, axis % 4) for axis in axes])[0], wanted)

    def unsqueeze(network: Any, tensor: Any) -> Any:
        return network.add_unsqueeze(tensor, constant(network, axes, np.int64))

    rank = 2 + len(axes)
    data = _numbers((3, 2))
    if all(-rank <= axis < rank for axis in axes) and len({axis % rank for axis in axes}) == len(axes):
        assert np.array_equal(run_network(unsqueeze, data)[0].numpy(), np.expand_dims(data.numpy(), tuple(axes)))


def test_squeeze_without_axes_drops_static_ones(run_network: Any) -> None:
    x = _numbers((1, 3, 1))
    assert run_network(lambda n, t: n.add_squeeze(t), x)[0].shape == (3,)
    assert run_network(lambda n, t: n.add_squeeze(t), x, dynamic=[(0, 0)])[0].shape == (1, 3)


def test_identity_and_shape(run_network: Any) -> None:
    x = _numbers((2, 3))
    assert torch.equal(run_network(lambda n, t: n.add_identity(t), x)[0], x)
    (shape,) = run_network(lambda n, t: n.add_shape(t), x, dynamic=True)
    assert shape.tolist() == [2, 3]
    assert shape.dtype is torch.int64
    assert run_network(lambda n, t: n.add_shape(t), torch.tensor(1.0))[0].shape == (0,)


def test_a_slice_that_was_computed_once_still_looks_at_the_extents(
    network: Any, load: Any, execute: Any, logger: Any
) -> None:
    x = network.add_input("x", trt.float32, (-1, 6))
    network.mark_output(network.add_slice(x, (1, 2), (3, 4), (1, 1)).get_output(0))
    context = load(network, {"x": ((4, 6), (5, 6), (9, 6))}).create_execution_context()
    for rows in (5, 9, 4):
        data = torch.randn(rows, 6)
        (found,) = execute(context, {"x": data}).values()
        torch.testing.assert_close(found, data[1:4, 2:6])
    layer = context.engine._state.program.calls[0].layer
    layer._compute([torch.randn(4, 6)])
    with pytest.raises(RuntimeError, match="outside its extent 3"):
        layer._compute([torch.randn(3, 6)])
