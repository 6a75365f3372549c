"""Live engines: deserialized once per content and device, and gone with the plans that they came from."""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name, from_trt
from trt_core.errors import ExecutionError, InputError, PlanError
from trt_core.forked_lock import ForkedLock
from trt_core.log import forget_errors, provider_logger, take_errors
from trt_core.provider import Provider, current_provider, device_scope, provider_module
from trt_core.remembered import Remembered
from trt_core.sizes.expressions import Extent
from trt_core.wording import printable
from trt_runtime.bindings import Binding, format_shape
from trt_runtime.compatibility import check_compatible
from trt_runtime.context_pool import ContextPool
from trt_runtime.direct_call import leave_to_python
from trt_runtime.engine_context import CallShapes, EngineContext, TensorCalls
from trt_runtime.engine_file import check_payload
from trt_runtime.header import PlanHeader, parse_header
from trt_runtime.input_check import check_inputs, device_of
from trt_runtime.internals import current_device, current_stream
from trt_runtime.plan_notes import Bounds, bounds_of, content_version, is_host_code_allowed, is_vouched, plan_bytes
from trt_runtime.profile_choice import ProfileChoice


class LoadedEngine:
    """An engine that is ready to run on one device, with a context for every call that runs at the same time.

    Args:
        header: Header of the engine.
        plan: (bytes,), uint8, on the CPU; used in place.
        device: The device to run on.
        host_code_allowed: Whether compiled code in the plan may run, wherever the plan comes from.
        bounds: What its calls may use; None for all.

    Attributes:
        header, device: As given.
        native: The provider's `ICudaEngine`.
        unused_inputs: Names of inputs that no output depends on and that the provider dropped from the engine.
        dynamic_inputs: Indices of inputs whose shape must be set.
        host_inputs: Indices of inputs that are read on the host.
        host_outputs: Indices of outputs that are written on the host.
        is_tensorrt: Whether TensorRT itself runs it.
        input_dtypes: The types of its inputs.
        known_shapes: Calls that were accepted, by the shapes of their inputs.
        contexts: Its execution contexts, those of the first optimization profile.
        weight_budget: How many bytes of weights stay on the GPU.
        allocates_ahead: Whether the memory of the next call's outputs is allocated while a call runs.

    Raises:
        PlanError: The plan is not the one of the header, or the provider cannot load it.
    """

    def __init__(
        self,
        header: PlanHeader,
        plan: torch.Tensor,
        device: torch.device,
        *,
        host_code_allowed: bool = False,
        bounds: Bounds | None = None,
    ) -> None:
        check_payload(header, plan)
        check_compatible(header, device=device, warns=False)  # it was said where the plan was read
        self.header = header
        self.device = device
        self._index = device.index if device.type == "cuda" else None
        self.plan = plan.detach()  # the memory of the plan, without keeping alive the tensor that is watched
        self.is_tensorrt = current_provider() is Provider.TENSORRT
        with device_scope(device):
            # version-compatible plans of TensorRT carry their own lean runtime
            allowed = host_code_allowed or (self.is_tensorrt and header.version_compatible)
            is_whole = is_vouched(plan) or header.surely_describes(plan)
            self._runtime = new_runtime(provider_module(), allowed, is_whole, bounds)
            self.native = _deserialized(self._runtime, self.plan, header.title)
        self.unused_inputs = self._dropped_inputs()
        self._check_bindings()
        self.dynamic_inputs = tuple(
            index
            for index, binding in enumerate(header.inputs)
            if binding.name not in self.unused_inputs
            and any(extent < 0 for extent in self.native.get_tensor_shape(binding.name))
        )
        self.host_inputs = self._on_host(header.inputs)
        self.host_outputs = self._on_host(header.outputs)
        self.known_shapes: Remembered[tuple[torch.Size, ...], CallShapes] = Remembered()
        self.input_dtypes = [binding.dtype for binding in header.inputs]
        self._watcher: Any = None
        self.allocates_ahead = False
        self.contexts = ContextPool()
        self._profiles = ProfileChoice(header.profiles) if header.profiles else None
        self._pools = (self.contexts, *(ContextPool(index) for index in range(1, len(header.profiles))))
        self.weight_budget = WeightBudget(
            self.native, header.title, device, is_tensorrt=self.is_tensorrt, pools=self._pools
        )
        self._tensor_calls = self._take_tensors()

    def run(self, inputs: list[torch.Tensor], outputs: Sequence[torch.Tensor] | None = None) -> list[torch.Tensor]:
        """Runs the engine on the current stream of its device.

        Args:
            inputs: Tensors in the order of the header.
            outputs: Tensors to write to, in the order of the header; by default new ones.

        Returns:
            Outputs in the order of the header.

        Raises:
            InputError: A tensor does not fit.
            ExecutionError: The provider failed.
        """
        if self._index is not None:
            return self._run_on_cuda(inputs, outputs, self._index)
        if self._tensor_calls is not None and outputs is None and not self.allocates_ahead and self._watcher is None:
            made = self._tensor_calls.run(inputs)
            if made is not None:
                return made
        pool = self.contexts if self._profiles is None else self._pool_for(inputs)
        context = pool.take(0) or self._new_context(pool.profile)
        try:
            placed = context.run(inputs, 0, outputs)
            if self.allocates_ahead:
                context.allocate_ahead()
            return placed
        finally:
            pool.give_back(context)

    def _run_on_cuda(
        self, inputs: list[torch.Tensor], outputs: Sequence[torch.Tensor] | None, index: int
    ) -> list[torch.Tensor]:
        if current_device() != index:
            with torch.cuda.device(index):
                return self._run_on_cuda(inputs, outputs, index)
        pool = self.contexts if self._profiles is None else self._pool_for(inputs)
        stream = current_stream(index)
        ahead = self.allocates_ahead
        if stream and torch.cuda.is_current_stream_capturing():  # never on the default stream
            context = pool.take_for_capture(stream) or self._new_context(pool.profile)
            give_back = pool.keep_for_graph
            context.forget_ahead()  # a graph's outputs are of its own memory, and live as long
            ahead = False
        else:
            context = pool.take(stream) or self._new_context(pool.profile)
            give_back = pool.give_back
        try:
            placed = context.run(inputs, stream, outputs)
            if ahead:
                context.allocate_ahead()
            return placed
        finally:
            give_back(context)

    def _take_tensors(self) -> TensorCalls | None:
        """Calls without contexts; None where the provider has none, or the header asks for more than it knows of."""
        make = getattr(self.native, "create_tensor_runner", None)
        if make is None or self.unused_inputs or self.header.updates or self.header.process_group is not None:
            return None
        runner = make()
        return None if runner is None else TensorCalls(self, runner)

    def _pool_for(self, inputs: list[torch.Tensor]) -> ContextPool:
        """The contexts of the profile for the shapes of a call: a context keeps the profile that it was made with."""
        assert self._profiles is not None
        try:
            shapes = tuple([value.shape for value in inputs])
        except RuntimeError:  # nested tensors have none
            check_inputs(self.header, inputs, self.device, self.host_inputs)
            raise
        index = self._profiles.known(shapes)
        if index is None:
            check_inputs(self.header, inputs, self.device, self.host_inputs)
            index = self._profiles.choose(shapes)
            assert index is not None  # inputs that pass the check fit a profile
        return self._pools[index]

    def _new_context(self, profile: int) -> EngineContext:
        with device_scope(self.device):
            self.weight_budget.settle()
            context = EngineContext(self, profile)
            if self._watcher is not None:
                context.watch(self._watcher)
            return context

    def watch(self, watcher: Any) -> None:
        """Has the layers of this engine timed, from the next call on.

        Args:
            watcher: A `trt.IProfiler`; None for no more.
        """
        self._watcher = watcher
        for pool in self._pools:
            pool.clear()  # idle contexts, which time nothing, or go on timing

    def allocate_ahead(self, enable: bool) -> None:
        """Allocates the outputs of the next call while a call runs, from now on, or no more.

        Args:
            enable: False frees what was allocated.
        """
        self.allocates_ahead = enable
        if not enable:
            for pool in self._pools:
                pool.forget_ahead()

    def keep_contexts(self, count: int) -> None:
        """Keeps so many idle execution contexts from now on, for each optimization profile.

        Args:
            count: 0 has the memory that the engine computes in freed after each call, once the device is done.
        """
        for pool in self._pools:
            pool.most_idle = count
            if len(pool) > count:
                pool.clear()

    def __repr__(self) -> str:
        return printable(f"<{type(self).__name__}: {self.header.title} on {self.device}>")

    def _dropped_inputs(self) -> frozenset[str]:
        absent = provider_module().TensorIOMode.NONE
        names = (binding.name for binding in self.header.inputs)
        missing = frozenset(name for name in names if self.native.get_tensor_mode(name) == absent)
        expected = len(self.header.inputs) + len(self.header.outputs) + len(self.header.updates)
        # more bindings than that: the engine has inputs that the header does not know, and none was dropped
        return missing if self.native.num_io_tensors == expected - len(missing) else frozenset()

    def _on_host(self, bindings: Sequence[Binding]) -> tuple[int, ...]:
        host = provider_module().TensorLocation.HOST
        return tuple(
            index
            for index, binding in enumerate(bindings)
            if binding.name not in self.unused_inputs and self.native.get_tensor_location(binding.name) == host
        )

    def _check_bindings(self) -> None:
        modes = provider_module().TensorIOMode
        header = self.header
        expected = [(binding, modes.INPUT) for binding in header.inputs if binding.name not in self.unused_inputs]
        expected += [(binding, modes.OUTPUT) for binding in header.outputs]
        for binding, mode in expected:
            if self.native.get_tensor_mode(binding.name) != mode:
                raise PlanError(f"{header.title} has no {mode.name.lower()} {binding.name!r}, as its header says")
            dtype = from_trt(self.native.get_tensor_dtype(binding.name))
            if dtype != binding.dtype:
                raise PlanError(
                    f"{binding.name!r} of {header.title} has type {dtype_name(dtype)}, its header says "
                    f"{dtype_name(binding.dtype)}"
                )
            self._check_extents(binding, tuple(self.native.get_tensor_shape(binding.name)))
            self._check_format(binding.name)
        profiles = self.native.num_optimization_profiles
        if profiles != max(len(header.profiles), 1):
            raise PlanError(f"{header.title} has {profiles} optimization profiles, not as many as its header says")
        for index, name in header.updates:
            if self.native.get_aliased_input_tensor(name) != header.inputs[index].name:
                raise PlanError(f"{name!r} of {header.title} is no update of {header.inputs[index].name!r}")
        count = len(expected) + len(header.updates)
        if self.native.num_io_tensors != count:
            raise PlanError(f"{header.title} has {self.native.num_io_tensors} bindings, its header says {count}")

    def _check_format(self, name: str) -> None:
        """Tensors of calls are given as they lie: memory in other formats takes more than they have."""
        formats = [self.native.get_tensor_format(name, index) for index in range(self.native.num_optimization_profiles)]
        linear = provider_module().TensorFormat.LINEAR
        for kind in formats:
            if kind != linear:
                raise PlanError(
                    f"{name!r} of {self.header.title} lies in memory as {kind.name}, and tensors are LINEAR",
                    hint="build the engine with LINEAR among the allowed formats of its inputs and outputs",
                )

    def _check_extents(self, binding: Binding, shape: tuple[int, ...]) -> None:
        """What the engine fixes, the header fixes: else a tensor that fits the header could be too small for it.

        Outputs that the header computes from inputs may be fixed in the engine: each call compares them.
        """
        is_input = any(binding is item for item in self.header.inputs)
        if any(binding is self.header.inputs[index] for index, _ in self.header.updates) and _is_same_memory(
            shape, binding.shape
        ):
            return
        fits = len(shape) == binding.rank and all(
            known < 0 or known == extent or not (is_input or isinstance(extent, int))
            for known, extent in zip(shape, binding.shape, strict=True)
        )
        if not fits:
            raise PlanError(
                f"{binding.name!r} of {self.header.title} has shape {shape}, its header says "
                f"{format_shape(binding.shape)}",
                hint="compile the model again: plan and header are not of one engine",
            )


