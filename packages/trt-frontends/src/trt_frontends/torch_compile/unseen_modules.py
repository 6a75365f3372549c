"""Keeps hooks of module registration from seeing the modules that a build makes, which are no modules of the user's."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

from trt_frontends.internals import buffer_hooks, module_hooks, parameter_hooks


@contextlib.contextmanager
def unseen_modules() -> Iterator[None]:
    """Hides what this thread registers from the registration hooks of the process; other threads show what they do.

    A graph is built in the middle of a call of the user's model, with hooks that may count modules, or change the
    tensors that they are shown.
    """
    tables: tuple[dict[int, Callable[..., Any]], ...] = (module_hooks, parameter_hooks, buffer_hooks)
    hidden = [(table, key, hook) for table in tables for key, hook in table.items()]
    for table, key, hook in hidden:
        table[key] = functools.partial(_call_elsewhere, threading.get_ident(), hook)
    try:
        yield
    finally:
        for table, key, hook in hidden:
            if key in table:  # it may have been removed meanwhile
                table[key] = hook


def _call_elsewhere(builder: int, hook: Callable[..., Any], *registered: Any) -> Any:
    return None if threading.get_ident() == builder else hook(*registered)
