"""Models in ONNX's format with one to four changes that know the format, and what must hold of each.

A parser says whether a network has the whole model, and tells why not; nothing else leaves it, it takes no time and no
memory to speak of, whatever the model is. What is parsed may be built and run, in memory between guards.

Run as a program, ``python tests/support/onnx_fuzzer.py SEED COUNT``, a crash takes down nobody else. The last line of
what it writes to standard error names the case; it prints one line of JSON.
"""

from __future__ import annotations

import json
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import plan_fuzzer
import torch
from google.protobuf.descriptor import FieldDescriptor
from onnx import TensorProto, helper, numpy_helper

import trt_portable as trt

SECONDS: Final = 20
"""Of a processor. No model may take as long; each honest one takes some hundredths."""
MEMORY: Final = 4 << 30
"""Bytes of address space that models may add; what is refused for lack of them should have been refused before."""

INTEGERS: Final = (
    *(-(2**63), -(2**31), -129, -2, -1, 0, 1, 2, 3, 5, 8, 64, 65, 255),
    *(2**16, 2**24, 2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1),
)
FLOATS: Final = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-38, 1e38, float("inf"), float("-inf"), float("nan"))
TEXTS: Final = (
    "",
    "x",
    "y",
    "a\x00b",
    "../x",
    "/dev/zero",
    "ai.onnx",
    "x" * 5000,
    "\x1b[2J",
    "%s{0}",
    "ij,jk->ik",
    "NOTSET",
)
OPERATORS: Final = (
    *(
        "Add",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Conv",
        "Einsum",
        "Expand",
        "Flatten",
        "Gather",
        "GatherND",
        "Gemm",
    ),
    *("If", "Identity", "LSTM", "Loop", "MatMul", "MaxPool", "NonMaxSuppression", "NonZero", "OneHot", "Pad", "Range"),
    *(
        "ReduceSum",
        "Reshape",
        "Resize",
        "Scan",
        "ScatterND",
        "Shape",
        "Slice",
        "Softmax",
        "Split",
        "Squeeze",
        "Tile",
        "TopK",
    ),
    *(
        "Transpose",
        "Unsqueeze",
        "Where",
        "QuantizeLinear",
        "DequantizeLinear",
        "RandomUniform",
        "SequenceConstruct",
        "F",
    ),
)

Make = Callable[[Path], onnx.ModelProto]


def _float(name: str, *shape: int | str) -> Any:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _array(name: str, values: Any, dtype: Any = np.int64) -> Any:
    return numpy_helper.from_array(np.array(values, dtype), name)


def _model(nodes: list[Any], inputs: list[Any], outputs: list[Any], constants: list[Any], functions: Any = ()) -> Any:
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 18), *([helper.make_opsetid("own", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=9)


def _dense(folder: Path) -> Any:
    weights = np.random.default_rng(0).random((4, 8), np.float32)
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], alpha=0.5, transB=0),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Softmax", ["r"], ["y"], axis=-1),
    ]
    return _model(
        nodes,
        [_float("x", "n", 4)],
        [_float("y", "n", 8)],
        [_array("w", weights, np.float32), _array("b", [0.0] * 8, np.float32)],
    )


def _image(folder: Path) -> Any:
    weights = np.random.default_rng(0).random((4, 3, 3, 3), np.float32)
    ones = [_array(name, [1.0] * 4, np.float32) for name in ("s", "b", "m", "v")]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2], dilations=[1, 1], group=1),
        helper.make_node("BatchNormalization", ["c", "s", "b", "m", "v"], ["n"]),
        helper.make_node("MaxPool", ["n"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        helper.make_node("Resize", ["p", "", "scales"], ["z"], mode="linear"),
        helper.make_node("Pad", ["z", "pads"], ["q"]),
        helper.make_node("GlobalAveragePool", ["q"], ["y"]),
    ]
    constants = [
        _array("w", weights, np.float32),
        *ones,
        _array("scales", [1, 1, 2, 2], np.float32),
        _array("pads", [0, 0, 1, 1, 0, 0, 1, 1]),
    ]
    return _model(nodes, [_float("x", 1, 3, 8, 8)], [_float("y", 1, 4, 1, 1)], constants)


def _shapes(folder: Path) -> Any:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["t"], axis=0),
        helper.make_node("Reshape", ["x", "t"], ["r"]),
        helper.make_node("ConstantOfShape", ["t"], ["f"], value=_array("", [2.0], np.float32)),
        helper.make_node("Expand", ["one", "t"], ["e"]),
        helper.make_node("Add", ["r", "f"], ["a"]),
        helper.make_node("Mul", ["a", "e"], ["m"]),
        helper.make_node("Tile", ["m", "twice"], ["u"]),
        helper.make_node("Slice", ["u", "zero", "end", "one_axis"], ["c"]),
        helper.make_node("Split", ["c"], ["l", "k"], axis=1, num_outputs=2),
        helper.make_node("Transpose", ["l"], ["y"], perm=[1, 0]),
    ]
    constants = [
        *(_array("zero", [0]), _array("rest", [6]), _array("one", [1.0], np.float32), _array("twice", [1, 2])),
        *(_array("end", [8]), _array("one_axis", [1])),
    ]
    return _model(nodes, [_float("x", 2, 2, 3)], [_float("y", 4, 2)], constants)


