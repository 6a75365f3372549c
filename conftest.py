"""What every test shares: one thread, exact float32, repeatable inputs, GPU tests only where there is a GPU."""

from __future__ import annotations

import functools
import gc
import logging
import os
import random
import re
import shutil
import sys
import tempfile
import zlib
from collections.abc import Generator, Sequence
from typing import Final

import hypothesis
import pytest
import torch

# what tests sign with is nobody's key
_KEYS: Final = tempfile.mkdtemp(prefix="trt-keys-")
os.environ["TRT_KEY_DIR"] = os.path.join(_KEYS, "keys")

# under `uv run` Ray starts its workers in environments of their own, which it makes of the folder that tests run in
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

# engines run in trt_portable's own kernels, whatever else is installed; tests of libraries say which they want
os.environ.setdefault("TRT_PORTABLE_LIBRARIES", "")

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
hypothesis.settings.register_profile("seeded", deadline=None, database=None, print_blob=True)
hypothesis.settings.register_profile("search", deadline=None, max_examples=500)
FEW_EXAMPLES: Final = 10
"""As many are never too many."""

hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what a check of an installation asks for, and what a search for faults varies."""
    parser.addoption("--first-cases", action="store_true", help="run the first case of every parametrized test only")
    parser.addoption(
        "--first-tests", action="store_true", help="run the first case of the first test of every file only"
    )
    parser.addoption("--seed", type=int, default=0, help="of random inputs and, unless it is 0, of the tests' order")
    parser.addoption("--threads", type=int, default=1, help="threads that PyTorch computes with")
    parser.addoption("--poison", action="store_true", help="fill what nobody has written to yet with NaN")


def pytest_configure(config: pytest.Config) -> None:
    """Sets the number of threads, and with `--poison` that memory is NaN until somebody writes to it.

    Garbage is looked for seldom, also while tests are imported, which makes what stays.
    What tests signed with goes when they have ended, in this process alone: those forked from it may end sooner.
    """
    config.add_cleanup(functools.partial(shutil.rmtree, _KEYS, ignore_errors=True))
    gc.set_threshold(20_000, 20, 50)  # a tenth of the suite's time went to searching what compilers keep
    torch.set_num_threads(config.getoption("--threads"))
    if config.getoption("--poison"):
        torch.utils.deterministic.fill_uninitialized_memory = True
        torch.use_deterministic_algorithms(True, warn_only=True)


@pytest.hookimpl(trylast=True)  # the first of those that `-m` and `-k` leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps and shuffles cases as asked for; skips tests marked `gpu` where there is no CUDA device."""
    for option, end in (("--first-cases", "["), ("--first-tests", "::")):
        if config.getoption(option):
            first: dict[str, pytest.Item] = {}
            for item in items:
                first.setdefault(item.nodeid.partition(end)[0], item)
            config.hook.pytest_deselected(items=list(set(items) - set(first.values())))
            items[:] = first.values()
    if "TRT_STRESS" not in os.environ:
        _try_fewer(items)
        if not any("[" in argument for argument in config.args):
            _sample(config, items)
    if seed := config.getoption("--seed"):
        items[:] = _shuffled(items, random.Random(seed))
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


def _try_fewer(items: list[pytest.Item]) -> None:
    """Halves the examples that properties are tried on, where they are many, in runs that repeat the same ones."""
    if os.environ.get("HYPOTHESIS_PROFILE", "repeatable") != "repeatable":
        return
    name = "_hypothesis_internal_use_settings"  # what each test keeps its own by
    for function in {getattr(item, "function", None) for item in items}:
        chosen = getattr(function, name, None)
        if isinstance(chosen, hypothesis.settings) and chosen.max_examples > FEW_EXAMPLES:
            fewer = max(FEW_EXAMPLES, chosen.max_examples // 2)
            setattr(function, name, hypothesis.settings(chosen, max_examples=fewer))


def _sample(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of tests marked `sampled`, keeps each value of each parameter, and a quarter of how they combine.

    Where the mark has a number, one case of each test in so many is kept, whatever its values are; tests for GPUs,
    which run on few machines, are kept whole then.
    """
    tests: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is not None and not (mark.args and "gpu" in item.keywords):
            tests.setdefault((item.nodeid.partition("[")[0], *mark.args), []).append(item)
    dropped: set[pytest.Item] = set()
    for (_, *number), cases in tests.items():
        cases.sort(key=lambda item: zlib.crc32(f"{config.getoption('--seed')} {item.nodeid}".encode()))
        first = [] if number else _with_new_values(cases)
        rest = [item for item in cases if item not in first]
        dropped.update(rest[max(0, -(-len(cases) // (number[0] if number else 4)) - len(first)) :])
    config.hook.pytest_deselected(items=list(dropped))
    items[:] = [item for item in items if item not in dropped]


def _with_new_values(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns the cases that have a value which none before them has."""
    seen: set[tuple[object, ...]] = set()
    found = []
    for item in cases:
        values = _values(item)
        if not seen >= values:
            found.append(item)
        seen |= values
    return found


def _values(item: pytest.Item) -> set[tuple[object, ...]]:
    """What a case has for each of its parameters; those that one mark gives together are one."""
    given: dict[str, object] = getattr(item, "callspec").params  # noqa: B009 - only functions with parameters have it
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    together = [re.split(r"\s*,\s*", one) if isinstance(one, str) else list(one) for one in names]
    alone = [[name] for name in given if not any(name in group for group in together)]
    return {(*group, *(id(given[name]) for name in group)) for group in (*together, *alone)}


def _shuffled(items: list[pytest.Item], generator: random.Random) -> list[pytest.Item]:
    """Returns tests in another order: of files, and in each of them, so that what a file's tests share is made once."""
    files: dict[object, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    order = list(files.values())
    generator.shuffle(order)
    for tests in order:
        generator.shuffle(tests)
    return [item for tests in order for item in tests]


def pytest_collection_finish() -> None:
    """Takes what is alive before the first test out of garbage collection, which tests that watch memory ask for.

    And keeps TorchDynamo from timing the guards of each frame that it compiles, for which it empties the processor's
    caches first.
    """
    gc.collect()
    gc.freeze()
    if guards := sys.modules.get("torch._dynamo.guards"):
        guards.profile_guard_manager = lambda *_: 0.0  # type: ignore[attr-defined]


@functools.cache  # modules of PyTorch that come later have more loggers
def _hear_of_torch(loggers: int) -> None:
    """Lets records of PyTorch's loggers reach the root logger, where pytest listens; once for each number of loggers.

    Since 9.1 pytest adds its handlers to each logger that keeps its records to itself, for each phase of each test.
    PyTorch has eighty of them; one that has handlers makes it write down all that it compiles, for nobody.
    """
    for name, logger in list(logging.root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and name.partition(".")[0] == "torch":
            logger.propagate = True
    if "TORCH_TRACE" not in os.environ:
        logging.getLogger("torch.__trace").handlers.clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Runs tests that are not marked `gpu` on the CPU, fixtures of any scope included, also on a machine with a GPU."""
    _hear_of_torch(len(logging.root.manager.loggerDict))
    if "gpu" in item.keywords:
        return (yield)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "is_available", lambda: False)
        return (yield)


@pytest.fixture(autouse=True)
def _seeded(pytestconfig: pytest.Config) -> None:
    """Makes random inputs the same in every run and in any order of the tests."""
    seed = pytestconfig.getoption("--seed")
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:  # which would note a stack trace for each kind of device that is not there
        torch.default_generator.manual_seed(seed)
