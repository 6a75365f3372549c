"""Choosing the kernel of each product and convolution of few bits: candidates are held to float arithmetic, and timed.

Layers of the same form and extents share one choice. Numbers are made up: neither the result of the comparison nor the
time depends on them.
"""

from __future__ import annotations

import contextlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.autotune.autotuner import NEVER, Autotuner, first_difference
from trt_portable.builder.autotune.clock import milliseconds
from trt_portable.builder.autotune.timing_cache import TimingCacheKey
from trt_portable.builder.tactic import Subject
from trt_portable.device import current_device
from trt_portable.dtypes import CARRIERS, FP4_VALUES, volume
from trt_portable.enums import DataType
from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import load_network
from trt_portable.execution.program import LayerCall, Program
from trt_portable.kernels.low_precision_convolutions import CONVOLUTION_KERNELS, CONVOLUTION_REFERENCE, ConvolutionForm
from trt_portable.kernels.low_precision_products import PRODUCT_KERNELS, REFERENCE, Finish, ProductForm
from trt_portable.layers.low_precision import LowPrecisionConvolutionLayer, LowPrecisionProductLayer
from trt_portable.network.serialization import layers_from_json
from trt_portable.plan.engine_info import Shape, is_host_constant
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
    if not {entry["type"] for entry in structure["layers"]} & {_PRODUCT, _CONVOLUTION}:
        return
    if current_device().type == "cuda":
        _teach_own_kernels()
    makers = {tensor: entry for entry in structure["layers"] for tensor in entry["outputs"]}
    shapes = _optimal_shapes(structure, info, tensors)
    choose = _Choice(config, reporter, current_device())
    for layer, entry in zip(layers_from_json(structure).layers, structure["layers"], strict=True):
        shape = shapes.get(entry["inputs"][_LEFT]) if entry["inputs"] else None
        if isinstance(layer, LowPrecisionProductLayer):
            case: Case = ProductCase.of(layer, _UNKNOWN_ROWS if shape is None else volume(shape[:-1]))
        elif isinstance(layer, LowPrecisionConvolutionLayer):
            case = ConvolutionCase.of(layer, _UNKNOWN_IMAGE if shape is None else (shape[0], shape[2], shape[3]))
        else:
            continue
        entry["implementation"] = makers[entry["inputs"][_MATRIX]]["implementation"] = choose.kernel(case, layer.name)


def _teach_own_kernels() -> None:
    """Makes products of few rows by codes known, where there is Triton."""
    with contextlib.suppress(ImportError):
        from trt_portable.builder.inductor.decoding import teach_decoding_operators

        teach_decoding_operators()


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
        loaded, layers = load_network(structure, info, _META, in_place=False)
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

    def before(self, call: LayerCall, operands: Sequence[Value | None]) -> None:
        """Nothing to see."""

    def after(self, call: LayerCall, outputs: Sequence[Value]) -> None:
        """Notes the extents of a layer's outputs."""
        self.seen.update(zip(call.outputs, (tuple(value.shape) for value in outputs), strict=True))


class _Choice:
    """Remembers what was chosen for equal cases."""

    def __init__(self, config: IBuilderConfig, reporter: Reporter, device: torch.device) -> None:
        self._autotuner = Autotuner.of(config, reporter)
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
        found = [kernel for kernel in case.candidates(self._device) if may_grow or kernel.name != "dequantize_once"]
        if self._device.type == "cuda" and any(each.is_traceable for each in found if each is not case.reference):
            return [each for each in found if each.is_traceable]  # the others run only where nothing is compiled
        return found

    def _first(self, case: Case) -> str:
        trial = case.trial(self._device)
        names = (each.name for each in self._candidates(case) if self._difference(trial, each) is None)
        return next(names, str(case.reference.name))

    def _timed(self, case: Case, name: str) -> str:
        candidates = {kernel.name: kernel for kernel in self._candidates(case)}
        key = TimingCacheKey.of("low precision", repr(case), str(self._device), *candidates)

        def contest() -> dict[str, float]:
            trial = case.trial(self._device)
            spent: dict[str, float] = {}
            for kernel in candidates.values():
                if kernel is case.reference or self._difference(trial, kernel) is None:
                    spent[kernel.name] = self._milliseconds(trial, kernel, min(spent.values(), default=NEVER))
            return spent

        return self._autotuner.choose(f"kernel of {name!r}", key, candidates, contest).name

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


