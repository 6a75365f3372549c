"""Verdicts and the table of reason codes."""

from __future__ import annotations

import re

import pytest

from trt_core import SUPPORTED, Reason, Verdict


def test_codes_are_unique_and_of_one_form() -> None:
    codes = [reason.code for reason in Reason]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"TRT-F\d{3}", code) for code in codes)


def test_codes_that_scripts_match_on_never_change() -> None:
    # A code may be added; none of these may go or mean something else.
    promised = {
        "TRT-F001": "NO_CONVERTER",
        "TRT-F002": "FORCED_OPERATOR",
        "TRT-F003": "FORCED_MODULE",
        "TRT-F004": "DISABLED_CONVERTER",
        "TRT-F010": "UNSUPPORTED_DTYPE",
        "TRT-F011": "UNSUPPORTED_RANK",
        "TRT-F012": "EMPTY_TENSOR",
        "TRT-F020": "DYNAMIC_SHAPE",
        "TRT-F021": "DATA_DEPENDENT_SHAPE",
        "TRT-F022": "NOT_CONSTANT",
        "TRT-F030": "UNSUPPORTED_ARGUMENT",
        "TRT-F031": "TENSORRT_LIMIT",
        "TRT-F032": "PROVIDER_VERSION",
        "TRT-F033": "NO_LOW_PRECISION",
        "TRT-F034": "LEFT_IN_FLOAT",
        "TRT-F040": "CHECK_FAILED",
        "TRT-F041": "CONVERSION_FAILED",
        "TRT-F042": "BUILD_FAILED",
        "TRT-F050": "UNSUPPORTED_VALUE",
        "TRT-F051": "MUTATION",
        "TRT-F052": "SIDE_EFFECT",
        "TRT-F053": "HIGHER_ORDER",
        "TRT-F054": "UNBOUND_ARGUMENTS",
        "TRT-F060": "SMALL_BLOCK",
        "TRT-F061": "NO_COMPUTATION",
    }
    assert promised.items() <= {reason.code: reason.name for reason in Reason}.items()


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_the_text_of_its_page(reason: Reason) -> None:
    assert reason.title
    assert not reason.title.endswith(".")
    assert reason.explanation.endswith(".")
    assert reason.advice.endswith(".")


@pytest.mark.parametrize("reason", Reason)
def test_a_code_leads_back_to_its_reason(reason: Reason) -> None:
    assert Reason.from_code(reason.code) is reason


def test_an_unknown_code_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        Reason.from_code("TRT-F999")


def test_a_supported_verdict_is_true_and_has_no_code() -> None:
    assert SUPPORTED
    assert SUPPORTED.code == ""
    assert SUPPORTED.reason is None


def test_a_refusal_is_false_and_says_why() -> None:
    verdict = Verdict.refuse(Reason.UNSUPPORTED_RANK, "9 dimensions", "model.py:3")
    assert not verdict
    assert (verdict.code, verdict.message, verdict.source) == ("TRT-F011", "9 dimensions", "model.py:3")


def test_a_refusal_without_a_message_explains_its_reason() -> None:
    assert Verdict.refuse(Reason.MUTATION).message == Reason.MUTATION.explanation


@pytest.mark.parametrize(("supported", "reason"), [(True, Reason.MUTATION), (False, None)])
def test_a_verdict_has_a_reason_exactly_when_it_refuses(supported: bool, reason: Reason | None) -> None:
    with pytest.raises(ValueError, match="exactly when"):
        Verdict(supported, reason)


def test_verdicts_compare_by_value() -> None:
    assert Verdict.refuse(Reason.MUTATION, "a") == Verdict.refuse(Reason.MUTATION, "a")
    assert Verdict.refuse(Reason.MUTATION, "a") != Verdict.refuse(Reason.MUTATION, "b")
