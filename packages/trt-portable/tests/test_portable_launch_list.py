"""Compiled artifacts as bytes, and the lists of launches in them."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_portable.errors import PortableError
from trt_portable.execution.launch_list import CompiledProgram
from trt_portable.plan.artifact import Artifact, read_artifacts, write_artifacts
from trt_portable.plan.weight_store import WeightStore

CPU = torch.device("cpu")


def test_sections_come_back() -> None:
    same = b"\x00machine code"
    made = [
        Artifact("t", {"torch": "x"}, ((1, 2), ()), {"steps": [["op"]]}, {"a": same, "b": b""}),
        Artifact("t", {"torch": "x"}, ((3, 2), ()), {"steps": []}, {"c": same}),
    ]
    section = write_artifacts(made)
    assert read_artifacts(section) == made
    assert section.count(same) == 1
    assert read_artifacts(b"") == []


@given(st.binary(min_size=1, max_size=64))
def test_bytes_that_are_no_section(data: bytes) -> None:
    with pytest.raises(ValueError):
        read_artifacts(data)


@pytest.mark.parametrize(
    "step",
    [
        ["op", "aten::relu", [{"slot": 0}], {}, [1]],
        ["op", "prims::cos", [{"slot": 0}], {}, [1]],
        ["op", "os::system", ["true"], {}, []],
        ["op", "aten::__class__", [], {}, []],
        ["op", "aten::to.dtype", [{"slot": 0}, {"dtype": "nn"}], {}, [1]],
        ["op", "aten::relu", [{"eval": "1"}], {}, [1]],
        ["exec", "1"],
        ["kernel", 0, [1, 1, 1], []],
    ],
)
def test_a_list_names_operators_of_aten_and_nothing_else(step: list[Any]) -> None:
    document = {"operands": [{"input": 0}], "kernels": [], "steps": [step], "slots": 2, "outputs": [1]}
    made = Artifact("t", {}, ((2,),), json.loads(json.dumps(document)), {})
    store = WeightStore((), (), ())
    if step[1] == "aten::relu" and step[2] == [{"slot": 0}]:
        (found,) = CompiledProgram(made, store, CPU).run([torch.tensor([-1.0, 1.0])])
        assert found.tolist() == [0.0, 1.0]
        return
    with pytest.raises(PortableError, match="makes no sense"):
        CompiledProgram(made, store, CPU)


def test_values_of_a_list_die_with_their_last_reader() -> None:
    steps = [["op", "aten::relu", [{"slot": at}], {}, [at + 1]] for at in range(3)]
    document = {"operands": [{"input": 0}], "kernels": [], "steps": steps, "slots": 4, "outputs": [3, 1]}
    program = CompiledProgram(Artifact("t", {}, ((2,),), document, {}), WeightStore((), (), ()), CPU)
    assert [dying for _, dying in program._lists[((2,),)].steps] == [[0], [], [2]]
    x = torch.tensor([-1.0, 2.0])
    assert [value.tolist() for value in program.run([x])] == [[0.0, 2.0]] * 2
