"""Normalization against eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters.testing import check_conversion, emitted_layers, samples_from_opinfo
from trt_core import Reason

pytestmark = pytest.mark.sampled(3)

aten = torch.ops.aten
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BATCH = {0: {0: (1, 2, 4)}}
randn = torch.randn
torch.manual_seed(0)
X, W, B, MEAN, VAR = randn(2, 6, 5, 5), randn(6), randn(6), randn(6), torch.rand(6) + 0.5


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 6), (2, 6, 3), (2, 6, 5, 5), (2, 6, 3, 4, 5)])
def test_batch_norm_with_running_statistics(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    parameters = [part.to(dtype) for part in (W, B, MEAN, VAR)]
    args = (randn(shape).to(dtype), *parameters, False, 0.1, 1e-5, True)
    # the folded coefficients are rounded to the type: two more roundings than PyTorch's, of terms that may cancel
    tolerance = 8 * torch.finfo(dtype).eps
    check_conversion(
        aten.batch_norm.default, args, constants=(1, 2, 3, 4), dynamic=BATCH, rtol=tolerance, atol=tolerance
    )


def test_batch_norm_with_known_statistics_is_one_scale_layer() -> None:
    args = (X, W, B, MEAN, VAR, False, 0.1, 1e-5, True)
    assert emitted_layers(aten.batch_norm.default, args, constants=(1, 2, 3, 4)) == ("SCALE",)


def test_batch_norm_with_computed_parameters() -> None:
    check_conversion(aten.batch_norm.default, (X, W, None, MEAN, VAR, False, 0.1, 1e-3, True), dynamic=BATCH)


def test_batch_norm_with_the_statistics_of_the_batch() -> None:
    check_conversion(aten.batch_norm.default, (X, W, B, None, None, True, 0.1, 1e-5, True), dynamic=BATCH)
    check_conversion(aten.native_batch_norm.default, (X, W, B, None, None, True, 0.1, 1e-5))
    check_conversion(aten._native_batch_norm_legit.no_stats, (X, W, B, True, 0.1, 1e-5))
    args = (X, W, B, MEAN, VAR, True, 0.1, 1e-5)
    check_conversion(aten._native_batch_norm_legit_functional.default, args, dynamic={0: {0: (2, 2, 4)}})


def test_batch_norm_that_updates_statistics_is_refused() -> None:
    args = (X, W, B, MEAN, VAR, True, 0.1, 1e-5, True)
    result = check_conversion(aten.batch_norm.default, args, expect_supported=False)
    assert result.verdict.reason is Reason.MUTATION


def test_batch_norm_of_which_the_result_alone_is_used() -> None:
    args = (X, W, B, MEAN, VAR, 0.1, 1e-5)
    check_conversion(aten._native_batch_norm_legit_no_training.default, args, constants=(1, 2, 3, 4), results=(0,))


@pytest.mark.sampled
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("weight", "bias"), [(True, True), (True, False), (False, True), (False, False)])
def test_layer_norm_is_one_normalization_layer(dtype: torch.dtype, weight: bool, bias: bool) -> None:
    parts = [randn(6).to(dtype) if given else None for given in (weight, bias)]
    args = (randn(2, 5, 6).to(dtype) * 3 + 1, [6], *parts, 1e-5)
    constants = tuple(range(1, 1 + sum((weight, bias))))
    check_conversion(aten.layer_norm.default, args, constants=constants, dynamic={0: {0: (1, 2, 4), 1: (2, 5, 7)}})
    layers = emitted_layers(aten.layer_norm.default, args, constants=constants)
    assert [kind for kind in layers if kind != "CONSTANT"] == ["NORMALIZATION"]


@pytest.mark.parametrize(("shape", "normalized"), [((6,), [6]), ((2, 6), [2, 6]), ((2, 3, 4, 5), [3, 4, 5])])
def test_layer_norm_over_several_axes(shape: tuple[int, ...], normalized: list[int]) -> None:
    check_conversion(aten.layer_norm.default, (randn(shape), normalized, randn(normalized), None))
    check_conversion(aten.native_layer_norm.default, (randn(shape), normalized, None, None, 1e-5))


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_group_norm(groups: int) -> None:
    check_conversion(aten.group_norm.default, (X, groups, W, B), dynamic=BATCH)
    check_conversion(aten.group_norm.default, (X, groups))
    check_conversion(aten.native_group_norm.default, (X, W, B, 2, 6, 25, groups, 1e-5))


def test_group_norm_of_flat_samples() -> None:
    check_conversion(aten.group_norm.default, (randn(2, 6), 2, W, B))


def test_instance_norm() -> None:
    check_conversion(aten.instance_norm.default, (X, W, B, None, None, True, 0.1, 1e-5, True), dynamic=BATCH)
    check_conversion(aten.instance_norm.default, (randn(2, 6, 7), None, None, MEAN, VAR, False, 0.1, 1e-5, True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm_without_eps_uses_the_machine_epsilon_of_its_computation(dtype: torch.dtype) -> None:
    small = (randn(3, 8) * 1e-4).to(dtype)  # eps decides the result
    check_conversion(aten.rms_norm.default, (small, [8]), dynamic={0: {0: (1, 3, 4)}})
    check_conversion(aten.rms_norm.default, (small, [8], randn(8).to(dtype), 1e-6))


def samples() -> list[str]:
    return [f"nn.functional.{name}" for name in ("batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm")]


@pytest.mark.parametrize("name", [*samples(), "native_layer_norm", "native_batch_norm"])
def test_samples_of_pytorch(name: str) -> None:
    for sample in samples_from_opinfo(name, torch.float32, 6):
        arguments: dict[str, Any] = dict(sample.kwargs)
        check_conversion(sample.op, sample.args, arguments, expect_supported=None, rtol=1e-4, atol=1e-4)
