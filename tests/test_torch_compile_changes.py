"""What changes between two calls of a model under `torch.compile` is seen, as with `backend="aot_eager"`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch_compile_programs import Model, matrix
from torch_compile_reference import agree


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    torch._dynamo.reset()


def _replace_parameter(model: Model, _: int) -> None:
    model.linear.weight = nn.Parameter(torch.full((4, 4), 0.5))


def _replace_data(model: Model, call: int) -> None:
    model.linear.weight.data = torch.full((4, 4), float(call))


def _write(model: Model, _: int) -> None:
    with torch.no_grad():
        model.linear.weight.mul_(2)


def _write_through_data(model: Model, _: int) -> None:
    model.linear.weight.data.mul_(2)


def _load(model: Model, call: int) -> None:
    model.load_state_dict({name: torch.full_like(value, call + 1) for name, value in model.state_dict().items()})


def _step(model: Model, _: int) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def _write_to_a_buffer(model: Model, call: int) -> None:
    model.cache.fill_(call)


def _write_to_a_plain_tensor(model: Model, _: int) -> None:
    model.plain.add_(1)


def _replace_a_plain_tensor(model: Model, call: int) -> None:
    model.plain = torch.full((4,), float(call))


def _set_memory(model: Model, call: int) -> None:
    with torch.no_grad():
        model.linear.weight.set_(torch.full((4, 4), call + 0.5))


def _load_by_assignment(model: Model, call: int) -> None:
    model.load_state_dict({k: torch.full_like(v, call + 1) for k, v in model.state_dict().items()}, assign=True)


def _replace_in_a_list(model: Model, call: int) -> None:
    model.several[0] = torch.full((4,), call + 2.0)


def _swap(model: Model, call: int) -> None:
    torch.utils.swap_tensors(model.linear.weight, nn.Parameter(torch.full((4, 4), call + 0.5)))


def _tie(model: Model, call: int) -> None:
    model.linear.bias = nn.Parameter(model.linear.weight.detach()[call])  # a view of another weight


def _parametrize(model: Model, call: int) -> None:
    nn.utils.parametrize.register_parametrization(model.linear, "weight", (nn.Tanh(), nn.Sigmoid(), nn.ReLU())[call])


def _write_to_transposed_data(model: Model, call: int) -> None:
    model.linear.weight.data = torch.full((4, 4), call + 0.5).tril().t()


def _use_all(model: Model, x: torch.Tensor) -> Any:
    y = torch.relu(model.linear(x)) * model.plain + model.cache
    return y + model.several[0], model.conv(torch.ones(1, 3, 5, 5))


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        _replace_parameter,
        _replace_data,
        _write,
        _write_through_data,
        _load,
        _step,
        _write_to_a_buffer,
        _write_to_a_plain_tensor,
        _replace_a_plain_tensor,
    ],
)
def test_what_changes_between_calls_is_seen(change: Callable[[Model, int], None], dynamic: bool) -> None:
    agree(lambda: Model(_use_all), matrix, between=change, dynamic=dynamic)


@pytest.mark.parametrize(
    "change",
    [
        _set_memory,
        _load_by_assignment,
        _replace_in_a_list,
        _swap,
        _tie,
        _parametrize,
        _write_to_transposed_data,
    ],
)
def test_what_is_replaced_between_calls_is_seen(change: Callable[[Model, int], None]) -> None:
    agree(lambda: Model(_use_all), matrix, between=change)
