"""Settings that `Builder`, `Runtime` and `Refitter` have in common: whom they tell, how many threads, whose memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trt_portable.application_interfaces import IGpuAllocator
from trt_portable.pybind import ContextManaged, Sealed, Setting, optional_of, to_integer
from trt_portable.reporting import ILogger, RecordsErrors, Reporter

if TYPE_CHECKING:
    from trt_portable.plugin.interfaces import IPluginRegistry


class ThreadedSettings(RecordsErrors, ContextManaged, Sealed):
    """A logger, an error recorder and a number of threads."""

    _reporter: Reporter

    max_threads = Setting(to_integer, 1, "Most threads for the work of this object; kept and reported.", least=1)

    @property
    def logger(self) -> ILogger | None:
        """As given."""
        return self._reporter.logger


class HostSettings(ThreadedSettings):
    """Besides: an allocator, plugins, and the DLA cores that are not there."""

    gpu_allocator = optional_of(IGpuAllocator, "Kept and reported; memory comes from PyTorch's allocator.")

    @property
    def num_DLA_cores(self) -> int:
        """0: there is no DLA."""
        return 0

    def get_plugin_registry(self) -> IPluginRegistry:
        """The process-wide plugin registry."""
        from trt_portable.plugin.interfaces import get_plugin_registry

        return get_plugin_registry()
