"""What layers of engines remember of the extents that came last: other extents come out right all the same."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import trt_portable as trt

ROWS, WIDTH = 5, 8


@pytest.fixture
def engine(builder: trt.Builder, logger: Any) -> trt.ICudaEngine:
    """Rows of a table by indices (N, 3), normalized, as (N, 2, 12) by a transpose and a reshape that copies."""
    network = builder.create_network()
    indices = network.add_input("indices", trt.int32, (-1, 3))
    table = network.add_constant((ROWS, WIDTH), np.arange(ROWS * WIDTH, dtype=np.float32).reshape(ROWS, WIDTH))
    taken = network.add_gather(table.get_output(0), indices, 0).get_output(0)
    ones = network.add_constant((1, 1, WIDTH), np.full((1, 1, WIDTH), 2, np.float32)).get_output(0)
    normal = network.add_normalization_v2(taken, ones, ones, 1 << 2).get_output(0)
    two = network.add_constant((1, 1, 1), np.full((1, 1, 1), 2, np.float32)).get_output(0)
    normal = network.add_normalization_v2(normal, two, two, 1 << 2).get_output(0)  # one coefficient for all
    padded = network.add_slice(normal, (-1,), (5,), (1,))
    padded.mode, padded.axes = trt.SampleMode.FILL, (1,)
    inner = network.add_slice(padded.get_output(0), (1,), (3,), (1,))
    inner.axes = (1,)
    moved = network.add_shuffle(inner.get_output(0))
    moved.first_transpose, moved.reshape_dims, moved.second_transpose = (0, 2, 1), (-1, 12, 2), (0, 2, 1)
    network.mark_output(moved.get_output(0))
    moved.get_output(0).name = "y"
    config = builder.create_builder_config()
    profile = builder.create_optimization_profile()
    profile.set_shape("indices", (1, 3), (2, 3), (4, 3))
    config.add_optimization_profile(profile)
    found = trt.Runtime(logger).deserialize_cuda_engine(builder.build_serialized_network(network, config))
    assert found is not None
    return found


def expected(indices: torch.Tensor) -> torch.Tensor:
    table = torch.arange(ROWS * WIDTH, dtype=torch.float32).reshape(ROWS, WIDTH)
    at = torch.where(indices < 0, indices + ROWS, indices).long()
    inside = (at >= 0) & (at < ROWS)
    taken = torch.where(inside.unsqueeze(-1), table[at.where(inside, torch.zeros_like(at))], torch.zeros(()))
    normal = F.layer_norm(F.layer_norm(taken, (WIDTH,)) * 2 + 2, (WIDTH,)) * 2 + 2
    return normal.permute(0, 2, 1).reshape(-1, 12, 2).permute(0, 2, 1)


def test_extents_and_bounds_may_change_from_run_to_run(
    engine: trt.ICudaEngine, execute: Callable[..., dict[str, torch.Tensor]]
) -> None:
    context = engine.create_execution_context()
    for rows, low, high in ((2, 0, ROWS), (2, 0, ROWS), (4, -ROWS, ROWS), (2, -9, 9), (1, 0, ROWS), (2, 0, ROWS)):
        indices = torch.randint(low, high, (rows, 3), dtype=torch.int32)
        torch.testing.assert_close(execute(context, {"indices": indices})["y"], expected(indices))


def test_threads_with_other_extents_share_the_layers(engine: trt.ICudaEngine) -> None:
    def run(rows: int) -> None:
        for seed in range(20):
            indices = torch.randint(0, ROWS, (rows, 3), generator=torch.Generator().manual_seed(seed))
            with torch.inference_mode():
                (found,) = engine._state.executable.run([indices])
            torch.testing.assert_close(found, expected(indices))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, (1, 2, 4)))


def test_extents_of_coefficients_may_change_while_those_of_the_data_stay(
    network: trt.INetworkDefinition,
    load: Callable[..., trt.ICudaEngine],
    execute: Callable[..., dict[str, torch.Tensor]],
) -> None:
    x, scale = network.add_input("x", trt.float32, (2, WIDTH)), network.add_input("scale", trt.float32, (1, -1))
    y = network.add_normalization_v2(x, scale, scale, 1 << 1).get_output(0)
    y.name = "y"
    network.mark_output(y)
    context = load(network, {"scale": ((1, 1), (1, WIDTH), (1, WIDTH))}).create_execution_context()
    given = torch.randn(2, WIDTH)
    for width in (WIDTH, 1, WIDTH):
        coefficients = torch.randn(1, width)
        found = execute(context, {"x": given, "scale": coefficients})["y"]
        torch.testing.assert_close(found, F.layer_norm(given, (WIDTH,)) * coefficients + coefficients)
