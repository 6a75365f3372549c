"""An engine for a range of sizes beside engines for each size, and beside eager.

`python -m tools.bench.ranges MODEL...` prints a line of JSON for every size of every model: milliseconds of the engine
for the range, of one that was built for the size, of eager, and the seconds that both engines took to build.
`--log` shows what the builder tried.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import torch

from tools.bench.measure import wait_for_device, waited_milliseconds
from tools.bench.models import make
from trt_core import Input

Shape = tuple[int, ...]

_BATCHES: Final = (1, 3, 8, 17, 32)
_USUAL_BATCH: Final = 8
_LENGTHS: Final = (33, 128, 500)
"""Of token sequences, beside the usual one; each with the usual batch."""


def measure(name: str, batches: Sequence[int] = _BATCHES, lengths: Sequence[int] = _LENGTHS) -> list[dict[str, Any]]:
    """Builds and times one model.

    Args:
        name: Of `tools.bench.models`.
        batches: Sizes of the first axis; the least and the greatest bound the range.
        lengths: Sizes of the second axis, where inputs are tokens.

    Returns:
        For each size its ``shape``, ``range``, ``fixed`` and ``eager`` in milliseconds, and ``range_build`` and
        ``fixed_build`` in seconds.
    """
    import trt_frontends

    model, (given,) = make(name)
    example = given.example()
    is_cuda = torch.cuda.is_available()
    model = model.to("cuda").half() if is_cuda else model
    shape = tuple(example.shape)
    dtype = torch.float16 if is_cuda and example.is_floating_point() else example.dtype
    has_lengths = not dtype.is_floating_point
    usual = (_USUAL_BATCH, *shape[1:])
    shapes: list[Shape] = [(batch, *shape[1:]) for batch in batches]
    if has_lengths:
        shapes += [(_USUAL_BATCH, length, *shape[2:]) for length in lengths]
    least = tuple(min(extents) for extents in zip(*shapes, strict=True))
    most = tuple(max(extents) for extents in zip(*shapes, strict=True))
    spec: dict[str, Any] = {"dtype": dtype, "name": given.name, "tensor_domain": given.tensor_domain}

    def build(declared: Input) -> tuple[Any, float]:
        started = time.perf_counter()
        compiled = trt_frontends.compile(model, inputs=[declared])
        compiled(declared.example(device="cuda" if is_cuda else "cpu"))
        wait_for_device()
        return compiled, time.perf_counter() - started

    found = []
    with torch.inference_mode():
        ranged, range_build = build(Input(min_shape=least, opt_shape=usual, max_shape=most, **spec))
        for each in shapes:
            fixed, fixed_build = build(Input(each, **spec))
            x = Input(each, **spec).example(device="cuda" if is_cuda else "cpu")
            callables = {"range": ranged, "fixed": fixed, "eager": model}
            times = {peer: statistics.median(_times(call, x)) for peer, call in callables.items()}
            found.append({"shape": each, **times, "range_build": range_build, "fixed_build": fixed_build})
    return found


def _times(call: Any, x: torch.Tensor) -> list[float]:
    for _ in range(8):  # recordings are made at the first calls
        call(x)
    return waited_milliseconds(lambda: call(x), least_seconds=0.2)


def _show_builds() -> None:
    """Prints what the portable builder says."""
    from trt_portable.reporting import Reporter

    def say(reporter: Any, text: str, *rest: Any) -> None:
        sys.stderr.write(f"  {text}\n")

    for name in ("verbose", "info", "warning"):
        setattr(Reporter, name, say)


def main() -> None:
    """Measures the models that the command line names."""
    parser = argparse.ArgumentParser(prog="tools.bench.ranges", description=__doc__)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--batches", type=int, nargs="+", default=_BATCHES)
    parser.add_argument("--lengths", type=int, nargs="*", default=_LENGTHS)
    parser.add_argument("--log", action="store_true", help="show what the builder tried, on stderr")
    arguments = parser.parse_args()
    if arguments.log:
        _show_builds()
    for name in arguments.models:
        for found in measure(name, arguments.batches, arguments.lengths):
            sys.stdout.write(json.dumps({"model": name, **found}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
