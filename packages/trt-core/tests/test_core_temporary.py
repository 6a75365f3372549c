"""Values that hold inside a block."""

from __future__ import annotations

import types
from contextvars import ContextVar

import pytest

from trt_core.temporary import with_attributes, with_value


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


def test_a_variable_has_its_value_again():
    variable = ContextVar("variable", default=0)
    with pytest.raises(KeyError), with_value(variable, 1) as given:
        assert (given, variable.get()) == (1, 1)
        with with_value(variable, 2):
            assert variable.get() == 2
        assert variable.get() == 1
        raise KeyError
    assert variable.get() == 0
