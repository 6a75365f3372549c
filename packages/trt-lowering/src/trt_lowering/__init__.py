"""Lowering: from what export captured to a flat, functional graph whose operators convert.

`lower` is the door. Importing this package costs no more than importing torch.
"""

from __future__ import annotations

from trt_lowering.contract import GraphPass, PassResult, check_graph_form, run_passes
from trt_lowering.decomposition_table import declare_results
from trt_lowering.expansion import sizes_left_open
from trt_lowering.export import export_module
from trt_lowering.extension import InstalledPass, installed_passes
from trt_lowering.lower import begin_lowering, begin_lowering_graph, decompose_program, lower, lower_graph
from trt_lowering.pass_order import DecomposedGraph
from trt_lowering.precision_rules import PrecisionRules
from trt_lowering.tracing import tracing_lock
from trt_lowering.whole_operators import keep_recurrent_layers, keep_whole

__all__ = [
    "DecomposedGraph", "GraphPass", "InstalledPass", "PassResult", "PrecisionRules", "begin_lowering",
    "begin_lowering_graph", "check_graph_form", "declare_results", "decompose_program", "export_module",
    "installed_passes", "keep_recurrent_layers", "keep_whole", "lower", "lower_graph", "run_passes",
    "sizes_left_open", "tracing_lock",
]  # fmt: skip
