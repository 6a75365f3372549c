"""Artifacts for a range of sizes: recorded once without data, run at every size that they serve."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import sympy
import torch
from low_precision_networks import COLUMNS, DEPTH, constant, dequantized, make_codes, weights_of
from recorded_tactic import CPU
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic

import trt_portable as trt
from trt_core.sizes.conditions import Relation
from trt_portable.builder.autotune import engine_tactic, low_precision_choice
from trt_portable.builder.autotune.engine_tactic import Trial, _ends
from trt_portable.builder.inductor.own_operators import KernelCall, OwnOperators, define_operator
from trt_portable.builder.inductor.repetition import places_of
from trt_portable.builder.inductor.tactic import (
    FixedSizes,
    LaunchRecorder,
    Limits,
    RecordingFailure,
    graph_of,
    served_sizes,
    trace_engine,
    trace_program,
)
from trt_portable.builder.tactic import Subject, Tactic
from trt_portable.errors import PortableError
from trt_portable.execution.launch_list import EXTENT, CompiledProgram, SpecializedProgram
from trt_portable.execution.loaded_network import load_network
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS
from trt_portable.plan.artifact import Artifact, Varying, machine_of, read_artifacts, write_artifacts

WIDTH = 4


class Ranged(Tactic):
    """Records the layers on the CPU: at the optimal shapes, and for the range that a trace without data serves."""

    def __init__(self) -> None:
        super().__init__("ranged", 1)
        self.ranges = 0

    def is_candidate(self, subject: Subject) -> bool:
        return True

    def build(self, subject: Subject, profile: int) -> Artifact:
        return self._recorded(subject, profile, dynamic=False)

    def build_range(self, subject: Subject, profile: int) -> Artifact:
        self.ranges += 1
        return self._recorded(subject, profile, dynamic=True)

    def _recorded(self, subject: Subject, profile: int, *, dynamic: bool) -> Artifact:
        loaded, layers = load_network(subject.structure, subject.info, CPU)
        traced = trace_program(
            loaded, layers, subject.tensors, subject.info, device=CPU, profile_index=profile, dynamic=dynamic
        )
        graph, read = graph_of(traced)
        fakes = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        free = fakes[len(read) :]
        recorder = LaunchRecorder(fakes, sizes=places_of(free))
        with torch.no_grad(), recorder.fakes, recorder:
            outputs = graph(*fakes)
        document = {
            "operands": [
                *(traced.parameters[at].to_json() for at in read),
                *({"input": index} for index in range(len(free))),
            ],
            "kernels": [],
            "steps": recorder.steps,
            "slots": recorder.num_slots,
            "outputs": [recorder.slot(output) for output in outputs],
        }
        allowed = [subject.info.allowed_shape(tensor, profile) for tensor in subject.info.io if tensor.is_input]
        limits = [Limits(each.min, each.opt, each.max) for each in allowed]
        served = served_sizes(free, limits) if dynamic else ()
        return Artifact(self.name, machine_of(CPU), subject.input_shapes(profile), document, {}, *served)


@pytest.fixture
def build(builder: trt.Builder, load: Any, monkeypatch: Any) -> Callable[..., Any]:
    """Builds and loads a network, of which `Ranged` beats interpreting."""
    monkeypatch.setattr(Trial, "time_interpreted", lambda self: 2.0)
    monkeypatch.setattr(Trial, "time", lambda self, tactic, program: 1.0)
    monkeypatch.setattr(Trial, "race_range", lambda self, tactic, program: {"interpret": 2.0, tactic.name: 1.0})

    def build(define: Any, shapes: Any, tactic: Tactic, **settings: Any) -> Any:
        monkeypatch.setitem(engine_tactic.choose_tactic.__kwdefaults__, "tactics", (tactic,))
        network = builder.create_network()
        define(network)
        config = builder.create_builder_config()
        for name, value in settings.items():
            setattr(config, name, value)
        return load(network, shapes, config=config)

    return build


def _attention(network: Any) -> None:
    """softmax(x x^T) x, joined with x and flattened, times a matrix: (N, L, 4) to (N, 2 L, 3)."""
    x = network.add_input("x", trt.float32, (-1, -1, WIDTH))
    none, transpose = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
    scores = network.add_matrix_multiply(x, none, x, transpose).get_output(0)
    weights = network.add_softmax(scores)
    weights.axes = 4
    mixed = network.add_matrix_multiply(weights.get_output(0), none, x, none).get_output(0)
    joined = network.add_concatenation([mixed, x])
    joined.axis = 1
    matrix = network.add_constant((1, 3, WIDTH), np.linspace(-1, 1, 12, dtype=np.float32)).get_output(0)
    y = network.add_matrix_multiply(joined.get_output(0), none, matrix, transpose).get_output(0)
    y.name = "y"
    network.mark_output(y)


def _attended(x: torch.Tensor) -> torch.Tensor:
    mixed = torch.softmax(x @ x.mT, -1) @ x
    return torch.cat([mixed, x], 1) @ torch.linspace(-1, 1, 12).reshape(3, WIDTH).T


SHAPES = {"x": ((1, 2, WIDTH), (2, 6, WIDTH), (9, 40, WIDTH))}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", [(2, 6), (1, 2), (9, 40), (3, 7), (2, 40), (1, 6)])
def test_one_recording_serves_a_range(build: Any, execute: Any, shape: tuple[int, int]) -> None:
    engine = build(_attention, SHAPES, Ranged())
    executable = engine._state.executable
    assert isinstance(executable, SpecializedProgram)
    ranges = [each.artifact for each in executable._compiled if each.artifact.varying]
    assert len(ranges) == 1  # though PyTorch's products ask whether there is one matrix or several
    x = torch.randn(*shape, WIDTH)
    assert [each.serves((tuple(x.shape),)) for each in ranges].count(True) == 1
    executable._program = None  # the layers must not run
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], _attended(x))
    assert ranges[0].serves(((9, 40, WIDTH),)) and ranges[0].serves(((2, 3, WIDTH),))
    assert not ranges[0].serves(((10, 40, WIDTH),)) and not ranges[0].serves(((2, 6, 5),))


def _skipped(network: Any) -> None:
    """Every second column of x twice, plus x, as decoders with skips have it: for even lengths alone."""
    x = network.add_input("x", trt.float32, (WIDTH, -1))
    pooled = network.add_pooling_nd(_as_image(network, x), trt.PoolingType.MAX, (1, 2))
    pooled.stride_nd = (1, 2)
    half = _flat(network, pooled.get_output(0))
    twice = network.add_concatenation([half, half])
    twice.axis = 1
    y = network.add_elementwise(twice.get_output(0), x, trt.ElementWiseOperation.SUM).get_output(0)
    y.name = "y"
    network.mark_output(y)


def _as_image(network: Any, x: Any) -> Any:
    shuffle = network.add_shuffle(x)
    shuffle.reshape_dims = (1, 1, WIDTH, -1)
    return shuffle.get_output(0)


def _flat(network: Any, x: Any) -> Any:
    shuffle = network.add_shuffle(x)
    shuffle.reshape_dims = (WIDTH, -1)
    return shuffle.get_output(0)


@pytest.mark.parametrize("length", [4, 6, 8, 40])
def test_one_recording_serves_multiples(build: Any, execute: Any, length: int) -> None:
    engine = build(_skipped, {"x": ((WIDTH, 4), (WIDTH, 6), (WIDTH, 40))}, Ranged())
    executable = engine._state.executable
    (ranged,) = [each.artifact for each in executable._compiled if each.artifact.varying]
    assert ranged.conditions and ranged.serves(((WIDTH, length),)) and not ranged.serves(((WIDTH, length + 1),))
    executable._program = None  # the layers must not run
    x = torch.randn(WIDTH, length)
    half = x.unflatten(1, (-1, 2)).amax(2)
    made = execute(engine.create_execution_context(), {"x": x})["y"]
    torch.testing.assert_close(made, torch.cat([half, half], 1) + x)


def _windows(network: Any) -> None:
    """Overlapping windows of x, and every row but one: (N, 6, 4) to (N, 4, 3, 4) and (N, 5, 4)."""
    x = network.add_input("x", trt.float32, (-1, 6, WIDTH))
    places = np.arange(4)[:, None] + np.arange(3)
    for name, rows in (("windows", places), ("rows", np.array([0, 5, 3, 1, 4]))):
        table = network.add_constant(rows.shape, rows.astype(np.int32)).get_output(0)
        y = network.add_gather(x, table, 1).get_output(0)
        y.name = name
        network.mark_output(y)


def test_small_tables_of_places_are_computed_in_graphs(build: Any) -> None:
    """Launch lists have no memory for constants that are no weights: networks with one were not compiled at all."""

    class Traced(Ranged):
        def build(self, subject: Subject, profile: int) -> Artifact:
            loaded, layers = load_network(subject.structure, subject.info, CPU)
            traced = trace_program(loaded, layers, subject.tensors, subject.info, device=CPU, profile_index=profile)
            self.graph, _ = graph_of(traced)
            raise PortableError("this one is only traced")

    tactic = Traced()
    build(_windows, {"x": ((1, 6, WIDTH), (2, 6, WIDTH), (8, 6, WIDTH))}, tactic)
    assert not tactic.graph.graph.find_nodes(op="get_attr")
    for batch in (1, 2, 8):
        x = torch.randn(batch, 6, WIDTH)
        windows, rows = tactic.graph(x)
        torch.testing.assert_close(windows, x.unfold(1, 3, 1).mT)
        torch.testing.assert_close(rows, x[:, [0, 5, 3, 1, 4]])


@pytest.mark.parametrize("length", [40, 6])
def test_a_batch_of_1_has_an_artifact_of_its_own(build: Any, execute: Any, length: int) -> None:
    """Compilers take 1 for a constant; where it is a size of the range, it is compiled beside."""

    class FromTwo(Ranged):
        def build_range(self, subject: Subject, profile: int) -> Artifact:
            made = super().build_range(subject, profile)
            varying = tuple(replace(each, least=max(each.least, 2)) for each in made.varying)
            return replace(made, varying=varying)

    shapes = {"x": ((1, 6, WIDTH), (2, 6, WIDTH), (9, length, WIDTH))}
    engine = build(_attention, shapes, FromTwo())
    found = [each.artifact for each in engine._state.executable._compiled]
    assert [each.serves(((1, length, WIDTH),)) for each in found].count(True) == 1
    assert len(found) == 3
    engine._state.executable._program = None  # the layers must not run
    for shape in ((1, length), (2, 6), (9, length)):
        x = torch.randn(*shape, WIDTH)
        torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], _attended(x))


_BATCH = "0.0"
_AT_1 = {EXTENT: ["max", 0, ["add", 2, ["mul", -1, _BATCH]]]}
"""1 at a batch of 1, otherwise 0."""


@pytest.mark.parametrize("step", [["aten::add_.Scalar", _AT_1], ["aten::select.int", 0, 1]])
def test_a_range_that_is_wrong_or_fails_at_a_size_of_1_begins_at_2(build: Any, execute: Any, step: Any) -> None:
    class WrongAtOne(Ranged):
        def build_range(self, subject: Subject, profile: int) -> Artifact:
            made = super().build_range(subject, profile)
            if len(made.varying) == 2:
                (y,) = made.document["outputs"]
                made.document["steps"].append(["op", step[0], [{"slot": y}, *step[1:]], {}, [made.document["slots"]]])
                made.document["slots"] += 1
            return made

    engine = build(_attention, SHAPES, WrongAtOne())
    found = [each.artifact for each in engine._state.executable._compiled]
    assert [[each.least for each in artifact.varying] for artifact in found] == [[], [2, 2], [2]]
    engine._state.executable._program = None  # the layers must not run
    for shape in ((1, 2), (1, 40), (2, 3), (9, 40)):
        x = torch.randn(*shape, WIDTH)
        torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], _attended(x))


def test_refits_reach_it(build: Any, builder: trt.Builder, execute: Any, logger: Any) -> None:
    def define(network: Any) -> None:
        _attention(network)
        next(network[at] for at in range(network.num_layers) if network[at].type is trt.LayerType.CONSTANT).name = "m"

    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.REFIT)
    engine = build(define, SHAPES, Ranged(), flags=config.flags)
    context = engine.create_execution_context()
    x = torch.randn(3, 5, WIDTH)
    before = execute(context, {"x": x})["y"]
    refitter = trt.Refitter(engine, logger)
    fresh = 2 * np.linspace(-1, 1, 12, dtype=np.float32)
    assert refitter.set_weights("m", trt.WeightsRole.CONSTANT, trt.Weights(fresh)) and refitter.refit_cuda_engine()
    torch.testing.assert_close(execute(context, {"x": x})["y"], 2 * before)


def test_lists_for_shapes_are_bounded(build: Any, execute: Any, monkeypatch: Any) -> None:
    engine = build(_attention, SHAPES, Ranged())
    program = next(each for each in engine._state.executable._compiled if each.artifact.varying)
    monkeypatch.setattr(program._sizes, "most", 3)
    context = engine.create_execution_context()
    for length in (*range(3, 12), 3):
        x = torch.randn(2, length, WIDTH)
        torch.testing.assert_close(execute(context, {"x": x})["y"], _attended(x))
        assert len(program._sizes) <= 3


def test_a_range_that_is_wrong_or_slower_is_left_to_the_layers(build: Any, execute: Any, monkeypatch: Any) -> None:
    class Wrong(Ranged):
        def build_range(self, subject: Subject, profile: int) -> Artifact:
            made = super().build_range(subject, profile)
            made.document["steps"].append(["op", "aten::neg_", [{"slot": made.document["outputs"][0]}], {}, []])
            return made

    x = torch.randn(3, 7, WIDTH)
    engine = build(_attention, SHAPES, Wrong())
    assert not any(each.artifact.varying for each in engine._state.executable._compiled)
    torch.testing.assert_close(execute(engine.create_execution_context(), {"x": x})["y"], _attended(x))
    monkeypatch.setattr(Trial, "race_range", lambda self, tactic, program: {"interpret": 1.0, tactic.name: 2.0})
    engine = build(_attention, SHAPES, Ranged())
    assert not any(each.artifact.varying for each in engine._state.executable._compiled)


def test_the_choice_for_a_range_is_remembered(build: Any, builder: trt.Builder, monkeypatch: Any) -> None:
    tactic, cache = Ranged(), builder.create_builder_config().create_timing_cache(b"")

    def again(**settings: Any) -> bool:
        monkeypatch.setitem(engine_tactic.choose_tactic.__kwdefaults__, "tactics", (tactic,))
        network = builder.create_network()
        _attention(network)
        config = builder.create_builder_config()
        config.set_timing_cache(cache, False)
        config.flags |= settings.get("flags", 0)
        profile = builder.create_optimization_profile()
        profile.set_shape("x", *SHAPES["x"])
        config.add_optimization_profile(profile)
        plan = builder.build_serialized_network(network, config)
        engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan)
        return any(each.artifact.varying for each in engine._state.executable._compiled)

    assert again() and tactic.ranges == 1
    monkeypatch.setattr(Trial, "race_range", lambda *_: pytest.fail("raced again"))
    assert again(flags=1 << int(trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)) and tactic.ranges == 2


def _traced(shape: tuple[int, ...]) -> Any:
    """A tensor without data whose first sizes are symbols, hinted at as given."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    mode = FakeTensorMode(shape_env=ShapeEnv(specialize_zero_one=False, duck_shape=False))
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * len(shape))
    return mode.from_tensor(torch.empty(shape), symbolic_context=context)


