"""The conversion context: the network under construction and what converters need to add to it.

Weights of the network are named after the model's, and it is kept how they follow from them.

Extents that are known while building stay Python ints, the others are shape tensors of shape (1,), int64. Fractions, as
in `x / n**0.5`, are computed in float32, which holds every size below 2 ** 24; PyTorch computes them in Python's floats
and rounds once, so the last digit may differ.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx

from trt_converters.byte_tensor import ByteTensor, carrier_of
from trt_converters.call import Call
from trt_converters.converter import Converter
from trt_core import CompilationSettings, ConversionError, RefitError, to_trt, trt
from trt_core.dtypes import from_trt
from trt_core.log import forget_errors, take_errors
from trt_core.provenance import node_location, source_line
from trt_core.quantization import e2m1_codes
from trt_core.refit_table import EngineWeight, RefitTable, recipe_text, why_unwritable
from trt_core.sizes.expressions import (
    Extent,
    affine_form,
    evaluate_extent,
    extent_of,
    extent_of_expression,
)
from trt_core.sizes.functions import BY_CLASS, FUNCTIONS
from trt_core.sizes.ranges import ShapeRanges
from trt_core.sizes.steps import Steps, find_steps, no_line
from trt_core.temporary import with_attributes
from trt_core.weight_recipes import (
    Recipe,
    Source,
    WeightRecorder,
    constants_of,
    content_digest,
    content_of,
    replay,
    sources_of,
)
from trt_core.wording import did_you_mean

_LEAST_ON_DEVICE: Final = 1 << 20
"""Bytes of weights that may stay on a GPU; passes look at smaller ones, on the host."""

_ON_DEVICE: Final = "_on_device"
"""What makes such weights of a type and a tensor; TensorRT has none."""

Operand = Any
"""What converters get for a tensor: a `trt.ITensor`, a `ByteTensor`, or a `torch.Tensor` known while building."""

Size = Any
"""An extent: an int, a `SymInt` of the graph's metadata, or a `trt.ITensor` of shape (1,), int64."""


Inliner = Callable[[fx.GraphModule, Sequence[Operand]], list[Operand]]
"""Converts a graph with the operands that it takes to what it returns."""


