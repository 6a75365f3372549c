"""Profiles and shapes of an execution context: what is set, what is allowed, and what follows from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from trt_portable.dims import MAX_RANK, Dims
from trt_portable.enums import ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.execution.program import LayerFailure
from trt_portable.execution.shapes import ShapeReport
from trt_portable.formats import LAYOUTS
from trt_portable.plan.engine_info import Shape
from trt_portable.pybind import to_integer, to_text
from trt_portable.reporting import Reporter
from trt_portable.runtime.binding import Binding
from trt_portable.shape_tensors import HostValues, Value

if TYPE_CHECKING:
    from trt_portable.runtime.engine_state import EngineState


class ContextShapes:
    """The tensors of a context, and what is known of their extents.

    Args:
        state: The engine.
        reporter: Receives what is wrong with a question.

    Attributes:
        bindings: Every input and output, in the order of the engine.
        by_name: The same by name.
        inputs: The inputs.
        outputs: The outputs.
        profile: Index of the profile in use.
        values: Inputs as the program takes them, while nothing that they depend on has changed.
        is_checked: Whether shapes and the presence of addresses passed the checks of a run.
    """

    def __init__(self, state: EngineState, reporter: Reporter) -> None:
        self._state = state
        self._reporter = reporter
        self.bindings = [Binding(tensor, state.device) for tensor in state.info.io]
        self.by_name = {binding.tensor.name: binding for binding in self.bindings}
        self.inputs = [binding for binding in self.bindings if binding.tensor.is_input]
        self.outputs = [binding for binding in self.bindings if not binding.tensor.is_input]
        self.profile = 0
        self.values: list[Value] | None = None
        self.is_checked = False
        self._has_named_dimensions = any(any(binding.tensor.dimension_names) for binding in self.inputs)
        self._reset()

    def select_profile(self, index: int) -> None:
        """Switches to another profile; input shapes must be set again.

        Raises:
            RuntimeError: There is no such profile.
        """
        count = len(self._state.info.profiles)
        if not 0 <= index < count:
            message = f"profile {index} does not exist: the engine has {count}"
            self._reporter.error("set_optimization_profile_async", message)
            raise RuntimeError(message)
        self.profile = index
        self._reset()

    def _reset(self) -> None:
        """Forgets the shapes of inputs that the profile does not determine."""
        shapes = self._state.info.profiles[self.profile].shapes
        for binding in self.inputs:
            tensor = binding.tensor
            allowed = shapes.get(tensor.name)
            if not tensor.is_dynamic:
                binding.shape = tensor.shape
            elif allowed is not None and allowed.min == allowed.max:
                binding.shape = allowed.min
            else:
                binding.shape = None
        self.forget()

    def set_input_shape(self, name: str, shape: Sequence[int]) -> bool:
        """Sets the extents of an input.

        Returns:
            False, with a report, for an unknown name, an output, or extents that the network or the
            profile does not allow.

        Raises:
            RuntimeError: More than 8 extents.
        """
        binding = self.by_name.get(name)
        extents = tuple(shape)
        if binding is not None and binding.shape == extents:
            return True
        if len(extents) > MAX_RANK:
            raise RuntimeError(f"{name}: a shape has at most {MAX_RANK} extents, not {len(extents)}")
        extents = tuple(to_integer(extent) for extent in extents)
        if binding is None or (self.profile, extents) not in binding.allowed:
            violation = self._shape_violation(binding, extents)
            if violation is not None or binding is None:
                self._reporter.error(f"set_input_shape({to_text(name)!r}, {extents})", violation or "")
                return False
            binding.allow(self.profile, extents)
        if binding.shape is None or self._has_named_dimensions:
            self.is_checked = False
        binding.shape = extents
        self.values = None
        return True

    def forget(self) -> None:
        """The next run checks everything again."""
        self.values = None
        self.is_checked = False

    def _shape_violation(self, binding: Binding | None, extents: Shape) -> str | None:
        if binding is None:
            return "the engine has no tensor of that name"
        if not binding.tensor.is_input:
            return "only inputs take a shape, and this is an output"
        declared = binding.tensor.shape
        if len(extents) != len(declared):
            return f"rank {len(extents)} does not match the network's {declared}"
        for axis, (extent, known) in enumerate(zip(extents, declared, strict=True)):
            if known != -1 and extent != known:
                return f"axis {axis} is {extent}, but the network fixes it to {known}"
        allowed = self._state.info.profiles[self.profile].shapes.get(binding.tensor.name)
        violation = allowed.violation(extents) if allowed is not None else None
        return None if violation is None else f"profile {self.profile}: {violation}"

    @property
    def are_complete(self) -> bool:
        """Whether every dynamic input has a shape."""
        return all(binding.shape is not None for binding in self.inputs)

    def infer(self) -> list[str]:
        """Computes output shapes from input shapes and host inputs, and writes the host outputs.

        Returns:
            Names of inputs that lack a shape or, on the host, an address; empty when all is known.

        Raises:
            RuntimeError: The layers do not accept these shapes, or numbers leave the profile.
        """
        missing = self._insufficient_inputs()
        if missing:
            return missing
        try:
            if self._computed_shapes() is not None:
                return []
            report = self._shape_report()
        except (Refusal, LayerFailure) as error:
            self._reporter.error("infer_shapes", str(error))
            raise RuntimeError(f"infer_shapes: {error}") from error
        for binding, value in zip(self.outputs, report.outputs, strict=True):
            if binding.tensor.is_host and binding.address and isinstance(value, HostValues):
                numbers = torch.tensor(value.numbers(), dtype=value.dtype)
                binding.write(numbers.reshape(value.shape))
        return []

    def _insufficient_inputs(self) -> list[str]:
        return [
            binding.tensor.name
            for binding in self.inputs
            if binding.shape is None or (binding.tensor.is_host and not binding.address)
        ]

    def _computed_shapes(self) -> tuple[Shape, ...] | None:
        """Output shapes for the present input shapes, where the plan says them; no layer is asked.

        Raises:
            Refusal: What the plan says has no value for these shapes.
        """
        return self._state.output_shapes(tuple(binding.shape or () for binding in self.inputs))

    def _shape_report(self) -> ShapeReport:
        """What the present inputs mean for the outputs; remembered by the engine.

        Raises:
            Refusal: Numbers of a host input leave the profile.
            LayerFailure: A layer refused the shapes.
        """
        shapes = tuple(binding.shape or () for binding in self.inputs)
        numbers = {index: tuple(self.read_host(self.inputs[index]).numbers()) for index in self._state.host_inputs}
        return self._state.infer(shapes, numbers)

    def read_host(self, binding: Binding) -> HostValues:
        """The numbers at a host input's address, checked against the profile.

        Raises:
            Refusal: A number leaves the profile.
        """
        values = binding.read_numbers()
        allowed = self._state.info.profiles[self.profile].values.get(binding.tensor.name)
        if allowed is not None:
            violation = allowed.violation([int(number) for number in values.numbers()])
            if violation is not None:
                raise Refusal(f"{binding.tensor.name!r}: profile {self.profile}: {violation}")
        return values

    def shape_of(self, name: str) -> Dims:
        """Extents as far as they are known, -1 for the others; invalid dims for an unknown name."""
        binding = self.by_name.get(name)
        if binding is None:
            self._reporter.error("get_tensor_shape", f"the engine has no tensor named {to_text(name)!r}")
            return Dims._invalid()
        return Dims(self._known_shape(binding))

    def _known_shape(self, binding: Binding) -> Shape:
        tensor = binding.tensor
        if tensor.is_input:
            return tensor.shape if binding.shape is None else binding.shape
        if not tensor.is_dynamic or self._insufficient_inputs():
            return tensor.shape
        try:
            computed = self._computed_shapes()
            if computed is not None:
                return computed[self.outputs.index(binding)]
            value = self._shape_report().outputs[self.outputs.index(binding)]
        except (Refusal, LayerFailure) as error:
            self._reporter.error(f"shape of {tensor.name!r}", str(error))
            return tensor.shape
        return tensor.shape if value is None else tuple(int(extent) for extent in value.shape)

    def announced(self, binding: Binding) -> tuple[Shape | None, int | None]:
        """Extents of an output; where they depend on data, the greatest size in bytes. None for what is not known.

        Raises:
            Refusal: The layers do not take the shapes of the inputs.
        """
        if not binding.tensor.is_dynamic:
            return binding.tensor.shape, None
        at = self.outputs.index(binding)
        try:
            computed = self._computed_shapes()
            if computed is not None:
                return computed[at], None
            report = self._shape_report()
        except LayerFailure as failure:  # whoever binds memory was told nothing, and must not be written to
            raise Refusal(str(failure), ErrorCodeTRT.FAILED_EXECUTION) from failure
        value, bound = report.outputs[at], report.bounds[at]
        if value is not None:
            return tuple(int(extent) for extent in value.shape), None
        return None, None if bound is None else binding.bytes_of(bound)

    def strides_of(self, name: str) -> Dims:
        """Distance between neighbours along each axis, in elements, or in vectors where the format has them."""
        shape = self.shape_of(name)
        if not shape._is_valid:
            return shape
        layout = LAYOUTS.get(self.by_name[name].tensor.format)
        if layout is not None:
            return Dims(layout.strides(tuple(shape)))
        strides: list[int] = []
        step = 1
        for extent in reversed(tuple(shape)):
            strides.append(step)
            step = -1 if extent == -1 or step == -1 else step * max(extent, 1)
        return Dims(strides[::-1])

    def greatest_bytes_of(self, name: str) -> int:
        """Upper bound, in bytes, of an output for the present shapes; -1 when there is none."""
        binding = self.by_name.get(name)
        if binding is None or binding.tensor.is_input:
            self._reporter.error("get_max_output_size", f"the engine has no output named {to_text(name)!r}")
            return -1
        shape: Shape | None = self._known_shape(binding)
        if shape is not None and -1 in shape:
            shape = None
            try:
                if not self._insufficient_inputs():
                    shape = self._shape_report().bounds[self.outputs.index(binding)]
            except (Refusal, LayerFailure) as error:
                self._reporter.error(f"get_max_output_size({name!r})", str(error))
        return -1 if shape is None else binding.bytes_of(shape)

    def peak_bytes(self) -> int:
        """Bytes of intermediate values for the present shapes; 0 when inputs are not specified."""
        return 0 if self._insufficient_inputs() else self._shape_report().peak_bytes
