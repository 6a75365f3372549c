"""Parts of a graph for several compilers."""

from __future__ import annotations

import torch


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


model = Model().eval().cuda()
x = torch.randn(4, 16).cuda()

import torch_tensorrt
from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS as CONVERTERS
from torch_tensorrt.dynamo.partitioning._hierarchical_partitioner import hierarchical_adjacency_partition

partitioned_model, op_support = hierarchical_adjacency_partition(
    torch.export.export(model, (x,)).module(),
    verbose=True,
    min_block_size=1,
    backend_priority=["inductor", "tensorrt"],
    backend_support_map={"inductor": {"torch.ops.aten.linear.default"}, "tensorrt": CONVERTERS.keys()},
    torch_executed_ops={"torch.ops.aten.add.Tensor"},
    require_full_compilation=False,
    skip_fusion=True,
)
torch.testing.assert_close(partitioned_model(x), model(x))

torch.set_grad_enabled(False)
value = x
for name, part in list(partitioned_model.named_children()):
    following = part(value)
    if "_run_on_acc_inductor" in name:
        setattr(partitioned_model, name, torch.compile(part, backend="aot_eager"))
    elif "_run_on_acc_tensorrt" in name:
        engine = torch_tensorrt.dynamo.compile(part, arg_inputs=[value], min_block_size=1)
        setattr(partitioned_model, name, engine)
    value = following
names = [str(node.target) for node in partitioned_model.graph.nodes if node.op == "call_module"]
assert names == ["_run_on_acc_inductor_0", "_run_on_acc_tensorrt_1", "_run_on_gpu_2"], names
torch.testing.assert_close(partitioned_model(x), model(x))
torch.set_grad_enabled(True)
