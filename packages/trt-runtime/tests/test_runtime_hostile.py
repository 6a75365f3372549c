"""Files that are not what they say: every one is refused with an error of ours, at load or where it would do harm."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_files
import pytest
import torch
from program_files import ProgramFile

from trt_core import ExecutionError, InputError, PlanError
from trt_core.files.strict_json import MAX_DEPTH
from trt_runtime import load
from trt_runtime.command_line import main
from trt_runtime.program.allowed_operators import allowed_operators, find_operator, reviewed_operators
from trt_runtime.program.loading import program_from_memory


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hostile.trtp"


@pytest.mark.parametrize(
    "graph",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"steps": 1, "steps": 2}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "\xff"}',
        b'["' + b"]" * 2000 + b'", ' + b"[" * 900 + b"]" * 901,  # brackets in a string end nothing
    ],
    ids=lambda graph: graph[:12].decode("latin-1"),
)
def test_what_is_no_graph(parts: ProgramFile, path: Path, graph: bytes) -> None:
    path.write_bytes(parts.with_graph(graph or b" "))
    with pytest.raises(PlanError, match="the graph of the saved program is malformed"):
        load(path)


def _set(*keys: Any) -> Callable[[dict[str, Any]], None]:
    *places, last, value = keys

    def change(graph: dict[str, Any]) -> None:
        owner: Any = graph
        for place in places:
            owner = owner[place]
        owner[last] = value

    return change


def _delete(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda graph: graph.pop(name)


def _nested(depth: int) -> Any:
    tree: Any = 1
    for _ in range(depth):
        tree = [tree]
    return tree


def _step(kind: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda graph: next(step for step in graph["steps"] if step["do"] == kind)


def _in_step(kind: str, name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda graph: _step(kind)(graph).__setitem__(name, value)


def _operator(
    name: str, args: list[Any], shape: list[Any], dtype: str = "float32", **kwargs: Any
) -> Callable[[dict[str, Any]], None]:
    def change(graph: dict[str, Any]) -> None:
        graph["steps"].append(
            {
                "do": "operator",
                "name": name.partition(".")[0],
                "overload": name.partition(".")[2],
                "args": args,
                "kwargs": kwargs,
                "result": {"tensor": dtype, "shape": shape},
            }
        )

    return change


HUGE = 10**12

CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a field is missing": _delete("steps"),
    "a field is unknown": _set("extra", 1),
    "a field of another type": _set("steps", {}),
    "a version that is no text": _set("torch_version", 2),
    "deep nesting": _set("output", _nested(MAX_DEPTH + 1)),
    "an output that does not exist": _set("output", {"value": 10_000}),
    "an output that is negative": _set("output", {"value": -1}),
    "an output that is true": _set("output", {"value": True}),
    "an unknown literal": _set("output", {"pickle": "gASVCgAAAAAAAAA="}),
    "a literal with two keys": _set("output", {"value": 0, "tuple": []}),
    "a use before the definition": _in_step("engine", "inputs", [10_000]),
    "a step that reads itself": lambda graph: _step("engine")(graph).__setitem__(
        "inputs", [1 + len(graph["tensors"]) + graph["steps"].index(_step("engine")(graph))]
    ),
    "an engine that does not exist": _in_step("engine", "engine", 7),
    "an engine of too many inputs": _in_step("engine", "inputs", [0, 0]),
    "an engine whose input has another shape": lambda graph: _step("engine")(graph).__setitem__(
        "inputs", [1 + [tensor["names"] for tensor in graph["tensors"]].index(["count"])]
    ),
    "an unknown step": _in_step("size", "do", "eval"),
    "an axis that does not exist": _in_step("size", "axis", 5),
    "an item of what is no sequence": _in_step("item", "sequence", 0),
    "an item that does not exist": _in_step("item", "index", 9),
    "a write to a result": lambda graph: _step("write")(graph).__setitem__("target", _step("write")(graph)["source"]),
    "a write of another shape": _in_step("write", "source", 0),
    "an unknown function": _in_step("number", "function", "__import__"),
    "a function of too many numbers": _in_step("number", "args", [1, 2, 3, 4]),
    "a function of text": _in_step("number", "args", ["a", "b"]),
    "an endless power": lambda graph: _step("number")(graph).update(function="pow", args=[10, 10**9]),
    "an endless shift": lambda graph: _step("number")(graph).update(function="lshift", args=[1, 10**12]),
    "a shift backwards": lambda graph: _step("number")(graph).update(function="rshift", args=[1, -1]),
    "endless digits": lambda graph: _step("number")(graph).update(function="round", args=[1, -(10**12)]),
    "a part of a digit": lambda graph: _step("number")(graph).update(function="round", args=[1.5, 0.5]),
    "nothing rounded": lambda graph: _step("number")(graph).update(function="round", args=[]),
    "an operator that does not exist": _in_step("operator", "name", "aten::no_such_operator"),
    "an operator without namespace": _in_step("operator", "name", "relu"),
    "an operator with a strange name": _in_step("operator", "name", "aten::__class__"),
    "an operator of another library": _in_step("operator", "name", "somebody::relu"),
    "an operator with a missing argument": _in_step("operator", "args", []),
    "an operator with an unknown argument": _in_step("operator", "kwargs", {"somewhere": 1}),
    "a tensor for a size": _operator("aten::full", [[{"value": 1}], 1.0], [3]),
    "a tensor for sizes": _operator("aten::full", [{"value": 1}, 1.0], [3]),
    "a tensor for a size of data": _operator("aten::ones", [[{"value": 1}]], [None]),
    "a tensor for a number": _operator("aten::leaky_relu", [{"value": 0}, {"value": 1}], [None, None]),
    "a tensor for text": _operator("aten::gelu", [{"value": 0}], [None, None], approximate={"value": 1}),
    "borders of which the sum begins anew": _operator(
        "aten::reflection_pad1d", [{"value": 1}, [-(1 << 63)] * 2], [None, None]
    ),
    "long keys around many results": _set("output", {"dict": [["k" * (1 << 16), [0] * 1000]]}),
    "an operator with too many arguments": _in_step("operator", "args", [0] * 40),
    "a huge tensor": _operator("aten::ones", [[HUGE]], [HUGE]),
    "a huge tensor in two dimensions": _operator("aten::ones", [[1 << 20, 1 << 20]], [1 << 20, 1 << 20]),
    "a huge tensor that claims to be small": _operator("aten::ones", [[HUGE]], [3]),
    "a huge tensor of small extents": _operator("aten::ones", [[60_000, 60_000]], [3]),
    "a huge view": _operator("aten::expand", [{"value": 1}, [HUGE, 3, 3]], [3, 3]),
    "a huge number of copies": _operator("aten::repeat", [{"value": 1}, [HUGE, 1]], [3, 3]),
    "a huge number of copies by another name": _operator("aten::tile", [{"value": 1}, [60_000, 60_000]], [3, 3]),
    "huge edges": _operator("aten::constant_pad_nd", [{"value": 1}, [60_000] * 4], [3, 3]),
    "a huge range that claims to be short": _operator("aten::arange", [HUGE], [3], dtype="int64"),
    "a range of tiny steps": _operator("aten::arange.start_step", [0.0, 1.0, 1e-12], [3]),
    "huge noise": _operator("aten::randint", [9, [HUGE]], [3], dtype="int64"),
    "huge noise of small extents": _operator("aten::randint", [9, [60_000, 60_000]], [3], dtype="int64"),
    "a huge matrix of ones and zeros": _operator("aten::eye.m", [60_000, 60_000], [3, 3]),
    "a memory format that is a number": _operator("aten::empty_like", [{"value": 1}], [3, 3], memory_format=4),
    "a type that is a number": _operator("aten::ones", [[3]], [3], layout=99),
    "a tensor of negative size": _operator("aten::ones", [[-5]], [-5]),
    "an extent of an unknown symbol": _operator("aten::ones", [[3]], ["s99"]),
    "an extent that divides by zero": _operator("aten::ones", [[3]], [["floordiv", 3, 0]]),
    "an extent that is endless": _operator("aten::ones", [[3]], [["pow", 10, 10**9]]),
    "an extent that is a function": _operator("aten::ones", [[3]], [["eval", "s0", 1]]),
    "a type that does not exist": _operator("aten::ones", [[3]], [3], dtype="object"),
    "a symbol that no input shows": lambda graph: graph["symbols"].__setitem__("s99", [1, 2, 3]),
    "a single profile": lambda graph: graph.__setitem__("profiles", [graph["symbols"]]),
    "profiles without symbols": lambda graph: graph.__setitem__("profiles", [{}, {}]),
    "a symbol out of order": lambda graph: graph["symbols"].__setitem__(next(iter(graph["symbols"])), [3, 2, 1]),
    "two inputs of one name": lambda graph: graph["signature"].update(names=["x", "x"], structure=[{"value": 0}] * 2),
    "an input used twice": lambda graph: graph["signature"].update(structure=[{"tuple": [{"value": 0}] * 2}]),
    "more names than inputs": lambda graph: graph["signature"]["names"].append("y"),
    "strides of another rank": lambda graph: graph["signature"]["leaves"][0].update(strides=[1]),
    "an input of huge extents": lambda graph: graph["signature"]["leaves"][0].update(shape=[[HUGE * HUGE] * 3] * 2),
    "a storage beyond the file": lambda graph: graph["storages"][-1].__setitem__(1, HUGE),
    "a storage before its predecessor": lambda graph: graph["storages"][-1].__setitem__(0, 0),
    "a storage at an odd place": lambda graph: graph["storages"][-1].__setitem__(0, graph["storages"][-1][0] + 4),
    "a tensor beyond its storage": lambda graph: graph["tensors"][0].update(shape=[4, 3]),
    "a tensor of a huge stride": lambda graph: graph["tensors"][0].update(strides=[HUGE, 1]),
    "a tensor of a negative stride": lambda graph: graph["tensors"][0].update(strides=[-3, 1]),
    "a tensor of a huge offset": lambda graph: graph["tensors"][0].update(offset=HUGE),
    "a tensor of 10^12 equal elements": lambda graph: graph["tensors"][0].update(shape=[HUGE] * 3, strides=[0] * 3),
    "a tensor of no elements and huge extents": lambda graph: graph["tensors"][0].update(
        shape=[2**48, 2**48, 0], strides=[1, 1, 1], storage=None
    ),
    "a tensor of no storage": lambda graph: graph["tensors"][0].update(storage=None),
    "a tensor of another storage": lambda graph: graph["tensors"][0].update(storage=99),
    "a tensor on another device": lambda graph: graph["tensors"][0].update(device="cuda"),
    "a tensor on no device": lambda graph: graph["tensors"][0].update(device="meta"),
    "two tensors of one name": lambda graph: graph["tensors"][0].update(names=graph["tensors"][1]["names"]),
    "a tensor inside of a tensor": lambda graph: graph["tensors"][0].update(names=["count.inner"]),
    "a tensor in the place of a method": lambda graph: graph["tensors"][0].update(names=["forward"]),
    "a tensor of a special name": lambda graph: graph["tensors"][0].update(names=["__class__"]),
    "a tensor in the place of a part": lambda graph: graph["tensors"][0].update(names=["_LoadedProgram__executor"]),
    "names in more modules than there is memory for": lambda graph: graph["tensors"][0].update(
        names=[f"m{at}{'.a' * 127}" for at in range(1100)]
    ),
    "a tensor in a thousand modules": lambda graph: graph["tensors"][0].update(names=[".".join(1000 * "a")]),
    "an engine in the place of a part": lambda graph: graph["engines"][0].update(name="_LoadedProgram__call"),
    "a tensor in the place of a later part": lambda graph: graph["tensors"][0].update(
        names=["_LoadedProgram__is_complete"]
    ),
    "a tensor whose name is code": lambda graph: graph["tensors"][0].update(names=['x", print("ran"), "']),
    "a tensor whose name ends a line": lambda graph: graph["tensors"][0].update(names=["x\nimport os"]),
    "a tensor whose name is an expression": lambda graph: graph["tensors"][0].update(names=["x + print()"]),
    "an engine whose name is code": lambda graph: graph["engines"][0].update(name='e", print("ran"), "'),
    "an input whose name is code": lambda graph: graph["signature"].update(names=["x=print('ran')"]),
    "an input whose name is a word of Python": lambda graph: graph["signature"].update(names=["lambda"]),
    "an input of a special name": lambda graph: graph["signature"].update(names=["__class__"]),
    "an input of a long name": lambda graph: graph["signature"].update(names=["x" * 2000]),
    "a tensor of no name": lambda graph: graph["tensors"][0].update(names=[""]),
    "an engine in the place of a method": lambda graph: graph["engines"][0].update(name="_apply"),
    "an engine in no section": lambda graph: graph["engines"][0].update(section=9),
    "an engine in the section of weights": lambda graph: graph["engines"][0].update(section=1),
    "a header of another provider": lambda graph: graph["engines"][0]["header"].update(provider="tensorrt"),
    "a header that lacks a field": lambda graph: graph["engines"][0]["header"].pop("ranges"),
    "a header with endless extents": lambda graph: graph["engines"][0]["header"]["outputs"][0].update(
        shape=[["pow", 10, ["pow", 10, 9]], 3]
    ),
    "a header of other inputs": lambda graph: graph["engines"][0]["header"]["inputs"][0].update(shape=["s0", 4]),
    "a header of other outputs": lambda graph: graph["engines"][0]["header"]["outputs"][0].update(shape=["s0", 4]),
    "a header of another rank": lambda graph: graph["engines"][0]["header"]["outputs"][0].update(shape=["s0"]),
    "a header of another type": lambda graph: graph["engines"][0]["header"]["outputs"][0].update(dtype="int32"),
    "a header of another name": lambda graph: graph["engines"][0]["header"]["outputs"][0].update(name="z"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_graphs_that_are_not_right_are_refused_when_loaded(
    parts: ProgramFile, path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    change(parts.graph)
    with pytest.raises(PlanError) as caught:
        load(parts.write(path))
    assert caught.value.where.startswith(str(path))


def test_strides_that_nothing_is_known_of_may_be_any(parts: ProgramFile, path: Path) -> None:
    parts.graph["signature"]["leaves"][0].update(strides=[None, 1])
    module = load(parts.write(path))
    for x in (torch.randn(4, 3), torch.randn(4, 6)[:, :3]):
        torch.testing.assert_close(module(x), module(x.clone()))
    with pytest.raises(InputError, match="lies otherwise in memory"):
        module(torch.randn(3, 4).t())


def test_the_caller_says_how_much_may_depend_on_data(
    parts: ProgramFile, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = len(parts.graph["signature"]["leaves"]) + len(parts.graph["tensors"]) + len(parts.graph["steps"])
    _operator("aten::ones", [[300]], [300])(parts.graph)
    _operator("aten::nonzero", [{"value": first}], [None, 1], dtype="int64")(parts.graph)
    _operator("aten::t", [{"value": first + 1}], [1, None], dtype="int64")(parts.graph)
    _operator("aten::mul.Tensor", [{"value": first + 1}, {"value": first + 2}], [None, None], dtype="int64")(
        parts.graph
    )
    parts.write(path)
    load(path)(torch.ones(4, 3))
    with pytest.raises(ExecutionError, match="data_dependent_elements=90000"):
        load(path, data_dependent_elements=1000)(torch.ones(4, 3))
    sent = pickle.loads(pickle.dumps(load(path, data_dependent_elements=1000)))
    with pytest.raises(ExecutionError, match="data_dependent_elements=90000"):
        sent(torch.ones(4, 3))
    with pytest.raises(InputError, match="number of elements"):
        load(path, data_dependent_elements=-1)
    assert main(["run", str(path)]) == 0
    assert main(["run", str(path), "--data-dependent-elements", "1000"]) == 2
    assert "--data-dependent-elements" in capsys.readouterr().err


def test_numbers_from_data_are_no_larger_than_tensors(parts: ProgramFile, path: Path) -> None:
    first = len(parts.graph["signature"]["leaves"]) + len(parts.graph["tensors"]) + len(parts.graph["steps"])
    _operator("aten::full", [[], -(1 << 63)], [], "int64")(parts.graph)
    _operator("aten::_local_scalar_dense", [{"value": first}], [])(parts.graph)
    parts.graph["steps"][-1]["result"] = "int"
    _operator("aten::ones", [[1, 1, 4]], [1, 1, 4])(parts.graph)
    pads = [{"value": first + 1}] * 2
    _operator("aten::reflection_pad1d", [{"value": first + 2}, pads], [None] * 3)(parts.graph)
    module = load(parts.write(path))
    with pytest.raises(ExecutionError, match=r"reflection_pad1d.default is given the number -9223372036854775808"):
        module(torch.ones(2, 3))


def test_what_depends_on_data_and_is_known_is_refused_when_loaded(parts: ProgramFile, path: Path) -> None:
    first = len(parts.graph["signature"]["leaves"]) + len(parts.graph["tensors"]) + len(parts.graph["steps"])
    _operator("aten::ones", [[300]], [300])(parts.graph)
    _operator("aten::outer", [{"value": first}] * 2, [None, None])(parts.graph)
    parts.write(path)
    load(path)
    with pytest.raises(PlanError, match="data_dependent_elements=90000"):
        load(path, data_dependent_elements=1000)


@pytest.mark.parametrize(
    "change",
    [
        _in_step("operator", "result", {"tensor": "float32", "shape": [7, 7]}),
        _in_step("operator", "result", {"tensor": "int32", "shape": ["s77", 3]}),
        _in_step("operator", "result", "int"),
        lambda graph: graph["signature"]["leaves"][0].update(tensor="int64"),
    ],
)
def test_results_that_are_not_as_declared_are_not_used(
    parts: ProgramFile, path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    change(parts.graph)
    with pytest.raises((PlanError, ExecutionError)):
        load(parts.write(path))(torch.ones(2, 3, dtype=_input_type(parts)))


def _input_type(parts: ProgramFile) -> torch.dtype:
    return torch.int64 if parts.graph["signature"]["leaves"][0]["tensor"] == "int64" else torch.float32


@pytest.mark.parametrize(
    "name",
    [
        ("aten::from_file", ""),
        ("aten::save", ""),
        ("aten::add_", "Tensor"),
        ("aten::add", "out"),
        ("aten::copy_", ""),
        ("aten::resize_", ""),
        ("aten::set_", "source_Storage"),
        ("aten::record_stream", ""),
        ("aten::_reshape_alias", ""),
        ("aten::_foobar", ""),
        ("aten::_print", ""),
        ("aten::fbgemm_pack_quantized_matrix", ""),
        ("aten::sparse_coo_tensor", "indices"),
        ("prim::Print", ""),
        ("profiler::_record_function_enter", ""),
        ("trt::execute_engine", ""),
        ("quantized::linear", ""),
        ("inductor::_alloc_from_pool", ""),
        ("aten::is_pinned", ""),
        ("aten::cudnn_convolution", ""),
        ("aten::segment_reduce", ""),
        ("aten::linalg_lu_solve", ""),
        ("aten::native_batch_norm_backward", ""),
        ("prims::device_put", ""),
    ],
    ids="{0[0]}".format,
)
def test_operators_that_do_more_than_compute_are_refused(name: tuple[str, str]) -> None:
    with pytest.raises(PlanError):
        find_operator(*name)


def test_every_listed_operator_is_found_and_functional() -> None:
    """The list names what there is: each name has an overload that programs may call, and none that writes."""
    overloads: dict[str, list[str]] = {}
    for found in torch._C._dispatch_get_all_op_names():
        name, _, overload = found.partition(".")
        overloads.setdefault(name, []).append(overload)
    unknown = []
    for namespace, names in allowed_operators().items():
        for base in names:
            name = f"{namespace}::{base}"
            operators = [_found(name, overload) for overload in overloads.get(name, [])]
            assert not any(operator._schema.is_mutable for operator in operators if operator is not None)
            if not any(operators):
                unknown.append(name)
    assert len(unknown) < 40, unknown  # names come and go with releases of PyTorch


def _found(name: str, overload: str) -> Any:
    try:
        return find_operator(name, overload)
    except PlanError:
        return None


UNREVIEWED = {
    "memory of somebody else": _operator("aten::empty.memory_format", [[3, 3]], [3, 3]),
    "memory of somebody else, like another": _operator("aten::empty_like", [{"value": 1}], [3, 3]),
    "a view of any shape": _operator("aten::as_strided", [{"value": 1}, [3, 3], [3, 1]], [3, 3]),
    "a copy of any shape": _operator("aten::as_strided_copy", [{"value": 1}, [3, 3], [3, 1]], [3, 3]),
    "new memory": _operator("aten::new_empty", [{"value": 1}, [3, 3]], [3, 3]),
    "new memory with strides": _operator("aten::new_empty_strided", [{"value": 1}, [3, 3], [3, 1]], [3, 3]),
    "elements put anywhere": _operator(
        "aten::as_strided_scatter", [{"value": 1}, {"value": 1}, [3, 3], [3, 1]], [3, 3]
    ),
    "trials": _operator("aten::binomial", [{"value": 1}, {"value": 1}], [3, 3]),
    "a power of a matrix": _operator("aten::matrix_power", [{"value": 1}, 2], [3, 3]),
    "eigenvalues": _operator("aten::linalg_eigvals", [{"value": 1}], [3], dtype="complex64"),
    "a message to other processes": _operator("_c10d_functional::all_reduce", [{"value": 1}, "sum", "0"], [3, 3]),
}


@pytest.mark.parametrize("change", UNREVIEWED.values(), ids=UNREVIEWED.keys())
def test_operators_without_a_contract_need_trust(
    parts: ProgramFile, path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    change(parts.graph)
    name = parts.graph["steps"][-1]["name"].replace("::", ".")
    with pytest.raises(PlanError, match=f"calls {name}.*only programs may call that are trusted") as caught:
        load(parts.write(path))
    assert "it is not signed" in caught.value.why and "trust=True" in caught.value.hint
    load(path, trust=True)


def test_whoever_names_the_library_of_collectives_trusts_it(parts: ProgramFile, path: Path) -> None:
    UNREVIEWED["a message to other processes"](parts.graph)
    load(parts.write(path), operators=["_c10d_functional"])


def test_whatever_is_reviewed_is_allowed() -> None:
    for namespace, names in reviewed_operators().items():
        assert names <= allowed_operators()[namespace]
        assert not any(name.startswith(("empty", "new_empty", "as_strided", "rnn", "lstm", "gru")) for name in names)


def test_sizes_of_a_chain_of_engines_are_said_while_they_are_short(parts: ProgramFile, path: Path) -> None:
    """An engine may say the size before it twice; so each of a chain makes what is said of it twice as long."""
    graph = parts.graph
    call, first = _step("engine")(graph), len(graph["signature"]["leaves"]) + len(graph["tensors"])
    graph["engines"][call["engine"]]["header"]["outputs"][0]["shape"][0] = ["max", "s0", "s0"]
    graph["steps"] = [{**call, "inputs": [first + at - 1 if at else 0]} for at in range(64)]
    graph["output"] = {"value": first + 63}
    module = load(parts.write(path))
    (output,) = module.outputs
    assert str(output.shape[0]) == "?"
    main(["inspect", str(path)])


@pytest.mark.parametrize("number", [0, 1, 2, -1, 1 << 47])
@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("roll", lambda many: [hostile_files.value(0), many, many]),
        ("repeat", lambda many: [hostile_files.value(0), many]),
        ("full", lambda many: [many, 1.0]),
        ("flip", lambda many: [hostile_files.value(0), many]),
        ("constant_pad_nd", lambda many: [hostile_files.value(0), many]),
    ],
)
def test_lists_of_more_numbers_than_there_are_axes_are_refused(
    name: str, args: Callable[[list[int]], list[Any]], number: int
) -> None:
    """Some kernels call themselves for each number, which ended the process, others took half a minute."""
    result = hostile_files.tensor_type(torch.float32, None)
    step = hostile_files.operator(name, args([number] * 20_000), result)
    parts = hostile_files.program([(torch.float32, (4,))], [step], hostile_files.value(1))
    with pytest.raises(PlanError, match="20000 numbers, more than there are axes"):
        program_from_memory(bytearray(parts.to_bytes()))


def test_tensors_may_be_cut_into_many_pieces() -> None:
    pieces = [hostile_files.tensor_type(torch.float32, 1)] * 1000
    step = hostile_files.operator("split_with_sizes", [hostile_files.value(0), [1] * 1000], pieces)
    item = {"do": "item", "sequence": 1, "index": 999}
    parts = hostile_files.program([(torch.float32, (1000,))], [step, item], hostile_files.value(2))
    assert program_from_memory(bytearray(parts.to_bytes()))(torch.arange(1000.0)).tolist() == [999.0]


def test_outputs_of_engines_have_no_more_extents_than_tensors_have(parts: ProgramFile) -> None:
    """Their product took minutes for some kilobytes."""
    parts.graph["engines"][0]["header"]["outputs"][0]["shape"] = [(1 << 63) - 1] * 65
    with pytest.raises(PlanError, match="is not a shape"):
        program_from_memory(bytearray(parts.to_bytes()))
