"""Pipelines of diffusers of many kinds, small and with random weights: compiled and loaded they give what they gave."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import torch

import trt_frontends
from trt_runtime.diffusion import CompiledPart, load_pipeline, save_pipeline

pytestmark = pytest.mark.sampled(4)

diffusers = pytest.importorskip("diffusers")
transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

STRESS: Final = bool(os.environ.get("TRT_STRESS"))
QUICK: Final = {"controlnet", "ddpm", "sana", "stable audio"}
"""Those that the suite runs: a control network, and autoencoders and denoisers of other kinds."""

CATEGORY: Final = {"safety_checker": None, "feature_extractor": None, "requires_safety_checker": False}
TINY: Final = {"num_attention_heads": 2, "num_layers": 1}
DOWN, UP = ("DownBlock2D", "CrossAttnDownBlock2D"), ("CrossAttnUpBlock2D", "UpBlock2D")


def _unet(**more: Any) -> Any:
    given = {"block_out_channels": (8, 16), "layers_per_block": 1, "sample_size": 8, "norm_num_groups": 4}
    given |= {"cross_attention_dim": 16, "attention_head_dim": 4, "down_block_types": DOWN, "up_block_types": UP}
    return diffusers.UNet2DConditionModel(**{**given, **more})


def _vae(**more: Any) -> Any:
    given = {"block_out_channels": (8, 16), "norm_num_groups": 4, "latent_channels": 4, "sample_size": 16}
    given |= {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    return diffusers.AutoencoderKL(**{**given, **more})


def _clip(kind: str = "CLIPTextModel", **more: Any) -> Any:
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 16, "projection_dim": 16}
    config = transformers.CLIPTextConfig(**sizes, bos_token_id=0, eos_token_id=2, **more)
    return getattr(transformers, kind)(config)


def _t5(kind: str = "T5", **more: Any) -> Any:
    sizes = {"vocab_size": 50, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2}
    return getattr(transformers, f"{kind}EncoderModel")(getattr(transformers, f"{kind}Config")(**sizes, **more))


def _tokenizer(length: int = 16) -> Any:
    words = {word: index for index, word in enumerate(["<s>", "<unk>", "</s>", "a", "cat", "dog"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokens = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, model_max_length=length, **tokens)


def _text(clip: str = "CLIPTextModel") -> dict[str, Any]:
    return {"text_encoder": _clip(clip), "tokenizer": _tokenizer()}


def _t5_text(kind: str = "T5") -> dict[str, Any]:
    return {"text_encoder": _t5(kind), "tokenizer": _tokenizer()}


def _ddim() -> Any:
    return diffusers.DDIMScheduler(clip_sample=False, steps_offset=1)


def _flow() -> Any:
    return diffusers.FlowMatchEulerDiscreteScheduler()


def _picture(*size: int) -> torch.Tensor:
    return torch.rand(1, 3, *(size or (16, 16)), generator=torch.Generator().manual_seed(5))


MASK = torch.ones(1, 1, 16, 16)
SIZE = {"height": 16, "width": 16}
CALL: Final = {"prompt": "a cat", "num_inference_steps": 2, "output_type": "np"}
CHANGE: Final = {"strength": 0.9, "num_inference_steps": 3}


def _xl(**more: Any) -> dict[str, Any]:
    unet = _unet(
        addition_embed_type="text_time",
        addition_time_embed_dim=4,
        cross_attention_dim=32,
        projection_class_embeddings_input_dim=40,
        **more,
    )
    second = {"text_encoder_2": _clip("CLIPTextModelWithProjection"), "tokenizer_2": _tokenizer()}
    return {"unet": unet, "vae": _vae(), "scheduler": diffusers.EulerDiscreteScheduler(), **_text(), **second}


def _controlnet(**more: Any) -> Any:
    sizes = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 4}
    sizes |= {"cross_attention_dim": 16, "conditioning_embedding_out_channels": (4, 8), "down_block_types": DOWN}
    return diffusers.ControlNetModel(**{**sizes, **more})


def _flux_sizes() -> dict[str, Any]:
    sizes = {"in_channels": 16, "num_single_layers": 1, "attention_head_dim": 8, "joint_attention_dim": 16}
    return {**TINY, **sizes, "pooled_projection_dim": 16, "axes_dims_rope": [2, 2, 4]}


def _flux() -> dict[str, Any]:
    second = {"text_encoder_2": _t5(), "tokenizer_2": _tokenizer()}
    transformer = diffusers.FluxTransformer2DModel(**_flux_sizes())
    return {"transformer": transformer, "vae": _vae(shift_factor=0.1), "scheduler": _flow(), **_text(), **second}


def _sd3() -> dict[str, Any]:
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=4,
        attention_head_dim=8,
        joint_attention_dim=32,
        caption_projection_dim=16,
        pooled_projection_dim=32,
        pos_embed_max_size=8,
        **TINY,
    )
    names = ("", "_2")
    texts = {f"text_encoder{name}": _clip("CLIPTextModelWithProjection") for name in names}
    texts |= {f"tokenizer{name}": _tokenizer() for name in ("", "_2", "_3")}
    parts = {"transformer": transformer, "vae": _vae(shift_factor=0.1), "scheduler": _flow()}
    return {**parts, **texts, "text_encoder_3": None}


def _pixart() -> dict[str, Any]:
    transformer = diffusers.PixArtTransformer2DModel(
        sample_size=8,
        in_channels=4,
        out_channels=8,
        cross_attention_dim=16,
        caption_channels=16,
        attention_head_dim=8,
        norm_type="ada_norm_single",
        use_additional_conditions=False,
        **TINY,
    )
    return {"transformer": transformer, "vae": _vae(), "scheduler": _ddim(), **_t5_text()}


def _sana() -> dict[str, Any]:
    transformer = diffusers.SanaTransformer2DModel(
        in_channels=4,
        out_channels=4,
        attention_head_dim=8,
        sample_size=8,
        num_cross_attention_heads=2,
        cross_attention_head_dim=8,
        cross_attention_dim=16,
        caption_channels=8,
        **TINY,
    )
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {
            "block_types": ("ResBlock", "EfficientViTBlock"),
            "block_out_channels": (8, 8),
            "qkv_multiscales": ((), (5,)),
            "layers_per_block": (1, 1),
        }.items()
    }
    vae = diffusers.AutoencoderDC(
        in_channels=3,
        latent_channels=4,
        attention_head_dim=2,
        **sides,
        downsample_block_type="conv",
        upsample_block_type="interpolate",
        decoder_norm_types="rms_norm",
    )
    text = transformers.Gemma2Config(
        vocab_size=50,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=4,
        intermediate_size=16,
        pad_token_id=2,
    )
    return {
        "transformer": transformer,
        "vae": vae,
        "text_encoder": transformers.Gemma2Model(text),
        "tokenizer": _tokenizer(),
        "scheduler": _flow(),
    }


def _hunyuan() -> dict[str, Any]:
    transformer = diffusers.HunyuanDiT2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        attention_head_dim=8,
        hidden_size=16,
        num_layers=2,
        num_attention_heads=2,
        mlp_ratio=2,
        cross_attention_dim=8,
        cross_attention_dim_t5=16,
        text_len=77,
        pooled_projection_dim=4,
        text_len_t5=256,
        activation_fn="gelu-approximate",
    )
    bert = transformers.BertConfig(
        vocab_size=50, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    texts = {"text_encoder": transformers.BertModel(bert), "tokenizer": _tokenizer()}
    texts |= {"text_encoder_2": _t5(), "tokenizer_2": _tokenizer()}
    return {"transformer": transformer, "vae": _vae(), "scheduler": diffusers.DDPMScheduler(), **texts, **CATEGORY}


def _stable_audio() -> dict[str, Any]:
    transformer = diffusers.StableAudioDiTModel(
        sample_size=4,
        in_channels=3,
        attention_head_dim=4,
        num_key_value_attention_heads=2,
        out_channels=3,
        cross_attention_dim=4,
        time_proj_dim=8,
        global_states_input_dim=8,
        cross_attention_input_dim=4,
        **TINY,
    )
    vae = diffusers.AutoencoderOobleck(
        encoder_hidden_size=6,
        downsampling_ratios=[1, 2],
        decoder_channels=3,
        decoder_input_channels=3,
        audio_channels=2,
        channel_multiples=[2, 4],
        sampling_rate=4,
    )
    scheduler = diffusers.EDMDPMSolverMultistepScheduler(
        solver_order=2, prediction_type="v_prediction", sigma_data=1.0, sigma_schedule="exponential"
    )
    projection = diffusers.StableAudioProjectionModel(
        text_encoder_dim=16, conditioning_dim=4, min_value=0, max_value=32
    )
    return {
        "transformer": transformer,
        "vae": vae,
        "scheduler": scheduler,
        "projection_model": projection,
        **_t5_text(),
    }


def _ltx() -> dict[str, Any]:
    transformer = diffusers.LTXVideoTransformer3DModel(
        in_channels=8, out_channels=8, attention_head_dim=8, cross_attention_dim=16, caption_channels=16, **TINY
    )
    vae = diffusers.AutoencoderKLLTXVideo(
        latent_channels=8,
        block_out_channels=(8, 8, 8, 8),
        decoder_block_out_channels=(8, 8, 8, 8),
        layers_per_block=(1,) * 5,
        decoder_layers_per_block=(1,) * 5,
        spatio_temporal_scaling=(True, True, False, False),
        decoder_spatio_temporal_scaling=(True, True, False, False),
        patch_size=1,
    )
    return {"transformer": transformer, "vae": vae, "scheduler": _flow(), **_t5_text()}


def _wan() -> dict[str, Any]:
    transformer = diffusers.WanTransformer3DModel(
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=16,
        freq_dim=16,
        ffn_dim=16,
        rope_max_seq_len=32,
        **TINY,
    )
    vae = diffusers.AutoencoderKLWan(
        base_dim=3, z_dim=16, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True]
    )
    return {"transformer": transformer, "vae": vae, "scheduler": _flow(), **_t5_text("UMT5")}


def _kandinsky() -> dict[str, Any]:
    unet = _unet(
        in_channels=4,
        out_channels=8,
        addition_embed_type="image",
        encoder_hid_dim=16,
        encoder_hid_dim_type="image_proj",
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        resnet_time_scale_shift="scale_shift",
        class_embed_type=None,
    )
    movq = diffusers.VQModel(
        block_out_channels=(32, 32),
        down_block_types=("DownEncoderBlock2D", "AttnDownEncoderBlock2D"),
        up_block_types=("AttnUpDecoderBlock2D", "UpDecoderBlock2D"),
        latent_channels=4,
        norm_num_groups=4,
        norm_type="spatial",
        num_vq_embeddings=12,
        vq_embed_dim=4,
    )
    scheduler = diffusers.DDIMScheduler(clip_sample=False, prediction_type="epsilon", thresholding=False)
    return {"unet": unet, "movq": movq, "scheduler": scheduler}


def _sd(unet: Any = None, scheduler: Any = None, **more: Any) -> dict[str, Any]:
    return {"unet": unet or _unet(), "vae": _vae(), "scheduler": scheduler or _ddim(), **_text(), **more}


def _uncond() -> dict[str, Any]:
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(8, 16),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    return {"unet": unet}


Case = tuple[str, Callable[[], dict[str, Any]], dict[str, Any]]
EMBEDS = {name: torch.full((1, 16), fill) for name, fill in (("image_embeds", 0.5), ("negative_image_embeds", 0.0))}
CASES: Final[dict[str, Case]] = {
    "img2img": ("StableDiffusionImg2ImgPipeline", lambda: _sd(**CATEGORY), {"image": _picture(), **CHANGE}),
    "inpaint": (
        "StableDiffusionInpaintPipeline",
        lambda: _sd(_unet(in_channels=9), **CATEGORY),
        {"image": _picture(), "mask_image": MASK, **SIZE},
    ),
    "upscale x4": (
        "StableDiffusionUpscalePipeline",
        lambda: _sd(
            _unet(in_channels=7, num_class_embeds=1000),
            low_res_scheduler=diffusers.DDPMScheduler(),
            max_noise_level=350,
        ),
        {"image": _picture(8, 8)},
    ),
    "latent upscale": (
        "StableDiffusionLatentUpscalePipeline",
        lambda: _sd(
            _unet(
                in_channels=8,
                out_channels=5,
                time_embedding_type="fourier",
                timestep_post_act="gelu",
                time_cond_proj_dim=144,
            ),
            diffusers.EulerDiscreteScheduler(prediction_type="sample"),
        ),
        {"image": _picture(64, 64)},
    ),
    "controlnet": (
        "StableDiffusionControlNetPipeline",
        lambda: _sd(controlnet=_controlnet(), **CATEGORY),
        {"image": _picture()},
    ),
    "lcm": (
        "LatentConsistencyModelPipeline",
        lambda: _sd(_unet(time_cond_proj_dim=8), diffusers.LCMScheduler(), **CATEGORY),
        SIZE,
    ),
    "sdxl": ("StableDiffusionXLPipeline", _xl, SIZE),
    "sdxl img2img": ("StableDiffusionXLImg2ImgPipeline", _xl, {"image": _picture(), **CHANGE}),
    "sdxl inpaint": (
        "StableDiffusionXLInpaintPipeline",
        lambda: _xl(in_channels=9),
        {"image": _picture(), "mask_image": MASK, **SIZE, "strength": 1.0},
    ),
    "sdxl controlnet": (
        "StableDiffusionXLControlNetPipeline",
        lambda: {
            **_xl(),
            "controlnet": _controlnet(
                addition_embed_type="text_time",
                addition_time_embed_dim=4,
                projection_class_embeddings_input_dim=40,
                cross_attention_dim=32,
            ),
        },
        {"image": _picture()},
    ),
    "sd3": ("StableDiffusion3Pipeline", _sd3, {**SIZE, "max_sequence_length": 16}),
    "sd3 img2img": (
        "StableDiffusion3Img2ImgPipeline",
        _sd3,
        {"image": _picture(), "max_sequence_length": 16, **CHANGE, **SIZE},
    ),
    "flux": ("FluxPipeline", _flux, {**SIZE, "max_sequence_length": 16}),
    "flux img2img": ("FluxImg2ImgPipeline", _flux, {"image": _picture(), "max_sequence_length": 16, **CHANGE, **SIZE}),
    "flux controlnet": (
        "FluxControlNetPipeline",
        lambda: {**_flux(), "controlnet": diffusers.FluxControlNetModel(**_flux_sizes())},
        {"control_image": _picture(), **SIZE, "max_sequence_length": 16},
    ),
    "pixart": ("PixArtAlphaPipeline", _pixart, {**SIZE, "use_resolution_binning": False, "clean_caption": False}),
    "sana": (
        "SanaPipeline",
        _sana,
        {
            "height": 32,
            "width": 32,
            "use_resolution_binning": False,
            "clean_caption": False,
            "complex_human_instruction": None,
            "max_sequence_length": 16,
        },
    ),
    "hunyuan dit": ("HunyuanDiTPipeline", _hunyuan, {**SIZE, "use_resolution_binning": False}),
    "ddpm": ("DDPMPipeline", lambda: {**_uncond(), "scheduler": diffusers.DDPMScheduler()}, {"prompt": None}),
    "ddim": ("DDIMPipeline", lambda: {**_uncond(), "scheduler": diffusers.DDIMScheduler()}, {"prompt": None}),
    "kandinsky": ("KandinskyV22Pipeline", _kandinsky, {"prompt": None, **EMBEDS, "height": 64, "width": 64}),
    "stable audio": ("StableAudioPipeline", _stable_audio, {"audio_end_in_s": 2.0}),
    "ltx": ("LTXPipeline", _ltx, {"height": 32, "width": 32, "num_frames": 9, "max_sequence_length": 16}),
    "wan": ("WanPipeline", _wan, {**SIZE, "num_frames": 5, "max_sequence_length": 16}),
}


def _given(case: str) -> tuple[Any, dict[str, Any]]:
    name, parts, call = CASES[case]
    torch.manual_seed(0)
    made = {name: part.eval() if isinstance(part, torch.nn.Module) else part for name, part in parts().items()}
    pipeline = getattr(diffusers, name)(**made)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline, {key: value for key, value in {**CALL, **call}.items() if value is not None}


def _made(pipeline: Any, call: dict[str, Any]) -> np.ndarray:
    pipeline.set_progress_bar_config(disable=True)
    return np.asarray(pipeline(**call, generator=torch.Generator().manual_seed(1))[0])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in QUICK else pytest.mark.skipif(not STRESS, reason="TRT_STRESS=1 runs it"))
        for case in CASES
    ],
)
def test_pipelines_give_what_they_gave_compiled_and_loaded(case: str, tmp_path: Path) -> None:
    pipeline, call = _given(case)
    wanted = _made(pipeline, call)
    compiled = trt_frontends.compile_pipeline(pipeline, call, optimization_level=0)
    modules = {name: part for name, part in compiled.components.items() if isinstance(part, torch.nn.Module)}
    left = {name for name, part in modules.items() if not isinstance(part, CompiledPart)}
    np.testing.assert_allclose(_made(compiled, call), wanted, atol=1e-3)
    assert not left
    save_pipeline(compiled, tmp_path / "pipeline")
    np.testing.assert_allclose(_made(load_pipeline(tmp_path / "pipeline"), call), wanted, atol=1e-3)
