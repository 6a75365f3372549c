"""What whoever loads a program says of it: whom to trust, where to run, what calls may use."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from trt_core.cached_property import cached_property
from trt_core.errors import InputError
from trt_core.files.container import Section
from trt_core.files.opening import Path
from trt_core.limits import CallLimits
from trt_runtime.program.fields import UNTOLD
from trt_runtime.program_file import SectionKind
from trt_runtime.signatures import read_keys, signer_of, why_not_trusted


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


class Trust:
    """Whether a file is trusted, which is found out when it matters: verifying reads all of it.

    Raises:
        PlanError: Its signature is malformed.
    """

    def __init__(self, data: memoryview, sections: Sequence[Section], options: LoadOptions) -> None:
        self._data, self._keys, self._given = data, options.trusted_keys, options.trust
        self._signature = next((item for item in sections if item.kind is SectionKind.SIGNATURE), None)
        self._sections = [item for item in sections if item.kind is not SectionKind.SIGNATURE]
        if self._signature is not None:
            signer_of(self._signature.of(data))  # one that is malformed is refused, where it makes no difference too

    @cached_property
    def why(self) -> str:
        """Why it is not; nothing where it is."""
        return "" if self._given else why_not_trusted(self._data, self._sections, self._signature, self._keys)

    @property
    def is_found(self) -> bool:
        """Whether it is, as far as somebody has looked."""
        return "why" in self.__dict__ and self.is_given

    @property
    def is_given(self) -> bool:
        """Whether it is."""
        return not self.why
