"""What is raised inside where an engine cannot be cached: something that it depends on has no stable description."""

from __future__ import annotations


class Uncacheable(Exception):
    """Something that an engine depends on cannot be described, so the engine is built and not cached.

    Args:
        why: What cannot be described.
        where: The node, function or setting.
    """

    def __init__(self, why: str, where: str = "") -> None:
        self.why = why
        self.where = where
        super().__init__(f"{why} ({where})" if where else why)
