"""Compilation settings as a value: defaults, limits, digest, text."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_core import CompilationSettings, Device, SettingsError, read_settings
from trt_core.settings import ObservedSettings, building_fields, other_value

FIELDS = [field.name for field in dataclasses.fields(CompilationSettings)]


class _Pass:
    """What settings ask of a lowering pass."""

    name = "nothing"

    def __call__(self, gm: object) -> None: ...

    def __repr__(self) -> str:
        return "nothing"


STORED = [name for name in FIELDS if name != "enabled_precisions"]
"""Fields that hold what they are given, not another field in their place."""
CHANGES: dict[str, object] = {
    name: (_Pass(),) if name == "lowering_passes" else getattr(CompilationSettings(**{name: other_value(name)}), name)
    for name in STORED
}
"""A value other than the default for each of these."""

SPEC_GENERATION_ONE = {
    "precision": torch.float32,
    "debug": False,
    "workspace_size": 0,
    "min_block_size": 5,
    "torch_executed_ops": frozenset(),
    "pass_through_build_failures": False,
    "max_aux_streams": None,
    "version_compatible": False,
    "optimization_level": None,
    "use_python_runtime": False,
    "truncate_long_and_double": False,
    "use_fast_partitioner": True,
    "check_indices": False,
    "enable_experimental_decompositions": False,
    "require_full_compilation": False,
    "disable_tf32": False,
    "sparse_weights": False,
    "refit": False,
    "num_avg_timing_iters": 1,
    "dla_sram_size": 1048576,
    "dla_local_dram_size": 1073741824,
    "dla_global_dram_size": 536870912,
    "dryrun": False,
    "hardware_compatible": False,
}
"""Names and defaults that users' scripts know."""


@pytest.mark.parametrize(("name", "default"), SPEC_GENERATION_ONE.items())
def test_documented_names_have_their_documented_defaults(name: str, default: object) -> None:
    assert getattr(CompilationSettings(), name) == default


def test_the_newer_names_are_there_too() -> None:
    settings = CompilationSettings()
    assert settings.use_explicit_typing is True
    assert settings.enable_autocast is False
    assert settings.enabled_precisions == frozenset({torch.float32})


@pytest.mark.parametrize("name", STORED)
def test_every_field_has_an_example_that_is_not_its_default(name: str) -> None:
    assert CHANGES[name] != getattr(CompilationSettings(), name)


def test_every_field_is_described_in_the_docstring() -> None:
    docstring = inspect.cleandoc(CompilationSettings.__doc__ or "")  # Python 3.13 dedents it, older ones do not
    described = re.findall(r"^    (\w+): ", docstring, flags=re.MULTILINE)
    assert sorted(described) == sorted(FIELDS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min_block_size", 0),
        ("workspace_size", -1),
        ("optimization_level", -1),
        ("optimization_level", 6),
        ("max_aux_streams", -1),
        ("num_avg_timing_iters", 0),
        ("dla_sram_size", 4095),
        ("dla_local_dram_size", 0),
        ("dla_global_dram_size", 0),
        ("min_block_size", 1.5),
        ("precision", torch.int32),
        ("precision", torch.bool),
        ("precision", torch.float64),
        ("autocast_dtype", torch.int8),
        ("autocast_dtype", torch.float64),
        ("engine_capability", "fast"),
    ],
)
def test_values_out_of_range_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=f"{name}=.* is out of range") as caught:
        CompilationSettings(**{name: value})  # type: ignore[arg-type]
    assert caught.value.hint.startswith("give ")


_WRONG: list[object] = ["yes", 3, None, -1.5, object(), b"bytes", [1], {"a": 1}, float("nan"), torch.int8]


