"""The list of layers of a network, and the one door through which layers enter it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from trt_portable.enums import DataType
from trt_portable.errors import Refusal
from trt_portable.network.inference import Inference
from trt_portable.network.layer import Facts, ILayer, ITensor, L
from trt_portable.pybind import ContextManaged, Sealed, to_integer
from trt_portable.reporting import Reporter


def expect_tensor(value: Any, what: str) -> ITensor:
    """A tensor argument of a method.

    Raises:
        TypeError: Something else, None included.
    """
    if not isinstance(value, ITensor):
        raise TypeError(f"{what} must be an ITensor, not {type(value).__name__}")
    return value


class LayerFactory(ContextManaged, Sealed):
    """The layers of a network in the order in which they were added."""

    _reporter: Reporter
    _layers: list[ILayer]
    _inference: Inference
    _revision: int

    def _start(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._layers = []
        self._inference = Inference()
        self._revision = 0

    def _add(self, layer: L, *inputs: ITensor | None, **named: ITensor) -> L | None:
        """Adds a layer; logs and answers None when its definition refuses the inputs.

        Args:
            layer: Its attributes are set.
            inputs: Its first inputs; None for one that is left out.
            named: The inputs after these, which all are given, by the names that the caller's arguments have.

        Raises:
            TypeError: An input is not a tensor.
            NetworkError: The layer is refused and strict mode is on.
        """
        for index, tensor in enumerate(inputs):
            if tensor is not None:
                expect_tensor(tensor, f"input {index} of {type(layer).__name__}")
        given = (expect_tensor(tensor, name) for name, tensor in named.items())
        inputs = self._of_one_type(layer, (*inputs, *given))
        layer._name = self._default_name(layer)
        layer._inputs = list(inputs)
        facts: Sequence[Facts] = ()
        try:
            self._check_inputs(layer)
            layer._check_operands(layer._facts_source())
            try:
                facts = self._inference.infer(layer)
            except Refusal:
                if not layer._DEFERRED:
                    raise
                layer._stale = True
                facts = [Facts((), DataType.FLOAT, None)] * layer._NUM_OUTPUTS
        except Refusal as refusal:
            self._reporter.refuse(layer._subject(), refusal)
            return None
        self._insert(layer, inputs, facts)
        return layer

    def _of_one_type(self, layer: ILayer, inputs: tuple[ITensor | None, ...]) -> tuple[ITensor | None, ...]:
        """The inputs as the layer takes them: those that are given, for strongly typed networks convert nothing."""
        return inputs

    def _default_name(self, layer: ILayer) -> str:
        kind = type(layer).__name__.removeprefix("I").removesuffix("Layer")
        return f"(Unnamed Layer* {len(self._layers)}) [{kind}]"

    def _check_inputs(self, layer: ILayer) -> None:
        for tensor in layer._facts_source():
            if tensor is None:
                continue
            if tensor._network is not self:  # type: ignore[comparison-overlap]
                raise Refusal(f"input {tensor.name!r} belongs to another network")
            tensor._refresh()
            if tensor._extents is None:
                raise Refusal(f"the shape of input {tensor.name!r} is invalid")

    def _insert(self, layer: ILayer, inputs: Sequence[ITensor | None], facts: Sequence[Facts]) -> None:
        layer._network = self  # type: ignore[assignment]
        for tensor in inputs:
            if tensor is not None and not any(user is layer for user in tensor._consumers[-1:]):
                tensor._consumers.append(layer)
        layer._outputs += [ITensor(self, layer, index) for index in range(len(facts))]  # type: ignore[arg-type]
        layer._learn(facts)
        self._layers.append(layer)
        self._revision += 1

    def _refresh(self, wanted: ILayer) -> None:
        """Infers a stale layer again, stale layers upstream first."""
        stack = [wanted]
        while stack:
            layer = stack[-1]
            if not layer._stale:
                stack.pop()
                continue
            waiting = [
                tensor._producer
                for tensor in layer._facts_source()
                if tensor is not None and tensor._producer is not None and tensor._producer._stale
            ]
            if waiting:
                stack.extend(waiting)
                continue
            stack.pop()
            layer._stale = False
            try:
                self._check_inputs(layer)
                layer._check_operands(layer._facts_source())
                facts = self._inference.infer(layer)
            except Refusal as refusal:
                for output in layer._outputs:
                    output._extents = None
                    output._host = None
                self._reporter.refuse(layer._subject(), refusal)
                continue
            layer._learn(facts)

    def _validate(self) -> list[tuple[str, Refusal]]:
        """Infers whatever is stale, and lists what is wrong with the layers, by name."""
        found = []
        for layer in self._layers:
            if layer._stale:
                self._refresh(layer)
            try:
                layer._check_complete()
            except Refusal as refusal:
                found.append((layer._subject(), refusal))
            if any(output._extents is None for output in layer._outputs):
                found.append((layer._subject(), Refusal("shape inference failed")))
        return found

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self._layers)

    def get_layer(self, index: int) -> ILayer | None:
        """The layer at an index; None if there is none."""
        position = to_integer(index)
        return self._layers[position] if 0 <= position < len(self._layers) else None

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, index: int) -> ILayer:
        return self._layers[to_integer(index)]

    def __iter__(self) -> Iterator[ILayer]:
        return iter(self._layers)
