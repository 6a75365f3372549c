"""`trtc compile` from names of models to saved programs."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from fresh_process import run_python
from trtc.app import app, language_model
from trtc.model_source import load_named_model
from trtc.progress import shown_phases
from typer.testing import CliRunner

import trt_runtime
from trt_core import InputError
from trt_core.log import provider_logger
from trt_core.provider import provider_module
from trt_runtime.program.interface import DynamicSize

FAST = ("--setting", "optimization_level=0", "--device", "cpu")


def _compile(source: str, path: Path, *options: str) -> Any:
    result = CliRunner().invoke(app, ["compile", source, "-o", str(path), *FAST, *options])
    assert result.exit_code == 0, result.output
    return trt_runtime.load(path)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, num_labels=3
    )
    model = transformers.BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path / "bert")
    shape = "1x2:2x8:4x16"
    shapes = [option for name in ("input_ids", "attention_mask") for option in ("--shapes", f"{name}={shape}")]
    loaded = _compile(f"hf:{tmp_path / 'bert'}", tmp_path / "bert.trtp", *shapes)
    ids = torch.randint(0, 50, (3, 5))
    given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    torch.testing.assert_close(loaded(**given).logits, model(**given).logits, rtol=1e-4, atol=1e-5)
    assert loaded.config.num_labels == 3
    assert loaded.inputs[0].shape[0] == DynamicSize("batch", 1, 2, 4)
    usual = _compile(f"hf:{tmp_path / 'bert'}", tmp_path / "usual.trtp")
    assert [spec.name for spec in usual.inputs] == ["input_ids", "attention_mask"]
    assert usual.inputs[0].shape == (1, 128)


_NUMBERS: Final = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.mark.parametrize(
    "config",
    [
        [],
        5,
        {"model_type": "llama", "hidden_size": "16"},
        {"model_type": "llama", **_NUMBERS, "num_attention_heads": 0},
        {"model_type": "llama", **_NUMBERS, "hidden_act": "no such function"},
        {"model_type": "llama", **_NUMBERS, "rope_parameters": {"rope_type": "none"}},
        {"model_type": "llama", **_NUMBERS, "dtype": "os.system"},
        {"model_type": "of_the_folder", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}},
    ],
)
@pytest.mark.parametrize("command", ["compile", "explain", "generate"])
def test_configurations_of_strangers_are_refused_or_made(
    config: Any, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They left as errors of whatever they led transformers to; code beside them was asked for at the terminal."""
    pytest.importorskip("transformers")

    def ask(*_: object) -> str:
        raise AssertionError("somebody is asked whether code may run")

    monkeypatch.setattr("builtins.input", ask)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "model" / "code.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'harm')!r})\n")
    source = str(tmp_path / "model")
    with pytest.raises(InputError, match="transformers cannot load"):
        if command == "generate":
            language_model(source, None, "cpu", random_weights=True)
        else:
            load_named_model(f"hf:{source}", {}, random_weights=command == "compile")
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("name", ["pipeline", "set_seed", "GenerationConfig", "AutoTokenizer", "no_such_name"])
def test_a_configuration_names_models_alone(name: str, tmp_path: Path) -> None:
    """Any function of transformers was called that it named."""
    transformers = pytest.importorskip("transformers")
    transformers.LlamaConfig(**_NUMBERS, vocab_size=64, architectures=[name]).save_pretrained(tmp_path)
    found = load_named_model(f"hf:{tmp_path}", {}, random_weights=True)
    assert found is not None and type(found[0]) is transformers.LlamaModel


