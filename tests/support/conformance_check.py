"""The conformance check: a sample goes through the whole pipeline and gives eager's result, or is refused openly."""

from __future__ import annotations

import enum
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from opinfo_samples import SEED, Sample
from torch.utils import _pytree as pytree

import trt_frontends
from trt_converters.testing.comparison import is_within, rounding_bounds
from trt_core import Reason, operator_name

# (rtol, atol), the latter times the largest magnitude of the expected result: samples hold long sums, whose terms two
# correct implementations add in different orders, and compositions of several kernels that round in different places.
TOLERANCES = {
    torch.float64: (1e-7, 1e-7),
    torch.float32: (1e-4, 1e-5),
    torch.float16: (1e-2, 4e-3),
    torch.bfloat16: (5e-2, 2e-2),
    torch.complex64: (1e-4, 1e-5),
    torch.complex128: (1e-7, 1e-7),
}

# A node that falls back for one of these is a defect of ours, although its result is right.
DEFECTS = frozenset({Reason.CHECK_FAILED, Reason.CONVERSION_FAILED, Reason.BUILD_FAILED})

# Their results are whatever the memory holds.
UNINITIALIZED = frozenset(
    {
        "empty",
        "empty_like",
        "empty_permuted",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "resize_as_",
    }
)


# They may return the place of any of several equal elements, and which one it is depends on the algorithm.
FREE_CHOICE = frozenset({"kthvalue"})


class Kind(enum.Enum):
    """What became of a sample."""

    CONVERTED = "converted"
    DECOMPOSED = "decomposed"
    REFUSED = "refused"
    NO_OPERATORS = "no_operators"
    NOT_EXPORTED = "not_exported"


@dataclass(frozen=True)
class Outcome:
    """What became of a sample, and of its nodes.

    Attributes:
        kind: `CONVERTED` when engines run the operators that were exported, `DECOMPOSED` when they run others in their
            places, `REFUSED` when a node runs in PyTorch, `NO_OPERATORS` when the program computes nothing,
            `NOT_EXPORTED` when PyTorch cannot export the sample.
        refusals: Messages by reason code.
    """

    kind: Kind
    refusals: dict[str, str] = field(default_factory=dict)


def check_sample(name: str, sample: Sample) -> Outcome:
    """Compiles one sample with `min_block_size=1` and compares with eager.

    Raises:
        AssertionError: The result differs from eager's, or a node fell back through a defect of ours.
        Exception: Whatever the pipeline raised.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            expected = _run(sample.module, sample)
            program = torch.export.export(sample.module, _clones(sample), strict=False)
        except Exception:  # PyTorch refuses the sample, for any of many reasons
            return Outcome(Kind.NOT_EXPORTED)
        compiled = trt_frontends.compile(program, min_block_size=1, optimization_level=0)
        found = _run(compiled, sample)
        compare_values = name.partition(".")[0] not in UNINITIALIZED and _is_deterministic(program, sample)
    report = compiled.meta["partition_report"]
    for node in report.torch_nodes:
        assert node.verdict.reason not in DEFECTS, f"{sample.describe()}: {node.op}: {node.verdict.message}"
    if name in FREE_CHOICE:
        found = _accept_choice(found, expected, sample)
    _agree(found, expected, sample, compare_values)
    return _classify(program, report)


def _clones(sample: Sample) -> tuple[torch.Tensor, ...]:
    return tuple(tensor.detach().clone(memory_format=torch.preserve_format) for tensor in sample.tensors)


def _run(function: Callable[..., Any], sample: Sample, seed: int = SEED) -> Any:
    torch.manual_seed(seed)
    return function(*_clones(sample))


def _is_deterministic(program: torch.export.ExportedProgram, sample: Sample) -> bool:
    """Whether a program that may draw random numbers returns the same with other seeds.

    The program is asked, for the operators of the database set a seed of their own.
    """
    if not any(_may_draw(node.target) for node in program.graph.nodes):
        return True
    module = program.module()
    first, *others = (pytree.tree_leaves(_run(module, sample, SEED + offset)) for offset in range(4))
    return all(_same(left, right) for other in others for left, right in zip(first, other, strict=True))


def _may_draw(target: Any) -> bool:
    tags = getattr(target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or "dropout_p" in str(getattr(target, "_schema", ""))


def _same(left: Any, right: Any) -> bool:
    if not isinstance(left, torch.Tensor):
        return bool(left == right)
    if left.shape != right.shape:
        return False
    if left.layout is not torch.strided:
        left, right = left.to_dense(), right.to_dense()
    unequal = left != right
    if left.is_floating_point() or left.is_complex():
        unequal &= ~(left.isnan() & right.isnan())
    return not unequal.any()


def _agree(found: Any, expected: Any, sample: Sample, compare_values: bool) -> None:
    left, right = pytree.tree_leaves(found), pytree.tree_leaves(expected)
    assert len(left) == len(right), f"{sample.describe()}: {len(left)} results, eager has {len(right)}"
    for index, (value, wanted) in enumerate(zip(left, right, strict=True)):
        what = f"{sample.describe()}, result {index}"
        if not isinstance(wanted, torch.Tensor):
            assert type(value) is type(wanted), f"{what}: {value!r}, eager has {wanted!r}"
            assert not compare_values or value == wanted, f"{what}: {value!r}, eager has {wanted!r}"
            continue
        assert value.dtype == wanted.dtype, f"{what}: {value.dtype}, eager has {wanted.dtype}"
        assert value.layout == wanted.layout, f"{what}: {value.layout}, eager has {wanted.layout}"
        if compare_values:
            try:
                _close(value, wanted, what)
            except AssertionError:
                if not _is_rounding(value, index, right, sample):
                    raise
        else:
            assert value.dim() == wanted.dim(), f"{what}: {tuple(value.shape)}, eager has {tuple(wanted.shape)}"


def _accept_choice(found: Any, expected: Any, sample: Sample) -> Any:
    """Takes eager's places where those that were found hold the same elements."""
    values, places = found
    source, _, axis, keeps = (*sample.args, *(-1, False)[len(sample.args) - 2 :])
    if source.dim():
        held = source.take_along_dim(places if keeps else places.unsqueeze(axis), axis)
        assert torch.equal(held if keeps else held.squeeze(axis), values), f"{sample.describe()}: wrong places"
        places = expected[1]
    return values, places


