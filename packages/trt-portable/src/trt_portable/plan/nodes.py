"""The plan while an engine is built: nodes with typed attributes over numbered tensors, and what rewrites them.

A node is a layer of the plan: `node[IMatrixMultiplyLayer.op1]` asks for an attribute by the descriptor that the layer's
class has for it, which knows type, default and JSON form.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypeVar

import torch

from trt_core.copies import copy_all
from trt_core.files import records
from trt_portable.dtypes import PACKED, pack, unpack, volume
from trt_portable.enums import DataType, LayerType
from trt_portable.errors import PortableError, present
from trt_portable.layer_properties import Attribute
from trt_portable.layers.sources import IConstantLayer
from trt_portable.network.layer import ILayer
from trt_portable.network.serialization import TensorEntry, layer_class, layers_from_json
from trt_portable.plan import tables
from trt_portable.plan.rewriting import Fusion, Graph, Pattern, apply
from trt_portable.plan.weight_table import WeightTable
from trt_portable.shape_tensors import Value, as_tensor

A = TypeVar("A")
CONSTANT: str = "CONSTANT"
"""The role of the weights of a constant."""


@dataclass(frozen=True)
class WeightUse:
    """The weights that a node has in a role.

    Attributes:
        key: Among the weights of the plan.
        dtype: Element type.
        count: Number of elements.
    """

    key: str
    dtype: DataType
    count: int


@dataclass(frozen=True, eq=False)
class Node:
    """A layer of a plan.

    Attributes:
        layer: Its class.
        name: Its name, or those of all layers that it stands for.
        inputs: Ids of tensors; None where an optional input is not connected.
        outputs: Ids of tensors.
        values: Attributes by descriptor; those that are not there have their default.
        weights: By role.
        metadata: Free text of the application.
        num_ranks: Of a collective.
        implementation: Name of the kernel that was chosen for it; empty where there was nothing to choose.
        nested: What layers of this class say beside: layers inside of loops and conditionals, plugins.
    """

    layer: type[ILayer]
    name: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]
    values: Mapping[Attribute[Any], Any] = field(default_factory=dict)
    weights: Mapping[str, WeightUse] = field(default_factory=dict)
    metadata: str = ""
    num_ranks: int = 1
    implementation: str = ""
    nested: Mapping[str, Any] = field(default_factory=dict)

    def __getitem__(self, attribute: Attribute[A]) -> A:
        """The value of an attribute.

        Raises:
            KeyError: Layers of this class do not have it.
        """
        if attribute not in self.layer._ATTRIBUTES:
            raise KeyError(f"{self.layer.__name__} has no attribute {attribute.name!r}")
        value: A = self.values.get(attribute, attribute.default)
        return value

    def having(self, values: Mapping[Attribute[Any], Any]) -> Node:
        """The same with other values of some attributes."""
        return replace(self, values={**self.values, **values})

    @property
    def kind(self) -> LayerType:
        """The kind of layer."""
        return self.layer._KIND

    def is_a(self, *layers: type[ILayer]) -> bool:
        """Whether the layer is of one of some classes."""
        return issubclass(self.layer, layers)

    def has(self, attribute: Attribute[A], value: A) -> bool:
        """Whether layers of the class have an attribute, and this one the value."""
        return attribute in self.layer._ATTRIBUTES and self[attribute] is value

    @property
    def inside(self) -> Iterator[Node]:
        """The nodes inside of this one, at any depth."""
        for part in tables.REGION:
            for node in self.nested.get(part, ()):
                yield node
                yield from node.inside

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Node:
        """A layer as `trt_portable.network.serialization` writes it."""
        kind = present(layer_class(entry["type"]))
        specs = entry["weight_specs"]
        nested = {part: entry[part] for part in kind._NESTED}
        for part in tables.REGION:
            if part in nested:
                nested[part] = tuple(map(Node.from_json, nested[part]))
        return Node(
            layer=kind,
            name=entry["name"],
            inputs=tuple(entry["inputs"]),
            outputs=tuple(entry["outputs"]),
            values={each: each.decode(entry["attributes"][each.name]) for each in kind._ATTRIBUTES},
            weights={
                role: WeightUse(key, DataType[specs[role][0]], specs[role][1]) for role, key in entry["weights"].items()
            },
            metadata=entry["metadata"],
            num_ranks=entry["num_ranks"],
            implementation=entry["implementation"],
            nested=nested,
        )

    def to_json(self) -> dict[str, Any]:
        """Inverse of `from_json`."""
        regions = [part for part in tables.REGION if part in self.nested]
        return {
            "type": self.layer._PLAN_TYPE,
            "name": self.name,
            "metadata": self.metadata,
            "num_ranks": self.num_ranks,
            "inputs": list(self.inputs),
            "outputs": list(self.outputs),
            "attributes": {each.name: each.encode(self[each]) for each in self.layer._ATTRIBUTES},
            "weights": {role: use.key for role, use in self.weights.items()},
            "weight_specs": {role: [use.dtype.name, use.count] for role, use in self.weights.items()},
            "implementation": self.implementation,
            **self.nested,
            **{part: [node.to_json() for node in self.nested[part]] for part in regions},
        }


class PassError(PortableError):
    """A pass broke its promise; the message says which, and on which layer."""


class PlanGraph(Graph[Node]):
    """Nodes in executable order, with their tensors and weights.

    An input of a node is a network input or an output of an earlier node. What loops and conditionals read is among
    their inputs. Visible are the tensors that must be computed: outputs, and tensors marked for debugging.

    Args:
        nodes: In executable order.
        tensors: By id.
        weights: Host weights by key, flat.
        inputs: Ids of the network inputs.
        visible: Ids of tensors that must be computed: outputs, and tensors marked for debugging.
        is_fixed: Whether the weights of a key in a role can never change.
        outer: The graph around, where the nodes are the body of a loop or conditional.
    """

    def __init__(
        self,
        nodes: Iterable[Node],
        tensors: dict[int, TensorEntry],
        weights: WeightTable,
        inputs: Collection[int],
        visible: Collection[int],
        is_fixed: Callable[[str, str], bool],
        outer: PlanGraph | None = None,
    ) -> None:
        super().__init__(nodes, visible)
        self.tensors = tensors
        self.weights = weights
        self.inputs = tuple(inputs)
        self._is_fixed = is_fixed
        self._outer = outer

    @property
    def nodes(self) -> list[Node]:
        """The nodes as they are now."""
        return self.operations

    @nodes.setter
    def nodes(self, nodes: Iterable[Node]) -> None:
        self._assign(nodes)

    # what nodes are ---------------------------------------------------------------------------------------

    def shape(self, tensor: int | None) -> tuple[int, ...]:
        """Extents of a tensor, -1 where they are open."""
        return self.tensors[present(tensor)].shape

    def dtype(self, tensor: int | None) -> DataType:
        """Element type of a tensor."""
        return self.tensors[present(tensor)].dtype

    def is_fixed(self, node: Node) -> bool:
        """Whether the weights of a node can never change."""
        return all(self._is_fixed(use.key, role) for role, use in node.weights.items())

    def is_constant(self, tensor: int | None) -> bool:
        """Whether a constant makes a tensor, which a refit may replace."""
        node = self.maker(tensor)
        if node is None and self._outer is not None:
            return self._outer.is_constant(tensor)
        return node is not None and node.is_a(IConstantLayer)

    def constant(self, tensor: int | None, *, in_place: bool = False) -> torch.Tensor | None:
        """The value of a constant whose weights never change, None for any other tensor.

        Args:
            tensor: Its id.
            in_place: Take it where it lies, which may be a GPU; else what lies there is copied to the host.
        """
        node = self._fixed_constant(tensor)
        if node is None:
            return None
        key = node.weights[CONSTANT].key
        shape, flat = node[IConstantLayer.shape], self.weights.in_place(key) if in_place else self.weights[key]
        return (
            flat.reshape(tuple(shape)) if flat.numel() == volume(shape) else None
        )  # packed: fewer bytes than elements

    def elements(self, tensor: int | None) -> torch.Tensor | None:
        """As `constant`, with 4-bit elements unpacked to their carrier."""
        value, node = self.constant(tensor), self._fixed_constant(tensor)
        if value is not None or node is None:
            return value
        use, shape = node.weights[CONSTANT], node[IConstantLayer.shape]
        if use.dtype not in PACKED:
            return None
        return unpack(self.weights[use.key], use.dtype, volume(shape)).reshape(tuple(shape))

    def is_fixed_constant(self, tensor: int | None) -> bool:
        """Whether a constant whose weights never change makes a tensor."""
        return self._fixed_constant(tensor) is not None

    def _fixed_constant(self, tensor: int | None) -> Node | None:
        node = self.maker(tensor)
        if node is None or not node.is_a(IConstantLayer):
            return None
        is_there = node.weights[CONSTANT].key in self.weights and -1 not in node[IConstantLayer.shape]
        return node if is_there and self.is_fixed(node) else None

    @property
    def used_tensors(self) -> set[int]:
        """The tensors that somebody makes, reads or wants."""
        every = (each for node in self.nodes for each in (node, *node.inside))
        named = {tensor for each in every for tensor in (*each.inputs, *each.outputs) if tensor is not None}
        return named.union(self.inputs, self.visible)

    def body_of(self, region: Node) -> PlanGraph:
        """The nodes in a loop or conditional as a graph, of which the boundary reads some tensors."""
        body: tuple[Node, ...] = region.nested["body"]
        made = {tensor for node in body for tensor in node.outputs}
        inputs = {tensor for node in body for tensor in node.inputs if tensor is not None} - made
        visible = {tensor for node in region.nested["boundary"] for tensor in node.inputs if tensor is not None}
        return PlanGraph(body, self.tensors, self.weights, inputs, visible, self._is_fixed, outer=self)

    def compute(self, node: Node, value: torch.Tensor) -> torch.Tensor | None:
        """What a node makes of a value of its first input, if its other inputs are constants.

        They are taken as they are: extents and axes that a plan relies on are not refitted.
        """
        operands: list[Value | None] = [value]
        for tensor in node.inputs[1:]:
            constant = self.maker(tensor)
            if tensor is not None and (constant is None or not constant.is_a(IConstantLayer)):
                return None
            operands.append(None if constant is None else self.layer(constant)._compute(())[0])
        (made,) = self.layer(node)._compute(operands)
        return as_tensor(made)

    def layer(self, node: Node, *, in_place: bool = False) -> ILayer:
        """The layer of a node, with its weights.

        Args:
            node: The node.
            in_place: Take weights where they lie, which may be a GPU; else what lies there is copied to the host.
        """
        every = (node, *node.inside)
        named = dict.fromkeys(at for each in every for at in (*each.inputs, *each.outputs) if at is not None)
        entry = node.to_json()
        structure: dict[str, Any] = {key: [] for key in tables.NETWORK} | {
            "name": "",
            "tensors": [records.write(self.tensors[tensor]) for tensor in named],
            "layers": [entry],
        }
        image = layers_from_json(structure)
        weights: Mapping[str, torch.Tensor] = self.weights
        if in_place:
            keys = set(entry["weights"].values())
            weights = {key: self.weights.in_place(key) for key in keys & self.weights.keys()}
        image.bind(weights, [entry], "cpu")
        return image.layers[0]

    # what nodes are made of -------------------------------------------------------------------------------

    def new_tensor(self, name: str, dtype: DataType, shape: Sequence[int]) -> int:
        """Adds a tensor, and returns its id."""
        identity = max(self.tensors, default=-1) + 1
        formats = next(iter(self.tensors.values())).formats
        self.tensors[identity] = TensorEntry(identity, name, dtype, tuple(shape), {}, formats, False)
        return identity

    def new_constant(self, name: str, dtype: DataType, value: torch.Tensor) -> Node:
        """A constant with weights of its own, which a rewrite has to put among the nodes.

        Args:
            name: Of the layer and its output.
            dtype: The element type.
            value: In the carrier of the type.
        """
        key = f"{name}:{len(self.weights)}"
        self.weights[key] = pack(value.reshape(-1), dtype) if dtype in PACKED else value.reshape(-1)
        return constant_node(name, self.new_tensor(name, dtype, value.shape), key, dtype, tuple(value.shape))

    def new_joined_constant(self, name: str, dtype: DataType, parts: Sequence[torch.Tensor], axis: int) -> Node:
        """A constant with the elements of several constants along an axis, joined where they are written to.

        Args:
            name: Of the layer and its output.
            dtype: The element type, which takes whole bytes.
            parts: Values, of the same extents on other axes.
            axis: Along which they follow each other.
        """
        sizes = [part.shape[axis] for part in parts]
        shape = list(parts[0].shape)
        shape[axis] = sum(sizes)

        def write(target: torch.Tensor) -> None:
            pairs = list(zip(parts, target.view(shape).split(sizes, axis), strict=True))
            is_on_gpu = all(tensor.is_cuda for tensor in (target, *parts))  # where one kernel copies sooner
            if not is_on_gpu and all(tensor.is_contiguous() for pair in pairs for tensor in pair):
                copy_all(pairs)
                return
            for part, place in pairs:
                place.copy_(part)

        key = f"{name}:{len(self.weights)}"
        (device, *others) = {part.device for part in parts}
        home = torch.device("cpu") if others else device
        self.weights.defer(key, parts[0].dtype, math.prod(shape), write, home, anywhere=True)
        return constant_node(name, self.new_tensor(name, dtype, shape), key, dtype, shape)


def constant_node(name: str, output: int, key: str, dtype: DataType, shape: Sequence[int]) -> Node:
    """A constant of given weights."""
    use = WeightUse(key, dtype, math.prod(shape))
    decoded = IConstantLayer.shape.decode(list(shape))
    return Node(IConstantLayer, name, (), (output,), {IConstantLayer.shape: decoded}, {CONSTANT: use})


class PlanPass(ABC):
    """A rewrite of a plan's nodes.

    A pass keeps what the visible tensors are, up to the rounding that its docstring names, and leaves the order of
    nodes executable. It touches no weights that a refit may replace.
    """

    name: str

    @abstractmethod
    def call(self, graph: PlanGraph) -> int:
        """Rewrites the graph, and returns the number of changes."""

    def __call__(self, graph: PlanGraph) -> int:
        """Rewrites, and checks what every pass promises where something changed.

        Raises:
            PassError: A node reads what no earlier one makes, or a visible tensor is gone.
        """
        changes = self.call(graph)
        if changes:
            self._ensure(graph)
        return changes

    def _ensure(self, graph: PlanGraph) -> None:
        known = set(graph.inputs)
        for node in graph.nodes:
            missing = {tensor for tensor in node.inputs if tensor is not None} - known
            if missing:
                raise PassError(f"pass {self.name}: layer {node.name!r} reads tensors {sorted(missing)} too early")
            known.update(node.outputs)
        if not known.issuperset(graph.visible):
            raise PassError(f"pass {self.name}: tensors {sorted(set(graph.visible) - known)} are computed no more")


class PlanPattern(PlanPass, Pattern[Node, PlanGraph]):
    """A pass that is one pattern."""

    def call(self, graph: PlanGraph) -> int:
        """Applies the pattern to every node in order."""
        return apply(self, graph)


NodeFusion: TypeAlias = Fusion[Node]
Match: TypeAlias = Callable[[Node, PlanGraph], "NodeFusion | None"]


class _Matched(PlanPattern):
    """The pattern of a function."""

    def __init__(self, kinds: tuple[LayerType, ...], match: Match) -> None:
        self.name, self.kinds, self._match = match.__name__.removeprefix("_"), frozenset(kinds), match

    def match(self, operation: Node, graph: PlanGraph) -> NodeFusion | None:
        """What the function says."""
        return self._match(operation, graph)


def pattern(*kinds: LayerType) -> Callable[[Match], PlanPattern]:
    """Makes a pass, named alike, of a function that says what becomes of a node; None where it does not apply.

    Args:
        kinds: Of the nodes that the function is asked about.
    """
    return lambda match: _Matched(kinds, match)