def _is_same_memory(shape: Sequence[int], extents: Sequence[Extent | None]) -> bool:
    """Whether a cache of one constant shape is one of another, which engines have that write along other axes."""
    known = [extent for extent in extents if isinstance(extent, int)]
    return len(known) == len(extents) and min(shape, default=0) >= 0 and math.prod(shape) == math.prod(known)


def described_engine(
    plan: torch.Tensor,
    inputs: Sequence[str] | None,
    outputs: Sequence[str] | None,
    device: torch.device,
    name: str = "",
) -> PlanHeader:
    """Returns the header of a serialized engine, from what the engine itself says of its bindings.

    Args:
        plan: (bytes,), uint8, on the CPU.
        inputs, outputs: Names of its bindings, in the order of a call and of its result; None for the engine's order.
        device: Where it runs.
        name: What to call it.

    Raises:
        PlanError: The provider cannot load it, or it has other bindings.
    """
    trt = provider_module()
    title = f"engine {name!r}" if name else "the engine"
    with device_scope(device):
        native = _deserialized(new_runtime(trt, is_host_code_allowed(plan)), plan, title)
        names = [native.get_tensor_name(place) for place in range(native.num_io_tensors)]
        modes = {each: native.get_tensor_mode(each) for each in names}
        updates = {each: updated for each in names if (updated := native.get_aliased_input_tensor(each))}
        taken = [each for each in names if modes[each] == trt.TensorIOMode.INPUT]
        made = [each for each in names if modes[each] == trt.TensorIOMode.OUTPUT and each not in updates]
        taken = _in_order(taken, inputs, "inputs", title)
        made = _in_order(made, outputs, "outputs", title)
        bindings = {each: _binding_of(native, each, taken) for each in (*taken, *made)}
        profiles = [
            [_ranges_of(native, each, profile) for each in taken] for profile in range(native.num_optimization_profiles)
        ]
        layers = native.num_layers
    return PlanHeader.describe(
        plan,
        inputs=[bindings[each] for each in taken],
        outputs=[bindings[each] for each in made],
        device=device,
        profiles=profiles,
        symbols={
            extent: (place, axis)
            for place, each in enumerate(taken)
            for axis, extent in enumerate(bindings[each].shape)
            if isinstance(extent, str)
        },
        is_own=False,
        name=name,
        layer_count=layers,
        updates=[(taken.index(updated), each) for each, updated in updates.items()],
    )