def test_models_of_torchvision_and_timm(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    pytest.importorskip("timm")
    options = ("--random-weights", "--shapes", "x=1x3x64x64:2x3x64x64:4x3x64x64")
    loaded = _compile("torchvision:squeezenet1_1", tmp_path / "squeezenet.trtp", *options)
    assert loaded(torch.randn(3, 3, 64, 64)).shape == (3, 1000)
    halves = _compile(
        "timm:test_efficientnet",
        tmp_path / "timm.trtp",
        "--random-weights",
        "--shapes",
        "x=2x3x64x64",
        "--dtype",
        "bfloat16",
    )
    assert halves.dtype is torch.bfloat16 and halves.inputs[0].dtype is torch.bfloat16
    assert halves(torch.randn(2, 3, 64, 64, dtype=torch.bfloat16)).shape == (2, 1000)


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("hf:nowhere", (), "there is no folder nowhere"),
        ("timm:resnet18x", (), "did you mean 'resnet18'?"),
        ("torchvision:resnet_18", (), "did you mean 'resnet18'?"),
        ("torchvision:resnet18", ("--random-weights", "--shapes", "y=1x3x8x8"), "has no input 'y'"),
        ("somewhere:make", ("--dtype", "float16"), "--dtype is for models by name"),
        ("torchvision:resnet18", ("--shapes", "x=1y3"), "write --shapes x="),
    ],
)
def test_names_that_are_none(source: str, options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["compile", source, "-o", str(tmp_path / "x.trtp"), *options])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert not (tmp_path / "x.trtp").exists()


@pytest.mark.parametrize(
    "error", ["RuntimeError('operator torchvision::nms does not exist')", "OSError('no libcudart')"]
)
def test_a_library_that_is_broken_is_told_from_one_that_is_missing(
    error: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torchvision").mkdir()
    (tmp_path / "torchvision" / "__init__.py").write_text(f"raise {error}")
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    result = CliRunner().invoke(app, ["compile", "torchvision:resnet18", "-o", str(tmp_path / "x.trtp")])
    said = " ".join(result.output.split())
    assert result.exit_code == 2
    assert "needs torchvision, which cannot be imported" in said and error.partition("'")[2].rstrip("')") in said


MADE = """
import torch
from torch import nn
def make(): return nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
def whole(): return make(), (torch.ones(2, 4),)
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "shaped_models.py").write_text(MADE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "shaped_models", raising=False)
    return tmp_path / "x.trtp"


def test_a_callable_that_returns_a_model_alone_takes_shapes(made: Path) -> None:
    arguments = ["compile", "shaped_models:make", "-o", str(made)]
    refused = CliRunner().invoke(app, arguments)
    assert refused.exit_code == 2 and "returned a Sequential" in refused.output and "--shapes" in refused.output
    result = CliRunner().invoke(app, [*arguments, "--shapes", "input=1x4:2x4:8x4"])
    assert result.exit_code == 0, result.output
    assert trt_runtime.load(made)(torch.ones(7, 4)).shape == (7, 4)


def test_shapes_beside_inputs_are_refused(made: Path) -> None:
    result = CliRunner().invoke(app, ["compile", "shaped_models:whole", "-o", str(made), "--shapes", "input=1x4"])
    assert result.exit_code == 2 and "has its inputs with it" in " ".join(result.output.split())
    assert not made.exists()


PHASES = ("captured", "lowered", "decided", "built", "saved")


def test_compile_says_its_phases_where_output_is_piped(made: Path) -> None:
    script = "import runpy; runpy.run_module('trtc', run_name='__main__', alter_sys=True)"
    done = run_python(script, "compile", "shaped_models:whole", "-o", str(made), "-s", "min_block_size=1")
    assert done.returncode == 0, done.stderr
    assert [line.split(": ")[1] for line in done.stderr.splitlines()] == list(PHASES)
    assert not done.stdout and "\x1b" not in done.stderr


@pytest.mark.parametrize("quiet", [False, True])
def test_compile_shows_a_bar_on_a_terminal(
    made: Path, quiet: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # to rich, every stream is a terminal
    options = ["--quiet"] if quiet else []
    result = CliRunner().invoke(app, ["compile", "shaped_models:whole", "-o", str(made), *options], color=True)
    assert result.exit_code == 0, result.output
    assert ("building engines" in result.stderr) is not quiet
    lines = [message for name, _, message in caplog.record_tuples if name == "torch_tensorrt"]
    assert [line.partition(":")[0] for line in lines] == ([] if quiet else list(PHASES))


def test_of_the_provider_only_warnings_stand_among_the_phases(caplog: pytest.LogCaptureFixture) -> None:
    severity = provider_module().ILogger.Severity
    with shown_phases(quiet=False):
        for level in (severity.INFO, severity.WARNING):
            provider_logger().log(level, level.name)
    assert [message.rpartition(": ")[2] for _, _, message in caplog.record_tuples] == ["WARNING"]
