"""Turns a block of a graph into a network, node by node."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_converters.byte_tensor import ByteTensor
from trt_converters.call import bind_arguments, map_nodes
from trt_converters.context import ConversionContext, dtype_of, shape_of
from trt_converters.layers import cast, dimension, expand, reshape, slice_tensor, wrap_negative
from trt_converters.registry import DYNAMO_CONVERTERS, ConverterRegistry
from trt_converters.support import ConverterSupport, is_symbolic_number
from trt_core import CompilationSettings, ConversionError, to_trt, trt
from trt_core.attributes import read_attribute
from trt_core.cache_updates import CacheUpdate, cache_update, first_place, replaced_state, written_cache
from trt_core.control_flow import close_over
from trt_core.log import take_errors
from trt_core.nesting import leaves_of
from trt_core.operator_plugin import plugins_in
from trt_core.operators import operator_name
from trt_core.sizes.expressions import depends_on_data
from trt_core.sizes.ranges import ShapeRanges
from trt_core.weight_recipes import RECIPE


def _shape_in_layer(node: fx.Node) -> tuple[int, ...] | None:
    """The shape in which a layer updates an input; None where that is its own, or nothing updates it."""
    if any(replaced_state(user) is not None and user.args[0] is node for user in node.users):
        return _as_a_row(node)
    updates = filter(None, map(cache_update, node.users))
    return next((update.layer_shape for update in updates if update.cache is node), None)


def _as_a_row(state: fx.Node) -> tuple[int, ...]:
    return 1, 1, 1, int(state.meta["val"].numel())


@dataclass(frozen=True)
class KnownPlace:
    """Where the rows of an update of a cache go.

    Attributes:
        source: The input whose first element says where the first one goes.
        offset: What is added to it.
        rows: How many there are.
        wraps: Whether negative places count from the end.
        axis: The axis of the cache that they are counted on.
        by_batch: Whether each element says so, of its own row of the batch.
    """

    source: str
    offset: int
    rows: int | torch.SymInt
    wraps: bool
    axis: int
    by_batch: bool


class BlockInterpreter:
    """Converts one block.

    Args:
        block: A graph module whose placeholders and results are tensors.
        network: An empty `trt.INetworkDefinition`.
        settings: What the block is compiled with.
        ranges: Ranges of its symbolic dimensions.
        registry: Where converters are looked up.

    Attributes:
        input_names, output_names: Names of the network's inputs and outputs, in the block's order.
        updates: Inputs that are updated in place, and the outputs that are the same memory, by name; none of these
            outputs is one of the block.
        places: Where updates begin that can be told from the block's inputs, by the name of the updated input.
    """

    def __init__(
        self,
        block: fx.GraphModule,
        network: Any,
        settings: CompilationSettings,
        ranges: ShapeRanges,
        registry: ConverterRegistry = DYNAMO_CONVERTERS,
    ) -> None:
        self.block = block
        self.context = ConversionContext(network, settings, ranges)
        self.support = ConverterSupport(settings, registry)
        self.input_names: list[str] = []
        self.output_names: list[str] = []
        self.updates: dict[str, str] = {}
        self.places: dict[str, KnownPlace] = {}
        self._values: dict[fx.Node, Any] = {}
        self._updated: dict[fx.Node, Any] = {}  # caches as layers made them, whatever shape the graph has them in
        self._has_layers_of_others = False

    def plugins(self) -> tuple[str, ...]:
        """Returns the names of the network's plugins; those that we ship ourselves are none."""
        return tuple(sorted(plugins_in(self.context.network))) if self._has_layers_of_others else ()

    def run(self) -> None:
        """Converts every node and marks the outputs.

        Raises:
            ConversionError: A node could not be converted; the attribute `node_name` says which.
        """
        refit = self.context.refit
        recording = contextlib.nullcontext() if refit is None else refit.recorder.recording()
        with torch.no_grad(), recording, self.context.inlining(self._inline):
            for node in self.block.graph.nodes:
                self.context.enter(node)
                try:
                    self._values[node] = self._convert(node)
                except ConversionError:
                    raise
                except (Exception, SystemExit) as error:
                    raise self.context.fail(f"{type(error).__name__}: {error}") from error

    def _inline(self, body: fx.GraphModule, inputs: Sequence[Any]) -> list[Any]:
        """Converts the graph of a branch or loop; see `ConversionContext.inline`."""
        known = {place: value for place, value in enumerate(inputs) if isinstance(value, torch.Tensor)}
        given = iter(value for place, value in enumerate(inputs) if place not in known)
        outer = self.block, self._values
        self.block, self._values = close_over(body, known), {}
        try:
            with self.context.region():
                for node in self.block.graph.nodes:
                    if node.op == "output":
                        results = node.args[0] if isinstance(node.args[0], (list, tuple)) else node.args
                        return [self._values[item] if isinstance(item, fx.Node) else item for item in results]
                    self._values[node] = self._convert_inner(node, given, known)
        except ConversionError as error:  # the whole branch or loop runs in PyTorch then
            raise self.context.fail(f"{error}") from error
        finally:
            self.block, self._values = outer
        raise self.context.fail("a graph of a branch or loop returns nothing")

    def _convert_inner(self, node: fx.Node, given: Iterator[Any], known: Mapping[int, torch.Tensor]) -> Any:
        if node.op == "placeholder":
            value = next(given)
            if isinstance(value, trt.ITensor):
                self.context.register_dimensions(value, node.meta["val"])
            return value
        place = str(node.target).removeprefix("constant_")
        if node.op == "get_attr" and place.isdigit() and int(place) in known:
            return known[int(place)]  # the weight itself, of which the context knows where it comes from
        self.context.enter(node)
        return self._convert(node)

    def _convert(self, node: fx.Node) -> Any:
        if node.op == "placeholder":
            return self._add_input(node)
        if node.op == "get_attr":
            return self._constant(node)
        if node.op == "output":
            return self._mark_outputs(node.args[0])
        if is_symbolic_number(node):
            return node.meta["val"]
        if operator_name(node.target) == "_operator.getitem":
            source, index = node.args
            return self._values[source][index]  # type: ignore[index]
        update = cache_update(node)
        if update is not None:
            result = self._update_cache(node, update)
        elif node.target is torch.ops.aten.copy_.default:
            return self._mark_update(node)
        else:
            result = self._call_converter(node)
        self._check_results(node, result)
        return result

    def _update_cache(self, node: fx.Node, update: CacheUpdate) -> Any:
        """Adds the layer that updates a cache in place."""
        context, shape = self.context, update.layer_shape
        cache, rows = self._values[update.cache], context.tensor(self._values[update.rows])
        if shape is not None or update.missing or update.is_flat:
            extents = [*[1] * update.missing, *(dimension(context, rows, at) for at in range(len(rows.shape)))]
            extents[update.axis : update.axis] = [1] * update.is_flat
            rows = reshape(context, rows, extents if shape is None else [*shape[:2], extents[update.axis], shape[3]])
        start = self._starts(update, dimension(context, cache, 0), dimension(context, cache, 2))
        layer = context.network.add_kv_cache_update(cache, rows, start, trt.KVCacheMode.LINEAR)
        self._updated[node] = updated = context.output(layer, "cache_update")
        return updated if shape is None else reshape(context, updated, [*update.cache.meta["val"].shape])

    def _starts(self, update: CacheUpdate, batch: Any, length: Any) -> Any:
        """Where the rows of an update begin in each of the batch: (batch,)."""
        context, places = self.context, update.places
        if not isinstance(places, fx.Node):
            return context.tensor(expand(context, torch.tensor([places], dtype=torch.int64), [batch]))
        given, meta = self._values[places], places.meta["val"]
        if meta.dim() != 1:
            given = reshape(context, given, [-1])
        if not update.has_many_places:
            given = slice_tensor(context, given, [0], [1])
        if update.wraps:
            given = wrap_negative(context, given, length)
        return context.tensor(given if update.has_many_places else expand(context, given, [batch]))

    def _replace(self, state: Any, value: Any) -> Any:
        """Adds the layer that updates a cache in place, of which all is one row."""
        context = self.context
        row = reshape(context, context.tensor(self._values[value]), _as_a_row(state))
        start = context.tensor(torch.zeros(1, dtype=torch.int64))
        layer = context.network.add_kv_cache_update(self._values[state], row, start, trt.KVCacheMode.LINEAR)
        return context.output(layer, "state_update")

    def _mark_update(self, node: fx.Node) -> Any:
        """Makes an updated cache an output, whose memory is that of the cache."""
        cache, written = node.args[0], written_cache(node)
        replaced = replaced_state(node) if written is None else None
        if replaced is None and (written is None or written not in self._updated):
            raise self.context.fail("it writes to its argument")
        if any(map(depends_on_data, self._returned_extents())):
            raise self.context.fail("an engine with results whose sizes depend on data updates nothing in place")
        tensor = self._replace(cache, replaced) if written is None else self._updated[written]
        name = f"updated_{len(self.updates)}"
        while name in self.input_names:
            name += "_"
        tensor.name = name
        self.context.network.mark_output(tensor)
        assert isinstance(cache, fx.Node)
        self.updates[cache.name] = name
        update = None if written is None else cache_update(written)
        first = None if update is None else first_place(update)
        if update is not None and first is not None and first.source is not None:
            self.places[cache.name] = KnownPlace(
                first.source.name, first.offset, update.count, update.wraps, update.axis, update.has_many_places
            )
        return tensor

    def _add_input(self, node: fx.Node) -> Any:
        meta = node.meta["val"]
        if not isinstance(meta, torch.Tensor):
            raise self.context.fail(f"the block's input is not a tensor but {type(meta).__name__}")
        shape = _shape_in_layer(node) or tuple(extent if isinstance(extent, int) else -1 for extent in meta.shape)
        tensor = self.context.network.add_input(node.name, to_trt(meta.dtype), shape)
        if tensor is None:
            raise self.context.fail(f"TensorRT refused an input of type {meta.dtype} and shape {tuple(meta.shape)}")
        self.input_names.append(node.name)
        self.context.register_dimensions(tensor, meta)
        if meta.dtype is torch.uint8:
            return ByteTensor(cast(self.context, tensor, torch.float32))
        return tensor

    def _constant(self, node: fx.Node) -> Any:
        value = read_attribute(self.block, str(node.target))
        if not isinstance(value, torch.Tensor):
            return value
        constant = value.detach()
        recipe = node.meta.get(RECIPE)
        if self.context.refit is not None and recipe is not None:
            self.context.refit.know((value, constant), recipe)  # checks may look at the attribute itself
        return constant

    def _call_converter(self, node: fx.Node) -> Any:
        converter = self.support.find(node)
        if converter is None:
            raise self.context.fail("no converter takes this node")
        arguments = map_nodes(bind_arguments(node), self._values.__getitem__)
        if converter.fold and not converter.random and _is_known(list(arguments.values())):
            return self._compute(node, arguments)
        self.context.converter = converter
        network = self.context.network
        bindings = (network.num_inputs, network.num_outputs)
        result = converter.function(self.context, **arguments)
        if (network.num_inputs, network.num_outputs) != bindings:
            raise self.context.fail("the converter added inputs or outputs to the network")
        if not converter.is_builtin:
            self._has_layers_of_others = True
            self._check_owner(result)
        return result

    def _returned_extents(self) -> Iterator[torch.SymInt]:
        for item in self.block.graph.output_node().all_input_nodes:
            value = item.meta.get("val")
            extents: Sequence[Any] = value.shape if isinstance(value, torch.Tensor) else ()
            yield from (extent for extent in extents if isinstance(extent, torch.SymInt))

    def _check_owner(self, result: Any) -> None:
        """Tensors of another network are found here, where it is known who made them."""
        network = self.context.network
        layers = [network.get_layer(index) for index in range(network.num_layers)]
        known = {id(layer.get_output(index)) for layer in layers for index in range(layer.num_outputs)}
        known |= {id(network.get_input(index)) for index in range(network.num_inputs)}
        for value in leaves_of(result):
            if isinstance(value, trt.ITensor) and id(value) not in known:
                raise self.context.fail(f"the converter made {value.name!r}, a tensor of another network")

    def _compute(self, node: fx.Node, arguments: dict[str, Any]) -> Any:
        """Runs a node whose arguments are all known while building."""
        assert callable(node.target)
        return node.target(**arguments)

    def _check_results(self, node: fx.Node, result: Any) -> None:
        """A converter must keep the promise of the graph's metadata: type, rank, and every known extent.

        Results that nothing reads are let be: of some, PyTorch's metadata is wrong.
        """
        metas = node.meta["val"]
        pairs: tuple[tuple[Any, Any], ...] = ((result, metas),)
        if isinstance(metas, (tuple, list)):
            if not isinstance(result, (tuple, list)):
                raise self.context.fail(f"the converter made one {_kind(result)}, PyTorch makes {len(metas)} results")
            read = [index for index in range(len(metas)) if _is_read(node, index)]
            if len(result) > len(metas) or (read and len(result) <= read[-1]):
                raise self.context.fail(f"the converter made {len(result)} results, PyTorch makes {len(metas)}")
            pairs = tuple((result[index], metas[index]) for index in read)
        for value, meta in pairs:
            if not isinstance(meta, torch.Tensor):
                continue
            if not isinstance(value, (torch.Tensor, ByteTensor, trt.ITensor)):
                raise self.context.fail(f"the converter made {_kind(value)}, not a tensor")
            if dtype_of(value) is not meta.dtype:
                raise self.context.fail(f"the converter made {dtype_of(value)}, PyTorch makes {meta.dtype}")
            if not _agree(shape_of(value), meta.shape):
                raise self.context.fail(
                    f"the converter made shape {shape_of(value)}, PyTorch makes {tuple(meta.shape)}"
                )
            self._check_open_extents(shape_of(value), meta.shape)
            if not isinstance(value, torch.Tensor):
                self.context.register_dimensions(value, meta)

    def _check_open_extents(self, shape: tuple[int, ...], expected: Sequence[int | torch.SymInt]) -> None:
        """A converter of others that fixes an extent which varies would make an engine for one size alone."""
        converter = self.context.converter
        if converter is None or converter.is_builtin:
            return
        for axis, (found, wanted) in enumerate(zip(shape, expected, strict=True)):
            if found >= 0 and isinstance(wanted, torch.SymInt) and self._varies(wanted):
                raise self.context.fail(f"the converter fixed axis {axis} to {found}, and its extent varies: {wanted}")

    def _varies(self, extent: torch.SymInt) -> bool:
        if depends_on_data(extent):
            return True
        low, _, high = self.context.ranges.bounds(extent)
        return low != high

    def _mark_outputs(self, results: Any) -> None:
        outputs = results if isinstance(results, (tuple, list)) else (results,)
        for index, node in enumerate(outputs):
            value = self._values[node] if isinstance(node, fx.Node) else node
            tensor = self.context.tensor(value)
            # an input, a constant or a tensor that is an output already cannot be marked: a copy can
            is_constant = isinstance(value, torch.Tensor) and value.dtype is not torch.uint8
            if is_constant or tensor.is_network_input or tensor.is_network_output:
                tensor = self.context.output(self.context.network.add_identity(tensor), "identity")
            name = f"output_{index}"
            while name in self.input_names or name in self.updates.values():
                name += "_"
            tensor.name = name
            self.context.network.mark_output(tensor)
            if self.context.network.num_outputs != len(self.updates) + index + 1:
                raise self.context.fail(f"TensorRT refused to make {node} an output: {take_errors()}")
            self.output_names.append(name)


_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


def _is_read(node: fx.Node, index: int) -> bool:
    """Whether anything may read one of the results of a node."""
    return any(user.target is not operator.getitem or (user.args[1] == index and user.users) for user in node.users)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _is_known(arguments: Sequence[Any]) -> bool:
    """Whether every argument is known while building, with a tensor among them."""
    flat = list(leaves_of(arguments))
    known = all(isinstance(value, (*_PLAIN, torch.Tensor)) for value in flat)
    return known and any(isinstance(value, torch.Tensor) for value in flat)


def _agree(shape: tuple[int, ...], expected: Sequence[int | torch.SymInt]) -> bool:
    if len(shape) != len(expected):
        return False
    return all(
        found < 0 or not isinstance(wanted, int) or found == wanted
        for found, wanted in zip(shape, expected, strict=True)
    )
