"""Where reports go: standard output, a file, or the log."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from pathlib import Path

from trt_core import PartitionError, logger
from trt_partition.report.partition_report import PartitionReport


def write_report(report: PartitionReport, dryrun: bool | str) -> None:
    """Publishes a report as the `dryrun` setting asks.

    Args:
        report: The report.
        dryrun: True prints the text. A path prints it and saves the report: as JSON or HTML when the path ends in
            `.json` or `.html`, as text otherwise. An existing file is kept, and a warning says so. False sends the
            text to the `torch_tensorrt` logger at DEBUG.

    Raises:
        PartitionError: The file cannot be written.
    """
    if dryrun is False:
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", report.to_text())
        return
    sys.stdout.write(report.to_text())
    if isinstance(dryrun, str):
        save_report(report, dryrun)


def save_report(report: PartitionReport, path: str | os.PathLike[str]) -> bool:
    """Saves a report under a path that does not exist yet, wholly or not at all.

    Args:
        report: The report.
        path: Where to; its extension decides the format, see `write_report`.

    Returns:
        Whether the file was written; False when there was one already, which a warning on the logger says.

    Raises:
        PartitionError: The file cannot be written.
    """
    require_report_path(path)
    target = Path(path)
    if target.exists():
        _warn_kept(target)
        return False
    text = _render(report, target.suffix.lower())
    try:
        return _write_new(target, text)
    except OSError as error:
        raise PartitionError(
            "the partition report cannot be saved", where=str(target), why=str(error), hint="give another path"
        ) from error


def require_report_path(path: str | os.PathLike[str]) -> None:
    """Refuses a path under which no file can be, before the work that the report tells of.

    Raises:
        PartitionError: It is a directory, or lies in none.
    """
    target = Path(path)
    if target.is_dir():
        why = "it is a directory"
    elif not target.parent.is_dir():
        why = f"there is no directory {target.parent}"
    else:
        return
    raise PartitionError(
        "the partition report cannot be saved", where=str(target), why=why, hint="give the path of a file"
    )


def _render(report: PartitionReport, suffix: str) -> str:
    if suffix == ".json":
        return report.to_json()
    if suffix in (".html", ".htm"):
        return report.to_html()
    return report.to_text()


def _write_new(target: Path, text: str) -> bool:
    """Writes beside the target, then links it there: linking fails when the target exists, so nothing is lost."""
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.chmod(temporary, 0o644)
        try:
            os.link(temporary, target)
        except FileExistsError:
            _warn_kept(target)
            return False
        except OSError:  # a file system without hard links
            if target.exists():
                _warn_kept(target)
                return False
            os.replace(temporary, target)
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _warn_kept(target: Path) -> None:
    logger.warning("%s exists already and is kept; remove it to save the partition report there", target)
