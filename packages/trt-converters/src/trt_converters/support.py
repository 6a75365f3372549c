"""Decides which nodes the converters can handle.

A check that fails, whoever wrote it, refuses its own candidate and changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import fx

from trt_converters.call import BindingError, Call
from trt_converters.checks import general_checks
from trt_converters.context import fraction_of
from trt_converters.converter import Check, Converter
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_core import SUPPORTED, CompilationSettings, Reason, Verdict, operator_name, provider_version, total_verdict
from trt_core.cache_updates import replaced_state, written_cache
from trt_core.held_arguments import held_to_signature
from trt_core.internals import HigherOrderOperator
from trt_core.sizes.expressions import depends_on_data, extent_of
from trt_core.sizes.ranges import ShapeRanges
from trt_core.sizes.steps import find_steps, no_line, rounded_parts
from trt_core.verdicts import LEFT_COMPLEX

_PACKING_LIBRARIES: Final = frozenset({"fbgemm", "mkldnn", "mslk", "onednn", "quantized", "torchao"})
"""Namespaces of operators on quantized values that are packed for the library's kernels."""

_UPDATES_SINCE: Final = (10, 15)
"""Version of TensorRT that has layers for updates of caches in place."""


class ConverterSupport:
    """The support protocol of the partitioner, answered from a converter registry.

    Args:
        settings: What the graph is compiled with.
        registry: Where converters are looked up.
        excluded: Verdicts of nodes (by name) that were found not to convert after all.
        ranges: Ranges of the symbolic dimensions, which say whether layers compute what is rounded from sizes; where
            there are none, they are taken to.
    """

    def __init__(
        self,
        settings: CompilationSettings,
        registry: ConverterRegistry = DYNAMO_CONVERTERS,
        excluded: Mapping[str, Verdict] | None = None,
        ranges: ShapeRanges | None = None,
    ) -> None:
        self.settings = settings
        self.registry = registry
        self.excluded = dict(excluded or {})
        self._version = provider_version()
        self._spans = None if ranges is None else ranges.spans()
        self._lines: dict[str, bool] = {}

    def verdict(self, node: fx.Node) -> Verdict:
        """Returns whether the node can be converted. Never raises: any doubt is a refusal."""
        known = self.excluded.get(node.name)
        if known is not None:
            return known
        return total_verdict(self._decide, node)

    def find(self, node: fx.Node) -> Converter | None:
        """Returns the candidate that converts the node, None when every one refuses."""
        call = Call(node, self.settings)
        for candidate in self.registry.candidates(node.target):
            if self._refusal(call, candidate) is None:
                return candidate
        return None

    def origin(self, node: fx.Node) -> str:
        """Returns the package of the converter that takes the node, where it is not one of ours; else an empty string.

        Never raises.
        """
        try:
            if all(candidate.is_builtin for candidate in self.registry.candidates(node.target)):
                return ""
            found = self.find(node)
        except Exception:
            return ""
        return "" if found is None or found.is_builtin else found.origin

    def _decide(self, node: fx.Node) -> Verdict:
        if node.op != "call_function":
            return Verdict.refuse(Reason.UNSUPPORTED_VALUE, f"{node.op} nodes run in PyTorch")
        if is_symbolic_number(node):
            return self._decide_number(node.meta["val"]) if _takes_fraction(node) else SUPPORTED
        if LEFT_COMPLEX in node.meta:
            why = node.meta[LEFT_COMPLEX]
            return Verdict.refuse(Reason.UNSUPPORTED_DTYPE, f"TensorRT has no complex numbers, and here is {why}")
        if operator_name(node.target) == "_operator.getitem":
            return self._decide_getitem(node)
        written = written_cache(node) or replaced_state(node)
        if written is not None:
            return self._decide_update(written)
        candidates = self.registry.candidates(node.target)
        if not candidates:
            return self._missing(node)
        call = Call(node, self.settings)
        refusals = []
        for candidate in candidates:
            refusal = self._refusal(call, candidate)
            if refusal is None:
                return SUPPORTED
            refusals.append(refusal)
        return refusals[0]

    def _decide_number(self, value: Any) -> Verdict:
        """Decides about a size that is rounded: layers compute it where it is a line of integers."""
        if self._spans is None or not isinstance(value, torch.SymInt):
            return SUPPORTED
        for part in rounded_parts(extent_of(value)):
            key = str(part)
            if key not in self._lines:
                self._lines[key] = find_steps(part, self._spans) is not None
            if not self._lines[key]:
                return Verdict.refuse(Reason.NOT_CONSTANT, no_line(part))
        return SUPPORTED

    def _decide_getitem(self, node: fx.Node) -> Verdict:
        source = node.args[0]
        if isinstance(source, fx.Node) and source.op == "call_function":
            found = self.verdict(source)
            if found.supported:
                return SUPPORTED
            return Verdict.refuse(found.reason or Reason.UNSUPPORTED_VALUE, f"{source.name} runs in PyTorch")
        return Verdict.refuse(Reason.UNSUPPORTED_VALUE, "it takes an item of a value that no engine makes")

    def _decide_update(self, written: fx.Node) -> Verdict:
        """Decides about the write of what a node computes to a cache."""
        if self._version < _UPDATES_SINCE:
            return Verdict.refuse(Reason.PROVIDER_VERSION, "updates of caches in place need TensorRT 10.15 or newer")
        found = self.verdict(written)
        if found.supported:
            return SUPPORTED
        return Verdict.refuse(found.reason or Reason.MUTATION, f"{written.name}, which it writes, runs in PyTorch")

    def _missing(self, node: fx.Node) -> Verdict:
        if self.registry.is_disabled(node.target):
            return Verdict.refuse(Reason.DISABLED_CONVERTER)
        if isinstance(node.target, HigherOrderOperator):
            return Verdict.refuse(Reason.HIGHER_ORDER)
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return Verdict.refuse(Reason.MUTATION, f"{node.target} writes to its argument")
        if schema is not None and schema.name.partition("::")[0] in _PACKING_LIBRARIES:
            return Verdict.refuse(
                Reason.NO_LOW_PRECISION, f"{operator_name(node.target)} takes operands of its library's own form"
            )
        return Verdict.refuse(Reason.NO_CONVERTER, f"no converter for {operator_name(node.target)}")

    def _refusal(self, call: Call, candidate: Converter) -> Verdict | None:
        first, last = candidate.versions
        if self._version < first or (last is not None and self._version >= last):
            return Verdict.refuse(
                Reason.PROVIDER_VERSION,
                f"needs TensorRT {first[0]}.{first[1]}" + (f" to before {last[0]}.{last[1]}" if last else " or newer"),
            )
        try:
            call.arguments  # noqa: B018 - binding is the first check
        except BindingError as error:
            return Verdict.refuse(Reason.UNBOUND_ARGUMENTS, str(error))
        refusal = general_checks(call, candidate)
        if refusal is not None:
            return refusal
        for check in candidate.checks:
            refusal = ask_check(check, call, candidate)
            if refusal is not None:
                return refusal
        return None


