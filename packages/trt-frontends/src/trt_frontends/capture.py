"""Capture: from a module and example inputs to an exported program."""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch import nn

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, preserve_predicate, require_registry
from trt_core import CompilationSettings, Device, ExportError, Input, InputError, logger, read_settings
from trt_core.attributes import has_hidden_state
from trt_core.dtypes import dtype_name
from trt_core.internals import FakeTensor, FakeTensorMode, pytree, schema_name
from trt_core.log import unlogged
from trt_core.nesting import children_of
from trt_core.operator_counts import is_product
from trt_core.operators import draws_random_numbers
from trt_core.provenance import source_line
from trt_core.settings_reader import warn_caller
from trt_core.sizes.guards import forget_assumptions
from trt_core.sizes.ranges import ShapeRanges, constrain_to_inputs
from trt_core.temporary import undone
from trt_core.wording import kind_of
from trt_frontends.entry_point import entry_point
from trt_frontends.example_inputs import ExampleInputs, require_names
from trt_frontends.other_ways import Captured, serve_other_ways
from trt_frontends.smallest_sizes import accepts_usual_sizes, fixes_an_extent_at_one, settle_smallest_sizes
from trt_frontends.stored_layers import open_shards, open_stored_layers, opened_after
from trt_lowering import decompose_program, export_module
from trt_lowering.export import SizeQuestion

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords


@entry_point
def trace(
    mod: nn.Module | torch.export.ExportedProgram,
    inputs: Sequence[Any] | None = None,
    *,
    arg_inputs: Sequence[Any] | None = None,
    kwarg_inputs: Mapping[str, Any] | None = None,
    strict: bool = False,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    **settings: Unpack[SettingKeywords],
) -> torch.export.ExportedProgram:
    """Exports a module, with the decompositions that the converters expect already applied.

    Args:
        mod: The module, in the mode it will run in. An exported program is only decomposed.
        inputs, arg_inputs: Positional inputs, tensors or `Input`s. A dimension of an `Input` whose minimum and maximum
            differ becomes dynamic.
        kwarg_inputs: Inputs by keyword.
        strict: Whether export runs in strict mode.
        registry: Where converters are looked up: what one takes whole is not decomposed. Give `compile` the same.
        settings: Compilation settings; see `CompilationSettings`. Here they decide what is decomposed, so that those of
            types, blocks and engines wait for `compile`, which has to be given them.

    Returns:
        A program that `compile` takes, several times with different settings if need be.

    Raises:
        ExportError: The module cannot be exported.
        InputError: The inputs cannot be read.
        SettingsError: A setting cannot be read, or the registry is none.

    Example:
        >>> program = trace(nn.ReLU(), arg_inputs=(torch.randn(2, 3),))
        >>> type(program).__name__
        'ExportedProgram'
    """
    chosen = read_settings(settings)
    require_registry(registry)
    require_walkable(mod)
    mod, examples = open_shards(mod, ExampleInputs.read(inputs, arg_inputs, kwarg_inputs))
    mod, program = capture_opened(mod, examples, strict=strict, settle_sizes=True)
    require_types(program, mod, examples)
    traced = decompose_program(program, chosen, preserve=preserve_predicate(chosen, registry))
    if program is not mod:
        forget_assumptions(traced)  # the ranges are those that were asked for
    return traced


_WALKS: Final = (
    "buffers",
    "children",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
)


def require_walkable(mod: Any) -> None:
    """Refuses a model that hides a method by which PyTorch finds its parts, or that other processes train, too.

    Raises:
        InputError: A module is such.
    """
    found = [mod] if isinstance(mod, nn.Module) else []
    seen = {id(mod)}
    for module in found:
        for name in _WALKS:
            if name in vars(module) and not callable(vars(module)[name]):
                raise InputError(
                    f"the attribute {name} of {type(module).__name__} hides the method of nn.Module",
                    why=f"PyTorch cannot capture a model without {name}()",
                    hint="call the attribute something else",
                )
        _require_no_wrapper(module)
        found += [child for child in module._modules.values() if child is not None and id(child) not in seen]
        seen |= {id(child) for child in module._modules.values()}


