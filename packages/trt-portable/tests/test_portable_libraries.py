"""Libraries as tactics: they compute what layers compute, in plans that hold nothing of theirs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from fresh_process import run_python
from hypothesis import given, settings
from hypothesis import strategies as st
from side_by_side import in_threads

import trt_portable as trt
from trt_portable.builder import tactic
from trt_portable.builder.autotune import engine_tactic
from trt_portable.builder.tactic import LIBRARY_TACTICS
from trt_portable.libraries import NAMES, library
from trt_portable.libraries.library import SWITCH, Signature
from trt_portable.libraries.library_program import LibraryExecutable, identities, libraries
from trt_portable.onnx_export import ExportedPlan
from trt_portable.plan import artifact as artifacts
from trt_portable.plan.engine_info import IOTensor
from trt_portable.reporting import Reporter

INSTALLED = [name for name in NAMES if library._version(name) is not None and library._version("onnx") is not None]
pytestmark = pytest.mark.skipif(not INSTALLED, reason="needs onnx, and OpenVINO or ONNX Runtime")
Ranges = dict[str, tuple[Sequence[int], Sequence[int], Sequence[int]]]
GENERATOR = np.random.default_rng(0)


def numbers(*shape: int) -> Any:
    return GENERATOR.standard_normal(shape).astype(np.float32)


def constant(network: Any, array: Any) -> Any:
    return network.add_constant(array.shape, np.ascontiguousarray(array)).get_output(0)


def convolutional(network: Any, x: Any) -> Any:
    """Convolution, activation, pooling, and a sum with what came before."""
    first = network.add_convolution_nd(x, 8, (3, 3), numbers(8, 4, 3, 3), numbers(8))
    first.padding_nd = (1, 1)
    active = network.add_activation(first.get_output(0), trt.ActivationType.RELU).get_output(0)
    second = network.add_convolution_nd(active, 8, (3, 3), numbers(8, 1, 3, 3), numbers(8))
    second.padding_nd, second.num_groups = (1, 1), 8
    both = network.add_elementwise(second.get_output(0), active, trt.ElementWiseOperation.SUM).get_output(0)
    return network.add_pooling_nd(both, trt.PoolingType.MAX, (2, 2)).get_output(0)


def attentive(network: Any, x: Any) -> Any:
    """A linear map with a bias, and causal attention."""
    none = trt.MatrixOperation.NONE
    product = network.add_matrix_multiply(x, none, constant(network, numbers(1, 1, 6, 6)), none).get_output(0)
    mapped = network.add_elementwise(product, constant(network, numbers(1, 1, 1, 6)), trt.ElementWiseOperation.SUM)
    kind = trt.AttentionNormalizationOp.SOFTMAX
    attention = network.add_attention(mapped.get_output(0), x, x, kind, True)
    return attention.get_output(0)


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library, which alone is allowed."""
    if request.param not in INSTALLED:
        pytest.skip(f"needs {request.param}")
    monkeypatch.setenv(SWITCH, request.param)
    return str(request.param)


def always_win(patch: pytest.MonkeyPatch, ratio: float = 0.5) -> None:
    """Libraries take that part of the layers' time."""
    patch.setattr(engine_tactic.Trial, "_ratios", lambda _, programs, layers: [ratio] * len(programs))
    patch.setattr(
        engine_tactic.Trial, "_glanced", lambda _, executables, values: [1.0] + [ratio] * (len(executables) - 1)
    )
    patch.setattr(engine_tactic, "FAR", float("inf"))


