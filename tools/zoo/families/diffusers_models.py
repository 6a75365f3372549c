"""Denoisers, autoencoders and control networks of diffusers, a few channels wide."""

from __future__ import annotations

from typing import Any, Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import BATCH, image, integers, tensor
from tools.zoo.pretrained import diffusion

_TEXT: Final = tensor(BATCH, 8, 32)


def _latent(size: int = 16, channels: int = 4) -> dict[str, Any]:
    return {"sample": tensor(BATCH, channels, size, size), "timestep": integers(1, high=1000)}


def _hidden(channels: int = 4) -> dict[str, Any]:
    return {"hidden_states": tensor(BATCH, channels, 16, 16), "timestep": integers(BATCH, high=1000)}


_UNET: Final[dict[str, Any]] = {
    "block_out_channels": (32, 64), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 16,
}  # fmt: skip
_CROSS: Final[dict[str, Any]] = {
    **_UNET, "cross_attention_dim": 32, "attention_head_dim": 8,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
}  # fmt: skip
_AUTOENCODER: Final[dict[str, Any]] = {
    "block_out_channels": (16, 32), "norm_num_groups": 8, "latent_channels": 4,
    "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
}  # fmt: skip

ENTRIES: Final[tuple[Entry, ...]] = (
    diffusion("AutoencoderKL", {"sample": image(32)}, **_AUTOENCODER),
    diffusion("AutoencoderTiny", {"sample": image(32)}, encoder_block_out_channels=(8, 8),
              decoder_block_out_channels=(8, 8), num_encoder_blocks=(1, 1), num_decoder_blocks=(1, 1)),
    diffusion("VQModel", {"sample": image(32)}, **_AUTOENCODER, num_vq_embeddings=16),
    diffusion("ControlNetModel", {**_latent(), "encoder_hidden_states": _TEXT, "controlnet_cond": image(32)},
              **{k: v for k, v in _CROSS.items() if k not in ("up_block_types", "sample_size")},
              conditioning_embedding_out_channels=(16, 32)),
    diffusion("DiTTransformer2DModel", {**_hidden(), "class_labels": integers(BATCH, high=10)}, num_layers=2,
              num_attention_heads=2, attention_head_dim=8, in_channels=4, sample_size=16, num_embeds_ada_norm=10),
    diffusion("PixArtTransformer2DModel",
              {**_hidden(), "encoder_hidden_states": _TEXT}, num_layers=2, num_attention_heads=2,
              attention_head_dim=8, in_channels=4, out_channels=4, sample_size=16, caption_channels=32,
              cross_attention_dim=16, use_additional_conditions=False),
    diffusion("SD3Transformer2DModel",
              {**_hidden(), "encoder_hidden_states": _TEXT, "pooled_projections": tensor(BATCH, 16)},
              num_layers=2, num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=4,
              sample_size=16, joint_attention_dim=32, caption_projection_dim=16, pooled_projection_dim=16),
    diffusion("Transformer2DModel",
              {"hidden_states": tensor(BATCH, 32, 16, 16), "encoder_hidden_states": _TEXT},
              num_attention_heads=4, attention_head_dim=8, in_channels=32, cross_attention_dim=32,
              norm_num_groups=8),
    diffusion("UNet1DModel", {"sample": tensor(BATCH, 2, 32), "timestep": integers(1, high=1000)},
              block_out_channels=(32, 32), sample_size=32,
              down_block_types=("DownBlock1DNoSkip", "DownBlock1D"), up_block_types=("UpBlock1D", "UpBlock1DNoSkip"),
              extra_in_channels=64),
    diffusion("UNet2DModel", _latent(channels=3), **_UNET, attention_head_dim=8,
              down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D")),
    diffusion("UNet2DConditionModel", {**_latent(), "encoder_hidden_states": _TEXT}, **_CROSS),
    diffusion("UNet3DConditionModel",
              {"sample": tensor(BATCH, 4, 2, 8, 8), "timestep": integers(1, high=1000),
               "encoder_hidden_states": _TEXT},
              block_out_channels=(32, 64), layers_per_block=1, norm_num_groups=8, cross_attention_dim=32,
              attention_head_dim=8, down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
              up_block_types=("UpBlock3D", "CrossAttnUpBlock3D")),
    diffusion("UVit2DModel",
              {"input_ids": integers(BATCH, 8, 8, high=32), "encoder_hidden_states": _TEXT,
               "pooled_text_emb": tensor(BATCH, 16), "micro_conds": tensor(BATCH, 5, domain=(0, 10))},
              hidden_size=32, cond_embed_dim=16, micro_cond_encode_dim=8, micro_cond_embed_dim=40,
              encoder_hidden_size=32, vocab_size=34, codebook_size=32, in_channels=32, block_out_channels=32,
              num_res_blocks=1, num_hidden_layers=2, num_attention_heads=4, block_num_heads=4, sample_size=8,
              intermediate_size=64, downsample=False, upsample=False),
)  # fmt: skip
