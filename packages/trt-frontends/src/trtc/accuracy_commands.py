"""`trtc verify`, `bisect` and `precision`: is a compiled model right, what is to blame if not, what may be reduced?"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from trtc.assignments import Settings, read_assignments
from trtc.output import require_new, say, write_new

if TYPE_CHECKING:
    from trt_frontends.accuracy import AccuracyReport, BisectReport
    from trt_frontends.precision.report import PrecisionReport

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
