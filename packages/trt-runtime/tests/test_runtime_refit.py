"""Refit tables of files that were made to do harm."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from trt_core.errors import RefitError
from trt_core.limits import CallLimits
from trt_core.refit_table import RefitTable
from trt_core.weight_recipes import Applied
from trt_runtime.plan_notes import Bounds, note_bounds, note_own
from trt_runtime.refit import _admitting, check_replaceable


def test_tables_call_no_operator_that_programs_may_not_call(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(16))
    opened = Applied(torch.ops.aten.from_file.default, (str(secret), False, 4), {})
    table = RefitTable.from_json(RefitTable(reads=((opened, ""),)).to_json())
    with pytest.raises(RefitError, match=r"cannot be made again with aten\.from_file"):
        check_replaceable(table, {}, "an engine")


def test_operands_that_operators_do_not_compare_are_compared() -> None:
    running = Applied(torch.ops.aten.ones.default, ([2],), {})
    x = Applied(torch.ops.aten.ones.default, ([1, 4096, 1],), {})
    normed = Applied(
        torch.ops.aten._native_batch_norm_legit_no_training.default, (x, None, None, running, running, 0.1, 1e-5), {}, 0
    )
    with pytest.raises(RefitError, match="has shape"):
        check_replaceable(RefitTable(reads=((normed, ""),)), {}, "an engine")


def test_tables_of_strangers_call_reviewed_operators_only_and_have_limits() -> None:
    """As their programs do: uninitialized memory, or any amount of it, came back as a weight."""
    plan = torch.zeros(64, dtype=torch.uint8)
    note_bounds(plan, Bounds(CallLimits(bytes_alive=1 << 20), lambda: False))
    admit = _admitting((plan,))
    empty = Applied(torch.ops.aten.empty.memory_format, ([4],), {})
    with pytest.raises(RefitError, match=r"(?s)aten\.empty.*only files may do so that are trusted"):
        check_replaceable(RefitTable(reads=((empty, ""),)), {}, "an engine", admit)
    large = Applied(torch.ops.aten.ones.default, ([1 << 19],), {})
    with pytest.raises(RefitError, match="takes more than 1048576 bytes at once"):
        check_replaceable(RefitTable(reads=((large, ""),)), {}, "an engine", admit)
    note_own(plan)
    with pytest.raises(RefitError, match="other numbers"):  # it was made, and is another
        check_replaceable(RefitTable(reads=((empty, ""),)), {}, "an engine", _admitting((plan,)))
