"""Timing cache: how long each tactic took, by what was timed and where."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any, Final

import torch

from trt_core.files import records, typed
from trt_core.files.strict_json import parse_json
from trt_portable.memory import IHostMemory, memory_of
from trt_portable.plan.engine_info import EngineInfo, is_host_constant
from trt_portable.pybind import Sealed, instance_of, to_boolean, to_integer, to_number

_MAGIC: Final = b"TRTPTIME"
_KEY_BYTES: Final = 16


class TimingCacheKey:
    """Identity of one timed thing: 16 bytes, written as ``0x`` and 32 hexadecimal digits."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        if len(data) != _KEY_BYTES:
            raise ValueError(f"a timing cache key has {_KEY_BYTES} bytes, not {len(data)}")
        self._data = bytes(data)

    @staticmethod
    def parse(text: str) -> TimingCacheKey:
        """Reads the text form.

        Raises:
            ValueError: Not ``0x`` and 32 hexadecimal digits.
        """
        digits = text[2:] if text[:2] in ("0x", "0X") else ""
        if len(digits) != 2 * _KEY_BYTES:
            raise ValueError(f"not 0x and {2 * _KEY_BYTES} hexadecimal digits: {text!r}")
        return TimingCacheKey(bytes.fromhex(digits))

    @staticmethod
    def of(*parts: str) -> TimingCacheKey:
        """The key of something described by texts."""
        digest = hashlib.sha256("\0".join(parts).encode())
        return TimingCacheKey(digest.digest()[:_KEY_BYTES])

    def __str__(self) -> str:
        return "0x" + self._data.hex()

    def __repr__(self) -> str:
        return f"TimingCacheKey({self})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimingCacheKey) and self._data == other._data

    def __hash__(self) -> int:
        return hash(self._data)


class TimingCacheValue:
    """The tactic that was fastest, by hash, and its time in milliseconds."""

    __slots__ = ("tacticHash", "timingMSec")

    def __init__(self, arg0: int, arg1: float) -> None:
        self.tacticHash = to_integer(arg0)
        self.timingMSec = to_number(arg1)

    def __repr__(self) -> str:
        return f"TimingCacheValue({self.tacticHash}, {self.timingMSec})"


def environment() -> dict[str, str]:
    """What makes timings comparable: PyTorch's version and the processor."""
    device = torch.backends.cpu.get_cpu_capability()
    if torch.cuda.is_available():
        device = f"{device}, {torch.cuda.get_device_name()}"
    return {"torch": str(torch.__version__), "device": device}


class ITimingCache(Sealed):
    """Timings by key; made by `IBuilderConfig.create_timing_cache`, shared by any number of builds."""

    def __init__(self, made_in: Mapping[str, str] | None = None) -> None:
        self._entries: dict[TimingCacheKey, TimingCacheValue] = {}
        self._made_in = dict(made_in) if made_in is not None else environment()

    @staticmethod
    def _deserialize(blob: Any) -> ITimingCache:
        """Reads what `serialize` wrote; empty bytes give an empty cache.

        Raises:
            ValueError: Not a timing cache, or a damaged one.
        """
        data = bytes(blob)
        if not data:
            return ITimingCache()
        head = len(_MAGIC) + hashlib.sha256().digest_size
        if not data.startswith(_MAGIC):
            raise ValueError("not a timing cache of trt-portable")
        if hashlib.sha256(data[head:]).digest() != data[len(_MAGIC) : head]:
            raise ValueError("the timing cache is truncated or corrupted")
        what = "the timing cache"
        document = typed.fields(parse_json(data[head:], max_bytes=len(data)), what, ("made_in", "entries"))
        made_in = typed.mapping(document["made_in"], what)
        cache = ITimingCache({name: typed.text(value, what) for name, value in made_in.items()})
        for key, entry in typed.mapping(document["entries"], "the entries of the timing cache").items():
            tactic, milliseconds = typed.items(entry, f"entry {key!r:.60} of the timing cache", 2)
            value = TimingCacheValue(typed.integer(tactic, what, -(2**63)), typed.number(milliseconds, what))
            cache._entries[TimingCacheKey.parse(key)] = value
        return cache

    def serialize(self) -> IHostMemory:
        """The cache as bytes."""
        entries = {str(key): [value.tacticHash, value.timingMSec] for key, value in self._entries.items()}
        text = json.dumps({"made_in": self._made_in, "entries": entries}).encode()
        return memory_of(_MAGIC + hashlib.sha256(text).digest() + text)

    def matches(self) -> bool:
        """Whether the timings were taken with this PyTorch on this processor."""
        return self._made_in == environment()

    def combine(self, input_cache: ITimingCache, ignore_mismatch: bool) -> bool:
        """Adds another cache's entries; where both know a key, this cache's entry stays.

        Returns:
            False when the caches stem from different environments and that is not ignored.
        """
        if not to_boolean(ignore_mismatch) and instance_of(ITimingCache, input_cache)._made_in != self._made_in:
            return False
        self._entries = {**instance_of(ITimingCache, input_cache, "input_cache")._entries, **self._entries}
        return True

    def reset(self) -> bool:
        """Forgets all entries."""
        self._entries.clear()
        return True

    def queryKeys(self) -> list[TimingCacheKey]:
        """All keys."""
        return list(self._entries)

    def query(self, key: TimingCacheKey) -> TimingCacheValue | None:
        """The entry of a key, or None."""
        value = self._entries.get(instance_of(TimingCacheKey, key, "key"))
        return None if value is None else TimingCacheValue(value.tacticHash, value.timingMSec)

    def update(self, key: TimingCacheKey, value: TimingCacheValue) -> bool:
        """Replaces the entry of a known key; a time of NaN removes it.

        Returns:
            False when the key is unknown or the time is not a time.
        """
        instance_of(TimingCacheValue, value, "value")
        if instance_of(TimingCacheKey, key, "key") not in self._entries:
            return False
        if math.isnan(value.timingMSec):
            del self._entries[key]
            return True
        if not math.isfinite(value.timingMSec) or value.timingMSec < 0.0:
            return False
        self._record(key, value)
        return True

    def _record(self, key: TimingCacheKey, value: TimingCacheValue) -> None:
        self._entries[key] = value


