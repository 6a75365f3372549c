"""Which operators a program may call: functional operators of PyTorch, and those of libraries that the caller names.

A program names an operator by its schema, `aten::relu`. It is looked up in PyTorch's dispatcher and nowhere else:
`torch.ops` also answers for TorchScript's own operators, of which some write files. Every operator that writes to an
argument is refused (`WriteCall` is how programs write), and so are those that read files, answer with uninitialized
or foreign memory, or take their operands on trust. Private operators are refused except for those that capturing and
decomposing real models leaves in graphs.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection
from typing import Any, Final

import torch
from torch._ops import OpOverload

from trt_core.errors import PlanError

OWN_NAMESPACES: Final = ("aten", "prims")
"""Namespaces of PyTorch itself."""

OWN_OPERATORS: Final = frozenset({"trt::quantize", "trt::dequantize"})
"""Operators of ours that programs may call, beside engines; see `trt_core.quantization`."""

_REFUSED: Final = frozenset(
    {
        "convolution_backward_overrideable",
        "convolution_overrideable",
        "data",
        "embedding_renorm",
        "flatten_dense_tensors",
        "from_file",
        "get_gradients",
        "is_leaf",
        "output_nr",
        "pin_memory",
        "random",
        "resize",
        "resize_as",
        "retains_grad",
        "set",
        "sparse_resize",
        "sparse_resize_and_clear",
        "to_mkldnn",
        "unflatten_dense_tensors",
    }
)
"""Public operators that have no place in a program: they read files, change how memory is held, or look at autograd."""

_REFUSED_PREFIXES: Final = ("fbgemm_", "mkldnn_", "miopen_", "mps_", "quantized_", "sparse_", "to_sparse")
"""Families whose operands are packed for one library, which trusts them."""

_PRIVATE: Final = frozenset(
    {
        "__and__",
        "__lshift__",
        "__or__",
        "__rshift__",
        "__xor__",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
        "_addmm_activation",
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_cdist_forward",
        "_conj",
        "_conj_physical",
        "_convolution",
        "_embedding_bag",
        "_embedding_bag_forward_only",
        "_euclidean_dist",
        "_fft_c2c",
        "_fft_c2r",
        "_fft_r2c",
        "_fused_rms_norm",
        "_int_mm",
        "_linalg_det",
        "_linalg_eigh",
        "_linalg_slogdet",
        "_linalg_solve_ex",
        "_linalg_svd",
        "_local_scalar_dense",
        "_log_softmax",
        "_logcumsumexp",
        "_masked_softmax",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
        "_neg_view",
        "_pad_circular",
        "_pad_enum",
        "_pdist_forward",
        "_prelu_kernel",
        "_safe_softmax",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_cudnn_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_fused_attention_overrideable",
        "_scaled_mm",
        "_shape_as_tensor",
        "_softmax",
        "_stack",
        "_to_copy",
        "_trilinear",
        "_unique",
        "_unique2",
        "_unsafe_index",
        "_unsafe_index_put",
        "_unsafe_masked_index",
        "_unsafe_view",
        "_upsample_bicubic2d_aa",
        "_upsample_bilinear2d_aa",
        "_upsample_nearest_exact1d",
        "_upsample_nearest_exact2d",
        "_upsample_nearest_exact3d",
        "_weight_norm",
        "_weight_norm_interface",
    }
)
"""Private operators that graphs of real models hold."""

_NAME: Final = re.compile(r"([A-Za-z_]\w{0,127})::([A-Za-z_]\w{0,127})\Z", re.ASCII)
_OVERLOAD: Final = re.compile(r"\w{0,127}\Z", re.ASCII)


def find_operator(name: str, overload: str, libraries: Collection[str] = ()) -> OpOverload:
    """Returns an operator that a program may call.

    Args:
        name: Namespace and name, `aten::relu`.
        overload: Name of the overload; "" for the default.
        libraries: Namespaces that are allowed beside PyTorch's own. One whose operators are not registered is imported
            as a module of the same name, which the caller has named.

    Raises:
        PlanError: There is no such operator, or programs may not call it; the message says why.
    """
    parts = _NAME.match(name)
    if parts is None or _OVERLOAD.match(overload) is None:
        raise PlanError(f"{name!r:.80} is no name of an operator")
    namespace, base = parts.groups()
    title = f"{namespace}.{base}.{overload or 'default'}"
    is_own = namespace in OWN_NAMESPACES or name in OWN_OPERATORS
    if not is_own and namespace not in libraries:
        raise PlanError(
            f"the program calls {title}, an operator of the library {namespace!r}",
            hint=f"if you trust that library, load the program with operators=[{namespace!r}]",
        )
    if not _is_registered(name, overload) and not is_own:
        _import(namespace, title)
    if not _is_registered(name, overload):
        raise PlanError(
            f"the program calls {title}, an operator that is not registered here",
            hint="install the version of PyTorch, or of the library, that the program was saved with",
        )
    operator: Any = getattr(getattr(getattr(torch.ops, namespace), base), overload or "default")
    why = why_refused(operator)
    if why:
        raise PlanError(f"programs may not call {title}", why=why)
    return operator  # type: ignore[no-any-return]  # just looked up


def why_refused(operator: Any) -> str:
    """Says why programs may not call an operator, wherever it comes from; "" when they may."""
    if not isinstance(operator, OpOverload):
        return "it is no operator of the dispatcher"
    schema = operator._schema
    namespace, _, base = schema.name.partition("::")
    if not _is_registered(schema.name, schema.overload_name):
        return "it is no operator of the dispatcher"
    if schema.is_mutable:
        return "it writes to its arguments"
    if namespace not in OWN_NAMESPACES:
        return ""
    if base in _REFUSED or base.startswith(_REFUSED_PREFIXES) or base.endswith("_backward"):
        return "it reads files, packs memory for one library, or belongs to training"
    if base.startswith("_") and base not in _PRIVATE:
        return "it is private to PyTorch"
    return ""


def _is_registered(name: str, overload: str) -> bool:
    """Whether the dispatcher has the operator; TorchScript's operators are in another table."""
    try:
        return bool(torch._C._dispatch_has_kernel(f"{name}.{overload}" if overload else name))
    except RuntimeError:
        return False


def _import(namespace: str, title: str) -> None:
    try:
        importlib.import_module(namespace)
    except ImportError as error:
        raise PlanError(
            f"the program calls {title}, and the library {namespace!r} cannot be imported",
            why=str(error),
            hint=f"install it, or import what registers torch.ops.{namespace} before loading the program",
        ) from error
