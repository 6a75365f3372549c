"""Linear maps into rows of odd extents as an operator: its ways, the choice among them, and what recordings hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from triton_interpreter import run_interpreted

import trt_portable as trt
from trt_portable.builder.autotune import autotuner
from trt_portable.builder.autotune.autotuner import Autotuner
from trt_portable.builder.autotune.engine_tactic import choose_tactic
from trt_portable.builder.autotune.timing_cache import ITimingCache
from trt_portable.builder.inductor import unaligned_products
from trt_portable.builder.inductor.tactic import TACTICS, Inductor, LaunchRecorder
from trt_portable.builder.inductor.unaligned_products import teach_unaligned_products
from trt_portable.execution.launch_list import CompiledProgram, SpecializedProgram
from trt_portable.execution.program import Program
from trt_portable.fusion.cuda_products import write_interleaved
from trt_portable.plan.artifact import Artifact
from trt_portable.plan.weight_store import WeightStore

CPU = torch.device("cpu")
TILED = [  # rows, columns, depth, whether there is a bias
    (40, 300, 64, False),
    (1, 131, 24, True),
    (133, 258, 72, False),
    (64, 260, 64, True),
]


def difference(device: str, case: Any, form: int, dtype: torch.dtype) -> float:
    """The greatest distance of a result of the kernel from PyTorch's in float32."""
    rows, columns, depth, has_bias = case
    torch.manual_seed(0)
    x, matrix = (torch.randn(extent, depth, device=device).to(dtype) for extent in (rows, columns))
    bias = torch.randn(columns, device=device).to(dtype) if has_bias else None
    result = torch.full((rows, columns), torch.nan, dtype=dtype, device=device)
    unaligned_products.product_call(x, matrix, bias, result, form).start()
    wanted = F.linear(x.float(), matrix.float(), None if bias is None else bias.float())
    return ((result.float() - wanted).norm() / wanted.norm()).item()


EVERYTHING = [(case, form) for case in TILED for form in range(len(unaligned_products.FORMS))]


@pytest.mark.slow
def test_tiles_in_the_interpreter() -> None:
    pytest.importorskip("triton")
    found = run_interpreted(Path(__file__))
    assert len(found) == len(EVERYTHING) and max(found) < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("case", "form"), EVERYTHING, ids=str)
def test_tiles_on_a_gpu(case: Any, form: int, dtype: torch.dtype) -> None:
    assert difference("cuda", case, form, dtype) < (2e-3 if dtype is torch.float16 else 1e-2)


def test_which_tiles_are_tried() -> None:
    forms = {
        (8192, 50257): unaligned_products.ALIGNED_WIDE,
        (1024, 50257): unaligned_products.WIDE,
        (128, 50257): unaligned_products.NARROW,
    }
    assert {extents: unaligned_products.form_for(*extents) for extents in forms} == forms


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="views of a GPU's tensors need a build that knows GPUs")
def test_tiles_are_tried_for_operands_that_lie_as_they_want() -> None:
    with FakeTensorMode():
        x, matrix = torch.empty(600, 16, device="cuda"), torch.empty(27, 16, device="cuda")
        assert list(unaligned_products._ways(x, matrix, None)) == ["joined", "interleaved", "tiles"]
        assert list(unaligned_products._ways(x[:8], matrix, matrix[:, 0])) == ["joined", "tiles"]
        for operands in ((x.T.contiguous().T, matrix), (x, matrix.T.contiguous().T)):
            assert list(unaligned_products._ways(*operands, None)) == ["joined", "interleaved"]
    assert list(unaligned_products._ways(torch.empty(8, 16), torch.empty(27, 16), None)) == ["joined"]


def test_operands_that_lie_in_another_way_are_refused() -> None:
    pytest.importorskip("triton")
    x, matrix, result = torch.zeros(8, 16).half().T, torch.zeros(19, 8).half(), torch.zeros(16, 19).half()
    with pytest.raises(RuntimeError, match="another way"):
        unaligned_products.product_call(x, matrix, None, result, 0)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_a_recording_holds_what_the_operator_is_composed_of(
    monkeypatch: pytest.MonkeyPatch, is_interleaved: bool, has_bias: bool
) -> None:
    if is_interleaved:
        monkeypatch.setattr(unaligned_products, "write_joined", write_interleaved)
    own = teach_unaligned_products()
    x, matrix, bias = torch.randn(40, 16).half(), torch.randn(27, 16).half(), torch.randn(27).half()
    operands = [x, matrix, *[bias] * has_bias]
    recorder = LaunchRecorder(operands, own)
    with torch.no_grad(), recorder:
        result = torch.ops.trt_portable.unaligned_linear(x, matrix, bias if has_bias else None)
    document = {
        "operands": [{"input": at} for at in range(len(operands))],
        "kernels": recorder.kernels,
        "steps": recorder.steps,
        "slots": recorder.num_slots,
        "outputs": [recorder.slot(result)],
    }
    made = Artifact("t", {}, tuple(tuple(each.shape) for each in operands), json.loads(json.dumps(document)), {})
    program = CompiledProgram(made, WeightStore((), (), ()), Program((), (), ()), CPU)
    target = torch.full_like(result, torch.nan)
    (found,) = program.run(operands, [target])
    assert found is target and torch.equal(found, result)  # written once, where it belongs


