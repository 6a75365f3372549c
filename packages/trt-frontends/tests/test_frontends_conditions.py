"""What a model asks of sizes beyond their ranges is checked at the door, in compiled and in loaded modules alike."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from function_module import Calls
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.nn import functional

import trt_frontends
from trt_core import Input, InputError
from trt_frontends.compiled_module import CompiledModule
from trt_runtime import load, save

pytestmark = pytest.mark.sampled(4)


class Fours(nn.Module):
    """Rows in groups of four: 3 * rows must be a multiple of 12."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (4 n, 3), float32."""
        return torch.relu(x.view(-1, 4, 3)).sum(1)


class LongOrShort(nn.Module):
    """Computes one thing for many rows, another for few."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, 3), float32."""
        return torch.relu(x) * 2 if x.shape[0] > 5 else torch.relu(x) + 1


class EqualOrNot(nn.Module):
    """Computes one thing for inputs of equal length, another for others."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Both (rows, 3), float32."""
        return torch.relu(x + y) if x.shape[0] == y.shape[0] else torch.relu(torch.cat([x, y]))


class Shifted(nn.Module):
    """Takes one column less of the second input."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x: (2, n + 1), y: (2, n), float32."""
        return torch.relu(x[:, 1:] + y)


class Narrow(nn.Module):
    """Uses the first columns of a table, twice as many as there are rows."""

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """rows: (n, 3), table: (3, m), float32."""
        rows = inputs["rows"]
        return torch.relu(rows @ inputs["table"][:, : rows.shape[0] * 2])


def _rows(low: int, best: int, high: int) -> Input:
    return Input(min_shape=(low, 3), opt_shape=(best, 3), max_shape=(high, 3))


def _both(compiled: nn.Module, path: Path) -> tuple[nn.Module, nn.Module]:
    save(compiled, path)
    return compiled, load(path)


def _refusals(modules: Sequence[nn.Module], args: tuple[Any, ...]) -> set[str]:
    """What each module says when it is called for the first and for the second time."""
    messages = set()
    for module in modules:
        for _ in range(2):
            with pytest.raises(InputError) as caught:
                module(*args)
            messages.add(str(caught.value))
    return messages


def _compile(model: nn.Module, inputs: Sequence[Any], **settings: Any) -> CompiledModule:
    return trt_frontends.compile(model.eval(), arg_inputs=inputs, min_block_size=1, **settings)


@pytest.mark.parametrize("executed", [set(), {"torch.ops.aten.relu.default"}], ids=["engine", "pytorch"])
def test_multiples(executed: set[str], tmp_path: Path) -> None:
    modules = _both(_compile(Fours(), [_rows(4, 8, 20)], torch_executed_ops=executed), tmp_path / "m.trtp")
    for size in range(4, 21):
        x = torch.randn(size, 3)
        if size % 4:
            (message,) = _refusals(modules, (x,))
            assert f"dimension 0 of input x is {size}, and must be a multiple of 4" in message
            assert "what to do:" in message
        else:
            for module in modules:
                torch.testing.assert_close(module(x), Fours()(x))


def test_sizes_for_which_the_code_takes_another_way(tmp_path: Path) -> None:
    modules = _both(_compile(LongOrShort(), [_rows(1, 8, 20)]), tmp_path / "m.trtp")
    for module in modules:
        assert torch.equal(module(torch.ones(6, 3)), torch.full((6, 3), 2.0))
    (message,) = _refusals(modules, (torch.ones(5, 3),))
    assert "dimension 0 of input x is 5, and must be more than 5" in message


def test_sizes_that_must_differ(tmp_path: Path) -> None:
    modules = _both(_compile(EqualOrNot(), [_rows(1, 8, 20), _rows(1, 6, 20)]), tmp_path / "m.trtp")
    for module in modules:
        assert module(torch.ones(3, 3), torch.ones(4, 3)).shape == (7, 3)
    (message,) = _refusals(modules, (torch.ones(4, 3), torch.ones(4, 3)))
    assert "dimension 0 of input x is 4 and dimension 0 of input y is 4" in message
    assert "x.shape[0] != y.shape[0]" in message


