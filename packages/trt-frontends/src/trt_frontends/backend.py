"""`torch.compile` with our backend, under the names `torch_tensorrt` and `tensorrt`.

PyTorch finds it through the entry point group `torch_dynamo_backends`, so nothing has to be imported. `optimize` has
PyTorch told what engines can take before it captures. Dynamo captures for compilers that differ from this one, and
decides before a backend is asked. It breaks off where `nn.LSTM`, `nn.GRU` and `nn.RNN` are called, which Inductor would
unroll. Shapes of recurrent layers are found by unrolling, and those of convolutions by asking which CPU library would
compute them; both guard on sizes: engines would be built for each length, and twice for a batch that may be smaller or
larger than 16.
"""

from __future__ import annotations

import contextlib
import functools
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar, cast

import torch
from torch import fx

from trt_converters import DYNAMO_CONVERTERS, ConverterRegistry, preserve_predicate, require_registry
from trt_core import CompilationSettings, Device, ExecutionError, InputError, SettingsError, logger, read_settings
from trt_core.internals import OpOverload
from trt_core.settings_reader import warn_caller
from trt_core.temporary import undone
from trt_core.wording import kind_of
from trt_frontends.capture import with_device
from trt_frontends.custom_engine_cache import CustomCache
from trt_frontends.entry_point import entry_point
from trt_frontends.internals import TracingContext, set_grad_enabled, use_mkldnn, use_nnpack, uses_mkldnn, uses_nnpack
from trt_frontends.torch_compile.compiled_graph import CompiledGraph, communicates, compared, with_inductor
from trt_frontends.torch_compile.model_report import (
    CapturedGraph,
    GraphKeeper,
    captured_frame,
    is_ours,
    name_of_code,
    remember_graph,
)
from trt_lowering import declare_results, keep_recurrent_layers, keep_whole
from trt_lowering.decomposition_table import find_decomposition
from trt_lowering.operator_traits import is_kept_in_torch
from trt_lowering.sharded_modules import shards_taken_apart, sizes_taken_apart
from trt_partition import require_known_modules
from trt_runtime.sharded import capture_again, leave_uncompiled

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from trt_core.setting_keywords import SettingKeywords
    from trt_frontends.custom_engine_cache import BaseEngineCache  # whatever saves and loads will do


Runner = Callable[..., Any]

declare_results()  # now: Dynamo captures before it asks a backend


def torch_tensorrt_backend(
    gm: fx.GraphModule,
    sample_inputs: Sequence[Any],
    *,
    options: Mapping[str, Any] | None = None,
    registry: ConverterRegistry | None = None,
    **keywords: Any,
) -> Runner:
    """Compiles one graph that `torch.compile` captured; engines are built at its first call.

    Args:
        gm: The captured graph.
        sample_inputs: Its inputs; symbolic integers among them stand for sizes that vary.
        options: Compilation settings, `torch.compile(..., options={...})`; also `"registry"` and
            `"custom_engine_cache"`, as that is the only way for `torch.compile` to hand them over.
        registry: Where converters are looked up, `DYNAMO_CONVERTERS` by default.
        keywords: What else `torch.compile` was given; there is nothing that it could mean.

    Returns:
        A callable that takes what the graph takes, and returns what `backend="aot_eager"` does. Where the graph
        cannot be compiled, a warning says why, and the callable runs it in PyTorch.

    Raises:
        SettingsError: An option cannot be read, or is none of ours.

    Warns:
        UserWarning: `torch_executed_modules` names a module that no graph has.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU()).eval()
        >>> optimized = torch.compile(model, backend=torch_tensorrt_backend, dynamic=False)
        >>> with torch.no_grad():
        ...     optimized(torch.ones(2, 4)).shape
        torch.Size([2, 8])
    """
    _refuse_keywords(keywords)
    _make_known()
    given = _mapping(options)
    registry = _registry_in(given, registry)
    cache = _cache_in(given)
    settings = with_device(read_settings(given), given, _device_of(sample_inputs))
    refuse_settings_of_whole_models(settings)
    # a full compilation cannot be required here: PyTorch has cut the model into graphs already
    settings = settings.replace(require_full_compilation=False)
    graph = remember_graph(gm, notes_modules=bool(settings.torch_executed_modules))
    _look_for_modules(gm, settings, graph)
    records = torch.is_grad_enabled()
    switches = _gradient_switches(gm)
    needed_at = gradients_needed_at(gm) if records or any(to for _, to in switches) else ()
    inside = _ends_for_gradients(graph)
    if needed_at and (settings.gradients == "pytorch" or not records or inside):
        graph.in_pytorch = "its code computes gradients of what it makes" if inside else "gradients are recorded"
        return _run_in_pytorch(gm, sample_inputs, settings, graph)
    compiled = _compile(gm, sample_inputs, settings, registry, graph, cache)
    if needed_at:
        compiled = refuse_gradients(compiled, needed_at)
    left = next((to for node, to in reversed(switches) if node.graph is gm.graph), records)
    return compiled if left == records else _leave_recording(compiled, left)


