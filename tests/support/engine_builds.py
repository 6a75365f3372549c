"""Which blocks are built, and not found in a cache or in a program."""

from __future__ import annotations

from typing import Any

import pytest

from trt_frontends import engine_source


def record_builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that gets the name of every block that is converted and built from now on in a test."""
    names: list[str] = []
    original = engine_source.build_block

    def build_block(block: Any, settings: Any, ranges: Any, name: str, *rest: Any) -> Any:
        names.append(name)
        return original(block, settings, ranges, name, *rest)

    monkeypatch.setattr(engine_source, "build_block", build_block)
    return names
