"""Types: what engines compute in, while inputs and outputs keep theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends

# one linear layer in half precision: a relative rounding step of 2^-11 (2^-8 for bfloat16), accumulated over 8 terms
TOLERANCE = {torch.float16: 5e-3, torch.bfloat16: 4e-2, torch.float32: 1e-5}


def _binding_types(compiled: nn.Module) -> set[torch.dtype]:
    return {binding.dtype for child in compiled.children() for binding in (*child.header.inputs, *child.header.outputs)}


def _types_inside(report: Any) -> set[str]:
    return set(report.engines[0].operators_by_kind)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_precision_converts_the_inside_only(mlp: nn.Module, dtype: torch.dtype) -> None:
    x = torch.randn(16, 4)
    compiled = trt_frontends.compile(mlp, arg_inputs=(x,), precision=dtype)
    found, expected = compiled(x), mlp(x)
    assert found.dtype is torch.float32
    assert _binding_types(compiled) == {torch.float32}
    torch.testing.assert_close(found, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert not torch.equal(found, expected)  # computed in fewer bits


def test_names_of_types_are_read(mlp: nn.Module) -> None:
    x = torch.randn(16, 4)
    by_name = trt_frontends.compile(mlp, arg_inputs=(x,), precision="fp16")
    by_type = trt_frontends.compile(mlp, arg_inputs=(x,), precision=torch.half)
    torch.testing.assert_close(by_name(x), by_type(x), rtol=0, atol=0)


def test_autocast_keeps_types_of_inputs_and_outputs(mlp: nn.Module) -> None:
    x = torch.randn(16, 4)
    compiled = trt_frontends.compile(mlp, arg_inputs=(x,), enable_autocast=True, autocast_dtype=torch.bfloat16)
    found = compiled(x)
    assert found.dtype is torch.float32
    torch.testing.assert_close(found, mlp(x), rtol=4e-2, atol=4e-2)
    assert not torch.equal(found, mlp(x))
    assert any("_to_copy" in name or "to.dtype" in name for name in _types_inside(compiled.meta["partition_report"]))


def test_enabled_precisions_still_work_and_say_what_to_write(mlp: nn.Module) -> None:
    x = torch.randn(16, 4)
    with pytest.warns(DeprecationWarning, match="enable_autocast"):
        compiled = trt_frontends.compile(mlp, arg_inputs=(x,), enabled_precisions={torch.float32, torch.float16})
    torch.testing.assert_close(compiled(x), mlp(x), rtol=5e-3, atol=5e-3)


def test_without_a_precision_half_models_stay_half(mlp: nn.Module) -> None:
    model, x = mlp.to(torch.float16), torch.randn(16, 4, dtype=torch.float16)
    compiled = trt_frontends.compile(model, arg_inputs=(x,))
    assert _binding_types(compiled) == {torch.float16}
    torch.testing.assert_close(compiled(x), model(x), rtol=5e-3, atol=5e-3)


def test_double_models_run_in_pytorch_unless_truncated(mlp: nn.Module) -> None:
    model, x = mlp.double(), torch.randn(16, 4, dtype=torch.float64)
    refused = trt_frontends.compile(model, arg_inputs=(x,))
    assert {node.verdict.code for node in refused.meta["partition_report"].torch_nodes} == {"TRT-F010"}
    torch.testing.assert_close(refused(x), model(x))

    truncated = trt_frontends.compile(model, arg_inputs=(x,), truncate_long_and_double=True, min_block_size=1)
    report = truncated.meta["partition_report"]
    assert len(report.engines) == 1
    assert report.engines[0].operators_by_kind["torch.ops.aten.linear.default"] == 2
    found = truncated(x)
    assert found.dtype is torch.float64
    torch.testing.assert_close(found, model(x), rtol=1e-5, atol=1e-5)


def test_double_weights_are_truncated_once_and_the_model_keeps_its_own(mlp: nn.Module) -> None:
    model = mlp.double()
    trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4, dtype=torch.float64),), truncate_long_and_double=True)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float64}


def test_integer_inputs_keep_their_type() -> None:
    class Lookup(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(10, 4)

        def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.relu(self.table(ids)), ids * 2

    ids = torch.randint(0, 10, (2, 3))
    model = Lookup()
    for settings in ({}, {"truncate_long_and_double": True}, {"precision": torch.float16}):
        compiled = trt_frontends.compile(model, arg_inputs=(ids,), min_block_size=1, **settings)
        found, expected = compiled(ids), model(ids)
        assert [value.dtype for value in found] == [torch.float32, torch.int64]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


class Rotary(nn.Module):
    """Angles of positions, as language models compute them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", 1.0 / 100 ** (torch.arange(4) / 4))

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = positions.float()[:, None] @ self.frequencies[None, :]
        return torch.tanh(x) * torch.cat((angles.cos(), angles.sin()), -1)


class Constants(nn.Module):
    """The same, of positions that are known."""

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        angles = torch.arange(5000, dtype=torch.float32)[-3:, None] * 0.9
        return torch.tanh(x) * angles.sin()


class Buckets(nn.Module):
    """Rows of a table, found by arithmetic in floats."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5000, 8)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x) + self.table((positions.float() * 1.0).floor().long().clamp(max=4999))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("model", [Rotary(), Constants(), Buckets()], ids=["angles", "constants", "indices"])
def test_positions_are_counted_in_float32(model: nn.Module, dtype: torch.dtype) -> None:
    inputs = torch.randn(3, 8), torch.tensor([257, 2049, 4095])
    compiled = trt_frontends.compile(model.eval(), arg_inputs=inputs, precision=dtype, min_block_size=1)
    tolerance = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=tolerance, atol=tolerance)
    kept = compiled.meta["partition_report"].to_text()
    assert isinstance(model, Constants) or "position: computed from integers" in kept


def test_masks_of_integers_are_reduced_and_stop_at_the_largest_number() -> None:
    class Masked(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x + (1.0 - mask.float()) * torch.finfo(torch.float32).min, -1)

    inputs = torch.randn(2, 4), torch.tensor([[1, 1, 0, 0], [0, 0, 0, 0]])
    compiled = trt_frontends.compile(Masked(), arg_inputs=inputs, precision=torch.float16, min_block_size=1)
    torch.testing.assert_close(compiled(*inputs), Masked()(*inputs), rtol=5e-3, atol=5e-3)


def test_statistics_beyond_float16_are_kept() -> None:
    norm = nn.BatchNorm2d(2).eval()
    norm.running_var.fill_(4e6)
    norm.running_mean.fill_(7e4)
    x = torch.randn(1, 2, 4, 4) * 2e3 + 6e4
    compiled = trt_frontends.compile(norm, arg_inputs=(x,), precision=torch.float16, min_block_size=1)
    torch.testing.assert_close(compiled(x), norm(x), rtol=0, atol=0.05)
