"""Modules whose tensors are sharded over processes (`DTensor`), as modules that this process can capture alone.

`torch.export` cannot capture operators on `DTensor`s. So a sharded module is given a shell: a module that holds the
shards of this process as plain parameters of the same names, and takes and returns plain tensors. When it is called it
puts `DTensor`s together from them, and traces what these do here: operators on shards, and collectives. Export records
the result of that trace.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx, nn

from trt_core.attributes import owner_of
from trt_core.errors import InputError
from trt_core.graph_search import reachable
from trt_core.internals import enable_python_dispatcher, has_kernel, make_fx, pytree
from trt_core.nesting import dense_strides
from trt_core.process_groups import is_distributed, shard_of
from trt_core.temporary import undone, with_attributes
from trt_lowering.internals import (
    DisableTorchFunction,
    DispatchKey,
    DispatchKeySet,
    DispatchKeysForced,
    excluded_keys,
    included_keys,
)
from trt_lowering.whole_operators import keep_nothing, keep_whole

if TYPE_CHECKING:
    from trt_core.internals import OpOverload


@dataclass(frozen=True)
class Sharding:
    """How a tensor lies on the processes of a mesh.

    Attributes:
        mesh: The device mesh.
        placements: One for each of its dimensions.
        shape, stride: Of the whole tensor.
    """

    mesh: Any
    placements: tuple[Any, ...]
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]

    @classmethod
    def of(cls, tensor: Any) -> Sharding:
        """Reads it from a `DTensor`."""
        return cls(tensor.device_mesh, tuple(tensor.placements), tuple(tensor.shape), tuple(tensor.stride()))

    def distributed(self, shard: torch.Tensor) -> torch.Tensor:
        """Returns the `DTensor` of a shard.

        Args:
            shard: What this process has of it. An extent of the whole that varies follows from even shards.
        """
        from torch.distributed.tensor import DTensor

        shape, stride = self.shape, self.stride
        if not all(isinstance(extent, int) for extent in shape):
            shape = tuple(
                given if isinstance(given, int) else extent * self._parts_of(axis)
                for axis, (given, extent) in enumerate(zip(shape, shard.shape, strict=True))
            )
            stride = dense_strides(shape, sorted(range(shard.ndim), key=shard.stride, reverse=True))
        made: torch.Tensor = DTensor.from_local(
            shard, self.mesh, self.placements, run_check=False, shape=torch.Size(shape), stride=stride
        )
        return made

    def _parts_of(self, axis: int) -> int:
        """How many processes share an axis of the tensor."""
        sharded = zip(self.placements, self.mesh.shape, strict=True)
        return math.prod(size for placement, size in sharded if placement.is_shard(axis))

    def lies_like(self, other: Sharding) -> bool:
        """Whether two tensors lie on the same processes in the same way, whatever their shapes are."""
        return bool(self.mesh == other.mesh) and self.placements == other.placements

    def __str__(self) -> str:
        return f"{self.placements} on {self.mesh}"


@dataclass
class Boundary:
    """Where `DTensor`s go into a module, by place among its inputs, and come out of it, by position of the result."""

    inputs: dict[str, Sharding] = field(default_factory=dict)
    outputs: dict[int, Sharding] = field(default_factory=dict)


class ShardedModule(nn.Module):
    """The shell of a sharded module; see above.

    Args:
        module: The module, with `DTensor`s among its parameters, buffers or inputs.
        inputs: How those of its inputs lie that are `DTensor`s, by place.
        whole: Operators that a trace records as they are called, where they compute on plain tensors.

    Attributes:
        boundary: Where `DTensor`s go in and out; outputs are known when it has been captured.
    """

    _sharded: nn.Module

    def __init__(
        self, module: nn.Module, inputs: Mapping[str, Sharding] | None = None, whole: Sequence[OpOverload] = ()
    ) -> None:
        super().__init__()
        self.boundary = Boundary(dict(inputs or {}))
        self._whole = tuple(whole)
        self.__dict__["_sharded"] = module  # no child: its tensors are no parameters of this module
        self._shardings: dict[str, Sharding] = {}
        self._gatherings: dict[str, Gathering] = {}
        gatherings = gatherings_of(module)
        self.__class__ = _with_signature_of(module)  # export asks for the names of parameters
        self.train(module.training)
        shards: dict[int, torch.Tensor] = {}  # tied tensors stay one
        for name, tensor in _tensors_of(module):
            if is_distributed(tensor):
                self._shardings[name] = Sharding.of(tensor)
            if id(tensor) in gatherings:
                self._gatherings[name] = gatherings[id(tensor)]
            if id(tensor) not in shards:
                shards[id(tensor)] = shard_of(tensor)
            owner, last = owner_of(self, name)
            if isinstance(tensor, nn.Parameter):
                owner.register_parameter(last, shards[id(tensor)])  # type: ignore[arg-type]
            else:
                owner.register_buffer(last, shards[id(tensor)])

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedModule:
        twin = type(self).__new__(type(self))
        memo[id(self)] = twin
        shared = {id(value): value for value in self._lasting()}
        memo.update(shared)  # a device mesh holds process groups, which are not copied
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def _lasting(self) -> tuple[Any, ...]:
        return self._sharded, self._shardings, self._gatherings, self.boundary, self._whole

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        names = [name for name, _ in _tensors_of(self)]
        shards = [tensor for _, tensor in _tensors_of(self)]
        found, spec = pytree.tree_flatten_with_path((args, kwargs))
        places, flat = [pytree.keystr(path) for path, _ in found], [value for _, value in found]
        given = [index for index, value in enumerate(flat) if isinstance(value, torch.Tensor)]
        result_spec: list[Any] = []

        def run(*tensors: torch.Tensor) -> list[Any]:
            held, values = tensors[: len(names)], list(flat)
            for index, tensor in zip(given, tensors[len(names) :], strict=True):
                sharding = self.boundary.inputs.get(places[index])
                values[index] = tensor if sharding is None else sharding.distributed(tensor)
            used: dict[int, torch.Tensor] = {}  # tied tensors stay one
            state = {
                name: used[id(shard)] if id(shard) in used else used.setdefault(id(shard), self._used(name, tensor))
                for name, shard, tensor in zip(names, shards, held, strict=True)
            }
            arguments, keywords = pytree.tree_unflatten(values, spec)
            with without_hooks_of_fsdp(self._sharded):
                result = torch.func.functional_call(self._sharded, state, arguments, keywords)
            leaves, found = pytree.tree_flatten(result)
            result_spec.append(found)
            return [self._returned(index, leaf) for index, leaf in enumerate(leaves)]

        operands = [*shards, *(flat[index] for index in given)]
        run._orig_mod = self._sharded  # type: ignore[attr-defined]  # whose modules the trace names
        is_exported = any(type(value) not in (torch.Tensor, nn.Parameter) for value in operands)
        with (
            _below_export(),
            torch.no_grad(),
            keep_whole(self._whole),
            enable_python_dispatcher(),
            _shardings_kept(),
            _offsets_as_numbers(),
            sizes_taken_apart(),
        ):
            trace = make_fx(
                run,
                record_module_stack=is_exported,  # nobody reads the notes of a trace that is played once
                record_stack_traces=is_exported,
                _error_on_data_dependent_ops=is_exported,  # and it may look at its numbers
            )
            local = trace(*operands)
        local.graph.eliminate_dead_code()  # what `DTensor` made to find out shapes
        if self._gatherings:
            gather_when_needed(local.graph, len(names))
        return pytree.tree_unflatten(_play(local, operands), result_spec[-1])

    def _used(self, name: str, shard: torch.Tensor) -> torch.Tensor:
        """Returns what the module computes with, made of the shard of this process."""
        if name not in self._shardings:
            return shard
        tensor = self._shardings[name].distributed(shard)
        gathering = self._gatherings.get(name)
        return tensor if gathering is None else gathering.gathered(tensor)

    def _returned(self, index: int, value: Any) -> Any:
        if not is_distributed(value):
            return value
        self.boundary.outputs[index] = Sharding.of(value)
        return value.to_local()


def is_sharded(module: Any) -> bool:
    """Whether a module holds `DTensor`s; modules of FSDP hold them when this has been asked."""
    if not isinstance(module, nn.Module):
        return False
    rest_in_parts(module)
    return any(is_distributed(tensor) for _, tensor in _tensors_of(module))


def shards_of_inputs(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any, dict[str, Sharding]]:
    """Returns inputs with the shards of this process in place of `DTensor`s, and how these lie, by place."""
    found, spec = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    lying = {pytree.keystr(path): Sharding.of(value) for path, value in found if is_distributed(value)}
    return (*pytree.tree_unflatten([shard_of(value) for _, value in found], spec), lying)


def require_sharded_alike(args: Any, kwargs: Any, shardings: Mapping[str, Sharding]) -> tuple[Any, Any]:
    """Returns inputs with shards in place of `DTensor`s, which must lie as those that a model was compiled for.

    Raises:
        InputError: A `DTensor` lies in another way, or where a plain tensor is expected.
    """
    given_args, given_kwargs, found = shards_of_inputs(args, kwargs)
    for place, sharding in found.items():
        wanted = shardings.get(place)
        if wanted is None or not wanted.lies_like(sharding):
            raise InputError(
                f"the input at {place} is a DTensor that lies as {sharding}",
                why="the model was compiled for " + ("a plain tensor" if wanted is None else str(wanted)),
                hint="redistribute it, or give its local tensor, or compile with inputs that lie like it",
            )
    return given_args, given_kwargs


def _tensors_of(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers by name, tied ones under each of their names."""
    return [
        *module.named_parameters(remove_duplicate=False),
        *module.named_buffers(remove_duplicate=False),
    ]


