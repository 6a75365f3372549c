"""Calibration: data that callers give, the program run on it node by node, and ranges of activations that follow.

Bias correction takes the mean error that quantization makes in each channel out of a convolution's bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

import torch
from torch import fx
from torch.export.graph_signature import InputKind

from trt_core import InputError, TrtError
from trt_core.dtypes import dtype_name
from trt_core.nesting import tensors_in
from trt_core.operators import argument
from trt_core.provenance import node_location, source_line
from trt_core.quantization import dequantize, fake_quantize, quantize
from trt_core.wording import kind_of
from trt_frontends.capture import keyword_inputs
from trt_frontends.comparison.sample_inputs import FORMS_OF_INPUTS, read_calibration
from trt_frontends.example_inputs import ExampleInputs
from trt_frontends.quantization.layers import Layer, ProgramEditor, set_operand, weight_scale
from trt_frontends.quantization.quantization_config import Kind, Observer, QuantizationConfig, Scheme

Watch = Callable[[fx.Node, torch.Tensor], None]
"""Called with the node of an activation, and its value."""


def calibrate(
    program: torch.export.ExportedProgram,
    layers: Sequence[Layer],
    samples: Sequence[ExampleInputs],
    config: QuantizationConfig,
) -> dict[str, float]:
    """Measures activations, and returns their scales by the name of the node.

    Args:
        program: The program whose graph has the layers, by name.
        layers: What is quantized.
        samples: Calibration data.
        config: Which observer measures.

    Raises:
        InputError: Data does not fit the program, activations are NaN or infinite, or hold no elements.
    """
    observers: dict[str, RangeObserver] = {}
    measured: set[str] = set()

    def watch(node: fx.Node, value: torch.Tensor) -> None:
        if value.numel():
            measured.add(node.name)
        observers.setdefault(node.name, make_observer(config)).observe(value)

    watch_activations(program, layers, samples, watch)
    for name in sorted(observers.keys() - measured):
        raise InputError(
            "calibration data makes empty activations alone",
            where=name,
            why="there is nothing to measure a range on",
            hint="give inputs with elements",
        )
    return {name: scale_of(observer.largest(), config.scheme) for name, observer in observers.items()}


def watch_activations(
    program: torch.export.ExportedProgram, layers: Sequence[Layer], samples: Sequence[ExampleInputs], watch: Watch
) -> None:
    """Runs the program on every sample, and shows each activation that a layer reads, once for all its readers."""
    steps = _watching(layers, watch)
    for index, inputs in enumerate(flat_inputs(program, samples)):
        try:
            run_program(program, inputs, steps)
        except TrtError:
            raise
        except Exception as error:
            raise InputError(
                "the model fails on calibration data",
                where=f"calibration input {index}",
                why=f"{type(error).__name__}: {error}",
                hint="call the model with this input: it most likely fails there as well",
            ) from error


def _watching(layers: Sequence[Layer], watch: Watch) -> dict[str, Step]:
    seen: set[str] = set()
    steps: dict[str, Step] = {}
    for layer in layers:
        fresh = tuple(node for node in dict.fromkeys(layer.operands()) if node.name not in seen)
        seen.update(node.name for node in fresh)
        if fresh:
            steps[layer.node.name] = _step(frozenset(node.name for node in fresh), watch)
    return steps


def _step(names: frozenset[str], watch: Watch) -> Step:
    def run(node: fx.Node, value: Callable[[Any], Any]) -> Any:
        for operand in node.all_input_nodes:
            if operand.name in names:
                activation = value(operand)
                require_finite(activation, operand)
                watch(operand, activation)
        return compute(node, value)

    return run


# Observers of ranges -------------------------------------------------------------------------------------------------


BINS: Final = 2048
"""Bins of a histogram of magnitudes."""


class RangeObserver(Protocol):
    """Sees tensors, and says which magnitude the largest quantized value stands for."""

    def observe(self, values: torch.Tensor) -> None:
        """Sees the values of a tensor of any shape, finite."""

    def largest(self) -> float:
        """Returns the largest magnitude that is kept; 0 where nothing but zeros was seen."""


def make_observer(config: QuantizationConfig) -> RangeObserver:
    """Returns a fresh observer of the kind that a configuration asks for."""
    if config.observer is Observer.MAX:
        return MaxObserver()
    if config.observer is Observer.PERCENTILE:
        return PercentileObserver(config.percentile)
    if config.observer is Observer.ENTROPY:
        return EntropyObserver(config.scheme)
    return SquaredErrorObserver(config.scheme)


class MaxObserver:
    """Keeps everything."""

    def __init__(self) -> None:
        self._largest = 0.0

    def observe(self, values: torch.Tensor) -> None:
        """See `RangeObserver`."""
        if values.numel():
            self._largest = max(self._largest, float(values.detach().abs().amax()))

    def largest(self) -> float:
        """See `RangeObserver`."""
        return self._largest


class Histogram:
    """Counts magnitudes in bins of one width; the range doubles, and bins merge, when larger ones come.

    Attributes:
        counts: (BINS,), float64.
        limit: The upper end of the last bin.
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(BINS, dtype=torch.float64, device="cpu")
        self.limit = 0.0
        self.largest = 0.0

    def add(self, values: torch.Tensor) -> None:
        """Counts the magnitudes of a tensor of any shape."""
        # in float64: the range doubles, also beyond what float32 has
        sizes = values.detach().abs().to(torch.float64).flatten().cpu()
        top = float(sizes.max()) if sizes.numel() else 0.0
        if top == 0.0:
            self.counts[0] += sizes.numel()
            return
        self.largest = max(self.largest, top)
        if self.limit == 0.0:
            self.limit = top
        while self.limit < top:
            halves = self.counts.reshape(-1, 2).sum(1)
            self.counts = torch.cat([halves, torch.zeros_like(halves)])
            self.limit *= 2
        self.counts += torch.histc(sizes, BINS, 0.0, self.limit)

    @property
    def width(self) -> float:
        """Width of a bin."""
        return self.limit / BINS

    @property
    def centers(self) -> torch.Tensor:
        """The middle of each bin, (BINS,), float64."""
        return (torch.arange(BINS, dtype=torch.float64, device="cpu") + 0.5) * self.width