def test_guards_narrow_a_range() -> None:
    x = _traced((6, 8))
    rows, columns = x.shape
    assert rows > 2 and rows * 3 < 100 and columns != 3
    limits = [Limits((1, 1), (6, 8), (64, 64))]
    varying, conditions = served_sizes([x], limits)
    assert varying == (Varying(0, 0, 3, 33), Varying(0, 1, 1, 64)) and conditions == ((Relation("0.1", "ne", 3),),)
    assert rows + columns < 1000  # holds for all
    assert served_sizes([x], limits) == (varying, conditions)
    assert rows < columns  # does not
    made = Artifact("t", {}, ((6, 8),), {}, {}, *served_sizes([x], limits))
    assert made.serves(((6, 7),)) and not made.serves(((6, 6),)) and not made.serves(((7, 5),))
    assert read_artifacts(write_artifacts([made])) == [made]


def test_guards_that_ask_whether_sizes_are_1_narrow_nothing() -> None:
    x = _traced((6, 8))
    rows, columns = x.shape
    assert rows != 1 and columns < rows * columns
    everything = (Varying(0, 0, 1, 64), Varying(0, 1, 1, 64))
    assert served_sizes([x], [Limits((1, 1), (6, 8), (64, 64))]) == (everything, ())


def _shortened(network: Any) -> None:
    """A convolution without padding, whose rows are `length // 5 - 1` long."""
    x = network.add_input("x", trt.float32, (-1, 2, 1, -1))
    weights = np.ones((3, 2, 1, 10), np.float32)
    y = network.add_convolution_nd(x, 3, (1, 10), weights, np.zeros(3, np.float32))
    y.stride_nd = (1, 5)
    y.get_output(0).name = "y"
    network.mark_output(y.get_output(0))


