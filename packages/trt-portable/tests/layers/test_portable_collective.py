"""Collectives: their rules, what they make, and which process group they run in; one process is a group of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import trt_portable as trt
from trt_portable.layers.collective import rehearsal

C, R = trt.CollectiveOperation, trt.ReduceOperation
RANKS = [0, 1]


def _network(builder: Any, operation: Any, reduction: Any = R.NONE, root: int = -1, rows: int = 4) -> tuple[Any, Any]:
    network = builder.create_network()
    x = network.add_input("x", trt.float32, (rows, 3))
    layer = network.add_dist_collective(x, operation, reduction, root, RANKS)
    return network, layer


@pytest.mark.parametrize(
    ("operation", "reduction", "root", "rows"),
    [
        (C.ALL_REDUCE, R.SUM, -1, 4),
        (C.REDUCE, R.MAX, 0, 4),
        (C.BROADCAST, R.NONE, 1, 4),
        (C.ALL_GATHER, R.NONE, -1, 8),
        (C.GATHER, R.NONE, 0, 8),
        (C.REDUCE_SCATTER, R.AVG, -1, 2),
        (C.SCATTER, R.NONE, 1, 2),
        (C.ALL_TO_ALL, R.NONE, -1, 4),
    ],
)
def test_first_extents(builder: Any, operation: Any, reduction: Any, root: int, rows: int) -> None:
    _, layer = _network(builder, operation, reduction, root)
    layer.num_ranks = 2
    assert tuple(layer.get_output(0).shape) == (rows, 3)


@pytest.mark.parametrize(
    ("operation", "reduction", "root"),
    [
        (C.ALL_REDUCE, R.NONE, -1),
        (C.ALL_GATHER, R.SUM, -1),
        (C.BROADCAST, R.NONE, -1),
        (C.ALL_REDUCE, R.SUM, 0),
        (C.BROADCAST, R.NONE, 2),
    ],
    ids=["no reduction", "a reduction", "no root", "a root", "a root outside"],
)
def test_refused_operands(builder: Any, operation: Any, reduction: Any, root: int) -> None:
    assert _network(builder, operation, reduction, root)[1] is None


def test_a_build_wants_as_many_ranks_as_there_are(builder: Any, logger: Any) -> None:
    network, layer = _network(builder, C.ALL_REDUCE, R.SUM)
    network.mark_output(layer.get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None
    assert any("num_ranks" in error for error in logger.errors)


def test_extents_that_do_not_divide_are_refused(builder: Any) -> None:
    network, layer = _network(builder, C.REDUCE_SCATTER, R.SUM, rows=3)
    layer.num_ranks = 2
    network.mark_output(layer.get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is None


def _built(builder: Any, load: Any, metadata: str = "") -> Any:
    network, layer = _network(builder, C.ALL_REDUCE, R.SUM)
    layer.num_ranks = 2
    layer.metadata = metadata
    network.mark_output(layer.get_output(0))
    return load(network)


def test_a_build_communicates_nothing_and_a_run_needs_a_group(
    builder: Any, load: Any, execute: Any, logger: Any
) -> None:
    context = _built(builder, load).create_execution_context()
    with pytest.raises((AssertionError, RuntimeError)):
        execute(context, {"x": torch.ones(4, 3)})
    assert any("init_process_group" in error for error in logger.errors)


@pytest.mark.usefixtures("fake_world")
def test_a_group_is_found_by_its_ranks(builder: Any, load: Any, execute: Any) -> None:
    context = _built(builder, load, "model.py:3, process group 'a name of another process'").create_execution_context()
    (found,) = execute(context, {"x": torch.ones(4, 3)}).values()
    torch.testing.assert_close(found, torch.ones(4, 3))


def test_a_group_without_the_ranks_is_not_taken(
    builder: Any, load: Any, execute: Any, logger: Any, tmp_path: Path
) -> None:
    engine = _built(builder, load)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with pytest.raises((AssertionError, RuntimeError)):
            execute(engine.create_execution_context(), {"x": torch.ones(4, 3)})
    finally:
        dist.destroy_process_group()
    assert any("no process group of the ranks 0, 1; it has 0" in error for error in logger.errors)


def test_stand_ins_have_the_form_of_results() -> None:
    from trt_portable.layers.collective import collective_operator

    x = torch.arange(8.0).reshape(4, 2)
    with rehearsal():
        for operation, rows in (("ALL_REDUCE", 4), ("ALL_GATHER", 8), ("REDUCE_SCATTER", 2), ("ALL_TO_ALL", 4)):
            found = collective_operator()(x, operation, "sum", -1, RANKS, "", "")
            assert found.shape == (rows, 2)
            assert found.data_ptr() != x.data_ptr()


def test_a_trace_names_the_ranks_and_communicates_nothing(builder: Any, load: Any) -> None:
    graph = trt.trace_engine(_built(builder, load))
    (call,) = [node for node in graph.graph.nodes if "collective" in str(node.target)]
    assert call.args[4] == RANKS