class PercentileObserver:
    """Keeps a share of the values, and clips the largest.

    Args:
        percentile: The share, in percent.
    """

    def __init__(self, percentile: float) -> None:
        self._histogram = Histogram()
        self._share = percentile / 100.0

    def observe(self, values: torch.Tensor) -> None:
        """See `RangeObserver`."""
        self._histogram.add(values)

    def largest(self) -> float:
        """See `RangeObserver`."""
        histogram = self._histogram
        below = histogram.counts.cumsum(0)
        reached = torch.nonzero(below >= self._share * below[-1])
        if histogram.limit == 0.0 or not len(reached):
            return histogram.largest
        return min((int(reached[0]) + 1) * histogram.width, histogram.largest)


class _SearchingObserver:
    """Tries ranges, and keeps the one that costs least.

    Args:
        scheme: What the values are quantized to.
    """

    def __init__(self, scheme: Scheme) -> None:
        self._histogram = Histogram()
        self._scheme = scheme

    def observe(self, values: torch.Tensor) -> None:
        """See `RangeObserver`."""
        self._histogram.add(values)

    def largest(self) -> float:
        """See `RangeObserver`."""
        histogram = self._histogram
        if histogram.limit == 0.0:
            return 0.0
        last = math.ceil(histogram.largest / histogram.width)
        best, least = histogram.largest, math.inf
        for bins in range(last, _FEWEST - 1, -_STRIDE):
            tried = min(bins * histogram.width, histogram.largest)
            cost = self._cost(histogram, bins, tried)
            if cost < least:
                best, least = tried, cost
        return best

    def _cost(self, histogram: Histogram, bins: int, largest: float) -> float:
        raise NotImplementedError


_FEWEST: Final = 128
"""Bins of the smallest range that is tried: as many as int8 has magnitudes."""
_STRIDE: Final = 16


