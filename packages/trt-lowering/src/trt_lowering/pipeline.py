"""The order of the lowering passes."""

from __future__ import annotations

import sys

from trt_core import CompilationSettings
from trt_core.sizes.ranges import ShapeRanges
from trt_lowering.contract import GraphPass
from trt_lowering.decomposition_table import DecompositionRules
from trt_lowering.passes.autocast import Autocast
from trt_lowering.passes.common_subexpressions import MergeCommonSubexpressions
from trt_lowering.passes.convert_float_type import ConvertFloatType
from trt_lowering.passes.decompose import Decompose
from trt_lowering.passes.drop_empty_operands import DropEmptyOperands
from trt_lowering.passes.eliminate_dead_code import EliminateDeadCode
from trt_lowering.passes.exclude_from_reduction import ExcludeFromReduction
from trt_lowering.passes.exclude_positions import ExcludePositions
from trt_lowering.passes.exclude_state import ExcludeState
from trt_lowering.passes.fold_constants import FoldConstants
from trt_lowering.passes.lower_bodies import LowerBodies
from trt_lowering.passes.merge_dequantization import MergeDequantization
from trt_lowering.passes.normalize_quantization import NormalizeQuantization
from trt_lowering.passes.recognize_dequantization import RecognizeDequantization
from trt_lowering.passes.recognize_stored_weights import RecognizeStoredWeights
from trt_lowering.passes.remove_identities import RemoveIdentities
from trt_lowering.passes.simplify_sizes import SimplifySizes
from trt_lowering.passes.split_complex import SplitComplex
from trt_lowering.passes.stride_over_bases import StrideOverBases
from trt_lowering.precision_rules import PrecisionRules, reduced_type


def decomposing_passes(
    rules: DecompositionRules, settings: CompilationSettings, precision: PrecisionRules
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
        DropEmptyOperands(settings),
        EliminateDeadCode(),
        ExcludeState(),
        *([ExcludeFromReduction(precision.by_name)] if precision.patterns or precision.operators else []),
        NormalizeQuantization(settings),
        RecognizeDequantization(settings),
        RecognizeStoredWeights(settings),
        Decompose(rules),
        SplitComplex(settings),
        FoldConstants(settings, only_quantized=True, small_bytes=sys.maxsize),
        LowerBodies(lambda: decomposing_passes(rules, settings, precision)),
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

    Sizes are simplified once strides are taken over the memory that views lie in, which asks where those start, and
    before equal computations are merged, because reshapes of equal tensors become equal only then.
    """
    return [
        MergeDequantization(settings),
        RemoveIdentities(settings),
        FoldConstants(settings),
        StrideOverBases(),
        SimplifySizes(),
        MergeCommonSubexpressions(settings),
        EliminateDeadCode(),
    ]
