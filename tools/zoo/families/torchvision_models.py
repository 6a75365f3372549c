"""Models of torchvision: classification, segmentation, video, optical flow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import nn

from tools.zoo.entry import Entry
from tools.zoo.inputs import BATCH, image, tensor

_CLASSIFICATION: Final[Mapping[str, int]] = {
    "alexnet": 64, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64, "efficientnet_v2_s": 64,
    "googlenet": 64, "inception_v3": 96, "maxvit_t": 224, "mnasnet0_5": 64, "mobilenet_v2": 64,
    "mobilenet_v3_small": 64, "mobilenet_v3_large": 64, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "resnet18": 64,
    "resnet50": 64, "resnext50_32x4d": 64, "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64,
    "swin_v2_t": 64, "vgg11_bn": 32, "wide_resnet50_2": 64,
}  # fmt: skip

_SEGMENTATION: Final = (
    "fcn_resnet50",
    "deeplabv3_mobilenet_v3_large",
    "deeplabv3_resnet50",
    "lraspp_mobilenet_v3_large",
)

_VIDEO: Final[Mapping[str, tuple[int, int]]] = {  # frames, picture size
    "mc3_18": (4, 32), "r2plus1d_18": (4, 32), "r3d_18": (4, 32), "swin3d_t": (4, 64),
}  # fmt: skip

_QUIET: Final = {"googlenet": {"aux_logits": False, "init_weights": True}, "inception_v3": {"init_weights": True}}


def _maker(family: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from torchvision import models

        home = getattr(models, family) if family else models
        module: nn.Module = getattr(home, name)(weights=None, **options)
        return module

    return make


def _vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    module: nn.Module = VisionTransformer(64, 16, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128, num_classes=10)
    return module


ENTRIES: Final[tuple[Entry, ...]] = (
    *(
        Entry(f"torchvision/{name}", _maker("", name, num_classes=10, **_QUIET.get(name, {})), (image(size),))
        for name, size in _CLASSIFICATION.items()
    ),
    Entry("torchvision/vit", _vit, (image(64),)),
    *(
        Entry(
            f"torchvision/{name}",
            _maker("segmentation", name, weights_backbone=None, num_classes=5),
            (image(64),),
        )
        for name in _SEGMENTATION
    ),
    *(
        Entry(
            f"torchvision/{name}",
            _maker("video", name, num_classes=10),
            (tensor(BATCH, 3, frames, size, size),),
        )
        for name, (frames, size) in _VIDEO.items()
    ),
    Entry(
        "torchvision/raft_small",
        _maker("optical_flow", "raft_small"),
        (image(128), image(128)),
    ),
)
