"""Loops that are recurrent layers run as one kernel, and loops that nearly are do not; both compute what layers say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import trt_portable as trt
from trt_portable.builder.autotune import engine_tactic
from trt_portable.fusion.epilogues import LAYERS, RECURRENT, OneByOne
from trt_portable.fusion.loops import CudnnLayer, FusedLoop, PackedLstm, RecurrentKernel
from trt_portable.fusion.packed_products import has_prepacked_kernels
from trt_portable.fusion.programs import fused_program
from trt_portable.network.serialization import leaf_entries

A, E, L = trt.ActivationType, trt.ElementWiseOperation, trt.LoopOutput
T, N = trt.MatrixOperation.TRANSPOSE, trt.MatrixOperation.NONE
GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}
DEPTH = 3
"""Of the elements of a sequence."""


@dataclass(frozen=True)
class Layer:
    """A recurrent layer along x (length, batch, 3), as a network may state it.

    Attributes:
        has_states: Whether the first states are inputs, as in dynamic layers, and not zeros.
        is_swapped: Whether operands of sums and products come the other way round.
        changed: What is not as in a recurrent layer; empty for nothing.
    """

    kind: str = "lstm"
    length: int = 4
    batch: int = 2
    width: int = 5
    projection: int = 0
    is_reverse: bool = False
    has_biases: bool = True
    is_transposed: bool = True
    has_states: bool = True
    is_swapped: bool = False
    is_dynamic: bool = False
    changed: str = ""

    @property
    def narrow(self) -> int:
        """How wide the hidden state is."""
        return self.projection or self.width

    @property
    def weights(self) -> list[np.ndarray[Any, Any]]:
        """As PyTorch's layers take them."""
        random = np.random.default_rng(self.width)
        rows = GATES[self.kind] * self.width
        shapes: list[tuple[int, ...]] = [(rows, DEPTH), (rows, self.narrow)]
        shapes += [(rows,), (rows,)] * self.has_biases + [(self.projection, self.width)] * bool(self.projection)
        return [random.standard_normal(shape).astype(np.float32) / 2 for shape in shapes]

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        """A sequence, and first states where these are inputs."""
        generator = torch.Generator().manual_seed(self.length)
        found = {"x": torch.randn(self.length, self.batch, DEPTH, generator=generator)}
        for name, width in self.states.items() if self.has_states else ():
            found[name] = torch.randn(self.batch, width, generator=generator)
        return found

    @property
    def states(self) -> dict[str, int]:
        """How wide the states are."""
        return {"h0": self.narrow, "c0": self.width} if self.kind == "lstm" else {"h0": self.narrow}

    @property
    def ranges(self) -> dict[str, Any] | None:
        """What a profile says of the inputs."""
        if not self.is_dynamic:
            return None
        states = {name: ((0, width), (2, width), (9, width)) for name, width in self.states.items()}
        return {"x": ((0, 0, DEPTH), (4, 2, DEPTH), (9, 9, DEPTH)), **states}

    def wanted(self, inputs: Mapping[str, torch.Tensor]) -> list[torch.Tensor]:
        """What eager PyTorch computes."""
        x = inputs["x"].flip(0) if self.is_reverse else inputs["x"]
        zeros = {name: torch.zeros(x.shape[1], width) for name, width in self.states.items()}
        first: Any = [inputs.get(name, zero).unsqueeze(0) for name, zero in zeros.items()]
        weights = [torch.from_numpy(weight) for weight in self.weights]
        layer = getattr(torch, self.kind)
        first = first if len(first) > 1 else first[0]
        sequence, *last = layer(x, first, weights, self.has_biases, 1, 0.0, False, False, False)
        return [sequence.flip(0) if self.is_reverse else sequence, *(state[0] for state in last)]