def _with_signature_of(module: nn.Module) -> type[ShardedModule]:
    """A class whose `forward` takes what the module takes, by the names that it has there."""

    def forward(self: ShardedModule, *args: Any, **kwargs: Any) -> Any:
        return self._run(*args, **kwargs)

    taken = inspect.signature(module.forward)
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    forward.__signature__ = taken.replace(parameters=[own, *taken.parameters.values()])  # type: ignore[attr-defined]
    return type(type(module).__name__, (ShardedModule,), {"forward": forward})


def _below_export() -> contextlib.AbstractContextManager[Any]:
    """Hides operators from export, which would want to record those on `DTensor`s."""
    stack = contextlib.ExitStack()
    recording = DispatchKey.PreDispatch
    stack.enter_context(
        DispatchKeysForced(included_keys().remove(recording), excluded_keys() | DispatchKeySet(recording))
    )
    stack.enter_context(DisableTorchFunction())
    return stack


def _shardings_kept() -> contextlib.AbstractContextManager[None]:
    """Lets `DTensor` find out how the result of an operator lies once for equal operands.

    While it is traced it asks anew each time, since sizes may be symbols; what is composite, as `linear`, it then takes
    apart for every way in which operands may lie, and the trace records all of that. Here it takes such operators apart
    at once, as outside of a trace, and nothing that is asked is recorded.

    A view asks of each size whether the ranks divide it, also of one that is on all of them whole: a model whose
    products are sharded would take even batches alone. Where no size that varies is sharded nothing is asked.
    """
    from torch.distributed.tensor import DTensor  # costly to import

    from trt_lowering.internals import proxies_off, symbolic_settings, without_modes

    propagator: Any = DTensor._op_dispatcher.sharding_propagator
    ask, known = propagator.propagate_op_sharding_non_cached, dict[Any, Any]()
    depth = 0  # rules of operators without one are found by asking for those that they are decomposed to

    def find(schema: Any, varies: bool) -> Any:
        nonlocal depth
        if not depth and schema.op not in _RULES:
            _require_no_composite(schema.op)
        settings: Any = symbolic_settings
        is_answered = any(map(_shards_varying_size, schema.args_spec))
        depth += 1
        try:
            with (
                settings.patch(backed_size_oblivious=settings.backed_size_oblivious or not is_answered),
                proxies_off() if varies else without_modes(),
                keep_nothing(),
            ):
                return ask(schema)
        finally:
            depth -= 1

    def found(schema: Any) -> Any:
        leaves, spec = pytree.tree_flatten((schema.args_schema, schema.kwargs_schema))
        told = [_without_symbols(leaf) for leaf in leaves]
        key = (schema.op, not depth, str(spec), tuple(told))
        if key not in known:
            try:
                known[key] = find(schema, varies=any(map(_varies, leaves)))
            except NotImplementedError as error:  # it is to be taken apart
                known[key] = error
        if isinstance(known[key], NotImplementedError):
            raise known[key]
        return known[key]

    rules = propagator.op_strategy_funcs | _RULES
    return with_attributes(propagator, propagate_op_sharding_non_cached=found, op_strategy_funcs=rules)