def test_strides_of_a_range_are_products_of_extents(build: Any) -> None:
    """A pointwise kernel over rows that a convolution has shortened is one loop then."""
    engine = build(_shortened, {"x": ((1, 2, 1, 400), (4, 2, 1, 500), (8, 2, 1, 900))}, Ranged())
    graph = trace_engine(engine).graph
    (found,) = graph.find_nodes(op="call_function", target=torch.ops.aten.convolution.default)
    made = found.meta["val"]
    assert made.shape[3] != 1 and made.stride()[0] == 3 * made.shape[3]
    assert str(made.stride()[1]) == str(made.shape[3])


def test_guards_of_more_sizes_than_can_be_tried_are_conditions() -> None:
    """As of sounds: batches times hundreds of thousands of samples."""
    x = _traced((6, 16000))
    rows, samples = x.shape
    frames = samples // 5 - 1
    assert frames < rows * frames and frames % max(1, rows * frames) != 0 and rows * 85 < frames
    varying, conditions = served_sizes([x], [Limits((1, 400), (6, 16000), (64, 480000))])
    assert varying == (Varying(0, 0, 1, 64), Varying(0, 1, 400, 480000)) and conditions
    made = Artifact("t", {}, ((6, 16000),), {}, {}, varying, conditions)
    for shape in ((1, 16000), (2, 479999), (64, 33000), (1, 600)):
        assert made.serves((shape,)), shape
    assert not made.serves(((64, 27000),)) and not made.serves(((6, 2000),))
    assert _ends(made) == [((1, 435),), ((48, 128000),)]


