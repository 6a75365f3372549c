"""`trtc verify` and `trtc bisect`: is the compiled model right, and which operators are to blame if not?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console

from trt_core import InputError
from trt_frontends.cli.output_file import require_new, write_new

if TYPE_CHECKING:
    from trt_frontends.accuracy import AccuracyReport, BisectReport

console = Console()

_FAILED: Final = 1

_Model = Annotated[str, typer.Argument(help="A saved .pt2 program, or module:callable returning (model, inputs).")]
_Settings = Annotated[
    list[str] | None,
    typer.Option("--setting", "-s", help="A compilation setting as NAME=VALUE, such as precision=float16; repeatable."),
]
_Json = Annotated[Path | None, typer.Option(dir_okay=False, help="Write the report as JSON.")]
_Samples = Annotated[int, typer.Option(min=0, help="How many random inputs are tried.")]
_Seed = Annotated[int, typer.Option(help="Seed of the first random input.")]


def verify(
    model: _Model,
    setting: _Settings = None,
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
    from trt_frontends.cli.model_source import load_model

    module, arg_inputs, kwarg_inputs = load_model(model)
    report = verify_model(
        module,
        arg_inputs=arg_inputs,
        kwarg_inputs=kwarg_inputs,
        tolerance=fail_above,
        samples=samples,
        seed=seed,
        exact=exact,
        depth=depth,
        **read_assignments(setting or ()),
    )
    if html is not None:
        write_new(html, report.to_html())
    _conclude(report, json, is_right=report.passed)


def bisect(
    model: _Model,
    setting: _Settings = None,
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
    from trt_frontends.cli.model_source import load_model
    from trt_frontends.console import ConsoleProgress

    module, arg_inputs, kwarg_inputs = load_model(model)
    with ConsoleProgress(Console(stderr=True)) as progress:
        report = bisect_model(
            module,
            arg_inputs=arg_inputs,
            kwarg_inputs=kwarg_inputs,
            tolerance=tolerance,
            samples=samples,
            seed=seed,
            most=most,
            state=state,
            progress=progress,
            **read_assignments(setting or ()),
        )
    _conclude(report, json, is_right=report.stage is Stage.NONE)


def read_assignments(texts: list[str] | tuple[str, ...]) -> dict[str, Any]:
    """Reads `NAME=VALUE` settings: numbers, `true`, `false`, `none`, names of types, and lists separated by commas.

    A list that is given several times adds up. Regular expressions, which may hold commas, are given one at a time.

    Raises:
        InputError: One has no `=`.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise InputError(f"{text!r} is not NAME=VALUE", hint="write for instance --setting precision=float16")
        name, read = name.strip(), _value(name.strip(), value.strip())
        found[name] = {*found.get(name, ()), *read} if name in _LISTS else read
    return found


_PATTERNS: Final = frozenset({"autocast_excluded_nodes"})
_LISTS: Final = _PATTERNS | {
    "autocast_excluded_ops",
    "enabled_precisions",
    "torch_executed_modules",
    "torch_executed_ops",
}
_WORDS: Final = {"true": True, "false": False, "none": None, "inf": float("inf")}


def _value(name: str, text: str) -> Any:
    if name in _PATTERNS:
        return {text}
    if name in _LISTS:
        return {part.strip() for part in text.split(",") if part.strip()}
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _conclude(report: AccuracyReport | BisectReport, json: Path | None, *, is_right: bool) -> None:
    """Prints a report, writes it where it is asked for, and ends the command with 1 where something is wrong."""
    console.print(report.to_text(), markup=False, highlight=False, soft_wrap=True, end="")
    write_new(json, report.to_json())
    if not is_right:
        raise typer.Exit(_FAILED)