@pytest.mark.parametrize("name", FIELDS)
def test_the_constructor_reads_values_as_keywords_are_read(name: str) -> None:
    for value in (*_WRONG, CHANGES.get(name), "half", "cpu", ["aten.relu"], 7, True):
        outcomes = []
        for construct in (lambda v: CompilationSettings(**{name: v}), lambda v: read_settings({name: v})):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    outcomes.append(repr(getattr(construct(value), name)))
                except SettingsError:
                    outcomes.append("refused")
        assert outcomes[0] == outcomes[1], value


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_refuses_a_value_of_another_type(name: str) -> None:
    with pytest.raises(SettingsError, match=name):
        CompilationSettings(**{name: object()})  # type: ignore[arg-type]


def test_values_may_be_written_as_users_write_them() -> None:
    settings = CompilationSettings(precision="half", device="cuda:1", min_block_size=3.0)  # type: ignore[arg-type]
    assert (settings.precision, settings.device, settings.min_block_size) == (torch.float16, Device("cuda:1"), 3)


def test_operators_are_stored_by_their_canonical_names() -> None:
    spellings = {"aten::relu", "aten.relu", "torch.ops.aten.relu", torch.ops.aten.relu}
    settings = CompilationSettings(torch_executed_ops=spellings)  # type: ignore[arg-type]
    assert settings.torch_executed_ops == frozenset({"torch.ops.aten.relu"})


@pytest.mark.parametrize(
    "name",
    ["device", "torch_executed_ops", "torch_executed_modules", "autocast_excluded_ops", "autocast_excluded_nodes"],
)
def test_none_stands_for_the_default_where_it_stands_for_it_elsewhere(name: str) -> None:
    assert CompilationSettings(**{name: None}) == CompilationSettings()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("torch_executed_modules", [torch.nn.ReLU()], "give dotted paths or classes, not a ReLU"),
        ("torch_executed_modules", [3], "not an int"),
        ("lowering_passes", [3], "give instances of trt_lowering.GraphPass, not an int"),
        ("lowering_passes", [dict], "not the class dict"),
        ("lowering_passes", "drop", "give a list of passes, not a str"),
        ("torch_executed_modules", 3, "give a collection of names, not an int"),
        ("torch_executed_ops", 3, "give a collection of names, not an int"),
        ("dryrun", "", "the path is empty"),
    ],
)
def test_a_refusal_says_what_the_value_should_be(name: str, value: object, told: str) -> None:
    with pytest.raises(SettingsError, match=name) as caught:
        CompilationSettings(**{name: value})  # type: ignore[arg-type]
    assert told in f"{caught.value.why}\n{caught.value.hint}"


def test_min_block_size_may_be_infinite() -> None:
    settings = CompilationSettings(min_block_size=float("inf"))
    assert settings.to_dict()["min_block_size"] == "inf"


@pytest.mark.parametrize("name", STORED)
def test_replace_changes_one_field(name: str) -> None:
    before = CompilationSettings()
    after = before.replace(**{name: CHANGES[name]})
    differing = [field for field in FIELDS if getattr(before, field) != getattr(after, field)]
    assert differing == [name]


@pytest.mark.parametrize("name", STORED)
def test_the_digest_follows_exactly_what_building_reads(name: str) -> None:
    before = CompilationSettings()
    same = before.digest() == before.replace(**{name: CHANGES[name]}).digest()
    assert same == (name not in building_fields())


def test_the_digest_follows_debug_and_not_the_size_of_blocks() -> None:
    before = CompilationSettings()
    assert before.digest() != before.replace(debug=True).digest()
    assert before.digest() == before.replace(min_block_size=1).digest()


def test_observed_settings_are_the_settings_and_know_what_was_read() -> None:
    settings = CompilationSettings(debug=True, workspace_size=7)
    observed = ObservedSettings(settings)
    assert observed.fields_read() == frozenset()
    assert (observed.debug, observed.workspace_size) == (True, 7)
    assert observed.fields_read() == {"debug", "workspace_size"}


@given(st.permutations(["aten.relu", "aten.add.Tensor", "aten.mul"]))
def test_the_digest_does_not_depend_on_the_order_of_sets(operators: list[str]) -> None:
    one = CompilationSettings(torch_executed_ops=frozenset(operators))
    other = CompilationSettings(torch_executed_ops=frozenset(reversed(operators)))
    assert one.digest() == other.digest()


