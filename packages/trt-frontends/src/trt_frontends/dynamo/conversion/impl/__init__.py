"""What converters are made of, by the names that scripts of this field import: `impl.elementwise.add(ctx, ...)`.

Each takes the context, then the operator, where it comes from and a name for the layer, then values: `trt.ITensor`s,
or tensors and numbers that are known while building. They are those of `trt_converters.layers`, which need less.
"""

from __future__ import annotations

from trt_frontends.dynamo.conversion.impl import activation, condition, elementwise, reduce, shuffle, unary

__all__ = ["activation", "condition", "elementwise", "reduce", "shuffle", "unary"]
