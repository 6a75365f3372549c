"""Compiled modules as modules: how they are called, copied, watched, and what they refuse."""

from __future__ import annotations

import copy
import inspect
import io
import multiprocessing
import pickle
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx, nn

import trt_frontends
from trt_core import ExecutionError, Input, InputError
from trt_frontends import compiled_module
from trt_frontends.compiled_module import CompiledModule
from trt_runtime import LoadedProgram, TRTModule

X = torch.randn(2, 4)


class Returns(nn.Module):
    """relu(x), and x + 1, nested as asked for."""

    def __init__(self, nest: Any) -> None:
        super().__init__()
        self.nest = nest

    def forward(self, x: torch.Tensor) -> Any:
        return self.nest(x.relu(), x + 1)


class Mixed(nn.Module):
    """A PyTorch block with weights before an engine."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return torch.sort(self.linear(x)).values.relu() * scale


@pytest.fixture(scope="module")
def relu() -> CompiledModule:
    rows = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))
    return trt_frontends.compile(nn.ReLU(), arg_inputs=(rows,), min_block_size=1)


@pytest.fixture(scope="module")
def mixed() -> CompiledModule:
    return trt_frontends.compile(Mixed().eval(), arg_inputs=(X,), min_block_size=1, torch_executed_ops={"aten.linear"})


@pytest.mark.parametrize(
    "nest",
    [
        lambda a, b: a,
        lambda a, b: (a,),
        lambda a, b: (a, b),
        lambda a, b: [b, a],
        lambda a, b: (a, a, b),
        lambda a, b: {"first": a, "second": b},
        lambda a, b: {"pair": (a, [b])},
    ],
    ids=["one", "tuple-of-one", "tuple", "list", "twice", "dict", "nested"],
)
def test_results_are_nested_as_the_model_nests_them(nest: Any) -> None:
    model = Returns(nest)
    compiled = trt_frontends.compile(model, arg_inputs=(X,), min_block_size=1)
    with torch.no_grad():
        for call in (lambda: compiled(X), lambda: compiled(x=X)):
            torch.testing.assert_close(call(), model(X))
            assert type(call()) is type(model(X))


def test_what_is_compiled_already_is_refused(relu: CompiledModule, tmp_path: Path) -> None:
    trt_frontends.save(relu, tmp_path / "relu.trtp", arg_inputs=(X,))
    for model in (relu, trt_frontends.load(tmp_path / "relu.trtp")):
        for door in (trt_frontends.compile, trt_frontends.explain):
            with pytest.raises(InputError, match="compiled already"):
                door(model, arg_inputs=(X,))
    around = nn.Sequential(relu, nn.Tanh())  # a part that is compiled stays so
    torch.testing.assert_close(trt_frontends.compile(around, arg_inputs=(X,), min_block_size=1)(X), X.relu().tanh())


def test_a_graph_module_that_is_called_like_the_model(relu: CompiledModule) -> None:
    assert isinstance(relu, fx.GraphModule)
    assert next(iter(inspect.signature(relu.forward).parameters)) == "input"
    assert "_run_on_acc_0" in relu.code
    assert relu.meta["partition_report"].coverage == 1.0


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "the model takes 1 input, 0 were given"),
        ((X, X), {}, "the model takes 1 input, 2 were given"),
        ((X,), {"scale": X}, "takes no input 'scale'"),
        ((None,), {}, "input input is None, not a tensor"),
        ((X[0],), {}, "input input has rank 1"),
        ((X.int(),), {}, "input input has type int32"),
        ((torch.ones(9, 4),), {}, "dimension 0 of input input is 9"),
        ((torch.ones(2, 4, device="meta"),), {}, "meta device"),
        ((torch.ones(2, 4).to_sparse(),), {}, "layout"),
    ],
)
@pytest.mark.parametrize("warm", [False, True])
def test_calls_that_do_not_fit(
    relu: CompiledModule, args: tuple[Any, ...], kwargs: dict[str, Any], message: str, warm: bool
) -> None:
    if warm:
        relu(X)
    with pytest.raises(InputError, match=message):
        relu(*args, **kwargs)
    assert torch.equal(relu(X), X.relu())


def test_plain_values_may_be_given_by_position_or_name(mixed: CompiledModule) -> None:
    y = mixed(X)
    assert y.shape == (2, 4)


def test_gradients_are_refused_and_not_recorded(relu: CompiledModule, mixed: CompiledModule) -> None:
    needs = X.clone().requires_grad_()
    for compiled, name in ((relu, "input"), (mixed, "x")):
        with pytest.raises(InputError, match=f"input {name}.* requires gradients") as caught:
            compiled(needs)
        assert "torch.no_grad()" in caught.value.hint
        with torch.no_grad():
            assert not compiled(needs).requires_grad
        assert not compiled(X).requires_grad  # although the weights of PyTorch blocks require them


def test_a_module_without_engines_keeps_gradients() -> None:
    model = nn.Linear(4, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(X,), min_block_size=float("inf"))
    assert not any(isinstance(module, TRTModule) for module in compiled.modules())
    compiled(X).sum().backward()
    assert all(parameter.grad is not None for parameter in compiled.parameters())
    assert model.weight.grad is None  # the compiled model is a snapshot, with weights of its own


def test_a_module_without_engines_may_write_to_its_parameters() -> None:
    model, ids = nn.Embedding(30, 8, max_norm=0.5).eval(), torch.arange(12).reshape(3, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(ids,), min_block_size=float("inf"))
    torch.testing.assert_close(compiled(ids), model(ids))


def test_a_recorded_call_is_read_as_any_other(mixed: CompiledModule, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a recorder that runs calls in place of a GPU that replays them."""
    recorded: list[Any] = []

    class Recorder:
        def __init__(self, module: Any, run: Any, device: torch.device) -> None:
            self.run = run

        def __call__(self, leaves: Any) -> Any:
            recorded.append(leaves)
            return self.run(leaves)

    monkeypatch.setattr(compiled_module, "GraphedCalls", Recorder)
    monkeypatch.setattr(compiled_module, "require_capturable", lambda _: None)
    reader = mixed._CompiledModule__reader  # type: ignore[attr-defined]  # private to the class
    graphed = CompiledModule(mixed, mixed.graph, reader, torch.device("cpu"))
    torch.testing.assert_close(graphed(x=X), mixed(X))
    assert [value is X for value in recorded[0]] == [True]
    assert not graphed(X).requires_grad
    with pytest.raises(InputError, match="input x has rank 1"):
        graphed(X[0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        graphed(X)  # somebody watches operators, which a replay would not show
    assert len(recorded) == 2


def test_tensors_may_have_the_names_of_private_parts() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name in ("_reader", "_call", "_graphs_on", "_prepare", "describe"):
                self.register_buffer(name, torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for value in self.buffers():
                value.add_(1)
            return x.relu() + sum(self.buffers())

    model = Named()
    twin = copy.deepcopy(model)
    compiled = trt_frontends.compile(model, arg_inputs=(X,), min_block_size=1)
    torch.testing.assert_close(compiled(X), twin(X))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # PyTorch warns of its own structures
        torch.testing.assert_close(copy.deepcopy(compiled)(X), twin(X))


def test_train_and_eval_change_nothing(relu: CompiledModule) -> None:
    for module in (relu.train(), relu.eval()):
        assert module is relu
        assert torch.equal(relu(X), X.relu())


def test_hooks_are_called(relu: CompiledModule) -> None:
    seen: list[str] = []
    hooks = [
        relu.register_forward_pre_hook(lambda module, args: seen.append("before")),
        relu._run_on_acc_0.register_forward_hook(lambda module, args, result: seen.append("engine")),
        relu.register_forward_hook(lambda module, args, result: seen.append("after")),
    ]
    relu(X)
    for hook in hooks:
        hook.remove()
    relu(X)
    assert seen == ["before", "engine", "after"]


def test_moves_that_change_nothing(mixed: CompiledModule) -> None:
    expected = mixed(X)
    for move in ("cpu", "float", "share_memory"):
        assert getattr(mixed, move)() is mixed
    assert mixed.to("cpu", torch.float32).to(memory_format=torch.channels_last).to_empty(device="cpu") is mixed
    assert torch.equal(mixed(X), expected)


@pytest.mark.parametrize("name", ["relu", "mixed"])
@pytest.mark.parametrize("move", ["half", "double", lambda module: module.to("meta")], ids=["half", "double", "meta"])
def test_moves_that_would_change_something_are_refused(name: str, move: Any, request: pytest.FixtureRequest) -> None:
    module = request.getfixturevalue(name)
    expected = module(X)
    with pytest.raises(InputError, match="a compiled model stays what it was compiled for"):
        getattr(module, move)() if isinstance(move, str) else move(module)
    assert torch.equal(module(X), expected)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_copies_run_and_check_as_well(relu: CompiledModule, duplicate: Any) -> None:
    twin = duplicate(relu)
    assert type(twin).__mro__[1] is CompiledModule
    assert twin._run_on_acc_0.plan is relu._run_on_acc_0.plan
    assert torch.equal(twin(X), X.relu())
    with pytest.raises(InputError, match="input input has rank 1"):
        twin(X[0])


@pytest.mark.parametrize("name", ["relu", "mixed"])
def test_pickled_modules_come_back_as_programs(name: str, request: pytest.FixtureRequest) -> None:
    compiled = request.getfixturevalue(name)
    file = io.BytesIO()
    torch.save(compiled, file)
    file.seek(0)
    with torch.no_grad():
        for loaded in (pickle.loads(pickle.dumps(compiled)), torch.load(file, weights_only=False)):
            assert isinstance(loaded, LoadedProgram)
            torch.testing.assert_close(loaded(X), compiled(X))


def _in_worker(module: nn.Module, queue: Any) -> None:
    with torch.no_grad():
        queue.put(module(torch.full((2, 4), -1.0)).tolist())


@pytest.mark.slow
def test_spawned_workers_get_compiled_modules(relu: CompiledModule) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    worker = context.Process(target=_in_worker, args=(relu, queue))
    worker.start()
    assert queue.get(timeout=240) == [[0.0] * 4] * 2
    worker.join(60)
    assert worker.exitcode == 0


def test_a_replaced_child_is_called(relu: CompiledModule) -> None:
    twin = copy.deepcopy(relu)
    twin.set_submodule("_run_on_acc_0", nn.Tanh())
    assert torch.equal(twin(X), X.tanh())


def test_a_changed_graph_is_called(relu: CompiledModule) -> None:
    twin = copy.deepcopy(relu)
    output = next(iter(reversed(twin.graph.nodes)))
    (value,) = output.args[0]
    with twin.graph.inserting_before(output):
        negated = twin.graph.call_function(torch.neg, (value,))
    output.args = ((negated,),)
    twin.recompile()
    assert torch.equal(twin(X), -X.relu())


@pytest.mark.parametrize("strict", [False, True])
def test_a_compiled_module_exports(relu: CompiledModule, strict: bool) -> None:
    program = torch.export.export(relu, (X,), dynamic_shapes={"input": {0: torch.export.Dim.AUTO}}, strict=strict)
    assert torch.ops.trt.execute_engine.default in {node.target for node in program.graph.nodes}
    assert torch.equal(program.module()(X), X.relu())


def test_a_compiled_module_compiles_with_torch_compile(relu: CompiledModule) -> None:
    torch._dynamo.reset()
    with torch.no_grad():
        compiled = torch.compile(relu, backend="aot_eager", fullgraph=True)
        for rows in (2, 3, 5):
            x = torch.randn(rows, 4)
            assert torch.equal(compiled(x), x.relu())


@dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


def test_results_of_a_class(relu: CompiledModule) -> None:
    torch.export.register_dataclass(Pair, serialized_type_name="test_frontends_compiled_module.Pair")
    compiled = trt_frontends.compile(Returns(Pair), arg_inputs=(X,), min_block_size=1)
    result = compiled(X)
    assert type(result) is Pair
    assert torch.equal(result.first, X.relu())


class WithMethods(nn.Module):
    kind = "of the model"

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def embed(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.embed(x).relu()


def test_methods_of_the_model_are_told_from_what_nobody_has() -> None:
    model = WithMethods().eval()
    compiled = trt_frontends.compile(model, arg_inputs=(torch.ones(2, 4),), min_block_size=1)
    assert not hasattr(compiled, "embed")
    for twin in (compiled, copy.copy(compiled), copy.deepcopy(compiled)):
        with pytest.raises(AttributeError, match="'embed': it is a method of the model, and compiled is one"):
            twin.embed  # noqa: B018
    with pytest.raises(AttributeError, match="'kind': the model has it; of what is no part of a call"):
        compiled.kind  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'embedd'$"):
        compiled.embedd  # noqa: B018
    assert pickle.loads(pickle.dumps(compiled))(torch.ones(2, 4)).shape == (2, 4)


class Cached(nn.Module):
    """Writes a row to a cache, which an engine does where the cache lies."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 8, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        self.cache.index_copy_(2, place, self.linear(x))
        return (self.cache * 2).sum(2)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_through_an_engine_that_updates_a_cache_are_an_error(backend: str) -> None:
    x, place = torch.randn(1, 2, 1, 4), torch.tensor([2])
    compiled = trt_frontends.compile(Cached().eval(), arg_inputs=[x, place], min_block_size=1)
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*autograd kernel was not registered.*")
        made = torch.compile(compiled, backend=backend)(x.requires_grad_(), place)
        with pytest.raises(ExecutionError, match=r"no gradients\n  where: backward\(\)"):
            made.sum().backward()
