"""Every keyword of every generation at every door: what `compile` takes, renames and refuses, all others do, too."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed
from trtc import app
from typer.testing import CliRunner

import trt_frontends
from trt_core import CompilationSettings, SettingsError, read_settings
from trt_core.settings import setting_names
from trt_core.settings_reader import RETIRED_SETTINGS, NoEffect, Refused, Renamed
from trt_frontends.backend import torch_tensorrt_backend
from trt_frontends.dynamo import convert_exported_program_to_serialized_trt_engine
from trt_frontends.onnx_models import export_onnx
from trt_frontends.precision.automatic import choose_precision

pytestmark = pytest.mark.usefixtures("fresh_dynamo")

PRESENT: dict[str, Any] = {
    "truncate_long_and_double": True,
    "refit": True,
    "disable_tf32": True,
    "use_explicit_typing": True,
    "workspace_size": 1 << 20,
    "dryrun": False,
    "engine_capability": "standard",
    "autocast_dtype": torch.bfloat16,
    "debug": False,
    "timing_cache_path": "",
    "cache_built_engines": False,
    "reuse_cached_engines": False,
}
"""A value for each setting that has had another name."""


def _inputs() -> tuple[torch.Tensor]:
    return (torch.ones(2, 3),)


def _whole(door: Callable[..., Any]) -> Callable[..., Any]:
    return lambda **settings: door(nn.ReLU().eval(), arg_inputs=_inputs(), **settings)


def _call(compiled: Any) -> Any:
    with torch.no_grad():
        return compiled(*_inputs())


def _command(**settings: Any) -> None:
    texts = [f"{name}={str(value).removeprefix('torch.')}" for name, value in settings.items()]
    given = [part for text in texts for part in ("--setting", text)]
    result = CliRunner().invoke(app, ["explain", "door_model:make", *given])
    if result.exit_code:
        raise SettingsError(result.output)


DOORS: dict[str, Callable[..., Any]] = {
    "CompilationSettings": lambda **settings: CompilationSettings(**settings),
    "CompilationSettings.replace": lambda **settings: CompilationSettings().replace(**settings),
    "read_settings": lambda **settings: read_settings(settings),
    "compile": _whole(trt_frontends.compile),
    "explain": _whole(trt_frontends.explain),
    "trace": _whole(trt_frontends.trace),
    "verify": _whole(trt_frontends.verify),
    "bisect": _whole(trt_frontends.bisect),
    "MutableModule": lambda **settings: _call(trt_frontends.MutableModule(nn.ReLU().eval(), **settings)),
    "optimize": lambda **settings: _call(trt_frontends.optimize(nn.ReLU().eval(), **settings)),
    "torch.compile": lambda **settings: _call(
        torch.compile(nn.ReLU().eval(), backend=torch_tensorrt_backend, options=settings)
    ),
    "ir": lambda **settings: _call(
        trt_frontends.compile(nn.ReLU().eval(), arg_inputs=_inputs(), **{"ir": "torch_compile", **settings})
    ),
    "convert_method_to_trt_engine": _whole(trt_frontends.convert_method_to_trt_engine),
    "convert_exported_program": lambda **settings: convert_exported_program_to_serialized_trt_engine(
        torch.export.export(nn.ReLU().eval(), _inputs()), output_binding_names="y", **settings
    ),
    "export_onnx": _whole(export_onnx),
    "choose_precision": lambda **settings: _whole(choose_precision)(**{"max_error": 0.5, "engines": False, **settings}),
    "trtc": _command,
}

WITHOUT_DRY_RUNS = (
    *("verify", "bisect", "choose_precision", "export_onnx"),
    *("convert_method_to_trt_engine", "convert_exported_program"),
)
"""Where engines, or what they compute, are asked for."""

ARGUMENTS = {
    "compile": ("autocast_calibration_dataloader",),
    "explain": ("autocast_calibration_dataloader",),
    "verify": ("autocast_calibration_dataloader",),
    "bisect": ("autocast_calibration_dataloader",),
    "MutableModule": ("autocast_calibration_dataloader",),
    "optimize": ("dynamic", "fullgraph"),
    "ir": ("ir", "dynamic", "fullgraph"),
}
"""What is no setting there, but an argument."""


@pytest.fixture(autouse=True)
def model_for_the_command(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "door_model.py").write_text(
        "import torch\ndef make():\n    return torch.nn.ReLU().eval(), (torch.ones(2, 3),)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))


def _renamed() -> list[dict[str, Any]]:
    """The other names with the values above, none twice for one setting."""
    groups: list[dict[str, Any]] = []
    for name, fate in RETIRED_SETTINGS.items():
        if not isinstance(fate, Renamed):
            continue
        value = PRESENT[fate.target]
        taken = [{RETIRED_SETTINGS[other].target for other in group} for group in groups]  # type: ignore[union-attr]
        at = next((at for at, targets in enumerate(taken) if fate.target not in targets), None)
        if at is None:
            groups.append({})
            at = len(groups) - 1
        groups[at][name] = not value if fate.opposite else value
    return groups


@pytest.mark.sampled
@pytest.mark.parametrize("given", [PRESENT, *_renamed()], ids=lambda given: ",".join(given)[:40])
@pytest.mark.parametrize("door", DOORS)
def test_names_of_every_generation_are_taken(door: str, given: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        found = DOORS[door](**given)
    if isinstance(found, CompilationSettings):
        fates = {name: RETIRED_SETTINGS.get(name) for name in given}
        names = [fate.target if isinstance(fate, Renamed) else name for name, fate in fates.items()]
        assert found == CompilationSettings(**{name: PRESENT[name] for name in names})


@pytest.mark.parametrize("door", DOORS)
def test_values_that_ask_for_what_happens_anyway_are_taken_in_silence(door: str) -> None:
    fates = {name: fate for name, fate in RETIRED_SETTINGS.items() if isinstance(fate, (NoEffect, Refused))}
    given = {name: fate.silent[0] for name, fate in fates.items() if name not in ARGUMENTS.get(door, ())}
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        DOORS[door](**given)


@pytest.mark.parametrize("given", [{"no_such_setting": 1}, {"fp16_mode": True}], ids=["unknown", "refused"])
@pytest.mark.parametrize("door", DOORS)
def test_what_cannot_be_had_is_an_error(door: str, given: dict[str, Any]) -> None:
    (name,) = given
    # PyTorch wraps what a backend raises, and tells it
    with pytest.raises((SettingsError, BackendCompilerFailed), match=name):
        DOORS[door](**given)


@pytest.mark.parametrize("door", [name for name in DOORS if not name.startswith("CompilationSettings")])
def test_settings_in_one_object_are_taken(door: str) -> None:
    if door != "trtc":
        DOORS[door](settings=CompilationSettings(optimization_level=0, device="cpu"))


@pytest.mark.parametrize("door", WITHOUT_DRY_RUNS)
def test_a_dry_run_is_refused_where_engines_are_asked_for(door: str) -> None:
    with pytest.raises(SettingsError, match="dryrun=True builds no engines"):
        DOORS[door](dry_run=True)


@pytest.mark.parametrize("name", ["progress", "model", "arg_inputs", "tolerance", "autocast_calibration_dataloader"])
@pytest.mark.parametrize("command", [["verify"], ["bisect"], ["explain"], ["precision"], ["compile", "-o", "x.trtp"]])
def test_arguments_of_functions_are_no_settings_of_a_command(command: list[str], name: str) -> None:
    result = CliRunner().invoke(app, [command[0], "door_model:make", *command[1:], "--setting", f"{name}=3"])
    assert result.exit_code == 2 and name in result.output and "Traceback" not in result.output


def test_settings_beside_what_is_compiled_are_read() -> None:
    model = nn.ReLU().eval()
    given = {"arg_inputs": _inputs(), "samples": 0}
    with pytest.raises(SettingsError, match="no_such_setting"):
        trt_frontends.verify(model, model, **given, no_such_setting=1)
    with pytest.warns(UserWarning, match="min_block_size has no effect: what is compared is compiled already"):
        trt_frontends.verify(model, model, **given, min_block_size=1)
    assert trt_frontends.verify(model, model, **given, precision="half").tolerance > 1e-3


def test_arguments_of_compile_reach_torch_compile() -> None:
    def compile_with(**given: Any) -> Any:
        return trt_frontends.compile(
            nn.ReLU().eval(), arg_inputs=_inputs(), ir="torch_compile", min_block_size=1, **given
        )

    asked: list[str] = []

    class Cache:
        def load(self, hash: str) -> None:  # noqa: A002 - what scripts call it
            asked.append(hash)

        def save(self, hash: str, *_: Any, **__: Any) -> None:  # noqa: A002
            asked.append(hash)

    _call(compile_with(custom_engine_cache=Cache()))
    assert asked
    with pytest.raises(SettingsError, match="autocast_calibration_dataloader"):
        compile_with(autocast_calibration_dataloader=[_inputs()])


def test_what_cannot_be_demanded_of_torch_compile_is_said() -> None:
    with pytest.warns(UserWarning, match="require_full_compilation=True has no effect under torch.compile"):
        DOORS["torch.compile"](require_full_compilation=True)


def test_settings_of_a_mutable_module_are_read_when_it_is_made() -> None:
    with pytest.raises(SettingsError, match="min_block_size"):
        trt_frontends.MutableModule(nn.ReLU().eval(), min_block_size=-1)
    with pytest.warns(UserWarning, match="refit=False has no effect"):
        trt_frontends.MutableModule(nn.ReLU().eval(), immutable_weights=True)


def test_there_is_a_value_for_each_setting_with_another_name() -> None:
    targets = {fate.target for fate in RETIRED_SETTINGS.values() if isinstance(fate, Renamed)}
    assert targets == PRESENT.keys() and targets <= set(setting_names())
