"""JSON from files that nobody vouches for: one meaning, and bounds on what reading it takes."""

from __future__ import annotations

import pytest

from trt_runtime.strict_json import BadJson, parse_json


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