def _in_order(known: list[str], chosen: Sequence[str] | None, what: str, title: str) -> list[str]:
    """The names of bindings as a caller orders them.

    Raises:
        PlanError: These are other names.
    """
    if chosen is None or sorted(chosen) == sorted(known):
        return list(known if chosen is None else chosen)
    raise PlanError(
        f"{title} has no {what} {', '.join(map(repr, chosen)) or 'of no name'}",
        why=f"its {what} are {', '.join(map(repr, known)) or 'none'}",
        hint="give each of these names once, in the order of the call",
    )


def _binding_of(native: Any, name: str, inputs: Sequence[str]) -> Binding:
    """A binding as the engine knows it: sizes that vary are a symbol each in inputs, and not known in outputs."""
    place = inputs.index(name) if name in inputs else None
    extents = [
        extent if extent >= 0 else None if place is None else f"d{place}_{axis}"
        for axis, extent in enumerate(native.get_tensor_shape(name))
    ]
    return Binding(name, from_trt(native.get_tensor_dtype(name)), tuple(extents))


def _ranges_of(native: Any, name: str, profile: int) -> list[tuple[int, int, int]]:
    fixed = tuple(native.get_tensor_shape(name))
    low, best, high = native.get_tensor_profile_shape(name, profile)
    return [
        (extent,) * 3 if extent >= 0 else bounds
        for extent, bounds in zip(fixed, zip(low, best, high, strict=True), strict=True)
    ]


