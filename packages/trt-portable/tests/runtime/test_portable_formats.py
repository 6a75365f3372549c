"""Memory formats at the boundary of an engine: every format with every element type."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.dtypes import CARRIERS
from trt_portable.formats import LAYOUTS, choose_format

pytestmark = pytest.mark.sampled(3)

F = trt.TensorFormat
TYPES = [dtype for dtype in trt.DataType.__members__.values() if dtype not in (trt.int4, trt.fp4, trt.e8m0)]
DOCUMENTED = {
    F.CHW2: {trt.float16, trt.bfloat16},
    F.HWC8: {trt.float16, trt.bfloat16},
    F.CHW4: {trt.int8},
    F.CHW16: set(),
    F.CHW32: {trt.int8, trt.float32, trt.float16},
    F.DHWC8: {trt.float16, trt.bfloat16},
    F.CDHW32: {trt.float16, trt.int8},
    F.HWC: {trt.float32, trt.uint8},
    F.DLA_LINEAR: set(),
    F.DLA_HWC4: set(),
    F.HWC16: {trt.float16, trt.int8, trt.fp8},
    F.DHWC: {trt.float32},
}
"""Types by format; formats that only DLA has take none here."""
LANES = {F.CHW2: 2, F.HWC8: 8, F.CHW4: 4, F.CHW32: 32, F.DHWC8: 8, F.CDHW32: 32, F.HWC: 1, F.HWC16: 16, F.DHWC: 1}
DEEP = {F.DHWC8, F.CDHW32, F.DHWC}
PAIRS = [(kind, dtype) for kind, types in DOCUMENTED.items() for dtype in TYPES if dtype in types]


def _place(kind: Any, shape: tuple[int, ...], index: tuple[int, ...]) -> int:
    """Where an element of (N, C, ...) lies, in elements, from the definition of the format."""
    lanes, (n, c, *where), (_, channels, *extents) = LANES[kind], index, shape
    vectors = -(-channels // lanes)
    spot = 0
    for at, extent in zip(where, extents, strict=True):
        spot = spot * extent + at
    plane = math.prod(extents)
    if "HWC" in kind.name:
        return (n * plane + spot) * vectors * lanes + c
    return ((n * vectors + c // lanes) * plane + spot) * lanes + c % lanes


def _memory(kind: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in a format, padding zero; one row of bytes per element."""
    shape = tuple(tensor.shape)
    count = _place(kind, (1, *shape[1:]), (shape[0], 0, *[0] * (len(shape) - 2)))
    memory = torch.zeros(count, tensor.dtype.itemsize, dtype=torch.uint8)
    raw = tensor.contiguous().view(torch.uint8).reshape(*shape, tensor.dtype.itemsize)
    for index in np.ndindex(*shape):
        memory[_place(kind, shape, index)] = raw[index]
    return memory


def _copy(network: Any, dtype: Any, shape: Any, kinds: tuple[Any, Any]) -> None:
    """A network that copies x to y, with a format for either."""
    x = network.add_input("x", dtype, shape)
    y = network.add_cast(x, trt.float32).get_output(0) if dtype is trt.uint8 else x
    y = network.add_cast(y, dtype).get_output(0) if dtype is trt.uint8 else network.add_identity(y).get_output(0)
    y.name = "y"
    network.mark_output(y)
    for tensor, kind in zip((x, y), kinds, strict=True):
        tensor.allowed_formats = 1 << int(kind)


@pytest.mark.sampled
@pytest.mark.parametrize(("kind", "dtype"), PAIRS, ids=lambda value: value.name)
@pytest.mark.parametrize("channels", [3, 33])
@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_are_read_anew_in_every_run(
    network: Any, load: Any, kind: Any, dtype: Any, channels: int, dynamic: bool
) -> None:
    space = (2, 3, 2) if kind in DEEP else (2, 3)
    shape = (2, channels, *space)
    _copy(network, dtype, (-1, channels, *[-1] * len(space)) if dynamic else shape, (kind, F.LINEAR))
    ranges = {"x": ((1, channels, *[1] * len(space)), shape, (4, channels, *[4] * len(space)))}
    context = load(network, ranges if dynamic else None).create_execution_context()
    assert context.set_input_shape("x", shape)
    assert tuple(context.get_tensor_shape("y")) == shape
    memory = _memory(kind, torch.zeros(shape, dtype=CARRIERS[dtype]))
    result = torch.empty(shape, dtype=CARRIERS[dtype])
    assert context.set_tensor_address("x", memory.data_ptr())
    assert context.set_tensor_address("y", result.data_ptr())
    for _ in range(2):
        value = (torch.randint(0, 100, shape).float() / 4).to(CARRIERS[dtype])
        memory.copy_(_memory(kind, value))
        assert context.execute_async_v3(0)
        assert torch.equal(result.view(torch.uint8), value.view(torch.uint8))


