"""Progress of a compilation on a console."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from trt_core import logger
from trt_frontends.pipeline import Progress as Told
from trt_frontends.pipeline import log_shown, no_progress


class ConsoleProgress:
    """Shows what `compile` is doing; give it as its `progress`."""

    def __init__(self, console: Console | None = None) -> None:
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console or Console(stderr=True),
            transient=True,  # the report says what came of it, and a bar that stands says that something goes on
        )
        self._what = "compiling"
        self._task = self._bar.add_task(self._what, total=1)

    def __enter__(self) -> ConsoleProgress:
        if self._bar.console.is_interactive:  # elsewhere rich would end with an empty line
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar.live.is_started:
            self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Takes one report of progress."""
        if what != self._what:  # another step has its own time and its own count
            self._what = what
            self._bar.reset(self._task, description=what, completed=done, total=total)
        else:
            self._bar.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def shown_phases(*, quiet: bool) -> Iterator[Told]:
    """Shows one line for each phase of a compilation on stderr, and a bar where that is a terminal; or nothing."""
    if quiet:
        yield no_progress
        return
    logger.addFilter(_is_own)
    try:
        with ConsoleProgress() as progress, log_shown(logging.INFO):  # the bar first, so that lines go above it
            yield progress
    finally:
        logger.removeFilter(_is_own)


def _is_own(record: logging.LogRecord) -> bool:
    """Whether a line is ours, or more than the provider's small talk."""
    is_talk = record.levelno == logging.INFO and hasattr(record, "provider")
    return not is_talk or logger.level <= logging.DEBUG
