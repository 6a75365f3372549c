"""Verdicts: total, with the reason of the best candidate, and a source line."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx

from trt_converters import Call, Converter, ConverterRegistry, ConverterSupport, preserve_predicate, support
from trt_converters.testing import record_call
from trt_core import CompilationSettings, Reason, Verdict

aten = torch.ops.aten
SETTINGS = CompilationSettings()
X = torch.ones(2, 3)


def _convert(ctx: Any, **arguments: Any) -> Any:
    return None


def _refuse(message: str) -> Any:
    return lambda call: Verdict.refuse(Reason.UNSUPPORTED_ARGUMENT, message)


def _raise(call: Call) -> None:
    raise ZeroDivisionError("a check with a defect")


def _support(*candidates: Converter) -> ConverterSupport:
    registry = ConverterRegistry()
    for candidate in candidates:
        registry.register(candidate)
    return ConverterSupport(SETTINGS, registry)


def test_a_check_that_raises_is_a_refusal() -> None:
    node = record_call(aten.abs.default, (X,)).node
    asked = _support(Converter(aten.abs.default, _convert, (_raise,)))
    verdict = asked.verdict(node)
    assert verdict.reason is Reason.CHECK_FAILED
    assert verdict.message.endswith("failed: ZeroDivisionError: a check with a defect")
    assert asked.origin(node) == ""


@pytest.mark.parametrize("value", [None, object(), "text"])
def test_nodes_with_foreign_metadata_are_refused(value: Any) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = value
    node = graph.call_function(aten.abs.default, (x,))
    node.meta["val"] = value
    assert not ConverterSupport(SETTINGS).verdict(node).supported
    assert not ConverterSupport(SETTINGS).verdict(x).supported


def test_the_refusal_is_the_best_candidates_and_any_candidate_suffices() -> None:
    node = record_call(aten.abs.default, (X,)).node
    first = Converter(aten.abs.default, _convert, (_refuse("first"),), priority=2)
    second = Converter(aten.abs.default, _convert, (_refuse("second"),), priority=1)
    accepting = Converter(aten.abs.default, _convert)
    assert _support(second, first).verdict(node).message == "first"
    assert _support(second, first).find(node) is None
    assert _support(second, first, accepting).verdict(node).supported
    assert _support(second, first, accepting).find(node) is accepting


def test_versions_bound_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    node = record_call(aten.abs.default, (X,)).node
    candidate = Converter(aten.abs.default, _convert, versions=((10, 5), (11, 0)))
    for version, supported in (((10, 4), False), ((10, 5), True), ((10, 16), True), ((11, 0), False)):
        monkeypatch.setattr(support, "provider_version", lambda version=version: version)
        verdict = _support(candidate).verdict(node)
        assert verdict.supported is supported
        if not supported:
            assert verdict.reason is Reason.PROVIDER_VERSION
            assert verdict.message == "needs TensorRT 10.5 to before 11.0"


def test_operators_without_converter() -> None:
    asked = _support()
    assert asked.verdict(record_call(aten.abs.default, (X,)).node).reason is Reason.NO_CONVERTER
    assert asked.verdict(record_call(aten.abs_.default, (X,)).node).reason is Reason.MUTATION
    graph = fx.Graph()
    control = graph.call_function(torch.ops.higher_order.cond, (graph.placeholder("p"), None, None, ()))
    assert asked.verdict(control).reason is Reason.HIGHER_ORDER


def test_a_disabled_operator_says_so() -> None:
    registry = ConverterRegistry()
    registry.register(Converter(aten.abs.default, _convert))
    registry.disable(aten.abs.default)
    node = record_call(aten.abs.default, (X,)).node
    assert ConverterSupport(SETTINGS, registry).verdict(node).reason is Reason.DISABLED_CONVERTER


def test_items_follow_what_they_are_taken_from() -> None:
    item = next(
        node for node in record_call(aten.topk.default, (X, 1)).block.graph.nodes if node.target is operator.getitem
    )
    assert _support(Converter(aten.topk.default, _convert)).verdict(item).supported
    refused = _support().verdict(item)
    assert (refused.reason, refused.message) == (Reason.NO_CONVERTER, f"{item.args[0]} runs in PyTorch")
    graph = fx.Graph()
    foreign = graph.call_function(operator.getitem, (graph.placeholder("x"), 0))
    foreign.meta["val"] = X
    assert _support().verdict(foreign).reason is Reason.UNSUPPORTED_VALUE


def test_sizes_need_no_converter(make_block: Any) -> None:
    block = make_block(lambda x: x.view(x.shape[0] * x.shape[1]), X, symbolic=True)
    sizes = [node for node in block.graph.nodes if isinstance(node.meta.get("val"), torch.SymInt)]
    assert sizes
    assert all(_support().verdict(node).supported for node in sizes)


def test_numbers_that_depend_on_data_are_no_sizes() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    tensor = torch.tensor(3)  # made inside of the mode it would be a constant, whose value PyTorch 2.15 gives
    with FakeTensorMode(shape_env=ShapeEnv(allow_scalar_outputs=True)) as mode:
        number = mode.from_tensor(tensor).item()
    graph = fx.Graph()
    node = graph.call_function(aten._local_scalar_dense.default, (graph.placeholder("x"),))
    node.meta["val"] = number
    assert not support.is_symbolic_number(node)
    assert not ConverterSupport(SETTINGS).verdict(node).supported


def test_arguments_that_do_not_bind_are_refused() -> None:
    graph = fx.Graph()
    node = graph.call_function(aten.abs.default, ())
    node.meta["val"] = X
    assert _support(Converter(aten.abs.default, _convert)).verdict(node).reason is Reason.UNBOUND_ARGUMENTS


def test_refusals_carry_the_line_of_the_model() -> None:
    node = record_call(aten.abs.default, (X,)).node
    node.stack_trace = 'File "model.py", line 7, in forward\n    x.abs()'
    assert _support().verdict(node).source == "model.py:7"


def test_excluded_nodes_keep_their_verdict() -> None:
    node = record_call(aten.relu.default, (X,)).node
    known = Verdict.refuse(Reason.CONVERSION_FAILED, "it failed before")
    assert ConverterSupport(SETTINGS, excluded={node.name: known}).verdict(node) is known
    assert ConverterSupport(SETTINGS).verdict(node).supported


def test_origin_names_the_package_of_the_candidate_that_takes_the_node() -> None:
    node = record_call(aten.abs.default, (X,)).node
    ours = Converter(aten.abs.default, _convert, origin="trt_converters")
    theirs = Converter(aten.abs.default, _convert, priority=1, origin="another")
    refusing = Converter(aten.abs.default, _convert, (_refuse("no"),), priority=2, origin="refusing")
    assert _support(ours).origin(node) == ""
    assert _support(ours, theirs, refusing).origin(node) == "another"
    assert _support(ours, refusing).origin(node) == ""
    assert _support().origin(node) == ""


def test_lowering_keeps_what_converts_and_what_the_user_keeps() -> None:
    registry = ConverterRegistry()
    registry.register(Converter(aten.abs.default, _convert))
    settings = CompilationSettings(torch_executed_ops=frozenset({"aten.silu", "aten.gelu.default"}))
    preserve = preserve_predicate(settings, registry)
    assert preserve(aten.abs.default)
    assert preserve(aten.silu.default)
    assert preserve(aten.gelu.default)
    assert not preserve(aten.gelu.out)
    assert not preserve(aten.relu.default)
