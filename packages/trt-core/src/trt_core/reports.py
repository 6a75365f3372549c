"""What every report has beside its text: one line, a notebook's view, JSON values."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, ClassVar

from trt_core.wording import printable


class ShownReport(ABC):
    """A report in its renderings. Dataclasses that are reports leave `repr` to it."""

    @abstractmethod
    def to_text(self) -> str:
        """Returns the report as text."""

    @property
    def headline(self) -> str:
        """The report in one line."""
        return self.to_text().partition("\n")[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {printable(self.headline)}>"

    def _repr_html_(self) -> str:
        """The report as a notebook shows it: its page in a frame of its own, or else its text."""
        import html  # its table of entities would be loaded with every engine

        render = getattr(self, "to_html", None)
        if render is None:
            return f"<pre>{html.escape(printable(self.to_text()))}</pre>"
        page = html.escape(render(), quote=True)
        return f'<iframe sandbox srcdoc="{page}" width="100%" height="600" style="border: 0"></iframe>'


class DataReport(ShownReport):
    """A report that is a dataclass, and whose JSON follows from its fields; see `jsonable`."""

    DERIVED: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as JSON values; what is infinite or no number is a string."""
        return {"format": 1, **jsonable(self)}

    def to_json(self) -> str:
        """Returns the report as JSON text."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


def jsonable(value: Any) -> Any:
    """Returns a value as JSON has it: infinities and what is no number become strings, enumerations their values.

    Of a dataclass, its fields by name, and the properties that its `DERIVED` names.
    """
    if is_dataclass(value):
        names = (*(field.name for field in fields(value)), *getattr(value, "DERIVED", ()))
        return {name: jsonable(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {name: jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [jsonable(item) for item in value]
    if isinstance(value, Enum):
        return jsonable(value.value)
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
