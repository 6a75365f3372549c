"""Products of few bits on a GPU: every kernel, whole engines, recorded and compiled runs, refits."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from low_precision_networks import weights_of

import trt_portable as trt
from trt_portable.builder.autotune import low_precision_choice
from trt_portable.builder.inductor import decoding
from trt_portable.builder.inductor.tactic import Inductor
from trt_portable.execution.launch_list import SpecializedProgram
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, REFERENCE, IntegerProduct, ProductForm

pytestmark = pytest.mark.gpu

COLUMNS, DEPTH = 64, 128
STEP = 0.05
EXTENTS = ((COLUMNS, DEPTH), (20, 36))
FLOATS = (trt.float32, trt.bfloat16, trt.float16)


@pytest.fixture(autouse=True)
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


def _has_float8() -> bool:
    return torch.cuda.get_device_capability() >= (8, 9)


def _forms() -> list[ProductForm]:
    forms = []
    for (columns, depth), result in itertools.product(EXTENTS, FLOATS):
        for codes, rows, is_rowwise in itertools.product((trt.int8, trt.fp8), (1, columns), (False, True)):
            forms.append(ProductForm(columns, depth, codes, codes, result, (rows, 1), is_rowwise))
        forms.append(ProductForm(columns, depth, trt.int8, result, result, (columns, 1)))
    half = trt.bfloat16
    levels = tuple(number / 10 for number in range(-9, 7))
    for columns, depth, groups in ((COLUMNS, DEPTH, 1), (COLUMNS, DEPTH, 4), (COLUMNS, 512, 1), (COLUMNS, 512, 8)):
        product = {"columns": columns, "depth": depth, "left": half, "result": half, "blocks": (columns, groups)}
        kinds = (trt.int4, trt.int8, trt.fp4, *([trt.fp8] if _has_float8() else []))
        forms += [ProductForm(codes=kind, **product) for kind in kinds]
        forms += [ProductForm(codes=kind, has_offset=True, **product) for kind in (trt.int4, trt.int8)]
        forms.append(ProductForm(codes=trt.int4, levels=levels, **product))
    return forms


@pytest.mark.parametrize("kernel", PRODUCT_KERNELS.values(), ids=lambda kernel: kernel.name)
def test_every_kernel_computes_what_floats_do_or_says_that_it_cannot(kernel: Any, monkeypatch: Any) -> None:
    device, several = torch.device("cuda"), decoding.CODES_SEVERAL_ROWS[:1]  # all forms: test_portable_decoding.py
    one, many = decoding.CODES_ONE_ROW[:1], decoding.CODES_MANY_ROWS[:1]
    chosen = lambda rows, **_: one if rows == 1 else several if rows <= 16 else many  # noqa: E731
    monkeypatch.setattr(decoding, "codes_forms_for", chosen)
    low_precision_choice._teach_own_kernels()
    must_work = kernel is REFERENCE or isinstance(kernel, IntegerProduct) or kernel.name.startswith("scaled_mm")
    refused = []
    for form in _forms():
        if not kernel.accepts(form, device):
            continue
        for rows in (1, 17, 64):
            case = low_precision_choice.Case(form, (rows,), True, rows == 17, trt.int8 if rows == 64 else None)
            try:
                difference = case.trial(device).difference(kernel)
            except (RuntimeError, ValueError, NotImplementedError) as error:
                assert not must_work, (form, rows, error)
                refused.append(str(error))
                continue
            # fewer bits in sums may show where the result is exact to 1e-3; then the builder takes another kernel
            assert difference is None or (kernel.name == "scaled_mm_fast" and form.result is not trt.bfloat16), form
    if refused:
        pytest.skip(f"PyTorch lacks {len(refused)} of them here: {refused[0]}")


def _codes(dtype: Any) -> torch.Tensor:
    if dtype is trt.int8:
        return torch.randint(-127, 128, (COLUMNS, DEPTH), dtype=torch.int8)
    return (torch.randn(COLUMNS, DEPTH) * 8).to(torch.float8_e4m3fn)


def _network(builder: Any, codes: torch.Tensor, scale: torch.Tensor, dtype: Any, floats: Any) -> Any:
    """relu(DQ(Q(x)) @ DQ(codes).T + 1), 1 to 64 rows."""
    network = builder.create_network()

    def constant(value: torch.Tensor, kind: Any) -> Any:
        return network.add_constant(tuple(value.shape), weights_of(value, kind)).get_output(0)

    x = network.add_input("x", floats, (-1, DEPTH))
    step = constant(torch.tensor(STEP), trt.float32)
    left = network.add_dequantize(network.add_quantize(x, step, dtype).get_output(0), step, floats).get_output(0)
    matrix = network.add_dequantize(constant(codes, dtype), constant(scale, trt.float32), floats)
    matrix.axis = 0
    none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    y = network.add_matrix_multiply(left, none, matrix.get_output(0), turned).get_output(0)
    ones = torch.ones(1, COLUMNS, dtype=torch.bfloat16 if floats is trt.bfloat16 else torch.float32)
    y = network.add_elementwise(y, constant(ones, floats), trt.ElementWiseOperation.SUM).get_output(0)
    y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
    y.name = "y"
    network.mark_output(y)
    return network


def _wanted(x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    steps = x.float().cpu() / STEP
    if codes.dtype is torch.int8:
        steps = steps.round().clamp(-128, 127)
    else:
        steps = steps.clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return torch.relu(steps * STEP @ (codes.float() * scale[:, None]).t() + 1)


@pytest.mark.parametrize("floats", [trt.float32, trt.bfloat16], ids=lambda kind: kind.name)
@pytest.mark.parametrize("dtype", [trt.int8, trt.fp8], ids=lambda kind: kind.name)
@pytest.mark.parametrize("way", ["replayed", "compiled"])
def test_an_engine_multiplies_codes(
    request: Any, builder: Any, load: Any, logger: Any, monkeypatch: Any, dtype: Any, floats: Any, way: str
) -> None:
    if dtype is trt.fp8 and not _has_float8():
        pytest.skip("this GPU has no float8")
    best = "int_mm" if dtype is trt.int8 else "scaled_mm"
    if way == "compiled":
        times = lambda _, __, kernels: {name: float(name != best) for name in kernels}  # noqa: E731
        monkeypatch.setattr(low_precision_choice._Choice, "_milliseconds", times)
        request.getfixturevalue("compiled_wins")
    else:
        monkeypatch.setattr(Inductor, "is_candidate", lambda *_: False)
    torch.manual_seed(0)
    codes, scale = _codes(dtype), torch.rand(COLUMNS) / 50 + 0.001
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED
    config.builder_optimization_level = 3 if way == "compiled" else 0
    config.set_flag(trt.BuilderFlag.REFIT)
    ranges = {"x": ((1, DEPTH), (32, DEPTH), (64, DEPTH))}
    engine = load(_network(builder, codes, scale, dtype, floats), ranges, config=config)
    text = engine.create_engine_inspector().get_engine_information(trt.LayerInformationFormat.JSON)
    (product,) = [layer for layer in json.loads(text)["Layers"] if layer["LayerType"] == "LOW_PRECISION_PRODUCT"]
    assert product["TacticName"].startswith(best), logger.messages
    context = engine.create_execution_context()
    kind = torch.bfloat16 if floats is trt.bfloat16 else torch.float32
    tolerance = 4e-2 if floats is trt.bfloat16 or dtype is trt.fp8 else 1e-3

    def check(rows: int, runs: int) -> None:
        x, y = (torch.empty(rows, width, device="cuda", dtype=kind) for width in (DEPTH, COLUMNS))
        context.set_input_shape("x", (rows, DEPTH))
        context.set_tensor_address("x", x.data_ptr())
        context.set_tensor_address("y", y.data_ptr())
        for _ in range(runs):
            x.normal_()
            assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream), logger.errors
            wanted = _wanted(x, codes, scale)
            error = (y.float().cpu() - wanted).norm() / wanted.norm()
            assert error < tolerance, (rows, error)

    check(32, 8)  # direct, recorded, recorded at these addresses
    assert context._execution.replay._pinned
    check(1, 3)
    check(64, 3)
    assert isinstance(engine._state.executable, SpecializedProgram) is (way == "compiled"), logger.messages
    refitter = trt.Refitter(engine, logger)
    codes = _codes(dtype)
    (slot,) = [slot for slot in engine._state.info.weight_slots if slot.count == COLUMNS * DEPTH]
    assert refitter.set_named_weights(f"{slot.layer_name} {slot.role}", weights_of(codes, dtype))
    assert refitter.refit_cuda_engine()
    check(32, 8)


def test_the_device_holds_codes_once(builder: Any, load: Any) -> None:
    codes = _codes(trt.int8)
    engine = load(_network(builder, codes, torch.rand(COLUMNS) / 50, trt.int8, trt.float32), {"x": ((1, DEPTH),) * 3})
    held = [value for value in engine._state.program.constants if isinstance(value, torch.Tensor)]
    pointers = {value.untyped_storage().data_ptr() for value in held if value.numel() >= COLUMNS * DEPTH}
    whole = {slot.data_ptr() for slot in engine._state.weights._tensors if slot is not None}
    assert len(pointers) <= 1
    assert sum(value.nbytes for value in held if value.numel() >= COLUMNS * DEPTH) <= COLUMNS * DEPTH
    assert whole