@pytest.mark.parametrize("condition", [[], [["0.1", "eq", None]], [["0.1", "divides", 8]], [["1.0", "eq", 8]]])
def test_conditions_of_an_artifact_are_about_its_sizes(condition: Any) -> None:
    section = write_artifacts([Artifact("t", {}, ((6, 8),), {}, {}, (), ((Relation("0.1", "eq", 8),),))])
    (length,) = struct.unpack_from("<Q", section)
    table = json.loads(section[8 : 8 + length])
    table[0]["conditions"] = [condition]
    forged = json.dumps(table).encode()
    with pytest.raises(ValueError, match="condition of a compiled artifact"):
        read_artifacts(struct.pack("<Q", len(forged)) + forged)


def test_a_guard_whose_sides_are_the_same_multiplied_out_asks_nothing() -> None:
    """Maps of images, flattened, asked as much: their range was refused, since such a choice is no condition."""
    x = _traced((6, 8))
    rows, columns = (size // 4 + 1 for size in x.shape)
    env = x.fake_mode.shape_env
    parts = (
        sympy.Eq(x.shape[0].node.expr, 1),
        sympy.Eq(rows.node.expr * (columns * 256).node.expr, 256 * rows.node.expr * columns.node.expr),
    )
    assert parts[1] not in (sympy.true, sympy.false)
    assert env.evaluate_expr(sympy.Or(*parts))
    assert env.guards  # PyTorch takes it to be open
    served = served_sizes([x], [Limits((1, 1), (6, 8), (64000, 64000))])  # more than can be tried
    assert served == ((Varying(0, 0, 1, 64000), Varying(0, 1, 1, 64000)), ())


def test_a_guard_on_what_is_no_size_of_an_input_cannot_be_kept() -> None:
    x = _traced((6, 8))
    env, source = x.fake_mode.shape_env, ConstantSource("counted")
    symbol = env.create_symbol(9, source, dynamic_dim=DimDynamic.DYNAMIC)
    assert env.create_symintnode(symbol, hint=9, source=source) > 5
    with pytest.raises(FixedSizes, match="assumed"):
        served_sizes([x], [Limits((1, 1), (6, 8), (64, 64))])


def test_no_extent_of_a_range_is_0() -> None:
    varying, conditions = served_sizes([_traced((6, 8))], [Limits((0, 1), (6, 8), (64, 64))])
    made = Artifact("t", {}, ((6, 8),), {}, {}, varying, conditions)
    assert made.serves(((1, 8),)) and not made.serves(((0, 8),))
    assert read_artifacts(write_artifacts([made])) == [made]


def test_sizes_that_have_to_be_equal_are_compared() -> None:
    x = _traced((6, 6))
    assert x.shape[0] == x.shape[1]
    varying, conditions = served_sizes([x], [Limits((1, 1), (6, 6), (64, 32))])
    made = Artifact("t", {}, ((6, 6),), {}, {}, varying, conditions)
    assert made.serves(((7, 7),)) and not made.serves(((7, 8),))
    assert read_artifacts(write_artifacts([made])) == [made]


def test_sizes_that_must_leave_a_remainder_are_compared() -> None:
    """As strides ask of images: one of every four extents would be left around the usual one."""
    x = _traced((64, 8))
    rows, columns = x.shape
    assert ((rows - 1) // 2) % 2 != 0 and 64 * (columns % 3) != 0
    varying, conditions = served_sizes([x], [Limits((4, 4), (64, 8), (96, 32))])
    assert varying == (Varying(0, 0, 4, 96), Varying(0, 1, 4, 32))
    made = Artifact("t", {}, ((64, 8),), {}, {}, varying, conditions)
    assert [extent for extent in range(32, 41) if made.serves(((extent, 8),))] == [32, 35, 36, 39, 40]
    assert [extent for extent in range(4, 12) if made.serves(((64, extent),))] == [4, 5, 7, 8, 10, 11]


def test_a_size_that_became_a_number_leaves_nothing_open() -> None:
    x = _traced((6, 8))
    assert x.shape[0] == 6 and x.shape[1] == 8
    with pytest.raises(FixedSizes):
        served_sizes([x], [Limits((1, 1), (6, 8), (64, 64))])


def test_sizes_that_follow_from_data_are_no_expressions() -> None:
    x = _traced((6, 8))
    recorder = LaunchRecorder([x], sizes={})
    with recorder.fakes, recorder, pytest.raises(RecordingFailure, match="no expression"):
        x.view(x.shape[0] * x.shape[1])


_COUNTED: dict[str, Callable[..., Any]] = {
    "mm.out": lambda x, y, out: torch.mm(x[0], y[0], out=out[0]),
    "bmm.out": lambda x, y, out: torch.bmm(x, y, out=out),
    "baddbmm.out": lambda x, y, out: torch.baddbmm(out, x, y, out=torch.empty_like(out)),
    "bmm": lambda x, y, out: torch.bmm(x, y),
    "fft": lambda x, y, out: torch.ops.aten._fft_r2c(x, [2], 0, True),
    "im2col": lambda x, y, out: torch.ops.aten.im2col(x[:, None], [2, 2], [1, 1], [0, 0], [2, 2]),
    "col2im": lambda x, y, out: torch.ops.aten.col2im(x, [4, 4], [2, 2], [1, 1], [0, 0], [1, 1]),
    "solve": lambda x, y, out: torch.ops.aten.linalg_solve_triangular(out, out, upper=True),
    "sort": lambda x, y, out: torch.ops.aten.sort.stable(x, stable=True, dim=-1),
}


@pytest.mark.parametrize("name", _COUNTED)
def test_no_operator_makes_numbers_of_sizes_that_vary(name: str) -> None:
    """As the shape rules in C++ do of a batched product's, by which transformers lost their range."""
    sizes = _traced((8,))
    with sizes.fake_mode:
        x, y, out = (torch.empty(sizes.shape[0], *each) for each in ((16, 9), (9, 16), (16, 16)))
    recorder = LaunchRecorder([sizes, x, y, out], sizes=places_of([sizes]))
    with torch.no_grad(), recorder.fakes, recorder:
        _COUNTED[name](x, y, out)
    (varying,), _ = served_sizes([sizes], [Limits((1,), (8,), (16,))])
    assert varying.least <= 2 and varying.most == 16
    *_, last = recorder.steps
    assert last[0] == "op"


@pytest.mark.parametrize(
    ("kernel", "is_kept"), [("dequantize", True), ("int4pack", False)], ids=["in traces too", "not in traces"]
)
def test_what_is_prepared_of_weights_is_not_prepared_in_runs(
    build: Any, execute: Any, logger: Any, monkeypatch: Any, kernel: str, is_kept: bool
) -> None:
    """Recordings take it from the layers, which did it when the engine was loaded, also after a refit.

    Where traces have another kernel than runs, they prepare for that one.
    """
    monkeypatch.setattr(low_precision_choice._Choice, "_candidates", lambda self, case: [PRODUCT_KERNELS[kernel]])
    code_type = trt.int4
    torch.manual_seed(0)
    codes, scale = make_codes(code_type, COLUMNS, DEPTH), torch.rand(COLUMNS, 1) / 50 + 0.01

    def define(network: Any) -> None:
        x = network.add_input("x", trt.float32, (-1, DEPTH))
        stored = constant(network, codes, code_type)
        matrix = dequantized(network, stored, scale)
        none, turned = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
        y = network.add_matrix_multiply(x, none, matrix, turned).get_output(0)
        y.name = "y"
        network.mark_output(y)

    shapes = {"x": ((2, DEPTH), (4, DEPTH), (8, DEPTH))}
    engine = build(define, shapes, Ranged(), flags=1 << int(trt.BuilderFlag.REFIT))
    executable = engine._state.executable
    assert isinstance(executable, SpecializedProgram)
    held = engine._state.program.prepared
    assert len(held) == 2
    for each in executable._compiled:
        operands = [operand for operand in each.artifact.document["operands"] if "input" not in operand]
        found = sorted(operand["prepared"] for operand in operands if "prepared" in operand)
        assert found == (sorted(held) if is_kept else []) and (len(operands) == 2)
    context = engine.create_execution_context()

    def check() -> None:
        for rows in (4, 7):
            x = torch.randn(rows, DEPTH)
            wanted = x @ (codes.float() * scale).T
            torch.testing.assert_close(execute(context, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-3)

    check()
    codes = make_codes(code_type, COLUMNS, DEPTH)
    refitter = trt.Refitter(engine, logger)
    (slot,) = [slot for slot in engine._state.info.weight_slots if slot.count == COLUMNS * DEPTH]
    assert refitter.set_named_weights(f"{slot.layer_name} {slot.role}", weights_of(codes, code_type))
    assert refitter.refit_cuda_engine()
    check()


def test_a_list_that_reads_what_no_layer_prepares_makes_no_sense(build: Any) -> None:
    engine = build(_attention, SHAPES, Ranged())
    (state, made) = engine._state, engine._state.executable._compiled[0].artifact
    operands = [{"prepared": 12345} if "weights" in each else each for each in made.document["operands"]]
    strange = replace(made, document={**made.document, "operands": operands})
    with pytest.raises(PortableError, match="reads tensor 12345"):
        CompiledProgram(strange, state.weights, state.program, CPU)


class _Started:
    """As Triton's compiled kernels describe themselves."""

    metadata = SimpleNamespace(name="doubled", num_warps=4, shared=0, launch_pdl=False)
    asm: ClassVar[dict[str, Any]] = {"cubin": b"code", "ptx": ".entry doubled(.param .u64 a, .param .u64 b)"}


def test_a_kernel_of_our_own_is_recorded_without_data_where_its_extents_are_known() -> None:
    schema = "(Tensor x, Tensor(a!) y) -> ()"
    operator = define_operator("trt_portable_test::doubled", lambda x, y: None, writes_to=("y",), schema=schema)
    seen: list[Any] = []

    def compile_kernel(*kinds: Any, grid: tuple[int, int, int], **settings: Any) -> type[_Started]:
        seen.append((*kinds, settings))
        return _Started

    def launch(x: torch.Tensor, y: torch.Tensor) -> KernelCall:
        return KernelCall.of(SimpleNamespace(warmup=compile_kernel), (3, 1, 1), (x, y), TILE=16)

    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mode = FakeTensorMode(shape_env=ShapeEnv())
    x, y = (mode.from_tensor(torch.randn(4, 3), static_shapes=True) for _ in range(2))
    recorder = LaunchRecorder([x, y], OwnOperators({operator: launch}), {})
    with torch.no_grad(), mode, recorder:
        operator(x, y)
    assert recorder.steps == [["kernel", 0, [3, 1, 1], [{"slot": 0}, {"slot": 1}]]]
    assert recorder.blobs == {"kernel 0": b"code"}
    assert seen == [(torch.float32, torch.float32, {"TILE": 16})]
    varying = mode.from_tensor(torch.randn(4, 3), static_shapes=False)
    recorder = LaunchRecorder([varying, y], OwnOperators({operator: launch}), {})
    with torch.no_grad(), mode, recorder, pytest.raises(RecordingFailure, match="for one shape"):
        operator(varying, y)
