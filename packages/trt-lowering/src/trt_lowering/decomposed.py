"""A graph half way through lowering: its operators convert, and its types are still those of the model.

Here is decided what computes in which type, since that may depend on what flows through the model, which lowering does
not know: whoever does runs `DecomposedGraph.graph`, and gives `finish` what came of it.
"""

from __future__ import annotations

import copy

from torch import fx

from trt_core import CompilationSettings, logger
from trt_core.sizes.ranges import ShapeRanges
from trt_lowering.contract import GraphPass, Observer, run_passes
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.graph_form import check_graph_form
from trt_lowering.node_metadata import settle_extents
from trt_lowering.pipeline import decomposing_passes, finishing_passes, type_passes
from trt_lowering.precision_rules import PrecisionRules
from trt_lowering.tracing import traces


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
    ) -> None:
        """Decomposes a flat functional graph in place.

        Raises:
            LoweringError: A pass broke its contract.
        """
        self.graph = gm
        self.settings = settings
        self._rules = rules
        self._observe = observe
        settle_extents(gm.graph)
        precision = PrecisionRules.of(settings)
        matched = precision.matched_exclusions(gm)
        self._run(decomposing_passes(rules, settings, precision))
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
        self._run(finishing_passes(self.settings))
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
