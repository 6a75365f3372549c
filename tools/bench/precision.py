"""What precision costs and saves on one machine: error against float32, time of a call, and size, by setting.

`python -m tools.bench.precision [--models NAME...] [--settings NAME...] [--results FILE]`

Each model and setting runs in a process of its own. Errors are those of the first output on the example inputs,
relative to its largest magnitude, against eager in float32 without TF32. Weights are random; batch norms have the
statistics of the inputs (`models.normalize`). Times are medians of calls that are waited for. Sizes are the bytes of
all plans. With ``--results``, each result is appended to a file as soon as it is there, and what the file already holds
for this machine is not measured again, failures apart. ``--stop-after`` begins nothing more once so many seconds have
passed: the same command goes on later.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from tools.bench.latency_results import append, machine, read, today
from tools.bench.measure import first_tensor, in_fresh_process, waited_milliseconds
from tools.bench.models import MODELS, make, normalize

SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "float32": {},
    "autocast float16": {"enable_autocast": True},
    "autocast bfloat16": {"enable_autocast": True, "autocast_dtype": torch.bfloat16},
    "float16": {"precision": torch.float16},
    "bfloat16": {"precision": torch.bfloat16},
    "auto, 1e-2": {"precision": "auto", "max_error": 1e-2},
    "auto, 1e-3": {"precision": "auto", "max_error": 1e-3},
}
NAMES: Final = ("mlp", "mobilenet_v3", "resnet50", "bert_base", "llama_block")
_LEAST_CALLS: Final = 10

Result = dict[str, Any]


def run(name: str, setting: str) -> Result:
    """Measures one model with one setting, in this process."""
    import trt_frontends
    from trt_frontends.accuracy import measure_error
    from trt_runtime import TRTModule

    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.set_flags(_allow_tf32=False, _fp32_precision=None)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, specs = make(name)
    model = model.to(device)
    torch.manual_seed(0)
    inputs = tuple(spec.example(device=device) for spec in specs)
    normalize(model, inputs)
    with torch.no_grad():
        expected = first_tensor(model(*inputs))
        started = time.perf_counter()
        compiled = trt_frontends.compile(model, arg_inputs=inputs, **SETTINGS[setting])
        seconds = time.perf_counter() - started
        error = measure_error(first_tensor(compiled(*inputs)), expected).scaled
        milliseconds = statistics.median(waited_milliseconds(lambda: compiled(*inputs), _LEAST_CALLS))
    chosen = compiled.meta.get("precision_report")
    found: Result = {
        "error": error if error == error and error != float("inf") else str(error),
        "milliseconds": milliseconds,
        "bytes": sum(child.plan.numel() for child in compiled.modules() if isinstance(child, TRTModule)),
        "engines": len(compiled.meta["partition_report"].engines),
        "build_seconds": seconds,
    }
    if chosen is not None:
        found |= {"chosen": chosen.dtype, "reduced_share": chosen.reduced_share, "conclusion": chosen.conclusion}
    return found


def here() -> dict[str, Any]:
    """What is measured on."""
    return {name: value for name, value in machine().items() if name != "dtype"}


def measure(names: list[str], settings: list[str], results: Path | None, stop_after: float = math.inf) -> list[Result]:
    """Measures what is not in a file yet, one process after the other; what fails says why under ``failed``."""
    known = [] if results is None else [each for each in read(results) if each["machine"] == here()]
    done = {(each["model"], each["setting"]): each for each in known if "failed" not in each}
    found = []
    started = time.monotonic()
    for name in names:
        for setting in settings:
            if (name, setting) in done:
                found.append(done[name, setting])
                continue
            if time.monotonic() - started > stop_after:
                continue
            try:
                outcome = in_fresh_process("tools.bench.precision", "--one", name, setting)
            except RuntimeError as error:
                outcome = {"failed": str(error).strip().splitlines()[-1]}
            result = {"model": name, "setting": setting, **outcome, "date": today(), "machine": here()}
            if results is not None:
                append(results, result)
            found.append(result)
    return found


def table(results: list[Result]) -> Table:
    """Error, milliseconds and megabytes by model and setting."""
    shown = Table("model", "setting", "error", "ms", "MB", "reduced")
    for each in results:
        if "failed" in each:
            shown.add_row(each["model"], each["setting"], each["failed"])
            continue
        share = f"{each['reduced_share']:.0%} {each['chosen']}" if "chosen" in each else ""
        error = each["error"] if isinstance(each["error"], str) else f"{each['error']:.1e}"
        sizes = f"{each['milliseconds']:.3f}", f"{each['bytes'] / 1e6:.1f}"
        shown.add_row(each["model"], each["setting"], error, *sizes, share)
    return shown


def main() -> None:
    """Measures what the command line asks for."""
    parser = argparse.ArgumentParser(prog="tools.bench.precision", description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=list(MODELS))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--results", type=Path, help="append to this file, and leave out what it holds")
    parser.add_argument("--stop-after", type=float, default=math.inf, help="seconds after which no process is begun")
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "SETTING"), help="measure here, and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        sys.stdout.write(json.dumps(run(*arguments.one)) + "\n")
        return
    found = measure(arguments.models, arguments.settings, arguments.results, arguments.stop_after)
    Console().print(table(found))


if __name__ == "__main__":
    main()
