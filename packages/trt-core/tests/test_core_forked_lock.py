"""Locks in forked processes."""

from __future__ import annotations

import os
import sys
import threading
import types

import pytest
import torch
from side_by_side import in_fork

from trt_core import Provider, current_provider, internals, provider, set_provider
from trt_core.forked_lock import ForkedLock
from trt_core.internals import compile_session

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def _take(lock: ForkedLock) -> bool:
    with lock, lock:
        return lock.depth == 2


def test_a_lock_of_another_thread_is_free_after_a_fork() -> None:
    lock = ForkedLock()
    with lock:
        assert in_fork(lambda: _take(lock))
        assert lock.depth == 1
    assert _take(lock) and lock.depth == 0


def test_a_lock_of_the_thread_that_forks_stays_its_own() -> None:
    lock = ForkedLock()
    with lock:
        child = os.fork()
        if not child:
            other = threading.Thread(target=lambda: _take(lock), daemon=True)
            other.start()
            other.join(0.2)
            os._exit(0 if other.is_alive() and lock.depth == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert lock.depth == 0


def test_a_choice_of_another_thread_does_not_keep_a_forked_process_from_choosing() -> None:
    def chooses() -> bool:
        set_provider("portable")
        return current_provider() is Provider.PORTABLE

    with provider._lock:
        assert in_fork(chooses)


def test_a_compilation_does_not_keep_a_forked_process_from_compiling() -> None:
    with compile_session():
        assert in_fork(_compile)


def _compile() -> bool:
    before: bool = torch.compiler._is_compiling_flag
    with compile_session():
        return not before and torch.compiler._is_compiling_flag is True


def test_a_fork_while_a_thread_imports_dynamo_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock is not there yet. What a handler of forks raises, Python prints."""
    name = "torch._dynamo.convert_frame"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    internals._renew_compile_lock()
