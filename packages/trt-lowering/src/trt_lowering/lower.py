"""Lowers exported programs, and functional graphs as AOTAutograd hands them on: from capture to partitioning.

A program becomes a graph module whose parameters are attributes, or stays an exported program whose signature keeps
step with its graph. What is written to the elements of an input comes back as a write; that a tensor is transposed in
place, resized, or made to refer to other memory would be lost, and is refused, and so is an `out=` that eager refuses.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import operator
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import fx, nn
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, InputSpec

from trt_core import CompilationSettings, LoweringError, logger
from trt_core.attributes import LIES_AS_CAPTURED, add_constant, read_attribute
from trt_core.dtypes import dtype_name
from trt_core.exported_programs import copy_of_graph, model_name, with_changes, with_free_names
from trt_core.held_arguments import held_to_signature
from trt_core.internals import (
    FakeTensorMode,
    LazyGraphModule,
    OpOverload,
    is_traceable_wrapper_subclass,
    pytree,
    schema_name,
)
from trt_core.nesting import leaves_of
from trt_core.operators import argument, draws_random_numbers, is_random
from trt_core.provenance import node_location
from trt_core.temporary import with_attributes
from trt_core.weight_recipes import RECIPE, Literal, Source
from trt_lowering.contract import Observer, run_passes
from trt_lowering.decomposition_table import DecompositionRules, Preserve
from trt_lowering.expansion import replace_result
from trt_lowering.node_metadata import (
    STATE,
    cast_value,
    fake_mode_of,
    graph_results,
    insert_call,
    same_layout,
    settle_extents,
)
from trt_lowering.operator_traits import (
    SILENT_ALIASES,
    copies_as_it_lies,
    is_symbolic_function,
    mutated_arguments,
    tensor_value,
)
from trt_lowering.pass_order import DecomposedGraph
from trt_lowering.passes.decompose import Decompose
from trt_lowering.passes.flatten import InlineWrappedRegions, RemoveAssertions, find_autocast_region, wrapped_region
from trt_lowering.passes.functionalize import AliasClasses, Functionalize
from trt_lowering.passes.open_wrapped_tensors import OpenWrappedTensors, wrapped_attributes
from trt_lowering.results import base_of, viewed_by
from trt_lowering.tracing import traces
from trt_lowering.trial_operands import trial_operands
from trt_lowering.whole_operators import keep_recurrent_layers


@held_to_signature
@traces("the exported program cannot be lowered")
def lower(
    program: torch.export.ExportedProgram,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    observe: Observer | None = None,
) -> fx.GraphModule:
    """Lowers an exported program.

    Args:
        program: The program; it is not changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.
        observe: Called with `capture` and the flat functional graph, then after every pass.

    Returns:
        A module in the form that `check_graph_form` describes, called like the model.

    Raises:
        LoweringError: A pass broke its contract, the program cannot be turned into a module, it changes the shape or
            the memory of an input, or an operator in it cannot write to what it is given as `out=`.
    """
    return begin_lowering(program, settings, preserve=preserve, observe=observe).finish()


@held_to_signature
@traces("the exported program cannot be lowered")
def begin_lowering(
    program: torch.export.ExportedProgram,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    observe: Observer | None = None,
) -> DecomposedGraph:
    """Lowers an exported program as far as its values do not matter; see `lower` for arguments and errors."""
    refuse_lost_changes(program)
    require_out_types(program.graph_module)
    rules = DecompositionRules(preserve, settings)
    gm = _flat_functional(program)
    kept = inputs_that_lie_as_captured(program, are_results_views=gm is not None)
    if gm is None:
        gm = _flat_functional(retrace(program, rules))
    if gm is None:
        raise LoweringError(
            "the program still writes to views of its tensors after PyTorch made it functional",
            hint="check that `program.run_decompositions()` works, and report the model",
        )
    _keep_as_captured(gm.graph.find_nodes(op="placeholder"), kept)
    if observe is not None:
        observe("capture", gm)
    return DecomposedGraph(gm, rules, settings, observe)


@held_to_signature
@traces("the exported program cannot be decomposed")
def decompose_program(
    program: torch.export.ExportedProgram, settings: CompilationSettings, *, preserve: Preserve
) -> torch.export.ExportedProgram:
    """Decomposes the operators of a program that have no converter, and keeps it a program that can be saved.

    Args:
        program: The program; it is not changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.

    Returns:
        A program with the same signature. Programs that write to views are traced anew as a whole.

    Raises:
        LoweringError: The program changes the shape or the memory of an input, or an operator in it cannot write to
            what it is given as `out=`.
    """
    refuse_lost_changes(program)
    require_out_types(program.graph_module)
    rules = DecompositionRules(preserve, settings)
    gm = copy_of_graph(program)
    results = [item.name if isinstance(item, fx.Node) else None for item in graph_results(gm.graph)]
    functionalize = Functionalize(write_back=False)
    if find_autocast_region(gm) is not None or _has_transforms(gm) or _is_entangled(gm, functionalize):
        traced = retrace(program, rules)
        kept = inputs_that_lie_as_captured(program, are_results_views=False)
        _keep_as_captured(_inputs_of(traced, traced.graph), kept)
        return traced
    run_passes(gm, [Decompose(rules)], recompile=False)
    gm.recompile()
    signature = rename_results(program.graph_signature, results, gm.graph)
    decomposed = with_changes(program, gm, graph_signature=signature, constants={**program.constants})
    _keep_as_captured(_inputs_of(decomposed, decomposed.graph), inputs_that_lie_as_captured(program))
    return decomposed


@traces(
    "the program writes to views, or runs parts under autocast or a transform, and cannot be traced again as a whole"
)
def retrace(program: torch.export.ExportedProgram, rules: DecompositionRules) -> torch.export.ExportedProgram:
    """Makes a whole program functional by tracing it again, with the same operators kept whole.

    This costs more than the export itself, so it serves only programs whose writes reach views, or which run parts
    under autocast or a transform such as `torch.vmap`.
    """
    logger.debug("lowering traces the whole program again: it writes to views, or runs under autocast or a transform")
    single = _computing_as_out(_without_idle_dropout(with_free_names(with_single_names(program))))
    try:
        with keep_recurrent_layers():
            traced: torch.export.ExportedProgram = single.run_decompositions(rules.whole_program_table())
    except Exception as error:
        overlapping = [
            str(spec.target) for sharing in _buffers_by_memory(single) if len(sharing) > 1 for spec in sharing
        ]
        if not overlapping:
            raise
        raise LoweringError(
            f"the buffers {' and '.join(overlapping)} lie in one memory, and the model writes to it",
            why="PyTorch cannot make such a program functional",
            hint="register one buffer for this memory, and take parts of it in forward",
        ) from error
    return traced


def _without_idle_dropout(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Returns a program without dropout that is switched off, which returns its operand; traced again it is a copy."""
    gm = copy_of_graph(program)
    results = [item.name if isinstance(item, fx.Node) else None for item in graph_results(gm.graph)]
    idle = [node for node in gm.graph.nodes if _is_idle_dropout(node)]
    for node in idle:
        node.replace_all_uses_with(node.args[0])
        gm.graph.erase_node(node)
    if not idle:
        return program
    return with_changes(program, gm, graph_signature=rename_results(program.graph_signature, results, gm.graph))


