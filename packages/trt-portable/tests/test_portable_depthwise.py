"""The kernel for depthwise convolutions: against PyTorch's, in Triton's interpreter and on a GPU, and in engines."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from triton_interpreter import run_interpreted

import trt_portable as trt
from trt_portable.builder.autotune.autotuner import Autotuner, building, tactic_hash
from trt_portable.builder.autotune.timing_cache import ITimingCache
from trt_portable.builder.inductor.repetition import places_of
from trt_portable.builder.inductor.tactic import Inductor
from trt_portable.execution.launch_list import SpecializedProgram
from trt_portable.execution.loaded_network import WeightLayout

pytest.importorskip("triton")

ACTIVATIONS: Final[dict[str, Any]] = {"none": lambda x: x, "relu": F.relu, "hardswish": F.hardswish, "swish": F.silu}
CASES: Final = [  # channels, extents, window, stride, padding, dilation, bias, activation
    (8, (5, 4), (3, 3), (1, 1), (1, 1), (1, 1), True, "none"),
    (40, (9, 7), (5, 3), (2, 1), (2, 0), (1, 1), False, "hardswish"),
    (16, (8, 8), (7, 7), (1, 1), (3, 3), (1, 1), True, "relu"),
    (16, (8, 9), (3, 3), (1, 2), (2, 2), (2, 2), True, "swish"),
    (8, (6, 11), (3, 3), (2, 2), (1, 1), (2, 1), True, "relu"),
]
EVERYTHING: Final = [
    (case, form) for case in CASES for form in ("PIXELS", "STRIPS") if form == "PIXELS" or case[5][1] == 1
]


def convolved(x: torch.Tensor, kernel: torch.Tensor, *given: Any, form: Any) -> torch.Tensor:
    """What one of our kernels computes."""
    from trt_portable.builder.inductor import depthwise

    result = depthwise.like_result(x, kernel, *given[1:4])
    depthwise.convolution_call(x, kernel, *given, result, depthwise._FORMS.index(form)).start()
    return result


def difference(device: str, case: Any, kernel_form: str = "PIXELS") -> float:
    """The distance of the result of one of our kernels from PyTorch's, over its size."""
    from trt_portable.builder.inductor import depthwise

    channels, extents, window, stride, padding, dilation, has_bias, activation = case
    torch.manual_seed(0)
    x = torch.randn(2, channels, *extents, device=device).half().contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(channels, 1, *window, device=device).half()
    bias = torch.randn(channels, device=device).half() if has_bias else None
    geometry = (list(stride), list(padding), list(dilation))
    laid_out = WeightLayout.taps_first(tuple(kernel.shape)).of(kernel.reshape(-1))
    assert torch.equal(laid_out, kernel)
    found = convolved(x, laid_out, bias, *geometry, activation, form=getattr(depthwise, kernel_form))
    plain = F.conv2d(x.float(), kernel.float(), None if bias is None else bias.float(), *geometry, groups=channels)
    wanted = ACTIVATIONS[activation](plain)
    assert found.shape == wanted.shape and found.is_contiguous(memory_format=torch.channels_last)
    return ((found.float() - wanted).norm() / wanted.norm()).item()


@pytest.mark.slow
def test_in_the_interpreter() -> None:
    found = run_interpreted(Path(__file__))
    assert len(found) == len(EVERYTHING) and max(found) < 2e-3


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "form"), EVERYTHING, ids=str)
def test_on_a_gpu(case: Any, form: str) -> None:
    assert difference("cuda", case, form) < 2e-3


def test_which_kernels_are_tried() -> None:
    from trt_portable.builder.inductor.depthwise import PIXELS, STRIPS, forms_for

    assert forms_for((1, 96, 56, 56), (1, 1)) == (PIXELS,)
    assert forms_for((64, 96, 56, 56), (1, 1)) == forms_for((64, 96, 56, 56), (2, 1)) == (PIXELS, STRIPS)
    assert forms_for((64, 96, 56, 56), (1, 2)) == (PIXELS,)


