"""JSON from files that nobody vouches for: one meaning, and bounds on what reading it takes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trt_core.files.strict_json import BadJson, parse_json


@pytest.mark.parametrize("text", [b'{"a": 1, "a": 1}', b"[" * 65 + b"]" * 65, b"[1, 2", b"1" * 21, b"-1e400", b"nan"])
def test_strict_json_refuses(text: bytes) -> None:
    with pytest.raises(BadJson):
        parse_json(text, max_bytes=1000)


def test_strict_json_is_bounded() -> None:
    with pytest.raises(BadJson, match="more than 10"):
        parse_json(b"[1, 2, 3, 4, 5]", max_bytes=10)
    with pytest.raises(BadJson, match="more than 3 values"):
        parse_json(b"[1, 2, 3, 4, 5]", max_bytes=1000, max_values=3)
    assert parse_json(b'{"a": [1, -2.5, null, "x[{"]}', max_bytes=1000) == {"a": [1, -2.5, None, "x[{"]}


def test_a_key_that_appears_twice_among_many_is_found_at_once() -> None:
    text = "{" + "".join(f'"{number}": 0, ' for number in range(300_000)) + '"a": 1, "a": 2}'
    with pytest.raises(BadJson, match="'a' appears twice"):
        parse_json(text.encode(), max_bytes=1 << 24)


@pytest.mark.parametrize("depth", [65, 200, 900])
def test_brackets_in_strings_hide_no_depth(depth: int) -> None:
    masked = '["' + "]" * 2000 + '", ' + "[" * depth + "]" * depth + "]"
    with pytest.raises(BadJson, match=r"nests deeper|recursion"):
        parse_json(masked.encode(), max_bytes=1 << 20)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":1,"a":2}',
        '{"a" :1,"a":2}',
        '{"a":1,"a" :2}',
        '{"a":1,"a"\n:2}',
        '{"a":1,"b":{"c":[{"x":0,"x":0}]}}',
        '{"a":1,"a":":"}',  # what looks like a third key, in a string
        '{"a":1,"a":"\\":"}',
        '{"a":1,"\\u0061":2}',
    ],
)
def test_a_key_that_appears_twice_is_found_however_it_is_written(text: str) -> None:
    with pytest.raises(BadJson, match=r"'[ax]' appears twice"):
        parse_json(text.encode(), max_bytes=1000)


@pytest.mark.parametrize("text", ['{"a":":","b":"\\":"}', '{"a" : "x" , "b":1}', '["\\":",":"]', '{"a":{"a":{"a":1}}}'])
def test_what_only_looks_like_two_keys_is_read(text: str) -> None:
    assert parse_json(text.encode(), max_bytes=1000) == json.loads(text)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**63), 2**63 - 1)
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(alphabet='":, {}[]\\ab', max_size=6),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(alphabet='":ab\\ ', max_size=3), inner),
        max_leaves=20,
    ),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")]),
)
def test_whatever_json_writes_is_read(value: Any, separators: tuple[str, str]) -> None:
    assert parse_json(json.dumps(value, separators=separators).encode(), max_bytes=1 << 20) == value


@pytest.mark.parametrize(
    "text",
    [
        b"9223372036854775808",
        b"[-9223372036854775809]",
        b'{"a":12345678901234567890}',
        b"[19223372036854775807,92233720368547758070]",
    ],
)
def test_integers_beyond_64_bits_are_refused(text: bytes) -> None:
    with pytest.raises(BadJson, match="needs more than 64 bits"):
        parse_json(text, max_bytes=1000)


def test_the_largest_integer_is_read() -> None:
    assert parse_json(b"[9223372036854775807,-9223372036854775807]", max_bytes=100) == [2**63 - 1, 1 - 2**63]