def shards_taken_apart() -> contextlib.AbstractContextManager[None]:
    """Lets `DTensor` take composite operators apart that a trace keeps whole, as it gets them outside of a trace.

    Where it is asked how the result of such an operator lies it looks for a rule in all of what that is made of, which
    takes long, and may find another answer than eager has.
    """
    loaded: Any = sys.modules.get("torch.distributed.tensor")
    if loaded is None:
        return contextlib.nullcontext()
    propagator: Any = loaded.DTensor._op_dispatcher.sharding_propagator
    ask, depth = propagator.propagate_op_sharding_non_cached, 0

    def found(schema: Any) -> Any:
        nonlocal depth
        if not depth:
            _require_no_composite(schema.op)
        depth += 1
        try:
            with keep_nothing():
                return ask(schema)
        finally:
            depth -= 1

    return with_attributes(propagator, propagate_op_sharding_non_cached=found)


def _require_no_composite(operator: OpOverload) -> None:
    """Raises what `DTensor` takes for an order to take an operator apart."""
    if has_kernel(operator.name(), DispatchKey.CompositeImplicitAutograd):
        raise NotImplementedError(f"{operator} is to be taken apart")


def _ways_of_attention(schema: Any) -> Any:
    """How operands and result of `scaled_dot_product_attention` may lie, so that each process computes a part of it.

    PyTorch has rules for its kernels on GPUs, which know batches and heads. For the one on the CPU it looks for rules
    in what that is decomposed to, which takes long, and finds the last two.
    """
    from torch.distributed.tensor import Replicate, Shard

    from trt_lowering.internals import over_all_axes_of_mesh

    mesh, (query, key, value, *masks) = schema.get_mesh_from_args(), schema.args_strategy
    given: list[Any] = list(schema.args_schema[4:6])
    dropout_p, is_causal = given + [0.0, False][len(given) :]
    whole: list[Any] = [Replicate() for _ in schema.args_strategy]
    ways = [[Replicate(), *whole]]

    def of_masks(axis: int) -> list[Any]:
        places = [(mask, mask.ndim + axis - query.ndim) for mask in masks]
        return [Replicate() if at < 0 or _is(mask.shape[at], 1) else Shard(at) for mask, at in places]

    for axis in () if dropout_p else range(query.ndim - 2):
        extents = [operand.shape[axis] for operand in (query, key, value) if operand.ndim == query.ndim]
        is_grouped = schema.kwargs_schema.get("enable_gqa", False) and axis == query.ndim - 3
        is_even = is_grouped and all(isinstance(extent, int) and extent % mesh.size() == 0 for extent in extents)
        if len(extents) == 3 and (is_even or all(_is(extent, extents[0]) for extent in extents)):
            ways.append([Shard(axis)] * 4 + of_masks(axis))
    if mesh.device_type == "cpu" and not dropout_p:
        rows, features = query.ndim - 2, query.ndim - 1
        if not is_causal:
            ways.append([Shard(rows), Shard(rows), *whole[:2], *of_masks(rows)])
        ways.append([Shard(features), *whole[:2], Shard(features), *whole[3:]])
    return over_all_axes_of_mesh(mesh, schema, ways, input_index=1)


