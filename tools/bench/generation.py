"""Text generation: milliseconds a token, beside reading the weights once and beside PyTorch's compiler.

Every way runs in a process of its own, with the same model of random weights, the same static caches and the same loop
(`trt_runtime.TextGenerator`); only the step differs: eager, `torch.compile(mode="reduce-overhead")`, or engines. The
peer of a row is `reduce-overhead`; that of engines with weights of few bits is engines with bfloat16.
`python -m tools.bench.generation engines 1 512 --profile` shows our kernels, `--weights int4` quantizes by torchao,
`--model 8b` takes Llama 3 8B's sizes, `--layers 4` so many of them. The table of docs/speed.md is made of the lines
that `--results docs/data/generation.jsonl` appends.
"""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch

from tools.bench.latency_results import append, machine, today
from tools.bench.measure import among_others, in_fresh_process, wait_for_device, waited_milliseconds
from tools.bench.report import Row

WAYS: Final = ("eager", "reduce-overhead", "engines")
BANDWIDTH: Final = 4.8e12
"""Bytes a second that an H200's memory gives on paper."""

WEIGHTS: Final = ("int8", "int4", "float8")
_ENQUEUED: Final = 100
"""Steps of which none is waited for."""

ON_A_GPU: Final = {"vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
ON_A_CPU: Final = {"vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 4}
OF_8B: Final = {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32}
MODELS: Final = {"1b": ON_A_GPU, "8b": OF_8B, "small": ON_A_CPU}


def rows(batches: tuple[int, ...] = (1, 8), length: int = 512) -> list[Row]:
    """Measures a Llama of 1.24 billion parameters in bfloat16 on a GPU, a small one in float32 on the CPU."""
    found = []
    for batch in batches:
        measured = {way: in_fresh_process(__name__, way, str(batch), str(length)) for way in WAYS}
        peer = measured["reduce-overhead"]
        for way in WAYS:
            ours = measured[way]
            name = f"{way}, batch {batch}, cache {length}"
            note = f"weights once {ours['limit'] * 1e3:.2f} ms" if ours["limit"] else ""
            found.append(Row(f"{name}, step", ours["step"], peer["step"], "reduce-overhead", note=note))
            rate = f"{batch / ours['token']:.0f} tokens/s, built in {ours['build']:.0f} s"
            found.append(Row(f"{name}, token of generate", ours["token"], peer["token"], "reduce-overhead", note=rate))
        for kind in WEIGHTS if torch.cuda.is_available() else ():
            few = in_fresh_process(__name__, "engines", str(batch), str(length), "--weights", kind)
            for what in ("step", "prefill"):
                name = f"engines, {kind} weights, batch {batch}, cache {length}, {what}"
                found.append(Row(name, few[what], measured["engines"][what], "bfloat16"))
    return found


def quantize_weights(model: Any, kind: str) -> None:
    """Brings all linear layers of a model into int8, float8, or int4 in groups of 128, by torchao."""
    torchao: Any = importlib.import_module("torchao.quantization")
    groups: Any = importlib.import_module("torchao.quantization.granularity").PerGroup(128)
    int4: Any = getattr(torch, "int4")  # noqa: B009 - PyTorch's stubs lack it
    configs = {
        "int8": lambda: torchao.Int8WeightOnlyConfig(version=2),
        "int4": lambda: torchao.IntxWeightOnlyConfig(weight_dtype=int4, granularity=groups),
        "float8": torchao.Float8WeightOnlyConfig,
    }
    torchao.quantize_(model, configs[kind]())


def measure(
    way: str,
    batch: int,
    length: int,
    weights: str = "",
    *,
    profile: bool = False,
    name: str = "",
    layers: int = 0,
    chunk: int = 512,
) -> dict[str, float]:
    """Returns seconds of a decode step, a greedy token in the loop, one drawn of the 50 likeliest, and so on.

    The others are a step that is not waited for, a prompt, the build, and reading the weights once.

    Args:
        way: One of `WAYS`.
        batch: Rows.
        length: Places of the caches.
        weights: One of `WEIGHTS`, or nothing.
        profile: Show the kernels of a step.
        name: One of `MODELS`.
        layers: Of the model; its own number by default.
        chunk: Tokens of a prompt at a time.
    """
    import transformers

    import trt_frontends
    from trt_frontends.generation.steps import CachedStep
    from trt_runtime.generation import GenerationLimits, TextGenerator

    on_gpu = torch.cuda.is_available()
    device = "cuda" if on_gpu else "cpu"
    name = name or ("1b" if on_gpu else "small")
    sizes: dict[str, Any] = {**MODELS[name], "max_position_embeddings": max(length, 2048)}
    sizes["num_hidden_layers"] = layers or sizes["num_hidden_layers"]
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=32, num_key_value_heads=8, tie_word_embeddings=name != "8b"
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = transformers.LlamaForCausalLM(config).eval()
    if on_gpu:
        model = model.to(torch.bfloat16)
    if weights:
        quantize_weights(model, weights)
    limits = GenerationLimits(batch, length, min(length, chunk))
    with among_others(fcntl.LOCK_SH):
        started = time.perf_counter()
        if way == "engines":
            generator = trt_frontends.compile_generation(
                model, max_length=length, max_batch=batch, prefill_chunk=limits.prefill_chunk
            )
        else:
            step: Any = CachedStep(model, limits).eval()
            generator = TextGenerator(step, limits)
            if way == "reduce-overhead":
                generator.step.forward = torch.compile(step.forward, mode="reduce-overhead", dynamic=False)
        prompt = torch.randint(0, sizes["vocab_size"], (batch, 64), device=device)
        new = min(128, length - 64)
        generator.generate(prompt, max_new_tokens=3)
        generator.generate(torch.randint(0, sizes["vocab_size"], (batch, length), device=device), max_new_tokens=1)
        wait_for_device()
        build = time.perf_counter() - started
    with among_others(fcntl.LOCK_EX):
        token = torch.randint(0, sizes["vocab_size"], (batch, 1), device=device)
        start = torch.full((1,), length - 1, device=device)
        padding = torch.zeros(batch, dtype=torch.int64, device=device)
        with torch.no_grad():
            steps = waited_milliseconds(lambda: generator.step(token, start, padding), least_seconds=0.5)
            began = time.perf_counter()
            for _ in range(_ENQUEUED):
                generator.step(token, start, padding)
            wait_for_device()
            enqueued = (time.perf_counter() - began) / _ENQUEUED
            if profile:
                show_kernels(lambda: generator.step(token, start, padding))
        prompts = torch.randint(0, sizes["vocab_size"], (batch, limits.prefill_chunk), device=device)
        first = torch.zeros(1, dtype=torch.int64, device=device)
        with torch.no_grad():
            prefill = waited_milliseconds(lambda: generator.step(prompts, first, padding), least_seconds=0.5)
        greedy, drawn = (
            _token_seconds(generator, prompt, new, **how) for how in ({}, {"do_sample": True, "top_k": 50})
        )
    read = sum(value.numel() * value.element_size() for value in model.parameters())
    if name == "8b":  # an embedding of its own, of which a step reads a row for each sequence
        read -= model.model.embed_tokens.weight.nbytes
    return {
        "step": statistics.median(steps) / 1e3,
        "enqueued": enqueued,
        "prefill": statistics.median(prefill) / 1e3,
        "token": greedy,
        "drawn": drawn,
        "build": build,
        "limit": read / BANDWIDTH if on_gpu and not weights else 0.0,
    }


def show_kernels(action: Any, most: int = 30) -> None:
    """Prints what a call runs on the GPU: microseconds, launches, name."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(4):
            action()
        wait_for_device()
    events = sorted(profile.key_averages(), key=lambda event: -event.device_time_total)
    sys.stdout.write(f"{sum(event.device_time_total for event in events) / 4:.0f} us of kernels a call\n")
    for event in events[:most]:
        sys.stdout.write(f"{event.device_time_total / 4:9.1f} us {event.count / 4:6.1f} x  {event.key[:110]}\n")


def _token_seconds(generator: Any, prompt: torch.Tensor, count: int, **how: Any) -> float:
    """Seconds of each token beyond the eighth."""
    whole, few = (_seconds(generator, prompt, new, **how) for new in (count, 8))
    return (whole - few) / (count - 8)


def _seconds(generator: Any, prompt: torch.Tensor, count: int, **how: Any) -> float:
    times = []
    for _ in range(4):  # the first one makes what the others find
        wait_for_device()
        started = time.perf_counter()
        generator.generate(prompt, max_new_tokens=count, eos_token_id=(), **how)
        wait_for_device()
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Measures one way in this process and prints it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("batch", type=int)
    parser.add_argument("length", type=int)
    parser.add_argument("--weights", choices=WEIGHTS, default="")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--model", choices=MODELS, default="")
    parser.add_argument("--layers", type=int, default=0)
    parser.add_argument("--chunk", type=int, default=512)
    parser.add_argument("--results", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    form = {"name": given.model, "layers": given.layers, "chunk": given.chunk}
    found = measure(given.way, given.batch, given.length, given.weights, profile=given.profile, **form)
    sys.stdout.write(json.dumps(found) + "\n")
    if given.results is not None:
        of = {key: getattr(given, key) for key in ("way", "batch", "length", "weights", "model", "layers")}
        kind = "bfloat16" if torch.cuda.is_available() else "float32"
        append(given.results, {**of, **found, "date": today(), "machine": machine() | {"dtype": kind}})


if __name__ == "__main__":
    main()
