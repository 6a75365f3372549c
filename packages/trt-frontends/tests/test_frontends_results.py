"""What a compiled module returns: fresh tensors or views, as eager does, with eager's strides.

`torch.export` runs the model's own code, so eager is the reference for memory as it is for values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils import _pytree as pytree

import trt_frontends
from trt_core import Input, InputError
from trt_frontends.backend import torch_tensorrt_backend

pytestmark = pytest.mark.sampled(4)

Compute = Callable[[nn.Module, torch.Tensor], Any]


class Model(nn.Module):
    """Runs a function of itself and one input; it has a layer and a buffer."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(12.0).reshape(3, 4))

    def forward(self, x: torch.Tensor) -> Any:
        """x: (4, 4), float32."""
        return self.compute(self, x)


def _call(model: nn.Module, x: torch.Tensor, table: torch.Tensor) -> tuple[list[Any], set[tuple[int, int]]]:
    """Returns the tensors among the results, and which of the input, the buffer and the results share memory."""
    with torch.no_grad():
        results = [leaf for leaf in pytree.tree_leaves(model(x)) if isinstance(leaf, torch.Tensor)]
    storages = [tensor.untyped_storage()._cdata for tensor in (x, table, *results)]
    return results, {(i, j) for i in range(len(storages)) for j in range(i) if storages[i] == storages[j]}


def check(compute: Compute, **options: Any) -> nn.Module:
    """Compares a compiled model with eager: values, strides and shared memory, at the first and the second call."""
    x = torch.randn(4, 4)
    eager = Model(compute).eval()
    model = copy.deepcopy(eager)
    compiled = trt_frontends.compile(model, arg_inputs=(x.clone(),), **{"min_block_size": 1, **options})
    for _ in range(2):
        expected, sharing = _call(eager, x, eager.table)
        found, shared = _call(compiled, x, model.table)
        assert shared == sharing
        for wanted, value in zip(expected, found, strict=True):
            torch.testing.assert_close(value, wanted, rtol=5e-3, atol=5e-3)
            assert value.stride() == wanted.stride()
        passed_on = {x.untyped_storage()._cdata, model.table.untyped_storage()._cdata}
        for value in found:
            if value.untyped_storage()._cdata not in passed_on:
                value.add_(1)  # what callers do with a result of their own must not be seen by the next call
    return compiled


MADE = {
    "zeros": lambda module, x: (torch.zeros(3), x + 1),
    "arithmetic of constants": lambda module, x: (module.table * 2, x + 1),
    "literal": lambda module, x: (torch.tensor([1.0, 2.0]), x + 1),
    "view of a constant": lambda module, x: (torch.ones(2, 3).view(6), x + 1),
    "expanded constant": lambda module, x: (torch.zeros(1, 3).expand(2, 3).clone(), x + 1),
    "clone of a buffer": lambda module, x: (module.table.clone(), x + 1),
    "view of a clone of the input": lambda module, x: (x.clone().view(-1), x + 1),
    "clone of a view of the input": lambda module, x: (x.view(-1).clone(), x + 1),
    "equal computations": lambda module, x: (x * 2, (x * 2).view(-1)),
    "clone of another result": lambda module, x: [h := x * 2, h.clone()],
}


@pytest.mark.parametrize("name", MADE)
def test_what_the_model_makes_is_fresh_at_every_call(name: str) -> None:
    check(MADE[name])


