"""Loaded programs: called, refused, copied, sent, exported, from one thread and several."""

from __future__ import annotations

import copy
import inspect
import io
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from side_by_side import in_threads
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.nn.attention.flex_attention import flex_attention

from trt_core import ExportError, Input, InputError, PlanError
from trt_runtime import LoadedProgram, TRTModule, load, save
from trt_runtime.program.loading import LoadKeywords
from trt_runtime.program.saving import SaveKeywords


@pytest.fixture
def loaded(saved: Path) -> LoadedProgram:
    module = load(saved)
    assert isinstance(module, LoadedProgram)
    return module


def test_keywords_that_type_checkers_know_are_those_of_the_doors() -> None:
    """Annotations of a `TypedDict` are strings here, as those of the functions are."""
    for keywords, door in ((LoadKeywords, load), (SaveKeywords, save)):
        options = [one for one in inspect.signature(door).parameters.values() if one.kind is one.KEYWORD_ONLY]
        assert {one.name for one in options} == keywords.__annotations__.keys()


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "takes 2 inputs, 0 were given"),
        ((torch.ones(2, 3),), {}, "missing: bias"),
        ((torch.ones(2, 3), torch.ones(3), torch.ones(3)), {}, "takes 2 inputs, 3 were given"),
        ((torch.ones(2, 3),), {"bias": torch.ones(3), "extra": 1}, "takes no input 'extra'"),
        ((torch.ones(2, 3), torch.ones(3)), {"bias": torch.ones(3)}, "input 'bias' is taken by name"),
        ((torch.ones(2, 3),), {"bias": torch.ones(3), "x": torch.ones(3)}, "input 'x' was given twice"),
        ((None,), {"bias": torch.ones(3)}, "input x is None, not a tensor"),
        (([[1.0]],), {"bias": torch.ones(3)}, "input x is a list, not a tensor"),
        ((torch.ones(3),), {"bias": torch.ones(3)}, "input x has rank 1, the model was compiled for rank 2"),
        ((torch.ones(2, 4),), {"bias": torch.ones(3)}, "dimension 1 of input x is 4, the model was compiled for 3"),
        (
            (torch.ones(9, 3),),
            {"bias": torch.ones(3)},
            "dimension 0 of input x is 9, the model was compiled for 1 to 8",
        ),
        (
            (torch.ones(2, 3).double(),),
            {"bias": torch.ones(3)},
            "input x has type float64, the model was compiled for float32",
        ),
        ((torch.ones(2, 3, device="meta"),), {"bias": torch.ones(3)}, "input x is on the meta device"),
    ],
)
def test_wrong_calls_are_told_in_terms_of_the_inputs(
    loaded: LoadedProgram, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        loaded(*args, **kwargs)


def test_one_engine_tells_wrong_calls_in_the_same_words(static_engine: TRTModule, tmp_path: Path) -> None:
    save(static_engine, tmp_path / "model.trtp")
    loaded = load(tmp_path / "model.trtp")
    for wrong, message in [
        ((), "missing: x"),
        ((None,), "x is None"),
        ((torch.ones(3),), "rank 1"),
        ((torch.ones(4, 3),), "is 4, the model was compiled for 2"),
        ((torch.ones(2, 3).int(),), "type int32"),
        ((torch.ones(2, 3, device="meta"),), "meta device"),
    ]:
        with pytest.raises(InputError, match=message):
            loaded(*wrong)


def test_inputs_that_require_gradients_are_refused(loaded: LoadedProgram) -> None:
    x = torch.ones(2, 3, requires_grad=True)
    with pytest.raises(InputError, match="input x requires gradients"):
        loaded(x, bias=torch.ones(3))
    with torch.no_grad():
        assert not loaded(x, bias=torch.ones(3))["result"].requires_grad


def test_modes_and_moves_that_change_nothing(loaded: LoadedProgram) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    expected = loaded(x, bias=bias)["result"]
    for module in (
        loaded.train(),
        loaded.eval(),
        loaded.to("cpu"),
        loaded.cpu(),
        loaded.float(),
        loaded.requires_grad_(False),
    ):
        assert module is loaded
        assert torch.equal(loaded(x, bias=bias)["result"], expected)


def test_scripting_and_symbolic_tracing_are_refused(loaded: LoadedProgram, static_engine: TRTModule) -> None:
    for module in (loaded, static_engine, nn.Sequential(static_engine)):
        with pytest.raises(InputError, match="TorchScript knows no engines"):
            torch.jit.script(module)
    with pytest.raises(InputError, match="cannot be traced symbolically"):
        torch.fx.symbolic_trace(loaded)


def test_moves_to_what_is_not_here_are_refused(loaded: LoadedProgram) -> None:
    with pytest.raises(InputError, match="a saved program cannot be moved"):
        loaded.to("xpu")


@pytest.mark.parametrize(
    "move", [lambda module: module.half(), lambda module: module.to("meta"), lambda module: module.double()]
)
def test_moves_that_would_change_something_are_refused(loaded: LoadedProgram, move: Any) -> None:
    with pytest.raises(InputError, match="stays what it was compiled for"):
        move(loaded)


def test_weights_have_the_names_of_the_model(loaded: LoadedProgram, model: nn.Module) -> None:
    ours = {name: value for name, value in loaded.state_dict().items() if not name.startswith("engine")}
    assert ours.keys() == {"linear.weight", "linear.bias"}
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in ours.items())
    assert isinstance(loaded.get_parameter("linear.weight"), nn.Parameter)


