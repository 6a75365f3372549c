"""Capturing models: static and dynamic shapes, keywords, nests, strict mode, and what is refused."""

from __future__ import annotations

import logging
import math
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
from trt_core import ExportError, Input, InputError, InternalError, LoweringError, SettingsError

pytestmark = pytest.mark.sampled(4)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), [1, 3, 8, 8], torch.Size([1, 3, 8, 8])])
def test_shapes_are_written_as_inputs(shape: Any) -> None:
    with pytest.raises(InputError, match=r"as input input\n(?s:.*)write Input\(\(1, 3, 8, 8\)\)"):
        trt_frontends.compile(nn.Conv2d(3, 4, 3).eval(), arg_inputs=[shape])


class Masked(nn.Module):
    def forward(self, x: torch.Tensor, *, mask: torch.Tensor | None = None) -> torch.Tensor:
        return x if mask is None else torch.where(mask, torch.relu(x) + 1, x)


class Nested(nn.Module):
    def forward(self, state: dict[str, torch.Tensor], pair: tuple[torch.Tensor, list[torch.Tensor]]) -> torch.Tensor:
        return state["a"] * state["b"] + pair[0] - pair[1][0]


class Sum(nn.Module):
    def forward(self, first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        return sum(others, first)


class Fixed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(4, 4) + 1


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("broken on purpose")


def _ranges(program: torch.export.ExportedProgram) -> list[tuple[int, int]]:
    return [(int(found.lower), int(found.upper)) for found in program.range_constraints.values()]


def test_static_programs_have_no_ranges(mlp: nn.Module) -> None:
    program = trt_frontends.trace(mlp, arg_inputs=(torch.ones(2, 4),))
    assert _ranges(program) == []
    torch.testing.assert_close(program.module()(torch.ones(2, 4)), mlp(torch.ones(2, 4)))


def test_ranges_of_inputs_become_ranges_of_the_program(mlp: nn.Module, batch: Input) -> None:
    program = trt_frontends.trace(mlp, arg_inputs=(batch,))
    assert _ranges(program) == [(1, 8)]


def test_inputs_may_be_given_by_position(mlp: nn.Module) -> None:
    assert trt_frontends.trace(mlp, [torch.ones(2, 4)]).graph_signature.user_inputs


def test_what_has_a_converter_stays_whole(mlp: nn.Module) -> None:
    program = trt_frontends.trace(mlp, arg_inputs=(torch.ones(2, 4),))
    targets = {node.target for node in program.graph.nodes if node.op == "call_function"}
    assert targets == {torch.ops.aten.linear.default, torch.ops.aten.relu.default}


def test_operators_without_converter_are_decomposed() -> None:
    class Decomposed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.huber_loss(x, x + 1, reduction="none")

    program = trt_frontends.trace(Decomposed(), arg_inputs=(torch.ones(2),))
    assert not any("huber" in str(node.target) for node in program.graph.nodes)


def test_keyword_inputs(batch: Input) -> None:
    mask = Input(min_shape=(1, 4), opt_shape=(4, 4), max_shape=(8, 4), dtype=torch.bool)
    program = trt_frontends.trace(Masked(), arg_inputs=(batch,), kwarg_inputs={"mask": mask})
    assert set(_ranges(program)) == {(1, 8)}
    x, mask_values = torch.randn(3, 4), torch.rand(3, 4) > 0.5
    torch.testing.assert_close(program.module()(x, mask=mask_values), Masked()(x, mask=mask_values))


@pytest.mark.parametrize("strict", [False, True])
def test_strict_and_non_strict_agree(mlp: nn.Module, strict: bool) -> None:
    x = torch.randn(2, 4)
    program = trt_frontends.trace(mlp, arg_inputs=(x,), strict=strict)
    torch.testing.assert_close(program.module()(x), mlp(x))


def test_nested_inputs_with_ranges(batch: Input) -> None:
    inputs: tuple[Any, ...] = ({"a": batch, "b": batch}, (batch, [torch.ones(4)]))
    program = trt_frontends.trace(Nested(), arg_inputs=inputs)
    assert set(_ranges(program)) == {(1, 8)}
    compiled = trt_frontends.compile(program, arg_inputs=inputs, min_block_size=1)
    for rows in (1, 5, 8):
        x = torch.randn(rows, 4)
        values = ({"a": x, "b": x + 1}, (x, [torch.ones(4)]))
        torch.testing.assert_close(compiled(*values), Nested()(*values))


def test_variadic_inputs(batch: Input) -> None:
    program = trt_frontends.trace(Sum(), arg_inputs=(batch, batch, batch))
    x = torch.randn(3, 4)
    torch.testing.assert_close(program.module()(x, x, x), 3 * x)


def test_an_exported_program_is_only_decomposed(mlp: nn.Module) -> None:
    exported = torch.export.export(mlp, (torch.ones(2, 4),))
    traced = trt_frontends.trace(exported)
    assert traced.state_dict.keys() == exported.state_dict.keys()


def test_one_program_compiles_with_several_settings(mlp: nn.Module) -> None:
    program = trt_frontends.trace(mlp, arg_inputs=(torch.ones(2, 4),))
    for settings in ({}, {"min_block_size": float("inf")}, {"precision": torch.float16}):
        compiled = trt_frontends.compile(program, **settings)
        torch.testing.assert_close(compiled(torch.ones(2, 4)), mlp(torch.ones(2, 4)), rtol=1e-2, atol=1e-2)


def test_the_trained_model_is_left_as_it_is(mlp: nn.Module) -> None:
    before = {name: value.clone() for name, value in mlp.state_dict().items()}
    trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),))
    assert not mlp.training
    torch.testing.assert_close(mlp.state_dict(), before)


