"""Types, formats and tactics that a decorated plugin says it supports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from trt_portable.enums import DataType, TensorFormat

_TYPES: Final[dict[str, DataType]] = {
    **DataType.__members__,
    "FP32": DataType.FLOAT,
    "FP16": DataType.HALF,
}


class AutoTuneCombination:
    """Which types and formats go together, and with which tactics.

    Args:
        io_types: Types by position, separated by commas; alternatives by ``|``, which are taken together:
            ``"FP32|FP16, FP32|FP16"`` is either all FP32 or all FP16.
        layouts: Formats for all positions, alternatives separated by ``|`` or ``*``.
        tactics: Numbers of tactics; none stands for the default one.
    """

    def __init__(self, io_types: str | None = None, layouts: str | None = None, tactics: Iterable[int] = ()) -> None:
        self.io_types: list[list[DataType]] = [] if io_types is None else [_types(each) for each in io_types.split(",")]
        self.layouts = [TensorFormat.LINEAR] if layouts is None else _formats(layouts)
        self._by_position: dict[int, tuple[list[DataType], list[TensorFormat]]] = {}
        self._tactics = list(tactics)

    def pos(self, pos: int | Sequence[int], io_types: str, layouts: str = "LINEAR") -> None:
        """Names the types and formats of one position, or of several."""
        for each in [pos] if isinstance(pos, int) else pos:
            self._by_position[each] = (_types(io_types), _formats(layouts))

    def tactics(self, tactics: Iterable[int]) -> None:
        """Names the tactics."""
        self._tactics = list(tactics)

    @property
    def tactic_numbers(self) -> list[int]:
        """The tactics."""
        return self._tactics

    def supports(self, types: Sequence[DataType], formats: Sequence[TensorFormat]) -> bool:
        """Whether the first positions may have these types and formats.

        Args:
            types: One by position, as far as they are known.
            formats: Likewise.
        """
        alternatives: set[int] | None = None
        for position, (dtype, kind) in enumerate(zip(types, formats, strict=True)):
            wanted, layouts = self._position(position)
            if dtype not in wanted or kind not in layouts:
                return False
            if len(wanted) > 1:
                fitting = {at for at, each in enumerate(wanted) if each is dtype}
                alternatives = fitting if alternatives is None else alternatives & fitting
                if not alternatives:
                    return False
        return True

    def _position(self, position: int) -> tuple[list[DataType], list[TensorFormat]]:
        found = self._by_position.get(position)
        if found is not None:
            return found
        if position < len(self.io_types):
            return self.io_types[position], self.layouts
        raise ValueError(f"the combination says nothing of position {position}")


def _types(names: str) -> list[DataType]:
    try:
        return [_TYPES[name.strip()] for name in names.split("|")]
    except KeyError as error:
        raise ValueError(f"no element type is called {error}; types are {', '.join(sorted(_TYPES))}") from None


def _formats(names: str) -> list[TensorFormat]:
    try:
        return [TensorFormat[name.strip()] for name in names.replace("*", "|").split("|")]
    except KeyError as error:
        raise ValueError(f"no format is called {error}") from None
