"""Where the engine of a block comes from: the engine cache, or a build."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

import trt_core
from trt_converters import BuiltEngine, ConverterRegistry, build_block
from trt_converters.block_key import describe_block, digest_of, source_digest, tensor_digest
from trt_converters.build import TimingCacheFile, results_of
from trt_core import (
    CompilationSettings,
    Device,
    Provider,
    RefitError,
    current_provider,
    logger,
    provider_identity,
    provider_module,
)
from trt_core.errors import Uncacheable
from trt_core.exported_programs import model_name
from trt_core.refit_table import RefitTable, recipe_text, why_unwritable
from trt_core.settings import building_fields
from trt_core.sizes.expressions import Extent, extent_of, is_extent
from trt_core.sizes.ranges import ShapeRanges
from trt_core.weight_recipes import RECIPE, opened_weights, sources_of
from trt_frontends.custom_engine_cache import CustomCache
from trt_runtime import Binding, PlanHeader, TRTModule
from trt_runtime.engine_cache import EngineCache, EngineKey, default_directory, directory_is_configured
from trt_runtime.engine_file import PLAN
from trt_runtime.header import FORMAT_VERSION, CachePlace
from trt_runtime.plan_notes import allow_host_code
from trt_runtime.refit import refit_engine
from trt_runtime.sharded import in_time, said_in

_MOST_WAITS: Final = 2
"""Builds by others that a process waits for: one on its own host, and one on another that has a cache of its own."""

_TIMING_CACHE: Final = "timing.cache"


@dataclasses.dataclass(frozen=True)
class Interface:
    """What an engine takes and returns in the place of a block.

    Attributes:
        inputs, outputs: Metadata of the tensors, in order.
        returns_tuple: Whether it returns a tuple, or one tensor.
    """

    inputs: tuple[torch.Tensor, ...]
    outputs: tuple[torch.Tensor, ...]
    returns_tuple: bool

    @classmethod
    def of(cls, block: fx.GraphModule) -> Interface:
        """Returns that of a block, whose placeholders and results have metadata."""
        inputs = tuple(node.meta["val"] for node in block.graph.nodes if node.op == "placeholder")
        return cls(inputs, tuple(results_of(block)), _returns_tuple(block))

    def fits(self, header: PlanHeader) -> bool:
        """Whether an engine with this header takes and returns such tensors, as far as their sizes are known."""
        for bindings, metas in ((header.inputs, self.inputs), (header.outputs, self.outputs)):
            if len(bindings) != len(metas) or not all(map(_is_of, bindings, metas)):
                return False
        return True


def _is_of(binding: Binding, meta: torch.Tensor) -> bool:
    pairs = zip(binding.shape, meta.shape, strict=False)
    return (
        binding.dtype is meta.dtype
        and binding.rank == meta.dim()
        and all(left == right for left, right in pairs if isinstance(left, int) and isinstance(right, int))
    )


class EngineSource:
    """Gives blocks their engines.

    Args:
        settings: What to compile with; they say whether engines are cached, and where.
        registry: Where converters are looked up.
        graph: The lowered graph that the blocks are cut from; its attributes are the model's weights.
        custom_cache: The user's own cache, in the place of the engine cache.
        twins: What `build_block` takes.

    Attributes:
        cache: The engine cache; None when the settings ask for none.

    Raises:
        CacheError: The directory of the cache is not private, or cannot be used.
    """

    def __init__(
        self,
        settings: CompilationSettings,
        registry: ConverterRegistry,
        graph: fx.GraphModule,
        custom_cache: CustomCache | None = None,
        twins: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        self.settings = settings
        self._twins = twins
        self._weights = weights_of(graph) if settings.refit else {}
        self.registry = registry
        is_given = custom_cache is not None
        self._stores = _is_asked(settings.cache_built_engines, settings, is_given=is_given)
        self._reuses = _is_asked(settings.reuse_cached_engines, settings, is_given=is_given)
        self.cache: EngineCache | CustomCache | None = None
        if self._stores or self._reuses:
            self.cache = custom_cache or open_cache(settings)
        self._timings = self._timing_cache()

    def engine(self, block: fx.GraphModule, ranges: ShapeRanges, name: str) -> TRTModule:
        """Returns the engine of a block, from the cache where it is there.

        Args:
            block: The block.
            ranges: Ranges of its symbolic dimensions.
            name: What to call the engine.

        Raises:
            ConversionError: A node of the block cannot be converted.
            BuildError: The provider refuses the block.
        """
        key = self.key(block, ranges, name) if self.cache is not None else None
        return self._found_or_built(key, name, Interface.of(block), lambda: self._build(block, ranges, name, key))

    def _build(
        self, block: fx.GraphModule, ranges: ShapeRanges, name: str, key: EngineKey | None
    ) -> tuple[TRTModule, EngineKey | None]:
        """Builds the engine of a block; returns it with the key that it may be cached under."""
        built = build_block(
            block, self.settings, ranges, name, self.registry, self._timings, self._weights, self._twins
        )
        if built.refit is not None and key is not None:
            built = dataclasses.replace(
                built, refit=dataclasses.replace(built.refit, content=self._content(built.refit))
            )
        engine = engine_module(built, self.settings, returns_tuple=_returns_tuple(block))
        unknown = built.settings_read - set(building_fields())
        if unknown:
            logger.info("%s is not cached: a converter reads the settings %s", name, ", ".join(sorted(unknown)))
            key = None
        return engine, key

    def whole_engine(
        self,
        describe: Callable[[], Mapping[str, str]],
        build: Callable[[TimingCacheFile | None], TRTModule],
        name: str,
        interface: Interface,
    ) -> TRTModule:
        """Returns the engine of a network that no block stands for, from the cache where it is there.

        Args:
            describe: What the network is, by component; it may raise `Uncacheable`.
            build: Builds it, with a file of tactic timings.
            name: What to call the engine.
            interface: What it takes and returns.

        Raises:
            BuildError: The provider refuses the network.
        """
        key = None
        if self.cache is not None:
            try:
                key = EngineKey({**describe(), **describe_machine(self.settings)})
            except Uncacheable as error:
                logger.info("%s is not cached: %s", name, error)
        return self._found_or_built(key, name, interface, lambda: (build(self._timings), key))

    def _found_or_built(
        self,
        key: EngineKey | None,
        name: str,
        interface: Interface,
        build: Callable[[], tuple[TRTModule, EngineKey | None]],
    ) -> TRTModule:
        """Returns a cached engine, or builds and stores it, on one of the ranks that want it; the others find it."""
        found = self._find(key, name, interface)
        if found is not None:
            return found
        digest = key.digest if key is not None and self._stores and self._reuses else ""
        with _turn_to_build(digest, lambda: self._find(key, name, interface)) as found:
            if found is None:
                found, key = build()
                self._keep(key, found)
        return found

    def _keep(self, key: EngineKey | None, engine: TRTModule) -> None:
        """Puts an engine that was built into the cache, where it has a key and that is asked for."""
        header = engine.header
        logger.debug("built %s: %d layers in %.2f s", header.name, header.layer_count, header.build_seconds)
        if key is not None and self._stores:
            assert self.cache is not None
            self.cache.insert(key, header, engine.plan)

    def key(self, block: fx.GraphModule, ranges: ShapeRanges, name: str) -> EngineKey | None:
        """Returns the key of a block's engine; None when something that it depends on cannot be described."""
        try:
            return self._describe(block, ranges)
        except Uncacheable as error:
            logger.info("%s is not cached: %s", name, error)
            return None

    def _describe(self, block: fx.GraphModule, ranges: ShapeRanges) -> EngineKey:
        describe_constant = functools.partial(_describe_constant, refit=self.settings.refit)
        described = describe_block(block, self.settings, ranges, describe_constant, self.registry)
        return EngineKey({**described, **describe_machine(self.settings)})

    def why_miss(self, block: fx.GraphModule, ranges: ShapeRanges, name: str) -> tuple[str, ...]:
        """Says why a block's engine is not in the cache, one reason a line; nothing when it is there.

        Where no cache is in use, it is an empty one.
        """
        try:
            key = self._describe(block, ranges)
        except Uncacheable as error:
            return (f"engines of this block are never cached: {error}",)
        if isinstance(self.cache, CustomCache):
            return () if self.cache.find(key) is not None else ("the custom cache has nothing under its digest",)
        found = None if self.cache is None else self.cache.why_miss(key)
        if found is None:
            return ("the cache is empty",)
        nearest, differences = found
        return tuple(f"{difference} (in {nearest.digest[:12]})" for difference in differences)

    def _find(self, key: EngineKey | None, name: str, interface: Interface) -> TRTModule | None:
        if key is None or not self._reuses:
            return None
        assert self.cache is not None
        found = self.cache.find(key)
        if found is None:
            logger.debug("%s is not in the engine cache", name)
            return None
        header, plan = found
        logger.debug("%s comes from the engine cache, built in %.2f s then", name, header.build_seconds)
        if not interface.fits(header):
            logger.warning("%s is built anew: the engine cache has one in its place with other inputs or outputs", name)
            return None
        header = dataclasses.replace(header, name=name, returns_tuple=interface.returns_tuple)
        if header.refit is not None and header.refit.sources:
            content = self._content(header.refit)
            if content != header.refit.content:
                try:
                    header, plan = refit_engine(header, plan, self._weights, content=content)
                except RefitError as error:
                    logger.info("%s is built although it is cached with other weights: %s", name, error)
                    return None
        allow_host_code(plan)  # the cache is private to the user, whose processes wrote it
        return TRTModule(header, plan)

    def _content(self, table: RefitTable) -> str:
        """Digest of the weights of the model that an engine for refitting depends on."""
        digests = [f"{source.name} {tensor_digest(self._weights[source.name])}" for source in table.sources]
        return digest_of("\n".join(sorted(digests)).encode())

    def _timing_cache(self) -> TimingCacheFile | None:
        if self.settings.timing_cache_path:
            return TimingCacheFile(self.settings.timing_cache_path)
        return TimingCacheFile(self.cache.directory / _TIMING_CACHE) if isinstance(self.cache, EngineCache) else None


