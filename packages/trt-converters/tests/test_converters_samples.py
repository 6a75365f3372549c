"""The calls that PyTorch's own samples lead to."""

from __future__ import annotations

import gc
import sys
from types import SimpleNamespace

import pytest
import torch

from trt_converters import internals
from trt_converters.testing import samples_from_opinfo
from trt_converters.testing.conversion import _calls_of


def test_what_samples_need_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.testing._internal.common_methods_invocations", None)
    monkeypatch.delitem(vars(internals), "op_db", raising=False)  # as if nobody had asked for it before
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'trt-converters\[samples\]'"):
        samples_from_opinfo("add", torch.float32)


def test_nothing_is_collected_while_a_sample_is_traced() -> None:
    """A generator under `no_grad` that is collected then would be part of the trace, or break it."""
    collecting = []

    def relu(x: torch.Tensor) -> torch.Tensor:
        collecting.append(gc.isenabled())
        return x.relu()

    sample = SimpleNamespace(input=torch.ones(2), args=(), kwargs={})
    assert [call.op for call in _calls_of(SimpleNamespace(op=relu), sample)] == [torch.ops.aten.relu.default]
    assert collecting == [False]
    assert gc.isenabled()
