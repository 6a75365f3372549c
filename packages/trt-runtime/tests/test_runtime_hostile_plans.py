"""Plans and headers that do not belong together, or say what is not so: none writes or computes what it should not."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_files
import hostile_records
import pytest
import torch
from program_files import ProgramFile
from small_networks import double, relu, summed_over_ranks

from trt_core import ExecutionError, PlanError, trt
from trt_core.log import provider_logger
from trt_runtime import Binding, PlanHeader, TRTModule, load, plan_from_bytes, plan_to_bytes, save
from trt_runtime.program.load_options import LoadOptions
from trt_runtime.program.loading import program_from_memory


def _with_structure(plan: torch.Tensor, change: Callable[[dict[str, Any]], Any]) -> torch.Tensor:
    """A plan of the portable provider with another structure and right checksums."""
    from trt_portable.plan.plan_file import read_plan, write_plan

    read = read_plan(bytes(plan.tolist()))
    structure = json.loads(json.dumps(read.structure))
    change(structure)
    rewritten = write_plan(
        {name: structure[name] for name in ("network", "engine")}, read.weights, structure["features"]
    )
    return torch.frombuffer(bytearray(rewritten), dtype=torch.uint8)


def _described(header: PlanHeader, plan: torch.Tensor, **changes: Any) -> PlanHeader:
    digest = hashlib.sha256(bytes(plan.tolist())).hexdigest()
    return dataclasses.replace(header, payload_sha256=digest, payload_bytes=plan.numel(), **changes)


def _shape_of_io(name: str, shape: list[int]) -> Callable[[dict[str, Any]], Any]:
    def change(structure: dict[str, Any]) -> None:
        for tensor in structure["engine"]["io"]:
            if tensor["name"] == name:
                tensor["shape"] = shape

    return change


class Guarded:
    """Memory in the middle of a larger piece, whose other bytes must stay."""

    def __init__(self, size: int) -> None:
        self.memory = torch.full((size + 8192,), 0xA5, dtype=torch.uint8)
        self.size = size

    @property
    def address(self) -> int:
        return self.memory.data_ptr() + 4096

    def is_intact(self) -> bool:
        return bool((self.memory[:4096] == 0xA5).all() and (self.memory[4096 + self.size :] == 0xA5).all())


def test_an_output_that_is_larger_than_announced_is_not_written(make_engine: Any) -> None:
    """The table of inputs and outputs says 4 elements, the layers make 4096."""
    engine = make_engine(relu, [Binding("x", torch.float32, (4096,))], [Binding("y", torch.float32, (4096,))])
    plan = _with_structure(engine.plan, _shape_of_io("y", [4]))
    header = _described(engine.header, plan, outputs=(Binding("y", torch.float32, (4,)),))
    with pytest.raises((PlanError, ExecutionError)):
        TRTModule(header, plan)(torch.ones(4096))


def test_guard_bytes_around_outputs_stay(make_engine: Any) -> None:
    engine = make_engine(relu, [Binding("x", torch.float32, (4096,))], [Binding("y", torch.float32, (4096,))])
    x = torch.ones(4096)
    for announced, fits in ((4096, True), (4, False), (4095, False), (5000, False)):
        plan = _with_structure(engine.plan, _shape_of_io("y", [announced]))
        native = trt.Runtime(provider_logger()).deserialize_cuda_engine(bytes(plan.tolist()))
        context = native.create_execution_context()
        guarded = Guarded(4 * announced)
        assert context.set_tensor_address("x", x.data_ptr())
        assert context.set_tensor_address("y", guarded.address)
        assert context.execute_async_v3(0) is fits
        assert guarded.is_intact()


def test_a_header_whose_input_is_smaller_than_the_plans_is_refused(make_engine: Any) -> None:
    engine = make_engine(relu, [Binding("x", torch.float32, (4096,))], [Binding("y", torch.float32, (4096,))])
    header = dataclasses.replace(engine.header, inputs=(Binding("x", torch.float32, (4,)),), ranges=(((4, 4, 4),),))
    with pytest.raises(PlanError, match=r"'x' of engine 'block' has shape \(4096,\), its header says \(4\)"):
        TRTModule(header, engine.plan)(torch.ones(4))


@pytest.mark.parametrize("name", ["x", "y"])
@pytest.mark.parametrize("layout", ["CHW32", "HWC", "DHWC8", "DLA_LINEAR"])
def test_memory_is_linear_or_refused(make_engine: Any, name: str, layout: str) -> None:
    """Vectors of 32 channels take 32 times the memory that a caller has given for one."""
    shape = (1, 1, 1, 8, 8)
    engine = make_engine(relu, [Binding("x", torch.float32, shape)], [Binding("y", torch.float32, shape)])

    def change(structure: dict[str, Any]) -> None:
        for tensor in structure["engine"]["io"]:
            if tensor["name"] == name:
                tensor["format"] = layout

    plan = _with_structure(engine.plan, change)
    with pytest.raises(PlanError, match=r"LINEAR|DHWC8|DLA_LINEAR"):
        TRTModule(_described(engine.header, plan), plan)(torch.ones(shape))


def test_a_hostile_plan_takes_nobodys_place(static_engine: TRTModule, make_engine: Any, tmp_path: Path) -> None:
    """A program may name the digest of another plan, and is still run by its own plan alone."""
    other = make_engine(double, static_engine.header.inputs, static_engine.header.outputs)
    save(static_engine, tmp_path / "honest.trtp")
    save(other, tmp_path / "other.trtp")
    parts = ProgramFile.read((tmp_path / "other.trtp").read_bytes())
    parts.graph["engines"][0]["header"] = static_engine.header.to_json()
    parts.graph["engines"][0]["header"]["payload_bytes"] = other.header.payload_bytes
    hostile = load(parts.write(tmp_path / "hostile.trtp"))
    x = -torch.ones(2, 3)
    assert torch.equal(hostile(x), 2 * x)
    assert torch.equal(load(tmp_path / "honest.trtp")(x), torch.zeros(2, 3))
    assert torch.equal(static_engine(x), torch.zeros(2, 3))


def test_an_engine_updates_no_result(tmp_path: Path) -> None:
    """A result may be a view of an input, by which that was written to although the program does not say so."""
    parts, given = hostile_records.PROGRAMS["engines"]()
    before = [tensor.clone() for tensor in given]
    steps, first = parts.graph["steps"], len(given)
    assert steps[0]["inputs"][0] == 0 and parts.graph["engines"][0]["header"]["updates"][0][0] == 0
    view = hostile_files.operator(
        "view", [hostile_files.value(0), [2, 3, 8, 4]], hostile_files.tensor_type(torch.float32, 2, 3, 8, 4)
    )
    changed = [view, {**steps[0], "inputs": [first, *steps[0]["inputs"][1:]]}]
    graph = {**parts.graph, "steps": changed, "output": hostile_files.value(first)}
    path = tmp_path / "view.trtp"
    path.write_bytes(ProgramFile(graph, parts.weights, parts.plans, parts.others).to_bytes())
    with pytest.raises(PlanError, match="only inputs and held tensors are written to"):
        load(path)
    assert all(map(torch.equal, given, before))


def test_plan_files_are_covered_too(static_engine: TRTModule) -> None:
    content = bytearray(plan_to_bytes(static_engine.header, static_engine.plan))
    for at in range(0, len(content), 37):
        content[at] ^= 1
        with pytest.raises(PlanError):
            plan_from_bytes(bytes(content))
        content[at] ^= 1


def test_an_engine_of_a_stranger_talks_to_ranks_that_it_is_given(make_engine: Any, tmp_path: Path) -> None:
    """Loaded by a rank of another job, it sent to that job's default group, where others took it for their own."""
    engine = make_engine(summed_over_ranks, [Binding("x", torch.float32, (2,))], [Binding("y", torch.float32, (2,))])
    path = tmp_path / "summed.trtp"
    save(engine, path, arg_inputs=(torch.ones(2),), sign=False)
    with pytest.raises(PlanError, match=r"talks to the ranks \[0, 1\]"):
        load(path)
    for ranks in ((), (0,), (1, 2)):
        with pytest.raises(PlanError, match=r"talks to the ranks \[0, 1\]"):
            program_from_memory(bytearray(path.read_bytes()), LoadOptions(ranks=ranks))
    program_from_memory(bytearray(path.read_bytes()), LoadOptions(ranks=(0, 1, 2)))
    load(path, operators=["_c10d_functional"])
    load(path, trust=True)
    header, plan = plan_from_bytes(plan_to_bytes(engine.header, engine.plan))
    with pytest.raises(PlanError, match=r"talks to the ranks \[0, 1\]"):
        TRTModule(header, plan)(torch.ones(2))