_RULES: Final[Mapping[Any, Callable[[Any], Any]]] = {
    torch.ops.aten.scaled_dot_product_attention.default: _ways_of_attention
}
"""How operators may lie that are composite for PyTorch, and stay whole here where they compute on shards."""


def _is(extent: Any, other: Any) -> bool:
    return bool(_without_symbols(extent) == _without_symbols(other))


def _without_symbols(value: Any) -> Any:
    """What tells an operand from others: its type, and what it is, with expressions in place of sizes that vary."""
    meta = getattr(value, "tensor_meta", None)
    if meta is not None:
        extents = tuple(map(_without_symbols, (*meta.shape, *meta.stride)))
        return type(value), value.mesh, value.placements, len(meta.shape), extents, meta.dtype
    return type(value), value.node.expr if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else value


def _varies(value: Any) -> bool:
    meta = getattr(value, "tensor_meta", None)
    found = [value] if meta is None else [*meta.shape, *meta.stride]
    return any(isinstance(extent, torch.SymInt | torch.SymFloat | torch.SymBool) for extent in found)


def _shards_varying_size(spec: Any) -> bool:
    """Whether a tensor that lies as described is sharded along an axis whose size varies."""
    axes = [placement.dim for placement in spec.placements if hasattr(placement, "dim")]
    return any(not isinstance(spec.shape[axis], int) for axis in axes)


