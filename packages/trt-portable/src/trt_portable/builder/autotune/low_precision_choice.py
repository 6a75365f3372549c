"""Choosing the kernel of each product and convolution of few bits: candidates are held to float arithmetic, and timed.

Layers of the same form and extents share one choice. Numbers are made up: neither the result of the comparison nor the
time depends on them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from trt_portable.builder.autotune.autotuner import NEVER, Autotuner, first_difference, runnable
from trt_portable.builder.autotune.clock import ColdWeights, race_on_device, race_ways
from trt_portable.builder.autotune.timing_cache import TimingCacheKey
from trt_portable.builder.tactic import Subject
from trt_portable.device_choice import current_device
from trt_portable.dtypes import CARRIERS, FP4_VALUES, volume
from trt_portable.enums import DataType
from trt_portable.errors import PortableError
from trt_portable.execution.loaded_network import load_network
from trt_portable.execution.program import LayerCall, PackingCompute, Program
from trt_portable.kernels.low_precision_convolutions import kernels_of
from trt_portable.kernels.low_precision_products import REFERENCE, Finish, LowPrecisionKernel
from trt_portable.layers.low_precision import LowPrecisionConvolutionLayer, LowPrecisionProductLayer
from trt_portable.network.layer import META
from trt_portable.network.serialization import layers_from_json
from trt_portable.plan.engine_info import EngineInfo, Shape, is_host_constant
from trt_portable.plan.weight_store import WeightStore
from trt_portable.shape_tensors import Value

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.plan.weight_table import WeightTable
    from trt_portable.reporting import Reporter


SWITCH: Final = "TRT_PORTABLE_DEQUANTIZE_ONCE"
"""Environment variable that lets engines hold floats in place of weights of few bits, where it is "1" in a build."""

_TIMED_FROM_LEVEL: Final = 3
_UNKNOWN_ROWS: Final = 64
_UNKNOWN_IMAGE: Final = (1, 32, 32)
_PRODUCT: Final = LowPrecisionProductLayer._PLAN_TYPE
_CONVOLUTION: Final = LowPrecisionConvolutionLayer._PLAN_TYPE
_LEFT, _MATRIX = 0, 4  # inputs of either: what comes in, and what was prepared


def choose_low_precision_kernels(
    structure: Mapping[str, Any], info: EngineInfo, tensors: WeightTable, config: IBuilderConfig, reporter: Reporter
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
    num_bytes = sum(volume(shape) * dtype.itemsize for dtype, shape in map(tensors.spec, tensors))
    choose = _Choice(config, reporter, current_device(), num_bytes)
    for layer, entry in zip(layers_from_json(structure).layers, structure["layers"], strict=True):
        shape = shapes.get(entry["inputs"][_LEFT]) if entry["inputs"] else None
        if isinstance(layer, LowPrecisionProductLayer):
            rows = _UNKNOWN_ROWS if shape is None else volume(shape[:-1])
            extents: Shape = (rows,)
        elif isinstance(layer, LowPrecisionConvolutionLayer):
            extents = _UNKNOWN_IMAGE if shape is None else (shape[0], shape[2], shape[3])
        else:
            continue
        kernel = choose.kernel(Case(layer._form(), extents, *_ending(layer)), layer.name)
        entry["implementation"] = makers[entry["inputs"][_MATRIX]]["implementation"] = kernel


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
    subject, watch = Subject(structure, info, (), META), _Shapes()
    known.update(zip((tensor.id for tensor in info.io if tensor.is_input), subject.input_shapes(0), strict=True))
    try:
        loaded, layers = load_network(structure, info, META, in_place=False)
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

    def __init__(self, config: IBuilderConfig, reporter: Reporter, device: torch.device, nbytes: int) -> None:
        self._autotuner = Autotuner.of(config, reporter)
        self._is_timed = config.builder_optimization_level >= _TIMED_FROM_LEVEL
        self._reporter = reporter
        self._device = device
        self._weights = ColdWeights(nbytes)
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
        names = (each.name for each in self._candidates(case) if self._is_right(trial, each))
        return next(names, str(case.reference.name))

    def _timed(self, case: Case, name: str) -> str:
        candidates = {kernel.name: kernel for kernel in self._candidates(case)}
        key = TimingCacheKey.of("low precision", repr(case), str(self._device), *candidates)

        def contest() -> Mapping[str, float]:
            trial = case.trial(self._device)
            right = {name: each for name, each in candidates.items() if self._is_right(trial, each)}
            return self._milliseconds(trial, right) or {case.reference.name: NEVER}

        return self._autotuner.choose(f"kernel of {name!r}", key, candidates, contest).name

    def _is_right(self, trial: Trial, kernel: Any) -> bool:
        """Whether a candidate runs, and computes what floats do; says so where it does not."""
        try:
            difference = trial.difference(kernel)
        except Exception as error:  # a kernel may fail in any way, and there is always another
            self._reporter.verbose(f"kernel {kernel.name}: not available here: {type(error).__name__}: {error}")
            return False
        if difference is not None:
            self._reporter.info(f"kernel {kernel.name} is left out, for it computes something else: {difference}")
        return difference is None

    def _milliseconds(self, trial: Trial, kernels: Mapping[str, Any]) -> dict[str, float]:
        ways = {name: _Way(trial, kernel) for name, kernel in kernels.items()}
        if self._device.type == "cpu":
            say = self._reporter.verbose
            return race_ways(ways, [trial.left], self._weights, lambda failure: say(f"kernel {failure}"))
        starts = {name: partial(way, [trial.left]) for name, way in ways.items()}
        return race_on_device(runnable(starts, self._device, replayed=True))


class _Way(PackingCompute):
    """A layer by one kernel, to be timed."""

    def __init__(self, trial: Trial, kernel: Any) -> None:
        self._trial, self._kernel = trial, kernel
        self._prepared: Sequence[torch.Tensor] = ()

    def __call__(self, inputs: Sequence[Value | None]) -> list[Value]:
        """The result of the trial's numbers."""
        self._prepared = self._prepared or self._trial.prepare(self._kernel)
        return [self._trial.run(self._kernel, self._prepared)]

    def forget(self) -> int:
        """Gives up what was prepared."""
        found, self._prepared = self._prepared, ()
        return sum(tensor.nbytes for tensor in found)


