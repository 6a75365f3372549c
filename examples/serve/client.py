"""Sends one request to `serve.py`: `python client.py inputs.safetensors outputs.safetensors`."""

from __future__ import annotations

import sys
import urllib.request
from pathlib import Path


def predict(body: bytes, url: str = "http://127.0.0.1:8000/predict") -> bytes:
    """Sends tensors by input name and returns tensors by output name, both in the safetensors format."""
    with urllib.request.urlopen(urllib.request.Request(url, data=body, method="POST"), timeout=60) as answer:
        result: bytes = answer.read()
    return result


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(predict(Path(sys.argv[1]).read_bytes()))