def _offsets_as_numbers() -> contextlib.AbstractContextManager[None]:
    """Lets `DTensor` count where the shard of this process begins, which it does with a tensor that it reads.

    A trace knows no numbers of tensors. Sizes that vary do not count where they are not sharded, and where they are
    the shards before this one are counted.
    """
    from torch.distributed.tensor import Shard

    from trt_lowering.internals import parts_of_tensors, without_modes

    compute: Any = parts_of_tensors._compute_local_shape_and_global_offset

    def computed(shape: Any, mesh_shape: Any, coordinate: Any, placements: Any, *rest: Any, **named: Any) -> Any:
        sharded = {placement.dim for placement in placements if hasattr(placement, "dim")}
        if not all(isinstance(shape[axis], int) for axis in sharded):
            if any(hasattr(placement, "dim") and type(placement) is not Shard for placement in placements):
                return compute(shape, mesh_shape, coordinate, placements, *rest, **named)
            return counted(shape, mesh_shape, coordinate, placements)
        known = [extent if axis in sharded else 1 for axis, extent in enumerate(shape)]
        with without_modes():
            local, offset = compute(known, mesh_shape, coordinate, placements, *rest, **named)
        return tuple(local[axis] if axis in sharded else extent for axis, extent in enumerate(shape)), offset

    def counted(shape: Any, mesh_shape: Any, coordinate: Any, placements: Any) -> Any:
        local, offset = list(shape), [0] * len(shape)
        for dimension, placement in enumerate(placements):
            if isinstance(placement, Shard):
                axis, place = placement.dim, coordinate(dimension) if callable(coordinate) else coordinate[dimension]
                local[axis], begin = Shard.local_shard_size_and_offset(local[axis], mesh_shape[dimension], place)
                offset[axis] += begin
        return tuple(local), tuple(offset)

    return with_attributes(parts_of_tensors, _compute_local_shape_and_global_offset=computed)


_OF_TWO: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "Add": operator.add,
    "Max": torch.sym_max,
    "Min": torch.sym_min,
    "Mod": operator.mod,
    "Mul": operator.mul,
    "Pow": operator.pow,
    "PowByNatural": operator.pow,
    "PythonMod": operator.mod,
}
"""What computes expressions of sympy, by name, operand after operand."""