def test_a_graph_calls_the_operator_once() -> None:
    """Its extents are known without data, its kernels are found there to be compiled ahead."""
    teach_unaligned_products()

    def layers(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
        return torch.ops.trt_portable.unaligned_linear(x.relu(), matrix, None).view(2, 20, -1)

    x, matrix = torch.randn(40, 16).half(), torch.randn(27, 16).half()
    graph = make_fx(layers, tracing_mode="fake")(x, matrix)
    calls = [node for node in graph.graph.nodes if node.op == "call_function"]
    (call,) = [node for node in calls if node.target.name() == unaligned_products.OPERATOR]
    assert call.meta["val"].shape == (40, 27) and call.meta["val"].is_contiguous()
    torch.testing.assert_close(graph(x, matrix), F.linear(x.relu(), matrix).view(2, 20, 27))


@pytest.fixture
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


def _logits(builder: trt.Builder, columns: int, depth: int = 64) -> trt.INetworkDefinition:
    """A few layers, and odd logits, which are an output and what another layer reads."""
    network = builder.create_network()
    generator = np.random.default_rng(0)
    x = network.add_input("x", trt.float16, (-1, depth))
    hidden = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    hidden = network.add_elementwise(hidden, x, trt.ElementWiseOperation.SUM).get_output(0)
    table = (generator.standard_normal((columns, depth)) / 8).astype(np.float16)
    matrix = network.add_constant((columns, depth), table).get_output(0)
    none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    logits = network.add_matrix_multiply(hidden, none, matrix, transpose).get_output(0)
    best = network.add_reduce(logits, trt.ReduceOperation.MAX, 2, False).get_output(0)
    for name, tensor in (("logits", logits), ("best", best)):
        tensor.name = name
        network.mark_output(tensor)
    return network


def _run(engine: Any, x: torch.Tensor, columns: int, times: int = 8) -> dict[str, torch.Tensor]:
    context = engine.create_execution_context()
    found = {
        "logits": torch.full((len(x), columns), torch.nan, dtype=torch.float16, device="cuda"),
        "best": torch.full((len(x),), torch.nan, dtype=torch.float16, device="cuda"),
    }
    assert context.set_input_shape("x", tuple(x.shape))
    for name, tensor in {"x": x, **found}.items():
        assert context.set_tensor_address(name, tensor.data_ptr())
    for _ in range(times):
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
    return found


@pytest.mark.gpu
@pytest.mark.usefixtures("_on_cuda", "compiled_wins")
@pytest.mark.parametrize(
    ("way", "rows", "columns"),
    [
        ("joined", 40, 2051),
        ("interleaved", 2100, 2050),
        ("tiles", 2100, 2051),
        ("tiles", 200, 2054),
        (None, 2050, 2047),
    ],
)
def test_in_an_engine(
    builder: Any, load: Any, logger: Any, monkeypatch: Any, way: str | None, rows: int, columns: int
) -> None:
    """Every way, at the shape that is compiled and at others, replayed at addresses that stay."""
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    monkeypatch.setattr(autotuner, "_process", Autotuner(ITimingCache()))
    monkeypatch.setitem(choose_tactic.__kwdefaults__, "tactics", TACTICS[:1])
    if way is not None:
        monkeypatch.setattr(
            unaligned_products, "fastest", lambda starts, *_, **__: way if way in starts else pytest.fail(way)
        )
    cache = builder.create_builder_config().create_timing_cache(b"")
    config = builder.create_builder_config()
    config.set_timing_cache(cache, False)
    ranges = {"x": ((16, 64), (rows, 64), (4096, 64))}
    engine = load(_logits(builder, columns), ranges, flags=[trt.BuilderFlag.REFIT], config=config)
    assert isinstance(engine._state.executable, SpecializedProgram), logger.messages
    assert len(cache.queryKeys()) == (2 if way else 3)  # the shape that it is tuned for, the range, and the kernel
    compiled, *_ = engine._state.executable._compiled
    # the logits are written where they belong
    assert compiled._sizes[compiled.artifact.shapes].layout.homes[0] is not None
    matrix = engine._state.weights.tensor(0).view(columns, 64).float()
    for count in (rows, 24, 2500):
        x = torch.randn(count, 64, device="cuda", dtype=torch.float16)
        found = _run(engine, x, columns)
        wanted = (x.relu() + x).float() @ matrix.T
        torch.testing.assert_close(found["logits"].float(), wanted, rtol=1e-2, atol=2e-2)
        assert torch.equal(found["best"], found["logits"].amax(1))
    refitter = trt.Refitter(engine, logger)
    assert refitter.set_weights(
        engine._state.info.weight_slots[0].layer_name,
        trt.WeightsRole.CONSTANT,
        trt.Weights(np.zeros((columns, 64), np.float16)),
    )
    assert refitter.refit_cuda_engine()
    assert not _run(engine, torch.randn(rows, 64, device="cuda").half(), columns)["logits"].any()


@pytest.mark.gpu
@pytest.mark.usefixtures("_on_cuda")
def test_a_second_build_measures_no_kernel(builder: Any, load: Any, compiled_wins: None, monkeypatch: Any) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    monkeypatch.setattr(autotuner, "_process", Autotuner(ITimingCache()))
    monkeypatch.setitem(choose_tactic.__kwdefaults__, "tactics", TACTICS[:1])
    cache = builder.create_builder_config().create_timing_cache(b"")
    for flags in ([], [trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS]):
        config = builder.create_builder_config()
        config.set_timing_cache(cache, False)
        engine = load(_logits(builder, 2051), {"x": ((16, 64), (600, 64), (700, 64))}, flags=flags, config=config)
        assert isinstance(engine._state.executable, SpecializedProgram)
        autotuner._process._cache.reset()
        monkeypatch.setattr(autotuner, "runnable", lambda *_, **__: pytest.fail("measured again"))
    assert len(cache.queryKeys()) == 3  # the shape that it is tuned for, the range, and the kernel


if __name__ == "__main__":
    print(json.dumps([difference("cpu", case, form, torch.float16) for case, form in EVERYTHING]))  # noqa: T201