@pytest.fixture(autouse=True)
def wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a library computes right is faster than the layers."""
    monkeypatch.setattr(tactic, "_LEAST_MILLISECONDS", 0.0)
    always_win(monkeypatch)


Build = Callable[..., Any]


@pytest.fixture
def build(builder: trt.Builder) -> Build:
    """Builds a network of one input."""

    def build(
        layers: Callable[[Any, Any], Any],
        shape: Sequence[int],
        ranges: Ranges | None = None,
        flags: Sequence[Any] = (),
        cache: Any = None,
    ) -> Any:
        network = builder.create_network()
        y = layers(network, network.add_input("x", trt.float32, tuple(shape)))
        y.name = "y"
        network.mark_output(y)
        config = builder.create_builder_config()
        if cache is not None:
            assert config.set_timing_cache(cache, False)
        for flag in flags:
            config.set_flag(flag)
        if ranges is not None:
            profile = builder.create_optimization_profile()
            for at, extents in ranges.items():
                profile.set_shape(at, *extents)
            config.add_optimization_profile(profile)
        return builder.build_serialized_network(network, config)

    return build


def loaded(plan: Any, logger: Any, **settings: Any) -> Any:
    runtime = trt.Runtime(logger)
    for key, value in settings.items():
        setattr(runtime, key, value)
    return runtime.deserialize_cuda_engine(plan)


def same_as_layers(engine: Any, execute: Any, x: torch.Tensor) -> None:
    found = execute(engine.create_execution_context(), {"x": x})["y"]
    (wanted,) = engine._state.program.run([x])
    torch.testing.assert_close(found, wanted, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize(("layers", "shape"), [(convolutional, (2, 4, 8, 8)), (attentive, (2, 3, 5, 6))])
def test_an_engine_runs_in_a_library(
    build: Build, execute: Any, logger: Any, name: str, layers: Any, shape: Sequence[int]
) -> None:
    engine = loaded(build(layers, shape), logger)
    assert engine._state.info.tactic == name
    assert isinstance(engine._state.executable, LibraryExecutable)
    same_as_layers(engine, execute, torch.randn(shape))


def test_one_model_serves_a_range_of_sizes(build: Build, execute: Any, logger: Any, name: str) -> None:
    ranges: Ranges = {"x": ((1, 4, 4, 4), (2, 4, 8, 8), (4, 4, 16, 16))}
    engine = loaded(build(convolutional, (-1, 4, -1, -1), ranges), logger)
    assert len(engine._state.executable._programs) == 1
    for shape in ((1, 4, 4, 4), (2, 4, 8, 8), (3, 4, 7, 16), (4, 4, 16, 16), (2, 4, 8, 8)):
        same_as_layers(engine, execute, torch.randn(shape))


def test_outputs_are_written_where_they_are_bound_unless_inputs_lie_there(
    build: Build, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubled(network: Any, x: Any) -> Any:
        return network.add_elementwise(x, x, trt.ElementWiseOperation.SUM).get_output(0)

    engine = loaded(build(doubled, (4, 4)), logger)
    offered: list[Any] = []
    (program,) = engine._state.executable._programs
    run = program._model.run
    monkeypatch.setattr(program._model, "run", lambda values, places: (offered.append(places), run(values, places))[1])
    context = engine.create_execution_context()
    x, y = torch.randn(4, 4), torch.empty(4, 4)
    wanted = x * 2
    assert context.execute_v2([x.data_ptr(), y.data_ptr()])
    assert torch.equal(y, wanted) and offered[0][0].data_ptr() == y.data_ptr()
    assert context.execute_v2([x.data_ptr(), x.data_ptr()])
    assert torch.equal(x, wanted) and offered[1][0].data_ptr() != x.data_ptr()


def test_nan_goes_to_the_layers(build: Build, execute: Any, logger: Any, name: str) -> None:
    engine = loaded(build(convolutional, (2, 4, 8, 8)), logger)
    for odd in (float("nan"), float("inf")):
        x = torch.randn(2, 4, 8, 8)
        x[0, 1, 2, 3] = odd
        found = execute(engine.create_execution_context(), {"x": x})["y"]
        (wanted,) = engine._state.program.run([x])
        torch.testing.assert_close(found, wanted, equal_nan=True)


def looked_up(network: Any, x: Any, table: Any, behind: int = 0) -> Any:
    """Rows of a table; of which numbers, an input says."""
    rows = network.add_input("rows", trt.int64, (3, 4))
    found = network.add_gather(constant(network, table), rows, 0).get_output(0)
    product = network.add_matrix_multiply(found, trt.MatrixOperation.NONE, x, trt.MatrixOperation.NONE).get_output(0)
    if not behind:
        return product
    is_first = network.add_elementwise(
        rows, constant(network, np.zeros((1, 1), np.int64)), trt.ElementWiseOperation.EQUAL
    ).get_output(0)
    chosen = network.add_select(is_first, constant(network, np.full((1, 1), behind)), rows).get_output(0)
    least = network.add_reduce(chosen, trt.ReduceOperation.MIN, 0b10, True).get_output(0)
    lifted = network.add_unsqueeze(least, constant(network, np.array([2]))).get_output(0)
    return network.add_elementwise(
        product, network.add_cast(lifted, trt.float32).get_output(0), trt.ElementWiseOperation.SUM
    ).get_output(0)


def test_a_table_whose_first_row_is_nothing_is_looked_up_elsewhere(
    build: Build, execute: Any, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Padding stands first as a rule: rows of zeros show nothing of what a library makes of the others."""
    table = numbers(9, 6)
    table[0] = 0
    plan = build(lambda network, x: looked_up(network, x, table), (1, 6, 5))
    assert isinstance(loaded(plan, logger)._state.executable, LibraryExecutable)
    compiled = libraries()[name].compile

    def wrong(*given: Any) -> Any:
        made = compiled(*given)

        class Doubling:
            def run(self, *values: Any) -> Any:
                return [2 * each for each in made.run(*values)]

        return Doubling()

    monkeypatch.setattr(type(libraries()[name]), "compile", lambda self, *given: wrong(*given))
    plan = build(lambda network, x: looked_up(network, x, table), (1, 6, 5))
    assert not isinstance(loaded(plan, logger)._state.executable, LibraryExecutable)


