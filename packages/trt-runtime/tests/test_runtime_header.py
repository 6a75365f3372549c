"""The header of a plan: strict JSON, and fields that must not contradict each other."""

from __future__ import annotations

import copy
import hashlib
import json
import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_core import InputError, PlanError
from trt_runtime import Binding, PlanHeader, plan_notes
from trt_runtime.header import OPTIONAL, CachePlace, parse_header
from trt_runtime.input_check import check_places

Change = Callable[..., PlanHeader]
FIELDS = [item.name for item in fields(PlanHeader)]


def test_round_trip(header: PlanHeader) -> None:
    assert PlanHeader.from_text(header.text) == header
    assert PlanHeader.from_text(header.text).text == header.text


def test_parsing_is_remembered(header: PlanHeader) -> None:
    assert parse_header(header.text) is parse_header(header.text)


def test_describe_fills_in_the_provider_and_the_digest(header: PlanHeader, plan: torch.Tensor) -> None:
    assert header.provider == "portable"
    assert header.torch_version == torch.__version__
    assert header.payload_bytes == plan.numel()
    assert len(header.payload_sha256) == 64
    assert header.compute_capability is None
    assert not header.returns_tuple


def test_static_inputs_need_no_ranges(plan: torch.Tensor) -> None:
    binding = Binding("x", torch.float32, (2, 3))
    described = PlanHeader.describe(plan, inputs=[binding], outputs=[], device="cpu")
    assert described.ranges == (((2, 2, 2), (3, 3, 3)),)
    assert described.returns_tuple


def test_dynamic_inputs_need_ranges(plan: torch.Tensor) -> None:
    with pytest.raises(PlanError, match="'x' is dynamic"):
        PlanHeader.describe(
            plan, inputs=[Binding("x", torch.float32, ("s0",))], outputs=[], device="cpu", symbols={"s0": (0, 0)}
        )


@pytest.mark.parametrize("name", sorted({*FIELDS} - OPTIONAL))
def test_a_missing_field_is_named(header: PlanHeader, name: str) -> None:
    value = header.to_json()
    del value[name]
    with pytest.raises(PlanError, match=name):
        PlanHeader.from_json(value)


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("wrong", [{"a": 1}, [["x"]], "?"])
def test_a_field_of_another_type_is_refused(header: PlanHeader, name: str, wrong: Any) -> None:
    value = header.to_json()
    if isinstance(value.get(name), str) and isinstance(wrong, str) and name != "device":
        pytest.skip("free text")
    value[name] = wrong
    with pytest.raises(PlanError):
        PlanHeader.from_json(value)


def header_of_a_cache(plan: torch.Tensor, *places: CachePlace) -> PlanHeader:
    shapes = {"cache": (1, 2, 8, 4), "rows": (1, 2, "s0", 4), "start": (1,)}
    types = {"start": torch.int64}
    inputs = [Binding(name, types.get(name, torch.float32), shape) for name, shape in shapes.items()]
    ranges = [
        [(extent,) * 3 if isinstance(extent, int) else (1, 2, 8) for extent in shape] for shape in shapes.values()
    ]
    updates = [(0, "updated")]
    return PlanHeader.describe(
        plan,
        inputs=inputs,
        outputs=[],
        device="cpu",
        symbols={"s0": (1, 2)},
        ranges=ranges,
        updates=updates,
        places=places,
    )


@given(
    st.integers(-12, 12),
    st.integers(-2, 2),
    st.integers(1, 8),
    st.booleans(),
    st.sampled_from([torch.int64, torch.int32]),
)
def test_places_are_those_that_eager_writes_to(first: int, offset: int, rows: int, wraps: bool, kind: Any) -> None:
    plan = torch.zeros(8, dtype=torch.uint8)
    header = header_of_a_cache(plan, CachePlace(0, 2, offset, "s0", wraps))
    assert PlanHeader.from_text(header.text).places == header.places
    inputs = [torch.zeros(1, 2, 8, 4), torch.ones(1, 2, rows, 4), torch.tensor([first], dtype=kind)]
    begin = first + offset
    begin += 8 if wraps and begin < 0 else 0
    if begin >= 0 and begin + rows <= 8:
        check_places(header, inputs)
        return
    with pytest.raises(InputError, match=f"a cache of 8 places, and a call writes to {first + offset}"):
        check_places(header, inputs)


@given(st.lists(st.integers(-12, 12), min_size=1, max_size=4), st.integers(-2, 2), st.booleans())
def test_each_row_of_a_batch_is_held_to_the_cache(numbers: list[int], offset: int, wraps: bool) -> None:
    plan, batch = torch.zeros(8, dtype=torch.uint8), len(numbers)
    inputs = [torch.zeros(batch, 2, 8, 4), torch.ones(batch, 2, 1, 4), torch.tensor(numbers).view(-1, 1)]
    header = PlanHeader.describe(
        plan,
        inputs=[Binding(name, value.dtype, tuple(value.shape)) for name, value in zip("crp", inputs, strict=True)],
        outputs=[],
        device="cpu",
        updates=[(0, "updated")],
        places=[CachePlace(0, 2, offset, 1, wraps, 2, by_batch=True)],
    )
    assert PlanHeader.from_text(header.text).places == header.places
    outside = [row for row, number in enumerate(numbers) if not (-8 if wraps else 0) <= number + offset < 8]
    if not outside:
        check_places(header, inputs)
        return
    where = f" in row {outside[0]} of the batch" if batch > 1 else ""
    with pytest.raises(InputError, match=f"a call writes to {numbers[outside[0]] + offset}{where}\n"):
        check_places(header, inputs)