def test_modules_need_inputs(mlp: nn.Module) -> None:
    with pytest.raises(InputError, match="needs example inputs") as caught:
        trt_frontends.trace(mlp)
    assert "arg_inputs" in caught.value.hint


@pytest.mark.parametrize("thing", [lambda x: x, "model.pt", None])
def test_what_is_no_module_is_refused(thing: Any) -> None:
    with pytest.raises(InputError, match=r"trace cannot take (a |None)"):
        trt_frontends.trace(thing, arg_inputs=(torch.ones(2),))


def test_script_modules_are_refused(mlp: nn.Module) -> None:
    scripted = torch.jit.trace(mlp, (torch.ones(2, 4),))
    with pytest.raises(InputError, match=r"(?s)cannot capture a TopLevelTracedModule.*give the module that was traced"):
        trt_frontends.trace(scripted, arg_inputs=(torch.ones(2, 4),))


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((torch.ones(2), torch.ones(2)), None, "too many positional arguments"),
        ((), {"mask": torch.ones(2)}, "missing a required argument: 'x'"),
        ((torch.ones(2),), {"masc": torch.ones(2)}, "unexpected keyword argument 'masc'"),
    ],
)
def test_inputs_that_do_not_fit_the_signature(args: Any, kwargs: Any, why: str) -> None:
    with pytest.raises(InputError, match=r"do not fit Masked.forward\(x") as caught:
        trt_frontends.compile(Masked(), arg_inputs=args, kwarg_inputs=kwargs)
    assert why in caught.value.why
    assert "kwarg_inputs" in caught.value.hint


def test_a_dimension_that_the_model_fixes(batch: Input) -> None:
    with pytest.raises(InputError, match="dimension 0 of input x cannot vary: the model works for 4 only") as caught:
        trt_frontends.trace(Fixed(), arg_inputs=(batch,))
    assert "give 4 as min, opt and max" in caught.value.hint


