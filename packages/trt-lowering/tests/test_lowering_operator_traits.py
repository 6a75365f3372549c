from __future__ import annotations

import operator

import pytest
import torch
from torch import fx

from trt_core.operators import is_random
from trt_lowering.operator_traits import (
    is_data_dependent,
    is_kept_in_torch,
    is_pure,
    is_symbolic_function,
    may_alias,
    mutated_arguments,
)

aten = torch.ops.aten


def test_mutation_is_read_from_the_schema():
    assert mutated_arguments(aten.add_.Tensor) == (0,)
    assert mutated_arguments(aten.add.Tensor) == ()
    assert mutated_arguments(aten.add.out) == (3,)


@pytest.mark.parametrize("target", [aten.view.default, aten.reshape.default, aten.split.Tensor, aten.dropout.default])
def test_views_may_alias(target):
    assert may_alias(target)


@pytest.mark.parametrize("target", [aten.add.Tensor, aten.clone.default, aten.conv2d.default])
def test_computations_do_not_alias(target):
    assert not may_alias(target)


def test_randomness_and_data_dependence_are_tags():
    assert is_random(aten.rand.default)
    assert not is_random(aten.relu.default)
    assert is_data_dependent(aten.nonzero.default)
    assert not is_data_dependent(aten.topk.default)


def test_symbolic_functions():
    assert is_symbolic_function(operator.mul)
    assert is_symbolic_function(torch.sym_max)
    assert not is_symbolic_function(aten.mul.Tensor)


def test_kept_operators_match_with_and_without_overload(settings):
    assert is_kept_in_torch(aten.add.Tensor, settings.replace(torch_executed_ops={"aten.add"}))
    assert is_kept_in_torch(aten.add.Tensor, settings.replace(torch_executed_ops={"aten.add.Tensor"}))
    assert not is_kept_in_torch(aten.add.Scalar, settings.replace(torch_executed_ops={"aten.add.Tensor"}))
    assert not is_kept_in_torch(aten.add.Tensor, settings)


def node(target, *args, **kwargs) -> fx.Node:
    graph = fx.Graph()
    operands = [graph.placeholder(f"x{index}") if item == "x" else item for index, item in enumerate(args)]
    return graph.call_function(target, tuple(operands), kwargs)


def test_purity():
    assert is_pure(node(aten.relu.default, "x"))
    assert not is_pure(node(aten.relu_.default, "x"))
    assert not is_pure(node(aten.bernoulli.default, "x"))
    assert not is_pure(node(aten.bernoulli.p, "x", 0.0))  # what it draws, others do not
    assert not is_pure(node(aten._assert_async.msg, "x", "message"))
    training = node(aten.batch_norm.default, "x", None, None, "x", "x", True, 0.1, 1e-5, True)
    assert not is_pure(training)
