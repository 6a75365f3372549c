"""What a block's engine depends on: equal blocks have equal descriptions, whatever their nodes are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, converter
from trt_converters.block_key import describe_block, tensor_digest
from trt_core import CompilationSettings
from trt_core.errors import Uncacheable
from trt_core.sizes.ranges import ShapeRanges

aten = torch.ops.aten
SETTINGS = CompilationSettings()
X = torch.ones(2, 3)

Step = tuple[str, int, int, float]
"""Operator, two earlier values, a literal."""

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "sub", "scalar", "clamp", "relu", "weight"]),
        st.integers(0, 9),
        st.integers(0, 9),
        st.sampled_from([0.0, -0.0, 1.0, 2.5, float("inf")]),
    ),
    min_size=1,
    max_size=5,
)


def describe(block: fx.GraphModule, with_settings: CompilationSettings = SETTINGS, **options: Any) -> dict[str, str]:
    """Describes a block whose constants are identified by their content."""
    ranges = options.pop("ranges", ShapeRanges())
    return describe_block(block, with_settings, ranges, lambda node, value: tensor_digest(value), **options)


def build(steps: list[Step], outputs: list[int], rename: Callable[[str], str] = str) -> fx.GraphModule:
    """Makes a block of (2, 3) float32 values with two inputs, x and y."""
    graph = fx.Graph()
    root: dict[str, torch.Tensor] = {}
    with FakeTensorMode() as mode:
        fake = torch.empty(2, 3)
    values = [graph.placeholder("x"), graph.placeholder("y")]
    for index, (kind, left, right, number) in enumerate(steps):
        first, second = values[left % len(values)], values[right % len(values)]
        name = rename(f"n{index}")
        if kind == "weight":
            root[f"w{name}"] = torch.full((2, 3), number)
            node = graph.create_node("get_attr", f"w{name}", name=name)
        elif kind == "scalar":
            node = graph.create_node("call_function", aten.add.Scalar, (first, number), name=name)
        elif kind == "clamp":
            node = graph.create_node("call_function", aten.clamp.default, (first,), {"max": number}, name=name)
        elif kind == "relu":
            node = graph.create_node("call_function", aten.relu.default, (first,), name=name)
        else:
            target = aten.add.Tensor if kind == "add" else aten.sub.Tensor
            node = graph.create_node("call_function", target, (first, second), name=name)
        values.append(node)
    for node in values:
        node.meta["val"] = fake
    graph.output(tuple(values[index % len(values)] for index in outputs))
    del mode
    return fx.GraphModule(root, graph)


def meaning(steps: list[Step], outputs: list[int]) -> Any:
    """The same block as a value, in which what the block does not use of a step is left out."""
    uses = {"add": (True, True, False), "sub": (True, True, False), "relu": (True, False, False)}
    count = 2
    told = []
    for kind, left, right, number in steps:
        first, second, literal = uses.get(kind, (kind != "weight", False, True))
        told.append(
            (
                kind,
                left % count if first else None,
                right % count if second else None,
                float(number).hex() if literal else "",
            )
        )
        count += 1
    return told, [index % count for index in outputs]


@settings(max_examples=60, deadline=None)
@given(STEPS, st.lists(st.integers(0, 9), min_size=1, max_size=2))
def test_names_of_nodes_do_not_matter(steps: list[Step], outputs: list[int]) -> None:
    renamed = build(steps, outputs, lambda name: f"other_{ord(name[-1]) * 7 % 11}_{name}")
    assert describe(build(steps, outputs)) == describe(renamed)


@settings(max_examples=150, deadline=None)
@given(
    STEPS,
    STEPS,
    st.lists(st.integers(0, 9), min_size=1, max_size=2),
    st.lists(st.integers(0, 9), min_size=1, max_size=2),
)
def test_descriptions_are_equal_exactly_when_blocks_are(
    one: list[Step], other: list[Step], first: list[int], second: list[int]
) -> None:
    same = meaning(one, first) == meaning(other, second)
    assert (describe(build(one, first)) == describe(build(other, second))) == same


@settings(max_examples=100, deadline=None)
@given(STEPS, st.integers(0, 4), st.sampled_from([0.0, -0.0, 1.0, float("nan")]), st.integers(0, 9))
def test_one_change_is_enough(steps: list[Step], place: int, number: float, wire: int) -> None:
    place %= len(steps)
    kind, left, right, _ = steps[place]
    changed = [*steps[:place], (kind, left, wire, number), *steps[place + 1 :]]
    assume(meaning(steps, [0]) != meaning(changed, [0]))
    assert describe(build(steps, [0])) != describe(build(changed, [0]))
    del right


def test_kinds_of_numbers_differ() -> None:
    found = [describe(build([("scalar", 0, 0, number)], [2])) for number in (1, 1.0, True)]
    assert len({text["graph"] for text in found}) == 3


def test_defaults_need_not_be_written(make_block: Any) -> None:
    plain = make_block(lambda x: aten.add.Tensor(x, x), X)
    (node,) = plain.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    before = describe(plain)
    node.kwargs = {"alpha": 1}
    assert describe(plain) == before
    node.kwargs = {"alpha": 2}
    assert describe(plain) != before


def test_names_of_inputs_are_names_of_bindings(make_block: Any) -> None:
    block = make_block(torch.relu, X)
    before = describe(block)
    next(iter(block.graph.nodes)).name = "other"
    assert {name for name, text in describe(block).items() if text != before[name]} == {"inputs"}


def test_names_of_layers_count_where_engines_tell_them(make_block: Any) -> None:
    block = make_block(torch.relu, X)
    renamed = make_block(torch.relu, X)
    (node,) = renamed.graph.find_nodes(op="call_function", target=aten.relu.default)
    node.name = "other"
    assert describe(block) == describe(renamed)
    debug = SETTINGS.replace(debug=True)
    assert describe(block, debug) != describe(renamed, debug)


@pytest.mark.parametrize("other", [torch.ones(3, 2), torch.ones(2, 3, dtype=torch.float16), torch.ones(2, 4)])
def test_shape_and_type_of_inputs_count(make_block: Any, other: torch.Tensor) -> None:
    assert describe(make_block(torch.relu, X)) != describe(make_block(torch.relu, other))


def test_content_of_constants_counts() -> None:
    before = describe(build([("weight", 0, 0, 1.0)], [2]))
    changed = describe(build([("weight", 0, 0, 2.0)], [2]))
    assert {name for name, text in changed.items() if text != before[name]} == {"constants"}


def test_writes_past_the_version_counter_are_seen() -> None:
    weight = torch.nn.Parameter(torch.ones(4))
    before = tensor_digest(weight)
    weight.data[2] = 5
    assert tensor_digest(weight) != before
    weight.detach().numpy()[2] = 1
    assert tensor_digest(weight) == before


@pytest.mark.parametrize("tensor", [torch.ones(2, device="meta"), torch.ones(2).to_sparse()])
def test_tensors_without_content_have_no_digest(tensor: torch.Tensor) -> None:
    with pytest.raises(Uncacheable):
        tensor_digest(tensor)


def test_a_single_element_has_a_digest_whatever_its_stride() -> None:
    assert tensor_digest(torch.full((5,), 2.0)[::5]) == tensor_digest(torch.tensor([2.0]))


def test_strides_and_views_do_not_count() -> None:
    value = torch.arange(6.0).reshape(2, 3)
    assert tensor_digest(value.t().contiguous().t()) == tensor_digest(value)
    assert tensor_digest(torch.ones(2, dtype=torch.bfloat16)) == tensor_digest(torch.ones(4, dtype=torch.bfloat16)[1:3])


def test_symbols_are_known_by_their_place_and_range(make_block: Any, ranges_of: Any) -> None:
    one = make_block(lambda x: x + 1, torch.ones(5, 7), symbolic=True)
    other = make_block(lambda x: x + 1, torch.ones(6, 9), symbolic=True)
    narrow, wide = (1, 4, 9), (1, 4, 16)
    assert describe(one, ranges=ranges_of(one, narrow)) == describe(other, ranges=ranges_of(other, narrow))
    changed = describe(one, ranges=ranges_of(one, wide))
    before = describe(one, ranges=ranges_of(one, narrow))
    assert {name for name, text in changed.items() if text != before[name]} == {"profile"}
    assert describe(make_block(lambda x: x + 1, torch.ones(5, 5))) != before


# converters


def registered(function: Callable[..., Any]) -> ConverterRegistry:
    """A registry in which a function converts relu."""
    registry = DYNAMO_CONVERTERS.copy()
    converter(aten.relu.default, priority=1, registry=registry)(function)
    return registry


def plain_relu(ctx: Any, self: Any) -> Any:
    """A converter that its source file tells everything about."""
    return self


def scaled(factor: Any) -> Callable[..., Any]:
    """A converter that also depends on what it closes over."""

    def scaled_relu(ctx: Any, self: Any) -> Any:
        return (self, factor)

    return scaled_relu


def test_converters_of_others_are_part_of_it(make_block: Any) -> None:
    block = make_block(torch.relu, X)
    before, after = describe(block), describe(block, registry=registered(plain_relu))
    assert {name for name in after if after[name] != before.get(name)} == {
        f"converter.{plain_relu.__module__.partition('.')[0]}"
    }
    assert describe(block, registry=registered(scaled(1))) != describe(block, registry=registered(scaled(2)))
    unused = make_block(torch.neg, X)
    assert describe(unused) == describe(unused, registry=registered(plain_relu))


def test_what_cannot_be_compared_is_not_cached(make_block: Any) -> None:
    with pytest.raises(Uncacheable, match="closes over"):
        describe(make_block(torch.relu, X), registry=registered(scaled(object())))
    block = make_block(torch.relu, X)
    (node,) = block.graph.find_nodes(op="call_function", target=aten.relu.default)
    node.args = (node.args[0], object())
    with pytest.raises(Uncacheable):
        describe(block)
