"""The commands of `trtc`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trtc import accuracy_commands, generation_command, onnx_commands
from trtc.assignments import Settings, read_assignments
from trtc.cache_commands import cache_app
from trtc.output import require_new, say, write_new

FAILED = 1
BAD_INPUT = 2

_EXIT_CODES = "Exit codes: 0 success, 1 a check failed, 2 bad usage or input."


class _Commands(TyperGroup):
    """Turns an error of ours into a message and an exit code, without a stack trace."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for command in self.commands.values():  # first sentences whole, where typer would cut them
            command.short_help = (command.help or "").partition("\n")[0]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for option in self.get_params(ctx):  # typer's own have no value, for which it would import pydantic in any help
            option.default = False if option.default is None else option.default
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except Exception as error:
            if not _is_ours(error):
                raise
            typer.secho("error:", fg="red", bold=True, err=True, nl=False)
            say(f" {error}", to_errors=True)
            raise typer.Exit(BAD_INPUT) from error


def _is_ours(error: Exception) -> bool:
    if "trt_core" not in sys.modules:
        return False
    from trt_core import TrtError

    return isinstance(error, TrtError)


app = typer.Typer(
    name="trtc",
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # it takes twice as long to import as all else that the help needs
    epilog=_EXIT_CODES,
)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        say(f"trtc {version('trt-frontends')}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Compiles PyTorch models into TensorRT engines."""


def quickstart(
    seed: Annotated[int, typer.Option(help="Seed of the random weights and inputs.")] = 0,
    keep: Annotated[Path | None, typer.Option(file_okay=False, help="Folder to keep the saved programs in.")] = None,
) -> None:
    """Shows the main job on two real models: trace, explain, compile, compare, time, save, load elsewhere.

    Exits with 1 when an output differs from what PyTorch computes.
    """
    from rich.console import Console

    from trtc.quickstart import run_quickstart

    if not run_quickstart(Console(), seed=seed, directory=keep):
        raise typer.Exit(FAILED)


def explain(
    model: Annotated[
        str, typer.Argument(help="A .pt2 program, an .onnx model, or module:callable returning (model, inputs).")
    ],
    min_block_size: Annotated[str, typer.Option(help="Fewest operators per engine; a number or inf.")] = "5",
    setting: Settings = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as an HTML page.")] = None,
    json: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as JSON.")] = None,
    fail_under: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Exit with 1 when coverage (0 to 1) is lower.")
    ] = 0.0,
) -> None:
    """Reports which operators of a model would run in engines.

    Builds nothing, and needs no GPU, no TensorRT and no weights: the callable may return a model on the meta device.
    Existing files are never overwritten.
    """
    for path in (html, json):
        require_new(path)
    size = _block_size(min_block_size)
    if model.endswith(".onnx"):
        _explain_onnx(model, html, json, fail_under)
        return

    from trt_frontends.compiler import explain as explain_model
    from trtc.model_source import load_model

    module, arg_inputs, kwarg_inputs = load_model(model)
    given = {"min_block_size": size, **read_assignments(setting or ())}
    report = explain_model(module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, **given)
    say(report.to_text(), end="")
    if html is not None:
        write_new(html, report.to_html(title=model))
    write_new(json, report.to_json())
    if report.coverage < fail_under:
        say(f"coverage {report.coverage:.2%} is below {fail_under:.2%}", to_errors=True)
        raise typer.Exit(FAILED)


def _explain_onnx(model: str, html: Path | None, json: Path | None, fail_under: float) -> None:
    if html is not None:
        raise typer.BadParameter("reports of .onnx models are text and JSON", param_hint="'--html'")
    text, covers_enough = onnx_commands.explain_onnx_model(model, json, fail_under)
    say(text, end="")
    if not covers_enough:
        raise typer.Exit(FAILED)


def diff(
    before: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A report as JSON.")],
    after: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A report as JSON.")],
) -> None:
    """Says what changed between two reports of `trtc explain --json`; exits with 1 when something did."""
    from trt_partition import diff_reports

    changes = diff_reports(_read_report(before), _read_report(after))
    say(changes.to_text(), end="")
    if changes:
        raise typer.Exit(FAILED)


def info() -> None:
    """Says which versions are installed and which provider is in use."""
    import platform

    import torch

    import trt_frontends
    from trt_core import provider_identity

    say(f"trt-frontends {trt_frontends.__version__}")
    say(f"Python {platform.python_version()}, PyTorch {torch.__version__}")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    say(f"provider {provider_identity()} on {device}")


def _block_size(text: str) -> float | int:
    try:
        return float("inf") if text == "inf" else int(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is neither a whole number nor inf", param_hint="'--min-block-size'"
        ) from None


_MOST_REPORT_BYTES = 1 << 30


def _read_report(path: Path) -> Any:
    from trt_core import TrtError
    from trt_core.files.opening import read_file
    from trt_partition import PartitionReport

    try:
        return PartitionReport.from_json(read_file(str(path), _MOST_REPORT_BYTES).decode())
    except (TrtError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{path} is not a report: {str(error).partition(chr(10))[0]}") from error


# argparse reads the arguments, `--help` too, so that both command lines are one
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

_SUMMARIES = {
    "inspect": "Says what is in a saved program or plan; runs nothing.",
    "run": "Runs a saved program once, on given or random inputs.",
    "bench": "Times calls of a saved program, on request beside its model in PyTorch.",
    "profile": "Times the layers of a saved program's engines.",
    "trust": "Trusts what a key signs, or lists the keys that are trusted.",
    "sign": "Signs a saved program with your key.",
    "verify-signature": "Says who has signed a saved program.",
}


def add_program_commands(app: typer.Typer) -> None:
    """Adds what the command line of trt-runtime has."""
    for name, summary in _SUMMARIES.items():
        app.command(name, help=summary, context_settings=_PASSED_ON, add_help_option=False)(_program_command(name))


def _program_command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        from trt_runtime.command_line import main
        from trtc.peers import PEERS

        raise typer.Exit(main([name, *context.args], prog="trtc", peers=PEERS))

    return run


# in the order of a reader's work, which is that of `trtc --help`
for _command in (
    quickstart,
    explain,
    diff,
    accuracy_commands.verify,
    accuracy_commands.bisect,
    accuracy_commands.precision,
):
    app.command(epilog=_EXIT_CODES)(_command)
add_program_commands(app)
app.command("compile", epilog=_EXIT_CODES)(onnx_commands.compile_model)
app.command(epilog=_EXIT_CODES)(generation_command.generate)
app.add_typer(onnx_commands.export_app, name="export", cls=_Commands, epilog=_EXIT_CODES)
app.command(epilog=_EXIT_CODES)(info)
app.add_typer(cache_app, name="cache", cls=_Commands, epilog=_EXIT_CODES)


def main() -> None:
    """Runs the command line."""
    app()
