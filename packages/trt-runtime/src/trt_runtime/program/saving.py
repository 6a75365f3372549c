"""Saves compiled models: as a program of our own, or as PyTorch's exported program for interchange."""

from __future__ import annotations

import contextlib
import io
import operator
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, BinaryIO, Final, TypedDict

import torch
from torch import fx, nn

from trt_core.attributes import read_attribute
from trt_core.control_flow import bodies_of, is_control_flow
from trt_core.device import present_device
from trt_core.errors import ExportError, InputError, TrtError
from trt_core.exported_programs import model_name, module_of, with_free_names
from trt_core.files.container import Content, Late
from trt_core.files.replacing import Path, replacing
from trt_core.held_arguments import held_to_signature
from trt_core.input import Input
from trt_core.internals import OWN_NAMESPACES, OpOverload
from trt_core.log import logger
from trt_core.nesting import with_leaves
from trt_core.operators import operator_name
from trt_core.refit_table import recipe_text, why_unwritable
from trt_core.settings_reader import has_no_effect
from trt_core.sizes.expressions import Extent, extent_of, is_extent, symbols_in
from trt_core.sizes.functions import BY_TARGET
from trt_core.sizes.guards import conditions_of
from trt_core.sizes.ranges import Bounds, ShapeRanges
from trt_core.temporary import with_attributes
from trt_core.weight_recipes import RECIPE, Recipe
from trt_core.wording import kind_of, nearest_or_all
from trt_runtime.exchange import device_of, export, write_exported_program
from trt_runtime.header import PlanHeader, parse_header
from trt_runtime.module import TRTModule
from trt_runtime.operator import execute_engine
from trt_runtime.plan_notes import is_own, plan_bytes
from trt_runtime.profile_choice import InputRanges
from trt_runtime.program.allowed_operators import why_refused
from trt_runtime.program.document import MAX_METADATA, MAX_METADATA_TEXT, program_to_bytes
from trt_runtime.program.fields import FACTS, OWN_METADATA, OWNER, is_path_part
from trt_runtime.program.graph import (
    CONTROL_FLOW,
    Body,
    CapturedProgram,
    ControlFlowCall,
    Dimension,
    EngineCall,
    FixedInput,
    ItemCall,
    NumberCall,
    NumberType,
    OperatorCall,
    Program,
    SequenceType,
    Signature,
    SizeCall,
    Step,
    StoredEngine,
    StoredTensor,
    TensorInput,
    TensorType,
    ValueType,
    WriteCall,
)
from trt_runtime.program.graph_signature import (
    INTERCHANGE,
    declared_type,
    nest,
    require_plain,
    signature_of,
    symbol_bounds,
)
from trt_runtime.program.held_weights import held_weights
from trt_runtime.program.input_reader import InputReader, homes_of, places_of
from trt_runtime.program.literals import NoLiteral, Value, to_json
from trt_runtime.program.loaded_program import LoadedProgram, captured_from
from trt_runtime.program.model_facts import ModelFacts, literal_attributes, require_facts, result_classes
from trt_runtime.program.stored_tensors import check_storable, pack, view_key
from trt_runtime.program_file import PROGRAM as FILE
from trt_runtime.program_file import SectionKind
from trt_runtime.signatures import INSTALL, Signer, can_sign, signing_key

if TYPE_CHECKING:
    from torch.export import ExportedProgram


_SIZE: Final = torch.ops.aten.sym_size.int
_WRITE: Final = torch.ops.aten.copy_.default
_SAYS_NOTHING: Final = frozenset(
    {torch.ops.aten.sym_constrain_range.default, torch.ops.aten.sym_constrain_range_for_size.default}
)
"""Operators that only tell a compiler something."""

DETACH: Final = torch.ops.aten.detach_.default
"""Writes only what is said of gradients, which a program computes none of. Literals of tensors in bodies bring it."""

_GUARDS: Final = "_guards_fn"
"""Child that exported programs check their inputs with; the signature does that here."""


def can_emit(module: nn.Module) -> bool:
    """Whether a module says of itself what it takes, so that it can be saved without example inputs."""
    if not isinstance(module, fx.GraphModule):
        return False
    return all("val" in node.meta for node in module.graph.nodes if node.op == "placeholder")


def emit(module: fx.GraphModule, ranges: ShapeRanges, signature: Signature) -> CapturedProgram:
    """Reads a graph module.

    Args:
        module: A graph whose placeholders carry `meta["val"]`. Calls of child graph modules are inlined.
        ranges: Ranges of its symbolic dimensions.
        signature: How it is called.

    Raises:
        ExportError: Something in it has no place in a program; the message names it.
    """
    return _Emitter(module, ranges, signature).run()


