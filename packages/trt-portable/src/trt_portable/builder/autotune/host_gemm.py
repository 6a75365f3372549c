"""Which kernel is the fastest for each product with a matrix: measured when the product runs for the first time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from trt_portable.builder.autotune.autotuner import Autotuner
from trt_portable.builder.autotune.clock import ColdWeights
from trt_portable.builder.autotune.timing_cache import ITimingCache
from trt_portable.execution.program import PackingCompute, forget_packed
from trt_portable.fusion.product_choice import LAYERS, MKL, ONEDNN, RECURRENT, Ways
from trt_portable.shape_tensors import Value, as_tensor

if TYPE_CHECKING:
    from trt_portable.network.layer import ILayer

_ROUNDS: Final = 3
"""Ways take turns so often: other work on the machine disturbs one of them as a rule, and not each time the same."""
_FAR: Final = 1.3
"""A way that takes that many times as long as the fastest is not timed again."""
_EQUAL: Final = 0.97
"""Ways take as long as each other where the fastest takes more than that part of their time."""
_PREFERRED: Final = (RECURRENT, MKL, ONEDNN, LAYERS)
"""Of ways that take as long as each other, the one that whole runs slow down least is taken: measured on models."""


class ProductRace:
    """Races the ways of computing each product of a program, on the operands of its first run.

    Equal products of as many rows are raced once.

    Args:
        weights: Times runs.
        note: Hears of kernels that fail.
        autotuner: Says who won each race.
    """

    def __init__(self, weights: ColdWeights, note: Callable[[str], None], autotuner: Autotuner | None = None) -> None:
        self._weights = weights
        self._note = note
        self._autotuner = autotuner or Autotuner(ITimingCache({}))
        self._products: dict[int, RacedProduct] = {}
        self._known: dict[tuple[Hashable, tuple[int, ...]], str] = {}

    def __call__(self, layer: ILayer, case: Hashable, ways: Ways) -> RacedProduct:
        """What computes a product."""
        product = self._products[id(layer)] = RacedProduct(self, case, ways)
        return product

    def names(self, layers: Iterable[ILayer]) -> dict[int, str]:
        """The fastest way of each product by the place of its layer; the first one of those that never ran."""
        found = ((at, self._products.get(id(layer))) for at, layer in enumerate(layers))
        return {at: product.name or next(iter(product.ways)) for at, product in found if product is not None}

    def fastest(self, product: RacedProduct, inputs: Sequence[Value | None]) -> str:
        """The name of the fastest way of a product, on operands."""
        x = inputs[0]
        assert x is not None
        key = (product.case, tuple(x.shape))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = _raced(product, inputs, self._weights, self._note, self._autotuner)
        return found


class RacedProduct(PackingCompute):
    """A product whose fastest way its first run finds.

    Args:
        race: Knows of equal products.
        case: The product apart from its numbers.
        ways: What computes it.

    Attributes:
        name: Of the fastest way; empty before the first run.
    """

    def __init__(self, race: ProductRace, case: Hashable, ways: Ways) -> None:
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
        return forget_packed(self.ways.values())


def _raced(
    product: RacedProduct,
    inputs: Sequence[Value | None],
    weights: ColdWeights,
    note: Callable[[str], None],
    autotuner: Autotuner,
) -> str:
    """The fastest way; packed weights of one way at a time are in memory."""
    x = as_tensor(inputs[0])  # type: ignore[arg-type]
    times: dict[str, float] = {}
    left = list(product.ways)
    for _ in range(_ROUNDS):
        for name in left:
            way = product.ways[name]
            try:
                way(inputs)  # packs weights
                seconds = weights.least_seconds(lambda: way(inputs), x)  # noqa: B023 - called at once
            except Exception as error:  # a kernel may fail in any way, and layers are one of the ways
                note(f"products by {name}: not available here for {tuple(x.shape)}: {type(error).__name__}: {error}")
                times.pop(name, None)
                continue
            finally:
                forget_packed([way])
            times[name] = min(seconds, times.get(name, seconds))
        least = min(times.values(), default=0.0)
        left = [name for name in left if name in times and times[name] <= least * _FAR]
        if len(left) < 2:
            break
    if not left:
        return list(product.ways)[-1]
    spent = {name: times[name] * 1e3 for name in left}
    subject = f"product of {tuple(x.shape)}"
    return autotuner.judge(subject, spent, margin=_EQUAL, preferred=_PREFERRED).name
