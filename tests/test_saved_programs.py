"""Generated programs, saved and run in another process: the same results to the bit, by `load` and by the commands."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fresh_process import run_python
from torch import nn
from torch.utils import _pytree as pytree

import trt_frontends
import trt_runtime
from trt_core import Input, InputError

Values = list[torch.Tensor]


class Parts(nn.Module):
    """What steps take: weights, a constant, and a buffer that calls write to."""

    count: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("table", torch.linspace(-1, 1, 4))
        self.register_buffer("count", torch.zeros(4))


def _count(parts: Parts, x: torch.Tensor) -> torch.Tensor:
    parts.count.add_(x.sum(0))
    return x - parts.count


STEPS: dict[str, Callable[[Parts, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "linear": lambda parts, x, y: parts.linear(x),
    "activation": lambda parts, x, y: torch.relu(x) + torch.tanh(y),
    "constant": lambda parts, x, y: x * parts.table,
    "size": lambda parts, x, y: x * x.shape[0] - y.sum(0) / x.shape[0],
    "sizes in shapes": lambda parts, x, y: x.reshape(x.shape[0] * 2, 2).reshape(x.shape) + y,
    "sort": lambda parts, x, y: torch.sort(x, 0)[0] + torch.sort(y, 1)[0],
    "places": lambda parts, x, y: torch.gather(x, 1, torch.argsort(y, 1)),
    "choice": lambda parts, x, y: torch.where(x > y, x, y * 0.5),
    "running sum": lambda parts, x, y: torch.cumsum(x, 0) * 0.25,
    "split": lambda parts, x, y: torch.cat([y.split(2, 1)[1], x.split(2, 1)[0]], 1),
    "made": lambda parts, x, y: x + torch.arange(x.shape[0], dtype=x.dtype)[:, None] + torch.ones_like(y),
    "integers": lambda parts, x, y: x + (y * 8).to(torch.int64).remainder(3),
    "rows": lambda parts, x, y: torch.index_select(x, 0, torch.argmax(y, 0)).sum(0) + x,
    "softmax": lambda parts, x, y: torch.softmax(x, 1) @ torch.ones(4, 4) + y,
    "state": lambda parts, x, y: _count(parts, x) + y,
}
"""Each of two values, (N, 4), makes another."""

IN_PYTORCH = ("aten.relu", "aten.sort", "aten.add", "aten.cat", "aten.linear", "aten.where", "aten.sum")


class Generated(Parts):
    """Steps, each of values that there are by then, and a nested result.

    Args:
        steps: Names and the places of operands.
    """

    def __init__(self, steps: list[tuple[str, int, int]]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        values = [x, y]
        for name, one, other in self.steps:
            values.append(STEPS[name](self, values[one % len(values)], values[other % len(values)]))
        return {"last": values[-1], "others": (values[2:4], x.shape[0])}


CHECK = """
import sys
from pathlib import Path
import numpy as np
import torch
from torch.utils import _pytree as pytree
import trt_runtime
from trt_runtime.command_line import main

for folder in sorted(path for path in Path(sys.argv[1]).iterdir() if path.is_dir()):
    for at in (0, 1):
        inputs = [torch.from_numpy(value) for value in np.load(folder / f"inputs{at}.npz").values()]
        wanted = list(np.load(folder / f"wanted{at}.npz").values())
        program = trt_runtime.load(folder / "program.trtp")
        found = pytree.tree_leaves(program(*inputs))
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert np.asarray(one).tobytes() == other.tobytes(), (folder, at)
        command = ["run", str(folder / "program.trtp"), "--inputs", str(folder / f"inputs{at}.npz")]
        assert main([*command, "--outputs", str(folder / f"outputs{at}.npz")]) == 0
        written = list(np.load(folder / f"outputs{at}.npz").values())
        tensors = [one.numpy() for one in found if isinstance(one, torch.Tensor)]
        assert [one.tobytes() for one in written[: len(tensors)]] == [one.tobytes() for one in tensors], folder
    assert main(["inspect", str(folder / "program.trtp")]) == 0
"""

PROGRAMS = 2


def _program(source: random.Random) -> tuple[list[tuple[str, int, int]], set[str]]:
    """Steps, and operators that stay in PyTorch."""
    steps = [(source.choice(sorted(STEPS)), source.randrange(8), source.randrange(8)) for _ in range(6)]
    return steps, set(source.sample(IN_PYTORCH, 3))


@pytest.mark.parametrize("seed", [1])
def test_another_process_computes_the_same(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    torch.manual_seed(seed)
    rows = Input(min_shape=(2, 4), opt_shape=(3, 4), max_shape=(6, 4))
    for number in range(PROGRAMS):
        steps, executed = _program(source)
        model = Generated(steps).eval()
        compiled = trt_frontends.compile(model, arg_inputs=(rows, rows), min_block_size=1, torch_executed_ops=executed)
        here = tmp_path / str(number)
        here.mkdir()
        trt_frontends.save(compiled, here / "program.trtp")
        for at, count in enumerate((3, 5)):
            x, y = torch.randn(count, 4), torch.randn(count, 4)
            wanted = pytree.tree_leaves(copy.deepcopy(compiled)(x, y))
            np.savez(here / f"inputs{at}.npz", x=x.numpy(), y=y.numpy())
            np.savez(here / f"wanted{at}.npz", *[np.asarray(value) for value in wanted])
            torch.testing.assert_close(pytree.tree_leaves(Generated(steps).eval()(x, y)), wanted, rtol=1e-4, atol=1e-4)
    done = run_python(CHECK, str(tmp_path))
    assert done.returncode == 0, done.stderr


def test_fixed_sizes_of_millions_are_saved_as_they_are(tmp_path: Path) -> None:
    x = torch.ones((1 << 20) + 3, dtype=torch.int8)
    compiled = trt_frontends.compile(nn.ReLU(), arg_inputs=(x,), min_block_size=1)
    trt_runtime.save(compiled, tmp_path / "model.trtp")
    program = trt_runtime.load(tmp_path / "model.trtp")
    assert torch.equal(program(x), x)
    with pytest.raises(InputError):
        program(x[:-1])
