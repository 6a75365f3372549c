"""The one reader of user keywords."""

from __future__ import annotations

import enum
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trt_core import CompilationSettings, Device, SettingsError, read_settings
from trt_core.settings_reader import RETIRED_SETTINGS


class _Capability(enum.Enum):
    DEFAULT = 0
    SAFETY = 1
    DLA_STANDALONE = 2


def test_nothing_given_is_the_default() -> None:
    assert read_settings() == CompilationSettings()


def test_keywords_win_over_options() -> None:
    settings = read_settings({"min_block_size": 2, "debug": True}, min_block_size=3)
    assert (settings.min_block_size, settings.debug) == (3, True)


def test_settings_serve_as_the_base() -> None:
    base = CompilationSettings(min_block_size=2, refit=True)
    assert read_settings(settings=base, min_block_size=4) == base.replace(min_block_size=4)


def test_a_base_of_another_type_is_refused() -> None:
    with pytest.raises(SettingsError, match="must be a CompilationSettings, not dict"):
        read_settings(settings={})


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("min_blocksize", "min_block_size"),
        ("optimisation_level", "optimization_level"),
        ("torch_excuted_ops", "torch_executed_ops"),
        ("Debug", "debug"),
    ],
)
def test_an_unknown_key_suggests_the_nearest(key: str, nearest: str) -> None:
    with pytest.raises(SettingsError, match=f"unknown setting '{key}'") as caught:
        read_settings({key: 1})
    assert caught.value.hint == f"did you mean '{nearest}'?"


def test_a_key_that_resembles_nothing_lists_the_settings() -> None:
    with pytest.raises(SettingsError, match="min_block_size"):
        read_settings(zzzzzz=1)


@given(st.text(min_size=1))
def test_any_other_key_is_a_settings_error(key: str) -> None:
    try:
        read_settings({key: None})
    except SettingsError:
        return
    assert key in CompilationSettings.__dataclass_fields__ or key in RETIRED_SETTINGS


@pytest.mark.parametrize("options", [["debug"], "debug", 3])
def test_options_that_are_no_mapping_are_refused(options: object) -> None:
    with pytest.raises(SettingsError, match="must be a mapping"):
        read_settings(options)  # type: ignore[arg-type]


def test_a_key_that_is_no_string_is_refused() -> None:
    with pytest.raises(SettingsError, match="unknown setting 3"):
        read_settings({3: True})  # type: ignore[dict-item]


def test_one_setting_under_two_names_is_refused() -> None:
    with pytest.warns(DeprecationWarning), pytest.raises(SettingsError, match="are the same setting"):
        read_settings(truncate_double=True, truncate_long_and_double=False)


@pytest.mark.parametrize(
    ("retired", "value", "current", "expected"),
    [
        ("truncate_double", True, "truncate_long_and_double", True),
        ("make_refittable", True, "refit", True),
        ("make_refitable", True, "refit", True),
        ("allow_tf32", False, "disable_tf32", True),
        ("allow_tf32", True, "disable_tf32", False),
        ("immutable_weights", False, "refit", True),
        ("strict_types", True, "use_explicit_typing", True),
        ("max_workspace_size", 4096, "workspace_size", 4096),
        ("dry_run", True, "dryrun", True),
    ],
)
def test_retired_keys_map_and_say_what_to_write(retired: str, value: object, current: str, expected: object) -> None:
    written = f"{current}={expected}" if isinstance(expected, bool) else current
    with pytest.warns(DeprecationWarning, match=f"{retired} is retired.*write {written}"):
        settings = read_settings({retired: value})
    assert getattr(settings, current) == expected


