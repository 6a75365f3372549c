"""Settings of contexts and of serialization, each made by an engine."""

from __future__ import annotations

from trt_portable.enums import ExecutionContextAllocationStrategy, SerializationFlag
from trt_portable.pybind import Sealed, to_integer


class IRuntimeConfig(Sealed):
    """How contexts are created; made by `ICudaEngine.create_runtime_config`."""

    def __init__(self) -> None:
        self._strategy = ExecutionContextAllocationStrategy.STATIC

    def set_execution_context_allocation_strategy(
        self,
        strategy: ExecutionContextAllocationStrategy = ExecutionContextAllocationStrategy.STATIC,
    ) -> None:
        """Chooses who provides memory for intermediate values.

        Raises:
            TypeError: It is no `ExecutionContextAllocationStrategy`.
        """
        if not isinstance(strategy, ExecutionContextAllocationStrategy):
            kind = type(strategy).__name__
            raise TypeError(f"strategy must be ExecutionContextAllocationStrategy, not {kind}")
        self._strategy = strategy

    def get_execution_context_allocation_strategy(self) -> ExecutionContextAllocationStrategy:
        """Who provides memory for intermediate values."""
        return self._strategy


class ISerializationConfig(Sealed):
    """What a serialized engine contains; made by `ICudaEngine.create_serialization_config`."""

    def __init__(self) -> None:
        self._flags = 0

    @property
    def flags(self) -> int:
        """Bit mask of ``1 << int(flag)``."""
        return self._flags

    @flags.setter
    def flags(self, flags: int) -> None:
        known = sum(1 << int(flag) for flag in SerializationFlag)
        mask = to_integer(flags)
        if mask & ~known:
            raise RuntimeError(f"serialization flags {mask:#x} name unknown flags")
        self._flags = mask

    def set_flag(self, flag: SerializationFlag) -> bool:
        """Sets one flag."""
        self._flags |= _bit(flag)
        return True

    def clear_flag(self, flag: SerializationFlag) -> bool:
        """Clears one flag."""
        self._flags &= ~_bit(flag)
        return True

    def get_flag(self, flag: SerializationFlag) -> bool:
        """Whether a flag is set."""
        return bool(self._flags & _bit(flag))


def _bit(flag: SerializationFlag) -> int:
    if not isinstance(flag, SerializationFlag):
        raise TypeError(f"flag must be SerializationFlag, not {type(flag).__name__}")
    return 1 << int(flag)
