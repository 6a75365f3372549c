"""The parser itself: ends, errors, functions, external data, support queries, refits, and hostile models."""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from counted_calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx_running import QuietLogger, Refused, build, infer, parse, run
from torch import nn

import trt_portable as trt
from trt_portable.network import symbols
from trt_portable.onnx_parser import graph_walk, initializers, writer
from trt_portable.onnx_parser.diagnostics import Unsupported
from trt_portable.onnx_parser.initializers import ConstantReader
from trt_portable.onnx_parser.operators import control_flow
from trt_portable.onnx_parser.registry import find_converter
from trt_portable.onnx_parser.writer import NetworkWriter

FLOAT = TensorProto.FLOAT
Info = Callable[..., Any]


def value(name: str, *shape: int | str | None, dtype: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def model_of(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    initializers: Sequence[Any] = (),
    opset: int = 21,
    functions: Sequence[Any] = (),
    domains: Sequence[str] = (),
) -> Any:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(initializers))
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def array(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def dense(weights: np.ndarray[Any, Any]) -> Any:
    node = helper.make_node("MatMul", ["x", "w"], ["y"], name="dense")
    return model_of(
        [node],
        [value("x", "rows", weights.shape[0])],
        [value("y", "rows", None)],
        [numpy_helper.from_array(weights, "w")],
    )


def errors_of(model: Any, path: str | None = None) -> list[trt.ParserError]:
    logger = QuietLogger()
    parser = trt.OnnxParser(trt.Builder(logger).create_network(), logger)
    data = model if isinstance(model, bytes) else model.SerializeToString()
    assert not parser.parse(data, path)
    return [parser.get_error(index) for index in range(parser.num_errors)]


# --- ends -------------------------------------------------------------------------------------------------------------


def test_dynamic_dimensions_keep_their_names() -> None:
    network, _ = parse(dense(array(4, 3)).SerializeToString())
    x = network.get_input(0)
    assert tuple(x.shape) == (-1, 4) and x.get_dimension_name(0) == "rows"
    data = array(5, 4)
    engine = build(network, {"x": (5, 4)})
    np.testing.assert_allclose(run(engine, {"x": data})[0], data @ array(4, 3), rtol=1e-5)


def test_outputs_that_are_inputs_or_twice_the_same_are_copies() -> None:
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Identity", ["y"], ["z"])],
        [value("x", 2)],
        [value("x", 2), value("y", 2), value("z", 2)],
    )
    data = array(2)
    network, _ = parse(model.SerializeToString())
    assert [network.get_output(index).name for index in range(3)] == ["x_output", "y", "z"]
    found = infer(model.SerializeToString(), {"x": data})
    for got, want in zip(found, (data, data.clip(0), data.clip(0)), strict=True):
        np.testing.assert_array_equal(got, want)


def test_outputs_of_one_name_are_all_there() -> None:
    """As a module that returns a tensor twice is exported."""
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["y_output"])],
        [value("x", 2)],
        [value(name, 2) for name in ("y", "x", "y", "x", "y_output", "y")],
    )
    data = array(2)
    network, _ = parse(model.SerializeToString())
    names = [network.get_output(index).name for index in range(6)]
    assert names == ["y", "x_output", "y_output_2", "x_output_2", "y_output", "y_output_3"]
    found = infer(model.SerializeToString(), {"x": data})
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": data})
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("many", ["inputs", "outputs", "copies of an output"])
def test_ends_cost_no_more_the_more_there_are(many: str) -> None:
    """Each was compared with all others: a file of two megabytes was parsed for an hour."""
    costs = []
    for count in (1, 100, 1000):  # the first imports what there is to import
        names = [f"x{at}" for at in range(count if many == "inputs" else 1)]
        made = [f"y{at}" for at in range(count if many == "outputs" else 1)]
        nodes = [helper.make_node("Relu", [names[-1]], [name]) for name in made]
        results = made * (count if many == "copies of an output" else 1)
        model = model_of(nodes, [value(name, 1) for name in names], [value(name, 1) for name in results])
        data = model.SerializeToString()
        costs.append(count_calls(lambda data=data: parse(data)))
    assert costs[2] < 12 * costs[1]


def _functions(count: int) -> bytes:
    """Calls of a function of as many opsets and parameters as there are calls."""
    parameters = [f"p{at}" for at in range(count)]
    opsets = [helper.make_opsetid("", 21), *(helper.make_opsetid(f"d{at}", 1) for at in range(count))]
    body = helper.make_node("Sum", ["p0", f"p{count - 1}"], ["s"])
    function = helper.make_function("my", "F", parameters, ["s"], [body], opsets, parameters)
    calls = [helper.make_node("F", ["x"], [f"y{at}"], domain="my") for at in range(count)]
    model = model_of(calls, [value("x", 1)], [value("y0", 1)], functions=[function], domains=["my"])
    return bytes(model.SerializeToString())


def _constants(count: int) -> bytes:
    """Constants that layers take."""
    nodes = [helper.make_node("Add", ["x", f"c{at}"], [f"y{at}"]) for at in range(count)]
    held = [helper.make_tensor(f"c{at}", FLOAT, [1], [1.0]) for at in range(count)]
    return bytes(model_of(nodes, [value("x", 1)], [value("y0", 1)], held).SerializeToString())


def _symbols(count: int) -> bytes:
    """Inputs of extents that vary, each on its own."""
    nodes = [helper.make_node("MatMul", [f"x{at}", "x0"], [f"y{at}"]) for at in range(count)]
    inputs = [value(f"x{at}", f"rows{at}", f"columns{at}") for at in range(count)]
    return bytes(model_of(nodes, inputs, [value("y0", None, None)]).SerializeToString())


def _appended(count: int) -> bytes:
    """A loop that appends other rows to each of the values that it carries, through the same value again."""
    nodes = [helper.make_node("Identity", ["c"], ["go"])]
    rows = []
    for at in range(count):
        nodes.append(helper.make_node("Identity", [f"v{at}"], [f"w{at}"]))
        rows.append(helper.make_tensor(f"r{at}", FLOAT, [1], [at + 1.0]))
        nodes.append(helper.make_node("Concat", [f"w{at}", f"r{at}"], [f"o{at}"], axis=0))
    ends = [value("i", dtype=TensorProto.INT64), value("c", dtype=TensorProto.BOOL)]
    body = helper.make_graph(
        nodes,
        "body",
        [*ends, *(value(f"v{at}", None) for at in range(count))],
        [value("go", dtype=TensorProto.BOOL), *(value(f"o{at}", None) for at in range(count)), value("w_scan", 1)],
        rows,
    )
    body.node.append(helper.make_node("Neg", ["r0"], ["w_scan"]))
    results = [f"y{at}" for at in range(count)]
    node = helper.make_node("Loop", ["trips", "", *["x"] * count], [*results, "each"], body=body)
    trips = [numpy_helper.from_array(np.array(2), "trips")]
    outputs = [value(name, None) for name in results] + [value("each", None, 1)]
    return bytes(model_of([node], [value("x", 1)], outputs, trips).SerializeToString())


def test_values_that_a_loop_appends_to_cost_no_more_the_more_there_are() -> None:
    """For each the whole body was gone through, which calls nothing: its lines are counted."""

    def lines(count: int) -> int:
        content, found = _appended(count), 0

        def trace(frame: FrameType, event: str, _: object) -> Any:
            nonlocal found
            found += event == "line"
            return trace if frame.f_code.co_filename == control_flow.__file__ else None

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            parse(content)
        finally:
            sys.settrace(before)
        return found

    lines(2)
    assert lines(100) < 15 * lines(10)


def test_a_loop_may_append_to_several_values_beside_what_it_collects() -> None:
    *grown, each = infer(_appended(3), {"x": np.zeros(1, np.float32)})
    assert [found.tolist() for found in grown] == [[0, row, row] for row in (1, 2, 3)]
    assert each.tolist() == [[-1], [-1]]


@pytest.mark.parametrize("part", [_functions, _constants, _symbols])
def test_parts_cost_no_more_the_more_there_are(part: Callable[[int], bytes]) -> None:
    """Each looked at all others: a file of 250 kB was parsed for minutes."""
    parse(part(2))
    few, many = part(30), part(300)
    assert count_calls(lambda: parse(many)) < 15 * count_calls(lambda: parse(few))


def test_names_of_inputs_are_taken_as_long_as_an_input_has_them() -> None:
    network = trt.Builder(QuietLogger()).create_network()
    first = network.add_input("a", trt.float32, (1,))
    assert network.add_input("a", trt.float32, (1,)) is None
    first.name = "b"
    assert network.add_input("b", trt.float32, (1,)) is None
    second = network.add_input("a", trt.float32, (1,))
    network.remove_tensor(second)
    assert network.add_input("a", trt.float32, (1,)) is not None


def test_outputs_are_those_that_are_marked() -> None:
    network = trt.Builder(QuietLogger()).create_network()
    x = network.add_input("x", trt.int32, (2,))
    one, two, three = (network.add_identity(x).get_output(0) for _ in range(3))
    network.mark_output(one)
    network.mark_output(one)
    assert network.mark_output_for_shapes(two) and not network.mark_output_for_shapes(one)
    network.unmark_output(two)  # whose values are asked for, and stay so
    network.unmark_output(three)
    assert network.num_outputs == 2 and two.is_network_output and not three.is_network_output
    assert network.get_output(0) is one and network.get_output(1) is two
    assert network.get_output(2) is None and network.get_output(-1) is None
    network.unmark_output(one)
    assert network.unmark_output_for_shapes(two) and not network.unmark_output_for_shapes(two)
    assert network.num_outputs == 0 and not one.is_network_output


def test_a_layer_is_found_by_the_name_of_its_node() -> None:
    _, parser = parse(dense(array(4, 3)).SerializeToString())
    assert parser.get_layer_output_tensor("dense", 0).name == "y"
    assert parser.get_layer_output_tensor("dense", 1) is None
    assert parser.get_layer_output_tensor("sparse", 0) is None


def test_layers_are_named_after_their_nodes() -> None:
    network, _ = parse(dense(array(4, 3)).SerializeToString())
    assert "dense" in [layer.name for layer in network]
    assert any(layer.metadata == "[ONNX Layer: dense]" for layer in network)


# --- functions, graphs inside of nodes --------------------------------------------------------------------------------


def test_local_functions_are_inlined_with_the_attributes_of_the_call() -> None:
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    function = helper.make_function(
        "my",
        "Twice",
        ["a"],
        ["c"],
        [leaky, helper.make_node("Add", ["b", "b"], ["c"])],
        [helper.make_opsetid("", 21)],
        ["slope"],
    )
    call = helper.make_node("Twice", ["x"], ["y"], domain="my", slope=0.5)
    model = model_of([call], [value("x", 3)], [value("y", 3)], functions=[function], domains=["my"])
    data = np.array([-2.0, 0.0, 2.0], np.float32)
    (found,) = infer(model.SerializeToString(), {"x": data})
    np.testing.assert_array_equal(found, [-2, 0, 4])


