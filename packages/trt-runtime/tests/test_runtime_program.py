"""Saved programs: saved, loaded where only torch and trt_runtime are imported, and called like the model."""

from __future__ import annotations

import copy
import io
import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trt_core import ExportError, Input, InputError, PlanError
from trt_runtime import LoadedProgram, TRTModule, load, save
from trt_runtime.program.weights import check_storable

BATCH = {0: torch.export.Dim("batch", min=1, max=8)}


class Model(nn.Module):
    """A block in PyTorch, an engine, and keyword inputs: what compiling returns."""

    def __init__(self, engine: TRTModule) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.engine = engine

    def forward(self, x: torch.Tensor, *, bias: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"result": self.engine(self.linear(x)) + bias}


@pytest.fixture
def model(dynamic_engine: TRTModule) -> Model:
    return Model(dynamic_engine).eval().requires_grad_(False)


@pytest.fixture
def saved(model: Model, tmp_path: Path) -> Path:
    path = tmp_path / "model.trtp"
    save(
        model,
        path,
        arg_inputs=(torch.randn(4, 3),),
        kwarg_inputs={"bias": torch.zeros(3)},
        dynamic_shapes={"x": BATCH, "bias": None},
    )
    return path


def test_loaded_programs_compute_the_same(model: Model, saved: Path) -> None:
    loaded = load(saved)
    for rows in (1, 3, 8):
        x, bias = torch.randn(rows, 3), torch.randn(3)
        assert torch.equal(loaded(x, bias=bias)["result"], model(x, bias=bias)["result"])