class Rounded(nn.Module):
    """Makes a tensor of a size, and a number of that: PyTorch notes between which sizes the number is what it was."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[: int(torch.ceil(torch.as_tensor(3 * x.shape[0] / 4)).long())]


class Bounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin() if x.shape[0] % 5 == 0 and x.shape[0] < 12 else x.cos()


def test_a_range_of_which_a_model_takes_one_size_is_refused() -> None:
    def rows(least: int, most: int) -> Input:
        return Input(min_shape=(least, 3), opt_shape=(10, 3), max_shape=(most, 3))

    message = "dimension 0 of input x cannot vary: the model works for 10 only"
    for model, given in ((Rounded(), rows(4, 40)), (Bounded(), rows(7, 14))):
        for act in (trt_frontends.compile, trt_frontends.explain):
            with pytest.raises(InputError, match=message) as caught:
                act(model, arg_inputs=(given,))
            assert "x.shape[0]" in caught.value.why and "give 10" in caught.value.hint
    compiled = trt_frontends.compile(Bounded(), arg_inputs=(rows(5, 14),), min_block_size=1)
    x = torch.randn(5, 3)
    torch.testing.assert_close(compiled(x), x.sin())


class Counted(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.zeros(len(x), int(x.shape[1]))


class Listed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x[at] * at for at in range(len(x))])


def test_sizes_that_a_model_makes_numbers_of_vary() -> None:
    inputs = Input(min_shape=(1, 1), opt_shape=(2, 3), max_shape=(8, 8))
    compiled = trt_frontends.compile(Counted(), arg_inputs=(inputs,))
    for shape in ((1, 1), (2, 3), (8, 1), (1, 8)):
        torch.testing.assert_close(compiled(torch.ones(shape)), torch.ones(shape))


class Waves(nn.Module):
    """`istft` looks at the values of its window, which tells nothing of its sizes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.istft(torch.complex(x, x), 16, 4, window=torch.hann_window(16))


def test_operators_that_ask_for_values_work_at_one() -> None:
    inputs = Input(min_shape=(1, 9, 5), opt_shape=(2, 9, 6), max_shape=(4, 9, 8))
    program = trt_frontends.trace(Waves(), arg_inputs=(inputs,))
    for shape in ((1, 9, 5), (4, 9, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(program.module()(x), Waves()(x))


def test_a_model_that_counts_the_rows_of_an_input_says_where(batch: Input, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InputError, match="dimension 0 of input x cannot vary") as caught:
        trt_frontends.trace(Listed(), arg_inputs=(batch,))
    assert re.match(rf"{re.escape(__file__)}:\d+$", caught.value.where)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_model_that_takes_rows_one_by_one_says_where(batch: Input) -> None:
    class Iterating(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            total = torch.zeros_like(x[0])
            for row in x:
                total = total + row.sin()
            return total

    with pytest.raises(InputError, match="dimension 0 of input x cannot vary") as caught:
        trt_frontends.trace(Iterating(), arg_inputs=(batch,))
    assert re.match(rf"{re.escape(__file__)}:\d+$", caught.value.where)


def test_transformers_take_masks_whatever_they_hold() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(16, 2, 1, 1, 32, batch_first=True).eval()
    source, target = torch.randn(2, 5, 16), torch.randn(2, 4, 16)
    causal = nn.Transformer.generate_square_subsequent_mask(4)
    program = trt_frontends.trace(model, arg_inputs=(source, target), kwarg_inputs={"tgt_mask": causal})
    for mask in (causal, torch.zeros(4, 4), torch.randn(4, 4)):
        found = program.module()(source, target, tgt_mask=mask)
        torch.testing.assert_close(found, model(source, target, tgt_mask=mask), rtol=1e-4, atol=1e-5)


def test_models_that_branch_on_values_are_refused_with_the_line() -> None:
    with pytest.raises(ExportError, match="Branching cannot be exported") as caught:
        trt_frontends.trace(Branching(), arg_inputs=(torch.ones(2),))
    assert caught.value.where.startswith(f"{__file__}:")
    assert "torch.where" in caught.value.hint


def test_models_that_fail_say_their_own_error() -> None:
    with pytest.raises(ExportError, match="broken on purpose") as caught:
        trt_frontends.trace(Broken(), arg_inputs=(torch.ones(2),))
    assert isinstance(caught.value.__cause__, ValueError)


def test_shapes_that_the_model_cannot_compute_with(mlp: nn.Module) -> None:
    with pytest.raises(ExportError, match="reduction dim") as caught:
        trt_frontends.trace(mlp, arg_inputs=(torch.ones(2, 5),))
    assert "run the module on the same example inputs" in caught.value.hint


def test_numpy_arrays_are_refused(mlp: nn.Module) -> None:
    with pytest.raises(InputError, match="NumPy array") as caught:
        trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4).numpy(),))
    assert "torch.from_numpy" in caught.value.hint


