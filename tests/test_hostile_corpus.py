"""The attacker's suite: hostile programs, plans and data by class are refused, or do no harm."""

from __future__ import annotations

import functools
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import hostile_corpus
import hostile_files
import hostile_records
import pytest
import torch
from hostile_corpus import CLASSES, SLOWLY_MADE, ActCase, outcomes

from trt_runtime.diffusion import _Manifest
from trt_runtime.program.graph import Program
from trt_runtime.program_file import SectionKind, read_sections

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory, pages and children as Linux has them")

PART = 1 if "TRT_STRESS" in os.environ else 240
"""One of how many cases runs: all of them in `nox -s stress`."""

LISTED = [kind for kind in CLASSES if PART == 1 or kind not in SLOWLY_MADE]

FOUND = (
    *("lstm (1, 3, 700) 5", "lstm weight 0 3", "lstm weight 1 0", "native_group_norm counts (2147483648, 4, 3)"),
    *("histogram.bin_ct 30 2147483648, trusted", "matrix_power -9223372036854775808"),
    *("scaled_dot_product_attention 2 (1, 2, 700, 8), trusted", "col2im 2 [2147483648, 2147483648]"),
    *("median.dim: 0, one element", "native_group_norm: 1, one element", "pad 2: 1 is (-4, 4)"),
    *("_scaled_dot_product_flash_attention_for_cpu: 0, reversed", "reflection_pad1d: 1 is (-9223372036854775808,)"),
    *("4 repeats of (4611686018427387904,)", "full: 0 is a list of 536870912 in a tensor"),
    *("114: a cache of torch.uint16, states False: beams", "526: pictures of (1, 1, 16777216, 1, None, '')"),
    "144: an encoder of features that makes a number, 0: beams, 1 rows",
    *("lstm.data []", "embedding_bag [] mode 0", "linalg_eigvals nan", "floor_divide 8 int32 -2147483648 -1"),
)
"""Cases that did harm once, by their names."""


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    """Children have the threads of no other process."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@functools.cache
def _cases(kind: str) -> list[Any]:
    return list(CLASSES[kind]())


@pytest.mark.timeout(0 if PART == 1 else 120)
@pytest.mark.parametrize("kind", LISTED)
def test_nothing_hostile_does_harm(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hostile_corpus.GUARDS_VARIABLE, "end")
    cases = _cases(kind)
    assert len({case.name for case in cases}) == len(cases)
    part = cases if PART == 1 else [case for at, case in enumerate(cases) if at % PART == 0 or case.name in FOUND]
    found = outcomes(part)
    assert len(found) == len(part)
    harm = {name: end for name, end in found.items() if end not in ("refused", "failed", "ran")}
    assert not harm


def test_no_field_of_a_record_does_harm() -> None:
    """A few fields of what is quickly made; `nox -s stress` changes them all."""
    parts, given = hostile_records.PROGRAMS["branches"]()
    graphs = [*hostile_records.variants(Program, parts.graph)]
    lists = [*hostile_records.variants(_Manifest, hostile_records.PIPELINE)]
    cases = [
        *(ActCase(name, partial(hostile_records._use, parts, graph, given)) for name, graph in graphs[::700]),
        *(ActCase(name, partial(hostile_records._list_pipeline, value)) for name, value in lists[::20]),
    ]
    found = outcomes(cases)
    assert len(found) == len(cases) > 15
    assert set(found.values()) == {"ran", "refused"}


def test_cases_that_did_harm_are_there() -> None:
    kinds = (
        "foreign memory",
        "the process dies",
        "numbers beyond 64 bits",
        "tensors for numbers",
        "memory of operands",
        "encoders of generators",
    )
    names = {case.name for kind in kinds for case in _cases(kind)}
    assert set(FOUND) - {"histogram.bin_ct 30 2147483648, trusted"} <= names


class _Deadly:
    """What ends its process, takes memory, or raises something foreign."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self) -> str:
        if self.name == "dies":
            os.kill(os.getpid(), 11)
        if self.name == "grows":
            bytearray(2 * hostile_corpus.GROWTH)
        if self.name == "raises":
            raise KeyError("foreign")
        return "ran"


def test_harm_is_told_by_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would fail, and go on after a case that ends the process."""
    monkeypatch.setattr(hostile_corpus, "GROWTH", 32 << 20)
    found = outcomes([_Deadly(name) for name in ("first", "dies", "grows", "raises", "last")])
    assert found["first"] == found["last"] == "ran"
    assert "signal 11" in found["dies"]
    assert found["grows"].startswith("took")
    assert found["raises"].startswith("KeyError")


def test_memory_that_nobody_wrote_is_found() -> None:
    """Two calls that leave different numbers behind make different results of memory that was not written to."""
    steps = (("empty.memory_format", ([64],)),)
    case = hostile_corpus.Case("empty", steps, hostile_corpus.ones((2,)), is_trusted=True)
    assert any(end.startswith("another result") for end in (case.run() for _ in range(20)))


def test_what_is_honest_runs() -> None:
    """Files and networks that cases change are such that their changes matter: unchanged, they are taken."""
    for make in (hostile_files.forged_manifests, hostile_files.forged_generators, hostile_files.forged_inputs):
        honest = [act for name, act in make() if re.search(r"honest($|: (as it is|beams|drawn|kept), 1)", name)]
        assert honest
        for act in honest:
            act()
    for name, network in {"ranks": "ranks", "masked": "masked", "nested": "nested", "growing": "growing"}.items():
        case = hostile_corpus.PlanCase(network, name, lambda structure: None)
        assert set(outcomes([case]).values()) == {"ran"}


def test_a_signature_of_ones_own_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cases of signatures would fail if one held: what this user has signed is harm there."""
    content, parts, signature = hostile_files._signed()
    assert read_sections(memoryview(content))[-1].kind is SectionKind.SIGNATURE
    with pytest.raises(AssertionError, match="a signature that nobody made"):
        hostile_files._is_no_signature((*parts, (SectionKind.SIGNATURE, signature)))


def test_the_corpus_is_read_whole() -> None:
    assert Path(hostile_corpus.__file__).is_file()
    assert sum(len(_cases(kind)) for kind in LISTED) > 70_000