@dataclass
class _Emitter:
    module: fx.GraphModule
    ranges: ShapeRanges
    signature: Signature
    tensors: list[torch.Tensor] = field(default_factory=list)
    entries: list[StoredTensor] = field(default_factory=list)
    engines: list[StoredEngine] = field(default_factory=list)
    plans: list[torch.Tensor] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    libraries: set[str] = field(default_factory=set)
    recipes: list[Recipe | None] = field(default_factory=list)
    _tensor_numbers: dict[tuple[Any, ...], int] = field(default_factory=dict)
    _engine_numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    _names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._homes = homes_of(self.signature).keys()
        self._held_at: dict[int, int] = {}
        self._first_result = 0
        self._is_body = False

    def run(self) -> CapturedProgram:
        self._collect(self.module)
        require_plain(self.signature)
        for name, leaf in zip(places_of(self.signature), self.signature.leaves, strict=True):
            if isinstance(leaf, FixedInput):
                self._checked(leaf.value, f"input {name}")
        placeholders = [node for node in self.module.graph.nodes if node.op == "placeholder"]
        self._first_tensor = len(placeholders)
        self._held_at = {number: self._first_tensor + number for number in range(len(self.tensors))}
        self._first_result = self._first_tensor + len(self.tensors)
        values: dict[fx.Node, Any] = {node: Value(index) for index, node in enumerate(placeholders)}
        results = self._inline(self.module, values, "")
        info = getattr(self.module.graph._codegen, "pytree_info", None)
        output = results if info is None or info.out_spec is None else nest(results, info.out_spec)
        program = Program(
            signature=self.signature,
            symbols=symbol_bounds(self.ranges, self.signature),
            profiles=tuple(symbol_bounds(item, self.signature) for item in self.ranges.profiles),
            storages=(),
            tensors=tuple(self.entries),
            engines=tuple(self.engines),
            steps=tuple(self.steps),
            output=self._checked(output, "the output"),
            libraries=tuple(sorted(self.libraries | self._plugin_libraries())),
            refit=held_weights(self.recipes, self.tensors) if self._can_refit() else None,
            metadata=self._metadata(None if info is None else info.out_spec),
        )
        return CapturedProgram(program, tuple(self.tensors), tuple(self.plans))

    def _plugin_libraries(self) -> set[str]:
        from trt_core.operator_plugin import split_name  # few programs have plugins

        said = self.module.meta.get("model_facts") or ModelFacts()
        return {library for name in said.plugins if (library := split_name(name)[0])}

    def _metadata(self, out_spec: Any) -> dict[str, str]:
        """What is said of the model; its attributes are left out where they are too long to be read."""
        said = self.module.meta.get("model_facts") or ModelFacts()
        homes = {name: title for name, title in said.dimensions.items() if name in self._homes}
        results = {} if out_spec is None else dict(result_classes(out_spec))
        facts = ModelFacts(homes, results, literal_attributes(said.attributes), said.plugins, said.titles)
        if not facts:
            return {}
        text = facts.to_text()
        if len(text.encode()) > MAX_METADATA_TEXT:
            text = replace(facts, attributes={}).to_text()
        return {FACTS: text}

    # What the program holds

    def _collect(self, module: fx.GraphModule) -> None:
        """Numbers the tensors of a graph and its children, and reserves the names of children."""
        for node in module.graph.nodes:
            for _, body in bodies_of(node):
                self._collect(body)
            if node.op == "get_attr" and not _is_plan(node):
                value = read_attribute(module, str(node.target))
                if isinstance(value, torch.Tensor):
                    self._add_tensor(value, _name_of(node), node.meta.get(RECIPE))
            elif node.op == "call_module":
                child = module.get_submodule(str(node.target))
                if isinstance(child, fx.GraphModule) and node.target != _GUARDS:
                    self._collect(child)

    def _add_tensor(self, tensor: torch.Tensor, name: str, recipe: Recipe | None) -> None:
        check_storable(tensor, name)
        key = view_key(tensor)
        number = self._tensor_numbers.get(key)
        if number is None:
            number = self._tensor_numbers[key] = len(self.tensors)
            self.tensors.append(tensor.detach())
            is_parameter = isinstance(tensor, nn.Parameter)
            blank = StoredTensor((), is_parameter, tensor.dtype, None, 0, (), (), tensor.device.type)
            self.entries.append(blank)
            self.recipes.append(recipe)
        elif recipe is not self.recipes[number] and not _are_equal(recipe, self.recipes[number]):
            self.recipes[number] = None  # what was one tensor might be two after a refit
        entry = self.entries[number]
        if name not in entry.names:
            names = (*entry.names, self._free_name(name))
            self.entries[number] = StoredTensor(names, *_fields_after_names(entry))

    def _can_refit(self) -> bool:
        return bool(self.engines) and all(engine.header.refit is not None for engine in self.engines)

    def _free_name(self, name: str) -> str:
        """The name, or one like it that neither equals another one nor lies inside of what is no module.

        Characters that could mean something where code shows the name become underscores; see `is_path_part`.
        """
        name = ".".join(part if is_path_part(part) else re.sub(r"[^\w-]", "_", part)[:256] for part in name.split("."))
        wanted, count = name, 0
        while any(
            wanted == taken or wanted.startswith(f"{taken}.") or taken.startswith(f"{wanted}.") for taken in self._names
        ):
            count += 1
            wanted = f"{name}_{count}"
        self._names.add(wanted)
        return wanted

    def _engine(self, name: str, header: PlanHeader, plan: torch.Tensor) -> int:
        key = (header.text_without(), plan.data_ptr())
        number = self._engine_numbers.get(key)
        if number is None:
            number = self._engine_numbers[key] = len(self.engines)
            self.engines.append(StoredEngine(self._free_name(name), 0, header))
            self.plans.append(plan)
        return number

    # What it takes

    def _extent(self, value: int | torch.SymInt) -> Extent:
        """The extent in symbols that a call can read from its inputs, if that is short enough to be read; else None."""
        found = extent_of(value)
        return found if is_extent(found) and symbols_in(found) <= self._homes else None

    # What it computes

    def _inline(self, module: fx.GraphModule, values: dict[fx.Node, Any], path: str) -> Any:
        """Writes the steps of a graph and returns what it returns, with values in the place of nodes."""
        for node in module.graph.nodes:
            if node.op == "get_attr":
                found = read_attribute(module, str(node.target))
                if isinstance(found, torch.Tensor) and not _is_plan(node):
                    values[node] = Value(self._held_at[self._tensor_numbers[view_key(found)]])
                else:
                    values[node] = found
            elif node.op == "call_module":
                values[node] = self._call_module(module, node, values, path)
            elif node.op == "call_function":
                values[node] = self._call_function(node, values)
            elif node.op == "output":
                return _resolve(node.args[0], values)
            elif node.op != "placeholder":
                raise _no_place(f"a call of the method {node.target!r}", node)
        return None

    def _call_module(self, module: fx.GraphModule, node: fx.Node, values: dict[fx.Node, Any], path: str) -> Any:
        child = module.get_submodule(str(node.target))
        name = f"{path}{node.target}"
        inputs = _resolve(node.args, values)
        if isinstance(child, TRTModule) and not self._is_body:
            return self._add(EngineCall(self._engine(name, child.header, child.plan), _numbers(inputs, node)))
        if node.target == _GUARDS:
            return None
        if not isinstance(child, fx.GraphModule) or node.kwargs:
            raise _no_place(f"a call of {kind_of(child)}", node)
        placeholders = [item for item in child.graph.nodes if item.op == "placeholder"]
        return self._inline(child, dict(zip(placeholders, inputs, strict=True)), f"{name}.")

    def _call_function(self, node: fx.Node, values: Mapping[fx.Node, Any]) -> Any:
        target = node.target
        args, kwargs = _resolve(node.args, values), _resolve(node.kwargs, values)
        if target is operator.getitem:
            sequence, index = args
            if isinstance(sequence, (list, tuple)):
                return sequence[index]
            return self._add(ItemCall(sequence.index, index))
        if is_control_flow(target):
            return self._control_flow(node, args)
        if target is execute_engine and not self._is_body:
            return self._execute(node, *args)
        if target is _SIZE and isinstance(args[0], Value):
            tensor, axis = args
            return self._add(SizeCall(tensor.index, axis % node.args[0].meta["val"].dim()))  # type: ignore[union-attr]
        if target is _WRITE:
            return self._write(node, *args)
        if target in _SAYS_NOTHING:
            return None
        if target is DETACH:
            return args[0]
        if target in BY_TARGET and not kwargs:
            operands = (self._checked(value, node) for value in _flat(args) if value is not None)  # `round(x, None)`
            return self._add(NumberCall(BY_TARGET[target].name, tuple(operands)))
        return self._call_operator(node, args, kwargs)

    def _execute(self, node: fx.Node, inputs: Any, plan: torch.Tensor, text: str) -> Any:
        header = parse_header(text)
        name = str(node.args[1].target).rpartition(".")[0] or "engine"  # type: ignore[union-attr]
        result = self._add(EngineCall(self._engine(name, header, plan), _numbers(inputs, node)))
        return result if header.returns_tuple else [result]

    def _write(self, node: fx.Node, target: Any, source: Any, non_blocking: bool = False) -> Any:
        held = range(self._first_tensor + len(self.tensors))
        if self._is_body or not isinstance(target, Value) or target.index not in held or not isinstance(source, Value):
            raise _no_place("a write to what is neither an input nor a buffer", node)
        self._add(WriteCall(target.index, source.index))
        return target

    def _call_operator(self, node: fx.Node, args: Any, kwargs: Any) -> Value:
        why = why_refused(node.target)
        if why:
            raise _no_place(f"the operator {operator_name(node.target)}", node, why)
        assert isinstance(node.target, OpOverload)
        schema = node.target._schema
        namespace = schema.name.partition("::")[0]
        if namespace not in OWN_NAMESPACES:
            self.libraries.add(namespace)
        return self._add(
            OperatorCall(
                name=schema.name,
                overload=schema.overload_name,
                args=tuple(self._checked(value, node) for value in args),
                kwargs={name: self._checked(value, node) for name, value in kwargs.items()},
                result=self._type(node.meta.get("val")),
            )
        )

    def _type(self, value: Any) -> ValueType | None:
        return declared_type(value, self._extent)

    def _add(self, step: Step) -> Value:
        self.steps.append(step)
        return Value(self._first_result + len(self.steps) - 1)

    # Branches and loops

    def _control_flow(self, node: fx.Node, args: Any) -> Value:
        """A branch or loop, whose bodies are given the tensors that they hold beside their operands."""
        name = node.target.name().removesuffix("_impl")  # type: ignore[union-attr]
        bodies = [value for value in args if isinstance(value, fx.GraphModule)]
        lists = [value if isinstance(value, (list, tuple)) else [value] for value in args if value not in bodies]
        if len(lists) != len(CONTROL_FLOW[name]) or node.kwargs:
            raise _no_place(f"this form of {name}", node)
        held = list(dict.fromkeys(number for body in bodies for number in self._held_by(body)))
        lists[-1] = [*lists[-1], *(Value(self._held_at[number]) for number in held)]
        result = self._type(node.meta["val"])
        if not isinstance(result, SequenceType) or None in result.items:
            raise _no_place(f"{name} that makes what is neither tensor nor number", node)
        return self._add(
            ControlFlowCall(
                operator=name,
                bodies=tuple(self._body(body, held, node) for body in bodies),
                operands=tuple(tuple(self._operand(value, node) for value in values) for values in lists),
                result=result,
            )
        )

    def _held_by(self, body: fx.GraphModule) -> Iterator[int]:
        """Numbers of the tensors that a body and those inside of it hold."""
        for node in body.graph.nodes:
            for _, inner in bodies_of(node):
                yield from self._held_by(inner)
            if node.op == "get_attr":
                found = read_attribute(body, str(node.target))
                if isinstance(found, torch.Tensor):
                    yield self._tensor_numbers[view_key(found)]
            elif node.op == "call_module":
                child = body.get_submodule(str(node.target))
                if isinstance(child, fx.GraphModule):
                    yield from self._held_by(child)

    def _body(self, body: fx.GraphModule, held: Sequence[int], caller: fx.Node) -> Body:
        placeholders = body.graph.find_nodes(op="placeholder")
        inputs = [self._type(item.meta.get("val")) for item in placeholders]
        inputs += [TensorType(self.entries[number].dtype, tuple(self.tensors[number].shape)) for number in held]
        values: dict[fx.Node, Any] = {item: Value(index) for index, item in enumerate(placeholders)}
        with self._inside({number: len(placeholders) + place for place, number in enumerate(held)}, len(inputs)):
            output = self._inline(body, values, "")
            output = output if isinstance(output, (list, tuple)) else [output]
            kinds = tuple(kind for kind in inputs if isinstance(kind, TensorType | NumberType))
            if len(kinds) != len(inputs):
                raise _no_place("a branch or loop that takes what is neither tensor nor number", caller)
            return Body(kinds, tuple(self.steps), tuple(self._operand(value, caller) for value in output))

    def _inside(self, held_at: dict[int, int], inputs: int) -> contextlib.AbstractContextManager[None]:
        """Steps that are added meanwhile are those of a body, whose values are numbered for themselves."""
        return with_attributes(self, steps=[], _held_at=held_at, _first_result=inputs, _is_body=True)

    def _operand(self, value: Any, node: fx.Node) -> Any:
        if not isinstance(value, (Value, int, float)):
            raise _no_place(f"{kind_of(value)} that a branch or loop takes or returns", node)
        return self._checked(value, node)

    def _checked(self, value: Any, where: fx.Node | str) -> Any:
        try:
            to_json(value)
        except NoLiteral as error:
            if isinstance(where, fx.Node):
                raise _no_place(f"an argument of {operator_name(where.target)}", where, str(error)) from error
            raise ExportError("the program cannot be saved", where=where, why=str(error), hint=INTERCHANGE) from error
        return value


