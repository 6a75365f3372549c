"""Image and video models of transformers."""

from __future__ import annotations

from typing import Any, Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import BATCH, image, tensor
from tools.zoo.pretrained import hugging_face
from trt_core import Input

_SMALL_STAGES: Final[dict[str, Any]] = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 24, 32]}


def _pictures(size: int = 32) -> dict[str, Input]:
    return {"pixel_values": image(size)}


ENTRIES: Final[tuple[Entry, ...]] = (
    hugging_face("ASTModel", {"input_values": tensor(BATCH, 32, 16)}, max_length=32, num_mel_bins=16),
    hugging_face("BeitModel", _pictures()),
    hugging_face("BitModel", _pictures(64), embedding_size=16, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1],
                 num_groups=4),
    hugging_face("CLIPVisionModel", _pictures()),
    hugging_face("ConvNextModel", _pictures(64), **_SMALL_STAGES),
    hugging_face("ConvNextV2Model", _pictures(64), **_SMALL_STAGES),
    hugging_face("Data2VecVisionModel", _pictures()),
    hugging_face("DeiTModel", _pictures()),
    hugging_face("Dinov2Model", _pictures()),
    hugging_face("Dinov2WithRegistersModel", _pictures()),
    hugging_face("DINOv3ViTModel", _pictures()),
    hugging_face("DPTForDepthEstimation", _pictures(), neck_hidden_sizes=[8, 8, 16, 16], fusion_hidden_size=16,
                 num_hidden_layers=4, backbone_out_indices=[0, 1, 2, 3], is_hybrid=False),
    hugging_face("EfficientNetModel", _pictures(64), hidden_dim=2560),
    hugging_face("FocalNetModel", _pictures(64), embed_dim=16, depths=[1, 1, 1, 1], patch_size=4, image_size=64),
    hugging_face("GLPNForDepthEstimation", _pictures(64), depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32],
                 num_attention_heads=[1, 2, 2, 4], decoder_hidden_size=16),
    hugging_face("HieraModel", _pictures(64), image_size=[64, 64], embed_dim=16, depths=[1, 1, 1, 1]),
    hugging_face("IJepaModel", _pictures()),
    hugging_face("LevitModel", _pictures(64), image_size=64, patch_size=16, hidden_sizes=[16, 32, 48],
                 num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8]),
    hugging_face("MobileNetV1Model", _pictures(64), depth_multiplier=0.25),
    hugging_face("MobileNetV2Model", _pictures(64), depth_multiplier=0.25),
    hugging_face("MobileViTModel", _pictures(64), image_size=64, patch_size=2, hidden_sizes=[32, 40, 48],
                 neck_hidden_sizes=[8, 8, 16, 16, 24, 24, 32]),
    hugging_face("MobileViTV2Model", _pictures(64), image_size=64, patch_size=2, width_multiplier=0.25),
    hugging_face("PoolFormerModel", _pictures(64), **_SMALL_STAGES, patch_size=7),
    hugging_face("PvtModel", _pictures(64), image_size=64, **_SMALL_STAGES, num_attention_heads=[1, 2, 4, 4],
                 patch_size=4),
    hugging_face("PvtV2Model", _pictures(64), image_size=64, **_SMALL_STAGES, num_attention_heads=[1, 2, 4, 4]),
    hugging_face("RegNetModel", _pictures(64), embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1],
                 groups_width=8),
    hugging_face("ResNetModel", _pictures(64), embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]),
    hugging_face("SegformerForSemanticSegmentation", _pictures(64), depths=[1, 1, 1, 1],
                 hidden_sizes=[8, 16, 24, 32], num_attention_heads=[1, 2, 3, 4], decoder_hidden_size=16),
    hugging_face("SiglipVisionModel", _pictures()),
    hugging_face("SwinModel", _pictures(64), image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1],
                 num_heads=[1, 2, 4, 8], window_size=2),
    hugging_face("Swinv2Model", _pictures(64), image_size=64, patch_size=4, embed_dim=16, depths=[1, 1, 1, 1],
                 num_heads=[1, 2, 4, 8], window_size=2),
    hugging_face("Swin2SRModel", _pictures(64), embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=8,
                 image_size=64, patch_size=1),
    hugging_face("SwiftFormerModel", _pictures(64), depths=[1, 1, 1, 1], embed_dims=[8, 16, 24, 32]),
    hugging_face("TextNetModel", _pictures(64)),
    hugging_face("TimesformerModel", {"pixel_values": tensor(BATCH, 2, 3, 32, 32)}, num_frames=2),
    hugging_face("VideoMAEModel", {"pixel_values": tensor(BATCH, 2, 3, 32, 32)}, num_frames=2, tubelet_size=2),
    hugging_face("ViTModel", _pictures()),
    hugging_face("ViTForImageClassification", _pictures()),
    hugging_face("ViTMAEModel", _pictures(),
                 excluded="it draws a random mask of patches, and the order of patches in its result is random"),
    hugging_face("ViTMSNModel", _pictures()),
    hugging_face("VitDetModel", _pictures(64), image_size=64, pretrain_image_size=64, window_size=2),
    hugging_face("VivitModel", {"pixel_values": tensor(BATCH, 2, 3, 32, 32)}, num_frames=2,
                 tubelet_size=[2, 16, 16]),
    hugging_face("YolosModel", _pictures(), image_size=[32, 32], num_detection_tokens=5),
)  # fmt: skip
