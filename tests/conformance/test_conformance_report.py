"""Reports of operators, of which some may run anew."""

from __future__ import annotations

from typing import Any

from conformance_check import updated_report


def _entry(*types: str, count: int = 1) -> dict[str, Any]:
    return {"types": {name: {"converted": count} for name in types}, "refusals": {}}


def test_operators_that_ran_take_the_places_of_what_was_there() -> None:
    first = updated_report({}, {"b": _entry("float32"), "a": _entry("float32", "bool")}, "2.11", None)
    assert (first["torch"], [*first["operators"]]) == ("2.11", ["a", "b"])
    second = updated_report(first, {"b": _entry("float32", count=3), "a": _entry("bool", count=3)}, "2.13", None)
    assert second["torch"] == "2.11"
    assert second["operators"] == {"a": _entry("float32", "bool"), "b": {**_entry("float32", count=3), "torch": "2.13"}}
    whole = updated_report(second, {"b": _entry("float32"), "a": _entry("float32", "bool")}, "2.13", None)
    assert whole == {**first, "torch": "2.13"}


def test_a_report_of_other_limits_is_begun_anew() -> None:
    first = updated_report({}, {"a": _entry("float32")}, "2.13", None)
    assert [*updated_report(first, {"b": _entry("float32")}, "2.13", 4)["operators"]] == ["b"]
