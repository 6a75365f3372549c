"""The order of the lowering passes, and a graph half way through: its operators convert, its types are the model's.

Half way is decided what computes in which type, since that may depend on what flows through the model, which lowering
does not know: whoever does runs `DecomposedGraph.graph`, and gives `finish` what came of it.
"""

from __future__ import annotations

import copy
import sys

from torch import fx

from trt_core import CompilationSettings, logger
from trt_core.sizes.ranges import ShapeRanges
from trt_lowering.contract import GraphPass, Observer, check_graph_form, run_passes
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.extension import extension_passes
from trt_lowering.node_metadata import settle_extents
from trt_lowering.passes.choose_by_masks import ChooseByMasks
from trt_lowering.passes.cleanup import (
    DropEmptyOperands,
    EliminateDeadCode,
    MergeCommonSubexpressions,
    RemoveIdentities,
)
from trt_lowering.passes.convert_float_type import Autocast, ConvertFloatType
from trt_lowering.passes.decompose import Decompose, LowerBodies
from trt_lowering.passes.dequantization import MergeDequantization, RecognizeDequantization
from trt_lowering.passes.device_moves import MakeOnDevice
from trt_lowering.passes.known_values import FoldConstants, SimplifySizes, StrideOverBases
from trt_lowering.passes.lay_out_results import LayOutResults, captured_results, correct_layouts
from trt_lowering.passes.normalize_quantization import NormalizeQuantization
from trt_lowering.passes.put_at_tensors import PutAtTensors
from trt_lowering.passes.recognize_stored_weights import RecognizeStoredWeights
from trt_lowering.passes.split_complex import SplitComplex
from trt_lowering.precision_rules import (
    ExcludeFromReduction,
    ExcludePositions,
    ExcludeState,
    PrecisionRules,
    reduced_type,
)
from trt_lowering.tracing import traces


def decomposing_passes(
    rules: DecompositionRules, settings: CompilationSettings, precision: PrecisionRules, *, keep_checks: bool = False
) -> list[GraphPass]:
    """Returns the passes that bring a flat functional graph to operators that convert.

    Identities go before decomposition, which has less to trace then. What is excluded from reduced precision by name,
    and what carries a state on, is marked while its operators are still those of the model. Quantization is written in
    one form before it could be decomposed; its scales, and weights that are quantized, are computed before types
    change. Complex tensors are split once transforms are taken apart, into operators that need no decomposition. What
    branches and loops run goes the same way.
    """
    return [
        RemoveIdentities(settings),
        MakeOnDevice(settings),
        DropEmptyOperands(settings),
        PutAtTensors(settings),
        EliminateDeadCode(),
        ExcludeState(),
        *([ExcludeFromReduction(precision.by_name)] if precision.patterns or precision.operators else []),
        NormalizeQuantization(settings),
        RecognizeDequantization(settings),
        RecognizeStoredWeights(settings),
        Decompose(rules),
        SplitComplex(settings),
        FoldConstants(settings, only_quantized=True, small_bytes=sys.maxsize),
        LowerBodies(
            lambda: decomposing_passes(rules, settings, precision, keep_checks=keep_checks), keep_checks=keep_checks
        ),
    ]


def type_passes(
    rules: DecompositionRules, settings: CompilationSettings, precision: PrecisionRules, ranges: ShapeRanges
) -> list[GraphPass]:
    """Returns the passes that settle the types that are computed in."""
    passes: list[GraphPass] = []
    if reduced_type(settings) is not None:
        passes.append(ExcludePositions())
        passes.append(ExcludeFromReduction(lambda node: precision.by_name(node) or precision.by_value(node, ranges)))
    passes += ConvertFloatType.for_settings(settings, lambda target: not rules.has_converter(target))
    return [*passes, Autocast(settings)]


