"""The calls that PyTorch's own samples lead to."""

from __future__ import annotations

import sys

import pytest
import torch

from trt_converters.testing import samples_from_opinfo


def test_what_samples_need_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.testing._internal.common_methods_invocations", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trt-converters\[samples\]'"):
        samples_from_opinfo("add", torch.float32)
