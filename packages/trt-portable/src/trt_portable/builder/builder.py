"""`Builder`: makes networks, and plans out of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from trt_core.device import without_autocast
from trt_portable.builder.build_plan import build_plan
from trt_portable.builder.config import IBuilderConfig
from trt_portable.builder.progress_monitor import BuildCancelled
from trt_portable.builder.validate import first_refusal
from trt_portable.device import current_device
from trt_portable.enums import BuilderFlag, ErrorCodeTRT
from trt_portable.errors import PortableError, Refusal, is_out_of_memory
from trt_portable.host_settings import HostSettings
from trt_portable.interfaces import IStreamWriter, write_all
from trt_portable.memory import IHostMemory
from trt_portable.network.network import INetworkDefinition
from trt_portable.optimization_profile import IOptimizationProfile
from trt_portable.pybind import to_integer
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.engine import ICudaEngine
from trt_portable.runtime.runtime import load_engine

_KNOWN_NETWORK_FLAGS: Final = 0b111


class Builder(HostSettings):
    """Builds engines. One thread at a time.

    Args:
        logger: Receives what the builder and the objects that it makes have to say.

    Raises:
        TypeError: `logger` is no `ILogger`.
    """

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger):
            raise TypeError(f"logger must be ILogger, not {type(logger).__name__}")
        self._reporter = Reporter(logger)

    # Parts of a build ------------------------------------------------------------------------------

    def create_network(self, flags: int = 0) -> INetworkDefinition:
        """Makes an empty network.

        Args:
            flags: Bit mask of ``1 << int(NetworkDefinitionCreationFlag)``. Networks are strongly typed
                with or without the flag that says so.
        """
        mask = to_integer(flags)
        if mask & ~_KNOWN_NETWORK_FLAGS:
            self._reporter.warning(f"create_network: unknown flags in {mask:#x} are ignored")
        return INetworkDefinition(self._reporter, mask & _KNOWN_NETWORK_FLAGS, self)

    def create_builder_config(self) -> IBuilderConfig:
        """Makes a configuration with default settings."""
        return IBuilderConfig(self._reporter.child())

    def create_optimization_profile(self) -> IOptimizationProfile:
        """Makes an empty optimization profile."""
        return IOptimizationProfile()

    # Building --------------------------------------------------------------------------------------

    def build_serialized_network(
        self, network: INetworkDefinition, config: IBuilderConfig, kernel_text: object = None
    ) -> IHostMemory | None:
        """Builds a plan.

        Args:
            network: Complete, with at least one output.
            config: Settings, with an optimization profile if inputs are dynamic.
            kernel_text: Must be None: kernels in text form belong to NVIDIA's compiler.

        Returns:
            None, with a report, when the network or the settings are refused, memory ran out, or the progress
            monitor stopped the build.
        """
        _expect(network, config)
        if kernel_text is not None:
            rule = "kernel_text is for safety engines, which need NVIDIA hardware"
            self._reporter.error("build_serialized_network", rule, ErrorCodeTRT.UNSUPPORTED_STATE)
            return None
        return self._guarded("build_serialized_network", lambda: build_plan(network, config, self._reporter))

    def build_engine_with_config(self, network: INetworkDefinition, config: IBuilderConfig) -> ICudaEngine | None:
        """Builds an engine and loads it onto the current device.

        Returns:
            None, with a report, where `build_serialized_network` returns None, and for
            version-compatible builds.
        """
        _expect(network, config)
        subject = "build_engine_with_config"
        if config.get_flag(BuilderFlag.VERSION_COMPATIBLE):
            rule = "version-compatible engines must be serialized: use build_serialized_network"
            self._reporter.error(subject, rule, ErrorCodeTRT.INVALID_CONFIG)
            return None

        def build() -> ICudaEngine:
            return load_engine(build_plan(network, config, self._reporter), self._reporter)

        return self._guarded(subject, build)

    def build_serialized_network_to_stream(
        self, network: INetworkDefinition, config: IBuilderConfig, writer: IStreamWriter
    ) -> bool:
        """Builds a plan and writes it; False where no plan was built or the writer gave up.

        Raises:
            TypeError: The writer is no `IStreamWriter`.
        """
        if not isinstance(writer, IStreamWriter):
            raise TypeError(f"writer must be IStreamWriter, not {type(writer).__name__}")
        plan = self.build_serialized_network(network, config)
        return plan is not None and write_all(writer, plan)

    def is_network_supported(self, network: INetworkDefinition, config: IBuilderConfig) -> bool:
        """Whether the network and the settings pass validation; the reason is reported if not."""
        _expect(network, config)
        found = first_refusal(network, config)
        if found is not None:
            self._reporter.refuse(*found)
        return found is None

    _R = TypeVar("_R")

    def _guarded(self, subject: str, build: Callable[[], _R]) -> _R | None:
        try:
            with without_autocast("cpu", current_device().type):  # constants are folded on the host
                return build()
        except BuildCancelled as cancelled:
            self._reporter.warning(f"{subject}: stopped by the progress monitor in {cancelled}")
        except Refusal as refusal:
            self._reporter.refuse(subject, refusal)
        except PortableError as error:
            self._reporter.error(subject, str(error), ErrorCodeTRT.INTERNAL_ERROR)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._reporter.error(subject, f"out of memory: {error}", ErrorCodeTRT.FAILED_ALLOCATION)
        return None

    def reset(self) -> None:
        """Returns settings to their defaults."""
        self.max_threads = 1
        self.gpu_allocator = None

    # Settings --------------------------------------------------------------------------------------

    @property
    def max_DLA_batch_size(self) -> int:
        """0: there is no DLA."""
        return 0


def _expect(network: INetworkDefinition, config: IBuilderConfig) -> None:
    if not isinstance(network, INetworkDefinition):
        raise TypeError(f"network must be INetworkDefinition, not {type(network).__name__}")
    if not isinstance(config, IBuilderConfig):
        raise TypeError(f"config must be IBuilderConfig, not {type(config).__name__}")
