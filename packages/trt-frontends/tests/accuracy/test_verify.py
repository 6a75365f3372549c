"""A compiled model beside eager, and both beside float64."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import ExecutionError, Input, InputError
from trt_frontends.accuracy import verify

aten = torch.ops.aten


class Halved(nn.Module):
    """Wrong by a factor that a caller chooses."""

    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x) * self.factor


def test_a_right_model_is_within_tolerance(deep: nn.Module) -> None:
    report = verify(deep, arg_inputs=(torch.randn(2, 8),))
    assert report.passed
    assert report.inputs == ("as given", "seed 0", "seed 1", "seed 2", "seed 3", "all lowest", "all highest")
    assert report.model == "Deep"
    assert report.outputs[0].compiled_from_exact < 1e-5
    assert "within tolerance" in report.to_text()


@pytest.mark.parametrize(("factor", "error"), [(0.5, 0.5), (1.25, 0.25)])
def test_a_wrong_model_is_found_and_measured(deep: nn.Module, factor: float, error: float) -> None:
    report = verify(deep, Halved(deep, factor), arg_inputs=(torch.randn(2, 8),))
    assert not report.passed
    assert report.worst == pytest.approx(error, rel=1e-3)
    assert report.outputs[0].nearer == "eager"
    assert "BEYOND" in report.to_text()


def test_a_planted_fault_is_found(deep: nn.Module, plant_fault: Any) -> None:
    plant_fault(aten.tanh.default)
    assert not verify(deep, arg_inputs=(torch.randn(2, 8),), samples=1).passed


def test_a_more_exact_compiled_model_is_said_to_be_nearer() -> None:
    class Rounds(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.bfloat16() * 1.1).float()

    report = verify(Rounds(), lambda x: x * 1.1, arg_inputs=(torch.randn(64),), tolerance=0.05)
    assert report.passed
    assert report.outputs[0].nearer == "compiled"
    assert "compiled is nearer" in report.to_text()


@pytest.mark.parametrize("in_place", [False, True])
def test_what_torch_compile_made_is_compared_with_the_module_it_was_given(
    deep: nn.Module, plant_fault: Any, in_place: bool
) -> None:
    options, x = {"optimization_level": 0}, torch.randn(2, 8)
    if in_place:
        deep.compile(backend="torch_tensorrt", options=options)
    model = deep if in_place else torch.compile(deep, backend="torch_tensorrt", options=options)
    plant_fault(aten.tanh.default)
    report = verify(model, arg_inputs=(x,), samples=1)
    assert not report.passed and report.model == "Deep"
    assert report.outputs[0].nearer == "eager"


def test_parts_that_torch_compile_has_compiled_are_compared_with_float64() -> None:
    class Compiled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)
            self.layer.compile(backend="eager")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.layer(x).relu()
            return found

    for _ in range(2):  # compiled anew, and as it was
        report = verify(Compiled().eval(), arg_inputs=(torch.randn(2, 4),), samples=0)
        assert report.passed and report.skipped_exact == ""


def test_engines_are_not_compared_with_themselves(deep: nn.Module) -> None:
    x = torch.randn(2, 8)
    compiled = trt_frontends.compile(deep, arg_inputs=(x,), optimization_level=0)
    with pytest.raises(InputError, match=r"has engines(.|\n)*compiled="):
        verify(compiled, arg_inputs=(x,))
    assert verify(compiled, deep, arg_inputs=(x,), samples=0).passed


def test_dynamic_sizes_are_tried_at_both_ends(deep: nn.Module) -> None:
    batch = Input(min_shape=(1, 8), opt_shape=(2, 8), max_shape=(5, 8), tensor_domain=(-1, 1))
    report = verify(deep, arg_inputs=(batch,), samples=1)
    assert report.inputs == ("seed 0", "all lowest", "all highest", "min sizes", "max sizes")
    assert report.passed


def test_inputs_of_ones_own(deep: nn.Module) -> None:
    inputs = [(torch.randn(2, 8),), {"x": torch.randn(2, 8)}, ((), {"x": torch.zeros(2, 8)}), torch.ones(2, 8)]
    report = verify(deep, arg_inputs=(torch.randn(2, 8),), inputs=inputs)
    assert report.inputs == ("input 0", "input 1", "input 2", "input 3")
    assert report.passed


@pytest.mark.parametrize("inputs", [[], [3], ["x"]])
def test_inputs_that_cannot_be_read_are_refused(deep: nn.Module, inputs: list[Any]) -> None:
    with pytest.raises(InputError):
        verify(deep, deep, inputs=inputs)


def test_no_inputs_are_an_error(deep: nn.Module) -> None:
    with pytest.raises(InputError, match="no inputs"):
        verify(deep, deep)


def test_a_program_brings_its_own_inputs(deep: nn.Module) -> None:
    program = torch.export.export(deep, (torch.randn(2, 8),))
    assert verify(program, samples=1).passed


def test_results_of_another_shape_are_refused(deep: nn.Module) -> None:
    with pytest.raises(InputError, match=r"float32\(2, 4\).*eager's is float32\(2, 8\)"):
        verify(deep, lambda x: deep(x)[:, :4], arg_inputs=(torch.randn(2, 8),))
    with pytest.raises(InputError, match="returns 2 values"):
        verify(deep, lambda x: (deep(x), x), arg_inputs=(torch.randn(2, 8),))


def test_nan_in_one_of_the_two_is_beyond_any_tolerance(deep: nn.Module) -> None:
    report = verify(deep, lambda x: torch.sqrt(-deep(x).square() - 1), arg_inputs=(torch.randn(4, 8),), tolerance=1e9)
    assert math.isinf(report.worst)
    assert not report.passed
    assert "NaN" in report.to_text()


def test_integers_are_drawn_from_those_that_were_given() -> None:
    model = nn.Embedding(10, 4)
    seen: list[torch.Tensor] = []

    def compiled(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids)
        return model(ids)

    assert verify(model, compiled, arg_inputs=(torch.tensor([[1, 7, 3]]),)).passed
    assert {item for ids in seen for item in ids.flatten().tolist()} == {1, 3, 7}


class Counting(nn.Module):
    """Counts its calls, draws random numbers, and returns numbers beside tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        self.calls.add_(1)
        return {"y": self.linear(x) * self.calls + torch.rand_like(x), "calls": self.calls, "rows": x.shape[0]}


