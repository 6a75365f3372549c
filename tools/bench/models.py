"""Full-size models with random weights, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trt_core import Input

Inputs = tuple[Input, ...]


def _image(batch: int = 1) -> Inputs:
    return (Input((batch, 3, 224, 224), name="image"),)


def _tokens(vocabulary: int, batch: int = 1, length: int = 128) -> Inputs:
    return (Input((batch, length), dtype=torch.int64, name="input_ids", tensor_domain=(0, vocabulary)),)


def _vision(name: str) -> nn.Module:
    import torchvision

    module: nn.Module = getattr(torchvision.models, name)(weights=None)
    return module.eval()


def _timm(name: str) -> nn.Module:
    import timm

    module: nn.Module = timm.create_model(name, pretrained=False)
    return module.eval()


def _bert() -> nn.Module:
    import transformers

    module: nn.Module = transformers.BertModel(transformers.BertConfig())
    return module.eval()


class Logits(nn.Module):
    """A causal language model without its key-value cache: token ids (N, L) int64 to logits (N, L, V)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Runs the model."""
        logits: torch.Tensor = self.model(input_ids=input_ids, use_cache=False).logits
        return logits


def _gpt2() -> nn.Module:
    import transformers

    return Logits(transformers.GPT2LMHeadModel(transformers.GPT2Config())).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "resnet50": (lambda: _vision("resnet50"), _image()),
    "mobilenet_v3": (lambda: _vision("mobilenet_v3_large"), _image()),
    "vit_b16": (lambda: _timm("vit_base_patch16_224"), _image()),
    "convnext_tiny": (lambda: _timm("convnext_tiny"), _image()),
    "swin_t": (lambda: _timm("swin_tiny_patch4_window7_224"), _image()),
    "bert_base": (_bert, _tokens(30522)),
    "gpt2": (_gpt2, _tokens(50257)),
}
"""Name to (maker, inputs)."""


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Makes a model by name, in eval mode, with the same random weights every time."""
    torch.manual_seed(0)
    maker, inputs = MODELS[name]
    return maker(), inputs
