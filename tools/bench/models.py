"""Full-size models with random weights, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trt_core import Input

Inputs = tuple[Input, ...]


def _image(batch: int = 1) -> Inputs:
    return (Input((batch, 3, 224, 224), name="x"),)


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


def _llama() -> nn.Module:
    """Four decoder layers of 2048 columns, as Llama 3.2's with 1.24 billion parameters has sixteen of."""
    import transformers

    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=4,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
    )
    return Logits(transformers.LlamaForCausalLM(config)).eval()


class _First(nn.Module):
    """A model of transformers whose first result alone is asked for; results are as `member` says."""

    def __init__(self, model: Any, member: str) -> None:
        super().__init__()
        self.model = model
        self.member = member

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the model."""
        result: torch.Tensor = getattr(self.model(x), self.member)
        return result


def _swin() -> nn.Module:
    import transformers

    return _First(transformers.SwinModel(transformers.SwinConfig()), "pooler_output").eval()


def _vit() -> nn.Module:
    import transformers

    return _First(transformers.ViTModel(transformers.ViTConfig()), "last_hidden_state").eval()


def _whisper_encoder() -> nn.Module:
    """The encoder of Whisper's base size."""
    import transformers
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(d_model=512, encoder_layers=6, encoder_attention_heads=8, encoder_ffn_dim=2048)
    return _First(WhisperEncoder(config), "last_hidden_state").eval()


def _detr() -> nn.Module:
    """DETR with a ResNet-50 of transformers, which needs no other package."""
    import transformers

    configs: Any = transformers  # whose types know no defaults of base classes
    backbone = configs.ResNetConfig(out_features=["stage4"])
    config = configs.DetrConfig(use_timm_backbone=False, backbone=None, backbone_config=backbone)
    return _First(transformers.DetrForObjectDetection(config), "logits").eval()


class LlamaBlock(nn.Module):
    """A decoder layer of Llama's shape: (N, L, 2048) to the same; root-mean-square norms, 16 heads, gated SiLU."""

    def __init__(self, width: int = 2048, heads: int = 16, hidden: int = 5632) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.qkv = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the layer."""
        normed = self.norms[0](x)
        q, k, v = (map_(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for map_ in self.qkv)
        mixed = nn.functional.scaled_dot_product_attention(_rotated(q), _rotated(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        normed = self.norms[1](x)
        down: torch.Tensor = self.down(nn.functional.silu(self.gate(normed)) * self.up(normed))
        return x + down


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary positions: (N, H, L, D), pairs of the two halves of D turned by their position."""
    length, half = x.shape[-2], x.shape[-1] // 2
    rates = 10000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(length, device=x.device, dtype=torch.float32)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class UNet(nn.Module):
    """An encoder and decoder with skips: (N, 3, H, W) to (N, 1, H, W); H and W are multiples of 8."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths, strict=False))
        self.down = nn.ModuleList(_double(a, b) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs[1:]))
        self.join = nn.ModuleList(_double(2 * a, a) for a, _ in reversed(pairs[1:]))
        self.last = nn.Conv2d(widths[0], 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(x if index == 0 else nn.functional.max_pool2d(x, 2))
            skips.append(x)
        for up, join, skip in zip(self.up, self.join, reversed(skips[:-1]), strict=True):
            x = join(torch.cat([up(x), skip], 1))
        result: torch.Tensor = self.last(x)
        return result


def _double(inputs: int, outputs: int) -> nn.Sequential:
    steps: list[nn.Module] = []
    for channels in (inputs, outputs):
        steps += [nn.Conv2d(channels, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*steps)


class Tagger(nn.Module):
    """A recurrent network: features (N, L, 256) to scores (N, L, 32) by two layers of LSTM, 512 wide."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(256, 512, num_layers=2, batch_first=True)
        self.last = nn.Linear(512, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the network."""
        scores: torch.Tensor = self.last(self.recurrent(x)[0])
        return scores


def _mlp() -> nn.Module:
    """A small model, to try things out."""
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 10)).eval()


MODELS: dict[str, tuple[Callable[[], nn.Module], Inputs]] = {
    "resnet18": (lambda: _vision("resnet18"), _image()),
    "resnet50": (lambda: _vision("resnet50"), _image()),
    "mobilenet_v3": (lambda: _vision("mobilenet_v3_large"), _image()),
    "vit_b16": (lambda: _timm("vit_base_patch16_224"), _image()),
    "convnext_tiny": (lambda: _timm("convnext_tiny"), _image()),
    "swin_t": (lambda: _timm("swin_tiny_patch4_window7_224"), _image()),
    "bert_base": (_bert, _tokens(30522)),
    "gpt2": (_gpt2, _tokens(50257)),
    "llama_block": (lambda: LlamaBlock().eval(), (Input((1, 128, 2048), name="x"),)),
    "unet": (lambda: UNet().eval(), (Input((1, 3, 256, 256), name="x"),)),
    "efficientnet_b0": (lambda: _timm("efficientnet_b0"), _image()),
    "poolformer_s12": (lambda: _timm("poolformer_s12"), _image()),
    "lstm": (lambda: Tagger().eval(), (Input((1, 64, 256), name="x"),)),
    "llama": (_llama, _tokens(32000)),
    "swin": (_swin, _image()),
    "vit": (_vit, _image()),
    "whisper_encoder": (_whisper_encoder, (Input((1, 80, 3000), name="x"),)),
    "detr": (_detr, (Input((1, 3, 512, 512), name="x"),)),
    "mlp": (_mlp, (Input((1, 64), name="input"),)),
}
"""Name to (maker, inputs)."""


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Makes a model by name, in eval mode, with the same random weights every time."""
    torch.manual_seed(0)
    maker, inputs = MODELS[name]
    return maker(), inputs


def narrowed(tensors: tuple[torch.Tensor, ...], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Inputs whose floats are of another type."""
    return tuple(tensor.to(dtype) if tensor.is_floating_point() else tensor for tensor in tensors)


def normalize(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
    """Gives batch norms the statistics of a run on inputs, so that values have the size that they have after training.

    Fresh statistics normalize nothing: through a random MobileNetV3 values shrink to 1e-9, which float16 does not have,
    through a random ResNet-50 they grow to hundreds. Each norm divides by the root mean square of what it gets. Means
    stay 0: a random network makes nearly the same of every image, and taking that away would leave rounding.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]

    def measure(norm: nn.Module, given: tuple[torch.Tensor, ...]) -> None:
        (x,) = given
        assert isinstance(norm.running_var, torch.Tensor)
        norm.running_var.copy_(x.square().mean([axis for axis in range(x.dim()) if axis != 1]))

    hooks = [norm.register_forward_pre_hook(measure) for norm in norms if norm.running_var is not None]
    try:
        if hooks:
            with torch.no_grad():
                model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