def _is_idle_dropout(node: fx.Node) -> bool:
    target = node.target
    is_dropout = isinstance(target, OpOverload) and target._schema.name in SILENT_ALIASES and is_random(target)
    return is_dropout and not draws_random_numbers(node)


def _computing_as_out(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Returns a program whose operators say in which type they compute where that is the type of their `out=`.

    What they become without `out=` computes in the type of the operands, and is cast afterwards.
    """
    gm = copy_of_graph(program)
    return with_changes(program, gm) if _say_types_of_out(gm) else program


def _say_types_of_out(gm: fx.GraphModule) -> bool:
    """Changes a graph, and copies of the regions in it; returns whether there was what to change."""
    changed = False
    for name, region in nn.Module.named_children(gm):
        copied = fx.GraphModule(region, copy.deepcopy(region.graph)) if isinstance(region, fx.GraphModule) else None
        if copied is not None and _say_types_of_out(copied):
            setattr(gm, name, copied)
            changed = True
    for node, operands, _ in _writing_other_types(gm):
        assert isinstance(node.target, OpOverload)
        dtype = operands[1][_out_names(node.target)[0]].dtype
        if any(item.name == "dtype" for item in node.target._schema.arguments):
            changed |= argument(node, "dtype") is None
            node.update_kwarg("dtype", argument(node, "dtype") or dtype)
        elif node.target._schema.name in _COMPUTING_AS_OUT:
            changed |= _widen(node, dtype)
        elif node.target._schema.name in _LOSSES and argument(node, "reduction"):
            _add_up_as_out(node, dtype)
            changed = True
    return changed


_COMPUTING_AS_OUT: Final = frozenset({"aten::normal", "aten::var", "aten::std", "aten::logsumexp"})
"""Operators that compute in the type of their `out=` without an argument that says a type."""


_LOSSES: Final = frozenset({"aten::mse_loss", "aten::smooth_l1_loss", "aten::huber_loss"})
"""Operators that compute in the type of their operands, and add up in that of their `out=`."""


def _add_up_as_out(node: fx.Node, dtype: torch.dtype) -> None:
    """Lets a loss write its elements, which a sum or mean adds up in the type of `out=`."""
    target: Any = node.target
    operands = {item.name: argument(node, item.name) for item in target._schema.arguments}
    reduction, value = operands["reduction"], tensor_value(operands["self"])
    call = functools.partial(insert_call, node.graph, value=value, origin=node)
    with node.graph.inserting_before(node):
        elements = call(torch.ops.aten.empty_like.default, (operands["self"],))
        elements = call(target, (), {**operands, "reduction": 0, "out": elements})
    node.target = (torch.ops.aten.mean.out, torch.ops.aten.sum.IntList_out)[reduction - 1]
    node.args, node.kwargs = (elements, None), {"dtype": dtype, "out": operands["out"]}


def _widen(node: fx.Node, dtype: torch.dtype) -> bool:
    """Casts floating-point operands of an operator to the type of its `out=` where that is wider; whether there are."""
    operands = {item: tensor_value(item) for item in leaves_of(node.args) if isinstance(item, fx.Node)}
    casts = {}
    for operand, value in operands.items():
        if value is None or value.dtype == dtype or torch.promote_types(value.dtype, dtype) != dtype:
            continue
        with node.graph.inserting_before(node):
            casts[operand] = insert_call(
                node.graph,
                torch.ops.aten._to_copy.default,
                (operand,),
                {"dtype": dtype},
                value=cast_value(value, dtype),
                origin=node,
            )
    node.args = fx.map_arg(node.args, lambda item: casts.get(item, item))
    return bool(casts)


def _flat_functional(program: torch.export.ExportedProgram) -> fx.GraphModule | None:
    """Returns the program as a flat functional graph, None when it takes a whole trace to make it one."""
    gm = unlift(program)
    if find_autocast_region(gm) is not None or _has_transforms(gm):
        return None
    run_passes(gm, [InlineWrappedRegions(), RemoveAssertions(), OpenWrappedTensors()], recompile=False)
    if wrapped_attributes(gm):
        return None
    return None if _is_entangled(gm, Functionalize()) else gm


def _has_transforms(gm: fx.GraphModule) -> bool:
    """Whether parts of a program run under `torch.vmap` or another transform, which export records as its steps."""
    return any(
        str(getattr(node.target, "__module__", "")).startswith("torch._functorch")
        for node in gm.graph.nodes
        if node.op == "call_function"
    )


def _is_entangled(gm: fx.GraphModule, functionalize: Functionalize) -> bool:
    run_passes(gm, [functionalize], recompile=False)
    return functionalize.entangled is not None


def rename_results(
    signature: ExportGraphSignature, former: Sequence[str | None], graph: fx.Graph
) -> ExportGraphSignature:
    """Returns a signature whose results carry the names of the nodes that the graph returns now.

    Args:
        signature: The signature; it is not changed.
        former: Names of the returned nodes before the graph was rewritten, None for constants.
        graph: The rewritten graph, whose results are in the same order.
    """
    now = [item.name if isinstance(item, fx.Node) else None for item in graph_results(graph)]
    outputs = []
    for spec, before, after in zip(signature.output_specs, former, now, strict=True):
        if before is None or after is None or isinstance(spec.arg, ConstantArgument) or before == after:
            outputs.append(spec)
        else:
            outputs.append(dataclasses.replace(spec, arg=dataclasses.replace(spec.arg, name=after)))
    return ExportGraphSignature(input_specs=list(signature.input_specs), output_specs=outputs)


def with_single_names(program: torch.export.ExportedProgram) -> torch.export.ExportedProgram:
    """Returns a program without the buffers that its graph reads under another name; itself where there are none.

    Export lists a buffer of two modules twice and reads it once. Tracing such a program again, PyTorch takes the two
    for inputs that overlap, and fails where one is written to.
    """
    unread = {str(node.name) for node in program.graph.find_nodes(op="placeholder") if not node.users}
    specs = program.graph_signature.input_specs
    others = set()
    for sharing in _buffers_by_memory(program):
        names = {spec.arg.name for spec in sharing}
        if not names <= unread:
            others |= names & unread
    if not others:
        return program
    module = copy_of_graph(program)
    for node in module.graph.find_nodes(op="placeholder"):
        if node.name in others:
            module.graph.erase_node(node)
    kept = [spec for spec in specs if spec.arg.name not in others]
    dropped = {spec.target for spec in specs if spec.arg.name in others}
    return with_changes(
        program,
        module,
        graph_signature=ExportGraphSignature(kept, list(program.graph_signature.output_specs)),
        state_dict={name: value for name, value in program.state_dict.items() if name not in dropped},
        constants={name: value for name, value in program.constants.items() if name not in dropped},
    )


def _buffers_by_memory(program: torch.export.ExportedProgram) -> Iterable[list[InputSpec]]:
    found: dict[int, list[InputSpec]] = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.BUFFER:
            value = program.state_dict.get(spec.target, program.constants.get(spec.target))
            is_plain = isinstance(value, torch.Tensor) and not is_traceable_wrapper_subclass(value)
            memory = value.untyped_storage()._cdata if is_plain and value.layout is torch.strided else id(spec)
            found.setdefault(memory, []).append(spec)
    return found.values()


def unlift(program: torch.export.ExportedProgram) -> fx.GraphModule:
    """Returns a module that is called like the model, with the program's own tensors as attributes.

    The graph is a copy, the tensors are not; the program is left as it is. Placeholders come first.

    Raises:
        LoweringError: The program cannot be unlifted (it was made from subgraphs that PyTorch cannot call).
    """
    try:
        program = with_free_names(program)
        with _no_code_generated():
            stateful = program.module(check_guards=False)
    except Exception as error:
        raise LoweringError(
            "the exported program cannot be turned into a module",
            why=f"{type(error).__name__}: {error}",
            hint="check that `program.module()` works; export the model again if it does not",
        ) from error
    _move_inputs_first(stateful.graph)
    _forget_other_names(stateful.graph)
    _describe_write_backs(stateful.graph)
    _name_weights(stateful, program)
    # a plain module: export's own refuses train() and eval(), and checks its inputs in a hook at every call
    return LazyGraphModule(stateful, stateful.graph)


def _no_code_generated() -> contextlib.AbstractContextManager[None]:
    """Keeps graph modules that this thread makes from generating code, each time for a whole model that nobody calls.

    Hold the `tracing_lock` around it.
    """
    generate, thread = fx.GraphModule.recompile, threading.get_ident()

    def recompile(self: fx.GraphModule) -> Any:
        return generate(self) if threading.get_ident() != thread else None

    return with_attributes(fx.GraphModule, recompile=recompile)


def _move_inputs_first(graph: fx.Graph) -> None:
    first = next(iter(graph.nodes))
    for node in graph.find_nodes(op="placeholder"):
        if node is not first:
            first.prepend(node)
        else:
            first = node.next


def _forget_other_names(graph: fx.Graph) -> None:
    """Drops attributes that nothing reads: of the names of a shared tensor export uses one, and lists all of them.

    A write to such a tensor would be taken for one to another attribute, which shares its memory.
    """
    for node in graph.find_nodes(op="get_attr"):
        if not node.users:
            graph.erase_node(node)


def _describe_write_backs(graph: fx.Graph) -> None:
    """Unlifting adds write backs without saying what they return, and in an order of its own.

    What one of them writes may be what an input or attribute held before another one writes to that.
    """
    copies = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    added = [node for node in copies if "val" not in node.meta and isinstance(node.args[0], fx.Node)]
    written = {node.args[0] for node in added}
    for node in added:
        state, value = node.args
        assert isinstance(state, fx.Node)
        node.meta["val"] = state.meta["val"]
        if isinstance(value, fx.Node) and value is not state and base_of(value) in written:
            held = value.meta["val"].clone()
            with graph.inserting_before(added[0]):
                snapshot = insert_call(graph, torch.ops.aten.clone.default, (value,), value=held, origin=value)
            node.args = (state, snapshot)


def _name_weights(stateful: fx.GraphModule, program: torch.export.ExportedProgram) -> None:
    """Notes which attributes are weights of the model, under which names, and which are constants."""
    names_of: dict[tuple[int, torch.dtype, int], list[str]] = {}
    for name, value in program.state_dict.items():
        if isinstance(value, torch.Tensor) and value.numel():
            names_of.setdefault(_memory(value), []).append(name)
    for node in stateful.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        value = read_attribute(stateful, name)
        if not isinstance(value, torch.Tensor):
            continue
        if name not in program.state_dict:
            node.meta[RECIPE] = Literal(value, model_name(name))
            continue
        tied = tuple(model_name(other) for other in names_of.get(_memory(value), ()) if other != name)
        node.meta[RECIPE] = Source(model_name(name), value.dtype, tuple(value.shape), tied)


def _memory(tensor: torch.Tensor) -> tuple[int, torch.dtype, int]:
    """What tensors that are one weight have in common; those without memory of their own are known by themselves."""
    plain = type(tensor) in (torch.Tensor, nn.Parameter) and not tensor.is_meta
    return tensor.data_ptr() if plain else id(tensor), tensor.dtype, tensor.numel()


_DATA_ASSIGNED: Final = "aten::_has_compatible_shallow_copy_type"
"""What `x.data = y` leaves behind in a captured graph."""


def refuse_lost_changes(program: torch.export.ExportedProgram) -> None:
    """Refuses a program that leaves an input, a parameter or a buffer with another shape, strides or memory.

    Args:
        program: The program; operators that write in place are still in it.

    Raises:
        LoweringError: There is such a change; the message names the operator, and the input or buffer.
    """
    targets = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers}
    left: dict[fx.Node, fx.Node] = {}
    states = {node: node for node in program.graph.find_nodes(op="placeholder")}
    _collect(program.graph_module, states, left)
    for state, node in left.items():
        before, after = tensor_value(state), tensor_value(node)
        name = schema_name(node.target).partition("::")[2]
        if before is None or after is None or (same_layout(before, after) and name != "set_"):
            continue
        twin = name.rstrip("_")
        instead = (
            f"use {twin}(), which returns a new tensor, or"
            if hasattr(torch.Tensor, twin)
            else "go on with a view of it, or"
        )
        target = targets.get(state.name)
        raise LoweringError(
            f"the model changes {f'its tensor {target}' if target else f'input {state.name}'} by {name}(), "
            "which a compiled model cannot do",
            where=node_location(node),
            why=f"it has the shape {tuple(before.shape)} and strides {before.stride()} before the call, and "
            f"{tuple(after.shape)} and {after.stride()} after it; a compiled model writes to elements only",
            hint=f"{instead} change a clone",
        )


def _collect(gm: fx.GraphModule, states: dict[fx.Node, fx.Node], left: dict[fx.Node, fx.Node]) -> None:
    """Finds the last operator that changes each input, wrapped regions included.

    Args:
        gm: The graph.
        states: Which input of the program a node is; what operators that write in place return is added.
        left: The last such operator, by input; added to.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function":
            continue
        region = wrapped_region(node)
        if region is not None:
            holder, operands = region
            _collect_in_region(node, read_attribute(gm, str(holder.target)), operands, states, left)
            continue
        if not isinstance(node.target, OpOverload):
            continue
        if node.target._schema.name == _DATA_ASSIGNED:
            raise LoweringError(
                "the model assigns to the data of a tensor, which is lost when it is captured",
                where=node_location(node),
                hint="write to the tensor with copy_(), or go on with the new tensor instead",
            )
        state = _state_in(states, node.args[0]) if mutated_arguments(node.target) == (0,) and node.args else None
        if state is not None:
            states[node] = state
            if torch.Tag.inplace_view in node.target.tags and node.target is not torch.ops.aten.detach_.default:
                left[state] = node


def _collect_in_region(
    call: fx.Node,
    body: fx.GraphModule,
    operands: Sequence[Any],
    states: dict[fx.Node, fx.Node],
    left: dict[fx.Node, fx.Node],
) -> None:
    pairs = zip(body.graph.find_nodes(op="placeholder"), operands, strict=True)
    given = ((inner, _state_in(states, operand)) for inner, operand in pairs)
    inside = {inner: state for inner, state in given if state is not None}
    _collect(body, inside, left)
    results = graph_results(body.graph)
    for user in call.users:
        state = _state_in(inside, results[user.args[1]]) if user.target is operator.getitem else None  # type: ignore[index]
        if state is not None:
            states[user] = state


def _state_in(states: Mapping[fx.Node, fx.Node], item: object) -> fx.Node | None:
    return states.get(item) if isinstance(item, fx.Node) else None


def inputs_that_lie_as_captured(
    program: torch.export.ExportedProgram, *, are_results_views: bool = True
) -> frozenset[int]:
    """Returns the numbers of the inputs that must lie in memory as they did at capture when a program is called.

    `contiguous`, `reshape` and their kin return their operand, a view of it, or a copy, as it lies. Where a program
    writes to what such an operator may have returned of an input, or to the input while that is in use, it is another
    program for an input that lies otherwise.

    Args:
        program: The program; operators that write in place are still in it.
        are_results_views: Whether results stay views that are taken when the program is called, as they are where it
            isn't traced again; otherwise those that such an operator returned count as what is written to.
    """
    gm = program.graph_module
    if any(wrapped_region(node) is not None for node in gm.graph.nodes):
        gm = copy_of_graph(program)
        InlineWrappedRegions().call(gm)
    places = {node: place for place, node in enumerate(gm.graph.nodes)}
    inputs = {node: number for number, node in enumerate(_inputs_of(program, gm.graph))}
    found = {number for node, number in inputs.items() if node.meta.get(LIES_AS_CAPTURED)}
    writes = [(place, operand) for node, place in places.items() for operand in _written_by(node)]
    if not are_results_views:
        writes += [(len(places) - 1, item) for item in graph_results(gm.graph) if isinstance(item, fx.Node)]
    copies = list(filter(copies_as_it_lies, places)) if writes else []
    aliases = AliasClasses()
    for node in places if copies else ():
        aliases.add(node)
    for node in copies:
        members = aliases.members(node)
        given = [inputs[member] for member in members if member in inputs]
        last = max((places[user] for view in _views_of(node) for user in view.users), default=-1) if given else -1
        if any(places[node] < at <= last and item in members for at, item in writes):
            found.update(given)
    return frozenset(found)


def _keep_as_captured(inputs: Sequence[fx.Node], numbers: Iterable[int]) -> None:
    for number in numbers:
        inputs[number].meta[LIES_AS_CAPTURED] = True


def _inputs_of(program: torch.export.ExportedProgram, graph: fx.Graph) -> list[fx.Node]:
    """The placeholders of what a program is called with, without those of weights."""
    names = set(program.graph_signature.user_inputs)
    return [node for node in graph.find_nodes(op="placeholder") if node.name in names]


def _written_by(node: fx.Node) -> list[fx.Node]:
    """The operands that a node writes to."""
    if not isinstance(node.target, OpOverload):
        return []
    declared = node.target._schema.arguments
    names = [declared[place].name for place in mutated_arguments(node.target)]
    return [item for name in names for item in leaves_of(argument(node, name)) if isinstance(item, fx.Node)]


def _views_of(node: fx.Node) -> Iterable[fx.Node]:
    """A node, and what may be views of it."""
    found, left = {node: None}, [node]
    while left:
        views = [user for user in left.pop().users if viewed_by(user) in found and user not in found]
        found.update(dict.fromkeys(views))
        left += views
    return found


def require_out_types(gm: fx.GraphModule) -> None:
    """Refuses a program that lets an operator write its result into a tensor of a type that eager refuses.

    Capture asks fake kernels, of which many take any type. Where types differ, the real one is asked: it runs on zeros,
    on parts of the operands where these are large.

    Args:
        gm: The graph of a program, in which operators that write are still; regions included.

    Raises:
        LoweringError: There is such a tensor; the message names the operator, and says what its kernel says.
    """
    for region in torch.nn.Module.modules(gm):
        for node, operands, made in _writing_other_types(region) if isinstance(region, fx.GraphModule) else ():
            assert isinstance(node.target, OpOverload)
            refusal = _refusal(node.target, *operands, made)
            if refusal is not None:
                types = " and ".join(dtype_name(value.dtype) for value in made.values())
                raise LoweringError(
                    f"the model gives {schema_name(node.target).partition('::')[2]}() an out= that it cannot write to",
                    where=node_location(node),
                    why=f"eager refuses the call: {refusal}",
                    hint=f"give out= of the type of the result, {types}",
                )


def _writing_other_types(gm: fx.GraphModule) -> Iterator[tuple[fx.Node, tuple[Any, Any], dict[str, torch.Tensor]]]:
    """Yields nodes whose `out=` is of another type than what they make without one, with zeros as operands.

    Beside them is what they make, by the names of `out=`.
    """
    for node in gm.graph.nodes:
        if node.op != "call_function" or not isinstance(node.target, OpOverload) or not _out_names(node.target):
            continue
        operands = trial_operands(node) or trial_operands(node, longest=_LONG_ENOUGH)
        made = {} if operands is None else _made_without(node.target, *operands)
        if operands is not None and any(value.dtype != operands[1][name].dtype for name, value in made.items()):
            yield node, operands, made


_LONG_ENOUGH: Final = 8
"""Axes as long decide nothing about types."""


@functools.cache
def _out_names(target: OpOverload) -> tuple[str, ...]:
    """The names of an operator's arguments `out=`."""
    arguments = target._schema.arguments
    return tuple(arguments[place].name for place in mutated_arguments(target) if arguments[place].kwarg_only)


@functools.cache
def _returning(target: OpOverload) -> OpOverload | None:
    """Returns the overload that returns what another one writes: `aten.sort.default` for `aten.sort.values`."""
    names = _out_names(target)
    wanted = [(item.name, str(item.type)) for item in target._schema.arguments if item.name not in names]
    packet = target.overloadpacket
    for found in (getattr(packet, name) for name in packet.overloads()):
        if [(item.name, str(item.type)) for item in found._schema.arguments] == wanted and not mutated_arguments(found):
            return found  # type: ignore[no-any-return]
    return None


def _made_without(target: OpOverload, args: Any, kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Returns fake tensors as an operator makes them where it isn't given `out=`, by name; none where unknown."""
    names, returning = _out_names(target), _returning(target)
    if returning is None:
        return {}
    others = {name: value for name, value in kwargs.items() if name not in names}
    try:
        with FakeTensorMode() as mode, torch.no_grad():
            args, others = pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, others))
            made = pytree.tree_leaves(returning(*args, **others))
    except Exception:  # sizes that depend on data, or a fake kernel that refuses this
        return {}
    return dict(zip(names, made, strict=True)) if all(isinstance(item, torch.Tensor) for item in made) else {}


