"""Choosing the kernel of each product and convolution of few bits: candidates are held to float arithmetic, and timed.

Layers of the same form and extents share one choice. Numbers are made up: neither the result of the comparison nor the
time depends on them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.low_precision_trials import Case, ConvolutionCase, ProductCase, Trial
from trt_portable.builder.tactics import Subject, tactic_hash
from trt_portable.builder.timing import milliseconds
from trt_portable.builder.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.device import current_device
from trt_portable.dtypes import volume
from trt_portable.enums import BuilderFlag, ErrorCodeTRT
from trt_portable.errors import PortableError, Refusal
from trt_portable.execution.loaded_network import load_network
from trt_portable.execution.program import LayerCall, Program
from trt_portable.layers.low_precision import LowPrecisionConvolutionLayer, LowPrecisionProductLayer
from trt_portable.plan.engine_info import Shape
from trt_portable.plan.engine_plan import is_host_constant
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import Value

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.plan.engine_info import EngineInfo
    from trt_portable.reporting import Reporter

SWITCH: Final = "TRT_PORTABLE_DEQUANTIZE_ONCE"
"""Environment variable that lets engines hold floats in place of weights of few bits, where it is "1" in a build."""

_TIMED_FROM_LEVEL: Final = 3
_HOPELESS: Final = 4.0  # a candidate that takes so many times as long is not timed further
_UNKNOWN_ROWS: Final = 64
_UNKNOWN_IMAGE: Final = (1, 32, 32)
_META: Final = torch.device("meta")
_PRODUCT: Final = LowPrecisionProductLayer._plan_type()
_CONVOLUTION: Final = LowPrecisionConvolutionLayer._plan_type()
_LEFT, _MATRIX = 0, 4  # inputs of either: what comes in, and what was prepared


def choose_low_precision_kernels(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: Mapping[str, torch.Tensor],
    config: IBuilderConfig,
    reporter: Reporter,
) -> None:
    """Writes the kernel of each product and convolution of few bits into the layers of a structure.

    From level 3 the fastest candidate at the optimal shapes of the first profile is taken; below, the first one that
    computes what it should.

    Raises:
        Refusal: The timing cache lacks an entry although ERROR_ON_TIMING_CACHE_MISS is set.
    """
    entries = [entry for entry in structure["layers"] if entry["type"] in (_PRODUCT, _CONVOLUTION)]
    if not entries:
        return
    producers = {tensor: entry for entry in structure["layers"] for tensor in entry["outputs"]}
    shapes = _optimal_shapes(structure, info, tensors)
    choose = _Choice(config, reporter, current_device())
    for entry in entries:
        shape = shapes.get(entry["inputs"][_LEFT])
        if entry["type"] == _PRODUCT:
            case: Case = ProductCase.of(entry, _UNKNOWN_ROWS if shape is None else volume(shape[:-1]))
        else:
            case = ConvolutionCase.of(entry, _UNKNOWN_IMAGE if shape is None else (shape[0], shape[2], shape[3]))
        name = choose.kernel(case, entry["name"])
        for each in (entry, producers[entry["inputs"][_MATRIX]]):
            each["attributes"] = {**each["attributes"], "implementation": name}


def _optimal_shapes(
    structure: Mapping[str, Any], info: EngineInfo, tensors: Mapping[str, torch.Tensor]
) -> dict[int, Shape]:
    """Extents by tensor at the optimal shapes of the first profile; those that are known without data."""
    known = {tensor["id"]: tuple(tensor["shape"]) for tensor in structure["tensors"] if -1 not in tensor["shape"]}
    if len(known) == len(structure["tensors"]):
        return known
    subject, watch = Subject(structure, info, (), _META), _Shapes()
    known.update(zip((tensor.id for tensor in info.io if tensor.is_input), subject.input_shapes(0), strict=True))
    try:
        loaded, layers = load_network(structure, info, _META)
        bound = [tensors.get(slot.weights) if is_host_constant(slot) else None for slot in info.weight_slots]
        WeightStore(info.weight_slots, layers, bound)
        program = Program(loaded.calls, loaded.inputs, loaded.outputs)
        program.load_constants()
        program.run_observed(subject.example_inputs(0), watch)
    except (PortableError, RuntimeError, NotImplementedError):
        pass  # extents depend on data: what was seen before that counts
    return {**watch.seen, **known}


class _Shapes:
    """Watches a run for the extents of what it computes."""

    def __init__(self) -> None:
        self.seen: dict[int, Shape] = {}

    def before(self, call: LayerCall) -> None:
        """Nothing to see."""

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """Notes the extents of a layer's outputs."""
        self.seen.update(zip(call.outputs, (tuple(value.shape) for value in outputs), strict=True))


