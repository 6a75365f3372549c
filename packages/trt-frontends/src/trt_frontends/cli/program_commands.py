"""The commands about saved programs. They are those of `python -m trt_runtime`, which has no typer."""

from __future__ import annotations

from collections.abc import Callable

import typer

# argparse reads the arguments, `--help` too, so that both command lines are one
_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}

_SUMMARIES = {
    "inspect": "Says what is in a saved program or plan; runs nothing.",
    "run": "Runs a saved program once, on given or random inputs.",
    "bench": "Times calls of a saved program.",
}


def add_program_commands(app: typer.Typer) -> None:
    """Adds `inspect`, `run` and `bench`."""
    for name, summary in _SUMMARIES.items():
        app.command(name, help=summary, context_settings=_PASSED_ON, add_help_option=False)(_command(name))


def _command(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        from trt_runtime.command_line import main

        raise typer.Exit(main([name, *context.args], prog="trtc"))

    return run
