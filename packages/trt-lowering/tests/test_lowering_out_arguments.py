"""What is given as `out=` is of a type that eager takes, also where fake tensors take others."""

from __future__ import annotations

import pytest
import torch

from trt_core import LoweringError
from trt_lowering import decompose_program, export_module, lower

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
