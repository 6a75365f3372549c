"""Compiles an image classifier for batches of 1 to 8, compares it with eager PyTorch, and saves it.

Usage: python examples/classify_image.py [FILE]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
import torchvision

import trt_frontends
from trt_frontends import Input


def main(path: Path) -> None:
    """Compiles, compares, saves."""
    torch.manual_seed(0)
    model = torchvision.models.resnet18().eval()
    size = 96  # 224 for trained weights; smaller here, so that it runs in a moment on a CPU
    images = Input(
        min_shape=(1, 3, size, size),
        opt_shape=(4, 3, size, size),
        max_shape=(8, 3, size, size),
        tensor_domain=(-2, 2),
        name="x",
    )

    report = trt_frontends.explain(model, arg_inputs=[images])
    print(f"{report.coverage:.0%} of {report.total_operators} operators run in {len(report.engines)} engine(s)")

    compiled = trt_frontends.compile(model, arg_inputs=[images])
    for batch in (1, 3, 8):
        x = torch.randn(batch, 3, size, size)
        with torch.no_grad():
            classes, expected = compiled(x).argmax(1), model(x).argmax(1)
        print(f"batch {batch}: classes {classes.tolist()}, as eager: {torch.equal(classes, expected)}")

    trt_frontends.save(compiled, path)
    print(f"saved {path.stat().st_size >> 20} MiB")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder) / "resnet18.trtp")
