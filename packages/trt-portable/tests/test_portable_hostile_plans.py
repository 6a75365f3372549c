"""Plans that are sealed and hostile: nothing is read or written beyond an operand, and no number ends the process."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plan_fuzzer
import pytest
import torch
from fresh_process import run_python
from guarded_memory import GUARDS_VARIABLE, GuardedCompute, guarded

import trt_portable as trt
from trt_core.files.typed import BadField
from trt_portable.errors import Refusal
from trt_portable.kernels.operands import attend
from trt_portable.network.serialization import layers_from_json
from trt_portable.plan.plan_file import read_plan, write_plan

CASES = int(os.environ.get("TRT_FUZZ_PLANS", "100")) // 2
SEED = int(os.environ.get("TRT_FUZZ_SEED", "0"))
CHUNK = 2500


def _changed(name: str, change: Callable[[dict[str, Any]], Any], *, agree: bool = True) -> bytes:
    """A known network with a changed structure, whose bindings say what its tensors say."""
    plan = read_plan(plan_fuzzer.NETWORKS[name]())
    structure = json.loads(json.dumps(plan.structure))
    structure["engine"]["prepacked"] = True
    change(structure)
    if agree:
        plan_fuzzer._agree(structure)
    parts = {part: structure[part] for part in ("network", "engine")}
    return bytes(write_plan(parts, plan.weights, structure["features"]))


def _tensor(structure: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(tensor for tensor in structure["network"]["tensors"] if tensor["name"] == name)
    return found


def _layer(structure: dict[str, Any], kind: str) -> dict[str, Any]:
    found: dict[str, Any] = next(layer for layer in structure["network"]["layers"] if layer["type"] == kind)
    return found


def _input_shape(name: str, shape: list[int]) -> Callable[[dict[str, Any]], Any]:
    return lambda structure: _tensor(structure, name).update(shape=shape)


def _attribute(kind: str, name: str, value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda structure: _layer(structure, kind)["attributes"].update({name: value})


def _lstm_states(rows: int) -> Callable[[dict[str, Any]], Any]:
    """The constants that are states before the first step get fewer sequences than the input has."""

    def change(structure: dict[str, Any]) -> None:
        states = structure["network"]["layers"]
        loop = _layer(structure, "LOOP")
        for place in loop["recurrence"]["states"]:
            tensor = loop["inputs"][place]
            maker = next(layer for layer in states if tensor in layer["outputs"])
            maker["attributes"]["shape"] = [rows, 12 // rows]
            structure["network"]["tensors"] = [
                {**entry, "shape": [rows, 12 // rows]} if entry["id"] == tensor else entry
                for entry in structure["network"]["tensors"]
            ]

    return change


HOSTILE: dict[str, Callable[[], bytes]] = {
    "rows wider than a matrix": lambda: _changed("linear", _input_shape("x", [4, 32])),
    "rows narrower than a matrix": lambda: _changed("linear", _input_shape("x", [4, 8])),
    "a matrix read the other way": lambda: _changed("linear", _attribute("LINEAR", "is_transposed", False)),
    "values longer than keys": lambda: _changed("attention", _input_shape("v", [1, 4, 700, 8])),
    "fewer values than keys": lambda: _changed("attention", _input_shape("v", [1, 4, 1, 8])),
    "keys of other heads": lambda: _changed("attention", _input_shape("k", [1, 2, 7, 8])),
    "a stride of 0": lambda: _changed("convolution", _attribute("CONVOLUTION", "stride_nd", [0, 0])),
    "a negative padding": lambda: _changed("convolution", _attribute("CONVOLUTION", "pre_padding", [-5, -5])),
    "no dilation": lambda: _changed("convolution", _attribute("DECONVOLUTION", "dilation_nd", [0, 0])),
    "groups that do not divide": lambda: _changed("convolution", _attribute("CONVOLUTION", "num_groups", 3)),
    "no groups": lambda: _changed("convolution", _attribute("CONVOLUTION", "num_groups", 0)),
    "a pooling stride of 0": lambda: _changed("convolution", _attribute("POOLING", "stride_nd", [0, 0])),
    "a padding of 2^31": lambda: _changed("convolution", _attribute("DECONVOLUTION", "pre_padding", [2**31, 2**31])),
    "more channels than a kernel": lambda: _changed("convolution", _input_shape("x", [1, 8, 9, 9])),
    "states of fewer sequences": lambda: _changed("lstm", _lstm_states(1)),
    "a state for one sequence each": lambda: _changed("lstm", _lstm_states(12)),
    "codes read by another kernel": lambda: _changed(
        "codes", lambda structure: _layer(structure, "PREPARED_MATRIX").update(implementation="dequantize")
    ),
    "a product of other columns": lambda: _changed("codes", _attribute("LOW_PRECISION_PRODUCT", "columns", 64)),
    "a product of another depth": lambda: _changed("codes", _attribute("LOW_PRECISION_PRODUCT", "depth", 64)),
}


def _shapes_as_attention(structure: dict[str, Any]) -> None:
    shapes = [layer for layer in structure["network"]["layers"] if layer["type"] == "SHAPE"]
    shapes[-1]["type"] = "ATTENTION_INPUT"


def test_a_layer_that_makes_fewer_results_than_it_has() -> None:
    """It left the interface as a foreign error, when somebody asked for the size of an output."""
    assert plan_fuzzer.run(_changed("shapes", _shapes_as_attention, agree=False), random.Random(0)) != "ran"


def test_a_layer_that_makes_more_results_than_it_has() -> None:
    """It left the interface as a foreign error in the run itself."""

    def change(structure: dict[str, Any]) -> None:
        structure["network"]["layers"][0]["type"] = "CONDITIONAL_INPUT"
        structure["network"]["layers"][1]["implementation"] = "layers"

    assert plan_fuzzer.run(_changed("attention", change, agree=False), random.Random(0)) != "ran"


def test_a_layer_that_lacks_an_input_is_refused_when_the_plan_is_read() -> None:
    plan = _changed("linear", lambda structure: _layer(structure, "ACTIVATION").update(inputs=[None]), agree=False)
    with pytest.raises(Refusal, match="lacks an input"):
        layers_from_json(read_plan(plan).structure["network"])
    assert plan_fuzzer.run(plan, random.Random(0)) == "refused"


@pytest.mark.parametrize("axis", ["x", "-1", "\u0661", "9", "9" * 5000])
def test_names_of_axes_that_are_none_are_refused(axis: str) -> None:
    def change(structure: dict[str, Any]) -> None:
        structure["network"]["tensors"][0]["dimension_names"] = {axis: "n"}

    plan = _changed("linear", change, agree=False)
    with pytest.raises(BadField, match="an axis with a name"):
        layers_from_json(read_plan(plan).structure["network"])
    assert plan_fuzzer.run(plan, random.Random(0)) == "refused"


def test_outputs_of_unknown_size_are_not_written() -> None:
    """Whoever bound memory was told nothing, since the layers take no inputs of these shapes."""
    plan = _changed("shapes", _shapes_as_attention, agree=False)
    engine = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    assert context.set_input_shape("x", (2, 6))
    held = {name: guarded(torch.ones(12) if name == "x" else torch.zeros(1)) for name in engine}
    for name, tensor in held.items():
        assert context.set_tensor_address(name, tensor.data_ptr())
    assert not context.execute_async_v3(0)


def test_extents_of_inputs_are_none_below_zero() -> None:
    """A plan whose profile says nothing of an input took any, and asking for the size of an output raised."""
    plan = _changed("linear", lambda structure: None)
    engine = trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(plan)
    context = engine.create_execution_context()
    for rows in (-1, -(2**31), -(2**63)):
        assert not context.set_input_shape("x", (rows, 16))
    assert context.set_input_shape("x", (3, 16))
    assert context.get_max_output_size(engine[1]) == 3 * 8 * 4


def test_inputs_in_other_formats_are_read_as_large_as_the_engine_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GUARDS_VARIABLE, "end")

    def change(structure: dict[str, Any]) -> None:
        structure["engine"]["io"][0]["format"] = "CHW32"

    assert plan_fuzzer.run(_changed("lstm", change, agree=False), random.Random(0)) in ("ran", "refused")


@pytest.mark.parametrize("side", ["end", "begin"])
def test_guarded_operands_are_what_they_are_in_each_run(side: str) -> None:
    """A program may write to a tensor that an engine takes again."""
    seen = []

    def compute(operands: Any) -> tuple[torch.Tensor]:
        seen.append(operands[0])
        return (operands[0] * 2,)

    step, x = GuardedCompute(compute, side), torch.ones(3)
    assert step([x])[0].tolist() == [2.0] * 3
    x.add_(1)
    assert step([x])[0].tolist() == [4.0] * 3
    assert seen[0] is seen[1] is not x  # what is packed of it stays


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_plan_neither_reads_nor_ends_the_process(
    make: Callable[[], bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them did one or the other once."""
    monkeypatch.setenv(GUARDS_VARIABLE, "end")
    assert plan_fuzzer.run(make(), random.Random(0)) in ("refused", "failed")


