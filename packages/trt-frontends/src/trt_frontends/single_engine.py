"""Models that are one engine as a whole: their network, and bindings by names of the caller's."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_converters.build import build_network, new_builder, new_network, profiles_of
from trt_converters.interpreter import BlockInterpreter
from trt_core import InputError, device_scope
from trt_core.internals import pytree
from trt_core.wording import counted
from trt_frontends.pipeline import CapturedModel
from trt_frontends.stages import lower
from trt_lowering import sizes_left_open, tracing_lock


class BindingNameMismatchError(InputError):
    """Names of bindings that are not nested as the inputs or results of the model are."""


@dataclass(frozen=True)
class SingleEngine:
    """A model that is one engine, converted and not built.

    Attributes:
        captured: The model.
        call: What calls the engine in the graph around it.
        builder, network: Of the provider.
        interpreter: What made the network; it keeps the weights alive.
    """

    captured: CapturedModel
    call: fx.Node
    builder: Any
    network: Any
    interpreter: BlockInterpreter

    @classmethod
    def of(cls, captured: CapturedModel, name: str) -> SingleEngine:
        """Converts a model.

        Args:
            captured: The model; its settings demand full compilation.
            name: What to call the engine.

        Raises:
            InputError: It becomes several engines, or none.
            IncompleteCompilationError: Some operators cannot run in an engine.
            ConversionError: A node could not be converted.
        """
        lowered = lower(captured)
        lowered.is_block = True  # nothing around the engine would name axes back
        built = lowered.split(lowered.plan())
        if len(built.blocks) != 1:
            raise InputError(f"the model becomes {counted(len(built.blocks), 'engine')}, not a single one")
        ((place, block),) = built.blocks.items()
        builder = new_builder(name)
        network = new_network(builder)
        network.name = name
        interpreter = BlockInterpreter(block, network, lowered.settings, lowered.ranges, captured.registry)
        with device_scope(lowered.settings.device.torch_device), tracing_lock(), sizes_left_open(block):
            interpreter.run()
        (call,) = (node for node in built.module.graph.nodes if node.op == "call_module" and node.target == place)
        return cls(captured, call, builder, network, interpreter)

    def name_bindings(
        self, program: torch.export.ExportedProgram, args: Any = None, kwargs: Any = None, results: Any = None
    ) -> None:
        """Gives bindings other names.

        Args:
            program: What was captured.
            args, kwargs: Names in the place of the program's inputs; None leaves those that they have.
            results: Names in the place of its results.

        Raises:
            BindingNameMismatchError: They are nested otherwise, are no texts, or are not all different.
        """
        root, spec = self.call.graph, program.call_spec
        ends = [node for node in root.nodes if node.op == "placeholder"]
        ours = dict(zip(self.call.args, self.interpreter.input_names, strict=True))
        before = [ours.get(end, end.name) for end in ends]
        known_args, known_kwargs = pytree.tree_unflatten(before, spec.in_spec)
        chosen = [
            *_names("arg_input_binding_names", args, tuple(known_args)),
            *_names("kwarg_input_binding_names", kwargs, known_kwargs),
        ]
        returned = self.results()
        before += returned
        chosen += _names("output_binding_names", results, pytree.tree_unflatten(returned, spec.out_spec))
        renamed: dict[str, str] = {}
        for old, name in zip(before, chosen, strict=True):
            if renamed.setdefault(old, name) != name:
                raise BindingNameMismatchError(f"{old!r} has two names, {renamed[old]!r} and {name!r}")
        for name in renamed.values():
            if list(renamed.values()).count(name) > 1:
                raise BindingNameMismatchError(f"several bindings would be called {name!r}")
        tensors = [(tensor, renamed.get(tensor.name, tensor.name)) for tensor in _bindings(self.network)]
        for place, (tensor, _) in enumerate(tensors):
            tensor.name = f"binding {place}"  # one may have the name that another one gets
        for tensor, name in tensors:
            tensor.name = name

    def results(self) -> list[str]:
        """Returns the names of the bindings that are the model's results, in their order."""
        return [
            self.interpreter.output_names[0 if node is self.call else node.args[1]]
            for node in pytree.tree_leaves(self.call.graph.output_node().args[0])
        ]

    def build(self) -> bytes:
        """Builds the engine.

        Raises:
            BuildError: The provider refuses the network.
        """
        context = self.interpreter.context
        names = [self.network.get_input(place).name for place in range(self.network.num_inputs)]
        profiles = profiles_of(self.interpreter.block, names, context.ranges)
        with device_scope(context.settings.device.torch_device):
            plan = build_network(self.builder, self.network, context.settings, profiles, self.network.name)
        return bytes(memoryview(plan))


def require_nothing_beside(graph: fx.Graph, engines: int) -> None:
    """Refuses a graph that does more than to call an engine.

    Args:
        graph: What calls engines.
        engines: How many there are.

    Raises:
        InputError: There is another number of them than one, or something is computed or returned beside it.
    """
    beside = _beside_the_engine(graph)
    if engines != 1 or beside:
        raise InputError(
            "the model is no single engine",
            why=f"it has {counted(engines, 'engine')}"
            if engines != 1
            else f"beside its engine there is {', '.join(beside[:3])}",
            hint="save the compiled model, which holds all of its parts: save(compile(...), path)",
        )


def _beside_the_engine(graph: fx.Graph) -> list[str]:
    """What a compiled model computes or returns that does not come out of an engine."""
    found = []
    for node in graph.nodes:
        if node.op == "call_function" and node.target is not operator.getitem:
            found.append(str(node.target))
        elif node.op == "output":
            found += [
                f"the result {leaf}"
                for leaf in pytree.tree_leaves(node.args[0])
                if not isinstance(leaf, fx.Node) or leaf.op in ("placeholder", "get_attr")
            ]
    return found


def _bindings(network: Any) -> Iterator[Any]:
    yield from (network.get_input(place) for place in range(network.num_inputs))
    yield from (network.get_output(place) for place in range(network.num_outputs))


def _names(argument: str, given: Any, known: Any) -> list[str]:
    """Names in the order of a structure, once they are found to be nested like it."""
    if given is None:
        return pytree.tree_leaves(known)
    aligned = _aligned(given, known)
    leaves = pytree.tree_leaves(aligned)
    are_names = all(isinstance(leaf, str) and leaf for leaf in leaves)
    if not are_names or pytree.tree_structure(aligned) != pytree.tree_structure(known):
        raise BindingNameMismatchError(
            f"{argument} is {given!r:.200}",
            why=f"the model has {known!r:.200} there",
            hint="give a name in the place of each tensor, nested alike",
        )
    return leaves


def _aligned(given: Any, known: Any) -> Any:
    """A structure whose dicts have the order of another one, and whose lists are tuples where those are."""
    if isinstance(given, dict) and isinstance(known, dict) and given.keys() == known.keys():
        return {key: _aligned(given[key], known[key]) for key in known}
    is_sequence = type(known) in (list, tuple) and isinstance(given, (list, tuple))
    if is_sequence and len(given) == len(known):
        return type(known)(map(_aligned, given, known))
    return given