def test_errors_in_functions_name_the_functions() -> None:
    function = helper.make_function(
        "my",
        "Broken",
        ["a"],
        ["b"],
        [helper.make_node("NoSuch", ["a"], ["b"], name="inner")],
        [helper.make_opsetid("", 21)],
    )
    call = helper.make_node("Broken", ["x"], ["y"], domain="my", name="outer")
    model = model_of([call], [value("x", 3)], [value("y", 3)], functions=[function], domains=["my"])
    (error,) = errors_of(model)
    assert (error.node(), error.node_name(), error.node_operator()) == (0, "inner", "NoSuch")
    assert error.local_function_stack() == ["outer"] and error.local_function_stack_size() == 1


def test_a_function_that_calls_itself_is_refused() -> None:
    again = helper.make_node("Loopy", ["a"], ["b"], domain="my")
    function = helper.make_function(
        "my", "Loopy", ["a"], ["b"], [again], [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    )
    model = model_of(
        [helper.make_node("Loopy", ["x"], ["y"], domain="my")],
        [value("x", 3)],
        [value("y", 3)],
        functions=[function],
        domains=["my"],
    )
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.INVALID_GRAPH and "deep" in error.desc()


def test_functions_that_multiply_are_bounded() -> None:
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    functions = [helper.make_function("my", "f0", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], opsets)]
    for level in range(1, 30):
        names = ["a", *(f"t{index}" for index in range(9)), "b"]
        calls = [helper.make_node(f"f{level - 1}", [names[i]], [names[i + 1]], domain="my") for i in range(10)]
        functions.append(helper.make_function("my", f"f{level}", ["a"], ["b"], calls, opsets))
    model = model_of(
        [helper.make_node("f29", ["x"], ["y"], domain="my")],
        [value("x", 3)],
        [value("y", 3)],
        functions=functions,
        domains=["my"],
    )
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.UNSUPPORTED_GRAPH and "nodes" in error.desc()
    network = trt.Builder(QuietLogger()).create_network()
    assert not trt.OnnxParser(network, QuietLogger()).supports_model_v2(model.SerializeToString())  # nor does ONNX hang


@pytest.mark.parametrize("is_given", [False, True])
def test_functions_that_multiply_bytes_are_bounded(is_given: bool) -> None:
    """Each call would copy the constants of a function, or those that it is given."""
    large = numpy_helper.from_array(np.zeros(1 << 19, np.float32), "c")
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my", 1)]
    constant = helper.make_node("Constant", [], ["k"], **({} if is_given else {"value": large}))
    if is_given:
        constant.attribute.append(
            onnx.AttributeProto(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR)
        )
    nodes = [constant, helper.make_node("ReduceMax", ["k"], ["m"], keepdims=0), helper.make_node("Add", "am", ["b"])]
    inner = helper.make_function("my", "F", ["a"], ["b"], nodes, opsets, ["value"] if is_given else [])
    call = helper.make_node("F", ["a"], ["b"], domain="my")
    if is_given:
        call.attribute.append(onnx.AttributeProto(name="value", ref_attr_name="value", type=onnx.AttributeProto.TENSOR))
    names = ["a", *(f"t{at}" for at in range(999)), "b"]
    calls = []
    for source, made in itertools.pairwise(names):
        calls.append(onnx.NodeProto())
        calls[-1].CopyFrom(call)
        calls[-1].input[0], calls[-1].output[0] = source, made
    outer = helper.make_function("my", "G", ["a"], ["b"], calls, opsets, ["value"] if is_given else [])
    node = helper.make_node("G", ["x"], ["y"], domain="my", **({"value": large} if is_given else {}))
    model = model_of([node], [value("x", 3)], [value("y", 3)], functions=[inner, outer], domains=["my"])
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.UNSUPPORTED_GRAPH and "bytes" in error.desc()


def test_constants_of_functions_are_held_once() -> None:
    table = numpy_helper.from_array(array(64), "c")
    nodes = [helper.make_node("Constant", [], ["k"], value=table), helper.make_node("Add", ["a", "k"], ["b"])]
    function = helper.make_function("my", "F", ["a"], ["b"], nodes, [helper.make_opsetid("", 21)])
    calls = [helper.make_node("F", ["x" if at == 0 else f"t{at}"], [f"t{at + 1}"], domain="my") for at in range(8)]
    model = model_of(calls, [value("x", 64)], [value("t8", 64)], functions=[function], domains=["my"])
    network = parse(model.SerializeToString())[0]
    held = {layer.weights.ctypes.data for layer in network if layer.type is trt.LayerType.CONSTANT}
    assert len(held) == 1


@pytest.mark.parametrize(
    "node",
    [
        helper.make_node("ConstantOfShape", ["n"], ["r"]),
        helper.make_node("Range", ["zero", "n0", "one"], ["r"]),
        helper.make_node("HannWindow", ["n0"], ["r"]),
        helper.make_node("MelWeightMatrix", ["bins", "bins", "n0", "low", "high"], ["r"]),
        helper.make_node("Resize", ["x", "", "", "size"], ["r"], mode="cubic", antialias=1),
    ],
    ids=lambda node: node.op_type,
)
def test_numbers_describe_no_more_than_there_is_room_for(node: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = [
        *(numpy_helper.from_array(np.array(number, np.int64), name) for name, number in (("zero", 0), ("one", 1))),
        numpy_helper.from_array(np.array([600], np.int64), "n"),
        numpy_helper.from_array(np.array(600, np.int64), "n0"),
        numpy_helper.from_array(np.array(40, np.int64), "bins"),
        numpy_helper.from_array(np.array([1, 1, 2, 4], np.int64), "size"),
        *(numpy_helper.from_array(np.float32(number), name) for name, number in (("low", 0), ("high", 8000))),
    ]
    monkeypatch.setattr(writer, "_ROOM", 1000)
    network = trt.Builder(QuietLogger()).create_network()
    parser = trt.OnnxParser(network, QuietLogger())
    nodes = []
    for at in range(3):  # the first may fit
        nodes.append(onnx.NodeProto())
        nodes[-1].CopyFrom(node)
        nodes[-1].output[0] = f"r{at}"
    model = model_of(nodes, [value("x", 1, 1, 4, 4)], [value("r2", None)], constants)
    if parser.parse(model.SerializeToString()):  # a layer makes it
        assert network.get_output(0).name == "r2" and node.op_type in ("ConstantOfShape", "Range")
        held = sum(layer.weights.size for layer in network if layer.type is trt.LayerType.CONSTANT)
        assert held < 1000
    else:
        assert "the model describes" in parser.get_error(0).desc()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="a limit of memory on Linux")
def test_values_of_endless_ranges_are_given_up_for_want_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX's inference would hold all of them; the limit of a processor's time, lifted here, is reached after more."""
    ends = []

    def noting(*args: Any, **options: Any) -> Any:
        done = run_process(*args, **{**options, "check": False})
        ends.append((done.returncode, b"MemoryError" in done.stderr))
        done.check_returncode()
        return done

    run_process = graph_walk.subprocess.run
    monkeypatch.setattr(graph_walk, "_VALUES_SECONDS", 60)
    monkeypatch.setattr(graph_walk.subprocess, "run", noting)
    numbers = {"zero": 0, "most": 2**62, "one": 1}
    constants = [numpy_helper.from_array(np.array(number, np.int64), name) for name, number in numbers.items()]
    nodes = [helper.make_node("Range", list(numbers), ["r"]), helper.make_node("Cast", ["r"], ["y"], to=FLOAT)]
    types = graph_walk._inferred_types(model_of(nodes, [], [value("y", None)], constants))
    assert ends == [(1, True), (0, False)]
    assert types["r"].type.tensor_type.elem_type == TensorProto.INT64


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_states_of_declared_rows_take_no_room_but_are_right(
    kind: str, gates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many rows an input has is a number as well; states that nobody gives are zeros for each."""
    shared = [numpy_helper.from_array(array(1, gates, 1) / 9, name) for name in ("w", "r")]
    nodes = [helper.make_node(kind, ["x", "w", "r"], [f"y{at}"], hidden_size=1) for at in range(3)]
    nodes.append(helper.make_node("Sum", ["y0", "y1", "y2"], ["y"]))
    content = model_of(nodes, [value("x", 2, 600, 1)], [value("y", 2, 1, 600, 1)], shared).SerializeToString()
    data = {"x": array(2, 600, 1) % 7}
    (wanted,) = infer(content, data)
    monkeypatch.setattr(writer, "_ROOM", 1000)
    network = trt.Builder(QuietLogger()).create_network()
    assert trt.OnnxParser(network, QuietLogger()).parse(content)
    assert sum(layer.weights.size for layer in network if layer.type is trt.LayerType.CONSTANT) < 1200
    np.testing.assert_array_equal(infer(content, data)[0], wanted)


def test_a_loop_of_fewer_than_no_trips_makes_none() -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["c"], ["go"]), helper.make_node("Identity", ["x"], ["row"])],
        "body",
        [value("i", dtype=TensorProto.INT64), value("c", dtype=TensorProto.BOOL)],
        [value("go", dtype=TensorProto.BOOL), value("row", 3)],
    )
    node = helper.make_node("Loop", ["trips", ""], ["rows"], body=body)
    constants = [numpy_helper.from_array(np.array(-2), "trips")]
    model = model_of([node], [value("x", 3)], [value("rows", 0, 3)], constants)
    (found,) = infer(model.SerializeToString(), {"x": array(3)})
    assert found.shape == (0, 3)


@pytest.mark.parametrize("flag", [True, False])
def test_branches_see_values_around_them(flag: bool) -> None:
    def branch(kind: str) -> Any:
        return helper.make_graph([helper.make_node(kind, ["x"], [kind])], kind, [], [value(kind, 3)])

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    model = model_of([node], [value("x", 3), value("c", dtype=TensorProto.BOOL)], [value("y", 3)])
    data = np.array([-1.0, 0.0, 2.0], np.float32)
    (found,) = infer(model.SerializeToString(), {"x": data, "c": np.array(flag)})
    np.testing.assert_array_equal(found, data.clip(0) if flag else -data)


