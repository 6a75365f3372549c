"""Plugins from decorated functions, as `tensorrt.plugin` has them.

Use it as ``import trt_portable.plugin as trtp``. `register` describes a plugin's outputs, `impl` computes them,
`autotune` names the types, formats and tactics it supports, and ``op.namespace.name(...)`` makes the argument of
``INetworkDefinition.add_plugin``. `aot_impl` is kept but never run: what it gives is a program for NVIDIA's GPUs.
"""

from __future__ import annotations

from trt_portable.plugin.decorators import AutoTuneCombination, aot_impl, autotune, impl, op, register
from trt_portable.plugin.descriptors import (
    ShapeExpr,
    ShapeExprs,
    SizeTensorDesc,
    SizeTensorShapeExpr,
    SymExpr,
    SymExprs,
    SymInt32,
    SymIntExpr,
    SymIntExprs,
    TensorDesc,
    cdiv,
    from_shape_expr,
    max,  # noqa: A004 - the name of the bindings
    min,  # noqa: A004
    size_tensor,
)
from trt_portable.plugin.tensor import Shape, Tensor
from trt_portable.plugin_interfaces.quick import KernelLaunchParams

__all__ = [
    "AutoTuneCombination",
    "KernelLaunchParams",
    "Shape",
    "ShapeExpr",
    "ShapeExprs",
    "SizeTensorDesc",
    "SizeTensorShapeExpr",
    "SymExpr",
    "SymExprs",
    "SymInt32",
    "SymIntExpr",
    "SymIntExprs",
    "Tensor",
    "TensorDesc",
    "aot_impl",
    "autotune",
    "cdiv",
    "from_shape_expr",
    "impl",
    "max",
    "min",
    "op",
    "register",
    "size_tensor",
]
