"""The partition report: what was decided about a graph, as text, JSON and HTML, and where it goes.

Users compare its texts, so wording and order of the lines are fixed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from trt_core import PartitionError, Reason, logger
from trt_core.held_arguments import held_to_signature
from trt_core.wording import ShownReport, printable
from trt_partition.plan import BlockKind
from trt_partition.report.data import BlockReport, NodeReport, ReportData
from trt_partition.report.html import render_html
from trt_partition.report.json import parse_fields, render_json
from trt_partition.values import NumberSpec, TensorSpec


@dataclass(frozen=True, repr=False)
class PartitionReport(ShownReport, ReportData):
    """What a partition plan makes of a graph, with its renderings; see `ReportData` for what it holds."""

    @property
    def headline(self) -> str:
        """The report in one line."""
        engines, refused = len(self.engines), len(self.unsupported)
        return (
            f"{self.coverage:.2%} coverage of {self.total_operators} operators, {engines} engine{'s' * (engines != 1)}"
            + (f", {refused} kind{'s' * (refused != 1)} of operators in PyTorch" if refused else "")
        )

    def to_text(self) -> str:
        """Returns the report as text."""
        return printable(render_text(self))

    def to_json(self, indent: int | None = 2) -> str:
        """Returns the report as JSON, see `trt_partition.report.json.schema`."""
        return render_json(self, indent)

    @staticmethod
    def from_json(text: str) -> PartitionReport:
        """Reads what `to_json` wrote.

        Raises:
            PartitionError: The text is no report, or one of a later version.
        """
        return PartitionReport(**parse_fields(text))

    def to_html(self, *, title: str = "Partition report", reasons: str = "") -> str:
        """Returns the report as one HTML page that needs no other file.

        Args:
            title: Heading of the page.
            reasons: Where the page about reason codes is, for links; empty for the report's own section about them.
        """
        return render_html(self, title=title, reasons=reasons)


def render_text(report: ReportData) -> str:
    """Returns the report as text, ending in a newline. Sections that would be empty are left out."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: ReportData) -> Iterator[str]:
    rule = "+" * 50
    yield f"{rule} Dry-Run Results for Graph {rule}"
    yield ""
    yield (
        f"The graph consists of {report.total_operators} Total Operators, of which {report.supported_operators} "
        f"operators are supported, {report.coverage * 100:.2f}% coverage"
    )
    if report.unsupported:
        yield ""
        yield (
            "The following ops are currently unsupported or excluded from conversion, "
            "and are listed with their op-count in the graph:"
        )
        for operator, count in report.unsupported.items():
            yield f" {operator}: {count}"
    if report.torch_nodes:
        yield ""
        yield "The following nodes are currently set to run in Torch:"
        for node in report.torch_nodes:
            yield f"Node: {node.op}, with layer location: {node.location}"
            yield f"  {_reason(node)}"
        yield "Note: Some of the above nodes may be supported, but were not included in a TRT graph by the partitioner"
    if report.kept_in_float32:
        yield ""
        yield "The following nodes are kept in float32:"
        for node in report.kept_in_float32:
            yield f"Node: {node.op}, with layer location: {node.location}"
            yield f"  {node.kept_in_float32}"
    if report.weights_in_floats:
        yield ""
        yield "The following nodes read weights that the model stores in few bits, as floats:"
        for node in report.weights_in_floats:
            yield f"Node: {node.op}, with layer location: {node.location}"
            yield f"  {Reason.WEIGHT_IN_FLOATS.code}: {node.weight_in_floats}"
    if report.collectives:
        yield ""
        yield "The following nodes communicate with other processes:"
        for node in report.collectives:
            yield f"Node: {node.op}, with layer location: {node.location}"
            yield f"  {node.communication}"
    yield ""
    yield f"Compiled with: {report.settings_text}"
    yield ""
    yield "  Graph Structure:"
    yield ""
    yield f"   Inputs: {report.inputs}"
    for index, profile in enumerate(report.profiles):
        yield f"   Optimization Profile #{index}: {profile}"
    yield from _structure(report)
    yield "    ..."
    yield f"   Outputs: {report.outputs}"
    yield ""
    if not report.engines:
        yield "Aggregate stats not available since no TRT Engines were generated."
        return
    sizes = [engine.operators for engine in report.engines]
    yield f"  {'-' * 25} Aggregate Stats {'-' * 25}"
    yield ""
    yield f"   Average Number of Operators per TRT Engine: {round(sum(sizes) / len(sizes), 2)}"
    yield f"   Fewest Operators in a TRT Engine: {min(sizes)}"
    yield f"   Most Operators in a TRT Engine: {max(sizes)}"
    yield ""
    yield f"  {'*' * 10} Recommendations {'*' * 10}"
    yield ""
    for recommendation in report.recommendations:
        yield f"   - {recommendation}"


def _structure(report: ReportData) -> Iterator[str]:
    number = 0
    for block in report.blocks:
        yield "    ..."
        if block.kind is BlockKind.TORCH:
            yield f"    PyTorch Block - Submodule name: {block.name}"
            continue
        number += 1
        yield from _engine(number, block)


def _engine(number: int, engine: BlockReport) -> Iterator[str]:
    yield f"    TRT Engine #{number} - Submodule name: {engine.name}"
    yield f"     Engine Inputs: {_listing(engine.inputs)}"
    yield f"     Number of Operators in Engine: {engine.operators}"
    yield f"     Engine Outputs: {_listing(engine.outputs)}"


def _listing(specs: Sequence[TensorSpec | NumberSpec]) -> str:
    return f"List[{', '.join(map(str, specs))}]"


def _reason(node: NodeReport) -> str:
    verdict = node.verdict
    message = " ".join(verdict.message.split())
    source = f" ({verdict.source})" if verdict.source else ""
    return f"{verdict.code}: {message}{source}"


@held_to_signature
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


@held_to_signature
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


@held_to_signature
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
