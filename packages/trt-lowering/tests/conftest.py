from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from trt_core import CompilationSettings, Device
from trt_lowering import check_graph_form, export_module, lower
from trt_lowering.lower import begin_lowering

CONVERTIBLE = frozenset(
    [
        "abs",
        "adaptive_avg_pool2d",
        "add",
        "addmm",
        "amax",
        "arange",
        "batch_norm",
        "bmm",
        "cat",
        "chunk",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "conv1d",
        "conv2d",
        "convolution",
        "cos",
        "cumsum",
        "div",
        "einsum",
        "embedding",
        "eq",
        "exp",
        "expand",
        "flatten",
        "full",
        "full_like",
        "gather",
        "ge",
        "gelu",
        "gt",
        "hardtanh",
        "index",
        "layer_norm",
        "le",
        "linear",
        "log",
        "logical_and",
        "lt",
        "masked_fill",
        "matmul",
        "max_pool2d",
        "mean",
        "minimum",
        "mm",
        "mul",
        "ne",
        "neg",
        "permute",
        "pow",
        "relu",
        "reshape",
        "roll",
        "rsqrt",
        "scaled_dot_product_attention",
        "select",
        "sigmoid",
        "silu",
        "sin",
        "slice",
        "softmax",
        "split",
        "split_with_sizes",
        "sqrt",
        "squeeze",
        "sub",
        "sum",
        "t",
        "tanh",
        "to",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
        "where",
        "_to_copy",
        "bitwise_and",
    ]
)


def is_convertible(op: torch._ops.OpOverload) -> bool:
    return op._schema.name.removeprefix("aten::") in CONVERTIBLE


@pytest.fixture
def preserve() -> Callable[[torch._ops.OpOverload], bool]:
    """A predicate like the one that a converter registry gives."""
    return is_convertible


@pytest.fixture
def settings() -> CompilationSettings:
    return CompilationSettings(device=Device("cpu"))


@pytest.fixture(autouse=True)
def _seed() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def operators() -> Callable[[fx.GraphModule], Counter[str]]:
    """Counts the operators of a graph by name without overload: `{"add": 2}`."""

    def count(gm: fx.GraphModule) -> Counter[str]:
        calls = [node.target for node in gm.graph.nodes if node.op == "call_function"]
        return Counter(
            target._schema.name.removeprefix("aten::") if isinstance(target, torch._ops.OpOverload) else target.__name__
            for target in calls
        )

    return count


@pytest.fixture
def compare() -> Callable[..., None]:
    """Asserts that two results agree leaf by leaf, exactly or within `tolerance` (absolute and relative)."""

    def check(expected: Any, actual: Any, tolerance: float = 0.0) -> None:
        left, right = tree_leaves(expected), tree_leaves(actual)
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            if isinstance(one, torch.Tensor):
                assert one.dtype == other.dtype
                torch.testing.assert_close(other, one, rtol=tolerance, atol=tolerance)
            else:
                assert one == other

    return check


@pytest.fixture
def lower_module(settings: CompilationSettings) -> Callable[..., fx.GraphModule]:
    """Exports and lowers a module, and checks the form of the result."""

    def run(
        module: torch.nn.Module | Callable[..., Any],
        *args: Any,
        dynamic_shapes: Any = None,
        preserve: Callable[[torch._ops.OpOverload], bool] = is_convertible,
        **changes: Any,
    ) -> fx.GraphModule:
        model = module if isinstance(module, torch.nn.Module) else Wrapped(module)
        program = export_module(model.eval(), args, dynamic_shapes=dynamic_shapes)
        gm = lower(program, settings.replace(**changes), preserve=preserve)
        check_graph_form(gm)
        return gm

    return run


@pytest.fixture
def decomposed(settings: CompilationSettings) -> Callable[..., fx.GraphModule]:
    """Exports a function, and lowers it as far as constants are folded, which takes a device that is there."""

    def run(function: Callable[..., Any], *args: Any, dynamic_shapes: Any = None, **changes: Any) -> fx.GraphModule:
        program = export_module(Wrapped(function).eval(), args, dynamic_shapes=dynamic_shapes)
        return begin_lowering(program, settings.replace(**changes), preserve=is_convertible).graph

    return run


@pytest.fixture
def captured() -> Callable[..., fx.GraphModule]:
    """Exports a function and returns its graph before any pass, with parameters as attributes."""
    from trt_lowering.lower import unlift

    def run(function: torch.nn.Module | Callable[..., Any], *args: Any, dynamic_shapes: Any = None) -> fx.GraphModule:
        model = function if isinstance(function, torch.nn.Module) else Wrapped(function)
        return unlift(export_module(model.eval(), args, dynamic_shapes=dynamic_shapes))

    return run


class Wrapped(torch.nn.Module):
    """A module whose forward is a function of tensors."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)
