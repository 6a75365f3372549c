"""What whoever loads a program says of it: whom to trust, where to run, what calls may use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from trt_core.errors import InputError
from trt_core.files.opening import Path
from trt_core.limits import CallLimits
from trt_runtime.program.fields import UNTOLD
from trt_runtime.signatures import read_keys


@dataclass(frozen=True)
class LoadOptions:
    """How the bytes of a program are read.

    Attributes:
        operators, trust, allow_host_code, trusted_keys, data_dependent_elements, device, result_types, limits: See
            `load`.
        any_operator: Let the program call all operators that compute, trusted or not.
        ranks: Of the model that it is a part of; its engines may talk to them.

    Raises:
        InputError: `data_dependent_elements` is no number of elements, or one of `trusted_keys` no key.
    """

    operators: Collection[str] = ()
    trust: bool = False
    allow_host_code: bool = False
    trusted_keys: Collection[Path] = ()
    data_dependent_elements: int = UNTOLD
    device: torch.device | str | None = None
    result_types: Collection[Any] = ()
    limits: CallLimits | None = None
    any_operator: bool = False
    ranks: Collection[int] = ()

    def __post_init__(self) -> None:
        if type(self.data_dependent_elements) is not int or self.data_dependent_elements < 0:
            elements = self.data_dependent_elements
            raise InputError(f"data_dependent_elements is a number of elements, not {elements!r:.60}")
        read_keys(self.trusted_keys)
