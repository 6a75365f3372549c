"""The samples that users of this field know, as they are written, under the name `torch_tensorrt`."""

from __future__ import annotations

import logging
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
import trt_portable

ALIASED = "torch_tensorrt"


class MyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3, stride=2)
        self.linear = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(torch.relu(self.convolution(x)).mean((2, 3))) - 1


class MaskedModel(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x if mask is None else torch.where(mask, torch.relu(x) + 1, x)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Installs the alias, and forgets compiled graphs and log levels afterwards."""
    import sys

    torch._dynamo.reset()
    level = logging.getLogger(ALIASED).level
    before = {name for name in sys.modules if name.partition(".")[0] == ALIASED}
    trt_frontends.install_alias()
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == ALIASED and name not in before]:
        del sys.modules[name]
    logging.getLogger(ALIASED).setLevel(level)


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """An entry for each engine that is built."""
    made: list[None] = []
    monkeypatch.setenv("TRT_PROVIDER", "portable")
    build = trt_portable.Builder.build_serialized_network

    def counted(*args: Any, **options: Any) -> Any:
        made.append(None)
        return build(*args, **options)

    monkeypatch.setattr(trt_portable.Builder, "build_serialized_network", counted)
    return made


def run(sample: str, **names: Any) -> dict[str, Any]:
    """Runs a sample. What it takes for granted is given by name; without a GPU its `.cuda()` calls go."""
    code = textwrap.dedent(sample)
    if not torch.cuda.is_available():
        code = code.replace(".cuda()", "")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = MyModel().eval().to(device)
    inputs = [torch.randn(1, 3, 32, 32, device=device)]
    scope: dict[str, Any] = {"MyModel": MyModel, "model": model, "inputs": inputs, **names}
    with torch.no_grad():
        exec(compile(code, "<sample>", "exec"), scope)
    return scope


def test_dryrun_prints_the_report_and_builds_nothing(capsys: pytest.CaptureFixture[str], builds: list[None]) -> None:
    run(
        """
        import torch
        import torch_tensorrt

        exp_program = torch.export.export(model, tuple(inputs))

        torch_tensorrt.dynamo.compile(
            exp_program,
            arg_inputs=inputs,
            dryrun=True,
        )
        """
    )
    printed = capsys.readouterr().out
    assert "Dry-Run Results for Graph" in printed
    assert "100.00% coverage" in printed
    assert not builds


def test_dryrun_saves_the_report(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "partition_report.txt"
    sample = """
        import torch
        import torch_tensorrt

        exp_program = torch.export.export(model, tuple(inputs))
        torch_tensorrt.dynamo.compile(
            exp_program,
            arg_inputs=inputs,
            dryrun=path,
        )
        """
    run(sample, path=str(path))
    text = path.read_text()
    assert "Graph Structure:" in text
    path.write_text("kept")
    with caplog.at_level(logging.WARNING, logger=ALIASED):
        run(sample, path=str(path))
    assert [record.levelname for record in caplog.records if str(path) in record.message] == ["WARNING"]
    assert path.read_text() == "kept"


def test_dryrun_through_torch_compile(capsys: pytest.CaptureFixture[str]) -> None:
    run(
        """
        trt_model = torch.compile(model, backend="tensorrt", options={"dryrun": True})
        trt_model(*inputs)  # report printed on first forward pass
        """,
        torch=torch,
    )
    assert "Dry-Run Results for Graph" in capsys.readouterr().out


def test_tuning_min_block_size(tmp_path: Path) -> None:
    scope = run(
        """
        import torch_tensorrt
        # Step 1: run dryrun with a loose min_block_size to see the full partition map
        torch_tensorrt.dynamo.compile(
            exp_program, arg_inputs=inputs, dryrun=path, min_block_size=1,
        )
        # Step 2: read recommendations in the report, pick an appropriate value
        # Step 3: compile for real
        trt_gm = torch_tensorrt.dynamo.compile(
            exp_program, arg_inputs=inputs, min_block_size=10,
        )
        result, expected = trt_gm(*inputs), model(*inputs)
        """,
        **_exported(),
        path=str(tmp_path / "report_loose.txt"),
    )
    torch.testing.assert_close(scope["result"], scope["expected"])


def test_debugging_fallback_operators(capsys: pytest.CaptureFixture[str]) -> None:
    gm = _exported()["exp_program"].module()
    run(
        """
        import torch
        from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
        print(torch.ops.aten.embedding.default in DYNAMO_CONVERTERS)

        from torch_tensorrt.dynamo.partitioning import get_graph_converter_support
        n_supported, n_total = get_graph_converter_support(gm, torch_executed_ops=set())
        print(f"{n_supported}/{n_total} ops supported")
        """,
        gm=gm,
    )
    first, second = capsys.readouterr().out.splitlines()
    assert first == "True"
    supported, total = second.removesuffix(" ops supported").split("/")
    assert 0 < int(supported) <= int(total)


def test_the_report_is_in_the_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger=ALIASED):
        run(
            """
            import logging
            import torch_tensorrt
            logging.getLogger("torch_tensorrt").setLevel(logging.DEBUG)
            torch_tensorrt.dynamo.compile(exp_program, arg_inputs=inputs)
            """,
            **_exported(),
        )
    assert "Dry-Run Results for Graph" in caplog.text


def test_trace_then_compile() -> None:
    scope = run(
        """
        import torch
        import torch_tensorrt

        model = MyModel().eval().cuda()
        inputs = [torch.randn(1, 3, 224, 224).cuda()]

        exp_program = torch_tensorrt.dynamo.trace(model, arg_inputs=inputs)
        trt_gm = torch_tensorrt.dynamo.compile(exp_program, arg_inputs=inputs)
        result, expected = trt_gm(*inputs), model(*inputs)
        """
    )
    assert isinstance(scope["exp_program"], torch.export.ExportedProgram)
    torch.testing.assert_close(scope["result"], scope["expected"])


def test_trace_with_dynamic_shapes() -> None:
    scope = run(
        """
        import torch
        import torch_tensorrt
        from torch_tensorrt import Input

        dyn_inputs = [
            Input(
                min_shape=(1, 3, 224, 224),
                opt_shape=(8, 3, 224, 224),
                max_shape=(16, 3, 224, 224),
                dtype=torch.float32,
                name="x",
            )
        ]
        exp_program = torch_tensorrt.dynamo.trace(model, arg_inputs=dyn_inputs)
        trt_gm = torch_tensorrt.dynamo.compile(exp_program, arg_inputs=dyn_inputs)
        """
    )
    for batch in (1, 8, 16):
        images = torch.randn(batch, 3, 224, 224, device=next(scope["model"].parameters()).device)
        with torch.no_grad():
            torch.testing.assert_close(scope["trt_gm"](images), scope["model"](images))


def test_trace_with_keyword_inputs() -> None:
    scope = run(
        """
        import torch
        import torch_tensorrt
        exp_program = torch_tensorrt.dynamo.trace(
            model,
            arg_inputs=(torch.randn(1, 512).cuda(),),
            kwarg_inputs={"mask": torch.ones(1, 512, dtype=torch.bool).cuda()},
        )
        """,
        model=MaskedModel().eval(),
    )
    compiled = trt_frontends.compile(scope["exp_program"], min_block_size=1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, mask = torch.randn(1, 512, device=device), torch.rand(1, 512, device=device) > 0.5
    torch.testing.assert_close(compiled(x, mask=mask), scope["model"](x, mask=mask))


def test_strict_tracing() -> None:
    scope = run(
        """
        import torch_tensorrt
        exp_program = torch_tensorrt.dynamo.trace(model, arg_inputs=inputs, strict=True)
        """
    )
    assert isinstance(scope["exp_program"], torch.export.ExportedProgram)


def test_compiling_an_exported_program_with_positional_inputs() -> None:
    scope = run(
        """
        import torch
        import torch_tensorrt
        model = MyModel().eval().cuda()
        inputs = [torch.randn((1, 3, 224, 224), dtype=torch.float32).cuda()]
        exp_program = torch.export.export(model, tuple(inputs))
        trt_gm = torch_tensorrt.dynamo.compile(exp_program, inputs) # Output is a torch.fx.GraphModule
        result = trt_gm(*inputs)
        """
    )
    assert isinstance(scope["trt_gm"], torch.fx.GraphModule)
    assert scope["result"].shape == (1, 2)


def test_trace_with_positional_ranges() -> None:
    scope = run(
        """
        import torch
        import torch_tensorrt
        inputs = [torch_tensorrt.Input(min_shape=(1, 3, 224, 224),
                                       opt_shape=(4, 3, 224, 224),
                                       max_shape=(8, 3, 224, 224),
                                       dtype=torch.float32)]
        model = MyModel().eval()
        exp_program = torch_tensorrt.dynamo.trace(model, inputs)
        """
    )
    (bounds,) = scope["exp_program"].range_constraints.values()
    assert (int(bounds.lower), int(bounds.upper)) == (1, 8)


@pytest.mark.parametrize("backend", ["torch_tensorrt", "tensorrt"])
def test_torch_compile(backend: str, builds: list[None]) -> None:
    scope = run(
        """
        import torch
        optimized_model = torch.compile(model, backend=backend, dynamic=False)
        # Causes model compilation to occur
        first_outputs = optimized_model(*inputs)

        # Subsequent inference runs with the same, or similar inputs will not cause recompilation
        second_outputs = optimized_model(*inputs)
        expected = model(*inputs)
        """,
        backend=backend,
    )
    torch.testing.assert_close(scope["first_outputs"], scope["expected"])
    torch.testing.assert_close(scope["second_outputs"], scope["expected"])
    assert len(builds) == 1


@pytest.mark.parametrize(
    "precision", ['"precision": torch.half', '"enabled_precisions": {torch.float, torch.half}'], ids=["one", "set"]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_with_settings(precision: str) -> None:
    scope = run(
        f"""
        import torch
        import torch_tensorrt
        optimized_model = torch.compile(model, backend="torch_tensorrt", dynamic=False,
                                        options={{"truncate_long_and_double": True,
                                                 {precision},
                                                 "debug": True,
                                                 "min_block_size": 2,
                                                 "torch_executed_ops": {{"torch.ops.aten.sub.Tensor"}},
                                                 "optimization_level": 4,
                                                 "use_python_runtime": False,}})
        result, expected = optimized_model(*inputs), model(*inputs)
        """
    )
    assert scope["result"].dtype == torch.float32
    torch.testing.assert_close(scope["result"], scope["expected"], rtol=2e-2, atol=2e-2)


def test_operator_coverage_without_compiling(caplog: pytest.LogCaptureFixture, builds: list[None]) -> None:
    run(
        """
        import torch
        import torch_tensorrt
        optimized_model = torch.compile(model, backend="torch_tensorrt", dynamic=False,
                                        options={"debug": True,
                                                 "min_block_size": float("inf"),})
        optimized_model(*inputs)
        """
    )
    assert "operators are supported" in caplog.text
    assert not builds


def test_counting_graph_breaks() -> None:
    scope = run(
        """
        import torch
        import torch_tensorrt
        explanation = torch._dynamo.explain(model)(*inputs)
        print(f"Graph breaks: {explanation.graph_break_count}")
        optimized_model = torch.compile(model, backend="torch_tensorrt", dynamic=False,
                                        options={"truncate_long_and_double": True})
        result = optimized_model(*inputs)
        """
    )
    assert scope["explanation"].graph_break_count == 0
    assert scope["result"].shape == (1, 2)


def test_other_batch_sizes_compile_again_and_known_ones_do_not(builds: list[None]) -> None:
    model = MyModel().eval()
    optimized = torch.compile(model, backend="torch_tensorrt", dynamic=False)
    counts = []
    with torch.no_grad():
        for batch in (4, 8, 4, 8, 3):
            images = torch.randn(batch, 3, 32, 32)
            torch.testing.assert_close(optimized(images), model(images))
            counts.append(len(builds))
    assert counts == [1, 2, 2, 2, 3]


def _exported() -> dict[str, Any]:
    model = MyModel().eval()
    inputs = [torch.randn(1, 3, 32, 32)]
    return {"model": model, "inputs": inputs, "exp_program": torch.export.export(model, tuple(inputs))}