def _name_of(node: fx.Node) -> str:
    """What the model calls an attribute; constants may be called like methods, which only the graph's name avoids."""
    name = model_name(str(node.target))
    return str(node.target) if any(hasattr(nn.Module, part) for part in name.split(".")) else name


def _are_equal(one: Recipe | None, other: Recipe | None) -> bool:
    """Whether two recipes make the same of the same weights."""
    if one is None or other is None or why_unwritable(one) or why_unwritable(other):
        return False
    return bool(recipe_text(one) == recipe_text(other))


def _resolve(tree: Any, values: Mapping[fx.Node, Any]) -> Any:
    """Arguments with values in the place of nodes, and Python's own containers in the place of fx's."""
    return with_leaves(tree, lambda leaf: values[leaf] if isinstance(leaf, fx.Node) else leaf)


def _flat(args: Sequence[Any]) -> list[Any]:
    """Operands of a function of numbers, of which some take one list."""
    return [operand for value in args for operand in (value if isinstance(value, (list, tuple)) else [value])]


def _numbers(inputs: Sequence[Any], node: fx.Node) -> tuple[int, ...]:
    if not all(isinstance(value, Value) for value in inputs):
        raise _no_place("an engine that is called with what is no tensor", node)
    return tuple(value.index for value in inputs)