def finishing_passes(settings: CompilationSettings) -> list[GraphPass]:
    """Returns the passes that follow once types are settled, so that weights are cast once, at compile time.

    Passes of others come first: what they leave is folded, merged and cleared away like all else. Sizes are simplified
    once strides are taken over the memory that views lie in, which asks where those start, and before equal
    computations are merged, because reshapes of equal tensors become equal only then, and masks that read and write.
    """
    return [
        *extension_passes(settings),
        MergeDequantization(settings),
        RemoveIdentities(settings),
        FoldConstants(settings),
        StrideOverBases(),
        SimplifySizes(),
        MergeCommonSubexpressions(settings),
        ChooseByMasks(settings),
        EliminateDeadCode(),
    ]


class DecomposedGraph:
    """A graph that `begin_lowering` made.

    Attributes:
        graph: The graph: flat and functional, each operator one that converts or that runs in PyTorch. Other nodes are
            added by what follows, but those that are left keep their names, so results are stated by name.
        settings: Compilation settings.
        unmatched_exclusions: Operators and patterns among the exclusions of the settings that no node fits.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        rules: DecompositionRules,
        settings: CompilationSettings,
        observe: Observer | None = None,
        *,
        keep_checks: bool = False,
    ) -> None:
        """Decomposes a flat functional graph in place.

        Args:
            gm: The graph.
            rules: Which operators stay whole.
            settings: Compilation settings.
            observe: Sees the graph after each pass.
            keep_checks: Whether branches and loops check the values that the model asserts.

        Raises:
            LoweringError: A pass broke its contract.
        """
        self.graph = gm
        self.settings = settings
        self._rules = rules
        self._observe = observe
        settle_extents(gm.graph)
        correct_layouts(gm.graph)
        self._captured = captured_results(gm.graph)
        precision = PrecisionRules.of(settings)
        matched = precision.matched_exclusions(gm)
        self._run(decomposing_passes(rules, settings, precision, keep_checks=keep_checks))
        matched |= precision.matched_exclusions(gm)
        self.unmatched_exclusions = frozenset({*precision.operators, *precision.patterns}) - matched

    def copy(self) -> DecomposedGraph:
        """Returns a twin to lower in another way; tensors are shared, and no observer sees it."""
        twin = copy.copy(self)
        twin.graph = fx.GraphModule(self.graph, _copy(self.graph.graph), class_name=self.graph._get_name())
        twin.graph.meta = dict(self.graph.meta)
        twin._observe = None
        return twin

    @traces("types cannot be settled")
    def settle_types(self, precision: PrecisionRules | None = None) -> fx.GraphModule:
        """Changes the types that are computed in, in place, as the settings and the rules say.

        Args:
            precision: What stays in float32; by default what the settings name.

        Raises:
            LoweringError: A pass broke its contract.
        """
        ranges = ShapeRanges.from_placeholders(self.graph)
        chosen = precision or PrecisionRules.of(self.settings)
        self._run(type_passes(self._rules, self.settings, chosen, ranges))
        return self.graph

    @traces("the decomposed graph cannot be lowered")
    def finish(self, precision: PrecisionRules | None = None) -> fx.GraphModule:
        """Lowers the rest of the way, in place; nothing is left to be done with this object.

        Args:
            precision: What stays in float32; by default what the settings name.

        Returns:
            A module in the form that `check_graph_form` describes.

        Raises:
            LoweringError: A pass broke its contract.
        """
        self.settle_types(precision)
        self._run([*finishing_passes(self.settings), LayOutResults(self._captured)])
        check_graph_form(self.graph)
        self.graph.recompile()
        return self.graph

    def with_settings(self, settings: CompilationSettings) -> DecomposedGraph:
        """Returns a twin that computes in the types that other settings ask for; they may differ in that only."""
        twin = self.copy()
        twin.settings = settings
        return twin

    def _run(self, passes: list[GraphPass]) -> None:
        for result in run_passes(self.graph, passes, recompile=False, observe=self._observe):
            logger.debug("lowering pass %s: %d changes", result.name, result.changes)


def _copy(graph: fx.Graph) -> fx.Graph:
    """A copy that is called like the original, with nodes of the same names; a deep copy renames some."""
    twin = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    twin.output(twin.graph_copy(graph, copies))
    twin.set_codegen(graph._codegen)
    for original, copied in zip(graph.nodes, twin.nodes, strict=True):
        copied.name, copied.meta = original.name, copy.copy(original.meta)
    return twin
