"""Layer classes, by family."""

from __future__ import annotations

from trt_portable.layers.assertion import (
    IAssertionLayer,
    IDistCollectiveLayer,
)
from trt_portable.layers.attention import IAttention
from trt_portable.layers.attention_ends import (
    IAttentionBoundaryLayer,
    IAttentionInputLayer,
    IAttentionOutputLayer,
)
from trt_portable.layers.convolution import (
    IConvolutionLayer,
    IDeconvolutionLayer,
)
from trt_portable.layers.detection import (
    INMSLayer,
)
from trt_portable.layers.gather import IGatherLayer
from trt_portable.layers.indexing import (
    INonZeroLayer,
    IOneHotLayer,
    IReverseSequenceLayer,
    IScatterLayer,
)
from trt_portable.layers.movement import (
    IConcatenationLayer,
    IShuffleLayer,
    ISqueezeLayer,
    IUnsqueezeLayer,
)
from trt_portable.layers.normalization import (
    ILRNLayer,
    INormalizationLayer,
    IScaleLayer,
)
from trt_portable.layers.plugins import IPluginV2Layer, IPluginV3Layer
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
from trt_portable.layers.quantization import (
    IDequantizeLayer,
    IDynamicQuantizeLayer,
    IQuantizeLayer,
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
from trt_portable.layers.slicing import ISliceLayer
from trt_portable.layers.sources import (
    ICastLayer,
    IConstantLayer,
    IFillLayer,
    IIdentityLayer,
    IShapeLayer,
)
from trt_portable.layers.transformer import (
    IKVCacheUpdateLayer,
    IMoELayer,
    IRotaryEmbeddingLayer,
)

__all__ = [
    "IActivationLayer",
    "IAssertionLayer",
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
    "IDequantizeLayer",
    "IDistCollectiveLayer",
    "IDynamicQuantizeLayer",
    "IEinsumLayer",
    "IElementWiseLayer",
    "IFillLayer",
    "IGatherLayer",
    "IGridSampleLayer",
    "IIdentityLayer",
    "IKVCacheUpdateLayer",
    "ILRNLayer",
    "IMatrixMultiplyLayer",
    "IMoELayer",
    "INMSLayer",
    "INonZeroLayer",
    "INormalizationLayer",
    "IOneHotLayer",
    "IPaddingLayer",
    "IParametricReLULayer",
    "IPluginV2Layer",
    "IPluginV3Layer",
    "IPoolingLayer",
    "IQuantizeLayer",
    "IRaggedSoftMaxLayer",
    "IReduceLayer",
    "IResizeLayer",
    "IReverseSequenceLayer",
    "IRotaryEmbeddingLayer",
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
