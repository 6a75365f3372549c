from __future__ import annotations

import logging

import pytest
import torch
from torch.export import Dim

from trt_core import ExportError
from trt_lowering import export_module


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x


class Clamping(torch.nn.Module):
    """As layers of Bart and others in transformers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float16 and not torch.isfinite(x).all():
            clamp_value = torch.finfo(x.dtype).max - 1000
            x = torch.clamp(x, min=-clamp_value, max=clamp_value)
        return x


class ClampingWhereInfinite(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        if torch.isinf(y).any():
            clamp_value = torch.finfo(y.dtype).max - 1000
            y = torch.clamp(y, min=-clamp_value, max=clamp_value)
        return y + x


class ClampingBeside(torch.nn.Module):
    """What else is computed there is there under the condition alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        if torch.isinf(x).any():
            y = x + 1
            x = torch.clamp(x, -1, 1)
        return x + y


class ClampingOrNot(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.isinf(x).any():
            x = torch.clamp(x, -1, 1)
        else:
            x += 1
        return x


class ClampingIfTold(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if (x > 0).any() and torch.isinf(x).any():
            x = torch.clamp(x, -1, 1)
        return x


class Fixed(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, 3)


def test_exports_positional_and_keyword_inputs():
    class Scaled(torch.nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    x, scale = torch.randn(2, 3), torch.randn(3)
    program = export_module(Scaled(), [x], {"scale": scale})
    assert torch.equal(program.module()(x, scale=scale), x * scale)


@pytest.mark.parametrize("strict", [False, True])
def test_strict_is_passed_on(strict):
    program = export_module(torch.nn.Linear(3, 3), (torch.randn(2, 3),), strict=strict)
    assert any(node.target is torch.ops.aten.linear.default for node in program.graph.nodes)


def test_dynamic_dimensions_stay_symbolic():
    program = export_module(torch.nn.ReLU(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    (value,) = (node.meta["val"] for node in program.graph.nodes if node.op == "placeholder")
    assert isinstance(value.shape[0], torch.SymInt)


@pytest.mark.parametrize("strict", [False, True])
def test_what_operators_make_is_remembered_for_fixed_sizes_alone(strict: bool) -> None:
    """Of sizes that vary it is sooner asked again than found."""
    found = []
    for dims in (None, {"input": {0: Dim("rows", min=2, max=8)}}):
        program = export_module(torch.nn.ReLU(), [torch.randn(4, 3)], dynamic_shapes=dims, strict=strict)
        (node,) = program.graph.find_nodes(op="placeholder")
        found.append(node.meta["val"].fake_mode.cache_enabled)
    assert found == [True, False]
    assert torch._dynamo.config.fake_tensor_cache_enabled


@pytest.mark.parametrize("batch", [(), (2,)])
def test_unshuffled_pixels_of_pictures_of_any_size_have_known_channels(batch):
    varies = {len(batch) + 1: Dim.DYNAMIC, len(batch) + 2: Dim.DYNAMIC}
    program = export_module(torch.nn.PixelUnshuffle(4), (torch.randn(*batch, 3, 8, 12),), dynamic_shapes=(varies,))
    (value,) = (
        node.meta["val"] for node in program.graph.nodes if node.target is torch.ops.aten.pixel_unshuffle.default
    )
    assert type(value.shape[-3]) is int
    assert value.shape[-3] == 48
    x = torch.randn(*batch, 3, 16, 8)
    torch.testing.assert_close(program.module()(x), torch.pixel_unshuffle(x, 4))


@pytest.mark.parametrize("strict", [False, True])
def test_what_a_model_takes_by_any_keyword_may_vary(strict):
    class Summed(torch.nn.Module):
        def forward(self, *tensors, bias=None, **more):
            return sum(tensors) + sum(more.values()) + bias

    module, x = Summed(), torch.randn(4, 3)
    varies = {0: Dim.DYNAMIC}
    shapes = {"tensors": (varies, varies), "bias": varies, "more": {"b": varies, "a": varies}}
    program = export_module(module, (x, x), {"bias": x, "b": x, "a": x}, dynamic_shapes=shapes, strict=strict)
    y = torch.randn(6, 3)
    assert torch.equal(program.module()(y, y, bias=y, b=y, a=y), 5 * y)
    assert "forward" not in vars(module)


def test_data_dependent_branch_names_the_line_and_the_way_out():
    with pytest.raises(ExportError) as error:
        export_module(Branching(), (torch.randn(3),))
    assert "Branching cannot be exported" in error.value.what
    assert "torch.where" in error.value.hint
    assert __file__ in error.value.where
    assert "torch.onnx.export(model" in str(error.value)


@pytest.mark.parametrize("model", [Clamping, ClampingWhereInfinite])
def test_clamps_of_infinities_in_float16_are_captured_with_their_condition(model: type[torch.nn.Module]) -> None:
    program = export_module(model(), (torch.randn(4).half(),)).module()
    for last in (float("inf"), 65504.0, -65504.0, float("nan")):
        x = torch.tensor([1.0, -65504.0, 65504.0, last]).half()
        torch.testing.assert_close(program(x), model()(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("model", [ClampingBeside, ClampingOrNot, ClampingIfTold])
def test_branches_that_do_more_than_clamp_infinities_are_refused(model: type[torch.nn.Module]) -> None:
    with pytest.raises(ExportError):
        export_module(model(), (torch.randn(4).half(),))


def test_the_graph_up_to_a_failure_is_not_printed(capfd):
    with pytest.raises(ExportError):
        export_module(Branching(), (torch.randn(3),))
    assert "torch.ops.aten" not in "".join(capfd.readouterr())


def test_violated_dynamic_dimension_advises_on_ranges():
    with pytest.raises(ExportError) as error:
        export_module(Fixed(), (torch.randn(4, 3),), dynamic_shapes=({0: Dim("batch", min=1, max=8)},))
    assert "dimension" in error.value.hint


def test_wrong_number_of_inputs_points_at_the_signature():
    with pytest.raises(ExportError) as error:
        export_module(torch.nn.ReLU(), (torch.randn(3), torch.randn(3)))
    assert "signature" in error.value.hint


def test_results_of_an_unknown_class_point_at_its_registration():
    class Result:
        def __init__(self, value):
            self.value = value

    class Returning(torch.nn.Module):
        def forward(self, x):
            return Result(x + 1)

    with pytest.raises(ExportError) as error:
        export_module(Returning(), (torch.randn(3),))
    assert "register_dataclass" in error.value.hint


def test_wrong_shape_is_reported_with_its_cause():
    with pytest.raises(ExportError) as error:
        export_module(torch.nn.Linear(3, 3), (torch.randn(2, 4),))
    assert error.value.__cause__ is not None
    assert error.value.why
    assert "same example inputs" in error.value.hint


def test_what_runs_but_cannot_be_captured_has_a_way_out():
    class Turned(torch.nn.Module):
        def forward(self, x):
            return x.unsqueeze_(0) * 2

    with pytest.raises(ExportError) as error:
        export_module(Turned(), (torch.ones(3),))
    assert "torch.compile(model" in error.value.hint


def test_one_tensor_given_for_two_inputs_stays_two_inputs():
    class Difference(torch.nn.Module):
        def forward(self, x, y):
            return x["value"] - y

    x = torch.ones(3)
    program = export_module(Difference(), ({"value": x}, x))
    y = torch.arange(3.0)
    torch.testing.assert_close(program.module()({"value": x}, y), x - y)


def test_inputs_that_do_not_fit_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ExportError, match="Linear cannot be exported"):
        export_module(torch.nn.Linear(4, 4).eval(), (torch.ones(2, 5),))
    assert not [name for name, level, _ in caplog.record_tuples if level >= logging.WARNING]


def test_nodes_keep_the_lines_that_made_them():
    class Model(torch.nn.Module):
        def forward(self, x):
            for _ in range(2):
                x = torch.relu(x) + 1
            return x * 2

    model, x = Model(), torch.ones(2)
    traces = [node.stack_trace for node in export_module(model, (x,)).graph.nodes]
    assert traces == [node.stack_trace for node in torch.export.export(model, (x,), strict=False).graph.nodes]
    assert any("torch.relu(x) + 1" in trace for trace in traces if trace)


def test_a_part_that_is_scripted_is_named():
    scripted = torch.jit.script(torch.nn.Linear(3, 3).eval())
    x = torch.ones(2, 3)
    with pytest.raises(ExportError, match=r"export cannot call 1, which torch\.jit\.script made"):
        export_module(torch.nn.Sequential(torch.nn.ReLU(), scripted), (x,))
    frozen = torch.nn.Sequential(torch.nn.ReLU(), torch.jit.freeze(scripted))
    torch.testing.assert_close(export_module(frozen, (x,)).module()(x), frozen(x))


def test_buffers_that_are_not_there_take_no_place_among_those_that_are() -> None:
    """PyTorch counts them, and took an input for a buffer that is written to, or found no place for the last one."""

    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, value in (("absent", None), ("count", torch.zeros(2)), ("other", None), ("step", torch.ones(2))):
                self.register_buffer(name, value)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count = self.count + self.step
            return x * self.count

    module = Counter()
    program = export_module(module, (torch.ones(2),)).module()
    for count in (1, 2):
        torch.testing.assert_close(program(torch.ones(2)), torch.full((2,), float(count)))
    assert list(module.state_dict()) == ["count", "step"]
