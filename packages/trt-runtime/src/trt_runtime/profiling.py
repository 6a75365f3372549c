"""How long each layer of the engines of a program takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from trt_core.errors import InputError
from trt_core.held_arguments import held_to_signature
from trt_core.provider import provider_module
from trt_core.reports import ShownReport
from trt_runtime.module import engine_modules, engines_of


@dataclass(frozen=True)
class LayerTime:
    """What one layer takes.

    Attributes:
        engine: Name of its engine.
        layer: Its name, which says what nodes of the model it comes from; of fused ones, all of them.
        milliseconds: Mean of a call.
    """

    engine: str
    layer: str
    milliseconds: float


@dataclass(frozen=True, repr=False)
class LayerProfile(ShownReport):
    """Times of layers, in the order in which engines run and report them.

    While layers are timed each is waited for, so compare them with each other, not with a call.

    Attributes:
        layers: The layers.
        calls: Calls that were timed.
    """

    layers: tuple[LayerTime, ...]
    calls: int

    @property
    def milliseconds(self) -> float:
        """All layers together."""
        return sum(layer.milliseconds for layer in self.layers)

    def to_json(self) -> dict[str, Any]:
        """Returns the times as JSON values."""
        return {"calls": self.calls, "layers": [asdict(layer) for layer in self.layers]}

    def to_chrome_trace(self) -> dict[str, Any]:
        """Returns one mean call in the format of `chrome://tracing` and Perfetto: a track for each engine."""
        tracks = {engine: index for index, engine in enumerate(dict.fromkeys(layer.engine for layer in self.layers))}
        events: list[dict[str, Any]] = [
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": track, "args": {"name": engine}}
            for engine, track in tracks.items()
        ]
        started = 0.0
        for layer in self.layers:
            lasted = layer.milliseconds * 1e3
            place = {"pid": 0, "tid": tracks[layer.engine], "ts": started, "dur": lasted}
            events.append({"name": layer.layer, "cat": "layer", "ph": "X", **place})
            started += lasted
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def to_text(self, most: int = 20) -> str:
        """Returns a table of the layers that take longest.

        Args:
            most: How many.
        """
        total = self.milliseconds or 1.0
        lines = [f"{len(self.layers)} layers, {self.milliseconds:.3f} ms in all, mean of {self.calls} calls"]
        for layer in sorted(self.layers, key=lambda item: -item.milliseconds)[:most]:
            share = layer.milliseconds / total
            lines.append(f"{layer.milliseconds:9.4f} ms {share:6.1%}  {layer.engine}: {layer.layer}")
        return "\n".join(lines)


@held_to_signature
def profile_layers(
    program: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    calls: int = 20,
    warm_up: int = 3,
) -> LayerProfile:
    """Times the layers of the engines of a program.

    Args:
        program: A compiled model, a loaded program or an engine; nothing else may call it meanwhile.
        args, kwargs: What to call it with.
        calls: Calls that are timed.
        warm_up: Calls before that.

    Raises:
        InputError: The program has no engines, or does not take the inputs; or there are no calls to time.
    """
    if calls < 1 or warm_up < 0:
        raise InputError(
            f"{calls} calls after {warm_up} cannot be timed", hint="give calls=1 or more, and warm_up=0 or more"
        )
    if not engine_modules(program):
        raise InputError("the program has no engines, so no layers to time", hint="torch.profiler times operators")
    with torch.inference_mode():
        program(*args, **(kwargs or {}))  # loads what is not loaded yet
        times: dict[tuple[str, str], float] = {}
        with _watched(program, times):
            for _ in range(warm_up):
                program(*args, **(kwargs or {}))
            times.clear()
            for _ in range(calls):
                program(*args, **(kwargs or {}))
    layers = (LayerTime(engine, layer, total / calls) for (engine, layer), total in times.items())
    return LayerProfile(tuple(layers), calls)


@contextlib.contextmanager
def _watched(program: nn.Module, times: dict[tuple[str, str], float]) -> Iterator[None]:
    """While the block runs, engines add the times of their layers."""
    api = provider_module()

    class Watcher(api.IProfiler):  # type: ignore[misc, name-defined]  # the provider is known at run time
        def __init__(self, engine: str) -> None:
            api.IProfiler.__init__(self)
            self.engine = engine

        def report_layer_time(self, layer_name: str, ms: float) -> None:
            key = self.engine, layer_name
            times[key] = times.get(key, 0.0) + ms

    engines = engines_of(program)
    try:
        for engine in engines:
            engine.watch(Watcher(engine.header.name or "engine"))
        yield
    finally:
        for engine in engines:
            engine.watch(None)
