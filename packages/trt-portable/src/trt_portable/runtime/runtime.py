"""`Runtime`: turns plans into engines."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from typing import Any, overload

from trt_core.limits import CallLimits
from trt_portable.device import current_device
from trt_portable.enums import DLAWorkspaceAllocationStrategy, ErrorCodeTRT, TempfileControlFlag
from trt_portable.errors import PortableError, is_out_of_memory
from trt_portable.execution.bounded_runs import RunBounds
from trt_portable.host_settings import HostSettings
from trt_portable.interfaces import IStreamReaderV2, read_all
from trt_portable.plan.container import read_plan, reading
from trt_portable.pybind import one_of, to_text
from trt_portable.reporting import ILogger, Reporter
from trt_portable.runtime.engine import ICudaEngine


class Runtime(HostSettings):
    """Loads engines.

    Args:
        logger: Receives what the runtime and its engines have to say.

    Raises:
        TypeError: `logger` is no `ILogger`.
    """

    DLA_core: int = -1
    """Kept; there is no DLA."""
    engine_host_code_allowed: bool = False
    """Whether kernels that a plan from elsewhere holds compiled may run; set it for plans that you trust."""
    plans_are_verified: bool = False
    """Not in TensorRT: whether whoever gives plans has found them undamaged, so that their checksum is not computed."""
    call_limits: CallLimits | None = CallLimits()
    """Not in TensorRT: what each run of an engine may use; None for all, for plans that you trust."""
    is_exempt: Callable[[], bool] = staticmethod(bool)
    """Not in TensorRT: asked once a run reaches a limit: whether the plan turns out to be trusted."""
    may_reach: Callable[[frozenset[int]], bool] = staticmethod(lambda ranks: True)
    """Not in TensorRT: asked of the ranks of each collective of a plan with limits: whether it may talk to them."""
    unused_kernels_are_said: bool = False
    """Not in TensorRT: whether the user knows that compiled kernels of plans from elsewhere are not used."""
    temporary_directory: str = tempfile.gettempdir()
    """Kept; nothing is written there."""
    tempfile_control_flags: int = sum(1 << int(flag) for flag in TempfileControlFlag)
    """Kept."""
    dla_workspace_allocation_strategy = one_of(DLAWorkspaceAllocationStrategy.DEFAULT, "Kept and reported.")

    def __init__(self, logger: ILogger) -> None:
        if not isinstance(logger, ILogger):
            raise TypeError(f"logger must be ILogger, not {type(logger).__name__}")
        self._reporter = Reporter(logger)

    @overload
    def deserialize_cuda_engine(self, serialized_engine: Any) -> ICudaEngine | None: ...

    @overload
    def deserialize_cuda_engine(self, *, stream_reader_v2: IStreamReaderV2) -> ICudaEngine | None: ...

    def deserialize_cuda_engine(
        self, serialized_engine: Any = None, *, stream_reader_v2: IStreamReaderV2 | None = None
    ) -> ICudaEngine | None:
        """Loads an engine onto the device that `trt_portable.device` chose.

        Engines on the CPU use the weights of read-only buffers (``bytes``, a read-only map of a file,
        `IHostMemory`) in place; the engine keeps the buffer.

        Args:
            serialized_engine: A bytes-like object, or a stream.
            stream_reader_v2: A stream.

        Returns:
            None, with a report, when the bytes are no plan that can run here, or memory ran out.

        Raises:
            TypeError: Neither bytes nor a stream.
        """
        source = serialized_engine if stream_reader_v2 is None else stream_reader_v2
        buffer = read_all(source) if isinstance(source, IStreamReaderV2) else source
        memoryview(buffer)  # a TypeError names what is not bytes-like
        try:
            return load_engine(
                buffer,
                self._reporter,
                host_code_allowed=bool(self.engine_host_code_allowed),
                is_verified=bool(self.plans_are_verified),
                limits=self.call_limits,
                is_exempt=self.is_exempt,
                unused_kernels_are_said=self.unused_kernels_are_said,
                may_reach=self.may_reach,
            )
        except PortableError as error:
            code = ErrorCodeTRT.INVALID_ARGUMENT
            self._reporter.error("deserialize_cuda_engine", str(error), code)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            rule = f"out of memory: {error}"
            self._reporter.error("deserialize_cuda_engine", rule, ErrorCodeTRT.FAILED_ALLOCATION)
        return None

    def load_runtime(self, path: str) -> Runtime | None:
        """None: plans of this provider need no runtime of their own version."""
        rule = f"{to_text(path)!r} cannot be loaded: this provider has no lean runtimes"
        self._reporter.error("load_runtime", rule, ErrorCodeTRT.UNSUPPORTED_STATE)
        return None


def load_engine(
    buffer: Any,
    reporter: Reporter,
    *,
    host_code_allowed: bool = False,
    is_verified: bool = False,
    limits: CallLimits | None = None,
    is_exempt: Callable[[], bool] = bool,
    unused_kernels_are_said: bool = False,
    may_reach: Callable[[frozenset[int]], bool] = lambda ranks: True,
) -> ICudaEngine:
    """Loads an engine onto the current device.

    Args:
        buffer: A plan.
        reporter: Receives what the engine has to say.
        host_code_allowed: Whether compiled kernels run though the plan was not built in this process.
        is_verified: Whether the plan was found undamaged already.
        limits: What each run may use; None for all.
        is_exempt: Asked once a run reaches a limit: whether the plan turns out to be trusted.
        unused_kernels_are_said: Whether the user knows that compiled kernels of plans from elsewhere are not used.
        may_reach: Asked of the ranks of each collective: whether the plan may talk to them.

    Raises:
        PortableError: The bytes are no plan that can run here; the message says why.
    """
    plan = read_plan(buffer, is_verified=is_verified)
    with reading("the content", plan):
        bounds = (
            None
            if limits is None or host_code_allowed
            else RunBounds(limits, is_exempt, len(plan.data), unused_kernels_are_said, may_reach)
        )
        return ICudaEngine(plan, current_device(), reporter.child(), host_code_allowed=host_code_allowed, bounds=bounds)