def _look_for_modules(gm: fx.GraphModule, settings: CompilationSettings, graph: CapturedGraph) -> None:
    """Warns of names of modules that none of the graphs has, when what PyTorch captures has come to its end."""
    if graph.ended_by:
        return
    try:
        require_known_modules(gm, settings, graph.modules)
    except SettingsError as error:  # PyTorch may have left code alone whose modules it captures later
        warn_caller(str(error))


def refuse_settings_of_whole_models(settings: CompilationSettings) -> None:
    """Refuses settings that say something about a model, of which a backend sees one graph at a time.

    Raises:
        SettingsError: One of them is set.

    Warns:
        UserWarning: `require_full_compilation` is set, which changes nothing here.
    """
    if settings.require_full_compilation:  # scripts have one set of settings for this and for `compile`
        warn_caller(
            "require_full_compilation=True has no effect under torch.compile, which has cut the model into graphs "
            "before a backend sees any: fullgraph=True refuses that, and model_report tells what runs where"
        )
    if settings.max_error is not None:
        raise SettingsError(
            "precision cannot be chosen under torch.compile",
            why="an error is that of what the model returns, which no graph is able to see: graphs are compiled when "
            "calls reach them, before the next ones are known, and again for other sizes, where another choice would "
            "change the numbers",
            hint='choose for the whole model: compile(model, arg_inputs=..., precision="auto")'
            '.meta["precision_report"].setting_of_graphs holds settings to write into options; or exclude operators, '
            "modules or large values with the autocast_* settings",
        )
    if settings.use_cuda_graphs:
        raise SettingsError(
            "use_cuda_graphs has no effect under torch.compile",
            why="calls of a whole module are recorded, and what lies between the graphs of torch.compile is Python",
            hint="compile the model with trt_frontends.compile(model, arg_inputs=..., use_cuda_graphs=True)",
        )
    if settings.offload_module_to_cpu:
        raise SettingsError(
            "offload_module_to_cpu has no effect under torch.compile",
            why="the model goes on to be called: torch.compile reads its weights at every call, and guards them",
            hint="compile the model with trt_frontends.compile(model, arg_inputs=..., offload_module_to_cpu=True)",
        )


def _compile(
    gm: fx.GraphModule,
    sample_inputs: Sequence[Any],
    settings: CompilationSettings,
    registry: ConverterRegistry,
    graph: CapturedGraph,
    cache: CustomCache | None,
) -> Runner:
    from trt_frontends.internals import TorchDynamoException, aot_autograd

    ended_by = graph.end()

    def compile_functional(functional: fx.GraphModule, _: Sequence[Any]) -> Runner:
        if functional.graph.find_nodes(op="call_function", target=torch.ops.aten.set_.source_Tensor):
            graph.in_pytorch = "it gives a weight other memory, as libraries do that pack weights at a first call"
            return compared(functional, functional.forward, ended_by, graph.code)
        sizes = (node.meta.get("val") for node in functional.graph.find_nodes(op="placeholder"))
        if any(isinstance(size, torch.SymInt) and size.node.is_nested_int() for size in sizes):
            graph.in_pytorch = "it is given nested tensors, of which a size is no number"
            return compared(functional, functional.forward, ended_by, graph.code)
        graph.compiled = CompiledGraph(functional, *_lasting_inputs(), settings, registry, cache, ended_by, graph.code)
        return graph.compiled

    preserve = preserve_predicate(settings, registry)
    derives = computes_gradients(gm)  # through what operators are made of, so none stays whole
    whole = [
        operator for operator in registry if isinstance(operator, OpOverload) and preserve(operator) and not derives
    ]
    # what specializes sizes is taken apart here, where PyTorch may still guard them
    early = {
        target: found.function
        for target in (torch.ops.aten._transformer_encoder_layer_fwd.default,)
        if not preserve(target) and (found := find_decomposition(target)) and not is_kept_in_torch(target, settings)
    }

    def leave(functional: fx.GraphModule, _: Sequence[Any]) -> Runner:
        graph.in_pytorch = "it computes gradients, of tensors that require some"
        return compared(functional, functional.forward, ended_by, graph.code)

    backend = aot_autograd(
        fw_compiler=leave,
        inference_compiler=compile_functional,
        decompositions=early,
        keep_inference_input_mutations=True,
    )
    try:
        # without gradients AOTAutograd hands over one graph, without a backward pass; those that a graph computes
        # itself (torch.func.grad) would be zero
        with (
            contextlib.nullcontext() if derives else _gradients_off(gm),
            keep_recurrent_layers(),
            keep_whole(whole),
            sizes_taken_apart(),
            shards_taken_apart(),
        ):
            return backend(gm, sample_inputs)
    except TorchDynamoException:  # Dynamo is asked to start again, or to break the graph
        graph.is_dropped = True
        raise
    except Exception as error:
        graph.in_pytorch = f"{type(error).__name__}: {error}"
        graph.is_dropped = True  # until it is known that Dynamo keeps it
        runner = _run_in_pytorch(gm, sample_inputs, settings, graph)
        graph.is_dropped = False
        logger.warning("a graph of %d nodes runs in PyTorch: %s", len(gm.graph.nodes), graph.in_pytorch)
        return runner


