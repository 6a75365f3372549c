"""Inputs that share memory with what a compiled or loaded model holds: taken where nothing is written, else refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import InputError

SHAPE = (4, 3)


class Counts(nn.Module):
    """Writes to its buffer, reads another one, and returns a third."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.ones(6, 3))
        self.register_buffer("scale", torch.full(SHAPE, 2.0))
        self.register_buffer("kept", torch.ones(SHAPE))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (4, 3), float32."""
        self.state.add_(1)
        return x * self.scale + self.state[:4], self.kept


class WritesInput(Counts):
    """Writes to its first input, and returns one of its buffers."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Both (4, 3), float32."""
        x.add_(1)
        return x * self.kept + y, self.kept


Prepare = Callable[[nn.Module, int], nn.Module]


@pytest.fixture(params=["compiled", "loaded"])
def prepare(request: pytest.FixtureRequest, tmp_path: Path) -> Prepare:
    """Compiles a model for some inputs, and saves and loads it."""

    def run(model: nn.Module, inputs: int) -> nn.Module:
        examples = tuple(torch.ones(SHAPE) for _ in range(inputs))
        compiled = trt_frontends.compile(model.eval(), arg_inputs=examples, min_block_size=1)
        if request.param == "compiled":
            return compiled
        trt_runtime.save(compiled, tmp_path / "model.trtp")
        return trt_runtime.load(tmp_path / "model.trtp")

    return run


def test_an_input_in_the_memory_of_a_buffer_that_is_written_is_refused(prepare: Prepare) -> None:
    module = prepare(Counts(), 1)
    state = module.get_buffer("state")
    inside = (
        state[:4],
        state[2:],
        state.view(-1)[5:17].view(SHAPE),
        state.view(-1).as_strided(SHAPE, (1, 4)),
        torch.from_numpy(state.numpy())[1:5],
    )
    for x in inside:
        for _ in range(2):
            with pytest.raises(InputError, match=r"input x shares memory with the buffer state") as caught:
                module(x)
        assert ".clone()" in str(caught.value) and bool((state == 1).all())
    result, _ = module(state[:4].clone())
    assert bool((result == 4).all()) and bool((state == 2).all())


def test_parts_of_a_memory_beside_a_buffer_that_is_written_are_taken(prepare: Prepare) -> None:
    model, memory = Counts(), torch.ones(14, 3)
    model.register_buffer("state", memory[4:10])
    module = prepare(model, 1)
    module.register_buffer("state", memory[4:10])
    for x in (memory[:4], memory[10:]):
        module(x)
    assert memory[:, 0].tolist() == [1] * 4 + [3] * 6 + [1] * 4


def test_results_and_buffers_that_are_read_are_taken_as_inputs(prepare: Prepare) -> None:
    module, eager = prepare(Counts(), 1), Counts()
    x = twin = torch.ones(SHAPE)
    for _ in range(3):
        (x, kept), (twin, _) = module(x), eager(twin)
        torch.testing.assert_close(x, twin)
        torch.testing.assert_close(module(kept)[0], eager(eager.kept)[0])


def test_an_input_that_is_written_lies_apart_from_tensors_that_are_read(prepare: Prepare) -> None:
    module = prepare(WritesInput(), 2)
    kept = module.get_buffer("kept")
    with pytest.raises(InputError, match="input x, which the model writes to, shares memory with the tensor kept"):
        module(kept, torch.ones(SHAPE))
    assert bool((kept == 1).all())
    x = torch.ones(SHAPE)
    assert bool((module(x, kept)[0] == 3).all()) and bool((x == 2).all())


def test_copies_keep_inputs_apart_from_their_own_tensors(prepare: Prepare) -> None:
    module = prepare(Counts(), 1)
    twin = copy.deepcopy(module)
    module(twin.get_buffer("state")[:4])
    with pytest.raises(InputError, match="shares memory with the buffer state"):
        twin(twin.get_buffer("state")[:4])


def test_torch_compile_sees_buffers_that_are_inputs() -> None:
    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("state", torch.ones(SHAPE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.state.add_(1)
            return x * 2 + self.state

    for whole_first in (True, False):
        torch._dynamo.reset()
        model, eager = Adds().eval(), Adds().eval()
        optimized = torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})
        for is_whole in (whole_first, not whole_first):
            x, twin = (model.state, eager.state) if is_whole else (torch.zeros(SHAPE), torch.zeros(SHAPE))
            torch.testing.assert_close(optimized(x), eager(twin))
            torch.testing.assert_close(model.state, eager.state)


@pytest.mark.parametrize("level", [0, 3])
@pytest.mark.parametrize("door", ["compile", "torch.compile", "save", "refit"])
def test_memory_of_weights_can_be_resized_as_before(door: str, level: int, tmp_path: Path) -> None:
    """FSDP takes away the memory of weights that it has put together, which numpy forbids for memory that it shows."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8)).eval().requires_grad_(False)
    x = torch.ones(2, 3, 4, 4)
    chosen = {"min_block_size": 1, "optimization_level": level, "engine_cache_dir": tmp_path / "cache"}
    if door == "torch.compile":
        torch.compile(model, backend="torch_tensorrt", options=chosen)(x)
    else:
        compiled = trt_frontends.compile(model, arg_inputs=(x,), refit=door == "refit", **chosen)
        compiled(x)
        if door == "save":
            trt_runtime.save(compiled, tmp_path / "model.trtp")
        if door == "refit":
            twin = copy.deepcopy(model)
            trt_frontends.refit_module_weights(compiled, twin)(x)
            assert all(weight.untyped_storage().resizable() for weight in twin.parameters())
    assert all(weight.untyped_storage().resizable() for weight in model.parameters())
