"""Whether a plan can run here: every mismatch says what does not match and what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from trt_core import PlanError, Provider
from trt_runtime import PlanHeader, check_compatible, compatibility

Change = Callable[..., PlanHeader]


@pytest.fixture
def running_tensorrt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the check believe that TensorRT 10.16.1 on a GPU of compute capability 9.0 runs."""
    module = ModuleType("tensorrt")
    module.__version__ = "10.16.1.11"  # type: ignore[attr-defined]
    monkeypatch.setattr(compatibility, "current_provider", lambda: Provider.TENSORRT)
    monkeypatch.setattr(compatibility, "provider_module", lambda: module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def _tensorrt(change: Change, **changes: Any) -> PlanHeader:
    fields = {"provider": "tensorrt", "provider_version": "10.16.1.11", "device": "cuda", "compute_capability": (9, 0)}
    return change(**{**fields, **changes})


def test_what_was_built_here_runs_here(header: PlanHeader) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_compatible(header)


def test_another_provider(change_header: Change) -> None:
    with pytest.raises(PlanError, match="provider 'tensorrt', this process uses 'portable'") as caught:
        check_compatible(change_header(provider="tensorrt"), where="model.pt2")
    assert "TRT_PROVIDER=tensorrt" in caught.value.hint
    assert caught.value.where == "model.pt2"


def test_another_pytorch_is_a_warning_for_portable_engines(change_header: Change) -> None:
    with pytest.warns(UserWarning, match=r"built with PyTorch 1\.0"):
        check_compatible(change_header(torch_version="1.0.1+cpu"))


def test_patch_releases_of_pytorch_do_not_matter(change_header: Change) -> None:
    major, minor = torch.__version__.split(".")[:2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_compatible(change_header(torch_version=f"{major}.{minor}.99+other"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(change_header: Change) -> None:
    with pytest.raises(PlanError, match="none is available"):
        check_compatible(change_header(device="cuda"))


@pytest.mark.usefixtures("running_tensorrt")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"provider_version": "10.13.0.1", "version_compatible": True},
        {"compute_capability": (8, 6), "hardware_compatible": True},
        {"compute_capability": None},
        {"torch_version": "1.0"},
    ],
)
def test_tensorrt_engines_that_run(change_header: Change, changes: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_compatible(_tensorrt(change_header, **changes))


@pytest.mark.usefixtures("running_tensorrt")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"provider_version": "10.16.0.3"}, "TensorRT 10.16.0.3, this process uses 10.16.1.11"),
        ({"provider_version": "10.17.0.1", "version_compatible": True}, "10.17.0.1"),
        ({"provider_version": "9.3.0", "version_compatible": True}, "9.3.0"),
        ({"provider_version": "none", "version_compatible": True}, "none"),
        ({"provider_version": "1\xb2", "version_compatible": True}, "1\xb2"),
        ({"compute_capability": (8, 6)}, "compute capability 8.6, the device has 9.0"),
        ({"compute_capability": (10, 0), "hardware_compatible": True}, "compute capability 10.0"),
        ({"compute_capability": (7, 5), "hardware_compatible": True}, "compute capability 7.5"),
        ({"provider": "portable"}, "provider 'portable', this process uses 'tensorrt'"),
    ],
)
def test_tensorrt_engines_that_do_not_run(change_header: Change, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        check_compatible(_tensorrt(change_header, **changes))
    assert caught.value.hint
