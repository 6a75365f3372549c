"""The checks that converters are composed of: each refuses what it names, with its code, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trt_converters import DYNAMO_CONVERTERS, Call, Converter, ConverterRegistry, ConverterSupport, checks
from trt_converters.registry import Check
from trt_converters.testing import record_call
from trt_core import CompilationSettings, Reason

aten = torch.ops.aten
SETTINGS = CompilationSettings()


def _refusal(check: Check, op: Any, *args: Any, constants: tuple[int, ...] = (), **options: Any) -> Reason | None:
    verdict = check(Call(record_call(op, args, constants=constants, **options).node, SETTINGS))
    return None if verdict is None else verdict.reason


X = torch.ones(2, 3)
ROWS = {0: {0: (1, 2, 4)}}


def test_dtypes() -> None:
    check = checks.dtypes("self", [torch.float32])
    assert _refusal(check, aten.abs.default, X) is None
    assert _refusal(check, aten.abs.default, X.half()) is Reason.UNSUPPORTED_DTYPE
    verdict = check(Call(record_call(aten.abs.default, (X.int(),)).node, SETTINGS))
    assert verdict is not None
    assert verdict.message == "self is int32; the layer takes float32"


def test_constant() -> None:
    check = checks.constant("other")
    assert _refusal(check, aten.mul.Tensor, X, X, constants=(1,)) is None
    assert _refusal(check, aten.mul.Tensor, X, X) is Reason.NOT_CONSTANT


def test_static_shape() -> None:
    check = checks.static_shape("self")
    assert _refusal(check, aten.abs.default, X) is None
    assert _refusal(check, aten.abs.default, X, dynamic=ROWS) is Reason.DYNAMIC_SHAPE


@pytest.mark.parametrize("axis", [1, -1, "dim"])
def test_static_axis(axis: Any) -> None:
    check = checks.static_axis("self", axis)
    assert _refusal(check, aten.softmax.int, X, 1, dynamic=ROWS) is None
    assert _refusal(check, aten.softmax.int, X, 1, dynamic={0: {1: (1, 3, 4)}}) is Reason.DYNAMIC_SHAPE


def test_static_axis_of_a_number() -> None:
    assert _refusal(checks.static_axis("self", 0), aten.abs.default, torch.tensor(1.0)) is None


def test_fixed_number() -> None:
    check = checks.fixed_number("ord")
    call = record_call(aten.linalg_vector_norm.default, (X, 2), dynamic=ROWS)
    assert check(Call(call.node, SETTINGS)) is None
    rows = call.node.all_input_nodes[0].meta["val"].shape[0]
    for varying in (rows, rows / 3):
        call.node.args = (call.node.args[0], varying)
        verdict = check(Call(call.node, SETTINGS))
        assert verdict is not None
        assert verdict.reason is Reason.UNSUPPORTED_ARGUMENT


def test_rank() -> None:
    check = checks.rank("self", 2, 3)
    assert _refusal(check, aten.abs.default, X) is None
    assert _refusal(check, aten.abs.default, X[0]) is Reason.UNSUPPORTED_RANK
    assert _refusal(check, aten.abs.default, X[None, None]) is Reason.UNSUPPORTED_RANK


@pytest.mark.parametrize(
    "check",
    [
        checks.dtypes("bias", [torch.int8]),
        checks.rank("bias", 7),
        checks.static_shape("bias"),
        checks.static_axis("bias", 0),
        checks.constant("bias"),
    ],
)
def test_an_optional_tensor_that_is_left_out_is_not_refused(check: Check) -> None:
    assert _refusal(check, aten.linear.default, X, torch.ones(4, 3)) is None


def test_an_extent_of_one_does_not_vary_by_itself() -> None:
    with pytest.raises(ValueError, match="has extent 1: give a tensor with more there"):
        record_call(aten.abs.default, (X[:1],), dynamic=ROWS)


def test_argument() -> None:
    check = checks.argument("approximate", lambda value: value == "none", "only the exact form")
    assert _refusal(check, aten.gelu.default, X) is None
    verdict = check(Call(record_call(aten.gelu.default, (X,), {"approximate": "tanh"}).node, SETTINGS))
    assert verdict is not None
    assert (verdict.reason, verdict.message) == (
        Reason.UNSUPPORTED_ARGUMENT,
        "approximate='tanh': only the exact form",
    )


def test_absent() -> None:
    check = checks.absent("min")
    assert _refusal(check, aten.clamp.default, X, None, 1.0) is None
    assert _refusal(check, aten.clamp.default, X, 0.0) is Reason.UNSUPPORTED_ARGUMENT


def test_only_results() -> None:
    check = checks.only_results(0)
    assert _refusal(check, aten.topk.default, X, 1, results=(0,)) is None
    assert _refusal(check, aten.topk.default, X, 1) is Reason.UNSUPPORTED_ARGUMENT


def test_never() -> None:
    assert _refusal(checks.never(Reason.TENSORRT_LIMIT, "why"), aten.abs.default, X) is Reason.TENSORRT_LIMIT


def test_computable() -> None:
    assert _refusal(checks.computable, aten.abs.default, X) is None
    assert _refusal(checks.computable, aten.abs.default, X.to(torch.int8)) is Reason.UNSUPPORTED_DTYPE


def _general(op: Any, *args: Any, options: dict[str, Any] | None = None, **how: Any) -> Reason | None:
    """The verdict where a converter takes everything that the general checks let through."""
    registry = ConverterRegistry()
    registry.register(Converter(op, lambda ctx, **arguments: None, **(options or {})))
    return ConverterSupport(SETTINGS, registry).verdict(record_call(op, args, **how).node).reason


@pytest.mark.parametrize(
    ("op", "args", "reason"),
    [
        (aten.abs.default, (X,), None),
        (aten.abs.default, (torch.tensor(1.0),), None),
        (aten.abs.default, (X.double(),), Reason.UNSUPPORTED_DTYPE),
        (aten.abs.default, (X.to(torch.complex64),), Reason.UNSUPPORTED_DTYPE),
        (aten.abs.default, (X.to(torch.int16),), Reason.UNSUPPORTED_DTYPE),
        (aten.abs.default, (torch.ones([1] * 9),), Reason.UNSUPPORTED_RANK),
        (aten.abs.default, (torch.ones([1] * 8),), None),
        (aten.abs.default, (torch.ones(2, 0),), Reason.EMPTY_TENSOR),
        (aten.abs_.default, (X,), Reason.MUTATION),
        (aten.mul.Scalar, (X, 1j), Reason.UNSUPPORTED_VALUE),
        (aten.bernoulli.default, (X,), Reason.SIDE_EFFECT),
        (aten.abs.default, (X.to_sparse(),), Reason.UNSUPPORTED_VALUE),
    ],
)
def test_every_converter_is_spared(op: Any, args: Any, reason: Reason | None) -> None:
    assert _general(op, *args) is reason


def test_random_converters_may_draw() -> None:
    assert _general(aten.bernoulli.default, X, options={"random": True}) is None


def test_converters_without_dynamic_shapes_are_spared_them() -> None:
    assert _general(aten.abs.default, X, dynamic=ROWS) is None
    assert _general(aten.abs.default, X, dynamic=ROWS, options={"dynamic": False}) is Reason.DYNAMIC_SHAPE


def test_data_dependent_extents_need_a_converter_that_says_so() -> None:
    mask = X > 0
    assert _general(aten.nonzero.default, mask) is Reason.DATA_DEPENDENT_SHAPE
    assert _general(aten.nonzero.default, mask, options={"data_dependent": True}) is None


def test_every_check_of_ours_says_what_it_refuses() -> None:
    silent = {
        f"{check.__module__}.{check.__qualname__}"
        for target in DYNAMO_CONVERTERS
        for candidate in DYNAMO_CONVERTERS.candidates(target)
        for check in candidate.checks
        if candidate.is_builtin and not check.__doc__
    }
    assert not silent, "the list of operators shows their docstrings"
    assert checks.dtypes("x", [torch.float32, torch.int64]).__doc__ == "Refuses `x` that is not float32 or int64."
    assert checks.absent("bias", "mask").__doc__ == "Refuses `bias` and `mask`."