def _refusal(target: OpOverload, args: Any, kwargs: Mapping[str, Any], made: Mapping[str, torch.Tensor]) -> str | None:
    """Returns why a kernel refuses what it is to write into; None where it takes that, or refuses zeros in any case."""
    refusal = _error(target, args, kwargs)
    if refusal is None:
        return None
    own = {name: torch.zeros(value.shape, dtype=value.dtype) for name, value in made.items()}
    is_of_zeros = _error(target, args, {**kwargs, **own}) == refusal
    return None if is_of_zeros else refusal


def _error(target: Any, args: Any, kwargs: Mapping[str, Any]) -> str | None:
    with torch.random.fork_rng(devices=()), torch.no_grad():
        try:
            target(*args, **kwargs)
        except Exception as error:
            return str(error).strip().partition("\n")[0]
    return None


@held_to_signature
@traces("the captured graph cannot be lowered")
def lower_graph(
    gm: fx.GraphModule,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    constants: Mapping[str, torch.Tensor | int] | None = None,
) -> fx.GraphModule:
    """Lowers a functional graph of ATen operators.

    Args:
        gm: The graph: every node carries `meta["val"]`, nothing is written in place, and the output is flat. It is not
            changed, and its tensors are shared.
        settings: Compilation settings.
        preserve: Whether an operator has a converter, and so stays whole.
        constants: Placeholders (by target) whose value is fixed, such as frozen parameters. They become attributes,
            and the lowered module does not take them. An int must be the value that the graph was captured with.

    Returns:
        A module in the form that `check_graph_form` describes, which takes the remaining placeholders in order and
        returns a flat tuple.

    Raises:
        LoweringError: A name in `constants` is unknown, or a pass broke its contract.
    """
    return begin_lowering_graph(gm, settings, preserve=preserve, constants=constants).finish()


