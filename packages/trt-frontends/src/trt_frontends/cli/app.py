"""The commands of `trtc`. Exit codes: 0 success, 1 a check failed, 2 bad usage or input."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from trt_core import TrtError

FAILED = 1
BAD_INPUT = 2

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)
console = Console()
errors = Console(stderr=True)


def main() -> None:
    """Runs the command line; an error of ours is a message, not a stack trace."""
    try:
        app()
    except TrtError as error:
        errors.print(f"[bold red]error:[/] {error}", highlight=False)
        raise SystemExit(BAD_INPUT) from error


@app.command()
def quickstart(
    seed: Annotated[int, typer.Option(help="Seed of the random weights and inputs.")] = 0,
    keep: Annotated[Path | None, typer.Option(help="Directory to keep the saved programs in.")] = None,
) -> None:
    """Shows the main job on two real models: trace, explain, compile, compare, time, save, load elsewhere."""
    from trt_frontends.quickstart import run_quickstart

    if not run_quickstart(console, seed=seed, directory=keep):
        raise typer.Exit(FAILED)


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="A saved .pt2 program, or module:callable returning (model, inputs).")],
    min_block_size: Annotated[str, typer.Option(help="Fewest operators per engine; a number or inf.")] = "5",
    html: Annotated[Path | None, typer.Option(help="Write the report as an HTML page.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the report as JSON.")] = None,
    fail_under: Annotated[float, typer.Option(help="Exit with 1 when coverage (0 to 1) is lower.")] = 0.0,
) -> None:
    """Reports which operators would run in engines; builds nothing."""
    from trt_frontends.cli.model_source import load_model
    from trt_frontends.compiler import explain as explain_model
    from trt_partition import write_report

    module, arg_inputs, kwarg_inputs = load_model(model)
    report = explain_model(
        module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, min_block_size=_block_size(min_block_size)
    )
    console.print(report.to_text(), markup=False, highlight=False, soft_wrap=True)
    for path in (html, json):
        if path is not None:
            write_report(report, str(path))
    if report.coverage < fail_under:
        errors.print(f"coverage {report.coverage:.2%} is below {fail_under:.2%}")
        raise typer.Exit(FAILED)


@app.command()
def diff(
    before: Annotated[Path, typer.Argument(help="Report as JSON.")],
    after: Annotated[Path, typer.Argument(help="Report as JSON.")],
) -> None:
    """Says what changed between two reports; exits with 1 when something did."""
    from trt_partition import PartitionReport, diff_reports

    old, new = (PartitionReport.from_json(path.read_text()) for path in (before, after))
    changes = diff_reports(old, new)
    console.print(changes.to_text(), markup=False, highlight=False, soft_wrap=True)
    if changes:
        raise typer.Exit(FAILED)


@app.command()
def info() -> None:
    """Says which versions are installed and which provider is in use."""
    import platform

    import torch

    import trt_frontends
    from trt_core import provider_identity

    console.print(f"trt-frontends {trt_frontends.__version__}", highlight=False)
    console.print(f"Python {platform.python_version()}, PyTorch {torch.__version__}", highlight=False)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    console.print(f"provider {provider_identity()} on {device}", highlight=False)


def _block_size(text: str) -> float | int:
    try:
        return float("inf") if text == "inf" else int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a whole number nor inf") from None
