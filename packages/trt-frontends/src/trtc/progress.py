"""Progress of a compilation on a console."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


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
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Takes one report of progress."""
        if what != self._what:  # another step has its own time and its own count
            self._what = what
            self._bar.reset(self._task, description=what, completed=done, total=total)
        else:
            self._bar.update(self._task, completed=done, total=total)
