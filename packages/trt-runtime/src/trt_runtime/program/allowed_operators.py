"""Which operators a program may call: those of PyTorch that are listed, and those of libraries that the caller names.

A program names an operator by its schema, `aten::relu`. It is looked up in PyTorch's dispatcher and nowhere else:
`torch.ops` also answers for TorchScript's own operators, of which some write files. It must be on the list in
`operators.txt`, and its schema must say that it writes to no argument (`WriteCall` is how programs write).

Programs of strangers, which nobody signed whom this user trusts, may call those in `reviewed_operators.txt` only, of
which each group has a written contract.

An operator that a later PyTorch adds is not allowed until somebody has looked at it and listed it there. On the list
are public operators of which some overload is functional, and of the private ones those that capturing and decomposing
real models leaves in graphs. Not on it, though functional:

- what answers about memory, devices or autograd rather than values: `is_pinned`, `storage_offset`, `get_device`;
- operators on sparse, nested and quantized tensors, which programs do not hold;
- operators whose kernels trust numbers without looking: pivots of LAPACK's factorizations, lengths of `ctc_loss`,
  `segment_reduce` with its flag `unsafe`; and those with operands that are packed for one library;
- kernels of one backend and parts of training, which graphs reach through other operators: `cudnn_convolution`,
  `batch_norm_elemt`, backward passes.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from trt_core.errors import PlanError
from trt_core.internals import OWN_NAMESPACES, OpOverload, has_operator
from trt_runtime.bindings import MAX_RANK
from trt_runtime.program.fields import MAX_EXTENT
from trt_runtime.program.graph import TensorType
from trt_runtime.program.literals import Value, values_in
from trt_runtime.result_layout import LAY_OUT

OWN_OPERATORS: Final = frozenset({"trt::quantize", "trt::dequantize", "trt::fake_quantize_blocks", LAY_OUT})
"""Operators of ours that programs may call, beside engines; see `trt_core.quantization` for all but the last."""

COLLECTIVE_LIBRARY: Final = "_c10d_functional"
"""Whoever names it lets a program talk to other ranks, by operators and by engines."""

COLLECTIVES: Final = frozenset(
    f"{COLLECTIVE_LIBRARY}::{name}"
    for name in (
        *("all_gather_into_tensor", "all_reduce", "all_to_all_single", "broadcast"),
        *("reduce_scatter_tensor", "wait_tensor"),
    )
)
"""Operators of PyTorch that communicate, where no engine does; programs that are trusted may call them."""

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
    is_own = namespace in OWN_NAMESPACES or name in OWN_OPERATORS or name in COLLECTIVES
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
    if base not in allowed_operators()[namespace]:
        return "it is not on the list of operators that only compute; see trt_runtime.program.allowed_operators"
    return ""


def _is_registered(name: str, overload: str) -> bool:
    """Whether the dispatcher has the operator; TorchScript's operators are in another table."""
    try:
        return bool(has_operator(f"{name}.{overload}" if overload else name))
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


@functools.cache
def allowed_operators() -> Mapping[str, frozenset[str]]:
    """Names of operators by namespace, without overloads, that programs may call which are trusted."""
    return _listed("operators.txt")


@functools.cache
def reviewed_operators() -> Mapping[str, frozenset[str]]:
    """Those that a stranger's program may call."""
    return _listed("reviewed_operators.txt")


_NAMED: Final[dict[str, type]] = {
    "ScalarType": torch.dtype,
    "Layout": torch.layout,
    "MemoryFormat": torch.memory_format,
    "Device": torch.device,
}
"""Types of arguments that schemas take numbers for as well."""


ENDLESS: Final = frozenset(
    f"aten::{name}" for name in ("slice", "slice_scatter", "slice_copy", "randint", "randint_like")
)
"""Operators of which an integer may be far larger than any tensor."""


_MOST_INTEGERS: Final = 2 * MAX_RANK
"""Most integers in a list: two for each axis, as of what is padded. Some kernels call themselves for each of them."""

