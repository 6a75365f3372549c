"""A property that is computed once, without a lock."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

_T = TypeVar("_T")


class cached_property(functools.cached_property[_T]):
    """As `functools.cached_property` is since Python 3.12.

    Before, all objects of a class share a lock while one of them computes: threads wait for each other, and a process
    that another thread forks meanwhile waits for ever. Threads that ask at once may both compute here; all get what is
    ready first.
    """

    if not TYPE_CHECKING:  # they see what is taken over

        def __get__(self, instance: Any, owner: type[Any] | None = None) -> Any:
            if instance is None:
                return self
            values = vars(instance)
            if self.attrname in values:  # a thread was faster
                return values[self.attrname]
            return values.setdefault(self.attrname, self.func(instance))