@pytest.mark.parametrize(("kind", "dtype"), PAIRS, ids=lambda value: value.name)
def test_outputs_are_packed_and_padded_with_zeros(network: Any, load: Any, kind: Any, dtype: Any) -> None:
    shape = (2, 5, 2, 3, 2) if kind in DEEP else (2, 5, 2, 3)
    value = (torch.randint(0, 100, shape).float() / 4).to(CARRIERS[dtype])
    _copy(network, dtype, shape, (F.LINEAR, kind))
    context = load(network).create_execution_context()
    wanted = _memory(kind, value)
    result = torch.full((wanted.numel(),), 77, dtype=torch.uint8)
    assert context.get_max_output_size("y") == wanted.numel()
    assert context.set_tensor_address("x", value.data_ptr())
    assert context.set_tensor_address("y", result.data_ptr())
    assert context.execute_async_v3(0)
    assert torch.equal(result, wanted.reshape(-1))


@pytest.mark.parametrize("kind", list(F.__members__.values()), ids=lambda value: value.name)
@pytest.mark.parametrize("dtype", TYPES, ids=lambda value: value.name)
def test_the_engine_reports_the_format_or_the_build_is_refused(
    network: Any, builder: Any, load: Any, logger: Any, kind: Any, dtype: Any
) -> None:
    shape = (1, 3, 2, 2, 2)
    _copy(network, dtype, shape, (kind, kind))
    if kind is not F.LINEAR and dtype not in DOCUMENTED[kind]:
        assert builder.build_serialized_network(network, builder.create_builder_config()) is None
        assert any(kind.name in error and dtype.name in error for error in logger.errors)
        return
    engine = load(network)
    lanes = LANES.get(kind, 1)
    axis = 1 if kind in DEEP else 2
    for name in ("x", "y"):
        assert engine.get_tensor_format(name) is kind
        assert dtype.name in engine.get_tensor_format_desc(name)
        assert engine.get_tensor_components_per_element(name) == (lanes if lanes > 1 else -1)
        assert engine.get_tensor_vectorized_dim(name) == (axis if lanes > 1 else -1)
        assert engine.get_tensor_bytes_per_component(name) == (CARRIERS[dtype].itemsize if lanes > 1 else -1)


@pytest.mark.parametrize("kind", LAYOUTS, ids=lambda value: value.name)
def test_strides_are_those_of_vectors(network: Any, load: Any, kind: Any) -> None:
    dtype = next(dtype for dtype in TYPES if dtype in DOCUMENTED[kind])
    shape = (2, 40, 2, 3, 5) if kind in DEEP else (2, 40, 3, 5)
    _copy(network, dtype, shape, (kind, kind))
    context = load(network).create_execution_context()
    lanes = LANES[kind]
    origin = (0,) * len(shape)
    for axis, stride in enumerate(context.get_tensor_strides("x")):
        step = list(origin)
        step[axis] = lanes if axis == 1 else 1
        assert _place(kind, shape, tuple(step)) == stride * lanes


def test_linear_is_preferred_and_the_first_that_fits_otherwise() -> None:
    both = 1 << int(F.LINEAR) | 1 << int(F.HWC)
    assert choose_format(both, trt.float32, 4) is F.LINEAR
    several = 1 << int(F.CHW4) | 1 << int(F.HWC) | 1 << int(F.CHW32)
    assert choose_format(several, trt.float32, 4) is F.CHW32
    assert choose_format(several, trt.int8, 3) is F.CHW4


@pytest.mark.parametrize(("kind", "shape"), [(F.HWC, (2, 3)), (F.DHWC, (1, 2, 3)), (F.CHW32, ())])
def test_too_small_a_rank_is_refused(network: Any, builder: Any, logger: Any, kind: Any, shape: Any) -> None:
    _copy(network, trt.float32, shape, (kind, F.LINEAR))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any("rank" in error for error in logger.errors)


def test_shape_tensors_are_linear(network: Any, builder: Any, logger: Any) -> None:
    x, size = network.add_input("x", trt.float32, (6,)), network.add_input("size", trt.int32, (3,))
    size.allowed_formats = 1 << int(F.HWC)
    layer = network.add_shuffle(x)
    layer.set_input(1, size)
    network.mark_output(layer.get_output(0))
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape_input("size", (1, 2, 3), (1, 2, 3), (1, 2, 3))
    config.add_optimization_profile(profile)
    assert builder.build_serialized_network(network, config) is None
    assert any("shape tensor" in error for error in logger.errors)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(list(LAYOUTS)),
    extents=st.lists(st.integers(0, 5), min_size=0, max_size=2),
    channels=st.integers(0, 40),
    space=st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_packing_and_unpacking_is_the_identity(kind: Any, extents: Any, channels: int, space: Any) -> None:
    layout = LAYOUTS[kind]
    shape = (*extents, channels, *space[: layout.channel - 1])
    tensor = torch.randn(shape)
    memory = torch.full(layout.memory_shape(shape), 7.0)
    layout.pack(tensor, memory)
    assert memory.sum() == pytest.approx(tensor.sum().item(), abs=1e-3)
    found = torch.empty(shape)
    layout.unpack(memory, found)
    assert torch.equal(found, tensor)
