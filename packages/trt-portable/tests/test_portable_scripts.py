"""Scripts for TensorRT run on this package with nothing but the import changed."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.py"))
IMPORT = "import tensorrt as trt\n"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.stem))
def test_script(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert source.count(IMPORT) == 1
    source = source.replace(IMPORT, "import trt_portable as trt\n")
    # tests put engines on the CPU wherever they run
    source = source.replace('"cuda" if torch.cuda.is_available() else "cpu"', '"cpu"')
    exec(compile(source, str(path), "exec"), {"__name__": "__main__"})


def test_there_are_scripts() -> None:
    assert {path.stem for path in SCRIPTS} >= {"mlp", "cnn_dynamic_batch", "loop", "refit"}
