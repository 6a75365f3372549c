"""The main job on two real models, start to end, as `trtc quickstart` shows it."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from trt_core import Input, TrtError, provider_identity
from trt_frontends.capture import trace
from trt_frontends.compiler import compile, explain
from trt_runtime import save
from trtc.progress import ConsoleProgress

RELATIVE_TOLERANCE = 1e-3
"""Largest error allowed relative to the largest output: float32 sums in another order, through a few dozen layers."""

_LOADER = """
import sys, torch, trt_runtime
torch.set_num_threads(1)
foreign = [name for name in ("trt_frontends", "trt_converters", "trt_lowering", "trt_partition") if name in sys.modules]
assert not foreign, f"trt_runtime imported {foreign}"
program, inputs, outputs = sys.argv[1:]
module = trt_runtime.load(program)
with torch.no_grad():
    result = module(*torch.load(inputs, weights_only=True))
torch.save(list(result.values()) if isinstance(result, dict) else [result], outputs)
"""


@dataclass(frozen=True)
class Example:
    """A model to show.

    Attributes:
        title: What it is.
        make: Makes the module, in eval mode.
        inputs: What it is compiled for.
    """

    title: str
    make: Callable[[], nn.Module]
    inputs: tuple[Input, ...]


def examples() -> list[Example]:
    """Returns the models: their libraries' own configurations, random weights."""
    image = Input(min_shape=(1, 3, 224, 224), opt_shape=(4, 3, 224, 224), max_shape=(8, 3, 224, 224), name="x")
    tokens = Input(
        min_shape=(1, 128),
        opt_shape=(2, 128),
        max_shape=(4, 128),
        dtype=torch.int64,
        name="input_ids",
        tensor_domain=(0, 30000),
    )
    return [
        Example("ResNet-18 (torchvision)", _resnet18, (image,)),
        Example("BERT-base encoder (transformers)", _bert, (tokens,)),
    ]


def run_quickstart(console: Console, *, seed: int = 0, directory: Path | None = None) -> bool:
    """Runs every example.

    Args:
        console: Where the story is told.
        seed: Seed of weights and inputs.
        directory: Where saved programs are kept; by default they are removed.

    Returns:
        Whether every output agreed with eager within `RELATIVE_TOLERANCE`.
    """
    os.environ.setdefault("TRT_PORTABLE_LIBRARIES", "")  # a race with others' kernels would double the time it takes
    # one thread: on shared cores more of them wait for each other, and both columns of times would show that
    torch.set_num_threads(1)
    console.print(f"PyTorch {torch.__version__} on one thread, provider {provider_identity()}", highlight=False)
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with nullcontext(str(directory)) if directory is not None else tempfile.TemporaryDirectory() as folder:
        agreed = [_run(console, example, seed, Path(folder)) for example in examples()]
    verdict = "[bold green]every output agrees with eager[/]" if all(agreed) else "[bold red]outputs differ[/]"
    console.print(f"\n{verdict} in {time.perf_counter() - start:.0f} s")
    return all(agreed)


def _run(console: Console, example: Example, seed: int, folder: Path) -> bool:
    console.rule(example.title)
    torch.manual_seed(seed)
    model = example.make()
    program = _timed(console, "traced", lambda: trace(model, arg_inputs=example.inputs))
    report = _timed(console, "explained (nothing built)", lambda: explain(program, arg_inputs=example.inputs))
    _print_report(console, report.to_text())
    with ConsoleProgress(console) as progress:
        compiled = compile(program, arg_inputs=example.inputs, progress=progress)

    inputs = tuple(spec.example() for spec in example.inputs)
    with torch.no_grad():
        expected = _outputs(model(*inputs))
        found = _outputs(compiled(*inputs))
        agreed = _compare(console, "compiled beside eager", expected, found)
        _time_side_by_side(console, model, compiled, inputs)

    path = folder / (example.title.split(" ")[0].lower() + ".trtp")
    _timed(console, f"saved {path.name}", lambda: save(compiled, path, arg_inputs=inputs))
    reloaded = _timed(console, "loaded and run in another process", lambda: _run_elsewhere(path, inputs))
    return _compare(console, "loaded beside eager", expected, reloaded) and agreed


def _print_report(console: Console, text: str) -> None:
    """Prints a report for reading: long lines are wrapped, and the banner and the line of settings are cut."""
    for line in text.splitlines():
        is_cut = line.startswith(("++++", "Compiled with:"))
        console.print(line, markup=False, highlight=False, no_wrap=is_cut, overflow="ellipsis" if is_cut else None)


def _run_elsewhere(program: Path, inputs: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Loads a saved program in a process that imports only PyTorch and trt_runtime, and runs it."""
    given, made = program.with_suffix(".inputs.pt"), program.with_suffix(".outputs.pt")
    torch.save(list(inputs), given)
    result = subprocess.run(
        [sys.executable, "-c", _LOADER, str(program), str(given), str(made)], capture_output=True, text=True
    )
    if result.returncode:
        raise TrtError("the saved program does not run in another process", why=result.stderr.strip())
    outputs = torch.load(made, weights_only=True)
    given.unlink()
    made.unlink()
    return {f"output {index}": value for index, value in enumerate(outputs)}


def _outputs(result: Any) -> dict[str, torch.Tensor]:
    values = list(result.values()) if isinstance(result, dict) else [result]
    return {f"output {index}": value for index, value in enumerate(values)}


def _compare(console: Console, title: str, expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> bool:
    table = Table("output", "shape", "worst absolute error", "worst relative error", title=title, title_justify="left")
    agreed = expected.keys() == found.keys()
    for name, wanted in expected.items():
        value = found.get(name)
        if value is None or value.shape != wanted.shape:
            agreed = False
            table.add_row(name, str(tuple(wanted.shape)), "missing" if value is None else "another shape", "")
            continue
        difference = (value - wanted).abs().max().item()
        relative = difference / wanted.abs().max().item()
        agreed = agreed and relative <= RELATIVE_TOLERANCE
        table.add_row(name, str(tuple(wanted.shape)), f"{difference:.2e}", f"{relative:.2e}")
    console.print(table)
    return agreed


def _time_side_by_side(console: Console, model: nn.Module, compiled: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
    rows = {"eager": model, "compiled": compiled}
    table = Table("", "milliseconds per call", "ratio", title="time, best of 5", title_justify="left")
    best = {name: float("inf") for name in rows}
    for _ in range(5):  # alternating, so that a busy machine slows both
        for name, module in rows.items():
            start = time.perf_counter()
            module(*inputs)
            best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        table.add_row(name, f"{seconds * 1e3:.1f}", f"{best['eager'] / seconds:.2f}x")
    console.print(table)


def _timed(console: Console, what: str, action: Callable[[], Any]) -> Any:
    start = time.perf_counter()
    result = action()
    console.print(f"{what} in {time.perf_counter() - start:.2f} s", highlight=False)
    return result


def _resnet18() -> nn.Module:
    from torchvision.models import resnet18

    module: nn.Module = resnet18(weights=None)
    return module.eval()


def _bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    module: nn.Module = BertModel(BertConfig())
    return module.eval()
