"""Models of transformers that see and read."""

from __future__ import annotations

from typing import Any, Final

from tools.zoo.entry import Entry
from tools.zoo.inputs import LENGTH, image, text, token_ids
from tools.zoo.pretrained import hugging_face

_VISION: Final[dict[str, Any]] = {"image_size": 32, "patch_size": 8}


def _both(length: Any = LENGTH) -> dict[str, Any]:
    return {"input_ids": token_ids(length), "pixel_values": image(32)}


ENTRIES: Final[tuple[Entry, ...]] = (
    hugging_face("AltCLIPModel", _both(), vision_config=_VISION, projection_dim=32),
    hugging_face("BlipModel", _both(), vision_config=_VISION, projection_dim=32),
    hugging_face("ChineseCLIPModel", _both(), vision_config=_VISION, projection_dim=32),
    hugging_face("CLIPModel", _both(), vision_config=_VISION, projection_dim=32),
    hugging_face("CLIPTextModel", text()),
    hugging_face("GroupViTModel", _both(), projection_dim=16, projection_intermediate_dim=32,
                 vision_config={"depths": [1, 1, 1], "num_group_tokens": [0, 4, 2],
                                "num_output_groups": [0, 4, 2], "num_hidden_layers": 3}),
    hugging_face("OwlViTModel", _both(8), vision_config=_VISION, projection_dim=32),
    hugging_face("SiglipModel", _both(8), vision_config=_VISION),
    hugging_face("ViltModel", _both(), image_size=32, patch_size=8),
)  # fmt: skip
