"""`trtc generate`: what it says of a language model, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from quantized_layers import rounded_to_mxfp4
from trtc.app import app, language_model
from typer.testing import CliRunner

from trt_frontends.generation.report import GenerationReport, bytes_read, experts_of
from trt_frontends.stored_layers import open_stored_layers
from trt_runtime import TextGenerator
from trt_runtime.program_file import PROGRAM

SIZES: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 50}


SMALL: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1} | {
    "num_attention_heads": 2
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    config = transformers.GPT2Config(**SIZES, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("of", ["checkpoint", "configuration"])
def test_it_says_how_fast_a_model_generates(folder: Path, tmp_path: Path, of: str) -> None:
    source = str(folder if of == "checkpoint" else folder / "config.json")
    written, saved = tmp_path / "report.json", tmp_path / "model.trtp"
    sizes = ["--prompt-tokens", "5", "--new-tokens", "4", "--batch", "2", "--device", "cpu"]
    result = CliRunner().invoke(app, ["generate", source, *sizes, "--json", str(written), "--save", str(saved)])
    assert result.exit_code == 0, result.output
    for word in ("tokens/s", "read a step", "caches"):
        assert word in result.output
    found = json.loads(written.read_text())
    assert (found["batch"], found["prompt_tokens"], found["new_tokens"]) == (2, 5, 4)
    assert found["cache_bytes"] == 2 * 2 * 2 * 9 * 8 * 4  # keys and values: rows, heads, places, width, bytes
    assert found["bandwidth_share"] is None
    assert found["tokens_per_second"] == pytest.approx(2 / found["token_seconds"])
    assert TextGenerator.load(saved).limits.max_length == 9
    if of == "configuration":
        return
    again = CliRunner().invoke(app, ["generate", str(saved), *sizes, "--json", str(tmp_path / "again.json")])
    assert again.exit_code == 0, again.output
    told = json.loads((tmp_path / "again.json").read_text())
    same = ("batch", "prompt_tokens", "new_tokens", "cache_bytes", "experts")
    assert [told[name] for name in same] == [found[name] for name in same]
    assert found["weight_bytes"] < told["weight_bytes"] < saved.stat().st_size  # a table of which rows are looked up
    for options, said in (
        (["--setting", "prefill_chunk=2"], "--setting"),
        (["--random-weights", "--dtype", "float32"], "--dtype, --random-weights"),
        (["--save", str(tmp_path / "other.trtp")], "--save"),
        (["--max-length", "4"], "--max-length"),
    ):
        refused = CliRunner().invoke(app, ["generate", str(saved), *options])
        assert refused.exit_code == 2
        words = " ".join((refused.output + refused.stderr).split())
        assert "is compiled already" in words and said in words
    refused = CliRunner().invoke(
        app, ["generate", str(saved), "--batch", "3", "--prompt-tokens", "2", "--new-tokens", "2"]
    )
    assert refused.exit_code == 2
    assert "more than the 2 rows" in " ".join((refused.output + refused.stderr).split())


SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 50,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "decoder_start_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*["Bart"] * ("TRT_STRESS" in os.environ), "Whisper"])
def test_encoder_decoders_are_measured_too(name: str, tmp_path: Path) -> None:
    more = {"max_source_positions": 10, "num_mel_bins": 8} if name == "Whisper" else {}
    getattr(transformers, f"{name}Config")(**SEQ2SEQ, **more).save_pretrained(tmp_path)
    sizes = ["--prompt-tokens", "5", "--new-tokens", "4", "--batch", "2", "--device", "cpu"]
    written = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["generate", str(tmp_path / "config.json"), *sizes, "--json", str(written)])
    assert result.exit_code == 0, result.output
    found = json.loads(written.read_text())
    assert (found["batch"], found["prompt_tokens"]) == (2, 20 if more else 5)
    assert found["cache_bytes"] == 2 * 2 * 2 * 4 * 8 * 4


def test_tables_of_which_rows_are_looked_up_are_not_read() -> None:
    model: Any = transformers.GPT2LMHeadModel(transformers.GPT2Config(**SIZES))
    whole = sum(value.numel() * value.element_size() for value in model.parameters())
    assert bytes_read(model) == whole - model.transformer.wpe.weight.numel() * 4  # the other is the head
    model.lm_head.weight = type(model.lm_head.weight)(model.lm_head.weight.clone())
    assert bytes_read(model) == whole - model.transformer.wpe.weight.numel() * 4


MIXTURE: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "num_local_experts": 8,
    "num_experts_per_tok": 3,
}


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_experts_that_no_token_chooses_are_not_read(rows: int) -> None:
    model: Any = transformers.MixtralForCausalLM(transformers.MixtralConfig(**MIXTURE, num_hidden_layers=2))
    one = 2 * 3 * 16 * 24 * 4  # layers; gate, up and down
    assert experts_of(model) == (8, 3, one)
    whole = sum(value.numel() * value.element_size() for value in model.parameters())
    table = model.model.embed_tokens.weight.numel() * 4
    assert bytes_read(model, rows) == whole - table - {1: 5, 2: 2, 4: 0}[rows] * one


def test_experts_that_engines_hold_as_codes_count_as_codes() -> None:
    """They counted as the floats that transformers makes of MXFP4, of which engines read a quarter."""
    sizes = {**MIXTURE, "hidden_size": 64, "intermediate_size": 32, "head_dim": 8, "num_hidden_layers": 1}
    model: Any = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)).requires_grad_(False)
    floats = bytes_read(model, 8)
    experts = model.model.layers[0].mlp.experts
    for matrices in (experts.gate_up_proj, experts.down_proj):
        matrices.copy_(rounded_to_mxfp4(matrices))
    one = (64 * 64 + 32 * 64) * 9 // 16  # four bits, and a scale of sixteen for thirty-two
    with open_stored_layers(model) as opened:
        assert experts_of(opened) == (8, 3, one)
        assert bytes_read(opened, 8) == floats - 8 * (64 * 64 + 32 * 64) * 4 + 8 * one
        assert bytes_read(opened, 1) == bytes_read(opened, 8) - 5 * one


@pytest.mark.slow
def test_reports_of_mixtures_say_what_a_token_chooses(tmp_path: Path) -> None:
    transformers.MixtralConfig(**MIXTURE, num_hidden_layers=1).save_pretrained(tmp_path)
    sizes = ["--prompt-tokens", "3", "--new-tokens", "2", "--device", "cpu", "--setting", "optimization_level=0"]
    written = tmp_path / "report.json"
    result = CliRunner().invoke(app, ["generate", str(tmp_path / "config.json"), *sizes, "--json", str(written)])
    assert result.exit_code == 0, result.output
    assert "3 of 8 for a token" in result.output
    found = json.loads(written.read_text())
    assert (found["experts"], found["chosen_experts"], found["expert_bytes"]) == (8, 3, 3 * 16 * 24 * 4)


def test_a_share_is_that_of_reading_the_weights_once_a_step() -> None:
    report = GenerationReport("m", "cuda:0", 1, 8, 8, 1.0, 0.01, 0.001, 10**9, 10**6, 4e12)
    assert report.bandwidth_share == pytest.approx(0.25)
    assert "25% of what the memory can do" in report.to_text()


def test_what_is_no_language_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "vit"}')
    for source, said in ((tmp_path / "nothing", "there is no folder"), (tmp_path, "cannot load")):
        result = CliRunner().invoke(app, ["generate", str(source), "--random-weights"])
        assert result.exit_code == 2
        assert said in result.output + result.stderr


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Electra"])
def test_what_continues_no_text_is_refused(kind: str, tmp_path: Path) -> None:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    getattr(transformers, f"{kind}Config")(**sizes, intermediate_size=16).save_pretrained(tmp_path)
    result = CliRunner().invoke(app, ["generate", str(tmp_path / "config.json"), "--device", "cpu"])
    assert result.exit_code == 2
    said = " ".join((result.output + result.stderr).split())
    assert "cannot be compiled for generating text" in said and "later tokens" in said


def test_caches_that_are_too_short_are_refused_before_anything_is_compiled(folder: Path) -> None:
    sizes = ["--prompt-tokens", "5", "--new-tokens", "4", "--max-length", "7", "--device", "cpu"]
    result = CliRunner().invoke(app, ["generate", str(folder), *sizes])
    assert result.exit_code == 2
    assert "caches of 7 places are too few for 9 tokens" in result.output + result.stderr


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--dtype", "float8_e4m3fn"], "float8_e4m3fn is no type of weights"),
        (["--dtype", "int7"], "no type of weights"),
        (["--device", "tpu"], "tpu"),
        (["--device", ""], "device"),
        (["--setting", "max_length=3"], "max_length is no compilation setting"),
        (["--setting", "max_source_length=3"], "max_source_length is no compilation setting"),
        (["--setting", "cache_dtype=int7"], "int7"),
        (["--save", "one.trtp", "--json", "./one.trtp"], "two files would be one"),
        (["--prompt-tokens", "70"], "knows 64 positions"),
    ],
)
def test_options_that_make_no_sense_are_refused(
    folder: Path, asked: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    result = CliRunner().invoke(app, ["generate", str(folder), "--new-tokens", "2", *asked])
    assert result.exit_code == 2
    assert said in " ".join((result.output + result.stderr).split())
    assert not list(folder.glob("one*"))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"num_attention_heads": 0}, "Error: "),  # by its kind, since Python's own words say little
        ({"hidden_size": 30, "num_attention_heads": 4}, "(30) is not a multiple"),  # in the second line of an error
        ({"rope_parameters": {"rope_type": "none"}}, "KeyError: 'none'"),
        ({"model_type": "none"}, "does not recognize this architecture"),
    ],
)
def test_configurations_that_transformers_breaks_on_are_refused(other: Any, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SMALL, **other}))
    result = CliRunner().invoke(app, ["generate", str(tmp_path / "config.json"), "--device", "cpu"])
    assert result.exit_code == 2
    found = " ".join((result.output + result.stderr).split())
    assert "transformers cannot load" in found and said in found


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "it is no object of JSON"),
        (b"", "it is no object of JSON"),
        (b"GGUF" + bytes(60), "is no configuration of a model"),
        (PROGRAM.magic + bytes(9), "truncated or corrupt"),
    ],
)
def test_files_that_are_no_configurations_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    result = CliRunner().invoke(app, ["generate", str(path), "--device", "cpu"])
    assert result.exit_code == 2
    assert said in " ".join((result.output + result.stderr).split())


def test_random_weights_of_few_bits_are_said_to_be_floats(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = {"model_type": "llama", **SMALL, "quantization_config": {"quant_method": "gptq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    language_model(str(tmp_path), None, "cpu", random_weights=True)
    assert "asks for weights in gptq; random weights are floats" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_devices_that_are_not_there_are_refused(folder: Path) -> None:
    result = CliRunner().invoke(app, ["generate", str(folder), "--device", "cuda"])
    assert result.exit_code == 2
    assert "there is no cuda" in result.output + result.stderr


def test_settings_are_read_before_a_model_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    for said in ("optimization_levle=1", "nonsense", "optimization_level=high"):
        result = CliRunner().invoke(app, ["generate", str(tmp_path / "config.json"), "--setting", said])
        assert result.exit_code == 2
        assert said.partition("=")[0] in result.output + result.stderr
        assert "cannot load" not in result.output + result.stderr


def test_caches_of_codes_are_a_setting(folder: Path, tmp_path: Path) -> None:
    sizes = ["--prompt-tokens", "2", "--new-tokens", "2", "--device", "cpu", "--setting", "optimization_level=0"]
    saved = tmp_path / "model.trtp"
    told = ["--setting", "cache_dtype=int8", "--save", str(saved)]
    result = CliRunner().invoke(app, ["generate", str(folder), *sizes, *told])
    assert result.exit_code == 0, result.output
    assert TextGenerator.load(saved).cache_bytes == 2 * 2 * 4 * (8 + 4)  # heads of eight codes, and a scale


def test_a_folder_without_weights_leads_to_random_ones(folder: Path) -> None:
    for path in folder.glob("*.safetensors"):
        path.unlink()
    result = CliRunner().invoke(app, ["generate", str(folder)])
    assert result.exit_code == 2
    assert "--random-weights" in result.output + result.stderr
