"""What encodes sources for a step: texts, sounds and pictures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from trt_frontends.generation.caches import cross_cache
from trt_frontends.generation.sources import BESIDE, in_rows
from trt_frontends.generation.steps import CACHES, name_of_caches, source_mask_to

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CrossEncoder(nn.Module):
    """The encoder of an encoder-decoder, up to the keys and values that the decoder looks at.

    Args:
        model: The model.
        names: What it takes, by name.
    """

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self._names = tuple(names)
        self._caches_as = name_of_caches(inspect.signature(model.forward).parameters) or CACHES[0]

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns keys and values of each layer's cross attention, (rows, heads, length, width) each.

        Where features are given with a mask that the decoder looks at, too, that goes before: (rows, length) bool.

        Args:
            given: What the encoder takes: (rows, length) int64 tokens and (rows, length) bool mask, or features.
        """
        token = torch.zeros(len(given[0]), 1, dtype=torch.int64, device=given[0].device)
        cache = cross_cache()
        taken = [value.to(torch.int64) if value.dtype is torch.bool else value for value in given]  # as tokenizers do
        named = zip((*self._names, self._caches_as), (*taken, cache), strict=True)
        masks: list[torch.Tensor] = []
        with source_mask_to(self.model, masks):
            self.model(**dict(named), decoder_input_ids=token)
        layers = cache.cross_attention_cache.layers
        made = tuple(tensor for layer in layers for tensor in (layer.keys, layer.values))
        return made if "input_ids" in self._names or not masks else (masks[0] != 0, *made)