@pytest.mark.gpu
def test_the_faster_kernel_is_remembered() -> None:
    from trt_portable.builder.inductor import depthwise

    x = torch.randn(16, 64, 64, 64, device="cuda").half().contiguous(memory_format=torch.channels_last)
    kernel = torch.randn(3, 3, 64, 1, device="cuda").half().permute(2, 3, 0, 1)
    operands = (x, kernel, None, [2, 2], [1, 1], [1, 1], "relu")
    cache = ITimingCache()
    with building(Autotuner(cache, may_measure=True)):
        found = depthwise.convolve(*operands)
    (key,) = cache.queryKeys()
    for form in (depthwise.PIXELS, depthwise.STRIPS):
        torch.testing.assert_close(convolved(*operands, form=form), found, rtol=2e-3, atol=2e-3)
    forms = {tactic_hash(form.kernel.__name__): form for form in (depthwise.PIXELS, depthwise.STRIPS)}
    form = forms[cache.query(key).tacticHash]
    assert torch.equal(depthwise.convolve(*operands), convolved(*operands, form=form))


def test_recordings_know_all_operators_that_graphs_call() -> None:
    from trt_portable.builder.inductor import convolutions, decoding, depthwise, unaligned_products
    from trt_portable.builder.inductor.tactic import _teach_own_operators

    own = _teach_own_operators()
    kernels = {operator.name() for operator in decoding._kernels().values()}
    others = {convolutions.KERNEL, depthwise.KERNEL, unaligned_products.KERNEL}
    assert {operator.name() for operator in own.launched} == others | kernels
    products = {decoding.PRODUCT, decoding.CODES_PRODUCT, decoding.CHOSEN_PRODUCT, decoding.GROUPED_PRODUCT}
    composed = {*products, decoding.DECODED, decoding.ATTENTION, decoding.UPDATING_ATTENTION}
    others = {convolutions.OPERATOR, depthwise.OPERATOR, unaligned_products.OPERATOR}
    assert {operator.name() for operator in own.composed} == others | composed


def test_a_recording_holds_memory_for_the_result_and_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    from trt_portable.builder.inductor import depthwise
    from trt_portable.builder.inductor.own_operators import KernelCall
    from trt_portable.builder.inductor.tactic import LaunchRecorder, _teach_own_operators

    compiled = SimpleNamespace(
        asm={"ptx": ".entry depthwise(.param .b64 x)", "cubin": b"code"},
        metadata=SimpleNamespace(name="depthwise", num_warps=4, shared=0, launch_pdl=False),
    )
    monkeypatch.setattr(KernelCall, "start", lambda call: compiled)
    own = _teach_own_operators()
    (operator,) = [each for each in own.composed if each.name() == depthwise.OPERATOR]
    x, kernel = torch.zeros(1, 8, 4, 6).half(), torch.zeros(3, 3, 8, 1).half().permute(2, 3, 0, 1)
    x = x.contiguous(memory_format=torch.channels_last)
    recorder = LaunchRecorder([x, kernel], own)
    with torch.no_grad(), recorder:
        found = operator(x, kernel, None, [1, 1], [1, 1], [1, 1], "relu")
    given = [{"slot": 0}, {"slot": 1}, {"slot": 0}, {"slot": recorder.slot(found)}, 24, 4, 6, 4, 6, 1]
    assert recorder.steps == [
        ["empty", 2, [1, 8, 4, 6], [192, 1, 48, 8], "float16"],
        ["kernel", 0, [2, 1, 1], given],
    ]
    assert recorder.blobs == {"kernel 0": b"code"} and recorder.kernels[0]["types"] == "OOOO" + "i" * 6