_VERBATIM: Final = ("attributes", "plugin")
"""What layers say of themselves. A name in it is no name of theirs: a plugin's says what is computed."""
_NAMES: Final = frozenset({"name", "metadata", "weight_names", "refittable", "dimension_names", "debug"})


def timing_key(
    structure: Mapping[str, Any], info: EngineInfo, tensors: Mapping[str, torch.Tensor], profile: int, *environment: str
) -> TimingCacheKey:
    """The key of a network at a profile.

    Layers with their attributes, the layers inside loops and conditionals, boundaries, types and counts of
    weights, which weights are shared, shapes and types of tensors, and numbers that shapes may depend on all
    take part. Names do not, nor do the values of other weights.

    Args:
        structure: The network part of a plan.
        info: The engine part.
        tensors: Weights by id.
        profile: Index of the profile whose shapes are timed.
        environment: What else decides: device, tactics, level.
    """
    numbers = [
        tensors[slot.weights].reshape(-1).tolist()
        for slot in info.weight_slots
        if is_host_constant(slot) and slot.weights in tensors
    ]
    places = {tensor.name: at for at, tensor in enumerate(info.io)}
    tensors_of_network = [
        {**_without_names(tensor), "aliased_input": places.get(tensor["aliased_input"])}
        for tensor in map(records.write, info.io)
    ]
    ranges = info.profiles[profile]
    shapes = [
        records.write(ranges.shapes[tensor.name]) if tensor.name in ranges.shapes else None
        for tensor in info.io
        if tensor.is_input
    ]
    values = [
        records.write(ranges.values[tensor.name]) if tensor.name in ranges.values else None
        for tensor in info.io
        if tensor.is_input
    ]
    order: dict[str, int] = {}
    described = [_without_names(structure, order), tensors_of_network, shapes, values, numbers]
    return TimingCacheKey.of(json.dumps(described, sort_keys=True), *environment)


def _without_names(part: Any, weights: dict[str, int] | None = None) -> Any:
    """A structure without names, its weights numbered in the order in which they are met."""
    if isinstance(part, Mapping):
        found = {
            key: value if key in _VERBATIM else _without_names(value, weights)
            for key, value in part.items()
            if key not in _NAMES
        }
        if weights is not None and isinstance(part.get("weights"), Mapping):
            numbered = {role: weights.setdefault(key, len(weights)) for role, key in part["weights"].items()}
            found["weights"] = numbered
        return found
    if isinstance(part, (list, tuple)):
        return [_without_names(value, weights) for value in part]
    return part
