"""The header of a plan: everything that must be known about an engine without its provider."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

import torch

from trt_core.cached_property import cached_property
from trt_core.errors import PlanError
from trt_core.files import records, typed
from trt_core.files.records import Form, Grown, Row
from trt_core.files.strict_json import parse_json
from trt_core.files.typed import BadField
from trt_core.process_groups import GroupMembers
from trt_core.provider import current_provider, provider_module
from trt_core.sizes.expressions import Extent, evaluate_extent, is_extent, symbols_in
from trt_runtime.bindings import Binding
from trt_runtime.plan_notes import OF_NONE, DigestField, LaterDigest, digest_of, note_own, vouch
from trt_runtime.profile_choice import InputRanges, Range, as_ranges, span_of, static_ranges

if TYPE_CHECKING:
    from trt_core.refit_table import RefitTable
else:
    RefitTable = Any


FORMAT_VERSION: Final = 2
"""Version of the header's fields, its bindings and its refit table; a header of another version is refused."""

MAX_BYTES: Final = 256 << 20
"""Longest header that is read."""

_DEVICES: Final = ("cpu", "cuda")
_INTEGERS: Final = (torch.int64, torch.int32)

UPDATES: Final = "updates"
PLACES: Final = "places"
PROCESS_GROUP: Final = "process_group"
PLUGINS: Final = "plugins"
OPTIONAL: Final = frozenset({UPDATES, PLACES, PROCESS_GROUP, PLUGINS})
"""Fields that only headers of engines with such things have, so that others are read by older versions, too."""

_DIGEST: Final = "payload_sha256"
_DESCRIPTIVE: Final = frozenset({"name", "returns_tuple", "settings_digest", "layer_count", "build_seconds", PLUGINS})
"""Fields that nothing about running an engine depends on."""


def _read_rows(value: Any, place: str) -> Any:
    if value is None or not is_extent(value):
        raise BadField(place, f"{value!r:.80} is no number of rows")
    return value


def _read_group(value: Any, place: str) -> GroupMembers:
    group = records.read(GroupMembers, value, place)
    if len(group.ranks) < 2 or len(set(group.ranks)) != len(group.ranks):
        raise BadField(place, "its ranks are two or more, each once")
    return group


def _read_refit(value: Any, place: str) -> RefitTable | None:
    if value is None:
        return None
    from trt_core.refit_table import RefitTable  # most engines that are only run have none

    return RefitTable.from_json(value)


@dataclass(frozen=True)
class CachePlace(Row, Grown):
    """Where the rows go that a run writes to a cache.

    Attributes:
        cache: Index of the input that is the cache.
        source: Index of the input, of integers, whose first element says where the first row goes.
        offset: What is added to it.
        rows: How many there are: an int, a symbol or an expression.
        wraps: Whether negative places count from the end.
        axis: The axis of the cache that places are counted on; 2 of (batch, heads, length, width).
        by_batch: Whether each element of the source says so, of its own row of the batch.
    """

    cache: int
    source: int
    offset: Annotated[int, Form(partial(typed.integer, low=-typed.LARGEST))]
    rows: Annotated[Extent, Form(_read_rows)]
    wraps: bool
    axis: int = 2
    by_batch: bool = False