def test_loading_a_state_dict_changes_results(loaded: LoadedProgram) -> None:
    x, bias = torch.ones(2, 3), torch.zeros(3)
    state = {**loaded.state_dict(), "linear.weight": torch.zeros(3, 3), "linear.bias": torch.ones(3)}
    loaded.load_state_dict(state)
    assert torch.equal(loaded(x, bias=bias)["result"], torch.full((2, 3), 2.0))
    loaded.load_state_dict({**state, "linear.bias": torch.zeros(3)}, assign=True)
    assert torch.equal(loaded(x, bias=bias)["result"], torch.zeros(2, 3))


@pytest.mark.parametrize("twin", [copy.copy, copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_compute_the_same(loaded: LoadedProgram, twin: Any) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(twin(loaded)(x, bias=bias)["result"], loaded(x, bias=bias)["result"])


def test_deep_copies_share_no_weights(loaded: LoadedProgram) -> None:
    twin = copy.deepcopy(loaded)
    with torch.no_grad():
        twin.get_parameter("linear.weight").zero_()
    assert loaded.get_parameter("linear.weight").count_nonzero()


def test_torch_save_goes_through_the_format(loaded: LoadedProgram) -> None:
    file = io.BytesIO()
    torch.save(loaded, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x, bias = torch.randn(2, 3), torch.randn(3)
    assert torch.equal(again(x, bias=bias)["result"], loaded(x, bias=bias)["result"])


def _call(loaded: LoadedProgram, x: torch.Tensor, bias: torch.Tensor, answers: Any) -> None:
    answers.put(loaded(x, bias=bias)["result"].tolist())


@pytest.mark.slow
def test_spawned_workers_take_loaded_programs(loaded: LoadedProgram) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    x, bias = torch.randn(2, 3), torch.randn(3)
    worker = context.Process(target=_call, args=(loaded, x, bias, answers))
    worker.start()
    found = answers.get(timeout=120)
    worker.join()
    assert torch.equal(torch.tensor(found), loaded(x, bias=bias)["result"])


def test_threads_load_and_call_at_once(saved: Path, model: nn.Module) -> None:
    x, bias = torch.randn(4, 3), torch.randn(3)
    expected = model(x, bias=bias)["result"]

    def work(_: int) -> None:
        for _ in range(5):
            module = load(saved)
            assert all(torch.equal(module(x, bias=bias)["result"], expected) for _ in range(20))

    in_threads(work, range(8))


def test_the_file_may_be_replaced_while_it_is_loaded(
    saved: Path, loaded: LoadedProgram, static_engine: TRTModule
) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    expected = loaded(x, bias=bias)["result"]
    save(static_engine, saved)
    assert torch.equal(loaded(x, bias=bias)["result"], expected)


class LooksUp(nn.Module):
    """Operators that can make far more than they are given, and one of which the numbers of operands are looked at."""

    def forward(self, x: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
        bags = torch.ops.aten.embedding_bag.default(x, at, torch.zeros_like(at))[0]
        return x.index_select(0, at), x[at], torch.ones(x.shape[0], 7), bags


def test_operators_that_can_grow_are_traced_with_sizes_that_vary(tmp_path: Path) -> None:
    sizes = ({0: torch.export.Dim("rows", min=2, max=9)}, {0: torch.export.Dim("count", min=2, max=9)})
    given, other = ((torch.randn(n, 3), torch.arange(n) % 2) for n in (4, 6))
    with torch.no_grad():
        save(torch.export.export(LooksUp(), given, dynamic_shapes=sizes), tmp_path / "model.trtp")
        program = load(tmp_path / "model.trtp")
        found = torch.export.export(program, given, dynamic_shapes={"args": sizes}).module()(*other)
        torch.testing.assert_close(found, LooksUp()(*other), rtol=0, atol=0)
        mode = FakeTensorMode(shape_env=ShapeEnv())
        dynamic = StatelessSymbolicContext([DimDynamic.DYNAMIC, DimDynamic.STATIC])
        fake = mode.from_tensor(given[0], symbolic_context=dynamic), mode.from_tensor(given[1])
        with mode:
            results = program(*fake)
    assert isinstance(fake[0].shape[0], torch.SymInt)
    assert [tuple(result.shape) for result in results] == [(4, 3), (4, 3), (fake[0].shape[0], 7), (4, 3)]


def test_loaded_programs_can_be_exported(loaded: LoadedProgram, tmp_path: Path) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    save(loaded, tmp_path / "model.pt2", arg_inputs=(x,), kwarg_inputs={"bias": bias}, format="exported_program")
    exchanged = load(tmp_path / "model.pt2", trust=True)
    assert torch.equal(exchanged(x, bias=bias)["result"], loaded(x, bias=bias)["result"])


def test_what_torch_compile_returns_cannot_be_saved(tmp_path: Path) -> None:
    for compiled in (torch.compile(nn.ReLU()), torch.compile(lambda x: x + 1)):
        with pytest.raises(ExportError, match=r"what torch\.compile returned cannot be saved"):
            save(compiled, tmp_path / "model.trtp")
    with pytest.raises(InputError, match="a function cannot be saved"):
        save(lambda x: x, tmp_path / "model.trtp")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_operators_that_do_not_fit_are_named(tmp_path: Path) -> None:
    class Attends(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = flex_attention(x, x, x)
            return found

    program = torch.export.export(Attends(), (torch.ones(1, 1, 16, 16),))
    with pytest.raises(
        ExportError, match=r"the operator torch\.ops\.higher_order\.flex_attention has no place in a saved program"
    ) as caught:
        save(program, tmp_path / "model.trtp")
    assert "exported_program" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_an_unknown_format_is_an_error(static_engine: TRTModule, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no format 'onnx'"):
        save(static_engine, tmp_path / "model.trtp", format="onnx")


def test_examples_that_do_not_fit_are_refused(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    save(dynamic_engine, tmp_path / "model.trtp", arg_inputs=(Input((4, 3)),))
    with pytest.raises(InputError, match="is 5, the model was compiled for 3"):
        save(dynamic_engine, tmp_path / "model.trtp", arg_inputs=(torch.ones(4, 5),))


def test_operators_of_libraries_need_the_callers_word(tmp_path: Path) -> None:
    with torch.library._scoped_library("trt_test_library", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CompositeExplicitAutograd")
        library.impl("twice", lambda x: torch.empty_like(x), "Meta")

        class Twice(nn.Module):
            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return torch.ops.trt_test_library.twice(x)  # type: ignore[no-any-return]

        path = tmp_path / "model.trtp"
        save(torch.export.export(Twice(), (torch.ones(2),)), path)
        with pytest.raises(PlanError, match="an operator of the library 'trt_test_library'") as caught:
            load(path)
        assert "operators=['trt_test_library']" in caught.value.hint
        assert load(path, operators=["trt_test_library"])(torch.ones(2)).tolist() == [2, 2]
    with pytest.raises(PlanError, match="cannot be imported"):
        load(path, operators=["trt_test_library"])


def test_metadata_is_kept_beside_the_program(tmp_path: Path) -> None:
    path = tmp_path / "relu.trtp"
    program = torch.export.export(nn.ReLU(), (torch.ones(2),))
    save(program, path, metadata={"task": "rectify", "größe": "2"})
    loaded = load(path)
    assert loaded.meta == {"task": "rectify", "größe": "2"}
    save(loaded, path)
    assert load(path).meta == loaded.meta
    save(loaded, path, metadata={})
    assert load(path).meta == {}


@pytest.mark.parametrize("metadata", [{"a": 1}, {1: "a"}, "text", {"n" * 129: ""}, {str(i): "" for i in range(65)}])
def test_metadata_that_could_not_be_read_is_refused(metadata: Any, tmp_path: Path) -> None:
    program = torch.export.export(nn.ReLU(), (torch.ones(2),))
    with pytest.raises(InputError, match="metadata"):
        save(program, tmp_path / "relu.trtp", metadata=metadata)
    assert not (tmp_path / "relu.trtp").exists()
