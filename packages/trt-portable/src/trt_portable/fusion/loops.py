"""Loops whose iterations run as programs: neighbours fused, constants computed once, no look-up by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from trt_portable.execution.program import LayerCall, PackingCompute, Program, forget_packed
from trt_portable.network.layer import ILayer
from trt_portable.network.loop import LoopRegion
from trt_portable.network.region import Values
from trt_portable.shape_tensors import Value

Fuse = Callable[[Sequence[LayerCall], Collection[int]], list[LayerCall]]
"""Fuses neighbours among calls, of which some tensors are visible elsewhere."""


def with_programs(calls: Sequence[LayerCall], fuse: Fuse) -> list[LayerCall]:
    """Calls, of which loops run every iteration as a program.

    Args:
        calls: In executable order.
        fuse: Makes of the calls of a body what runs in every iteration.
    """
    return [
        replace(call, compute=FusedLoop(call.layer, fuse)) if isinstance(call.layer, LoopRegion) else call
        for call in calls
    ]


class FusedLoop(PackingCompute):
    """A loop: computes its outputs from its inputs.

    Args:
        loop: What is computed; the constants of its body are taken anew when a refit replaced them.
        fuse: Fuses neighbours in its body.
    """

    def __init__(self, loop: LoopRegion, fuse: Fuse) -> None:
        self._loop = loop
        self._bound: object = None  # the weights that the programs hold
        test = loop._test
        body = [layer for layer in loop._body if not any(layer is other for other in test)]
        ends = [layer._inputs[1] for layer in loop._recurrences] + [layer._inputs[0] for layer in loop._results]
        wanted = {id(tensor) for tensor in (*ends, loop._while)}
        read = {id(tensor) for layer in body for tensor in layer._inputs}
        self._test = _Part(test, wanted | read, fuse)
        self._body = _Part(body, wanted, fuse)

    def __call__(self, inputs: Sequence[Value | None]) -> tuple[Value, ...]:
        """Runs the loop."""
        bound = self._loop._bound
        if bound is not self._bound:
            self._test.program.load_constants()
            self._body.program.load_constants()
            self._bound = bound
        return self._loop._iterate(inputs, self._test.run, self._body.run)

    def forget(self) -> int:
        """Gives up what the layers of the body packed, and returns how many bytes it was."""
        calls = (*self._test.program.calls, *self._body.program.calls)
        return forget_packed(call.compute for call in calls)


class _Part:
    """Layers of an iteration as a program.

    Args:
        layers: In executable order.
        wanted: Identities of tensors that something else reads.
        fuse: Fuses neighbours.
    """

    def __init__(self, layers: Sequence[ILayer], wanted: Iterable[int], fuse: Fuse) -> None:
        calls = [_call_of(layer) for layer in layers]
        made = {tensor for call in calls for tensor in call.outputs}
        self._inputs = sorted({tensor for call in calls for tensor in call.inputs if tensor is not None} - made)
        self._outputs = sorted(made.intersection(wanted))
        self.program = Program(fuse(calls, frozenset(self._outputs)), self._inputs, self._outputs)

    def run(self, values: Values) -> None:
        """Adds what is wanted to the values of an iteration."""
        results = self.program.run([values[tensor] for tensor in self._inputs])
        values.update(zip(self._outputs, results, strict=True))


def _call_of(layer: ILayer) -> LayerCall:
    return LayerCall(
        layer=layer,
        inputs=tuple(None if tensor is None else id(tensor) for tensor in layer._inputs),
        outputs=tuple(id(tensor) for tensor in layer._outputs),
        compute=layer._engine_compute(),
        output_names=tuple(tensor.name for tensor in layer._outputs),
        name=layer.name,
    )