def _require_no_wrapper(module: nn.Module) -> None:
    in_parts = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", ())  # costly to import
    if isinstance(module, nn.parallel.DistributedDataParallel):
        why, hint = (
            "it exchanges buffers and gradients around the calls of its model",
            "compile its model, its `module`",
        )
    elif isinstance(module, in_parts):
        why, hint = (
            "it keeps weights in flat parts",
            "wrap the model by fully_shard in its place, or call torch.compile",
        )
    else:
        return
    raise InputError(f"{type(module).__name__} cannot be captured", why=why, hint=hint)


def capture_opened(
    mod: nn.Module | torch.export.ExportedProgram, examples: ExampleInputs | None, **options: bool
) -> tuple[nn.Module | torch.export.ExportedProgram, torch.export.ExportedProgram]:
    """Exports a module, or its shell where its capture shows that it makes `DTensor`s of plain tensors by itself.

    Args:
        mod, examples, options: See `capture`, which says what is raised, too.

    Returns:
        What was captured, and the program.
    """
    try:
        return mod, capture(mod, examples, **options)
    except ExportError as error:
        shell = opened_after(error, mod)
    return shell, capture(shell, examples, **options)


def capture(
    mod: nn.Module | torch.export.ExportedProgram,
    examples: ExampleInputs | None,
    *,
    strict: bool = False,
    settle_sizes: bool = False,
) -> torch.export.ExportedProgram:
    """Exports a module as it is; an exported program is returned unchanged.

    A module with tensors on the `meta` device is captured for the CPU, with fake tensors as weights.

    Args:
        mod: The module.
        examples: What it is captured for.
        strict: Whether export runs in strict mode.
        settle_sizes: Find out at which sizes of 1 the program is not the model; for that the model may be run.

    Raises:
        ExportError: The module cannot be exported.
        InputError: There are no inputs to export with, they do not fit the module, or the argument is no module.

    Warns:
        UserWarning: The module is in training mode, and that makes a difference; or its calls change numbers it keeps.
    """
    if isinstance(mod, torch.export.ExportedProgram):
        return mod
    if isinstance(mod, torch.jit.ScriptModule):
        raise InputError(
            f"cannot capture {kind_of(mod)}",
            why="it is TorchScript, which torch.export does not take",
            hint="give the module that was traced or scripted",
        )
    if not isinstance(mod, nn.Module):
        raise InputError(
            f"cannot capture {kind_of(mod)}",
            hint="give an nn.Module or an ExportedProgram; wrap a function in a module's forward",
        )
    if examples is None:
        raise InputError("a module needs example inputs to be captured", hint="give arg_inputs and kwarg_inputs")
    examples.require_parameter_names()
    signature = inspect.signature(mod.forward)
    _require_fitting(mod, examples, signature)
    examples = examples.in_order(signature)
    require_names(examples, signature, type(mod).__name__)
    with ready_for_export(mod, examples), open_stored_layers(mod) as opened:
        return _export(opened, examples, signature, strict=strict, settle_sizes=settle_sizes)


def _export(
    mod: nn.Module, examples: ExampleInputs, signature: inspect.Signature, *, strict: bool, settle_sizes: bool
) -> torch.export.ExportedProgram:
    """Exports a module with inputs that fit it; see `capture`."""
    mod = with_fake_weights(mod)
    device = device_of(mod, examples).torch_device
    inputs = on_cpu(examples.tensors(device))
    dynamic_shapes = examples.dynamic_shapes(signature)
    questions: list[SizeQuestion] = []
    changes: dict[str, tuple[float, float]] = {}
    other = read = None

    def export(inputs: Any, questions: list[SizeQuestion], strict: bool = strict) -> torch.export.ExportedProgram:
        program = export_module(
            mod, *inputs, dynamic_shapes=dynamic_shapes, strict=strict, questions=questions, changes=changes
        )
        constrain_to_inputs(program, examples.leaves())
        return program

    try:
        program = export(inputs, questions)
        if fixes_an_extent_at_one(program):
            other = _export_for_doubled_sizes(export, examples, device)
        if other is None and not strict and _reads_numbers(program, questions):
            read = _read_strictly(export, inputs)
            other = None if read is None or _reads_numbers(*read) else read
    except ExportError as error:
        fixed = _fixed_dimension(error, questions)
        if _is_fixed_by_operators(error, questions):
            other = _export_for_doubled_sizes(export, examples, device)
        if other is None and fixed is not None and not strict:
            other = read = _read_strictly(export, inputs)
        if other is None:
            types = _other_types(mod, examples, signature) if _NAMES_TYPES.search(str(error.__cause__)) else None
            raise fixed or types or _shape_as_input(examples, signature) or error from error.__cause__
    program, questions = other or (program, questions)
    _warn_of_training(program, mod)
    _warn_of_changes(changes)
    if not settle_sizes or dynamic_shapes is None:
        return program
    settle_smallest_sizes(program, mod, examples, questions, device)

    def capture_at(inputs: Any) -> Captured | None:
        if other is not None and other is read:
            return _read_strictly(export, on_cpu(inputs))
        questions: list[SizeQuestion] = []
        with contextlib.suppress(ExportError):
            return export(on_cpu(inputs), questions), questions
        return None

    return serve_other_ways((program, questions), mod, examples, device, capture_at)


