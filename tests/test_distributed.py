"""Models on several processes: collectives in engines, sharded models, and what happens where a rank fails."""

from __future__ import annotations

from pathlib import Path

import pytest
import rank_programs
from ranks import run_ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]


@pytest.mark.parametrize(
    ("world", "groups"), [(2, [[0, 1]]), (1, [[0]]), (4, [[0, 2], [1, 3]])], ids=["pair", "alone", "sub-groups"]
)
def test_collectives_run_in_engines(world: int, groups: list[list[int]], tmp_path: Path) -> None:
    for found in run_ranks(world, tmp_path, rank_programs.compile_collectives, groups):
        assert found == {"engines": 1, "coverage": 1.0}


@pytest.mark.parametrize(
    ("way", "kinds"),
    [("compile", ["tensor", "uneven", "sequence", "distributed output"]), ("torch.compile", ["sequence"])],
    ids=["compile", "torch.compile"],
)
def test_sharded_models_compile_in_both_ways(way: str, kinds: list[str], tmp_path: Path) -> None:
    for found in run_ranks(2, tmp_path, rank_programs.compile_parallel, kinds, way):
        assert found == {kind: {"engines": 1, "coverage": 1.0} for kind in kinds}