def test_ranges_may_begin_at_no_elements(build: Build, execute: Any, logger: Any, name: str) -> None:
    """As a mask chooses none: profiles of what data count begin at 0."""
    plan = build(attentive, (1, 2, -1, 6), {"x": ((1, 2, 0, 6), (1, 2, 5, 6), (1, 2, 8, 6))})
    engine = loaded(plan, logger)
    assert isinstance(engine._state.executable, LibraryExecutable)
    same_as_layers(engine, execute, torch.randn(1, 2, 3, 6))


def test_what_computes_nothing_but_zeros_is_left_to_layers(build: Build, logger: Any, name: str) -> None:
    plan = build(lambda network, x: looked_up(network, x, np.zeros((9, 6), np.float32)), (1, 6, 5))
    assert not isinstance(loaded(plan, logger)._state.executable, LibraryExecutable)


@pytest.mark.parametrize(("behind", "is_taken"), [(9, True), (1 << 24, True), (1 << 25, False), (2**63 - 1, False)])
def test_integers_that_floats_do_not_hold_are_left_to_layers(
    build: Build, logger: Any, name: str, behind: int, is_taken: bool
) -> None:
    plan = build(lambda network, x: looked_up(network, x, numbers(9, 6), behind), (1, 6, 5))
    assert isinstance(loaded(plan, logger)._state.executable, LibraryExecutable) is is_taken


