"""Plugins from decorated functions, as `tensorrt.plugin` has them.

Use it as ``import trt_portable.plugin as trtp``. `register` describes a plugin's outputs, `impl` computes them,
`autotune` names the types, formats and tactics it supports, and ``op.namespace.name(...)`` makes the argument of
``INetworkDefinition.add_plugin``. `aot_impl` is kept but never run: what it gives is a program for NVIDIA's GPUs.
"""

from __future__ import annotations

from trt_portable.plugin.combination import AutoTuneCombination
from trt_portable.plugin.decorators import aot_impl, autotune, impl, register
from trt_portable.plugin.descriptors import SizeTensorDesc, TensorDesc, from_shape_expr, size_tensor
from trt_portable.plugin.expressions import (
    ShapeExpr,
    ShapeExprs,
    SizeTensorShapeExpr,
    SymExpr,
    SymExprs,
    SymInt32,
    SymIntExpr,
    SymIntExprs,
    cdiv,
    max,  # noqa: A004 - the name of the bindings
    min,  # noqa: A004
)
from trt_portable.plugin.operators import op
from trt_portable.plugin.tensor import Shape, Tensor
from trt_portable.plugins.quick import KernelLaunchParams

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
