"""A layer that only engines have: attention with a factor of its scores, which the builder makes of scaled operands."""

from __future__ import annotations

from trt_portable.attributes import number
from trt_portable.enums import LayerType
from trt_portable.layers.attention_ends import IAttentionOutputLayer


class ScaledAttentionLayer(IAttentionOutputLayer):
    """``softmax(factor * Q K^T + mask) V``.

    Kernels of attention have the factor at hand; a layer of its own would read and write the query once more.
    """

    _KIND = LayerType.ATTENTION_OUTPUT  # the kind of TensorRT's that comes closest

    factor = number(1.0, "Factor of the scores.")

    @classmethod
    def _plan_type(cls) -> str:
        return "SCALED_ATTENTION"

    @property
    def _factor(self) -> float:
        return self.factor
