"""Caches that a step writes to: engines update them where they lie, and nothing of them is copied."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_runtime
from trt_core import Input, InputError
from trt_frontends import compile, explain, refit_module_weights, save
from trt_frontends.onnx_models import export_onnx
from trt_runtime import TRTModule
from trt_runtime.graphed_calls import obstacles
from trt_runtime.refit import refit_module

ROWS = (2, 3, 2, 4)
CACHE = (2, 3, 8, 4)
Write = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]


def by_index_copy(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    cache.index_copy_(2, start + torch.arange(rows.shape[2]), rows)


def by_indices(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    cache[:, :, start + torch.arange(rows.shape[2])] = rows


def by_slice(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    cache[:, :, 3 : 3 + rows.shape[2]] = rows * start


def by_two_writes(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    by_index_copy(cache, rows, start)
    cache[:, :, :2] = rows


def backwards(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    cache.index_copy_(2, start - torch.arange(rows.shape[2]), rows)


def by_given_places(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    cache.index_copy_(2, torch.cat([start, start + 3]), rows)


def along_another_axis(cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> None:
    cache.transpose(2, 3).index_copy_(3, start + torch.arange(2), rows.transpose(2, 3))


IN_PLACE = [by_index_copy, by_indices, by_slice]
AS_A_WHOLE = [by_two_writes, backwards, by_given_places, along_another_axis]


class Step(nn.Module):
    """Writes rows to a cache and sums what it holds.

    Args:
        write: How.
        reads_before: Read the cache before it is written, too.
    """

    def __init__(self, write: Write, *, reads_before: bool = False) -> None:
        super().__init__()
        self.register_buffer("cache", torch.randn(CACHE))
        self._write = write
        self._reads_before = reads_before

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        before = self.cache.mean() if self._reads_before else torch.zeros(())
        self._write(self.cache, rows.sin(), start)
        return self.cache.sum(2) + before


def inputs(start: int = 1) -> list[torch.Tensor]:
    return [torch.randn(ROWS), torch.tensor([start])]


def engine_of(compiled: nn.Module) -> TRTModule:
    (engine,) = (module for module in compiled.modules() if isinstance(module, TRTModule))
    return engine


def assert_same_steps(compiled: Any, eager: Any, cache: torch.Tensor) -> None:
    """Holds a few steps to eager ones, results and what the cache holds."""
    address = cache.data_ptr()
    for start in (1, 3, 6, 0):
        given = inputs(start)
        torch.testing.assert_close(compiled(*given), eager(*given))
        torch.testing.assert_close(cache, eager.cache)
    assert cache.data_ptr() == address


@pytest.mark.parametrize("write", IN_PLACE)
def test_rows_are_written_where_the_cache_lies(write: Write, tmp_path: Path) -> None:
    model = Step(write).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs())
    report = compiled.meta["partition_report"]
    assert (report.coverage, len(report.engines)) == (1.0, 1)
    assert [index for index, _ in engine_of(compiled).header.updates] == [engine_of(compiled).written_inputs[0]]
    assert compiled.cache is model.cache
    assert_same_steps(compiled, eager, model.cache)
    version = model.cache._version
    compiled(*inputs())
    assert model.cache._version > version
    with torch.inference_mode():
        eager.cache.copy_(model.cache)
        given = inputs(2)
        torch.testing.assert_close(compiled(*given), eager(*given))
    model.cache.zero_()  # as whoever begins anew does
    eager.cache.zero_()
    save(compiled, tmp_path / "step.trtp")
    assert_same_steps(compiled, eager, model.cache)
    loaded = trt_runtime.load(tmp_path / "step.trtp")
    eager.cache.zero_()
    assert_same_steps(loaded, eager, dict(loaded.named_buffers())["cache"])


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (backwards, r"it writes to `cache`, all of which `index_copy"),
        (along_another_axis, "it writes to `cache`, and `transpose` reads what that was before"),
    ],
)
def test_reports_say_why_a_cache_is_not_updated_in_place(write: Write, said: str) -> None:
    report = explain(Step(write).eval(), arg_inputs=inputs(), min_block_size=1).to_text()
    assert f"TRT-F051: {said}" in report


class Laid(nn.Module):
    """Writes rows to a cache that lies otherwise than (batch, heads, length, width).

    Args:
        shape: Of the cache.
        axis: Its length.
        how: "indices", "index_copy" or "slice".
    """

    def __init__(self, shape: tuple[int, ...], axis: int, how: str) -> None:
        super().__init__()
        self.register_buffer("cache", torch.randn(shape))
        self._axis = axis
        self._how = how

    def forward(self, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows, before = rows.sin(), (slice(None),) * self._axis
        if self._how == "indices":
            self.cache[(*before, places)] = rows
        elif self._how == "index_copy":
            self.cache.index_copy_(self._axis - self.cache.dim(), places, rows)
        else:
            self.cache[(*before, slice(2, 3))] = rows * places
        return self.cache.cos().sum(self._axis)


@pytest.mark.parametrize("how", ["indices", "index_copy", "slice"])
@pytest.mark.parametrize(
    ("shape", "axis"),
    [
        pytest.param((1, 3, 8, 4), 2, id="one row of a batch"),  # whose extent PyTorch leaves out of what is written
        pytest.param((2, 8, 3, 4), 1, id="before the heads"),
        pytest.param((8, 2, 3, 4), 0, id="first"),
        pytest.param((2, 8, 12), 1, id="without heads"),
        pytest.param((2, 3, 4, 8), 3, id="last"),
        pytest.param((8,), 0, id="alone"),
    ],
)
def test_caches_of_any_layout_are_updated_where_they_lie(
    shape: tuple[int, ...], axis: int, how: str, tmp_path: Path
) -> None:
    rows = torch.randn(*shape[:axis], 1, *shape[axis + 1 :])
    model = Laid(shape, axis, how).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=[rows, torch.tensor([3])], min_block_size=1, optimization_level=0)
    report = compiled.meta["partition_report"]
    assert (report.coverage, len(report.engines)) == (1.0, 1)
    save(compiled, tmp_path / "step.trtp")
    loaded = trt_runtime.load(tmp_path / "step.trtp")
    for step, cache in ((compiled, model.cache), (loaded, dict(loaded.named_buffers())["cache"])):
        assert len(engine_of(step).header.updates) == 1
        mine = copy.deepcopy(eager)
        address = cache.data_ptr()
        for place in (0, 7, 3):
            given = [torch.randn_like(rows), torch.tensor([place])]
            torch.testing.assert_close(step(*given), mine(*given))
            torch.testing.assert_close(cache, mine.cache)
        assert cache.data_ptr() == address
        if how != "slice":
            with pytest.raises(InputError, match="a cache of 8 places, and a call writes to 8"):
                step(rows, torch.tensor([8]))
            torch.testing.assert_close(cache, mine.cache)


def in_each_row(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[(torch.arange(cache.shape[0]), *[slice(None)] * (axis - 1), places - 1)] = rows


def in_each_row_and_head(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    batch, heads = map(torch.arange, cache.shape[:2])
    cache.index_put_((batch[:, None], heads, places.view(-1, 1)), rows)


def beside_each_other(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[torch.arange(cache.shape[0]).view(-1, 1), places[:, None]] = rows.unsqueeze(1)


def by_scattering(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    rows = rows.unsqueeze(axis)
    cache.scatter_(axis, places.view(-1, *[1] * (cache.dim() - 1)).expand_as(rows), rows)


def by_repeated_places(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    rows = rows.unsqueeze(axis)
    index = places[:, None, None, None].repeat(1, *rows.shape[1:]).contiguous()
    cache.copy_(cache.scatter(axis - 4, index, rows))


class Ragged(nn.Module):
    """Writes one row in each row of a batch, at a place of its own, to a cache that it holds or is given.

    Args:
        write: How.
        axis: The cache's length.
        cache: Its extents; None where it is given.
    """

    cache: torch.Tensor

    def __init__(self, write: Callable[..., None], axis: int, cache: tuple[int, ...] | None) -> None:
        super().__init__()
        if cache is not None:
            self.register_buffer("cache", torch.randn(cache))
        self._write = write
        self._axis = axis

    def forward(self, rows: torch.Tensor, places: torch.Tensor, cache: torch.Tensor | None = None) -> torch.Tensor:
        cache = self.cache if cache is None else cache
        self._write(cache, rows.sin(), places, self._axis)
        return cache.cos().sum(self._axis)


RAGGED = [
    pytest.param(in_each_row, (4, 3, 8, 2), 2, id="in each row"),
    pytest.param(in_each_row, (1, 3, 8, 2), 2, id="in the only row"),
    pytest.param(in_each_row, (3, 8, 3, 2), 1, id="before the heads"),
    pytest.param(in_each_row, (2, 8), 1, id="of numbers"),
    pytest.param(in_each_row_and_head, (3, 3, 8, 2), 2, id="in each row and head"),
    pytest.param(beside_each_other, (2, 8, 3, 2), 1, id="beside each other"),
    pytest.param(by_scattering, (3, 2, 8, 2), 2, id="by scattering"),
    pytest.param(by_scattering, (2, 8, 5), 1, id="by scattering without heads"),
    pytest.param(by_repeated_places, (2, 2, 8, 2), 2, id="by repeated places"),
]


def ragged_places(batch: int) -> list[list[int]]:
    """Places of some calls: inside, the last two of them outside in their last row alone, behind and before."""
    return [[(3 * row + first) % 7 + 1 for row in range(batch - 1)] + [last] for first, last in enumerate(ENDS)]


ENDS = (2, 8 - 1, -3, 9, -9)


@pytest.mark.parametrize(("write", "shape", "axis"), RAGGED)
def test_each_row_of_a_batch_has_a_place_of_its_own(
    write: Callable[..., None], shape: tuple[int, ...], axis: int, tmp_path: Path
) -> None:
    rows = torch.randn([*shape[:axis], *shape[axis + 1 :]])
    model = Ragged(write, axis, shape).eval()
    eager, begun = copy.deepcopy(model), model.cache.clone()
    example = [rows, torch.ones(shape[0], dtype=torch.int64)]
    compiled = compile(model, arg_inputs=example, min_block_size=1, optimization_level=0)
    assert "TRT-F051" not in compiled.meta["partition_report"].to_text()
    assert len(engine_of(compiled).header.updates) == 1
    save(compiled, tmp_path / "step.trtp")
    torch._dynamo.reset()
    options = {"min_block_size": 1, "optimization_level": 0}
    held = copy.deepcopy(eager)
    loaded = trt_runtime.load(tmp_path / "step.trtp")
    steps = [
        (compiled, model.cache),
        (loaded, dict(loaded.named_buffers())["cache"]),
        (torch.compile(held, backend="torch_tensorrt", options=options), held.cache),
    ]
    for step, cache in steps:
        eager.cache.copy_(begun)
        address = cache.data_ptr()
        for places in map(torch.tensor, ragged_places(shape[0])):
            rows, before = torch.randn_like(rows), cache.clone()
            try:
                expected = eager(rows, places)
            except (IndexError, RuntimeError) as error:  # eager calls may have written some rows by then
                eager.cache.copy_(before)
                kind = InputError if step is not steps[2][0] else type(error)
                with pytest.raises(kind, match="a cache of 8 places" if kind is InputError else re.escape(str(error))):
                    step(rows, places)
            else:
                torch.testing.assert_close(step(rows, places), expected)
            torch.testing.assert_close(cache, eager.cache)
        assert cache.data_ptr() == address


def sized(*rest: int, dtype: torch.dtype = torch.float32) -> Input:
    """An input of a batch of 1 to 4."""
    extents = {f"{name}_shape": (size, *rest) for name, size in (("min", 1), ("opt", 2), ("max", 4))}
    return Input(**extents, dtype=dtype, dimensions={0: "batch"})  # type: ignore[arg-type]


def from_the_third(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[:, :, 2:3] = (rows * places[:, None, None]).unsqueeze(2)


def in_the_third(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[:, :, 2] = rows * places[:, None, None]


@pytest.mark.parametrize("write", [in_each_row, by_scattering, from_the_third, in_the_third])
def test_places_of_batches_of_any_size(write: Callable[..., None]) -> None:
    model = Ragged(write, 2, None).eval()
    example = [sized(3, 4), sized(dtype=torch.int64), sized(3, 8, 4)]
    compiled = compile(model, arg_inputs=example, min_block_size=1, optimization_level=0)
    assert compiled.meta["partition_report"].coverage == 1.0
    assert len(engine_of(compiled).header.updates) == 1
    for batch in (1, 4, 3):
        rows, places = torch.randn(batch, 3, 4), torch.arange(batch) + 2
        ours = torch.randn(batch, 3, 8, 4)
        theirs = ours.clone()
        torch.testing.assert_close(compiled(rows, places, ours), model(rows, places, theirs))
        torch.testing.assert_close(ours, theirs)
        if write in (from_the_third, in_the_third):
            continue
        with pytest.raises(InputError, match="a cache of 8 places, and a call writes to"):
            compiled(rows, places + 8 - batch, ours)
        torch.testing.assert_close(ours, theirs)


class OneAfterAnother(nn.Module):
    """Writes to two caches, with an operator between them that runs in PyTorch."""

    def forward(
        self, rows: torch.Tensor, places: torch.Tensor, first: torch.Tensor, second: torch.Tensor
    ) -> torch.Tensor:
        counts = torch.arange(rows.shape[0])
        first[counts, :, places] = rows.sin()
        second[counts, :, places] = torch.erfinv(first.sum(2).tanh() / 2)
        return second.cos()


def test_counts_that_one_engine_makes_are_known_in_the_next() -> None:
    model = OneAfterAnother().eval()
    example = [sized(3, 4), sized(dtype=torch.int64), sized(3, 8, 4), sized(3, 8, 4)]
    options = {"min_block_size": 1, "optimization_level": 0, "torch_executed_ops": {"aten.erfinv"}}
    compiled = compile(model, arg_inputs=example, **options)  # type: ignore[arg-type]
    engines = [module for module in compiled.modules() if isinstance(module, TRTModule)]
    assert [len(engine.header.updates) for engine in engines] == [1, 1]
    for batch in (1, 3):
        rows, places = torch.randn(batch, 3, 4), torch.arange(batch) + 2
        ours = [torch.randn(batch, 3, 8, 4) for _ in range(2)]
        theirs = [cache.clone() for cache in ours]
        torch.testing.assert_close(compiled(rows, places, *ours), model(rows, places, *theirs))
        torch.testing.assert_close(ours, theirs)


def test_a_place_outside_is_named_with_its_row() -> None:
    model = Ragged(by_scattering, 1, (3, 8, 2)).eval()
    compiled = compile(model, arg_inputs=[torch.ones(3, 2), torch.tensor([0, 1, 2])], min_block_size=1)
    with pytest.raises(InputError, match="a call writes to -1 in row 1 of the batch"):
        compiled(torch.ones(3, 2), torch.tensor([0, -1, 9]))


def in_other_rows(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[torch.tensor([1, 0]), :, places] = rows


def in_some_rows(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[torch.arange(1), :, places[:1]] = rows[:1]


def of_each_head(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache[torch.arange(2)[:, None], torch.arange(2), places] = rows


def at_computed_places(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    in_each_row(cache, rows, places * 2, axis)


def in_part_of_the_heads(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    by_scattering(cache, rows[:, :1], places, axis)


def at_places_of_their_own(cache: torch.Tensor, rows: torch.Tensor, places: torch.Tensor, axis: int) -> None:
    cache.scatter_(axis, places.view(1, -1, 1, 1).expand(2, 2, 1, 4), rows.unsqueeze(axis))


@pytest.mark.parametrize(
    "write",
    [in_other_rows, in_some_rows, of_each_head, in_part_of_the_heads, at_places_of_their_own, at_computed_places],
)
def test_other_places_for_each_row_are_those_of_eager_calls(write: Callable[..., None]) -> None:
    model = Ragged(write, 2, (2, 2, 8, 4)).eval()
    eager = copy.deepcopy(model)
    given = [torch.randn(2, 2, 4), torch.tensor([3, 1])]
    compiled = compile(model, arg_inputs=given, min_block_size=1, optimization_level=0)
    why = "at places that it computes" if write is at_computed_places else "all of which"
    assert f"TRT-F051: it writes to `cache`, {why}" in compiled.meta["partition_report"].to_text()
    torch.testing.assert_close(compiled(*given), eager(*given))
    torch.testing.assert_close(model.cache, eager.cache)


class Continued(nn.Module):
    """Counts what it has written in each row of a batch by itself."""

    cache: torch.Tensor
    lengths: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(2, 8, 3))
        self.register_buffer("rows", torch.arange(2))
        self.register_buffer("lengths", torch.tensor([6, 0]))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.cache[self.rows, self.lengths] = rows.sin()
        self.lengths += 1
        return self.cache.sum(1)


def test_places_that_a_state_holds_are_held_to_the_cache() -> None:
    model = Continued().eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=[torch.randn(2, 3)], min_block_size=1, optimization_level=0)
    assert len(engine_of(compiled).header.updates) == 1
    for _ in range(2):
        rows = torch.randn(2, 3)
        torch.testing.assert_close(compiled(rows), eager(rows))
    torch.testing.assert_close((model.cache, model.lengths), (eager.cache, eager.lengths))
    with pytest.raises(InputError, match="a cache of 8 places, and a call writes to 8 in row 0"):
        compiled(rows)
    torch.testing.assert_close((model.cache, model.lengths), (eager.cache, eager.lengths))


def by_selection(cache: torch.Tensor, rows: torch.Tensor, axis: int) -> None:
    cache.select(axis, 5).copy_(rows)


def by_number(cache: torch.Tensor, rows: torch.Tensor, axis: int) -> None:
    cache[(*[slice(None)] * axis, -2)] = rows


def by_tensor_of_a_number(cache: torch.Tensor, rows: torch.Tensor, axis: int) -> None:
    torch.ops.aten.index_put_(cache, [*[None] * axis, torch.tensor(4)], rows)


class OneRow(nn.Module):
    """Writes one row at a place that is known."""

    cache: torch.Tensor

    def __init__(self, write: Callable[..., None], shape: tuple[int, ...], axis: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.randn(shape))
        self._write = write
        self._axis = axis

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self._write(self.cache, rows.sin(), self._axis)
        return self.cache.cos().sum(self._axis)


@pytest.mark.parametrize("write", [by_selection, by_number, by_tensor_of_a_number])
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 8, 4), 2), ((2, 8, 3), 1), ((8,), 0)])
def test_one_row_is_written_where_it_is_known_to_go(
    write: Callable[..., None], shape: tuple[int, ...], axis: int
) -> None:
    model = OneRow(write, shape, axis).eval()
    eager = copy.deepcopy(model)
    rows = torch.randn([*shape[:axis], *shape[axis + 1 :]])
    compiled = compile(model, arg_inputs=[rows], min_block_size=1, optimization_level=0)
    assert len(engine_of(compiled).header.updates) == 1
    torch.testing.assert_close(compiled(rows), eager(rows))
    torch.testing.assert_close(model.cache, eager.cache)


def by_selection_at_a_tensor(cache: torch.Tensor, rows: torch.Tensor, place: torch.Tensor, axis: int) -> None:
    cache.select(axis, place[0]).copy_(rows)


def by_selection_at_a_number(cache: torch.Tensor, rows: torch.Tensor, place: torch.Tensor, axis: int) -> None:
    cache.select(axis, place.item()).copy_(rows)  # type: ignore[arg-type]  # which capturing follows


def by_index_of_one_number(cache: torch.Tensor, rows: torch.Tensor, place: torch.Tensor, axis: int) -> None:
    cache[(*[slice(None)] * axis, place.squeeze())] = rows


captures_indices = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="PyTorch 2.11 captures no index that is a tensor of one number"
)


@pytest.mark.parametrize(
    "write",
    [
        *(by_selection_at_a_tensor, by_selection_at_a_number),
        pytest.param(by_index_of_one_number, marks=captures_indices),
    ],
)
@pytest.mark.parametrize(("shape", "axis"), [((2, 3, 8, 4), 2), ((2, 8, 3), 1)])
def test_one_row_is_written_where_a_tensor_of_one_number_says(
    write: Callable[..., None], shape: tuple[int, ...], axis: int, tmp_path: Path
) -> None:
    model = Ragged(write, axis, shape).eval()
    eager = copy.deepcopy(model)
    rows = torch.randn([*shape[:axis], *shape[axis + 1 :]])
    compiled = compile(model, arg_inputs=[rows, torch.tensor([1])], min_block_size=1, optimization_level=0)
    report = compiled.meta["partition_report"]
    assert (report.coverage, len(engine_of(compiled).header.updates)) == (1.0, 1)
    save(compiled, tmp_path / "step.trtp")
    loaded = trt_runtime.load(tmp_path / "step.trtp")
    for step, cache in ((compiled, model.cache), (loaded, dict(loaded.named_buffers())["cache"])):
        mine = copy.deepcopy(eager)
        for place in (0, -8, 7, -1):
            given = [torch.randn_like(rows), torch.tensor([place])]
            torch.testing.assert_close(step(*given), mine(*given))
            torch.testing.assert_close(cache, mine.cache)
        for place in (8, -9):
            with pytest.raises(InputError, match=f"a cache of 8 places, and a call writes to {place}"):
                step(rows, torch.tensor([place]))
        torch.testing.assert_close(cache, mine.cache)


class FromStart(nn.Module):
    """Writes as many rows as it is given, from a place on."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 8, 3, 4))

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        self.cache[:, start + torch.arange(rows.shape[1])] = rows.sin()
        return self.cache.cos()