@pytest.mark.timeout(0)
@pytest.mark.parametrize("side", ["end", "begin"])
def test_changed_plans_between_guard_pages(side: str) -> None:
    """Fifty known networks with changed structures; ``nox -s stress`` runs 100,000, in processes of 2,500 each."""
    begin = SEED + (0 if side == "end" else 10_000_000)
    for first in range(begin, begin + CASES, CHUNK):
        last = min(first + CHUNK, begin + CASES)
        done = run_python(
            *(Path(plan_fuzzer.__file__), str(first), str(last)),
            env={GUARDS_VARIABLE: side},
            timeout=120.0 + last - first,
        )
        end = done.stdout.splitlines()[-2:]
        assert done.returncode == 0, (end, done.stderr[-2000:])
        assert {"ran", "refused"} <= json.loads(end[-1]).keys()


def test_guard_pages_guard() -> None:
    """The test above would fail: reading one element behind an operand ends a process."""
    script = """
import ctypes, sys, torch
sys.path.append(sys.argv[2])
from guarded_memory import guarded
x = guarded(torch.arange(6.0).reshape(2, 3).t(), sys.argv[1])
assert x.stride() == (1, 3) and x.sum() == 15
ctypes.string_at(x.data_ptr() + (24 if sys.argv[1] == "end" else -4), 4)
"""
    for side in ("end", "begin"):
        done = run_python(script, side, str(Path(plan_fuzzer.__file__).parent))
        assert done.returncode < 0, done.stderr