_OF_PIECES: Final = frozenset(("split_sizes", "split_size", "indices", "indices_or_sections", "sections"))
"""Lists of integers that have one for each piece, not for each axis."""


def why_not_an_argument(
    operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], known: Sequence[Any] = ()
) -> str:
    """Says which argument is not what its operator believes without looking; nothing if all are.

    Where a type, layout, format or device is needed, kernels believe a number, whatever it is. Where a number is
    needed, PyTorch reads it out of a tensor, after everybody who looks at numbers has looked. And kernels compute with
    integers that no tensor is as large as until they leave 64 bits, and go through lists of any length.

    Args:
        operator: The operator.
        args, kwargs: What it is called with.
        known: What is known of the values among it; types of tensors stand for tensors.
    """
    kinds = _believed(operator)
    for name, value in (*zip(_names_of(operator), args, strict=False), *kwargs.items()):
        kind = kinds.get(name)
        if kind is None or value is None:
            continue
        if kind is not int and kind is not float:
            if not isinstance(value, kind):
                return f"{name} is no {kind.__name__}"
            continue
        is_long = isinstance(value, (list, tuple)) and len(value) > _MOST_INTEGERS
        if is_long and name not in _OF_PIECES and operator.namespace in OWN_NAMESPACES:
            return f"{name} has {len(value)} numbers, more than there are axes"
        for leaf in value if isinstance(value, (list, tuple)) else (value,):
            item = known[leaf.index] if type(leaf) is Value else leaf
            if isinstance(item, (torch.Tensor, TensorType)):
                return f"{name} is a tensor, not a number"
            if kind is int and type(item) is int and not -MAX_EXTENT <= item <= MAX_EXTENT:
                return f"{name} is {item}, more than any tensor has"
    return ""


def integers_read(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[int]:
    """Numbers of the values among arguments that are integers which no tensor may exceed; see `why_not_an_argument`."""
    kinds = _believed(operator)
    given = (*zip(_names_of(operator), args, strict=False), *kwargs.items())
    return [number for name, value in given if kinds.get(name) is int for number in values_in(value)]


@functools.lru_cache(maxsize=4096)
def integers_of(operator: OpOverload) -> frozenset[str]:
    """Names of the arguments that are integers, or lists of them."""
    return frozenset(argument.name for argument in operator._schema.arguments if "int" in str(argument.type).lower())


@functools.lru_cache(maxsize=4096)
def _names_of(operator: OpOverload) -> tuple[str, ...]:
    return tuple(argument.name for argument in operator._schema.arguments)


@functools.lru_cache(maxsize=4096)
def _believed(operator: OpOverload) -> Mapping[str, type]:
    """What arguments have to be, by name: of a class, bounded integers (`int`), or other plain values (`float`)."""
    found: dict[str, type] = {}
    for argument in operator._schema.arguments:
        text = str(argument.real_type)
        named = _NAMED.get(text.removeprefix("Optional[").removesuffix("]"))
        is_bounded = argument.name in integers_of(operator) and operator._schema.name not in ENDLESS
        if named is not None:
            found[argument.name] = named
        elif "Tensor" not in text:
            found[argument.name] = int if is_bounded else float
    return found


def needs_trust(operator: OpOverload) -> bool:
    """Whether only programs that are trusted may call an operator of PyTorch."""
    name = operator._schema.name
    namespace, _, base = name.partition("::")
    return name in COLLECTIVES or (namespace in OWN_NAMESPACES and base not in reviewed_operators()[namespace])


def _listed(file: str) -> dict[str, frozenset[str]]:
    found: dict[str, list[str]] = {}
    names: list[str] = []
    for line in (Path(__file__).parent / file).read_text(encoding="ascii").splitlines():
        if line.startswith("["):
            names = found.setdefault(line.strip("[]"), [])
        elif not line.startswith("#"):
            names += line.split()
    return {namespace: frozenset(listed) for namespace, listed in found.items()}
