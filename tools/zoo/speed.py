"""What compiling costs and what it gains, beside Inductor: seconds to the first result, to one of another size, calls.

Every peer runs in a process of its own, on one thread and with empty caches.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch

from tools.zoo.check import SEED, Values, call, sample_values
from tools.zoo.comparison import Mismatch, agrees, error
from tools.zoo.entry import Case, Route, Shapes
from tools.zoo.record import Outcome, Record
from tools.zoo.registry import entries
from tools.zoo.settle import settle

BACKENDS: Final = {Route.TORCH_COMPILE: "torch_tensorrt", Route.INDUCTOR: "inductor"}
"""The peers."""

LIBRARIES: Final = ("torchvision", "timm", "transformers", "diffusers")

_CALLS_SECONDS: Final = 1.5
_MOST_CALLS: Final = 200


def sample(each: int) -> Iterator[str]:
    """Yields the names of entries spread evenly over each library's list, the libraries by turns.

    Args:
        each: How many of each library.
    """
    libraries = [
        [
            entry.name
            for entry in entries().values()
            if entry.library == library and not entry.excluded and not entry.fixed_shapes
        ]
        for library in LIBRARIES
    ]
    for index in range(each):
        for names in libraries:
            if index < len(names):
                yield names[len(names) * index // min(each, len(names))]


def speed_cases(each: int, pattern: str = "", peer: Route | None = None) -> Iterator[Case]:
    """Yields the cases of a sample, the peers of an entry after one another, or one peer only."""
    for name in sample(each):
        if pattern in name:
            for route in BACKENDS if peer is None else (peer,):
                yield Case(name, route, Shapes.STATIC)


def measure(case: Case) -> Record:
    """Measures one peer on one architecture, on one thread.

    Sizes are what users of `torch.compile` get who say nothing: fixed at first, and when they change, compiled for.

    Returns:
        A record whose `speed` has ``first`` and ``again``, seconds to the first result and to the first of another
        size, each also as seconds of processor (``first_processor``, ``again_processor``, child processes included),
        ``call`` and ``eager``, microseconds of a call of the first size.
    """
    torch.set_num_threads(1)
    entry = entries()[case.entry]
    torch.manual_seed(SEED)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        model = settle(entry.make())
        here, elsewhere = sample_values(entry, "opt"), sample_values(entry, "max")
        expected = [call(model, values) for values in (here, elsewhere)]
        speed = {"eager": _microseconds(model, here)}
        optimized = torch.compile(model, backend=BACKENDS[case.route])
        try:
            found = [_timed(lambda: call(optimized, here), "first", speed)]
            speed["call"] = _microseconds(optimized, here)
            found.append(_timed(lambda: call(optimized, elsewhere), "again", speed))
        except Exception as failure:
            return Record.of(case, Outcome.FAILED, why=f"{type(failure).__name__}: {failure}"[:300], speed=speed)
        try:
            distance = max(map(error, found, expected))
        except Mismatch as mismatch:
            return Record.of(case, Outcome.WRONG, why=str(mismatch), speed=speed)
    right = agrees(distance, None)
    return Record.of(case, Outcome.WHOLE if right else Outcome.WRONG, error=distance, speed=speed)


def _timed(action: Callable[[], Any], name: str, speed: dict[str, float]) -> Any:
    wall, processor = time.perf_counter(), _processor_seconds()
    result = action()
    speed[name] = time.perf_counter() - wall
    speed[f"{name}_processor"] = _processor_seconds() - processor
    return result


def _processor_seconds() -> float:
    """Seconds of processor that this process and the children it waited for have used."""
    return sum(os.times()[:4])


def _microseconds(function: Callable[..., Any], values: Values) -> float:
    """Returns the lowest decile of the times of calls, those that other work on the machine disturbed least."""
    args, kwargs = values
    for _ in range(3):
        function(*args, **kwargs)
    times: list[float] = []
    until = time.perf_counter() + _CALLS_SECONDS
    while len(times) < 10 or (len(times) < _MOST_CALLS and time.perf_counter() < until):
        start = time.perf_counter()
        function(*args, **kwargs)
        times.append((time.perf_counter() - start) * 1e6)
    return statistics.quantiles(times, n=10)[0]
