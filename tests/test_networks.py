"""The layers of typical blocks: nothing that could be known before, and one layer where TensorRT has one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from network_layers import count_types, foldable_layers, layers_of, only_network
from small_models import MODELS
from torch import nn
from torch.nn import functional

from trt_core import Input

WIDTH, HEADS, GROUPS, LENGTH = 32, 4, 2, 5


class DecoderStep(nn.Module):
    """One layer of a Llama-like decoder on the new token, its keys and values joined to those of earlier tokens.

    Args of `forward`: x (N, 1, 32), keys and values (N, 2, L, 8), cos and sin (1, 8), all float32.
    """

    def __init__(self) -> None:
        super().__init__()
        self.head = WIDTH // HEADS
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key, self.value = (nn.Linear(WIDTH, GROUPS * self.head, bias=False) for _ in range(2))
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate, self.up = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias=False)
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def _split(self, x: torch.Tensor, heads: int) -> torch.Tensor:
        return x.unflatten(-1, (heads, self.head)).transpose(1, 2)

    @staticmethod
    def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, -1)
        return x * cos + torch.cat([-right, left], -1) * sin

    def forward(
        self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        normal = self.before(x)
        query = self._rotate(self._split(self.query(normal), HEADS), cos, sin)
        keys = torch.cat([keys, self._rotate(self._split(self.key(normal), GROUPS), cos, sin)], 2)
        values = torch.cat([values, self._split(self.value(normal), GROUPS)], 2)
        attended = functional.scaled_dot_product_attention(query, keys, values, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        normal = self.after(x)
        return x + self.down(functional.silu(self.gate(normal)) * self.up(normal)), keys, values


def _encoder(**options: Any) -> nn.Module:
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=True, **options).eval()


def _residual_block() -> nn.Module:
    from torchvision.models.resnet import BasicBlock

    return BasicBlock(8, 8).eval()


def _past(length: int) -> tuple[torch.Tensor, ...]:
    past = torch.randn(2, GROUPS, length, WIDTH // HEADS)
    angles = torch.randn(1, WIDTH // HEADS)
    return torch.randn(2, 1, WIDTH), past, past.clone(), angles.cos(), angles.sin()


def test_an_encoder_layer() -> None:
    network = only_network(_encoder(activation="gelu"), (torch.randn(2, LENGTH, WIDTH),))
    types = count_types(network)
    assert types["ATTENTION_INPUT"] == types["ATTENTION_OUTPUT"] == 1
    assert types["NORMALIZATION"] == 2
    assert types["MATRIX_MULTIPLY"] == 4  # queries, keys and values at once, output, two of the feed-forward part
    assert types["ELEMENTWISE"] == 4 + 2 + 1  # biases, residuals, the scale of the attention
    assert types["GELU_ERF"] == 1
    assert foldable_layers(network) == []
    assert not types.keys() & {"SHAPE", "GATHER", "CAST", "FILL", "SOFTMAX", "REDUCE", "UNARY"}


def test_a_residual_block() -> None:
    network = only_network(_residual_block(), (torch.randn(2, 8, 6, 6),))
    assert [layer.type.name for layer in layers_of(network)] == [
        "CONVOLUTION",
        "SCALE",
        "RELU",
        "CONVOLUTION",
        "SCALE",
        "ELEMENTWISE",
        "RELU",
    ]


def test_a_decoder_step() -> None:
    network = only_network(DecoderStep().eval(), _past(LENGTH))
    types = count_types(network)
    assert types["ATTENTION_INPUT"] == types["ATTENTION_OUTPUT"] == 1
    assert types["NORMALIZATION"] == 2
    assert types["MATRIX_MULTIPLY"] == 7
    assert types["CONCATENATION"] == 2 + 2  # two rotations, keys and values
    assert foldable_layers(network) == []
    assert not types.keys() & {"SHAPE", "GATHER", "CAST", "FILL", "SOFTMAX", "REDUCE"}


def test_a_decoder_step_whose_past_grows() -> None:
    x, _, _, cos, sin = _past(LENGTH)

    def grows(name: str) -> Input:
        low, best, high = ((2, GROUPS, length, WIDTH // HEADS) for length in (1, LENGTH, 64))
        return Input(min_shape=low, opt_shape=best, max_shape=high, name=name)

    network = only_network(DecoderStep().eval(), (x, grows("keys"), grows("values"), cos, sin))
    types = count_types(network)
    assert types["ATTENTION_INPUT"] == 1
    assert types["MATRIX_MULTIPLY"] == 7
    assert types["SHAPE"] <= 2  # nothing but the length of the past is unknown
    assert foldable_layers(network) == []


@pytest.mark.parametrize("bias", [True, False])
def test_linear_is_one_product_and_one_sum(bias: bool) -> None:
    network = only_network(nn.Linear(8, 4, bias=bias), (torch.randn(2, 3, 8),))
    expected = {"CONSTANT": 1 + bias, "MATRIX_MULTIPLY": 1, "ELEMENTWISE": int(bias)}
    assert count_types(network) == {kind: count for kind, count in expected.items() if count}


@pytest.mark.parametrize(
    ("norm", "shape"),
    [
        (nn.LayerNorm(8), (2, 3, 8)),
        (nn.LayerNorm((3, 8)), (2, 3, 8)),
        (nn.GroupNorm(2, 8), (2, 8, 4, 4)),
        (nn.InstanceNorm2d(8, affine=True), (2, 8, 4, 4)),
    ],
    ids=["layer", "layer over two axes", "group", "instance"],
)
def test_norms_are_one_normalization(norm: nn.Module, shape: tuple[int, ...]) -> None:
    types = count_types(only_network(norm.eval(), (torch.randn(shape),)))
    assert types["NORMALIZATION"] == 1
    assert types.keys() <= {"NORMALIZATION", "CONSTANT"}


@pytest.mark.parametrize("name", ["vit", "swin", "bert", "gpt2", "llama", "convnext", "unet"])
def test_models_have_no_layer_that_folding_could_have_removed(name: str) -> None:
    model = MODELS[name]
    torch.manual_seed(0)
    network = only_network(model.make(), tuple(spec.example("opt") for spec in model.static))
    assert foldable_layers(network) == []
    assert count_types(network)["SHAPE"] == 0
