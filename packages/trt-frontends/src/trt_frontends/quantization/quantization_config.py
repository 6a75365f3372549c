"""What `quantize` is asked for."""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import torch

from trt_core import InputError, SettingsError
from trt_core.held_arguments import held_to_signature
from trt_core.operators import canonical_operator, packet_name
from trt_core.quantization import limits
from trt_core.settings import read_pattern
from trt_core.wording import did_you_mean, kind_of


class Scheme(enum.Enum):
    """What is quantized, and to which type."""

    INT8 = "int8"
    FLOAT8 = "float8_e4m3"
    INT8_WEIGHTS = "int8_weight_only"
    FLOAT8_WEIGHTS = "float8_weight_only"
    INT4_WEIGHTS = "int4_weight_only"

    @property
    def dtype(self) -> torch.dtype:
        """The type that carries quantized values."""
        return torch.float8_e4m3fn if self in (Scheme.FLOAT8, Scheme.FLOAT8_WEIGHTS) else torch.int8

    @property
    def bits(self) -> int:
        """Bits of a quantized value."""
        return 4 if self is Scheme.INT4_WEIGHTS else 8

    @property
    def largest(self) -> float:
        """The largest quantized value."""
        return limits(self.dtype, self.bits)[1]

    @property
    def quantizes_activations(self) -> bool:
        """Whether products are computed with quantized values on both sides."""
        return self in (Scheme.INT8, Scheme.FLOAT8)


class Observer(enum.Enum):
    """How the range of values is chosen that quantization keeps."""

    MAX = "max"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"
    MSE = "mse"


class Kind(enum.Enum):
    """Kinds of products that can be quantized."""

    LINEAR = "linear"
    CONVOLUTION = "convolution"
    MATMUL = "matmul"
    ATTENTION = "attention"


@held_to_signature
@dataclass(frozen=True)
class QuantizationConfig:
    """What is quantized, and how ranges are chosen.

    Strings are read in place of enum members.

    Attributes:
        dtype: `int8`, `float8_e4m3`, or weights alone: `int8_weight_only`, `float8_weight_only`, `int4_weight_only`.
        observer: `max` keeps everything that was seen; `percentile` all but the largest values; `entropy` and `mse`
            the range that changes the distribution, or the values, least.
        percentile: Share of values, in percent, that `percentile` keeps.
        per_channel: Whether weights have a scale for each channel of the result, or one.
        group_size: Values of a row that share a scale in `int4_weight_only`; a weight whose rows it does not divide
            stays as it is.
        smoothing: Share, 0 to 1, of the range of activations that moves into weights (SmoothQuant; 0.5 is a good
            start for transformers); None for none.
        bias_correction: Whether biases of convolutions make up for the mean error of their quantization.
        fold_normalization: Whether batch normalization is folded into the convolution before it.
        operators: Kinds of products to quantize: `linear`, `convolution`, `matmul` (of two activations), `attention`.
        exclude: What stays as it is: names of modules with all that is in them (`encoder.layers.0`), regular
            expressions that match a whole name (`.*head`), or operators (`aten.conv2d.default`).
    """

    dtype: Scheme | torch.dtype | str = Scheme.INT8
    observer: Observer | str = Observer.MAX
    percentile: float = 99.99
    per_channel: bool = True
    group_size: int = 128
    smoothing: float | None = None
    bias_correction: bool = False
    fold_normalization: bool = True
    operators: Collection[Kind | str] | str = frozenset({Kind.LINEAR, Kind.CONVOLUTION})
    exclude: Collection[Any] | str = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _member(Scheme, self.dtype, "dtype"))
        object.__setattr__(self, "observer", _member(Observer, self.observer, "observer"))
        operators = (self.operators,) if isinstance(self.operators, str) else self.operators
        object.__setattr__(self, "operators", frozenset(_member(Kind, item, "operators") for item in operators))
        exclude = (self.exclude,) if isinstance(self.exclude, str) else self.exclude
        object.__setattr__(self, "exclude", tuple(_pattern(item) for item in exclude))
        _require(50.0 <= self.percentile <= 100.0, "percentile", self.percentile, "a number from 50 to 100")
        _require(self.smoothing is None or 0 <= self.smoothing <= 1, "smoothing", self.smoothing, "None, or 0 to 1")
        _require(self.group_size > 0 and self.group_size % 2 == 0, "group_size", self.group_size, "an even number")

    @property
    def scheme(self) -> Scheme:
        """`dtype`, as an enum member."""
        assert isinstance(self.dtype, Scheme)
        return self.dtype

    @property
    def kinds(self) -> frozenset[Kind]:
        """`operators`, as enum members."""
        return frozenset(item for item in self.operators if isinstance(item, Kind))


def read_config(config: QuantizationConfig | Mapping[str, Any] | str | None) -> QuantizationConfig:
    """Reads a configuration: one, its fields by name, or the name of a type.

    Raises:
        SettingsError: A field is unknown, or a value makes no sense.
    """
    if config is None or isinstance(config, QuantizationConfig):
        return config or QuantizationConfig()
    if isinstance(config, str):
        return QuantizationConfig(dtype=config)
    if not isinstance(config, Mapping):
        raise SettingsError(
            f"{kind_of(config)} is no configuration of quantization",
            hint="give a QuantizationConfig, a dict of its fields, or a type such as 'int8'",
        )
    known = [field.name for field in fields(QuantizationConfig)]
    for name in config:
        if name not in known:
            raise SettingsError(f"quantization has no setting {name!r}", hint=did_you_mean(name, known))
    return QuantizationConfig(**config)


_ALIASES: Final = {
    torch.int8: "int8",
    torch.float8_e4m3fn: "float8_e4m3",
    "float8": "float8_e4m3",
    "fp8": "float8_e4m3",
    "float8_e4m3fn": "float8_e4m3",
}


def _member(kind: type[enum.Enum], value: Any, where: str) -> enum.Enum:
    if isinstance(value, kind):
        return value
    try:
        return kind(_ALIASES.get(value, value))
    except ValueError:
        names = [str(member.value) for member in kind]
        raise SettingsError(
            f"{value!r} is no {kind.__name__.lower()}",
            where=where,
            hint=did_you_mean(str(value), names) or f"one of {', '.join(names)}",
        ) from None


def _pattern(item: Any) -> str:
    if not isinstance(item, (str, re.Pattern)):
        return packet_name(canonical_operator(item, "exclude"))
    try:
        return read_pattern(item)
    except InputError as error:
        raise SettingsError(
            f"exclude={item!r} cannot be read",
            where="exclude",
            why=error.what,
            hint=f"{error.hint}; or give the name of a module, or an operator such as aten.linear",
        ) from error


def _require(holds: bool, name: str, value: Any, wanted: str) -> None:
    if not holds:
        raise SettingsError(f"{name}={value!r} makes no sense", hint=f"give {wanted}")