def _close(value: torch.Tensor, wanted: torch.Tensor, what: str) -> None:
    if wanted.layout is not torch.strided:
        value, wanted = value.to_dense(), wanted.to_dense()
    rtol, atol = TOLERANCES.get(wanted.dtype, (0.0, 0.0))
    scale = 1.0
    if atol:
        finite = wanted.abs()[wanted.isfinite()]
        scale = max(1.0, finite.max().item()) if finite.numel() else 1.0
    torch.testing.assert_close(
        value, wanted, rtol=rtol, atol=atol * scale, equal_nan=True, msg=lambda text: f"{what}: {text}"
    )


def _is_rounding(value: torch.Tensor, index: int, expected: Sequence[Any], sample: Sample) -> bool:
    """Whether a result differs from eager's by no more than correct implementations differ from the exact one."""
    if not isinstance(value, torch.Tensor) or not all(isinstance(item, torch.Tensor) for item in expected):
        return False

    def evaluate(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(SEED)
        return list(pytree.tree_leaves(sample.module(*tensors)))

    bound = rounding_bounds(evaluate, sample.tensors, [item.dtype for item in expected])[index]
    return bound is not None and value.layout is torch.strided and is_within(value, *bound)


def _classify(program: torch.export.ExportedProgram, report: Any) -> Outcome:
    refused = [node for node in report.torch_nodes if not node.is_convertible]
    refusals = {node.verdict.code: f"{node.op}: {node.verdict.message}" for node in reversed(refused)}
    if refusals:
        return Outcome(Kind.REFUSED, refusals)
    if not report.nodes:
        return Outcome(Kind.NO_OPERATORS)
    exported = {operator_name(node.target) for node in program.graph.nodes if node.op == "call_function"}
    left = {node.op for node in report.nodes}
    return Outcome(Kind.CONVERTED if left <= exported else Kind.DECOMPOSED)


def summarize(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Returns the outcomes of one operator and type as JSON values: numbers of samples, and messages by code."""
    counts = {kind.value: sum(outcome.kind is kind for outcome in outcomes) for kind in Kind}
    refusals: dict[str, str] = {}
    for outcome in outcomes:
        for code, message in outcome.refusals.items():
            refusals.setdefault(code, message)
    return {"counts": {kind: count for kind, count in counts.items() if count}, "refusals": refusals}


def updated_report(
    earlier: Mapping[str, Any], outcomes: Mapping[str, Mapping[str, Any]], torch_version: str, limit: int | None
) -> dict[str, Any]:
    """Returns a report of operators with those in it that ran anew; one of another limit is begun anew.

    Args:
        earlier: The report before; empty where there is none.
        outcomes: What became of the operators of this run. One of which not all types ran stays as it was.
        torch_version: That of PyTorch in this run. Operators that ran with another one than the report's say so.
        limit: Most samples of an operator and type.
    """
    before: Mapping[str, Any] = earlier.get("operators", {}) if earlier.get("limit") == limit else {}
    ran = {
        name: new
        for name, new in outcomes.items()
        if before.get(name, {"types": {}})["types"].keys() <= new["types"].keys()
    }
    of = torch_version if before.keys() <= ran.keys() else earlier["torch"]
    operators = {name: dict(before[name]) for name in before} | {
        name: {**new, "torch": torch_version} if torch_version != of else dict(new) for name, new in ran.items()
    }
    return {"torch": of, "limit": limit, "operators": dict(sorted(operators.items()))}