def test_a_loop_collects_what_its_trips_made_until_its_condition_fails() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["sum", "x"], ["next"]),
            helper.make_node("Less", ["next", "limit"], ["go"]),
            helper.make_node("Identity", ["next"], ["kept"]),
        ],
        "body",
        [value("i", dtype=TensorProto.INT64), value("c", dtype=TensorProto.BOOL), value("sum")],
        [value("go", dtype=TensorProto.BOOL), value("next"), value("kept")],
    )
    node = helper.make_node("Loop", ["trips", "", "zero"], ["last", "all"], body=body)
    constants = [
        numpy_helper.from_array(np.array(10), "trips"),
        numpy_helper.from_array(np.float32(0), "zero"),
        numpy_helper.from_array(np.float32(5), "limit"),
    ]
    model = model_of([node], [value("x")], [value("last"), value("all", None)], constants)
    last, collected = infer(model.SerializeToString(), {"x": np.array(2, np.float32)})
    assert last == 6
    np.testing.assert_array_equal(collected, [2, 4, 6])


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("first", ["grown", "same", "cast"])
@pytest.mark.parametrize("reader", [None, "kept", "Shape"])
def test_a_loop_may_append_to_what_it_carries(axis: int, first: str, reader: str | None) -> None:
    nodes = [
        helper.make_node("Identity", ["grown"], ["same"]),
        helper.make_node("Cast", ["grown"], ["cast"], to=FLOAT),
        helper.make_node("Add", ["sum", "x"], ["next"]),
        helper.make_node("Concat", [first, "next", "x"], ["more"], axis=axis),
        helper.make_node("Identity", ["c"], ["go"]),
    ]
    nodes = [node for node in nodes if node.output[0] not in ("same", "cast") or node.output[0] == first]
    kept = "more" if reader == "kept" else "next"
    if reader == "Shape":  # then the value has to be there in each trip
        nodes.append(helper.make_node("Shape", ["more"], [kept := "extents"]))
    body = helper.make_graph(
        nodes,
        "body",
        [value("i", dtype=TensorProto.INT64), value("c", dtype=TensorProto.BOOL), value("grown"), value("sum")],
        [value("go", dtype=TensorProto.BOOL), value("more"), value("next"), value(kept)],
    )
    for graph in (body.input[2], body.input[3], body.output[1], body.output[2], body.output[3]):
        graph.type.tensor_type.ClearField("shape")
    node = helper.make_node("Loop", ["trips", "", "x", "zero"], ["all", "last", "each"], body=body)
    constants = [
        numpy_helper.from_array(np.array(3), "trips"),
        numpy_helper.from_array(np.zeros((2, 3), np.float32), "zero"),
    ]
    ends = [value("all", None, None), value("last", 2, 3), value("each", None, None, None)]
    model = model_of([node], [value("x", 2, 3)], ends[:3] if reader is None else ends[:2], constants)
    x = array(2, 3)
    if reader is not None:
        with pytest.raises(Refused, match="differs from the first"):
            infer(model.SerializeToString(), {"x": x})
        return
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    for found, expected in zip(infer(model.SerializeToString(), {"x": x}), wanted, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_sizes_of_a_resize_follow_from_those_of_another_input(mode: str) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["own"], end=2),
        helper.make_node("Shape", ["like"], ["other"], start=1),
        helper.make_node("Concat", ["own", "other"], ["sizes"], axis=0),
        helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode=mode),
    ]
    inputs = [value("x", "batch", 3, "height", "width"), value("like", 1, "rows", "columns")]
    model = model_of(nodes, inputs, [value("y", None, 3, None, None)])
    given = {"x": array(2, 3, 4, 5), "like": array(1, 7, 6)}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)
    (found,) = infer(model.SerializeToString(), given)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners", "axes": [2, 3]},
        {"mode": "cubic", "antialias": 1},
        {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric", "axes": [3]},
    ],
)
@pytest.mark.parametrize("by_sizes", [False, True])
def test_extents_that_a_resize_leaves_as_they_are_may_vary(attributes: dict[str, Any], by_sizes: bool) -> None:
    """Exported models resize images in batches of any size; only extents that change have to be known, if any."""
    axes = attributes.get("axes", [0, 1, 2, 3])
    scales = [1, 1, 2, 3]
    chosen = np.array([scales[axis] for axis in axes], np.float32)
    nodes = [
        helper.make_node("Resize", ["x", "", "" if by_sizes else "scales", *["sizes"][:by_sizes]], ["y"], **attributes)
    ]
    if by_sizes and len(axes) == 4:
        nodes[:0] = [
            helper.make_node("Shape", ["x"], ["outer"], end=2),
            helper.make_node("Concat", ["outer", "inner"], ["sizes"], axis=0),
        ]
    constants = [numpy_helper.from_array(chosen, "scales")]
    constants += [numpy_helper.from_array(np.array([8, 15]), "inner")]
    if by_sizes and len(axes) < 4:
        sizes = np.array([[1, 3, 8, 15][axis] for axis in axes])
        constants += [numpy_helper.from_array(sizes, "sizes")]
    model = model_of(nodes, [value("x", "batch", 3, 4, 5)], [value("y", "batch", 3, None, None)], constants)
    x = array(2, 3, 4, 5)
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    (found,) = infer(model.SerializeToString(), {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


# --- external data ----------------------------------------------------------------------------------------------------


def external(folder: Path, location: str, data: bytes = b"", **entries: str) -> Any:
    model = dense(array(4, 3))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, entry in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=entry)
    if data:
        (folder / location).write_bytes(data)
    return model


def test_constants_that_no_memory_holds_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of holes may be as large as a model says, and reading it has no more to say than `MemoryError`."""

    def exhausted(*_: Any) -> Any:
        raise MemoryError

    model = external(tmp_path, "weights.bin", array(4, 3).tobytes())
    with monkeypatch.context() as patch:
        patch.setattr(initializers, "_from_bytes", exhausted)
        (error,) = errors_of(model, str(tmp_path / "model.onnx"))
        assert error.code() is trt.ErrorCode.MEM_ALLOC_FAILED
        assert "no memory for the constant 'w' of extents [4, 3] and type FLOAT: parse the model where" in error.desc()
    monkeypatch.setattr(graph_walk, "_require_types", exhausted)
    (error,) = errors_of(dense(array(4, 3)))
    assert error.node() == 0 and error.desc() == "what the model asks for here takes more memory than there is"


def test_external_data_are_read_from_the_folder_of_the_model(tmp_path: Path) -> None:
    data = b"head" + array(4, 3).tobytes()
    model = external(tmp_path, "weights.bin", data, offset="4", length=str(len(data) - 4))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    network, _ = parse(path)
    x = array(2, 4)
    (found,) = run(build(network, {"x": (2, 4)}), {"x": x})
    np.testing.assert_allclose(found, x @ array(4, 3), rtol=1e-5)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "sub/../../secret.bin", "missing.bin", "", ".", "link.bin", "pipe"]
)
def test_external_data_outside_of_the_folder_are_refused(tmp_path: Path, location: str) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "secret.bin").write_bytes(array(4, 3).tobytes())
    os.symlink(tmp_path / "secret.bin", folder / "link.bin")
    os.mkfifo(folder / "pipe")
    (error,) = errors_of(external(folder, location), str(folder / "model.onnx"))
    assert error.code() is trt.ErrorCode.INVALID_VALUE and "'w'" in error.desc()


def test_the_same_part_of_a_file_is_held_once(tmp_path: Path) -> None:
    model = external(tmp_path, "weights.bin", array(3, 4).tobytes())
    first = model.graph.initializer[0]
    for at in range(8):
        again = model.graph.initializer.add()
        again.CopyFrom(first)
        again.name = f"again{at}"
    reader = ConstantReader(tmp_path)
    held = {
        reader.read(proto).weights().numpy().ctypes.data for proto in model.graph.initializer if proto.external_data
    }
    assert len(held) == 1


def test_parts_of_a_file_that_overlap_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(1 << 16))
    reader, read = ConstantReader(tmp_path), 0
    with pytest.raises(Unsupported, match="4 times"):
        for at in range(64):
            proto = TensorProto(name=f"w{at}", data_type=FLOAT, dims=[1 << 13], data_location=TensorProto.EXTERNAL)
            for key, text in (("location", "weights.bin"), ("offset", str(4 * at)), ("length", str(1 << 15))):
                entry = proto.external_data.add()
                entry.key, entry.value = key, text
            read += reader.read(proto).array.nbytes
    assert read <= 4 << 16


@pytest.mark.skipif(os.name != "posix", reason="links that others swap")
def test_external_data_that_are_swapped_for_a_link_stay_inside(tmp_path: Path) -> None:
    """Somebody else puts links where files were looked for, at any moment."""
    folder, outside = tmp_path / "model", tmp_path / "outside"
    for place, byte in ((folder / "inner", b"\0"), (outside, b"\7")):
        place.mkdir(parents=True)
        (place / "weights.bin").write_bytes(byte * 48)
    proto = TensorProto(name="w", data_type=FLOAT, dims=[12], data_location=TensorProto.EXTERNAL)
    entry = proto.external_data.add()
    entry.key, entry.value = "location", "inner/weights.bin"
    ended = threading.Event()

    def swap() -> None:
        for at in itertools.count():
            if ended.is_set():
                return
            folder.joinpath("link").symlink_to(outside if at % 2 else outside / "weights.bin")
            place = folder / "inner" if at % 2 else folder / "inner" / "weights.bin"
            place.rename(folder / "kept")
            folder.joinpath("link").rename(place)
            place.unlink()
            (folder / "kept").rename(place)

    other = threading.Thread(target=swap)
    other.start()
    try:
        found = set()
        for _ in range(400):
            try:
                found |= set(ConstantReader(folder).read(proto).array.tobytes())
            except Unsupported:
                continue
    finally:
        ended.set()
        other.join()
    assert found <= {0}


def test_external_data_of_an_absolute_path_or_without_a_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(array(4, 3).tobytes())
    absolute = external(tmp_path, str(tmp_path / "weights.bin"))
    assert errors_of(absolute, str(tmp_path / "m.onnx"))[0].code() is trt.ErrorCode.INVALID_VALUE
    assert "no folder" in errors_of(external(tmp_path, "weights.bin"))[0].desc()


@pytest.mark.parametrize(
    "entries",
    [
        *({"offset": "-1"}, {"offset": "9"}, {"length": "999"}, {"offset": "x"}, {"length": "4"}, {"length": "-1"}),
        *({"offset": "\u0660"}, {"length": "\u0664\u0668"}, {"offset": "+0"}, {"offset": " 0"}, {"length": "4_8"}),
    ],
)
def test_external_data_out_of_bounds_are_refused(tmp_path: Path, entries: dict[str, str]) -> None:
    model = external(tmp_path, "weights.bin", array(4, 3).tobytes(), **entries)
    assert errors_of(model, str(tmp_path / "m.onnx"))[0].code() is trt.ErrorCode.INVALID_VALUE


@pytest.mark.skipif(os.name != "posix", reason="files of holes")
def test_external_data_that_are_holes_are_refused(tmp_path: Path) -> None:
    """A file that takes no room may say of itself that it has as many bytes as weights need."""
    model = external(tmp_path, "weights.bin", b"x", length=str(1 << 28))
    os.truncate(tmp_path / "weights.bin", 1 << 28)
    model.graph.initializer[0].dims[:] = [1 << 24, 4]
    (error,) = errors_of(model, str(tmp_path / "model.onnx"))
    assert error.code() is trt.ErrorCode.INVALID_VALUE
    assert "of 268435456 bytes of the file 4096 are there, and the rest are holes" in error.desc()


def test_the_application_may_give_the_bytes_of_initializers() -> None:
    model, logger = external(Path(), "elsewhere.bin"), QuietLogger()
    network = trt.Builder(logger).create_network()
    parser, weights = trt.OnnxParser(network, logger), array(4, 3)
    assert parser.load_model_proto(model.SerializeToString())
    assert not parser.load_initializer("no such", weights.ctypes.data, weights.nbytes)
    assert parser.load_initializer("w", weights.ctypes.data, weights.nbytes)
    assert parser.parse_model_proto() and not parser.parse_model_proto()
    x = array(2, 4)
    np.testing.assert_allclose(run(build(network, {"x": (2, 4)}), {"x": x})[0], x @ weights, rtol=1e-5)


# --- errors and support -----------------------------------------------------------------------------------------------


def test_an_error_names_the_node_and_the_line_that_refused() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Softmax", ["a"], ["y"], name="second", axis=7),
    ]
    (error,) = errors_of(model_of(nodes, [value("x", 2, 3)], [value("y", 2, 3)]))
    assert error.code() is trt.ErrorCode.INVALID_NODE
    assert (error.node(), error.node_name(), error.node_operator()) == (1, "second", "Softmax")
    assert error.file().endswith(".py") and error.line() > 0 and error.func() and "axis 7" in error.desc()
    assert "node 1 (second, Softmax)" in str(error)


@pytest.mark.parametrize(
    ("node", "code"),
    [
        (helper.make_node("Relu", ["x"], ["y"], slope=1.0), trt.ErrorCode.UNSUPPORTED_NODE_ATTR),
        (helper.make_node("Relu", [], ["y"]), trt.ErrorCode.INVALID_NODE),
        (helper.make_node("Relu", ["nothing"], ["y"]), trt.ErrorCode.INVALID_GRAPH),
        (helper.make_node("Add", ["x", ""], ["y"]), trt.ErrorCode.INVALID_NODE),
        (helper.make_node("LeakyRelu", ["x"], ["y"], alpha="a"), trt.ErrorCode.INVALID_NODE),
        (helper.make_node("Transpose", ["x"], ["y"], perm=[0, 0]), trt.ErrorCode.INVALID_NODE),
        (helper.make_node("Conv", ["x", "x"], ["y"]), trt.ErrorCode.UNSUPPORTED_NODE_SHAPE),
        (helper.make_node("Cast", ["x"], ["y"], to=99), trt.ErrorCode.UNSUPPORTED_NODE_DATATYPE),
        (helper.make_node("Relu", ["x"], ["y"], domain="none"), trt.ErrorCode.INVALID_NODE),
        (helper.make_node("LeakyRelu", ["x"], ["y"], alpha="0.1"), trt.ErrorCode.INVALID_NODE),
    ],
)
def test_broken_nodes_have_codes(node: Any, code: trt.ErrorCode) -> None:
    (error,) = errors_of(model_of([node], [value("x", 2, 3)], [value("y", None, None)]))
    assert error.code() is code, error


def test_attributes_of_another_type_are_refused_for_every_operator() -> None:
    """They were internal errors, wherever a converter computed with them."""
    asked = 0
    for newest in onnx.defs.get_all_schemas():
        if newest.domain or find_converter("", newest.name, 21) is None or not onnx.defs.has(newest.name, 21):
            continue
        schema = onnx.defs.get_schema(newest.name, 21)
        for name, attribute in schema.attributes.items():
            kind = attribute.type.name
            wrong = {"FLOAT": 1}.get(kind, 0.5)
            node = helper.make_node(schema.name, ["x"] * max(1, schema.min_input), ["y"], **{name: wrong})
            (error,) = errors_of(model_of([node], [value("x", 2, 2)], [value("y", None, None)]))
            said = f"attribute {name!r} of {schema.name} is of type {'INT' if wrong == 1 else 'FLOAT'}, not {kind}"
            assert error.code() is trt.ErrorCode.INVALID_NODE and said in error.desc(), error
            asked += 1
    assert asked > 100


@pytest.mark.parametrize(
    ("operator", "name", "kind"),
    [
        *(("QLinearLeakyRelu", "alpha", "FLOAT"), ("QLinearGlobalAveragePool", "channels_last", "INT")),
        *(("QLinearConcat", "axis", "INT"), ("QGemm", "alpha", "FLOAT"), ("QGemm", "transB", "INT")),
        *(("MatMulNBits", name, "INT") for name in ("K", "N", "block_size", "bits", "accuracy_level")),
    ],
)
def test_attributes_of_another_type_are_refused_in_other_domains(operator: str, name: str, kind: str) -> None:
    """ONNX knows nothing of them."""
    for wrong, found in ((1 if kind == "FLOAT" else 0.5, "INT" if kind == "FLOAT" else "FLOAT"), ([1], "INTS")):
        node = helper.make_node(operator, ["x"] * 5, ["y"], domain="com.microsoft", **{name: wrong})
        (error,) = errors_of(model_of([node], [value("x", 2, 2)], [value("y", None, None)]))
        said = f"attribute {name!r} of {operator} is of type {found}, not {kind}"
        assert error.code() is trt.ErrorCode.INVALID_NODE and said in error.desc(), error


def test_a_long_name_is_refused_before_all_that_is_inside_of_its_call_is_named_by_it() -> None:
    node = helper.make_node("Relu", ["x"], ["y"], name="n" * 4096)
    (error,) = errors_of(model_of([node], [value("x", 2)], [value("y", None)]))
    assert error.code() is trt.ErrorCode.INVALID_NODE
    assert "the name of a node has 4,096 characters" in error.desc()


STEP: Final = helper.make_graph(
    [helper.make_node("Add", ["s", "e"], ["t"]), helper.make_node("Identity", ["t"], ["u"])],
    "step",
    [value("s", 3), value("e", 3)],
    [value("t", 3), value("u", 3)],
)
SCAN: Final = {"body": STEP, "num_scan_inputs": 1}
HELD: Final = {
    "count": np.array(3),
    "one": np.array(1),
    "many": np.ones(9, np.int64),
    "sizes": np.array([4]),
    "negative": np.array([-4, 4]),
    "infinite": np.array([1, np.inf], np.float32),
    "flat": np.ones((2, 3), np.float32),
    "rows": np.ones((1, 4, 3), np.float32),
    "square": np.ones((1, 4, 4), np.float32),
}


@pytest.mark.parametrize(
    ("says", "kind", "inputs", "told"),
    [
        *(
            (f"{name} has {number}: 0 is forward", "Scan", "first x", {**SCAN, name: [number]})
            for name in ("scan_input_directions", "scan_output_directions")
            for number in (-1, 2)
        ),
        *(
            (f"{name} has 2 numbers for 1", "Scan", "first x", {**SCAN, name: [0, 0]})
            for name in ("scan_input_axes", "scan_input_directions", "scan_output_axes", "scan_output_directions")
        ),
        ("does not give its condition", "Loop", "count  first", {"body": helper.make_graph(
            [], "empty", [value("i", dtype=7), value("c", dtype=9), value("s", 3)], [])}),
        ("input 1 of Max is missing", "Max", "x  x", {}),
        ("input 0 of Concat is missing", "Concat", " x", {"axis": 0}),
        ("Split into 2147483647 parts, with 1 outputs", "Split", "x", {"num_outputs": (1 << 31) - 1}),
        ("blocks of 0", "DepthToSpace", "image", {"blocksize": 0}),
        ("blocks of -2", "SpaceToDepth", "image", {"blocksize": -2}),
        ("Reshape to 9 axes; 8 is the most", "Reshape", "x many", {}),
        ("indices of rank 0", "GatherND", "x one", {}),
        ("indices of rank 0", "ScatterND", "x one x", {}),
        ("with -1 shared axes", "GatherND", "x sizes", {"batch_dims": -1}),
        ("sizes [4] for 2 axes", "Resize", "x   sizes", {"mode": "linear"}),
        ("sizes [-4, 4] for 2 axes", "Resize", "x   negative", {"mode": "linear"}),
        ("must be positive and finite", "Resize", "x  infinite", {"mode": "linear"}),
        ("a norm with p = 0", "LpPool", "image", {"kernel_shape": [2, 2], "p": 0}),
        ("a norm with p = 0", "GlobalLpPool", "image", {"p": 0}),
        ("W has rank 2, not 3", "RNN", "cube flat square", {"hidden_size": 4}),
        ("W of shape (1, 4, 4)", "GRU", "cube square gates", {"hidden_size": 4}),
        ("B has rank 3, not 2", "RNN", "cube rows square rows", {"hidden_size": 4}),
        ("K has rank 3, not 4", "Attention", "image cube image", {}),
        ("Range of other than single numbers", "Range", "many one one", {}),
        ("rois has rank 3, not 2", "RoiAlign", "image cube one", {"sampling_ratio": 1}),
        ("RoiAlign to 1 x -5", "RoiAlign", "image x sizes", {"sampling_ratio": 1, "output_width": -5}),
        ("frame_step must be one constant", "STFT", "cube many", {}),
        *(
            ("has labels that are no letters", "Einsum", "first", {"equation": equation})
            for equation in ("\u0663->\u0663", "a->b", "a->a->a", "\xe9->\xe9", ".->.")
        ),
    ],
)  # fmt: skip
def test_nodes_that_do_not_fit_are_told_by_what_does_not(
    says: str, kind: str, inputs: str, told: dict[str, Any]
) -> None:
    """They ended as errors of Python or NumPy, as lists of as many parts as the model says, or not at all."""
    node = helper.make_node(kind, inputs.split(" "), ["y"], **told)
    held = {**HELD, "gates": np.ones((1, 12, 4), np.float32)}
    given = [value("x", 2, 3), value("first", 3), value("image", 1, 4, 4, 4), value("cube", 2, 1, 3)]
    model = model_of([node], given, [value("y")], [numpy_helper.from_array(x, name) for name, x in held.items()], 23)
    (error,) = errors_of(model)
    assert says in error.desc(), error
    assert error.node() == 0 and error.code() is not trt.ErrorCode.INTERNAL_ERROR


def test_room_for_what_is_described_never_grows() -> None:
    """Less than nothing of a node was room for the nodes after it."""
    writer = NetworkWriter(trt.Builder(trt.Logger()).create_network(), lambda _: None)
    assert not writer.has_room(-1) and not writer.has_room(float("nan"))
    assert writer.has_room(1 << 26) and not writer.has_room(1)


def test_an_operator_of_another_domain_is_refused_with_it() -> None:
    model = model_of([helper.make_node("Scaler", ["x"], ["y"], domain="ai.onnx.ml")], [value("x", 2)], [value("y", 2)])
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.UNSUPPORTED_NODE
    assert "no operator 'Scaler' of the domain 'ai.onnx.ml', opset 3" in error.desc()


@pytest.mark.parametrize("number", [1 << 62, -1])
@pytest.mark.parametrize("is_inside", [False, True])
def test_opsets_that_are_none_are_refused(number: int, is_inside: bool) -> None:
    """A large one ended as an error of ONNX's own."""
    model = model_of([helper.make_node("Relu", ["x"], ["y"])], [value("x", 2)], [value("y", 2)])
    if is_inside:
        opset = helper.make_opsetid("", number)
        model.functions.append(helper.make_function("own", "F", ["a"], ["b"], [], [opset]))
    else:
        model.opset_import[0].version = number
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.INVALID_GRAPH
    assert f"uses opset {number} of the domain 'ai.onnx'" in error.desc()


def test_an_operator_that_is_not_there_is_named_whatever_types_its_operands_have() -> None:
    node = helper.make_node("MatMulBnb4", ["x", "codes"], ["y"], domain="com.microsoft", quant_type=1)
    codes = numpy_helper.from_array(np.zeros((2, 1, 8), np.uint8), "codes")
    model = model_of([node], [value("x", 2, 16)], [value("y", 2, 2)], [codes])
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.UNSUPPORTED_NODE
    assert "no operator 'MatMulBnb4' of the domain 'com.microsoft'" in error.desc()


def test_types_that_tensorrt_lacks_are_refused_at_the_door() -> None:
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"])],
        [value("x", 2, dtype=TensorProto.DOUBLE)],
        [value("y", 2, dtype=TensorProto.DOUBLE)],
    )
    (error,) = errors_of(model)
    assert error.code() is trt.ErrorCode.UNSUPPORTED_NODE_DATATYPE and "DOUBLE" in error.desc()


