"""Decoders of Llama 8B's width by depth: seconds and memory of a build, a save and a load, and times of a call.

`python -m tools.bench.large --layers 4 32` prints a line of JSON for every depth, each measured in a fresh process.
Peaks on the host are bytes above what the process held before, of those that no file stands behind. On the GPU `peak`
is all that was allocated, the model in a build included, and `held` what was before: a load that takes the weights once
peaks at `held` and once the weights. With `--offload` the model is given up to the compiler.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tools.bench.latency_results import append, machine, today
from tools.bench.measure import (
    forget_peak,
    gpu_peak,
    in_fresh_process,
    peak_anonymous_bytes,
    wait_for_device,
    waited_milliseconds,
)
from tools.bench.models import LlamaBlock
from trt_core import Input

_WIDTH, _HEADS, _HIDDEN, _WORDS = 4096, 32, 14336, 128256
_LENGTH = 512


class Decoder(nn.Module):
    """Numbers of words to logits of the last one."""

    def __init__(self, layers: int, width: int, words: int) -> None:
        super().__init__()
        heads, hidden = max(1, width * _HEADS // _WIDTH), width * _HIDDEN // _WIDTH
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaBlock(width, heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Runs the model."""
        hidden = self.words(x)
        for layer in self.layers:
            hidden = layer(hidden)
        logits: torch.Tensor = self.head(self.norm(hidden[:, -1]))
        return logits


def measure(layers: int, width: int = _WIDTH, words: int = _WORDS, **settings: Any) -> dict[str, Any]:
    """Builds, runs, saves and loads one decoder.

    Args:
        layers: Of the decoder.
        width: Of its layers.
        words: In its vocabulary.
        settings: Of the compilation.
    """
    import trt_frontends

    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.device(device), torch.inference_mode(False):
        torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
        models = [Decoder(layers, width, words).eval().requires_grad_(False)]
        torch.set_default_dtype(torch.float32)
    weights = sum(tensor.nbytes for tensor in models[0].parameters())
    declared = Input((1, _LENGTH), dtype=torch.int64, name="x", tensor_domain=(0, words))
    x = declared.example(device=device)
    found: dict[str, Any] = {"layers": layers, "weights": weights, "settings": settings}
    built: list[Any] = []

    def timed(name: str, action: Any) -> None:
        held = forget_peak()
        started = time.perf_counter()
        found[f"{name}_host_peak"] = peak_anonymous_bytes(action)
        found[f"{name}_seconds"] = time.perf_counter() - started
        if held is not None:
            found[f"{name}_gpu_held"], found[f"{name}_gpu_peak"] = held, gpu_peak()

    def build() -> None:
        built.append(trt_frontends.compile(models[0], inputs=[declared], **settings))
        built[0](x)
        wait_for_device()

    def load() -> None:
        built.append(trt_frontends.load(str(path)))
        built[0](x)
        wait_for_device()

    with torch.inference_mode(), tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "model.trtp")
        timed("build", build)
        found["call_ms"] = statistics.median(waited_milliseconds(lambda: built[0](x)))
        timed("save", lambda: trt_frontends.save(built[0], str(path)))
        found["file"] = path.stat().st_size
        built.clear()
        models.clear()
        timed("load", load)
        found["loaded_call_ms"] = statistics.median(waited_milliseconds(lambda: built[0](x)))
    return found


def main() -> None:
    """Measures the depths that the command line names, each in a fresh process."""
    parser = argparse.ArgumentParser(prog="tools.bench.large", description=__doc__)
    parser.add_argument("--layers", type=int, nargs="+", default=[4, 16, 32])
    parser.add_argument("--width", type=int, default=_WIDTH)
    parser.add_argument("--words", type=int, default=_WORDS)
    parser.add_argument("--offload", action="store_true", help="compile with offload_module_to_cpu")
    parser.add_argument("--results", type=Path, help="append what was measured to that file")
    parser.add_argument("--here", action="store_true", help="measure in this process")
    arguments = parser.parse_args()
    sizes = [f"--width={arguments.width}", f"--words={arguments.words}", *["--offload"] * arguments.offload]
    settings = {"offload_module_to_cpu": True} if arguments.offload else {}
    for layers in arguments.layers:
        if arguments.here:
            found = measure(layers, arguments.width, arguments.words, **settings)
        else:
            found = in_fresh_process("tools.bench.large", "--here", f"--layers={layers}", *sizes)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if arguments.results is not None:
            kind = "bfloat16" if torch.cuda.is_available() else "float32"
            append(arguments.results, found | {"date": today(), "machine": machine() | {"dtype": kind}})


if __name__ == "__main__":
    main()