@dataclass(frozen=True)
class PlanHeader:
    """What an engine takes and returns, what it was built by and what it needs to run.

    Use `PlanHeader.describe` to write the header of an engine that was just built.

    Attributes:
        provider: Who built the plan, `"portable"` or `"tensorrt"`.
        provider_version: Exact version of the provider.
        torch_version: Version of PyTorch at build time.
        compute_capability: (major, minor) of the GPU that the engine is bound to; None where it is not bound.
        inputs: Inputs, in the order of the call.
        outputs: Outputs, in the order of the result.
        symbols: Where each symbolic extent is read: (input index, axis) by name.
        settings_digest: Digest of the compilation settings; free text for caches.
        payload_sha256: SHA-256 of the plan in hexadecimal.
        payload_bytes: Size of the plan in bytes.
        ranges: (min, opt, max) of every dimension of every input: the optimization profile, or what several span.
        profiles: The ranges of each optimization profile where there are several, in the order of the engine.
        device: Kind of device that the engine runs on, `"cpu"` or `"cuda"`.
        name: Name of the block.
        returns_tuple: Whether the block returns a tuple, rather than its one output.
        layer_count: Layers of the network.
        build_seconds: How long the build took.
        version_compatible: Whether later TensorRT releases of the same major version may run the engine.
        hardware_compatible: Whether later GPUs than the one of `compute_capability` may run the engine.
        refit: How the engine's weights follow from the model's; None where they cannot be replaced.
        updates: Inputs that a run updates in place, each with the name of the engine's output that is the same memory;
            none of these is among `outputs`.
        places: Where updates begin, in engines for the CPU: calls that would write outside of a cache are refused.
        process_group: The ranks whose communicator each execution context needs; None where it needs none, as engines
            of the portable provider, which find process groups themselves.
        plugins: Plugins that it holds, by name.
        format_version: `FORMAT_VERSION` at the time of writing.

    Raises:
        PlanError: The fields contradict each other.
    """

    provider: str
    provider_version: str
    torch_version: str
    compute_capability: tuple[int, int] | None
    inputs: tuple[Binding, ...]
    outputs: tuple[Binding, ...]
    symbols: Mapping[str, tuple[int, int]]
    payload_sha256: str
    payload_bytes: int
    ranges: tuple[tuple[tuple[int, int, int], ...], ...]
    device: str
    name: str = ""
    settings_digest: str = ""
    returns_tuple: bool = False
    layer_count: int = 0
    build_seconds: float = 0.0
    version_compatible: bool = False
    hardware_compatible: bool = False
    refit: Annotated[RefitTable | None, Form(_read_refit, lambda table: table and table.to_json())] = field(
        default=None, repr=False
    )
    profiles: tuple[tuple[tuple[tuple[int, int, int], ...], ...], ...] = ()
    updates: tuple[tuple[int, str], ...] = ()
    places: tuple[CachePlace, ...] = ()
    process_group: Annotated[GroupMembers | None, Form(_read_group, records.write)] = None
    plugins: tuple[str, ...] = ()
    format_version: int = field(default=FORMAT_VERSION)

    def __post_init__(self) -> None:
        _check_version(self.format_version)
        if self.device not in _DEVICES:
            raise PlanError(f"unknown device {self.device!r} in a plan header")
        self._check_names()
        for ranges in (self.ranges, *self.profiles):
            self._check_ranges(ranges)
        if len(self.profiles) == 1:
            raise PlanError(f"{self.title} has one profile: there are none, or several")
        if self.profiles and self.ranges != span_of(self.profiles):
            raise PlanError(f"the ranges of {self.title} are not those that its profiles span")
        self._check_extents()
        if len(self.outputs) != 1 and not self.returns_tuple:
            raise PlanError(f"{self.title} has {len(self.outputs)} outputs", hint="set returns_tuple=True")

    def surely_describes(self, plan: torch.Tensor) -> bool:
        """Whether it was made of this very plan, which nobody has written to since, so that no digest has to say it."""
        digest = vars(self)[_DIGEST]
        return isinstance(digest, LaterDigest) and digest.is_of(plan)

    def begin_digest(self) -> PlanHeader:
        """Has a thread compute the digest of a large plan that nobody has asked for.

        Returns:
            The header, or one like it with another digest, which need not be waited for and whose text is as long.
        """
        digest = vars(self)[_DIGEST]
        return replace(self, payload_sha256=OF_NONE) if isinstance(digest, LaterDigest) and digest.begin() else self

    @classmethod
    def describe(
        cls,
        plan: torch.Tensor,
        *,
        inputs: Sequence[Binding],
        outputs: Sequence[Binding],
        device: torch.device | str,
        ranges: Sequence[Sequence[Range]] | None = None,
        profiles: Sequence[Sequence[Sequence[Range]]] = (),
        returns_tuple: bool | None = None,
        symbols: Mapping[str, tuple[int, int]] | None = None,
        is_own: bool = True,
        **others: Any,
    ) -> PlanHeader:
        """Describes a plan of the provider in use, by default one that was just built in this process.

        Args:
            plan: (bytes,), uint8: the serialized engine.
            inputs: Inputs, in the order of the call.
            outputs: Outputs, in the order of the result.
            device: Where the engine runs. An engine of TensorRT is bound to that GPU's compute capability.
            ranges: (min, opt, max) per dimension and input; may be left out when all inputs are static.
            profiles: Such ranges for each optimization profile of the engine, in its order, instead of `ranges`.
            returns_tuple: Whether the block returns a tuple; by default when it has not exactly one output.
            symbols: (input index, axis) by symbol name; needed when a shape has symbols.
            is_own: Whether it was built here, so that this user may sign for it.
            others: More fields of `PlanHeader`.

        Raises:
            PlanError: The arguments contradict each other, or the tensor cannot hold a plan.
        """
        if is_own:
            note_own(plan)
        payload = digest_of(plan)
        if isinstance(payload, LaterDigest) and is_own:
            vouch(plan)  # nobody else has had it
        target = torch.device(device)
        provider = current_provider()
        bound = provider.value == "tensorrt"
        several = tuple(map(as_ranges, profiles))
        if several:
            ranges = span_of(several)
        rest: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in others.items()}
        return cls(
            provider=provider.value,
            provider_version=str(provider_module().__version__),
            torch_version=str(torch.__version__),
            compute_capability=torch.cuda.get_device_capability(target) if bound else None,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            symbols=dict(symbols or {}),
            payload_sha256=payload,  # type: ignore[arg-type]  # computed when it is read
            payload_bytes=plan.numel(),
            ranges=static_ranges(inputs) if ranges is None else as_ranges(ranges),
            device=target.type,
            returns_tuple=len(outputs) != 1 if returns_tuple is None else returns_tuple,
            profiles=several if len(several) > 1 else (),
            **rest,
        )

    @property
    def title(self) -> str:
        """How messages call the engine."""
        return f"engine {self.name!r}" if self.name else "the engine"

    @cached_property
    def text(self) -> str:
        """The header as canonical JSON: equal headers have equal texts."""
        return json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def identity(self) -> str:
        """What makes two engines the same: the text without what only describes how the engine came about."""
        return self.text_without(_DESCRIPTIVE)

    @cached_property
    def bindings_identity(self) -> str:
        """The identity without the digest of the plan, for plans that are known by where they lie."""
        return self.text_without(_DESCRIPTIVE | {_DIGEST})

    def text_without(self, names: Set[str] = frozenset({_DIGEST})) -> str:
        """The text without some fields; by default without the digest, which may take long."""
        values = {name: value for name, value in self.to_json(names).items() if name not in names}
        return json.dumps(values, sort_keys=True, separators=(",", ":"), allow_nan=False)

    def to_json(self, without: Set[str] = frozenset()) -> dict[str, Any]:
        """Returns the header as JSON values.

        Args:
            without: Fields that may be missing.
        """
        forms = {name: form for name, form in records.forms_of(type(self)).items() if name not in without}
        found = {name: getattr(self, name) for name in forms}  # the digest takes long where nobody has asked yet
        return {name: forms[name].write(item) for name, item in found.items() if item or name not in OPTIONAL}

    @classmethod
    def from_json(cls, value: Any) -> PlanHeader:
        """Reads what `to_json` returned; nothing may be missing, unknown or of another type.

        Raises:
            PlanError: The message names the field.
        """
        if not isinstance(value, dict):
            raise PlanError("a plan header is a JSON object")
        if "format_version" in value:  # first, since another version may have other fields
            _check_version(value["format_version"])
        forms = records.forms_of(cls)
        names = forms.keys()
        if missing := sorted(names - set(value) - OPTIONAL):
            raise PlanError(f"the plan header lacks {', '.join(missing)}", hint="compile the model again")
        if unknown := sorted(set(value) - names):
            raise PlanError(
                f"the plan header has unknown fields: {', '.join(map(str, unknown))}",
                hint="install the version of trt-runtime that wrote it, or compile the model again",
            )
        try:
            values = {name: forms[name].read(item, name) for name, item in value.items()}
        except BadField as error:
            raise PlanError(f"the plan header's {error}", hint="compile the model again") from error
        return cls(**values)

    @classmethod
    def from_text(cls, text: str | bytes) -> PlanHeader:
        """Reads a header from JSON text.

        Raises:
            PlanError: The text is not JSON, or not a header.
        """
        try:
            value = parse_json(text.encode() if isinstance(text, str) else text, max_bytes=MAX_BYTES)
        except ValueError as error:  # text with halves of characters cannot be encoded
            raise PlanError("the plan header is not JSON", why=str(error)) from error
        return cls.from_json(value)

    @cached_property
    def bounds(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """Smallest and largest size of every dimension of every input."""
        return tuple(tuple((low, high) for low, _, high in shape) for shape in self.ranges)

    def __copy__(self) -> PlanHeader:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> PlanHeader:
        return self

    def _check_names(self) -> None:
        counts = Counter(binding.name for binding in (*self.inputs, *self.outputs))
        counts.update(name for _, name in self.updates)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise PlanError(f"{self.title} has two bindings called {', '.join(twice)}")
        updated = [index for index, _ in self.updates]
        if len(set(updated)) != len(updated) or not all(0 <= index < len(self.inputs) for index in updated):
            raise PlanError(f"{self.title} updates the inputs {updated}, of {len(self.inputs)}")
        for place in self.places:
            if place.cache not in updated or not 0 <= place.axis < self.inputs[place.cache].rank:
                raise PlanError(f"{self.title} writes to a place of input {place.cache}, which it does not update")
            if not 0 <= place.source < len(self.inputs) or self.inputs[place.source].dtype not in _INTEGERS:
                raise PlanError(f"{self.title} writes to places that input {place.source} says, which is no integer")

    def _check_ranges(self, ranges: InputRanges) -> None:
        if len(ranges) != len(self.inputs):
            raise PlanError(f"{self.title} has {len(self.inputs)} inputs and ranges for {len(ranges)}")
        for binding, shape in zip(self.inputs, ranges, strict=True):
            if len(shape) != binding.rank:
                raise PlanError(
                    f"input {binding.name!r} of {self.title} has rank {binding.rank} and ranges for "
                    f"{len(shape)} dimensions"
                )
            for axis, (bounds, extent) in enumerate(zip(shape, binding.shape, strict=True)):
                low, best, high = bounds
                fixed = isinstance(extent, int)
                if not 0 <= low <= best <= high or (fixed and bounds != (extent,) * 3):
                    raise PlanError(
                        f"dimension {axis} of input {binding.name!r} of {self.title} is {extent!r} "
                        f"with the range {bounds}",
                        hint="ranges are 0 <= min <= opt <= max, all equal to a static extent",
                    )

    def _check_extents(self) -> None:
        """Every symbol can be read from an input, and every expression computes at the tuned shapes."""
        values: dict[str, int | torch.SymInt] = {}
        for name, (index, axis) in self.symbols.items():
            if not (0 <= index < len(self.inputs) and 0 <= axis < self.inputs[index].rank):
                raise PlanError(
                    f"symbol {name!r} of {self.title} is read from dimension {axis} of input {index}, "
                    "which does not exist"
                )
            values[name] = self.ranges[index][axis][1]
        shapes = [(binding.name, binding.shape) for binding in (*self.inputs, *self.outputs)]
        shapes += [(self.inputs[place.cache].name, (place.rows,)) for place in self.places]
        for name, shape in shapes:
            for extent in shape:
                if extent is None:
                    continue
                if unknown := sorted(symbols_in(extent) - set(values)):
                    raise PlanError(
                        f"the shape of {name!r} in {self.title} uses {', '.join(unknown)}, which no input defines"
                    )
                try:
                    evaluate_extent(extent, values)
                except (ArithmeticError, ValueError) as error:
                    raise PlanError(
                        f"the shape of {name!r} in {self.title} cannot be computed", why=str(error)
                    ) from error


@functools.lru_cache(maxsize=1024)
def parse_header(text: str) -> PlanHeader:
    """Reads a header; the result is remembered, so a repeated text costs a lookup.

    Raises:
        PlanError: The text is not a header.
    """
    return PlanHeader.from_text(text)


PlanHeader.payload_sha256 = DigestField(_DIGEST)  # type: ignore[assignment]


def _check_version(version: Any) -> None:
    if version != FORMAT_VERSION or isinstance(version, bool):
        raise PlanError(
            f"the plan header has format version {version!r}, this trt-runtime reads {FORMAT_VERSION}",
            hint="install the version of trt-runtime that wrote it, or compile the model again",
        )