def test_a_model_is_asked_about_node_by_node() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Det", ["a"], ["b"], name="det"),
        helper.make_node("Neg", ["b"], ["c"]),
        helper.make_node("NoSuch", ["c"], ["d"]),
        helper.make_node("Exp", ["d"], ["y"]),
    ]
    model = model_of(nodes, [value("x", 3, 3)], [value("y")])
    model.graph.value_info.append(value("d"))
    logger = QuietLogger()
    network = trt.Builder(logger).create_network()
    parser = trt.OnnxParser(network, logger)
    assert not parser.supports_model_v2(model.SerializeToString())
    runs = [
        (list(parser.get_subgraph_nodes(index)), parser.is_subgraph_supported(index))
        for index in range(parser.num_subgraphs)
    ]
    assert runs[:4] == [([0], True), ([1], False), ([2], True), ([3], False)]
    assert {parser.get_error(index).node() for index in range(parser.num_errors)} >= {1, 3}
    assert network.num_layers == 0
    parser.clear_errors()
    assert parser.num_errors == 0 and parser.get_error(0) is None
    assert parser.supports_model_v2(dense(array(4, 3)).SerializeToString()) and parser.num_subgraphs == 1
    assert parser.supports_operator("Conv") and not parser.supports_operator("NoSuch")


