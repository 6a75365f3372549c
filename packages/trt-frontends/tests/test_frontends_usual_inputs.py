"""`trtc compile hf:DIR` finds out what a model of transformers is called with, or says what it cannot make up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from trtc.app import app
from trtc.usual_inputs import usual_inputs
from typer.testing import CliRunner

import trt_runtime
from trt_core import InputError

pytestmark = pytest.mark.sampled(4)

transformers = pytest.importorskip("transformers")

BLOCK: Final = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
TEXT: Final = {**BLOCK, "vocab_size": 50, "max_position_embeddings": 24}
WORDS: Final = {**TEXT, "bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
IMAGE: Final = {**BLOCK, "image_size": 32, "patch_size": 8}
SIDES: Final = {
    f"{side}_{name}": value
    for side in ("encoder", "decoder")
    for name, value in {"layers": 1, "attention_heads": 2, "ffn_dim": 64}.items()
}
STEPS: Final = {**SIDES, "vocab_size": 50, "d_model": 32, "decoder_start_token_id": 1}
STARTS: Final = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def _make(kind: str, config: str, **given: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config)(**given)).eval()


def _whisper(kind: str) -> Any:
    return _make(kind, "WhisperConfig", **STEPS, **STARTS, max_source_positions=30, max_target_positions=20)


def _t5(kind: str) -> Any:
    sizes = {"vocab_size": 50, "d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    return _make(kind, "T5Config", **sizes, decoder_start_token_id=0)


def _clip(kind: str = "CLIPModel") -> Any:
    return _make(kind, "CLIPConfig", text_config=WORDS, vision_config=IMAGE, projection_dim=16)


def _blip(kind: str) -> Any:
    words = {**WORDS, "sep_token_id": 2, "encoder_hidden_size": 32}
    return _make(kind, "BlipConfig", text_config=words, vision_config=IMAGE, image_text_hidden_size=16)


def _two(kind: str, config: str, encoder: Any) -> Any:
    decoder = transformers.BertConfig(**TEXT, is_decoder=True, add_cross_attention=True)
    both = getattr(transformers, config).from_encoder_decoder_configs(encoder, decoder)
    both.decoder_start_token_id, both.pad_token_id = 2, 0
    torch.manual_seed(0)
    return getattr(transformers, kind)(config=both).eval()


def _captions() -> Any:
    return _two("VisionEncoderDecoderModel", "VisionEncoderDecoderConfig", transformers.ViTConfig(**IMAGE))


def _sam() -> Any:
    sizes = {"image_size": 64, "patch_size": 16}
    vision = {**BLOCK, **sizes, "output_channels": 16, "window_size": 2, "num_pos_feats": 8}
    mask = {"hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    return _make(
        "SamModel",
        "SamConfig",
        vision_config=vision,
        prompt_encoder_config={**sizes, "hidden_size": 16},
        mask_decoder_config={**mask, "iou_head_hidden_dim": 16},
    )


def _wave(kind: str, config: str, **more: Any) -> Any:
    sizes = {"conv_dim": [16, 16], "conv_stride": [5, 2], "conv_kernel": [10, 3], "num_feat_extract_layers": 2}
    return _make(kind, config, **sizes, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=2, **more)


def _spoken() -> Any:
    sizes = {**SIDES, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "hidden_size": 32, "vocab_size": 50}
    return _wave("SpeechT5ForSpeechToText", "SpeechT5Config", **sizes)


def _clap() -> Any:
    sizes = {"spec_size": 32, "num_mel_bins": 8, "patch_size": 4, "patch_stride": [4, 4], "window_size": 2}
    audio = {**sizes, "hidden_size": 32, "depths": [1, 1], "num_attention_heads": [2, 2], "num_classes": 3}
    audio["patch_embeds_hidden_size"] = 16
    return _make("ClapModel", "ClapConfig", text_config=TEXT, audio_config=audio, projection_dim=16)


Shapes = dict[str, tuple[int, ...]]
TOKENS: Final = (1, 24)
MASKED: Final[Shapes] = {"input_ids": TOKENS, "attention_mask": TOKENS}
PIXELS: Final[Shapes] = {"pixel_values": (1, 3, 32, 32)}
STEP: Final[Shapes] = {"decoder_input_ids": TOKENS}
CASES: Final[dict[str, tuple[Callable[[], Any], Shapes]]] = {
    "whisper": (
        lambda: _whisper("WhisperForConditionalGeneration"),
        {"input_features": (1, 80, 60), "decoder_input_ids": (1, 20)},
    ),
    "whisper classifier": (lambda: _whisper("WhisperForAudioClassification"), {"input_features": (1, 80, 60)}),
    "t5": (
        lambda: _t5("T5ForConditionalGeneration"),
        dict.fromkeys((*MASKED, "decoder_input_ids"), (1, 128)),
    ),
    "t5 encoder": (lambda: _t5("T5EncoderModel"), dict.fromkeys(MASKED, (1, 128))),
    "bart": (
        lambda: _make("BartForConditionalGeneration", "BartConfig", **STEPS, max_position_embeddings=24),
        MASKED,
    ),
    "marian": (
        lambda: _make("MarianMTModel", "MarianConfig", **STEPS, pad_token_id=0, max_position_embeddings=24),
        {**MASKED, **STEP},
    ),
    "speech2text": (
        lambda: _make("Speech2TextForConditionalGeneration", "Speech2TextConfig", **STEPS, max_target_positions=24),
        {"input_features": (1, 1000, 80), **STEP},
    ),
    "speecht5": (_spoken, {"input_values": (1, 16000), "decoder_input_ids": (1, 128)}),
    "clip": (_clip, {**MASKED, **PIXELS}),
    "clip of images": (lambda: _clip("CLIPForImageClassification"), PIXELS),
    "siglip": (
        lambda: _make("SiglipModel", "SiglipConfig", text_config={**WORDS, "projection_size": 32}, vision_config=IMAGE),
        {**MASKED, **PIXELS},
    ),
    "clap": (_clap, {**MASKED, "input_features": (1, 1, 128, 8)}),
    "blip": (lambda: _blip("BlipForImageTextRetrieval"), {**MASKED, **PIXELS}),
    "blip of questions": (lambda: _blip("BlipForQuestionAnswering"), {**MASKED, **PIXELS, **STEP}),
    "captions": (_captions, {**PIXELS, **STEP}),
    "translation": (
        lambda: _two("EncoderDecoderModel", "EncoderDecoderConfig", transformers.BertConfig(**TEXT)),
        {**MASKED, **STEP},
    ),
    "sam": (_sam, {"pixel_values": (1, 3, 64, 64)}),
    "layoutlm": (
        lambda: _make("LayoutLMForTokenClassification", "LayoutLMConfig", **TEXT),
        {**MASKED, "bbox": (1, 24, 4)},
    ),
    "llama": (
        lambda: _make("LlamaForCausalLM", "LlamaConfig", **TEXT, num_key_value_heads=2),
        MASKED,
    ),
    "spectrogram": (
        lambda: _make("ASTForAudioClassification", "ASTConfig", **BLOCK, patch_size=8, max_length=64, num_mel_bins=32),
        {"input_values": (1, 64, 32)},
    ),
    "waves": (
        lambda: _wave("Wav2Vec2Model", "Wav2Vec2Config", **BLOCK),
        {"input_values": (1, 16000)},
    ),
    "video": (
        lambda: _make("VideoMAEForVideoClassification", "VideoMAEConfig", **IMAGE, num_frames=4, tubelet_size=2),
        {"pixel_values": (1, 4, 3, 32, 32)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_inputs_are_the_fewest_that_the_model_takes(case: str) -> None:
    make, wanted = CASES[case]
    model = make()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    assert {name: given.shape for name, given in usual_inputs(model).items()} == wanted
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def _compile(model: Any, folder: Path, *options: str) -> Any:
    model.save_pretrained(folder / "model")
    settings = ("--device", "cpu", "--quiet", "-s", "optimization_level=0")
    arguments = ["compile", f"hf:{folder / 'model'}", "-o", str(folder / "x.trtp"), *settings, *options]
    return CliRunner().invoke(app, arguments)


def _example(name: str, shape: Any) -> torch.Tensor:
    if name == "bbox":
        return torch.tensor([10, 20, 30, 40]).expand(shape)
    if name.endswith("mask"):
        return torch.ones(shape, dtype=torch.int64)
    return torch.randint(3, 20, shape) if name.endswith("_ids") else torch.randn(shape)


@pytest.mark.parametrize("case", ["whisper", "t5", "clip", "captions", "blip of questions", "layoutlm"])
def test_folders_of_models_with_several_inputs_compile(case: str, tmp_path: Path) -> None:
    model = CASES[case][0]()
    result = _compile(model, tmp_path)
    assert result.exit_code == 0, result.output
    loaded: Any = trt_runtime.load(tmp_path / "x.trtp")
    given = {spec.name: _example(spec.name, spec.shape) for spec in loaded.inputs}
    with torch.no_grad():
        expected, found = model(**given), loaded(**given)
    results = {name: value for name, value in expected.items() if isinstance(value, torch.Tensor)}
    assert results
    for name, value in results.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


def test_shapes_without_all_that_is_needed_name_the_rest(tmp_path: Path) -> None:
    result = _compile(_t5("T5ForConditionalGeneration"), tmp_path, "--shapes", "input_ids=1x8")
    assert result.exit_code == 2
    assert "T5ForConditionalGeneration needs decoder_input_ids beside input_ids" in " ".join(result.output.split())
    assert "--shapes decoder_input_ids=1x128" in result.output
    result = _compile(_clip(), tmp_path, "--shapes", "input_idss=1x8")
    assert result.exit_code == 2
    assert "CLIPModel needs input_ids and pixel_values beside input_idss" in " ".join(result.output.split())


def test_what_cannot_be_made_up_is_said(tmp_path: Path) -> None:
    sizes = {"context_length": 32, "patch_length": 8, "patch_stride": 8, "d_model": 16, "num_attention_heads": 2}
    series = _make("PatchTSTForPrediction", "PatchTSTConfig", **sizes, num_hidden_layers=1, num_input_channels=2)
    with pytest.raises(InputError, match="inputs of PatchTSTForPrediction cannot be made up") as caught:
        usual_inputs(series)
    assert "past_values" in caught.value.why and "--shapes past_values=1x" in caught.value.hint
    result = _compile(series, tmp_path, "--shapes", "past_values=1x32x2")
    assert result.exit_code == 0, result.output