_BIAS, _OUTPUT_SCALE = 2, 3


class Case(ABC):
    """What the choice of a kernel depends on, beside the device; equal cases share a choice."""

    reference: Any

    @abstractmethod
    def candidates(self, device: torch.device) -> list[Any]:
        """Kernels that accept the case."""

    @abstractmethod
    def trial(self, device: torch.device) -> Trial:
        """The case with numbers."""


def _output(layer: LowPrecisionProductLayer | LowPrecisionConvolutionLayer) -> DataType | None:
    """The type that a result is quantized to; None if it is not."""
    return None if layer._input(_OUTPUT_SCALE) is None else layer.output_type


@dataclass(frozen=True)
class ProductCase(Case):
    """A product.

    Attributes:
        form: Apart from its numbers.
        rows: Of the left operand.
        has_bias: Whether there is a bias.
        rectifies: Whether negative numbers become 0.
        output: The type that the result is quantized to, or None.
    """

    form: ProductForm
    rows: int
    has_bias: bool
    rectifies: bool
    output: DataType | None

    reference = REFERENCE

    @staticmethod
    def of(layer: LowPrecisionProductLayer, rows: int) -> ProductCase:
        """The case of a layer of a plan."""
        form, _ = layer._form_and_kernel()
        return ProductCase(form, rows, layer._input(_BIAS) is not None, layer.rectify, _output(layer))

    def candidates(self, device: torch.device) -> list[Any]:
        """Kernels that accept the form, and are made for the rows."""
        return [each for each in PRODUCT_KERNELS.values() if each.accepts(self.form, device) and each.suits(self.rows)]

    def trial(self, device: torch.device) -> Trial:
        """The product with numbers."""
        return ProductTrial(self, device)


@dataclass(frozen=True)
class ConvolutionCase(Case):
    """A convolution.

    Attributes:
        form: Apart from its numbers.
        image: Batch and spatial extents of the input.
        has_bias: Whether there is a bias.
        rectifies: Whether negative numbers become 0.
        output: The type that the result is quantized to, or None.
    """

    form: ConvolutionForm
    image: tuple[int, int, int]
    has_bias: bool
    rectifies: bool
    output: DataType | None

    reference = CONVOLUTION_REFERENCE

    @staticmethod
    def of(layer: LowPrecisionConvolutionLayer, image: tuple[int, int, int]) -> ConvolutionCase:
        """The case of a layer of a plan."""
        has_bias = layer._input(_BIAS) is not None or layer._has_weights("BIAS")
        return ConvolutionCase(layer._form(), image, has_bias, layer.rectify, _output(layer))

    def candidates(self, device: torch.device) -> list[Any]:
        """Kernels that accept the form."""
        return [kernel for kernel in CONVOLUTION_KERNELS.values() if kernel.accepts(self.form, device)]

    def trial(self, device: torch.device) -> Trial:
        """The convolution with numbers."""
        return ConvolutionTrial(self, device)


