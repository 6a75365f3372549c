"""Which kernel computes each product with a matrix, and each recurrent layer: what a plan says, or a build finds."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from trt_portable.execution.program import Compute
from trt_portable.fusion.epilogues import Epilogue, LinearForm

ONEDNN: Final = "onednn"
MKL: Final = "mkl"
LAYERS: Final = "layers"
RECURRENT: Final = "recurrent"
"""One kernel for all steps of a recurrent layer."""
NAMES: Final = (ONEDNN, MKL, LAYERS, RECURRENT)

Ways: TypeAlias = Mapping[str, Compute]
"""What computes the same product, by name; the first one serves where nothing is known."""


@dataclass(frozen=True)
class ProductCase:
    """A product apart from its numbers; equal cases of as many rows take the same time.

    Attributes:
        columns: Of the result.
        form: How the matrix is read, and whether there is a bias; None for a convolution of one place.
        epilogue: What follows the product.
    """

    columns: int
    form: LinearForm | None
    epilogue: Epilogue


class ProductChoice(Protocol):
    """Chooses a way for one product after the other, in the order in which a program is made."""

    def __call__(self, case: Hashable, ways: Ways) -> Compute:
        """What computes the next product.

        Args:
            case: What it is apart from its numbers: equal ones, of a first operand of the same extents, take equally
                long.
            ways: What computes it.
        """


class NamedProducts:
    """The choice that a plan remembers; a way that this machine lacks gives way to the first.

    Args:
        names: A way per product.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._names = iter(names)

    def __call__(self, case: Hashable, ways: Ways) -> Compute:
        """What computes the next product."""
        return ways.get(next(self._names, ""), next(iter(ways.values())))
