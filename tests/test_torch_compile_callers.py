"""Compiled models in the hands of unusual callers: other parameters, other modes, failures midway, several threads."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.torch_compile import compiled_graph

OPTIONS = {"min_block_size": 1}

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4)).eval().requires_grad_(False)


def test_functional_calls_run_with_the_parameters_they_are_given(model: nn.Module) -> None:
    compiled = torch.compile(
        lambda parameters, x: torch.func.functional_call(model, parameters, (x,)),
        backend=torch_tensorrt_backend,
        options=OPTIONS,
    )
    x = torch.randn(2, 4)
    for _ in range(3):
        parameters = {name: torch.randn_like(value) for name, value in model.named_parameters()}
        torch.testing.assert_close(compiled(parameters, x), torch.func.functional_call(model, parameters, (x,)))


def test_modes_may_alternate(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS)
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.inference_mode):
        with mode():
            x = torch.randn(2, 4)
            result = compiled(x)
            torch.testing.assert_close(result, model(x))
            assert result.is_inference() == model(x).is_inference()


def test_a_change_of_type_is_followed(model: nn.Module) -> None:
    compiled, x = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS), torch.randn(2, 4)
    torch.testing.assert_close(compiled(x), model(x))
    model.to(torch.bfloat16)
    torch.testing.assert_close(compiled(x.bfloat16()), model(x.bfloat16()), rtol=2e-2, atol=2e-2)  # 8 bits
    model.float()
    torch.testing.assert_close(compiled(x), model(x))


def test_copies_made_before_the_first_call_have_weights_of_their_own(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS)
    twin, x = copy.deepcopy(compiled), torch.randn(2, 4)
    for parameter in twin.parameters():
        parameter.mul_(2)
    torch.testing.assert_close(compiled(x), model(x))
    torch.testing.assert_close(twin(x), twin._orig_mod(x))


def test_an_error_midway_leaves_what_was_written_before_it() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(4))
            self.fails = True

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            torch._dynamo.graph_break()
            if self.fails:
                raise ZeroDivisionError
            return x + self.count

    counting = Counting()
    compiled, x = torch.compile(counting, backend=torch_tensorrt_backend, options=OPTIONS), torch.zeros(4)
    for call in range(4):
        counting.fails = call % 2 == 0
        if counting.fails:
            with pytest.raises(ZeroDivisionError):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), torch.full((4,), call + 1.0))


def test_an_interrupted_build_is_made_at_the_next_call(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    compiled, x = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS), torch.randn(2, 4)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(compiled_graph.LoweredModel, "build", interrupt)
        compiled(x)
    torch.testing.assert_close(compiled(x), model(x))


def test_the_first_call_may_come_from_several_threads(model: nn.Module) -> None:
    compiled = torch.compile(model, backend=torch_tensorrt_backend, options=OPTIONS)
    inputs = [torch.randn(rows, 4) for rows in (2, 3, 2)]
    with ThreadPoolExecutor(len(inputs)) as threads:
        results = list(threads.map(compiled, inputs))
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, model(x))
