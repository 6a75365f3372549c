"""The torch.compile backend: names, options, shapes that vary, state, graph breaks, gradients."""

from __future__ import annotations

import warnings
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from torch import nn

from trt_core import ExecutionError, SettingsError
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.pipeline import BuiltModel, LoweredModel
from trt_frontends.torch_compile import compiled_graph
from trt_frontends.torch_compile.model_report import model_report


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Reports of the graphs that are compiled while the test runs."""
    found: list[Any] = []
    build = LoweredModel.build

    def spy(lowered: LoweredModel) -> BuiltModel:
        built = build(lowered)
        found.append(built.module.meta["partition_report"])
        return built

    monkeypatch.setattr(LoweredModel, "build", spy)
    return found


@pytest.fixture(params=["torch_tensorrt", "tensorrt"])
def backend(request: pytest.FixtureRequest) -> str:
    """Name of the backend; registered here where the package is used from its source tree."""
    name = str(request.param)
    if name not in {point.name for point in entry_points(group="torch_dynamo_backends")} | set(
        torch._dynamo.list_backends(exclude_tags=())
    ):
        torch._dynamo.register_backend(torch_tensorrt_backend, name=name)
    return name


def _same(optimized: Any, model: nn.Module, *inputs: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        torch.testing.assert_close(optimized(*inputs, **kwargs), model(*inputs, **kwargs))


def test_both_names(backend: str, mlp: nn.Module, reports: list[Any]) -> None:
    optimized = torch.compile(mlp, backend=backend, dynamic=False)
    x = torch.randn(2, 4)
    _same(optimized, mlp, x)
    _same(optimized, mlp, x + 1)
    (report,) = reports
    assert report.coverage == 1.0 and len(report.engines) == 1


def test_the_entry_points_name_the_backend() -> None:
    found = {point.name: point.value for point in entry_points(group="torch_dynamo_backends")}
    for name in ("torch_tensorrt", "tensorrt"):
        if name in found:
            assert found[name] == "trt_frontends.backend:torch_tensorrt_backend"
    assert callable(torch_tensorrt_backend)


def test_options_are_settings(mlp: nn.Module, reports: list[Any]) -> None:
    optimized = torch.compile(
        mlp,
        backend=torch_tensorrt_backend,
        options={"min_block_size": 1, "torch_executed_ops": {"torch.ops.aten.relu.default"}, "debug": False},
    )
    _same(optimized, mlp, torch.randn(2, 4))
    assert [node.verdict.code for node in reports[0].torch_nodes] == ["TRT-F002"]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"min_blok_size": 1}, "did you mean 'min_block_size'"), ({"torch_executed_ops": {"aten.nope"}}, "aten.nope")],
)
def test_options_that_make_no_sense_are_errors(options: Any, message: str, mlp: nn.Module) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, options=options)
    with pytest.raises(Exception, match=message) as caught, torch.no_grad():
        optimized(torch.randn(2, 4))
    chain = [caught.value, caught.value.__cause__, getattr(caught.value, "inner_exception", None)]
    assert any(isinstance(error, SettingsError) for error in chain)


@pytest.mark.parametrize("dynamic", [True, False, None])
def test_other_batches(dynamic: bool | None, mlp: nn.Module) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, dynamic=dynamic)
    for rows in (4, 8, 4, 3, 1):
        _same(optimized, mlp, torch.randn(rows, 4))


@pytest.mark.parametrize(("dynamic", "builds"), [(True, 1), (None, 2)])
def test_many_sizes_share_an_engine(dynamic: bool | None, builds: int, mlp: nn.Module, reports: list[Any]) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, dynamic=dynamic)
    for rows in range(2, 42):
        _same(optimized, mlp, torch.randn(rows, 4))
    assert len(reports) == builds


def test_a_dry_run_prints_the_report_at_the_first_call(mlp: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, options={"dryrun": True})
    assert not capsys.readouterr().out
    _same(optimized, mlp, torch.randn(2, 4))
    _same(optimized, mlp, torch.randn(2, 4))
    assert capsys.readouterr().out.count("Dry-Run Results for Graph") == 1


def test_a_dry_run_saves_the_report(mlp: nn.Module, tmp_path: Any) -> None:
    path = tmp_path / "report.json"
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, options={"dryrun": str(path)})
    _same(optimized, mlp, torch.randn(2, 4))
    assert '"total_operators"' in path.read_text() or '"nodes"' in path.read_text()


def test_debug_with_an_infinite_block_size_reports(mlp: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    options = {"debug": True, "min_block_size": float("inf")}
    _same(torch.compile(mlp, backend=torch_tensorrt_backend, options=options), mlp, torch.randn(2, 4))
    assert "100.00% coverage" in caplog.text


def test_require_full_compilation_has_no_effect(interrupted: nn.Module) -> None:
    options = {"require_full_compilation": True, "min_block_size": 1}
    _same(torch.compile(interrupted, backend=torch_tensorrt_backend, options=options), interrupted, torch.randn(2, 4))


def test_buffers_and_their_mutation() -> None:
    class Counter(nn.Module):
        calls: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.register_buffer("scale", torch.full((4,), 2.0))
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return torch.relu(self.linear(x)) * self.scale + self.calls

    torch.manual_seed(0)
    model = Counter().eval()
    torch.manual_seed(0)
    twin = Counter().eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, dynamic=False, options={"min_block_size": 1})
    x = torch.randn(2, 4)
    for calls in (1, 2, 3):
        _same(optimized, twin, x)
        assert model.calls == calls
    for counter in (model, twin):  # what is set from outside counts, whichever tensor the buffer is by now
        counter.calls.fill_(10)
    _same(optimized, twin, x)
    for counter in (model, twin):
        counter.calls = torch.full((), 20.0)
    _same(optimized, twin, x)
    assert model.calls == 21


def test_inputs_written_to_in_place() -> None:
    class Shift(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x.add_(1)
            return torch.relu(x) * 2

    x = torch.randn(2, 4)
    mine, theirs = x.clone(), x.clone()
    optimized = torch.compile(Shift(), backend=torch_tensorrt_backend, options={"min_block_size": 1})
    torch.testing.assert_close(optimized(mine), Shift()(theirs))
    torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dynamic", [False, True])
def test_views_of_inputs_that_were_written_to(reports: list[Any], dynamic: bool) -> None:
    def shift(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.add_(1)
        return x.view(-1), x.relu()

    mine = torch.randn(3, 4)
    theirs = mine.clone()
    optimized = torch.compile(
        shift, backend=torch_tensorrt_backend, dynamic=dynamic, options={"min_block_size": 1, "optimization_level": 0}
    )
    with torch.no_grad():
        found = optimized(mine)
    torch.testing.assert_close(found, shift(theirs))
    torch.testing.assert_close(mine, theirs)
    assert found[0].data_ptr() == mine.data_ptr()
    assert [len(report.engines) for report in reports] == [1]


def test_graph_breaks_make_several_graphs(reports: list[Any]) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.relu(self.first(x))
            torch._dynamo.graph_break()
            return torch.relu(self.second(x))

    model = Broken().eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    _same(optimized, model, torch.randn(2, 4))
    assert len(reports) == 2


def test_branches_compile_anew(reports: list[Any]) -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor, positive: bool, factor: float) -> torch.Tensor:
            return (torch.relu(x) if positive else torch.tanh(x)) * factor

    optimized = torch.compile(Branching(), backend=torch_tensorrt_backend, options={"min_block_size": 1})
    x = torch.randn(2, 4)
    for positive, factor in ((True, 2.0), (False, 2.0), (True, 2.0)):
        _same(optimized, Branching(), x, positive, factor)
    assert len(reports) == 2


def test_structures_of_results(mlp: nn.Module) -> None:
    class Several(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = mlp

        def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
            y = self.mlp(x)
            return {"y": y, "pair": (y * scale, x), "none": None, "number": 3}

    model = Several()
    optimized = torch.compile(model, backend=torch_tensorrt_backend)
    x = torch.randn(2, 4)
    with torch.no_grad():
        found, expected = optimized(x, scale=torch.ones(2)), model(x, scale=torch.ones(2))
    torch.testing.assert_close(found["pair"], expected["pair"])
    assert (found["none"], found["number"]) == (None, 3)
    assert found["pair"][1] is x


def test_gradients_are_refused_where_they_are_asked_for(mlp: nn.Module) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend)
    for x in (torch.randn(2, 4, requires_grad=True), torch.randn(2, 4)):
        y = optimized(x)
        assert y.requires_grad
        with pytest.raises(ExecutionError, match=r"torch\.no_grad"):
            y.sum().backward()


@pytest.mark.parametrize("unused", [None, True])
def test_gradients_of_chosen_tensors_are_refused(mlp: nn.Module, unused: bool | None) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend)
    x = torch.randn(2, 4, requires_grad=True)
    for chosen in (x, mlp[0].weight):
        with pytest.raises(ExecutionError, match="engines compute no gradients"):
            torch.autograd.grad(optimized(x).sum(), chosen, allow_unused=unused)
    constant = torch.ones(1, requires_grad=True)
    assert torch.autograd.grad((optimized(x).detach() * constant).sum(), constant)


def test_gradients_of_complex_results_are_refused() -> None:
    optimized = torch.compile(lambda x: (torch.fft.fft(x), x.to(torch.complex64) * 2, x > 0), backend="torch_tensorrt")
    transformed, doubled, positive = optimized(torch.randn(4, requires_grad=True))
    assert not positive.requires_grad
    for result in (transformed, doubled):
        with pytest.raises(ExecutionError, match="engines compute no gradients"):
            result.abs().sum().backward()


def test_gradients_behind_a_block_without_them_are_refused(mlp: nn.Module, reports: list[Any]) -> None:
    """The end of the block switches recording on, in the middle of a graph that is built without."""

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = x.abs().max()
        return mlp(x) + x.sum() * scale

    optimized = torch.compile(run, backend=torch_tensorrt_backend)
    x = torch.randn(2, 4, requires_grad=True)
    y = optimized(x)
    torch.testing.assert_close(y, run(x))
    assert len(reports) == 1
    with pytest.raises(ExecutionError, match="engines compute no gradients"):
        y.sum().backward()


@pytest.mark.parametrize("choice", ["raise", "pytorch"])
def test_gradients_recorded_inside_of_no_grad_are_those_of_pytorch(choice: str, mlp: nn.Module) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            return mlp(x) + x.sum()

    optimized = torch.compile(run, backend=torch_tensorrt_backend, options={"gradients": choice})
    x = torch.randn(2, 4, requires_grad=True)
    with torch.no_grad():
        found, expected = optimized(x), run(x)
    for ours, wanted in zip(
        *(torch.autograd.grad(y.sum(), (x, mlp[0].weight)) for y in (found, expected)), strict=True
    ):
        torch.testing.assert_close(ours, wanted)


def _forces(energy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return -torch.autograd.grad(energy, x, create_graph=True)[0]


def _written(energy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    energy.backward()
    assert x.grad is not None
    return x.grad * 2


def _written_by_a_function(energy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    torch.autograd.backward(energy)
    assert x.grad is not None
    return x.grad + 1


@pytest.mark.parametrize(
    ("derive", "requires_grad"), [(_forces, False), (_written, True), (_written_by_a_function, True)]
)
def test_gradients_that_the_model_itself_computes_are_those_of_pytorch(
    derive: Any, requires_grad: bool, mlp: nn.Module
) -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.detach().requires_grad_() if not requires_grad else x
        energy = mlp(x).square().sum()
        return energy.detach(), derive(energy, x)

    optimized = torch.compile(run, backend=torch_tensorrt_backend)
    x = torch.randn(2, 4)
    for _ in range(2):
        found, expected = (called(x.clone().requires_grad_(requires_grad)) for called in (optimized, run))
        torch.testing.assert_close(found, expected)
    assert any("computes gradients" in graph.in_pytorch for graph in model_report(optimized).graphs)


def test_gradients_that_are_captured_with_the_model_run_in_engines(mlp: nn.Module, reports: list[Any]) -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(mlp(x).square().sum(), x)[0]

    x = torch.randn(2, 4, requires_grad=True)
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        found = torch.compile(run, backend=torch_tensorrt_backend, options={"min_block_size": 1})(x)
    torch.testing.assert_close(found, run(x))
    assert [report.coverage for report in reports] == [1.0]


def test_recording_that_a_model_switches_off_stays_off() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        torch.set_grad_enabled(False)
        return y + 1

    try:
        torch.compile(run, backend=torch_tensorrt_backend)(torch.randn(2, 4))
        assert not torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)


def test_gradients_in_pytorch(mlp: nn.Module, reports: list[Any]) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, options={"gradients": "pytorch"})
    x = torch.randn(2, 4, requires_grad=True)
    optimized(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(mlp(x).sum(), x)[0])
    assert not reports
    _same(optimized, mlp, x)
    assert len(reports) == 1


def test_a_mode_is_refused(mlp: nn.Module) -> None:
    optimized = torch.compile(mlp, backend=torch_tensorrt_backend, mode="max-autotune")
    with pytest.raises(Exception, match="optimization_level"), torch.no_grad():
        optimized(torch.randn(2, 4))


def test_without_gradients_nothing_is_warned_about(mlp: nn.Module) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error", UserWarning)
        torch.compile(mlp, backend=torch_tensorrt_backend)(torch.randn(2, 4))


def test_graphs_that_cannot_be_lowered_run_in_pytorch(
    mlp: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from trt_core import LoweringError

    def refuse(*_: Any, **__: Any) -> Any:
        raise LoweringError("cannot lower on purpose")

    monkeypatch.setattr(compiled_graph, "begin_lowering_graph", refuse)
    _same(torch.compile(mlp, backend=torch_tensorrt_backend), mlp, torch.randn(2, 4))
    assert "runs in PyTorch: cannot lower on purpose" in caplog.text


def test_weights_are_not_inputs_of_engines(mlp: nn.Module, reports: list[Any]) -> None:
    _same(torch.compile(mlp, backend=torch_tensorrt_backend, dynamic=False), mlp, torch.randn(2, 4))
    ((engine,),) = [report.engines for report in reports]
    assert len(engine.inputs) == 1


def test_options_that_are_no_mapping_are_refused() -> None:
    with pytest.raises(SettingsError, match="options must be a mapping of names to values, not a list"):
        torch_tensorrt_backend(torch.fx.symbolic_trace(nn.ReLU()), [torch.ones(2)], options=[1])  # type: ignore[arg-type]