def test_a_range_without_end_leaves_the_nodes_after_it_known() -> None:
    """ONNX's own inference, which follows values that are sizes, would go through every element of it."""
    scalars = [
        numpy_helper.from_array(np.array(number, np.int64), name)
        for name, number in zip("abc", (0, 1 << 41, 1), strict=True)
    ]
    cast, shape = helper.make_node("Cast", ["r"], ["z"], to=FLOAT), helper.make_node("Shape", ["z"], ["y"])
    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), cast, shape]
    model = model_of(nodes, [], [value("y", 1, dtype=TensorProto.INT64)], scalars)
    parser = trt.OnnxParser(trt.Builder(QuietLogger()).create_network(), QuietLogger())
    assert not parser.supports_model_v2(model.SerializeToString())
    errors = [parser.get_error(place) for place in range(parser.num_errors)]
    assert [error.node_operator() for error in errors] == ["Range", "Cast"]  # what follows from types is known: Shape
    assert "a range from 0 to" in errors[0].desc()
    assert "the output has 2199023255552 elements" in errors[1].desc()


@pytest.mark.parametrize(
    ("operator", "extents"), [("Tile", [1 << 50]), ("Pad", [0, 1 << 50]), ("Expand", [1 << 50, 2])]
)
def test_what_is_larger_than_any_device_is_refused(operator: str, extents: list[int]) -> None:
    """Libraries that compile the network would end the process."""
    sizes = numpy_helper.from_array(np.array(extents, np.int64), "s")
    model = model_of([helper.make_node(operator, ["x", "s"], ["y"])], [value("x", 2)], [value("y", None)], [sizes])
    parser = trt.OnnxParser(trt.Builder(QuietLogger()).create_network(), QuietLogger())
    assert not parser.parse(model.SerializeToString())
    assert parser.get_error(0).node_operator() == operator
    assert "are the most" in parser.get_error(0).desc()


@pytest.mark.parametrize("extent", [1 << 62, 200])
def test_a_node_that_takes_a_layer_for_each_element_is_refused(extent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_MOST_LAYERS", 100)
    starts, ends = (value(name, extent, dtype=TensorProto.INT64) for name in ("s", "e"))
    model = model_of(
        [helper.make_node("Slice", ["x", "s", "e"], ["y"])], [value("x", 2, 3), starts, ends], [value("y")]
    )
    (error,) = errors_of(model)
    assert "more than 100 layers" in error.desc() and error.code() is trt.ErrorCode.UNSUPPORTED_NODE_SHAPE


def test_a_transform_of_numbers_of_many_parts_is_refused() -> None:
    numbers = [numpy_helper.from_array(np.array(number, np.int64), name) for name, number in (("s", 1), ("l", 2))]
    node = helper.make_node("STFT", ["x", "s", "", "l"], ["y"])
    (error,) = errors_of(model_of([node], [value("x", 1, 8, 1 << 31)], [value("y")], numbers))
    assert "numbers of 2147483648 parts" in error.desc()


def test_an_attribute_that_is_no_finite_number_is_not_built() -> None:
    node = helper.make_node("RandomUniformLike", ["x"], ["y"], high=float("nan"))
    network, _ = parse(model_of([node], [value("x", 2, 3)], [value("y", 2, 3)]).SerializeToString())
    with pytest.raises(Refused, match="which no plan can hold"):
        build(network, {})


def test_models_that_end_the_inference_of_shapes_end_nothing_else() -> None:
    """ONNX's own inference reads as many extents of a Split's results as `num_outputs` says, and writes all results."""
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b", "c", "d"], num_outputs=2, axis=0),
        helper.make_node("Relu", ["a"], ["y"]),
    ]
    model = model_of(nodes, [value("x", 4, 2)], [value("y", 2, 2)])
    parser = trt.OnnxParser(trt.Builder(QuietLogger()).create_network(), QuietLogger())
    assert not parser.supports_model_v2(model.SerializeToString())
    assert parser.num_errors


def test_flags_are_kept() -> None:
    logger = QuietLogger()
    builder = trt.Builder(logger)
    parser = trt.OnnxParser(builder.create_network(), logger)
    assert parser.get_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    parser.clear_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    parser.set_flag(trt.OnnxParserFlag.REPORT_CAPABILITY_DLA)
    assert parser.flags == 1 << int(trt.OnnxParserFlag.REPORT_CAPABILITY_DLA)
    assert parser.set_builder_config(builder.create_builder_config()) and parser.get_used_vc_plugin_libraries() == []


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    logger = QuietLogger()
    with pytest.raises(ImportError, match=r"trt-portable\[onnx\]"):
        trt.OnnxParser(trt.Builder(logger).create_network(), logger)


# --- refits -----------------------------------------------------------------------------------------------------------


def test_weights_come_from_another_version_of_the_model() -> None:
    network, _ = parse(dense(array(4, 3)).SerializeToString())
    engine = build(network, {"x": (2, 4)}, flags=[trt.BuilderFlag.REFIT])
    logger = QuietLogger()
    refitter = trt.Refitter(engine, logger)
    parser = trt.OnnxParserRefitter(refitter, logger)
    assert parser.refit_from_bytes(dense(array(4, 3) * 2).SerializeToString()), logger.errors
    assert refitter.refit_cuda_engine()
    x = array(2, 4)
    np.testing.assert_allclose(run(engine, {"x": x})[0], x @ array(4, 3) * 2, rtol=1e-5)
    assert not parser.refit_from_bytes(dense(array(5, 3)).SerializeToString())
    assert parser.get_error(0).code() is trt.ErrorCode.REFIT_FAILED and parser.num_errors == 1
    parser.clear_errors()
    renamed = dense(array(4, 3))
    renamed.graph.initializer[0].name = "v"
    assert not parser.refit_from_bytes(renamed.SerializeToString())


# --- hostile models ---------------------------------------------------------------------------------------------------


def test_names_that_are_no_text_are_one_error() -> None:
    """Wherever the first of them was asked for, some operation on texts failed."""
    body = [helper.make_node("Relu", ["argument"], ["returned"], name="innermost")]
    function = helper.make_function(
        "domains", "Called", ["argument"], ["returned"], body, [helper.make_opsetid("", 21)]
    )
    nodes = [
        helper.make_node("Add", ["given", "constant"], ["between"], name="outermost", doc_string="said of the node"),
        helper.make_node("Called", ["between"], ["last"], domain="domains"),
        helper.make_node("LeakyRelu", ["last"], ["made"], alpha=0.5),
    ]
    model = model_of(
        nodes,
        [value("given", "dimension", 2)],
        [value("made", "dimension", 2)],
        [numpy_helper.from_array(array(2), "constant")],
        functions=[function],
        domains=["domains"],
    )
    model.graph.doc_string, model.producer_name = "said of the graph", "writers"
    data = model.SerializeToString()
    assert parse(data)
    names = ["given", "constant", "between", "outermost", "made", "dimension", "innermost", "argument", "returned"]
    for name in (*names, "domains", "Called", "LeakyRelu", "alpha"):
        (error,) = errors_of(data.replace(name.encode(), b"\xff\xfe" + name[2:].encode()))
        assert error.code() is trt.ErrorCode.MODEL_DESERIALIZE_FAILED
        assert repr(b"\xff\xfe" + name[2:].encode()) in error.desc() and "no text in UTF-8" in error.desc()
    for text in (b"said of the node", b"said of the graph", b"writers"):  # which nobody reads
        assert parse(data.replace(text, b"\xff\xfe" + text[2:]))


@settings(max_examples=60)
@given(st.binary(max_size=200))
def test_bytes_that_are_no_model_are_errors(data: bytes) -> None:
    logger = QuietLogger()
    parser = trt.OnnxParser(trt.Builder(logger).create_network(), logger)
    assert parser.parse(data) is False and parser.num_errors


_SEEDS = [
    dense(array(4, 3)),
    model_of(
        [
            helper.make_node("Conv", ["x", "k"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2]),
            helper.make_node("Reshape", ["b", "s"], ["c"]),
            helper.make_node("Slice", ["c", "z", "o"], ["y"]),
        ],
        [value("x", 1, 2, 6, 6)],
        [value("y", None, None)],
        [
            numpy_helper.from_array(array(3, 2, 3, 3), "k"),
            numpy_helper.from_array(np.array([3, -1]), "s"),
            numpy_helper.from_array(np.array([0]), "z"),
            numpy_helper.from_array(np.array([2]), "o"),
        ],
    ),
]


