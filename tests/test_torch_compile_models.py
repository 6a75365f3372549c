"""Models that torch.compile breaks into graphs, grows caches in, or calls with many sizes."""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any

import pytest
import torch

import trt_frontends
from trt_core import ExportError
from trt_frontends import model_report
from trt_frontends.backend import torch_tensorrt_backend

VOCABULARY = 64

pytestmark = [pytest.mark.usefixtures("fresh_dynamo"), pytest.mark.filterwarnings("ignore")]


def _llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=128,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_builds_at_most_three_times(cache: str) -> None:
    model, prompt = _llama(), torch.randint(1, VOCABULARY, (2, 7))
    wanted = model.generate(prompt, max_new_tokens=12, do_sample=False)
    forward = model.forward = torch.compile(model.forward, backend=torch_tensorrt_backend)
    how = {"cache_implementation": "static", "disable_compile": True} if cache == "static" else {}
    found = model.generate(prompt, max_new_tokens=12, do_sample=False, **how)
    assert torch.equal(found, wanted)
    report = model_report(forward)
    assert sum(len(graph.builds) for graph in report.graphs) <= 3
    assert report.engines


def test_a_decoder_runs_in_engines_with_sizes_that_vary() -> None:
    model = _llama()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, dynamic=True)
    with torch.no_grad():
        for batch, length in ((2, 8), (5, 31)):
            tokens = torch.randint(0, VOCABULARY, (batch, length))
            wanted = model(tokens, use_cache=False).logits
            torch.testing.assert_close(optimized(tokens, use_cache=False).logits, wanted, rtol=1e-4, atol=1e-4)
    report = model_report(optimized)
    assert (len(report.graphs), report.engines, report.coverage) == (1, 1, 1.0)
    assert len(report.graphs[0].builds) == 1


class _Adapters(torch.nn.Module):
    """Layers by language, as XMOD has them: rows are split by numbers that are read while a model runs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(VOCABULARY, 16)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
        self.last = torch.nn.Linear(16, 8)

    def forward(self, tokens: torch.Tensor, languages: torch.Tensor) -> torch.Tensor:
        names, counts = torch.unique_consecutive(languages, return_counts=True)
        parts = self.embed(tokens).relu().split(counts.tolist())
        made = [self.layers[name](part) for name, part in zip(names.tolist(), parts, strict=True)]
        return self.last(torch.cat(made).softmax(-1))


def test_adapters_by_language() -> None:
    torch.manual_seed(0)
    model = _Adapters().eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 1})
    with torch.no_grad():
        for languages, length in (([0, 0, 1], 6), ([0, 0, 1], 7), ([1, 1, 1], 7)):
            given = torch.randint(2, VOCABULARY, (3, length)), torch.tensor(languages)
            torch.testing.assert_close(optimized(*given), model(*given), rtol=1e-4, atol=1e-4)
    assert model_report(optimized).engines >= 2


@pytest.mark.skipif("TRT_STRESS" not in os.environ, reason="the test above is its short form; nox -s stress runs it")
def test_an_encoder_with_adapters_by_language() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.XmodConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=64,
        vocab_size=VOCABULARY,
        languages=("en_XX", "de_DE"),
        default_language="en_XX",
        max_position_embeddings=64,
    )
    model = transformers.XmodModel(config).eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend)
    with torch.no_grad():
        for length in (6, 6, 7):
            tokens = torch.randint(2, VOCABULARY, (2, length))
            wanted = model(tokens).last_hidden_state
            torch.testing.assert_close(optimized(tokens).last_hidden_state, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif("TRT_STRESS" not in os.environ, reason="the test below is its short form; nox -s stress runs it")
def test_a_detection_model() -> None:
    detection = pytest.importorskip("torchvision.models.detection")
    torch.manual_seed(0)
    layers = {"0": torch.nn.Conv2d(3, 8, 3, 4, 1), "1": torch.nn.ReLU(), "2": torch.nn.Conv2d(8, 16, 3, 2, 1)}
    body, levels = torch.nn.Sequential(OrderedDict(layers)), {"1": "0", "2": "1"}
    model = detection.MaskRCNN(
        detection.backbone_utils.BackboneWithFPN(body, levels, [8, 16], 16),
        num_classes=3,
        min_size=64,
        max_size=96,
        rpn_anchor_generator=detection.anchor_utils.AnchorGenerator(((8,), (16,), (32,)), ((0.5, 1.0, 2.0),) * 3),
        rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=10,
        box_score_thresh=0.0,
        box_detections_per_img=5,
    ).eval()
    optimized = torch.compile(model, backend=torch_tensorrt_backend)
    images = [torch.rand(3, 60, 80)]
    with torch.no_grad():
        (wanted,) = model(images)
        for _ in range(2):
            (found,) = optimized(images)
            for name, value in wanted.items():
                torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-2)  # boxes are pixels


class _Detector:
    """Faster R-CNN with a backbone of two layers."""

    @staticmethod
    def build() -> Any:
        detection = pytest.importorskip("torchvision").models.detection
        torch.manual_seed(0)
        backbone = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, 4, 1), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3, 2, 1))
        backbone.out_channels = 8
        anchors = detection.anchor_utils.AnchorGenerator(((8, 16),), ((1.0,),))
        sizes = {"min_size": 32, "max_size": 48, "rpn_pre_nms_top_n_test": 12, "rpn_post_nms_top_n_test": 6}
        return detection.FasterRCNN(
            backbone, 3, rpn_anchor_generator=anchors, box_score_thresh=0.0, box_detections_per_img=4, **sizes
        ).eval()


def test_a_detection_model_finds_what_eager_finds() -> None:
    model, images = _Detector.build(), [torch.rand(3, 32, 40)]
    optimized = torch.compile(model, backend=torch_tensorrt_backend, options={"min_block_size": 3})
    with torch.no_grad():
        wanted = model(images)
        for _ in range(2):
            torch.testing.assert_close(optimized(images), wanted, rtol=1e-3, atol=1e-3)
    assert model_report(optimized).engines >= 2


def test_a_detection_model_that_cannot_be_captured_says_what_can_be() -> None:
    model = _Detector.build()
    with pytest.raises(ExportError) as caught:
        trt_frontends.explain(model, arg_inputs=([torch.rand(3, 32, 40)],))
    assert "boxes.py" in caught.value.where
    assert "data-dependent" in caught.value.why
    assert "model.roi_heads" in caught.value.hint
    assert 'torch.compile(model, backend="torch_tensorrt")' in caught.value.hint
    report = trt_frontends.explain(model.backbone, arg_inputs=(torch.rand(1, 3, 32, 48),))
    assert report.coverage == 1
