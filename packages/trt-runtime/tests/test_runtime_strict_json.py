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
