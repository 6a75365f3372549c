"""Graphs before and after lowering passes are written to a folder."""

from __future__ import annotations

import torch
import torch_tensorrt


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(16, 8)

    def forward(self, x):
        return torch.relu(self.linear(x)) + 1


model = Model().eval().cuda()
x = torch.randn(4, 16).cuda()

import pathlib
import tempfile
import warnings

warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as folder:
    with torch_tensorrt.dynamo.Debugger(
        log_level="debug",
        logging_dir=folder,
        engine_builder_monitor=False,
        capture_fx_graph_after=["complex_graph_detection"],
        capture_fx_graph_before=["remove_detach"],
    ):
        compiled = torch_tensorrt.dynamo.compile(
            torch.export.export(model, (x,)),
            (x,),
            min_block_size=0,
            torch_executed_ops={},
            immutable_weights=False,
            reuse_cached_engines=False,
        )
        torch.testing.assert_close(compiled(x), model(x))
    assert any(pathlib.Path(folder).rglob("*"))
