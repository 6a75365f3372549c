"""What commands write: lines for reading, and new files, wholly or not at all."""

from __future__ import annotations

from pathlib import Path

import typer


def say(text: str, *, end: str = "\n", to_errors: bool = False) -> None:
    """Prints a text as it is: what would command a terminal, in names from files, is spelled out."""
    if not text.replace("\n", "").isprintable():
        from trt_core.wording import printable  # with PyTorch, which the help does without

        text = printable(text)
    typer.echo(text + end, nl=False, err=to_errors)


def require_new(path: Path | None) -> None:
    """Refuses a path that exists already, or whose folder does not, before any work is done.

    Raises:
        typer.BadParameter: It does, or there is no such folder.
    """
    if path is None:
        return
    if path.exists():
        raise typer.BadParameter(f"{path} exists already; remove it, or give another path")
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"there is no folder {path.parent}")


def write_new(path: Path | None, text: str) -> None:
    """Writes a file that does not exist yet; without a path, nothing."""
    if path is not None:
        from trt_core.files.replacing import replacing  # with PyTorch, which most commands' help does without

        with replacing(path) as file:
            file.write(text.encode())
