"""What `optimize` captures that `torch.compile` leaves out, and that nobody else notices."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from side_by_side import in_fork
from torch import nn

from trt_core import InputError, SettingsError
from trt_frontends import model_report, optimize
from trt_frontends.backend import torch_tensorrt_backend, whole_capture

pytestmark = pytest.mark.sampled(4)


class Tagger(nn.Module):
    """Embeds, runs a recurrent layer, and classifies each step."""

    def __init__(self, recurrent: nn.RNNBase) -> None:
        super().__init__()
        self.embed, self.recurrent = nn.Linear(3, 4), recurrent
        width = (recurrent.proj_size or recurrent.hidden_size) * (2 if recurrent.bidirectional else 1)
        self.classify = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> Any:
        """x: (L, N, 3), or (N, L, 3) for layers with the batch first; float32."""
        steps, state = self.recurrent(torch.relu(self.embed(x)))
        return self.classify(steps), state


LAYERS: dict[str, Callable[[], nn.RNNBase]] = {
    "LSTM": lambda: nn.LSTM(4, 5),
    "GRU": lambda: nn.GRU(4, 5),
    "RNN": lambda: nn.RNN(4, 5),
    "deep": lambda: nn.GRU(4, 5, 2, batch_first=True, bidirectional=True),
    "projected": lambda: nn.LSTM(4, 5, proj_size=2, bias=False),
}


@pytest.mark.parametrize("name", LAYERS)
def test_recurrent_layers_run_in_one_engine_for_all_lengths(name: str) -> None:
    torch.manual_seed(0)
    model = Tagger(LAYERS[name]()).eval()
    optimized = optimize(model, min_block_size=1)
    with torch.no_grad():
        for length, batch in ((4, 2), (7, 3), (8, 17), (31, 2)):
            x = torch.randn(length, batch, 3)
            torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-5)
        model.recurrent.weight_hh_l0.mul_(0.5)
        torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-5)
    report = model_report(optimized)
    assert (len(report.graphs), report.engines, report.coverage, report.left_out) == (2, 2, 1.0, ())


def test_plain_torch_compile_captures_recurrent_layers_where_it_is_told_to() -> None:
    model, x = Tagger(nn.LSTM(4, 5)).eval(), torch.randn(4, 2, 3)
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(optimized(x), model(x))
    report = model_report(optimized)
    assert (report.engines, report.coverage, report.left_out) == (1, 1.0, ())


def test_the_report_says_what_plain_torch_compile_leaves_out_and_what_to_do() -> None:
    model = Tagger(nn.GRU(4, 5)).eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad():
        optimized(torch.randn(4, 2, 3))
    report = model_report(optimized)
    (left_out,) = report.left_out
    assert "nn.GRU recurrent" in left_out and "trt_frontends.optimize" in left_out and "allow_rnn" in left_out
    assert left_out in report.to_text()
    assert json.loads(report.to_json())["left_out"] == [left_out]


def test_other_backends_capture_as_ever() -> None:
    captured = []

    def other(gm: torch.fx.GraphModule, _: Any) -> Any:
        captured.append(gm)
        return gm.forward

    model, x = nn.GRU(4, 5).eval(), torch.randn(3, 2, 4)
    mkldnn, nnpack = torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()
    ours, theirs = optimize(model, min_block_size=1), torch.compile(copy.deepcopy(model), backend=other)
    with torch.no_grad():
        ours(x)
        theirs(x)
    assert model_report(ours).engines == 1
    assert not captured and not torch._dynamo.config.allow_rnn
    assert (torch._C._get_mkldnn_enabled(), torch._C._get_nnpack_enabled()) == (mkldnn, nnpack)


def test_a_failure_while_capturing_leaves_nothing_changed() -> None:
    def refuses(x: torch.Tensor) -> torch.Tensor:
        torch._dynamo.graph_break()
        return x

    optimized = optimize(refuses, fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported), torch.no_grad():
        optimized(torch.ones(2))
    assert not torch._dynamo.config.allow_rnn
    working = optimize(nn.LSTM(4, 5).eval(), fullgraph=True, min_block_size=1)
    with torch.no_grad():
        working(torch.ones(2, 1, 4))
    assert model_report(working).engines == 1


def test_a_reset_of_dynamo_changes_nothing() -> None:
    model, x = nn.LSTM(4, 5).eval(), torch.randn(3, 2, 4)
    optimized = optimize(model, min_block_size=1)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(optimized(x), model(x))
            torch._dynamo.reset()
    assert [len(graph.builds) for graph in model_report(optimized).graphs] == [1, 1]


def test_forty_batches_of_a_convolutional_model_are_captured_twice() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)).eval()
    optimized = optimize(model, min_block_size=1)
    with torch.no_grad():
        for batch in range(2, 42):
            x = torch.randn(batch, 3, 4, 4)
            torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-5)
    report = model_report(optimized)
    assert [len(graph.builds) for graph in report.graphs] == [1, 1]
    assert report.coverage == 1.0


def _plainly(model: nn.Module) -> Any:
    return torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})


@pytest.mark.parametrize("compiled", [_plainly, lambda model: optimize(model, min_block_size=1)])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_are_models_of_their_own(compiled: Callable[[Any], Any], copied: Callable[[Any], Any]) -> None:
    x = torch.randn(3, 4)
    with torch.no_grad():
        first = compiled(nn.Linear(4, 2).eval())
        expected = first(x)
        second = copied(first)
        torch.testing.assert_close(second(x), expected)
        second._orig_mod.weight.mul_(2)
        torch.testing.assert_close(second(x), second._orig_mod(x))
        torch.testing.assert_close(first(x), expected)


def test_what_cannot_be_optimized_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="optimize cannot take an int as model"):
        optimize(3)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="min_block_size"):
        optimize(nn.ReLU(), min_block_sise=1)
    with pytest.raises(SettingsError, match="use_cuda_graphs"):
        optimize(nn.ReLU(), use_cuda_graphs=True)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_processes_that_another_thread_forks_during_a_capture_compute_by_the_same_libraries() -> None:
    """To the last bit: a recurrent layer of PyTorch alone rounds otherwise than that of oneDNN."""
    model, x = nn.LSTM(8, 16).eval(), torch.rand(5, 2, 8)
    with torch.no_grad():
        wanted, _ = model(x)

        def computes() -> bool:
            with torch.no_grad():
                return bool(torch.equal(model(x)[0], wanted))

        with whole_capture():
            assert in_fork(computes)
