"""Inputs: shapes, ranges, examples, and everything that is refused."""

from __future__ import annotations

from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_core import Input, InputError
from trt_core.sizes.profiles import NamedDimension

_EXTENT = st.integers(0, 6)
_DTYPES = st.sampled_from(
    [torch.float32, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool, torch.uint8]
)


@st.composite
def ranges(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Draws three shapes of one rank, in order in every dimension."""
    triples = draw(st.lists(st.lists(_EXTENT, min_size=3, max_size=3).map(sorted), max_size=4))
    low, best, high = ([triple[part] for triple in triples] for part in range(3))
    return tuple(low), tuple(best), tuple(high)


@given(ranges(), _DTYPES)
def test_examples_have_the_shape_and_type_that_was_asked_for(
    shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype
) -> None:
    low, best, high = shapes
    spec = Input(min_shape=low, opt_shape=best, max_shape=high, dtype=dtype)
    for which, shape in zip(("min", "opt", "max"), shapes, strict=True):
        example = spec.example(which)
        assert spec.example_tensor(f"{which}_shape").shape == shape
        assert example.shape == shape
        assert example.dtype == dtype
        assert spec.accepts(tuple(example.shape))


@given(ranges())
def test_dynamic_axes_are_those_with_a_range(shapes: tuple[tuple[int, ...], ...]) -> None:
    low, best, high = shapes
    spec = Input(min_shape=low, opt_shape=best, max_shape=high)
    assert spec.dynamic_axes == tuple(axis for axis, extent in enumerate(spec.shape) if extent == -1)
    assert spec.is_dynamic == bool(spec.dynamic_axes)


@given(ranges(), st.data())
def test_accepts_exactly_the_shapes_in_range(shapes: tuple[tuple[int, ...], ...], data: st.DataObject) -> None:
    low, best, high = shapes
    spec = Input(min_shape=low, opt_shape=best, max_shape=high)
    shape = data.draw(st.tuples(*[st.integers(0, 8) for _ in low]))
    inside = all(a <= extent <= b for a, extent, b in zip(low, shape, high, strict=True))
    assert spec.accepts(shape) == inside
    assert not spec.accepts((*shape, 1))


@given(ranges(), _DTYPES)
def test_equal_inputs_are_one_key(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> None:
    low, best, high = shapes
    first, second = (Input(min_shape=low, opt_shape=best, max_shape=high, dtype=dtype, name="x") for _ in range(2))
    assert first == second
    assert len({first, second}) == 1
    assert first != Input(min_shape=low, opt_shape=best, max_shape=high, dtype=dtype, name="y")


def test_a_fixed_shape_is_its_own_range() -> None:
    spec = Input((2, 3))
    assert spec.min_shape == spec.opt_shape == spec.max_shape == spec.shape == (2, 3)
    assert not spec.is_dynamic


def test_shapes_may_be_anything_that_holds_whole_numbers() -> None:
    for shape in ([2, 3], torch.Size([2, 3]), array("i", [2, 3])):
        assert Input(shape).shape == (2, 3)


def test_a_scalar_has_the_empty_shape() -> None:
    assert Input(()).example().shape == ()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "belong together"),
        ({"min_shape": (1,), "max_shape": (2,)}, "belong together"),
        ({"shape": (1,), "opt_shape": (1,)}, "either shape, or"),
        ({"shape": (-1, 3)}, "negative extent"),
        ({"shape": ("a",)}, "is not a shape"),
        ({"shape": {"min_shape": (1,)}}, r"write Input\(min_shape="),
        ({"shape": 3}, "is not a shape"),
        ({"min_shape": (1,), "opt_shape": (1, 2), "max_shape": (1, 2)}, "differ in rank"),
        ({"min_shape": (2,), "opt_shape": (1,), "max_shape": (3,)}, "out of order"),
        ({"min_shape": (1,), "opt_shape": (4,), "max_shape": (3,)}, "out of order"),
        ({"shape": (1,), "dtype": "floaty"}, "is not a data type"),
        ({"shape": (1,), "format": "nhwc"}, "unknown memory format"),
        ({"shape": (1,), "tensor_domain": (2, 2)}, "is empty"),
        ({"shape": (1,), "tensor_domain": (0, float("inf"))}, "is not bounded"),
        ({"shape": (1,), "tensor_domain": (1,)}, "is no interval"),
        ({"shape": (1,), "tensor_domain": None}, "is no interval"),
        ({"shape": (1,), "tensor_domain": ("a", "b")}, "is no interval"),
        ({"shape": (1.5, 3)}, "1.5 is no whole number"),
        ({"shape": "13"}, "'1' is no whole number"),
        ({"shape": (float("inf"),)}, "is not a shape"),
        ({"shape": (1 << 63,)}, "the largest extent of a tensor"),
        ({"shape": (1,), "name": 3}, "named by a string, not an int"),
        ({"min_shape": (1,), "opt_shape": (1,), "max_shape": (2,), "dimensions": ["b"]}, "must map axes to names"),
    ],
)
def test_refuses_what_makes_no_sense(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Input(**keywords)  # type: ignore[arg-type]


def test_a_refusal_names_the_input_and_the_dimension() -> None:
    with pytest.raises(InputError, match="dimension 1 is out of order: min 5, opt 4, max 8") as caught:
        Input(min_shape=(1, 5), opt_shape=(1, 4), max_shape=(1, 8), name="tokens")
    assert caught.value.where == "Input 'tokens'"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_examples_stay_in_their_domain(dtype: torch.dtype) -> None:
    values = Input((1000,), dtype=dtype, tensor_domain=(3, 7)).example().double()
    assert values.min() >= 3
    # rounding to a narrow type may reach the open end of the interval
    assert values.max() <= (7 if dtype.is_floating_point else 6)


def test_boolean_examples_hold_both_values() -> None:
    assert set(Input((100,), dtype=torch.bool).example().tolist()) == {False, True}


def test_an_example_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InputError, match="no 'largest' shape"):
        Input((1,)).example("largest")


def test_from_tensor_reads_shape_type_and_format() -> None:
    tensor = torch.zeros(2, 3, 4, 5, dtype=torch.float16).to(memory_format=torch.channels_last)
    spec = Input.from_tensor(tensor, name="image")
    assert (spec.shape, spec.dtype, spec.name) == ((2, 3, 4, 5), torch.float16, "image")
    assert spec.format == torch.channels_last
    assert spec.example().is_contiguous(memory_format=torch.channels_last)


def test_from_tensor_takes_a_contiguous_tensor_as_contiguous() -> None:
    # with one channel both formats describe the same memory
    assert Input.from_tensor(torch.zeros(2, 1, 4, 4)).format == torch.contiguous_format


def test_text_shows_a_range_only_where_there_is_one() -> None:
    assert repr(Input((2, 3), name="x")) == "Input(shape=(2, 3), dtype=float32, name='x')"
    dynamic = Input(min_shape=(1,), opt_shape=(2,), max_shape=(3,), dtype="half")
    assert repr(dynamic) == "Input(min_shape=(1,), opt_shape=(2,), max_shape=(3,), dtype=float16)"


@pytest.mark.parametrize(
    "given", [{"x": torch.ones(2)}, 3, [torch.ones(2), "x"], [[torch.ones(2)]], torch.ones(2, 2)], ids=str
)
def test_what_is_no_list_of_tensors_is_refused(given: object) -> None:
    with pytest.raises(InputError, match="cannot read"):
        Input.from_tensors(given)  # type: ignore[arg-type]


def test_inputs_of_tensors() -> None:
    tensors = [torch.ones(2, 3), torch.ones(4, dtype=torch.int64)]
    assert Input.from_tensors(tensors) == [Input((2, 3)), Input((4,), dtype=torch.int64)]


@pytest.mark.parametrize(
    ("text", "factor", "offset"),
    [
        ("length", 1, 0),
        ("8*length", 8, 0),
        ("length * 8", 8, 0),
        (" 2 * length - 1 ", 2, -1),
        ("length + 3", 1, 3),
    ],
)
def test_a_dimension_is_named_or_follows_from_one(text: str, factor: int, offset: int) -> None:
    shapes = [(factor * size + offset,) for size in (2, 3, 5)]
    spec = Input(min_shape=shapes[0], opt_shape=shapes[1], max_shape=shapes[2], dimensions={0: text})
    assert spec.dimensions[0] == NamedDimension("length", factor, offset)
    assert NamedDimension.parse(str(spec.dimensions[0])) == spec.dimensions[0]
    assert f"{spec.dimensions[0]}" in repr(spec)
    unnamed = Input(min_shape=shapes[0], opt_shape=shapes[1], max_shape=shapes[2])
    assert spec != unnamed


@pytest.mark.parametrize("text", ["", "8", "8*8", "8*n*8", "n*m", "n/2", "-n", "0*n", None, 3])
def test_what_names_no_dimension_is_refused(text: object) -> None:
    with pytest.raises(InputError, match="does not name a dimension"):
        Input(min_shape=(8,), opt_shape=(8,), max_shape=(16,), dimensions={0: text})  # type: ignore[dict-item]


def test_names_fit_ranges_and_axes_that_vary() -> None:
    with pytest.raises(InputError, match="is 12, which is no 8\\*length"):
        Input(min_shape=(8,), opt_shape=(12,), max_shape=(16,), dimensions={0: "8*length"})
    with pytest.raises(InputError, match="does not vary"):
        Input((8, 3), dimensions={0: "batch"})
    with pytest.raises(InputError, match="does not vary"):
        Input(min_shape=(8,), opt_shape=(12,), max_shape=(16,), dimensions={1: "batch"})


PREFILL, DECODE = ((1, 1), (1, 64), (1, 256)), ((1, 1), (16, 1), (32, 1))


def test_several_ranges_span_one_and_keep_their_own_optimum() -> None:
    spec = Input(profiles=[PREFILL, DECODE])
    assert (spec.min_shape, spec.opt_shape, spec.max_shape) == ((1, 1), (1, 64), (32, 256))
    assert spec.dynamic_axes == (0, 1)
    assert spec.example("opt", profile=1).shape == (16, 1)
    assert spec.accepts((32, 1))
    assert not spec.accepts((32, 256))
    assert eval(repr(spec), {"Input": Input, "float32": torch.float32}) == spec


def test_one_range_in_a_list_is_that_range() -> None:
    low, best, high = PREFILL
    assert Input(profiles=[PREFILL]) == Input(min_shape=low, opt_shape=best, max_shape=high)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"profiles": []}, "holds no ranges"),
        ({"profiles": 3}, "holds no ranges"),
        ({"profiles": [PREFILL[:2]]}, "is no range of shapes"),
        ({"profiles": [PREFILL, ((3, 1), (1, 1), (1, 1))]}, "dimension 0 is out of order: min 3, opt 1, max 1"),
        ({"profiles": [PREFILL, ((1,), (1,), (1,))]}, "differ in rank"),
        ({"profiles": [((1,), (1, 1), (1, 1))]}, "differ in rank"),
        ({"profiles": [PREFILL], "shape": (1, 1)}, "either shape, or"),
        ({"profiles": [PREFILL], "min_shape": (1, 1)}, "either shape, or"),
        ({"profiles": [PREFILL, DECODE], "dimensions": {1: "8*length"}}, "which is no"),
    ],
)
def test_refuses_profiles_that_make_no_sense(keywords: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Input(**keywords)  # type: ignore[arg-type]


def test_a_range_that_does_not_exist_has_no_example() -> None:
    with pytest.raises(InputError, match="no profile 1"):
        Input((1,)).example(profile=1)


def test_ranges_and_names_as_other_scripts_write_them() -> None:
    low, best, high = (1, 16), (4, 16), (8, 16)
    keys = {"min_shape": low, "opt_shape": best, "max_shape": high}
    assert Input(profiles=[keys, keys]) == Input(profiles=[(low, best, high)] * 2)
    assert Input(**keys, shared_dims={0: "B"}) == Input(**keys, dimensions={0: "B"})
    with pytest.raises(InputError, match="the same thing"):
        Input(**keys, shared_dims={0: "B"}, dimensions={0: "B"})
    with pytest.raises(InputError, match="no range of shapes"):
        Input(profiles=[{"min_shape": low, "opt_shape": best}])
