"""What a model is compiled for: shapes, or ranges of shapes, and types of its inputs."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch

from trt_core.dtypes import dtype_name, parse_dtype
from trt_core.errors import InputError
from trt_core.held_arguments import held_to_names
from trt_core.lazy_names import hints_of_attributes
from trt_core.sizes.profiles import NamedDimension, Shape, ShapeProfile, read_shape
from trt_core.wording import kind_of, nearest_or_all

_FORMATS = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
    "linear": torch.contiguous_format,
}
_SHAPES: Final = ("min_shape", "opt_shape", "max_shape")


@hints_of_attributes(
    torch_tensor="example() makes a tensor",
    torch_dtype="dtype is the type of PyTorch",
    low_tensor_domain_incl="tensor_domain is the pair of both ends",
    high_tensor_domain_excl="tensor_domain is the pair of both ends",
)
@held_to_names
class Input:
    """One input of a model: a fixed shape, or ranges of shapes, each with the one to optimize for.

    A dimension whose minimum and maximum agree is static. Every value lies in its range:
    `min_shape[i] <= opt_shape[i] <= max_shape[i]`.

    Args:
        shape: The fixed shape. Give either this, or the three shapes below, or `profiles`.
        min_shape: Smallest extents.
        opt_shape: Extents that the engine is tuned for.
        max_shape: Largest extents.
        profiles: Several ranges, each `(min_shape, opt_shape, max_shape)` or a dict with these keys: engines get an
            optimization profile for each, and a call runs with one that takes its shapes. Inputs with several have
            equally many, and the first ones belong together, the second ones, and so on; an input with one range has
            it in all of them.
        dtype: Element type, default float32.
        format: Memory format, `torch.contiguous_format` (default) or `torch.channels_last`.
        name: Name of the model's argument that this input is for; it names dynamic dimensions in exported programs.
        tensor_domain: Half-open interval `[low, high)` that example values are drawn from. Default: [0, 2).
        dimensions: What dynamic dimensions are called, by axis: `{0: "batch"}`. Dimensions of one name are equal in
            every call, whichever inputs have them. `{1: "8*length"}` and `{1: "length + 1"}` follow from another one.
        shared_dims: The same, as scripts for torch-tensorrt call it.

    Raises:
        InputError: A shape is missing, empty where it must not be, of another rank, negative, or out of order; a
            name is given to an axis that does not vary, or does not fit its range; or a value cannot be read.

    Attributes:
        profiles: The ranges, at least one.
        min_shape, max_shape: Smallest and largest extents, over all ranges.
        opt_shape: Extents that the first range is tuned for.

    Example:
        >>> batch = Input(min_shape=(1, 3), opt_shape=(4, 3), max_shape=(8, 3))
        >>> batch.dynamic_axes
        (0,)
        >>> Input((2, 2), dtype=torch.float16).example().shape
        torch.Size([2, 2])
    """

    class _ShapeMode(enum.Enum):
        """What scripts for torch-tensorrt compare `shape_mode` with."""

        STATIC = 0
        DYNAMIC = 1

    def __init__(
        self,
        shape: Sequence[int] | None = None,
        *,
        min_shape: Sequence[int] | None = None,
        opt_shape: Sequence[int] | None = None,
        max_shape: Sequence[int] | None = None,
        profiles: Sequence[Sequence[Sequence[int]] | Mapping[str, Sequence[int]]] | None = None,
        dtype: Any = torch.float32,
        format: Any = torch.contiguous_format,  # noqa: A002 - the name users know
        name: str = "",
        tensor_domain: tuple[float, float] = (0, 2),
        dimensions: Mapping[int, str] | None = None,
        shared_dims: Mapping[int, str] | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise InputError(f"an Input is named by a string, not {kind_of(name)}")
        self.name = name
        self.dtype = parse_dtype(dtype)
        self.format = _parse_format(format)
        self.tensor_domain = self._read_domain(tensor_domain)
        self.dimensions: dict[int, NamedDimension] = {}
        self.profiles = self._read_profiles(shape, (min_shape, opt_shape, max_shape), profiles)
        self.min_shape: Shape = tuple(map(min, *(found.min for found in self.profiles), self.profiles[0].min))
        self.opt_shape: Shape = self.profiles[0].opt
        self.max_shape: Shape = tuple(map(max, *(found.max for found in self.profiles), self.profiles[0].max))
        if dimensions is not None and shared_dims is not None:
            raise InputError(
                "dimensions and shared_dims are the same thing", where=self._where(), hint="give dimensions alone"
            )
        self._name_dimensions(dimensions or shared_dims or {})

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, *, name: str = "") -> Input:
        """Returns a static input with the tensor's shape, type and memory format.

        Raises:
            InputError: It is no tensor.
        """
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"cannot read an Input from {kind_of(tensor)}", hint="give a tensor")
        channels_last = tensor.dim() == 4 and not tensor.is_contiguous()
        channels_last = channels_last and tensor.is_contiguous(memory_format=torch.channels_last)
        return cls(
            tuple(tensor.shape),
            dtype=tensor.dtype,
            format=torch.channels_last if channels_last else torch.contiguous_format,
            name=name,
        )

    @classmethod
    def from_tensors(cls, tensors: Iterable[torch.Tensor]) -> list[Input]:
        """Returns a static input for each tensor; see `from_tensor`.

        Raises:
            InputError: These are no tensors.
        """
        if isinstance(tensors, (Mapping, torch.Tensor)) or not isinstance(tensors, Iterable):
            raise InputError(
                f"cannot read a list of Inputs from {kind_of(tensors)}",
                hint="give a list of tensors; what is nested is written with Inputs in the place of its tensors",
            )
        return [cls.from_tensor(tensor) for tensor in tensors]

    @property
    def is_dynamic(self) -> bool:
        """Whether any dimension has a range."""
        return self.min_shape != self.max_shape

    @property
    def shape_mode(self) -> _ShapeMode:
        """The same as `is_dynamic`, as scripts for torch-tensorrt call it: `Input._ShapeMode.DYNAMIC`, or `STATIC`."""
        return self._ShapeMode.DYNAMIC if self.is_dynamic else self._ShapeMode.STATIC

    @property
    def dynamic_axes(self) -> tuple[int, ...]:
        """Axes whose minimum and maximum differ."""
        return tuple(axis for axis, low in enumerate(self.min_shape) if low != self.max_shape[axis])

    @property
    def shape(self) -> Shape:
        """The shape, with -1 for dynamic dimensions."""
        return tuple(-1 if low != high else low for low, high in zip(self.min_shape, self.max_shape, strict=True))

    def example(self, which: str = "opt", device: Any = "cpu", *, profile: int = 0) -> torch.Tensor:
        """Makes an example tensor.

        Args:
            which: `"min"`, `"opt"` or `"max"`: which of the shapes.
            device: Where the tensor lives.
            profile: Index of the range whose shape it is.

        Returns:
            A tensor of values uniform in `tensor_domain` (integers for integer types, both values for bool).

        Raises:
            InputError: `which` is none of the three, or there is no such range.
        """
        if which not in ("min", "opt", "max"):
            raise InputError(f"no {which!r} shape", where=self._where(), hint="choose min, opt or max")
        if not 0 <= profile < len(self.profiles):
            raise InputError(f"there is no profile {profile}", where=self._where(), why=f"it has {len(self.profiles)}")
        shape: Shape = getattr(self.profiles[profile], which)
        low, high = self.tensor_domain
        if self.dtype.is_floating_point or self.dtype.is_complex:
            values = torch.rand(shape, device=device) * (high - low) + low
        else:
            values = torch.randint(int(low), max(int(high), int(low) + 1), shape, device=device)
        values = values.to(self.dtype)
        return values.to(memory_format=self.format) if values.dim() == 4 else values

    def example_tensor(self, optimization_profile_field: str | None = None) -> torch.Tensor:
        """The same on the CPU, as scripts for torch-tensorrt call it.

        Args:
            optimization_profile_field: `"min_shape"`, `"opt_shape"` or `"max_shape"`; by default the second.

        Raises:
            InputError: It is none of the three.
        """
        if optimization_profile_field is None:
            return self.example()
        return self.example(str(optimization_profile_field).removesuffix("_shape"))

    def accepts(self, shape: Sequence[int]) -> bool:
        """Whether a shape lies in one of the ranges."""
        return any(profile.accepts(shape) for profile in self.profiles)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Input) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        if len(self.profiles) > 1:
            shapes = f"profiles=[{', '.join(map(str, self.profiles))}]"
        elif self.is_dynamic:
            shapes = f"min_shape={self.min_shape}, opt_shape={self.opt_shape}, max_shape={self.max_shape}"
        else:
            shapes = f"shape={self.opt_shape}"
        name = f", name={self.name!r}" if self.name else ""
        names = {axis: str(dimension) for axis, dimension in self.dimensions.items()}
        dimensions = f", dimensions={names}" if names else ""
        return f"Input({shapes}, dtype={dtype_name(self.dtype)}{name}{dimensions})"

    def _key(self) -> tuple[object, ...]:
        dimensions = tuple(sorted(self.dimensions.items()))
        return (self.profiles, self.dtype, self.format, self.name, dimensions)

    def _where(self) -> str:
        return f"Input {self.name!r}" if self.name else "Input"

    def _read_domain(self, domain: Any) -> tuple[float, float]:
        try:
            low, high = domain
            is_finite, is_empty = -math.inf < low and high < math.inf, not low < high
        except (TypeError, ValueError) as error:
            raise InputError(
                f"tensor_domain={domain!r} is no interval", where=self._where(), hint="give (low, high), two numbers"
            ) from error
        if is_empty or not is_finite:
            raise InputError(
                f"tensor_domain {domain} is {'empty' if is_empty else 'not bounded'}",
                where=self._where(),
                hint="give two numbers, the lower one first",
            )
        return low, high

    def _read_profiles(
        self,
        shape: Sequence[int] | None,
        shapes: tuple[Sequence[int] | None, Sequence[int] | None, Sequence[int] | None],
        profiles: Sequence[Sequence[Sequence[int]] | Mapping[str, Sequence[int]]] | None,
    ) -> tuple[ShapeProfile, ...]:
        """Reads the one of three ways in which shapes were given."""
        given = [shape is not None, any(part is not None for part in shapes), profiles is not None]
        if sum(given) > 1:
            raise InputError(
                "give either shape, or min_shape, opt_shape and max_shape, or profiles", where=self._where()
            )
        if shape is not None:
            fixed = read_shape("shape", shape, self._where())
            return (ShapeProfile(fixed, fixed, fixed),)
        if profiles is not None:
            return self._read_several(profiles)
        if any(part is None for part in shapes):
            raise InputError(
                "min_shape, opt_shape and max_shape belong together",
                where=self._where(),
                hint="give all three, or one fixed shape",
            )
        parts = zip(_SHAPES, shapes, strict=True)
        found = [read_shape(name, part, self._where()) for name, part in parts if part is not None]
        return (ShapeProfile.checked(*found, where=self._where()),)

    def _read_several(
        self, profiles: Sequence[Sequence[Sequence[int]] | Mapping[str, Sequence[int]]]
    ) -> tuple[ShapeProfile, ...]:
        form = "give a list of (min_shape, opt_shape, max_shape)"
        if isinstance(profiles, str) or not isinstance(profiles, Sequence) or not profiles:
            raise InputError(f"profiles={profiles!r} holds no ranges of shapes", where=self._where(), hint=form)
        found = []
        for index, item in enumerate(profiles):
            where = f"{self._where()}, profile {index}"
            if isinstance(item, Mapping) and item.keys() == set(_SHAPES):
                item = [item[name] for name in _SHAPES]
            if isinstance(item, str) or not isinstance(item, Sequence) or len(item) != 3:
                raise InputError(f"{item!r} is no range of shapes", where=where, hint=form)
            shapes = [read_shape(name, part, where) for name, part in zip(("min", "opt", "max"), item, strict=True)]
            found.append(ShapeProfile.checked(*shapes, where=where))
        if len({len(profile.opt) for profile in found}) > 1:
            listed = ", ".join(f"{len(profile.opt)}" for profile in found)
            raise InputError("the profiles differ in rank", where=self._where(), why=f"their ranks are {listed}")
        return tuple(found)

    def _name_dimensions(self, dimensions: Mapping[int, str]) -> None:
        if not isinstance(dimensions, Mapping):
            raise InputError(
                f"dimensions must map axes to names, not {kind_of(dimensions)}",
                where=self._where(),
                hint='write dimensions={0: "batch"}',
            )
        for axis, text in dimensions.items():
            if axis not in self.dynamic_axes:
                raise InputError(
                    f"dimension {axis!r} is called {text!r}, and does not vary",
                    where=self._where(),
                    hint=f"the dynamic axes are {', '.join(map(str, self.dynamic_axes)) or 'none'}",
                )
            dimension = NamedDimension.parse(text)
            for extent in (shape[axis] for profile in self.profiles for shape in profile):
                if dimension.solve(extent) is None:
                    raise InputError(
                        f"dimension {axis} is {extent}, which is no {dimension}",
                        where=self._where(),
                        hint="give min, opt and max that the name allows",
                    )
            self.dimensions[axis] = dimension


def _parse_format(spec: Any) -> torch.memory_format:
    if isinstance(spec, torch.memory_format):
        return spec
    if isinstance(spec, str) and spec in _FORMATS:
        return _FORMATS[spec]
    raise InputError(f"unknown memory format {spec!r}", hint=nearest_or_all(spec, _FORMATS))
