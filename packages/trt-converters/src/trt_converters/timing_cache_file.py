"""The builder's timing cache as a file that any number of processes read and add to."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any, Final

from trt_core.errors import TrtError
from trt_core.files.folder import Folder
from trt_core.files.opening import read_file
from trt_core.files.replacing import replacing

_MOST_BYTES: Final = 256 << 20
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
            with Folder.open(str(self.path.parent)).locked(f"{self.path.name}.lock", _LOCK_SECONDS):
                known = self._read(config)
                if known is not None:
                    cache.combine(known, False)
                content = bytes(memoryview(cache.serialize()))
                if content != self._content():
                    with replacing(self.path) as file:
                        file.write(content)
        except TimeoutError:
            self._warn_of(f"it was in use for {_LOCK_SECONDS:.0f} seconds")
        except (OSError, TrtError) as error:
            self._warn_of(str(error))

    def _warn_of(self, why: str) -> None:
        warnings.warn(f"tactic timings are not kept in {self.path}: {why}", RuntimeWarning, stacklevel=3)

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
            return read_file(str(self.path), _MOST_BYTES)
        except (OSError, TrtError):
            return b""
