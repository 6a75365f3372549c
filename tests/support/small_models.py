"""Small configurations of real architectures, with the inputs that they are compiled for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trt_core import Input

VOCABULARY = 100


@dataclass(frozen=True)
class Model:
    """A model to compile.

    Attributes:
        make: Makes the module in eval mode.
        static: Inputs with fixed shapes.
        dynamic: Inputs whose batch (and sequence length) varies.
    """

    make: Callable[[], nn.Module]
    static: tuple[Input, ...]
    dynamic: tuple[Input, ...]


class Logits(nn.Module):
    """A causal language model without its cache: token ids (N, L) int64 to logits (N, L, V)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits


class HiddenStates(nn.Module):
    """An encoder: token ids (N, L) int64 and a mask (N, L) int64 to hidden states (N, L, H)."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


class UNet(nn.Module):
    """A U-Net of two levels with skip connections, transposed convolution and bilinear upsampling."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = self._block(3, width), self._block(width, 2 * width)
        self.bottom = self._block(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.right2 = self._block(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.right1 = self._block(3 * width, width)
        self.head = nn.Conv2d(width, 2, 1)
        self.pool = nn.MaxPool2d(2)

    @staticmethod
    def _block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.SiLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.down1(image)
        second = self.down2(self.pool(first))
        bottom = self.bottom(self.pool(second))
        right = self.right2(torch.cat([self.up2(bottom), second], dim=1))
        return self.head(self.right1(torch.cat([self.up1(right), first], dim=1)))


def _resnet(block: str, *depths: int) -> Callable[[], nn.Module]:
    """A ResNet of few blocks: each stage has the first of its kind, which halves the picture, and one has others."""

    def make() -> nn.Module:
        from torchvision.models import resnet

        return _settled(resnet.ResNet(getattr(resnet, block), list(depths), num_classes=10))

    return make


def _mobilenet_v3() -> nn.Module:
    """The first blocks of the small one: with squeezing and without, with ReLU and Hardswish, of 3 and 5 pixels."""
    from torchvision.models import mobilenetv3

    blocks, last_channel = mobilenetv3._mobilenet_v3_conf("mobilenet_v3_small")
    return _settled(mobilenetv3.MobileNetV3(blocks[:5], last_channel, num_classes=10))


def _timm(name: str, **configuration: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import timm

        return timm.create_model(name, pretrained=False, num_classes=10, **configuration).eval()

    return make


def _transformers(wrapper: type[nn.Module], model: str, config: str, **configuration: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(vocab_size=VOCABULARY, **configuration)
        return wrapper(getattr(transformers, model)(settings)).eval()

    return make


def _settled(module: nn.Module) -> nn.Module:
    """Gives batch norms statistics that are not the identity, so that a mistake in them shows."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.running_mean, -0.1, 0.1)
            nn.init.uniform_(part.running_var, 0.8, 1.2)
    return module.eval()


def _images(size: int) -> tuple[tuple[Input, ...], tuple[Input, ...]]:
    shape = (3, size, size)
    ranged = Input(min_shape=(1, *shape), opt_shape=(2, *shape), max_shape=(4, *shape))
    return (Input((2, *shape)),), (ranged,)


def _texts(length: int = 12) -> tuple[tuple[Input, ...], tuple[Input, ...]]:
    def ids(name: str, high: int, **shapes: Any) -> Input:
        return Input(dtype=torch.int64, name=name, tensor_domain=(0, high), **shapes)

    ranges = {"min_shape": (1, 2), "opt_shape": (2, length), "max_shape": (4, 16)}
    names = (("input_ids", VOCABULARY), ("attention_mask", 2))
    return (
        tuple(ids(name, high, shape=(2, length)) for name, high in names),
        tuple(ids(name, high, **ranges) for name, high in names),
    )


MODELS: dict[str, Model] = {
    "resnet18": Model(_resnet("BasicBlock", 1, 1, 1, 1), *_images(64)),
    "resnet50": Model(_resnet("Bottleneck", 2, 1, 1, 1), *_images(64)),
    "mobilenet_v3": Model(_mobilenet_v3, *_images(64)),
    "vit": Model(
        _timm("vit_base_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4), *_images(32)
    ),
    "convnext": Model(_timm("convnext_tiny", depths=(1, 1, 1, 1), dims=(8, 16, 32, 64)), *_images(64)),
    "swin": Model(
        _timm("swin_tiny_patch4_window7_224", img_size=56, embed_dim=16, depths=(2, 2), num_heads=(2, 4)),
        *_images(56),
    ),
    "bert": Model(
        _transformers(
            HiddenStates, "BertModel", "BertConfig",
            hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        ),
        *_texts(),
    ),
    "gpt2": Model(
        _transformers(Logits, "GPT2LMHeadModel", "GPT2Config", n_embd=32, n_layer=2, n_head=4, n_positions=32),
        *_texts(),
    ),
    "t5_encoder": Model(
        _transformers(
            HiddenStates, "T5EncoderModel", "T5Config", d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
        ),
        *_texts(),
    ),
    "llama": Model(
        _transformers(
            Logits, "LlamaForCausalLM", "LlamaConfig",
            hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=32,
        ),
        *_texts(),
    ),
    "unet": Model(lambda: _settled(UNet()), *_images(32)),
}  # fmt: skip
