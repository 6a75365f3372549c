"""Progress of a build: the application's `IProgressMonitor` and the phases that drive it."""

from __future__ import annotations

from types import TracebackType

from trt_portable.reporting import report_callback_failure


class IProgressMonitor:
    """Interface of a progress display; subclass it, call ``IProgressMonitor.__init__``, define the methods."""

    def __init__(self) -> None:
        pass

    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A phase begins; `parent_phase` is None for the outermost one."""
        raise NotImplementedError("a subclass of IProgressMonitor must define phase_start()")

    def step_complete(self, phase_name: str, step: int) -> bool:
        """A step is done; False cancels the build."""
        raise NotImplementedError("a subclass of IProgressMonitor must define step_complete()")

    def phase_finish(self, phase_name: str) -> None:
        """A phase ended, possibly before all of its steps were done."""
        raise NotImplementedError("a subclass of IProgressMonitor must define phase_finish()")


class BuildCancelled(Exception):
    """The progress monitor asked to stop."""


class Phase:
    """One phase of a build, as a context manager; nothing happens when there is no monitor.

    Args:
        monitor: The application's monitor, or None.
        name: Unique name of the phase within the build.
        parent: Name of the enclosing phase.
        num_steps: Number of `step` calls to expect.
    """

    def __init__(self, monitor: IProgressMonitor | None, name: str, parent: str | None, num_steps: int) -> None:
        self._monitor = monitor
        self._name = name
        self._parent = parent
        self._num_steps = num_steps
        self._done = 0

    def __enter__(self) -> Phase:
        if self._monitor is not None:
            try:
                self._monitor.phase_start(self._name, self._parent, self._num_steps)
            except Exception as error:
                report_callback_failure("phase_start()", error)
        return self

    def step(self) -> None:
        """Reports the next step as done.

        Raises:
            BuildCancelled: The monitor answered False, or raised.
        """
        if self._monitor is None:
            return
        try:
            proceed = self._monitor.step_complete(self._name, self._done)
        except Exception as error:
            report_callback_failure("step_complete()", error)
            proceed = False
        self._done += 1
        if not proceed:
            raise BuildCancelled(self._name)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._monitor is not None:
            try:
                self._monitor.phase_finish(self._name)
            except Exception as failure:
                report_callback_failure("phase_finish()", failure)
