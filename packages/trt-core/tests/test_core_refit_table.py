"""Recipes of weights: recorded, written, read, replayed; and tables that were made to do harm."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trt_core import PlanError, RefitError
from trt_core.refit_table import EngineWeight, RefitTable, why_unwritable
from trt_core.weight_recipes import (
    Applied,
    Literal,
    Lost,
    Recipe,
    Source,
    WeightRecorder,
    apply_operator,
    constants_of,
    content_digest,
    follow_from_sources,
    replay,
    replay_all,
    sources_of,
)

aten = torch.ops.aten
W = Source("w", torch.float32, (2, 3))

STEPS = {
    "transpose": lambda w: w.t(),
    "double": lambda w: (w.double() * 2).float(),
    "slice": lambda w: w[:1],
    "contiguous": lambda w: w.t().contiguous().t(),
    "scale": lambda w: w * torch.tensor(3.0),
    "add a fresh tensor": lambda w: w + torch.arange(float(w.shape[-1])),
    "sum": lambda w: w.sum(0, keepdim=True),
    "first part": lambda w: w.chunk(2)[0],
    "stack": lambda w: torch.cat([w, w * 2]),
    "linear": lambda w: torch.nn.functional.linear(w, torch.ones(2, w.shape[-1])),
    "half": lambda w: w.half().float(),
    "where": lambda w: torch.where(w > 0, w, torch.zeros_like(w)),
}
"""What compiling might do to a weight: (n, m) float32 to another of rank 2."""


def record(function: Any, weight: torch.Tensor) -> tuple[WeightRecorder, torch.Tensor]:
    """Runs a function on a weight called `w`."""
    recorder = WeightRecorder()
    recorder.know(weight, Source("w", weight.dtype, tuple(weight.shape)))
    with torch.no_grad(), recorder.recording():
        made = function(weight)
    return recorder, made


def table_of(recipe: Recipe) -> RefitTable:
    """A table with one weight."""
    return RefitTable((EngineWeight("engine weight", recipe, torch.float32, 6),))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_whatever_is_done_to_a_weight_can_be_done_to_another(names: list[str]) -> None:
    def function(weight: torch.Tensor) -> torch.Tensor:
        for name in names:
            weight = STEPS[name](weight)
        return weight

    first, second = torch.randn(3, 4), torch.randn(3, 4)
    recorder, made = record(function, first)
    recipe = recorder.recipe_of(made)
    assert recipe is not None and not recorder.read and not why_unwritable(recipe)
    written = json.loads(json.dumps(table_of(recipe).to_json(), allow_nan=False))
    (weight,) = RefitTable.from_json(written).weights
    for value in (first, second):
        assert torch.equal(replay(weight.recipe, {"w": value}), function(value))
    assert RefitTable.from_json(written).to_json() == written


def test_what_follows_from_no_weight_has_no_recipe() -> None:
    recorder, _ = record(lambda w: w, torch.ones(2, 3))
    with recorder.recording():
        made = torch.ones(3) * 2
    assert recorder.recipe_of(made) is None


@pytest.mark.parametrize(
    "look",
    [
        lambda w: w.sum().item(),
        lambda w: w.tolist(),
        lambda w: w.numpy(),
        lambda w: bool((w > 0).any()),
        lambda w: torch.equal(w, torch.zeros(2, 3)),
    ],
)
def test_looking_at_numbers_is_noticed(look: Any) -> None:
    recorder, _ = record(look, torch.ones(2, 3))
    assert [[source.name for source in sources_of(recipe)] for recipe in recorder.read] == [["w"]]


def test_a_write_in_place_is_lost() -> None:
    recorder, made = record(lambda w: w.clone().mul_(2), torch.ones(2, 3))
    recipe = recorder.recipe_of(made)
    assert recipe is not None and "writes in place" in why_unwritable(recipe)


def test_random_numbers_are_lost() -> None:
    recorder, made = record(lambda w: torch.rand_like(w) + w, torch.ones(2, 3))
    recipe = recorder.recipe_of(made)
    assert recipe is not None and "random" in why_unwritable(recipe)


def test_constants_keep_their_names_and_have_a_limit() -> None:
    small, large = Literal(torch.ones(2, 3), "scale"), Literal(torch.ones(300, 300))
    recipe = apply_operator(aten.mul.Tensor, (W, small), {})
    assert [item.name for item in constants_of(recipe)] == ["scale"]
    assert not why_unwritable(recipe)
    assert "constant of 360000 bytes" in why_unwritable(apply_operator(aten.mul.Tensor, (large, W), {}))


def test_equal_contents_have_equal_digests() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    assert content_digest(value) == content_digest(value.t().contiguous().t())
    assert content_digest(value) != content_digest(value + 1)
    assert content_digest(torch.empty(0)) == content_digest(torch.empty(0, 3))


# weights that do not fit


@pytest.mark.parametrize("weights", [{}, {"w": torch.ones(3, 2)}, {"w": torch.ones(2, 3).half()}])
def test_weights_that_do_not_fit_are_refused(weights: dict[str, torch.Tensor]) -> None:
    with pytest.raises(RefitError, match="'w'"):
        replay(apply_operator(aten.neg.default, (W,), {}), weights)


def test_an_operator_that_fails_is_our_error() -> None:
    with pytest.raises(RefitError, match="cannot be made again"):
        replay(Applied(aten.view.default, (W, [7]), {}), {"w": torch.ones(2, 3)})
    with pytest.raises(RefitError, match="for a reason"):
        replay(Lost("for a reason", (W,)), {"w": torch.ones(2, 3)})


# tables that were made to do harm


def _forged(**parts: Any) -> dict[str, Any]:
    table = table_of(apply_operator(aten.neg.default, (W,), {})).to_json()
    return json.loads(json.dumps({**table, **parts}))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "operator",
    [
        "aten.copy_.default",
        "aten.rand.default",
        "os.system.default",
        "inductor.accumulate_grad_.default",
        "aten.nothing.default",
        "aten.__class__.default",
        "aten.neg",
        "aten.neg.default.x",
        "",
        7,
        None,
    ],
)
def test_only_functional_operators_of_pytorch_are_named(operator: Any) -> None:
    with pytest.raises(PlanError):
        RefitTable.from_json(_forged(steps=[[operator, [{"source": 0}], {}]]))


@pytest.mark.parametrize(
    "parts",
    [
        {"steps": [["aten.neg.default", [{"step": 0}], {}]]},
        {"steps": [["aten.neg.default", [{"source": 9}], {}]]},
        {"steps": [["aten.neg.default", [{"source": -1}], {}]]},
        {"weights": {"w": [{"step": 5}, "float32", 6]}},
        {"weights": {"w": [{}, "float32", 6]}},
        {"weights": {"w": [{"step": 0}, "nothing", 6]}},
        {"weights": {"w": [{"step": 0}, "float32", True]}},
        {"weights": []},
        {"sources": [["w", "float32", [-2, 3]]]},
        {"literals": [["float32", [2], "!"]]},
        {"literals": [["float32", [1 << 40], ""]]},
        {"reads": 3},
        {"fixed": {"w": [{"step": 0}, "why", "digest"]}},
        {"constants": None},
    ],
    ids=str,
)
def test_broken_tables_are_plan_errors(parts: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        RefitTable.from_json(_forged(**parts))


def test_a_table_cannot_make_memory_explode() -> None:
    grown = ["aten.expand.default", [{"source": 0}, [1 << 40, 2, 3]], {}]
    table = _forged(steps=[grown, ["aten.clone.default", [{"step": 0}], {}]])
    table["weights"] = {"w": [{"step": 1}, "float32", 6]}
    (weight,) = RefitTable.from_json(table).weights
    with pytest.raises(RefitError, match="would take"):
        replay(weight.recipe, {"w": torch.ones(2, 3)})


def test_what_weights_share_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of 300 weights along one chain was walked anew for each, 45,000 calls in all."""
    chain: list[Recipe] = [W]
    for _ in range(300):
        chain.append(Applied(aten.neg.default, (chain[-1],), {}))
    ran: list[Any] = []

    def counted(operator: Any) -> Any:
        return lambda *args: (ran.append(operator), operator(*args))[1]

    given = torch.arange(6.0).view(2, 3)
    wanted = [*chain[1:], chain[7], chain[7]]
    made = list(replay_all(wanted, {"w": given}, admit=counted))
    assert len(ran) == 2 * 300  # without data, and with
    for number, value in enumerate(made[:300], 1):
        assert torch.equal(value, given if number % 2 == 0 else -given)
    assert torch.equal(made[-1], -given) and torch.equal(made[-2], -given)
    assert follow_from_sources([*chain, Literal(given)]) == [*[True] * 301, False]


def test_a_result_that_is_no_tensor_makes_no_weight() -> None:
    """Several results, none of which is named, and one that is not there, left as a foreign error."""
    weight = torch.ones(2, 3)
    for item in (None, 5):
        made = Applied(aten.split.Tensor, (W, 1), {}, item)
        with pytest.raises(RefitError, match="is no tensor"):
            replay(made, {"w": weight})


def test_a_single_element_of_any_stride_has_content() -> None:
    single = torch.ones(4, 7)[:1, 0]
    assert single.stride() == (7,)
    assert content_digest(single) == content_digest(torch.ones(1))
    assert content_digest(torch.ones(4, 7)[:0, 0]) == content_digest(torch.ones(0))
