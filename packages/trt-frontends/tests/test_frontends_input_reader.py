"""Calls that do not fit what a module was compiled for are refused in terms of the model's inputs."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import trt_frontends
from trt_core import Input, InputError
from trt_core.remembered import Remembered
from trt_frontends.compiled_module import CompiledModule
from trt_runtime.program.input_reader import InputReader


class Two(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, *, shift: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + y) + shift


class Nested(nn.Module):
    def forward(self, state: dict[str, torch.Tensor], pair: list[torch.Tensor]) -> torch.Tensor:
        return torch.relu(state["a"] - state["b"]) + pair[0] * pair[1]


@pytest.fixture(scope="module")
def two() -> CompiledModule:
    rows = Input(min_shape=(1, 4), opt_shape=(4, 4), max_shape=(8, 4))
    return trt_frontends.compile(
        Two(), arg_inputs=(rows, rows), kwarg_inputs={"shift": torch.ones(4)}, min_block_size=1
    )


@pytest.fixture(scope="module")
def nested() -> nn.Module:
    x = torch.ones(2, 4)
    return trt_frontends.compile(Nested(), arg_inputs=({"a": x, "b": x}, [x, x]), min_block_size=1)


X, SHIFT = torch.ones(2, 4), torch.ones(4)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((X,), {"shift": SHIFT}, "takes 3 inputs, 2 were given"),
        ((X, X, SHIFT, X), {}, "takes 3 inputs, 4 were given"),
        ((X, X), {"shift": SHIFT, "scale": SHIFT}, "takes no input 'scale'"),
        ((X, X), {"shift": SHIFT, "x": X}, "input 'x' was given twice"),
        ((X.double(), X), {"shift": SHIFT}, "input x has type float64, the model was compiled for float32"),
        ((X, X[0]), {"shift": SHIFT}, "input y has rank 1, the model was compiled for rank 2"),
        ((X, X), {"shift": torch.ones(5)}, "dimension 0 of input shift is 5, the model was compiled for 4"),
        ((torch.ones(9, 4),) * 2, {"shift": SHIFT}, "dimension 0 of input x is 9, the model was compiled for 1 to 8"),
        ((torch.ones(0, 4),) * 2, {"shift": SHIFT}, "dimension 0 of input x is 0, the model was compiled for 1 to 8"),
        ((X, torch.ones(3, 4)), {"shift": SHIFT}, "dimension 0 of input y is 3, and must be 2"),
        ((X, 3), {"shift": SHIFT}, "input y is an int, not a tensor"),
    ],
)
def test_calls_that_do_not_fit(two: nn.Module, args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        two(*args, **kwargs)
    assert caught.value.hint


@given(rows=st.integers(1, 8), style=st.sampled_from(["positional", "keyword", "mixed"]))
def test_every_call_that_fits_is_accepted(two: nn.Module, rows: int, style: str) -> None:
    x, y = torch.randn(rows, 4), torch.randn(rows, 4)
    expected = Two()(x, y, shift=SHIFT)
    if style == "positional":
        found = two(x, y, SHIFT)
    elif style == "keyword":
        found = two(shift=SHIFT, y=y, x=x)
    else:
        found = two(x, shift=SHIFT, y=y)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (({"a": X}, [X, X]), r"input state is a dict of 'a', the model was compiled for a dict of 'a', 'b'"),
        ((X, [X, X]), r"input state is a Tensor, the model was compiled for a dict"),
        (({"a": X, "b": X}, [X]), r"input pair is a list of 1, the model was compiled for a list of 2"),
        (({"a": X, "b": X[:, :2]}, [X, X]), r"dimension 1 of input state\['b'\] is 2"),
        (({"a": X, "b": X}, [X, X.int()]), r"input pair\[1\] has type int32"),
    ],
)
def test_nested_inputs_are_named_by_their_place(nested: nn.Module, args: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        nested(*args)


def test_keys_in_another_order_and_tuples_for_lists_are_accepted(nested: nn.Module) -> None:
    a, b, c = torch.randn(3, 2, 4)
    torch.testing.assert_close(nested({"b": b, "a": a}, (c, a)), Nested()({"a": a, "b": b}, [c, a]))


def test_modules_that_run_in_pytorch_alone_check_as_well(mlp: nn.Module) -> None:
    for settings in ({"dryrun": True}, {"min_block_size": float("inf")}):
        compiled = trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), **settings)
        with pytest.raises(InputError, match="dimension 0 of input input is 3"):
            compiled(torch.ones(3, 4))


def test_the_check_is_made_once_for_each_combination_of_shapes(two: CompiledModule) -> None:
    reader = copy.copy(two._CompiledModule__reader)  # type: ignore[attr-defined]  # private to the class
    reader._accepted = Remembered()
    checks: list[int] = []

    def check(flat: Any) -> None:
        checks.append(1)
        InputReader.check(reader, flat)

    reader.check = check  # type: ignore[method-assign]
    for rows in (1, 2, 1, 2, 2):
        x = torch.ones(rows, 4)
        flat = reader.read((x, x), {"shift": SHIFT})
        assert [id(value) for value in flat] == [id(x), id(x), id(SHIFT)]
    assert len(checks) == 2


def test_an_engine_that_is_the_whole_model_checks_for_it(
    mlp: nn.Module, batch: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = trt_frontends.compile(mlp, arg_inputs=(batch,))
    compiled(torch.ones(2, 4))
    monkeypatch.setattr(InputReader, "read", lambda *_: pytest.fail("it is asked for words only"))
    torch.testing.assert_close(compiled(torch.ones(3, 4)), mlp(torch.ones(3, 4)))


def test_copies_work_and_export_is_not_disturbed(mlp: nn.Module, batch: Input) -> None:
    compiled = trt_frontends.compile(mlp, arg_inputs=(batch,))
    x = torch.randn(3, 4)
    torch.testing.assert_close(copy.deepcopy(compiled)(x), mlp(x))
    program = torch.export.export(compiled, (x,), dynamic_shapes=compiled.meta["dynamic_shapes"])
    torch.testing.assert_close(program.module()(x[:2]), mlp(x[:2]))


class Three(nn.Module):
    """Weighs its inputs differently, so that swapped ones show."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        """All (2, 3), float32."""
        return x + 10 * y + 100 * z


ONE = torch.ones(2, 3)


@pytest.mark.parametrize("order", list(itertools.permutations("xyz")))
def test_the_order_of_keyword_inputs_means_nothing(order: tuple[str, ...]) -> None:
    compiled = trt_frontends.compile(Three(), kwarg_inputs=dict.fromkeys(order, ONE), min_block_size=1)
    assert compiled(ONE, 2 * ONE, 3 * ONE)[0, 0] == 321
    assert compiled(z=3 * ONE, x=ONE, y=2 * ONE)[0, 0] == 321
    assert compiled(ONE, z=3 * ONE, y=2 * ONE)[0, 0] == 321


class Optional(nn.Module):
    """Leaves out the middle one."""

    def forward(self, x: torch.Tensor, y: Any = None, z: Any = None) -> torch.Tensor:
        """All (2, 3), float32."""
        return x + (0 if y is None else 10 * y) + (0 if z is None else 100 * z)


def test_a_keyword_input_behind_one_that_was_left_out_is_taken_by_name_only() -> None:
    compiled = trt_frontends.compile(Optional(), kwarg_inputs={"z": ONE, "x": ONE}, min_block_size=1)
    assert compiled(ONE, z=2 * ONE)[0, 0] == 201
    with pytest.raises(InputError, match="input 'z' is taken by name"):
        compiled(ONE, 2 * ONE)


def test_keyword_inputs_of_a_program_are_taken_by_name_only() -> None:
    program = torch.export.export(Three(), (), {name: torch.ones(2, 3) for name in "zxy"})
    compiled = trt_frontends.compile(program, min_block_size=1)
    assert compiled(x=ONE, y=2 * ONE, z=3 * ONE)[0, 0] == 321
    with pytest.raises(InputError, match="is taken by name"):
        compiled(ONE, 2 * ONE, 3 * ONE)


def test_sizes_that_the_program_was_not_exported_for_are_refused() -> None:
    shapes = {"input": {0: torch.export.Dim("rows", min=2, max=8)}}
    program = torch.export.export(nn.Linear(3, 3), (torch.ones(4, 3),), dynamic_shapes=shapes)
    compiled = trt_frontends.compile(program, min_block_size=1)
    assert compiled(torch.ones(2, 3)).shape == (2, 3)
    with pytest.raises(InputError, match="dimension 0 of input input is 1, the model was compiled for 2 to 8"):
        compiled(torch.ones(1, 3))
    asked = trt_frontends.compile(
        program, arg_inputs=[Input(min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3))], min_block_size=1
    )
    assert asked(torch.ones(1, 3)).shape == (1, 3)


@pytest.mark.parametrize(("size", "fits"), [(8, True), (24, True), (20, False), (9, False), (72, False)])
def test_sizes_that_are_no_multiple_are_refused(size: int, fits: bool) -> None:
    eights = 8 * torch.export.Dim("eights", min=1, max=8)
    program = torch.export.export(nn.ReLU(), (torch.ones(16, 3),), dynamic_shapes={"input": {0: eights}})
    compiled = trt_frontends.compile(program, min_block_size=1)
    if fits and size > 8:  # a single eight is below the least that export assumes while it traces
        assert compiled(torch.ones(size, 3)).shape == (size, 3)
    elif not fits:
        with pytest.raises(InputError, match="dimension 0 of input input"):
            compiled(torch.ones(size, 3))


class AddsTo(nn.Module):
    """Writes to its first input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Both (2, 3), float32."""
        x.add_(1)
        return x + y


def test_inputs_that_share_memory_with_one_that_is_written_are_refused() -> None:
    compiled = trt_frontends.compile(AddsTo(), arg_inputs=(ONE.clone(), ONE.clone()), min_block_size=1)
    x = torch.zeros(2, 3)
    assert compiled(x, ONE)[0, 0] == 2 and x[0, 0] == 1
    for _ in range(2):
        with pytest.raises(InputError, match="input y shares memory with input x"):
            compiled(x, x)
    memory = torch.zeros(3, 2, 3)
    assert compiled(memory[1], memory[2])[0, 0] == 1 and memory[:, 0, 0].tolist() == [0, 1, 0]
    with pytest.raises(InputError, match="input y shares memory with input x"):
        compiled(memory[1], memory.view(-1)[8:14].view(2, 3))


def test_inputs_that_are_written_have_a_place_for_every_element() -> None:
    compiled = trt_frontends.compile(AddsTo(), arg_inputs=(ONE.clone(), ONE.clone()), min_block_size=1)
    apart = (torch.zeros(3, 2).t(), torch.zeros(2, 5)[:, ::2], torch.zeros(8).as_strided((2, 3), (3, 2)))
    for x in apart:
        assert bool((compiled(x, ONE.expand(2, 3)) == 2).all()) and bool((x == 1).all())
    for x in (
        torch.zeros(1, 3).expand(2, 3),
        torch.zeros(2, 1).expand(2, 3),
        torch.zeros(4).as_strided((2, 3), (1, 1)),
    ):
        with pytest.raises(InputError, match="several elements of input x lie in one place") as caught:
            compiled(x, ONE)
        assert str(x.stride()) in str(caught.value) and not x.any()


class _Renamed(torch.Tensor):
    """A subclass that computes as any tensor does."""


def test_tensors_that_compute_in_their_own_way_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    x = torch.randn(2, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x.as_subclass(_Renamed)).as_subclass(torch.Tensor), model(x))
        masked = torch.masked.masked_tensor(x, x > 0)
        nested = torch.nested.nested_tensor([x[0], x[1]], layout=torch.jagged)
        for value, name in ((masked, "MaskedTensor"), (nested, "NestedTensor")):
            with pytest.raises(InputError, match=f"is a {name}, which computes in its own way"):
                compiled(value)
