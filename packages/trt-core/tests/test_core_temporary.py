"""Values that hold inside a block."""

from __future__ import annotations

import gc
import logging
import os
import types
from contextvars import ContextVar

import pytest
import torch
from side_by_side import in_fork

from trt_core.log import unlogged
from trt_core.paused_collection import paused_collection
from trt_core.temporary import seeded, with_attributes, with_value


class Base:
    shown = "of the class"

    def told(self):
        return "by the class"


def test_an_object_has_its_own_attributes_again():
    made = Base()
    made.own = 1
    with pytest.raises(KeyError), with_attributes(made, own=2, told=lambda: "inside", shown="inside"):
        assert (made.own, made.told(), made.shown) == (2, "inside", "inside")
        raise KeyError
    assert vars(made) == {"own": 1}, "what it had not is left to its class"
    assert (made.told(), made.shown) == ("by the class", "of the class")


def test_classes_and_modules_have_theirs_too():
    method, module = vars(Base)["told"], types.ModuleType("module")
    with with_attributes(Base, told=lambda self: "inside"), with_attributes(module, print=str):
        assert Base().told() == "inside"
        assert module.print is str
    assert vars(Base)["told"] is method
    assert not hasattr(module, "print")


def test_blocks_inside_of_blocks_end_in_their_order():
    made = Base()
    with with_attributes(made, own=1):
        with with_attributes(made, own=2):
            assert made.own == 2
        assert made.own == 1
    assert not vars(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_processes_that_other_threads_fork_inside_of_a_block_have_what_was_before():
    made = Base()
    made.own = 0
    other = logging.getLogger("of somebody else")
    with with_attributes(made, own=1, told=str), paused_collection(), unlogged(other.name):
        with with_attributes(made, own=2):
            assert in_fork(lambda: vars(made) == {"own": 0} and gc.isenabled() and not other.filters)
        assert (made.own, gc.isenabled()) == (1, False)
        child = os.fork()
        if not child:  # this thread goes on there, and ends its blocks itself
            os._exit(0 if made.own == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
    assert vars(made) == {"own": 0}


def test_a_variable_has_its_value_again():
    variable = ContextVar("variable", default=0)
    with pytest.raises(KeyError), with_value(variable, 1) as given:
        assert (given, variable.get()) == (1, 1)
        with with_value(variable, 2):
            assert variable.get() == 2
        assert variable.get() == 1
        raise KeyError
    assert variable.get() == 0


def test_random_numbers_are_those_of_a_seed_and_of_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every GPU's generator is left as it was: also of one that is not in use yet, and where no input is."""
    gpus = [torch.Generator().manual_seed(7 + number) for number in range(2)]
    generators = [torch.default_generator, *gpus]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "default_generators", gpus)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: gpus[device].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: gpus[device].set_state(state))
    before = [generator.get_state() for generator in generators]
    drawn = []
    for _ in range(2):
        with seeded(3):
            drawn.append([torch.rand(2, generator=generator) for generator in generators])
    assert all(map(torch.equal, *drawn))
    assert all(map(torch.equal, before, (generator.get_state() for generator in generators)))
    monkeypatch.undo()
    queued = list(torch.cuda._queued_calls)
    with seeded(3):
        pass
    assert torch.cuda._queued_calls == queued
