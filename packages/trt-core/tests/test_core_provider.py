"""The choice of a provider, and the `trt` facade in front of it."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import sys
import threading
import types
from collections.abc import Iterator

import pytest
import torch
from side_by_side import in_threads

from trt_core import (
    Provider,
    ProviderError,
    current_provider,
    device_scope,
    provider,
    provider_identity,
    provider_module,
    provider_version,
    set_provider,
    trt,
)


@pytest.fixture(autouse=True)
def _fresh_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider, "_requested", None)
    monkeypatch.setattr(provider, "_chosen", None)
    monkeypatch.delenv("TRT_PROVIDER", raising=False)


def _module(name: str, version: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__version__ = version  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None)
    module.Builder = object()  # type: ignore[attr-defined]
    return module


@pytest.fixture
def tensorrt(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = _module("tensorrt", "10.16.1.11")
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    return module


@pytest.fixture
def portable(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = _module("trt_portable", "11.4.0")
    monkeypatch.setitem(sys.modules, "trt_portable", module)
    return module


def _pretend_cuda(monkeypatch: pytest.MonkeyPatch, available: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)


@pytest.mark.usefixtures("tensorrt", "portable")
@pytest.mark.parametrize(("cuda", "expected"), [(True, Provider.TENSORRT), (False, Provider.PORTABLE)])
def test_auto_takes_tensorrt_where_there_is_a_gpu(
    monkeypatch: pytest.MonkeyPatch, cuda: bool, expected: Provider
) -> None:
    _pretend_cuda(monkeypatch, cuda)
    assert current_provider() is expected


@pytest.mark.usefixtures("portable")
@pytest.mark.parametrize("error", [ImportError("no libnvinfer"), OSError("libnvinfer.so: cannot open")])
def test_auto_falls_back_when_tensorrt_does_not_import(
    monkeypatch: pytest.MonkeyPatch, tensorrt: types.ModuleType, error: Exception
) -> None:
    _pretend_cuda(monkeypatch, True)
    real = importlib.import_module

    def failing(name: str, package: str | None = None) -> types.ModuleType:
        if name == tensorrt.__name__:
            raise error
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", failing)
    assert current_provider() is Provider.PORTABLE


@pytest.mark.usefixtures("portable")
def test_the_environment_variable_chooses(monkeypatch: pytest.MonkeyPatch, tensorrt: types.ModuleType) -> None:
    monkeypatch.setenv("TRT_PROVIDER", " TensorRT ")
    assert provider_module() is tensorrt


@pytest.mark.usefixtures("tensorrt")
def test_a_call_wins_over_the_environment_variable(monkeypatch: pytest.MonkeyPatch, portable: types.ModuleType) -> None:
    monkeypatch.setenv("TRT_PROVIDER", "tensorrt")
    set_provider(Provider.PORTABLE)
    assert provider_module() is portable


@pytest.mark.usefixtures("tensorrt", "portable")
def test_the_choice_can_be_changed() -> None:
    for choice in ("portable", "tensorrt", "portable"):
        set_provider(choice)
        assert current_provider().value == choice


def test_an_unknown_provider_is_refused_at_the_door() -> None:
    with pytest.raises(ProviderError, match="unknown provider 'onnx'"):
        set_provider("onnx")


def test_an_unknown_provider_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRT_PROVIDER", "onnx")
    with pytest.raises(ProviderError, match="TRT_PROVIDER"):
        current_provider()


def test_a_provider_that_is_not_installed_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", None)  # what makes `import tensorrt` fail
    set_provider("tensorrt")
    with pytest.raises(ProviderError, match="cannot be used") as caught:
        provider_module()
    assert "trt-runtime[tensorrt]" in caught.value.hint


@pytest.mark.usefixtures("portable")
def test_a_tensorrt_that_is_too_old_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", _module("tensorrt", "10.9.0.34"))
    _pretend_cuda(monkeypatch, True)
    assert current_provider() is Provider.PORTABLE
    set_provider("tensorrt")
    with pytest.raises(ProviderError, match="is too old") as caught:
        provider_module()
    assert "10.16" in caught.value.hint


def test_a_failed_import_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    set_provider("tensorrt")
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(ProviderError):
        provider_module()
    later = _module("tensorrt", "11.4.0.1")
    monkeypatch.setitem(sys.modules, "tensorrt", later)
    assert provider_module() is later


@pytest.mark.usefixtures("tensorrt")
def test_version_and_identity_are_the_providers() -> None:
    set_provider("tensorrt")
    assert provider_version() == (10, 16)
    assert provider_identity() == "tensorrt 10.16.1.11"


def test_the_facade_forwards_attributes(portable: types.ModuleType) -> None:
    set_provider("portable")
    assert trt.Builder is portable.Builder  # type: ignore[attr-defined]
    assert trt.__version__ == "11.4.0"  # type: ignore[attr-defined]
    assert "Builder" in dir(trt)


@pytest.mark.usefixtures("portable")
def test_the_facade_names_the_provider_that_lacks_something() -> None:
    set_provider("portable")
    with pytest.raises(AttributeError, match=r"trt_portable 11\.4\.0 has no attribute 'Bilder'"):
        trt.Bilder  # type: ignore[attr-defined]  # noqa: B018


def test_dunder_lookups_do_not_load_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    # copy, pickle and inspect look such names up on every module
    monkeypatch.setattr(provider, "_load", lambda: pytest.fail("a provider was loaded"))
    with pytest.raises(AttributeError):
        trt.__wrapped__  # type: ignore[attr-defined]  # noqa: B018


def test_many_threads_agree_on_one_choice(monkeypatch: pytest.MonkeyPatch, portable: types.ModuleType) -> None:
    loads = []

    def load() -> tuple[Provider, types.ModuleType]:
        loads.append(threading.get_ident())
        return Provider.PORTABLE, portable

    monkeypatch.setattr(provider, "_load", load)
    assert in_threads(lambda _: provider_module(), range(8)) == [portable] * 8
    assert len(loads) == 1


@pytest.mark.usefixtures("tensorrt")
def test_tensorrt_does_not_run_on_the_cpu() -> None:
    set_provider("tensorrt")
    with pytest.raises(ProviderError, match="TensorRT cannot run on cpu"), device_scope(torch.device("cpu")):
        pytest.fail("the scope was entered")


def test_the_portable_provider_is_told_the_device(portable: types.ModuleType) -> None:
    entered: list[str] = []

    @contextlib.contextmanager
    def device(which: torch.device) -> Iterator[None]:
        entered.append(f"enter {which}")
        yield
        entered.append("leave")

    portable.device = device  # type: ignore[attr-defined]
    set_provider("portable")
    with device_scope(torch.device("cpu")):
        entered.append("inside")
    assert entered == ["enter cpu", "inside", "leave"]