def test_places_of_earlier_versions_say_where_all_rows_of_a_batch_begin(plan: torch.Tensor) -> None:
    place = CachePlace(0, 2, -1, 1, True)
    value = header_of_a_cache(plan, place).to_json()
    assert value["places"] == [[0, 2, -1, 1, True]]
    assert PlanHeader.from_json({**value, "places": [[0, 2, -1, 1, True, 2]]}).places == (place,)


@pytest.mark.parametrize(
    "place",
    [
        CachePlace(1, 2, 0, 1, False),
        CachePlace(0, 1, 0, 1, False),
        CachePlace(0, 3, 0, 1, False),
        CachePlace(0, 2, 0, "s1", False),
    ],
)
def test_places_that_contradict_the_inputs_are_refused(plan: torch.Tensor, place: CachePlace) -> None:
    with pytest.raises(PlanError):
        header_of_a_cache(plan, place)


@pytest.mark.parametrize("place", [[0, 2, 0, None, False], [0, 2, 0, 1], [0, 2, 0, 1, 1], [0, -2, 0, 1, True]])
def test_places_of_another_form_are_refused(plan: torch.Tensor, place: Any) -> None:
    value = header_of_a_cache(plan, CachePlace(0, 2, -1, 1, False)).to_json()
    assert PlanHeader.from_json(value).places
    with pytest.raises(PlanError, match="places"):
        PlanHeader.from_json({**value, "places": [place]})


def test_unknown_fields_are_named(header: PlanHeader) -> None:
    with pytest.raises(PlanError, match="unknown fields: tactics"):
        PlanHeader.from_json({**header.to_json(), "tactics": 1})


@pytest.mark.parametrize("version", [0, 1, 3, "2", None, True])
def test_other_versions_are_refused(header: PlanHeader, version: Any) -> None:
    with pytest.raises(PlanError, match="format version"):
        PlanHeader.from_json({**header.to_json(), "format_version": version})


@given(st.text() | st.binary())
def test_other_text_is_refused(text: str | bytes) -> None:
    with pytest.raises(PlanError):
        PlanHeader.from_text(text)


def test_deeply_nested_text_is_refused() -> None:
    with pytest.raises(PlanError):
        PlanHeader.from_text("[" * 100_000)


X = Binding("x", torch.float32, ("s0", 3))
Y = Binding("y", torch.float32, ("s0",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "tpu"}, "unknown device"),
        ({"outputs": (Y, Y)}, "two bindings called y"),
        ({"outputs": (Y, Binding("z", torch.float32, ()))}, "2 outputs"),
        ({"ranges": ()}, "1 inputs and ranges for 0"),
        ({"ranges": (((1, 4, 8),),)}, "rank 2"),
        ({"ranges": (((5, 4, 8), (3, 3, 3)),)}, "dimension 0"),
        ({"ranges": (((1, 4, 8), (2, 3, 4)),)}, "dimension 1"),
        ({"symbols": {"s0": (1, 0)}}, "does not exist"),
        ({"symbols": {"s0": (0, 2)}}, "does not exist"),
        ({"symbols": {}}, "uses s0"),
        ({"profiles": ((((1, 1, 1), (2, 3, 4)),),)}, "dimension 1"),
        ({"profiles": ((((1, 1, 1), (3, 3, 3)),), (((9, 9, 9), (3, 3, 3)),))}, "not those that its profiles span"),
        ({"outputs": (Binding("y", torch.float32, ("s9",)),)}, "uses s9"),
        ({"outputs": (Binding("y", torch.float32, (["root", "s0", 1],)),)}, "cannot be computed"),
        ({"outputs": (Binding("y", torch.float32, (["floordiv", 1, 0],)),)}, "cannot be computed"),
    ],
)
def test_contradictions_are_refused(change_header: Change, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        change_header(**changes)


def test_the_text_is_canonical_json(header: PlanHeader) -> None:
    assert json.loads(header.text) == header.to_json()
    assert list(json.loads(header.text)) == sorted({*FIELDS} - OPTIONAL)


def test_the_digest_of_a_large_plan_is_computed_beside_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_notes, "_LARGE_BYTES", 4)
    plan = torch.arange(8, dtype=torch.uint8)
    digest = plan_notes.digest_of(plan)
    assert isinstance(digest, plan_notes.LaterDigest)
    assert digest.is_of(plan)
    assert not digest.is_of(plan.clone())
    assert copy.deepcopy(digest) is digest
    assert str(digest) == pickle.loads(pickle.dumps(digest)) == hashlib.sha256(bytes(range(8))).hexdigest()
    assert not digest.begin()
    begun = plan_notes.LaterDigest(plan)
    assert begun.begin()
    assert str(begun) == str(digest)
    plan[0] = 7
    assert not digest.is_of(plan)
    assert str(digest) != plan_notes.plan_digest(plan)
