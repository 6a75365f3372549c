"""Packed formats together with what makes runs fast: compiled tactics on any device, recorded runs on CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.inductor.tactic import Inductor
from trt_portable.builder.tactic import Subject, Tactic
from trt_portable.execution.launch_list import SpecializedProgram
from trt_portable.formats import LAYOUTS
from trt_portable.plan.artifact import Artifact, machine_of

F = trt.TensorFormat
SHAPE = (2, 5, 3, 4)
FORMATS = [(F.HWC, F.CHW32), (F.CHW32, F.LINEAR), (F.LINEAR, F.HWC), (F.CHW32, F.HWC)]


class Recorded(Tactic):
    """tanh(relu(x)) at the optimal shapes, as a compiler would leave it."""

    def __init__(self) -> None:
        super().__init__("recorded", 1)

    def is_candidate(self, subject: Subject) -> bool:
        return True

    def build(self, subject: Subject, profile: int) -> Artifact:
        (x,) = subject.example_inputs(profile)
        assert isinstance(x, torch.Tensor)
        steps = [
            ["op", "aten::relu", [{"slot": 0}], {}, [1]],
            ["empty", 2, list(x.shape), list(x.stride()), "float32"],
            ["op", "aten::tanh.out", [{"slot": 1}], {"out": {"slot": 2}}, [2]],
            ["view", 3, 2, list(x.shape), list(x.stride()), 0],
        ]
        document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 4, "outputs": [3]}
        return Artifact(self.name, machine_of(subject.device), subject.input_shapes(profile), document, {})


def _network(builder: Any, formats: Any, layers: int = 1) -> Any:
    network = builder.create_network()
    x = y = network.add_input("x", trt.float32, (-1, *SHAPE[1:]))
    for _ in range(layers):
        y = network.add_activation(y, trt.ActivationType.RELU).get_output(0)
        y = network.add_activation(y, trt.ActivationType.TANH).get_output(0)
    y.name = "y"
    network.mark_output(y)
    for tensor, kind in zip((x, y), formats, strict=True):
        tensor.allowed_formats = 1 << int(kind)
    return network


RANGES = {"x": ((1, *SHAPE[1:]), SHAPE, (4, *SHAPE[1:]))}


class Memory:
    """A tensor in a format: `write` and `read` in the order of LINEAR."""

    def __init__(self, kind: Any, shape: tuple[int, ...], device: str) -> None:
        self.shape, self._layout = shape, LAYOUTS.get(kind)
        extents = shape if self._layout is None else self._layout.memory_shape(shape)
        self.tensor = torch.zeros(extents, device=device)

    def write(self, value: torch.Tensor) -> None:
        if self._layout is None:
            self.tensor.copy_(value)
        else:
            self._layout.pack(value, self.tensor)

    def read(self) -> torch.Tensor:
        found = torch.empty(self.shape, device=self.tensor.device)
        if self._layout is None:
            return found.copy_(self.tensor)
        self._layout.unpack(self.tensor, found)
        return found


def _run(context: Any, memory: Memory, result: Memory, value: torch.Tensor, stream: int = 0) -> torch.Tensor:
    memory.write(value)
    assert context.set_input_shape("x", memory.shape)
    assert context.set_tensor_address("x", memory.tensor.data_ptr())
    assert context.set_tensor_address("y", result.tensor.data_ptr())
    assert context.execute_async_v3(stream)
    return result.read()


@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(kind.name for kind in pair))
def test_compiled_tactics_read_and_write_packed_memory(
    builder: Any, load: Any, compiled_wins: None, monkeypatch: Any, formats: Any
) -> None:
    monkeypatch.setitem(engine_tactic.choose_tactic.__kwdefaults__, "tactics", (Recorded(),))
    engine = load(_network(builder, formats), RANGES)
    assert isinstance(engine._state.executable, SpecializedProgram)
    context = engine.create_execution_context()
    for batch in (2, 1, 2):  # compiled, interpreted, compiled
        shape = (batch, *SHAPE[1:])
        memory, result = (Memory(kind, shape, "cpu") for kind in formats)
        for _ in range(2):
            x = torch.randn(shape)
            torch.testing.assert_close(_run(context, memory, result, x), torch.tanh(torch.relu(x)))


def test_outputs_are_left_in_the_memory_that_is_offered(
    builder: Any, load: Any, compiled_wins: None, monkeypatch: Any
) -> None:
    monkeypatch.setitem(engine_tactic.choose_tactic.__kwdefaults__, "tactics", (Recorded(),))
    engine = load(_network(builder, (F.LINEAR, F.LINEAR)), RANGES)
    x, target = torch.randn(SHAPE), torch.empty(SHAPE)
    with torch.inference_mode():
        (found,) = engine._state.executable.run([x], [target])
        (own,) = engine._state.executable.run([x], [None])
        (other,) = engine._state.executable.run([x], [torch.empty(SHAPE, dtype=torch.float64)])
    assert found is target
    torch.testing.assert_close(target, torch.tanh(torch.relu(x)))
    assert torch.equal(own, target) and torch.equal(other, target)


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("formats", FORMATS, ids=lambda pair: "-".join(kind.name for kind in pair))
def test_recorded_runs_read_and_write_packed_memory(
    builder: Any, load: Any, compiled_wins: None, monkeypatch: Any, formats: Any, compiled: bool
) -> None:
    monkeypatch.setattr(Inductor, "LEAST_STEPS", 4 if compiled else 1000)
    with trt.device("cuda"):
        engine = load(_network(builder, formats, layers=3), RANGES)
        context = engine.create_execution_context()
    assert isinstance(engine._state.executable, SpecializedProgram) is compiled
    memory, result = (Memory(kind, SHAPE, "cuda") for kind in formats)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()]
    for index in range(12):  # direct, recorded, recorded at these addresses; then streams alternate
        stream = streams[index % 2 if index > 8 else 0]
        stream.wait_stream(streams[0])
        x = wanted = torch.randn(SHAPE, device="cuda")
        for _ in range(3):
            wanted = torch.tanh(torch.relu(wanted))
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            found = _run(context, memory, result, x, stream.cuda_stream)
        torch.cuda.synchronize()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert context._execution.replay._pinned
