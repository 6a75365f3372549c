"""`Refitter`: replaces the weights of a loaded engine."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from trt_portable.device_choice import external_stream
from trt_portable.dtypes import storage_dtype
from trt_portable.enums import DataType, ErrorCodeTRT, TensorLocation, WeightsRole
from trt_portable.host_settings import ThreadedSettings
from trt_portable.memory import wrap_address
from trt_portable.plan.engine_info import RefitMode, WeightSlot, is_host_constant
from trt_portable.plan.weight_store import is_of_layer
from trt_portable.pybind import instance_of, to_integer, to_text
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.cuda_engine import ICudaEngine
from trt_portable.weights import Weights, as_weights

_CPU = torch.device("cpu")


class Refitter(ThreadedSettings):
    """Collects new weights and puts them into an engine all at once.

    Args:
        engine: Built with a refit flag, or stripped.
        logger: Receives what the refitter has to say.

    Raises:
        TypeError: An argument of the wrong class.
    """

    weights_validation: bool = True
    """Kept; types and counts are always checked, since shapes depend on them."""
    weights_are_kept: bool = False
    """Not in TensorRT: whether the memory of supplied weights stays as it is for as long as the engine lives, so that
    engines on the CPU read it where it is."""

    def __init__(self, engine: ICudaEngine, logger: ILogger) -> None:
        instance_of(ICudaEngine, engine, "engine")
        instance_of(ILogger, logger, "logger")
        self._engine = engine
        self._state = engine._state
        self._store = self._state.weights
        self._reporter = Reporter(logger, engine._reporter)
        self._pending: dict[int, tuple[Weights, TensorLocation]] = {}
        if not engine.refittable:
            rule = "the engine was not built with a refit flag"
            self._reporter.error("Refitter", rule, ErrorCodeTRT.INVALID_STATE)

    # Supplying weights -----------------------------------------------------------------------------

    def set_weights(self, layer_name: str, role: WeightsRole, weights: Weights) -> bool:
        """Supplies weights of a layer; the memory is read by `refit_cuda_engine`.

        Returns:
            False, with a report, for an unknown or fixed layer and role, or another type or count.

        Raises:
            TypeError: The role is no `WeightsRole`.
        """
        instance_of(WeightsRole, role, "role")
        subject = f"set_weights({to_text(layer_name)!r}, {role.name})"
        uses = self._refittable(self._store.by_role.get((layer_name, role.name), ()))
        return self._set(subject, uses, weights, TensorLocation.HOST)

    def set_named_weights(self, name: str, weights: Weights, location: TensorLocation = TensorLocation.HOST) -> bool:
        """Supplies weights by the name given with ``INetworkDefinition.set_weights_name``.

        Args:
            name: The name; weights without one also answer to ``<layer name> <role>``.
            weights: Type and count as at build.
            location: Where the memory of the weights is.

        Returns:
            False, with a report, for an unknown name, or another type or count.

        Raises:
            TypeError: The location is no `TensorLocation`.
        """
        instance_of(TensorLocation, location, "location")
        subject = f"set_named_weights({name!r})"
        return self._set(subject, self._uses_named(name), weights, location)

    def _set(self, subject: str, uses: list[int], weights: Weights, location: TensorLocation) -> bool:
        given = as_weights(weights)
        if not uses:
            self._reporter.error(subject, "the engine has no refittable weights of that name")
            return False
        slot = self._store.slots[uses[0]]
        if (given.dtype, given.size) != (slot.dtype, slot.count):
            rule = f"{given.size} elements of {given.dtype.name} cannot replace {slot.count} of {slot.dtype.name}"
            self._reporter.error(subject, rule)
            return False
        self._pending.update(dict.fromkeys(uses, (given, location)))
        return True

    def get_named_weights(self, weights_name: str) -> Weights:
        """The weights supplied under a name and not yet applied; empty when there are none."""
        for use in self._uses_named(weights_name):
            if use in self._pending:
                return self._pending[use][0]
        return Weights(DataType.FLOAT)

    def get_weights_location(self, weights_name: str) -> TensorLocation:
        """Where the weights supplied under a name are."""
        for use in self._uses_named(weights_name):
            if use in self._pending:
                return self._pending[use][1]
        return TensorLocation.HOST

    def unset_named_weights(self, weights_name: str) -> bool:
        """Takes back weights supplied under a name; False when there are none."""
        found = [use for use in self._uses_named(weights_name) if use in self._pending]
        for use in found:
            del self._pending[use]
        return bool(found)

    def get_weights_prototype(self, weights_name: str) -> Weights:
        """Type and count that weights of a name must have, without data; count -1 if unknown."""
        uses = self._uses_named(weights_name)
        if not uses:
            return _Prototype(DataType.FLOAT, -1)
        slot = self._store.slots[uses[0]]
        return _Prototype(slot.dtype, slot.count)

    # What there is and what is missing -------------------------------------------------------------

    def get_all(self) -> tuple[list[str], list[WeightsRole]]:
        """Layer names and roles of all refittable weights."""
        return self._roles(self._all())

    def get_missing(self) -> tuple[list[str], list[WeightsRole]]:
        """Layer names and roles of weights that must still be supplied."""
        return self._roles(self._missing())

    def get_all_weights(self) -> list[str]:
        """Names of all refittable weights."""
        return self._names(self._all())

    def get_missing_weights(self) -> list[str]:
        """Names of weights that must still be supplied."""
        return self._names(self._missing())

    def _all(self) -> list[int]:
        return self._refittable(range(len(self._store.slots)))

    def _missing(self) -> list[int]:
        return [use for use in self._all() if use in self._store.missing - self._pending.keys()]

    def _refittable(self, uses: Iterable[int]) -> list[int]:
        """Those of some uses that a refit may replace, but those of loops and conditionals, which follow theirs."""
        if not self._engine.refittable:
            return []
        slots = self._store.slots
        return [use for use in uses if slots[use].refittable and is_of_layer(slots[use].role)]

    def _uses_named(self, name: str) -> list[int]:
        uses = self._store.by_name.get(to_text(name))
        if uses is None:
            layer, _, role = name.rpartition(" ")
            uses = self._store.by_role.get((layer, role), [])
        return self._refittable(uses)

    def _roles(self, uses: list[int]) -> tuple[list[str], list[WeightsRole]]:
        slots = [self._store.slots[use] for use in uses]
        return [slot.layer_name for slot in slots], [WeightsRole[slot.role] for slot in slots]

    def _names(self, uses: list[int]) -> list[str]:
        names = (_name(self._store.slots[use]) for use in uses)
        return list(dict.fromkeys(names))

    # Refitting -------------------------------------------------------------------------------------

    def refit_cuda_engine(self) -> bool:
        """Applies what was supplied and waits for it.

        Returns:
            False, with a report, when weights are missing, or differ although the engine was built
            with REFIT_IDENTICAL. The engine is then unchanged.
        """
        if not self._apply():
            return False
        if self._state.device.type == "cuda":
            torch.cuda.current_stream(self._state.device).synchronize()
        return True

    def refit_cuda_engine_async(self, stream_handle: int) -> bool:
        """As `refit_cuda_engine`, on a stream; device weights are read when the stream gets there."""
        handle, device = to_integer(stream_handle), self._state.device
        if device.type != "cuda":
            return self._apply()
        with torch.cuda.stream(external_stream(handle, device)):
            return self._apply()

    def _apply(self) -> bool:
        if not self._engine.refittable:
            rule = "the engine was not built with a refit flag"
            self._reporter.error("refit_cuda_engine", rule, ErrorCodeTRT.INVALID_STATE)
            return False
        missing = self._names(self._missing())
        if missing:
            rule = f"{len(missing)} weights are missing, first {missing[0]!r}: see get_missing_weights"
            self._reporter.error("refit_cuda_engine", rule, ErrorCodeTRT.INVALID_STATE)
            return False
        tensors = {use: self._tensor(use, *given) for use, given in self._pending.items()}
        changed = self._changed(tensors) if self._state.info.refit is RefitMode.IDENTICAL else None
        if changed is not None:
            rule = f"weights {changed!r} differ, but the engine accepts identical weights only"
            self._reporter.error("refit_cuda_engine", rule)
            return False
        self._state.replace_weights(tensors)
        self._pending.clear()
        return True

    def _tensor(self, use: int, given: Weights, location: TensorLocation) -> torch.Tensor:
        """Supplied weights where the engine keeps them: a copy, unless their memory stays."""
        slot = self._store.slots[use]
        source = given._tensor()
        if location is TensorLocation.DEVICE and self._state.device.type == "cuda":
            dtype = storage_dtype(given.dtype)
            count = given.nbytes // dtype.itemsize
            source = wrap_address(given._ptr, (count,), dtype, self._state.device)
        target = _CPU if is_host_constant(slot) else self._state.home
        return source.to(target, copy=not self.weights_are_kept)

    def _changed(self, tensors: dict[int, torch.Tensor]) -> str | None:
        """Name of the first weights that are not those the engine has."""
        for use, tensor in tensors.items():
            present = self._store.tensor(use)
            if present is not None and not torch.equal(present.view(torch.uint8), tensor.view(torch.uint8)):
                return _name(self._store.slots[use])
        return None

    def release_refit_resources(self) -> bool:
        """Forgets weights that were supplied and not applied."""
        self._pending.clear()
        return True

    # Settings --------------------------------------------------------------------------------------


class _Prototype(Weights):
    """Type and count of weights, without data; a count of -1 means that there are none."""

    __slots__ = ()

    def __init__(self, dtype: DataType, count: int) -> None:
        super().__init__(dtype)
        self._count = count


def _name(slot: WeightSlot) -> str:
    return slot.name if slot.name is not None else f"{slot.layer_name} {slot.role}"
