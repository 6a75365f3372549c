"""Candidates by operator: order, lookup, disabling, copies, threads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from fresh_process import run_python
from hypothesis import given
from hypothesis import strategies as st
from side_by_side import in_fork

from trt_converters import DYNAMO_CONVERTERS, Converter, ConverterRegistry, converter, load_converters
from trt_converters.aten import _LOADING

aten = torch.ops.aten
RELU, ABS = aten.relu.default, aten.abs.default


def _convert(ctx: Any, **arguments: Any) -> Any:
    return None


def test_lookup() -> None:
    registry = ConverterRegistry()
    assert RELU not in registry
    assert registry.get(RELU) is None
    with pytest.raises(KeyError, match=r"no converter for torch\.ops\.aten\.relu\.default"):
        registry[RELU]
    known = Converter(RELU, _convert)
    registry.register(known)
    assert RELU in registry
    assert registry[RELU] is known
    assert registry.get(RELU) is known
    assert list(registry) == [RELU]
    assert len(registry) == 1
    assert registry.get(ABS, known) is known


@given(st.lists(st.integers(min_value=-3, max_value=3), max_size=8))
def test_candidates_are_ordered_by_priority_and_the_last_registered_wins_a_tie(priorities: list[int]) -> None:
    registry = ConverterRegistry()
    made = [
        Converter(RELU, _convert, priority=priority, versions=((10, i), None)) for i, priority in enumerate(priorities)
    ]
    for candidate in made:
        registry.register(candidate)
    expected = [made[index] for index in sorted(range(len(made)), key=lambda index: (-priorities[index], -index))]
    assert list(registry.candidates(RELU)) == expected


def test_a_candidate_can_be_removed() -> None:
    registry = ConverterRegistry()
    first, second = Converter(RELU, _convert), Converter(RELU, _convert, priority=1)
    registry.register(first)
    registry.register(second)
    registry.unregister(second)
    assert registry.candidates(RELU) == (first,)
    registry.unregister(first)
    assert RELU not in registry
    with pytest.raises(KeyError, match="_convert is not registered"):
        registry.unregister(first)


def test_disabling_hides_every_candidate_until_enabled() -> None:
    registry = ConverterRegistry()
    registry.register(Converter(RELU, _convert))
    registry.disable(RELU)
    assert RELU not in registry
    assert registry.is_disabled(RELU)
    assert list(registry) == []
    registry.register(Converter(RELU, _convert, priority=5))
    assert RELU not in registry
    registry.enable(RELU)
    assert len(registry.candidates(RELU)) == 2


def test_a_copy_is_independent() -> None:
    registry = ConverterRegistry()
    registry.register(Converter(RELU, _convert))
    copy = registry.copy()
    copy.disable(RELU)
    copy.register(Converter(ABS, _convert))
    assert RELU in registry
    assert ABS not in registry
    registry.register(Converter(RELU, _convert))
    assert len(copy._candidates[RELU]) == 1


def test_restoring_drops_what_was_registered_since() -> None:
    registry = ConverterRegistry()
    kept = Converter(RELU, _convert)
    registry.register(kept)
    before = registry.copy()
    registry.register(Converter(RELU, _convert, priority=1))
    registry.register(Converter(ABS, _convert))
    registry.restore(before)
    assert registry.candidates(RELU) == (kept,)
    assert list(registry) == [RELU]


def test_threads_can_register_and_look_up_at_once() -> None:
    registry = ConverterRegistry()
    targets = [getattr(aten, name).default for name in ("relu", "abs", "neg", "exp", "sin", "cos", "tan", "erf")]

    def work(index: int) -> int:
        target = targets[index % len(targets)]
        registry.register(Converter(target, _convert, priority=index))
        assert target in registry
        return sum(1 for known in registry if known in registry)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(400)))
    assert len(registry) == len(targets)
    for target in targets:
        priorities = [candidate.priority for candidate in registry.candidates(target)]
        assert len(priorities) == 400 // len(targets)
        assert priorities == sorted(priorities, reverse=True)


def test_the_decorator_registers_one_function_for_several_operators() -> None:
    registry = ConverterRegistry()

    @converter(RELU, ABS, priority=3, dynamic=False, registry=registry)
    def both(ctx: Any, self: Any) -> Any:
        return self

    assert registry[RELU].function is both
    assert registry[ABS].name == "both"
    assert (registry[ABS].priority, registry[ABS].dynamic) == (3, False)


def test_what_is_no_converter_is_refused() -> None:
    registry = ConverterRegistry()
    with pytest.raises(TypeError, match="a registry holds Converters"):
        registry.register(_convert)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="was given no operator"):
        converter(registry=registry)
    assert not len(registry)


@pytest.mark.parametrize("target", [aten.relu, torch.relu, "aten.relu.default"])
def test_only_overloads_can_be_registered(target: Any) -> None:
    with pytest.raises(TypeError, match="is not an operator overload"):
        converter(target, registry=ConverterRegistry())


@pytest.mark.parametrize(
    "function",
    [lambda ctx: ctx, lambda ctx, x: x, lambda ctx, self, other: self],
    ids=["too few", "another name", "one too many"],
)
def test_parameters_are_those_of_the_operator(function: Any) -> None:
    with pytest.raises(TypeError, match=r"aten\.relu\.default has the arguments self"):
        converter(RELU, registry=ConverterRegistry())(function)


@pytest.mark.parametrize(
    "function", [lambda ctx, **given: given, lambda ctx, self, other=1: self, lambda ctx, *, self: self]
)
def test_parameters_may_be_more_than_is_needed(function: Any) -> None:
    registry = ConverterRegistry()
    converter(RELU, registry=registry)(function)
    assert RELU in registry


def test_a_converter_knows_the_package_it_comes_from() -> None:
    load_converters()
    assert DYNAMO_CONVERTERS[RELU].is_builtin
    foreign = Converter(RELU, _convert)
    assert foreign.origin == __name__.partition(".")[0]
    assert not foreign.is_builtin
    assert Converter(RELU, _convert, origin="elsewhere").origin == "elsewhere"


def test_the_shared_registry_knows_the_built_in_converters_without_being_told_to_load() -> None:
    script = (
        "import torch; from trt_converters import DYNAMO_CONVERTERS as c; "
        "assert torch.ops.aten.relu.default in c; assert len(c.copy()) == len(c) > 300"
    )
    done = run_python(script)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_process_loads_what_a_thread_of_its_parent_was_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    load_converters()
    monkeypatch.setattr(_LOADING, "_done", False)
    with _LOADING._lock, DYNAMO_CONVERTERS._lock:
        assert in_fork(lambda: len(DYNAMO_CONVERTERS) > 300 and _LOADING._done)


def test_checks_are_given_as_any_sequence() -> None:
    def never(call: Any) -> None:
        return None

    for checks in ([never, never], (never, never), never, []):
        registry = ConverterRegistry()

        @converter(torch.ops.aten.abs.default, checks=checks, registry=registry)
        def aten_abs(ctx: Any, self: Any) -> Any:
            return self

        expected = (never,) if checks is never else tuple(checks)  # type: ignore[arg-type]
        assert registry[torch.ops.aten.abs.default].checks == expected