def sizes_taken_apart() -> contextlib.AbstractContextManager[None]:
    """Lets a trace hold any size that `DTensor` has computed outside of it.

    PyTorch takes the expression of such a size apart into those that the trace knows. It gives functions of two
    operands all factors of a product at once, or, in PyTorch 2.11, drops those of a sum after the second one, and knows
    no powers and no remainders.
    """
    from trt_lowering.internals import proxy_tensor

    tracing: Any = proxy_tensor
    build = getattr(tracing, "_build_proxy_for_sym_expr", None)
    if build is None:
        return contextlib.nullcontext()

    def built(tracer: Any, expression: Any, out: Any = None) -> Any:
        function = _OF_TWO.get(type(expression).__name__)
        if function is None or expression in tracer.sympy_expr_tracker:
            return build(tracer, expression, out)
        operands = [built(tracer, operand) for operand in expression.args]
        if any(operand is None for operand in operands):
            return None
        left, right = functools.reduce(function, operands[:-1]), operands[-1]
        if out is None:
            return function(left, right)
        tracing._sym_register(tracer, function, (left, right), out)
        return out

    return with_attributes(tracing, _build_proxy_for_sym_expr=built)


def _play(traced: fx.GraphModule, operands: Sequence[Any]) -> Any:
    """Runs a trace, operator by operator, so that the trace around it records it with its notes."""
    with fx.traceback.preserve_node_meta():
        return fx.Interpreter(traced).run(*operands)


# Modules that `fully_shard` (FSDP2) has wrapped ---------------------------------------------------------------------
# FSDP puts their weights together in hooks, with memory and streams of its own, which no graph can hold. While such a
# module is captured, its hooks rest, and its weights are gathered by collectives of the graph, in FSDP's precision.


@dataclass(frozen=True)
class Gathering:
    """How a parameter is put together.

    Attributes:
        dtype: What it is cast to before; None for its own type.
        rest: How it goes on to be sharded (the specification of a `DTensor`); None where the whole is a plain tensor.
    """

    dtype: torch.dtype | None
    rest: Any

    def gathered(self, tensor: Any) -> torch.Tensor:
        """Returns the parameter that a module computes with.

        Args:
            tensor: The `DTensor` of a part of it.
        """
        from torch.distributed.tensor import DTensor, Replicate

        given = tensor if self.dtype is None else tensor.to(self.dtype)
        if self.rest is not None and self.rest.mesh == given.device_mesh:
            return given.redistribute(placements=self.rest.placements)  # type: ignore[no-any-return]
        kept = () if self.rest is None else tuple(self.rest.placements)
        own = given.device_mesh.ndim - len(kept)
        whole: torch.Tensor = given.redistribute(placements=(*[Replicate()] * own, *kept)).to_local()
        if self.rest is None:
            return whole
        made: torch.Tensor = DTensor.from_local(
            whole, self.rest.mesh, kept, run_check=False, shape=self.rest.shape, stride=self.rest.stride
        )
        return made


def rest_in_parts(module: nn.Module) -> None:
    """Lets modules that `fully_shard` has wrapped give up weights that a call has put together."""
    for state in _states_of(module):
        for group in _groups_of(state):
            group.reshard()


def gatherings_of(module: nn.Module) -> dict[int, Gathering]:
    """Returns how parameters are put together, by the identity of the parameter."""
    return {
        id(parameter.sharded_param): Gathering(
            state._mp_policy.param_dtype, _other_sharding(parameter) if parameter.is_dtensor else None
        )
        for state in _states_of(module)
        for group in _groups_of(state)
        for parameter in group.fsdp_params
    }