@pytest.mark.parametrize("reduced", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("with_float", [True, False])
def test_enabled_precisions_map_to_autocast(reduced: torch.dtype, with_float: bool) -> None:
    precisions = {reduced, torch.float32} if with_float else {reduced}
    doors = (CompilationSettings, CompilationSettings().replace, read_settings)
    for door in doors:
        with pytest.warns(DeprecationWarning, match="enable_autocast=True"):
            settings = door(enabled_precisions=precisions)  # type: ignore[operator]
        assert settings.enable_autocast
        assert settings.autocast_dtype == reduced
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert settings.replace(debug=True).autocast_dtype == reduced


def test_automatic_precision_is_an_error_that_is_allowed() -> None:
    assert read_settings(precision="auto") == CompilationSettings(max_error=1e-2)
    assert CompilationSettings(precision="auto") == CompilationSettings(max_error=1e-2)  # type: ignore[arg-type]
    assert read_settings(precision="auto", max_error=0.5) == CompilationSettings(max_error=0.5)
    base = CompilationSettings(precision=torch.float16)
    assert read_settings(settings=base, precision="auto") == CompilationSettings(max_error=1e-2)


def test_enabled_precisions_of_float_alone_are_the_default() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_settings(enabled_precisions={torch.float32}) == CompilationSettings()


def test_an_explicit_autocast_type_wins_over_enabled_precisions() -> None:
    with pytest.warns(DeprecationWarning):
        settings = read_settings(enabled_precisions={"half"}, autocast_dtype="bf16")
    assert settings.autocast_dtype == torch.bfloat16


@pytest.mark.parametrize("precisions", [{torch.float64}, {torch.float16, torch.bfloat16}, {torch.float16, torch.uint8}])
def test_enabled_precisions_without_a_meaning_are_refused(precisions: set[torch.dtype]) -> None:
    with pytest.raises(SettingsError, match="cannot be mapped"):
        read_settings(enabled_precisions=precisions)


def test_types_of_models_that_quantize_have_no_effect_and_say_so() -> None:
    with pytest.warns(UserWarning, match="int8 in enabled_precisions has no effect: .* where the model quantizes"):
        settings = read_settings(enabled_precisions={torch.int8})
    assert not settings.enable_autocast
    with pytest.warns(UserWarning, match="float8_e4m3fn, int8 in"), pytest.warns(DeprecationWarning):
        settings = read_settings(enabled_precisions={torch.int8, torch.float8_e4m3fn, torch.float16})
    assert settings.enable_autocast and settings.autocast_dtype == torch.float16


def test_weak_typing_warns_that_it_has_no_effect() -> None:
    with pytest.warns(DeprecationWarning, match="always strongly typed"):
        read_settings(use_explicit_typing=False)


def test_the_warning_points_at_the_callers_line() -> None:
    with pytest.warns(DeprecationWarning) as caught:
        read_settings(truncate_double=True)
    assert Path(caught[0].filename).name == Path(__file__).name


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("precision", "half", torch.float16),
        ("precision", torch.half, torch.float16),
        ("device", "cpu", Device("cpu")),
        ("device", torch.device("cuda:1"), Device("cuda:1")),
        ("min_block_size", float("inf"), float("inf")),
        ("min_block_size", 3.0, 3),
        ("torch_executed_ops", ["aten::relu"], frozenset({"torch.ops.aten.relu"})),
        ("torch_executed_ops", {torch.ops.aten.sub.Tensor}, frozenset({"torch.ops.aten.sub.Tensor"})),
        ("torch_executed_ops", {"torch.ops.aten.sub.Tensor"}, frozenset({"torch.ops.aten.sub.Tensor"})),
        ("torch_executed_modules", [torch.nn.Linear, "head"], frozenset({"Linear", "head"})),
        ("dryrun", Path("report.txt"), "report.txt"),
        ("dryrun", True, True),
        ("engine_capability", _Capability.DEFAULT, "standard"),
        ("engine_capability", _Capability.SAFETY, "safety"),
        ("engine_capability", "STANDARD", "standard"),
        ("optimization_level", 4, 4),
        ("use_python_runtime", None, None),
    ],
)
def test_reads_what_users_write(name: str, given_value: object, expected: object) -> None:
    assert getattr(read_settings({name: given_value}), name) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("debug", 1),
        ("refit", "yes"),
        ("optimization_level", True),
        ("optimization_level", 2.5),
        ("workspace_size", "large"),
        ("workspace_size", None),
        ("min_block_size", 1.5),
        ("min_block_size", float("nan")),
        ("precision", "floaty"),
        ("device", "tpu"),
        ("torch_executed_ops", "aten.relu"),
        ("torch_executed_ops", {"aten.no_such_operator"}),
        ("torch_executed_ops", 3),
        ("torch_executed_modules", [3]),
        ("dryrun", 3),
        ("engine_capability", "fast"),
        ("engine_capability", 7),
        ("optimization_level", [4]),
    ],
)
def test_a_value_that_cannot_be_read_is_a_settings_error(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name if name != "torch_executed_ops" else None):
        read_settings({name: value})


def test_the_sample_of_the_documentation_reads() -> None:
    settings = read_settings(
        {
            "truncate_long_and_double": True,
            "precision": torch.half,
            "debug": True,
            "min_block_size": 2,
            "torch_executed_ops": {"torch.ops.aten.sub.Tensor"},
            "optimization_level": 4,
            "use_python_runtime": False,
        }
    )
    assert settings == CompilationSettings(
        truncate_long_and_double=True,
        precision=torch.float16,
        debug=True,
        min_block_size=2,
        torch_executed_ops=frozenset({"torch.ops.aten.sub.Tensor"}),
        optimization_level=4,
    )


def test_alternatives_are_told_as_one_advice() -> None:
    with pytest.raises(SettingsError) as caught:
        read_settings({"min_block_size": "x"})
    assert caught.value.hint == "give a whole number, or a number"
