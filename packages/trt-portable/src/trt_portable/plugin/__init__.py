"""Plugins: their interfaces and registry, and those made of decorated functions, as `tensorrt.plugin` has them.

Use it as ``import trt_portable.plugin as trtp``. `register` describes a plugin's outputs, `impl` computes them,
`autotune` names the types, formats and tactics it supports, and ``op.namespace.name(...)`` makes the argument of
``INetworkDefinition.add_plugin``. `aot_impl` is kept but never run: what it gives is a program for NVIDIA's GPUs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_core.lazy_names import lazy_names

if TYPE_CHECKING:
    from trt_portable.plugin.decorators import (
        AutoTuneCombination,
        Shape,
        ShapeExpr,
        ShapeExprs,
        SizeTensorDesc,
        SizeTensorShapeExpr,
        SymExpr,
        SymExprs,
        SymInt32,
        SymIntExpr,
        SymIntExprs,
        Tensor,
        TensorDesc,
        aot_impl,
        autotune,
        cdiv,
        from_shape_expr,
        impl,
        max,  # noqa: A004 - the name of the bindings
        min,  # noqa: A004
        op,
        register,
        size_tensor,
    )
    from trt_portable.plugin.interfaces import KernelLaunchParams

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

if not TYPE_CHECKING:
    _DECORATORS = ", ".join(name for name in __all__ if name != "KernelLaunchParams")
    _HOMES = {f"{__name__}.decorators": _DECORATORS, f"{__name__}.interfaces": "KernelLaunchParams"}
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
