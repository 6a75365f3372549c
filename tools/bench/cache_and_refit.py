"""Engines from the cache beside engines that are built, and new weights by refitting beside building again.

Export and lowering come before all of them and are left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time

import torch

from tools.bench.measure import in_fresh_process
from tools.bench.models import make
from tools.bench.report import Row

NAMES = ("resnet50", "bert_base", "vit_b16")


def rows(names: tuple[str, ...] = NAMES) -> list[Row]:
    """Measures each model in a fresh process."""
    found = []
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            built = in_fresh_process("tools.bench.cache_and_refit", name, folder)
            hit = in_fresh_process("tools.bench.cache_and_refit", name, folder)
        found.append(Row(f"cache hit, {name}", hit["engines_s"], built["engines_s"], "build, in another process"))
        found.append(Row(f"refit, {name}", hit["refit_s"], hit["rebuild_s"], "build again"))
    return found


def measure(name: str, folder: str) -> dict[str, float]:
    """Makes the engines of a model with a cache, gives them other weights, and makes them again without a cache."""
    from trt_frontends import refit_module_weights
    from trt_frontends.pipeline import capture_model

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, inputs = make(name)
    program = torch.export.export(model, tuple(spec.example() for spec in inputs))
    warm_up = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    settings = {"refit": True, "min_block_size": 1}

    def engines(source: torch.nn.Module | torch.export.ExportedProgram, **more: str) -> tuple[torch.nn.Module, float]:
        examples = (torch.ones(1, 4),) if source is warm_up else inputs
        lowered = capture_model(source, None, examples, None, {**settings, **more}, needs_weights=True).lower()
        start = time.perf_counter()
        compiled = lowered.build().module
        return compiled, time.perf_counter() - start

    engines(warm_up)  # imports are not what is measured
    compiled, engines_seconds = engines(program, engine_cache_dir=folder)
    weights = {key: value + 0.001 if value.is_floating_point() else value for key, value in model.state_dict().items()}
    start = time.perf_counter()
    refit_module_weights(compiled, weights)
    refit_seconds = time.perf_counter() - start
    _, rebuild_seconds = engines(program)
    return {"engines_s": engines_seconds, "refit_s": refit_seconds, "rebuild_s": rebuild_seconds}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], sys.argv[2])))  # noqa: T201 - read by the process that started this one