class Trial(ABC):
    """A case with made-up numbers.

    Args:
        case: What is computed.
        device: Where.

    Attributes:
        values: The input.
    """

    values: list[Value]

    def __init__(self, case: Any, device: torch.device) -> None:
        self.form = case.form
        self._device = device
        self._generator = torch.Generator().manual_seed(0)
        self._case = case
        self.finish = Finish(case.form.result, rectify=case.rectifies, output=case.form.result)
        self._make()
        self._expected = self.run(case.reference, self.prepare(case.reference))
        if case.output is not None:
            scale = (self._expected.float().abs().amax() / 100).clamp(min=1e-6)
            self.finish = replace(self.finish, scale=scale, output=case.output)
            self._expected = self.run(case.reference, self.prepare(case.reference))

    @abstractmethod
    def _make(self) -> None:
        """Makes the numbers."""

    @abstractmethod
    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights for a kernel."""

    @abstractmethod
    def run(self, kernel: Any, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The result by a kernel."""

    def difference(self, kernel: Any) -> str | None:
        """What is wrong with a kernel's result, in words."""
        found = self.run(kernel, self.prepare(kernel))
        return first_difference([_comparable(found)], [_comparable(self._expected)])

    def _floats(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator)

    def _factors(self, *shape: int) -> torch.Tensor:
        return ((torch.rand(shape, generator=self._generator) + 0.5) / 64).to(self._device)

    def _codes(self, dtype: DataType, *shape: int) -> torch.Tensor:
        """Values of a type, in its carrier."""
        if dtype is DataType.INT8:
            made = torch.randint(-127, 128, shape, generator=self._generator)
        elif dtype is DataType.INT4:
            made = torch.randint(-8, 8, shape, generator=self._generator)
        elif dtype is DataType.FP4:
            made = torch.tensor(FP4_VALUES)[torch.randint(0, 16, shape, generator=self._generator)]
        else:
            made = self._floats(*shape)
        return made.to(CARRIERS[dtype]).to(self._device)

    def _bias(self, count: int) -> torch.Tensor | None:
        return self._floats(count).to(self._device, CARRIERS[self.form.result]) if self._case.has_bias else None


class ProductTrial(Trial):
    """A product with made-up numbers."""

    def _make(self) -> None:
        form, rows = self.form, max(self._case.rows, 1)
        self._matrix = self._codes(form.codes, form.columns, form.depth)
        self._scale = self._factors(*form.blocks)
        if form.has_offset:
            self._scale = torch.stack((self._scale, self._factors(*form.blocks) * 4))
        self.values = [self._codes(form.left, rows, form.depth)]
        left_scale = self._factors(rows, 1) * 64 if form.is_rowwise else None
        self.finish = replace(self.finish, left_scale=left_scale, bias=self._bias(form.columns))

    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The matrix for a kernel."""
        found: tuple[torch.Tensor, torch.Tensor] = kernel.prepare(self._matrix, self._scale, self.form)
        return found

    def run(self, kernel: Any, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The product by a kernel."""
        found: torch.Tensor = kernel.multiply(self.values[0], *prepared, self.form, self.finish)
        return found


class ConvolutionTrial(Trial):
    """A convolution with made-up numbers."""

    def _make(self) -> None:
        form, (batch, *extents) = self.form, self._case.image
        self._kernel = self._codes(form.codes, *form.kernel)
        self._scale = self._factors(form.scales)
        channels = form.kernel[1] * form.groups
        self.values = [self._codes(form.left, max(batch, 1), channels, *extents)]
        left_scale = self._factors() * 64 if form.is_scaled else None
        self.finish = replace(self.finish, left_scale=left_scale, bias=self._bias(form.kernel[0]))

    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights for a kernel."""
        found: tuple[torch.Tensor, torch.Tensor] = kernel.prepare(self._kernel, self._scale, self.form)
        return found

    def run(self, kernel: Any, prepared: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """The convolution by a kernel."""
        found: torch.Tensor = kernel.convolve(self.values[0], *prepared, self.form, self.finish)
        return found


def _comparable(result: torch.Tensor) -> torch.Tensor:
    """Results in a type whose tolerance forgives what rounds the other way."""
    return {torch.int8: result.half, torch.float8_e4m3fn: result.bfloat16}.get(result.dtype, lambda: result)()
