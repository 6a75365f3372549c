"""Which version of TensorRT's API this is, and which release of ours."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Final

API_VERSION: Final = "11.4.0"
"""The version of TensorRT whose API is implemented; scripts that compare `trt.__version__` see it first."""

try:
    RELEASE: Final[str] = version("trt-portable")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    RELEASE = "0+source"  # type: ignore[misc]

__version__: Final = f"{API_VERSION}+portable.{RELEASE.replace('+', '.')}"
