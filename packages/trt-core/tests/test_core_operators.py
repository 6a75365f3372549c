"""Names of operators, as settings and reports spell them, and what calls of them say."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx

from trt_core import SettingsError, canonical_operator, operator_name
from trt_core.operators import argument, canonical_operators, draws_random_numbers, packet_name

_OVERLOADS = st.sampled_from(
    [
        torch.ops.aten.relu.default,
        torch.ops.aten.add.Tensor,
        torch.ops.aten.sum.dim_IntList,
        torch.ops.aten._softmax.default,
        torch.ops.aten.scaled_dot_product_attention.default,
    ]
)


@given(_OVERLOADS)
def test_a_name_reads_back_to_itself(overload: torch._ops.OpOverload) -> None:
    name = operator_name(overload)
    assert canonical_operator(name) == name
    assert canonical_operator(overload) == name
    assert packet_name(name) == operator_name(overload.overloadpacket)


@pytest.mark.parametrize(
    ("target", "name"),
    [
        (torch.ops.aten.relu.default, "torch.ops.aten.relu.default"),
        (torch.ops.aten.add, "torch.ops.aten.add"),
        (operator.add, "_operator.add"),
        (operator.getitem, "_operator.getitem"),
        (torch.sym_max, "torch.sym_max"),
        (torch.ops.higher_order.cond, "torch.ops.higher_order.cond"),
        ("encoder.layer", "encoder.layer"),
    ],
)
def test_names_are_what_users_see_in_reports(target: object, name: str) -> None:
    assert operator_name(target) == name


@pytest.mark.parametrize(
    "spelling",
    [
        "torch.ops.aten.add.Tensor",
        "aten.add.Tensor",
        "aten::add.Tensor",
        " aten.add.Tensor ",
        torch.ops.aten.add.Tensor,
    ],
)
def test_every_spelling_of_an_overload(spelling: object) -> None:
    assert canonical_operator(spelling) == "torch.ops.aten.add.Tensor"


@pytest.mark.parametrize("spelling", ["add", "aten.add", "aten::add", "torch.ops.aten.add", torch.ops.aten.add])
def test_every_spelling_of_a_packet(spelling: object) -> None:
    assert canonical_operator(spelling) == "torch.ops.aten.add"


@pytest.mark.parametrize("name", ["_operator.add", "torch.sym_max"])
def test_python_functions_keep_their_names(name: str) -> None:
    assert canonical_operator(name) == name


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [("aten.embeding", "aten.embedding"), ("aten::layer_nrom", "aten.layer_norm"), ("reluu", "aten.relu")],
)
def test_a_misspelt_operator_suggests_the_nearest(wrong: str, nearest: str) -> None:
    with pytest.raises(SettingsError, match="unknown operator") as caught:
        canonical_operator(wrong)
    assert nearest in caught.value.hint


@pytest.mark.parametrize("wrong", ["aten.add.Tensorr", "aten.add.Tensor.out", "nowhere.add", "", "aten."])
def test_what_is_no_operator_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match="unknown operator"):
        canonical_operator(wrong)


@pytest.mark.parametrize(
    ("function", "hint"),
    [
        (torch.relu, "torch.ops.aten.relu"),
        ("torch.relu", "aten.relu"),
        (torch.nn.functional.layer_norm, "torch.ops.aten.layer_norm"),
        (torch.cond, "torch.ops.higher_order.cond"),
        (torch.nn.ReLU, "torch.ops.<namespace>"),
        (3, "torch.ops.<namespace>"),
        ("_operator.no_such_function", "torch.ops.<namespace>"),
    ],
)
def test_what_no_captured_graph_holds_is_refused(function: object, hint: str) -> None:
    with pytest.raises(SettingsError) as caught:
        canonical_operator(function)
    assert hint in caught.value.hint


def test_the_error_names_the_setting() -> None:
    with pytest.raises(SettingsError) as caught:
        canonical_operators(["aten.relu", "aten.nothing_like_it"], where="torch_executed_ops")
    assert caught.value.where == "torch_executed_ops"


def test_a_collection_becomes_a_set_of_names() -> None:
    assert canonical_operators(["aten.relu", torch.ops.aten.relu]) == {"torch.ops.aten.relu"}


@pytest.mark.parametrize(
    ("name", "packet"),
    [
        ("torch.ops.aten.add.Tensor", "torch.ops.aten.add"),
        ("torch.ops.aten.add", "torch.ops.aten.add"),
        ("_operator.add", "_operator.add"),
    ],
)
def test_a_packet_covers_its_overloads(name: str, packet: str) -> None:
    assert packet_name(name) == packet


def _call(target: torch._ops.OpOverload, *args: object, **kwargs: object) -> fx.Node:
    graph = fx.Graph()
    return graph.call_function(target, (graph.placeholder("x"), *args), kwargs)  # type: ignore[arg-type]


def test_arguments_are_found_by_position_keyword_and_default() -> None:
    aten = torch.ops.aten
    assert argument(_call(aten.dropout.default, 0.5, False), "p") == 0.5
    assert argument(_call(aten.clone.default, memory_format=torch.channels_last), "memory_format") is not None
    assert argument(_call(aten.softmax.int, 1), "dtype") is None
    with pytest.raises(KeyError):
        argument(_call(aten.relu.default), "dim")


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_operators_that_draw_whatever_they_return_are_random(p: float) -> None:
    """Of bernoulli with a rate of 0 all results are 0, and the generator goes on: it was taken for dropout."""
    x, bernoulli = torch.ones(5), torch.ops.aten.bernoulli.p
    before = torch.get_rng_state()
    bernoulli(x, p)
    assert not torch.equal(before, torch.get_rng_state())
    assert draws_random_numbers(_call(bernoulli, p))
    assert draws_random_numbers(_call(torch.ops.aten.dropout.default, p, True)) is (p > 0)