@pytest.mark.parametrize("count", [1, 2])
def test_variadic_inputs_with_ranges(count: int, batch: Input) -> None:
    class Sum(nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return sum(tensors[1:], tensors[0] * 2)

    compiled = trt_frontends.compile(
        Sum(), arg_inputs=(Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4)),) * count, min_block_size=1
    )
    assert compiled(*(torch.ones(5, 4),) * count).shape == (5, 4)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("low", "best", "high"), [(1, 1, 2), (1, 2, 2), (2, 2, 3), (1, 1, 3)])
def test_narrow_ranges_take_all_their_sizes_and_no_other(axis: int, low: int, best: int, high: int) -> None:
    shapes = [tuple(size if index == axis else 4 for index in range(3)) for size in (low, best, high)]
    spec = Input(min_shape=shapes[0], opt_shape=shapes[1], max_shape=shapes[2])
    model = nn.Sequential(nn.ReLU(), nn.Softmax(-1))
    for source in (model, trt_frontends.trace(model, arg_inputs=[spec])):
        inputs = {"arg_inputs": [spec]} if source is model else {}
        compiled = trt_frontends.compile(source, **inputs, min_block_size=1)
        for size in range(low, high + 2):
            x = torch.randn([size if index == axis else 4 for index in range(3)])
            if size <= high:
                torch.testing.assert_close(compiled(x), model(x))
            else:
                with pytest.raises(InputError, match=f"dimension {axis} of input input is {size}"):
                    compiled(x)


class Pair(nn.Module):
    """Does not tie its inputs to each other."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (N, 8*L), y: (N, L), both float32."""
        return x * 2, y + 1


def test_named_dimensions_tie_inputs() -> None:
    x = Input(min_shape=(1, 8), opt_shape=(2, 16), max_shape=(4, 32), dimensions={0: "batch", 1: "8*length"})
    y = Input(min_shape=(1, 1), opt_shape=(2, 2), max_shape=(4, 4), dimensions={0: "batch", 1: "length"})
    compiled = trt_frontends.compile(Pair(), arg_inputs=(x, y), min_block_size=1)
    for batch, length in ((1, 1), (3, 4)):
        assert compiled(torch.ones(batch, 8 * length), torch.ones(batch, length))[1].shape == (batch, length)
    for first, second in (((2, 16), (3, 2)), ((2, 16), (2, 3)), ((2, 12), (2, 2))):
        with pytest.raises(InputError, match=r"dimension . of input"):
            compiled(torch.ones(first), torch.ones(second))


class Named(nn.Module):
    """Its inputs have names that can be mistyped."""

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """Both (2, 3), float32."""
        return left + right


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_a_name_that_none_of_several_inputs_has_is_refused(exported: bool) -> None:
    model: Any = torch.export.export(Named(), (torch.ones(2, 3), torch.ones(2, 3))) if exported else Named()
    inputs = [Input((2, 3), name="left"), Input((2, 3), name="rihgt")]
    with pytest.raises(
        InputError, match=r"(?s)named 'rihgt' is given for 'right' of .*only left, right.*did you mean 'right'"
    ) as caught:
        trt_frontends.explain(model, arg_inputs=inputs)
    assert "leave the name out" in caught.value.hint


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_a_name_that_an_only_input_does_not_have_is_warned_of(exported: bool) -> None:
    model: Any = torch.export.export(nn.ReLU(), (torch.ones(2, 3),)) if exported else nn.ReLU()
    with pytest.warns(UserWarning, match="named 'image' is given for 'input' of .*knows no such name"):
        trt_frontends.explain(model, arg_inputs=[Input((2, 3), name="image")])
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trt_frontends.explain(model, arg_inputs=[Input((2, 3), name="input")])


@pytest.mark.parametrize("exported", [False, True], ids=["module", "program"])
def test_a_name_of_another_parameter_is_refused(exported: bool) -> None:
    model: Any = torch.export.export(Pair(), (torch.ones(2, 3), torch.ones(2, 3))) if exported else Pair()
    with pytest.raises(InputError, match="named 'y' is given for 'x'"):
        trt_frontends.explain(model, arg_inputs=[Input((2, 3), name="y"), Input((2, 3), name="x")])


class Variadic(nn.Module):
    """Its inputs have no names of their own."""

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """All (2, 3), float32."""
        return args[0] + args[1]


def test_names_of_variadic_inputs_are_labels() -> None:
    inputs = [Input((2, 3), name="left"), Input((2, 3), name="right")]
    for model in (Variadic(), trt_frontends.trace(Variadic(), arg_inputs=inputs)):
        assert trt_frontends.explain(model, arg_inputs=inputs).total_operators == 1