def test_any_number_of_rows_goes_to_caches_of_any_layout() -> None:
    rows = Input(min_shape=(1, 1, 3, 4), opt_shape=(1, 2, 3, 4), max_shape=(1, 5, 3, 4))
    model = FromStart().eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=[rows, torch.tensor([0])], min_block_size=1, optimization_level=0)
    assert engine_of(compiled).header.updates
    for count, start in ((1, 7), (5, 0), (3, 5)):
        given = [torch.randn(1, count, 3, 4), torch.tensor([start])]
        torch.testing.assert_close(compiled(*given), eager(*given))
    with pytest.raises(InputError, match="a cache of 8 places, and a call writes to 4 to 8"):
        compiled(torch.randn(1, 5, 3, 4), torch.tensor([4]))


@pytest.mark.parametrize("model", [FromStart(), Step(by_index_copy)])
def test_models_in_the_format_of_onnx_write_to_no_caches(model: nn.Module) -> None:
    rows = torch.zeros(1, 1, 3, 4) if isinstance(model, FromStart) else torch.zeros(ROWS)
    with pytest.raises(InputError, match="writes to its caches"):
        export_onnx(model.eval(), arg_inputs=[rows, torch.tensor([0])])


class Counted(nn.Module):
    """Writes to a cache, and beside it where that ended, twice, and what it wrote last."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(CACHE))
        for name in ("end", "same"):
            self.register_buffer(name, torch.zeros((), dtype=torch.int64))
        self.register_buffer("last", torch.zeros(1, 3, 4))

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        by_index_copy(self.cache, rows.sin(), start)
        end = start[0] + rows.shape[2]
        self.end.copy_(end)
        self.same.copy_(end)
        self.last.copy_(rows[:1, :, -1].cos())
        return self.cache.sum(2), end


@pytest.mark.parametrize("level", [0, None])
def test_states_that_are_replaced_are_written_by_engines(level: int | None, tmp_path: Path) -> None:
    model = Counted().eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs(), min_block_size=1, optimization_level=level)
    assert (compiled.meta["partition_report"].coverage, len(engine_of(compiled).header.updates)) == (1.0, 4)
    save(compiled, tmp_path / "step.trtp")
    for step in (compiled, trt_runtime.load(tmp_path / "step.trtp")):
        mine, held = copy.deepcopy(eager), dict(step.named_buffers())
        for start in (1, 3, 6, 0):
            given = inputs(start)
            torch.testing.assert_close(step(*given), mine(*given))
            for name, state in mine.named_buffers():
                torch.testing.assert_close(held[name], state)
    assert (int(model.end), model.end.shape) == (2, ())


class Exchanged(nn.Module):
    """Reads a state and replaces it, and replaces what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("before", torch.zeros(3))

    def forward(self, x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        made = x + self.before
        self.before.copy_(x.sin())
        out.copy_(x.cos())
        return made * 2


def test_states_that_are_read_too_and_arguments_are_written_after_what_reads_them() -> None:
    model = Exchanged().eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=[torch.randn(3), torch.zeros(3)], min_block_size=1, optimization_level=0)
    assert not engine_of(compiled).header.updates
    for _ in range(3):
        x, ours, theirs = torch.randn(3), torch.zeros(3), torch.zeros(3)
        torch.testing.assert_close(compiled(x, ours), eager(x, theirs))
        torch.testing.assert_close((ours, model.before), (theirs, eager.before))