def _is_plan(node: fx.Node) -> bool:
    return any(user.target is execute_engine and user.args[1] is node for user in node.users)


def _fields_after_names(entry: StoredTensor) -> tuple[Any, ...]:
    return (entry.is_parameter, entry.dtype, entry.storage, entry.offset, entry.shape, entry.strides, entry.device)


def _no_place(what: str, node: fx.Node, why: str = "") -> ExportError:
    return ExportError(f"{what} has no place in a saved program", where=f"node {node.name}", why=why, hint=INTERCHANGE)


PROGRAM: Final = "program"
EXPORTED_PROGRAM: Final = "exported_program"
_PIECE_BYTES: Final = 16 << 20


class SaveKeywords(TypedDict, total=False):
    """Keywords of `save`, for type checkers; a test holds them to it."""

    arg_inputs: Sequence[Any] | None
    kwarg_inputs: Mapping[str, Any] | None
    dynamic_shapes: Any
    metadata: Mapping[str, str] | None
    sign: bool | None
    format: str


@held_to_signature
def save(
    compiled: nn.Module | ExportedProgram,
    path: Path,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    metadata: Mapping[str, str] | None = None,
    sign: bool | None = None,
    format: str = PROGRAM,  # noqa: A002 - what the field calls it
) -> None:
    """Saves a compiled model with its engines; the file appears complete or not at all.

    A result of a class that only the model's library knows (an output of `transformers`, a dataclass) is saved as a
    dict, so that whoever loads the program does not need that library; `load` gives its parts as attributes.

    Args:
        compiled: What `compile` or `load` returned, or an exported program. Any other module with `TRTModule`
            children is exported first, which needs example inputs.
        path: The file; an existing one is replaced and keeps its permissions.
        arg_inputs: Example inputs: tensors, or `Input`s, whose tuned shape is used. A compiled model knows what it
            takes and needs none in our own format; given, they are checked.
        kwarg_inputs: Example keyword inputs.
        dynamic_shapes: Dynamic dimensions as `torch.export.export` takes them, for modules that are exported; by
            default `compiled.meta["dynamic_shapes"]`. In our own format a compiled model is not, and a warning says so.
        metadata: What to say of the program beside it, `meta` of what is loaded: at most 64 entries. None keeps that of
            a loaded program.
        sign: Sign the file with this user's key, so that `load` trusts it where this key is trusted. By default it is
            signed where `cryptography` is installed, unless it holds an engine from a file that was not trusted.
        format: `"program"`: the format that `load` reads from anyone, without running code. `"exported_program"`:
            PyTorch's own format, for exchange with other tools; it can hold code, so `load` reads it only with
            `trust=True`.

    Raises:
        InputError: Example inputs are needed and not given, or do not fit; the format is unknown; or `path` is no
            regular file.
        ExportError: The module holds something that has no place in the format; the message names the operator.
        FileError: There is no room for the file.
        OSError: The file cannot be written for another reason.

    Example:
        >>> import tempfile, pathlib
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "model.trtp"
        >>> from trt_runtime import load
        >>> save(torch.export.export(nn.ReLU(), (torch.ones(2),)), path)
        >>> load(path)(torch.tensor([-1.0, 1.0]))
        tensor([0., 1.])
    """
    if format not in (PROGRAM, EXPORTED_PROGRAM):
        raise InputError(
            f"there is no format {format!r}",
            why="TorchScript and ahead-of-time packages of PyTorch hold no engines"
            if format in ("torchscript", "aot_inductor")
            else "",
            hint=nearest_or_all(format, (PROGRAM, EXPORTED_PROGRAM)),
        )
    _refuse_callables(compiled)
    if format == EXPORTED_PROGRAM:
        if metadata is not None:
            raise InputError("PyTorch's format has no place for metadata", hint=f"choose {PROGRAM!r}")
        if sign:
            raise InputError("PyTorch's format has no place for a signature", hint=f"choose {PROGRAM!r}")
        write_exported_program(compiled, path, arg_inputs, kwarg_inputs, dynamic_shapes)
        return
    captured = _capture(compiled, arg_inputs, kwarg_inputs, dynamic_shapes)
    captured = captured if metadata is None else _with_metadata(captured, metadata)
    _write(path, _of_own_rank(compiled, captured), (), sign)


