"""What the pages about transformers and diffusers show, run as a reader would type it, on models of a few channels."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trtc.app import app
from typer.testing import CliRunner

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")
image = pytest.importorskip("PIL.Image")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif("TRT_STRESS" not in os.environ, reason="takes a minute; nox -s stress runs it"),
]
PAGES = Path(__file__).resolve().parent.parent / "docs" / "howto"
WORDS = ["<pad>", "<unk>", "<s>", "</s>", "What", "a", "good", "day", "The", "sea", "cat", "dog", "in", "the", "snow"]
VISION = {"image_size": 64, "patch_size": 16}


def _samples(page: str, changes: Mapping[str, str]) -> list[str]:
    """Code of a page with its large models and sizes exchanged for small ones; each of these has to be there."""
    samples = re.findall(r"^```python\n(.*?)^```", (PAGES / f"{page}.md").read_text(encoding="utf-8"), re.M | re.S)
    text = "\n---\n".join(samples)
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text.split("\n---\n")


def _tokenizer() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(WORDS)}, "<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
    )
    names = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=16, model_input_names=["input_ids", "attention_mask"], **names
    )


def _write_models() -> None:
    torch.manual_seed(0)
    config = transformers.DistilBertConfig(vocab_size=len(WORDS), dim=32, n_layers=1, n_heads=2, hidden_dim=64)
    transformers.DistilBertForSequenceClassification(config).save_pretrained("sentiment")
    _tokenizer().save_pretrained("sentiment")
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 64, "bos_token_id": 2, "eos_token_id": 3}
    transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=len(WORDS), **sizes)).save_pretrained("language")
    _tokenizer().save_pretrained("language")
    heads = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}
    windows = {"output_channels": 16, "window_size": 2, "global_attn_indexes": [0], "num_pos_feats": 8}
    masks = transformers.SamConfig(
        vision_config={**VISION, **heads, **windows},
        prompt_encoder_config={**VISION, "hidden_size": 16, "mask_input_channels": 4},
        mask_decoder_config={**heads, "iou_head_hidden_dim": 16, "iou_head_depth": 2},
    )
    transformers.SamModel(masks).save_pretrained("masks")
    fine = {"mask_size": {"longest_edge": 16}, "mask_pad_size": {"height": 16, "width": 16}}
    coarse = {"size": {"longest_edge": 64}, "pad_size": {"height": 64, "width": 64}}
    transformers.SamImageProcessor(**coarse, **fine).save_pretrained("masks")
    for name in ("cat", "dog"):
        picture = np.random.default_rng(len(name)).integers(0, 255, (48, 64, 3), np.uint8)
        image.fromarray(picture).save(f"{name}.png")


def test_the_page_of_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _write_models()
    changes = {
        "distilbert-base-uncased-finetuned-sst-2-english": "sentiment",
        '"gpt2"': '"language"',
        "max_length=1024": "max_length=64",
        "max_new_tokens=64": "max_new_tokens=4",
        "facebook/sam-vit-base": "masks",
        "1, 3, 1024, 1024": "1, 3, 64, 64",
        "points_per_crop=32": "points_per_crop=2, pred_iou_thresh=-100.0, stability_score_thresh=-1.0",
        '"points_per_crop": 32': '"points_per_crop": 2',
    }
    names: dict[str, Any] = {}
    for sample in _samples("hugging_face", changes):
        exec(compile(sample, "hugging_face.md", "exec"), names)
    found = names["classify"]("What a good day")
    plain = transformers.pipeline("text-classification", model="sentiment", device="cpu")
    assert found[0]["score"] == pytest.approx(plain("What a good day")[0]["score"], abs=1e-5)
    assert len(names["found"]) > 0 and names["found"][0].shape == (48, 64)
    (tmp_path / "sentiment.trtp").unlink()  # which a sample has written
    page = (PAGES / "hugging_face.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (trtc compile hf:.*)$", page, re.M)
    assert CliRunner().invoke(app, shlex.split(command)[1:]).exit_code == 0


def test_the_page_of_diffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    diffusers = pytest.importorskip("diffusers")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    channels = {"block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8}
    unet = diffusers.UNet2DConditionModel(
        **channels,
        sample_size=8,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )
    vae = diffusers.AutoencoderKL(
        **channels,
        latent_channels=4,
        sample_size=16,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
    )
    text = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"max_position_embeddings": 16, "bos_token_id": 2, "eos_token_id": 3}
    diffusers.StableDiffusionPipeline(
        vae=vae,
        text_encoder=transformers.CLIPTextModel(transformers.CLIPTextConfig(vocab_size=len(WORDS), **text, **ends)),
        tokenizer=_tokenizer(),
        unet=unet,
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    ).save_pretrained("stable-diffusion")
    changes = {
        "torch.float16": "torch.float32",
        '.to("cuda")': "",
        "(256, 512, 1024)": "(8, 16, 32)",
        "768": "32",
        "512": "16",
        "num_inference_steps=30": "num_inference_steps=2",
        "num_images_per_prompt=2": "num_images_per_prompt=2, num_inference_steps=2",
    }
    names: dict[str, Any] = {}
    for sample in _samples("diffusion", changes):
        exec(compile(sample, "diffusion.md", "exec"), names)
    assert names["image"].size == (16, 16) and [each.size for each in names["images"]] == [(16, 32)] * 2
    call = {"prompt": "a dog", "num_inference_steps": 2, "height": 16, "width": 16, "output_type": "np"}
    made, wanted = (
        one(**call, generator=torch.Generator().manual_seed(1)).images for one in (names["fast"], names["pipeline"])
    )
    np.testing.assert_allclose(made, wanted, atol=1e-3)
