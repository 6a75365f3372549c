"""The builder's timing cache as a file that any number of processes read and add to."""

from __future__ import annotations

import contextlib
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any, Final

import filelock

_LOCK_SECONDS: Final = 60.0


class TimingCacheFile:
    """Tactic timings on disk.

    Timings make builds faster and never wrong, so whatever goes wrong with the file is a warning. Timings that were
    taken with another release or on another device are left out by the provider; the file then starts anew.

    Args:
        path: The file; it and its folder are made when they are missing.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).expanduser().absolute()

    def attach(self, config: Any) -> None:
        """Gives a builder configuration the timings of the file.

        Args:
            config: A `trt.IBuilderConfig`, before the build.
        """
        cache = self._read(config)
        if cache is None or not config.set_timing_cache(cache, False):
            config.set_timing_cache(config.create_timing_cache(b""), False)

    def merge(self, config: Any) -> None:
        """Adds what a build has timed to the file, beside what others added meanwhile.

        Args:
            config: The configuration, after the build.
        """
        cache = config.get_timing_cache()
        if cache is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(f"{self.path}.lock", timeout=_LOCK_SECONDS):
                known = self._read(config)
                if known is not None:
                    cache.combine(known, False)
                for leftover in self.path.parent.glob(f".{self.path.name}-*"):  # of writers that were killed
                    leftover.unlink(missing_ok=True)
                content = bytes(memoryview(cache.serialize()))
                if content != self._content():
                    self._replace(content)
        except (OSError, filelock.Timeout) as error:
            warnings.warn(f"tactic timings are not kept in {self.path}: {error}", RuntimeWarning, stacklevel=2)

    def _read(self, config: Any) -> Any:
        content = self._content()
        if not content:
            return None
        try:
            found = config.create_timing_cache(content)
        except (RuntimeError, TypeError, ValueError):
            found = None
        if found is None:
            warnings.warn(f"the timing cache {self.path} is damaged and starts anew", RuntimeWarning, stacklevel=3)
        return found

    def _content(self) -> bytes:
        try:
            return self.path.read_bytes()
        except OSError:
            return b""

    def _replace(self, content: bytes) -> None:
        """The file appears whole or not at all."""
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
            os.replace(temporary, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
