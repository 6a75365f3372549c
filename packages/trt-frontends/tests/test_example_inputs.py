"""Inputs as users give them: tensors, ranges, keywords, nests."""

from __future__ import annotations

import pytest
import torch

from trt_core import Device, Input, InputError
from trt_frontends.example_inputs import ExampleInputs, get_dynamic_shapes_args, get_dynamic_shapes_kwargs

BATCH = Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(8, 3))


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
    assert ExampleInputs((torch.ones(2), Input((2, 3))), {}).dynamic_shapes(["x", "y"]) is None


def test_dynamic_axes_are_named_by_parameter_and_axis() -> None:
    shapes = ExampleInputs((torch.ones(2), BATCH), {"mask": BATCH}).dynamic_shapes(["x", "y"])
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
