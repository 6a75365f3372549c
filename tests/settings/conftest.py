"""The model of the tests of settings, and what the builder is given for it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from engine_builds import record_builds
from settings_models import OPTIONS, Mlp, compile_model
from torch import nn

from trt_core import trt


@pytest.fixture
def model() -> nn.Module:
    """The same weights in every test."""
    return Mlp().eval()


@pytest.fixture
def built_with(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Compiles, and returns the configuration that the provider's builder was given."""
    given: list[Any] = []
    original = trt.Builder.build_serialized_network

    def build(builder: Any, network: Any, config: Any) -> Any:
        given.append(config)
        return original(builder, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", build)

    def compile_with(**settings: Any) -> Any:
        given.clear()
        compile_model(model, **settings)
        return given[-1]

    return compile_with


@pytest.fixture
def says_so(built_with: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """The same, of settings without effect on the portable provider: its log says what the documentation does."""

    def compile_with(**settings: Any) -> Any:
        with caplog.at_level(logging.INFO, logger="torch_tensorrt"):
            config = built_with(**settings)
        for name in settings:
            option = OPTIONS[name]
            assert option is not None
            assert f"has no effect: {option.portable.removeprefix('no effect: ')}" in caplog.text
        return config

    return compile_with


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of blocks that were built, not found in a cache."""
    return record_builds(monkeypatch)
