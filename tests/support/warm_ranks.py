"""Imported once by the process that all ranks are forked from: what compiling imports lazily is there then."""

from __future__ import annotations

import torch
import torch.distributed.tensor.parallel
from torch import nn

import trt_frontends
from trt_core import Input

torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
trt_frontends.compile(
    model,
    arg_inputs=(Input(min_shape=(1, 4), opt_shape=(2, 4), max_shape=(4, 4)),),
    min_block_size=1,
)
with torch.no_grad():
    torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})(torch.ones(2, 4))
torch._dynamo.reset()
