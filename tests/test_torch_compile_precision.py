"""Models in reduced precision under `torch.compile`: what surrounds a call is as with `aot_eager`, state is exact."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch_compile_programs import Model, Program, growing_rows, matrix, overlapping, strided
from torch_compile_reference import agree

import trt_frontends
from trt_frontends.backend import torch_tensorrt_backend

TOLERANCES = {torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""What a few operators on numbers around one lose at 11 and at 8 bits."""


pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]


def channels_last(_: int) -> Sequence[Any]:
    return (torch.randn(2, 3, 5, 5).to(memory_format=torch.channels_last),)


def _views_of_a_result(model: Model, x: torch.Tensor) -> Any:
    h = model.linear(x)
    return h, h[1:], h.t(), h.reshape(-1), h.unsqueeze(0).expand(2, *h.shape), h.split(2, 1)


def _views_around_a_write(model: Model, x: torch.Tensor) -> Any:
    view = x[:, 1:]
    x.add_(model.linear(x))
    return view, x, x.t(), view * 2


def _write_to_a_view_after_a_break(model: Model, x: torch.Tensor) -> Any:
    h = model.linear(x)
    view = h[:, :2]
    torch._dynamo.graph_break()
    view.zero_()
    return h * 2, view


def _write_to_overlapping(model: Model, x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    return model.linear(y), y


def _write_to_buffers(model: Model, x: torch.Tensor) -> Any:
    model.cache.index_copy_(0, torch.tensor([1]), model.linear(x)[:1])
    model.count.add_(1)
    return model.cache, model.cache[1:] * model.count


def _assign_state(model: Model, x: torch.Tensor) -> Any:
    model.hidden = 0.9 * model.hidden + 0.1 * model.linear(x).mean(0)
    return model.hidden, x * model.hidden


CASES: dict[str, tuple[Program, Callable[[int], Sequence[Any]], dict[str, Any]]] = {
    "views of a result": (_views_of_a_result, matrix, {}),
    "views of a result with sizes that vary": (_views_of_a_result, growing_rows, {"dynamic": True}),
    "views around a write": (_views_around_a_write, matrix, {}),
    "a write to a view after a graph break": (_write_to_a_view_after_a_break, matrix, {}),
    "a write to an input that overlaps another": (_write_to_overlapping, overlapping, {}),
    "buffers that are written to": (_write_to_buffers, matrix, {}),
    "state that is assigned": (_assign_state, matrix, {}),
    "strides that change": (lambda m, x: (m.linear(x), torch.relu(x), x[1:]), strided, {}),
    "channels last": (lambda m, x: (torch.relu(m.conv(x)), m.train().norm(x)), channels_last, {}),
    "other types": (lambda m, x: (m.linear(x).double(), m.linear(x) > 3, x.half(), x.shape[0]), matrix, {}),
}


@pytest.mark.sampled
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("name", CASES)
def test_a_program_differs_from_aot_eager_in_rounding_alone(name: str, precision: torch.dtype) -> None:
    function, inputs, how = CASES[name]
    agree(lambda: Model(function), inputs, options={"precision": precision}, tolerance=TOLERANCES[precision], **how)


def _write_a_row(model: Model, x: torch.Tensor) -> None:
    x[0].add_(1)


def _write_a_column(model: Model, x: torch.Tensor) -> None:
    x[:, 1] = x[:, 0] * 2


def _write_where(model: Model, x: torch.Tensor) -> None:
    x.copy_(torch.where(torch.tensor([True, False, False, False]), x + 1, x))


def _write_to_a_cache(model: Model, x: torch.Tensor) -> None:
    model.cache.index_copy_(0, torch.tensor([1]), x[:1])


def _shift_a_cache(model: Model, x: torch.Tensor) -> None:
    model.cache.copy_(torch.cat([model.cache[1:], x[:1]]))


def _count(model: Model, x: torch.Tensor) -> None:
    model.count.add_(1)
    model.cache.scatter_add_(1, torch.zeros(3, 1, dtype=torch.int64), x[:, 1:2])
    model.hidden = model.hidden * 0.5 + x[1]


WRITES = (_write_a_row, _write_a_column, _write_where, _write_to_a_cache, _shift_a_cache, _count)


def _wide(call: int) -> torch.Tensor:
    """(3, 4): beyond float16, and with more digits than bfloat16 has."""
    return torch.arange(12.0).reshape(3, 4) * 1e5 + 2.0**-4 + call


@pytest.mark.sampled
@pytest.mark.parametrize("precision", TOLERANCES)
@pytest.mark.parametrize("write", WRITES)
def test_state_is_not_rounded(write: Callable[[Model, torch.Tensor], None], precision: torch.dtype) -> None:
    def function(model: Model, x: torch.Tensor) -> torch.Tensor:
        write(model, x)
        return model.linear(x[:, :4])

    model, reference = Model(function), Model(function)
    for one in (model, reference):
        one.cache.copy_(_wide(7))
        one.count.fill_(2048)  # float16 has no 2049, bfloat16 no 257
    options = {"min_block_size": 1, "precision": precision}
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options=options)
    for call in range(3):
        x, y = _wide(call), _wide(call)
        with torch.no_grad():
            optimized(x)
            reference(y)
        assert torch.equal(x, y)
        for name in ("cache", "count", "hidden"):
            assert torch.equal(getattr(model, name), getattr(reference, name)), name


@pytest.mark.parametrize("precision", TOLERANCES)
def test_state_of_a_compiled_model_is_not_rounded(precision: torch.dtype) -> None:
    def function(model: Model, x: torch.Tensor) -> torch.Tensor:
        _write_to_a_cache(model, x)
        model.count.add_(1)
        return model.linear(x)

    model = Model(function).eval()
    model.cache.copy_(_wide(7))
    model.count.fill_(2048)
    reference = copy.deepcopy(model)
    compiled = trt_frontends.compile(model, arg_inputs=(_wide(0),), min_block_size=1, precision=precision)
    with torch.no_grad():
        for call in range(3):
            compiled(_wide(call))  # writes to the buffers of the model
            reference(_wide(call))
    assert torch.equal(model.cache, reference.cache)
    assert torch.equal(model.count, reference.count)
