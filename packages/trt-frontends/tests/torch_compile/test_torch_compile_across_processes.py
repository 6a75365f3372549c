"""With a directory for engines, a second process that compiles the same model builds none."""

from __future__ import annotations

from pathlib import Path

import pytest
from fresh_process import run_python

PROCESS = """
import sys

import torch
from torch import nn

from trt_frontends import engine_source

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        x = self.norm(self.first(x)).relu()
        torch._dynamo.graph_break()
        self.calls.add_(1)
        return self.second(x) + x.mean() + self.calls

torch.manual_seed(0)
model = Model().eval()
x = torch.linspace(-1, 1, 24).reshape(3, 8)

built = []
build = engine_source.build_block
engine_source.build_block = lambda *args, **kwargs: built.append(1) or build(*args, **kwargs)
options = {"min_block_size": 1, "engine_cache_dir": sys.argv[1]}
for dynamic in (False, True):
    torch._dynamo.reset()
    optimized = torch.compile(model, backend="torch_tensorrt", dynamic=dynamic, options=options)
    with torch.no_grad():
        print(optimized(x).sum().item())
print(len(built))
"""


@pytest.mark.slow
def test_a_second_process_builds_nothing(tmp_path: Path) -> None:
    runs = [run_python(PROCESS, str(tmp_path / "engines")) for _ in range(2)]
    assert [run.returncode for run in runs] == [0, 0], [run.stderr for run in runs]
    (*wanted, built), (*found, built_again) = (list(map(float, run.stdout.split())) for run in runs)
    assert built >= 4
    assert built_again == 0
    assert found == pytest.approx(wanted, rel=1e-5)