class Definition:
    """Adds a recurrent layer to a network, and marks its outputs: all hidden states, and the last states.

    Args:
        network: The network.
        layer: What is added.
        x: The sequence; by default an input of that name is made.
    """

    def __init__(self, network: trt.INetworkDefinition, layer: Layer, x: Any = None) -> None:
        self._network = network
        self._layer = layer
        extents = (-1, -1) if layer.is_dynamic else (layer.length, layer.batch)
        x = x or self._input("x", (*extents, DEPTH))
        outer, inner, *others = layer.weights
        biases, projection = others[: 2 * layer.has_biases], others[2 * layer.has_biases :]
        loop = network.add_loop()
        if layer.changed == "a sequence of which a part is read":
            count = self._constant(np.array(layer.length - 1, np.int32))
        elif layer.is_dynamic:
            count = self._shape_of(x, 0)
        else:
            count = self._constant(np.array(layer.length, np.int32))
        elements = self._linear(x, outer, biases[:1], (1,))
        loop.add_trip_limit(count, trt.TripLimit.COUNT)
        element = loop.add_iterator(elements, 0, layer.is_reverse).get_output(0)
        states = [loop.add_recurrence(self._first(name, width)) for name, width in layer.states.items()]
        hidden, *cell = [state.get_output(0) for state in states]
        if layer.changed == "weights that vary":
            matrix = self._input("w", inner.shape if layer.is_transposed else inner.shape[::-1])
            recurrent = network.add_matrix_multiply(hidden, N, matrix, self._op).get_output(0)
            recurrent = self._sum(recurrent, self._constant(biases[1][None])) if biases else recurrent
        else:
            recurrent = self._linear(hidden, inner, biases[1:], ())
        following = [*getattr(self, f"_{layer.kind}")(element, recurrent, hidden, *cell)]
        if projection:
            following[0] = self._linear(following[0], projection[0], [], ())
        for state, value in zip(states, following, strict=True):
            state.set_input(1, value)
        kept = following[-1] if layer.changed == "another sequence" else following[0]
        is_turned = layer.is_reverse != (layer.changed == "results the other way round")
        sequence = loop.add_loop_output(kept, L.REVERSE if is_turned else L.CONCATENATE, 0)
        sequence.set_input(1, count)
        results = [sequence.get_output(0)]
        results += [loop.add_loop_output(value, L.LAST_VALUE).get_output(0) for value in (hidden, *cell)]
        if layer.changed == "elements that are read elsewhere":
            results.append(network.add_activation(elements, A.RELU).get_output(0))
        for index, result in enumerate(results):
            result.name = f"y{index}{' reversed' * layer.is_reverse}"
            network.mark_output(result)

    @property
    def _op(self) -> Any:
        return T if self._layer.is_transposed else N

    def _input(self, name: str, shape: tuple[int, ...]) -> Any:
        return self._network.add_input(name, trt.float32, shape)

    def _constant(self, value: np.ndarray[Any, Any], name: str = "") -> Any:
        made = self._network.add_constant(value.shape, trt.Weights(np.ascontiguousarray(value)))
        made.name = name or made.name
        return made.get_output(0)

    def _first(self, name: str, width: int) -> Any:
        if self._layer.has_states:
            return self._input(name, (-1 if self._layer.is_dynamic else self._layer.batch, width))
        return self._constant(np.zeros((self._layer.batch, width), np.float32))

    def _extent(self, x: Any, axis: int) -> Any:
        shape = self._network.add_shape(x).get_output(0)
        return self._network.add_slice(shape, (axis,), (1,), (1,)).get_output(0)

    def _shape_of(self, x: Any, axis: int) -> Any:
        shuffle = self._network.add_shuffle(self._extent(x, axis))
        shuffle.reshape_dims = ()
        return shuffle.get_output(0)

    def _linear(self, x: Any, matrix: np.ndarray[Any, Any], biases: Any, lead: tuple[int, ...]) -> Any:
        laid = (matrix if self._layer.is_transposed else matrix.T).reshape(lead + matrix.shape[:: self._order])
        name = "inner" if x.shape[-1] != DEPTH else "outer"
        product = self._network.add_matrix_multiply(x, N, self._constant(laid, name), self._op).get_output(0)
        return self._sum(product, self._constant(biases[0].reshape(*lead, 1, -1))) if biases else product

    @property
    def _order(self) -> int:
        return 1 if self._layer.is_transposed else -1

    def _binary(self, left: Any, right: Any, op: Any) -> Any:
        if self._layer.is_swapped and op is not E.SUB:
            left, right = right, left
        return self._network.add_elementwise(left, right, op).get_output(0)

    def _sum(self, left: Any, right: Any) -> Any:
        return self._binary(left, right, E.SUM)

    def _times(self, left: Any, right: Any) -> Any:
        return self._binary(left, right, E.PROD)

    def _activated(self, x: Any, kind: Any) -> Any:
        return self._network.add_activation(x, kind).get_output(0)

    def _parts(self, x: Any, count: int) -> list[Any]:
        found = []
        for at in range(count):
            part = self._network.add_slice(x, (at * self._layer.width,), (self._layer.width,), (1,))
            part.axes = (1,)
            found.append(part.get_output(0))
        return found

    def _lstm(self, element: Any, recurrent: Any, hidden: Any, cell: Any) -> tuple[Any, Any]:
        gates = self._parts(self._sum(element, recurrent), 4)
        if self._layer.changed == "gates in another order":
            gates = gates[::-1]
        entry, forget, candidate, exit_ = gates
        kind = A.SIGMOID if self._layer.changed == "another activation" else A.TANH
        added = self._times(self._activated(entry, A.SIGMOID), self._activated(candidate, kind))
        following = self._sum(self._times(self._activated(forget, A.SIGMOID), cell), added)
        before = cell if self._layer.changed == "the cell of the step before" else following
        return self._times(self._activated(exit_, A.SIGMOID), self._activated(before, A.TANH)), following

    def _gru(self, element: Any, recurrent: Any, hidden: Any) -> tuple[Any]:
        pairs = zip(self._parts(element, 3), self._parts(recurrent, 3), strict=True)
        (reset_x, reset_h), (update_x, update_h), (new_x, new_h) = pairs
        reset = self._activated(self._sum(reset_x, reset_h), A.SIGMOID)
        update = self._activated(self._sum(update_x, update_h), A.SIGMOID)
        new = self._activated(self._sum(new_x, self._times(reset, new_h)), A.TANH)
        sides = (new, hidden) if self._layer.changed == "a difference the other way round" else (hidden, new)
        return (self._sum(self._times(self._binary(*sides, E.SUB), update), new),)

    def _rnn_tanh(self, element: Any, recurrent: Any, hidden: Any) -> tuple[Any]:
        return (self._activated(self._sum(element, recurrent), A.TANH),)

    def _rnn_relu(self, element: Any, recurrent: Any, hidden: Any) -> tuple[Any]:
        return (self._activated(self._sum(element, recurrent), A.RELU),)