@settings(max_examples=150)
@given(st.sampled_from(range(len(_SEEDS))), st.data())
def test_damaged_models_never_crash(seed: int, data: st.DataObject) -> None:
    damaged = bytearray(_SEEDS[seed].SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(damaged) - 1))
        damaged[place] = data.draw(st.integers(0, 255))
    logger = QuietLogger()
    parser = trt.OnnxParser(trt.Builder(logger).create_network(), logger)
    parsed = parser.parse(bytes(damaged))
    assert parsed is not bool(parser.num_errors)


def test_a_model_takes_so_many_operands_and_terms_of_shapes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes time beside nodes: their inputs, and what shapes are computed of."""
    numbers = [numpy_helper.from_array(np.array([number]), f"n{number}") for number in range(2, 12)]
    nodes = [helper.make_node("Shape", ["x"], ["s1"], start=0, end=1)]
    nodes += [helper.make_node("Mul" if n % 2 else "Add", [f"s{n - 1}", f"n{n}"], [f"s{n}"]) for n in range(2, 12)]
    nodes.append(helper.make_node("ConstantOfShape", ["s11"], ["y"]))
    model = model_of(nodes, [value("x", "n")], [value("y", None)], numbers)
    parse(model.SerializeToString())
    with monkeypatch.context() as patch:
        patch.setattr(symbols, "MOST_COMPUTED", 6)
        (error,) = errors_of(model)
        assert 2 < error.node() < 10 and "take more than 6 terms" in error.desc()
    monkeypatch.setattr(graph_walk, "MAX_OPERANDS", 7)
    (error,) = errors_of(model)
    assert error.node() == 4 and "more than 7 inputs" in error.desc()


def test_constants_of_enormous_shapes_are_refused() -> None:
    node = helper.make_node("ConstantOfShape", ["s"], ["y"])
    model = model_of([node], [], [value("y", None, None)], [numpy_helper.from_array(np.array([1 << 40, 1 << 20]), "s")])
    assert errors_of(model)[0].code() is trt.ErrorCode.UNSUPPORTED_NODE_SHAPE
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[1 << 40, 3], raw_data=b"1234")
    broken = dense(array(4, 3))
    broken.graph.initializer[0].CopyFrom(tensor)
    assert errors_of(broken)[0].code() is trt.ErrorCode.INVALID_VALUE


@pytest.mark.parametrize("inputs", [["n"], ["x", "", "", "n"]], ids=["ConstantOfShape", "Resize"])
def test_tensors_of_more_axes_than_there_are_take_no_room(inputs: list[str]) -> None:
    """A Range made a list of as many elements as it says: two gigabytes of 2^27, of a model of 150 bytes."""
    numbers = {"zero": 0, "most": 1 << 40, "one": 1}
    constants = [numpy_helper.from_array(np.array(number, np.int64), name) for name, number in numbers.items()]
    operator = "ConstantOfShape" if inputs == ["n"] else "Resize"
    nodes = [helper.make_node("Range", list(numbers), ["n"]), helper.make_node(operator, inputs, ["y"])]
    model = model_of(nodes, [value("x", 1, 1, 4, 4)], [value("y", None)], constants)
    assert errors_of(model)[0].code() is trt.ErrorCode.UNSUPPORTED_NODE_SHAPE


def test_errors_show_the_beginning_of_what_a_model_holds() -> None:
    node = helper.make_node("Transpose", ["x"], ["y"], name="n\x1b[2J" + "n" * 4000, perm=[0] * (1 << 15))
    (error,) = errors_of(model_of([node], [value("x", 3)], [value("y", None)]))
    assert "axes [0, 0" in error.desc() and len(error.desc()) < 5000
    assert "n\\x1b[2Jnn" in str(error) and len(str(error)) < 5000
    assert error.node_name() == node.name


def test_a_network_that_is_not_empty_is_refused() -> None:
    network, parser = parse(dense(array(4, 3)).SerializeToString())
    assert network.num_layers
    assert not parser.parse(dense(array(4, 3)).SerializeToString())
    assert parser.get_error(0).code() is trt.ErrorCode.INVALID_VALUE


def test_missing_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="MODEL_DESERIALIZE_FAILED"):
        parse(tmp_path / "none.onnx")


# --- quantized models -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "zero"), [(np.int8, 0), (np.int8, 3), (np.uint8, 128)])
def test_quantized_activations_and_weights(kind: Any, zero: int) -> None:
    info = np.iinfo(kind)
    weights = (np.arange(12) * 5 - 30 + zero).clip(info.min, info.max).astype(kind).reshape(4, 3)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "t", "z"], ["v"]),
        helper.make_node("MatMul", ["d", "v"], ["y"]),
    ]
    constants = [
        numpy_helper.from_array(np.float32(0.05), "s"),
        numpy_helper.from_array(np.float32(0.1), "t"),
        numpy_helper.from_array(np.array(zero, kind), "z"),
        numpy_helper.from_array(weights, "w"),
    ]
    model = model_of(nodes, [value("x", 2, 4)], [value("y", 2, 3)], constants)
    x = array(2, 4)
    codes = (np.round(x / np.float32(0.05)) + zero).clip(info.min, info.max) - zero
    expected = (codes * 0.05) @ ((weights.astype(np.float32) - zero) * 0.1)
    np.testing.assert_allclose(infer(model.SerializeToString(), {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


BYTES: dict[str, tuple[Any, ...]] = {
    "Add": ("Add", ["a", "many"]),
    "Sub": ("Sub", ["a", "b"]),
    "Mul": ("Mul", ["a", "many"]),
    "BitwiseNot": ("BitwiseNot", ["a"]),
    "Max": ("Max", ["a", "b"]),
    "Div": ("Div", ["a", "b"]),
    "Mod": ("Mod", ["a", "b"]),
    "Equal": ("Equal", ["a", "b"]),
    "Greater": ("Greater", ["a", "b"]),
    "Where": ("Where", ["chosen", "a", "b"]),
    "Clip": ("Clip", ["a", "low", "high"]),
    "Concat": ("Concat", ["a", "b"], {"axis": 0}),
    "Pad": ("Pad", ["a", "pads", "low"]),
    "Gather": ("Gather", ["a", "index"]),
    "ScatterElements": ("ScatterElements", ["a", "places", "updates"]),
    "Transpose": ("Transpose", ["a"]),
    "Unsqueeze": ("Unsqueeze", ["a", "axis"]),
    "Reshape": ("Reshape", ["a", "extents"]),
    "Expand": ("Expand", ["a", "wide"]),
    "Trilu": ("Trilu", ["a"]),
    "NonZero": ("NonZero", ["a"]),
    "ArgMax": ("ArgMax", ["a"]),
    "ReduceMax": ("ReduceMax", ["a"]),
    "TopK": ("TopK", ["a", "two"]),
    "Dequantize": ("DequantizeLinear", ["a", "scale", "low"]),
    "Cast": ("Cast", ["a"], {"to": TensorProto.FLOAT}),
    "CastLike": ("CastLike", ["a", "scale"]),
}
"""Nodes that take bytes `a` and `b`."""
NUMBERS = {
    "pads": [1, 0, 0, 2],
    "index": [2, 0],
    "extents": [2, 6],
    "places": [[0, 1, 2, 0]],
    "wide": [2, 3, 4],
    "axis": [0],
    "two": [2],
}


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("source", ["constant", "input", "cast"])
def test_bytes_are_computed_with_wherever_they_come_from(kind: Any, source: str) -> None:
    """As constants they were refused but for codes that are dequantized, as inputs and casts by most layers."""
    a, b = (np.random.default_rng(seed).permutation(20)[:12].reshape(3, 4).astype(kind) + kind(1) for seed in (1, 2))
    number = helper.np_dtype_to_tensor_dtype(a.dtype)
    constants = {
        "b": b,
        "low": kind(3),
        "many": kind(120),
        "high": kind(9),
        "scale": np.float32(0.5),
        "chosen": a > b,
        "updates": a[:1] + kind(1),
        **{name: np.array(numbers) for name, numbers in NUMBERS.items()},
    }
    nodes = [
        helper.make_node(entry[0], entry[1], [name], name=name, **(entry[2] if len(entry) > 2 else {}))
        for name, entry in BYTES.items()
    ]
    given, inputs = {"x": np.float32(2)}, [value("x")]
    if source == "constant":
        constants["a"] = a
    elif source == "input":
        given, inputs = {"a": a}, [value("a", 3, 4, dtype=number)]
    else:
        given, inputs = {"x": a.astype(np.float32)}, [value("x", 3, 4)]
        nodes.insert(0, helper.make_node("Cast", ["x"], ["a"], to=number))
    held = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    wanted = ReferenceEvaluator(model_of(nodes, inputs, [value(name, dtype=0) for name in BYTES], held)).run(
        None, given
    )
    ends = [
        value(name, *array.shape, dtype=helper.np_dtype_to_tensor_dtype(array.dtype))
        for name, array in zip(BYTES, wanted, strict=True)
    ]
    found = infer(model_of(nodes, inputs, ends, held).SerializeToString(), given)
    for name, got, want in zip(BYTES, found, wanted, strict=True):
        np.testing.assert_array_equal(got, want, name)
        assert str(got.dtype) == f"torch.{want.dtype}", name


def test_a_cast_to_bytes_ends_where_bytes_do() -> None:
    """Integers keep their lowest eight bits, as ONNX says; what becomes of floats it leaves open."""
    casts = [helper.make_node("Cast", [name], [f"{name}_byte"], to=TensorProto.UINT8) for name in ("x", "n", "flag")]
    widened = [helper.make_node("Cast", [f"{name}_byte"], [f"{name}_y"], to=FLOAT) for name in ("x", "n", "flag")]
    ends = [value("x", 4), value("n", 4, dtype=TensorProto.INT64), value("flag", 2, dtype=TensorProto.BOOL)]
    outputs = [value(f"{name}_{end}", None, dtype=kind) for end, kind in (("y", 1), ("byte", 2)) for name in ("x", "n")]
    model = model_of([*casts, *widened], ends, [*outputs, value("flag_y", 2)])
    given = {"x": np.float32([-3, 1.9, 255, 300]), "n": np.array([-1, 255, 256, 511]), "flag": np.array([True, False])}
    x, n, *bytes_of, flag = infer(model.SerializeToString(), given)
    assert x.tolist() == bytes_of[0].tolist() == [0, 1, 255, 255]
    assert n.tolist() == bytes_of[1].tolist() == [255, 255, 0, 255]
    assert [end.dtype for end in bytes_of] == [torch.uint8] * 2 and flag.tolist() == [1, 0]


def test_bytes_go_into_branches_and_around_loops() -> None:
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["a", "b"], ["r"])], name, [], [value("r", dtype=2)])
        for name, op in (("then", "Max"), ("else", "Min"))
    }
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Max", ["held", "a"], ["next"])],
        "body",
        [value("i", dtype=7), value("go", dtype=9), value("held", 3, dtype=2)],
        [value("on", dtype=9), value("next", 3, dtype=2)],
    )
    nodes = [
        helper.make_node("If", ["flag"], ["y"], **branches),
        helper.make_node("Loop", ["trips", "", "b"], ["z"], body=body),
    ]
    a, b = np.array([1, 200, 3], np.uint8), np.array([4, 5, 255], np.uint8)
    held = [numpy_helper.from_array(b, "b"), numpy_helper.from_array(np.array(2), "trips")]
    inputs = [value("a", 3, dtype=2), value("flag", dtype=9)]
    model = model_of(nodes, inputs, [value("y", 3, dtype=2), value("z", 3, dtype=2)], held)
    for flag in (True, False):
        y, z = infer(model.SerializeToString(), {"a": a, "flag": np.array(flag)})
        np.testing.assert_array_equal(y, np.maximum(a, b) if flag else np.minimum(a, b))
        np.testing.assert_array_equal(z, np.maximum(a, b))


def _graph(name: str, nodes: Sequence[tuple[str, list[str], list[str]]], inputs: Any, outputs: Any) -> Any:
    """A graph inside of a node: `(operator, inputs, outputs)` of its nodes, and names of its ends with their types."""
    made = [helper.make_node(kind, taken, given) for kind, taken, given in nodes]
    ends = [[value(end, dtype=dtype) for end, dtype in ends.items()] for ends in (inputs, outputs)]
    return helper.make_graph(made, name, *ends)


def test_bytes_stay_bytes_in_graphs_inside_of_nodes() -> None:
    """What went into branches and around loops went on as int32; beside bytes, integers became such."""
    byte, whole, truth, long = TensorProto.UINT8, TensorProto.INT32, TensorProto.BOOL, TensorProto.INT64
    then, other = (_graph(name, [(name, ["a", "b"], ["r"])], {}, {"r": byte}) for name in ("Add", "Mul"))
    body = _graph(
        "body",
        [
            *(("Identity", ["go"], ["on"]), ("Add", ["held", "a"], ["next"]), ("Add", ["sum", "ints"], ["more"])),
            ("Mul", ["next", "b"], ["seen"]),
        ],
        {"i": long, "go": truth, "held": byte, "sum": whole},
        {"on": truth, "next": byte, "more": whole, "seen": byte},
    )
    step = _graph(
        "step",
        [("Add", ["state", "row"], ["after"]), ("Sub", ["after", "b"], ["told"])],
        {"state": byte, "row": byte},
        {"after": byte, "told": byte},
    )
    nodes = [
        helper.make_node("If", ["flag"], ["chosen"], then_branch=then, else_branch=other),
        helper.make_node("Add", ["chosen", "chosen"], ["y0"]),
        helper.make_node("Loop", ["trips", "yes", "b", "ints"], ["last", "y1", "all"], body=body),
        helper.make_node("Add", ["last", "last"], ["y2"]),
        helper.make_node("Add", ["all", "all"], ["y3"]),
        helper.make_node("Add", ["y1", "ints"], ["y4"]),
        helper.make_node("Scan", ["b", "rows"], ["state", "told"], body=step, num_scan_inputs=1),
        helper.make_node("Add", ["state", "state"], ["y5"]),
        helper.make_node("Add", ["told", "told"], ["y6"]),
        helper.make_node("Split", ["rows"], ["top", "low"], axis=0, num_outputs=2),
        helper.make_node("Add", ["top", "top"], ["y7"]),
        helper.make_node("Add", ["low", "low"], ["y8"]),
    ]
    a, b = np.array([1, 200, 3], np.uint8), np.array([4, 150, 255], np.uint8)
    nodes += [helper.make_node("Cast", [f"y{place}"], [f"z{place}"], to=whole) for place in range(9)]
    held: dict[str, Any] = {"trips": np.array(3), "yes": np.array(True), "ints": np.array([300, -7, 1 << 20], np.int32)}
    rows = np.random.default_rng(0).integers(0, 256, (4, 3)).astype(np.uint8)
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    inputs = [value("a", 3, dtype=byte), value("b", 3, dtype=byte), value("flag", dtype=truth)]
    inputs.append(value("rows", 4, 3, dtype=byte))
    names = [f"z{place}" for place in range(9)]
    reference = ReferenceEvaluator(model_of(nodes, inputs, [value(name, dtype=0) for name in names], constants))
    for flag in (True, False):
        given = {"a": a, "b": b, "flag": np.array(flag), "rows": rows}
        wanted = reference.run(None, given)
        ends = [value(name, *array.shape, dtype=whole) for name, array in zip(names, wanted, strict=True)]
        found = infer(model_of(nodes, inputs, ends, constants).SerializeToString(), given)
        for name, got, want in zip(names, found, wanted, strict=True):
            np.testing.assert_array_equal(got, want, name)


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8])
def test_weights_of_nodes_with_constants_of_the_parser_come_from_another_version(kind: Any) -> None:
    def model(table: list[int]) -> bytes:
        held = [numpy_helper.from_array(np.array(table, kind), "table")]
        number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
        node = helper.make_node("Gather", ["table", "x"], ["y"])
        return model_of([node], [value("x", 2, dtype=7)], [value("y", 2, dtype=number)], held).SerializeToString()

    network, _ = parse(model([1, 2, 250]))
    engine = build(network, {}, flags=[trt.BuilderFlag.REFIT])
    data = {"x": np.array([2, 0])}
    assert run(engine, data)[0].tolist() == [250, 1]
    refitter = trt.Refitter(engine, QuietLogger())
    assert trt.OnnxParserRefitter(refitter, QuietLogger()).refit_from_bytes(model([7, 8, 255]))
    assert refitter.refit_cuda_engine() and run(engine, data)[0].tolist() == [255, 7]


MICROSOFT: dict[str, tuple[list[str], dict[str, Any]]] = {
    "QLinearAdd": (["a", "s", "z", "b", "t", "z", "u", "w"], {}),
    "QLinearMul": (["a", "s", "z", "b", "t", "z", "u", "w"], {}),
    "QLinearSigmoid": (["a", "s", "z", "u", "w"], {}),
    "QLinearLeakyRelu": (["a", "s", "z", "u", "w"], {"alpha": 0.2}),
    "QLinearGlobalAveragePool": (["a", "s", "z", "u", "w"], {}),
    "QLinearConcat": (["u", "w", "a", "s", "z", "b", "t", "z"], {"axis": 1}),
}
"""Operators that ONNX Runtime's quantization writes."""


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_operators_of_onnx_runtimes_quantization(kind: Any) -> None:
    """A code may be the next one, where ONNX Runtime rounds at another place."""
    number = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    held = {"s": np.float32(0.03), "t": np.float32(0.05), "u": np.float32(0.04), "z": kind(7), "w": kind(60)}
    nodes = [
        helper.make_node(name, inputs, [name], domain="com.microsoft", **given)
        for name, (inputs, given) in MICROSOFT.items()
    ]
    model = model_of(
        nodes,
        [value(name, 2, 3, 4, 4, dtype=number) for name in "ab"],
        [value(name, 2, None, None, None, dtype=number) for name in MICROSOFT],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in held.items()],
        domains=["com.microsoft"],
    )
    rng = np.random.default_rng(0)
    ends = np.iinfo(kind)
    data = {name: rng.integers(ends.min, ends.max, (2, 3, 4, 4), kind) for name in "ab"}
    wanted = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    for name, got, want in zip(MICROSOFT, infer(model.SerializeToString(), data), wanted, strict=True):
        assert str(got.dtype) == f"torch.{want.dtype}" and got.shape == want.shape, name
        assert np.abs(got.numpy().astype(int) - want.astype(int)).max() <= 1, name


