"""Image models of timm. A name gets the picture size it is tried with; fixed sizes are those it was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from torch import nn

from tools.zoo.entry import Entry
from tools.zoo.inputs import image

# convolutional networks take pictures of any size
_CONVOLUTIONAL: Final[Mapping[str, int]] = {
    "test_byobnet": 96, "mobileone_s1": 64, "gernet_s": 64, "repvgg_a0": 64, "regnetz_b16": 64, "gcresnext26ts": 64,
    "bat_resnext26ts": 256, "lambda_resnet26t": 64, "halonet26t": 256, "convmixer_768_32": 64, "test_convnext": 96,
    "convnext_zepto_rms": 64, "convnext_atto": 64, "convnextv2_atto": 64, "cpubone_nano": 96, "csatv2": 128,
    "cs3darknet_focus_s": 64, "cs3darknet_s": 64, "darknet17": 64, "cspresnext50": 64, "sedarknet21": 64,
    "cspnext_tiny": 64, "densenet121": 64, "densenetblur121d": 64, "dla46x_c": 64, "dla34": 64,
    "dla60_res2next": 64, "dpn48b": 64, "test_efficientnet": 96, "test_efficientnet_gn": 96, "efficientnet_b0": 64,
    "mobilenetv2_035": 64, "mnasnet_small": 64, "tinynet_e": 106, "mixnet_s": 64, "fbnetc_100": 64,
    "spnasnet_100": 64, "mobilenetv3_small_050": 64, "lcnet_035": 64, "mobilenetv4_conv_small_035": 64,
    "mobilenetv4_hybrid_medium": 64, "fbnetv3_b": 64, "fasternet_t0": 64, "fastvit_t8": 64, "fastvit_sa12": 64,
    "ghostnet_050": 64, "ghostnetv2_100": 64, "ghostnetv3_050": 64, "hardcorenas_a": 64, "hgnet_tiny": 64,
    "hgnetv2_b0": 64, "hrnet_w18_small": 64, "inception_next_atto": 64, "inception_resnet_v2": 96,
    "inception_v3": 96, "inception_v4": 96, "lcnetv2_small": 64, "test_mambaout": 96, "mambaout_femto": 64,
    "poolformer_s12": 64, "poolformerv2_s12": 64, "convformer_s18": 64, "test_nfnet": 96, "nf_regnet_b0": 64,
    "nf_resnet26": 64, "eca_nfnet_l0": 64, "rdnet_tiny": 64, "regnetx_002": 64, "regnety_002": 64,
    "regnetv_040": 64, "repghostnet_050": 64, "repvit_m0_9": 64, "res2next50": 64, "res2net50_14w_8s": 64,
    "resnest14d": 64, "resnest50d_1s4x24d": 64, "test_resnet": 96, "resnet10t": 64, "resnet18": 64,
    "resnet18d": 64, "seresnet18": 64, "resnetblur18": 64, "ecaresnet26t": 64, "resnetaa34d": 64,
    "resnetv2_18": 64, "resnetv2_50x1_bit": 64, "rexnet_100": 64, "rexnetr_100": 64, "selecsls42": 64,
    "legacy_seresnet18": 64, "legacy_seresnext26_32x4d": 64, "skresnet18": 64, "skresnext50_32x4d": 64,
    "starnet_s050": 64, "tresnet_m": 64, "vovnet39a": 64, "ese_vovnet19b_slim_dw": 64, "eca_vovnet39b": 64,
    "legacy_xception": 96, "xception41": 64, "xception41p": 64,
}  # fmt: skip

# hybrids and transformers whose windows and positions follow the picture
_ANY_SIZE: Final[Mapping[str, int]] = {
    "caformer_s18": 64, "davit_tiny": 64, "edgenext_xx_small": 64, "efficientvim_m1": 64, "efficientvit_b0": 64,
    "focalnet_tiny_srf": 64, "iformer_t": 64, "lowformer_b0": 64, "mobilevit_xxs": 64, "mobilevitv2_050": 64,
    "nextvit_small": 64, "pvt_v2_b0": 64, "pvt_v2_b2_li": 64, "shvit_s1": 64, "tiny_vit_5m_224": 64,
    "hieradet_small": 64, "twins_svt_small": 64, "twins_pcpvt_small": 64,
}  # fmt: skip

# transformers made for one picture size: smaller ones by `img_size` where the model takes it
_ONE_SIZE: Final[Mapping[str, tuple[int, Mapping[str, Any]]]] = {
    **{
        name: (size, {"img_size": size})
        for name, size in {
            "cait_xxs24_224": 64, "convit_tiny": 64, "deit_tiny_patch16_224": 64,
            "deit_tiny_distilled_patch16_224": 64, "deit3_small_patch16_224": 64, "eva02_tiny_patch14_224": 56,
            "vit_tiny_patch16_dinov3_qkvb": 64, "gmlp_ti16_224": 64, "gmixer_12_224": 64, "resmlp_12_224": 64,
            "mixer_s16_224": 64, "swin_tiny_patch4_window7_224": 64, "swin_s3_tiny_224": 224,
            "swinv2_tiny_window8_256": 64, "swinv2_cr_tiny_224": 224, "test_vit": 64, "test_vit2": 64,
            "vit_tiny_patch16_224": 64, "vit_xsmall_patch16_clip_224": 64, "vit_wee_patch16_reg1_gap_256": 64,
            "vit_pwee_patch16_reg1_gap_256": 64, "test_vit_relpos": 64, "vit_srelpos_small_patch16_224": 64,
            "xcit_nano_12_p8_224": 64, "test_maxvit": 160, "test_coatnet": 160, "volo_d1_224": 224,
            "sequencer2d_s": 224, "beit_base_patch16_224": 64, "tnt_s_patch16_224": 64, "mvitv2_tiny": 64,
            "hiera_tiny_224": 224,
        }.items()
    },
    "botnet26t_256": (256, {}), "coat_lite_tiny": (224, {}), "coat_tiny": (224, {}), "crossvit_tiny_240": (240, {}),
    "efficientformer_l1": (224, {}), "efficientformerv2_s0": (224, {}), "efficientvit_m0": (224, {}),
    "gcvit_xxtiny": (224, {}), "levit_128s": (224, {}), "levit_conv_128s": (224, {}), "nest_tiny": (224, {}),
    "pit_ti_224": (224, {}), "swiftformer_xs": (224, {}), "visformer_tiny": (224, {}),
    "vit_tiny_r_s16_p8_224": (224, {}), "vitamin_small_224": (224, {}), "maxvit_pico_rw_256": (256, {}),
    "coatnext_nano_rw_224": (224, {}),
}  # fmt: skip


def _entry(name: str, size: int, options: Mapping[str, Any]) -> Entry:
    def make() -> nn.Module:
        import timm

        module: nn.Module = timm.create_model(name, pretrained=False, num_classes=10, **options)
        return module

    return Entry(f"timm/{name}", make, (image(size),))


ENTRIES: Final[tuple[Entry, ...]] = (
    *(_entry(name, size, {}) for name, size in {**_CONVOLUTIONAL, **_ANY_SIZE}.items()),
    *(_entry(name, size, options) for name, (size, options) in _ONE_SIZE.items()),
)