class SquaredErrorObserver(_SearchingObserver):
    """Keeps the range with the least mean squared error."""

    def _cost(self, histogram: Histogram, bins: int, largest: float) -> float:
        kept = round_to(histogram.centers, largest / self._scheme.largest, self._scheme)
        return float((histogram.counts * (kept - histogram.centers) ** 2).sum())


class EntropyObserver(_SearchingObserver):
    """Keeps the range whose quantized distribution diverges least from that of the values.

    The divergence is that of Kullback and Leibler between counts with what is clipped in the last bin, and the same
    counts spread evenly over the bins that round to one quantized value.
    """

    def _cost(self, histogram: Histogram, bins: int, largest: float) -> float:
        reference = histogram.counts[:bins].clone()
        reference[-1] += histogram.counts[bins:].sum()
        inside = histogram.counts[:bins]
        steps = round_to(histogram.centers[:bins], largest / self._scheme.largest, self._scheme)
        _, level = torch.unique(steps, return_inverse=True)
        filled = (inside > 0).to(torch.float64)
        levels = int(level.max()) + 1
        mass = torch.zeros(levels, dtype=torch.float64, device="cpu").index_add_(0, level, inside)
        places = torch.zeros(levels, dtype=torch.float64, device="cpu").index_add_(0, level, filled)
        spread = torch.where(filled > 0, (mass / places.clamp(min=1.0))[level], 0.0)
        p, q = reference / reference.sum(), spread / spread.sum().clamp(min=1e-300)
        # what a level cannot hold costs as much as a bin that is all but empty
        ratio = torch.where(p > 0, p / q.clamp(min=1e-12), torch.ones_like(p))
        return float((p * ratio.log()).sum())


def round_to(values: torch.Tensor, scale: float, scheme: Scheme) -> torch.Tensor:
    """Returns values as they are after quantization, float64."""
    steps = (values / scale).clamp(-scheme.largest, scheme.largest)
    rounded = steps.round() if scheme.dtype is torch.int8 else steps.to(torch.float32).to(scheme.dtype)
    return rounded.to(torch.float64) * scale


def scale_of(largest: float, scheme: Scheme) -> float:
    """Returns the scale that maps a magnitude to the largest quantized value; 1 where there is nothing but zeros."""
    scale = largest / scheme.largest
    return scale if scale >= torch.finfo(torch.float32).tiny else 1.0


def read_samples(calibration: Iterable[Any] | None) -> list[ExampleInputs]:
    """Reads calibration data; see `read_calibration`.

    Raises:
        InputError: There is none, or it cannot be used.
    """
    if calibration is None:
        raise InputError(
            "there is no calibration data", hint=f"quantizing activations needs some: give {FORMS_OF_INPUTS}"
        )
    cases = read_calibration(calibration, "the calibration data", "calibration input")
    return [ExampleInputs(case.args, case.kwargs) for case in cases]


def flat_inputs(program: torch.export.ExportedProgram, samples: Sequence[ExampleInputs]) -> Iterator[list[Any]]:
    """Yields each sample as the flat list of inputs that a program's graph takes, on the program's device.

    Raises:
        InputError: A sample does not fit the program, or holds NaN or infinities.
    """
    places = _places(program)
    keywords = keyword_inputs(program)
    for index, sample in enumerate(samples):
        where = f"calibration input {index}"
        try:
            leaves = sample.in_order_of(keywords)
        except InputError as error:
            raise InputError(error.what, where=where, why=error.why, hint=error.hint) from None
        if len(leaves) != len(places):
            raise InputError(
                f"it holds {len(leaves)} inputs, the program takes {len(places)}",
                where=where,
                hint="leave out what is no input of the model, such as the labels of a data loader",
            )
        yield [_fitting(leaf, *place, where) for leaf, place in zip(leaves, places, strict=True)]


def _places(program: torch.export.ExportedProgram) -> list[tuple[str, Any]]:
    names = [spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]
    values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
    return [(name, values.get(name)) for name in names]