class _Choice:
    """Remembers what was chosen for equal cases."""

    def __init__(self, config: IBuilderConfig, reporter: Reporter, device: torch.device) -> None:
        cache = config.get_timing_cache()
        uses_cache = cache is not None and not config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE)
        self._cache = cache if cache is not None and uses_cache else ITimingCache()
        self._must_know = config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        self._is_timed = config.builder_optimization_level >= _TIMED_FROM_LEVEL
        self._iterations = config.avg_timing_iterations
        self._reporter = reporter
        self._device = device
        self._known: dict[Case, str] = {}

    def kernel(self, case: Case, name: str) -> str:
        """The name of the kernel for a case; `name` is that of a layer, for messages."""
        found = self._known.get(case)
        if found is None:
            with torch.inference_mode():
                found = self._known[case] = self._timed(case, name) if self._is_timed else self._first(case)
        return found

    def _candidates(self, case: Case) -> list[Any]:
        may_grow = os.environ.get(SWITCH) == "1"
        found = case.candidates(self._device)
        return [kernel for kernel in found if may_grow or kernel.name != "dequantize_once"]

    def _first(self, case: Case) -> str:
        trial = case.trial(self._device)
        names = (each.name for each in self._candidates(case) if self._difference(trial, each) is None)
        return next(names, str(case.reference.name))

    def _timed(self, case: Case, name: str) -> str:
        candidates = self._candidates(case)
        names = [kernel.name for kernel in candidates]
        key = TimingCacheKey.of("low precision", repr(case), str(self._device), *names)
        remembered = self._cache.query(key)
        for kernel in candidates:
            if remembered is not None and tactic_hash(kernel.name) == remembered.tacticHash:
                return str(kernel.name)
        if self._must_know:
            raise Refusal(f"the timing cache has no entry {key}", ErrorCodeTRT.INVALID_STATE)
        trial = case.trial(self._device)
        spent: dict[str, float] = {}
        for kernel in candidates:
            if kernel is not case.reference and self._difference(trial, kernel) is not None:
                continue
            spent[kernel.name] = self._milliseconds(trial, kernel, min(spent.values(), default=float("inf")))
        best = min(spent, key=lambda each: spent[each])
        self._cache._record(key, TimingCacheValue(tactic_hash(best), spent[best]))
        times = ", ".join(f"{each} {took:.4f} ms" for each, took in spent.items())
        self._reporter.verbose(f"kernel of {name!r}: {best}, of {times}")
        return best

    def _difference(self, trial: Trial, kernel: Any) -> str | None:
        """Why a candidate is none: it fails, or computes something else."""
        try:
            difference = trial.difference(kernel)
        except Exception as error:  # a kernel may fail in any way, and there is always another
            self._reporter.verbose(f"kernel {kernel.name}: not available here: {type(error).__name__}: {error}")
            return str(error)
        if difference is not None:
            self._reporter.info(f"kernel {kernel.name} is left out, for it computes something else: {difference}")
        return difference

    def _milliseconds(self, trial: Trial, kernel: Any, best: float) -> float:
        alone = _Alone(trial, kernel)
        if self._device.type == "cpu":
            started = time.perf_counter()
            alone.run(trial.values)
            took = (time.perf_counter() - started) * 1e3
            if took > _HOPELESS * best:
                return took
        return milliseconds(alone, trial.values, self._device, self._iterations)


class _Alone:
    """One layer as a whole program, to be timed."""

    def __init__(self, trial: Trial, kernel: Any) -> None:
        self._trial, self._kernel = trial, kernel
        self._prepared = trial.prepare(kernel)

    @property
    def constants(self) -> object:
        """What was prepared."""
        return self._prepared

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """The result of the trial's numbers."""
        return [self._trial.run(self._kernel, self._prepared)]