def test_loading_needs_only_torch_and_trt_runtime(model: Model, saved: Path, tmp_path: Path) -> None:
    x, bias = torch.randn(5, 3), torch.randn(3)
    torch.save({"x": x, "bias": bias, "y": model(x, bias=bias)["result"]}, tmp_path / "example.pt")
    script = textwrap.dedent("""
        import sys, torch, trt_runtime
        assert not any(name in sys.modules for name in ("torch._inductor", "trt_portable", "tensorrt"))
        example = torch.load(sys.argv[2], weights_only=True)
        y = trt_runtime.load(sys.argv[1])(example["x"], bias=example["bias"])["result"]
        assert torch.equal(y, example["y"])
        ours = {name.partition(".")[0] for name in sys.modules if name.startswith(("trt_", "tensorrt"))}
        assert ours == {"trt_core", "trt_portable", "trt_runtime"}, ours
        assert not torch.cuda.is_initialized()
        print("same")
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, str(saved), str(tmp_path / "example.pt")],
        env={**os.environ, "TRT_PROVIDER": "portable"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "same\n", result.stderr


def test_loading_imports_no_compiler_and_no_computer_algebra(saved: Path) -> None:
    script = textwrap.dedent("""
        import sys, torch
        before = set(sys.modules)
        import trt_runtime
        trt_runtime.load(sys.argv[1])
        heavy = ("sympy", "torch._dynamo", "torch._inductor", "torch.export", "torch._functorch", "torch.fx")
        print(sorted(name for name in set(sys.modules) - before if name.startswith(heavy)))
    """)
    result = subprocess.run(
        [sys.executable, "-c", script, str(saved)],
        env={**os.environ, "TRT_PROVIDER": "portable"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stdout == "[]\n", result.stdout + result.stderr


def test_nothing_is_unpickled_or_evaluated(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("not without trust")

    for owner, name in ((torch, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch.export, "load")):
        monkeypatch.setattr(owner, name, refuse)
    load(saved)


def test_no_path_of_this_machine_is_in_the_file(saved: Path, tmp_path: Path) -> None:
    content = saved.read_bytes()
    for place in (str(Path(__file__).parent), str(tmp_path), os.getcwd(), sys.prefix):
        assert place.encode() not in content


def test_dynamic_shapes_come_from_the_compiled_module(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    graph_module = torch.fx.GraphModule(nn.Sequential(dynamic_engine), _call_of_child_0())
    graph_module.meta["dynamic_shapes"] = (BATCH,)
    save(graph_module, tmp_path / "model.trtp", arg_inputs=[Input((4, 3))])
    assert load(tmp_path / "model.trtp")(torch.ones(7, 3)).shape == (7, 3)


def test_an_exported_program_is_saved_as_it_is(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    program = torch.export.export(dynamic_engine, (torch.ones(4, 3),), dynamic_shapes=((BATCH,),))
    save(program, tmp_path / "model.trtp")
    assert program.example_inputs is not None
    assert load(tmp_path / "model.trtp")(torch.ones(7, 3)).shape == (7, 3)


def test_an_engine_is_saved_as_it_is(dynamic_engine: TRTModule, tmp_path: Path) -> None:
    save(dynamic_engine, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert torch.equal(loaded(torch.ones(7, 3)), torch.full((7, 3), 2.0))
    with pytest.raises(InputError, match="dimension 0 of input x is 9, the model was compiled for 1 to 8"):
        loaded(torch.ones(9, 3))


def test_saving_again_gives_the_same_bytes(saved: Path, model: Model, tmp_path: Path) -> None:
    save(load(saved), tmp_path / "again.trtp")
    assert (tmp_path / "again.trtp").read_bytes() == saved.read_bytes()


def test_example_inputs_are_needed(model: Model, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs example inputs") as caught:
        save(model, tmp_path / "model.trtp")
    assert "arg_inputs" in caught.value.hint


def test_what_cannot_be_exported_is_an_error(model: Model, tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="cannot be exported"):
        save(model, tmp_path / "model.trtp", arg_inputs=(torch.ones(4, 3),))
    with pytest.raises(InputError, match="is 9, the engine was built for 1 to 8"):
        save(model, tmp_path / "model.trtp", arg_inputs=(torch.ones(9, 3),), kwarg_inputs={"bias": torch.ones(3)})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("strange", "kind"),
    [
        (torch.masked.masked_tensor(torch.ones(2), torch.ones(2) > 0), "MaskedTensor"),
        (torch.eye(2).to_sparse(), "torch.sparse_coo torch.float32"),
        (torch.ones(2, device="meta"), "torch.strided torch.float32"),
    ],
)
def test_tensors_that_are_more_than_bytes_are_refused(strange: torch.Tensor, kind: str) -> None:
    with pytest.raises(ExportError, match=f"'weight' is a {kind} tensor on .*, which a saved program cannot hold"):
        check_storable(strange, "weight")


def _call_of_child_0() -> torch.fx.Graph:
    graph = torch.fx.Graph()
    graph.output(graph.call_module("0", (graph.placeholder("x"),)))
    return graph


def test_one_example_for_two_inputs_stays_two_inputs(tmp_path: Path) -> None:
    class Difference(nn.Module):
        def forward(self, x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return x - y

    x = torch.ones(3)
    save(Difference(), tmp_path / "model.trtp", arg_inputs=(x,), kwarg_inputs={"y": x})
    y = torch.arange(3.0)
    torch.testing.assert_close(load(tmp_path / "model.trtp")(x, y=y), x - y)


# The loaded module -------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(saved: Path) -> LoadedProgram:
    module = load(saved)
    assert isinstance(module, LoadedProgram)
    return module


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "takes 2 inputs, 0 were given"),
        ((torch.ones(2, 3),), {}, "missing: bias"),
        ((torch.ones(2, 3), torch.ones(3), torch.ones(3)), {}, "takes 2 inputs, 3 were given"),
        ((torch.ones(2, 3),), {"bias": torch.ones(3), "extra": 1}, "takes no input 'extra'"),
        ((torch.ones(2, 3), torch.ones(3)), {"bias": torch.ones(3)}, "input 'bias' is taken by name"),
        ((torch.ones(2, 3),), {"bias": torch.ones(3), "x": torch.ones(3)}, "input 'x' was given twice"),
        ((None,), {"bias": torch.ones(3)}, "input x is a NoneType, not a tensor"),
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
        ((None,), "x is a NoneType"),
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


@pytest.mark.parametrize(
    "move", [lambda module: module.half(), lambda module: module.to("meta"), lambda module: module.double()]
)
def test_moves_that_would_change_something_are_refused(loaded: LoadedProgram, move: Any) -> None:
    with pytest.raises(InputError, match="stays what it was compiled for"):
        move(loaded)


def test_weights_have_the_names_of_the_model(loaded: LoadedProgram, model: Model) -> None:
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


def test_spawned_workers_take_loaded_programs(loaded: LoadedProgram) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    x, bias = torch.randn(2, 3), torch.randn(3)
    worker = context.Process(target=_call, args=(loaded, x, bias, answers))
    worker.start()
    found = answers.get(timeout=120)
    worker.join()
    assert torch.equal(torch.tensor(found), loaded(x, bias=bias)["result"])


def test_threads_load_and_call_at_once(saved: Path, model: Model) -> None:
    x, bias = torch.randn(4, 3), torch.randn(3)
    expected = model(x, bias=bias)["result"]
    wrong: list[Any] = []

    def work() -> None:
        try:
            for _ in range(5):
                module = load(saved)
                for _ in range(20):
                    if not torch.equal(module(x, bias=bias)["result"], expected):
                        wrong.append("another result")
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_file_may_be_replaced_while_it_is_loaded(
    saved: Path, loaded: LoadedProgram, static_engine: TRTModule
) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    expected = loaded(x, bias=bias)["result"]
    save(static_engine, saved)
    assert torch.equal(loaded(x, bias=bias)["result"], expected)


def test_loaded_programs_can_be_exported(loaded: LoadedProgram, tmp_path: Path) -> None:
    x, bias = torch.randn(2, 3), torch.randn(3)
    save(loaded, tmp_path / "model.pt2", arg_inputs=(x,), kwarg_inputs={"bias": bias}, format="exported_program")
    exchanged = load(tmp_path / "model.pt2", trust=True)
    assert torch.equal(exchanged(x, bias=bias)["result"], loaded(x, bias=bias)["result"])


# What cannot be saved ----------------------------------------------------------------------------------------------


def test_what_torch_compile_returns_cannot_be_saved(tmp_path: Path) -> None:
    for compiled in (torch.compile(nn.ReLU()), torch.compile(lambda x: x + 1)):
        with pytest.raises(ExportError, match=r"what torch\.compile returned cannot be saved"):
            save(compiled, tmp_path / "model.trtp")
    with pytest.raises(InputError, match="a function cannot be saved"):
        save(lambda x: x, tmp_path / "model.trtp")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_operators_that_do_not_fit_are_named(tmp_path: Path) -> None:
    class Conditional(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    program = torch.export.export(Conditional(), (torch.ones(2),))
    with pytest.raises(
        ExportError, match=r"the operator torch\.ops\.higher_order\.cond has no place in a saved program"
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
