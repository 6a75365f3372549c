"""Products of rows that each choose their matrix: values, what is read, and matrices of few bits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from triton_interpreter import run_interpreted

import trt_portable as trt
from tests.support.low_precision_networks import constant, layers_of, make_codes
from trt_portable.layers import low_precision
from trt_portable.layers.low_precision import multiply_by_chosen

COUNT, COLUMNS, DEPTH, ROWS = 5, 24, 64, 6
PLACES = torch.tensor([3, 0, 3, 1, 0, 3])


def build_chosen(builder: Any, load: Any, define: Any, side: int, how: Any, choices: tuple[int, ...] = ()) -> Any:
    """An engine of rows (S, 1, K), or (S, K, 1) on the right, by gathered matrices; each token has its choices."""
    network = builder.create_network()
    rows = network.add_input("rows", trt.float32, (-1, DEPTH, 1) if side == 0 else (-1, 1, DEPTH))
    places = network.add_input("places", trt.int64, (-1, *choices))
    chosen = places
    if choices:
        shuffle = network.add_shuffle(places)
        shuffle.reshape_dims = (-1,)
        last = constant(network, torch.tensor([COUNT - 1]), trt.int64)
        chosen = network.add_elementwise(shuffle.get_output(0), last, trt.ElementWiseOperation.MIN).get_output(0)
    matrices = network.add_gather(define(network), chosen, 0).get_output(0)
    operands = [(rows, trt.MatrixOperation.NONE), (matrices, how)]
    (left, first), (right, second) = operands if side else operands[::-1]
    y = network.add_matrix_multiply(left, first, right, second).get_output(0)
    ranges = {
        name: tuple((count, *list(shape)[1:]) for count in (1, 4, 9))
        for name, shape in (("rows", rows.shape), ("places", (0,)))
    }
    if choices:
        ranges["rows"] = tuple((count * choices[0], *rows.shape[1:]) for count in (1, 4, 9))
        ranges["places"] = tuple((count, *choices) for count in (1, 4, 9))
    return load_described(builder, load, network, y, ranges)


def load_described(builder: Any, load: Any, network: Any, y: Any, ranges: Any) -> Any:
    """An engine with the output `y` that tells what its layers are."""
    y.name = "y"
    network.mark_output(y)
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    return load(network, ranges, config=config)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("how", [trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE], ids=str)
def test_only_what_is_chosen_is_read(builder: Any, load: Any, execute: Any, side: int, how: Any) -> None:
    matrices = torch.randn(COUNT, COLUMNS, DEPTH)
    matrices[[2, 4]] = torch.nan  # nobody chooses these
    is_transposed = (how is trt.MatrixOperation.NONE) is (side == 1)
    given = matrices.mT.contiguous() if is_transposed else matrices
    engine = build_chosen(builder, load, lambda network: constant(network, given), side, how)
    kinds = [layer["LayerType"] for layer in layers_of(engine)]
    assert "CHOSEN_PRODUCT" in kinds and not {"GATHER", "MATRIX_MULTIPLY"} & set(kinds)
    rows = torch.randn(ROWS, DEPTH)
    wanted = torch.stack([matrices[place] @ row for place, row in zip(PLACES.tolist(), rows, strict=True)])
    inputs = {"rows": rows.unsqueeze(2 if side == 0 else 1), "places": PLACES}
    found = execute(engine.create_execution_context(), inputs)["y"]
    assert found.shape == ((ROWS, COLUMNS, 1) if side == 0 else (ROWS, 1, COLUMNS))
    torch.testing.assert_close(found.reshape(ROWS, COLUMNS), wanted, rtol=1e-4, atol=1e-4)
    inputs["places"] = torch.tensor([COUNT, 0, -1, 1, 0, 3])  # the first and third choose none
    found = execute(engine.create_execution_context(), inputs)["y"].reshape(ROWS, COLUMNS)
    assert not found[[0, 2]].any() and bool(found.isfinite().all())


@pytest.mark.parametrize("code_type", [trt.int4, trt.fp4, trt.int8], ids=str)
@pytest.mark.parametrize("is_turned", [False, True])
def test_matrices_of_few_bits_stay_so(
    builder: Any, load: Any, execute: Any, monkeypatch: pytest.MonkeyPatch, code_type: Any, is_turned: bool
) -> None:
    size = 16
    codes, scale = make_codes(code_type, COUNT, COLUMNS, DEPTH), torch.rand(COUNT, COLUMNS, DEPTH // size) + 0.1
    scale[2] = torch.inf  # of a matrix that nobody chooses
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE

    def define(network: Any) -> Any:
        stored = constant(network, codes, code_type)
        matrices = network.add_dequantize(stored, constant(network, scale), trt.float32).get_output(0)
        if is_turned:
            shuffle = network.add_shuffle(matrices)
            shuffle.first_transpose = trt.Permutation([0, 2, 1])
            matrices = shuffle.get_output(0)
        return matrices

    engine = build_chosen(builder, load, define, 1, none if is_turned else turned)
    kinds = [layer["LayerType"] for layer in layers_of(engine)]
    assert "CHOSEN_CODES_PRODUCT" in kinds and not {"GATHER", "DEQUANTIZE", "CHOSEN_PRODUCT"} & set(kinds)
    kept = {slot.dtype: slot.count for slot in engine._state.info.weight_slots}
    assert kept[code_type] == codes.numel()
    read: list[tuple[int, int]] = []
    decode = low_precision.decode_rows
    monkeypatch.setattr(
        low_precision,
        "decode_rows",
        lambda *given: read.append(given[-2:]) or decode(*given),  # type: ignore[func-returns-value]
    )
    rows = torch.randn(ROWS, DEPTH)
    found = execute(engine.create_execution_context(), {"rows": rows.unsqueeze(1), "places": PLACES})["y"]
    matrices = codes.float() * scale.repeat_interleave(size, 2)
    wanted = torch.stack([matrices[place] @ row for place, row in zip(PLACES.tolist(), rows, strict=True)])
    torch.testing.assert_close(found.squeeze(1), wanted, rtol=1e-4, atol=1e-3)
    assert sorted(read) == [(place * COLUMNS, (place + 1) * COLUMNS) for place in (0, 1, 3)]


@pytest.mark.parametrize("choices", [(), (2,)])
@pytest.mark.parametrize("code_type", [None, trt.int4], ids=str)
def test_engines_say_how_many_matrices_there_are_and_what_a_token_reads(
    builder: Any, load: Any, code_type: Any, choices: tuple[int, ...]
) -> None:
    codes = make_codes(trt.int4, COUNT, COLUMNS, DEPTH)
    scale = torch.ones(COUNT, COLUMNS, DEPTH // 16)

    def define(network: Any) -> Any:
        if code_type is None:
            return constant(network, codes.float())
        stored = constant(network, codes, code_type)
        return network.add_dequantize(stored, constant(network, scale), trt.float32).get_output(0)

    engine = build_chosen(builder, load, define, 1, trt.MatrixOperation.TRANSPOSE, choices)
    (said,) = (layer["Parameters"] for layer in layers_of(engine) if layer["LayerType"].startswith("CHOSEN"))
    size = COLUMNS * DEPTH * 4 if code_type is None else COLUMNS * DEPTH // 2 + COLUMNS * DEPTH // 16 * 4
    assert (said["count"], said["choices"], said["matrix_bytes"]) == (COUNT, choices[0] if choices else 0, size)


@pytest.mark.parametrize("kind", ["constant", "ramp", "down", "twice"])
def test_rows_in_groups_are_recognized(builder: Any, load: Any, execute: Any, kind: str) -> None:
    network = builder.create_network()
    rows = network.add_input("rows", trt.float32, (-1 if kind == "ramp" else ROWS, 1, DEPTH))
    ends = network.add_input("ends", trt.int64, (1, COUNT))
    operation, steps = trt.ElementWiseOperation, torch.tensor([2 if kind == "twice" else 1])
    if kind in ("constant", "down"):
        numbers = torch.arange(ROWS).reshape(-1, 1)
        counted = constant(network, numbers.flip(0) if kind == "down" else numbers, trt.int64)
    else:
        fill = network.add_fill((1,), trt.FillOperation.LINSPACE, trt.int64)
        count = network.add_slice(network.add_shape(rows).get_output(0), (0,), (1,), (1,)).get_output(0)
        for index, given in enumerate((torch.tensor(0), steps), 1):
            fill.set_input(index, constant(network, given, trt.int64))
        fill.set_input(0, count)
        shuffle = network.add_shuffle(fill.get_output(0))
        shuffle.reshape_dims = (-1, 1)
        counted = shuffle.get_output(0)
    passed = network.add_elementwise(counted, ends, operation.LESS).get_output(0)
    passed = network.add_cast(passed, trt.int64).get_output(0)
    total = network.add_reduce(passed, trt.ReduceOperation.SUM, 1 << 1, False).get_output(0)
    group = network.add_elementwise(constant(network, torch.tensor([COUNT]), trt.int64), total, operation.SUB)
    last = constant(network, torch.tensor([COUNT - 1]), trt.int64)
    places = network.add_elementwise(group.get_output(0), last, operation.MIN).get_output(0)
    matrices = torch.randn(COUNT, COLUMNS, DEPTH)
    chosen = network.add_gather(constant(network, matrices), places, 0).get_output(0)
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    y = network.add_matrix_multiply(rows, none, chosen, turned).get_output(0)
    ranges = {"rows": tuple((count, 1, DEPTH) for count in (1, ROWS, 9))} if kind == "ramp" else {}
    engine = load_described(builder, load, network, y, ranges)
    (said,) = (layer["Parameters"] for layer in layers_of(engine) if layer["LayerType"] == "CHOSEN_PRODUCT")
    assert said["is_grouped"] is (kind in ("constant", "ramp"))
    given = {"rows": torch.randn(ROWS, 1, DEPTH), "ends": torch.tensor([[1, 1, 2, 4, 5]])}  # the last is behind all
    found = execute(engine.create_execution_context(), given)["y"]
    numbers = torch.arange(ROWS) * steps
    numbers = numbers.flip(0) if kind == "down" else numbers
    wanted = torch.searchsorted(given["ends"][0], numbers, right=True).clamp(max=COUNT - 1)
    torch.testing.assert_close(found, torch.bmm(given["rows"], matrices[wanted].mT), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", [low_precision._sorted, low_precision._by_copies, low_precision._by_each])
def test_many_rows_are_sorted_or_get_copies_or_all_products(way: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(low_precision, "_MOST_COPIED", 2 * COLUMNS * DEPTH)
    matrices = torch.randn(COUNT, COLUMNS, DEPTH).bfloat16()
    rows = torch.randn(ROWS, DEPTH).bfloat16()
    wanted = multiply_by_chosen(rows, PLACES, matrices, False)
    torch.testing.assert_close(way(rows, PLACES, matrices), wanted, rtol=2e-2, atol=2e-2)
    if way is low_precision._sorted:
        ascending = PLACES.sort().values
        wanted = multiply_by_chosen(rows, ascending, matrices, False)
        torch.testing.assert_close(way(rows, ascending, matrices, True), wanted, rtol=2e-2, atol=2e-2)
        places = torch.tensor([COUNT, 0, -1, 1, 0, 3])
        torch.testing.assert_close(
            way(rows, places, matrices), multiply_by_chosen(rows, places, matrices, False), rtol=2e-2, atol=2e-2
        )


@pytest.mark.parametrize("seed", range(8))
def test_plans_that_lie_of_groups_get_no_memory_that_nobody_wrote(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file says that places ascend and are of matrices; a grouped product leaves rows behind the last group as is."""
    ends: list[torch.Tensor] = []

    def grouped(rows: torch.Tensor, matrices: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        ends.append(offsets)
        return rows.new_zeros(len(rows), matrices.shape[-1])

    monkeypatch.setattr(torch, "_grouped_mm", grouped)
    places = torch.randint(-3, COUNT + 3, (50,), generator=torch.Generator().manual_seed(seed))
    places[seed::8] = torch.iinfo(torch.int64).min if seed % 2 else torch.iinfo(torch.int64).max
    matrices = torch.ones(COUNT, COLUMNS, DEPTH).bfloat16()
    low_precision._sorted(torch.ones(50, DEPTH).bfloat16(), places, matrices, is_grouped=True)
    found = ends[0].tolist()
    assert found == sorted(found) and found[0] >= 0
    assert found[-1] == 50


@pytest.mark.parametrize("is_grouped", [False, True])
@pytest.mark.parametrize("extents", [(0, COLUMNS, DEPTH), (COUNT, COLUMNS, 0), (COUNT, 0, DEPTH)])
def test_products_with_no_matrices_or_of_nothing_are_zeros(
    extents: tuple[int, int, int], is_grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "_grouped_mm", lambda rows, matrices, ends: rows.new_full((3, matrices.shape[-1]), 7))
    matrices, places = torch.ones(extents).bfloat16(), torch.tensor([-1, 0, 1])
    found = low_precision._sorted(torch.ones(3, extents[2]).bfloat16(), places, matrices, is_grouped)
    assert torch.equal(found, torch.zeros(3, extents[1]).bfloat16())


_INTERPRETED = """
import torch
from trt_portable.builder.inductor import decoding

torch.manual_seed(0)
places = torch.tensor([3, 0, 4, 5, -1])
is_there = ((places >= 0) & (places < 5)).unsqueeze(1)
for is_transposed in (False, True):
    matrices = torch.randn(5, 40, 96).half()
    given = matrices.mT.contiguous().mT if is_transposed else matrices
    x, result = torch.randn(5, 96).half(), torch.full((5, 40), torch.nan, dtype=torch.half)
    name = "CHOSEN_COLUMNS" if is_transposed else "CHOSEN_ROWS"
    setattr(decoding, name, (decoding.Form(16, 64, 4, 1),))
    decoding.chosen_call(x, places, given, result, 0).start()
    wanted = torch.bmm(matrices[places.clamp(0, 4)].float(), x.float().unsqueeze(2)).squeeze(2)
    torch.testing.assert_close(result.float(), torch.where(is_there, wanted, 0), atol=2e-2, rtol=2e-3)
    decoding.GROUPED_ROWS = (decoding.Form(32, 64, 4, 1, 16),)
    choices = (torch.randint(-1, 7, (50,)), torch.full((33,), 2), torch.full((17,), 5), torch.arange(5))
    for many in choices[: 1 if is_transposed else None]:
        x, result = torch.randn(len(many), 96).half(), torch.full((len(many), 40), torch.nan, dtype=torch.half)
        is_known = (many >= 0) & (many < 5)
        choice, order = torch.where(is_known, many, 5).sort()
        ends = torch.searchsorted(choice, torch.arange(5), right=True).int()
        decoding.grouped_call(x, order, ends, given, result, 0).start()
        wanted = torch.bmm(matrices[many.clamp(0, 4)].float(), x.float().unsqueeze(2)).squeeze(2)
        torch.testing.assert_close(result.float(), wanted * is_known.unsqueeze(1), atol=2e-2, rtol=2e-3)
        apart = torch.full_like(result, torch.nan)
        decoding.grouped_call(x[order], None, ends, given, apart, 0).start()
        torch.testing.assert_close(apart, result[order])
"""


@pytest.mark.slow
def test_the_kernels_compute_what_they_should_where_triton_interprets_them() -> None:
    pytest.importorskip("triton")
    run_interpreted(_INTERPRETED)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [4, 300])
@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_chosen_products_on_a_gpu(rows: int, is_transposed: bool, dtype: torch.dtype) -> None:
    from trt_portable.builder.inductor.decoding import teach_decoding_operators

    teach_decoding_operators()
    matrices = torch.randn(8, 256, 512, dtype=dtype, device="cuda")
    x, places = torch.randn(rows, 512, dtype=dtype, device="cuda"), torch.randint(-1, 9, (rows,), device="cuda")
    given = matrices.mT.contiguous() if is_transposed else matrices
    found = multiply_by_chosen(x, places, given, is_transposed).float()
    wanted = torch.bmm(matrices[places.clamp(0, 7)].float(), x.float().unsqueeze(2)).squeeze(2)
    wanted = torch.where(((places >= 0) & (places < 8)).unsqueeze(1), wanted, 0)
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-2
    places = places.clamp(0, 7).sort().values
    found = multiply_by_chosen(x, places, given, is_transposed, is_grouped=True).float()
    wanted = torch.bmm(matrices[places].float(), x.float().unsqueeze(2)).squeeze(2)
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-2