@held_to_signature
@traces("the captured graph cannot be lowered")
def begin_lowering_graph(
    gm: fx.GraphModule,
    settings: CompilationSettings,
    *,
    preserve: Preserve,
    constants: Mapping[str, torch.Tensor | int] | None = None,
    states: Collection[str] = (),
) -> DecomposedGraph:
    """Lowers a functional graph as far as its values do not matter; see `lower_graph` for errors and other arguments.

    Args:
        states: Placeholders (by target) that hold what lasts from call to call; the graph may return their next values.
    """
    lowered = _copy(gm)
    _write_back_last(lowered.graph)
    for node in lowered.graph.find_nodes(op="placeholder"):
        if str(node.target) in states:
            node.meta[STATE] = True
    _fix_constants(lowered, dict(constants or {}))
    run_passes(lowered, [RemoveAssertions(keep_values=True)], recompile=False)
    return DecomposedGraph(lowered, DecompositionRules(preserve, settings), settings, keep_checks=True)


def _write_back_last(graph: fx.Graph) -> None:
    """AOTAutograd takes views of results, which read nothing, behind the writes to inputs."""
    writes = graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    if not writes or any(write.users for write in writes):
        return
    nodes, written = list(graph.nodes), {write.args[0] for write in writes}
    behind = [node for node in nodes[nodes.index(writes[0]) : -1] if node not in writes]
    if all(
        (viewed_by(node) or is_symbolic_function(node.target)) and written.isdisjoint(node.all_input_nodes)
        for node in behind
    ):
        for write in writes:
            graph.output_node().prepend(write)


