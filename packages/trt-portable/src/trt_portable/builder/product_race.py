"""Which kernel is the fastest for each product with a matrix: measured when the product runs for the first time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trt_portable.builder.host_time import least_seconds
from trt_portable.runtime.prepacked_kernels import PrepackedProduct
from trt_portable.runtime.product_choice import ProductCase, Ways
from trt_portable.runtime.program import Compute
from trt_portable.values import Value

_LEAST_GAIN: Final = 0.97
"""Another kernel than the first must take less than that part of its time: clocks waver, and layers follow each other
in other ways than here."""
_RACE_SECONDS: Final = 0.025


class ProductRace:
    """Races the ways of computing each product of a program, on the operands of its first run.

    Equal products of as many rows are raced once.
    """

    def __init__(self) -> None:
        self._products: list[RacedProduct] = []
        self._known: dict[tuple[ProductCase, tuple[int, ...]], str] = {}

    def __call__(self, case: ProductCase, ways: Ways) -> RacedProduct:
        """What computes the next product of a program."""
        product = RacedProduct(self, case, ways)
        self._products.append(product)
        return product

    @property
    def names(self) -> tuple[str, ...]:
        """The fastest way of each product, in order; the first one of those that never ran."""
        return tuple(product.name or next(iter(product.ways)) for product in self._products)

    def fastest(self, product: RacedProduct, inputs: Sequence[Value | None]) -> str:
        """The name of the fastest way of a product, on operands."""
        x = inputs[0]
        assert x is not None
        key = (product.case, tuple(x.shape))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _raced(product, inputs)
        return found


class RacedProduct:
    """A product whose fastest way its first run finds.

    Args:
        race: Knows of equal products.
        case: The product apart from its numbers.
        ways: What computes it.

    Attributes:
        name: Of the fastest way; empty before the first run.
    """

    def __init__(self, race: ProductRace, case: ProductCase, ways: Ways) -> None:
        self.name = ""
        self.case = case
        self.ways = ways
        self._race = race

    def __call__(self, inputs: Sequence[Value | None]) -> Sequence[Value]:
        """The result."""
        if not self.name:
            self.name = self._race.fastest(self, inputs)
        return self.ways[self.name](inputs)

    def forget(self) -> int:
        """Gives up packed weights, and returns how many bytes they were."""
        return sum(_forget(way) for way in self.ways.values())


def _raced(product: RacedProduct, inputs: Sequence[Value | None]) -> str:
    """The fastest way; packed weights of one way at a time are in memory.

    The first way is timed again in the end: other work on the machine may have disturbed it alone.
    """
    first = next(iter(product.ways))
    times: dict[str, float] = {}
    for name in (*product.ways, first):
        way = product.ways[name]
        try:
            way(inputs)  # packs weights
            seconds = least_seconds(lambda: way(inputs), spend=_RACE_SECONDS)  # noqa: B023 - called at once
        except Exception:  # a kernel may fail in any way, and layers are one of the ways
            continue
        finally:
            _forget(way)
        times[name] = min(seconds, times.get(name, seconds))
    best = min(times, key=lambda name: times[name], default=list(product.ways)[-1])
    return first if times.get(first, float("inf")) * _LEAST_GAIN <= times.get(best, 0.0) else best


def _forget(way: Compute) -> int:
    return way.forget() if isinstance(way, PrepackedProduct) else 0