@pytest.mark.parametrize("name", STORED)
def test_every_value_becomes_json(name: str) -> None:
    values = CompilationSettings().replace(**{name: CHANGES[name]}).to_dict()
    assert sorted(json.loads(json.dumps(values, allow_nan=False))) == sorted(FIELDS)


def test_text_is_one_line_with_every_field() -> None:
    text = str(CompilationSettings(torch_executed_ops=frozenset({"aten.relu"})))
    assert "\n" not in text
    assert all(f"{name}=" in text for name in FIELDS)
    assert "enabled_precisions={dtype.f32}" in text
    assert "torch_executed_ops={torch.ops.aten.relu}" in text


def test_settings_are_frozen_and_hashable() -> None:
    settings = CompilationSettings()
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.debug = True  # type: ignore[misc]
    assert len({settings, settings.replace(), settings.replace(debug=True)}) == 2


def test_a_type_that_cannot_be_read_is_refused_with_what_to_give() -> None:
    with pytest.raises(SettingsError, match="precision='fp15' cannot be read") as told:
        read_settings({"precision": "fp15"})
    assert told.value.hint == "did you mean 'fp16'?"
    with pytest.raises(SettingsError, match="precision='wide' cannot be read") as told:
        read_settings({"precision": "wide"})
    assert told.value.hint == "give a torch.dtype such as torch.float16, or its name"
    with pytest.raises(SettingsError, match=r"it is one of standard, (?s:.*)did you mean 'standard'\?"):
        read_settings({"engine_capability": "standrd"})
    with pytest.raises(SettingsError, match="did you mean 'dynamo'"):
        read_settings({"ir": "dinamo"})


@pytest.mark.parametrize(
    ("given", "why", "hint"),
    [
        ({"autocast_excluded_nodes": ["("]}, "no regular expression: missing )", "a backslash before them"),
        ({"autocast_excluded_nodes": "head"}, "", "give a collection of regular expressions, not one string"),
        ({"autocast_excluded_nodes": [["a"]]}, "is no regular expression", "give strings"),
        ({"autocast_excluded_nodes": torch.ones(2)}, "is no regular expression", "give strings"),
        ({"torch_executed_modules": torch.ones(2)}, "", "give dotted paths or classes, not a Tensor"),
        ({"debug": "yes"}, "it is a str", "give True or False"),
        ({"workspace_size": "2GB"}, "it is a str", "give a whole number"),
        ({"workspace_size": float("nan")}, "it is a float", "give a whole number"),
        ({"min_block_size": float("nan")}, "it is a float", "give a whole number, or a number"),
        ({"engine_cache_dir": 3}, "it is an int", "give a string"),
        ({"dryrun": ""}, "the path is empty", "give the path of a file"),
        ({"device": 10**30}, "there is no GPU", "GPUs count from 0"),
        ({"immutable_weights": "yes"}, "", "give True or False"),
    ],
)
def test_values_that_cannot_be_read_are_refused_with_what_to_give(given: dict[str, Any], why: str, hint: str) -> None:
    with pytest.raises(SettingsError, match="cannot be read") as told:
        read_settings(given)
    assert told.value.where == "compilation settings"
    assert why in told.value.why
    assert hint in told.value.hint


def test_regular_expressions_keep_the_flags_that_they_were_compiled_with() -> None:
    for compiled in (re.compile("HEAD", re.IGNORECASE), re.compile("(?i)HEAD"), re.compile("head")):
        (pattern,) = CompilationSettings(autocast_excluded_nodes=[compiled]).autocast_excluded_nodes  # type: ignore[arg-type]
        assert re.match(pattern, "head_1")


def test_numbers_of_numpy_are_numbers() -> None:
    settings = CompilationSettings(min_block_size=np.int64(3), max_error=np.float32(0.5))
    assert (settings.min_block_size, settings.max_error) == (3, 0.5)
    assert type(settings.min_block_size) is int
