"""Layer classes, by family."""

from __future__ import annotations

from trt_portable.layers.attention import (
    IAttention,
    IAttentionBoundaryLayer,
    IAttentionInputLayer,
    IAttentionOutputLayer,
)
from trt_portable.layers.convolution import (
    IConvolutionLayer,
    IDeconvolutionLayer,
)
from trt_portable.layers.indexing import (
    IGatherLayer,
    INonZeroLayer,
    IOneHotLayer,
    IReverseSequenceLayer,
    IScatterLayer,
)
from trt_portable.layers.movement import (
    IConcatenationLayer,
    IShuffleLayer,
    ISliceLayer,
    ISqueezeLayer,
    IUnsqueezeLayer,
)
from trt_portable.layers.normalization import (
    ILRNLayer,
    INormalizationLayer,
    IScaleLayer,
)
from trt_portable.layers.pointwise import (
    IActivationLayer,
    IElementWiseLayer,
    IParametricReLULayer,
    ISelectLayer,
    IUnaryLayer,
)
from trt_portable.layers.pooling import (
    IPaddingLayer,
    IPoolingLayer,
)
from trt_portable.layers.products import (
    IEinsumLayer,
    IMatrixMultiplyLayer,
)
from trt_portable.layers.reduction import (
    ICumulativeLayer,
    IRaggedSoftMaxLayer,
    IReduceLayer,
    ISoftMaxLayer,
    ITopKLayer,
)
from trt_portable.layers.resampling import (
    IGridSampleLayer,
    IResizeLayer,
)
from trt_portable.layers.sources import (
    ICastLayer,
    IConstantLayer,
    IFillLayer,
    IIdentityLayer,
    IShapeLayer,
)

__all__ = [
    "IActivationLayer",
    "IAttention",
    "IAttentionBoundaryLayer",
    "IAttentionInputLayer",
    "IAttentionOutputLayer",
    "ICastLayer",
    "IConcatenationLayer",
    "IConstantLayer",
    "IConvolutionLayer",
    "ICumulativeLayer",
    "IDeconvolutionLayer",
    "IEinsumLayer",
    "IElementWiseLayer",
    "IFillLayer",
    "IGatherLayer",
    "IGridSampleLayer",
    "IIdentityLayer",
    "ILRNLayer",
    "IMatrixMultiplyLayer",
    "INonZeroLayer",
    "INormalizationLayer",
    "IOneHotLayer",
    "IPaddingLayer",
    "IParametricReLULayer",
    "IPoolingLayer",
    "IRaggedSoftMaxLayer",
    "IReduceLayer",
    "IResizeLayer",
    "IReverseSequenceLayer",
    "IScaleLayer",
    "IScatterLayer",
    "ISelectLayer",
    "IShapeLayer",
    "IShuffleLayer",
    "ISliceLayer",
    "ISoftMaxLayer",
    "ISqueezeLayer",
    "ITopKLayer",
    "IUnaryLayer",
    "IUnsqueezeLayer",
]
