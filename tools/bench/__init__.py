"""Benchmarks: `python -m tools.bench NAME...`. Each compares with a peer in the same run and prints ratios."""