def keyword_inputs(program: torch.export.ExportedProgram) -> list[str]:
    """Returns the names of a program's keyword inputs, in the order of its flattened inputs."""
    spec = program.call_spec.in_spec
    if spec is None:
        return []
    _, keywords = children_of(spec)
    return list(keywords.context)


def parameter_names(mod: Any) -> list[str]:
    """Returns the names of a module's parameters in their order, up to a variadic one; none for a program."""
    if not isinstance(mod, nn.Module):
        return []
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(mod.forward).parameters.values()
    return [item.name for item in itertools.takewhile(lambda item: item.kind not in variadic, parameters)]


def device_of(mod: Any, examples: ExampleInputs | None) -> Device:
    """Returns where a model lives: the device of its parameters, else of its inputs, else the current one."""
    tensors: list[Any]
    if isinstance(mod, torch.export.ExportedProgram):
        tensors = [*mod.state_dict.values(), *mod.constants.values()]
        tensors += [node.meta.get("val") for node in mod.graph.nodes if node.op == "placeholder"]
    elif isinstance(mod, nn.Module):
        tensors = [*mod.parameters(), *mod.buffers()]
    else:
        tensors = []
    for tensor in tensors:
        if isinstance(tensor, torch.Tensor) and tensor.device.type in ("cpu", "cuda"):
            return Device(tensor.device)
    found = examples.device() if examples is not None else None
    return found or Device.current()


def with_device(settings: CompilationSettings, given: Mapping[str, Any], device: Device) -> CompilationSettings:
    """Returns the settings with the model's device, unless the user chose one."""
    chosen = given.get("device") is not None or isinstance(given.get("settings"), CompilationSettings)
    return settings if chosen else settings.replace(device=device)


def _require_fitting(mod: nn.Module, examples: ExampleInputs, signature: inspect.Signature) -> None:
    try:
        signature.bind(*examples.args, **examples.kwargs)
    except TypeError as error:
        given = [*(f"input {index}" for index in range(len(examples.args))), *examples.kwargs]
        raise InputError(
            f"the inputs do not fit {type(mod).__name__}.forward{signature}",
            why=f"{error}; given were {', '.join(given) or 'none'}",
            hint="give arg_inputs in the order of the parameters, the others by name in kwarg_inputs",
        ) from error


def _warn_of_training(program: torch.export.ExportedProgram, mod: nn.Module) -> None:
    """Warns where a model would go on to drop elements, and to take statistics of batches, when it is compiled."""
    found = next((node for node in program.graph.nodes if _is_of_training(node)), None)
    if found is not None and any(module.training for module in nn.Module.modules(mod)):
        place = source_line(found)
        warn_caller(
            "the model is in training mode, so dropout and batch statistics become part of what is compiled"
            f"{f' ({place})' if place else ''}; call model.eval() first",
        )


def _warn_of_changes(changes: Mapping[str, tuple[float, float]]) -> None:
    """Warns where calls of a model change numbers that it keeps, which compiled calls know as they were."""
    if changes:
        (name, (before, after)), *others = changes.items()
        more = f" and {len(others)} more" if others else ""
        warn_caller(
            f"calls change numbers that the model keeps ({name}: {before} to {after}{more}), and compiled calls go on "
            "with what they were; keep them in buffers, or use torch.compile",
        )


def _is_of_training(node: Any) -> bool:
    name = schema_name(node.target)
    return ("dropout" in name and draws_random_numbers(node)) or ("batch_norm" in name and has_hidden_state(node))