SEEN = {
    "input": lambda module, x: (x, x + 1),
    "views of the input": lambda module, x: (x.view(-1), x[:, :1], x.t(), x + 1),
    "nested views": lambda module, x: (x.view(2, 2, 4)[1].t(), torch.relu(x)),
    "one part of the input": lambda module, x: (x.split(2)[1], x.unbind(0)[2], x * 2),
    "buffer": lambda module, x: (module.table, x + 1),
    "view of the buffer": lambda module, x: (module.table.t(), x + 1),
    "views of a result": lambda module, x: [h := module.linear(x), h[:2], h.view(-1)],
    "views of what is no result": lambda module, x: [h := module.linear(x), h[:2], h.view(-1), h.t(), x + 1][1:],
    "parts of what is no result": lambda module, x: module.linear(x).chunk(2),
    "views between blocks": lambda module, x: [h := torch.special.bessel_j0(x + 1), h[0], h[:, 1], h.sum()][1:],
    "nothing but views": lambda module, x: (x.tensor_split(2)[1], x.t()),
    "views of two": lambda module, x: [h := x + 1, k := x * 2, h[0], k[1], h[1:], k.t()][2:],
    "dropout": lambda module, x: (nn.functional.dropout(x, training=False), x + 1),
    "einsum": lambda module, x: (torch.einsum("ij->ji", x), torch.einsum("ij", x), torch.einsum("ii->i", x), x + 1),
}


@pytest.mark.parametrize("name", SEEN)
def test_what_the_model_passes_on_is_passed_on(name: str) -> None:
    check(SEEN[name])


@pytest.mark.parametrize("name", ["views of the input", "input"])
def test_views_of_inputs_are_kept_in_reduced_precision(name: str) -> None:
    check(SEEN[name], precision=torch.float16)


OBJECTS = {
    "detached input": lambda module, x: x.detach(),
    "ways to name the input": lambda module, x: (
        x.detach(),
        x,
        x[:],
        x[...],
        x.view(4, 4),
        x.expand(4, 4),
        x.contiguous(),
    ),
    "data of the input and of a weight": lambda module, x: (x.data, x.data * 2 + module.linear.weight.data),
    "detached buffer": lambda module, x: (module.table.detach(), module.table, module.linear(x)),
    "detached twice": lambda module, x: (x.detach(), x.detach(), x.detach().detach()),
    "one view twice": lambda module, x: [part := x[:2], part, x[:2], x + 1],
    "result and its detached self": lambda module, x: [y := module.linear(x), y.detach(), y],
}


@pytest.mark.parametrize("name", OBJECTS)
def test_results_are_the_same_object_where_they_are_for_eager(name: str) -> None:
    model, x = Model(OBJECTS[name]).eval(), torch.randn(4, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x.clone(),), min_block_size=1)

    def objects(called: nn.Module) -> list[int]:
        results, _ = _call(called, x, model.table)
        everything = [x, *results]
        return [next(at for at, other in enumerate(everything) if other is item) for item in everything]

    assert objects(compiled) == objects(model)
    check(OBJECTS[name])


WRITTEN = {
    "input": lambda module, x: x.add_(1),
    "input and more": lambda module, x: (x.mul_(2), x + 1, torch.relu(x)),
    "buffer": lambda module, x: (module.table.add_(1), x + 1),
    "data": lambda module, x: (x.data.mul_(2), module.table.data[0].add_(1), x + 1)[2],
    "another tensor": lambda module, x: (y := x + 1, x.copy_(y))[0],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_model_writes_to_and_returns_is_the_same_tensor(name: str) -> None:
    eager = Model(WRITTEN[name]).eval()
    model = copy.deepcopy(eager)
    compiled = trt_frontends.compile(model, arg_inputs=(torch.randn(4, 4),), min_block_size=1)
    wanted, given = torch.arange(16.0).reshape(4, 4), torch.arange(16.0).reshape(4, 4)
    for _ in range(2):
        expected, sharing = _call(eager, wanted, eager.table)
        found, shared = _call(compiled, given, model.table)
        assert shared == sharing
        torch.testing.assert_close([*found, given, model.table], [*expected, wanted, eager.table])


def test_a_view_of_the_input_follows_its_batch() -> None:
    spec = Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(8, 4))
    compiled = trt_frontends.compile(
        Model(lambda module, x: (x.view(-1), x.reshape(x.shape[0] * 2, 2), x + 1)), arg_inputs=[spec], min_block_size=1
    )
    for rows in (1, 5):
        x = torch.randn(rows, 4)
        flat, halves, _ = compiled(x)
        assert flat.data_ptr() == halves.data_ptr() == x.data_ptr()
        assert flat.shape == (rows * 4,) and halves.shape == (rows * 2, 2)


