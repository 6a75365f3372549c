"""Settings that `Builder`, `Runtime` and `Refitter` have in common: whom they tell, how many threads, whose memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_portable.interfaces import IGpuAllocator
from trt_portable.pybind import ContextManaged, Sealed, to_integer
from trt_portable.reporting import ILogger, RecordsErrors, Reporter

if TYPE_CHECKING:
    from trt_portable.plugin.registry import IPluginRegistry


class ThreadedSettings(RecordsErrors, ContextManaged, Sealed):
    """A logger, an error recorder and a number of threads."""

    _reporter: Reporter
    _max_threads: int

    @property
    def logger(self) -> ILogger | None:
        """As given."""
        return self._reporter.logger

    @property
    def max_threads(self) -> int:
        """Most threads for the work of this object; kept and reported."""
        return self._max_threads

    @max_threads.setter
    def max_threads(self, count: int) -> None:
        count = to_integer(count)
        if count < 1:
            self._reporter.error("max_threads", f"must be at least 1, not {count}")
            return
        self._max_threads = count


class HostSettings(ThreadedSettings):
    """Besides: an allocator, plugins, and the DLA cores that are not there."""

    _gpu_allocator: IGpuAllocator | None

    @property
    def gpu_allocator(self) -> IGpuAllocator | None:
        """Kept and reported; memory comes from PyTorch's allocator."""
        return self._gpu_allocator

    @gpu_allocator.setter
    def gpu_allocator(self, allocator: IGpuAllocator | None) -> None:
        if allocator is not None and not isinstance(allocator, IGpuAllocator):
            raise TypeError(f"gpu_allocator must be IGpuAllocator, not {type(allocator).__name__}")
        self._gpu_allocator = allocator

    @property
    def num_DLA_cores(self) -> int:
        """0: there is no DLA."""
        return 0

    def get_plugin_registry(self) -> IPluginRegistry:
        """The process-wide plugin registry."""
        from trt_portable.plugin.registry import get_plugin_registry

        return get_plugin_registry()
