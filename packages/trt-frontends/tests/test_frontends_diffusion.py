"""Pipelines of diffusers: compiled part by part, saved as a folder, loaded where nothing compiles."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fresh_process import run_python
from torch import nn

import trt_frontends
from trt_core import FileError, InputError, PlanError
from trt_runtime.diffusion import (
    MANIFEST,
    CompiledMethod,
    CompiledPart,
    _component,
    load_pipeline,
    save_pipeline,
    with_programs,
)

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")

FAST = {"optimization_level": 0}
X = torch.ones(1, 4, 2, 2)
STRESS = bool(os.environ.get("TRT_STRESS"))


def _autoencoder() -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=(16, 32),
        norm_num_groups=8,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        sample_size=16,
    ).eval()


def _pipeline() -> Any:
    """Stable diffusion, a few channels wide."""
    torch.manual_seed(0)
    unet = diffusers.UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=1,
        sample_size=8,
        norm_num_groups=8,
        cross_attention_dim=32,
        attention_head_dim=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).eval()
    text = transformers.CLIPTextConfig(
        vocab_size=50,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        bos_token_id=0,
        eos_token_id=2,
    )
    pipeline = diffusers.StableDiffusionPipeline(
        vae=_autoencoder(),
        text_encoder=transformers.CLIPTextModel(text).eval(),
        tokenizer=_tokenizer(),
        unet=unet,
        scheduler=diffusers.DDIMScheduler(clip_sample=False, steps_offset=1),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def _tokenizer() -> Any:
    tokenizers = pytest.importorskip("tokenizers")
    words = {word: index for index, word in enumerate(["<s>", "<unk>", "</s>", "a", "cat", "dog"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="</s>",
        model_max_length=16,
    )


CALL = {"prompt": "a cat", "num_inference_steps": 2, "height": 16, "width": 16, "output_type": "np"}


def _image(pipeline: Any, **call: Any) -> np.ndarray:
    given = {**CALL, "generator": torch.Generator().manual_seed(1), **call}
    image: np.ndarray = pipeline(**given).images
    return image


def test_pipelines_are_compiled_saved_and_loaded(tmp_path: Path) -> None:
    pipeline = _pipeline()
    compiled = trt_frontends.compile_pipeline(pipeline, CALL, **FAST)
    names = {name for name, part in compiled.components.items() if isinstance(part, CompiledPart)}
    assert names == {"unet", "vae", "text_encoder"}
    assert not any(isinstance(part, CompiledPart) for part in pipeline.components.values())
    save_pipeline(compiled, tmp_path / "pipeline")
    loaded = load_pipeline(tmp_path / "pipeline")
    for prompt, steps in (("a cat", 2), ("a dog", 4)):
        wanted = _image(pipeline, prompt=prompt, num_inference_steps=steps)
        for other in (compiled, loaded):
            np.testing.assert_allclose(_image(other, prompt=prompt, num_inference_steps=steps), wanted, atol=1e-3)
    with pytest.raises(InputError, match="sample"):
        _image(compiled, height=32)
    save_pipeline(loaded, tmp_path / "again")
    np.testing.assert_allclose(_image(load_pipeline(tmp_path / "again")), _image(pipeline), atol=1e-3)
    with pytest.raises(FileError, match="holds something already"):
        save_pipeline(compiled, tmp_path / "again")
    _require_nothing_that_compiles(tmp_path / "pipeline")


def _require_nothing_that_compiles(folder: Path) -> None:
    script = (
        "import sys; from trt_runtime.diffusion import load_pipeline\n"
        "pipeline = load_pipeline(sys.argv[1]); pipeline.set_progress_bar_config(disable=True)\n"
        "images = pipeline('a cat', num_inference_steps=1, height=16, width=16, output_type='np').images\n"
        "foreign = {'trt_frontends', 'trt_converters', 'trt_lowering', 'trt_partition'} & set(sys.modules)\n"
        "print(images.shape, foreign)"
    )
    result = run_python(script, str(folder))
    assert result.stdout.endswith("(1, 16, 16, 3) set()\n"), result.stderr


def test_a_text_encoder_takes_what_pipelines_hand_on_by_keyword() -> None:
    """Those of two encoders ask for all layers, which encoders of transformers 5 take among their other keywords."""
    pipeline = _pipeline()

    class TwoLayers(diffusers.StableDiffusionPipeline):  # type: ignore[misc, name-defined]
        def encode_prompt(self, *args: Any, **kwargs: Any) -> Any:
            tokens = self.tokenizer("a cat", padding="max_length", max_length=16, return_tensors="pt").input_ids
            states = self.text_encoder(tokens, output_hidden_states=True).hidden_states
            return states[-2], states[-1]

    compiled = trt_frontends.compile_pipeline(TwoLayers(**pipeline.components), CALL, parts=["text_encoder"], **FAST)
    found, wanted = (each.encode_prompt("a cat") for each in (compiled, TwoLayers(**pipeline.components)))
    torch.testing.assert_close(found, wanted)


def test_transformers_that_denoise_are_compiled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = {"num_layers": 2, "num_attention_heads": 2, "attention_head_dim": 8, "sample_size": 8, "patch_size": 2}
    transformer = diffusers.DiTTransformer2DModel(
        **sizes, in_channels=4, out_channels=8, num_embeds_ada_norm=1000
    ).eval()
    pipeline = diffusers.DiTPipeline(transformer, _autoencoder(), diffusers.DDIMScheduler(clip_sample=False))
    pipeline.set_progress_bar_config(disable=True)
    call = {"class_labels": [3], "num_inference_steps": 2, "output_type": "np"}
    compiled = trt_frontends.compile_pipeline(pipeline, call, **FAST)
    save_pipeline(compiled, tmp_path / "dit")
    wanted = pipeline(**call, generator=torch.Generator().manual_seed(1)).images
    for other in (compiled, load_pipeline(tmp_path / "dit")):
        found = other(**call, generator=torch.Generator().manual_seed(1)).images
        np.testing.assert_allclose(found, wanted, atol=1e-3)


@pytest.mark.parametrize(
    "parts",
    [["vae"], pytest.param(None, marks=pytest.mark.skipif(not STRESS, reason="takes long; TRT_STRESS=1 runs it"))],
)
def test_parts_are_compiled_for_ranges_of_sizes(parts: list[str] | None, tmp_path: Path) -> None:
    pipeline = _pipeline()
    sizes = {"height": (16, 16, 32), "width": (16, 16, 24), "num_images_per_prompt": (1, 1, 2)}
    compiled = trt_frontends.compile_pipeline(pipeline, CALL, sizes=sizes, parts=parts, **FAST)
    assert isinstance(compiled.vae, CompiledPart)
    assert parts is None or compiled.unet is pipeline.unet
    save_pipeline(compiled, tmp_path / "pipeline")
    loaded = load_pipeline(tmp_path / "pipeline")
    loaded.set_progress_bar_config(disable=True)
    for call in ({}, {"height": 24, "num_images_per_prompt": 2}, {"height": 32, "width": 24}):
        wanted = _image(pipeline, num_inference_steps=1, **call)
        for other in (compiled, loaded):
            np.testing.assert_allclose(_image(other, num_inference_steps=1, **call), wanted, atol=1e-3)
    with pytest.raises(InputError, match="compiled for 8 to 16"):
        _image(compiled, height=48)
    with pytest.raises(InputError, match="was not compiled for encode"):
        compiled.vae.encode(torch.zeros(1, 3, 16, 16))


def test_parts_and_sizes_that_cannot_be_compiled_are_named() -> None:
    pipeline = _pipeline()
    with pytest.raises(InputError, match="did you mean 'unet'"):
        trt_frontends.compile_pipeline(pipeline, CALL, parts=["unett"], **FAST)
    with pytest.raises(InputError, match="no compiled parts"):
        save_pipeline(pipeline, "nowhere")
    with pytest.raises(InputError, match=r"sizes\['height'\] is \(16, 32\)"):
        trt_frontends.compile_pipeline(pipeline, CALL, sizes={"height": (16, 32)}, **FAST)
    other_arguments = {"cross_attention_kwargs": (None, {}, {})}
    with pytest.raises(InputError, match="'unet' cannot be compiled") as caught:
        trt_frontends.compile_pipeline(pipeline, CALL, sizes=other_arguments, parts=["unet"], **FAST)
    assert caught.value.why == "calls of some sizes alone give it cross_attention_kwargs"


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(pipeline="AutoencoderKL"),
        lambda manifest: manifest.update(parts={}),
        lambda manifest: manifest["parts"]["vae"]["methods"].update(decode=["../vae.decode.trtp"]),
        lambda manifest: manifest["parts"]["vae"].update(methods={"decode": []}),
        lambda manifest: manifest.update(more=1),
    ],
)
def test_lists_that_are_not_right_are_refused(change: Any, tmp_path: Path) -> None:
    entry = {"methods": {"decode": ["vae.decode.trtp"]}, "dtype": "float32", "buffers": {}}
    manifest = {"pipeline": "StableDiffusionPipeline", "parts": {"vae": entry}}
    change(manifest)
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(PlanError):
        load_pipeline(tmp_path)
    with pytest.raises(InputError, match="holds no compiled pipeline"):
        load_pipeline(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "described", [["diffusers", "logging"], ["diffusers", "__name__"], ["transformers", "pipeline"], ["torch", "hub"]]
)
def test_a_part_is_a_class_that_reads_folders(described: list[str], tmp_path: Path) -> None:
    """Modules, texts and functions of the libraries left as foreign errors."""
    with pytest.raises(PlanError):
        _component(tmp_path, described)


@pytest.mark.parametrize("described", [["diffusers", "StableDiffusionPipeline"], ["diffusers", "DDIMScheduler"]])
def test_parts_that_libraries_cannot_read_are_told(described: list[str], tmp_path: Path) -> None:
    with pytest.raises(PlanError):
        _component(tmp_path, described)


@pytest.mark.parametrize("path", ["to", "__init__", "nowhere.forward", "_apply", "config"])
def test_programs_take_the_place_of_nothing_but_methods_of_a_part(path: str) -> None:
    with pytest.raises(PlanError, match="has no method"):
        with_programs(_autoencoder(), {path: CompiledMethod((nn.Identity(),))})


def test_a_compiled_part_is_of_its_class_and_refuses_what_it_was_not_compiled_for() -> None:
    part = with_programs(_autoencoder().to("meta"), {"_decode": CompiledMethod((_Halved(),))})
    assert isinstance(part, CompiledPart) and isinstance(part, diffusers.AutoencoderKL)
    assert torch.equal(part.decode(X, return_dict=False)[0], X / 2)
    with pytest.raises(InputError, match="was not compiled for encode"):
        part.encode(torch.zeros(1, 3, 16, 16))
    with pytest.raises(InputError, match="save_pipeline"):
        part.save_pretrained("nowhere")
    assert part.to(torch.float16).dtype is torch.float16  # which is what SDXL asks of it for a while


class _Halved(nn.Module):
    device = torch.device("cpu")

    def forward(self, z: torch.Tensor) -> Any:
        return diffusers.models.autoencoders.vae.DecoderOutput(sample=z / 2)


def test_what_could_not_be_loaded_is_told_before_anything_is_written(tmp_path: Path) -> None:
    class Own(diffusers.AutoencoderKL):  # type: ignore[misc, name-defined]
        pass

    pipeline = _pipeline()
    pipeline.register_modules(vae=Own.from_config(pipeline.vae.config).eval())
    compiled = trt_frontends.compile_pipeline(pipeline, CALL, parts=["vae"], **FAST)
    with pytest.raises(InputError, match="its vae could not be loaded"):
        save_pipeline(compiled, tmp_path / "pipeline")
    assert not (tmp_path / "pipeline").exists()
