"""The commands of `trtc`."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
from typer.core import TyperGroup

from trtc import generation_command, onnx_commands
from trtc.assignments import Settings, read_assignments
from trtc.output import require_new, say, write_new

if TYPE_CHECKING:
    from trt_frontends.accuracy import AccuracyReport, BisectReport
    from trt_frontends.precision.report import PrecisionReport
    from trt_runtime.engine_cache import EngineCache


_FAILED: Final = 1

_Report = TypeVar("_Report")

_Model = Annotated[str, typer.Argument(help="A saved .pt2 program, or module:callable returning (model, inputs).")]
_Json = Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as JSON.")]
_Samples = Annotated[int, typer.Option(min=0, help="How many random inputs are tried.")]
_Seed = Annotated[int, typer.Option(help="Seed of the first random input.")]


def verify(
    model: _Model,
    setting: Settings = None,
    fail_above: Annotated[
        float | None, typer.Option(min=0.0, help="Exit with 1 when an error is larger; by default by type.")
    ] = None,
    samples: _Samples = 4,
    seed: _Seed = 0,
    exact: Annotated[bool, typer.Option(help="Compare both with float64 as well.")] = True,
    depth: Annotated[bool, typer.Option(help="Compare the values inside the engines as well.")] = False,
    json: _Json = None,
    html: Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as an HTML page.")] = None,
) -> None:
    """Compiles a model and compares it with eager PyTorch, and both with float64.

    Errors are relative to the largest magnitude of an output. Exits with 1 when one is above the tolerance.
    """
    for path in (json, html):
        require_new(path)
    from trt_frontends.accuracy import verify as verify_model

    given = read_assignments(setting or ())
    report = _examined(
        verify_model, model, tolerance=fail_above, samples=samples, seed=seed, exact=exact, depth=depth, **given
    )
    if html is not None:
        write_new(html, report.to_html())
    _conclude(report, json, is_right=report.passed)


def bisect(
    model: _Model,
    setting: Settings = None,
    tolerance: Annotated[float | None, typer.Option(min=0.0, help="Largest error that is right.")] = None,
    samples: _Samples = 1,
    seed: _Seed = 0,
    most: Annotated[int, typer.Option(min=1, help="How many operators are looked for at most.")] = 8,
    state: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File that keeps answers; a search that was stopped goes on.")
    ] = None,
    json: _Json = None,
) -> None:
    """Finds the operators that make a compiled model's output wrong, and the setting that avoids them.

    Exits with 1 when something is wrong.
    """
    require_new(json)
    from trt_frontends.accuracy import Stage
    from trt_frontends.accuracy import bisect as bisect_model

    given = read_assignments(setting or ())
    report = _examined(
        bisect_model, model, tolerance=tolerance, samples=samples, seed=seed, most=most, state=state, **given
    )
    _conclude(report, json, is_right=report.stage is Stage.NONE)


def precision(
    model: _Model,
    max_error: Annotated[
        float | None,
        typer.Option(min=0.0, help="Largest error of an output, relative to its largest magnitude; by default 0.01."),
    ] = None,
    dtype: Annotated[str, typer.Option(help="float16, bfloat16, or auto for the better one.")] = "auto",
    setting: Settings = None,
    engines: Annotated[bool, typer.Option(help="Build the engines, and hold them to the error as well.")] = True,
    json: _Json = None,
) -> None:
    """Chooses by measuring which operators may compute in a reduced type, and prints the settings that say so.

    Exits with 1 when nothing may.
    """
    require_new(json)
    from trt_core.settings_reader import DEFAULT_MAX_ERROR
    from trt_frontends.precision.automatic import choose_precision

    given = {"precision": dtype, "max_error": DEFAULT_MAX_ERROR, **read_assignments(setting or ())}
    if max_error is not None:
        given["max_error"] = max_error
    report = _examined(choose_precision, model, engines=engines, **given)
    _conclude(report, json, is_right=report.reduced_share > 0)


def _examined(examine: Callable[..., _Report], model: str, **options: Any) -> _Report:
    """What a function reports of a model, whose progress is shown meanwhile."""
    from trtc.model_source import load_model
    from trtc.progress import ConsoleProgress

    module, arg_inputs, kwarg_inputs = load_model(model)
    with ConsoleProgress() as progress:
        return examine(module, arg_inputs=arg_inputs, kwarg_inputs=kwarg_inputs, progress=progress, **options)


def _conclude(report: AccuracyReport | BisectReport | PrecisionReport, json: Path | None, *, is_right: bool) -> None:
    """Prints a report, writes it where it is asked for, and ends the command with 1 where something is wrong."""
    say(report.to_text(), end="")
    write_new(json, report.to_json())
    if not is_right:
        raise typer.Exit(_FAILED)


cache_app = typer.Typer(no_args_is_help=True, help="Shows and clears the engine cache.")

_MISSED = 1
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}

_Directory = Annotated[
    Path | None,
    typer.Option("--dir", file_okay=False, help="The cache's directory, as in the setting engine_cache_dir."),
]


@cache_app.command("list")
def list_entries(directory: _Directory = None) -> None:
    """Lists the cached engines, the most recently used first."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from trt_core.wording import printable

    cache = _open(directory)
    entries = cache.entries()
    table = Table(box=None, pad_edge=False)
    for name, justify in (("key", "left"), ("engine", "left"), ("provider", "left"), ("layers", "right")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("built in", "size", "used"):
        table.add_column(name, justify="right")
    for entry in entries:
        built = entry.built
        used = datetime.datetime.fromtimestamp(entry.used).isoformat(" ", "seconds")
        seconds = f"{built.get('build_seconds', 0):.2f} s"
        facts = (built.get("name", ""), built.get("provider", ""), built.get("layers", ""))
        table.add_row(entry.digest[:12], *(Text(printable(fact)) for fact in facts), seconds, _size(entry.bytes), used)
    if entries:
        Console().print(table)
    total = sum(entry.bytes for entry in entries)
    say(f"{_engines(len(entries))}, {_size(total)}, in {cache.directory}")


@cache_app.command("clear")
def clear(directory: _Directory = None) -> None:
    """Removes every cached engine."""
    cache = _open(directory)
    say(f"removed {_engines(cache.clear())} from {cache.directory}")


@cache_app.command("prune")
def prune(
    size: Annotated[str, typer.Option("--to", help="What may remain, in bytes, or with a unit: 500M, 2G.")],
    directory: _Directory = None,
) -> None:
    """Removes the engines that were unused for longest, until the others fit into a size."""
    limit = _bytes(size)
    cache = _open(directory)
    say(f"removed {_engines(cache.prune(limit))} from {cache.directory}")


@cache_app.command("why-miss")
def why_miss(
    model: Annotated[str, typer.Argument(help="A saved .pt2 program, or module:callable returning (model, inputs).")],
    setting: Settings = None,
    directory: _Directory = None,
) -> None:
    """Says for each engine of a model whether it is cached, and in what it differs from the nearest one that is.

    Builds nothing. Exits with 1 when an engine is missing.
    """
    from trt_frontends.pipeline import capture_model
    from trt_frontends.stages import lower
    from trtc.model_source import load_model

    given = read_assignments(setting or ())
    given["engine_cache_dir"] = str(_open(directory).directory)
    module, arg_inputs, kwarg_inputs = load_model(model)
    lowered = lower(capture_model(module, None, arg_inputs, kwarg_inputs, given, needs_weights=True))
    blocks = lowered.split(lowered.plan()).blocks
    misses = [lowered.source.why_miss(block, lowered.ranges, name) for name, block in blocks.items()]
    for name, lines in zip(blocks, misses, strict=True):
        _print_lines(name, lines)
    if not blocks:
        say("the model has no engines")
    if any(misses):
        raise typer.Exit(_MISSED)


def _print_lines(name: str, lines: Sequence[str]) -> None:
    say(f"{name}: {'not cached' if lines else 'cached'}")
    for line in lines:
        say(f"  {line}")


def _open(directory: Path | None) -> EngineCache:
    from trt_runtime.engine_cache import EngineCache, default_directory

    return EngineCache(directory or default_directory())


def _bytes(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    try:
        if unit not in _UNITS or float(number) < 0:
            raise ValueError
        return int(float(number) * _UNITS[unit])
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a size such as 1000000, 500M or 2G", param_hint="'--to'") from None


def _engines(count: int) -> str:
    return f"{count} engine{'s' * (count != 1)}"


def _size(count: int) -> str:
    from trt_core.wording import human_bytes

    return human_bytes(count)


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
        from trtc.model_source import PEERS

        raise typer.Exit(main([name, *context.args], prog="trtc", peers=PEERS))

    return run


# in the order of a reader's work, which is that of `trtc --help`
for _command in (
    quickstart,
    explain,
    diff,
    verify,
    bisect,
    precision,
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
