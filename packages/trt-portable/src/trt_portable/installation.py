"""Which version of TensorRT's API this is, and ``import tensorrt`` on machines that have no TensorRT."""

from __future__ import annotations

import importlib.util
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from trt_portable.api_version import API_VERSION

PACKAGE = "trt_portable"


def install_as_tensorrt() -> None:
    """Makes ``import tensorrt`` and ``import tensorrt.plugin`` in this process give this package.

    Doing it again changes nothing.

    Raises:
        RuntimeError: TensorRT itself is installed or imported.
    """
    present = sys.modules.get("tensorrt")
    if present is not None and present.__name__ == PACKAGE:
        return
    if present is not None or importlib.util.find_spec("tensorrt") is not None:
        raise RuntimeError(
            "TensorRT itself is installed: trt_portable does not take its name. Use `import trt_portable as tensorrt`, "
            "or uninstall tensorrt on this machine"
        )
    plugin = importlib.import_module(f"{PACKAGE}.plugin")
    sys.modules["tensorrt"] = sys.modules[PACKAGE]
    sys.modules["tensorrt.plugin"] = plugin


try:
    RELEASE: Final[str] = version("trt-portable")
except PackageNotFoundError:  # a source tree that is on the path without being installed
    RELEASE = "0+source"  # type: ignore[misc]

__version__: Final = f"{API_VERSION}+portable.{RELEASE.replace('+', '.')}"
