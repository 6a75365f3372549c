"""Whether sizes that vary together fit one optimization profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trt_core.errors import InputError


@dataclass(frozen=True)
class VaryingSize:
    """A size of a call.

    Attributes:
        what: How messages call it: `dimension 0 of input x`.
        size: What it is in the call.
        ranges: (min, max) in each profile.
    """

    what: str
    size: int
    ranges: tuple[tuple[int, int], ...]

    def fits(self, profile: int) -> bool:
        """Whether a profile takes it."""
        low, high = self.ranges[profile]
        return low <= self.size <= high


def require_profile(sizes: Sequence[VaryingSize]) -> None:
    """Refuses sizes that each fit a profile, but none together.

    Args:
        sizes: At least one; all have as many ranges as there are profiles.

    Raises:
        InputError: The message says what each profile takes.
    """
    count = len(sizes[0].ranges)
    if any(all(item.fits(index) for item in sizes) for index in range(count)):
        return
    different = [item for item in sizes if len(set(item.ranges)) > 1]
    given = ", ".join(f"{item.what} is {item.size}" for item in different)
    profiles = (
        f"profile {index} takes {', '.join(f'{_show(item.ranges[index])} for {item.what}' for item in different)}"
        for index in range(count)
    )
    raise InputError(
        f"no optimization profile takes these sizes together: {given}",
        why="; ".join(profiles),
        hint="give sizes that one profile takes, or compile the model with a profile for them",
    )


def _show(bounds: tuple[int, int]) -> str:
    low, high = bounds
    return str(low) if low == high else f"{low} to {high}"