@pytest.mark.parametrize("name", plan_fuzzer.NETWORKS)
def test_honest_networks_run_between_guard_pages(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(GUARDS_VARIABLE, "end")
    outcome = plan_fuzzer.run(plan_fuzzer.NETWORKS[name](), random.Random(0))
    # random numbers divide by 0 or are no place or end, and a cache wants one address for input and output
    fails = name in ("integers", "places", "cache", "packed", "rotation", "sequences", "told")
    assert outcome == ("failed" if fails else "ran")


@pytest.mark.parametrize("dtype", [trt.int32, trt.int64, trt.int8])
@pytest.mark.parametrize("kind", ["DIV", "FLOOR_DIV"])
def test_the_least_integer_by_minus_one(network: Any, load: Any, execute: Any, dtype: Any, kind: str) -> None:
    x, y = (network.add_input(name, dtype, (6,)) for name in "xy")
    network.mark_output(network.add_elementwise(x, y, getattr(trt.ElementWiseOperation, kind)).get_output(0))
    carrier = {trt.int32: torch.int32, trt.int64: torch.int64, trt.int8: torch.int8}[dtype]
    least = torch.iinfo(carrier).min
    given = {
        "x": torch.tensor([least, least, 7, -7, 7, least], dtype=carrier),
        "y": torch.tensor([-1, 1, -1, 2, -2, 2], dtype=carrier),
    }
    (found,) = execute(load(network).create_execution_context(), given).values()
    rounded = [-4, -4] if kind == "FLOOR_DIV" else [-3, -3]
    assert found.tolist() == [least, least, -7, *rounded, least // 2]


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (0, 0), (2, 3)])
def test_attention_without_queries_or_keys(rows: int, columns: int) -> None:
    query, key, value = (torch.randn(1, 2, extent, 8) for extent in (rows, columns, columns))
    found = attend(query, key, value, None, is_causal=False, factor=1.0)
    wanted = torch.softmax(query @ key.mT, -1) @ value if columns else torch.zeros(1, 2, rows, 8)
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("values", [(1, 2, 5, 8), (1, 2, 2, 8), (1, 1, 3, 8), (2, 2, 3, 8)])
def test_attention_compares_values_with_keys(values: tuple[int, ...]) -> None:
    query, key = torch.randn(1, 2, 4, 8), torch.randn(1, 2, 3, 8)
    with pytest.raises(trt.errors.Refusal, match="attention cannot take operands"):
        attend(query, key, guarded(torch.randn(values)), None, is_causal=False, factor=1.0)