@contextlib.contextmanager
def without_hooks_of_fsdp(module: nn.Module) -> Iterator[None]:
    """Lets a module run with the parameters that it is given: FSDP casts inputs and results, and moves nothing."""
    children = nn.Module.modules(module) if _is_in_use() else ()
    before = [(child, child._forward_pre_hooks, child._forward_hooks) for child in children]

    def undo() -> None:
        for child, first, last in before:
            child._forward_pre_hooks, child._forward_hooks = first, last

    with undone(undo):
        for child, first, last in before:
            child._forward_pre_hooks = _replaced(first, _cast_inputs)
            child._forward_hooks = _replaced(last, _cast_results)
        yield


def gather_when_needed(graph: fx.Graph, weights: int) -> None:
    """Moves what puts a weight together to where the weight before it is used: one is on its way, and not all of them.

    Args:
        graph: A trace of a module; what depends on nothing but weights makes them whole.
        weights: How many of its first placeholders are weights.
    """
    alone = set(graph.find_nodes(op="placeholder")[:weights])
    for node in graph.nodes:
        if node.op == "call_function" and node.all_input_nodes and alone.issuperset(node.all_input_nodes):
            alone.add(node)
    order = {node: index for index, node in enumerate(graph.nodes)}
    first_use = {
        node: min((user for user in node.users if user not in alone), key=order.__getitem__)
        for node in alone
        if node.op == "call_function" and not alone.issuperset(node.users)
    }
    by_use = sorted(first_use, key=lambda node: (order[first_use[node]], order[node]))
    moved: set[fx.Node] = set()
    for weight, before in zip(by_use, by_use[:1] + by_use, strict=False):
        for node in sorted(reachable([weight], _computed_operands).keys() - moved, key=order.__getitem__):
            first_use[before].prepend(node)
            moved.add(node)


def _computed_operands(node: fx.Node) -> list[fx.Node]:
    return [operand for operand in node.all_input_nodes if operand.op == "call_function"]


def _is_in_use() -> bool:
    return "torch.distributed.fsdp" in sys.modules  # else nobody has wrapped anything


def _states_of(module: nn.Module) -> list[Any]:
    if not _is_in_use():
        return []
    from torch.distributed.fsdp import FSDPModule

    found = [child._get_fsdp_state() for child in nn.Module.modules(module) if isinstance(child, FSDPModule)]
    return list({id(state): state for state in found}.values())


def _groups_of(state: Any) -> list[Any]:
    """Groups of parameters that are gathered together: several of a state since PyTorch 2.12."""
    several = getattr(state, "_fsdp_param_groups", None)
    one = [state._fsdp_param_group] if several is None else list(several)
    return [group for group in one if group is not None]


def _other_sharding(parameter: Any) -> Any:
    """How a parameter is sharded besides FSDP's sharding: under another name since PyTorch 2.13."""
    return getattr(parameter, "_unsharded_dtensor_spec", None) or getattr(parameter, "_tp_spec")  # noqa: B009 - it goes


def _replaced(hooks: Any, replacement: Callable[..., Any]) -> Any:
    """Hooks with other ones in place of FSDP's, under the same numbers."""
    found = OrderedDict()
    for number, hook in hooks.items():
        policy = _policy_behind(hook)
        found[number] = hook if policy is None else functools.partial(replacement, policy)
    return found


def _policy_behind(hook: Any) -> Any:
    """Types that FSDP casts to in a hook; None where it is not FSDP's."""
    while hook is not None:
        policy = getattr(getattr(hook, "__self__", None), "_mp_policy", None)
        if policy is not None:
            return policy
        hook = getattr(hook, "__wrapped__", None)
    return None


def _cast_inputs(policy: Any, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    if policy.param_dtype is None or not policy.cast_forward_inputs:
        return args, kwargs
    return pytree.tree_map(functools.partial(_cast, dtype=policy.param_dtype), (args, kwargs))  # type: ignore[no-any-return]


def _cast_results(policy: Any, _: nn.Module, __: Any, result: Any) -> Any:
    if policy.output_dtype is None:
        return result
    return pytree.tree_map(functools.partial(_cast, dtype=policy.output_dtype), result)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
