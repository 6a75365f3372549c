"""Operator calls that PyTorch's own samples lead to."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from trt_converters.testing.calls import substitute
from trt_core.internals import OpOverload
from trt_core.nesting import tensors_in
from trt_core.paused_collection import paused_collection

_SEED: Final = 1234  # that of PyTorch's own tests


@dataclass(frozen=True)
class OperatorSample:
    """One call of an operator that PyTorch's own samples lead to.

    Attributes:
        op: The operator overload.
        args, kwargs: What it was called with.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def samples_from_opinfo(name: str, dtype: torch.dtype, limit: int = 8) -> list[OperatorSample]:
    """Returns operator calls that the samples of PyTorch's OpInfo database make, as exported graphs have them.

    Args:
        name: Name of the OpInfo entry, such as `"add"` or `"nn.functional.gelu"`.
        dtype: Type of the samples' tensors.
        limit: Most samples taken; they are spread evenly over those that there are.

    Returns:
        The calls; empty when the entry has no samples of that type.

    Raises:
        ModuleNotFoundError: What PyTorch's samples import is not installed; the extra `samples` brings it.
    """
    samples = []
    for info, sample in _opinfo_samples(name, dtype, limit):
        samples += _calls_of(info, sample)
    return samples


def _opinfo_samples(name: str, dtype: torch.dtype, limit: int) -> Iterator[tuple[Any, Any]]:
    try:
        from trt_converters.internals import op_db  # seconds to import
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"PyTorch's samples need {error.name}: pip install 'trt-converters[samples]'", name=error.name
        ) from error
    for info in op_db:
        if info.name != name or dtype not in info.supported_dtypes("cpu"):
            continue
        found = list(itertools.islice(_drawn(info, dtype), 200))
        step = max(len(found) / limit, 1.0)
        for index in range(min(limit, len(found))):
            yield info, found[int(index * step)]


def _drawn(info: Any, dtype: torch.dtype) -> Iterator[Any]:
    """PyTorch's samples, each drawn from one seed, without what `OpInfo.sample_inputs` does for PyTorch's own tests.

    That looks for a test case in the source lines of every caller, and seeds devices that are not there.
    """
    from trt_converters.internals import set_rng_seed

    set_rng_seed(_SEED)  # NumPy's and Python's too
    samples = iter(info.sample_inputs_func(info, "cpu", dtype, False))
    while True:
        torch.default_generator.manual_seed(_SEED)
        try:
            sample = next(samples)
        except StopIteration:
            return
        yield sample


def _calls_of(info: Any, sample: Any) -> list[OperatorSample]:
    from trt_core.internals import make_fx

    def function(*tensors: torch.Tensor) -> Any:
        primary, args, kwargs = substitute((sample.input, sample.args, sample.kwargs), iter(tensors), tensors)
        return info.op(primary, *args, **kwargs)

    tensors = list(tensors_in((sample.input, sample.args, sample.kwargs)))
    calls: list[OperatorSample] = []

    class Recorder(fx.Interpreter):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(target, OpOverload) and list(tensors_in((args, kwargs))):
                calls.append(OperatorSample(target, tuple(args), dict(kwargs)))
            return super().call_function(target, args, kwargs)

    with torch.no_grad(), paused_collection():
        # before dispatch, composite operators are still whole, as they are in exported programs
        graph = make_fx(function, pre_dispatch=True)(*tensors)
        Recorder(graph).run(*tensors)
    return calls
