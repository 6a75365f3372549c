"""Operators that trust their operands are called with operands that fit, and with no others."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from guarded_memory import guarded

from trt_core import ExecutionError
from trt_runtime.program.allowed_operators import COLLECTIVES, allowed_operators
from trt_runtime.program.operand_checks import checked, checked_names

aten = torch.ops.aten
LARGE = 1 << 24


def _zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(1).expand(*shape)  # no memory, since nothing may touch it


def _indices(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def _least() -> torch.Tensor:
    return torch.tensor([torch.iinfo(torch.int64).min])


HOSTILE: dict[str, tuple[Any, ...]] = {
    "fewer weights than channels": (
        aten.native_batch_norm.default,
        _zeros(2, LARGE, 4),
        *[torch.ones(1)] * 4,
        False,
        0.1,
        1e-5,
    ),
    "fewer statistics": (
        aten._native_batch_norm_legit_no_training.default,
        *(_zeros(2, 8, 4), None, None, torch.ones(3), torch.ones(3), 0.1, 1e-5),
    ),
    "statistics that are written": (
        aten._native_batch_norm_legit_functional.default,
        *(_zeros(2, LARGE, 4), *[torch.ones(1)] * 4, True, 0.1, 1e-5),
    ),
    "fewer biases": (
        aten._native_batch_norm_legit.no_stats,
        _zeros(2, 8),
        torch.ones(8),
        torch.ones(7),
        True,
        0.1,
        1e-5,
    ),
    "no statistics at all": (aten._native_batch_norm_legit.no_stats, torch.ones(1, 4), None, None, False, 0.1, 1e-5),
    "fewer magnitudes": (aten._weight_norm_interface.default, _zeros(LARGE, 8), torch.ones(1), 0),
    "magnitudes of an inner axis": (aten._weight_norm_interface.default, _zeros(2, 8, 2), torch.ones(1, 8, 1), 1),
    "a border of 2^31": (
        aten.col2im.default,
        *(torch.ones(1, 4, 9), [4, 4], [2, 2], [1, 1], [2**31, 2**31], [1, 1]),
    ),
    "columns for fewer windows": (aten.col2im.default, torch.ones(1, 4, 8), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "windows without steps": (aten.im2col.default, torch.ones(1, 1, 4, 4), [2, 2], [1, 1], [0, 0], [0, 1]),
    "windows that are far apart": (aten.im2col.default, torch.ones(1, 1, 4, 4), [2, 2], [2**40, 1], [0, 0], [1, 1]),
    "windows larger than an image": (aten.im2col.default, torch.ones(1, 1, 4, 4), [5, 5], [1, 1], [0, 0], [1, 1]),
    "a power without end": (aten.matrix_power.default, torch.eye(2), -(2**63)),
    "a power of a matrix without end": (aten.linalg_matrix_power.default, torch.eye(2), 1 << 40),
    "trials that are no number": (aten.binomial.default, torch.full((4,), float("nan")), torch.full((4,), 0.5)),
    "a probability that is no number": (aten.binomial.default, torch.ones(4), torch.full((4,), float("nan"))),
    "more than certain": (aten.binomial.default, torch.ones(4), torch.full((4,), 2.0)),
    "no bags": (aten._embedding_bag.default, torch.ones(9, 4), _indices(0, 1), _indices()),
    "more keys than values": (
        aten.scaled_dot_product_attention.default,
        *(torch.ones(1, 2, 3, 8), _zeros(1, 2, LARGE, 8), torch.ones(1, 2, 3, 8)),
    ),
    "no queries": (aten.scaled_dot_product_attention.default, torch.ones(1, 2, 0, 8), *[torch.ones(1, 2, 3, 8)] * 2),
    "no queries, in one kernel": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(torch.ones(1, 2, 0, 8), *[torch.ones(1, 2, 3, 8)] * 2),
    ),
    "the least integer by -1": (aten.div.Tensor_mode, _least(), _indices(-1)),
    "the least integer by the number -1": (aten.floor_divide.Scalar, _least(), -1),
    "the rest of the least integer": (aten.remainder.Tensor, _least(), _indices(2, -1)),
    "the multiple of the least integer": (aten.lcm.default, _least(), _indices(-1)),
    "the least integer, by a primitive": (torch.ops.prims.div.default, _least(), _indices(-1)),
    "eigenvalues of NaN": (aten.linalg_eigvals.default, torch.full((4, 4), float("nan"))),
    "states of fewer sequences": (
        aten.lstm.input,
        *(torch.ones(3, 8, 4), [torch.ones(1, 1, 4)] * 2, [torch.ones(16, 4)] * 2, False, 1, 0.0, False, False, False),
    ),
    "a state of fewer layers": (
        aten.gru.input,
        *(torch.ones(3, 8, 4), torch.ones(1, 8, 4), [torch.ones(12, 4)] * 4, False, 2, 0.0, False, False, False),
    ),
    "no steps": (
        aten.rnn_tanh.data,
        *(torch.ones(0, 4), _indices(), torch.ones(1, 1, 4), [torch.ones(4, 4)] * 2, False, 1, 0.0, False, False),
    ),
    "steps of more sequences than there are": (
        aten.lstm.data,
        *(torch.ones(2, 4), _indices(LARGE, LARGE), [torch.ones(1, 2, 4)] * 2, [torch.ones(16, 4)] * 2),
        *(False, 1, 0.0, False, False),
    ),
    "offsets before the first index": (
        aten._embedding_bag.default,
        torch.ones(9, 4),
        _indices(0, 1),
        _indices(0, -LARGE),
    ),
    "offsets after the last": (
        aten._embedding_bag_forward_only.default,
        torch.ones(9, 4),
        _indices(0),
        _indices(0, LARGE),
    ),
    "offsets that go back": (aten.embedding_bag.default, torch.ones(9, 4), _indices(0, 1, 2), _indices(0, 3, 1)),
    "a window that is endless": (
        aten._upsample_bilinear2d_aa.default,
        torch.ones(1, 1, 8, 8),
        [4, 4],
        False,
        1e-18,
        1e-18,
    ),
    "sources that are nowhere": (aten.upsample_nearest2d.default, torch.ones(1, 1, 8, 8), [4, 4], 1e-300, float("inf")),
    "a factor that is no number": (aten.upsample_linear1d.default, torch.ones(1, 1, 8), [4], False, float("nan")),
    "factors without end": (aten.upsample_nearest2d.vec, torch.ones(1, 1, 8, 8), None, [1e12, 1e12]),
    "values for no keys": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(torch.ones(1, 1, 4, 8), _zeros(1, 1, LARGE, 8), torch.ones(1, 1, 1, 8)),
    ),
    "heads without keys": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(torch.ones(1, 3, 4, 8), torch.ones(1, 2, 4, 8), torch.ones(1, 2, 4, 8)),
    ),
    "points of another batch": (aten._cdist_forward.default, torch.ones(4, 9, 3), torch.ones(1, 9, 3), 2.0, None),
    "a list of lists of points": (aten._pdist_forward.default, torch.ones(9, 2, 2), 2.0),
    "axes that do not exist": (aten._fft_c2c.default, torch.ones(8, 4, dtype=torch.complex64), [0, LARGE], 1, False),
    "an axis from the end": (aten._fft_r2c.default, torch.ones(8, 4), [-2, 0], 0, False),
    "a degree without end": (aten.special_laguerre_polynomial_l.n_scalar, torch.ones(4), 1e9),
    "degrees without end": (aten.special_hermite_polynomial_h.default, torch.ones(4), _indices(1, LARGE)),
    "nothing to stack": (aten._stack.default, []),
    "repetitions that somebody else counted": (
        aten.repeat_interleave.self_Tensor,
        *(torch.ones(2), _indices(2, 3), 0),
    ),
    "borders of what is cut away": (aten.pad.default, torch.ones(1, 3, 4), [-4, 4], "circular"),
    "borders around what is left": (aten._pad_circular.default, torch.ones(1, 3, 4), [3, -2]),
    "axes from the end, in Python": (torch.ops.prims.fft_r2c.default, torch.ones(8, 4)),
    "elements from nowhere": (aten._fft_c2r.default, torch.ones(4, 3, dtype=torch.complex64), [1], 0, LARGE),
}


OPTIONS: dict[str, dict[str, Any]] = {
    "repetitions that somebody else counted": {"output_size": 6},
    "axes from the end, in Python": {"dim": [-1, -2], "onesided": True},
}
"""Arguments of those calls that are given by name."""


@pytest.mark.parametrize("name", HOSTILE)
def test_operands_that_do_not_fit_reach_no_kernel(name: str) -> None:
    operator, *operands = HOSTILE[name]
    options = OPTIONS.get(name, {})
    with pytest.raises(ExecutionError, match="do not fit each other"):
        checked(operator)(*operands, **options)


ENDLESS: dict[str, tuple[Any, ...]] = {
    "bins without end": (aten.bincount.default, _indices(0, 1 << 40)),
    "as many bins as nobody asked for": (aten.bincount.default, _indices(0), None, 1 << 40),
    "repetitions without end": (aten.repeat_interleave.Tensor, _indices(1 << 40)),
    "repetitions that begin anew": (aten.repeat_interleave.Tensor, _indices(*[1 << 62] * 4, 5)),
    "copies that begin anew": (aten.repeat_interleave.self_Tensor, torch.ones(4), _indices(*[1 << 62] * 4), 0),
    "copies without end": (aten.repeat_interleave.self_Tensor, torch.ones(4), _indices(1 << 38)),
    "classes without end": (aten.one_hot.default, _indices(1 << 40)),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_numbers_in_operands_make_no_more_than_is_allowed(name: str) -> None:
    operator, *operands = ENDLESS[name]
    with pytest.raises(ExecutionError, match=r"would make \d+ elements\n(.|\n)*data_dependent_elements="):
        checked(operator)(*operands)


def test_a_mask_that_cannot_be_expanded() -> None:
    operator = aten._scaled_dot_product_flash_attention_for_cpu.default
    with pytest.raises(ExecutionError, match="a mask of shape"):
        checked(operator)(*[torch.ones(1, 1, 4, 8)] * 3, attn_mask=torch.ones(3, 3))


def test_every_checked_operator_may_be_called() -> None:
    assert checked_names() > COLLECTIVES - {"_c10d_functional::wait_tensor"}
    for namespace, name in (name.split("::") for name in checked_names() - COLLECTIVES):
        assert name in allowed_operators()[namespace]


def _one(*shape: int) -> torch.Tensor:
    return guarded(torch.ones([1] * len(shape)).expand(shape))


def _rows(*shape: int) -> torch.Tensor:
    """Rows that begin one element after each other."""
    count = torch.Size(shape).numel()
    return guarded(torch.arange(float(count)).as_strided(shape, [1] * len(shape)))


LAID_OUT: dict[str, tuple[Any, ...]] = {
    "the middle of one element": (aten.median.dim, _one(3, 4, 2), 1, True),
    "the middle of all": (aten.median.default, _one(3, 4, 2)),
    "the middle, without NaN": (aten.nanmedian.dim, _one(3, 4, 2), 1),
    "one weight for all channels": (
        aten.native_group_norm.default,
        *(torch.randn(2, 4, 3, 3), _one(4), _one(4), 2, 4, 9, 2, 1e-5),
    ),
    "rows of queries upon each other": (
        aten.scaled_dot_product_attention.default,
        *(_rows(1, 2, 4, 8), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)),
    ),
    "queries, keys and values of one element": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(_one(1, 2, 4, 8), _one(1, 2, 4, 8), _one(1, 2, 4, 8)),
    ),
    "columns of queries": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(torch.randn(8, 4, 2, 1).permute(3, 2, 1, 0), torch.randn(1, 2, 4, 8), torch.randn(1, 2, 4, 8)),
    ),
}


@pytest.mark.skipif(sys.platform != "linux", reason="pages as Linux has them")
@pytest.mark.parametrize("name", LAID_OUT)
def test_operands_that_lie_otherwise_are_read_by_their_strides(name: str) -> None:
    operator, *operands = LAID_OUT[name]
    as_usual = [value.contiguous() if isinstance(value, torch.Tensor) else value for value in operands]
    for made, expected in zip(_all(checked(operator)(*operands)), _all(operator(*as_usual)), strict=True):
        torch.testing.assert_close(made, expected, equal_nan=True)


def _all(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]


def test_heads_that_share_keys_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.randn(1, 1, 4, 8).expand(1, 2, 4, 8)
    fused = torch.randn(1, 4, 3, 2, 8).permute(2, 0, 3, 1, 4)
    monkeypatch.setattr(torch.Tensor, "contiguous", lambda self: pytest.fail("a copy"))
    checked(aten.scaled_dot_product_attention.default)(fused[0], shared, shared)
    checked(aten.scaled_dot_product_attention.default)(*fused)


def test_operators_that_look_themselves_are_called_directly() -> None:
    assert checked(aten.relu.default) is aten.relu.default


RIGHT: dict[str, tuple[Any, ...]] = {
    "batch norm": (aten.native_batch_norm.default, torch.randn(2, 3, 4), *[torch.rand(3)] * 4, False, 0.1, 1e-5),
    "batch norm without weights": (
        aten._native_batch_norm_legit.no_stats,
        torch.randn(2, 3),
        None,
        None,
        True,
        0.1,
        1e-5,
    ),
    "weight norm": (aten._weight_norm_interface.default, torch.randn(4, 3, 2), torch.rand(4, 1, 1), 0),
    "weight norm, last axis": (aten._weight_norm_interface.default, torch.randn(4, 3), torch.rand(1, 3), 1),
    "bags": (aten._embedding_bag.default, torch.randn(9, 4), _indices(0, 8, 2), _indices(0, 2, 2)),
    "no bags": (aten.embedding_bag.default, torch.randn(9, 4), _indices(), _indices()),
    "half the size": (aten._upsample_bilinear2d_aa.default, torch.randn(1, 1, 9, 8), [4, 4], False, 0.5, 0.5),
    "sizes alone": (aten.upsample_bicubic2d.default, torch.randn(1, 1, 9, 8), [40, 3], False),
    "factors alone": (aten.upsample_nearest2d.vec, torch.randn(1, 1, 5, 8), None, [1.7, 2.0]),
    "heads that share keys": (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        *(torch.randn(2, 4, 5, 8), torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8)),
    ),
    "distances": (aten._cdist_forward.default, torch.randn(2, 5, 3), torch.randn(2, 4, 3), 2.0, None),
    "distances between all": (aten._pdist_forward.default, torch.randn(5, 3), 2.0),
    "bins": (aten.bincount.default, _indices(0, 5, 5), None, 9),
    "no bins": (aten.bincount.default, _indices()),
    "repetitions": (aten.repeat_interleave.self_Tensor, torch.randn(2, 3), _indices(2, 0, 3), 1),
    "indices by count": (aten.repeat_interleave.Tensor, _indices(2, 0, 3)),
    "classes": (aten.one_hot.default, _indices(0, 4)),
    "polynomials": (aten.special_legendre_polynomial_p.default, torch.rand(3), _indices(0, 1, 7)),
    "windows": (aten.im2col.default, torch.randn(2, 3, 6, 5), [3, 2], [2, 1], [1, 0], [1, 2]),
    "sums of windows": (aten.col2im.default, torch.randn(2, 12, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "sums of windows of one image": (aten.col2im.default, torch.randn(4, 4), [4, 4], [2, 2], [1, 1], [0, 0], [2, 2]),
    "a power": (aten.matrix_power.default, torch.eye(3) * 2, -3),
    "stack": (aten._stack.default, [torch.ones(2), torch.zeros(2)], 1),
    "transform": (aten._fft_r2c.default, torch.randn(4, 6), [1], 0, True),
    "transform back": (aten._fft_c2r.default, torch.randn(4, 4, dtype=torch.complex64), [1], 2, 7),
}


@pytest.mark.parametrize("name", RIGHT)
def test_operands_that_fit_give_what_the_operator_gives(name: str) -> None:
    operator, *operands = RIGHT[name]
    assert checked(operator) is not operator
    found, wanted = checked(operator)(*operands), operator(*operands)
    pairs = [(found, wanted)] if isinstance(wanted, torch.Tensor) else zip(found, wanted, strict=True)
    for one, other in pairs:
        if isinstance(other, torch.Tensor):
            torch.testing.assert_close(one, other, equal_nan=True)


@pytest.mark.parametrize("factor", [0.3, 0.5, 1.0, 1.49, 2.0, 3.7])
@pytest.mark.parametrize("extent", [1, 2, 5, 64, 227])
def test_what_interpolate_passes_on_fits(extent: int, factor: float) -> None:
    made = F.interpolate(torch.zeros(1, 1, extent), scale_factor=max(factor, 1 / extent)).shape[2]
    checked(aten.upsample_nearest1d.default)(torch.zeros(1, 1, extent), [made], max(factor, 1 / extent))


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: checked(aten.div.Tensor_mode)(_indices(-7, 7), _indices(-1, 2), rounding_mode="trunc"), [7, 3]),
        (lambda: checked(aten.floor_divide.default)(_indices(-7), _indices(2)), [-4]),
        (lambda: checked(aten.remainder.Scalar)(_indices(7), -1), [0]),
        (lambda: checked(aten.div.Tensor_mode)(torch.tensor([-1.0]), torch.tensor([-1.0]), rounding_mode="floor"), [1]),
    ],
)
def test_other_quotients_are_computed(call: Any, wanted: list[int]) -> None:
    assert call().tolist() == wanted


def test_recurrent_layers_run_with_states_that_fit() -> None:
    layer = torch.nn.LSTM(4, 4, 2, bidirectional=True)
    x, states = torch.randn(3, 5, 4), [torch.randn(4, 5, 4)] * 2
    weights = [weight.detach() for weight in layer._flat_weights]
    wanted = aten.lstm.input(x, states, weights, True, 2, 0.0, False, True, False)
    found = checked(aten.lstm.input)(x, states, weights, True, 2, 0.0, False, True, False)
    assert all(torch.equal(left, right) for left, right in zip(found, wanted, strict=True))
