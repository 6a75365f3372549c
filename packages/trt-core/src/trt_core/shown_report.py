"""How reports show themselves: a line at a prompt, all of it in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod


class ShownReport(ABC):
    """What every report has beside its renderings. Dataclasses that are reports leave `repr` to it."""

    @abstractmethod
    def to_text(self) -> str:
        """Returns the report as text."""

    @property
    def headline(self) -> str:
        """The report in one line."""
        return self.to_text().partition("\n")[0]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline}>"

    def _repr_html_(self) -> str:
        """The report as a notebook shows it: its page in a frame of its own, or else its text."""
        render = getattr(self, "to_html", None)
        if render is None:
            return f"<pre>{html.escape(self.to_text())}</pre>"
        page = html.escape(render(), quote=True)
        return f'<iframe sandbox srcdoc="{page}" width="100%" height="600" style="border: 0"></iframe>'