def _run_in_pytorch(
    gm: fx.GraphModule, sample_inputs: Sequence[Any], settings: CompilationSettings, graph: CapturedGraph
) -> Runner:
    """Hands the graph to a backend of PyTorch's own, which knows gradients; to none where that fails as well.

    What Dynamo takes for the end of a graph, whoever compiles it, such as a number that is read from a tensor, it gets.
    """
    import torch.distributed as dist  # costly, and most models have no collectives

    from trt_frontends.internals import TorchDynamoException, exceptions_allowed_to_be_fallback, lookup_backend

    if dist.is_available() and dist.is_initialized():
        backend = _in_step(graph, settings)
    else:
        backend = lookup_backend("inductor" if settings.torch_fallback == "inductor" else "aot_eager")
    try:
        runner: Runner = backend(gm, list(sample_inputs))
    except (TorchDynamoException, *exceptions_allowed_to_be_fallback):  # Dynamo starts again, or breaks the graph
        raise
    except Exception as error:
        logger.warning("the graph runs as it was captured: %s", error)
        return gm.forward
    return runner


def _in_step(graph: CapturedGraph, settings: CompilationSettings) -> Runner:
    """Returns what those backends are for a rank, with which others compare what its graphs communicate."""
    from trt_frontends.internals import aot_autograd, min_cut_partition

    def compile_functional(functional: fx.GraphModule, _: Sequence[Any]) -> Runner:
        run = with_inductor(functional) if settings.torch_fallback == "inductor" else functional.forward
        return compared(functional, run, graph.end(), graph.code)

    backend: Runner = aot_autograd(
        fw_compiler=compile_functional,
        partition_fn=min_cut_partition,
        keep_inference_input_mutations=True,
    )
    return backend


def _lasting_inputs() -> tuple[set[int], set[int]]:
    """Positions of the functional graph's inputs that AOTAutograd knows to stay the same, and to be written to."""
    context = TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None:
        return set(), set()
    shift = len(metadata.tokens)  # tokens that order side effects come before the inputs
    is_written = [info.mutates_data or info.mutates_metadata for info in metadata.input_info]
    written = {position + shift for position, yes in enumerate(is_written) if yes}
    return set(metadata.static_input_indices or ()) - written, written  # these count the tokens already


def _mapping(options: Any) -> dict[str, Any]:
    if options is not None and not isinstance(options, Mapping):
        raise SettingsError(
            f"options must be a mapping of names to values, not {kind_of(options)}",
            hint='write options={"min_block_size": 1}',
        )
    return dict(options or {})


def _registry_in(options: dict[str, Any], given: ConverterRegistry | None) -> ConverterRegistry:
    """Takes the registry out of the options, which are settings otherwise."""
    named = options.pop("registry", None)
    return require_registry(named if named is not None else given if given is not None else DYNAMO_CONVERTERS)


def _cache_in(options: dict[str, Any]) -> CustomCache | None:
    """Takes the user's own engine cache out of the options."""
    given = options.pop("custom_engine_cache", None)
    return None if given is None else CustomCache(given)