class ConversionContext:
    """Builds one network from one block.

    Attributes:
        network: The `trt.INetworkDefinition`.
        settings: What the block is compiled with.
        ranges: Ranges of the symbolic dimensions.
        node: The node being converted.
        call: Its arguments as metadata, for converters that compare symbolic shapes.
        converter: What converts it; None where no converter is asked.
        refit: The weights that follow from the model's, where the engine is built for refitting; else None.
        inline: Converts the nodes of a branch or loop in the place of the node: takes the graph and what it is given,
            and returns its results.
    """

    def __init__(self, network: Any, settings: CompilationSettings, ranges: ShapeRanges) -> None:
        self.network = network
        self.settings = settings
        self.ranges = ranges
        self.node: fx.Node | None = None
        self.call: Call
        self.converter: Converter | None = None
        self.refit = EngineWeights(network) if settings.refit else None
        self._names: dict[str, int] = {}
        self._on_device: list[Any] = []  # `trt.Weights` on a GPU
        self._held: list[torch.Tensor] = []  # TensorRT holds weights by reference until the build returns
        self._constants: dict[tuple[Any, ...], Any] = {}
        self._dimensions: dict[str, tuple[Any, int]] = {}
        self._linear: dict[str, Extent] = {}  # what is no dimension, from a dimension such as `8*s` or `(s - 1)//2 + 1`
        self._sizes: dict[str, Any] = {}
        self._scalars: dict[int, Any] = {}  # by the address of a size, all of which are held above
        self._inliner: Inliner | None = None

    # what is being converted

    def enter(self, node: fx.Node) -> None:
        """Makes a node the one being converted."""
        self.node = node
        self.call = Call(node, self.settings)
        self.converter = None
        forget_errors()  # what is logged from here on is about this node

    @contextlib.contextmanager
    def region(self) -> Iterator[None]:
        """Goes back to the node afterwards, and forgets sizes: what a branch or loop computes is not used outside."""
        kept = self.node, self.call, self.converter
        known = self._dimensions.copy(), self._linear.copy(), self._sizes.copy(), self._scalars.copy()
        try:
            yield
        finally:
            self.node, self.call, self.converter = kept
            self._dimensions, self._linear, self._sizes, self._scalars = known

    def inlining(self, inliner: Inliner) -> contextlib.AbstractContextManager[None]:
        """Lets converters convert graphs inside of a node; no longer, since what converts them holds this context."""
        return with_attributes(self, _inliner=inliner)

    def inline(self, body: fx.GraphModule, inputs: Sequence[Operand]) -> list[Operand]:
        """Converts the graph of a branch or loop.

        Args:
            body: The graph.
            inputs: What it takes.

        Returns:
            What it returns.

        Raises:
            ConversionError: One of its nodes cannot be converted.
        """
        if self._inliner is None:
            raise self.fail("no graph is converted here that could hold a branch or a loop")
        return self._inliner(body, inputs)

    def symbolic_shape(self, parameter: str) -> tuple[int | torch.SymInt, ...]:
        """Shape of a tensor argument as the graph's metadata has it."""
        return tuple(self.call.tensor(parameter).shape)

    @property
    def result(self) -> Any:
        """Metadata of the node's result: a `FakeTensor`, or a list of them."""
        assert self.node is not None
        return self.node.meta["val"]

    @property
    def result_shape(self) -> tuple[int | torch.SymInt, ...]:
        """Shape of the node's (first) result."""
        return tuple(self._first_result().shape)

    @property
    def result_dtype(self) -> torch.dtype:
        """Type of the node's (first) result."""
        return self._first_result().dtype

    def _first_result(self) -> torch.Tensor:
        result = self.result
        first = result[0] if isinstance(result, (list, tuple)) else result
        assert isinstance(first, torch.Tensor)
        return first

    def fail(self, what: str) -> ConversionError:
        """Returns the error that says this node could not be converted, and why; raise it."""
        if self.converter is not None and not self.converter.is_builtin:
            what = f"{self.converter.described}: {what}"
        return ConversionError(
            f"cannot convert {self.node.target if self.node else 'the graph'}",
            where=self._where(),
            why=what,
            node_name=self.node.name if self.node else "",
        )

    def _where(self) -> str:
        if self.node is None:
            return ""
        line = source_line(self.node)
        return node_location(self.node) + (f", {line}" if line else "")

    # layers

    def own(self, layer: Any, suffix: str = "", **attributes: Any) -> Any:
        """Names a layer after the node, records where it comes from, sets attributes, and returns it.

        Args:
            layer: What an `add_*` method returned.
            suffix: What the layer does, when a node makes several.
            **attributes: Of the layer; None leaves what it has.

        Raises:
            ConversionError: The layer is None: TensorRT refused it.
        """
        if layer is None:
            logged = take_errors()
            raise self.fail(
                "TensorRT refused a layer" + (f" ({suffix})" if suffix else "") + (f": {logged}" if logged else "")
            )
        base = self.node.name if self.node is not None else "network"
        name = f"{base}/{suffix}" if suffix else base
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        layer.name = f"{name}.{count}" if count else name
        if self.node is not None:
            layer.metadata = node_location(self.node)
        for attribute, value in attributes.items():
            if value is not None:
                setattr(layer, attribute, value)
        return layer

    def output(self, layer: Any, suffix: str = "", index: int = 0, **attributes: Any) -> Any:
        """Names a layer, sets attributes, and returns one of its outputs; see `own`."""
        return self.own(layer, suffix, **attributes).get_output(index)

    def member(self, kind: Any, name: str) -> Any:
        """Returns the member of one of TensorRT's enumerations that a name means.

        Raises:
            ConversionError: There is none; the message lists those that there are.
        """
        found = kind.__members__.get(name)
        if found is None:
            near = did_you_mean(name, kind.__members__) or f"it has {', '.join(kind.__members__)}"
            raise self.fail(f"{kind.__name__} has no {name!r}; {near}")
        return found

    # values

    def tensor(self, value: Operand) -> Any:
        """Returns a value as an `ITensor`; what is known while building becomes a constant layer, once.

        Args:
            value: An `ITensor`, a `torch.Tensor`, or a number (which becomes a 0-d tensor of PyTorch's default type).
                uint8 becomes an `ITensor` of that type, which only a network's output may be.

        Raises:
            ConversionError: The value has a type that constants cannot have.
        """
        if isinstance(value, ByteTensor):
            return self.output(self.network.add_cast(value.carrier, trt.DataType.UINT8), "bytes")
        if not isinstance(value, (torch.Tensor, int, float, bool)):
            return value
        constant = value if isinstance(value, torch.Tensor) else torch.tensor(value)
        if constant.dtype is torch.uint8:
            return self.tensor(ByteTensor(self.tensor(constant.float())))
        key: tuple[Any, ...] = (constant.data_ptr(), constant.dtype, tuple(constant.shape), constant.stride())
        small = constant.numel() <= 16 and not constant.is_cuda and not _is_fake(constant)
        identity = "" if self.refit is None else self.refit.identity(constant)
        if identity:  # weights that can be replaced share a layer only where they always have the same numbers
            key = (identity, constant.dtype, tuple(constant.shape))
        elif small:  # equal small constants share a layer whatever memory they came from
            key = (str(constant.tolist()), constant.dtype, tuple(constant.shape))
        found = self._constants.get(key)
        if found is None:
            found = self._constants[key] = self._add_constant(constant)
        return found

    def weights(self, value: torch.Tensor) -> Any:
        """Returns `trt.Weights` over a constant's memory, which is kept alive until the context goes.

        Args:
            value: A constant of any shape; copied only when it is not contiguous or not on the CPU. TensorRT takes
                weights on the host; large ones stay on the GPU where the provider builds from there.
        """
        if self._may_stay(value):
            held = value.detach().contiguous()
            self._on_device.append(getattr(trt.Weights, _ON_DEVICE)(to_trt(held.dtype), held))
            return self._on_device[-1]
        held = value.detach().cpu().contiguous()
        self._held.append(held)
        weights = trt.Weights(to_trt(held.dtype), held.data_ptr(), held.numel())
        if self.refit is not None:
            self.refit.add(weights, held)
        return weights

    def leave_device(self, twins: Mapping[int, torch.Tensor]) -> list[torch.Tensor]:
        """Lets the network refer to weights on the host where it does to some on a GPU; that ends the conversion.

        Args:
            twins: Equal tensors on the host, by the address on the GPU; what has none is copied.

        Returns:
            Host memory that the network refers to, which has to outlive its build.
        """
        for weights in self._on_device:
            weights._leave_device(twins)
        held, self._held, self._on_device = self._held, [], []
        return [tensor for tensor in held if not tensor.is_cuda]

    def _may_stay(self, value: torch.Tensor) -> bool:
        """Whether weights are taken where they lie on a GPU; those that a refit replaces are compared on the host."""
        is_large = value.is_cuda and value.nbytes >= _LEAST_ON_DEVICE
        return is_large and self.refit is None and hasattr(trt.Weights, _ON_DEVICE)

    def packed_tensor(self, value: torch.Tensor) -> Any:
        """Returns elements of 4 bits as an `ITensor`, a constant layer that is made once; two of them share a byte.

        Args:
            value: An even number of elements, the first of two in a byte's lower half: int8, each from -8 to 7, for
                INT4; float8_e4m3fn, each a value of E2M1, for FP4.
        """
        key = ("packed", value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if key not in self._constants:
            codes = value.detach().cpu().contiguous()
            is_integer = codes.dtype is torch.int8
            halves = (codes.bitwise_and(0xF).view(torch.uint8) if is_integer else e2m1_codes(codes)).reshape(-1, 2)
            held = halves[:, 0].bitwise_or(halves[:, 1].bitwise_left_shift(4)).contiguous()
            self._constants[key] = self._typed_constant(value, held, "INT4" if is_integer else "FP4")
        return self._constants[key]

    def powers_of_two(self, value: torch.Tensor) -> Any:
        """Returns scales in float8_e8m0fnu as an `ITensor` of that type, a constant layer that is made once."""
        key = ("powers", value.data_ptr(), tuple(value.shape), value.stride())
        if key not in self._constants:
            held = value.detach().cpu().contiguous()
            self._constants[key] = self._typed_constant(value, held, "E8M0")
        return self._constants[key]

    def _typed_constant(self, value: torch.Tensor, held: torch.Tensor, dtype: str) -> Any:
        self._held += [held, value]  # keys hold addresses, which must not be reused by another tensor
        if self.refit is not None:
            self.refit.fix(held, f"engines hold it in {dtype}, which PyTorch has no tensors of")
        weights = trt.Weights(getattr(trt.DataType, dtype), held.data_ptr(), value.numel())
        return self.output(self.network.add_constant(tuple(value.shape), weights), "constant")

    def _add_constant(self, value: torch.Tensor) -> Any:
        self._held.append(value)  # keys hold addresses, which must not be reused by another tensor
        carrier = torch.int32 if value.dtype is torch.bool else value.dtype
        stored = value.to(carrier)
        layer = self.network.add_constant(tuple(stored.shape), self.weights(stored))
        result = self.output(layer, "constant")
        if carrier is value.dtype:
            return result
        return self.output(self.network.add_cast(result, to_trt(value.dtype)), "constant_cast")

    # sizes

    def register_dimensions(self, tensor: Any, meta: torch.Tensor) -> None:
        """Makes a tensor's symbolic dimensions available to `size`."""
        for axis, extent in enumerate(meta.shape):
            if isinstance(extent, torch.SymInt):
                key = _size_key(extent)
                if key is not None:
                    self._dimensions.setdefault(key, (carrier_of(tensor), axis))
                    self._note_linear(extent_of(extent))

    def _note_linear(self, extent: Extent) -> None:
        form = affine_form(extent)
        if form is not None and form[0] != extent:
            inner, factor, offset = form
            self._linear.setdefault(str(inner), ["floordiv", ["add", extent, -offset], factor])

    def size(self, value: Size) -> Any:
        """Returns an extent as an int, or as an `ITensor` of shape (1,), int64.

        A `SymInt` is read from the shape of a tensor that has a dimension of the same expression, or computed from
        such dimensions.

        Raises:
            ConversionError: No tensor of the block has the dimensions that the size is computed from.
        """
        if not isinstance(value, torch.SymInt):
            return value
        key = _size_key(value)
        if key is None:
            raise self.fail(f"the size {value} cannot be computed from shapes")
        extent = extent_of(value)
        return self._evaluate(str(value.node.expr) if extent is None else extent)

    def number(self, value: int | float | torch.SymInt | torch.SymFloat) -> Any:
        """Returns a number as it is, and one that varies with sizes as a 0-d `ITensor`: int64, float32 for a fraction.

        This is how every number of a call becomes an operand; `layers.cast` does it in the type that is wanted.

        Raises:
            ConversionError: The number cannot be computed from the sizes of the block's tensors.
        """
        if isinstance(value, torch.SymInt):
            size = self.size(value)
            return size if isinstance(size, int) else self._as_scalar(size)
        if not isinstance(value, torch.SymFloat):
            return value
        fraction = fraction_of(value)
        if fraction is None:
            raise self.fail(f"the number {value} cannot be computed from shapes")
        found = compute_fraction(self, fraction)
        return float(found) if isinstance(found, torch.Tensor) else found

    def scalar_size(self, extent: Extent) -> Any:
        """Returns an extent as an int, or as a 0-d `ITensor`, int64."""
        size = self._evaluate(extent)
        return size if isinstance(size, int) else self._as_scalar(size)

    def _as_scalar(self, size: Any) -> Any:
        if id(size) not in self._scalars:
            axes = self.tensor(torch.tensor([0]))
            self._scalars[id(size)] = self.output(self.network.add_squeeze(size, axes), "size")
        return self._scalars[id(size)]

    def _evaluate(self, extent: Extent) -> Any:
        if isinstance(extent, int):
            return extent
        key = str(extent)
        if key in self._sizes:
            return self._sizes[key]
        if key in self._dimensions:
            tensor, axis = self._dimensions[key]
            found = dimension(self, tensor, axis)
        elif key in self._linear:
            found = self._evaluate(self._linear[key])
        elif isinstance(extent, list) and FUNCTIONS[extent[0]].is_rounding:
            found = self._rounded(extent)
        elif isinstance(extent, list):
            found = combine(self, extent[0], [self._evaluate(operand) for operand in extent[1:]])
        else:
            raise self.fail(f"no input of the block has the dimension {extent}")
        self._sizes[key] = found
        return found

    def _rounded(self, extent: Extent) -> Any:
        """Computes what is rounded from floats in integers, which layers have."""
        steps = find_steps(extent, self.ranges.spans())
        if steps is None:
            raise self.fail(no_line(extent))
        size = self._evaluate(steps.size)
        if isinstance(size, int):
            return steps.at(size)
        dividend = combine(self, "add", [combine(self, "mul", [size, steps.factor]), self._offset(steps, size)])
        found = combine(self, "floordiv", [dividend, steps.divisor])
        if not steps.to_even:
            return found
        beyond = combine(self, "mod", [combine(self, "add", [dividend, steps.divisor]), 2 * steps.divisor])
        above = combine(self, "sub", [1, combine(self, "min", [beyond, 1])])  # 1 at odd multiples of the divisor
        return combine(self, "sub", [found, above])

    def _offset(self, steps: Steps, size: Any) -> Any:
        """The offset for a size: the first, and what is added at each place that the size has reached."""
        if not steps.changes:
            return steps.offsets[0]
        before = self.tensor(torch.tensor(steps.changes) - 1)
        reached = combine(self, "min", [combine(self, "max", [combine(self, "sub", [size, before]), 0]), 1])
        added = combine(self, "mul", [reached, self.tensor(torch.tensor(steps.offsets).diff())])
        total = self.network.add_reduce(added, trt.ReduceOperation.SUM, axes_mask((0,)), True)
        return combine(self, "add", [self.output(total, "offset"), steps.offsets[0]])


def shape_of(value: Operand) -> tuple[int, ...]:
    """Returns the shape of a value, -1 for extents that are not known while building.

    Raises:
        ValueError: TensorRT has no shape for it: an attribute of the layer that makes it is wrong.
    """
    try:
        return tuple(map(int, value.shape))
    except ValueError:  # what the bindings make of a shape that could not be inferred
        logged = take_errors()
        raise ValueError(f"TensorRT found no shape for {value.name!r}" + (f": {logged}" if logged else "")) from None


def rank_of(value: Operand) -> int:
    """Returns the rank of a value; numbers have rank 0."""
    return len(value.shape) if hasattr(value, "shape") else 0


def dtype_of(value: Operand) -> torch.dtype:
    """Returns the type of a value as PyTorch names it."""
    if isinstance(value, torch.Tensor):
        return value.dtype
    if isinstance(value, bool):
        return torch.bool
    if isinstance(value, (int, torch.SymInt)):
        return torch.int64
    if isinstance(value, (float, torch.SymFloat)):
        return torch.get_default_dtype()
    return from_trt(value.dtype)


def normalize_axis(axis: int, rank: int) -> int:
    """Returns an axis counted from the front; 0 for 0-d tensors, as PyTorch allows."""
    return axis % rank if rank else 0


def normalize_axes(axes: Sequence[int] | int | None, rank: int) -> tuple[int, ...]:
    """Returns axes counted from the front, sorted; None or an empty list means all of them. A 0-d tensor has none."""
    if not rank:
        return ()
    if axes is None or (not isinstance(axes, int) and len(axes) == 0):
        return tuple(range(rank))
    listed = [axes] if isinstance(axes, int) else axes
    return tuple(sorted({normalize_axis(axis, rank) for axis in listed}))


def axes_mask(axes: Sequence[int]) -> int:
    """Returns TensorRT's bit mask of axes."""
    return sum(1 << axis for axis in set(axes))


def _size_key(value: torch.SymInt) -> str | None:
    extent = extent_of(value)
    # a size that depends on data has no extent, but the tensor that has it as a dimension knows it
    return str(value.node.expr) if extent is None else str(extent)


def _is_fake(value: torch.Tensor) -> bool:
    return value.device.type == "meta" or type(value) not in (torch.Tensor, torch.nn.Parameter)


class EngineWeights:
    """The weights of one network that follow from weights of the model.

    Args:
        network: The `trt.INetworkDefinition`.

    Attributes:
        recorder: Knows how tensors follow from weights of the model.
    """

    def __init__(self, network: Any) -> None:
        self.recorder = WeightRecorder()
        self._network = network
        self._constants: dict[str, torch.Tensor] = {}
        self._held: dict[tuple[int, torch.dtype, int], tuple[Any, torch.Tensor, Recipe]] = {}
        self._fixed: list[tuple[Recipe, str]] = []

    def know(self, tensors: Sequence[torch.Tensor], recipe: Recipe) -> None:
        """Says what the recipe of tensors that the block reads is."""
        for tensor in tensors:
            self.recorder.know(tensor, recipe)
        self._constants.update((item.name, item.value) for item in constants_of(recipe))

    def identity(self, tensor: torch.Tensor) -> str:
        """Returns a text that is equal for tensors that follow from weights in the same way; empty for others."""
        recipe = self.recorder.recipe_of(tensor)
        if recipe is None:
            return ""
        try:
            return json.dumps(recipe_text(recipe))
        except RefitError:
            return f"recipe {id(recipe)}"

    def add(self, weights: Any, tensor: torch.Tensor) -> None:
        """Notes weights of a layer.

        Args:
            weights: The `trt.Weights`.
            tensor: Its memory.
        """
        recipe = self.recorder.recipe_of(tensor)
        if recipe is not None and tensor.numel():
            # tensors over the same memory are views of one weight, or of tied ones, which stay tied
            key = (tensor.data_ptr(), tensor.dtype, tensor.numel())
            self._held.setdefault(key, (weights, tensor, recipe))

    def fix(self, tensor: torch.Tensor, why: str) -> None:
        """Notes weights of a layer that cannot be replaced.

        Args:
            tensor: Their memory.
            why: The reason.
        """
        recipe = self.recorder.recipe_of(tensor)
        if recipe is not None:
            self._fixed.append((recipe, why))

    def finish(self, given: Mapping[str, torch.Tensor], content: str = "") -> RefitTable:
        """Names the weights in the network and marks those that can be replaced.

        Each recipe is replayed once here and compared with what the network got, so that what recording missed makes a
        weight fixed, and never wrong.

        Args:
            given: Weights of the model by name.
            content: Digest of these weights.
        """
        weights: dict[str, EngineWeight] = {}
        fixed: dict[str, tuple[Source, str, str]] = {}
        reads: dict[str, tuple[Recipe, str]] = {}
        for native, tensor, recipe in self._held.values():
            why = _why_fixed(recipe, given, tensor)
            name = _free_name(recipe, weights)
            if not why and not self._network.set_weights_name(native, name):
                why = "the provider does not let it have a name"
            if not why and not self._network.mark_weights_refittable(name):
                why = "the provider does not let it be replaced"
            if why:
                _fix(recipe, why, given, fixed)
            else:
                weights[name] = EngineWeight(name, recipe, tensor.dtype, tensor.numel())
        for recipe, why in self._fixed:
            _fix(recipe, why, given, fixed)
        for recipe in self.recorder.read:
            why = _why_fixed(recipe, given)
            if why:
                _fix(recipe, f"its numbers were looked at while the engine was built, and {why}", given, fixed)
            else:
                reads.setdefault(json.dumps(recipe_text(recipe)), (recipe, content_digest(replay(recipe, given))))
        constants = {name: content_digest(value) for name, value in self._constants.items()}
        return RefitTable(tuple(weights.values()), tuple(reads.values()), fixed, constants, content)


def _free_name(recipe: Recipe, taken: Mapping[str, EngineWeight]) -> str:
    base = sources_of(recipe)[0].name
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}:{count}"
    return name


