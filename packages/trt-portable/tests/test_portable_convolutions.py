"""Convolutions of sizes that are new: the kernel that plans nothing, and lists of launches that hold both ways."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode
from triton_interpreter import run_interpreted

import trt_portable as trt
from trt_portable.builder.autotune.engine_tactic import Trial, choose_tactic
from trt_portable.builder.inductor import convolutions, tactic
from trt_portable.builder.inductor.own_operators import KernelCall, OwnOperators, teach_cudnn_operators
from trt_portable.builder.inductor.repetition import places_of
from trt_portable.builder.inductor.tactic import TACTICS, Inductor, LaunchRecorder
from trt_portable.builder.tactic import INTERPRET
from trt_portable.execution import launch_list
from trt_portable.execution.launch_list import (
    RUNS_BEFORE_PLANNING,
    RUNS_BEFORE_PLANNING_SOON,
    CompiledProgram,
    SpecializedProgram,
)
from trt_portable.execution.program import Program
from trt_portable.fusion import cuda_products
from trt_portable.plan.artifact import Artifact, Varying
from trt_portable.plan.weight_store import WeightStore

NOTHING = Program((), (), ())
CPU = torch.device("cpu")
aten = torch.ops.aten

_GATHERED, _SPREAD = [3, 8, 1, 24], [8, 5]
CASES = [  # channels, maps, window, stride, padding, dilation, whether it is transposed, what is added, ReLU
    *((channels, 16, (3, 3), (2, 1), (1, 0), (1, 2), False, "", False) for channels in _GATHERED),
    *((channels, 7, (2, 3), (2, 3), (1, 0), (2, 1), True, "bias", True) for channels in _SPREAD),
    (8, 24, (1, 1), (1, 1), (0, 0), (1, 1), False, "bias other", True),
    (16, 16, (2, 2), (2, 2), (0, 0), (1, 1), True, "bias", False),
    (3, 16, (7, 7), (2, 2), (3, 3), (1, 1), False, "other", True),
    (40, 8, (3, 1), (1, 1), (1, 1), (1, 1), False, "bias", False),
    (16, 24, (1, 1), (1, 1), (0, 0), (1, 1), True, "bias", False),  # as a product with a matrix in rows
]


def lying(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def distance(case: Any, device: str, height: int = 7, width: int = 9, tile: int = 0, is_last: bool = True) -> float:
    """The greatest distance of a result of the kernel from PyTorch's in float32."""
    from trt_portable.builder.inductor.triton_kernels import convolution

    channels, maps, window, stride, padding, dilation, is_transposed, added, is_relu = case
    torch.manual_seed(0)
    x = torch.randn(2, channels, height, width, device=device).half()
    x = lying(x) if is_last else x
    extents = (channels, maps, *window) if is_transposed else (maps, channels, *window)
    kernel = lying((torch.randn(extents, device=device) / math.sqrt(channels * math.prod(window))).half())
    bias = torch.randn(maps, device=device).half() if "bias" in added else None
    given = (x.float(), kernel.float(), None if bias is None else bias.float(), stride, padding)
    wanted = F.conv_transpose2d(*given, 0, 1, dilation) if is_transposed else F.conv2d(*given, dilation)
    other = lying(torch.randn(wanted.shape, device=device).half()) if "other" in added else None
    wanted = wanted if other is None else wanted + other.float()
    wanted = wanted.relu() if is_relu else wanted
    result = lying(torch.full_like(wanted, torch.nan, dtype=torch.float16))
    found = convolutions.Convolution(x, kernel, bias, other, (stride, padding, dilation), is_transposed, is_relu)
    pixels, depth, count = found.pixels(result), *found.units
    form = convolutions.Form(tile, tile, tile, 4, 2) if tile else found.form(result)
    sizes = (pixels, height, width, *result.shape[2:], channels // depth, maps // count)
    optional = [x if each is None else each for each in (bias, other)]
    convolution[(math.ceil(pixels / form.pixels) * math.ceil(maps / form.maps),)](
        *(x, kernel, *optional, result, *sizes, *window, *stride, *padding, *dilation, *x.stride()),
        **found.flags(),
        **form.tiles(),
    )
    return (result.float() - wanted).abs().max().item()


GROUPS = [(16, 32, 2, (1, 9), (0, 4), 4), (24, 8, 1, (5, 1), (0, 0), 1), (144, 48, 3, (1, 2), (0, 1), 8)]
"""Channels, maps, groups, window, padding, parts; there may be more parts than taps."""


def grouped_distance(case: Any, device: str) -> float:
    """The greatest distance of a convolution of groups by the kernel from PyTorch's in float32."""
    channels, maps, groups, window, padding, parts = case
    torch.manual_seed(0)
    x = lying(torch.randn(2, channels, 6, 11, device=device).half())
    inner = channels // groups
    kernel = lying((torch.randn(maps, inner, *window, device=device) / math.sqrt(inner * max(window))).half())
    sums = convolutions._like_sums(x, kernel, padding, groups, parts).fill_(torch.nan)
    convolutions.grouped_call(x, kernel, padding, groups, sums).start()
    wanted = F.conv2d(x.float(), kernel.float(), padding=padding, groups=groups)
    assert sums.shape == (parts, *wanted.shape)
    return (sums.sum(0) - wanted).abs().max().item()


@pytest.mark.slow
def test_values_in_the_interpreter() -> None:
    pytest.importorskip("triton", minversion="3.7", reason="3.6 fails beside NumPy 2.4")
    found = run_interpreted(Path(__file__))
    assert len(found) == len(CASES) + len(GROUPS) and max(found) < 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_groups_on_a_gpu(case: Any) -> None:
    assert grouped_distance(case, "cuda") < 5e-3


@pytest.mark.gpu
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_on_a_gpu(case: Any, is_last: bool) -> None:
    assert distance(case, "cuda", 37, 26, is_last=is_last) < 5e-3


def test_which_blocks_are_taken() -> None:
    assert convolutions.form_for(8 * 56 * 56, 256) == convolutions.WIDE
    assert convolutions.form_for(8 * 56 * 56, 64) == convolutions.NARROW
    assert convolutions.form_for(8 * 7 * 7, 512) == convolutions.SMALL


class _Recorded:
    """A list of launches of one operator, for images of one width and any height; its kernel is not compiled."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        compiled = SimpleNamespace(
            asm={"ptx": ".entry convolution(.param .b64 x)", "cubin": b""},
            metadata=SimpleNamespace(name="convolution", num_warps=4, shared=0, launch_pdl=False),
        )
        monkeypatch.setattr(KernelCall, "compile", lambda call: compiled)
        env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
        self.mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
        self.height = tactic._number(env, 8, 24, 64, "height", True)

    def made(self, *extents: Any, dtype: torch.dtype = torch.float16, is_last: bool = True) -> torch.Tensor:
        with self.mode:
            _, channels, height, width = extents
            if not is_last:
                return torch.empty(extents, dtype=dtype, device="cuda")
            strides = (channels * height * width, 1, channels * width, channels)
            return torch.empty_strided(extents, strides, dtype=dtype, device="cuda")

    def run(self, operator: Any, *given: Any) -> LaunchRecorder:
        tensors = [each for each in given if isinstance(each, torch.Tensor)]
        recorder = LaunchRecorder(tensors, OwnOperators(unplanned=convolutions.unplanned), places_of(tensors))
        teach_cudnn_operators()
        with torch.no_grad(), self.mode, recorder:
            operator(*given)
        return recorder


_PLAIN = ([1, 1], [1, 1], [1, 1])
_NEEDS_CUDA = pytest.mark.skipif(
    not torch.backends.cuda.is_built(), reason="views of a GPU's tensors need a build that knows GPUs"
)


@_NEEDS_CUDA
def test_a_recording_for_sizes_that_vary_holds_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _Recorded(monkeypatch)
    x, kernel = recorded.made(2, 16, recorded.height, 12), recorded.made(8, 16, 3, 3)
    height = {"extent": "0.2"}
    for operator, added, rest in (
        (aten.convolution.default, (), (*_PLAIN, False, [0, 0], 1)),
        (aten.cudnn_convolution_relu.default, (), (*_PLAIN, 1)),
        (aten.cudnn_convolution_add_relu.default, (recorded.made(2, 8, recorded.height, 12), 1.0), (*_PLAIN, 1)),
    ):
        recorder = recorded.run(operator, x, kernel, *added, None, *rest)
        ((kind, planned, (allocation, launch)),) = recorder.steps
        (result,) = planned[4]
        assert (kind, planned[:2]) == ("late", ["op", operator.name()])
        assert allocation[:3] == ["empty", result, [2, 8, height, 12]] and allocation[4] == "float16"
        assert launch[0] == "kernel" and {"slot": result} in launch[3] and height in launch[3]
        json.dumps(recorder.steps)
        assert not recorded.mode.shape_env.guards  # type: ignore[union-attr]  # nothing is assumed of sizes


@_NEEDS_CUDA
def test_groups_under_long_windows_are_one_launch_for_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _Recorded(monkeypatch)
    own = convolutions.teach_grouped_convolutions()
    (operator,) = own.composed
    x, kernel = recorded.made(2, 16, recorded.height, 1), recorded.made(16, 8, 32, 1)
    recorder = LaunchRecorder([x, kernel], own, places_of([x]))
    with torch.no_grad(), recorded.mode, recorder:
        found = operator(x, kernel, [16, 0], 2, 4)
    (kind, slot, shape, *_), (_, permute, *_), (_, _, grid, given) = recorder.steps
    height = {"extent": ["add", 1, "0.2"]}
    assert (kind, slot) == ("empty", 2) and shape == [4, 2, height, 1, 16] and found.shape[:3] == (4, 2, 16)
    assert permute == "aten::permute"
    assert grid[1:] == [2, 4] and given[:5] == [{"slot": each} for each in (0, 1, 0, 0, recorder.slot(found))]
    json.dumps(recorder.steps)
    assert not recorded.mode.shape_env.guards  # type: ignore[union-attr]  # nothing is assumed of sizes


def test_taps_are_shared_out_where_pixels_are_few() -> None:
    parts = [cuda_products._parts_of_taps(pixels, 16) for pixels in (1, 24, 196, 1192, 5000, 1 << 20)]
    assert parts == [8, 8, 8, 4, 1, 1]


@_NEEDS_CUDA
def test_kernels_for_sizes_that_vary_are_known_before_a_graph_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _Recorded(monkeypatch)
    graph, own = torch.fx.Graph(), OwnOperators(unplanned=convolutions.unplanned)
    x, kernel = graph.placeholder("x"), graph.placeholder("kernel")
    x.meta["val"], kernel.meta["val"] = recorded.made(2, 16, recorded.height, 12), recorded.made(8, 16, 3, 3)
    rest = (*_PLAIN, False, [0, 0], 1)
    calls = [graph.call_function(aten.convolution.default, (x, kernel, None, *rest)) for _ in range(2)]
    with recorded.mode:
        made = aten.convolution.default(x.meta["val"], kernel.meta["val"], None, *rest)
    for call in calls:
        call.meta["val"] = made.contiguous(memory_format=torch.channels_last)
    graph.output(calls)
    module = torch.fx.GraphModule({}, graph)
    (found,) = tactic.kernels_of(module, own, dynamic=True)
    assert found.settings["TILE_MAPS"] == convolutions.SMALL.maps and found.arguments[1] is kernel.meta["val"]
    assert not recorded.mode.shape_env.guards  # type: ignore[union-attr]  # nothing is assumed of sizes
    assert tactic.kernels_of(module, own, dynamic=False) == []


@_NEEDS_CUDA
@pytest.mark.parametrize("is_turned", [True, False])
def test_products_of_sizes_that_vary_hold_both_ways(monkeypatch: pytest.MonkeyPatch, is_turned: bool) -> None:
    recorded = _Recorded(monkeypatch)
    rows = recorded.height
    with recorded.mode:
        x, kernel = (torch.empty(*extents, dtype=torch.float16, device="cuda") for extents in ((rows, 16), (24, 16)))
        matrix = kernel.t() if is_turned else torch.empty(16, 24, dtype=torch.float16, device="cuda")
        bias, other, out = (
            torch.empty(*extents, dtype=torch.float16, device="cuda") for extents in ((24,), (rows, 24), (rows, 24))
        )
        repeated = bias.expand(rows, 24)
    taken: list[Any] = []
    made = KernelCall.compile
    monkeypatch.setattr(KernelCall, "compile", lambda call: taken.append(call.settings) or made(call))
    for added, flags in (
        ((), (False, False)),
        ((bias,), (True, False)),
        ((repeated,), (True, False)),
        ((other,), (False, True)),
    ):
        tensors = [x, matrix, bias, repeated, other, out]
        operator = aten.addmm if added else aten.mm
        for named in ({}, {"out": out}):
            recorder = LaunchRecorder(tensors, OwnOperators(unplanned=convolutions.unplanned), places_of([x]))
            with torch.no_grad(), recorded.mode, recorder:
                operator(*added, x, matrix, **named)
            ((kind, planned, (*allocation, launch)),) = recorder.steps
            (result,) = planned[4]
            slots = [{"slot": recorder.slot(each)} for each in (x, matrix)]
            assert kind == "late" and [each[0] for each in allocation] == ([] if named else ["empty"])
            assert launch[3][:2] == slots and launch[3][4] == {"slot": result}
            assert {"extent": "0.0"} in launch[3]
            assert (taken[-1]["HAS_BIAS"], taken[-1]["HAS_OTHER"]) == flags
            assert taken[-1]["IS_TRANSPOSED"] is not is_turned
            json.dumps(recorder.steps)
    assert not recorded.mode.shape_env.guards  # type: ignore[union-attr]  # nothing is assumed of sizes
    with recorded.mode:
        odd = torch.empty(rows * 16 + 1, dtype=torch.float16, device="cuda")[1:].view(rows, 16)
    for left, right, named in (
        (x.float(), matrix.float(), {}),
        (odd, matrix, {}),
        (x, matrix, {"alpha": 2.0}),
    ):
        recorder = LaunchRecorder([left, right, bias], OwnOperators(unplanned=convolutions.unplanned), places_of([x]))
        with torch.no_grad(), recorded.mode, recorder:
            aten.addmm(bias.to(left.dtype), left, right, **named)
        assert recorder.steps[-1][0] == "op"


@_NEEDS_CUDA
def test_sizes_behind_strides_are_known_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _Recorded(monkeypatch)
    half = (recorded.height - 1) // 2 + 1
    x, kernel = recorded.made(2, 16, half, half), recorded.made(8, 16, 3, 3)
    with recorded.mode:
        named = torch.empty(recorded.height, device="cuda")  # so that the symbol has a place
    recorder = LaunchRecorder([x, kernel, named], OwnOperators(unplanned=convolutions.unplanned), places_of([named]))
    with torch.no_grad(), recorded.mode, recorder:
        aten.convolution.default(x, kernel, None, [2, 2], [1, 1], [1, 1], False, [0, 0], 1)
    assert [step[0] for step in recorder.steps] == ["late"]


@_NEEDS_CUDA
def test_what_the_kernel_does_not_take_is_planned_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = _Recorded(monkeypatch)
    made, height = recorded.made, recorded.height
    tail = (*_PLAIN, False, [0, 0])
    for x, kernel, groups in (
        (made(2, 16, height, 12), made(16, 8, 3, 3), 2),
        (made(2, 16, height, 12, dtype=torch.float32), made(8, 16, 3, 3, dtype=torch.float32), 1),
        (made(2, 16, height, 12), made(8, 16, 3, 3, is_last=False), 1),
    ):
        recorder = recorded.run(aten.convolution.default, x, kernel, None, *tail, groups)
        assert [step[0] for step in recorder.steps] == ["op"]


def _both_ways() -> dict[str, Any]:
    rows = {"extent": "0.0"}
    planned = ["op", "aten::mul.Tensor", [{"slot": 0}, 2.0], {}, [1]]
    unplanned = [["empty", 1, [rows, 4], [4, 1], "float32"], ["kernel", 0, [rows, 1, 1], [{"slot": 0}, {"slot": 1}]]]
    steps = [["late", planned, unplanned], ["op", "aten::neg", [{"slot": 1}], {}, [2]]]
    kernels = [{"early": False}]
    return {"operands": [{"input": 0}], "kernels": kernels, "steps": steps, "slots": 3, "outputs": [2, 1]}


class _Copies:
    """In place of launches: copies the first parameter's memory to the second one's."""

    def __init__(self, launches: Any) -> None:
        self.values: dict[int, int] = {}
        self._rows = launches[0][1][0]
        self.stream = 0

    def start(self, at: int) -> None:
        source, target = (
            launch_list.wrap_address(self.values[each], (self._rows, 4), torch.float32, CPU) for each in (0, 1)
        )
        target.copy_(source)


def test_sizes_plan_once_they_have_come_more_than_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_list, "_load_kernels", lambda described, blobs, device: [None])
    monkeypatch.setattr(launch_list, "Launches", _Copies)
    made = Artifact("t", {}, ((4, 4),), _both_ways(), {}, (Varying(0, 0, 1, 8),))
    program = CompiledProgram(made, WeightStore((), (), ()), NOTHING, CPU)
    assert program.plans_after == {RUNS_BEFORE_PLANNING_SOON} and RUNS_BEFORE_PLANNING_SOON < RUNS_BEFORE_PLANNING
    seen: dict[int, list[float]] = {2: [], 3: []}
    for rows in (2, 3, 2, 3, 2, 2):
        x = torch.randn(rows, 4)
        negated, found = program.run([x])
        assert torch.equal(negated, -found)  # type: ignore[arg-type]
        seen[rows].append((found / x).mean().item())  # type: ignore[operator]
    assert seen == {2: pytest.approx([1, 1, 2, 2]), 3: pytest.approx([1, 1])}
    with launch_list.with_plans():
        assert torch.equal(program.run([torch.ones(5, 4)])[1], torch.full((5, 4), 2.0))  # type: ignore[arg-type]


@pytest.fixture
def _on_cuda(_on_cpu: None) -> Iterator[None]:
    with trt.device("cuda"):
        yield


def _network(builder: trt.Builder) -> trt.INetworkDefinition:
    """A few convolutions with all that is added to them, for images of any sizes."""
    network = builder.create_network()
    generator = np.random.default_rng(0)

    def weights(*extents: int) -> np.ndarray[Any, Any]:
        return (generator.standard_normal(extents) / math.sqrt(math.prod(extents[1:]))).astype(np.float16)

    x = network.add_input("x", trt.float16, (-1, 3, -1, -1))
    first = network.add_convolution_nd(x, 32, (3, 3), weights(32, 3, 3, 3), weights(32))
    first.stride_nd, first.padding_nd = (2, 2), (1, 1)
    hidden = network.add_activation(first.get_output(0), trt.ActivationType.RELU).get_output(0)
    for _ in range(4):
        layer = network.add_convolution_nd(hidden, 32, (3, 3), weights(32, 32, 3, 3), weights(32))
        layer.padding_nd = (1, 1)
        total = network.add_elementwise(layer.get_output(0), hidden, trt.ElementWiseOperation.SUM).get_output(0)
        hidden = network.add_activation(total, trt.ActivationType.RELU).get_output(0)
    grown = network.add_deconvolution_nd(hidden, 8, (2, 2), weights(32, 8, 2, 2))
    grown.stride_nd = (2, 2)
    result = network.add_activation(grown.get_output(0), trt.ActivationType.TANH).get_output(0)
    result.name = "y"
    network.mark_output(result)
    return network


@pytest.mark.gpu
@pytest.mark.usefixtures("_on_cuda", "compiled_wins")
def test_an_engine_plans_no_convolution_of_a_size_that_is_new(
    builder: Any, load: Any, logger: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    monkeypatch.setitem(choose_tactic.__kwdefaults__, "tactics", TACTICS[:1])
    monkeypatch.setattr(Trial, "race_range", lambda _, tactic, program: {INTERPRET: 1e9, tactic.name: 1.0})
    ranges = {"x": ((1, 3, 16, 16), (4, 3, 64, 64), (8, 3, 128, 128))}
    engine = load(_network(builder), ranges)
    program = engine._state.executable
    assert isinstance(program, SpecializedProgram), logger.messages
    assert program.plans_after == (RUNS_BEFORE_PLANNING_SOON,), logger.messages

    class Seen(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            calls.append(func.name())
            return func(*args, **(kwargs or {}))

    for shape in ((2, 3, 48, 80), (1, 3, 16, 16), (7, 3, 128, 18)):
        x = torch.randn(shape, device="cuda", dtype=torch.float16)
        calls: list[str] = []
        with Seen(), torch.inference_mode():
            first = program.run([x])[0]
            assert not [name for name in calls if "convolution" in name]
            with launch_list.with_plans():
                second = program.run([x])[0]
        assert len([name for name in calls if "convolution" in name]) >= 5  # windows side by side may be a product
        torch.testing.assert_close(first, second, rtol=2e-2, atol=2e-2)
        assert first.stride() == second.stride()  # type: ignore[union-attr]
    context = engine.create_execution_context()
    x = torch.randn(3, 3, 32, 40, device="cuda", dtype=torch.float16)
    assert context.set_input_shape("x", tuple(x.shape))
    with launch_list.with_plans():
        wanted = program.run([x])[0]
    for _ in range(8):  # from the host, recorded without plans and with them, and replayed
        found = torch.full((3, 8, 32, 40), torch.nan, dtype=torch.float16, device="cuda")
        for name, tensor in {"x": x, "y": found}.items():
            assert context.set_tensor_address(name, tensor.data_ptr())
        assert context.execute_async_v3(torch.cuda.current_stream().cuda_stream)
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)


if __name__ == "__main__":  # in the interpreter
    errors = [distance(case, "cpu", 5, 6, tile=16, is_last=at % 2 == 0) for at, case in enumerate(CASES)]
    errors += [grouped_distance(case, "cpu") for case in GROUPS]
    print(json.dumps(errors))  # noqa: T201 - what the test reads