def save_with(compiled: nn.Module, inside: Sequence[nn.Module], path: Path, metadata: Mapping[str, str]) -> None:
    """Saves a compiled model with others inside of its file, which `load_with` gives again.

    Args:
        compiled: What `compile` or `load` returned.
        inside: Others such.
        path: The file; an existing one is replaced.
        metadata: What to say of them, as for `save`.

    Raises:
        InputError, ExportError, FileError, OSError: As for `save`.
    """
    for module in (compiled, *inside):
        _refuse_callables(module)
    captured = _of_own_rank(compiled, _with_metadata(_capture(compiled, None, None, None), metadata))
    _write(path, captured, [_of_own_rank(each, _capture(each, None, None, None)) for each in inside], None)


def _of_own_rank(compiled: Any, captured: CapturedProgram) -> CapturedProgram:
    """A program that says which rank saves it, where it talks to others."""
    meta = getattr(compiled, "meta", {})
    owner = meta.get(OWNER)
    calls = getattr(meta.get("partition_report"), "collectives", ())
    if any(len(node.communication.ranks) > 1 for node in calls) and torch.distributed.is_initialized():
        owner = str(torch.distributed.get_rank())
    if owner is None:
        return captured
    return replace(captured, program=replace(captured.program, metadata={**captured.program.metadata, OWNER: owner}))