@functools.cache
def _make_known() -> None:
    """Tells Dynamo of the backend, which a user may have given as a function.

    After capturing for backends that it knows, Dynamo drops the weak references by which it remembers tensors, and
    `torch.utils.swap_tensors`, for which these are in the way, works on weights.
    """
    from trt_frontends.internals import register_backend

    with contextlib.suppress(AssertionError):  # this module was imported twice
        register_backend(torch_tensorrt_backend, name="trt_frontends")
    _watch_captures()


_IMPLIED: Final = {"mode": "reduce-overhead"}
"""What calls of engines do as it is, and what transformers asks for where it compiles by itself."""


def _refuse_keywords(keywords: Mapping[str, Any]) -> None:
    for name, value in keywords.items():
        if _IMPLIED.get(name) == value:
            continue
        raise SettingsError(
            f"torch.compile was given {name}={value!r}, which means nothing to this backend",
            hint='modes are Inductor\'s; write options={"optimization_level": 5} for more effort at build time'
            if name == "mode"
            else "leave it out; settings go into options={...}",
        )


def _device_of(inputs: Sequence[Any]) -> Device:
    for value in inputs:
        if isinstance(value, torch.Tensor) and value.device.type in ("cpu", "cuda"):
            return Device(value.device)
    return Device.current()


# Gradients: asking an engine for one is an error, not silence --------------------------------------------------------


def gradients_needed_at(gm: fx.GraphModule) -> tuple[int, ...]:
    """Returns the positions of the results that eager execution would give a gradient.

    Args:
        gm: A graph that Dynamo captured with gradients enabled.
    """
    results: Any = gm.graph.output_node().args[0]
    values = [item.meta.get("example_value") if isinstance(item, fx.Node) else None for item in results]
    return tuple(at for at, value in enumerate(values) if isinstance(value, torch.Tensor) and value.requires_grad)


def _ends_for_gradients(graph: CapturedGraph) -> bool:
    """Whether Dynamo ended a graph at a call of autograd by the code it captures, so that gradients are no surprise."""
    return re.search(r"autograd\.grad\b|\bbackward\b", graph.ended_by) is not None


def computes_gradients(gm: fx.GraphModule) -> bool:
    """Whether a graph that Dynamo captured computes gradients itself, as `torch.func.grad` and `jvp` do.

    With `torch._dynamo.config.trace_autograd_ops` so does one with `torch.autograd.grad`.
    """
    targets = {node.target for node in gm.graph.nodes if node.op == "call_function"}
    names = {getattr(target, "__name__", "") for target in targets}
    return torch.autograd.grad in targets or not names.isdisjoint(_NESTINGS)


_NESTINGS: Final = ("_grad_increment_nesting", "_jvp_increment_nesting")


def _gradient_switches(gm: fx.GraphModule) -> list[tuple[fx.Node, bool]]:
    """Where a graph and those inside of it switch recording on and off, as `torch.no_grad()` does, and to what."""
    graphs = [module.graph for module in gm.modules() if isinstance(module, fx.GraphModule)]
    nodes = [
        node for graph in graphs for node in graph.find_nodes(op="call_function", target=set_grad_enabled, sort=True)
    ]
    return [(node, bool(node.args[0])) for node in nodes]


@contextlib.contextmanager
def _gradients_off(gm: fx.GraphModule) -> Iterator[None]:
    """Switches gradients off, behind a `torch.no_grad()` in the graph too, which would switch them on at its end."""
    switches = _gradient_switches(gm)
    for node, _ in switches:
        node.args = (False,)
    try:
        with torch.no_grad():
            yield
    finally:
        for node, to in switches:
            node.args = (to,)


def _leave_recording(run: Runner, to: bool) -> Runner:
    """Returns a callable that switches the recording of gradients behind each call, as its graph would."""

    def run_and_switch(*inputs: Any) -> Any:
        results = run(*inputs)
        torch.set_grad_enabled(to)
        return results

    return run_and_switch


def refuse_gradients(run: Callable[..., Any], positions: Collection[int]) -> Callable[..., Any]:
    """Returns a callable whose results require gradients like those of eager execution, and whose backward raises.

    Args:
        run: Returns a sequence of results.
        positions: Which of them would have a gradient.
    """

    def run_and_mark(*inputs: Any) -> Any:
        results = list(run(*inputs))
        if torch.is_grad_enabled():
            sources = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
            for at in positions:
                results[at] = mark_without_gradient(results[at], sources)
        return results

    return run_and_mark