@contextlib.contextmanager
def _turn_to_build(digest: str, find: Callable[[], TRTModule | None]) -> Iterator[TRTModule | None]:
    """Lets one process of a job build an engine, while the others that want the same one wait for it.

    Who asks first builds. Nobody waits while others wait for him, so ranks may want other engines, in another order.

    Args:
        digest: Of the engine's key; empty for an engine that no other process finds in the cache.
        find: Looks for it in the cache.

    Yields:
        The engine that another process has built; None where this one is to build it.
    """
    import torch.distributed as dist

    if not digest or not dist.is_available() or not dist.is_initialized() or dist.get_backend() == "fake":
        yield None
        return
    from trt_runtime.internals import default_store

    store = default_store()
    place, found = _take_turn(store, f"trt/build/{digest}", find)
    told = "failed"
    try:
        yield found
        told = "built"
    finally:
        if place:
            with contextlib.suppress(RuntimeError, TimeoutError):
                in_time(store, functools.partial(store.set, f"{place}/done", told))


def _take_turn(store: Any, place: str, find: Callable[[], TRTModule | None]) -> tuple[str, TRTModule | None]:
    """Returns where to say that an engine is built, empty for nowhere, and the engine, where another process built it.

    An engine that was built once may be gone from the cache, or in that of another host: then it is the turn of whoever
    asks first after that.
    """
    waited = 0
    for turn in itertools.count():
        asked, done = f"{place}/{turn}/asked", f"{place}/{turn}/done"
        try:
            if in_time(store, functools.partial(store.add, asked, 1)) == 1:
                return f"{place}/{turn}", None
            waited += not in_time(store, functools.partial(store.check, [done]))
            told = in_time(store, functools.partial(said_in, store, done))
        except (RuntimeError, TimeoutError):  # the store is gone, or whoever builds
            return "", find()
        found = find()
        if found is not None or told == b"failed" or waited == _MOST_WAITS:
            return "", found
    raise AssertionError("turns have no end")


