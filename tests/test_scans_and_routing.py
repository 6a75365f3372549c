"""Models whose structure is a loop over time or a choice by data: Mamba's scan, the routing of a Switch Transformer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_frontends import model_report
from trt_frontends.backend import torch_tensorrt_backend

transformers = pytest.importorskip("transformers")

VOCABULARY, WIDTH = 32, 16


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


class Logits(nn.Module):
    """Returns a model's logits alone, without its caches."""

    def __init__(self, model: nn.Module, **inputs: Any) -> None:
        super().__init__()
        self.model, self.inputs = model, inputs

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: (N, L), int64; returns (N, L, V)."""
        logits: torch.Tensor = self.model(tokens, **self.inputs).logits
        return logits


class Routed(nn.Module):
    """Sends each token to one of four experts, as far as that has room, by products with a mask."""

    def __init__(self, experts: int = 4, capacity: int = 3) -> None:
        super().__init__()
        self.router, self.capacity = nn.Linear(WIDTH, experts, bias=False), capacity
        self.first = nn.Parameter(torch.randn(experts, WIDTH, 8))
        self.second = nn.Parameter(torch.randn(experts, 8, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden: (N, L, C); returns the same shape, with zeros where an expert had no room."""
        weight, chosen = self.router(hidden).softmax(-1).max(-1)
        mask = nn.functional.one_hot(chosen, len(self.first))
        mask = mask * (mask.cumsum(-2) <= self.capacity)
        inner = torch.einsum("nlc,ech->nleh", hidden, self.first).relu()
        return torch.einsum("nleh,ehc,nle->nlc", inner, self.second, mask.to(hidden.dtype)) * weight[..., None]


@pytest.fixture(scope="module")
def mamba() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.MambaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, state_size=4, num_hidden_layers=1, use_mambapy=False
    )
    return Logits(transformers.MambaForCausalLM(config), use_cache=False).eval()


@pytest.fixture(scope="module")
def sparse_layer() -> nn.Module:
    from transformers.models.switch_transformers import modeling_switch_transformers as modeling

    torch.manual_seed(0)
    config = transformers.SwitchTransformersConfig(
        d_model=WIDTH, d_ff=32, num_experts=4, expert_capacity=3, router_jitter_noise=0.0
    )
    return modeling.SwitchTransformersSparseMLP(config).eval()


def _agree(optimized: Any, model: nn.Module, *inputs: torch.Tensor) -> None:
    with torch.no_grad():
        for x in inputs:
            torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-5)  # sums in another order


def _tokens(length: int) -> torch.Tensor:
    return torch.randint(VOCABULARY, (2, length))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_a_scan_is_one_graph_and_one_engine(mamba: nn.Module) -> None:
    optimized = torch.compile(mamba, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    _agree(optimized, mamba, _tokens(5), _tokens(5))
    report = model_report(optimized)
    assert (len(report.graphs), report.engines, report.coverage) == (1, 1, 1.0)


def test_a_scan_compiles_to_one_engine(mamba: nn.Module) -> None:
    compiled = trt_frontends.compile(mamba, arg_inputs=(_tokens(5),), require_full_compilation=True)
    assert len(compiled.meta["partition_report"].engines) == 1
    _agree(compiled, mamba, _tokens(5), _tokens(5))


@pytest.mark.filterwarnings("ignore:Dynamo detected a call to a `functools.lru_cache`")
def test_experts_that_are_called_by_data_run_in_engines(sparse_layer: nn.Module) -> None:
    optimized = torch.compile(sparse_layer, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    inputs = [torch.randn(2, 6, WIDTH) for _ in range(3)]
    loads = {tuple(sparse_layer.router(x.reshape(-1, WIDTH))[1].reshape(-1, 4).sum(0).tolist()) for x in inputs}
    assert len(loads) > 1, "all inputs are routed alike"
    _agree(optimized, sparse_layer, *inputs)
    report = model_report(optimized)
    assert report.engines
    assert report.coverage == 1.0


def test_routing_by_a_mask_compiles_to_one_engine() -> None:
    torch.manual_seed(0)
    model = Routed().eval()
    rows = trt_frontends.Input(min_shape=(2, 2, WIDTH), opt_shape=(2, 6, WIDTH), max_shape=(2, 9, WIDTH))
    compiled = trt_frontends.compile(model, arg_inputs=(rows,), require_full_compilation=True)
    assert len(compiled.meta["partition_report"].engines) == 1
    inputs = [torch.randn(2, length, WIDTH) for length in (2, 6, 9)]
    _agree(compiled, model, *inputs)
    assert (model(inputs[-1]) == 0).all(-1).any(), "no token was left out"
