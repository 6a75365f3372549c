"""A lowering pass of one's own, and the steps before a compilation by themselves."""

from __future__ import annotations

import torch
import torch_tensorrt
from torch_tensorrt.dynamo import CompilationSettings
from torch_tensorrt.dynamo.lowering import get_decompositions, post_lowering, pre_export_lowering
from torch_tensorrt.dynamo.lowering.passes._aten_lowering_pass import _aten_lowering_pass
from torch_tensorrt.dynamo.lowering.passes.pass_utils import clean_up_graph_after_modifications

seen = []


@_aten_lowering_pass
def tanh_for_relu(gm: torch.fx.GraphModule, settings: CompilationSettings) -> torch.fx.GraphModule:
    seen.append(settings.min_block_size)
    for node in list(gm.graph.nodes):
        if node.target is torch.ops.aten.relu.default:
            with gm.graph.inserting_after(node):
                bent = gm.graph.call_function(torch.ops.aten.tanh.default, args=node.args)
            node.replace_all_uses_with(bent)
    return clean_up_graph_after_modifications(gm)


model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()).eval().cuda()
x = torch.randn(2, 8).cuda()
expected = torch.tanh(model[0](x))
compiled = torch_tensorrt.compile(model, ir="dynamo", inputs=[x], min_block_size=1)
torch.testing.assert_close(compiled(x), expected)
assert seen == [1]

settings = CompilationSettings(min_block_size=2)
exp_program = pre_export_lowering(torch.export.export(model, (x,)), settings)
gm = exp_program.run_decompositions(get_decompositions(settings.enable_experimental_decompositions)).module()
torch.testing.assert_close(post_lowering(gm, settings)(x), expected)

from torch_tensorrt.dynamo.lowering.passes import dump_lowering_passes, remove_lowering_pass

assert "tanh_for_relu" in dump_lowering_passes()
remove_lowering_pass(-1)
assert "tanh_for_relu" not in dump_lowering_passes()