def weights_of(graph: fx.GraphModule) -> dict[str, torch.Tensor]:
    """Returns the parameters and buffers of a lowered graph by name; those that nothing reads any more, too."""
    named = (graph.named_parameters(remove_duplicate=False), graph.named_buffers(remove_duplicate=False))
    found = opened_weights({name: value for items in named for name, value in items})
    return found | {own: value for name, value in found.items() if (own := model_name(name)) != name}


def open_cache(settings: CompilationSettings) -> EngineCache:
    """Opens the engine cache that settings name.

    Raises:
        CacheError: The directory is not private, or cannot be used.
    """
    return EngineCache(settings.engine_cache_dir or default_directory(), settings.engine_cache_size)


def describe_machine(settings: CompilationSettings) -> dict[str, str]:
    """Returns what an engine depends on besides its block: settings, provider, releases and machine, by component."""
    portable = current_provider() is Provider.PORTABLE
    described = {f"settings.{name}": text for name, text in settings.for_building().items() if name != "device"}
    described["device"] = _describe_device(settings.device)
    described["format"] = f"{FORMAT_VERSION}.{PLAN.version}"
    described["provider"] = provider_identity()
    described["stack"] = f"{trt_core.__version__} {_sources_of(trt_core.__file__)}"
    described["torch"] = str(torch.__version__)
    described["torch.default_dtype"] = str(torch.get_default_dtype())
    described["torch.switches"] = _describe_switches()
    if portable:
        described["provider.sources"] = _sources_of(str(provider_module().__file__))
    if portable and settings.device.is_cpu:
        from trt_portable.libraries.library_program import identities  # only where there are such

        described["provider.libraries"] = ", ".join(identities())
    if portable or settings.device.is_cpu:
        described["host"] = f"{platform.system()} {platform.machine()} {torch.backends.cpu.get_cpu_capability()}"
    return described