def test_where_a_library_fails_the_layers_run(
    build: Build, execute: Any, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded(build(convolutional, (2, 4, 8, 8)), logger)
    (program,) = engine._state.executable._programs

    def fail(*_: Any) -> Any:
        raise RuntimeError("an index is out of bounds")

    monkeypatch.setattr(program._model, "run", fail)
    same_as_layers(engine, execute, torch.randn(2, 4, 8, 8))


@pytest.mark.parametrize("fails", ["when it is compiled", "when it runs"])
def test_libraries_write_nothing_themselves(name: str, fails: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Messages of theirs hold names of layers as models have them: what commands a terminal, too."""
    onnx = pytest.importorskip("onnx")
    evil = "\x1b[2Jlayer"
    ends = [onnx.helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, ["n"]) for end in "xy"]
    shape = onnx.helper.make_tensor("shape", onnx.TensorProto.INT64, [1], [7])
    operator = "Reshape" if fails == "when it runs" else "NoOperator"
    node = onnx.helper.make_node(operator, ["x", "shape"], ["y"], name=evil)
    graph = onnx.helper.make_graph([node], evil, ends[:1], ends[1:], [shape])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    io = [IOTensor(end, at, trt.float32, (-1,), end == "x") for at, end in enumerate("xy")]
    with contextlib.suppress(Exception):  # of theirs, where they notice
        compiled = libraries()[name].compile(ExportedPlan(model, {}), Signature(tuple(io[:1]), tuple(io[1:])), 1)
        compiled.run([torch.ones(3)], [None])
    assert not any(capfd.readouterr())


_SIGNALLED = """
import faulthandler
import os
import signal
import sys

import onnx

import trt_portable as trt
from trt_portable.libraries.library import Signature
from trt_portable.libraries.library_program import libraries
from trt_portable.onnx_export import ExportedPlan
from trt_portable.plan.engine_info import IOTensor

faulthandler.enable()
heard = []
signal.signal(signal.SIGALRM, lambda number, frame: heard.append(number))


def compiled():
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    io = [IOTensor(end, at, trt.float32, (2,), end == "x") for at, end in enumerate("xy")]
    return libraries()[sys.argv[1]].compile(ExportedPlan(model, {}), Signature(tuple(io[:1]), tuple(io[1:])), 1)


first, second = compiled(), compiled()
for _ in range(2):  # the one that was made first goes first
    first, second = second, None
    os.kill(os.getpid(), signal.SIGALRM)
print(len(heard))
"""


@pytest.mark.slow
def test_signals_are_handled_whatever_becomes_of_engines(name: str) -> None:
    """OpenVINO gives the thread that loads it a stack for signals, and takes it away with the memory: Ctrl-C killed."""
    done = run_python(_SIGNALLED, name)
    assert (done.returncode, done.stdout.strip()) == (0, "2"), done.stderr


def test_a_plan_holds_nothing_of_the_library(build: Build, logger: Any, name: str) -> None:
    engine = loaded(build(attentive, (2, 3, 5, 6)), logger)
    (found,) = artifacts.read_artifacts(engine._state.compiled)
    assert not found.document and not found.blobs
    assert found.machine[name] == library._version(name)


def test_strangers_plans_are_interpreted(
    build: Build, execute: Any, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = bytes(build(attentive, (2, 3, 5, 6)))
    monkeypatch.setattr(artifacts, "_built_here", {})
    engine = loaded(plan, logger)
    assert not isinstance(engine._state.executable, LibraryExecutable)
    allowed = loaded(plan, logger, engine_host_code_allowed=True)
    assert isinstance(allowed._state.executable, LibraryExecutable)
    x = torch.randn(2, 3, 5, 6)
    same_as_layers(engine, execute, x)
    same_as_layers(allowed, execute, x)


def test_without_the_library_layers_run(
    build: Build, execute: Any, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = build(attentive, (2, 3, 5, 6))
    monkeypatch.setenv(SWITCH, "")
    engine = loaded(plan, logger)
    assert not isinstance(engine._state.executable, LibraryExecutable)
    assert any(f"trt-portable[{name}]" in text for _, text in logger.messages)
    same_as_layers(engine, execute, torch.randn(2, 3, 5, 6))


def test_another_version_of_the_library_is_another_machine(
    build: Build, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = build(attentive, (2, 3, 5, 6))
    monkeypatch.setattr(libraries()[name], "version", lambda: "0.0")
    engine = loaded(plan, logger)
    assert not isinstance(engine._state.executable, LibraryExecutable)
    assert any("Build it again here" in text for _, text in logger.messages)


def test_the_timing_cache_remembers_a_version(
    build: Build, builder: trt.Builder, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = builder.create_builder_config().create_timing_cache(b"")
    first = loaded(build(attentive, (2, 3, 5, 6), cache=cache), logger)
    monkeypatch.setattr(engine_tactic.Trial, "_ratios", lambda *_: pytest.fail("timed again"))
    again = loaded(build(attentive, (2, 3, 5, 6), cache=cache), logger)
    assert first._state.info.tactic == again._state.info.tactic == name
    monkeypatch.setattr(libraries()[name], "version", lambda: "0.0")
    monkeypatch.setattr(engine_tactic.Trial, "_ratios", lambda _, programs, layers: [2.0] * len(programs))
    assert loaded(build(attentive, (2, 3, 5, 6), cache=cache), logger)._state.info.tactic != name


def test_threads_run_at_the_same_time(build: Build, logger: Any, name: str) -> None:
    engine = loaded(build(convolutional, (2, 4, 8, 8)), logger)
    inputs = [torch.randn(2, 4, 8, 8) for _ in range(4)]
    wanted = [engine._state.program.run([x])[0] for x in inputs]
    wrong: list[int] = []

    def work(at: int) -> None:
        context = engine.create_execution_context()
        y = torch.empty(tuple(engine.get_tensor_shape("y")))
        for _ in range(30):
            context.execute_v2([inputs[at].data_ptr(), y.data_ptr()])
            if not torch.allclose(y, wanted[at], rtol=1e-3, atol=1e-3):
                wrong.append(at)

    in_threads(work, range(4))
    assert not wrong


def _positions(network: Any, x: Any) -> Any:
    return network.add_cast(network.add_non_zero(x).get_output(0), trt.float32).get_output(0)


def _random(network: Any, x: Any) -> Any:
    layer = network.add_fill((4, 4), trt.FillOperation.RANDOM_UNIFORM, trt.float32)
    return network.add_elementwise(x, layer.get_output(0), trt.ElementWiseOperation.SUM).get_output(0)


def _looped(network: Any, x: Any) -> Any:
    loop = network.add_loop()
    loop.add_trip_limit(constant(network, np.array(3, np.int32)), trt.TripLimit.COUNT)
    state = loop.add_recurrence(x)
    before = state.get_output(0)
    state.set_input(1, network.add_elementwise(before, before, trt.ElementWiseOperation.SUM).get_output(0))
    return loop.add_loop_output(before, trt.LoopOutput.LAST_VALUE).get_output(0)


def _rounded(network: Any, x: Any) -> Any:
    whole = network.add_cast(x, trt.int32).get_output(0)
    return network.add_cast(whole, trt.float32).get_output(0)


def _linear(network: Any, x: Any) -> Any:
    none = trt.MatrixOperation.NONE
    return network.add_matrix_multiply(x, none, constant(network, numbers(4, 4)), none).get_output(0)


@pytest.mark.parametrize(
    ("layers", "flags", "reason"),
    [
        (_linear, [trt.BuilderFlag.REFIT], "a refit may replace its weights"),
        (_linear, [trt.BuilderFlag.STRIP_PLAN], "a refit may replace its weights"),
        (_linear, [trt.BuilderFlag.WEIGHT_STREAMING], "weights are streamed"),
        (_positions, [], "data decides how large"),
        (_random, [], "draws random numbers"),
        (_rounded, [], "which saturate"),
        (_looped, [], "of the kind LOOP"),
    ],
)
def test_what_is_left_out_says_why(
    build: Build, logger: Any, name: str, layers: Any, flags: Sequence[Any], reason: str
) -> None:
    engine = loaded(build(layers, (4, 4), flags=flags), logger)
    assert not isinstance(engine._state.executable, LibraryExecutable)
    told = [text for _, text in logger.messages if text.startswith(f"tactic {name}: left out")]
    assert len(told) == 1 and reason in told[0]


def test_large_networks_are_held_once(build: Build, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tactic, "MOST_WEIGHT_BYTES", 4 * 4 * 4 - 1)
    assert loaded(build(_linear, (4, 4)), logger)._state.info.tactic != name
    assert any(text.startswith(f"tactic {name}: left out: its weights take 64 bytes") for _, text in logger.messages)


def test_short_runs_and_small_gains_are_left_to_the_layers(
    build: Build, logger: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    always_win(monkeypatch, 0.98)
    assert loaded(build(_linear, (4, 4)), logger)._state.info.tactic != name
    monkeypatch.undo()
    monkeypatch.setenv(SWITCH, name)
    assert loaded(build(_linear, (4, 4)), logger)._state.info.tactic != name


def test_what_cannot_win_is_given_up_before_the_race(logger: Any) -> None:
    trial = engine_tactic.Trial.__new__(engine_tactic.Trial)
    trial._reporter = Reporter(logger)
    first, second = LIBRARY_TACTICS
    made: Any = (None, None)

    def left(layers: float, *glances: float) -> list[Any]:
        trial._glances = {first.name: glances[0], second.name: glances[1]}
        built = {first: made, second: made}
        trial.drop_slow(built, layers)
        return list(built)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_tactic, "FAR", 1.3)
        assert left(10.0, 5.0, 6.0) == [first, second]
        assert left(10.0, 5.0, 7.0) == [first]
        assert left(1.0, 5.0, 1.2) == [second]
        assert left(1.0, 5.0, float("inf")) == []
        assert left(float("inf"), 5.0, 5.0) == [first, second]
    assert sum("not timed further" in text for _, text in logger.messages) == 4


def test_the_switch_names_libraries(build: Build, logger: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "")
    assert not any(tactic._library.version() for tactic in LIBRARY_TACTICS)
    assert loaded(build(_linear, (4, 4)), logger)._state.info.tactic not in NAMES
    monkeypatch.delenv(SWITCH)
    assert [tactic.name for tactic in LIBRARY_TACTICS if tactic._library.version()] == INSTALLED


def test_versions_of_libraries_are_told_apart_in_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert identities() == [f"{name} {library._version(name)}"]
    monkeypatch.setenv(SWITCH, "")
    assert identities() == []


def test_nothing_is_imported_where_it_is_not_wanted(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "")
    for package in NAMES:
        monkeypatch.setitem(sys.modules, package, None)  # an import of it fails
    assert build(_linear, (4, 4)) is not None


A, E, U = trt.ActivationType, trt.ElementWiseOperation, trt.UnaryOperation
ACTIVATIONS = [
    A.RELU,
    A.SIGMOID,
    A.TANH,
    A.LEAKY_RELU,
    A.ELU,
    A.HARD_SIGMOID,
    A.GELU_ERF,
    A.GELU_TANH,
    A.CLIP,
    A.SOFTSIGN,
]
SUMS = [E.SUM, E.PROD, E.MAX, E.MIN, E.SUB]


def _chain(network: Any, x: Any, steps: Sequence[tuple[str, int]]) -> Any:
    """Layers one after the other; numbers choose among kinds and axes."""
    for kind, number in steps:
        shape = tuple(x.shape)
        axis = number % len(shape)
        needed = {"sum": shape, "slice": shape, "roll": shape, "pad": shape, "convolution": shape[1:2]}
        if -1 in needed.get(kind, shape[3:] if kind in ("linear", "norm") else ()):
            continue  # it says what extents it takes
        if kind == "activation":
            layer = network.add_activation(x, ACTIVATIONS[number % len(ACTIVATIONS)])
            layer.alpha, layer.beta = 0.25, 0.5
        elif kind == "sum":
            extents = tuple(e if at != axis else 1 for at, e in enumerate(shape))
            layer = network.add_elementwise(x, constant(network, numbers(*extents)), SUMS[number % len(SUMS)])
        elif kind == "reduce":
            operations = [trt.ReduceOperation.SUM, trt.ReduceOperation.AVG, trt.ReduceOperation.MAX]
            mask = 1 << axis if number % 4 else 0b1100
            layer = network.add_reduce(x, operations[number % 3], mask, True)
        elif kind == "softmax":
            layer = network.add_softmax(x)
            layer.axes = 1 << axis
        elif kind == "linear":
            none, side = trt.MatrixOperation.NONE, trt.MatrixOperation.TRANSPOSE
            matrix = constant(network, numbers(1, 1, 3 + number % 3, shape[-1]))
            layer = network.add_matrix_multiply(x, none, matrix, side)
        elif kind == "convolution":
            layer = network.add_convolution_nd(x, 4, (1, 1), numbers(4, shape[1], 1, 1), numbers(4))
        elif kind == "norm":
            scale, bias = (constant(network, numbers(1, 1, 1, shape[-1])) for _ in range(2))
            layer = network.add_normalization(x, scale, bias, 1 << 3)
        elif kind == "transpose":
            layer = network.add_shuffle(x)
            order = [*range(4)]
            order[axis], order[0] = order[0], order[axis]
            layer.first_transpose = trt.Permutation(order)
        elif kind == "slice":
            size = max(1, shape[axis] - number % 2)
            start, extents = [0] * 4, list(shape)
            start[axis], extents[axis] = shape[axis] - size, size
            layer = network.add_slice(x, start, extents, (1,) * 4)
        elif kind == "roll":
            start = [0] * 4
            start[axis] = number
            layer = network.add_slice(x, start, shape, (1,) * 4)
            layer.mode = trt.SampleMode.WRAP
        elif kind == "pad":
            start, extents = [0] * 4, list(shape)
            start[axis], extents[axis] = -1, shape[axis] + 2
            layer = network.add_slice(x, start, extents, (1,) * 4)
            layer.mode = trt.SampleMode.FILL
        else:
            layer = network.add_concatenation([x, x])
            layer.axis = axis
        x = layer.get_output(0)
    return x


KINDS = (
    "activation",
    "sum",
    "reduce",
    "softmax",
    "linear",
    "convolution",
    "norm",
    "transpose",
    "slice",
    "roll",
    "pad",
    "join",
)
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 30)), min_size=1, max_size=6)


@settings(max_examples=100 if "TRT_STRESS" in os.environ else 5)
@given(steps=STEPS, is_open=st.booleans())
def test_small_networks_compute_the_same_in_every_library(steps: Sequence[tuple[str, int]], is_open: bool) -> None:
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    shape = (-1 if is_open else 3, 4, 5, 6)
    with trt.device("cpu"):
        for name in INSTALLED:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(SWITCH, name)
                patch.setattr(tactic, "_LEAST_MILLISECONDS", 0.0)
                always_win(patch)
                network = builder.create_network()
                x = network.add_input("x", trt.float32, shape)
                y = _chain(network, x, [*steps, ("activation", 0)])
                y.name = "y"
                network.mark_output(y)
                config = builder.create_builder_config()
                if is_open:
                    profile = builder.create_optimization_profile()
                    profile.set_shape("x", (1, 4, 5, 6), (3, 4, 5, 6), (4, 4, 5, 6))
                    config.add_optimization_profile(profile)
                engine = builder.build_engine_with_config(network, config)
                assert isinstance(engine._state.executable, LibraryExecutable), (name, steps)
                for rows in (1, 3, 4) if is_open else (3,):
                    x = torch.randn(rows, 4, 5, 6)
                    (found,), (wanted,) = engine._state.executable.run([x]), engine._state.program.run([x])
                    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
