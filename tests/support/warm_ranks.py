"""Imported once by the process that all ranks are forked from: what compiling imports lazily is there then."""

from __future__ import annotations

import contextlib
import sys

import torch
import torch.distributed as dist
from rank_programs import parallel_perceptron
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import trt_frontends
from trt_core import Input

torch.set_num_threads(1)
for unused in ("sklearn", "scipy", "torchao"):  # half the time of importing transformers
    sys.modules.setdefault(unused, None)  # type: ignore[arg-type]
with contextlib.suppress(ImportError):
    from transformers import AutoModelForCausalLM, LlamaForCausalLM  # noqa: F401
# three ranks, as no test has in a mesh: PyTorch remembers the mesh of what it has found out about an operator
dist.init_process_group("fake", rank=0, world_size=3, store=FakeStore())
model = parallel_perceptron("sequence", 33, init_device_mesh("cpu", (3,)))
trt_frontends.compile(
    model,
    arg_inputs=(Input(min_shape=(1, 3, 16), opt_shape=(2, 3, 16), max_shape=(4, 3, 16)),),
    min_block_size=1,
)
with torch.no_grad():
    torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})(torch.ones(2, 3, 16))
torch._dynamo.reset()
dist.destroy_process_group()