def _body(*names: str) -> Any:
    nodes = [
        helper.make_node("Add", ["state", "x"], ["next"]),
        helper.make_node("Identity", ["go"], ["on"]),
        helper.make_node("Identity", ["next"], ["row"]),
    ]
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        _float("state", 4),
    ]
    outputs = [helper.make_tensor_value_info("on", TensorProto.BOOL, []), _float("next", 4), _float("row", 4)]
    return helper.make_graph(nodes, "body", inputs, outputs)


def _loop(folder: Path) -> Any:
    nodes = [helper.make_node("Loop", ["count", "yes", "x"], ["last", "rows"], body=_body())]
    return _model(
        nodes,
        [_float("x", 4)],
        [_float("last", 4), _float("rows", 3, 4)],
        [_array("count", 3), _array("yes", True, np.bool_)],
    )


def _choice(folder: Path) -> Any:
    def branch(name: str, operator: str) -> Any:
        return helper.make_graph([helper.make_node(operator, ["x"], [name])], name, [], [_float(name, 4)])

    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node("If", ["c"], ["y"], then_branch=branch("a", "Exp"), else_branch=branch("b", "Neg")),
    ]
    return _model(nodes, [_float("x", 4)], [_float("y", 4)], [_array("zero", 0.0, np.float32)])


def _function(folder: Path) -> Any:
    inner = helper.make_function(
        "own",
        "F",
        ["a"],
        ["c"],
        [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Add", ["b", "a"], ["c"])],
        [helper.make_opsetid("", 18)],
    )
    outer = helper.make_function(
        "own",
        "G",
        ["a"],
        ["c"],
        [helper.make_node("F", ["a"], ["b"], domain="own"), helper.make_node("F", ["b"], ["c"], domain="own")],
        [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)],
    )
    nodes = [helper.make_node("G", ["x"], ["z"], domain="own"), helper.make_node("F", ["z"], ["y"], domain="own")]
    return _model(nodes, [_float("x", 4)], [_float("y", 4)], [], [inner, outer])


def _recurrent(folder: Path) -> Any:
    random_ = np.random.default_rng(0)
    constants = [
        _array("w", random_.random((1, 16, 3)), np.float32),
        _array("r", random_.random((1, 16, 4)), np.float32),
        _array("b", random_.random((1, 32)), np.float32),
    ]
    nodes = [helper.make_node("LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=4, direction="forward")]
    return _model(nodes, [_float("x", 5, 2, 3)], [_float("y", 5, 1, 2, 4)], constants)


def _places(folder: Path) -> Any:
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["v", "i"], axis=1),
        helper.make_node("GatherND", ["x", "at"], ["g"]),
        helper.make_node("OneHot", ["at", "depth", "values"], ["o"]),
        helper.make_node("Einsum", ["v", "v"], ["y"], equation="ij,kj->ik"),
        helper.make_node("NonZero", ["x"], ["n"]),
        helper.make_node("Range", ["start", "stop", "step"], ["q"]),
        helper.make_node("QuantizeLinear", ["x", "scale"], ["u"]),
    ]
    constants = [
        *(_array("k", [2]), _array("at", [[0, 1]]), _array("depth", 5), _array("values", [0.0, 1.0], np.float32)),
        *(_array("start", 0), _array("stop", 9), _array("step", 2), _array("scale", 0.1, np.float32)),
    ]
    return _model(nodes, [_float("x", 3, 4)], [_float("y", 3, 3), _float("g", 1), _float("o", 1, 2, 5)], constants)


def _beside(folder: Path) -> Any:
    model = _dense(folder)
    weights = model.graph.initializer[0]
    (folder / "weights.bin").write_bytes(weights.raw_data)
    weights.ClearField("raw_data")
    weights.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", "128")):
        entry = weights.external_data.add()
        entry.key, entry.value = key, value
    return model


