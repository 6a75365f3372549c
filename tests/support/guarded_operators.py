"""Calls reviewed operators on the samples of PyTorch's database, between pages that nobody may touch.

``python guarded_operators.py PART PARTS SIDE`` runs a part of the entries; SIDE is where guards touch operands. Values
of operands are those of the sample, then such as a stranger would write: what is no number, and the least and greatest
there are. Each entry is printed before it runs, so that whoever started it knows which one ended the process. The last
line is JSON: the operators that were called, how often, and how many calls were refused by a check of ours.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from guarded_memory import guarded
from opinfo_samples import entries, samples_of, types_of

from trt_core import ExecutionError
from trt_core.internals import OpOverload, TorchDispatchMode, pytree
from trt_runtime.program.allowed_operators import needs_trust
from trt_runtime.program.operand_checks import checked

SECONDS: Final = 60
SAMPLES: Final = 2
TYPES: Final = (torch.float32, torch.int64, torch.int8, torch.bool)
MEMORY_OF_NOBODY: Final = "empty"


class _Guarded(TorchDispatchMode):
    """Puts operands of reviewed operators between guards, and checks in front."""

    def __init__(self, side: str) -> None:
        super().__init__()
        self._side = side
        self.called: set[str] = set()
        self.unreviewed: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload) or func._schema.is_mutable or needs_trust(func):
            self.unreviewed.add(str(func))
            return func(*args, **kwargs)
        self.called.add(func._schema.name)
        if func.is_view:
            return func(*args, **kwargs)
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._guard, (tuple(args), dict(kwargs)))
        return checked(func)(*args, **kwargs)

    def _guard(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_conj() or tensor.is_neg() else guarded(tensor, self._side)


def hostile(tensor: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """A tensor of the same shape with values that a stranger would choose."""
    dtype = tensor.dtype
    if dtype is torch.bool or not tensor.numel() or tensor.layout is not torch.strided:
        return tensor
    if dtype.is_complex or dtype.is_floating_point:
        info = torch.finfo(dtype)
        values: list[float] = [float("nan"), float("inf"), -float("inf"), info.max, info.min, info.tiny, 0.0, -1.0]
    else:
        limits = torch.iinfo(dtype)
        values = [limits.min, limits.max, 0, 1, -1 if limits.min < 0 else 2]
    chosen = torch.tensor([chance.choice(values) for _ in range(16)], dtype=dtype)
    return chosen[torch.randint(0, 16, tensor.shape)]


def main(part: int, parts: int, side: str) -> None:
    """Runs a part of the entries."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    chance = random.Random(part)
    called: set[str] = set()
    counts = {"calls": 0, "refused": 0, "failed": 0}
    for name in sorted(entries())[part::parts]:
        if name.startswith("jiterator"):
            continue
        for dtype in types_of(name, TYPES):
            for sample in samples_of(name, dtype, SAMPLES):
                mode = _Guarded(side)  # type: ignore[no-untyped-call]  # its base has no annotations
                with torch.no_grad(), mode:
                    _call(sample.module, sample.tensors, counts, name)
                called |= mode.called
                if mode.unreviewed:
                    continue  # nobody says that these can take what follows
                for _ in range(2):
                    worse = [hostile(tensor, chance) for tensor in sample.tensors]
                    with torch.no_grad(), mode:
                        _call(sample.module, worse, counts, name)
    sys.stdout.write(json.dumps({"called": sorted(called), **counts}) + "\n")


def _call(module: Any, tensors: Sequence[torch.Tensor], counts: dict[str, int], name: str) -> None:
    sys.stdout.write(f"{name} {[(tuple(tensor.shape), str(tensor.dtype)) for tensor in tensors]}\n"[:400])
    sys.stdout.flush()
    signal.alarm(SECONDS)
    counts["calls"] += 1
    try:
        module(*tensors)
    except ExecutionError:
        counts["refused"] += 1
    except Exception:  # PyTorch refuses it
        counts["failed"] += 1
    finally:
        signal.alarm(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