@pytest.mark.parametrize("ends", [["u", "w"], []])
def test_products_of_onnx_runtimes_quantization(ends: list[str]) -> None:
    rng = np.random.default_rng(0)
    held = {
        "B": rng.integers(-60, 60, (5, 4), np.int8),  # no more: ONNX Runtime's products of some processors overflow
        "C": rng.integers(-900, 900, (5,), np.int32),
        "s": np.float32(0.03),
        "z": np.uint8(7),
        "zs": np.zeros(5, np.int8),
        "u": np.float32(0.4),
        "w": np.uint8(60),
        "ts": rng.uniform(0.01, 0.05, 5).astype(np.float32),
    }
    inputs = ["A", "s", "z", "B", "ts", "zs", "C", *ends]
    model = model_of(
        [helper.make_node("QGemm", inputs, ["y"], domain="com.microsoft", transB=1)],
        [value("A", 3, 4, dtype=2)],
        [value("y", 3, 5, dtype=2 if ends else 1)],
        [numpy_helper.from_array(np.asarray(data), name) for name, data in held.items() if name in inputs],
        domains=["com.microsoft"],
    )
    data = {"A": rng.integers(0, 120, (3, 4), np.uint8)}
    (wanted,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, data)
    (found,) = infer(model.SerializeToString(), data)
    np.testing.assert_allclose(found.double(), wanted.astype(float), rtol=1e-4, atol=1 if ends else 1e-4)


