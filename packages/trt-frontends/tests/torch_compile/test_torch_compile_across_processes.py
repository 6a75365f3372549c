"""With a directory for engines, a second process that compiles the same model builds none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_builds import record_builds
from fresh_process import run_python

from trt_frontends.backend import torch_tensorrt_backend

MODEL = """
import torch
from torch import nn

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

torch.backends.cudnn.allow_tf32 = False  # as in every test: engines are found again under the same switches
torch.manual_seed(0)
model = Model().eval()
x = torch.linspace(-1, 1, 24).reshape(3, 8)
"""

SECOND_PROCESS = (
    MODEL
    + """
import sys
from trt_frontends import engine_source
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
)


def test_a_second_process_builds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    space: dict[str, Any] = {"__name__": __name__}
    exec(MODEL, space)
    built = record_builds(monkeypatch)
    options = {"min_block_size": 1, "engine_cache_dir": str(tmp_path / "engines")}
    wanted = []
    for dynamic in (False, True):
        torch._dynamo.reset()
        optimized = torch.compile(space["model"], backend=torch_tensorrt_backend, dynamic=dynamic, options=options)
        with torch.no_grad():
            wanted.append(optimized(space["x"]).sum().item())
    assert len(built) >= 4
    done = run_python(SECOND_PROCESS, str(options["engine_cache_dir"]))
    assert done.returncode == 0, done.stderr
    *found, count = map(float, done.stdout.split())
    assert count == 0
    assert found == pytest.approx(wanted, rel=1e-5)