def _copy(gm: fx.GraphModule) -> fx.GraphModule:
    graph = copy.deepcopy(gm.graph)
    mode = fake_mode_of(graph)
    copied = fx.GraphModule(gm, graph)
    for node in graph.find_nodes(op="get_attr"):
        value = read_attribute(gm, str(node.target))
        if "val" in node.meta or isinstance(value, torch.nn.Module):
            continue
        if not isinstance(value, torch.Tensor):
            node.meta["val"] = value  # an object that the graph returns: the device mesh of a `DTensor`
        elif mode is not None:
            node.meta["val"] = mode.from_tensor(value)
    return copied


def _fix_constants(gm: fx.GraphModule, constants: dict[str, torch.Tensor | int]) -> None:
    placeholders = {str(node.target): node for node in gm.graph.find_nodes(op="placeholder")}
    unknown = constants.keys() - placeholders.keys()
    if unknown:
        raise LoweringError(
            f"the graph has no placeholder {sorted(unknown)[0]!r} to make a constant of",
            hint=f"its placeholders are {', '.join(placeholders)}",
        )
    first = next((node for node in gm.graph.nodes if node.op != "placeholder"), None)
    known: dict[Any, int] = {}
    for target, tensor in constants.items():
        placeholder = placeholders[target]
        if isinstance(tensor, int):
            known[placeholder.meta["val"].node.expr] = tensor
            replace_result(placeholder, tensor)
        elif placeholder.users:
            assert first is not None
            with gm.graph.inserting_before(first):
                attribute = gm.graph.get_attr(_register(gm, tensor))
            attribute.meta.update(placeholder.meta)
            placeholder.replace_all_uses_with(attribute)
        gm.graph.erase_node(placeholder)
    if known:
        settle_extents(gm.graph, known)


def _register(gm: fx.GraphModule, tensor: torch.Tensor) -> str:
    name = add_constant(gm, tensor)
    if isinstance(tensor, torch.nn.Parameter):
        delattr(gm, name)
        # the memory is shared, the object is not: whoever replaces the parameter must see it die
        gm.register_parameter(name, torch.nn.Parameter(tensor.detach(), requires_grad=False))
    return name