@pytest.mark.parametrize(
    ("bits", "zeros", "depth", "dtype"),
    [
        (4, "", 64, np.float32),
        (4, "codes", 64, np.float32),
        (4, "codes", 72, np.float32),
        (4, "numbers", 64, np.float32),
        (4, "codes", 64, np.float16),
        (8, "", 64, np.float32),
        (8, "codes", 72, np.float32),
    ],
)
def test_matrices_of_few_bits(bits: int, zeros: str, depth: int, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    rows, size = 24, 32
    blocks = -(-depth // size)
    held = {
        "B": rng.integers(0, 256, (rows, blocks, size * bits // 8), np.uint8),
        "s": rng.uniform(0.01, 0.05, (rows, blocks)).astype(dtype),
        "z": rng.integers(0, 256, (rows, -(-blocks * bits // 8)), np.uint8),
        "bias": rng.standard_normal(rows).astype(dtype),
    }
    if zeros == "numbers":
        held["z"] = rng.uniform(0, 15, (rows, blocks)).astype(dtype)
    inputs = ["A", "B", "s", "z" if zeros else "", "", "bias"]
    told = {"K": depth, "N": rows, "bits": bits, "block_size": size, "domain": "com.microsoft"}
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model = model_of(
        [helper.make_node("MatMulNBits", inputs, ["y"], **told)],
        [value("A", "batch", 3, depth, dtype=number)],
        [value("y", "batch", 3, rows, dtype=number)],
        [numpy_helper.from_array(data, name) for name, data in held.items() if name in inputs],
        domains=["com.microsoft"],
    ).SerializeToString()
    data = {"A": rng.standard_normal((2, 3, depth)).astype(dtype)}
    (wanted,) = onnxruntime.InferenceSession(model).run(None, data)
    (found,) = infer(model, data)
    error = 1e-4 if dtype is np.float32 else 2e-2
    np.testing.assert_allclose(found.double(), wanted.astype(float), rtol=error, atol=error)


def few_bits(inputs: str = "A B s", codes: tuple[int, ...] = (256, 8, 16), **told: Any) -> Any:
    """A product of (batch, 256) with 256 columns of few bits."""
    rng = np.random.default_rng(0)
    held = {"B": rng.integers(0, 256, codes, np.uint8), "s": np.ones((256, 8), np.float32), "g": np.arange(256)}
    attributes = {"K": 256, "N": 256, "bits": 4, "block_size": 32, **told}
    return model_of(
        [helper.make_node("MatMulNBits", inputs.split(), ["y"], domain="com.microsoft", **attributes)],
        [value("A", "batch", 256), value("given", *codes, dtype=2)],
        [value("y", "batch", 256)],
        [numpy_helper.from_array(data, name) for name, data in held.items() if name in inputs],
        domains=["com.microsoft"],
    )


def test_matrices_of_few_bits_stay_codes(builder: Any) -> None:
    network = builder.create_network()
    assert trt.OnnxParser(network, trt.Logger(trt.Logger.ERROR)).parse(few_bits().SerializeToString())
    profile = builder.create_optimization_profile()
    profile.set_shape("A", (1, 256), (2, 256), (4, 256))
    profile.set_shape("given", *[(256, 8, 16)] * 3)
    config = builder.create_builder_config()
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert 256 * 256 // 2 < plan.nbytes < 256 * 256


@pytest.mark.parametrize(
    ("told", "says"),
    [
        ({"inputs": "A given s"}, "B the model computes"),
        ({"codes": (256, 8, 15)}, "B of shape (256, 8, 15) in place of (256, 8, 16)"),
        ({"bits": 3}, "3 bits in blocks of 32"),
        ({"block_size": 0}, "blocks of 0"),
        ({"N": -1}, "N=-1"),
        ({"K": 1 << 40}, "in place of"),
        ({"inputs": "A B s s g"}, "in another order"),
    ],
)
def test_other_matrices_of_few_bits_are_refused(told: Mapping[str, Any], says: str) -> None:
    (error,) = errors_of(few_bits(**told))
    assert says in error.desc()


def test_attention_of_heads_whose_number_no_extent_tells() -> None:
    """As dynamo exports `view(batch, length, -1, width)` where lengths are only equal when the model is called."""
    nodes = [
        helper.make_node("Shape", ["ids"], ["extents"]),
        helper.make_node("Concat", ["extents", "split"], ["wanted"], axis=0),
        helper.make_node("Reshape", ["x", "wanted"], ["apart"]),
        helper.make_node("Transpose", ["apart"], ["heads"], perm=[0, 2, 1, 3]),
        helper.make_node("Attention", ["heads", "heads", "heads"], ["y"]),
    ]
    model = model_of(
        nodes,
        [value("x", "batch", "length", 8), value("ids", "rows", "columns", dtype=7)],
        [value("y", "batch", 2, "length", 4)],
        [numpy_helper.from_array(np.array([-1, 4]), "split")],
        opset=23,
    )
    x = array(2, 3, 8)
    (found,) = infer(model.SerializeToString(), {"x": x, "ids": np.zeros((2, 3), np.int64)})
    heads = torch.from_numpy(x).view(2, 3, 2, 4).transpose(1, 2)
    torch.testing.assert_close(found, nn.functional.scaled_dot_product_attention(heads, heads, heads))


def test_blocked_int4_weights() -> None:
    codes = (np.arange(64) % 16 - 8).reshape(8, 8)
    weights = helper.make_tensor("w", TensorProto.INT4, [8, 8], codes.reshape(-1).tolist())
    scales = np.linspace(0.1, 0.8, 16).astype(np.float32).reshape(2, 8)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["v"], axis=0, block_size=4),
        helper.make_node("MatMul", ["x", "v"], ["y"]),
    ]
    model = model_of(nodes, [value("x", 2, 8)], [value("y", 2, 8)], [weights, numpy_helper.from_array(scales, "s")])
    x = array(2, 8)
    expected = x @ (codes * np.repeat(scales, 4, axis=0))
    np.testing.assert_allclose(infer(model.SerializeToString(), {"x": x})[0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "number"), [(torch.float16, TensorProto.FLOAT16), (torch.bfloat16, TensorProto.BFLOAT16)]
)
@pytest.mark.parametrize("width", [32, 24])
@pytest.mark.parametrize("is_causal", [0, 1])
def test_attention_in_sixteen_bits_rounds_its_result_alone(
    dtype: torch.dtype, number: int, width: int, is_causal: int
) -> None:
    """By a factor that 16 bits do not hold, with values of another width, and behind a past."""
    shapes = {
        "q": (2, 4, 6, 32),
        "k": (2, 4, 6, 32),
        "v": (2, 4, 6, width),
        "pk": (2, 4, 3, 32),
        "pv": (2, 4, 3, width),
    }
    node = helper.make_node(
        "Attention", ["q", "k", "v", "", "pk", "pv"], ["y", "ek", "ev"], is_causal=is_causal, scale=0.17
    )
    inputs = [value(name, *shape, dtype=number) for name, shape in shapes.items()]
    model = model_of([node], inputs, [value("y", 2, 4, 6, width, dtype=number)], opset=23)
    data = {name: torch.randn(shape).to(dtype) for name, shape in shapes.items()}
    (found,) = infer(model.SerializeToString(), data)
    k, v = torch.cat([data["pk"], data["k"]], 2), torch.cat([data["pv"], data["v"]], 2)
    mask = torch.ones(6, 9, dtype=torch.bool).tril(3) if is_causal else None
    wanted = nn.functional.scaled_dot_product_attention(data["q"], k, v, mask, scale=0.17)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_bfloat16_weights() -> None:
    weights = torch.randn(4, 3).to(torch.bfloat16)
    proto = TensorProto(
        name="w", data_type=TensorProto.BFLOAT16, dims=[4, 3], raw_data=weights.view(torch.int16).numpy().tobytes()
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.BFLOAT16),
        helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Cast", ["p"], ["y"], to=FLOAT),
    ]
    model = model_of(nodes, [value("x", 2, 4)], [value("y", 2, 3)], [proto])
    x = torch.randn(2, 4)
    (found,) = infer(model.SerializeToString(), {"x": x.numpy()})
    torch.testing.assert_close(found, (x.to(torch.bfloat16) @ weights).float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(("factor", "extent"), [(10 / 3, 320), (0.7, 67)])
def test_extents_that_follow_from_extents_by_floats_are_known(factor: float, extent: int) -> None:
    """Detection models resize by a factor and pad by what is left; in double precision 96 times 10/3 would be 319."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Slice", ["shape", "two", "four"], ["inner"]),
        helper.make_node("Cast", ["inner"], ["floats"], to=FLOAT),
        helper.make_node("Mul", ["floats", "factor"], ["scaled"]),
        helper.make_node("Floor", ["scaled"], ["whole"]),
        helper.make_node("Cast", ["whole"], ["sizes"], to=TensorProto.INT64),
        helper.make_node("Slice", ["shape", "zero", "two"], ["outer"]),
        helper.make_node("Concat", ["outer", "sizes"], ["all"], axis=0),
        helper.make_node("Resize", ["x", "", "", "all"], ["y"], mode="linear"),
    ]
    constants = [numpy_helper.from_array(np.array([number]), name) for name, number in [("zero", 0), ("two", 2)]]
    constants += [numpy_helper.from_array(np.array([4]), "four")]
    constants += [numpy_helper.from_array(np.array([factor], np.float32), "factor")]
    graph = helper.make_graph(nodes, "g", [value("x", 1, 3, 96, 96)], [value("y", 1, 3, extent, extent)], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    network, _ = parse(model.SerializeToString())
    output = network.get_output(0)
    assert output is not None
    assert tuple(output.shape) == (1, 3, extent, extent)
    x = torch.rand(1, 3, 96, 96)
    (found,) = run(build(network, {"x": tuple(x.shape)}), {"x": x})
    assert tuple(found.shape) == (1, 3, extent, extent)


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("scales", [0.5, (0.5, 2)])
def test_fp8_has_nan_beyond_its_end_where_it_does_not_saturate(saturate: int, scales: Any) -> None:
    scale = np.array(scales, np.float32)
    zero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, scale.shape, [0.0] * scale.size)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"], axis=1, saturate=saturate),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["y"], axis=1),
    ]
    initializers = [numpy_helper.from_array(scale, "scale"), zero]
    model = model_of(nodes, [value("x", 3, 2)], [value("y", 3, 2)], initializers)
    steps = np.array([[464, -464], [464.5, -465], [-1e9, np.inf]], np.float32)
    (found,) = infer(model.SerializeToString(), {"x": steps * scale})
    ends = np.array([[448, -448], [448, -448], [-448, 448]], np.float32)
    ends[1:] = ends[1:] if saturate else np.nan
    np.testing.assert_array_equal(np.asarray(found), ends * scale)


def detection(boxes: int, kept: int) -> Any:
    """The best boxes, without those that overlap better ones, and what an image shows in them."""
    numbers = {"most": np.array([kept]), "overlap": np.array([0.3], np.float32), "box": np.array([2])}
    constants = [numpy_helper.from_array(number, name) for name, number in numbers.items()]
    nodes = [
        helper.make_node("NonMaxSuppression", ["boxes", "scores", "most", "overlap"], ["found"]),
        helper.make_node("Gather", ["found", "box"], ["column"], axis=1),
        helper.make_node("Squeeze", ["column"], ["places"]),
        helper.make_node("Squeeze", ["boxes"], ["plain"]),
        helper.make_node("Gather", ["plain", "places"], ["regions"]),
        helper.make_node("Sub", ["places", "places"], ["images"]),
        helper.make_node(
            "RoiAlign", ["x", "regions", "images"], ["y"], output_height=2, output_width=2, sampling_ratio=2
        ),
    ]
    ends = [value("x", 1, 2, 20, 20), value("boxes", 1, boxes, 4), value("scores", 1, 1, boxes)]
    found = value("found", None, 3, dtype=TensorProto.INT64)
    return model_of(nodes, ends, [found, value("y", None, 2, 2, 2)], constants, opset=16)


def detected(boxes: int) -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(boxes)
    corners = random.uniform(0, 10, (1, boxes, 2)).astype(np.float32)
    sizes = random.uniform(1, 10, (1, boxes, 2)).astype(np.float32)
    scores = random.permutation(boxes).astype(np.float32).reshape(1, 1, boxes)
    return {"x": array(1, 2, 20, 20), "boxes": np.concatenate([corners, corners + sizes], 2), "scores": scores}


def test_boxes_of_different_scores_are_those_of_onnx_runtime() -> None:
    model, feeds = detection(80, 9).SerializeToString(), detected(80)
    for got, want in zip(infer(model, feeds), onnxruntime.InferenceSession(model).run(None, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_more_boxes_than_a_suppression_looks_at_are_told() -> None:
    with pytest.warns(RuntimeWarning, match="5001 boxes have a score above .* the 5000 best"):
        infer(detection(5001, 3).SerializeToString(), detected(5001))
