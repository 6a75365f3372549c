"""What changes between two calls of a model under `torch.compile` is seen, as with `backend="aot_eager"`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import model_changes
import pytest
import torch
from torch_compile_programs import Model, matrix
from torch_compile_reference import agree

pytestmark = [pytest.mark.sampled(4), pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]


def _use_all(model: Model, x: torch.Tensor) -> Any:
    y = torch.relu(model.linear(x)) * model.plain + model.cache
    return y + model.several[0], model.conv(torch.ones(1, 3, 5, 5))


@pytest.mark.sampled
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "change",
    [
        model_changes.replace_parameter,
        model_changes.replace_data,
        model_changes.write,
        model_changes.write_through_data,
        model_changes.load,
        model_changes.step,
        model_changes.write_to_a_buffer,
        model_changes.write_to_a_plain_tensor,
        model_changes.replace_a_plain_tensor,
    ],
)
def test_what_changes_between_calls_is_seen(change: Callable[[Model, int], None], dynamic: bool) -> None:
    agree(lambda: Model(_use_all), matrix, between=change, dynamic=dynamic)


@pytest.mark.parametrize(
    "change",
    [
        model_changes.set_memory,
        model_changes.load_by_assignment,
        model_changes.replace_in_a_list,
        model_changes.swap,
        model_changes.tie,
        model_changes.parametrize,
        model_changes.prune,
        model_changes.constrain,
        model_changes.write_to_transposed_data,
    ],
)
def test_what_is_replaced_between_calls_is_seen(change: Callable[[Model, int], None]) -> None:
    agree(lambda: Model(_use_all), matrix, between=change)