LAID_OUT = {
    "transposed": lambda module, x: torch.relu(x.t()),
    "permuted": lambda module, x: torch.relu(x.view(2, 2, 4).permute(2, 0, 1)),
    "two": lambda module, x: (torch.relu(x.t()), torch.sigmoid(x) * 2, x.t() * 3),
    "between engines": lambda module, x: torch.relu(torch.special.bessel_j0(torch.relu(x.t()))),
    "transposed product": lambda module, x: (module.linear(x) + 1).t(),
}


@pytest.mark.parametrize("name", LAID_OUT)
def test_results_have_the_strides_of_eager(name: str) -> None:
    check(LAID_OUT[name])


class Pictured(nn.Module):
    """Tokens as a picture, whose order in memory a convolution and what follows take over."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(8, 12, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.convolution(x.mT.reshape(len(x), 8, 4, 4))
        return found, nn.functional.pixel_shuffle(found, 2)


@pytest.mark.parametrize("batch", [1, 2])
def test_results_of_a_picture_made_of_tokens_have_the_strides_of_eager(batch: int) -> None:
    model, x = Pictured().eval(), torch.randn(batch, 16, 8)
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad():
        expected = [tensor.stride() for tensor in model(x)]
        for module in (optimized, trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)):
            assert [tensor.stride() for tensor in module(x)] == expected


class Turned(nn.Module):
    """Results of which kernels choose the order in memory by the strides of axes of extent 1."""

    def __init__(self) -> None:
        super().__init__()
        self.pictured = Pictured()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        found, shuffled = self.pictured(x)
        tokens = x.mT.reshape(len(x), 8, 4, 4)
        turned = (tokens + 1).permute(1, 0, 2, 3)
        return {
            "found": found,
            "a view of it": found.flatten(2).mT,
            "shuffled": shuffled,
            "doubled": tokens * 2,
            "rectified": turned.relu(),
            "one axis": found.mean((0, 2, 3)),
        }


@pytest.mark.parametrize("least", [1, 2])
def test_results_have_the_strides_of_eager_at_every_size_of_a_range(least: int, tmp_path: Any) -> None:
    model = Turned().eval()
    rows = Input(min_shape=(least, 16, 8), opt_shape=(4, 16, 8), max_shape=(5, 16, 8))
    compiled = trt_frontends.compile(model, arg_inputs=[rows], min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for called in (compiled, trt_frontends.load(tmp_path / "model.trtp")):
        for batch in range(least, 4):
            x = torch.randn(batch, 16, 8)
            with torch.no_grad():
                found, expected = called(x), model(x)
            torch.testing.assert_close(found, expected)
            assert {name: value.stride() for name, value in found.items()} == {
                name: value.stride() for name, value in expected.items()
            }
            assert found["found"].data_ptr() == found["a view of it"].data_ptr()


def test_an_exported_compiled_model_lays_results_as_eager_does() -> None:
    model = Pictured().eval()
    rows = Input(min_shape=(1, 16, 8), opt_shape=(4, 16, 8), max_shape=(5, 16, 8))
    compiled = trt_frontends.compile(model, arg_inputs=[rows], min_block_size=1)
    exported = torch.export.export(
        compiled, (torch.randn(4, 16, 8),), dynamic_shapes=compiled.meta["dynamic_shapes"]
    ).module()
    for batch in (1, 3):
        x = torch.randn(batch, 16, 8)
        assert [tensor.stride() for tensor in exported(x)] == [tensor.stride() for tensor in model(x)]


@pytest.mark.parametrize("dynamic", [False, True])
def test_channels_last_stays_channels_last(dynamic: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).to(memory_format=torch.channels_last).eval()
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    shapes = [(batch, 3, 8, 8) for batch in (1, 2, 4)]
    ranged = Input(min_shape=shapes[0], opt_shape=shapes[1], max_shape=shapes[2], format="channels_last")
    compiled = trt_frontends.compile(model, arg_inputs=[ranged if dynamic else x], min_block_size=1)
    with torch.no_grad():
        found, expected = compiled(x), model(x)
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    assert found.permute(0, 2, 3, 1).view(-1, 8).shape == (72, 8)


def test_a_saved_model_keeps_memory_as_well(tmp_path: Any) -> None:
    model = Model(lambda module, x: (torch.relu(x.t()), x.view(-1), torch.zeros(3)))
    x = torch.randn(4, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.pt2", arg_inputs=(x,))
    loaded = trt_frontends.load(tmp_path / "model.pt2")
    for _ in range(2):
        relu, view, zeros = loaded(x)
        torch.testing.assert_close(relu, torch.relu(x.t()))
        assert relu.stride() == (1, 4)
        assert zeros.tolist() == [0, 0, 0]
        zeros.add_(1)
        torch.testing.assert_close(view, x.view(-1))


_WAYS_TO_LIE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x,
    "transposed": lambda x: x.t().contiguous().t(),
    "with gaps": lambda x: torch.stack([x, x], 2)[..., 0],
}
COPIED = {
    "contiguous": lambda module, x: (x.contiguous(), x),
    "a view of it": lambda module, x: (module.linear(x), x.contiguous()[1:]),
    "of what is turned": lambda module, x: x.t().contiguous(),
    "to": lambda module, x: x.to(memory_format=torch.contiguous_format),
    "reshape": lambda module, x: (x.reshape(-1), x.reshape(x.shape)),
}


@pytest.mark.parametrize("name", COPIED)
@pytest.mark.parametrize("way", ["dense", "transposed"])
def test_results_are_the_input_or_a_copy_as_it_lies(name: str, way: str, tmp_path: Any) -> None:
    model, x = Model(COPIED[name]).eval(), torch.randn(4, 4)
    compiled = trt_frontends.compile(model, arg_inputs=(_WAYS_TO_LIE[way](x),), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for called in (compiled, trt_frontends.load(tmp_path / "model.trtp")):
        for lie in _WAYS_TO_LIE.values():
            given = lie(x)
            (found, shared), (expected, sharing) = (_call(run, given, model.table) for run in (called, model))
            torch.testing.assert_close(found, expected)
            assert shared == sharing
            assert [item is given for item in found] == [item is given for item in expected]


BOUND: dict[str, Compute] = {
    "written": lambda module, x: x.contiguous().mul_(2),
    "written in part": lambda module, x: (x.flatten()[:2].mul_(2), x.flatten() + 1),
    "of what is turned": lambda module, x: x.t().reshape(-1).mul_(2),
    "without gradients": lambda module, x: torch.no_grad()(lambda: x.contiguous().mul_(2) + x)(),
    "kept over a write": lambda module, x: (y := x.contiguous(), x.mul_(2), y + 1)[2],
}


@pytest.mark.parametrize("name", BOUND)
def test_an_input_that_a_copy_of_is_written_to_lies_as_it_was_captured(name: str, tmp_path: Any) -> None:
    rows = Input(min_shape=(2, 4), opt_shape=(4, 4), max_shape=(8, 4))
    model = Model(BOUND[name]).eval()
    compiled = trt_frontends.compile(model, arg_inputs=[rows], min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    traced = trt_frontends.compile(trt_frontends.trace(model, arg_inputs=[rows]), min_block_size=1)
    for called in (compiled, traced, trt_frontends.load(tmp_path / "model.trtp")):
        for size in (4, 3):
            x = torch.randn(size, 4)
            given, wanted = x.clone(), x.clone()
            with torch.no_grad():
                torch.testing.assert_close(called(given), model(wanted))
            assert torch.equal(given, wanted)
        for way in ("transposed", "with gaps"):
            given = _WAYS_TO_LIE[way](x)
            with pytest.raises(InputError, match="input x lies otherwise in memory"):
                called(given)
            assert torch.equal(given, x)


def test_an_input_that_is_written_to_after_its_copies_are_read_may_lie_anyhow() -> None:
    model = Model(lambda module, x: (x.reshape(-1) * 2, x.mul_(2), x.contiguous() + 1)[2]).eval()
    compiled = trt_frontends.compile(model, arg_inputs=(torch.randn(4, 4),), min_block_size=1)
    for lie in _WAYS_TO_LIE.values():
        given, wanted = (lie(torch.ones(4, 4)) for _ in range(2))
        torch.testing.assert_close(compiled(given), model(wanted))
        assert torch.equal(given, wanted)


STEPS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "t": lambda value: value.t(),
    "flip sides": lambda value: value.transpose(0, 1),
    "rows": lambda value: value[:2].repeat(2, 1),
    "relu": torch.relu,
    "double": lambda value: value * 2,
    "clone": lambda value: value.clone(),
    "contiguous": lambda value: value.contiguous(),
    "detach": lambda value: value.detach(),
    "bessel": torch.special.bessel_j0,
    "view": lambda value: value.reshape(2, 8).reshape(4, 4),
}


@settings(max_examples=15, deadline=None)
@given(programs=st.lists(st.lists(st.sampled_from(sorted(STEPS)), max_size=4), min_size=1, max_size=3))
def test_random_programs_return_what_eager_returns(programs: list[list[str]]) -> None:
    def compute(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for program in programs:
            value = results[-1] if results and len(program) % 2 else x
            for step in program:
                value = STEPS[step](value)
            results.append(value)
        return results

    check(compute)


def test_results_that_are_no_tensors_come_back_compiled_and_loaded(tmp_path: Any) -> None:
    model = Model(lambda self, x: {"y": self.linear(x), "kind": "logits", "n": 3, "none": None, "few": (1.5, [True])})
    compiled = trt_frontends.compile(model.eval(), arg_inputs=(torch.ones(4, 4),))
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    x = torch.randn(4, 4)
    with torch.no_grad():
        expected = model(x)
    for found in (compiled(x), trt_frontends.load(tmp_path / "model.trtp")(x)):
        torch.testing.assert_close(found.pop("y"), expected["y"])
        assert found == {name: value for name, value in expected.items() if name != "y"}


def test_indices_out_of_range_are_refused_where_they_are_checked() -> None:
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(4, 3)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.table(ids)) + 1

    model, ids = Looks().eval(), torch.tensor([1, 2])
    compiled = trt_frontends.compile(model, arg_inputs=(ids,), min_block_size=1, check_indices=True)
    torch.testing.assert_close(compiled(ids), model(ids))
    assert compiled.meta["partition_report"].engines
    with pytest.raises((IndexError, RuntimeError), match="out of range"):
        compiled(torch.tensor([1, 4]))


def test_a_model_that_sets_the_mode_of_gradients_leaves_that_of_its_caller() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv2d(2, 2, 1).to(memory_format=torch.channels_last)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                with torch.no_grad():
                    x = self.convolution(x)
                x = x + 1
            return x

    images = Input(min_shape=(1, 2, 4, 4), opt_shape=(2, 2, 4, 4), max_shape=(4, 2, 4, 4))
    compiled = trt_frontends.compile(Twice().eval(), arg_inputs=(images,), min_block_size=1)
    assert torch.is_grad_enabled()
    for batch in (1, 2):
        x = torch.randn(batch, 2, 4, 4)
        with torch.no_grad():
            assert compiled(x).shape == x.shape


@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "feature_alpha_dropout", "dropout2d"])
def test_dropout_that_is_on_draws_once(name: str, tmp_path: Path) -> None:
    class Dropping(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            y = getattr(nn.functional, name)(x, 0.5, True)
            return y, y[0], torch.rand_like(x), getattr(nn.functional, name)(x, 0.5, False)

    model = Dropping().eval()
    x = torch.randn(4, 8, 2, 2)
    compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    for made in (compiled, trt_frontends.load(tmp_path / "model.trtp")):
        torch.manual_seed(3)
        expected = model(x)
        torch.manual_seed(3)
        found = made(x)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
        assert found[3].data_ptr() == x.data_ptr() == expected[3].data_ptr()
