"""What the tests share that cross packages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """Begins without graphs of `torch.compile`, and leaves none."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
