"""Parts of a graph for several compilers, which is not here."""

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

from torch_tensorrt.dynamo.partitioning._hierarchical_partitioner import hierarchical_adjacency_partition

assert hierarchical_adjacency_partition
