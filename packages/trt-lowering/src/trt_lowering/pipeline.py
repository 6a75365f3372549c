"""The order of the lowering passes."""

from __future__ import annotations

from torch import fx

from trt_core import CompilationSettings, logger
from trt_lowering.contract import GraphPass, Observer, run_passes
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.graph_form import check_graph_form
from trt_lowering.passes.autocast import Autocast
from trt_lowering.passes.common_subexpressions import MergeCommonSubexpressions
from trt_lowering.passes.convert_float_type import ConvertFloatType
from trt_lowering.passes.decompose import Decompose
from trt_lowering.passes.drop_empty_operands import DropEmptyOperands
from trt_lowering.passes.eliminate_dead_code import EliminateDeadCode
from trt_lowering.passes.fold_constants import FoldConstants
from trt_lowering.passes.remove_identities import RemoveIdentities
from trt_lowering.passes.simplify_sizes import SimplifySizes


def lowering_passes(rules: DecompositionRules, settings: CompilationSettings) -> list[GraphPass]:
    """Returns the passes that follow once the graph is flat and functional.

    Identities go before decomposition, which has less to trace then, and again after it. Types are settled before
    constants are folded, so that weights are cast once, at compile time. Sizes are simplified before equal
    computations are merged, because reshapes of equal tensors become equal only then.
    """
    return [
        RemoveIdentities(settings),
        DropEmptyOperands(settings),
        EliminateDeadCode(),
        Decompose(rules),
        *ConvertFloatType.for_settings(settings, lambda target: not rules.has_converter(target)),
        Autocast(settings),
        RemoveIdentities(settings),
        FoldConstants(settings),
        SimplifySizes(),
        MergeCommonSubexpressions(settings),
        EliminateDeadCode(),
    ]


def finish(
    gm: fx.GraphModule, rules: DecompositionRules, settings: CompilationSettings, observe: Observer | None = None
) -> fx.GraphModule:
    """Runs the passes on a flat functional graph, checks its form, and compiles the module's code.

    Raises:
        LoweringError: A pass broke its contract.
    """
    for result in run_passes(gm, lowering_passes(rules, settings), recompile=False, observe=observe):
        logger.debug("lowering pass %s: %d changes", result.name, result.changes)
    check_graph_form(gm)
    gm.recompile()
    return gm