def test_relations_of_nested_inputs(tmp_path: Path) -> None:
    table = Input(min_shape=(3, 2), opt_shape=(3, 9), max_shape=(3, 30))
    modules = _both(_compile(Narrow(), [{"rows": _rows(1, 4, 8), "table": table}]), tmp_path / "m.trtp")
    rows = torch.randn(4, 3)
    for module in modules:
        fits = {"rows": rows, "table": torch.randn(3, 11)}
        torch.testing.assert_close(module(fits), Narrow()(fits))
    (message,) = _refusals(modules, ({"rows": rows, "table": torch.randn(3, 7)},))
    assert "2 * inputs['rows'].shape[0] <= inputs['table'].shape[1]" in message


def test_derived_dimensions(tmp_path: Path) -> None:
    columns = Dim("columns", min=1, max=16)
    shapes = {"x": {1: columns + 1}, "y": {1: columns}}
    program = export(Shifted(), (torch.ones(2, 5), torch.ones(2, 4)), dynamic_shapes=shapes)
    modules = _both(trt_frontends.compile(program, min_block_size=1), tmp_path / "m.trtp")
    x, y = torch.randn(2, 8), torch.randn(2, 7)
    for module in modules:
        torch.testing.assert_close(module(x, y), Shifted()(x, y))
    (message,) = _refusals(modules, (x, x))
    assert "dimension 1 of input x is 8, and must be 9" in message
    assert "x.shape[1] == y.shape[1] + 1" in message


@pytest.mark.parametrize("kept", [True, False], ids=["in_process", "from_file"])
def test_a_multiple_without_a_dimension_of_its_own_size(kept: bool, tmp_path: Path) -> None:
    shapes = {"x": {0: 4 * Dim("groups", min=1, max=8)}}
    program = _program(export(Fours(), (torch.ones(8, 3),), dynamic_shapes=shapes), kept)
    modules = _both(trt_frontends.compile(program, min_block_size=1), tmp_path / "m.trtp")
    for module in (*modules, _saved(program, tmp_path)):
        assert module(torch.ones(12, 3)).shape == (3, 3)
    (message,) = _refusals((*modules, _saved(program, tmp_path)), (torch.ones(10, 3),))
    assert "dimension 0 of input x is 10, and must be a multiple of 4" in message


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("kept", [True, False], ids=["in_process", "from_file"])
def test_guards_of_a_program(strict: bool, kept: bool, tmp_path: Path) -> None:
    shapes = {"x": {0: Dim.AUTO}, "y": {0: Dim.AUTO}}
    examples = (torch.ones(8, 3), torch.ones(6, 3))
    program = _program(export(EqualOrNot(), examples, dynamic_shapes=shapes, strict=strict), kept)
    modules = _both(trt_frontends.compile(program, min_block_size=1), tmp_path / "m.trtp")
    modules = (*modules, _saved(program, tmp_path))
    for module in modules:
        assert module(torch.ones(3, 3), torch.ones(4, 3)).shape == (7, 3)
    (message,) = _refusals(modules, (torch.ones(4, 3), torch.ones(4, 3)))
    assert "x.shape[0] != y.shape[0]" in message


def _program(program: ExportedProgram, kept: bool) -> ExportedProgram:
    if kept:
        return program
    file = io.BytesIO()
    torch.export.save(program, file)
    file.seek(0)
    return torch.export.load(file)


def _saved(program: ExportedProgram, folder: Path) -> nn.Module:
    """The program itself, saved and loaded in our format."""
    save(program, folder / "program.trtp")
    return load(folder / "program.trtp")


