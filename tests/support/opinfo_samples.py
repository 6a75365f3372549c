"""The samples of PyTorch's own operator database (OpInfo), each as a module that can be exported."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

SEED = 0


@dataclass(frozen=True)
class Sample:
    """One call of an operator.

    Attributes:
        index: Its number among the entry's samples of that type.
        args: The positional arguments.
        module: Calls the operator; takes the sample's tensors.
        tensors: The tensors among the sample's arguments, in order.
    """

    index: int
    args: tuple[Any, ...]
    module: nn.Module
    tensors: tuple[torch.Tensor, ...]

    def describe(self) -> str:
        """Returns what is needed to recognize the sample in a failure."""
        shapes = ", ".join(f"{tuple(tensor.shape)}@{tensor.dtype}" for tensor in self.tensors)
        return f"sample {self.index} ({shapes}; {self.module.extra_repr()})"


class OperatorModule(nn.Module):
    """Calls an operator with the tensors that it is given, and with everything else that the sample says."""

    def __init__(self, op: Callable[..., Any], arguments: Any) -> None:
        super().__init__()
        self._op = op
        leaves, self._spec = pytree.tree_flatten(arguments)
        self._leaves = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self._places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self._leaves)
        for place, tensor in zip(self._places, tensors, strict=True):
            leaves[place] = tensor
        args, kwargs = pytree.tree_unflatten(leaves, self._spec)
        return self._op(*args, **kwargs)

    def extra_repr(self) -> str:
        return str([leaf for index, leaf in enumerate(self._leaves) if index not in self._places])


@functools.cache
def entries() -> dict[str, Any]:
    """Returns the database by the names of its entries, `softmax` or `softmax.with_dtype`."""
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db  # seconds to import
    from torch.testing._internal.opinfo import core

    # samples ask for a test case of unittest's, in the source lines of every caller: most of the time that they took
    for module in (common_utils, core):
        module.extract_test_fn = lambda: None  # type: ignore[attr-defined]
    return {f"{info.name}.{info.variant_test_name}".rstrip("."): info for info in op_db}


def types_of(name: str, dtypes: Sequence[torch.dtype]) -> list[torch.dtype]:
    """Returns those of some types that an entry has samples of on the CPU."""
    supported = entries()[name].supported_dtypes("cpu")
    return [dtype for dtype in dtypes if dtype in supported]


def samples_of(name: str, dtype: torch.dtype, limit: int | None = None) -> Iterator[Sample]:
    """Yields the samples of an entry, the same ones every time.

    Args:
        name: A name of `entries`.
        dtype: Type of the samples' tensors.
        limit: Most samples to yield, the first ones; None for all of them.
    """
    info = entries()[name]
    torch.manual_seed(SEED)
    for index, sample in enumerate(info.sample_inputs("cpu", dtype, requires_grad=False)):
        if index == limit:
            return
        args = (sample.input, *sample.args)
        arguments = (args, sample.kwargs)
        tensors = tuple(leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Tensor))
        state = torch.get_rng_state()  # what is done with a sample must not change the samples after it
        yield Sample(index, args, OperatorModule(info.op, arguments).eval(), tensors)
        torch.set_rng_state(state)