_NAMES_TYPES: Final = re.compile(r"\b(dtypes?|scalar type|Input type)\b")
"""What PyTorch says where an operator or a layer refuses what it is given for its type."""


def require_types(program: torch.export.ExportedProgram, mod: Any, examples: ExampleInputs | None) -> None:
    """Finds at the door that inputs have another type than the weights that they are multiplied with.

    Products take no mixture of floating-point types, which shapes do not tell: they are captured all the same.

    Args:
        program: What a module was captured as.
        mod: The module; programs that were captured elsewhere are left alone.
        examples: What it was captured with.

    Raises:
        InputError: They have.
    """
    if not isinstance(mod, nn.Module) or examples is None:
        return
    signature = inspect.signature(mod.forward)
    examples = examples.in_order(signature)
    for node in program.graph.nodes:
        if not is_product(node.target):
            continue
        operands = [item for item in node.args if isinstance(item, torch.fx.Node)]
        if "attention" in schema_name(node.target):
            operands = operands[:3]  # a mask may be of float32, whatever queries are of
        values = (item.meta.get("val") for item in operands)
        types = {value.dtype for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()}
        if len(types) > 1 and (found := _other_types(mod, examples, signature, node)) is not None:
            raise found


def _other_types(
    mod: nn.Module, examples: ExampleInputs, signature: inspect.Signature, node: Any = None
) -> InputError | None:
    """Returns what to say where an input has another floating-point type than all of a model's weights."""
    weights = {item.dtype for item in (*mod.parameters(), *mod.buffers()) if item.is_floating_point()}
    if len(weights) != 1:
        return None
    (own,) = weights
    for (_, place), leaf in zip(examples.places(signature), examples.leaves(), strict=True):
        dtype = leaf.dtype if isinstance(leaf, (Input, torch.Tensor)) else own
        if dtype.is_floating_point and dtype != own:
            given, wanted = dtype_name(dtype), dtype_name(own)
            return InputError(
                f"input {place} is {given}, and the model's weights are {wanted}",
                where="" if node is None else source_line(node) or node.name,
                why="no operator of PyTorch multiplies the two, so eager refuses such a call",
                hint=f"to compute in {given} with inputs and results in {wanted}: give Input(dtype=torch.{wanted}) and "
                f"precision=torch.{given}; or compile model.to(torch.{given})"
                + (", which is model.half()" if dtype is torch.float16 else ""),
            )
    return None


def _shape_as_input(examples: ExampleInputs, signature: inspect.Signature) -> InputError | None:
    """Returns what to say where an input of a model that fails is whole numbers, as a shape is written; else None."""
    bound = signature.bind(*examples.args, **examples.kwargs).arguments
    for name, value in bound.items():
        if isinstance(value, (tuple, list)) and value and all(type(item) is int for item in value):
            return InputError(
                f"the model cannot be captured with {value!r:.80} as input {name}",
                why="it is given these numbers themselves",
                hint=f"write Input({tuple(value)!r:.80}) for a tensor of that shape",
            )
    return None


_FIXED = re.compile(r"L\['(\w+)'\](\S*?)\.size\(\)\[(\d+)\] as dynamic but your code specialized .*?constant \((\d+)\)")


_Export: TypeAlias = Callable[..., torch.export.ExportedProgram]
"""Exports a model for example inputs, and puts what it asks of sizes into a list; by reading its code where told so."""


def _export_for_doubled_sizes(export: _Export, examples: ExampleInputs, device: torch.device) -> Captured | None:
    """Captures a model for twice the sizes, since an extent that follows from those asked for is 1, which fixes it.

    A network that halves pictures five times has maps of 1 by 1 for pictures of 32 by 32. None where the model takes
    another way at twice the sizes, or has none.
    """
    questions: list[SizeQuestion] = []
    with contextlib.suppress(ExportError):
        program = export(on_cpu(examples.tensors(device, doubled=True)), questions)
        if accepts_usual_sizes(program, examples.leaves()) and not fixes_an_extent_at_one(program):
            return program, questions
    return None


