"""What several packages ask of nested values, of graph attributes, and of example inputs for export."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from trt_core.attributes import read_attribute
from trt_core.nesting import children_of, distinct_tensors, leaves_of, tensors_in, with_leaves


def test_children_of_a_structure() -> None:
    structure = pytree.tree_structure(((1, [2, 3]), {"a": 4}))
    positional, keyword = children_of(structure)
    assert [child.num_leaves for child in children_of(positional)] == [1, 2]
    (leaf,) = children_of(keyword)
    assert leaf.is_leaf() and children_of(leaf) == []


def test_tensors_come_in_their_order() -> None:
    first, second, third = (torch.ones(extent) for extent in (1, 2, 3))
    assert [item.numel() for item in tensors_in([first, (1, {"a": second}), "text", [third]])] == [1, 2, 3]


def test_attributes_by_dotted_path() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert read_attribute(model, "0.weight") is model[0].weight
    with pytest.raises(AttributeError):
        read_attribute(model, "0.missing")


def test_no_tensor_or_memory_stands_twice() -> None:
    x = torch.ones(2, requires_grad=True)
    (first, (second,)), keywords = distinct_tensors((x, (x,)), {"y": x, "n": 3})
    assert first is x and keywords["n"] == 3
    assert len({value.data_ptr() for value in (first, second, keywords["y"])}) == 3
    assert all(torch.equal(value, x) and value.requires_grad for value in (second, keywords["y"]))
    base = torch.arange(12).reshape(3, 4)
    (whole, part, again), _ = distinct_tensors((base, base[1:, ::2], base.t()), {})
    assert whole is base
    for value, given in ((part, base[1:, ::2]), (again, base.t())):
        assert torch.equal(value, given) and value.stride() == given.stride()
        assert value.untyped_storage().data_ptr() != base.untyped_storage().data_ptr()


def test_of_memory_that_is_shared_no_more_is_copied_than_a_tensor_reaches() -> None:
    layers = torch.randn(8, 4, 4, dtype=torch.complex64)
    given = (*layers, layers[2].t(), layers[3].conj(), layers[4][:1].expand(3, 4), layers[5][:, :0])
    found, _ = distinct_tensors(given, {})
    assert found[0] is given[0]
    for value, wanted in zip(found[1:], given[1:], strict=True):
        assert torch.equal(value.resolve_conj(), wanted.resolve_conj()) and value.stride() == wanted.stride()
        assert value.untyped_storage().nbytes() <= 16 * value.element_size()


def test_values_nested_in_containers_of_any_class_are_walked_and_replaced() -> None:
    nested = fx.immutable_collections.immutable_list([1, (2, {"a": 3, "b": [None, "x"]}), torch.Size([4])])
    assert list(leaves_of(nested)) == [1, 2, 3, None, "x", 4]
    found = with_leaves(nested, lambda leaf: leaf * 2 if isinstance(leaf, int) else leaf)
    assert found == [2, (4, {"a": 6, "b": [None, "x"]}), (8,)]
    assert type(found) is list and type(found[2]) is tuple
