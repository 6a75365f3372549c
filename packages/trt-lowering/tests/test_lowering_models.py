"""Real architectures, in small configurations: lowered programs compute exactly what eager does, for every batch."""

from __future__ import annotations

import os

import pytest
import torch
from torch.export import Dim

from trt_lowering import check_graph_form, export_module, lower

pytestmark = pytest.mark.sampled(4)

BATCH = {0: Dim.DYNAMIC(min=1, max=16)}
TOKENS = {0: Dim.DYNAMIC(min=1, max=16), 1: Dim.DYNAMIC(min=2, max=64)}  # PyTorch 2.11 restricts named ones


def resnet18():
    return pytest.importorskip("torchvision").models.resnet18(weights=None)


def timm_model(name, **options):
    return lambda: pytest.importorskip("timm").create_model(name, pretrained=False, **options)


VISION = {
    "resnet18": (resnet18, 64),
    "vit": (timm_model("vit_tiny_patch16_224", img_size=32, depth=3), 32),
    "swin": (timm_model("swin_tiny_patch4_window7_224", img_size=56, depths=(2, 2), num_heads=(3, 6)), 56),
    "convnext": (timm_model("convnext_tiny", depths=(1, 1, 2, 1), dims=(16, 32, 48, 64)), 64),
    "mobilenetv3": (timm_model("mobilenetv3_small_050"), 64),
}


DYNAMIC = VISION if "TRT_STRESS" in os.environ else ("vit", "swin")
"""Those that have sizes in their graphs; the test of whole models compiles all."""


@pytest.mark.parametrize(("name", "is_dynamic"), [("resnet18", False), *((name, True) for name in DYNAMIC)])
def test_vision_models(name, is_dynamic, settings, preserve, compare):
    make, size = VISION[name]
    model = make().eval()
    x = torch.randn(2, 3, size, size)
    program = export_module(model, (x,), dynamic_shapes=(BATCH,) if is_dynamic else None)
    gm = lower(program, settings, preserve=preserve)
    check_graph_form(gm)
    for batch in (1, 2, 5) if is_dynamic else (2,):
        x = torch.randn(batch, 3, size, size)
        compare(model(x), gm(x), 1e-5)  # the same kernels; sums may be blocked differently


def bert(transformers):
    config = transformers.BertConfig(
        vocab_size=99, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
    )
    return transformers.BertModel(config)


def gpt2(transformers):
    config = transformers.GPT2Config(vocab_size=99, n_embd=32, n_layer=2, n_head=4, use_cache=False)
    return transformers.GPT2Model(config)


def t5(transformers):
    config = transformers.T5Config(vocab_size=99, d_model=32, num_layers=2, num_heads=4, d_kv=8, d_ff=64)
    return transformers.T5EncoderModel(config)


def llama(transformers):
    config = transformers.LlamaConfig(
        vocab_size=99,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    return transformers.LlamaModel(config)


@pytest.mark.parametrize("make", [bert, gpt2, t5, llama], ids=lambda make: make.__name__)
def test_text_models(make, settings, preserve, compare):
    model = make(pytest.importorskip("transformers")).eval()
    tokens = torch.randint(0, 99, (2, 16))
    program = export_module(model, (), {"input_ids": tokens}, dynamic_shapes={"input_ids": TOKENS})
    gm = lower(program, settings, preserve=preserve)
    check_graph_form(gm)
    sizes = [node for node in gm.graph.nodes if node.target is torch.ops.aten.sym_size.int]
    assert all(node.args[0].op == "placeholder" for node in sizes)
    for shape in ((2, 16), (1, 3), (5, 40)):
        tokens = torch.randint(0, 99, shape)
        expected, actual = model(input_ids=tokens), gm(input_ids=tokens)
        compare(expected[0], actual[0], 1e-5)


def test_decomposing_everything_still_computes_the_same(settings, compare):
    """Without converters at all, every table that PyTorch has is followed to its end."""
    model = timm_model("vit_tiny_patch16_224", img_size=32, depth=1)().eval()
    x = torch.randn(2, 3, 32, 32)
    program = export_module(model, (x,), dynamic_shapes=(BATCH,))
    gm = lower(program, settings, preserve=lambda op: False)
    check_graph_form(gm)
    targets = {node.target for node in gm.graph.nodes if node.op == "call_function"}
    assert torch.ops.aten.linear.default not in targets
    for batch in (1, 2, 5):
        x = torch.randn(batch, 3, 32, 32)
        compare(model(x), gm(x), 1e-4)  # reference decompositions round in another order
