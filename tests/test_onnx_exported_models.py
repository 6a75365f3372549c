"""Models that `torch.onnx` writes, read by the parser, compared with eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import onnx_running as running
import pytest
import torch
import transformers
from small_models import MODELS as SMALL
from torch import nn

import trt_portable as trt

pytest.importorskip("onnxscript")

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


class FirstResult(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x)[0]


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=100, attn_implementation="eager", **SIZES)
    return FirstResult(transformers.BertModel(config))


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=32, patch_size=8, attn_implementation="sdpa", **SIZES)
    return FirstResult(transformers.ViTModel(config))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], bool]] = {
    "resnet18": (SMALL["resnet18"].make, lambda: torch.randn(2, 3, 64, 64), True),
    "mobilenet_v3_small": (SMALL["mobilenet_v3"].make, lambda: torch.randn(2, 3, 64, 64), True),
    "bert": (bert, lambda: torch.randint(0, 100, (2, 7)), False),
    "vit": (vit, lambda: torch.randn(2, 3, 32, 32), False),
    "gru": (lambda: FirstResult(nn.GRU(8, 16)), lambda: torch.randn(5, 2, 8), False),
}
"""How to make a model, its input, and whether its batch is exported as a dynamic dimension."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_exported_models_compute_what_eager_does(name: str) -> None:
    make, data, is_dynamic = MODELS[name]
    model, x = make().eval(), data()
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},) if is_dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of exporting
        exported = torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert exported is not None
    with trt.device("cpu"), torch.no_grad():
        network, _ = running.parse(exported.model_proto.SerializeToString())
        (source,) = (network.get_input(index) for index in range(network.num_inputs))
        assert (source.shape[0] == -1) is is_dynamic
        for count in (2, 3) if is_dynamic else (x.shape[0],):
            given = torch.cat([x, x])[:count] if is_dynamic else x
            engine = running.build(network, {source.name: tuple(given.shape)})
            (found,) = running.run(engine, {source.name: given})
            torch.testing.assert_close(found, model(given), rtol=1e-3, atol=1e-4)
