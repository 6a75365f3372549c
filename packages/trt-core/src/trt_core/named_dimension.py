"""Names of dimensions: `batch`, or what follows from one, `8*length` and `length + 1`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from trt_core.errors import InputError

_FORM: Final = re.compile(r"(?:(\d+)\s*\*\s*)?([A-Za-z_]\w*)(?:\s*\*\s*(\d+))?(?:\s*([+-])\s*(\d+))?")


@dataclass(frozen=True, order=True)
class NamedDimension:
    """`factor * name + offset`.

    Attributes:
        name: What dimensions share.
        factor: At least 1.
        offset: Any whole number.
    """

    name: str
    factor: int = 1
    offset: int = 0

    @classmethod
    def parse(cls, text: Any) -> NamedDimension:
        """Reads `batch`, `8*length`, `length + 1`, or `2*length - 1`.

        Raises:
            InputError: The text has another form.
        """
        found = _FORM.fullmatch(text.strip()) if isinstance(text, str) else None
        before, name, after, sign, offset = found.groups() if found else (None,) * 5
        if name is None or (before and after) or int(before or after or 1) < 1:
            raise InputError(
                f"{text!r} does not name a dimension", hint='write "batch", "8*length", "length + 1" or "2*length - 1"'
            )
        return cls(name, int(before or after or 1), int(f"{sign or '+'}{offset or 0}"))

    def solve(self, extent: int) -> int | None:
        """Returns what the name stands for where this dimension is `extent`; None where there is no such number."""
        value, rest = divmod(extent - self.offset, self.factor)
        return value if rest == 0 and value >= 1 else None

    def __str__(self) -> str:
        product = self.name if self.factor == 1 else f"{self.factor}*{self.name}"
        return f"{product} {'+' if self.offset > 0 else '-'} {abs(self.offset)}" if self.offset else product