def _is_asked(choice: bool | None, settings: CompilationSettings, *, is_given: bool) -> bool:
    """Naming a directory asks for caching, unless a setting says otherwise."""
    asked = is_given or bool(settings.engine_cache_dir) or directory_is_configured()
    return asked if choice is None else choice


def _describe_switches() -> str:
    """What changes numbers that are folded into an engine, or which kernels are found fastest, process-wide."""
    backends: Any = torch.backends  # PyTorch tells type checkers nothing of precisions
    everywhere = backends.fp32_precision
    switches = {
        "cuda.matmul.precision": _first_set(backends.cuda.matmul.fp32_precision, everywhere),
        "cudnn.conv.precision": _first_set(
            backends.cudnn.conv.fp32_precision, backends.cudnn.fp32_precision, everywhere
        ),
        "mkldnn.matmul.precision": _first_set(
            backends.mkldnn.matmul.fp32_precision, backends.mkldnn.fp32_precision, everywhere
        ),
        "mkldnn.conv.precision": _first_set(
            backends.mkldnn.conv.fp32_precision, backends.mkldnn.fp32_precision, everywhere
        ),
        "matmul.allow_fp16_reduced_precision_reduction": backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
        "matmul.allow_bf16_reduced_precision_reduction": backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "cudnn.enabled": backends.cudnn.enabled,
        "cudnn.deterministic": backends.cudnn.deterministic,
        "mkldnn.enabled": backends.mkldnn.enabled,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "NVIDIA_TF32_OVERRIDE": os.environ.get("NVIDIA_TF32_OVERRIDE", ""),
    }
    return json.dumps(switches, sort_keys=True)


def _first_set(*precisions: str) -> str:
    """The precision of float32 that holds: the nearest that says one."""
    return next((precision for precision in precisions if precision != "none"), "ieee")


def _describe_device(device: Device) -> str:
    if device.is_cpu:
        return "cpu"
    major, minor = torch.cuda.get_device_capability(device.torch_device)
    return f"cuda {major}.{minor} {torch.cuda.get_device_name(device.torch_device)}"


def _describe_constant(node: fx.Node, value: torch.Tensor, *, refit: bool) -> str:
    """Engines for refitting depend on how their weights follow from the model's, all others on the numbers."""
    recipe = node.meta.get(RECIPE) if refit else None
    if recipe is None or not sources_of(recipe) or why_unwritable(recipe):
        return tensor_digest(value)
    return json.dumps(recipe_text(recipe))