def _with_metadata(captured: CapturedProgram, metadata: Mapping[str, str]) -> CapturedProgram:
    facts = {name: text for name, text in captured.program.metadata.items() if name == FACTS}
    return replace(captured, program=replace(captured.program, metadata={**_checked(metadata), **facts}))


def _write(path: Path, captured: CapturedProgram, inside: Sequence[CapturedProgram], sign: bool | None) -> None:
    signer = _signer([plan for program in (captured, *inside) for plan in program.plans], sign)
    with replacing(path) as file:
        write_program(file, captured, signer, inside)


def program_of(compiled: nn.Module | ExportedProgram) -> CapturedProgram:
    """Returns the program of a module that says of itself what it takes, as it is saved.

    Raises:
        InputError: The module does not.
        ExportError: It holds something that has no place in a program.
    """
    return _capture(compiled, None, None, None)


def write_program(
    file: BinaryIO, captured: CapturedProgram, signer: Signer | None = None, inside: Sequence[CapturedProgram] = ()
) -> None:
    """Writes a program to an open, seekable file.

    Args:
        file: Open for writing.
        captured: The program.
        signer: Signs it.
        inside: Programs to write as sections of it.

    Raises:
        OSError: The file cannot be written.
    """
    packed = pack(captured.program.tensors, captured.tensors)
    first = 1 + bool(packed.storages)
    numbers: dict[tuple[int, int], int] = {}
    plans: list[torch.Tensor] = []
    for plan in captured.plans:
        key = (plan.data_ptr(), plan.numel())
        if key not in numbers:
            numbers[key] = first + len(plans)
            plans.append(plan)
    engines = tuple(
        replace(engine, section=numbers[(plan.data_ptr(), plan.numel())])
        for engine, plan in zip(captured.program.engines, captured.plans, strict=True)
    )
    program = replace(
        captured.program,
        tensors=packed.entries,
        storages=packed.storages,
        engines=engines,
        torch_version=str(torch.__version__),
        writer_version=_own_version(),
    )
    sections: list[tuple[SectionKind, Content]] = [(SectionKind.GRAPH, _graph_section(program, file))]
    if packed.storages:
        sections.append((SectionKind.WEIGHTS, packed.parts()))
    sections += [(SectionKind.PLAN, [plan_bytes(plan)]) for plan in plans]
    sections += [(SectionKind.PROGRAM, _pieces_of(other)) for other in inside]
    if signer is not None:
        sections = [(kind, signer.passing(kind, parts)) for kind, parts in sections]
        sections.append((SectionKind.SIGNATURE, signer.signature()))
    FILE.write(file, sections)


