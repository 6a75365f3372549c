"""From a compiled graph module to a program: child graphs are inlined, engines called, everything else named."""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import fx, nn

from trt_core.attributes import read_attribute
from trt_core.control_flow import bodies_of, is_control_flow
from trt_core.errors import ExportError
from trt_core.exported_programs import model_name
from trt_core.internals import OpOverload
from trt_core.operators import operator_name
from trt_core.refit_table import recipe_text, why_unwritable
from trt_core.sizes.expressions import Extent, extent_of, is_extent, symbols_in
from trt_core.sizes.functions import BY_TARGET
from trt_core.sizes.ranges import ShapeRanges
from trt_core.weight_recipes import RECIPE, Recipe
from trt_core.wording import kind_of
from trt_runtime.header import PlanHeader, parse_header
from trt_runtime.module import TRTModule
from trt_runtime.operator import execute_engine
from trt_runtime.program.allowed_operators import OWN_NAMESPACES, why_refused
from trt_runtime.program.document import MAX_METADATA_TEXT
from trt_runtime.program.fields import FACTS, is_path_part
from trt_runtime.program.graph import (
    CONTROL_FLOW,
    Body,
    CapturedProgram,
    ControlFlowCall,
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
    TensorType,
    Value,
    ValueType,
    WriteCall,
)
from trt_runtime.program.graph_signature import INTERCHANGE, declared_type, nest, require_plain, symbol_bounds
from trt_runtime.program.held_weights import held_weights
from trt_runtime.program.input_reader import homes_of, places_of
from trt_runtime.program.literals import NoLiteral, to_json
from trt_runtime.program.model_facts import ModelFacts, literal_attributes, result_classes
from trt_runtime.program.weights import check_storable, view_key

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
        said = self.module.meta.get("model_facts") or ModelFacts()
        return {name.partition("::")[0] for name in said.plugins}

    def _metadata(self, out_spec: Any) -> dict[str, str]:
        """What is said of the model; its attributes are left out where they are too long to be read."""
        said = self.module.meta.get("model_facts") or ModelFacts()
        homes = {name: title for name, title in said.dimensions.items() if name in self._homes}
        results = {} if out_spec is None else dict(result_classes(out_spec))
        facts = ModelFacts(homes, results, literal_attributes(said.attributes), said.plugins)
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
        key = (header.text, plan.data_ptr())
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

    @contextlib.contextmanager
    def _inside(self, held_at: dict[int, int], inputs: int) -> Iterator[None]:
        """Steps that are added meanwhile are those of a body, whose values are numbered for themselves."""
        outer = self.steps, self._held_at, self._first_result, self._is_body
        self.steps, self._held_at, self._first_result, self._is_body = [], held_at, inputs, True
        try:
            yield
        finally:
            self.steps, self._held_at, self._first_result, self._is_body = outer

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
    if isinstance(tree, fx.Node):
        return values[tree]
    if isinstance(tree, list):
        return [_resolve(item, values) for item in tree]
    if isinstance(tree, tuple):
        return tuple(_resolve(item, values) for item in tree)
    if isinstance(tree, dict):
        return {key: _resolve(item, values) for key, item in tree.items()}
    return tree


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
    return (
        entry.is_parameter,
        entry.dtype,
        entry.storage,
        entry.offset,
        entry.shape,
        entry.strides,
        entry.device,
    )


def _no_place(what: str, node: fx.Node, why: str = "") -> ExportError:
    return ExportError(
        f"{what} has no place in a saved program",
        where=f"node {node.name}",
        why=why,
        hint=INTERCHANGE,
    )