def _read_strictly(export: _Export, inputs: Any) -> Captured | None:
    """Captures a model whose code takes `len(x)` or `int(0.7 * x.shape[0])`, by reading the code.

    Running it fixes such numbers. None where reading finds them fixed as well, or does not understand the code.
    """
    questions: list[SizeQuestion] = []
    with contextlib.suppress(ExportError), unlogged("torch._guards"):  # it prints a trace of PyTorch's own code
        return export(inputs, questions, strict=True), questions
    return None


def _reads_numbers(program: torch.export.ExportedProgram, questions: Iterable[SizeQuestion]) -> bool:
    """Whether code took a number that follows from sizes as one of Python's, which other sizes do not have."""
    ranges = ShapeRanges.from_placeholders(program.graph_module, None, program.range_constraints).symbols
    answers = [question.answer for question in questions if question.is_number]

    def fails(answer: Any, end: int) -> bool:
        sizes = {symbol: ranges[str(symbol)][end] for symbol in answer.free_symbols if str(symbol) in ranges}
        return bool(answer.subs(sizes) == False)  # noqa: E712 - sympy's false

    return any(fails(answer, end) for answer in answers for end in (0, 2))


_STATIC = re.compile(r"tracing inferred a static shape of (\d+)")


def _is_fixed_by_operators(error: ExportError, questions: Iterable[SizeQuestion]) -> bool:
    """Whether a dimension that was asked to vary is fixed, and no comparison or number of the model's code fixes it."""
    text = str(error.__cause__)
    extents = [int(found.groups()[-1]) for pattern in (_FIXED, _STATIC) for found in pattern.finditer(text)]
    return bool(extents) and not any(question.fixes(extent) for question in questions for extent in extents)


def _fixed_dimension(error: ExportError, questions: Iterable[SizeQuestion]) -> InputError | None:
    """Returns what to say when a model fixes a dimension that was asked to vary; None for other failures."""
    found = _FIXED.search(str(error.__cause__))
    if found is None:
        return None
    name, path, axis, extent = found.groups()
    return InputError(
        f"dimension {axis} of input {name}{path} cannot vary: the model works for {extent} only",
        where=next((question.place for question in questions if question.fixes(int(extent))), ""),
        why="capturing the model with that dimension dynamic met code that fixes it",
        hint=f"give {extent} as min, opt and max of dimension {axis}, or change the code that fixes it",
    )


# Models without weights, on the `meta` device or made of fake tensors ------------------------------------------------


