"""Shape inference: a layer's own definition, run on tensors without data.

Layers whose inputs have static extents run on meta tensors. Extents that are known only at run time
become unbacked symbolic integers; the expressions over them outlive the environment that made them, so
that an assumption made for one layer (two extents that must be equal, say) never reaches another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from trt_portable.dims import MAX_RANK
from trt_portable.dtypes import CARRIERS
from trt_portable.enums import DataType, ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.network.layer import META, ILayer
from trt_portable.network.rules import require
from trt_portable.network.tensor import Facts
from trt_portable.values import HOST_LIMIT, HostValues, NotOnHost, Value

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from trt_portable.network.tensor import ITensor

_HOST_TYPES = frozenset({DataType.INT32, DataType.INT64, DataType.BOOL, DataType.FLOAT})


class Symbols:
    """The symbolic extents of one network, and the environment that computes with them."""

    def __init__(self) -> None:
        self._count = 0
        self._environment: ShapeEnv | None = None
        self._mode: FakeTensorMode | None = None
        self._integers: dict[Any, torch.SymInt] = {}
        self._ranges: dict[Any, Any] = {}
        self._assertions = 0

    def create(self) -> Any:
        """A new symbol for an extent that is not negative."""
        environment, _ = self._open()
        symbol = self._new(environment)
        self._count += 1
        self._note_known(environment)
        return symbol

    @property
    def count(self) -> int:
        """The number of symbols made so far."""
        return self._count

    def mode(self) -> FakeTensorMode:
        """The fake tensor mode in which symbolic extents compute."""
        return self._open()[1]

    def integer(self, extent: Any) -> int | torch.SymInt:
        """An extent as something that PyTorch takes for a size."""
        if type(extent) is int:
            return extent
        found = self._integers.get(extent)
        if found is None:
            environment, _ = self._open()
            made = environment.create_symintnode(extent, hint=None)
            if not isinstance(made, torch.SymInt):
                return int(made)
            found = self._integers[extent] = made
        return found

    @staticmethod
    def expression(number: Any) -> Any:
        """An integer, or the expression of a symbolic one."""
        return _expression(number)

    def settle(self) -> None:
        """Drops what one layer assumed of the symbols, and counts those that it made."""
        environment = self._environment
        if environment is None:
            return
        created = len(environment.var_to_range) - len(self._ranges)
        if created > 0:
            self._count += created
        if (
            environment.replacements
            or environment.num_deferred_runtime_asserts != self._assertions
            or any(environment.var_to_range.get(symbol) != bounds for symbol, bounds in self._ranges.items())
        ):
            self._environment = self._mode = None
            self._integers.clear()
            return
        self._note_known(environment)

    def _note_known(self, environment: ShapeEnv) -> None:
        self._ranges = dict(environment.var_to_range)
        self._assertions = environment.num_deferred_runtime_asserts

    def _open(self) -> tuple[ShapeEnv, FakeTensorMode]:
        if self._environment is None or self._mode is None:
            from torch._subclasses.fake_tensor import FakeTensorMode
            from torch.fx.experimental.symbolic_shapes import ShapeEnv

            self._environment = ShapeEnv()
            self._mode = FakeTensorMode(shape_env=self._environment)
            self._mode.cache_enabled = False  # what would be found is remembered here; its keys take half of the time
            # Symbols are numbered in the order of their creation, so that the same ones come back.
            for _ in range(self._count):
                self._new(self._environment)
            self._note_known(self._environment)
        return self._environment, self._mode

    @staticmethod
    def _new(environment: ShapeEnv) -> Any:
        integer = environment.create_unbacked_symint()
        torch._check(integer >= 0)
        return integer.node.expr


class Inference:
    """Infers the outputs of the layers of one network, remembering what it has inferred before."""

    def __init__(self) -> None:
        self.symbols = Symbols()
        self._known: dict[Any, tuple[Facts, ...]] = {}

    def infer(self, layer: ILayer) -> tuple[Facts, ...]:
        """What a layer produces, given what is known of its inputs.

        Raises:
            Refusal: The layer's definition refuses its inputs, or an output has too many axes.
        """
        sources = layer._facts_source()
        for index in layer._HOST_INPUTS:
            tensor = sources[index] if index < len(sources) else None
            if tensor is not None:
                self.require_host(tensor)
        layer._check(sources)
        key = None
        if layer._CACHEABLE and not layer._DATA_DEPENDENT:
            key = (
                layer._signature(),
                tuple(None if tensor is None else (tensor._extents, tensor._dtype, tensor._host) for tensor in sources),
            )
            found = self._known.get(key)
            if found is not None:
                return found
        facts = self._run(layer, sources)
        for extents, _, _ in facts:
            require(len(extents) <= MAX_RANK, f"the output has rank {len(extents)}; {MAX_RANK} is the most")
        if key is not None:
            self._known[key] = facts
        return facts

    def require_host(self, tensor: ITensor) -> None:
        """Makes the values of a tensor known as far as can be; unknown ones become symbols.

        Raises:
            Refusal: It is too large for a shape tensor, or its own extents are not constant.
        """
        if tensor._host is not None:
            return
        count = 1
        for extent in tensor._extents or ():
            if type(extent) is not int:
                raise Refusal(f"the extents of shape tensor {tensor.name!r} must be constant")
            count *= extent
        if count > HOST_LIMIT:
            raise Refusal(f"shape tensor {tensor.name!r} has {count} elements; at most {HOST_LIMIT} are allowed")
        if tensor._dtype not in _HOST_TYPES:
            raise Refusal(
                f"{tensor.name!r} has type {tensor._dtype.name}; a shape tensor is INT32, INT64, BOOL or FLOAT"
            )
        producer = tensor._producer
        if producer is not None and producer._SHAPE_ALGEBRA:
            for source in producer._facts_source():
                if source is not None and source._host is None:
                    try:
                        self.require_host(source)
                    except Refusal:
                        break
            for output, facts in zip(producer._outputs, self._run(producer, producer._facts_source()), strict=True):
                output._host = facts.host
        if tensor._host is None:
            tensor._host = tuple(self.symbols.create() for _ in range(count))

    def _run(self, layer: ILayer, sources: Sequence[ITensor | None]) -> tuple[Facts, ...]:
        symbolic = layer._DATA_DEPENDENT or any(tensor is not None and not tensor._is_static for tensor in sources)
        try:
            known = layer._known_facts(self.symbols)
            if known is not None:
                return known
            if not symbolic:
                return self._facts(layer, layer._compute([self._value(t) for t in sources]))
            with self.symbols.mode():
                return self._facts(layer, layer._compute([self._value(tensor) for tensor in sources]))
        except Refusal:
            raise
        except NotOnHost:
            raise Refusal("the values of a shape tensor must be known") from None
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            reason = str(error).strip().split("\n")[0]
            raise Refusal(reason, ErrorCodeTRT.INTERNAL_ERROR) from error
        finally:
            if symbolic:
                self.symbols.settle()

    def _value(self, tensor: ITensor | None) -> Value | None:
        if tensor is None:
            return None
        if tensor._extents is None:
            raise Refusal(f"the shape of {tensor.name!r} is invalid")
        integer = self.symbols.integer
        carrier = CARRIERS[tensor._dtype]
        if tensor._host is not None:
            numbers = [number if isinstance(number, (int, float)) else integer(number) for number in tensor._host]
            return HostValues.of(numbers, tensor._extents, carrier, META)
        shape = tuple(integer(extent) for extent in tensor._extents)
        return torch.empty(shape, dtype=carrier, device=META)

    @staticmethod
    def _facts(layer: ILayer, values: Sequence[Value]) -> tuple[Facts, ...]:
        found = []
        for index, value in enumerate(values):
            extents = tuple(_expression(extent) for extent in value.shape)
            dtype = layer._output_dtype(index, value.dtype)
            host: tuple[Any, ...] | None = None
            if isinstance(value, HostValues) and value.numel() <= HOST_LIMIT:
                numbers = [_expression(number) for number in value.numbers()]
                host = None if any(number is None for number in numbers) else tuple(numbers)
            found.append(Facts(extents, dtype, host))
        return tuple(found)


def _expression(number: Any) -> Any:
    """An integer, or the expression of a symbolic one; None for what cannot be kept."""
    if isinstance(number, (bool, int, float)):
        return number
    if isinstance(number, np.generic):
        return number.item()
    if isinstance(number, torch.SymInt):
        expression = number.node.expr
        return int(expression) if expression.is_number else expression
    return None