IN_FLOATS: dict[str, tuple[int, Callable[[torch.Tensor], torch.Tensor]]] = {
    "a quotient": (48, lambda x: torch.relu(x) * 2 if x.shape[0] / x.shape[1] > 1.2 else torch.relu(x)),
    "a distance": (23, lambda x: torch.relu(x) * 2 if abs(x.shape[0] - x.shape[1]) < 2 else torch.relu(x)),
    "a part": (54, lambda x: torch.relu(x)[: int(x.shape[0] * 0.3)]),
    "a root": (36, lambda x: torch.relu(x)[: int((x.shape[0] * x.shape[1]) ** 0.5)]),
    "bits": (45, lambda x: torch.relu(x) * 2 if x.shape[0] & (x.shape[0] - 1) == 0 else torch.relu(x)),
}
"""Least number of sizes that are answered, of 72, and what is asked in numbers that are no sizes."""


class Asking(nn.Module):
    """Runs a function of its input."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


@pytest.mark.parametrize("kept", [True, False], ids=["in_process", "from_file"])
@pytest.mark.parametrize("name", IN_FLOATS)
def test_what_is_asked_in_floats_is_refused_where_it_is_otherwise(name: str, kept: bool) -> None:
    least, function = IN_FLOATS[name]
    sizes = Input(min_shape=(2, 2), opt_shape=(6, 5), max_shape=(9, 10))
    program = _program(trt_frontends.trace(Asking(function), arg_inputs=[sizes]), kept)
    compiled = trt_frontends.compile(program, min_block_size=1)
    answered = 0
    for x in (torch.randn(rows, columns) for rows in range(2, 10) for columns in range(2, 11)):
        try:
            found = compiled(x)
        except InputError:
            continue
        assert torch.equal(found, function(x)), x.shape
        answered += 1
    assert answered >= least


class Cropped(nn.Module):
    """Computes something else where columns are cut off; PyTorch compares the same to see whether rows are dense."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (2, columns), float32."""
        whole = x.shape[1] // 4 * 4
        return x[:, :whole] + 1, x * 2 if x.shape[1] == whole else x * 3


def test_what_pytorch_learns_of_memory_answers_no_question_of_the_model() -> None:
    columns = Input(min_shape=(2, 5), opt_shape=(2, 16), max_shape=(2, 40))
    compiled = trt_frontends.compile(Cropped(), arg_inputs=[columns], min_block_size=1)
    torch.testing.assert_close(compiled(torch.ones(2, 8)), Cropped()(torch.ones(2, 8)))
    with pytest.raises(InputError, match=r"captured for x\.shape\[1\] == 4 \* \(x\.shape\[1\] // 4\)"):
        compiled(torch.ones(2, 9))


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("given", [(), (Input(min_shape=(2, 5), opt_shape=(2, 16), max_shape=(2, 40)),)])
def test_programs_that_were_exported_elsewhere_keep_all_that_pytorch_took_for_granted(
    given: tuple[Input, ...], deferred: bool
) -> None:
    columns = torch.export.Dim.DYNAMIC(min=5, max=40)
    program = torch.export.export(
        Cropped(),
        (torch.ones(2, 16),),
        dynamic_shapes={"x": {1: columns}},
        prefer_deferred_runtime_asserts_over_guards=deferred,
    )
    compiled = trt_frontends.compile(program, arg_inputs=given or None, min_block_size=1)
    torch.testing.assert_close(compiled(torch.ones(2, 8)), Cropped()(torch.ones(2, 8)))
    with pytest.raises(InputError, match=r"captured for x\.shape\[1\] == 4 \* \(x\.shape\[1\] // 4\)"):
        compiled(torch.ones(2, 9))


class Least(nn.Module):
    """Multiplies by a number that stops growing with the rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, 3), float32."""
        return torch.relu(x) * int(min(x.shape[0] * 0.5, 3.0))