def is_symbolic_number(node: fx.Node) -> bool:
    """Whether a node computes a number from sizes: known from the shapes, it needs no layer before it is an operand."""
    value = node.meta.get("val")
    if isinstance(value, bool):
        return False
    if isinstance(value, torch.SymInt):
        return not depends_on_data(value) and (extent_of(value) is not None or not _takes_fraction(node))
    if isinstance(value, torch.SymFloat):
        return fraction_of(value) is not None
    return isinstance(value, (int, float))


def _takes_fraction(node: fx.Node) -> bool:
    """Whether a size is rounded: unlike other sizes without an extent, it is no dimension of a tensor."""
    return any(isinstance(operand.meta.get("val"), torch.SymFloat) for operand in node.all_input_nodes)


@held_to_signature
def preserve_predicate(
    settings: CompilationSettings, registry: ConverterRegistry = DYNAMO_CONVERTERS
) -> Callable[[Any], bool]:
    """Returns the question lowering asks: must this operator be kept whole because it has a converter?"""
    forced = settings.torch_executed_ops

    def preserve(target: Any) -> bool:
        name = operator_name(target)
        # an operator that the user keeps in PyTorch must survive lowering under its own name
        return target in registry or name in forced or name.rpartition(".")[0] in forced

    return preserve


def ask_check(check: Check, call: Call, candidate: Converter) -> Verdict | None:
    """Returns what a check of a candidate says, None when it has nothing against the call.

    A check that raises, or that returns something else, refuses its candidate; others may take the call. Checks of
    other packages get arguments of their own, and the node is as before when they have returned.
    """
    guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if not candidate.is_builtin:
        call, guard = Call(call.node, call.settings), _unchanged(call.node)
    try:
        with guard:
            found = check(call)
    except (Exception, SystemExit) as error:
        return _failed(candidate, f"{type(error).__name__}: {error}")
    if found is None or (isinstance(found, Verdict) and found.supported):
        return None
    return found if isinstance(found, Verdict) else _failed(candidate, f"it returned {found!r}, not a Verdict")


def _failed(candidate: Converter, why: str) -> Verdict:
    return Verdict.refuse(Reason.CHECK_FAILED, f"a check of {candidate.described} failed: {why}")


@contextlib.contextmanager
def _unchanged(node: fx.Node) -> Iterator[None]:
    """Undoes what is done to a node meanwhile, and says that it was done.

    Raises:
        RuntimeError: The node was changed.
    """
    args, kwargs, target, meta = node.args, node.kwargs, node.target, dict(node.meta)
    try:
        yield
    finally:
        is_changed = node.args != args or node.kwargs != kwargs or node.target is not target
        if is_changed:
            node.args, node.kwargs, node.target = args, kwargs, target
        if node.meta.keys() != meta.keys() or any(node.meta[key] is not value for key, value in meta.items()):
            node.meta.clear()
            node.meta.update(meta)
            is_changed = True
    if is_changed:
        raise RuntimeError("it changed the node that it was asked about")
