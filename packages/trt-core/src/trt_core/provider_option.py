"""What a setting that building reads becomes on each provider."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

_KEY: Final = "provider_option"


@dataclass(frozen=True)
class ProviderOption:
    """The option of a builder that a setting is handed to.

    Attributes:
        tensorrt: Names of TensorRT's API, such as `"IBuilderConfig.max_aux_streams"`.
        since: TensorRT release that brought the option, where its documentation says so; otherwise "", and all that
            is known is that the oldest supported release has it.
        portable: What `trt_portable` does with it, one sentence. A setting that changes nothing there says so in the
            log of the build, too.
    """

    tensorrt: tuple[str, ...]
    portable: str
    since: str = ""


def read_by_building(*tensorrt: str, portable: str, since: str = "") -> dict[str, Any]:
    """Metadata of a field that conversion or building reads: another value may give another engine.

    Args:
        tensorrt, portable, since: See `ProviderOption`.
    """
    return {_KEY: ProviderOption(tensorrt, portable, since)}


def provider_option(field: dataclasses.Field[Any]) -> ProviderOption | None:
    """Returns what a setting becomes on each provider; None for one that building doesn't read."""
    found: ProviderOption | None = field.metadata.get(_KEY)
    return found
