"""What is given as `out=` is of a type that eager takes, also where fake tensors take others."""

from __future__ import annotations

import pytest
import torch

from trt_core import LoweringError
from trt_lowering import decompose_program, export_module, lower

pytestmark = pytest.mark.sampled(4)

_SQUARE = torch.rand(3, 3)
_ROW = torch.rand(3)
_PLACES = torch.tensor([0, 2])

CALLS = {
    "amax": lambda *out: torch.amax(_SQUARE, 1, out=out[0]),
    "complex": lambda *out: torch.complex(_ROW, _ROW, out=out[0]),
    "index_select": lambda *out: torch.index_select(_ROW, 0, _PLACES, out=out[0]),
    "isin": lambda *out: torch.isin(_ROW, _ROW, out=out[0]),
    "multinomial": lambda *out: torch.multinomial(_ROW, 2, out=out[0]),
    "solve": lambda *out: torch.linalg.solve(_SQUARE, _ROW, out=out[0]),
    "sort": lambda *out: torch.sort(_ROW, out=out),
    "mul": lambda *out: torch.mul(_ROW, _ROW, out=out[0]),
}
"""Calls by what they compute; PyTorch's kernels refuse zeros as matrices of a system, and as weights of a choice."""

RESULTS = {
    **dict.fromkeys(CALLS, (torch.empty(3),)),
    "complex": (torch.empty(3, dtype=torch.complex64),),
    "index_select": (torch.empty(2),),
    "isin": (torch.empty(3, dtype=torch.bool),),
    "multinomial": (torch.empty(2, dtype=torch.int64),),
    "sort": (torch.empty(3), torch.empty(3, dtype=torch.int64)),
}

TYPES = (torch.float64, torch.int32)


class _Writes(torch.nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, *out):
        return self.call(*out)


def _verdict(function):
    try:
        function()
    except (RuntimeError, LoweringError) as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", CALLS)
def test_types_are_refused_that_eager_refuses(name, settings, preserve):
    model, right = _Writes(CALLS[name]), RESULTS[name]
    given = [
        (*right[:place], torch.empty_like(item, dtype=dtype), *right[place + 1 :])
        for place, item in enumerate(right)
        for dtype in (item.dtype, *TYPES)
    ]
    for out in given:
        refused = _verdict(lambda out=out: model(*out))
        try:
            program = export_module(model, out)
        except Exception:
            assert refused is not None, out
            continue
        state = torch.get_rng_state()
        found = _verdict(lambda program=program: decompose_program(program, settings, preserve=preserve))
        assert (found is None) == (refused is None), (out, refused, found)
        assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("right", [True, False])
def test_types_of_large_tensors_are_looked_at_as_well(right, settings, preserve):
    def call(x, made):
        return torch.matmul(x, x.mT, out=made), torch.sort(x, out=(torch.empty_like(x), torch.empty_like(x).long()))

    large = torch.empty(1, 1).expand(1100, 1000)
    made = torch.empty(1, dtype=torch.float32 if right else torch.float64).expand(1100, 1100).contiguous()
    program = export_module(_Writes(call), (large, made))
    found = _verdict(lambda: decompose_program(program, settings, preserve=preserve))
    assert (found is None) == right, found


@pytest.mark.parametrize("attempt", [lower, decompose_program])
def test_the_message_says_what_eager_says_and_which_type_is_right(attempt, settings, preserve):
    def call(x, made):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.sort(x, out=(torch.empty_like(x), made))

    program = export_module(_Writes(call), (_ROW, torch.empty(3, dtype=torch.int32)))
    with pytest.raises(LoweringError, match="long int, but got int instead") as caught:
        attempt(program, settings, preserve=preserve)
    assert "the model gives sort() an out=" in str(caught.value)
    assert "float32 and int64" in str(caught.value)


_HALVES = torch.full((2000,), 60.0, dtype=torch.float16)
_BYTES = torch.full((10,), 100, dtype=torch.int8)

COMPUTED = {
    "sum": lambda out: torch.sum(_HALVES, 0, out=out),
    "sum of numbers": lambda out: torch.nansum(_HALVES, 0, out=out),
    "mean": lambda out: torch.mean(_HALVES[::7] / 7, 0, out=out),
    "mean of numbers": lambda out: torch.nanmean(_HALVES[::7] / 7, 0, out=out),
    "product": lambda out: torch.prod(_HALVES[:4], 0, out=out),
    "products": lambda out: torch.cumprod(_HALVES[:4], 0, out=out),
    "sums": lambda out: torch.cumsum(_HALVES, 0, out=out),
    "sums of bytes": lambda out: torch.cumsum(_BYTES, 0, out=out),
    "product of bytes": lambda out: torch.prod(_BYTES, 0, out=out),
    "variance": lambda out: torch.var(_ROW, 0, out=out),
    "squares": lambda out: torch.ops.aten.mse_loss(_HALVES, _HALVES / 3, 2, out=out),
    "mean of squares": lambda out: torch.ops.aten.mse_loss(_HALVES, _HALVES / 3, out=out),
    "distances": lambda out: torch.ops.aten.smooth_l1_loss(_HALVES, _HALVES / 7, 2, 3.0, out=out),
    "bounded distances": lambda out: torch.ops.aten.huber_loss(_HALVES, _HALVES / 7, 2, 3.0, out=out),
    "logarithm": lambda out: torch.logsumexp(_HALVES[::7] / 7, 0, out=out),
    "normal": lambda out: torch.normal(_ROW, _ROW, out=out),
    "normal of means": lambda out: torch.normal(_ROW, 2.0, out=out),
    "normal of deviations": lambda out: torch.normal(1.0, _ROW, out=out),
}
"""Calls whose results change with the type in which they are computed."""


def _computed_in(dtype):
    """Returns the calls that take an `out=` of a type, each with such a tensor."""
    outs = {name: torch.empty(0, dtype=dtype) for name in COMPUTED}
    return {name: out for name, out in outs.items() if _verdict(lambda name=name: COMPUTED[name](outs[name])) is None}


@pytest.mark.parametrize(
    "attempt, dtype, autocast",
    [
        (lower, torch.float32, False),
        (lower, torch.float64, True),
        (lambda *args, **how: decompose_program(*args, **how).module(), torch.float32, True),
        (lower, torch.int32, False),
    ],
)
def test_what_eager_computes_in_the_type_of_out_is(attempt, dtype, autocast, settings, preserve):
    expected = _computed_in(dtype)

    def call(*out):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            for name, item in zip(expected, out, strict=True):
                COMPUTED[name](item)
        return out[0] + 1

    found = {name: torch.zeros_like(out) for name, out in expected.items()}
    made = attempt(export_module(_Writes(call), tuple(found.values())), settings, preserve=preserve)
    for function, outs in ((call, expected), (made, found)):
        torch.manual_seed(0)
        function(*outs.values())
    torch.testing.assert_close(found, expected)
