"""The table of keywords that scripts bring from elsewhere."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from trt_core import CompilationSettings, SettingsError, read_settings
from trt_core.settings import ObservedSettings, setting_names
from trt_core.settings_reader import RETIRED_SETTINGS, NoEffect, Refused, Renamed

DEFAULTS_OF_VERSION_2 = {
    "disable_tf32": False,
    "assume_dynamic_shape_support": False,
    "sparse_weights": False,
    "num_avg_timing_iters": 1,
    "workspace_size": 0,
    "dla_sram_size": 1048576,
    "dla_local_dram_size": 1073741824,
    "dla_global_dram_size": 536870912,
    "truncate_double": False,
    "require_full_compilation": False,
    "min_block_size": 5,
    "torch_executed_ops": set(),
    "torch_executed_modules": [],
    "pass_through_build_failures": False,
    "max_aux_streams": None,
    "version_compatible": False,
    "optimization_level": None,
    "use_python_runtime": False,
    "use_fast_partitioner": True,
    "enable_experimental_decompositions": False,
    "dryrun": False,
    "hardware_compatible": False,
    "lazy_engine_init": True,
    "cache_built_engines": False,
    "reuse_cached_engines": False,
    "custom_engine_cache": None,
    "use_explicit_typing": True,
    "use_fp32_acc": False,
    "refit_identical_engine_weights": False,
    "strip_engine_weights": False,
    "immutable_weights": True,
    "tiling_optimization_level": "none",
    "l2_limit_for_tiling": -1,
    "offload_module_to_cpu": False,
    "use_distributed_mode_trace": False,
    "enable_autocast": False,
    "autocast_low_precision_type": torch.float16,
    "autocast_excluded_nodes": None,
    "autocast_excluded_ops": None,
    "autocast_max_output_threshold": 512,
    "autocast_max_depth_of_reduction": None,
    "autocast_calibration_dataloader": None,
    "enable_cross_compile_for_windows": False,
    "enable_resource_partitioning": False,
    "cpu_memory_budget": None,
    "dynamically_allocate_resources": False,
    "decompose_attention": False,
    "attn_bias_is_causal": True,
    "ir": "dynamo",
}
"""Keywords of torch-tensorrt 2.x, with the values that a script which spells out its defaults gives."""


def test_a_script_of_version_2_that_spells_out_the_defaults_compiles_with_the_defaults_here() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", DeprecationWarning)
        settings = read_settings(DEFAULTS_OF_VERSION_2)
    # None, the default here, lets `engine_cache_dir` decide, and measures no magnitudes
    undecided = {"cache_built_engines": None, "reuse_cached_engines": None, "autocast_max_output_threshold": None}
    assert settings.replace(**undecided) == CompilationSettings()


def test_no_setting_is_retired() -> None:
    assert not RETIRED_SETTINGS.keys() & set(setting_names())


@pytest.mark.parametrize("name", [name for name, fate in RETIRED_SETTINGS.items() if isinstance(fate, Renamed)])
def test_a_renamed_keyword_leads_to_a_setting(name: str) -> None:
    fate = RETIRED_SETTINGS[name]
    assert isinstance(fate, Renamed)
    assert fate.target in setting_names()


@pytest.mark.parametrize("name", [name for name, fate in RETIRED_SETTINGS.items() if isinstance(fate, NoEffect)])
def test_a_keyword_without_effect_says_why_and_changes_nothing(name: str) -> None:
    fate = RETIRED_SETTINGS[name]
    assert isinstance(fate, NoEffect)
    with pytest.warns(UserWarning, match=f"{name}=.* has no effect") as caught:
        assert read_settings({name: "something"}) == CompilationSettings()
    assert caught[0].filename == __file__
    for value in fate.silent:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read_settings({name: value})


@pytest.mark.parametrize("name", [name for name, fate in RETIRED_SETTINGS.items() if isinstance(fate, Refused)])
def test_a_refused_keyword_says_why_and_what_to_do_instead(name: str) -> None:
    fate = RETIRED_SETTINGS[name]
    assert isinstance(fate, Refused)
    with pytest.raises(SettingsError, match=f"{name}='something'") as caught:
        read_settings({name: "something"})
    assert (caught.value.why, caught.value.hint) == (fate.why, fate.instead)
    for value in fate.silent:
        assert read_settings({name: value}) == CompilationSettings()


@pytest.mark.parametrize("name", sorted(RETIRED_SETTINGS))
def test_what_becomes_of_a_keyword_fits_on_a_line_of_the_documentation(name: str) -> None:
    text = str(RETIRED_SETTINGS[name])
    assert "\n" not in text
    assert "|" not in text


def test_settings_are_read_by_names_of_other_generations() -> None:
    settings = CompilationSettings(truncate_long_and_double=True, refit=True)
    read: Any = settings
    assert (read.truncate_double, read.make_refittable, read.immutable_weights) == (True, True, False)
    assert (read.use_fp32_acc, read.max_batch_size) == (False, None)
    observed: Any = ObservedSettings(settings)
    assert observed.truncate_double and observed.fields_read() == {"truncate_long_and_double"}
    with pytest.raises(AttributeError, match="no setting 'truncate_doubles'"):
        _ = read.truncate_doubles


def test_a_type_of_autocast_may_be_left_to_the_default() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_settings(autocast_low_precision_type=None).autocast_dtype is torch.float16
