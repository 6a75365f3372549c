"""The report as text. Users compare such texts, so wording and order of the lines are fixed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trt_partition.plan import BlockKind
from trt_partition.report.data import ReportData
from trt_partition.report.entries import BlockReport, NodeReport
from trt_partition.values import NumberSpec, TensorSpec


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