def _fitting(leaf: Any, name: str, meta: Any, where: str) -> Any:
    if not isinstance(meta, torch.Tensor):
        return leaf
    if not isinstance(leaf, torch.Tensor):
        raise InputError(
            f"input {name} is {kind_of(leaf)}, not a tensor", where=where, hint="convert it with torch.as_tensor"
        )
    if leaf.dtype != meta.dtype:
        raise InputError(
            f"input {name} is {dtype_name(leaf.dtype)}, the program takes {dtype_name(meta.dtype)}",
            where=where,
            hint=f"convert it with .to(torch.{dtype_name(meta.dtype)})",
        )
    fits = leaf.dim() == meta.dim() and all(
        not isinstance(wanted, int) or found == wanted for found, wanted in zip(leaf.shape, meta.shape, strict=True)
    )
    if not fits:
        raise InputError(
            f"input {name} has shape {tuple(leaf.shape)}, the program takes {tuple(meta.shape)}",
            where=where,
            hint="calibrate with inputs of the program's shape, or export it with dynamic dimensions",
        )
    if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
        raise InputError(
            f"input {name} holds NaN or infinities",
            where=where,
            why="ranges that are measured on it would be meaningless",
            hint="leave the sample out, or mend it",
        )
    return leaf.detach().to(meta.device, copy=True)


Step = Callable[[fx.Node, Callable[[Any], Any]], Any]
"""Computes a node; the second argument returns the value of an operand, which may be a node."""


def run_program(
    program: torch.export.ExportedProgram, inputs: Sequence[Any], steps: Mapping[str, Step]
) -> list[torch.Tensor]:
    """Runs a program once. Its buffers are copied, so that a model with state is left alone.

    Args:
        program: The program.
        inputs: What the caller of the model gives, flattened.
        steps: What computes nodes, by name, in place of the graph.

    Returns:
        The tensors that the model returns.
    """
    given, operands = iter(inputs), []
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            operands.append(next(given))
            continue
        assert spec.target is not None
        value: Any = program.state_dict.get(spec.target, program.constants.get(spec.target))
        is_state = spec.kind is InputKind.BUFFER and isinstance(value, torch.Tensor)
        operands.append(value.clone() if is_state else value)
    with torch.no_grad():
        results = _Interpreter(program.graph_module, steps).run(*operands, enable_io_processing=False)
    return list(tensors_in(results))


class _Interpreter(fx.Interpreter):
    """Writes in place where the program does, as graphs that were not made functional do."""

    def __init__(self, module: fx.GraphModule, steps: Mapping[str, Step]) -> None:
        super().__init__(module)
        self._steps = steps

    def run_node(self, n: fx.Node) -> Any:
        step = self._steps.get(n.name)
        return super().run_node(n) if step is None else step(n, lambda item: fx.map_arg(item, self.env.__getitem__))


def compute(node: fx.Node, value: Callable[[Any], Any], replaced: Mapping[fx.Node, torch.Tensor] | None = None) -> Any:
    """Computes a node as the graph does.

    Args:
        node: A call.
        value: Returns the value of an operand.
        replaced: Values to take for operands in place of their own.
    """
    taken = replaced or {}

    def read(item: Any) -> Any:
        return fx.map_arg(item, lambda operand: taken[operand] if operand in taken else value(operand))

    assert callable(node.target)
    return node.target(*read(node.args), **read(node.kwargs))


def require_finite(values: torch.Tensor, node: fx.Node) -> None:
    """Refuses activations with NaN or infinities.

    Raises:
        InputError: There are some.
    """
    if not bool(values.isfinite().all()):
        line = source_line(node)
        raise InputError(
            "the model computes NaN or infinities from the calibration data",
            where=node_location(node) + (f", {line}" if line else ""),
            hint="check that the data is prepared as the model expects it; masks belong after products",
        )


