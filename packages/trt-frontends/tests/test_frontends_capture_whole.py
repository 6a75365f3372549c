"""What capturing must keep whole, or take apart, for sizes to vary: recurrent layers, fused encoders, `torch.vmap`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import ExportError
from trt_frontends import Input
from trt_frontends.backend import torch_tensorrt_backend


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.layer = kind(4, 6, **options)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, Any]:
        found: tuple[torch.Tensor, Any] = self.layer(x)
        return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {"batch_first": True, "num_layers": 2, "bidirectional": True}),
        (nn.LSTM, {"proj_size": 2}),
        (nn.GRU, {"batch_first": True}),
        (nn.GRU, {"bidirectional": True}),
        (nn.RNN, {"nonlinearity": "relu"}),
    ],
)
def test_the_length_of_a_sequence_varies(kind: Any, options: dict[str, Any]) -> None:
    model = Recurrent(kind, **options).eval()
    sizes = Input(min_shape=(1, 1, 4), opt_shape=(3, 5, 4), max_shape=(12, 12, 4))
    compiled = trt_frontends.compile(model, arg_inputs=(sizes,), min_block_size=1)
    report = compiled.meta["partition_report"]
    assert (len(report.engines), report.coverage) == (1, 1.0)
    for first, second in [(1, 1), (3, 5), (12, 12), (2, 9)]:
        x = torch.randn(first, second, 4)
        found, wanted = compiled(x), model(x)
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
        assert found[0].stride() == wanted[0].stride()


def test_what_capturing_swaps_is_put_back() -> None:
    from torch._decomp import decomposition_table

    before = dict(decomposition_table)
    with pytest.raises(ExportError):
        trt_frontends.explain(_Failing(), arg_inputs=(torch.ones(2),))
    assert decomposition_table == before


class _Failing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.skipif(torch.__version__ < "2.12", reason="Dynamo of 2.11 captures the fused layer with fixed sizes only")
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_whose_sizes_all_vary_is_one_engine(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, dynamic=True, options={"min_block_size": 1})
    for batch, length in [(2, 5), (4, 16), (3, 9)]:
        x = torch.randn(batch, length, 8)
        torch.testing.assert_close(optimized(x), model(x), rtol=1e-4, atol=1e-5)
    report = trt_frontends.model_report(optimized)
    assert [(len(graph.builds), graph.in_pytorch) for graph in report.graphs] == [(1, "")]
    assert (report.engines, report.coverage) == (1, 1.0)


class Mapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(lambda row: self.layer(row).relu() @ row[:3])(x)


def test_vmap_is_taken_apart_on_both_paths() -> None:
    model, x = Mapped().eval(), torch.randn(5, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    for module in (compiled, optimized):
        torch.testing.assert_close(module(x), model(x))
        torch.testing.assert_close(module(x * 2), model(x * 2))
    assert len(compiled.meta["partition_report"].engines) == 1
    assert trt_frontends.model_report(optimized).engines == 1


def _wave(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x.cos().sum()).sum()


class Transformed(nn.Module):
    """Derivatives by rows and as a whole, of functions of an input and of weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        of, row, weights = torch.func, x[0], dict(self.layer.named_parameters())
        value, pull = of.vjp(self.layer, x)
        return {
            "grad": of.grad_and_value(_wave)(x),
            "grad of grad": of.grad(lambda v: of.grad(_wave)(v).square().sum())(x),
            "grad of weights": of.grad(lambda held: of.functional_call(self.layer, held, (x,)).sin().sum())(weights),
            "vjp": pull(value),
            "jvp": of.jvp(self.layer, (row,), (row,)),  # which fixes the sizes of what it maps
            "jacrev": of.jacrev(self.layer)(row),
            "jacfwd": of.jacfwd(self.layer)(row),
            "hessian": of.hessian(_wave)(row),
            "of rows": torch.vmap(of.grad(_wave))(x),
            "jacrev of rows": torch.vmap(of.jacrev(self.layer))(x),
            "written": torch.vmap(lambda v: v.clone().add_(1).mul_(v))(x),
        }


def test_transforms_of_functions_are_captured_as_what_they_compute() -> None:
    model = Transformed().eval()
    compiled = trt_frontends.compile(
        model, [trt_frontends.Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))], min_block_size=1
    )
    for rows in (1, 2, 7):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_capture_that_fails_inside_of_a_transform_leaves_none_behind() -> None:
    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.vmap(torch.func.hessian(lambda row: _wave(row) if row.sum() > 0 else row.sum()))(x)

    x = torch.ones(2, 3)
    with pytest.raises(ExportError):
        trt_frontends.explain(Failing(), arg_inputs=(x,))
    torch.testing.assert_close(torch.func.hessian(lambda row: row.pow(2).sum())(x[0]), 2 * torch.eye(3))


def test_an_object_among_the_inputs_is_an_error_of_ours() -> None:
    class Cache:
        """No container that export knows."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor, cache: Any) -> torch.Tensor:
            return x

    with pytest.raises(ExportError, match="Model cannot be exported") as caught:
        trt_frontends.explain(Model(), arg_inputs=(torch.ones(2), Cache()))
    assert "Cache" in caught.value.why