def is_weightless(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and a type, and no data."""
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def with_fake_weights(module: nn.Module) -> nn.Module:
    """Returns a module that can be captured for the CPU although parts of it are on the `meta` device.

    The copy shares nothing that could be large: every parameter and buffer is a fake tensor, those that have data
    too. So tensors that the model makes on the CPU while it runs meet no tensor on another device.

    Args:
        module: Any module; one without tensors on the `meta` device is returned as it is.
    """
    if not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers())):
        return module
    return fake_copy(module, FakeTensorMode(allow_non_fake_inputs=True))


def fake_copy(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Returns a copy of a module whose parameters and buffers are fake tensors of a mode, on the CPU."""
    # what deepcopy finds in its memo it does not copy, and tied parameters stay tied
    fakes: dict[int, Any] = {id(tensor): _fake(tensor, mode) for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, fakes)


def on_cpu(inputs: Any) -> Any:
    """Returns example inputs, nested in any way, with zeros on the CPU for tensors on the `meta` device."""

    def replace(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_meta and not isinstance(value, FakeTensor):
            return torch.zeros(value.shape, dtype=value.dtype, device="cpu")
        return value

    return pytree.tree_map(replace, inputs)


def require_weights(model: nn.Module | torch.export.ExportedProgram) -> None:
    """Checks that a model can be compiled and run, not only explained.

    Raises:
        InputError: Some of its tensors have no data.
    """
    if isinstance(model, nn.Module):
        tensors: dict[str, Any] = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    else:
        tensors = {**model.state_dict, **model.constants}
    empty = [name for name, value in tensors.items() if isinstance(value, torch.Tensor) and is_weightless(value)]
    if empty:
        raise InputError(
            "the model has no weights to build engines from",
            where=", ".join(empty[:3]) + (f" and {len(empty) - 3} more" if len(empty) > 3 else ""),
            why="these tensors are on the meta device, or are fake tensors",
            hint="load the weights first; explain, and compile with dryrun=True, work without them",
        )


def _fake(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    if isinstance(tensor, FakeTensor):
        return tensor
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(fake, requires_grad=tensor.requires_grad)
    return fake


# Models of transformers: steps without caches, attention that can be traced, known caches ---------------------------


_ATTENTION: Final = "_attn_implementation"
_TRACED: Final = frozenset({"eager", "sdpa"})
"""Implementations of attention that are made of PyTorch's operators."""

_EXPERTS: Final = "_experts_implementation"
_TRACED_EXPERTS: Final = frozenset({"batched_mm", "grouped_mm"})
"""Ways to compute experts that do not ask which of them were chosen."""


@contextlib.contextmanager
def ready_for_export(model: Any, examples: ExampleInputs) -> Iterator[None]:
    """Inside the block a model of transformers is such that it can be captured; other models are left alone.

    What is changed is its configuration, for the time of the block, and a note says so. An input `use_cache` or a cache
    among the inputs asks for caches among the results: then PyTorch is told how to take them apart.

    Args:
        model: What is captured.
        examples: What with.
    """
    modules: Iterable[Any] = nn.Module.modules(model) if isinstance(model, nn.Module) else ()
    inner = [module for module in modules if _is_of_transformers(module)]
    if not inner:
        yield
        return
    given = {name for name in ("use_cache", "past_key_values", "cache") if examples.kwargs.get(name) is not None}
    if given or any(_is_cache(leaf) for leaf in pytree.tree_leaves((examples.args, examples.kwargs))):
        _register_caches()
        given.add("use_cache")
    has_fused = all(getattr(module, "_supports_sdpa", False) for module in inner)
    has_experts = any(getattr(module, "_can_set_experts_implementation", bool)() for module in inner)
    with (
        _without_caches(model, wanted="use_cache" in given),
        _traceable(model, _ATTENTION, _TRACED, "sdpa" if has_fused else "eager"),
        _traceable(model, _EXPERTS, _TRACED_EXPERTS, "grouped_mm") if has_experts else contextlib.nullcontext(),
    ):
        yield


def _is_of_transformers(model: Any) -> bool:
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def _is_cache(value: Any) -> bool:
    library = sys.modules.get("transformers.cache_utils")
    return library is not None and isinstance(value, library.Cache)


def _register_caches() -> None:
    """Teaches PyTorch to take caches of transformers apart; releases differ in where that is."""
    from transformers.integrations import executorch

    with contextlib.suppress(ValueError):  # they are known already
        getattr(executorch, "register_dynamic_cache_export_support", lambda: None)()


@contextlib.contextmanager
def _without_caches(model: Any, *, wanted: bool) -> Iterator[None]:
    if not _is_of_transformers(model):  # a wrapper says itself what it asks for
        yield
        return
    # parts have configurations of their own: T5's decoder one, models of images and text one for the text
    configs = {id(module.config): module.config for module in model.modules() if hasattr(module, "config")}
    changed = [] if wanted else [config for config in configs.values() if getattr(config, "use_cache", False)]
    if changed and model.can_generate():
        logger.warning(
            "%s is captured with use_cache=False, as one step without caches; give use_cache=True among kwarg_inputs "
            "to have caches among its results, or make a TextGenerator of it with compile_generation",
            type(model).__name__,
        )

    def undo() -> None:
        for config in changed:
            config.use_cache = True

    with undone(undo):
        for config in changed:
            config.use_cache = False
        yield


@contextlib.contextmanager
def _traceable(model: nn.Module, setting: str, traced: Collection[str], chosen: str) -> Iterator[None]:
    """Inside the block parts of models are computed in a way that can be captured, where they are not so already.

    It is set in the configurations alone: whether kernels of a name are installed is for calls to find out.
    """
    configs = {id(module.config): module.config for module in nn.Module.modules(model) if hasattr(module, "config")}
    found = [(config, getattr(config, setting, None)) for config in configs.values()]
    changed = [(config, name) for config, name in found if isinstance(name, str) and name not in traced]
    for config, name in changed[:1]:
        why = "%s is captured with %s=%r: %r cannot be captured"
        logger.warning(why, type(config).__name__, setting.lstrip("_"), chosen, name)

    def undo() -> None:
        for config, name in changed:
            setattr(config, setting, name)

    with undone(undo):
        for config, _ in changed:
            setattr(config, setting, chosen)
        yield
