"""What operators are expected to make bounds what they make, on the samples of PyTorch's own database."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from opinfo_samples import entries, samples_of, types_of

from trt_core.internals import OpOverload, TorchDispatchMode, has_kernel, pytree
from trt_core.limits import UNLIMITED, Account, CallLimits
from trt_core.operator_counts import elements_made, operands_of, pieces_made
from trt_runtime.program.graph import OperatorCall, SequenceType, TensorType
from trt_runtime.program.literals import Value
from trt_runtime.program.loaded_program import _estimate

SLACK = 2
"""Values and their places are counted as one, and complex numbers as real ones."""
SMALL = 512
PARTS = 12
RUN = PARTS if "TRT_STRESS" in os.environ else 3
"""How many of the parts run; `nox -s stress` runs all."""
NEEDS_CUDA = "jiterator"
RANDOM = ("empty", "new_empty", "resize_")
"""Entries whose results hold memory that nobody has written to."""

PLACES_OF_LENGTHS = {"aten::_ctc_loss", "aten::_chunk_cat", "aten::_histogramdd_bin_edges"}
"""Operators that make somewhat more than twice as much; no program of a stranger may call them."""


class _Compared(TorchDispatchMode):
    """Compares what each operator makes with what is expected."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(func, OpOverload) and has_kernel(func.name(), "CompositeImplicitAutograd"):
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if not func.is_view and not func._schema.is_mutable and func._schema.name not in PLACES_OF_LENGTHS:
            self._compare(func, args, kwargs, result)
        return result

    def _compare(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        given = [leaf for leaf in pytree.tree_leaves((args, dict(kwargs))) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        operands = operands_of(func, args, kwargs)
        counted = elements_made(func, operands)
        expected = sum(tensor.numel() for tensor in given) if counted is None else counted
        width = max([8, *(tensor.itemsize for tensor in given)])
        size = sum(tensor.nbytes for tensor in made if tensor.layout is torch.strided and 0 not in tensor.stride())
        if size > SLACK * expected * width + SMALL:
            self.wrong.append(f"{func} makes {size} bytes, not {expected * width}: {operands}"[:400])
        if isinstance(result, list) and len(result) > pieces_made(func, operands):
            self.wrong.append(f"{func} makes {len(result)} tensors: {operands}"[:400])


def _names(part: int) -> list[str]:
    return [name for name in sorted(entries())[part::PARTS] if not name.startswith(NEEDS_CUDA)]


@pytest.mark.parametrize("part", range(RUN))
def test_counts_bound_what_is_made(part: int) -> None:
    for name in _names(part):
        for dtype in types_of(name, (torch.float32, torch.int64)):
            for sample in samples_of(name, dtype, 3):
                compared = _Compared()  # type: ignore[no-untyped-call]  # its base has no annotations
                with torch.no_grad(), compared, warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    sample.module(*sample.tensors)
                assert not compared.wrong, compared.wrong


@pytest.mark.parametrize("part", range(RUN))
def test_watched_operators_compute_the_same(part: int) -> None:
    for name in _names(part):
        for dtype in types_of(name, (torch.float32,)):
            for sample in samples_of(name, dtype, 1):
                with torch.inference_mode(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    torch.manual_seed(0)
                    wanted = sample.module(*[tensor.clone() for tensor in sample.tensors])
                    torch.manual_seed(0)
                    with Account(UNLIMITED).watching():
                        found = sample.module(*[tensor.clone() for tensor in sample.tensors])
                for one, other in zip(pytree.tree_leaves(found), pytree.tree_leaves(wanted), strict=True):
                    if isinstance(other, torch.Tensor) and not name.startswith(RANDOM):
                        torch.testing.assert_close(one, other, equal_nan=True)


ESTIMATED = (
    *("add", "mul", "softmax", "cumsum", "cat", "nn.functional.conv2d", "nn.functional.avg_pool2d", "sort", "mm"),
    *("where", "gather", "constant_pad_nd", "tile", "nn.functional.layer_norm", "std_mean", "fft.rfft", "index_put"),
    *("nn.functional.max_pool2d", "nn.functional.conv_transpose2d", "nn.functional.interpolate.bilinear", "topk"),
    *("bmm", "addmm", "baddbmm", "nn.functional.conv1d", "nn.functional.conv3d", "nn.functional.max_pool3d"),
)


@pytest.mark.parametrize("name", ESTIMATED)
def test_estimates_bound_what_is_charged(name: str) -> None:
    """Beside an account that looks at each operator, on samples of PyTorch's own database."""
    seen = 0

    class Compared(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal seen
            kwargs = kwargs or {}
            result = func(*args, **kwargs)
            made = [one for one in pytree.tree_leaves(result) if isinstance(one, torch.Tensor)]
            given = [one for one in pytree.tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
            declared = SequenceType(tuple(TensorType(one.dtype, tuple(one.shape)) for one in made))
            slots = itertools.count()
            named, by_name = pytree.tree_map_only(torch.Tensor, lambda _: Value(next(slots)), (args, kwargs))
            step = OperatorCall(func._schema.name, func._schema.overload_name, named, by_name, declared)
            estimate = _estimate(func, step, range(len(given)))
            if estimate is not None:
                account = Account(CallLimits(), 0)
                account.before(func, args, kwargs)
                account.after(func, result)
                size, elements = estimate(given, {})
                assert account.made <= size and account.elements <= elements, func
                seen += 1
            return result

    for sample in samples_of(name, torch.float32, 12):
        with torch.no_grad(), Compared():
            sample.module(*sample.tensors)
    assert seen
