"""Models that are one engine as a whole: their network, and bindings by names of the caller's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from trt_converters.build import build_network, new_builder, profiles_of
from trt_converters.interpreter import BlockInterpreter
from trt_core import InputError, device_scope, trt
from trt_core.internals import pytree
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
        built = lowered.split(lowered.plan())
        if len(built.blocks) != 1:
            raise InputError(f"the model becomes {len(built.blocks)} engines, not a single one")
        ((place, block),) = built.blocks.items()
        builder = new_builder(name)
        network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
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
        output = next(node for node in reversed(root.nodes) if node.op == "output")
        returned = [
            self.interpreter.output_names[0 if node is self.call else node.args[1]]
            for node in pytree.tree_leaves(output.args[0])
        ]
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
