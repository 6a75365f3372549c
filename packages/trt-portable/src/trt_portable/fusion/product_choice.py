"""Which kernel computes each product with a matrix, and each recurrent layer: what a plan says, or a build finds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from trt_portable.execution.program import Compute
from trt_portable.fusion.epilogues import Epilogue, LinearForm

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer

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
    """Chooses a way for a product."""

    def __call__(self, layer: ILayer, case: Hashable, ways: Ways) -> Compute:
        """What computes a product.

        Args:
            layer: The layer that has a kernel of its own.
            case: What it is apart from its numbers: equal ones, of a first operand of the same extents, take equally
                long.
            ways: What computes it.
        """


def planned(layer: ILayer, case: Hashable, ways: Ways) -> Compute:
    """The way that a plan names; one that this machine lacks gives way to the first."""
    return ways.get(layer._implementation) or next(iter(ways.values()))
