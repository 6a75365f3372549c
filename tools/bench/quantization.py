"""Quantized models beside the same models in bfloat16: tokens per second, memory, bytes on disk, error.

`python -m tools.bench.quantization [--models NAME...] [--batches N...] [--dtypes NAME...] [--json FILE]`

Weights are random, so the error says how far the arithmetic is from float32, and nothing about a trained model. Every
variant is compiled from the same float32 weights, by `trt_frontends.quantize` and `compile`, and timed on inputs on the
device. Memory is the peak that PyTorch's allocator saw from loading the compiled model to the last call.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import trt_frontends
from tools.bench.measure import first_tensor, forget_peak, gpu_peak, waited_milliseconds
from tools.bench.models import MODELS, narrowed
from trt_core import Input
from trt_frontends.accuracy import measure_error
from trt_frontends.quantization import quantization_report

BASELINE: Final = "bfloat16"
DEFAULT_MODELS: Final = ("bert_base", "llama_block")
CALLS: Final = 50


def measure(name: str, batch: int, dtypes: list[str], level: int | None) -> list[dict[str, Any]]:
    """Measures one model at one batch size in bfloat16 and in each quantized type."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    maker, specs = MODELS[name]
    wide = maker().to(device)
    inputs = _inputs(specs, batch, device)
    with torch.no_grad():
        reference = first_tensor(wide(*inputs)).float()
    narrow = copy.deepcopy(wide).to(torch.bfloat16)
    del wide
    given = narrowed(inputs, torch.bfloat16)
    calibration = [narrowed(_inputs(specs, 1, device, seed), torch.bfloat16) for seed in range(8)]
    if batch > 1:  # programs are captured at the batch size that they run at
        calibration = [narrowed(_inputs(specs, batch, device, seed), torch.bfloat16) for seed in range(2)]
    tokens = batch * specs[0].opt_shape[1]
    rows = []
    for dtype in (BASELINE, *dtypes):
        try:
            row = _measure_one(narrow, given, calibration, dtype, level, reference)
        except Exception as error:  # one variant that fails is a result as well
            row = {"error_message": f"{type(error).__name__}: {str(error).splitlines()[0]}"}
        row |= {"model": name, "batch": batch, "dtype": dtype}
        if "seconds" in row:
            row["tokens_per_second"] = tokens / row["seconds"]
        rows.append(row)
        gc.collect()
    return rows


def _measure_one(
    model: nn.Module,
    inputs: tuple[torch.Tensor, ...],
    calibration: list[tuple[torch.Tensor, ...]],
    dtype: str,
    level: int | None,
    reference: torch.Tensor,
) -> dict[str, Any]:
    start = time.perf_counter()
    quantized = 0
    program: Any = model
    if dtype != BASELINE:
        program = trt_frontends.quantize(model, calibration, dtype, arg_inputs=inputs)
        quantized = len(quantization_report(program).quantized)
    compiled = trt_frontends.compile(program, arg_inputs=inputs, optimization_level=level)
    build_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.trt"
        trt_frontends.save(compiled, path)
        disk_bytes = path.stat().st_size
    del program
    forget_peak()
    before = sum(value.nbytes for value in inputs)
    found = first_tensor(compiled(*inputs)).float()
    error = measure_error(found, reference)
    calls = CALLS if inputs[0].is_cuda else 5
    with torch.no_grad():
        seconds = statistics.median(waited_milliseconds(lambda: compiled(*inputs), calls, 0.0)) / 1e3
    peak = (gpu_peak() or before) - before
    return {
        "seconds": seconds,
        "build_seconds": build_seconds,
        "disk_bytes": disk_bytes,
        "peak_bytes": peak,
        "coverage": compiled.meta["partition_report"].coverage,
        "quantized_layers": quantized,
        "scaled_error": error.scaled,
        "snr_db": error.snr_db,
        "cosine": error.cosine,
    }


def _inputs(specs: tuple[Input, ...], batch: int, device: torch.device, seed: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1000 + seed)
    tensors = []
    for spec in specs:
        shape = (batch, *spec.opt_shape[1:])
        if spec.dtype.is_floating_point:
            tensors.append(torch.randn(shape, device=device))
        else:
            low, high = spec.tensor_domain
            tensors.append(torch.randint(int(low), int(high), shape, dtype=spec.dtype, device=device))
    return tuple(tensors)


def show(console: Console, rows: list[dict[str, Any]]) -> None:
    """Prints the results as a table, each beside bfloat16."""
    table = Table("model", "batch", "type", "tokens/s", "speed-up", "peak MiB", "disk MiB", "scaled error", "SNR dB")
    base: dict[tuple[str, int], float] = {}
    for row in rows:
        key = row["model"], row["batch"]
        if "seconds" not in row:
            table.add_row(row["model"], str(row["batch"]), row["dtype"], row["error_message"])
            continue
        base.setdefault(key, row["seconds"])
        table.add_row(
            row["model"],
            str(row["batch"]),
            row["dtype"],
            f"{row['tokens_per_second']:.0f}",
            f"{base[key] / row['seconds']:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
            f"{row['disk_bytes'] / 2**20:.0f}",
            f"{row['scaled_error']:.2e}",
            f"{row['snr_db']:.1f}",
        )
    console.print(table)


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools.bench.quantization", description=__doc__)
    parser.add_argument("--models", nargs="+", default=list(DEFAULT_MODELS), choices=sorted(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 64])
    parser.add_argument("--dtypes", nargs="+", default=["float8_e4m3", "int8"])
    parser.add_argument("--level", type=int, default=None, help="optimization_level of the engines")
    parser.add_argument("--json", type=Path, help="write the results there as well")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.models:
        for batch in arguments.batches:
            rows += measure(name, batch, arguments.dtypes, arguments.level)
            show(Console(), rows)
            if arguments.json:
                machine = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
                arguments.json.write_text(json.dumps({"device": machine, "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