def _texts(folder: Path) -> Any:
    words = helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"b"])
    nodes = [helper.make_node("Identity", ["t"], ["u"]), helper.make_node("Relu", ["x"], ["y"])]
    return _model(nodes, [_float("x", 4)], [_float("y", 4)], [words])


MODELS: Final[tuple[Make, ...]] = (
    _dense,
    _image,
    _shapes,
    _loop,
    _choice,
    _function,
    _recurrent,
    _places,
    _beside,
    _texts,
)


# Changes -------------------------------------------------------------------------------------------------------------


def _messages(message: Any) -> Iterator[Any]:
    pending = [message]
    while pending:
        one = pending.pop()
        yield one
        for field, value in one.ListFields():
            if field.message_type is not None:
                pending += value if field.is_repeated else [value]


def change(model: Any, chance: random.Random) -> None:
    """Changes one place of a model."""
    messages = list(_messages(model))
    message = chance.choice(messages)
    kind = chance.randrange(12)
    if kind == 0:  # a graph in itself, or a function that calls itself
        _nest(model, chance)
        return
    if kind == 1:
        nodes = [one for one in messages if one.DESCRIPTOR.name == "NodeProto"]
        if nodes:
            node = chance.choice(nodes)
            node.op_type = chance.choice(OPERATORS)
            if chance.random() < 0.2:
                node.domain = chance.choice(("", "own", "ai.onnx.ml", "com.microsoft"))
        return
    if kind == 2:  # names lead elsewhere
        names = [name for one in messages if one.DESCRIPTOR.name == "NodeProto" for name in (*one.input, *one.output)]
        nodes = [one for one in messages if one.DESCRIPTOR.name == "NodeProto"]
        if nodes and names:
            node = chance.choice(nodes)
            ends = node.input if chance.random() < 0.7 or not node.output else node.output
            if ends:
                ends[chance.randrange(len(ends))] = chance.choice(names)
            else:
                ends.append(chance.choice(names))
        return
    tensors = [one for one in messages if one.DESCRIPTOR.name == "TensorProto"]
    if kind in (3, 4) and tensors:
        _change_tensor(chance.choice(tensors), chance)
        return
    fields = [field for field in message.DESCRIPTOR.fields if kind == 5 or _is_set(message, field)]
    if not fields:
        return
    _change_field(message, chance.choice(fields), chance)


def _is_set(message: Any, field: Any) -> bool:
    return bool(getattr(message, field.name)) if field.is_repeated else message.HasField(field.name)


def _change_tensor(tensor: Any, chance: random.Random) -> None:
    choice = chance.randrange(6)
    if choice == 0:
        tensor.data_type = chance.randrange(30)
    elif choice == 1 and tensor.dims:
        tensor.dims[chance.randrange(len(tensor.dims))] = chance.choice(INTEGERS)
    elif choice == 2:
        del tensor.dims[:]
        tensor.dims.extend([chance.choice((1, 2, 0, 2**31, 2**62))] * chance.choice((1, 3, 9, 65)))
    elif choice == 3 and tensor.raw_data:
        width = max(len(tensor.raw_data) // chance.choice((1, 2, 4, 8)), 1)
        number = (
            chance.choice(INTEGERS).to_bytes(8, "little", signed=True)
            if chance.random() < 0.7
            else np.float64(chance.choice(FLOATS)).tobytes()
        )
        at = chance.randrange(0, len(tensor.raw_data), min(width, 8))
        tensor.raw_data = (tensor.raw_data[:at] + number + tensor.raw_data[at + 8 :])[: len(tensor.raw_data)]
    elif choice == 4:
        tensor.raw_data = tensor.raw_data[: chance.randrange(len(tensor.raw_data) + 1)]
    else:
        tensor.data_location = TensorProto.EXTERNAL
        for entry in tensor.external_data:
            entry.value = chance.choice(
                ("weights.bin", "../x", "/dev/zero", "", "0", "-1", "9" * 30, "9" * 5000, "x\x00y", ".")
            )
            if chance.random() < 0.5:
                return


def _change_field(message: Any, field: Any, chance: random.Random) -> None:
    if field.is_repeated:
        values = getattr(message, field.name)
        choice = chance.randrange(4)
        if values and choice == 0:
            del values[chance.randrange(len(values))]
        elif values and choice == 1:
            values.extend([values[chance.randrange(len(values))]] * chance.choice((1, 1, 2, 70)))
        elif field.message_type is None:
            value = _scalar(field, chance)
            if values and choice == 2:
                values[chance.randrange(len(values))] = value
            else:
                values.append(value)
        elif choice == 3 and len(values) > 1:
            values[0].CopyFrom(values[-1])
        return
    if field.message_type is not None:
        if chance.random() < 0.5:
            message.ClearField(field.name)
        else:
            getattr(message, field.name).SetInParent()
        return
    if chance.random() < 0.15:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _scalar(field, chance))


