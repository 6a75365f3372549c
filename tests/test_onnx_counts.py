"""The counts of ONNX's tests, from a report of few of them."""

from __future__ import annotations

from tools.onnx_counts import summary


def test_the_share_is_of_what_tensorrt_promises() -> None:
    report = {
        "onnx": "1.0",
        "cases": 6,
        "counts": {"passed": 2, "passed with constants": 1, "excluded": 1, "newer": 1, "lacks a type": 1},
        "others": {"a": ["excluded", "random"], "b": ["newer", ""], "c": ["lacks a type", ""]},
    }
    text = summary(report)
    assert "3 of 6 tests pass" in text
    assert "3 of 4 (75.0%)" in text
    assert "excluded: 1: random" in text