@pytest.mark.parametrize("count", [1, 2])
def test_variadic_inputs_may_vary(count: int) -> None:
    class Total(nn.Module):
        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            return torch.stack(args).sum(0).relu()

    inputs = [Input(min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3))] * count
    compiled = trt_frontends.compile(Total(), arg_inputs=inputs, min_block_size=1)
    for batch in (1, 2, 5, 8):
        given = [torch.randn(batch, 3) for _ in inputs]
        torch.testing.assert_close(compiled(*given), Total()(*given))


@pytest.mark.parametrize("axis", [0, 2, 3])
def test_an_extent_may_be_one_or_two(axis: int) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()).eval()
    largest = (2, 3, 2, 2)
    smallest = tuple(1 if at == axis else extent for at, extent in enumerate(largest))
    compiled = trt_frontends.compile(
        model, arg_inputs=[Input(min_shape=smallest, opt_shape=largest, max_shape=largest)], min_block_size=1
    )
    for shape in (smallest, largest):
        x = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


def test_threads_capture_one_after_the_other(mlp: nn.Module) -> None:
    def work(index: int) -> torch.Tensor:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2 + index)).eval()
        x = torch.randn(2, 4)
        compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
        torch.testing.assert_close(compiled(x), model(x))
        return compiled(x)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(8)))
    assert [result.shape[1] for result in results] == list(range(2, 10))


class Overlapping(nn.Module):
    """Writes to two inputs, to one of them in part."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Both (2, 2), float32."""
        x[:1].add_(1)
        y.mul_(2)
        return x + y


def test_examples_may_overlap_and_inputs_that_are_written_to_may_not() -> None:
    base = torch.ones(6)
    overlapping = (base[:4].view(2, 2), base[1:5].view(2, 2))
    compiled = trt_frontends.compile(Overlapping(), arg_inputs=overlapping, min_block_size=1)
    apart, twins = ([value.clone() for value in overlapping] for _ in range(2))
    torch.testing.assert_close(compiled(*apart), Overlapping()(*twins))
    torch.testing.assert_close(apart, twins)
    with pytest.raises(InputError, match="shares memory with"):
        compiled(*overlapping)


def test_what_tracing_raises_is_an_error_of_ours_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("no message for users")

    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", fail)
    with pytest.raises(LoweringError, match="ZeroDivisionError: no message") as caught:
        trt_frontends.compile(Overlapping(), arg_inputs=(torch.ones(2, 2), torch.ones(2, 2)))
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_what_nothing_expects_is_an_error_of_ours_too(mlp: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("no message for users")

    monkeypatch.setattr("trt_frontends.pipeline.split_into_blocks", fail)
    with pytest.raises(InternalError, match="ZeroDivisionError: no message") as caught:
        trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


@pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU is here")
def test_a_device_that_is_not_here_is_refused_before_anything_is_captured(mlp: nn.Module) -> None:
    steps: list[str] = []
    with pytest.raises(SettingsError, match="device=cuda:0 is not here"):
        trt_frontends.compile(
            mlp, arg_inputs=(torch.ones(2, 4),), device="cuda:0", progress=lambda what, *_: steps.append(what)
        )
    assert steps == []
    assert trt_frontends.explain(mlp, arg_inputs=(torch.ones(2, 4),), device="cuda:0", min_block_size=1).engines


def test_portable_engines_know_no_accelerator(mlp: nn.Module) -> None:
    with pytest.raises(SettingsError, match="device=dla:0 cannot be built for"):
        trt_frontends.compile(mlp, arg_inputs=(torch.ones(2, 4),), device="dla:0")


class _CastsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.float())


@pytest.mark.parametrize("door", ["compile", "explain", "trace"])
@pytest.mark.parametrize(
    ("make", "shape"),
    [(lambda: nn.Linear(4, 5), (2, 4)), (lambda: nn.Conv2d(3, 4, 3), (2, 3, 8, 8)), (lambda: nn.GRU(4, 5), (2, 1, 4))],
    ids=["is captured", "fails as it is captured", "fails in Python"],
)
def test_half_inputs_of_a_float_model_are_one_question_at_the_door(make: Any, shape: Any, door: str) -> None:
    spec = Input(shape, dtype=torch.half)
    with pytest.raises(InputError, match="is float16, and the model's weights are float32") as caught:
        getattr(trt_frontends, door)(make().eval(), arg_inputs=(spec,))
    assert "precision=torch.float16" in str(caught.value) and "model.half()" in str(caught.value)


