"""What every test shares: one thread, exact float32, repeatable properties, GPU tests only where there is a GPU."""

from __future__ import annotations

import gc
import os

import hypothesis
import pytest
import torch

torch.set_num_threads(1)
# TF32 rounds to 10 bits of mantissa: mistakes would hide in the tolerance that it needs
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,  # the first example pays for imports and kernels' first use
    derandomize=True,
    database=None,
    print_blob=True,
)
hypothesis.settings.register_profile("search", deadline=None, max_examples=500)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option that a check of what is installed needs, as against what it computes."""
    parser.addoption("--first-cases", action="store_true", help="run the first case of every parametrized test only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps the first cases where only these are asked for; skips tests marked `gpu` where there is no CUDA device."""
    if config.getoption("--first-cases"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        config.hook.pytest_deselected(items=[item for item in items if item not in first.values()])
        items[:] = list(reversed(first.values()))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Takes what is alive before the first test out of garbage collection, which tests that watch memory ask for."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _on_the_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that are not marked `gpu` mean the CPU, also on a machine where the current device is a GPU."""
    if "gpu" not in request.keywords:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Makes random inputs the same in every run and in any order of the tests."""
    torch.manual_seed(0)
