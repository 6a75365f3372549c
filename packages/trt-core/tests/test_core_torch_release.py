"""Releases of PyTorch: those that were tested, and what is said of newer ones."""

from __future__ import annotations

import re
import warnings
from importlib.metadata import PackageNotFoundError, requires

import pytest

from trt_core.internals import NEWEST_TORCH, warn_of_untested_torch


@pytest.mark.parametrize("version", ["2.16.0", "2.17.0a0+git12ab", "3.0.1+cu140"])
def test_a_newer_release_is_told_of(version: str) -> None:
    with pytest.warns(UserWarning, match=re.escape(f"PyTorch {version} is newer than 2.15")):
        warn_of_untested_torch(version)


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cu130", "2.15.1", "unknown"])
def test_nothing_is_said_of_tested_releases(version: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_untested_torch(version)


def test_installers_choose_a_tested_release() -> None:
    try:
        found = requires("trt-core") or []
    except PackageNotFoundError:  # a source tree that is on the path without being installed
        pytest.skip("trt-core is not installed")
    major, minor = NEWEST_TORCH
    (torch,) = (item for item in found if item.startswith("torch"))
    assert f"<{major}.{minor + 1}" in torch
