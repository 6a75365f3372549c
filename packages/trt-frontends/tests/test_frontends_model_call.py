"""Compiled and loaded modules take the same calls, and refuse the same ones in the same words, whatever is given."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import trt_frontends
from trt_core import Input, InputError
from trt_runtime import load, save

X: Final = torch.arange(12.0).view(4, 3) - 6


class Steps(nn.Module):
    """Two operators, of which either may run in PyTorch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (rows, 3), float32."""
        return torch.sin(torch.relu(x)) + 1


class Nested(nn.Module):
    """Takes a dict, a list, and what may be left out."""

    def forward(self, d: dict[str, torch.Tensor], pair: list[torch.Tensor], k: Any = None) -> torch.Tensor:
        """All (4, 3), float32."""
        return torch.relu(d["a"]) - pair[0] * pair[1]


class Plain(nn.Module):
    """Takes numbers, a flag and a text."""

    def forward(self, x: torch.Tensor, scale: float, shift: int, up: bool, name: str) -> torch.Tensor:
        """x: (4, 3), float32."""
        y = torch.relu(x) * scale + shift
        return y if up else -y


def _rows(*profiles: tuple[int, int, int]) -> Input:
    shapes = [tuple((size, 3) for size in profile) for profile in profiles]
    if len(shapes) == 1:
        low, best, high = shapes[0]
        return Input(min_shape=low, opt_shape=best, max_shape=high)
    return Input(profiles=shapes)


class _Renamed(torch.Tensor):
    """A subclass that computes as any tensor does."""


def _inference() -> torch.Tensor:
    with torch.inference_mode():
        return X + 1


TAKEN: Final[dict[str, Callable[[], Any]]] = {
    "transposed": lambda: torch.randn(3, 4).t(),
    "strided": lambda: torch.randn(8, 6)[::2, ::2],
    "expanded": lambda: torch.randn(1, 3).expand(4, 3),
    "one value": lambda: torch.randn(()).expand(4, 3),
    "overlapping": lambda: torch.randn(20).as_strided((4, 3), (1, 1)),
    "at an offset": lambda: torch.randn(13)[1:].view(4, 3),
    "negated": lambda: torch._neg_view(X),
    "imaginary": lambda: torch.randn(4, 3, dtype=torch.complex64).conj().imag,
    "without memory": lambda: torch._efficientzerotensor(4, 3),
    "parameter": lambda: nn.Parameter(X.clone(), requires_grad=False),
    "subclass": lambda: X.as_subclass(_Renamed),
    "made for inference": _inference,
    "not finite": lambda: torch.tensor([[torch.inf, -torch.inf, torch.nan]]).expand(4, 3),
}
"""Tensors like `X`."""

REFUSED: Final[dict[str, Callable[[], Any]]] = {
    "sparse": lambda: X.to_sparse(),
    "compressed": lambda: X.to_sparse_csr(),
    "quantized": lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8),
    "packed": lambda: X.to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([X[0], X[1]]),
    "jagged": lambda: torch.nested.nested_tensor([X[0], X[1]], layout=torch.jagged),
    "masked": lambda: torch.masked.masked_tensor(X, X > 0),
    "meta": lambda: X.to("meta"),
    "float64": lambda: X.double(),
    "float16": lambda: X.half(),
    "bool": lambda: X > 0,
    "rank 1": lambda: X[0],
    "rank 3": lambda: X[None],
    "rank 0": lambda: X[0, 0],
    "too many rows": lambda: torch.ones(9, 3),
    "no rows": lambda: torch.ones(0, 3),
    "a column more": lambda: torch.ones(4, 4),
    "array": lambda: X.numpy(),
    "list": lambda: X.tolist(),
    "none": lambda: None,
    "number": lambda: 1.0,
    "tuple": lambda: (X,),
}
"""What no model here was compiled for."""

_ONE = (_rows((1, 4, 8)),)
_PYTORCH = {"torch_executed_ops": {"torch.ops.aten.relu.default"}}

MODELS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[Any, ...], dict[str, Any]]]] = {
    "static": (Steps, (X,), {}),
    "dynamic": (Steps, _ONE, {}),
    "profiles": (Steps, (_rows((1, 2, 4), (4, 6, 8)),), {}),
    "partly in PyTorch": (Steps, _ONE, _PYTORCH),
    "wholly in PyTorch": (Steps, _ONE, {"dryrun": True}),
    "nested": (Nested, ({"a": X}, [X, X], None), {}),
    "plain values": (Plain, (X, 2.5, 3, True, "up"), {}),
}

Trio = tuple[nn.Module, nn.Module, nn.Module]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("door")


@pytest.fixture(scope="module", params=MODELS)
def trio(request: pytest.FixtureRequest, folder: Path) -> tuple[Trio, Callable[[Any], tuple[Any, ...]]]:
    """The model, compiled, loaded; and its inputs with one value in the place of the first tensor."""
    made, inputs, settings = MODELS[request.param]
    model = made().eval()
    compiled = trt_frontends.compile(model, arg_inputs=inputs, **{"min_block_size": 1, **settings})
    save(compiled, folder / "model.trtp")

    def inputs_with(value: Any) -> tuple[Any, ...]:
        return ({"a": value}, [X, X], None) if made is Nested else (value, *inputs[1:])

    return (model, compiled, load(folder / "model.trtp")), inputs_with


def _answers(modules: tuple[nn.Module, ...], args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> set[str]:
    """What modules say, each on its first call with these inputs and on its second."""
    said = set()
    for module in modules:
        for _ in range(2):
            with pytest.raises(InputError) as caught:
                module(*args, **(kwargs or {}))
            said.add(str(caught.value))
    return said


@pytest.mark.filterwarnings("ignore:.*(MaskedTensor|nested|NestedTensor|quantize|Sparse).*")
def test_every_kind_of_tensor(trio: tuple[Trio, Callable[[Any], tuple[Any, ...]]]) -> None:
    (model, *ours), inputs_with = trio
    for warm in (False, True):
        for module in ours * warm:
            module(*inputs_with(X))
        for name, make in TAKEN.items():
            args = inputs_with(make())
            expected = model(*args).as_subclass(torch.Tensor)
            for module in ours:
                found = module(*args).as_subclass(torch.Tensor)
                torch.testing.assert_close(
                    found, expected, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}"
                )
        for name, make in REFUSED.items():
            said = _answers(tuple(ours), inputs_with(make()))
            assert len(said) == 1, (name, said)
            (message,) = said
            assert "input x" in message or "input d['a']" in message, (name, message)


def test_gradients_are_refused_in_the_same_words(trio: tuple[Trio, Callable[[Any], tuple[Any, ...]]]) -> None:
    (model, *ours), inputs_with = trio
    x = X.clone().requires_grad_()
    if any(type(module).__name__ == "TRTModule" for module in ours[0].modules()):
        (message,) = _answers(tuple(ours), inputs_with(x))
        assert "requires gradients, and engines compute none" in message
    with torch.no_grad():
        for module in ours:
            torch.testing.assert_close(module(*inputs_with(x)), model(*inputs_with(x)))


@pytest.mark.parametrize(
    ("position", "value"),
    [(1, 2.0), (1, 2), (1, torch.tensor(2.5)), (2, 4), (2, 3.0), (3, False), (3, 1), (4, "down"), (4, None)],
)
def test_other_plain_values_are_refused(position: int, value: Any, folder: Path) -> None:
    path = folder / "plain.trtp"
    if not path.exists():
        save(trt_frontends.compile(Plain(), arg_inputs=MODELS["plain values"][1], min_block_size=1), path)
    args = [X, 2.5, 3, True, "up"]
    loaded = load(path)
    torch.testing.assert_close(loaded(*args), Plain()(*args))
    args[position] = value
    (message,) = _answers((loaded,), tuple(args))
    assert ("scale", "shift", "up", "name")[position - 1] in message


_WAYS: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "strided": lambda x: torch.cat([x, x], 1)[:, : x.shape[1]],
    "at an offset": lambda x: torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape),
    "negated": lambda x: torch._neg_view(-x),
    "wrong type": lambda x: x.double(),
    "wrong size": lambda x: torch.cat([x, x], 1),
    "elsewhere": lambda x: x.to("meta"),
    "not a tensor": lambda x: x.tolist(),
}


class _Weighted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both (rows, 3), float32."""
        return torch.relu(x) @ self.weight + y, x * y


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> tuple[_Weighted, list[Callable[..., Any]]]:
    model = _Weighted().eval()
    rows = torch.export.Dim("rows", min=1, max=9)
    exported = torch.export.export(model, (torch.randn(4, 3), torch.randn(4, 3)), dynamic_shapes=({0: rows}, {0: rows}))
    options = {"immutable_weights": False, "optimization_level": 0, "min_block_size": 1}
    compiled = trt_frontends.compile(exported, arg_inputs=[_rows((1, 4, 9)), _rows((1, 4, 9))], **options)
    path = tmp_path_factory.mktemp("calls") / "model.trt"
    save(compiled, path)
    return model, [compiled, load(path)]