def test_half_inputs_that_a_model_casts_are_taken() -> None:
    model, x = _CastsItself().eval(), torch.randn(2, 4).half()
    compiled = trt_frontends.compile(model, arg_inputs=(Input((2, 4), dtype=torch.half),), min_block_size=1)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


class _Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, other: torch.Tensor) -> Any:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask), self.linear(other)


def test_half_queries_under_a_float_mask_are_taken() -> None:
    given = torch.randn(1, 2, 4, 8).half(), torch.randn(4, 4), torch.randn(2, 4)
    model = _Masked().eval()
    compiled = trt_frontends.compile(model, arg_inputs=given, min_block_size=1)
    torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-2, atol=1e-2)


class _Ends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, halves: torch.Tensor, x: torch.Tensor) -> Any:
        return halves + 1, self.linear(x).view(3, 4)


def test_what_else_fails_beside_half_inputs_is_told_as_such() -> None:
    halves = Input((2,), dtype=torch.half)
    rows = Input(min_shape=(1, 4), opt_shape=(3, 4), max_shape=(8, 4), dimensions={0: "rows"})
    with pytest.raises((InputError, ExportError), match="rows") as caught:
        trt_frontends.compile(_Ends().eval(), arg_inputs=(halves, rows))
    assert "weights" not in str(caught.value)


@pytest.mark.parametrize("door", ["compile", "explain", "trace"])
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), nn.BatchNorm1d(4)], ids=["dropout", "statistics"])
def test_models_in_training_mode_are_warned_about_where_that_makes_a_difference(layer: nn.Module, door: str) -> None:
    model, x = nn.Sequential(nn.Linear(4, 4), layer).train(), torch.randn(3, 4)
    with pytest.warns(UserWarning, match="training mode") as caught:
        getattr(trt_frontends, door)(model, arg_inputs=(x,))
    assert [item.filename for item in caught if "training mode" in str(item.message)] == [__file__]


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 4).train(), lambda: nn.Sequential(nn.Dropout(0.5)).eval()])
def test_nothing_is_said_of_a_mode_that_changes_nothing(make: Any, recwarn: pytest.WarningsRecorder) -> None:
    trt_frontends.explain(make(), arg_inputs=(torch.randn(3, 4),))
    assert not [item for item in recwarn if "training mode" in str(item.message)]


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.ReLU()
        self.part.calls = 0
        self.nothing = math.nan

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.part.calls += 1
        return self.part(x) + self.part.calls


def test_numbers_that_calls_change_are_warned_about() -> None:
    with pytest.warns(UserWarning, match=r"numbers that the model keeps \(part.calls: 0 to 1\)") as caught:
        trt_frontends.explain(Counting().eval(), arg_inputs=(torch.randn(3, 4),))
    assert [item.filename for item in caught if "keeps" in str(item.message)] == [__file__]


class NamedLikeFunctions(nn.Module):
    def forward(self, input: torch.Tensor, input_1: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        return (input - 2 * input_1 + more["print"] - 3 * more["print_1"]).relu()


def test_inputs_that_are_called_like_nodes_of_others_keep_their_values(tmp_path: Path) -> None:
    values = {name: torch.randn(2, 3) for name in ("input", "input_1", "print", "print_1")}
    args, keywords = list(values.values())[:2], {name: values[name] for name in ("print", "print_1")}
    model = NamedLikeFunctions().eval()
    wanted = model(**values)
    compiled = trt_frontends.compile(model, arg_inputs=args, kwarg_inputs=keywords, min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    dry = trt_frontends.compile(model, arg_inputs=args, kwarg_inputs=keywords, dryrun=str(tmp_path / "report.html"))
    for made in (compiled, dry, trt_frontends.load(tmp_path / "model.trtp"), torch.compile(compiled, backend="eager")):
        torch.testing.assert_close(made(*args, **keywords), wanted)
        torch.testing.assert_close(made(**values), wanted)
