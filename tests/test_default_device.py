"""The caller's default device, `torch.set_default_device` or `with torch.device(...)`, changes nothing at any door.

The default device is meta here, where tensors have no values: what is made there in place of on the host is found.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import Input
from trt_frontends.accuracy import verify
from trt_frontends.onnx_models import export_onnx
from trt_runtime.command_line import main
from trt_runtime.isolation import confinement


class Layers(nn.Module):
    """Layers of many kinds, whose converters and passes make constants."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.convolution, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.linear, self.table = nn.Linear(8, 16), nn.Embedding(50, 16)
        self.attention, self.layer_norm = nn.MultiheadAttention(16, 2, batch_first=True), nn.LayerNorm(16)

    def forward(self, image: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        pooled = nn.functional.avg_pool2d(self.norm(self.convolution(image)).relu(), 2).mean((2, 3))
        rows = self.linear(pooled)[:, None] + self.table(tokens)
        later = torch.ones(rows.shape[1], rows.shape[1], dtype=torch.bool, device=rows.device).triu(1)
        rows = self.layer_norm(rows + self.attention(rows, rows, rows, attn_mask=later)[0])
        largest, places = rows.max(1)
        return {
            "values": nn.functional.gelu(largest).sort(1)[0].cumsum(1),
            "places": places,
            "image": nn.functional.interpolate(image, scale_factor=1.5, mode="bilinear"),
            "spread": rows.var(1).clamp(max=2),
        }


INPUTS = (
    Input(min_shape=(2, 3, 16, 16), opt_shape=(4, 3, 16, 16), max_shape=(8, 3, 16, 16), dimensions={0: "batch"}),
    Input(min_shape=(2, 6), opt_shape=(4, 6), max_shape=(8, 6), dtype=torch.int64, dimensions={0: "batch"}),
)
ONE_ENGINE = {"min_block_size": 1, "cache_built_engines": False, "reuse_cached_engines": False}


@pytest.fixture(scope="module")
def case() -> tuple[nn.Module, tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    model = Layers().eval()
    values = torch.randn(4, 3, 16, 16), torch.randint(0, 50, (4, 6))
    with torch.no_grad():
        return model, values, model(*values)


@pytest.fixture(scope="module")
def program(case: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("default_device") / "model.trtp"
    with torch.device("meta"):
        trt_frontends.save(trt_frontends.compile(case[0], arg_inputs=INPUTS, **ONE_ENGINE), path)
    return path


def _compiled(model: nn.Module) -> Callable[..., Any]:
    compiled = trt_frontends.compile(model, arg_inputs=INPUTS, **ONE_ENGINE)
    assert compiled.meta["partition_report"].coverage == 1
    return compiled


def _under_torch_compile(model: nn.Module) -> Callable[..., Any]:
    torch._dynamo.reset()
    result: Callable[..., Any] = torch.compile(model, backend="torch_tensorrt", options=dict(ONE_ENGINE))
    return result


@pytest.mark.sampled(2)
@pytest.mark.parametrize("door", [_compiled, _under_torch_compile])
def test_a_model_is_compiled(case: Any, door: Callable[..., Any]) -> None:
    model, values, wanted = case
    with torch.device("meta"), torch.no_grad():
        made = door(model)(*values)
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)


def test_a_model_is_explained_and_verified(case: Any) -> None:
    head = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    x = torch.randn(3, 4)
    with torch.device("meta"):
        assert trt_frontends.explain(case[0], arg_inputs=INPUTS, min_block_size=1).coverage == 1
        assert verify(head, arg_inputs=(x,), samples=1, **ONE_ENGINE).passed


def test_a_program_is_loaded_and_sent(case: Any, program: Path) -> None:
    _, values, wanted = case
    with torch.device("meta"):
        loaded = trt_runtime.load(program)
        torch.testing.assert_close(dict(loaded(*values)), wanted, rtol=1e-4, atol=1e-5)
        again = pickle.loads(pickle.dumps(loaded))
        torch.testing.assert_close(dict(again(*values)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(bool(confinement.why_not_here()), reason="programs cannot be isolated here")
def test_a_program_is_isolated(case: Any, program: Path) -> None:
    _, values, wanted = case
    with torch.device("meta"), trt_runtime.load(program, isolated=True) as isolated:
        torch.testing.assert_close(dict(isolated(*values)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("command", ["run", "bench", "profile", "inspect"])
def test_commands_run(program: Path, command: str) -> None:
    with torch.device("meta"):
        assert main([command, str(program), *(["--calls", "1"] if command in ("bench", "profile") else [])]) == 0


def test_a_model_goes_out_as_onnx_and_comes_in(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    x, path = torch.randn(3, 4), tmp_path / "model.onnx"
    with torch.device("meta"), torch.no_grad():
        path.write_bytes(export_onnx(model, (x,)))
        torch.testing.assert_close(trt_frontends.compile(path, [x])(x), model(x), rtol=1e-4, atol=1e-5)


def test_a_generator_is_compiled_and_generates() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 50}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, num_attention_heads=2)).eval()
    prompt = torch.tensor([[1, 2, 3]])
    wanted = model.generate(prompt, max_new_tokens=5, min_new_tokens=5, do_sample=False)
    with torch.device("meta"):
        generator = trt_frontends.compile_generation(model, max_length=16, prefill_chunk=4, eos_token_id=[])
        assert torch.equal(generator.generate(prompt, max_new_tokens=5), wanted)