_call = st.tuples(
    st.integers(1, 9), st.sampled_from([*_WAYS]), st.booleans(), st.sampled_from(["call", "call", "grad", "refit"])
)


@settings(max_examples=12, deadline=None)
@given(calls=st.lists(_call, min_size=2, max_size=6))
def test_whatever_changes_from_call_to_call(
    twins: tuple[_Weighted, list[Callable[..., Any]]], calls: list[tuple[int, str, bool, str]]
) -> None:
    model, (compiled, loaded) = twins
    held: dict[Any, _Weighted] = {compiled: copy.deepcopy(model), loaded: copy.deepcopy(model)}
    for called, weights in held.items():
        trt_frontends.refit_module_weights(called, weights, in_place=True)
    for rows, way, is_same, how in calls:
        for called, weights in held.items():
            if how == "refit":
                with torch.no_grad():
                    weights.weight.normal_()
                trt_frontends.refit_module_weights(called, weights, in_place=True)
            x = _WAYS[way](torch.randn(rows, 3))
            y = x if is_same else torch.randn(rows, 3)
            if how == "grad" and isinstance(x, torch.Tensor):
                x.requires_grad_()
            with contextlib.nullcontext() if how == "grad" else torch.no_grad():
                if how == "grad" or [*_WAYS].index(way) >= [*_WAYS].index("wrong type"):
                    with pytest.raises(InputError):
                        called(x, y)
                    continue
                made, right = called(x, y), weights(x, y)
                torch.testing.assert_close(made, right)
                made[0].fill_(torch.nan)  # what a call returns is the caller's
                torch.testing.assert_close(called(x, y), right)