def _graph_section(program: Program, file: BinaryIO) -> Content:
    """The graph; where digests of large plans take long, it comes once the plans are written."""
    at_hand = [engine.header.begin_digest() for engine in program.engines]
    engines = tuple(replace(engine, header=header) for engine, header in zip(program.engines, at_hand, strict=True))
    text = program_to_bytes(replace(program, engines=engines))
    if all(engine.header is header for engine, header in zip(program.engines, at_hand, strict=True)):
        return [text]

    def parts() -> Iterator[bytes]:
        with contextlib.suppress(io.UnsupportedOperation):  # of what is no file of the system
            file.flush()
            os.fsync(file.fileno())  # the disk works while the digests are waited for
        yield program_to_bytes(program)

    return Late(len(text), parts())


def _pieces_of(captured: CapturedProgram) -> Iterator[bytes]:
    """The bytes of a whole file of a program, which is as large as its engines, in pieces."""
    with tempfile.TemporaryFile() as file:
        write_program(file, captured)
        file.seek(0)
        while piece := file.read(_PIECE_BYTES):
            yield piece


def _signer(plans: Sequence[torch.Tensor], sign: bool | None) -> Signer | None:
    """What signs a file with these plans; None where nothing does.

    Raises:
        InputError: It is to be signed, and cannot be.
    """
    if sign is False:
        return None
    why, hint = "", ""
    if not can_sign():
        why, hint = "cryptography is not installed", INSTALL
    elif sign is None and not all(map(is_own, plans)):
        why = "it holds an engine from a file that was not trusted"
    else:
        try:
            return Signer(signing_key())
        except (TrtError, OSError) as error:
            why = str(error)
    if sign:
        raise InputError("the program cannot be signed", why=why, hint=hint)
    logger.debug("the program is not signed: %s", why)
    return None


def _capture(
    compiled: nn.Module | ExportedProgram,
    arg_inputs: Sequence[Any] | None,
    kwarg_inputs: Mapping[str, Any] | None,
    dynamic_shapes: Any,
) -> CapturedProgram:
    captured = _without_examples(compiled)
    if captured is None:
        assert isinstance(compiled, nn.Module)
        program = export(compiled, arg_inputs, kwarg_inputs, dynamic_shapes)
        return _from_exported(program)
    if dynamic_shapes is not None:
        has_no_effect("dynamic_shapes", "what is saved is captured already, for the sizes that it takes")
    if arg_inputs is not None or kwarg_inputs is not None:
        _check_examples(captured, arg_inputs or (), kwarg_inputs or {})
    return captured


