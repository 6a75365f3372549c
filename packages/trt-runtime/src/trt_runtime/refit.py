"""Gives compiled models other weights, without converting or building anything."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import fx, nn

from trt_core import to_trt, trt
from trt_core.attributes import holder_of, is_state, part_at
from trt_core.device import present_device
from trt_core.errors import RefitError
from trt_core.held_arguments import held_to_signature
from trt_core.internals import OpOverload
from trt_core.limits import Account
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.provider import Provider, current_provider, device_scope, provider_module
from trt_core.refit_table import RefitTable
from trt_core.weight_recipes import (
    RECIPE,
    Admit,
    Literal,
    Recipe,
    check_weight,
    constants_of,
    content_digest,
    follow_from_sources,
    opened_weights,
    replay_all,
    require_numbers,
    sources_of,
)
from trt_runtime.compatibility import check_compatible
from trt_runtime.engine import new_runtime
from trt_runtime.engine_file import check_payload
from trt_runtime.generation import TextGenerator
from trt_runtime.header import PlanHeader
from trt_runtime.module import engine_modules
from trt_runtime.plan_notes import bounds_of, is_own, note_bounds, note_own, plan_bytes, plan_digest
from trt_runtime.program.allowed_operators import needs_trust, why_not_an_argument, why_refused
from trt_runtime.program.loaded_program import LoadedProgram, captured_from
from trt_runtime.program.operand_checks import checked

Weights = Mapping[str, torch.Tensor]
_Module = TypeVar("_Module", bound=nn.Module)

_MODEL = "model."
"""Where steps of generators hold what they were compiled from."""


@held_to_signature
def refit_engine(
    header: PlanHeader, plan: torch.Tensor, weights: Weights, *, content: str = ""
) -> tuple[PlanHeader, torch.Tensor]:
    """Returns an engine with other weights; the given one stays as it is.

    Args:
        header: Header of an engine that was built with `refit=True`.
        plan: (bytes,), uint8: the serialized engine.
        weights: Weights of the model by name, on any device. Those that the engine does not depend on are ignored.
        content: Digest of these weights, for caches.

    Returns:
        The header and the plan of the new engine.

    Raises:
        RefitError: The engine was not built for it, a weight is missing or does not fit, or one changed that cannot be
            replaced; the message names it.
        PlanError: The engine cannot be loaded in this process.
    """
    table, weights = _table_of(header), opened_weights(weights)
    admit = _admitting((plan,))
    check_replaceable(table, weights, header.title, admit)
    check_compatible(header)
    check_payload(header, plan)
    with device_scope(present_device(header.device)):
        # nothing runs here, but version-compatible plans of TensorRT carry their own lean runtime
        is_tensorrt = current_provider() is Provider.TENSORRT
        runtime = new_runtime(provider_module(), is_tensorrt and header.version_compatible, plans_are_verified=True)
        forget_errors()
        engine = runtime.deserialize_cuda_engine(plan_bytes(plan))
        if engine is None:
            raise RefitError(f"{header.title} cannot be loaded to refit it", why=take_errors())
        refitter = trt.Refitter(engine, provider_logger())
        if hasattr(refitter, "weights_are_kept"):  # the portable provider then copies none: `held` outlives the engine
            refitter.weights_are_kept = True
        held = _supply(refitter, table, weights, header.title, admit)
        if not refitter.refit_cuda_engine():
            raise RefitError(f"{header.title} cannot be refitted", why=take_errors())
        serialized = engine.serialize()
        del refitter, engine, held
    refitted = torch.frombuffer(memoryview(serialized), dtype=torch.uint8)
    if is_own(plan):
        note_own(refitted)
    bounds = bounds_of(plan)
    if bounds is not None:
        note_bounds(refitted, bounds)
    changed = dataclasses.replace(
        header,
        payload_sha256=plan_digest(refitted),
        payload_bytes=refitted.numel(),
        refit=dataclasses.replace(table, content=content),
    )
    return changed, refitted


@held_to_signature
def refit_module(compiled: _Module, weights: Weights, *, in_place: bool = False) -> _Module:
    """Gives a compiled module other weights: its engines, and what runs in PyTorch between them.

    Plans are replaced and never written to, so modules that share them are not affected, and calls that have begun end
    with the weights that they began with. Either all of it changes or nothing. Buffers that the module writes to, such
    as caches, stay as they are where the weights do not name them; a generator of text has forgotten what they hold.

    Args:
        compiled: A module with engines, as compiling or loading returns it.
        weights: Weights of the model by name, as its state dict holds them; of a generator, those of the model that it
            was compiled from.
        in_place: Change the given module in place of a copy.

    Returns:
        The module with the new weights.

    Raises:
        RefitError: See `refit_engine`; or the module has no engines.
    """
    engines, weights = engine_modules(compiled), opened_weights(weights)
    if not engines:
        raise RefitError(
            "the module has no engines to refit",
            hint="give a module that compile or load returned; one that is wholly in PyTorch is compiled again",
        )
    admit = _admitting([engine.plan for engine in engines])
    tables = [_table_of(engine.header) for engine in engines]
    if isinstance(compiled, TextGenerator):
        weights = _inside_a_step(weights, tables)
    for engine, table in zip(engines, tables, strict=True):
        check_replaceable(table, weights, engine.header.title, admit)
    attributes = list(_attributes(compiled))
    _refuse_unknown(compiled, attributes)
    kept = [item for item in attributes if item.is_own(weights)]
    states = {name for item in kept for name in (*item.paths, *(one.name for one in constants_of(item.recipe)))}
    others = {name: value for name, value in weights.items() if name not in states}
    constants = constants_of(*(item.recipe for item in attributes))
    check_constants({one.name: content_digest(one.value) for one in constants}, others)
    for module in compiled.modules():
        held = captured_from(module).program.refit if isinstance(module, LoadedProgram) else None
        check_constants(held.table.constants if held else {}, others)
    attributes = _of_weights(attributes, weights)
    values = replay_all([item.recipe for item in attributes], weights, admit=admit)
    made = [item.fitted(value) for item, value in zip(attributes, values, strict=True)]
    refitted = [refit_engine(engine.header, engine.plan, weights) for engine in engines]
    target = compiled
    if not in_place:
        # plans are shared by copies of modules, and tensors that are replaced need no copy
        target = copy.deepcopy(compiled, {id(value): value for value in (item.read() for item in attributes)})
        engines = engine_modules(target)
        attributes = _of_weights(list(_attributes(target)), weights)
    for engine, (header, plan) in zip(engines, refitted, strict=True):
        engine.adopt(header, plan)
    for item, value in zip(attributes, made, strict=True):
        item.write(value)
    if isinstance(target, TextGenerator):
        target.reset()
    return target


def _inside_a_step(weights: Weights, tables: Sequence[RefitTable]) -> Weights:
    """Weights of a model under the names that they have in the step of a generator, which holds the model."""
    names = {source.name for table in tables for source in table.sources}
    inside = {f"{_MODEL}{name}": value for name, value in weights.items()}
    return inside if names <= inside.keys() and not names <= weights.keys() else weights


def _table_of(header: PlanHeader) -> RefitTable:
    if header.refit is None:
        raise RefitError(
            f"{header.title} cannot be refitted",
            why="it was built without refit=True",
            hint="compile the model again with refit=True (immutable_weights=False)",
        )
    return header.refit


def check_replaceable(table: RefitTable, weights: Weights, title: str, admit: Admit | None = None) -> None:
    """Checks that an engine is right for other weights once they are in it.

    Args:
        table: Of the engine.
        weights: The other weights.
        title: How messages call the engine.
        admit: Which operators may make weights again; by default those that programs may call which are trusted.

    Raises:
        RefitError: A weight is missing or does not fit, or one changed that cannot be replaced.
    """
    for source in table.sources:
        check_weight(source, weights)
    check_constants(table.constants, weights)
    for name, (_, why, digest) in table.fixed.items():
        if content_digest(weights[name]) != digest:
            raise RefitError(
                f"the weight {name!r} of {title} cannot be replaced", why=why, hint="compile the model again"
            )
    read = replay_all([recipe for recipe, _ in table.reads], weights, admit=admit or _admitting(()))
    for (recipe, digest), value in zip(table.reads, read, strict=True):
        if content_digest(value) != digest:
            names = ", ".join(repr(source.name) for source in RefitTable(reads=((recipe, digest),)).sources)
            raise RefitError(
                f"the weight {names} of {title} cannot be replaced by other numbers",
                why="its numbers were looked at while the engine was built, which is right for those only",
                hint="compile the model again",
            )


def check_constants(digests: Mapping[str, str], weights: Weights) -> None:
    """Checks that the constants of a model are those that an engine was built with, as far as they are given.

    Raises:
        RefitError: One has other numbers.
    """
    for name, digest in digests.items():
        if name not in weights:
            continue
        require_numbers(name, weights[name])
        if content_digest(weights[name]) != digest:
            raise RefitError(
                f"the constant {name!r} of the model has changed",
                why="it is no weight: state dicts do not hold it, and engines have it built in",
                hint="compile the model again",
            )


def _supply(refitter: Any, table: RefitTable, weights: Weights, title: str, admit: Admit) -> list[torch.Tensor]:
    """Hands over the new weights, and returns their memory, which is read when the engine is refitted."""
    held = []
    values = replay_all([weight.recipe for weight in table.weights], weights, admit=admit)
    for weight, made in zip(table.weights, values, strict=True):
        value = made.detach().cpu().contiguous()
        if value.dtype != weight.dtype or value.numel() != weight.count:
            raise RefitError(
                f"the weight {weight.name!r} of {title} was not made as its engine needs it",
                why=f"it has {value.numel()} elements of {value.dtype}, not {weight.count} of {weight.dtype}",
            )
        held.append(value)
        native = trt.Weights(to_trt(value.dtype), value.data_ptr(), value.numel())
        if not refitter.set_named_weights(weight.name, native):
            raise RefitError(f"the weight {weight.name!r} of {title} cannot be replaced", why=take_errors())
    missing = refitter.get_missing_weights()
    if missing:
        raise RefitError(f"{title} needs weights that have no name in the model", where=", ".join(missing[:3]))
    return held


def _admitting(plans: Sequence[torch.Tensor]) -> Admit:
    """Tables come from files: what they name may do no more than what programs call of whoever wrote them.

    Args:
        plans: Of the engines whose weights are made again.
    """
    found = [bounds for plan in plans if (bounds := bounds_of(plan)) is not None]
    is_strange = bool(found)
    given = sum(plan.numel() for plan in plans)
    account = Account(found[0].limits, given, is_exempt=found[0].is_exempt) if found else None

    def admit(operator: OpOverload) -> Callable[..., Any]:
        why = why_refused(operator)
        if not why and is_strange and needs_trust(operator) and not all(map(is_own, plans)):
            why = "only files may do so that are trusted: signed with a trusted key, or loaded with trust=True"
        if why:
            raise RefitError(f"weights cannot be made again with {operator}", why=why)
        run = checked(operator)

        def run_if_it_fits(*args: Any, **kwargs: Any) -> Any:
            wrong = why_not_an_argument(operator, args, kwargs)
            if wrong:
                raise RefitError(f"weights cannot be made again with {operator}", why=wrong)
            with nullcontext() if account is None else account.watching():
                return run(*args, **kwargs)

        return run_if_it_fits

    return admit


@dataclasses.dataclass(frozen=True)
class _Attribute:
    """What a part of a module that runs in PyTorch reads.

    Attributes:
        module: The part.
        paths: Dotted paths of the attribute: several where a weight is tied.
        recipe: How it follows from weights of the model.
        is_state: Whether the part also writes to it.
    """

    module: nn.Module
    paths: tuple[str, ...]
    recipe: Recipe
    is_state: bool

    def is_own(self, weights: Weights) -> bool:
        """Whether it is state that no weights decide, or that these do not name."""
        sources = sources_of(self.recipe)
        return self.is_state and not (sources and all(source.name in weights for source in sources))

    def fitted(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a value as the attribute's new one: the same where it is only read.

        Raises:
            RefitError: It has another type or shape.
        """
        present = self.read()
        if value.shape != present.shape or value.dtype != present.dtype:  # a file need not tell the truth
            raise RefitError(
                f"the tensor {self.paths[0]!r} was not made as PyTorch needs it",
                why=f"it is {value.dtype} {tuple(value.shape)}, not {present.dtype} {tuple(present.shape)}",
            )
        return value.clone() if self.is_state else value

    def read(self) -> torch.Tensor:
        """Returns the present value."""
        owner, _, name = self.paths[0].rpartition(".")
        value: torch.Tensor = holder_of(part_at(self.module, owner), name)[name]
        return value

    def write(self, value: torch.Tensor) -> None:
        """Puts another tensor in the attribute's place."""
        present = self.read()
        value = value.to(present.device)
        if isinstance(present, nn.Parameter):
            value = nn.Parameter(value, requires_grad=present.requires_grad)
        for path in self.paths:
            owner, _, name = path.rpartition(".")
            holder_of(part_at(self.module, owner), name)[name] = value