def test_the_lesser_of_floats_is_refused_where_it_is_the_other_one() -> None:
    varying = Input(min_shape=(2, 3), opt_shape=(8, 3), max_shape=(16, 3))
    compiled = trt_frontends.compile(Least().eval(), arg_inputs=(varying,), min_block_size=1)
    x = torch.ones(12, 3)
    torch.testing.assert_close(compiled(x), Least()(x))
    with pytest.raises(InputError, match="dimension 0 of input x is 4, and must be more than 6"):
        compiled(x[:4])


def test_sizes_may_be_rounded_as_python_rounds() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)[: round(x.shape[0] * 0.5)]

    compiled = _compile(Asking(function), [_rows(2, 5, 9)])
    for rows in range(2, 10):
        x = torch.randn(rows, 3)
        assert torch.equal(compiled(x), function(x))


def test_traced_programs_ask_what_the_model_asks(tmp_path: Path) -> None:
    program = trt_frontends.trace(Fours(), arg_inputs=[_rows(4, 8, 20)])
    modules = _both(trt_frontends.compile(program, min_block_size=1), tmp_path / "m.trtp")
    for module in (*modules, program.module()):
        assert module(torch.ones(4, 3)).shape == (1, 3)
    (message,) = _refusals(modules, (torch.ones(6, 3),))
    assert "must be a multiple of 4" in message


def test_the_smallest_size_asked_for_is_taken_whatever_tracing_assumed() -> None:
    image = Input(min_shape=(1, 3, 16, 16), opt_shape=(2, 3, 32, 32), max_shape=(4, 3, 64, 64))
    patches = nn.Sequential(nn.Conv2d(3, 2, 16, stride=16), nn.Flatten(2), nn.ReLU()).eval()
    compiled = trt_frontends.compile(patches, arg_inputs=[image], min_block_size=1)
    for shape in [(1, 3, 16, 16), (1, 3, 16, 64), (4, 3, 64, 16), (2, 3, 32, 32)]:
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), patches(x), rtol=1e-4, atol=1e-4)


def _capped(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(max=9) if x.shape[0] == 1 else torch.relu(x) + 1


def _checked(x: torch.Tensor) -> torch.Tensor:
    torch._check(x.shape[0] > 1)
    return x * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x.shape[0] == 1 else x * 3,
        lambda x: x * 2 if x.shape[0] - 1 else x * 3,
        _capped,
        _checked,
        lambda x: x.squeeze(0) * 2,
        lambda x: x.squeeze() * 2,
        lambda x: x[-2:].sum(0),
        lambda x: x.topk(2, 0)[0],
        lambda x: functional.batch_norm(x, None, None, training=True),
    ],
)
def test_a_model_that_takes_another_way_at_one_refuses_it(
    function: Callable[[torch.Tensor], Any], caplog: pytest.LogCaptureFixture
) -> None:
    model = Calls(function)
    compiled = _compile(model, [_rows(1, 4, 6)])
    assert "calls with 1 are refused" in caplog.text
    torch.testing.assert_close(compiled(x := torch.randn(4, 3)), model(x))
    (message,) = _refusals([compiled], (torch.randn(1, 3),))
    assert "dimension 0 of input x is 1" in message


@pytest.mark.parametrize(
    "function",
    [
        lambda x: functional.scaled_dot_product_attention(*[x[None]] * 3, is_causal=bool(x.shape[0] > 1)),
        lambda x: x.expand(x.shape[0], 3) * 2 if x.shape[0] != 1 else x * 2,
        lambda x: nn.functional.multi_head_attention_forward(
            *[x[:, None]] * 3, 3, 1, torch.ones(9, 3), None, None, None, False, 0.0, torch.eye(3), None
        )[0],
        lambda x: x[:, None] + x[None],
        lambda x: x.new_zeros(max(x.shape[0], 2)),
        lambda x: x[1:] * 2,
        lambda x: x[:, None, None].squeeze().expand(x.shape[0], 3) * 2 + x.squeeze(0) + x.squeeze((0, 1)),
    ],
)
def test_a_model_that_computes_the_same_at_one_takes_it(function: Callable[[torch.Tensor], Any]) -> None:
    model = Calls(function)
    compiled = _compile(model, [_rows(1, 4, 6)])
    for rows in (1, 3, 6):
        torch.testing.assert_close(compiled(x := torch.randn(rows, 3)), model(x))


