"""Choosing the kernel of each product of few bits: candidates are held to float arithmetic, and timed.

Products of the same form and number of rows share one choice. Numbers are made up: neither the result of the comparison
nor the time depends on them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.tactics import Subject, tactic_hash
from trt_portable.builder.timing import first_difference, milliseconds
from trt_portable.builder.timing_cache import ITimingCache, TimingCacheKey, TimingCacheValue
from trt_portable.device import current_device
from trt_portable.dtypes import CARRIERS, FP4_VALUES, volume
from trt_portable.enums import BuilderFlag, DataType, ErrorCodeTRT
from trt_portable.errors import PortableError, Refusal
from trt_portable.layers.low_precision import (
    BIAS,
    LEFT,
    MATRIX,
    OUTPUT_SCALE,
    LowPrecisionProductLayer,
    PreparedMatrixLayer,
)
from trt_portable.layers.product_kernels import PRODUCT_KERNELS, REFERENCE, Finish, ProductForm, ProductKernel
from trt_portable.plan.engine_plan import is_host_constant
from trt_portable.plan.weight_store import WeightStore
from trt_portable.runtime.image import load_image
from trt_portable.runtime.program import LayerCall, Program
from trt_portable.values import Value

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.error_recorder import Reporter
    from trt_portable.plan.engine_info import EngineInfo

SWITCH: Final = "TRT_PORTABLE_DEQUANTIZE_ONCE"
"""Environment variable that lets engines hold floats in place of matrices of few bits, where it is "1" in a build."""

_TIMED_FROM_LEVEL: Final = 3
_HOPELESS: Final = 4.0  # a candidate that takes so many times as long is not timed further
_UNKNOWN_ROWS: Final = 64
_META: Final = torch.device("meta")
_PRODUCT: Final = LowPrecisionProductLayer._plan_type()
_PREPARATION: Final = PreparedMatrixLayer._plan_type()


def choose_product_kernels(
    structure: Mapping[str, Any],
    info: EngineInfo,
    tensors: Mapping[str, torch.Tensor],
    config: IBuilderConfig,
    reporter: Reporter,
) -> None:
    """Writes the kernel of each product into the layers of a structure.

    From level 3 the fastest candidate at the optimal shapes of the first profile is taken; below, the first one that
    computes what it should.

    Raises:
        Refusal: The timing cache lacks an entry although ERROR_ON_TIMING_CACHE_MISS is set.
    """
    entries = [entry for entry in structure["layers"] if entry["type"] == _PRODUCT]
    if not entries:
        return
    preparations = {e["outputs"][0]: e for e in structure["layers"] if e["type"] == _PREPARATION}
    device, rows = current_device(), _rows(structure, info, tensors)
    choose = _Choice(config, reporter, device)
    for entry in entries:
        attributes = entry["attributes"]
        case = _Case(
            _form(attributes),
            rows.get(entry["outputs"][0], _UNKNOWN_ROWS),
            entry["inputs"][BIAS] is not None,
            attributes["rectify"],
            None if entry["inputs"][OUTPUT_SCALE] is None else DataType[attributes["output_type"]],
        )
        name = choose.kernel(case, entry["name"])
        for each in (entry, preparations[entry["inputs"][MATRIX]]):
            each["attributes"] = {**each["attributes"], "implementation": name}


def _form(attributes: Mapping[str, Any]) -> ProductForm:
    return ProductForm(
        columns=attributes["columns"],
        depth=attributes["depth"],
        codes=DataType[attributes["code_type"]],
        left=DataType[attributes["left_type"]],
        result=DataType[attributes["result_type"]],
        blocks=tuple(attributes["blocks"]),
        is_rowwise=attributes["rowwise"],
    )


def _rows(structure: Mapping[str, Any], info: EngineInfo, tensors: Mapping[str, torch.Tensor]) -> dict[int, int]:
    """Rows of each product, by its output, at the optimal shapes of the first profile; those that are known."""
    shapes = {tensor["id"]: tensor["shape"] for tensor in structure["tensors"]}
    products = [entry for entry in structure["layers"] if entry["type"] == _PRODUCT]
    found = {
        entry["outputs"][0]: volume(shapes[entry["inputs"][LEFT]][:-1])
        for entry in products
        if -1 not in shapes[entry["inputs"][LEFT]]
    }
    if len(found) == len(products):
        return found
    watch = _RowsOfProducts()
    try:
        image, layers = load_image(structure, info, _META)
        bound = [tensors.get(slot.weights) if is_host_constant(slot) else None for slot in info.weight_slots]
        WeightStore(info.weight_slots, layers, bound)
        program = Program(image.calls, image.inputs, image.outputs)
        program.load_constants()
        program.run_observed(Subject(structure, info, (), _META).example_inputs(0), watch)
    except (PortableError, RuntimeError, NotImplementedError):
        pass  # extents depend on data: what was seen before that counts
    return {**watch.rows, **found}


class _RowsOfProducts:
    """Watches a run for the rows of its products."""

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}

    def before(self, call: LayerCall) -> None:
        """Nothing to see."""

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """Notes the rows of a product."""
        if isinstance(call.layer, LowPrecisionProductLayer):
            self.rows[call.outputs[0]] = volume(outputs[0].shape[:-1])


@dataclass(frozen=True)
class _Case:
    """What a choice depends on, beside the device."""

    form: ProductForm
    rows: int
    has_bias: bool
    rectifies: bool
    output: DataType | None


class _Choice:
    """Remembers what was chosen for equal products."""

    def __init__(self, config: IBuilderConfig, reporter: Reporter, device: torch.device) -> None:
        cache = config.get_timing_cache()
        uses_cache = cache is not None and not config.get_flag(BuilderFlag.DISABLE_TIMING_CACHE)
        self._cache = cache if cache is not None and uses_cache else ITimingCache()
        self._must_know = config.get_flag(BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        self._is_timed = config.builder_optimization_level >= _TIMED_FROM_LEVEL
        self._iterations = config.avg_timing_iterations
        self._reporter = reporter
        self._device = device
        self._known: dict[_Case, str] = {}

    def kernel(self, case: _Case, name: str) -> str:
        """The name of the kernel for a case; `name` is that of a layer, for messages."""
        found = self._known.get(case)
        if found is None:
            with torch.inference_mode():
                found = self._known[case] = self._timed(case, name) if self._is_timed else self._first(case)
        return found

    def _candidates(self, case: _Case) -> list[ProductKernel]:
        may_grow = os.environ.get(SWITCH) == "1"
        return [
            kernel
            for kernel in PRODUCT_KERNELS.values()
            if kernel.accepts(case.form, self._device) and (may_grow or kernel.name != "dequantize_once")
        ]

    def _first(self, case: _Case) -> str:
        trial = _Trial(case, self._device)
        names = (each.name for each in self._candidates(case) if self._difference(trial, each) is None)
        return next(names, REFERENCE.name)

    def _timed(self, case: _Case, name: str) -> str:
        candidates = self._candidates(case)
        names = [kernel.name for kernel in candidates]
        key = TimingCacheKey.of("low precision product", repr(case), str(self._device), *names)
        remembered = self._cache.query(key)
        for kernel in candidates:
            if remembered is not None and tactic_hash(kernel.name) == remembered.tacticHash:
                return kernel.name
        if self._must_know:
            raise Refusal(f"the timing cache has no entry {key}", ErrorCodeTRT.INVALID_STATE)
        trial = _Trial(case, self._device)
        spent: dict[str, float] = {}
        for kernel in candidates:
            if kernel is not REFERENCE and self._difference(trial, kernel) is not None:
                continue
            spent[kernel.name] = self._milliseconds(trial, kernel, min(spent.values(), default=float("inf")))
        best = min(spent, key=lambda each: spent[each])
        self._cache._record(key, TimingCacheValue(tactic_hash(best), spent[best]))
        times = ", ".join(f"{each} {took:.4f} ms" for each, took in spent.items())
        self._reporter.verbose(f"kernel of {name!r} with {case.rows} rows: {best}, of {times}")
        return best

    def _difference(self, trial: _Trial, kernel: ProductKernel) -> str | None:
        """Why a candidate is none: it fails, or computes something else."""
        try:
            difference = trial.difference(kernel)
        except Exception as error:  # a kernel may fail in any way, and there is always another
            self._reporter.verbose(f"kernel {kernel.name}: not available here: {type(error).__name__}: {error}")
            return str(error)
        if difference is not None:
            self._reporter.info(f"kernel {kernel.name} is left out, for it computes something else: {difference}")
        return difference

    def _milliseconds(self, trial: _Trial, kernel: ProductKernel, best: float) -> float:
        alone = _Alone(trial, kernel)
        if self._device.type == "cpu":
            started = time.perf_counter()
            alone.run(trial.values)
            took = (time.perf_counter() - started) * 1e3
            if took > _HOPELESS * best:
                return took
        return milliseconds(alone, trial.values, self._device, self._iterations)


class _Trial:
    """A product with made-up numbers."""

    def __init__(self, case: _Case, device: torch.device) -> None:
        form = case.form
        self.form = form
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        def codes(dtype: DataType, *shape: int) -> torch.Tensor:
            if dtype is DataType.INT8:
                made = torch.randint(-127, 128, shape, generator=generator)
            elif dtype is DataType.INT4:
                made = torch.randint(-8, 8, shape, generator=generator)
            elif dtype is DataType.FP4:
                made = torch.tensor(FP4_VALUES)[torch.randint(0, 16, shape, generator=generator)]
            else:
                made = normal(*shape)
            return made.to(CARRIERS[dtype]).to(device)

        self._codes = codes(form.codes, form.columns, form.depth)
        self._scale = (torch.rand(form.blocks, generator=generator) + 0.5).to(device) / 64
        rows = max(case.rows, 1)
        self.values: list[Value] = [codes(form.left, rows, form.depth)]
        dtype = CARRIERS[form.result]
        self.finish = Finish(
            form.result,
            left_scale=(torch.rand(rows, 1, generator=generator) + 0.5).to(device) if form.is_rowwise else None,
            bias=normal(form.columns).to(device, dtype) if case.has_bias else None,
            rectify=case.rectifies,
            scale=None,
            output=form.result,
        )
        self._expected = self.run(REFERENCE, self.prepare(REFERENCE))
        if case.output is not None:
            scale = (self._expected.float().abs().amax() / 100).clamp(min=1e-6)
            self.finish = Finish(**{**vars(self.finish), "scale": scale, "output": case.output})
            self._expected = self.run(REFERENCE, self.prepare(REFERENCE))

    def prepare(self, kernel: ProductKernel) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix for a kernel."""
        return kernel.prepare(self._codes, self._scale, self.form)

    def run(self, kernel: ProductKernel, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The product by a kernel."""
        (left,) = self.values
        assert isinstance(left, torch.Tensor)
        return kernel.multiply(left, *prepared, self.form, self.finish)

    def difference(self, kernel: ProductKernel) -> str | None:
        """What is wrong with a kernel's result, in words."""
        return first_difference([_comparable(self.run(kernel, self.prepare(kernel)))], [_comparable(self._expected)])


def _comparable(result: torch.Tensor) -> torch.Tensor:
    """Results in a type whose tolerance forgives what rounds the other way."""
    return {torch.int8: result.half, torch.float8_e4m3fn: result.bfloat16}.get(result.dtype, lambda: result)()


class _Alone:
    """A product as a whole program, to be timed."""

    def __init__(self, trial: _Trial, kernel: ProductKernel) -> None:
        self._trial, self._kernel = trial, kernel
        self._prepared = trial.prepare(kernel)

    @property
    def constants(self) -> object:
        """What was prepared."""
        return self._prepared

    def run(self, values: Sequence[Value], targets: Sequence[torch.Tensor | None] = ()) -> list[Value]:
        """The product of the trial's numbers."""
        return [self._trial.run(self._kernel, self._prepared)]