def mark_without_gradient(result: Any, sources: Sequence[torch.Tensor]) -> Any:
    """Makes a tensor require a gradient that cannot be computed.

    Args:
        result: What a graph returned.
        sources: What a gradient may be asked for with respect to: tensors that require one.

    Returns:
        The tensor; another one on the same memory where it is a view that autograd lets nobody write to, since it was
        made while gradients were off. What is no tensor, or requires a gradient already, stays as it is.
    """
    if not isinstance(result, torch.Tensor) or result.requires_grad or not _may_have_gradient(result):
        return result
    with torch.enable_grad():
        anchor = torch.empty((), requires_grad=True, device="cpu")
        try:
            return _NoGradient.apply(anchor, result, *sources)  # type: ignore[no-untyped-call]
        except RuntimeError:
            return _NoGradient.apply(anchor, result.detach(), *sources)  # type: ignore[no-untyped-call]


def _may_have_gradient(result: torch.Tensor) -> bool:
    return result.is_floating_point() or result.is_complex()


class _NoGradient(torch.autograd.Function):
    """Takes the place of the gradient of an engine."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, tensor: torch.Tensor, *sources: torch.Tensor) -> torch.Tensor:
        """Returns the tensor itself: marked as written to, it keeps its memory, and gets this function as its past."""
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        """Says why there is no gradient."""
        raise ExecutionError(
            "engines compute no gradients",
            where="backward() through a model that was compiled into engines",
            hint='run it under torch.no_grad(), or compile it with gradients="pytorch" to run in PyTorch where '
            "gradients are recorded",
        )


M = TypeVar("M", bound=Callable[..., Any])


@entry_point
def optimize(
    model: M,
    *,
    dynamic: bool | None = None,
    fullgraph: bool = False,
    registry: ConverterRegistry = DYNAMO_CONVERTERS,
    custom_engine_cache: BaseEngineCache | None = None,
    **settings: Unpack[SettingKeywords],
) -> M:
    """Returns what `torch.compile(model, backend="torch_tensorrt", options=settings)` does, and captures more of it.

    A backend is asked when PyTorch has decided what becomes a graph. Here PyTorch is told before: recurrent layers are
    part of graphs, whole and with a length that may vary, and shapes of convolutions on the CPU are found without
    guards on the size of the batch. Other backends in the process see none of that.

    Args:
        model: A module or a function; nothing is captured before it is called.
        dynamic: Whether sizes vary: from the first call on (True), never (False), or once they did (None).
        fullgraph: Whether a graph break is an error.
        registry: Where converters are looked up.
        custom_engine_cache: Keeps built engines, in the place of the engine cache on disk.
        settings: Compilation settings; see `CompilationSettings`.

    Returns:
        A module or a function that is called like the model; `model_report` tells what runs where.

    Raises:
        InputError: The model cannot be called.
        SettingsError: A setting cannot be read, or says something about a whole model.

    Example:
        >>> import torch
        >>> optimized = optimize(torch.nn.GRU(4, 8).eval(), dynamic=True, min_block_size=1)
        >>> with torch.no_grad():
        ...     sequence, state = optimized(torch.ones(5, 2, 4))
        >>> sequence.shape
        torch.Size([5, 2, 8])
    """
    from trt_frontends.internals import dynamo_optimize as optimize_with  # costly to import

    if not callable(model) or isinstance(model, type):
        raise InputError(f"cannot optimize {kind_of(model)}", hint="give an nn.Module or a function")
    refuse_settings_of_whole_models(read_settings(settings))
    chosen = None if registry is DYNAMO_CONVERTERS else registry
    options: dict[str, Any] = {**settings}
    if custom_engine_cache is not None:
        CustomCache(custom_engine_cache)  # refuses here, not at the first call
        options["custom_engine_cache"] = custom_engine_cache
    make = optimize_with(EngineBackend(options, chosen), nopython=fullgraph, dynamic=dynamic)
    return cast("M", make(model))


class EngineBackend(GraphKeeper):
    """The backend of one model: keeps its settings, and sets Dynamo up in its calls.

    Args:
        settings: Options as the user gave them.
        registry: Where converters are looked up, None for the default, which models are copied and pickled without.

    Attributes:
        compiler_name: What PyTorch calls the backend in its messages.
        backend_ctx_ctor: By this name PyTorch finds what to enter around each call.
    """

    def __init__(self, settings: dict[str, Any], registry: ConverterRegistry | None) -> None:
        self.compiler_name = "torch_tensorrt"
        self.backend_ctx_ctor = _captures
        self._settings = settings
        self._registry = registry

    def __call__(self, gm: fx.GraphModule, sample_inputs: Sequence[Any]) -> Callable[..., Any]:
        """Compiles one graph; see `torch_tensorrt_backend`."""
        return torch_tensorrt_backend(gm, sample_inputs, options=self._settings, registry=self._registry)


def _captures() -> Captures:
    return CAPTURES


# How PyTorch captures for us -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def whole_capture() -> Iterator[None]:
    """Lets Dynamo and AOTAutograd capture recurrent layers whole, and convolutions without guards on their batch.

    What is set here is global. Dynamo holds its lock while it captures.
    """
    from trt_frontends.internals import dynamo_config  # costly to import

    with dynamo_config.patch(allow_rnn=True), keep_recurrent_layers(), _one_convolution():
        yield


class Captures(threading.local):
    """The calls of this thread for which PyTorch captures in this way. Enter it for the time of a call."""

    def __init__(self) -> None:
        self._calls = 0
        self._entered: contextlib.ExitStack | None = None

    def __enter__(self) -> None:
        from trt_frontends.internals import callback_handler

        if self.begin not in callback_handler.start_callbacks:  # `torch._dynamo.reset` forgets all of them
            callback_handler.register_start_callback(self.begin)
            callback_handler.register_end_callback(self.end)
        self._calls += 1

    def __exit__(self, *_: object) -> None:
        self._calls -= 1

    def begin(self, _: Any) -> None:
        """Called by Dynamo before it captures anything, whichever backend that is for."""
        if self._calls:
            entered = contextlib.ExitStack()
            entered.enter_context(whole_capture())
            self._entered = entered

    def end(self, _: Any) -> None:
        """Called by Dynamo when it has captured, or failed to."""
        entered, self._entered = self._entered, None
        if entered is not None:
            entered.close()


CAPTURES: Final = Captures()


class _Capturing(threading.local):
    """The capture of this thread; `handled` is the `id` of the error that the code around it handles, none of it."""

    handled = 0


_CAPTURING: Final = _Capturing()


@functools.cache
def _watch_captures() -> None:
    """Lets Dynamo tell of code that it leaves alone: other ranks may wait for this one, to compare a graph of it."""
    from trt_frontends.internals import register_hook_for_recompile_user_context

    register_hook_for_recompile_user_context(_begin_capture)


def _begin_capture() -> str:
    """Called by Dynamo before it captures code, for a word in its records; it may have done so too often."""
    from trt_frontends.internals import callback_handler, dynamo_config, exceeds_recompile_limit

    if _end_capture not in callback_handler.end_callbacks:  # `torch._dynamo.reset` forgets all of them
        callback_handler.register_end_callback(_end_capture)
    _CAPTURING.handled = id(sys.exc_info()[1])
    known = captured_frame()
    code = name_of_code(known.get("code"))
    is_over, limit = False, ""
    if {"cache_size", "compile_id", "one_graph"} <= known.keys():
        is_over, limit = exceeds_recompile_limit(known["cache_size"], known["compile_id"])
    if not is_over:
        capture_again(code)
    elif communicates(code):
        is_error = known["one_graph"] or dynamo_config.fail_on_recompile_limit_hit
        why = f"it was captured anew more often than torch._dynamo.config.{limit} says"
        leave_uncompiled(code, why, may_agree=not is_error)
    return ""


def _end_capture(_: Any) -> None:
    """Called by Dynamo when it has captured code, or is about to raise, or to run it without a compiler."""
    error = sys.exc_info()[1]
    if not isinstance(error, Exception) or id(error) == _CAPTURING.handled:
        return
    known = captured_frame()
    if is_ours(known.get("compiler_fn"), torch_tensorrt_backend):
        reason = next((line for line in str(error).splitlines() if line.strip()), "")
        leave_uncompiled(name_of_code(known.get("code")), f"{type(error).__name__}: {reason}", may_agree=False)


if "torch._dynamo" in sys.modules:  # else nothing is captured before the backend is asked
    _watch_captures()


@contextlib.contextmanager
def _one_convolution() -> Iterator[None]:
    """Takes the CPU libraries between which PyTorch chooses by the size of the batch out of the choice.

    The layout of the result, which is what the choice is asked for, is the same with and without them.
    """
    mkldnn, nnpack = uses_mkldnn(), uses_nnpack()

    def undo() -> None:
        use_mkldnn(mkldnn)
        use_nnpack(nnpack)

    with undone(undo):
        use_mkldnn(False)
        use_nnpack(False)
        yield