_BIAS, _OUTPUT_SCALE = 2, 3


@dataclass(frozen=True)
class Case:
    """What the choice of a kernel depends on, beside the device; equal cases share a choice.

    Attributes:
        form: The product or convolution apart from its numbers.
        extents: Rows of the left operand, (M,); or batch and spatial extents of the input, (N, H, W).
        has_bias: Whether there is a bias.
        rectifies: Whether negative numbers become 0.
        output: The type that the result is quantized to, or None.
    """

    form: Any
    extents: tuple[int, ...]
    has_bias: bool
    rectifies: bool
    output: DataType | None

    @property
    def reference(self) -> LowPrecisionKernel[Any]:
        """What the others are held to."""
        return kernels_of(self.form)[REFERENCE.name]

    def candidates(self, device: torch.device) -> list[LowPrecisionKernel[Any]]:
        """Kernels that accept the form, and are made for so many rows."""
        kernels, rows = kernels_of(self.form).values(), self.extents[0]
        return [kernel for kernel in kernels if kernel.accepts(self.form, device) and kernel.suits(rows)]

    def trial(self, device: torch.device) -> Trial:
        """The case with numbers."""
        return Trial(self, device)


def _ending(layer: LowPrecisionProductLayer | LowPrecisionConvolutionLayer) -> tuple[bool, bool, DataType | None]:
    """Whether a layer has a bias, whether it rectifies, and the type that its result is quantized to, if it is."""
    has_bias = layer._input(_BIAS) is not None or layer._has_weights("BIAS")
    return has_bias, layer.rectify, None if layer._input(_OUTPUT_SCALE) is None else layer.output_type


class Trial:
    """A case with made-up numbers.

    Args:
        case: What is computed.
        device: Where.

    Attributes:
        left: The left operand, or the input.
        codes: The matrix, or the kernel, in the carrier of its type.
        scale: Its scales, and behind them the offsets where the form has some.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self._case, self._device = case, device
        self._generator = torch.Generator().manual_seed(0)
        form, (codes, scale, left, left_scale) = case.form, case.form.shapes(case.extents)
        self.codes = self._made(form.codes, codes)
        self.scale = self._factors(scale)
        if getattr(form, "has_offset", False):
            self.scale = torch.stack((self.scale, self._factors(scale) * 4))
        self.left = self._made(form.left, left)
        self._finish = Finish(
            form.result,
            None if left_scale is None else self._factors(left_scale) * 64,
            self._floats(codes[:1]).to(device, CARRIERS[form.result]) if case.has_bias else None,
            case.rectifies,
            output=form.result,
        )
        self._expected = self.run(case.reference, self.prepare(case.reference))
        if case.output is not None:
            step = (self._expected.float().abs().amax() / 100).clamp(min=1e-6)
            self._finish = replace(self._finish, scale=step, output=case.output)
            self._expected = self.run(case.reference, self.prepare(case.reference))

    def prepare(self, kernel: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights for a kernel."""
        found: tuple[torch.Tensor, torch.Tensor] = kernel.prepare(self.codes, self.scale, self._case.form)
        return found

    def run(self, kernel: Any, prepared: Sequence[torch.Tensor]) -> torch.Tensor:
        """The result by a kernel."""
        found: torch.Tensor = kernel.compute(self.left, *prepared, self._case.form, self._finish)
        return found

    def difference(self, kernel: Any) -> str | None:
        """What is wrong with a kernel's result, in words."""
        found = self.run(kernel, self.prepare(kernel))
        return first_difference([_comparable(found)], [_comparable(self._expected)])

    def _floats(self, shape: Shape) -> torch.Tensor:
        return torch.randn(shape, generator=self._generator, device="cpu")

    def _factors(self, shape: Shape) -> torch.Tensor:
        return ((torch.rand(shape, generator=self._generator, device="cpu") + 0.5) / 64).to(self._device)

    def _made(self, dtype: DataType, shape: Shape) -> torch.Tensor:
        """Values of a type, in its carrier."""
        if dtype is DataType.INT8:
            made = torch.randint(-127, 128, shape, generator=self._generator, device="cpu")
        elif dtype is DataType.INT4:
            made = torch.randint(-8, 8, shape, generator=self._generator, device="cpu")
        elif dtype is DataType.FP4:
            made = torch.tensor(FP4_VALUES, device="cpu")[
                torch.randint(0, 16, shape, generator=self._generator, device="cpu")
            ]
        else:
            made = self._floats(shape)
        return made.to(CARRIERS[dtype]).to(self._device)


def _comparable(result: torch.Tensor) -> torch.Tensor:
    """Results in a type whose tolerance forgives what rounds the other way."""
    return {torch.int8: result.half, torch.float8_e4m3fn: result.bfloat16}.get(result.dtype, lambda: result)()
