"""Quantization, however a graph spells it, ends up as `trt::quantize` and `trt::dequantize`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from trt_core import CompilationSettings, read_settings
from trt_core.operators import argument
from trt_core.quantization import dequantize, quantize
from trt_lowering import lower

pytestmark = pytest.mark.sampled(4)

importlib.import_module("torch.ao.quantization.fx._decomposed")
library = torch.ops.quantized_decomposed
aten = torch.ops.aten

WEIGHT = torch.randint(-127, 128, (6, 8), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
FLOAT_WEIGHT = torch.randn(6, 8, generator=torch.Generator().manual_seed(1))
SCALES = torch.linspace(0.01, 0.06, 6)


class Called(nn.Module):
    """A function of an input and of what the model holds."""

    def __init__(self, function: Callable[..., torch.Tensor], **held: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, value in held.items():
            self.register_buffer(name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self, x)


def lowered(
    module: nn.Module, x: torch.Tensor, whole: tuple[Any, ...] = (), **settings: Any
) -> tuple[torch.fx.GraphModule, list[Any]]:
    program = torch.export.export(module.eval(), (x,))
    kept = {quantize, dequantize, aten.linear.default, aten.mm.default, aten.conv2d.default, aten._int_mm.default}
    chosen = read_settings(settings) if settings else CompilationSettings()
    gm = lower(program, chosen, preserve=lambda target: target in kept or target in whole)
    return gm, [node.target for node in gm.graph.nodes if node.op == "call_function"]


def check(module: nn.Module, x: torch.Tensor, targets: list[Any]) -> torch.fx.GraphModule:
    expected = module(x)
    gm, found = lowered(module, x)
    assert found == targets
    torch.testing.assert_close(gm(x), (expected,) if isinstance(gm(x), tuple) else expected, rtol=1e-5, atol=1e-5)
    return gm


def _per_channel(m: Any, x: torch.Tensor) -> torch.Tensor:
    weight = library.dequantize_per_channel(m.w, m.s, m.z, 0, -127, 127, torch.int8)
    steps = library.quantize_per_tensor(x, 0.05, 0, -128, 127, torch.int8)
    return functional.linear(library.dequantize_per_tensor(steps, 0.05, 0, -128, 127, torch.int8), weight)


def _groups(m: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(
        x, library.dequantize_per_channel_group(m.w, m.s, m.z, -8, 7, torch.int8, 4, torch.float32)
    )


def _scaled_weight(m: Any, x: torch.Tensor) -> torch.Tensor:
    return x @ (m.w.t().to(torch.float32) * m.s)


def _scaled_product(m: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, m.w.t().to(torch.float32)) * m.s


def _modelopt(m: Any, x: torch.Tensor) -> torch.Tensor:
    operator = torch.ops.tensorrt.quantize_op
    return functional.linear(operator(x, m.a, 8, 4, False, False), operator(m.w, m.s, 8, 4, False, False))


def _trained(m: Any, x: torch.Tensor) -> torch.Tensor:
    weight = torch.fake_quantize_per_channel_affine(m.w, m.s, m.z, 0, -127, 127)
    return functional.linear(torch.fake_quantize_per_tensor_affine(x, 0.04, 0, -128, 127), weight)


def _multiplies_unsigned() -> bool:
    try:
        torch._int_mm(torch.ones(32, 32, dtype=torch.uint8), torch.ones(32, 32, dtype=torch.int8))
    except RuntimeError:
        return False
    return True


def _detour(m: Any, x: torch.Tensor) -> torch.Tensor:
    steps = quantize(x, m.s, torch.int8)
    shifted = (steps.to(torch.int32) + 128).to(torch.uint8)
    product = torch._int_mm(shifted, m.w)
    return product - m.w.sum([0], keepdim=True, dtype=torch.int32) * 128


Q, DQ = quantize, dequantize
ZEROS = torch.zeros(6, dtype=torch.int64)
LINEAR, MM = aten.linear.default, aten.mm.default


@pytest.mark.parametrize(
    ("function", "held", "targets"),
    [
        (_per_channel, {"w": WEIGHT, "s": SCALES.double(), "z": ZEROS}, [DQ, Q, DQ, LINEAR]),
        (
            _groups,
            {"w": WEIGHT.clamp(-8, 7), "s": torch.rand(6, 2) + 0.1, "z": torch.zeros(6, 2, dtype=torch.int64)},
            [DQ, LINEAR],
        ),
        (_scaled_product, {"w": WEIGHT, "s": SCALES}, [DQ, MM]),
        (_modelopt, {"w": FLOAT_WEIGHT, "a": torch.tensor(3.0), "s": torch.rand(6, 1) + 1}, [Q, DQ, DQ, LINEAR]),
        (_trained, {"w": FLOAT_WEIGHT, "s": SCALES, "z": ZEROS.int()}, [DQ, Q, DQ, LINEAR]),
        pytest.param(
            _detour,
            {"w": WEIGHT.t().contiguous(), "s": torch.tensor(0.03)},
            [Q, aten._int_mm.default],
            marks=pytest.mark.skipif(
                not _multiplies_unsigned(), reason="this release of PyTorch multiplies int8 alone on the CPU"
            ),
        ),
    ],
)
def test_every_spelling_becomes_the_one_form(
    function: Callable[..., torch.Tensor], held: dict[str, torch.Tensor], targets: list[Any]
) -> None:
    gm = check(Called(function, **held), torch.randn(3, 8), targets)
    stored = [node.args[0] for node in gm.graph.nodes if node.target is DQ and node.args[0].op == "get_attr"]
    assert all(node.meta["val"].dtype in (torch.int8, torch.float8_e4m3fn) for node in stored)


def test_a_scaled_weight_stays_quantized_and_transposed() -> None:
    gm, targets = lowered(Called(_scaled_weight, w=WEIGHT, s=SCALES), torch.randn(3, 8))
    assert targets[0] is DQ and aten.mul.Tensor not in targets
    (weight,) = gm.graph.find_nodes(op="call_function", target=DQ)
    assert weight.args[0].meta["val"].shape == (8, 6) and weight.args[4] == 1


def _zeros_of(low: int, high: int, *shape: int) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(2))


def _whole_shifted(m: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, library.dequantize_per_tensor(m.w, 0.03, 7, -128, 127, torch.int8))


def _unsigned(m: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, library.dequantize_per_channel(m.w, m.s, m.z, 0, 0, 255, torch.uint8))


def _channels_shifted(m: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, library.dequantize_per_channel(m.w, m.s, m.z, 0, -128, 127, torch.int8))


@pytest.mark.parametrize(
    ("function", "held", "bits"),
    [
        (_whole_shifted, {"w": WEIGHT}, 8),
        (_channels_shifted, {"w": WEIGHT, "s": SCALES.double(), "z": _zeros_of(-128, 128, 6)}, 8),
        (_unsigned, {"w": (WEIGHT.int() + 128).to(torch.uint8), "s": SCALES, "z": _zeros_of(0, 256, 6)}, 8),
        (_groups, {"w": WEIGHT.clamp(-8, 7), "s": torch.rand(6, 2) + 0.1, "z": _zeros_of(-8, 8, 6, 2)}, 4),
    ],
)
def test_zero_points_of_weights_become_a_shift(
    function: Callable[..., torch.Tensor], held: dict[str, torch.Tensor], bits: int
) -> None:
    module, x = Called(function, **held), torch.randn(3, 8)
    gm, targets = lowered(module, x)
    assert targets.count(DQ) == 1
    torch.testing.assert_close(gm(x), (module(x),) if isinstance(gm(x), tuple) else module(x), rtol=1e-5, atol=1e-5)
    (weight,) = gm.graph.find_nodes(op="call_function", target=DQ)
    assert weight.args[0].op == "get_attr" and weight.args[0].meta["val"].dtype is torch.int8
    assert argument(weight, "bits") == bits
    offsets = [node.meta["val"].numel() for node in gm.graph.find_nodes(op="get_attr") if node is not weight.args[0]]
    assert max(offsets) <= 12  # one for each scale


def test_weights_that_use_the_whole_of_int8_stay_small() -> None:
    def spelled(m: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.embedding(x.long(), (m.w.to(torch.float32) - m.z) * m.s[:, None])

    codes = WEIGHT.clone()
    codes[0, 0] = -128
    gm, targets = lowered(Called(spelled, w=codes, s=SCALES, z=ZEROS[:, None].float()), torch.ones(3))
    assert DQ in targets
    (weight,) = gm.graph.find_nodes(op="call_function", target=DQ)
    assert weight.args[0].meta["val"].dtype is torch.int8


def test_zero_points_and_scales_of_the_graph_are_left_to_the_float_path() -> None:
    def shifted(m: Any, x: torch.Tensor) -> torch.Tensor:
        steps = library.quantize_per_tensor(x, 0.05, 3, -128, 127, torch.int8)
        return library.dequantize_per_tensor(steps, 0.05, 3, -128, 127, torch.int8)

    _, targets = lowered(Called(shifted), torch.randn(8))
    assert DQ not in targets

    def dynamic(m: Any, x: torch.Tensor) -> torch.Tensor:
        scale, zero = library.choose_qparams.tensor(x, -128, 127, 1e-6, torch.int8)
        steps = library.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
        return library.dequantize_per_tensor.tensor(steps, scale, zero, -128, 127, torch.int8)

    x = torch.randn(3, 8)
    gm, targets = lowered(Called(dynamic), x)
    assert not any("choose" in str(target) for target in targets)
    assert all(node.meta["val"].dtype is not torch.float64 for node in gm.graph.nodes if node.op == "call_function")
    torch.testing.assert_close(gm(x), Called(dynamic)(x))


@pytest.mark.parametrize("settings", [{"precision": torch.bfloat16}, {"enable_autocast": True}])
def test_products_read_dequantized_values_of_their_own_type(settings: dict[str, Any]) -> None:
    gm, _ = lowered(
        Called(_modelopt, w=FLOAT_WEIGHT, a=torch.tensor(3.0), s=torch.rand(6, 1) + 1), torch.randn(3, 8), **settings
    )
    (product,) = gm.graph.find_nodes(op="call_function", target=LINEAR)
    assert product.meta["val"].dtype in (torch.bfloat16, torch.float16)
    assert all(operand.target is DQ for operand in product.args[:2])
    for node in gm.graph.find_nodes(op="call_function", target=DQ):
        assert node.args[1].meta["val"].dtype is torch.float32


def test_weights_inside_of_subclasses_are_opened() -> None:
    torchao = pytest.importorskip("torchao.quantization")
    module = nn.Sequential(nn.Linear(32, 16)).eval()
    torchao.quantize_(module, torchao.Int8WeightOnlyConfig())
    x = torch.randn(3, 32)
    gm, targets = lowered(module, x)
    assert targets[0] is DQ
    assert all(
        type(value) in (torch.Tensor, nn.Parameter)
        for value in (*gm.parameters(), *gm.buffers())
        if value.dtype is torch.int8
    )
    torch.testing.assert_close(gm(x), module(x), rtol=1e-4, atol=1e-4)


def test_every_reader_of_a_weight_dequantizes_it() -> None:
    def shared(m: Any, x: torch.Tensor) -> torch.Tensor:
        weight = dequantize(m.w, m.s, torch.float32, 8, 0)
        again = dequantize(m.w, m.s, torch.float32, 8, 0)
        hidden = functional.linear(x, weight)
        return functional.linear(hidden @ hidden.t(), weight[:, :3]) + functional.linear(x, again)

    gm, _ = lowered(Called(shared, w=WEIGHT, s=SCALES), torch.randn(3, 8))
    found = gm.graph.find_nodes(op="call_function", target=DQ)
    assert len(found) == 3 and all(len(node.users) == 1 for node in found)
    assert len({node.args[0] for node in found}) == 1


@pytest.mark.parametrize("scale", [None, 0.3, 1.0])
@pytest.mark.parametrize("settings", [{}, {"precision": torch.bfloat16}])
def test_attention_reads_a_query_that_is_dequantized_to_its_scale(
    scale: float | None, settings: dict[str, Any]
) -> None:
    def attend(m: Any, x: torch.Tensor) -> torch.Tensor:
        kept = dequantize(quantize(x, m.s, torch.int8), m.s, x.dtype)
        return functional.scaled_dot_product_attention(kept, kept, kept, scale=scale)

    attention = aten.scaled_dot_product_attention.default
    module, x = Called(attend, s=torch.tensor(0.04)), torch.randn(1, 2, 5, 8)
    gm, _ = lowered(module, x, (attention,), **settings)
    (node,) = gm.graph.find_nodes(op="call_function", target=attention)
    assert all(operand.target is DQ for operand in node.args[:3])
    assert node.kwargs["scale"] == 1.0
    assert aten.mul.Tensor not in [item.target for item in gm.graph.nodes]
    torch.testing.assert_close(gm(x), module(x), rtol=2e-2 if settings else 1e-4, atol=3e-2 if settings else 1e-5)


def _nibbles(m: Any) -> torch.Tensor:
    """Two integers of 4 bits in a byte, the first in the lower half."""
    return torch.stack((m.w.bitwise_and(15), m.w.bitwise_right_shift(4)), -1).flatten(-2)


def _shifted_groups(m: Any, x: torch.Tensor) -> torch.Tensor:
    codes = (_nibbles(m).to(torch.float32) - 8.0).view(6, 2, 8)
    return functional.linear(x, (codes * m.s.view(6, 2, 1)).view(6, 16))


def _looked_up(m: Any, x: torch.Tensor) -> torch.Tensor:
    codes = m.table[_nibbles(m).to(torch.int64)].view(6, 1, 16)
    return functional.linear(x, (codes * (m.s.to(torch.float32) * m.outer)[..., None]).reshape(6, 16))


def _unsigned(m: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.linear(x, (_nibbles(m).to(torch.float32) - m.z) * m.s)


BYTES = torch.randint(0, 256, (6, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


@pytest.mark.parametrize(
    ("function", "held", "bits", "dtype"),
    [
        (_shifted_groups, {"s": torch.rand(6, 2) + 0.1}, 4, torch.int8),
        (
            _looked_up,
            {
                "s": (torch.rand(6, 1) + 0.5).to(torch.float8_e4m3fn),
                "outer": torch.tensor(0.01),
                "table": torch.cat((E2M1, -E2M1)),
            },
            4,
            torch.float8_e4m3fn,
        ),
        (_unsigned, {"s": torch.rand(6, 1) + 0.1, "z": torch.randint(0, 16, (6, 1)).float()}, 4, torch.int8),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"precision": torch.float16}])
def test_weights_that_are_unpacked_by_arithmetic_stay_small(
    function: Callable[..., Any], held: dict[str, torch.Tensor], bits: int, dtype: torch.dtype, settings: dict[str, Any]
) -> None:
    module, x = Called(function, w=BYTES, **held), torch.randn(3, 16)
    gm, targets = lowered(module, x, **settings)
    (weight,) = gm.graph.find_nodes(op="call_function", target=DQ)
    assert targets.count(LINEAR) == 1 and aten.mul.Tensor not in targets
    assert (weight.args[0].op, weight.args[0].meta["val"].dtype, weight.args[3]) == ("get_attr", dtype, bits)
    assert weight.args[1].meta["val"].dtype is (torch.float8_e4m3fn if function is _looked_up else torch.float32)
    tolerance = 2e-2 if settings else 1e-5
    torch.testing.assert_close(gm(x), module(x), rtol=tolerance, atol=tolerance)


def test_floats_that_are_scaled_stay_floats() -> None:
    def scaled(m: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, m.w.to(torch.float32) * m.s)

    for weight in (torch.randn(6, 8).half(), torch.zeros(6, 8).half()):
        _, targets = lowered(Called(scaled, w=weight, s=torch.rand(6, 1)), torch.randn(3, 8))
        assert DQ not in targets


def test_weights_that_may_be_replaced_stay_floats() -> None:
    _, targets = lowered(Called(_shifted_groups, w=BYTES, s=torch.rand(6, 2)), torch.randn(3, 16), refit=True)
    assert DQ not in targets