def _why_fixed(recipe: Recipe, given: Mapping[str, torch.Tensor], tensor: torch.Tensor | None = None) -> str:
    why = why_unwritable(recipe)
    if why:
        return why
    try:
        made = replay(recipe, given)
    except RefitError as error:
        return error.why or error.what
    if tensor is None:
        return ""
    return "" if _same_numbers(made.cpu(), tensor) else "what was done to it cannot be repeated"


def _same_numbers(made: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding, which is another where part of it ran on another device."""
    if made.dtype != tensor.dtype or made.numel() != tensor.numel():
        return False
    if torch.equal(content_of(made), content_of(tensor)):
        return True
    if not tensor.is_floating_point():
        return False
    left, right = made.reshape(-1).double(), tensor.reshape(-1).double()
    few = 16 * torch.finfo(tensor.dtype).eps
    scale = right[right.isfinite()].abs().max().item() if bool(right.isfinite().any()) else 0.0
    return torch.allclose(left, right, rtol=few, atol=few * scale, equal_nan=True)


def _fix(
    recipe: Recipe, why: str, given: Mapping[str, torch.Tensor], fixed: dict[str, tuple[Source, str, str]]
) -> None:
    for source in sources_of(recipe):
        value = given.get(source.name)  # one that is not there has no digest, and no other weight has that
        fixed.setdefault(source.name, (source, why, "" if value is None else content_digest(value)))


def dimension(ctx: ConversionContext, value: Operand, axis: int) -> Any:
    """Returns the extent of a value along a non-negative axis: an int, or a shape tensor of shape (1,), int64."""
    extent = int(value.shape[axis])
    if extent >= 0:
        return extent
    shape = ctx.output(ctx.network.add_shape(carrier_of(value)), "shape")
    return ctx.output(ctx.network.add_slice(shape, (axis,), (1,), (1,)), "dimension")


def sizes_of(ctx: ConversionContext, value: Operand) -> list[Any]:
    """Returns the extents of a value; see `dimension`."""
    return [dimension(ctx, value, axis) for axis in range(len(value.shape))]


def shape_vector(ctx: ConversionContext, sizes: Sequence[Size]) -> Any:
    """Returns sizes as one shape tensor of shape (len(sizes),), int64; a `torch.Tensor` when all are known."""
    known = [ctx.size(size) for size in sizes]
    if all(isinstance(size, int) for size in known):
        return torch.tensor(known, dtype=torch.int64)
    pieces: list[Any] = []
    for size in known:  # runs of known sizes become one constant
        if isinstance(size, int):
            if pieces and isinstance(pieces[-1], list):
                pieces[-1].append(size)
            else:
                pieces.append([size])
        else:
            pieces.append(size)
    tensors = [
        ctx.tensor(torch.tensor(piece, dtype=torch.int64)) if isinstance(piece, list) else piece for piece in pieces
    ]
    if len(tensors) == 1:
        return tensors[0]
    return ctx.output(ctx.network.add_concatenation(tensors), "sizes", axis=0)


def combine(ctx: ConversionContext, operator: str, operands: Sequence[Size]) -> Any:
    """Applies an operator of `trt_core.sizes.expressions` to sizes.

    Args:
        ctx: The context.
        operator: `add`, `mul`, `floordiv`, `ceildiv`, `mod`, `max`, `min` or `pow`.
        operands: Two or more sizes.
    """
    return functools.reduce(lambda left, right: _apply(ctx, operator, left, right), [ctx.size(o) for o in operands])


def _apply(ctx: ConversionContext, operator: str, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        return evaluate_extent([operator, left, right], {})
    if operator == "ceildiv":  # ceil(a / b) = -floor(-a / b)
        return _apply(ctx, "mul", _apply(ctx, "floordiv", _apply(ctx, "mul", left, -1), right), -1)
    if operator == "mod":
        whole = _apply(ctx, "mul", _apply(ctx, "floordiv", left, right), right)
        return _apply(ctx, "sub", left, whole)
    if operator == "pow":
        return functools.reduce(lambda a, b: _apply(ctx, "mul", a, b), [left] * int(right))
    if _is_neutral(operator, left, right):
        return right if isinstance(left, int) else left
    operation = getattr(trt.ElementWiseOperation, _LAYERS[operator])
    tensors = [
        ctx.tensor(torch.tensor([side], dtype=torch.int64) if isinstance(side, int) else side) for side in (left, right)
    ]
    return ctx.output(ctx.network.add_elementwise(*tensors, operation), operator)


_LAYERS: Final = {
    "add": "SUM",
    "sub": "SUB",
    "mul": "PROD",
    "truediv": "DIV",
    "floordiv": "FLOOR_DIV",
    "pow": "POW",
    "max": "MAX",
    "min": "MIN",
}
"""Layers' operations, by the functions of `trt_core.sizes.functions`."""


def _is_neutral(operator: str, left: Any, right: Any) -> bool:
    if operator == "add":
        return (isinstance(left, int) and left == 0) or (isinstance(right, int) and right == 0)
    if operator == "mul":
        return (isinstance(left, int) and left == 1) or (isinstance(right, int) and right == 1)
    return operator in ("floordiv", "sub") and isinstance(right, int) and right == (1 if operator == "floordiv" else 0)


Fraction = float | tuple[str, Any] | tuple[str, Any, Any]
"""A known number; `("SIZE", extent)`; or the name of a layer's operation with its operands, which are fractions."""

_UNARY: Final = {"OpaqueUnaryFn_sqrt": "SQRT", "OpaqueUnaryFn_exp": "EXP", "OpaqueUnaryFn_log": "LOG"}

_ROOTS: Final = {0.5: ("SQRT",), -0.5: ("SQRT", "RECIP"), -1.0: ("RECIP",)}
"""Powers that have layers of their own, which round once."""


def is_size_number(value: Any) -> bool:
    """Whether a value is a symbolic number, which varies with the sizes of tensors."""
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def is_exactly(value: Any, number: float) -> bool:
    """Whether a number of a call is known to be a certain one; comparing one that varies would fix it."""
    return isinstance(value, (int, float)) and value == number


def fraction_of(value: torch.SymFloat) -> Fraction | None:
    """Returns how a fraction follows from sizes; None where it depends on data, or no layers compute it."""
    return _fraction_of_expression(value.node.expr)


def _fraction_of_expression(expr: Any) -> Fraction | None:
    if expr.is_number:
        return float(expr)
    name = type(expr).__name__
    if name == "ToFloat" or expr.is_integer:
        extent = extent_of_expression(expr.args[0] if name == "ToFloat" else expr)
        return None if extent is None else ("SIZE", extent)
    operation = _LAYERS.get(BY_CLASS[name].name) if name in BY_CLASS else None
    operation = operation or _UNARY.get(name)
    if operation is None:
        return None
    operands = [_fraction_of_expression(operand) for operand in expr.args]
    if any(operand is None for operand in operands):
        return None
    if name in _UNARY:
        return operation, operands[0]
    if operation == "POW" and isinstance(operands[1], float) and operands[1] in _ROOTS:
        return functools.reduce(lambda inner, root: (root, inner), _ROOTS[operands[1]], operands[0])
    return functools.reduce(lambda left, right: (operation, left, right), operands)


def compute_fraction(ctx: ConversionContext, fraction: Fraction) -> Any:
    """Adds the layers that compute a fraction.

    Returns:
        A 0-d float32 value.

    Raises:
        ConversionError: No tensor of the block has a size that it is computed from.
    """
    if isinstance(fraction, float):
        return torch.tensor(fraction, dtype=torch.float32)
    operation, *operands = fraction
    if operation == "SIZE":
        size = ctx.scalar_size(operands[0])
        if isinstance(size, int):
            return torch.tensor(size, dtype=torch.float32)
        return ctx.output(ctx.network.add_cast(size, to_trt(torch.float32)), "size")
    values = [ctx.tensor(compute_fraction(ctx, operand)) for operand in operands]
    if len(values) == 1:
        return ctx.output(ctx.network.add_unary(*values, getattr(trt.UnaryOperation, operation)), "size")
    return ctx.output(ctx.network.add_elementwise(*values, getattr(trt.ElementWiseOperation, operation)), "size")