@pytest.fixture
def built(builder: Any, load: Any) -> Callable[..., trt.ICudaEngine]:
    """Builds an engine of a layer."""

    def build(layer: Layer, **options: Any) -> trt.ICudaEngine:
        network = builder.create_network()
        Definition(network, layer)
        engine: trt.ICudaEngine = load(network, layer.ranges, **options)
        return engine

    return build


def computes(engine: Any) -> list[Any]:
    """What computes loops, whole or step by step."""
    found = [compute for compute, *_ in engine._state.executable.steps]
    return [compute for compute in found if isinstance(compute, (RecurrentKernel, FusedLoop, OneByOne))]


def agree(engine: Any, layer: Layer, execute: Any, wanted: list[torch.Tensor] | None = None) -> None:
    inputs = layer.inputs
    found = execute(engine.create_execution_context(), inputs)
    for have, want in zip(found.values(), wanted or layer.wanted(inputs), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


LAYER = st.builds(
    Layer,
    kind=st.sampled_from(sorted(GATES)),
    length=st.integers(1, 6),
    batch=st.integers(1, 3),
    width=st.integers(1, 6),
    is_reverse=st.booleans(),
    has_biases=st.booleans(),
    is_transposed=st.booleans(),
    has_states=st.booleans(),
    is_swapped=st.booleans(),
).flatmap(
    lambda layer: st.builds(
        replace,
        st.just(layer),
        projection=st.integers(0, layer.width - 1) if layer.kind == "lstm" else st.just(0),
        is_dynamic=st.booleans() if layer.has_states else st.just(False),
    )
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layer=LAYER)
def test_every_recurrent_layer_is_one_kernel(layer: Layer, built: Any, execute: Any) -> None:
    engine = built(layer)
    assert [isinstance(compute, RecurrentKernel) for compute in computes(engine)] == [True]
    agree(engine, layer, execute)
    if layer.is_dynamic:
        for length, batch in ((1, 1), (7, 4)):
            agree(engine, replace(layer, length=length, batch=batch), execute)


@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layer=LAYER)
def test_programs_for_gpus_have_one_kernel_too(layer: Layer, built: Any) -> None:
    program = fused_program(built(layer)._state.loaded)
    program.load_constants()
    assert [type(compute) for compute, *_ in program.steps if isinstance(compute, RecurrentKernel)] == [CudnnLayer]
    inputs = layer.inputs
    for have, want in zip(program.run([*inputs.values()]), layer.wanted(inputs), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", GATES)
def test_kernels_get_states_in_one_piece(kind: str, built: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer(kind)
    program = fused_program(built(layer)._state.loaded)
    program.load_constants()
    (compute,) = [compute for compute, *_ in program.steps if isinstance(compute, CudnnLayer)]
    kernel = compute._layer
    given = {name: value if name == "x" else value[:1].expand_as(value) for name, value in layer.inputs.items()}

    def run(x: torch.Tensor, states: Any, *others: Any) -> Any:
        assert all(state.is_contiguous() for state in (states if isinstance(states, (list, tuple)) else [states]))
        return kernel(x, states, *others)

    monkeypatch.setattr(compute, "_layer", run)
    for have, want in zip(program.run([*given.values()]), layer.wanted(given), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("projection", [0, 3])
def test_cudnn_runs_recurrent_layers(kind: str, projection: int, builder: Any, built: Any, execute: Any) -> None:
    layer = Layer(kind, length=24, projection=projection if kind == "lstm" else 0)
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    with trt.device("cuda"):
        engine = built(layer, config=config)
        (compute,) = [each for each, *_ in engine._state.program.steps if isinstance(each, CudnnLayer)]
        context = engine.create_execution_context()
        given = {name: value.cuda() for name, value in layer.inputs.items()}
        for _ in range(4):  # recorded and repeated
            for have, want in zip(execute(context, given).values(), layer.wanted(layer.inputs), strict=True):
                torch.testing.assert_close(have.cpu(), want, rtol=2e-3, atol=2e-3)
    held = compute._ordered
    assert held is not None
    assert len({weight.untyped_storage().data_ptr() for weight in held[1]}) == 1


@pytest.mark.parametrize(
    "layer",
    [
        *(Layer(changed=what) for what in ("gates in another order", "another activation", "another sequence")),
        *(Layer(changed=what) for what in ("the cell of the step before", "results the other way round")),
        Layer("gru", changed="a difference the other way round"),
        Layer("gru", changed="elements that are read elsewhere"),
        Layer("rnn_tanh", changed="weights that vary"),
    ],
    ids=lambda layer: layer.changed,
)
def test_what_is_nearly_a_recurrent_layer_runs_as_a_loop(
    layer: Layer, builder: Any, built: Any, execute: Any, layer_by_layer: Any
) -> None:
    network = builder.create_network()
    Definition(network, layer)
    engine = built(layer)
    assert [type(compute) for compute in computes(engine)] == [FusedLoop]
    inputs = layer.inputs
    if layer.changed == "weights that vary":
        inputs["w"] = torch.randn(5, 5)
    given = [inputs[network.get_input(at).name] for at in range(network.num_inputs)]
    found = execute(engine.create_execution_context(), inputs)
    for have, want in zip(found.values(), layer_by_layer(network)(*given), strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


def test_a_sequence_of_which_a_part_is_read(built: Any, builder: Any, execute: Any, layer_by_layer: Any) -> None:
    layer = Layer(changed="a sequence of which a part is read", has_states=False)
    network = builder.create_network()
    Definition(network, layer)
    agree(built(layer), layer, execute, layer_by_layer(network)(layer.inputs["x"]))


@pytest.mark.parametrize("kind", GATES)
def test_no_steps_and_no_sequences(kind: str, built: Any) -> None:
    engine = built(Layer(kind, is_dynamic=True))
    for length, batch in ((0, 2), (3, 0), (0, 0)):
        layer = Layer(kind, length=length, batch=batch)
        given = [layer.inputs[tensor.name] for tensor in engine._state.inputs]  # without memory, so none can be bound
        with torch.inference_mode():
            sequence, *last = engine._state.executable.run(given)
        assert sequence.shape == (length, batch, layer.narrow)
        for name, state in zip(layer.states, last, strict=True):
            assert state.shape == layer.inputs[name].shape
            assert length or torch.equal(state, layer.inputs[name])


def test_both_directions_find_their_own_products(builder: Any, load: Any, execute: Any) -> None:
    """Products of one tensor are merged elsewhere."""
    network = builder.create_network()
    there, back = Layer(has_states=False), Layer(has_states=False, is_reverse=True)
    Definition(network, there)
    Definition(network, back, network.get_input(0))
    engine = load(network)
    assert [isinstance(compute, RecurrentKernel) for compute in computes(engine)] == [True, True]
    found = execute(engine.create_execution_context(), there.inputs)
    for have, want in zip(found.values(), [*there.wanted(there.inputs), *back.wanted(back.inputs)], strict=True):
        torch.testing.assert_close(have, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", GATES)
def test_a_refit_reaches_the_kernel(kind: str, built: Any, execute: Any, logger: Any) -> None:
    layer = Layer(kind, is_reverse=True, has_biases=False)
    engine = built(layer, flags=[trt.BuilderFlag.REFIT])
    agree(engine, layer, execute)
    other = replace(layer, width=layer.width + 1)
    fresh = [
        matrix[: GATES[kind] * layer.width, :columns] for matrix, columns in zip(other.weights, (3, 5), strict=True)
    ]
    refitter = trt.Refitter(engine, logger)
    for name, matrix in zip(("outer", "inner"), fresh, strict=True):
        values = np.ascontiguousarray(matrix)
        assert refitter.set_weights(name, trt.WeightsRole.CONSTANT, values), logger.errors
    assert refitter.refit_cuda_engine()
    refitted = type("Refitted", (Layer,), {"weights": fresh})(kind, is_reverse=True, has_biases=False)
    agree(engine, refitted, execute)


@pytest.mark.skipif(not has_prepacked_kernels(), reason="this PyTorch has no kernels for packed weights")
@pytest.mark.parametrize("way", [RECURRENT, LAYERS])
@pytest.mark.parametrize("kind", GATES)
def test_a_build_chooses_between_the_kernel_and_the_loop(
    kind: str, way: str, built: Any, execute: Any, compiled_wins: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_tactic, "_LEAST_PACKED_WEIGHTS", 0)
    monkeypatch.setattr(engine_tactic, "_raced_products", lambda product, *_: way if way in product.ways else LAYERS)
    layer = Layer(kind, is_dynamic=True, is_reverse=True)
    engine = built(layer)
    named = [layer for layer in leaf_entries(engine._state.structure["layers"]) if layer["implementation"]]
    assert [layer["type"] for layer in named] == ["LINEAR", "LOOP", "LINEAR"]  # before the loop, and in it
    assert named[1]["implementation"] == way
    kernel = PackedLstm if kind == "lstm" else RecurrentKernel
    assert [type(compute) for compute in computes(engine)] == [kernel if way == RECURRENT else OneByOne]
    for length, batch in ((4, 2), (1, 1), (9, 3)):
        agree(engine, replace(layer, length=length, batch=batch), execute)


def test_packed_weights_are_given_up_and_made_again(built: Any, execute: Any) -> None:
    engine = built(Layer())
    (kernel,) = computes(engine)
    agree(engine, Layer(), execute)
    packed = sum(matrix.nbytes for matrix in Layer().weights[:2]) if isinstance(kernel, PackedLstm) else 0
    assert kernel.forget() == packed
    assert kernel.forget() == 0
    agree(engine, Layer(), execute)
