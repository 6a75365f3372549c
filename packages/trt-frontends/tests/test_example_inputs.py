"""Inputs as users give them: tensors, ranges, keywords, nests."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import Device, Input, InputError
from trt_frontends.example_inputs import (
    ExampleInputs,
    get_dynamic_shapes_args,
    get_dynamic_shapes_kwargs,
    require_names,
)

BATCH = Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(8, 3))


def _signature(parameters: str) -> inspect.Signature:
    return inspect.signature(eval(f"lambda {parameters}: None"))


def test_no_inputs_at_all_is_none() -> None:
    assert ExampleInputs.read() is None


def test_a_single_tensor_is_one_input() -> None:
    tensor = torch.ones(2)
    examples = ExampleInputs.read(tensor)
    assert examples is not None and examples.args[0] is tensor


def test_inputs_given_twice_are_refused() -> None:
    with pytest.raises(InputError, match="same thing"):
        ExampleInputs.read([torch.ones(2)], [torch.ones(2)])


def test_inputs_that_are_no_sequence_are_refused() -> None:
    with pytest.raises(InputError, match="tuple or list"):
        ExampleInputs.read({"x": torch.ones(2)})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("keywords", "found"),
    [([torch.ones(1)], "a list"), ({3: torch.ones(1)}, "keys such as 3"), ("xy", "a str"), (5, "an int")],
)
def test_keyword_inputs_that_are_no_mapping_of_names_are_refused(keywords: object, found: str) -> None:
    with pytest.raises(InputError, match=f"must map names to inputs, not {found}"):
        ExampleInputs.read((), kwarg_inputs=keywords)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["N", "gamma", "class", "length"])
def test_dimensions_may_be_called_what_sympy_knows(name: str) -> None:
    x = Input(min_shape=(2, 4), opt_shape=(4, 4), max_shape=(8, 4), dimensions={0: f"2*{name}"})
    program = trt_frontends.trace(nn.ReLU(), arg_inputs=[x])
    bounds = [(found.lower, found.upper) for found in program.range_constraints.values()]
    assert sorted(bounds) == [(1, 4), (2, 8)]


def test_ranges_become_example_tensors_of_the_opt_shape() -> None:
    examples = ExampleInputs((BATCH, {"y": BATCH}), {"mask": torch.ones(1)})
    args, kwargs = examples.tensors(torch.device("cpu"))
    assert args[0].shape == (4, 3) and args[1]["y"].shape == (4, 3)
    assert kwargs["mask"].shape == (1,)


def test_an_example_extent_of_one_is_raised_so_that_export_keeps_it_dynamic() -> None:
    lonely = Input(min_shape=(1, 3), opt_shape=(1, 3), max_shape=(8, 3))
    args, _ = ExampleInputs((lonely,), {}).tensors(torch.device("cpu"))
    assert args[0].shape == (2, 3)


def test_static_inputs_have_no_dynamic_shapes() -> None:
    assert ExampleInputs((torch.ones(2), Input((2, 3))), {}).dynamic_shapes(_signature("x, y")) is None


def test_dynamic_axes_are_named_by_parameter_and_axis() -> None:
    shapes = ExampleInputs((torch.ones(2), BATCH), {"mask": BATCH}).dynamic_shapes(_signature("x, y, mask"))
    assert shapes is not None
    assert shapes["x"] is None
    assert list(shapes["y"]) == [0] and list(shapes["mask"]) == [0]
    assert (shapes["y"][0].min, shapes["y"][0].max) == (1, 8)


def test_what_is_left_over_belongs_to_the_variadic_parameter() -> None:
    shapes = get_dynamic_shapes_args(["x", "rest"], [BATCH, torch.ones(1), BATCH])
    assert list(shapes["x"]) == [0]
    assert shapes["rest"][0] is None and list(shapes["rest"][1]) == [0]


def test_nested_inputs_keep_their_structure() -> None:
    shapes = get_dynamic_shapes_kwargs({"state": [BATCH, torch.ones(2)]})
    assert list(shapes["state"][0]) == [0] and shapes["state"][1] is None


def test_keywords_come_in_the_order_of_the_program() -> None:
    a, b = torch.ones(1), torch.ones(2)
    examples = ExampleInputs((), {"a": a, "b": b})
    assert [leaf.numel() for leaf in examples.in_order_of(["b", "a"])] == [2, 1]


@pytest.mark.parametrize("keywords", [["a"], ["a", "b", "c"], []])
def test_keywords_that_do_not_fit_the_program_are_refused(keywords: list[str]) -> None:
    examples = ExampleInputs((), {"a": torch.ones(1), "b": torch.ones(1)})
    with pytest.raises(InputError, match="keyword inputs do not fit"):
        examples.in_order_of(keywords)


def test_the_device_is_that_of_the_first_tensor() -> None:
    assert ExampleInputs((BATCH, torch.ones(1)), {}).device() == Device("cpu")
    assert ExampleInputs((BATCH,), {}).device() is None


@pytest.mark.parametrize("count", [1, 2, 3])
def test_variadic_inputs_are_nested_as_export_nests_them(count: int) -> None:
    shapes = ExampleInputs((BATCH,) * count, {}).dynamic_shapes(_signature("*rest"))
    assert shapes is not None
    assert [list(dims) for dims in shapes["rest"]] == [[0]] * count


def test_keyword_inputs_without_a_parameter_of_their_own_are_nested_too() -> None:
    shapes = ExampleInputs((), {"a": BATCH}).dynamic_shapes(_signature("**options"))
    assert shapes is not None
    assert list(shapes["options"]["a"]) == [0]


def test_inputs_come_in_the_order_of_the_signature() -> None:
    ordered = ExampleInputs((), {"z": 1, "x": 2, "other": 3, "y": 4}).in_order(_signature("x, y, z, **rest"))
    assert list(ordered.kwargs) == ["x", "y", "z", "other"]


def test_every_leaf_knows_its_place() -> None:
    examples = ExampleInputs((1, [2, {"k": 3}], 4), {"mask": 5})
    places = examples.places(_signature("x, state, *rest, mask"))
    assert places == [
        ("x", "x"),
        ("state", "state[0]"),
        ("state", "state[1]['k']"),
        ("rest", "rest[0]"),
        ("mask", "mask"),
    ]


def test_a_range_that_starts_at_zero_is_refused_by_the_name_of_its_input() -> None:
    empty = Input(min_shape=(0, 3), opt_shape=(1, 3), max_shape=(4, 3), name="tokens")
    with pytest.raises(InputError, match=r"'tokens'.* starts at 0"):
        ExampleInputs.read([empty])


def test_named_dimensions_are_one_dimension() -> None:
    x = Input(min_shape=(1, 8), opt_shape=(2, 16), max_shape=(4, 32), dimensions={0: "batch", 1: "8*length"})
    y = Input(min_shape=(1, 1), opt_shape=(2, 2), max_shape=(4, 4), dimensions={0: "batch", 1: "length"})
    shapes = ExampleInputs((x, y), {}).dynamic_shapes(_signature("x, y"))
    assert shapes is not None
    assert shapes["x"][0] is shapes["y"][0]
    assert shapes["x"][1].root is shapes["y"][1]
    assert (shapes["y"][1].min, shapes["y"][1].max) == (1, 4)


def test_names_that_mean_something_to_sympy_stay_names_of_their_own() -> None:
    x, y = (Input(min_shape=(1,), opt_shape=(2,), max_shape=(4,), dimensions={0: name}) for name in ("N", "N_"))
    shapes = ExampleInputs((x, y), {}).dynamic_shapes(_signature("x, y"))
    assert shapes is not None
    assert len({shapes["x"][0].__name__, shapes["y"][0].__name__, "N"}) == 3


def test_named_dimensions_with_different_ranges_are_refused() -> None:
    x = Input(min_shape=(1,), opt_shape=(2,), max_shape=(4,), dimensions={0: "batch"})
    y = Input(min_shape=(1,), opt_shape=(2,), max_shape=(8,), dimensions={0: "batch"})
    with pytest.raises(InputError, match="the dimension 'batch'"):
        ExampleInputs((x, y), {}).dynamic_shapes(_signature("x, y"))


@pytest.mark.parametrize("name", ["class", "a-b", "a.b", "1a"])
@pytest.mark.parametrize("enter", [trt_frontends.compile, trt_frontends.explain, trt_frontends.trace])
def test_inputs_have_names_that_parameters_may_have(name: str, enter: Any) -> None:
    class Keywords(nn.Module):
        def forward(self, x: torch.Tensor, **others: torch.Tensor) -> torch.Tensor:
            return x + others[name]

    class Nested(nn.Module):
        def forward(self, x: torch.Tensor, others: dict[str, torch.Tensor]) -> torch.Tensor:
            return x + others[name]

    x = torch.ones(2, 3)
    with pytest.raises(InputError, match=f"an input is called '{re.escape(name)}'"):
        enter(Keywords().eval(), arg_inputs=(x,), kwarg_inputs={name: x})
    compiled = trt_frontends.compile(Nested().eval(), arg_inputs=(x, {name: x}), min_block_size=1)
    torch.testing.assert_close(compiled(x, {name: x}), x + x)


def test_names_of_many_inputs_are_written_out_once() -> None:
    """An ONNX model of 4,000 inputs took a minute, most of it to write out what it takes for each of them."""
    written = []

    class Told(inspect.Signature):
        def __str__(self) -> str:
            written.append(len(self.parameters))
            return super().__str__()

    names = [f"x{at}" for at in range(300)]
    signature = Told(inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in names)
    require_names(ExampleInputs(tuple(torch.ones(1) for _ in names), {}), signature, "Model")
    assert written == [300]
