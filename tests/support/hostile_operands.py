"""Honest calls of reviewed operators of which one operand is another one: numbers that data tells, types, strides.

`told_numbers` has the program read each number from a tensor that it holds, so that nobody knows it when the program is
loaded; `tensors_for_numbers` gives the tensor itself. `other_types` gives each tensor each type that programs have, and
`other_memory` other strides, axes and extents.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from guarded_memory import guarded
from hostile_files import bytes_of, operator, program, soil, tensor_type, value

from trt_core import TrtError
from trt_core.internals import pytree
from trt_runtime.program.fields import DTYPES
from trt_runtime.program.literals import to_json
from trt_runtime.program.loading import program_from_memory


@dataclass(frozen=True)
class T:
    """A tensor of a call: numbers from 1 on, or below `most`."""

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    most: int = 100

    def make(self) -> torch.Tensor:
        """The tensor."""
        count = torch.Size(self.shape).numel()
        return (torch.arange(count) % self.most).reshape(self.shape).to(self.dtype)


def t(*shape: int) -> T:
    """Floats."""
    return T(shape)


def n(*shape: int, most: int = 2) -> T:
    """Places."""
    return T(shape, torch.int64, most)


def c(*shape: int) -> T:
    """Complex numbers."""
    return T(shape, torch.complex64)


def b(*shape: int) -> T:
    """Truths."""
    return T(shape, torch.bool, 2)


_ATTENTION: Final = (t(1, 2, 4, 8), t(1, 2, 4, 8), t(1, 2, 4, 8))
_NORM: Final = (t(2, 4, 3, 3), t(4), t(4), t(4), t(4))

CALLS: Final[tuple[tuple[str, tuple[Any, ...]], ...]] = (
    *(
        (f"{name}.Scalar", (t(3, 4), 2))
        for name in ("add", "sub", "mul", "div", "rsub", "remainder", "fmod", "eq", "lt", "fmod")
    ),
    *(
        (f"{name}.Scalar", (T((3, 4), torch.int32), 2))
        for name in (
            "add",
            "sub",
            "mul",
            "div",
            "remainder",
            "fmod",
            "bitwise_or",
            "bitwise_and",
            "bitwise_xor",
            "floor_divide",
        )
    ),
    ("pow.Tensor_Scalar", (T((3, 4), torch.int32), 2)),
    ("pow.Tensor_Scalar", (t(3, 4), 2)),
    ("pow.Scalar", (2, T((3, 4), torch.int64))),
    ("floor_divide.Scalar", (t(3, 4), 2)),
    ("div.Scalar_mode", (T((3, 4), torch.int32), 2, {"rounding_mode": "floor"})),
    ("div.Tensor_mode", (T((3, 4), torch.int32), T((3, 4), torch.int32), {"rounding_mode": "floor"})),
    ("remainder.Scalar_Tensor", (2, T((3, 4), torch.int32))),
    (
        "add.Tensor",
        (
            t(3, 4),
            t(3, 4),
        ),
    ),
    ("sub.Tensor", (T((3, 4), torch.int8), T((3, 4), torch.int8))),
    ("addcmul", (t(3, 4), t(3, 4), t(3, 4))),
    ("addcdiv", (t(3, 4), t(3, 4), t(3, 4))),
    ("lerp.Scalar", (t(3, 4), t(3, 4), 0.5)),
    ("clamp", (t(3, 4), 0, 1)),
    ("clamp", (T((3, 4), torch.int8), 0, 1)),
    ("celu", (t(3, 4), 1.0)),
    ("elu", (t(3, 4), 1.0, 1.0, 1.0)),
    ("softplus", (t(3, 4), 1, 20)),
    ("hardtanh", (t(3, 4), -1, 1)),
    ("hardshrink", (t(3, 4), 0.5)),
    ("threshold", (t(3, 4), 1, 20)),
    ("logit", (t(3, 4), 0.5)),
    ("nan_to_num", (t(3, 4), 0.0, 1.0, 1.0)),
    ("round.decimals", (t(3, 4), {"decimals": 2})),
    ("isclose", (t(3, 4), t(3, 4), 1e-5, 1e-8, True)),
    ("dropout", (t(3, 4), 0.5, False)),
    ("where.ScalarOther", (b(3, 4), t(3, 4), 1)),
    ("where.Scalar", (b(3, 4), 2, 1)),
    ("masked_fill.Scalar", (t(3, 4), b(3, 4), 1)),
    ("masked_fill.Scalar", (T((3, 4), torch.int8), b(3, 4), 1)),
    ("fill.Scalar", (T((3, 4), torch.int8), 1)),
    *(
        (name, (t(3, 4, 2), [1], True))
        for name in ("amax", "amin", "logsumexp", "sum.dim_IntList", "mean.dim", "nansum", "any.dims")
    ),
    *(
        (name, (t(3, 4, 2), 1, True))
        for name in ("any.dim", "argmax", "argmin", "max.dim", "min.dim", "median.dim", "prod.dim_int")
    ),
    *(
        (name, (t(3, 4, 2), 1))
        for name in (
            "cummax",
            "cummin",
            "cumprod",
            "cumsum",
            "logcumsumexp",
            "softmax.int",
            "log_softmax.int",
            "_safe_softmax",
        )
    ),
    *((name, (t(3, 4, 2), 1, False)) for name in ("_softmax", "_log_softmax", "sort", "argsort")),
    ("sort.stable", (t(3, 4, 2), {"stable": True, "dim": 1})),
    ("argsort.stable", (t(3, 4, 2), {"stable": True, "dim": 1})),
    ("count_nonzero.dim_IntList", (t(3, 4), [1])),
    ("aminmax", (t(3, 4, 2),)),
    ("linalg_vector_norm", (t(3, 4, 2), 2, [1], True)),
    ("norm.ScalarOpt_dim", (t(3, 4, 2), 2, [1], True)),
    (
        "std.correction",
        (
            t(3, 4, 2),
            [1],
        ),
    ),
    ("std.dim", (t(3, 4, 2), [1], True, True)),
    ("var_mean.dim", (t(3, 4, 2), [1], True, True)),
    ("topk", (t(3, 4, 2), 2, 1, True, True)),
    ("broadcast_to", (t(3, 1), [3, 4])),
    ("expand", (t(3, 1), [3, 4])),
    ("expand_copy", (t(3, 1), [3, 4])),
    ("cat", ([t(3, 4), t(3, 4)], 1)),
    ("stack", ([t(3, 4), t(3, 4)], 1)),
    ("_stack", ([t(3, 4), t(3, 4)], 1)),
    ("hstack", ([t(3, 4), t(3, 4)],)),
    ("column_stack", ([t(3, 4), t(3, 4)],)),
    ("channel_shuffle", (t(1, 4, 2, 2), 2)),
    ("native_channel_shuffle", (t(1, 4, 2, 2), 2)),
    ("chunk", (t(3, 4), 2, 1)),
    ("constant_pad_nd", (t(3, 4), [1, 1], 0.5)),
    ("constant_pad_nd", (T((3, 4), torch.int8), [1, -1, 2, 0], 1)),
    ("pad", (t(1, 3, 4), [1, 1], "reflect")),
    ("pad", (t(1, 3, 4), [1, 1], "circular", None)),
    ("pad", (t(1, 3, 4), [1, 1], "replicate", None)),
    ("diag", (t(3, 4), 1)),
    ("diag", (t(3), 1)),
    ("diag_embed", (t(3, 4), 1, 0, 1)),
    ("diagonal", (t(3, 4), 1, 0, 1)),
    ("diagonal_copy", (t(3, 4), 1, 0, 1)),
    ("flatten.using_ints", (t(3, 4), 0, 1)),
    ("flip", (t(3, 4), [1, 0])),
    ("movedim.intlist", (t(3, 4), [0], [1])),
    ("narrow", (t(3, 4), 1, 1, 2)),
    ("narrow_copy", (t(3, 4), 1, 1, 2)),
    ("permute", (t(3, 4), [1, 0])),
    ("permute_copy", (t(3, 4), [1, 0])),
    ("pixel_shuffle", (t(1, 4, 2, 2), 2)),
    ("pixel_unshuffle", (t(1, 1, 4, 4), 2)),
    *(
        (f"{kind}_pad{rank}d", (t(1, 2, *[4] * rank), [1] * 2 * rank))
        for kind in ("reflection", "replication")
        for rank in (1, 2, 3)
    ),
    ("repeat", (t(3, 4), [2, 2])),
    ("repeat_interleave.self_int", (t(3, 4), 2, 1)),
    ("repeat_interleave.self_Tensor", (t(3, 4), n(4), 1, {"output_size": 2})),
    ("repeat_interleave.Tensor", (n(4), {"output_size": 2})),
    ("reshape", (t(3, 4), [4, 3])),
    ("view", (t(3, 4), [4, 3])),
    ("view_copy", (t(3, 4), [4, 3])),
    ("_unsafe_view", (t(3, 4), [4, 3])),
    ("unflatten.int", (t(3, 4), 1, [2, 2])),
    ("roll", (t(3, 4), [1, 2], [0, 1])),
    ("roll", (t(3, 4), [1], [])),
    ("rot90", (t(3, 4), 1, [0, 1])),
    ("select.int", (t(3, 4), 1, 2)),
    ("select_copy.int", (t(3, 4), 1, 2)),
    ("select_scatter", (t(3, 4), t(3), 1, 2)),
    ("slice.Tensor", (t(3, 4), 1, 0, 3, 2)),
    ("slice_copy.Tensor", (t(3, 4), 1, 0, 3, 2)),
    ("slice_scatter", (t(3, 4), t(3, 2), 1, 0, 3, 2)),
    ("split.Tensor", (t(3, 4), 2, 1)),
    ("split_with_sizes", (t(3, 4), [2, 2], 1)),
    ("split_copy.Tensor", (t(3, 4), 2, 1)),
    ("split_with_sizes_copy", (t(3, 4), [2, 2], 1)),
    ("squeeze.dims", (t(3, 1), [1])),
    ("squeeze_copy.dim", (t(3, 1), 1)),
    ("swapaxes", (t(3, 4), 0, 1)),
    ("transpose.int", (t(3, 4), 0, 1)),
    ("transpose_copy.int", (t(3, 4), 0, 1)),
    ("tile", (t(3, 4), [2, 2])),
    ("tril", (t(3, 4), 1)),
    ("triu", (t(3, 4), 1)),
    ("unbind.int", (t(3, 4), 1)),
    ("unbind_copy.int", (t(3, 4), 1)),
    ("unsqueeze", (t(3, 4), 1)),
    ("unsqueeze_copy", (t(3, 4), 1)),
    ("embedding", (t(3, 4), n(2), 1, False, False)),
    ("gather", (t(3, 4), 1, n(3, 2))),
    ("index.Tensor", (t(3, 4), [n(2), n(2)])),
    ("index_put", (t(3, 4), [n(2), n(2)], t(2), True)),
    ("index_put", (t(3, 4), [n(2), n(2)], t(2), False)),
    ("index_select", (t(3, 4), 1, n(2))),
    ("nonzero", (t(3, 4),)),
    ("one_hot", (n(3), 4)),
    ("scatter.src", (t(3, 4), 1, n(3, 2), t(3, 2))),
    ("scatter.value", (t(3, 4), 1, n(3, 2), 1)),
    ("scatter.reduce", (t(3, 4), 1, n(3, 2), t(3, 2), {"reduce": "add"})),
    ("scatter_add", (t(3, 4), 1, n(3, 2), t(3, 2))),
    ("take_along_dim", (t(3, 4), n(3, 2), 1)),
    ("masked_select", (t(3, 4), b(3, 4))),
    ("arange", (4,)),
    ("arange.start_step", (0, 8, 2)),
    ("eye", (4,)),
    ("eye.m", (4, 3)),
    ("full", ([3, 4], 1)),
    ("full_like", (t(3, 4), 1)),
    ("linspace", (0, 1, 4)),
    ("linspace.Tensor_Tensor", (t(), t(), 4)),
    ("new_full", (t(3), [3, 4], 1)),
    ("new_ones", (t(3), [3, 4])),
    ("ones", ([3, 4],)),
    ("zeros", ([3, 4],)),
    ("scalar_tensor", (4,)),
    ("tril_indices", (4, 4, 1)),
    ("triu_indices", (4, 4, 1)),
    ("rand", ([3, 4],)),
    ("randint", (4, [3, 4])),
    ("randint.low", (0, 4, [3, 4])),
    ("randint_like", (t(3, 4), 4)),
    ("randint_like.low_dtype", (t(3, 4), 0, 4)),
    ("randn", ([3, 4],)),
    ("randperm", (4,)),
    ("col2im", (t(1, 4, 9), [4, 4], [2, 2], [1, 1], [0, 0], [1, 1])),
    ("im2col", (t(1, 1, 4, 4), [2, 2], [1, 1], [0, 0], [1, 1])),
    *((f"fft_{name}", (c(4, 4), 4, 1, "ortho")) for name in ("fft", "ifft", "irfft")),
    *((f"fft_{name}", (t(4, 4), 4, 1, "ortho")) for name in ("fft", "rfft")),
    *(
        (f"fft_{name}", (c(4, 4), [4, 4], [0, 1], None))
        for name in ("fftn", "ifftn", "irfftn", "fft2", "ifft2", "irfft2")
    ),
    *((f"fft_{name}", (t(4, 4), [4, 4], [0, 1], None)) for name in ("fftn", "rfftn", "rfft2")),
    *((f"fft_{name}", (t(4, 4), [0])) for name in ("fftshift", "ifftshift")),
    *((f"fft_{name}", (4, 1.0)) for name in ("fftfreq", "rfftfreq")),
    ("_fft_c2c", (c(4, 4), [0, 1], 0, True)),
    ("_fft_c2r", (c(4, 3), [1], 0, 4)),
    ("_fft_r2c", (t(4, 4), [1], 0, True)),
    ("complex", (t(3, 4), t(3, 4))),
    ("view_as_complex", (t(3, 2),)),
    ("view_as_real", (c(3, 2),)),
    ("real", (c(3, 2),)),
    ("imag", (c(3, 2),)),
    ("view.dtype", (t(3, 4), torch.uint8)),
    ("addmm", (t(3, 4), t(3, 2), t(2, 4))),
    ("addmv", (t(3), t(3, 2), t(2))),
    ("addbmm", (t(3, 4), t(2, 3, 2), t(2, 2, 4))),
    ("baddbmm", (t(2, 3, 4), t(2, 3, 2), t(2, 2, 4))),
    ("bmm", (t(2, 3, 2), t(2, 2, 4))),
    ("mm", (t(3, 2), t(2, 4))),
    ("mv", (t(3, 2), t(2))),
    ("dot", (t(3), t(3))),
    ("outer", (t(3), t(3))),
    ("matmul", (t(2, 3, 2), t(2, 2, 4))),
    ("linear", (t(3, 2), t(4, 2), t(4))),
    ("einsum", ("ij,jk->ik", [t(3, 2), t(2, 4)])),
    *((f"adaptive_avg_pool{rank}d", (t(1, 2, *[4] * rank), [2] * rank)) for rank in (1, 2, 3)),
    ("_adaptive_avg_pool2d", (t(1, 2, 4, 4), [2, 2])),
    ("_adaptive_avg_pool3d", (t(1, 2, 4, 4, 4), [2, 2, 2])),
    ("avg_pool1d", (t(1, 2, 4), [2], [1], [0], False, True)),
    *(
        (f"avg_pool{rank}d", (t(1, 2, *[4] * rank), [2] * rank, [1] * rank, [0] * rank, False, True, 3))
        for rank in (2, 3)
    ),
    *(
        (f"max_pool{rank}d{more}", (t(1, 2, *[4] * rank), [2] * rank, [1] * rank, [0] * rank, [1] * rank, False))
        for rank in (1, 2, 3)
        for more in ("", "_with_indices")
        if rank > 1 or not more
    ),
    *(
        (f"conv{rank}d", (t(1, 4, *[4] * rank), t(4, 2, *[2] * rank), t(4), [1] * rank, [0] * rank, [1] * rank, 2))
        for rank in (1, 2, 3)
    ),
    *(
        (name, (t(1, 4, *[4] * rank), t(4, 2, *[2] * rank), t(4), [1] * rank, [0] * rank, [0] * rank, 2, [1] * rank))
        for rank, name in ((1, "conv_transpose1d"), (2, "conv_transpose2d.input"), (3, "conv_transpose3d.input"))
    ),
    ("convolution", (t(1, 4, 4, 4), t(4, 2, 2, 2), t(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 2)),
    ("convolution", (t(1, 4, 4, 4), t(4, 2, 2, 2), t(4), [1, 1], [0, 0], [1, 1], True, [0, 0], 2)),
    (
        "_convolution",
        (t(1, 4, 4, 4), t(4, 2, 2, 2), t(4), [1, 1], [0, 0], [1, 1], False, [0, 0], 2, False, False, True, True),
    ),
    ("scaled_dot_product_attention", (*_ATTENTION, None, 0.0, False)),
    ("_scaled_dot_product_flash_attention_for_cpu", (*_ATTENTION, 0.0, False)),
    *((f"upsample_nearest{rank}d", (t(1, 2, *[4] * rank), [8] * rank, *[2.0] * rank)) for rank in (1, 2, 3)),
    *((f"upsample_nearest{rank}d.vec", (t(1, 2, *[4] * rank), None, [2.0] * rank)) for rank in (1, 2, 3)),
    ("upsample_linear1d", (t(1, 2, 4), [8], True, 2.0)),
    ("upsample_linear1d.vec", (t(1, 2, 4), None, False, [2.0])),
    ("upsample_bilinear2d", (t(1, 2, 4, 4), [8, 8], False, 2.0, 2.0)),
    ("upsample_bilinear2d.vec", (t(1, 2, 4, 4), None, False, [2.0, 2.0])),
    ("upsample_bicubic2d", (t(1, 2, 4, 4), [8, 8], False, 2.0, 2.0)),
    ("upsample_bicubic2d.vec", (t(1, 2, 4, 4), None, False, [2.0, 2.0])),
    ("upsample_trilinear3d", (t(1, 2, 4, 4, 4), [8, 8, 8], False, 2.0, 2.0, 2.0)),
    ("batch_norm", (*_NORM, False, 0.1, 1e-5, False)),
    ("instance_norm", (*_NORM, False, 0.1, 1e-5, False)),
    ("native_batch_norm", (*_NORM, False, 0.1, 1e-5)),
    ("_native_batch_norm_legit_no_training", (*_NORM, 0.1, 1e-5)),
    ("_native_batch_norm_legit_functional", (*_NORM, True, 0.1, 1e-5)),
    ("_native_batch_norm_legit.no_stats", (t(2, 4, 3, 3), t(4), t(4), True, 0.1, 1e-5)),
    ("group_norm", (t(2, 4, 3, 3), 2, t(4), t(4), 1e-5, False)),
    ("native_group_norm", (t(2, 4, 3, 3), t(4), t(4), 2, 4, 9, 2, 1e-5)),
    ("layer_norm", (t(2, 4), [4], t(4), t(4), 1e-5, False)),
    ("native_layer_norm", (t(2, 4), [4], t(4), t(4), 1e-5)),
    ("rms_norm", (t(2, 4), [4], t(4), 1e-5)),
    ("size.int", (t(3, 4), 1)),
    ("sym_size.int", (t(3, 4), 1)),
    ("sym_constrain_range_for_size", (4,)),
    ("_assert_scalar", (4, "no")),
    ("prims::broadcast_in_dim", (t(3), [2, 3], [1])),
    ("prims::cat", ([t(3, 4), t(3, 4)], 1)),
    ("prims::collapse_view", (t(3, 4), 0, 1)),
    ("prims::convert_element_type", (t(3, 4), torch.int64)),
    ("prims::reshape", (t(3, 4), [4, 3])),
    ("prims::rev", (t(3, 4), [1])),
    ("prims::squeeze", (t(3, 1), [1])),
    ("prims::sum", (t(3, 4), [1])),
    ("prims::transpose", (t(3, 4), [1, 0])),
    ("prims::div", (T((3, 4), torch.int32), T((3, 4), torch.int32))),
    ("prims::pow", (T((3, 4), torch.int32), T((3, 4), torch.int32))),
    ("prims::where", (b(3, 4), t(3, 4), t(3, 4))),
    *(
        (name, (t(3, 4),))
        for name in (
            "acos",
            "atanh",
            "digamma",
            "erfinv",
            "exp2",
            "gelu",
            "i0",
            "lgamma",
            "log_sigmoid",
            "sign",
            "silu",
            "sinc",
            "special_entr",
            "special_ndtri",
            "special_i1e",
            "special_bessel_j0",
            "special_modified_bessel_k1",
            "logical_not",
            "neg",
            "abs",
            "sgn",
            "isfinite",
            "conj",
            "resolve_conj",
            "resolve_neg",
            "clone",
            "contiguous",
            "median",
            "mean",
            "sum",
            "prod",
            "std",
            "var",
            "max",
            "min",
            "argmax",
            "aminmax",
            "any",
            "count_nonzero",
            "numel",
            "dim",
            "alias",
            "detach",
            "t",
            "lift_fresh_copy",
            "zeros_like",
            "ones_like",
            "rand_like",
            "randn_like",
        )
    ),
    *(
        (name, (t(3, 4), t(3, 4)))
        for name in (
            "atan2",
            "copysign.Tensor",
            "hypot",
            "logaddexp",
            "maximum",
            "fmod.Tensor",
            "remainder.Tensor",
            "floor_divide",
            "pow.Tensor_Tensor",
            "xlogy.Tensor",
            "logical_xor",
            "eq.Tensor",
            "lt.Tensor",
            "div.Tensor",
            "fmax",
            "type_as",
            "view_as",
            "expand_as",
            "reshape_as",
        )
    ),
    *((name, (T((3, 4), torch.int32), T((3, 4), torch.int32))) for name in ("bitwise_and.Tensor", "__and__.Tensor")),
    *((name, (t(1),)) for name in ("item", "_local_scalar_dense", "_assert_async")),
    *((name, (c(3),)) for name in ("_conj", "view_as_real", "abs")),
    ("bitwise_not", (T((3, 4), torch.int32),)),
    ("_to_copy", (t(3, 4), {"dtype": torch.int64})),
    ("to.dtype", (t(3, 4), torch.int64)),
    ("softshrink", (t(3, 4), 0.5)),
    ("leaky_relu", (t(3, 4), 0.5)),
    ("clamp_max", (t(3, 4), 1)),
    ("vstack", ([t(3, 4), t(3, 4)],)),
    ("dstack", ([t(3, 4), t(3, 4)],)),
    (
        "prims::iota",
        (4, {"start": 0, "step": 1, "dtype": torch.int64, "device": torch.device("cpu"), "requires_grad": False}),
    ),
    ("prelu", (t(3, 4), t(4))),
    ("_prelu_kernel", (t(3, 4), t(3, 4))),
)
"""Operators with their overloads, and what they are called with."""


@dataclass(frozen=True)
class OperandCase:
    """A program of one call, which reads some of its numbers from tensors that it holds.

    Attributes:
        name: Of the case.
        operator: What is called, with its overload.
        args: What with, arguments by name last; `Told` is a number that the program reads.
    """

    name: str
    operator: str
    args: tuple[Any, ...]

    def run(self) -> str:
        """Loads and calls it twice; says how that ended, `refused`, `failed` or `ran`, or what is wrong.

        Raises:
            Exception: Whatever else left the interface.
        """
        flat, structure = pytree.tree_flatten(list(self.args))
        given = [leaf for leaf in flat if isinstance(leaf, torch.Tensor)]
        told = [leaf for leaf in flat if isinstance(leaf, Told)]
        held = {f"w{at}": leaf.stored() for at, leaf in enumerate(told)}
        reads = [
            operator("_local_scalar_dense", [value(len(given) + at)], type(leaf.number).__name__)
            for at, leaf in enumerate(told)
        ]
        tensors, numbers = itertools.count(), itertools.count(len(given) + len(told))
        literals = [
            value(next(tensors))
            if isinstance(leaf, torch.Tensor)
            else value(next(numbers))
            if isinstance(leaf, Told)
            else to_json(leaf)
            for leaf in flat
        ]
        args = pytree.tree_unflatten(literals, structure)
        kwargs = args.pop() if args and isinstance(args[-1], dict) and isinstance(self.args[-1], dict) else {}
        base, _, overload = self.operator.partition(".")
        call = {
            "do": "operator",
            "name": base if "::" in base else f"aten::{base}",
            "overload": overload,
            "args": args,
            "kwargs": kwargs,
            "result": _declared(_made(self.operator, tuple(self.args))),
        }
        parts = program(
            [(x.dtype, tuple(x.shape)) for x in given], [*reads, call], value(len(given) + 2 * len(told)), held
        )
        try:
            module = program_from_memory(bytearray(parts.to_bytes()))
        except TrtError:
            return "refused"
        operands = [guarded(x) for x in given]
        found = []
        for filler in (0x5A, 0xA5):
            soil(filler)
            try:
                found.append(bytes_of(module(*operands)))
            except TrtError as error:
                return "out of memory" if "allocate" in str(error) else "failed"
        is_drawn = base.startswith("rand")
        return "ran" if found[0] == found[1] or is_drawn else "another result for the same operands"


@dataclass(frozen=True)
class Told:
    """A number that a program reads from a tensor that it holds."""

    number: int | float
    usual: int | float

    def stored(self) -> torch.Tensor:
        """What the program holds."""
        kind = {bool: torch.bool, int: torch.int64, float: torch.float64}[type(self.number)]
        return torch.tensor([self.number], dtype=kind)


def _made(name: str, args: tuple[Any, ...]) -> Any:
    """What the operator makes of honest operands; a vector of unknown length where it takes none such."""
    base, _, overload = name.partition(".")
    namespace, _, base = base.rpartition("::")
    usual = pytree.tree_map_only(Told, lambda told: told.usual, list(args))
    kwargs = usual.pop() if usual and isinstance(usual[-1], dict) else {}
    usual = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), usual)
    if "device" in kwargs:
        kwargs["device"] = "meta"
    try:
        return getattr(getattr(getattr(torch.ops, namespace or "aten"), base), overload or "default")(*usual, **kwargs)
    except Exception:
        return torch.empty(1, device="meta")


def _declared(made: Any) -> Any:
    if isinstance(made, torch.Tensor):
        return tensor_type(made.dtype, *[None] * made.dim())
    if isinstance(made, (list, tuple)):
        return [_declared(item) for item in made]
    return type(made).__name__ if isinstance(made, (bool, int, float)) else None


INTEGERS: Final = (
    *(-(1 << 63), -(1 << 31) - 1, -7, -2, -1, 0, 3, 7, 700),
    *((1 << 31) - 1, 1 << 31, 1 << 32, (1 << 40) + 1, (1 << 62) + 1, (1 << 63) - 1),
)
FLOATS: Final = (float("nan"), float("inf"), -float("inf"), 1e308, -1.0, 0.0, 5e-324, 1e-6)

_QUARTER: Final = 1 << 62
_LEAST: Final = -(1 << 63)
_MOST: Final = (1 << 63) - 1
WRAPPED: Final = (
    *((_QUARTER,), (_LEAST,), (_MOST,), (1 << 32,), (-_QUARTER,), (_LEAST, _MOST), (_MOST, _LEAST), (_MOST, _MOST, 6)),
    *((-_QUARTER, _QUARTER + 2), (_QUARTER, _QUARTER, _QUARTER, _QUARTER, 5), (10, -5), (-4, 4), (1 << 48, -(1 << 48))),
)
"""Numbers whose sums, differences or products leave 64 bits, or come back into them."""


def _calls() -> Iterator[tuple[str, str, list[Any]]]:
    seen: dict[str, int] = {}
    for name, args in CALLS:
        seen[name] = seen.get(name, 0) + 1
        title = name if seen[name] == 1 else f"{name} {seen[name]}"
        yield title, name, pytree.tree_map_only(T, lambda x: x.make(), list(args))


def _each_leaf(kind: Callable[[Any], bool]) -> Iterator[tuple[str, str, int, Any, Callable[[Any], tuple[Any, ...]]]]:
    """Yields each leaf of a kind of each call, and what puts another one in its place."""
    for title, name, args in _calls():
        flat, structure = pytree.tree_flatten(args)
        for at, leaf in enumerate(flat):
            if kind(leaf):

                def replace(other: Any, at: int = at, flat: list[Any] = flat, structure: Any = structure) -> Any:
                    return tuple(pytree.tree_unflatten([*flat[:at], other, *flat[at + 1 :]], structure))

                yield title, name, at, leaf, replace


def _is_number(leaf: Any) -> bool:
    return type(leaf) in (int, float)


def told_numbers() -> Iterator[OperandCase]:
    """Each number of a call, read from data, is every other number."""
    for title, name, at, usual, replace in _each_leaf(_is_number):
        for number in INTEGERS + FLOATS:
            yield OperandCase(f"{title}: {at} is {number!r}", name, replace(Told(number, usual)))


def wrapped_numbers() -> Iterator[OperandCase]:
    """All numbers of a list, told or read from data, and places that tensors name, are such that they leave 64 bits."""
    for title, name, args in _calls():
        for at, numbers in enumerate(args):
            if not isinstance(numbers, list) or not numbers or not all(map(_is_number, numbers)):
                continue
            for numbers_made in WRAPPED:
                made = [numbers_made[turn % len(numbers_made)] for turn in range(len(numbers))]
                told = [Told(number, usual) for number, usual in zip(made, numbers, strict=True)]
                for words, others in (("", made), (", read", told)):
                    changed = (*args[:at], others, *args[at + 1 :])
                    yield OperandCase(f"{title}: {at} is {numbers_made}{words}", name, changed)
    for title, name, at, usual, replace in _each_leaf(lambda leaf: getattr(leaf, "dtype", None) is torch.int64):
        for numbers in WRAPPED:
            many = torch.tensor([numbers[turn % len(numbers)] for turn in range(usual.numel())])
            yield OperandCase(f"{title}: {at} holds {numbers}", name, replace(many.reshape(usual.shape)))
    for numbers, count in itertools.product(WRAPPED, range(2, 7)):  # more of them than fit a tensor of places
        repeats = torch.tensor([numbers[turn % len(numbers)] for turn in range(count)])
        yield OperandCase(f"{count} repeats of {numbers}", "repeat_interleave.Tensor", (repeats,))
        name = "repeat_interleave.self_Tensor"
        yield OperandCase(f"{count} repeats of {numbers}, of elements", name, (torch.ones(count), repeats, 0))


def tensors_for_numbers() -> Iterator[OperandCase]:
    """Each number of a call, and each list of them, is a tensor, out of which PyTorch would read what it is."""
    for title, name, at, _, replace in _each_leaf(_is_number):
        for number in (1 << 15, 1 << 29, _LEAST, 1.5):
            yield OperandCase(f"{title}: {at} is a tensor of {number}", name, replace(torch.tensor([number])))
    for title, name, args in _calls():
        for at, numbers in enumerate(args):
            if isinstance(numbers, list) and numbers and all(map(_is_number, numbers)):
                for number in (1 << 15, 1 << 29, _LEAST):
                    changed = (*args[:at], torch.tensor([number] * len(numbers)), *args[at + 1 :])
                    yield OperandCase(f"{title}: {at} is a list of {number} in a tensor", name, changed)


def other_types() -> Iterator[OperandCase]:
    """Each tensor of a call, and all of them, are of every type."""
    for title, name, args in _calls():
        flat, structure = pytree.tree_flatten(args)
        for text, dtype in DTYPES.items():
            for where, chosen in _choices(flat):
                changed = [leaf.to(torch.float32).to(dtype) if at in chosen else leaf for at, leaf in enumerate(flat)]
                yield OperandCase(f"{title}: {where} of {text}", name, tuple(pytree.tree_unflatten(changed, structure)))
            for at, leaf in enumerate(flat):
                if isinstance(leaf, torch.dtype):
                    changed = [*flat[:at], dtype, *flat[at + 1 :]]
                    yield OperandCase(f"{title}: as {text}", name, tuple(pytree.tree_unflatten(changed, structure)))


def _choices(flat: Sequence[Any]) -> list[tuple[str, list[int]]]:
    """Each tensor by itself, and all of them where there are several."""
    places = [at for at, leaf in enumerate(flat) if isinstance(leaf, torch.Tensor)]
    return [*((str(at), [at]) for at in places), *([("all", places)] if len(places) > 1 else [])]


def _reversed(x: torch.Tensor) -> torch.Tensor:
    axes = tuple(reversed(range(x.dim())))
    return x.permute(axes).contiguous().permute(axes)


def _apart(x: torch.Tensor) -> torch.Tensor:
    wide = x.new_zeros([2 * extent for extent in x.shape])
    return wide[tuple(slice(None, None, 2) for _ in x.shape)].copy_(x)


MEMORY: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "64 axes": lambda x: x.reshape(*x.shape, *[1] * (64 - x.dim())),
    "64 axes before": lambda x: x.reshape(*[1] * (64 - x.dim()), *x.shape),
    "an axis more": lambda x: x[None],
    "an axis less": lambda x: x[0] if x.dim() else x,
    "a number": lambda x: x.reshape(-1)[:1].reshape(()),
    "nothing": lambda x: x[:0] if x.dim() else x,
    "nothing at the end": lambda x: x[..., :0] if x.dim() else x,
    "nothing at all": lambda x: x.new_empty([0] * x.dim()),
    "one element": lambda x: x.reshape(-1)[:1].reshape([1] * x.dim()).expand(x.shape),
    "rows upon each other": lambda x: x.reshape(-1).as_strided(x.shape, [1] * x.dim()),
    "reversed": _reversed,
    "apart": lambda x: _apart(x) if x.dim() else x,
    "long": lambda x: x.repeat(300, *[1] * (x.dim() - 1)) if x.dim() else x,
}
"""What becomes of a tensor."""


def other_memory() -> Iterator[OperandCase]:
    """Each tensor of a call, and all of them, have other strides, ranks, or nothing in them."""
    for title, name, args in _calls():
        flat, structure = pytree.tree_flatten(args)
        for text, change in MEMORY.items():
            for where, chosen in _choices(flat):
                changed = [change(leaf) if at in chosen else leaf for at, leaf in enumerate(flat)]
                yield OperandCase(f"{title}: {where}, {text}", name, tuple(pytree.tree_unflatten(changed, structure)))