def test_state_and_random_numbers_are_the_same_for_both() -> None:
    model, x = Counting().eval(), torch.randn(3, 4)
    report = verify(model, arg_inputs=(x,), samples=2, min_block_size=1, optimization_level=0)
    assert report.passed and len(report.outputs) == 3
    assert float(model.calls) == 0


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda x: (x, 4), None),
        (lambda x: (x, 3.0), "of type float"),
        (lambda x: (x, None), "None"),
        (lambda x: (x, torch.tensor(3)), "int64"),
        (lambda x: x, "returns 1 values"),
    ],
)
def test_numbers_are_compared_too(found: Any, message: str | None) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return x, 3

    def run() -> Any:
        return verify(Model(), found, arg_inputs=(torch.randn(2),), samples=0)

    if message is None:
        assert not run().passed
        return
    with pytest.raises(InputError, match=message):
        run()


@pytest.mark.parametrize(
    "options", [{"tolerance": "small"}, {"tolerance": -1.0}, {"tolerance": float("nan")}, {"samples": -1}]
)
def test_options_that_mean_nothing_are_refused(deep: nn.Module, options: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(options))):
        verify(deep, deep, arg_inputs=(torch.randn(2, 8),), **options)


def test_failures_say_which_of_the_two_fails(deep: nn.Module) -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError("of its own")

    with pytest.raises(ExecutionError, match=r"the compiled model fails(.|\n)*as given(.|\n)*of its own"):
        verify(deep, fails, arg_inputs=(torch.randn(2, 8),), samples=0)
    with pytest.raises(InputError, match="cannot take an int as compiled"):
        verify(deep, 5, arg_inputs=(torch.randn(2, 8),))  # type: ignore[arg-type]


def test_models_that_write_to_their_inputs_get_copies() -> None:
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.add_(1)

    x = torch.zeros(3)
    assert verify(Writes(), Writes(), arg_inputs=(x,)).passed
    assert torch.equal(x, torch.zeros(3))


def test_what_has_no_kernel_for_float64_says_so() -> None:
    class Picky(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype is not torch.float32 or (x + 0).dtype is not torch.float32:
                raise RuntimeError("only single precision")
            return x * 2

    report = verify(Picky(), Picky(), arg_inputs=(torch.randn(3),))
    assert report.passed
    assert "only single precision" in report.skipped_exact
    assert report.outputs[0].nearer == ""


def test_renderings_hold_every_output(deep: nn.Module) -> None:
    class Two(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"first": deep(x), "<second>": x.log()}

    report = verify(Two(), arg_inputs=(torch.randn(2, 8),), depth=True, min_block_size=1)
    data = json.loads(report.to_json())
    assert [entry["name"] for entry in data["outputs"]] == ["['first']", "['<second>']"]
    assert data["passed"] is report.passed is True
    page = report.to_html()
    assert "&lt;second&gt;" in page and "<second>" not in page
    assert page.count("<svg") == 3
    assert len(report.depth) >= 12
    assert max(point.accumulated for point in report.depth) < 1e-5


def test_the_package_offers_it() -> None:
    assert trt_frontends.verify is verify


def test_progress_is_told(deep: nn.Module) -> None:
    told: list[str] = []
    verify(deep, arg_inputs=(torch.randn(2, 8),), samples=1, depth=True, progress=lambda what, *_: told.append(what))
    assert list(dict.fromkeys(told)) == [
        "capturing",
        "lowering",
        "building engines",
        "comparing with eager",
        "comparing inside of engines",
    ]
