"""The detection models of torchvision, with few and small proposals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import nn

from tools.zoo.entry import Entry
from tools.zoo.inputs import tensor

_SIZE: Final = 128

_OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    "fasterrcnn_mobilenet_v3_large_fpn": {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20},
    "fasterrcnn_resnet50_fpn": {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20},
    "maskrcnn_resnet50_fpn": {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20},
    "keypointrcnn_resnet50_fpn": {"rpn_pre_nms_top_n_test": 50, "rpn_post_nms_top_n_test": 20},
    "retinanet_resnet50_fpn": {"topk_candidates": 50},
    "fcos_resnet50_fpn": {"topk_candidates": 50},
    "ssd300_vgg16": {"topk_candidates": 50},
    "ssdlite320_mobilenet_v3_large": {"topk_candidates": 50},
}


class Detector(nn.Module):
    """One picture (3, H, W) to the detector's results for it: the models themselves take lists."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """Detects."""
        found: Mapping[str, torch.Tensor] = self.model([image])[0]
        return found


def _entry(name: str, options: Mapping[str, Any]) -> Entry:
    def make() -> nn.Module:
        from torchvision.models import detection

        scaling = {} if name.startswith("ssd") else {"min_size": _SIZE, "max_size": _SIZE}
        return Detector(getattr(detection, name)(weights=None, weights_backbone=None, **scaling, **options))

    return Entry(
        f"torchvision/{name}",
        make,
        (tensor(3, _SIZE, _SIZE, domain=(0, 1)),),
        fixed_shapes="the model takes one picture, and scales it to its own size",
    )


ENTRIES: Final[tuple[Entry, ...]] = tuple(_entry(name, options) for name, options in _OPTIONS.items())