def _scalar(field: Any, chance: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return chance.choice((*TEXTS, *OPERATORS))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return chance.choice(TEXTS).encode()
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return chance.choice(FLOATS)
    if field.type == FieldDescriptor.TYPE_ENUM:
        return chance.choice(field.enum_type.values).number
    bits = 32 if field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32) else 64
    low = 0 if field.type in (FieldDescriptor.TYPE_UINT32, FieldDescriptor.TYPE_UINT64) else -(1 << (bits - 1))
    return chance.choice([number for number in INTEGERS if low <= number < 1 << (bits - 1)])


def _nest(model: Any, chance: random.Random) -> None:
    holders = [
        one
        for one in _messages(model)
        if one.DESCRIPTOR.name == "NodeProto" and any(part.HasField("g") for part in one.attribute)
    ]
    if model.functions and chance.random() < 0.5:
        for function in model.functions:
            for node in function.node:
                node.op_type, node.domain = chance.choice(("F", "G")), "own"
        return
    if not holders:
        return
    inner = onnx.NodeProto()
    inner.CopyFrom(chance.choice(holders))
    for _ in range(chance.choice((1, 3, 12))):
        outer = onnx.NodeProto()
        outer.CopyFrom(inner)
        for part in outer.attribute:
            if part.HasField("g"):
                part.g.node.append(inner)
        inner = outer
        if inner.ByteSize() > 1 << 18:
            break
    model.graph.node.append(inner)


# Cases ---------------------------------------------------------------------------------------------------------------


def outcome(model: bytes, path: Path, chance: random.Random) -> str:
    """Parses a model, and builds and runs some; says how that ended.

    Raises:
        Exception: What should not leave the API did.
    """
    builder = trt.Builder(trt.Logger(trt.Logger.INTERNAL_ERROR))
    network = builder.create_network()
    parser = trt.OnnxParser(network, trt.Logger(trt.Logger.INTERNAL_ERROR))
    whole = chance.random() < 0.2 and parser.supports_model_v2(model, str(path))
    if not parser.parse(model, str(path)):
        assert parser.num_errors, "a refusal without a reason"
        for index in range(parser.num_errors):
            str(parser.get_error(index))
        return "refused"
    del whole
    if chance.random() < 0.5:
        return "parsed"
    config = builder.create_builder_config()
    config.builder_optimization_level = 0
    profile = builder.create_optimization_profile()
    for index in range(network.num_inputs):
        end = network.get_input(index)
        shape = [extent if extent >= 0 else 2 for extent in end.shape]
        if -1 in tuple(end.shape):
            profile.set_shape(end.name, shape, shape, shape)
    config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    return "not built" if plan is None else plan_fuzzer.run(bytes(plan), chance)


def main(seed: int, count: int) -> dict[str, Any]:
    """Tries a number of changed models, each by a seed of its own."""
    torch.set_num_threads(1)
    ends: Counter[str] = Counter()
    wrong: dict[int, str] = {}

    def late(*_: object) -> None:
        raise TimeoutError("a model takes too long")

    signal.signal(signal.SIGPROF, late)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "models")
        folder.mkdir()
        path = folder / "model.onnx"
        honest = [make(folder).SerializeToString() for make in MODELS]
        for content in honest:
            outcome(content, path, random.Random(0))
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(seed, seed + count):
            sys.stderr.write(f"{number}\n")
            sys.stderr.flush()
            chance = random.Random(number)
            torch.manual_seed(number)
            model = onnx.ModelProto.FromString(chance.choice(honest))
            for _ in range(chance.choice((1, 1, 2, 4))):
                change(model, chance)
            try:
                content = model.SerializeToString()
            except (ValueError, RuntimeError):
                continue  # what the format cannot say
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                ends[outcome(content, path, chance)] += 1
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                wrong[number] = f"{type(error).__name__}: {str(error)[:200]}"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return {"ends": ends, "wrong": wrong, "grown": grown}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))) + "\n")