class _Entry:
    """What is known about one plan tensor."""

    __slots__ = ("engines", "header", "reference", "version")

    def __init__(self, reference: weakref.ref[torch.Tensor], header: str | PlanHeader, version: int) -> None:
        self.reference = reference
        self.header = header
        self.version = version
        self.engines: dict[torch.device, LoadedEngine] = {}


class EngineStore:
    """Engines of this process, found by content.

    An engine is found by the digest of its plan, its bindings and its device; that the plan has that digest is
    verified before it is loaded. So equal plans share one engine, whatever their blocks are called. An engine lives
    as long as one of the tensors that it was asked for with. All methods may be called from several threads.
    """

    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}
        self._live: weakref.WeakValueDictionary[tuple[Any, ...], LoadedEngine]
        self._live = weakref.WeakValueDictionary()
        self._lock = ForkedLock()

    def __len__(self) -> int:
        return len(self._live)

    def run(
        self,
        inputs: list[torch.Tensor],
        plan: torch.Tensor,
        header: str | PlanHeader,
        outputs: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Runs the engine of a plan, loading it when it is not loaded yet.

        Args:
            inputs: Tensors in the order of the header.
            plan: (bytes,), uint8: the serialized engine.
            header: Header of the engine, or its JSON text.
            outputs: Tensors to write to, in the order of the header; by default new ones.

        Returns:
            Outputs in the order of the header.

        Raises:
            InputError: A tensor does not fit.
            PlanError: The plan cannot run here.
            ExecutionError: The provider failed.
        """
        entry = self._entries.get(id(plan))
        if (
            entry is not None
            and inputs
            and entry.reference() is plan
            and entry.version == (0 if plan.is_inference() else plan._version)  # `content_version`, which costs a call
            and (entry.header is header or entry.header == header)
        ):
            engine = entry.engines.get(inputs[0].device)
            if engine is not None:
                return engine.run(inputs, outputs)
        described = _described(header)
        device = device_of(described, inputs)
        if device.type == "meta":
            raise InputError(
                f"the inputs of {described.title} lie on the meta device, where tensors have no values",
                hint=f"give tensors on {described.device}",
            )
        return self.engine_for(plan, header, device).run(inputs, outputs)

    def engine_for(self, plan: torch.Tensor, header: str | PlanHeader, device: torch.device) -> LoadedEngine:
        """Returns the engine of a plan, loading it when it is not loaded yet; see `run`.

        Raises:
            PlanError: The plan is not the one that the header describes, or cannot run here.
        """
        with self._lock:
            entry = self._entry(plan, header)
            engine = entry.engines.get(device)
            if engine is None:
                engine = self._load(plan, header, device)
                entry.engines[device] = engine
            return engine

    def clear(self) -> None:
        """Forgets every engine; those in use end when their calls end. Engines load again when needed."""
        with self._lock:
            self._entries.clear()

    def _entry(self, plan: torch.Tensor, header: str | PlanHeader) -> _Entry:
        key = id(plan)
        version = content_version(plan)
        entry = self._entries.get(key)
        if (
            entry is not None
            and entry.reference() is plan
            and entry.version == version
            and (entry.header is header or _text(entry.header) == _text(header))
        ):
            return entry
        entry = _Entry(weakref.ref(plan, functools.partial(self._forget, key)), header, version)
        self._entries[key] = entry
        return entry

    def _load(self, plan: torch.Tensor, header: str | PlanHeader, device: torch.device) -> LoadedEngine:
        described = _described(header)
        on_host = plan if plan.device.type == "cpu" else plan.cpu()
        check_payload(described, on_host)
        # a plan that was vouched for is shared with nothing: that it has the digest of its header was not verified
        memory = on_host.data_ptr() if is_vouched(on_host) else 0
        allowed = is_host_code_allowed(plan)
        bounds = bounds_of(plan)
        identity = described.bindings_identity if memory else described.identity
        key = (identity, device, memory, allowed, bounds)
        engine = self._live.get(key)
        if engine is None:
            self._live[key] = engine = LoadedEngine(
                described, on_host, device, host_code_allowed=allowed, bounds=bounds
            )
        return engine

    def _forget(self, key: int, reference: weakref.ref[torch.Tensor]) -> None:
        entry = self._entries.get(key)
        if entry is not None and entry.reference is reference:
            self._entries.pop(key, None)


def _described(header: str | PlanHeader) -> PlanHeader:
    return parse_header(header) if isinstance(header, str) else header


def _text(header: str | PlanHeader) -> str:
    return header if isinstance(header, str) else header.text


for _running in (EngineStore.run, LoadedEngine.run):
    leave_to_python(_running)

ENGINES = EngineStore()
"""The engines of this process."""


def new_runtime(
    trt: ModuleType, host_code_allowed: bool, plans_are_verified: bool = False, bounds: Bounds | None = None
) -> Any:
    """Returns a runtime of the provider: the same one for all plans without bounds, since these hold on to their file.

    Args:
        trt: The provider's module.
        host_code_allowed: Whether compiled code in plans may run.
        plans_are_verified: Whether plans were found undamaged already; the portable provider then hashes none.
        bounds: What calls may use, where the provider keeps an account; None for all.

    Raises:
        PlanError: The provider cannot make one.
    """
    if bounds is None or not hasattr(trt.Runtime, "call_limits"):
        return _shared_runtime(trt, host_code_allowed, plans_are_verified)
    runtime = _made_runtime(trt, host_code_allowed, plans_are_verified)
    runtime.call_limits = bounds.limits
    runtime.is_exempt = bounds.is_exempt
    runtime.unused_kernels_are_said = bounds.is_said
    runtime.may_reach = bounds.may_reach
    return runtime


def _deserialized(runtime: Any, plan: torch.Tensor, title: str) -> Any:
    """Returns the provider's engine of a plan.

    Raises:
        PlanError: The provider cannot load it.
    """
    forget_errors()
    native = runtime.deserialize_cuda_engine(plan_bytes(plan))
    if native is None:
        why = take_errors()
        hint = "compile the model again with the versions that run it"
        if "creator" in why.lower():  # a plugin's
            hint = "register the plugin before; load(path, operators=[LIBRARY]) does it for a library that offers it"
        raise PlanError(f"{title} cannot be loaded", why=why, hint=hint)
    return native


def _made_runtime(trt: ModuleType, host_code_allowed: bool, plans_are_verified: bool) -> Any:
    try:
        runtime = trt.Runtime(provider_logger())
    except TypeError as error:  # what the bindings make of a runtime that TensorRT could not create
        raise PlanError(
            "engines cannot be loaded: there is no runtime",
            why=take_errors() or str(error),
            hint="check that this TensorRT release supports the GPU and its driver",
        ) from error
    if host_code_allowed:
        runtime.engine_host_code_allowed = True
    if plans_are_verified and hasattr(runtime, "plans_are_verified"):
        runtime.plans_are_verified = True
    return runtime


@functools.lru_cache(maxsize=4)
def _shared_runtime(trt: ModuleType, host_code_allowed: bool, plans_are_verified: bool) -> Any:
    runtime = _made_runtime(trt, host_code_allowed, plans_are_verified)
    if hasattr(runtime, "call_limits"):
        runtime.call_limits = None
    return runtime


_MOST_TOLD: Final = 2**31
"""TensorRT's bindings cut its own proposal to 32 bits: for engines with more weights it is worth nothing."""
_SPARED: Final = 0.1
"""The part of free memory that is left alone."""


class WeightBudget:
    """The budget of one engine; it can change while no execution context lives.

    Args:
        native: The provider's engine.
        title: What messages call it.
        device: Where it runs.
        is_tensorrt: Whether TensorRT itself runs it.
        pools: Its execution contexts.
    """

    def __init__(
        self, native: Any, title: str, device: torch.device, *, is_tensorrt: bool, pools: Sequence[ContextPool]
    ) -> None:
        self._native = native
        self._title = title
        self._device = device
        self._is_tensorrt = is_tensorrt
        self._pools = pools
        self._is_settled = False

    @property
    def streamable(self) -> int:
        """Bytes of weights that need not lie on the GPU; 0 unless the engine was built for it."""
        return int(self._native.streamable_weights_size)

    @property
    def resident(self) -> int:
        """Bytes of those that do lie there; until somebody sets it, as many as the GPU has memory for."""
        self.settle()
        return int(self._native.weight_streaming_budget_v2)

    @resident.setter
    def resident(self, budget: int) -> None:
        self._is_settled = True
        self._set(budget)

    def settle(self) -> None:
        """Chooses a budget where nobody has: before the first context, when engines that run have taken their memory.

        Raises:
            ExecutionError: The provider refuses the budget.
        """
        if not self._is_settled:
            self._is_settled = True
            if self.streamable:
                self._set(self.proposed())

    def _set(self, budget: int) -> None:
        """Sets the budget, which only an engine without contexts allows.

        Raises:
            ExecutionError: The engine runs just now, or a CUDA graph holds one of its contexts.
        """
        wanted = min(budget, self.streamable)
        if wanted == self._native.weight_streaming_budget_v2:
            return
        for pool in self._pools:
            pool.clear()
        forget_errors()
        self._native.weight_streaming_budget_v2 = wanted
        if self._native.weight_streaming_budget_v2 != wanted:  # TensorRT's setter says nothing
            raise ExecutionError(
                f"{self._title} refuses to keep {wanted} bytes of weights on the GPU",
                why=take_errors() or "the engine is in use",
                hint="change it while no call runs, and outside of blocks of trt_runtime.cuda_graphs",
            )

    def proposed(self) -> int:
        """Bytes of weights that the GPU has memory for now."""
        size = self.streamable
        if size < _MOST_TOLD or not self._is_tensorrt:
            return min(max(int(self._native.get_weight_streaming_automatic_budget()), 0), size)
        free, _ = torch.cuda.mem_get_info(self._device)
        return min(max(int(free * (1 - _SPARED)) - int(self._native.device_memory_size_v2), 0), size)