def _sources_of(file: str) -> str:
    return source_digest(str(Path(file).parent))


# The module that runs an engine --------------------------------------------------------------------------------------


def engine_module(built: BuiltEngine, settings: CompilationSettings, *, returns_tuple: bool) -> TRTModule:
    """Returns the module that runs an engine in place of its block.

    Args:
        built: The engine.
        settings: What it was compiled with.
        returns_tuple: Whether it returns a tuple, or one tensor.
    """
    # the tensor shares the provider's memory and keeps it alive: a plan holds the weights, so no copy is made
    plan = torch.frombuffer(memoryview(built.plan), dtype=torch.uint8)
    namer = _SymbolNamer(built.inputs)
    inputs = [
        Binding(name, meta.dtype, namer.shape(meta)) for name, meta in zip(built.input_names, built.inputs, strict=True)
    ]
    outputs = [
        Binding(name, meta.dtype, namer.shape(meta))
        for name, meta in zip(built.output_names, built.outputs, strict=True)
    ]
    header = PlanHeader.describe(
        plan,
        inputs=inputs,
        outputs=outputs,
        device=settings.device.torch_device,
        symbols=namer.symbols,
        profiles=[[bounds[name] for name in built.input_names] for bounds in built.profiles],
        returns_tuple=returns_tuple,
        name=built.name,
        settings_digest=settings.digest(),
        layer_count=built.layers,
        build_seconds=built.build_seconds,
        version_compatible=settings.version_compatible,
        hardware_compatible=settings.hardware_compatible,
        refit=built.refit,
        updates=[(built.input_names.index(given), made) for given, made in built.updates.items()],
        places=_places(built, namer) if settings.device.torch_device.type == "cpu" else (),
        process_group=built.process_group,
        plugins=built.plugins,
    )
    return TRTModule(header, plan)


def _places(built: BuiltEngine, namer: _SymbolNamer) -> list[CachePlace]:
    """Where updates begin, for engines whose inputs can be looked at before they run."""
    found = []
    for cache, place in built.places.items():
        rows = namer.extent(place.rows)
        if rows is not None:
            at = built.input_names.index(cache), built.input_names.index(place.source)
            found.append(CachePlace(*at, place.offset, rows, place.wraps, place.axis, place.by_batch))
    return found


class _SymbolNamer:
    """Names symbolic extents so that each can be read from a dimension of an input.

    A dimension that is an expression, `2*s0`, is a symbol of its own where `s0` itself is no input's dimension.
    """

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        self.symbols: dict[str, tuple[int, int]] = {}
        self._names: dict[str, str] = {}
        places = [(index, axis, meta.shape[axis]) for index, meta in enumerate(inputs) for axis in range(meta.dim())]
        # plain symbols first: an expression of symbols that inputs have needs no name of its own
        for plain in (True, False):
            for index, axis, extent in places:
                found = extent_of(extent)
                if isinstance(found, int) or isinstance(found, str) is not plain:
                    continue
                name = found if isinstance(found, str) else f"d{index}_{axis}"
                if self._names.setdefault(str(extent) if found is None else str(found), name) == name:
                    self.symbols.setdefault(name, (index, axis))

    def shape(self, meta: torch.Tensor) -> tuple[Extent, ...]:
        """Returns a shape in terms of the symbols; None for extents that no input determines, or no plan can say."""
        return tuple(map(self.extent, meta.shape))

    def extent(self, extent: int | torch.SymInt) -> Extent:
        """Returns one extent, as `shape` does."""
        found = self._rename(_expression(extent))
        return found if is_extent(found) else None

    def _rename(self, extent: Extent) -> Extent:
        if isinstance(extent, int):
            return extent
        name = self._names.get(str(extent))
        if name is not None:
            return name
        if not isinstance(extent, list):
            return None
        operands = [self._rename(operand) for operand in extent[1:]]
        return None if any(operand is None for operand in operands) else [extent[0], *operands]


def _expression(extent: int | torch.SymInt) -> Extent:
    found = extent_of(extent)
    return str(extent) if found is None else found


def _returns_tuple(block: fx.GraphModule) -> bool:
    return isinstance(block.graph.output_node().args[0], (tuple, list))
