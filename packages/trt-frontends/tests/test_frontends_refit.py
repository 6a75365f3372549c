"""Refitting: the engines of one model with the weights of another compute what the other does."""

from __future__ import annotations

import copy
import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refit_models import Net, X, assert_same, compile_to_refit
from side_by_side import in_fork
from torch import nn
from torch.nn import functional as F

import trt_frontends
from trt_core import Input, InputError, RefitError
from trt_frontends import MutableModule, refit_module_weights
from trt_runtime import TRTModule, plan_from_bytes, plan_to_bytes

aten = torch.ops.aten


def _image_net() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.ConvTranspose2d(3, 2, 2), nn.Flatten())


def _normalized(net: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, net.v * (net.g / net.v.norm(dim=1, keepdim=True)), net.b)


class Tied(nn.Module):
    """One tensor under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


CASES: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), X),
    "images": (_image_net, X.reshape(1, 1, 3, 4)),
    "layer norm": (lambda: nn.Sequential(nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 4)), X),
    "group norm": (lambda: nn.Sequential(nn.GroupNorm(2, 4)), X.reshape(1, 4, 3)),
    "attention": (lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True), X.reshape(1, 3, 4)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), torch.tensor([[1, 2, 8]])),
    "folded sum": (lambda: Net(lambda n, x: x * (n.w + 1), w=torch.randn(4)), X),
    "transposed": (lambda: Net(lambda n, x: x @ n.w.t().contiguous(), w=torch.randn(3, 4)), X),
    "sliced": (lambda: Net(lambda n, x: x @ n.w[1:5, ::2] + n.w[0, :3], w=torch.randn(6, 6)), X),
    "split": (lambda: Net(lambda n, x: sum(x @ part for part in n.w.chunk(3)), w=torch.randn(12, 5)), X),
    "merged": (lambda: Net(lambda n, x: x @ torch.cat([n.a, n.b], 1), a=torch.randn(4, 2), b=torch.randn(4, 3)), X),
    "weight norm": (
        lambda: Net(_normalized, v=torch.randn(5, 4), g=torch.rand(5, 1) + 0.5, b=torch.randn(5)),
        X,
    ),
    "one weight twice": (lambda: Net(lambda n, x: (x * n.w, x + n.w.reshape(1, 4)), w=torch.randn(4)), X),
    "equal numbers": (lambda: Net(lambda n, x: (x * n.a, x + n.b), a=torch.ones(4), b=torch.ones(4)), X),
    "integer table": (
        lambda: Net(lambda n, x: n.t.index_select(0, n.i) * x, t=torch.randn(5, 4), i=torch.tensor([0, 2, 4])),
        X,
    ),
    "mask": (
        lambda: Net(
            lambda n, x: torch.where(n.m, x, n.w), m=torch.tensor([True, False, True, False]), w=torch.randn(4)
        ),
        X,
    ),
    "returned": (lambda: Net(lambda n, x: (n.w * 2, x + 1), w=torch.randn(4)), X),
    "tied": (Tied, X),
}
"""Models whose weights reach the engine changed in some way, and an input."""


def _other(model: nn.Module) -> nn.Module:
    """The same model with other weights, none of them special."""
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for value in (*other.parameters(), *other.buffers()):
            if value.is_floating_point():
                value.copy_((torch.rand(value.shape, generator=generator) + 0.5).to(value.device))
    return other


@pytest.mark.sampled
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("source", ["state dict", "module"])
def test_engines_with_other_weights_compute_what_eager_does(name: str, source: str) -> None:
    make, x = CASES[name]
    torch.manual_seed(0)
    model = make().eval()
    compiled = compile_to_refit(model, x)
    other = _other(model)
    refitted = refit_module_weights(compiled, other.state_dict() if source == "state dict" else other)
    assert_same(refitted, other, x, rtol=1e-4, atol=1e-4)
    assert_same(compiled, model, x, rtol=1e-4, atol=1e-4)


def test_weights_of_an_exported_program(mlp: nn.Module) -> None:
    other = _other(mlp)
    refitted = refit_module_weights(
        compile_to_refit(mlp, X), torch.export.export(other, (X,)), (X,), verify_output=True
    )
    assert_same(refitted, other, X)


@pytest.mark.parametrize("settings", [{"precision": torch.float16}, {"enable_autocast": True}], ids=str)
def test_weights_are_cast_as_they_were(settings: dict[str, Any], mlp: nn.Module) -> None:
    refitted = refit_module_weights(compile_to_refit(mlp, X, **settings), _other(mlp).state_dict())
    assert_same(refitted, _other(mlp), X, rtol=1e-2, atol=1e-2)


def test_dynamic_shapes(mlp: nn.Module, batch: Input) -> None:
    other = _other(mlp)
    refitted = refit_module_weights(compile_to_refit(mlp, batch), other.state_dict())
    for rows in (1, 5, 8):
        assert_same(refitted, other, torch.ones(rows, 4))


def _in_parts() -> Net:
    """A model of which PyTorch runs a part, and more with `torch_executed_ops`."""
    return Net(
        lambda n, x: torch.special.bessel_j0(n.first(x) * (n.w + 2)) @ n.w2 + n.table[n.i],
        first=nn.Linear(4, 4),
        w=torch.randn(4),
        w2=torch.randn(4, 3),
        table=torch.randn(5, 3),
        i=torch.tensor([0, 2, 4]),
    )


@pytest.mark.parametrize("forced", [(), ("aten.matmul", "aten.mul", "aten.add", "aten.index")], ids=["few", "many"])
def test_what_runs_in_pytorch_gets_its_weights_too(forced: tuple[str, ...], tmp_path: Any) -> None:
    model = _in_parts()
    compiled = compile_to_refit(model, X, torch_executed_ops=forced)
    other = _other(model)
    assert_same(refit_module_weights(compiled, other.state_dict()), other, X)
    assert_same(compiled, model, X)
    path = tmp_path / "model.trt"
    trt_frontends.save(compiled, path)
    loaded = trt_frontends.load(path)
    refitted = refit_module_weights(loaded, other.state_dict())
    assert_same(refitted, other, X)
    assert_same(loaded, model, X)
    trt_frontends.save(refitted, path)
    again = trt_frontends.load(path)
    assert_same(again, other, X)
    assert_same(refit_module_weights(again, model, in_place=True), model, X)


class Counting(nn.Module):
    """Counts its calls, and holds a constant that its state dict leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("steps", torch.tensor([1.0, 2.0, 3.0, 4.0]), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.special.bessel_j0(self.linear(x) * self.steps) + self.calls


@pytest.mark.parametrize("is_saved", [False, True], ids=["compiled", "loaded"])
def test_state_is_refitted_into_memory_of_its_own(is_saved: bool, tmp_path: Any) -> None:
    model, other = Counting(), Counting()
    compiled = compile_to_refit(model, X)
    if is_saved:
        trt_frontends.save(compiled, tmp_path / "model.trt")
        compiled = trt_frontends.load(tmp_path / "model.trt")
    state = {**other.state_dict(), "calls": torch.tensor(5.0)}
    refitted = refit_module_weights(compiled, state)
    other.load_state_dict(state)
    for _ in range(2):
        torch.testing.assert_close(refitted(X), other(X).detach())
    assert state["calls"] == 5 and refitted.state_dict()["calls"] == 7
    other.steps[0] = 9
    with pytest.raises(RefitError, match="constant 'steps' of the model has changed"):
        refit_module_weights(compiled, other)


def test_a_loaded_program_without_recipes_says_how_to_get_them(mlp: nn.Module, tmp_path: Any) -> None:
    mixed = nn.Sequential(compile_to_refit(mlp, X), nn.Linear(2, 2)).eval()
    trt_frontends.save(mixed, tmp_path / "model.trt", arg_inputs=(X,))
    with pytest.raises(RefitError, match="nothing says how these tensors follow"):
        refit_module_weights(trt_frontends.load(tmp_path / "model.trt"), mlp.state_dict())


def test_tied_weights_stay_tied() -> None:
    compiled = compile_to_refit(Tied(), X)
    state = {"first.weight": torch.eye(4), "second.weight": torch.eye(4)}
    torch.testing.assert_close(refit_module_weights(compiled, state)(X), torch.tanh(X))
    with pytest.raises(
        RefitError, match=r"'first\.weight' and 'second\.weight' differ|'second.*' and 'first.*' differ"
    ):
        refit_module_weights(compiled, {**state, "second.weight": torch.ones(4, 4)})


def test_refitting_again_and_again(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X)
    for factor in (2.0, 0.5, -1.0):
        other = copy.deepcopy(mlp)
        with torch.no_grad():
            for value in other.parameters():
                value.mul_(factor)
        compiled = refit_module_weights(compiled, other.state_dict())
        assert_same(compiled, other, X)


def test_in_place_changes_the_module_and_not_those_that_share_its_engines(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X)
    twin = copy.deepcopy(compiled)
    other = _other(mlp)
    assert refit_module_weights(compiled, other.state_dict(), in_place=True) is compiled
    assert_same(compiled, other, X)
    assert_same(twin, mlp, X)


def test_a_copy_checks_its_inputs_as_well(mlp: nn.Module) -> None:
    refitted = refit_module_weights(compile_to_refit(mlp, X), mlp.state_dict())
    with pytest.raises(InputError, match="compiled for"):
        refitted(torch.ones(3, 5))


def test_a_stored_engine_can_be_refitted(mlp: nn.Module) -> None:
    compiled = compile_to_refit(mlp, X)
    (engine,) = (module for module in compiled.modules() if isinstance(module, TRTModule))
    loaded = TRTModule(*plan_from_bytes(plan_to_bytes(engine.header, engine.plan)))
    assert loaded.header == engine.header and loaded.header.text == engine.header.text
    other = _other(mlp)
    assert_same(refit_module_weights(loaded, other.state_dict()), other, X)


def test_a_saved_program_can_be_refitted(mlp: nn.Module, tmp_path: Any) -> None:
    trt_frontends.save(compile_to_refit(mlp, X), tmp_path / "model.trt", arg_inputs=(X,))
    loaded = trt_frontends.load(tmp_path / "model.trt")
    other = _other(mlp)
    assert_same(refit_module_weights(loaded, other.state_dict()), other, X)
    assert_same(loaded, mlp, X)
    refit_module_weights(loaded, other.state_dict(), in_place=True)
    assert_same(loaded, other, X)


# the cache, and modules that change


def test_a_cached_engine_is_refitted_for_other_weights(
    mlp: nn.Module, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_to_refit(mlp, X, engine_cache_dir=tmp_path / "engines")

    def build_block(*_: Any) -> None:
        raise AssertionError("built although it is cached")

    monkeypatch.setattr("trt_frontends.engine_source.build_block", build_block)
    for model in (mlp, _other(mlp)):
        assert_same(compile_to_refit(model, X, engine_cache_dir=tmp_path / "engines"), model, X)


def test_a_mutable_module_follows_its_weights(mlp: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    from trt_frontends import mutable_module

    compiled: list[Any] = []
    original = mutable_module.compile
    monkeypatch.setattr(
        mutable_module, "compile", lambda *args, **kwargs: compiled.append(args) or original(*args, **kwargs)
    )
    mutable = MutableModule(mlp, min_block_size=1)
    assert not compiled
    assert_same(mutable, mlp, X)
    mutable.load_state_dict(_other(mlp).state_dict())
    assert_same(mutable, _other(mlp), X)
    with torch.no_grad():
        mlp[0].bias.add_(3)
    assert_same(mutable, mlp, X)
    mlp[2].weight.data.mul_(2)
    mutable.refit()
    assert_same(mutable, mlp, X)
    assert len(compiled) == 1
    assert_same(mutable, mlp, torch.ones(2, 4))
    assert len(compiled) == 2
    mlp[2] = nn.Linear(8, 5)
    assert_same(mutable, mlp, X)
    assert len(compiled) == 3
    mutable.recompile()
    assert_same(mutable, mlp, X)
    assert len(compiled) == 4
    mutable.note = 1
    assert mlp.note == 1 and "MutableModule(Sequential(" in repr(mutable)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_while_a_thread_compiles_calls_its_mutable_module(mlp: nn.Module) -> None:
    mutable = MutableModule(mlp, min_block_size=1)
    wanted = mutable(X)
    with mutable._own._lock:
        assert in_fork(lambda: bool(torch.equal(mutable(X), wanted)))


class _Held(nn.Linear):
    """A layer whose capture waits inside, with weights that have no data."""

    def __init__(self) -> None:
        super().__init__(4, 2)
        self.waits, self.inside, self.goes_on = False, threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 4)."""
        if self.waits:
            self.inside.set()
            self.goes_on.wait(60)
        return super().forward(x)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_process_that_is_forked_while_a_thread_captures_a_model_has_its_weights() -> None:
    model = _Held().eval().requires_grad_(False)
    mutable, names = MutableModule(model, min_block_size=1), [*model.state_dict()]
    wanted, weights = mutable(X), dict(model.named_parameters())
    called, kernels = nn.Module.__call__, [*torch.ops.aten.lstm.input.py_kernels]
    model.waits = True
    thread = threading.Thread(target=lambda: mutable(X[:1]), daemon=True)
    thread.start()

    def calls() -> bool:
        model.waits = False
        is_own = all(value is weights[name] for name, value in model.named_parameters())
        is_plain = gc.isenabled() and nn.Module.__call__ is called
        is_plain &= [*torch.ops.aten.lstm.input.py_kernels] == kernels
        return is_own and is_plain and [*model.state_dict()] == names and bool(torch.equal(mutable(X), wanted))

    try:
        assert model.inside.wait(60)
        assert model.weight is not weights["weight"]
        assert in_fork(calls) and in_fork(lambda: calls() and mutable(torch.ones(5, 4)).shape == (5, 2))
    finally:
        model.goes_on.set()
        thread.join()
    assert model.weight is weights["weight"]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["linear", "images", "attention", "weight norm"])
def test_on_a_gpu(name: str, tmp_path: Any) -> None:
    make, x = CASES[name]
    model, x = make().eval().cuda(), x.cuda()
    settings = {"disable_tf32": True, "engine_cache_dir": tmp_path / "engines"}
    compiled = compile_to_refit(model, x, **settings)
    engines = [module for module in compiled.modules() if isinstance(module, TRTModule)]
    assert not any(engine.header.refit.fixed for engine in engines if engine.header.refit is not None)
    other = _other(model)
    on_cpu = {key: value.cpu() for key, value in other.state_dict().items()}
    for refitted in (refit_module_weights(compiled, on_cpu), refit_module_weights(compiled, other)):
        assert_same(refitted, other, x, rtol=1e-3, atol=1e-3)
    assert_same(compile_to_refit(other, x, **settings), other, x, rtol=1e-3, atol=1e-3)
    assert_same(compiled, model, x, rtol=1e-3, atol=1e-3)


def test_parts_whose_weights_are_unknown_are_not_left_behind(mlp: nn.Module) -> None:
    mixed = nn.Sequential(compile_to_refit(mlp, X), nn.Linear(2, 2))
    with pytest.raises(RefitError, match=r"cannot be replaced\n  where: 1\.weight, 1\.bias"):
        refit_module_weights(mixed, mlp.state_dict())