def _without_examples(compiled: nn.Module | ExportedProgram) -> CapturedProgram | None:
    """The program of what says of itself what it takes; None for other modules."""
    if isinstance(compiled, LoadedProgram):
        return captured_from(compiled)
    if isinstance(compiled, TRTModule):
        return _from_engine(compiled)
    if isinstance(compiled, nn.Module):
        if not can_emit(compiled):
            return None
        assert isinstance(compiled, fx.GraphModule)
        ranges = compiled.meta.get("shape_ranges") or ShapeRanges.from_placeholders(compiled)
        signature = compiled.meta.get("signature")  # of what `compile` returned
        if signature is None:
            signature = signature_of(compiled.graph, ranges, conditions_of(compiled.graph, ranges))
        return emit(compiled, ranges, signature)
    return _from_exported(compiled)


def _from_exported(program: ExportedProgram) -> CapturedProgram:
    graphs = [module.graph for module in program.graph_module.modules() if isinstance(module, fx.GraphModule)]
    if any(_writes_in_place(node.target) for graph in graphs for node in graph.nodes):
        # makes the graph functional, with writes to state at its end
        program = with_free_names(program).run_decompositions({})
    module = module_of(program)
    ranges = ShapeRanges.from_placeholders(module, None, program.range_constraints)
    return emit(module, ranges, signature_of(module.graph, ranges, conditions_of(module.graph, ranges, program)))


def _writes_in_place(target: Any) -> bool:
    return isinstance(target, OpOverload) and target._schema.is_mutable and target is not DETACH


def _from_engine(engine: TRTModule) -> CapturedProgram:
    """A program that is one engine, called with its inputs by position."""
    header = engine.header
    leaves = tuple(
        TensorInput(
            binding.dtype,
            tuple(Dimension(extent, low, high) for extent, (low, _, high) in zip(binding.shape, shape, strict=True)),
            header.device,
        )
        for binding, shape in zip(header.inputs, header.ranges, strict=True)
    )
    names = tuple(binding.name for binding in header.inputs)
    values = tuple(Value(index) for index in range(len(names)))
    program = Program(
        signature=Signature(names, len(names), values, leaves),
        symbols=_symbols(header, header.ranges),
        profiles=tuple(_symbols(header, ranges) for ranges in header.profiles),
        storages=(),
        tensors=(),
        engines=(StoredEngine("engine", 0, header),),
        steps=(EngineCall(0, tuple(range(len(names)))),),
        output=Value(len(names)),
    )
    return CapturedProgram(program, (), (engine.plan,))


def _symbols(header: PlanHeader, ranges: InputRanges) -> dict[str, Bounds]:
    return {name: ranges[index][axis] for name, (index, axis) in header.symbols.items()}


def _check_examples(captured: CapturedProgram, arg_inputs: Sequence[Any], kwarg_inputs: Mapping[str, Any]) -> None:
    device = present_device(device_of(captured.program))

    def example(value: Any) -> Any:
        return value.example(device=device) if isinstance(value, Input) else value

    reader = InputReader.of(captured.program, device)
    reader.read(tuple(map(example, arg_inputs)), {name: example(value) for name, value in kwarg_inputs.items()})


def _checked(metadata: Mapping[str, str]) -> dict[str, str]:
    """Returns metadata that can be read again.

    Raises:
        InputError: It is none, or too long.
    """
    require_facts(metadata)
    entries = dict(metadata) if isinstance(metadata, Mapping) else {None: None}
    if any(not isinstance(part, str) for entry in entries.items() for part in entry):
        raise InputError("metadata is a mapping of names to texts", where="metadata")
    too_long = any(len(name) > 128 or len(text) > MAX_METADATA_TEXT for name, text in entries.items())
    if too_long or len(entries.keys() - OWN_METADATA) > MAX_METADATA:
        raise InputError(
            "the metadata is too long",
            where="metadata",
            hint=f"give at most {MAX_METADATA} entries, with names of up to 128 characters and texts of up to "
            f"{MAX_METADATA_TEXT}",
        )
    return entries


def _refuse_callables(compiled: Any) -> None:
    """What `torch.compile` returns holds no graphs until it is called, and then one for each way it was called."""
    if type(compiled).__name__ == "OptimizedModule" or hasattr(compiled, "_torchdynamo_orig_callable"):
        raise ExportError(
            "what torch.compile returned cannot be saved",
            why="its graphs are made while it is called",
            hint="compile the model with trt_frontends.compile(model, arg_inputs=...), and save that",
        )
    if not isinstance(compiled, nn.Module) and type(compiled).__name__ != "ExportedProgram":
        raise InputError(f"{kind_of(compiled)} cannot be saved", hint="give what compile or load returned")


def _own_version() -> str:
    try:
        return version("trt-runtime")
    except PackageNotFoundError:  # a source tree that is on the path without being installed
        return "0+source"
