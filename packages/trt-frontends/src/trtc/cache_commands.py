"""`trtc cache`: what is in the engine cache, and why an engine is not."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from trtc.assignments import Settings, read_assignments
from trtc.output import say

if TYPE_CHECKING:
    from trt_runtime.engine_cache import EngineCache

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
