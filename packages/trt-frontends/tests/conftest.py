"""Models and settings that the tests of the frontends share."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import Input


class Function(nn.Module):
    """Runs a function as a model; the function takes the module first, which has a layer and a buffer to use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.linear = nn.Linear(4, 4)
        self.register_buffer("bias", torch.ones(4))

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


class Interrupted(nn.Module):
    """Two engines with a block in PyTorch between them: no converter knows `special_bessel_j0`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4), float32; returns (N, 4)."""
        return torch.relu(self.second(torch.special.bessel_j0(torch.relu(self.first(x)))))


def _compare(model: nn.Module, *args: Any, kwargs: Any = None, **settings: Any) -> Any:
    compiled = trt_frontends.compile(
        model.eval(), arg_inputs=args, kwarg_inputs=kwargs, **{"min_block_size": 1, **settings}
    )
    with torch.no_grad():
        expected, found = model(*args, **(kwargs or {})), compiled(*args, **(kwargs or {}))
    assert torch.utils._pytree.tree_structure(found) == torch.utils._pytree.tree_structure(expected)
    for wanted, value in zip(
        torch.utils._pytree.tree_leaves(expected), torch.utils._pytree.tree_leaves(found), strict=True
    ):
        if isinstance(wanted, torch.Tensor):
            torch.testing.assert_close(value, wanted)
        else:
            assert type(value) is type(wanted) and value == wanted
    return compiled


@pytest.fixture(scope="session")
def function_model() -> Callable[[Callable[..., Any]], nn.Module]:
    """Makes a model of a function `(module, x)`; `module.linear` is a layer, `module.bias` a buffer."""
    return lambda function: Function(function).eval()


@pytest.fixture
def interrupted() -> nn.Module:
    """A model that needs two engines."""
    return Interrupted().eval()


@pytest.fixture
def mlp() -> nn.Module:
    """A model that one engine runs: (N, 4) float32 to (N, 2)."""
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).eval()


@pytest.fixture(scope="session")
def batch() -> Input:
    """(1 to 8, 4), float32."""
    return Input(min_shape=(1, 4), opt_shape=(4, 4), max_shape=(8, 4))


@pytest.fixture(scope="session")
def compare() -> Callable[..., Any]:
    """Compiles a model, checks that it returns what eager does, and returns the compiled module."""
    return _compare


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Forgets graphs of torch.compile before, and leaves the log level as it was."""
    level = logging.getLogger("torch_tensorrt").level
    torch._dynamo.reset()
    yield
    logging.getLogger("torch_tensorrt").setLevel(level)
