"""Host time of one call: PyTorch, an engine, the modules around it, and `torch.compile`, row by row in one run.

Every row computes `relu` of a small tensor, so that what is measured is the way there.
"""

from __future__ import annotations

import functools
import gc
import tempfile
import timeit
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tools.bench.report import Row

_SHAPE = (2, 8)
_OTHER_SHAPE = (4, 8)
_RANGE = ((1, 8), (4, 8), (8, 8))

Action = Callable[[], Any]


def rows(calls: int = 200, repeats: int = 300) -> list[Row]:
    """Measures every row in turn, many times over, and keeps the shortest of each.

    Args:
        calls: Calls per measurement; few, so that one of many measurements meets a quiet moment.
        repeats: How often each row is measured.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.inference_mode(), tempfile.TemporaryDirectory() as folder:
        actions = dict(_actions(torch.device(device), Path(folder)))
        for action in actions.values():
            for _ in range(20):
                action()
        gc.collect()
        gc.disable()  # a collection in the middle of a measurement is nobody's cost
        try:
            best = dict.fromkeys(actions, float("inf"))
            for _ in range(repeats):  # row by row each time, so that a busy moment does not hit one row alone
                for name, action in actions.items():
                    best[name] = min(best[name], timeit.timeit(action, number=calls) / calls)
        finally:
            gc.enable()
    peer = best["execute_async_v3"]
    return [
        Row(name, seconds * 1e6, peer * 1e6, "execute_async_v3", unit="us", note=f"{(seconds - peer) * 1e6:+.1f} us")
        for name, seconds in best.items()
    ]


def _actions(device: torch.device, folder: Path) -> Iterator[tuple[str, Action]]:
    x = torch.randn(_SHAPE, device=device)
    relu = nn.ReLU()
    yield "eager relu", functools.partial(torch.relu, x)
    yield "eager nn.ReLU", functools.partial(relu, x)
    yield "Python operator", functools.partial(_python_operator(), x)
    static, dynamic = _compile(relu, x), _compile(relu, None)
    yield "execute_async_v3", _enqueue(_engine(static), x)
    yield "module", functools.partial(_engine(static), x)
    yield "module, dynamic shapes", functools.partial(_engine(dynamic), x)
    yield "module, alternating shapes", _alternating(_engine(dynamic), device)
    yield "compiled program", functools.partial(static, x)
    yield "compiled program, dynamic shapes", functools.partial(dynamic, x)
    yield "compiled program, alternating shapes", _alternating(dynamic, device)
    yield "loaded program", functools.partial(_loaded(static, folder), x)
    inductor = torch.compile(relu)
    yield "Inductor", functools.partial(inductor, x)
    yield "Inductor, alternating shapes", _alternating(torch.compile(nn.ReLU(), dynamic=True), device)


def _compile(module: nn.Module, example: torch.Tensor | None) -> nn.Module:
    import trt_frontends

    low, best, high = _RANGE
    given = trt_frontends.Input(min_shape=low, opt_shape=best, max_shape=high) if example is None else example
    return trt_frontends.compile(module, arg_inputs=(given,), min_block_size=1)


def _engine(compiled: nn.Module) -> nn.Module:
    from trt_runtime import TRTModule

    return next(module for module in compiled.modules() if isinstance(module, TRTModule))


def _enqueue(module: Any, x: torch.Tensor) -> Action:
    """The engine alone: a context whose addresses are set once."""
    from trt_core import provider_module

    trt = provider_module()
    runtime = trt.Runtime(trt.Logger())
    with trt.device(x.device) if hasattr(trt, "device") else torch.cuda.device(x.device):
        engine = runtime.deserialize_cuda_engine(memoryview(module.plan.numpy()))
    context = engine.create_execution_context()
    (taken,), (given,) = module.header.inputs, module.header.outputs
    y = torch.empty_like(x)
    context.set_tensor_address(taken.name, x.data_ptr())
    context.set_tensor_address(given.name, y.data_ptr())
    stream = torch.cuda.current_stream().cuda_stream if x.is_cuda else 0

    def enqueue(kept: Any = (runtime, engine, y)) -> None:
        context.execute_async_v3(stream)

    return enqueue


def _alternating(compiled: Callable[..., Any], device: torch.device) -> Action:
    inputs = cycle([torch.randn(_SHAPE, device=device), torch.randn(_OTHER_SHAPE, device=device)])
    return lambda: compiled(next(inputs))


def _loaded(compiled: nn.Module, folder: Path) -> nn.Module:
    import trt_frontends

    path = folder / "relu.trtp"
    trt_frontends.save(compiled, path)
    return trt_frontends.load(path)


def _python_operator() -> Callable[[torch.Tensor], torch.Tensor]:
    """What the dispatcher asks for an operator whose implementation is Python."""
    library = torch.library.Library("call_overhead", "FRAGMENT")
    library.define("relu(Tensor x) -> Tensor")
    for backend in ("CPU", "CUDA"):
        library.impl("relu", lambda x: x.relu(), backend)
    found: Callable[[torch.Tensor], torch.Tensor] = torch.ops.call_overhead.relu.default
    _KEPT.append(library)
    return found


_KEPT: list[torch.library.Library] = []