def put_rows(table: torch.Tensor, place: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    table[place] = rows.sin()
    return table.cos()


def copy_rows(table: torch.Tensor, place: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    table.index_copy_(0, place, rows.sin())
    return table.cos()


@pytest.mark.parametrize("write", [put_rows, copy_rows])
def test_places_outside_are_pytorch_s_error_under_torch_compile(write: Callable[..., torch.Tensor]) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(write, backend="torch_tensorrt", options={"min_block_size": 1, "optimization_level": 0})
    for place in (2, 4, -9, -1):
        found = []
        for function in (write, compiled):
            table = torch.zeros(4, 3)
            try:
                found.append((function(table, torch.tensor([place]), torch.ones(1, 3)).tolist(), table.tolist()))
            except IndexError as error:
                found.append((str(error), table.tolist()))
        assert found[0] == found[1]


class Elsewhere(nn.Module):
    """Writes to a place that follows from a number in a way that no call can be held to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(8, 4))

    def forward(self, rows: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(0, place * 2, rows.sin())
        return self.cache.cos()


def test_caches_of_other_layouts_are_updated_in_place_where_calls_can_be_held_to_places() -> None:
    compiled = compile(Elsewhere().eval(), arg_inputs=[torch.ones(1, 4), torch.tensor([1])], min_block_size=1)
    assert not engine_of(compiled).header.updates


class CodedStep(nn.Module):
    """Keeps rows as codes and a scale each, as quantized caches do, and sums what they stand for."""

    codes: torch.Tensor

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("codes", torch.zeros(CACHE, dtype=kind))
        self.register_buffer("scales", torch.zeros(*CACHE[:3], 1))

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        scale = rows.abs().amax(-1, keepdim=True) / 127
        by_indices(self.codes, (rows / scale).round().to(self.codes.dtype), start)
        by_index_copy(self.scales, scale, start)
        return (self.codes.to(rows.dtype) * self.scales).sum(2)


@pytest.mark.parametrize("kind", [torch.int8, torch.float8_e4m3fn])
def test_codes_of_a_quantized_cache_are_written_where_they_lie(kind: torch.dtype, tmp_path: Path) -> None:
    eager = CodedStep(kind).eval()
    model = compile(copy.deepcopy(eager), arg_inputs=inputs(), min_block_size=1)
    save(model, tmp_path / "step.trtp")
    for compiled in (model, trt_runtime.load(tmp_path / "step.trtp")):
        state, mine = dict(compiled.named_buffers()), copy.deepcopy(eager)
        assert len(engine_of(compiled).header.updates) == 2
        assert len(engine_of(compiled).header.outputs) == 1
        codes = next(value for value in state.values() if value.dtype is kind)
        address = codes.data_ptr()
        for start in (1, 3, 6, 0):
            given = inputs(start)
            torch.testing.assert_close(compiled(*given), mine(*given))
            assert torch.equal(codes, mine.codes)
        assert codes.data_ptr() == address


@pytest.mark.parametrize("write", AS_A_WHOLE)
def test_other_writes_are_those_of_eager_calls(write: Write) -> None:
    model = Step(write).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs(), min_block_size=1)
    assert not engine_of(compiled).header.updates
    for start in (3, 2):
        given = inputs(start)
        torch.testing.assert_close(compiled(*given), eager(*given))
        torch.testing.assert_close(model.cache, eager.cache)


def test_a_cache_that_is_read_before_is_written_as_a_whole() -> None:
    model = Step(by_index_copy, reads_before=True).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs(), min_block_size=1)
    assert not engine_of(compiled).header.updates
    assert_same_steps(compiled, eager, model.cache)


def test_negative_places_count_from_the_end_where_indices_do() -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(CACHE))

        def forward(self, rows: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
            self.cache[:, :, place] = rows * 2
            return self.cache.sum(2)

    model = Last().eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=[torch.randn(2, 3, 1, 4), torch.tensor([1])])
    assert engine_of(compiled).written_inputs
    for place in (-1, 4, -8):
        given = [torch.randn(2, 3, 1, 4), torch.tensor([place])]
        torch.testing.assert_close(compiled(*given), eager(*given))
        assert torch.equal(model.cache, eager.cache)


class GivenCache(nn.Module):
    """Writes to a cache that it is given."""

    def forward(self, cache: torch.Tensor, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        by_index_copy(cache, rows.cos(), start)
        return cache.sum(2)


def test_a_cache_that_is_an_input_is_updated_in_place() -> None:
    compiled = compile(GivenCache(), arg_inputs=[torch.zeros(CACHE), *inputs()])
    assert engine_of(compiled).written_inputs == (0,)
    for cache in (torch.randn(CACHE), torch.randn(2, 3, 4, 8).transpose(2, 3), torch.randn(CACHE)):
        wanted, given = cache.clone(), inputs(4)
        torch.testing.assert_close(compiled(cache, *given), GivenCache()(wanted, *given))
        torch.testing.assert_close(cache, wanted)


def test_other_inputs_lie_apart_from_a_cache_in_compiled_and_loaded_models(tmp_path: Path) -> None:
    compiled = compile(GivenCache(), arg_inputs=[torch.zeros(CACHE), *inputs()])
    save(compiled, tmp_path / "given.trtp")
    for step in (compiled, trt_runtime.load(tmp_path / "given.trtp")):
        cache = torch.zeros(CACHE)
        with pytest.raises(InputError, match="input rows shares memory with input cache"):
            step(cache, cache[:, :, 2:4], torch.tensor([1]))
        with pytest.raises(InputError, match="elements of input cache lie in one place"):
            step(torch.zeros(1).expand(CACHE), *inputs())


def test_inputs_lie_apart_from_a_cache_of_compiled_and_loaded_models(tmp_path: Path) -> None:
    compiled = compile(Step(by_index_copy).eval(), arg_inputs=inputs())
    save(compiled, tmp_path / "step.trtp")
    for step in (compiled, trt_runtime.load(tmp_path / "step.trtp")):
        with pytest.raises(InputError, match="input rows shares memory with the buffer cache"):
            step(step.cache[:, :, :2], torch.tensor([1]))


class Scaled(Step):
    """The same with a weight."""

    def __init__(self) -> None:
        super().__init__(by_index_copy)
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        return super().forward(rows, start) * self.scale


def test_refitted_models_have_a_cache_of_their_own(tmp_path: Path) -> None:
    compiled = compile(Scaled().eval(), arg_inputs=inputs(), refit=True)
    save(compiled, tmp_path / "step.trtp")
    for step in (compiled, trt_runtime.load(tmp_path / "step.trtp")):
        weights = Scaled().state_dict()
        before = weights["cache"].clone()
        refit_module(step, weights)(*inputs())
        assert torch.equal(weights["cache"], before)


class Forgotten(Scaled):
    """The same with a cache that state dicts leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(CACHE), persistent=False)


@pytest.mark.parametrize("kind", [Scaled, Forgotten])
def test_caches_that_weights_do_not_name_stay_as_they_are(kind: type[Scaled], tmp_path: Path) -> None:
    compiled = compile(kind().eval(), arg_inputs=inputs(), refit=True, min_block_size=1, optimization_level=0)
    save(compiled, tmp_path / "step.trtp")
    for step in (compiled, trt_runtime.load(tmp_path / "step.trtp")):
        other = kind().eval()
        other.scale.data.uniform_()
        step(*inputs())
        held = dict(step.named_buffers())["cache"].clone()
        refitted = refit_module(step, dict(other.named_parameters()))
        assert torch.equal(dict(refitted.named_buffers())["cache"], held)
        other(*inputs())  # another cache is no other constant
        refitted = refit_module_weights(step, other)
        other.cache.copy_(dict(refitted.named_buffers())["cache"])
        given = inputs(5)
        torch.testing.assert_close(refitted(*given), other(*given))
        assert torch.equal(dict(step.named_buffers())["cache"], held)


class Counter(nn.Module):
    """Counts its calls, and finds places."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return torch.nonzero(x.relu() + self.calls)


def test_what_stands_against_recording_is_the_same_for_compiled_and_loaded_models(tmp_path: Path) -> None:
    given = compile(GivenCache(), arg_inputs=[torch.zeros(CACHE), *inputs()])
    counts = compile(Counter().eval(), arg_inputs=[torch.ones(3)], torch_executed_ops={"aten.nonzero"})
    for compiled, reasons in (
        (given, ["the input cache is written to"]),
        (counts, ["the host must wait for", "recording would do so more than once"]),
    ):
        save(compiled, tmp_path / "model.trtp")
        for module in (compiled, nn.Sequential(compiled), trt_runtime.load(tmp_path / "model.trtp")):
            found = list(obstacles(module))
            assert all(sum(reason in line for line in found) == 1 for reason in reasons), found


@pytest.mark.parametrize("what", ["type", "shape"])
def test_a_cache_of_another_model_is_refused_before_anything_is_written(what: str) -> None:
    compiled = compile(GivenCache(), arg_inputs=[torch.zeros(CACHE), *inputs()])
    cache = torch.zeros(CACHE, dtype=torch.float64) if what == "type" else torch.zeros(2, 3, 9, 4)
    with pytest.raises(InputError, match="cache"):
        compiled(cache, *inputs())
    assert not cache.any()


class TwoCaches(nn.Module):
    """Writes to a long cache first, and to a short one then."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("long", torch.zeros(CACHE))
        self.register_buffer("short", torch.zeros(2, 3, 4, 4))

    def forward(self, rows: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
        by_index_copy(self.long, rows.sin(), start)
        by_indices(self.short, rows.cos(), start)
        return self.long.sum(2) + self.short.sum(2)


@pytest.mark.parametrize("start", [-1, 3, 7, 2**40])
def test_places_outside_of_a_cache_are_refused_before_anything_is_written(start: int, tmp_path: Path) -> None:
    model = TwoCaches().eval()
    compiled = compile(model, arg_inputs=inputs())
    assert len(engine_of(compiled).written_inputs) == 2
    compiled(*inputs(2))  # the last one that fits both
    save(compiled, tmp_path / "step.trtp")
    for step in (compiled, trt_runtime.load(tmp_path / "step.trtp")):
        before = {name: value.clone() for name, value in step.named_buffers()}
        with pytest.raises(InputError, match=r"is a cache of [48] places, and a call writes to"):
            step(*inputs(start))
        assert all(torch.equal(value, before[name]) for name, value in step.named_buffers())


def test_as_many_rows_as_a_call_has_must_fit() -> None:
    rows = Input(min_shape=(2, 3, 1, 4), opt_shape=ROWS, max_shape=(2, 3, 5, 4))
    compiled = compile(Step(by_index_copy).eval(), arg_inputs=[rows, torch.tensor([0])], min_block_size=1)
    assert engine_of(compiled).written_inputs
    compiled(torch.randn(2, 3, 5, 4), torch.tensor([3]))
    with pytest.raises(InputError, match="a cache of 8 places, and a call writes to 4 to 8"):
        compiled(torch.randn(2, 3, 5, 4), torch.tensor([4]))


def test_captures_see_what_an_engine_writes() -> None:
    model = Step(by_index_copy).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs())
    program = torch.export.export(compiled, tuple(inputs()))
    functional = program.run_decompositions()
    assert list(functional.graph_signature.buffers_to_mutate.values()) == ["cache"]
    for again in (program.module(), functional.module()):
        again.get_buffer("cache").copy_(eager.cache)
        given = inputs(5)
        torch.testing.assert_close(again(*given), eager(*given))
        torch.testing.assert_close(again.get_buffer("cache"), eager.cache)


def test_calls_of_a_profiled_process_are_the_same() -> None:
    model = Step(by_index_copy).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert_same_steps(compiled, eager, model.cache)


def test_a_refused_block_writes_in_pytorch() -> None:
    model = Step(by_index_copy).eval()
    eager = copy.deepcopy(model)
    compiled = compile(model, arg_inputs=inputs(), torch_executed_ops={"aten.index_copy"}, min_block_size=1)
    assert all(not module.written_inputs for module in compiled.modules() if isinstance(module, TRTModule))
    assert_same_steps(compiled, eager, model.cache)