def test_a_recording_for_sizes_that_vary_takes_them_as_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    from trt_portable.builder.inductor import depthwise, tactic
    from trt_portable.builder.inductor.own_operators import KernelCall, largest_size

    compiled = SimpleNamespace(
        asm={"ptx": ".entry depthwise(.param .b64 x)", "cubin": b"code"},
        metadata=SimpleNamespace(name="depthwise", num_warps=4, shared=0, launch_pdl=False),
    )
    monkeypatch.setattr(KernelCall, "compile", lambda call: compiled)
    own = tactic._teach_own_operators()
    (operator,) = [each for each in own.composed if each.name() == depthwise.OPERATOR]
    env = ShapeEnv(specialize_zero_one=False, duck_shape=False)
    mode = FakeTensorMode(shape_env=env, allow_non_fake_inputs=True)
    batch, height = (tactic._number(env, 1, 8, 64, name, True) for name in ("batch", "height"))
    with mode:
        x = torch.empty_strided((batch, 8, height, 6), (48 * height, 1, 48, 8), dtype=torch.float16)
        kernel = torch.empty(3, 3, 8, 1, dtype=torch.float16).permute(2, 3, 0, 1)
    graph = torch.fx.Graph()
    holders = [graph.placeholder(name) for name in ("x", "kernel")]
    holders[0].meta["val"], holders[1].meta["val"] = x, kernel
    rest = (None, [2, 2], [1, 1], [1, 1], "relu")
    graph.output(graph.call_function(operator, (*holders, *rest)))
    before = tactic.kernels_of(torch.fx.GraphModule({}, graph), own, dynamic=True)
    assert {call.kernel for call in before} == {depthwise.PIXELS.kernel}

    recorder = tactic.LaunchRecorder([x, kernel], own, places_of([x, kernel]))
    with torch.no_grad(), mode, recorder:
        found = operator(x, kernel, *rest)
    (kind, slot, shape, *_), (_, index, grid, given) = recorder.steps
    assert (kind, slot, index) == ("empty", recorder.slot(found), 0) and shape[::3] == [{"extent": "0.0"}, 3]
    pixels = ["mul", 3, "0.0", ["add", 1, ["floordiv", ["add", -1, "0.2"], 2]]]
    assert grid == [{"extent": ["floordiv", ["add", 15, pixels], 16]}, 1, 1]
    assert given[5:7] == [{"extent": "0.2"}, 6] and given[8:10] == [3, 1]
    json.dumps(recorder.steps)
    assert not env.guards  # nothing is assumed of sizes
    assert largest_size(batch * height) == 64 * 64 and largest_size(7) == 7
    monkeypatch.setattr(depthwise, "_MOST_ELEMENTS", 64 * 64 * 48)
    with pytest.raises(RuntimeError, match="too large"):
        depthwise.convolution_call(x, kernel, *rest, found, 0)


def test_operands_that_lie_in_another_way_are_refused() -> None:
    from trt_portable.builder.inductor.depthwise import convolution_call

    x, kernel = torch.zeros(1, 8, 4, 4).half(), torch.zeros(8, 1, 3, 3).half()
    with pytest.raises(RuntimeError, match="another way"):
        convolution_call(x, kernel, None, [1, 1], [1, 1], [1, 1], "none", torch.zeros_like(x), 0)


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ["none", "relu", "hardswish"])
def test_in_an_engine(builder: Any, load: Any, compiled_wins: None, monkeypatch: Any, activation: str) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 1)
    with trt.device("cuda"):
        network = builder.create_network()
        generator = np.random.default_rng(0)
        x = network.add_input("x", trt.float16, (-1, 16, 12, 12))
        y = x
        for _ in range(3):
            weights = generator.standard_normal((16, 1, 3, 3)).astype(np.float16) / 3
            layer = network.add_convolution_nd(y, 16, (3, 3), weights, np.full(16, 0.1, np.float16))
            layer.padding_nd, layer.num_groups = (1, 1), 16
            y = layer.get_output(0)
            if activation == "relu":
                y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
            if activation == "hardswish":
                gate = network.add_activation(y, trt.ActivationType.HARD_SIGMOID)
                gate.alpha, gate.beta = 1 / 6, 0.5
                y = network.add_elementwise(y, gate.get_output(0), trt.ElementWiseOperation.PROD).get_output(0)
        y.name = "y"
        network.mark_output(y)
        engine = load(network, {"x": ((1, 16, 12, 12), (2, 16, 12, 12), (4, 16, 12, 12))})
        assert isinstance(engine._state.executable, SpecializedProgram)
        compiled, *_ = engine._state.executable._compiled  # that for the optimal shape comes first
        assert len(compiled._steps.runs) <= 12
        for batch in (2, 3):
            given = torch.randn(batch, 16, 12, 12, device="cuda", dtype=torch.float16)
            with torch.inference_mode():
                (found,), (wanted,) = (each.run([given]) for each in (engine._state.executable, engine._state.program))
            torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2)


if __name__ == "__main__":
    print(json.dumps([difference("cpu", case, form) for case, form in EVERYTHING]))  # noqa: T201