def correct_biases(
    editor: ProgramEditor,
    program: torch.export.ExportedProgram,
    layers: Sequence[Layer],
    samples: Sequence[ExampleInputs],
    scales: Mapping[str, float],
    config: QuantizationConfig,
) -> None:
    """Changes the biases of convolutions, before their operands are quantized.

    Args:
        editor: The program that is changed.
        program: The same program, which runs.
        layers: Layers of the editor's graph.
        samples: Calibration data.
        scales: Scales of activations, by the name of the node.
        config: The type, and how weights are scaled.
    """
    errors: dict[str, _MeanError] = {}
    steps: dict[str, Step] = {}
    chosen = [layer for layer in layers if layer.kind is Kind.CONVOLUTION and layer.weight is not None]
    for layer in chosen:
        errors[layer.node.name] = _MeanError(quantized_operands(editor, layer, scales, config))
        steps[layer.node.name] = errors[layer.node.name].step
    for inputs in flat_inputs(program, samples):
        run_program(program, inputs, steps)
    for layer in chosen:
        _add_to_bias(editor, layer, errors[layer.node.name].mean)


class _MeanError:
    """Mean of what a layer's result loses by quantization, by channel."""

    def __init__(self, replace: Callable[[fx.Node, Callable[[Any], Any]], dict[fx.Node, torch.Tensor]]) -> None:
        self._replace = replace
        self._sum: torch.Tensor | None = None
        self._count = 0

    @property
    def mean(self) -> torch.Tensor:
        assert self._sum is not None
        return self._sum / max(self._count, 1)

    def step(self, node: fx.Node, value: Callable[[Any], Any]) -> Any:
        result = compute(node, value)
        lost = (result - compute(node, value, self._replace(node, value))).to(torch.float32)
        spatial = node.args[1].meta["val"].dim() - 2  # type: ignore[union-attr]
        by_channel = lost.movedim(-1 - spatial, 0).flatten(1)
        total = by_channel.sum(1)
        self._sum = total if self._sum is None else self._sum + total
        self._count += by_channel.shape[1]
        return result


def quantized_operands(
    editor: ProgramEditor, layer: Layer, scales: Mapping[str, float], config: QuantizationConfig
) -> Callable[[fx.Node, Callable[[Any], Any]], dict[fx.Node, torch.Tensor]]:
    """Returns what gives, for a layer's call, its operands as they are after quantization.

    Args:
        editor: The program that the layer is of.
        layer: The layer.
        scales: Scales of activations, by the name of the node.
        config: The type, and how weights are scaled.
    """
    scheme = config.scheme
    kept: torch.Tensor | None = None
    if layer.weight is not None:
        value = editor.tensor(layer.weight.node)
        assert value is not None
        scale, axis = weight_scale(value, layer.weight, config)
        stored = quantize(value.detach(), scale, scheme.dtype, scheme.bits, axis)
        kept = dequantize(stored, scale, value.dtype, scheme.bits, axis)
        for view in layer.weight.views:
            kept = view.target(kept, *view.args[1:])  # type: ignore[operator]
    activations = {node.name for node in layer.operands()} if scheme.quantizes_activations else set()

    def replace(node: fx.Node, value: Callable[[Any], Any]) -> dict[fx.Node, torch.Tensor]:
        replaced: dict[fx.Node, torch.Tensor] = {}
        for operand in node.all_input_nodes:
            if operand.name in activations:
                actual = value(operand)
                step = torch.tensor(scales[operand.name], device=actual.device)
                replaced[operand] = fake_quantize(actual, step, -1, scheme.dtype)
        if kept is not None:
            operand = argument(node, layer.weight_parameter)
            assert isinstance(operand, fx.Node)
            replaced[operand] = kept
        return replaced

    return replace


def _add_to_bias(editor: ProgramEditor, layer: Layer, correction: torch.Tensor) -> None:
    assert layer.weight is not None
    bias = argument(layer.node, "bias")
    dtype = layer.node.meta["val"].dtype
    known = editor.tensor(bias)
    if bias is not None and known is None:
        return  # the graph computes it
    start = torch.zeros_like(correction) if known is None else known.detach().to(torch.float32)
    name = f"{editor.name_of(layer.weight.node)}_corrected_bias"
    set_operand(layer.node, "bias", editor.add_tensor(name, (start + correction).to(dtype)))