def _of_weights(attributes: Sequence[_Attribute], weights: Weights) -> list[_Attribute]:
    """Those that weights of the model decide; others are constants, or state that the weights do not tell of."""
    told = follow_from_sources([item.recipe for item in attributes])
    return [item for item, is_told in zip(attributes, told, strict=True) if is_told and not item.is_own(weights)]


def _attributes(compiled: nn.Module) -> Iterator[_Attribute]:
    """Yields what PyTorch parts of a module read and the weights of the model decide."""
    for module in compiled.modules():
        if isinstance(module, LoadedProgram):
            yield from _held_by(module)
        if not isinstance(module, fx.GraphModule):
            continue
        nodes = [node for node in module.graph.find_nodes(op="get_attr") if RECIPE in node.meta]
        written = {str(node.target) for node in nodes if is_state(node)}
        recipes = {str(node.target): node.meta[RECIPE] for node in nodes}
        yield from (_Attribute(module, (path,), recipe, path in written) for path, recipe in recipes.items())


def _held_by(loaded: LoadedProgram) -> Iterator[_Attribute]:
    """Yields what a loaded program holds for its operators, where its file says how that follows from weights."""
    captured = captured_from(loaded)
    program, tensors = captured.program, captured.tensors
    if program.refit is None:
        return
    recipes = program.refit.recipes()
    written = program.written
    for number, entry in enumerate(program.tensors):
        if entry.names:  # others are constants
            recipe = recipes.get(number, Literal(tensors[number]))
            yield _Attribute(loaded, entry.names, recipe, program.first_tensor + number in written)


def _refuse_unknown(compiled: nn.Module, attributes: Sequence[_Attribute]) -> None:
    """Refuses a module with tensors that might be weights of the model, and of which nothing else is known.

    Raises:
        RefitError: It has such tensors.
    """
    known = {id(item.read()) for item in attributes}
    known.update(id(engine.plan) for engine in engine_modules(compiled))
    tensors = (*compiled.named_parameters(), *compiled.named_buffers())
    unknown = [name for name, value in tensors if id(value) not in known]
    if unknown:
        raise RefitError(
            "the module runs parts in PyTorch whose weights cannot be replaced",
            where=", ".join(unknown[:3]) + (f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""),
            why="nothing says how these tensors follow from the model's",
            hint="compile the model with refit=True, and save that",
        )