def ignores_mask(model: Any, example: Mapping[str, torch.Tensor]) -> bool:
    """Whether a mask of features changes no score, as of Whisper, which has an argument for one."""
    (features, *others) = example.values()
    token = torch.zeros(1, 1, dtype=torch.int64, device=features.device)
    mask = torch.ones(1, features.shape[-1], dtype=torch.int64, device=features.device)
    mask[:, features.shape[-1] // 2 :] = 0
    if others or features.dim() != 3:
        return False
    try:
        with torch.no_grad():
            whole = model(**example, decoder_input_ids=token).logits
            return torch.equal(whole, model(**example, decoder_input_ids=token, attention_mask=mask).logits)
    except Exception:  # it takes no mask, or one of other extents, and so reads it
        return False


class PictureEncoder(nn.Module):
    """What makes rows of features of pictures: (n, channels, height, width) to (n, rows, width).

    What is added after the first layers of text (deep stacks) follows in the same rows.

    Args:
        model: The model.
        sizes: What it is told of each picture's size; nothing for models whose pictures have one.
        told: What else it is told of them.
    """

    def __init__(
        self, model: PreTrainedModel, sizes: Sequence[tuple[int, ...]] = (), told: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self._sizes, self._told = list(sizes), dict(told or {})
        self._lengths: dict[str, Any] = {}
        tower = getattr(getattr(model, "model", model), "visual", None)
        if tower is not None:
            self._lay_out(tower, torch.tensor(self._sizes, device=model.device))

    def _lay_out(self, tower: Any, grid: torch.Tensor) -> None:
        """Computes what follows from sizes alone, so that no graph does."""
        from transformers import vision_utils

        merged = tower.spatial_merge_size
        self.register_buffer("position_ids", vision_utils.get_vision_position_ids(grid, merged), persistent=False)
        # arrays, since attention asks for the numbers in them
        self._lengths = {"cu_seqlens": vision_utils.get_vision_cu_seqlens(grid).numpy(force=True)}
        if hasattr(tower, "num_grid_per_side"):
            table = {"num_grid_per_side": tower.num_grid_per_side, "mode": tower.interpolation_mode}
            table |= {"align_corners": tower.interpolation_align_corners, "spatial_merge_size": merged}
            places, weights = vision_utils.get_vision_interpolation_indices_and_weights(grid, **table)
            self.register_buffer("interp_indices", places, persistent=False)
            self.register_buffer("interp_weights", weights, persistent=False)
        if hasattr(tower, "window_size"):
            sizes = {"window_size": tower.window_size, "patch_size": tower.patch_size}
            order, lengths = vision_utils.get_vision_window_index(grid, merged, **sizes)
            self.register_buffer("window_index", order.to(grid.device), persistent=False)
            self._lengths["cu_window_seqlens"] = lengths.numpy(force=True)

    def forward(self, pixel_values: torch.Tensor, *beside: torch.Tensor) -> tuple[torch.Tensor]:
        """Returns the features.

        Args:
            pixel_values: (n, channels, height, width), or (n, tiles, channels, height, width), or
                (n, patches, values), of the model's type.
            beside: What else is said of each picture, (n, length) int64.
        """
        inner: Any = getattr(self.model, "model", self.model)
        found: Any = self.model
        if hasattr(inner, "visual"):
            known = {**self._lengths, **dict(self.named_buffers(recurse=False))}
            found = inner.visual(pixel_values.flatten(0, 1), grid_thw=None, **known)
            features = torch.cat([found.pooler_output, *(getattr(found, "deepstack_features", None) or ())], -1)
            return (features.unflatten(0, (len(pixel_values), -1)),)
        if in_rows(self.model):  # its own way also drops empty pictures
            patch = self.model.config.vision_config.patch_size
            count, _, height, width = pixel_values.shape
            whole = torch.ones(count, height // patch, width // patch, dtype=torch.bool, device=pixel_values.device)
            seen = inner.vision_model(pixel_values=pixel_values, patch_attention_mask=whole).last_hidden_state
            takes_mask = "attention_mask" in inspect.signature(inner.connector.forward).parameters
            features = inner.connector(seen, **({"attention_mask": whole.flatten(1)} if takes_mask else {}))
        elif (tower := _pixtral_tower(inner)) is not None:
            features = self._of_pixtral(inner, tower, pixel_values)
        else:
            sizes = {"image_sizes": self._sizes} if self._sizes else {}
            also = dict(zip(BESIDE.get(self.model.config.model_type, ()), beside, strict=True))
            found = found.get_image_features(pixel_values=pixel_values, **sizes, **self._told, **also)
            features = getattr(found, "pooler_output", found)
        if isinstance(features, (list, tuple)):
            features = torch.stack(tuple(features))
        return (features,)

    def _of_pixtral(self, inner: Any, tower: Any, pictures: torch.Tensor) -> torch.Tensor:
        """Returns features of a batch, whose own way is one row of all pictures under a mask that keeps them apart."""
        rows, columns = (extent // tower.patch_size for extent in (self._sizes or [pictures.shape[2:]])[0])
        patches = tower.patch_conv(pictures)[..., :rows, :columns]
        places = torch.cartesian_prod(*(torch.arange(count, device=pictures.device) for count in (rows, columns)))
        states = [tower.ln_pre(patches.flatten(2).mT)]
        turned = tower.patch_positional_embedding(states[0], places)
        for layer in tower.transformer.layers:
            states.append(layer(states[-1], None, position_embeddings=turned))
        config = self.model.config
        layers = getattr(config, "vision_feature_layer", -1)
        seen = torch.cat([states[layer] for layer in ([layers] if isinstance(layers, int) else layers)], -1)
        if getattr(config, "vision_feature_select_strategy", "") == "default":
            seen = seen[:, 1:]
        project = inner.vision_projection if hasattr(inner, "vision_projection") else inner.multi_modal_projector
        given = (seen.flatten(0, 1), self._sizes) if self._sizes else (seen,)
        features: torch.Tensor = project(*given)
        return features.reshape(len(pictures), -1, features.shape[-1])


def _pixtral_tower(inner: Any) -> Any:
    """Returns a model's tower of Pixtral; None where it has another one."""
    towers = (getattr(inner, name, None) for name in ("vision_tower", "vision_encoder"))
    return next((tower for tower in towers if hasattr(tower, "patch_positional_embedding")), None)


class SoundEncoder(nn.Module):
    """What makes rows of features of sounds: (n, bins, frames) to (n, rows, width).

    Args:
        model: The model.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_features: torch.Tensor, *masks: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Returns the features, and which of the rows each sound fills, (n, rows) bool, where a mask says so.

        Args:
            input_features: (n, bins, frames), of the model's type.
            masks: Which of the frames are the sound, (n, frames) int64, where the model is told.
        """
        inner: Any = self.model.model
        tower, rows = inner.audio_tower, len(input_features)
        if not masks:
            packed: torch.Tensor = inner.get_audio_features(input_features).pooler_output
            return (packed.unflatten(0, (rows, -1)),)
        heard = (masks[0].sum(-1) - 1) // 2 + 1  # of a convolution of 3 with steps of 2
        kind = self.model.config.model_type
        if kind == "glmasr":
            seen = tower(input_features).last_hidden_state
            seen = seen.reshape(rows, -1, self.model.config.audio_config.intermediate_size)
            filled = (heard - _MERGED) // _MERGED + 1
        else:
            filled = (heard - 2) // 2 + 1  # of a mean of each two
            seen = (
                tower(input_features, attention_mask=self._mask(tower, heard)).last_hidden_state
                if kind == "qwen2_audio"
                else tower(input_features, input_features_mask=masks[0]).last_hidden_state
            )
        features = inner.multi_modal_projector(seen)
        return features, torch.arange(features.shape[1], device=filled.device) < filled[:, None]

    def _mask(self, tower: Any, heard: torch.Tensor) -> Any:
        """Returns which frames a tower attends to, as its attention takes it."""
        from transformers.masking_utils import create_bidirectional_mask

        frames = tower.config.max_source_positions
        real = torch.arange(frames, device=heard.device) < heard[:, None]
        held = torch.zeros(*real.shape, 1, dtype=self.model.dtype, device=heard.device)
        return create_bidirectional_mask(config=tower.config, inputs_embeds=held, attention_mask=real.long())


_MERGED: Final = 4
"""Frames that GLM-ASR makes one row of."""
