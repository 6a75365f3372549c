"""A traced graph through Inductor.

Ahead of Inductor itself, `torch.compile` traces a graph once more, for gradients and for operators that write in
place. What layers compute has neither as a rule, and is traced with Inductor's decompositions right away, so such a
graph is handed to Inductor as it is: a fifth to a third of the time of a compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_portable.errors import PortableError
from trt_portable.internals import OpOverload

_TENSOR_CORE_BYTES: Final = 16  # rows of matrices that are multiples of it are read by the fastest kernels
_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm")


class CompilationFailure(PortableError):
    """Inductor made something else than one compiled graph."""


def start_workers() -> None:
    """Starts Inductor's processes for the compilation of kernels, unless they run."""
    from trt_portable.internals import maybe_warm_pool

    maybe_warm_pool()


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """What operators consist of for Inductor.

    PyTorch makes a gather by computed indices of a roll, which Inductor cannot reason about. From its parts it makes
    fewer kernels, and on PyTorch 2.11 takes three quarters of the time for a Swin transformer.
    """
    from trt_portable.internals import select_decomp_table

    return {**select_decomp_table(), torch.ops.aten.roll.default: rolled_by_parts}


def rolled_by_parts(x: torch.Tensor, shifts: Sequence[int], dims: Sequence[int] = ()) -> torch.Tensor:
    """`torch.roll` as what it does: along each axis, the end comes before the beginning."""
    if not dims:
        return rolled_by_parts(x.flatten(), shifts, (0,)).reshape(x.shape)
    rolled = x
    for shift, axis in zip(shifts, dims, strict=True):
        extent = x.shape[axis]
        end = shift % extent if extent else 0
        if end:
            parts = rolled.narrow(axis, extent - end, end), rolled.narrow(axis, 0, extent - end)
            rolled = torch.cat(parts, axis)
    return x.clone() if rolled is x else rolled


def compile_graph(graph: fx.GraphModule, arguments: Sequence[torch.Tensor], options: Mapping[str, Any]) -> Any:
    """Compiles a graph of ATen operators that was traced with `decompositions`.

    Args:
        graph: Takes tensors one by one and returns a tuple; it is changed.
        arguments: What it takes.
        options: Inductor's settings beyond its defaults.

    Returns:
        Inductor's compiled graph: takes a list of arguments, which it empties.

    Raises:
        CompilationFailure: One graph became several.
    """
    from trt_portable.internals import inductor_config as config

    fixed = {
        "triton.cudagraphs": False,
        "triton.cudagraph_trees": False,
        "graph_partition": False,
        "fx_graph_cache": False,  # plans and timing caches remember what was built
        "shape_padding": _has_odd_rows(graph),
    }
    with torch.no_grad(), config.patch({**fixed, **options}):
        return _compile_functional(graph) if _is_functional(graph) else _compile_any(graph, arguments)


def _compile_functional(graph: fx.GraphModule) -> Any:
    """Compiles as it is a graph whose outputs are to have the strides that they were traced with.

    Inductor pads rows of other tensors, and an output that it padded would be copied to where it belongs.
    """
    from trt_portable.internals import V, compile_fx_inner, joint_graph_passes

    arguments = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    (mode,) = {argument.fake_mode for argument in arguments}
    last = graph.graph.output_node()
    last.meta["user_visible_output_idxs"] = list(range(len(last.args[0])))  # type: ignore[arg-type]
    with V.set_fake_mode(mode):
        joint_graph_passes(graph)
        return compile_fx_inner(graph, arguments, is_inference=True)


def _compile_any(graph: fx.GraphModule, arguments: Sequence[torch.Tensor]) -> Any:
    """The way of `torch.compile`, which replaces operators that write in place."""
    from trt_portable.internals import compile_fx, compile_fx_inner, functorch_config

    compiled: list[Any] = []

    def keep(*arguments: Any, **keywords: Any) -> Any:
        compiled.append(compile_fx_inner(*arguments, **keywords))
        return compiled[-1]

    with functorch_config.patch(enable_autograd_cache=False):
        compile_fx(graph, list(arguments), inner_compile=keep)
    if len(compiled) != 1:
        raise CompilationFailure(f"one graph became {len(compiled)}")
    return compiled[0]


def _is_functional(graph: fx.GraphModule) -> bool:
    """Whether no operator writes to what it is given."""
    calls = [node.target for node in graph.graph.nodes if node.op == "call_function"]
    return not any(isinstance(call, OpOverload) and call._schema.is_mutable for call in calls)


def _has_odd_rows(graph: fx.GraphModule) -> bool:
    """Whether rows of a product's matrices begin at places that the fastest kernels do not read.

    Inductor can pad them. To learn whether that pays it times products, of any extents, so it is not asked otherwise,
    nor for products of a few columns.
    """
    for node in graph.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target._schema.name.partition("::")[2] in _PRODUCTS:
            matrices = [*(argument.meta["val"] for argument in node.args[-2:]), node.meta["val"]]
            row_bytes = [matrix.shape[-1] * matrix.element_size() for matrix in matrices]
            if row_bytes[-1] >= _TENSOR_CORE_BYTES and any(count % _TENSOR_CORE_BYTES for count in row_bytes):
                return True
    return False