def test_two_sizes_of_one_are_refused_together() -> None:
    model = Calls(lambda x: x * 2 if x.numel() == 1 else x * 3)
    compiled = _compile(model, [Input(min_shape=(1, 1), opt_shape=(4, 4), max_shape=(6, 6))])
    for shape in ((1, 3), (3, 1)):
        assert torch.equal(compiled(torch.ones(shape)), torch.full(shape, 3.0))
    (message,) = _refusals([compiled], (torch.ones(1, 1),))
    assert "dimension 0 of input x is 1 and dimension 1 of input x is 1" in message


def test_a_traced_program_remembers_sizes_of_one(tmp_path: Path) -> None:
    program = trt_frontends.trace(Calls(_capped), arg_inputs=[_rows(1, 4, 6)])
    for kept in (True, False):
        compiled = trt_frontends.compile(_program(program, kept), min_block_size=1)
        assert compiled(torch.ones(2, 3)).shape == (2, 3)
        _refusals([compiled], (torch.ones(1, 3),))


def test_a_given_program_is_not_called_where_its_operators_make_other_results() -> None:
    program = export(Calls(lambda x: x.squeeze(0) * 2), (torch.ones(4, 3),), dynamic_shapes=({0: Dim.AUTO},))
    compiled = trt_frontends.compile(program, arg_inputs=[_rows(1, 4, 6)], min_block_size=1)
    assert compiled(torch.ones(2, 3)).shape == (2, 3)
    _refusals([compiled], (torch.ones(1, 3),))


def test_looking_at_small_sizes_leaves_the_model_as_it_was() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.norm.eval() if x.shape[0] == 1 else self.norm.train()
            return self.norm(x)

    model = Counting()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    trt_frontends.compile(model, arg_inputs=[_rows(1, 4, 6)], min_block_size=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_condition_that_ranges_imply_costs_nothing() -> None:
    assert not _compile(LongOrShort(), [_rows(6, 8, 20)]).meta["signature"].conditions
    compiled = _compile(Fours(), [_rows(4, 8, 20)])
    assert len(compiled.meta["signature"].conditions) == 1


@pytest.fixture(scope="module")
def compiled_fours(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, nn.Module, nn.Module]:
    program = export(Fours(), (torch.ones(8, 3),), dynamic_shapes={"x": {0: Dim.AUTO}})
    path = tmp_path_factory.mktemp("fours") / "m.trtp"
    return *_both(trt_frontends.compile(program, min_block_size=1), path), program.module()


@given(st.integers(2, 64))
@settings(max_examples=15, deadline=None)
def test_what_a_program_refuses_is_refused(compiled_fours: Sequence[nn.Module], rows: int) -> None:
    x = torch.ones(rows, 3)
    *ours, reference = compiled_fours
    try:
        expected = reference(x)
    except (AssertionError, RuntimeError):
        assert len(_refusals(ours, (x,))) == 1
    else:
        for module in ours:
            torch.testing.assert_close(module(x), expected)


@pytest.mark.parametrize("offset", [0, 3])
def test_a_size_that_a_program_derives_from_a_dimension_takes_its_least_value(offset: int) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    rows = 8 * torch.export.Dim("blocks", min=1, max=8) + offset
    program = torch.export.export(model, (torch.randn(16 + offset, 4),), dynamic_shapes=({0: rows},))
    compiled = trt_frontends.compile(program, min_block_size=1)
    for count in (1, 2, 8):
        x = torch.randn(8 * count + offset, 4)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=f"must be|compiled for {8 + offset} to {64 + offset}"):
        compiled(torch.randn(offset or 1, 4))
