"""The inference side: loads a saved program with `trt-runtime` alone, and runs it from several threads.

Usage: python examples/deploy.py FILE, where FILE was saved by examples/classify_image.py
"""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import torch

import trt_runtime


def main(path: str) -> None:
    """Loads and runs."""
    start = time.perf_counter()
    model = trt_runtime.load(path)
    print(f"loaded in {time.perf_counter() - start:.2f} s")
    heavy = {"torch._dynamo", "torch._inductor", "sympy", "trt_converters", "trt_lowering"} & set(sys.modules)
    print(f"compilers imported: {', '.join(sorted(heavy)) or 'none'}")

    def classify(batch: int) -> list[int]:
        generator = torch.Generator().manual_seed(batch)
        images = torch.randn(batch, 3, 96, 96, generator=generator)
        with torch.no_grad():
            classes: list[int] = model(images).argmax(1).tolist()
        return classes

    alone = [classify(batch) for batch in (1, 2, 3, 4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(classify, (1, 2, 3, 4)))
    print(f"four threads give the same classes as one: {alone == together}")


if __name__ == "__main__":
    main(sys.argv[1])
