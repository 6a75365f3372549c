"""Programs that are small and valid, and of which reading, calling or describing could take far more than they have.

`long_to_read` yields names and acts, as functions of `hostile_files` do: each loads, calls, describes and saves a
program in which something stands in the place of everything else: inputs, sizes, names, keys, branches.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from hostile_files import Act, folder, operator, program, tensor_type, value
from program_files import ProgramFile

from trt_runtime import save
from trt_runtime.command_line.inspection import inspect_file
from trt_runtime.program.loading import program_from_memory

_F32: Final = torch.float32
_ROW: Final = tensor_type(_F32, 4)
_RELU: Final = [operator("relu", [value(0)], _ROW)]

Made = tuple[ProgramFile, list[torch.Tensor]]


def _rows(count: int = 1) -> list[torch.Tensor]:
    return [torch.ones(4) for _ in range(count)]


def _given(count: int, shape: tuple[int, ...] = (4,)) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    return [(_F32, shape)] * count


def _chain(count: int) -> Made:
    return program(_given(1), [operator("relu", [value(at)], _ROW) for at in range(count)], value(count)), _rows()


def _inputs(count: int) -> Made:
    return program(_given(count), _RELU, value(count)), _rows(count)


def _symbols(count: int) -> Made:
    steps = [operator("relu", [value(0)], tensor_type(_F32, "s0_0"))]
    return program(_given(count, (-4,)), steps, value(count)), _rows(count)


def _profiles(count: int) -> Made:
    parts, given = _symbols(max(int(count**0.5), 2))
    parts.graph["profiles"] = [dict(parts.graph["symbols"]) for _ in given]
    return parts, given


def _conditions(count: int) -> Made:
    parts, given = _symbols(1)
    parts.graph["signature"]["conditions"] = [[["s0_0", "ge", 1]]] * count
    return parts, given


def _nested_sizes(count: int) -> Made:
    size: Any = "s0_0"
    for _ in range(30):
        size = ["max", size, "s0_0"]
    each = max(count // 60, 1)
    steps = [operator("relu", [value(at)], tensor_type(_F32, size)) for at in range(each)]
    return program(_given(1, (-4,)), steps, value(each)), _rows()


def _held(names: list[str]) -> Made:
    held = {name: torch.ones(1) for name in names}
    return program(_given(1), _RELU, value(len(names) + 1), held), _rows()


def _shared(count: int) -> Made:
    parts, given = _held(["a"])
    (entry,) = parts.graph["tensors"]
    parts.graph["tensors"] = [{**entry, "names": [f"a{at}"]} for at in range(count)]
    parts.graph["output"] = value(count + 1)
    return parts, given


def _tied(count: int) -> Made:
    parts, given = _held(["a"])
    parts.graph["tensors"][0]["names"] = [f"a{at}" for at in range(count)]
    return parts, given


def _tied_in_modules(count: int) -> Made:
    parts, given = _held(["a"])
    parts.graph["tensors"][0]["names"] = [".".join([f"m{at}", *["a"] * 120]) for at in range(count)]
    return parts, given


def _written(count: int) -> Made:
    writes = [{"do": "write", "target": at, "source": count} for at in range(count)]
    return program(_given(count), [*_RELU, *writes], value(count)), _rows(count)


def _written_held(count: int) -> Made:
    parts, given = _held([f"a{at}" for at in range(count)])
    parts.graph["steps"] += [{"do": "write", "target": 1 + at, "source": count + 1} for at in range(count)]
    return parts, given


def _long_keys(leaf: Any, length: int, count: int) -> Made:
    return program(_given(1), _RELU, {"dict": [["k" * length, {"tuple": [leaf] * count}]]}), _rows()


def _long_keys_of_inputs(length: int, count: int) -> Made:
    parts, given = program(_given(count), [], value(0)), _rows(count)
    tree = {"dict": [["k" * length, {"tuple": [value(at) for at in range(count)]}]]}
    parts.graph["signature"].update(names=["x"], positional=1, structure=[tree])
    return parts, given


def _nested_results(count: int) -> Made:
    tree: Any = value(1)
    for _ in range(28):
        tree = {"tuple": [tree]}
    return program(_given(1), _RELU, {"tuple": [copy.deepcopy(tree) for _ in range(max(count // 28, 1))]}), _rows()


def _joined(count: int) -> Made:
    steps = [operator("cat", [[value(0)] * count], tensor_type(_F32, 4 * count))]
    return program(_given(1), steps, value(1)), _rows()


def _pieces(count: int) -> Made:
    split = operator("split.Tensor", [value(0), 1], [tensor_type(_F32, 1)] * count)
    items = [{"do": "item", "sequence": 1, "index": at} for at in range(count)]
    return program(_given(1, (count,)), [split, *items], value(2)), [torch.ones(count)]


def _numbers(count: int) -> Made:
    steps: list[dict[str, Any]] = [{"do": "size", "tensor": 0, "axis": 0}]
    steps += [{"do": "number", "function": "add", "args": [value(at + 1), 0]} for at in range(count)]
    return program(_given(1), steps, value(count + 1)), _rows()


def _branch(body: dict[str, Any], operands: list[Any]) -> dict[str, Any]:
    return {
        "do": "control_flow",
        "operator": "cond",
        "bodies": [body, body],
        "operands": [[True], operands],
        "result": [_ROW],
    }


def _branches(count: int, operands: int) -> Made:
    body = {"inputs": [_ROW] * operands, "steps": [], "output": [value(0)]}
    steps: list[dict[str, Any]] = []
    for at in range(0, 2 * count, 2):
        steps += [_branch(body, [value(at)] * operands), {"do": "item", "sequence": at + 1, "index": 0}]
    return program(_given(1), steps, value(len(steps))), _rows()


def _equation(count: int) -> Made:
    equation = ",".join("i" * count) + "->i"
    return program(_given(1), [operator("einsum", [equation, [value(0)] * count], _ROW)], value(1)), _rows()


def _act(make: Callable[[], Made]) -> None:
    parts, given = make()
    content = parts.to_bytes()
    path = folder() / "structure.trtp"
    path.write_bytes(content)
    inspect_file(path)
    module = program_from_memory(bytearray(content))
    for _ in range(2):
        module(*given)
    for described in (module, module.inputs, module.outputs, module._repr_html_(), module.state_dict()):
        repr(described)
    save(copy.deepcopy(module), path)


def long_to_read() -> Iterator[tuple[str, Act]]:
    """One part of a program in the place of all others, a few and many times; and long keys around many leaves."""
    kinds: dict[str, Callable[[int], Made]] = {
        "steps": _chain,
        "inputs": _inputs,
        "sizes": _symbols,
        "profiles": _profiles,
        "conditions": _conditions,
        "sizes of sizes": _nested_sizes,
        "tensors": lambda count: _held([f"a{at}" for at in range(count)]),
        "modules": lambda count: _held([".".join([f"m{at}", *["a"] * 120]) for at in range(max(count // 60, 1))]),
        "tensors in one place": _shared,
        "names of one tensor": _tied,
        "names in modules": _tied_in_modules,
        "inputs that are written": _written,
        "tensors that are written": _written_held,
        "results": _nested_results,
        "operands": _joined,
        "pieces": _pieces,
        "numbers": _numbers,
        "branches": lambda count: _branches(count // 2, 1),
        "operands of branches": lambda count: _branches(8, count // 4),
        "labels": lambda count: _equation(min(count, 1000)),
    }
    for (name, make), count in itertools.product(kinds.items(), (0, 1, 300, 3000)):
        yield f"{count} {name}", functools.partial(_act, functools.partial(make, count))
    for length, count in itertools.product((1 << 10, 1 << 17, 1 << 20), (10, 1 << 10, 1 << 14)):
        for leaf in (value(1), 1, "text"):
            yield (
                f"keys of {length} around {count} of {leaf}",
                functools.partial(_act, functools.partial(_long_keys, leaf, length, count)),
            )
        if count <= 1 << 10:
            yield (
                f"keys of {length} around {count} inputs",
                functools.partial(_act, functools.partial(_long_keys_of_inputs, length, count)),
            )
