"""Large copies, in pieces and side by side; weights that a build leaves where they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trt_portable as trt
from trt_core import copies
from trt_core.copies import copy_all
from trt_portable.plan.weight_table import WeightTable

TYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.uint8)


@given(sizes=st.lists(st.integers(0, 300), max_size=6), piece=st.integers(8, 99), inference=st.booleans())
def test_pieces_make_the_whole(sizes: list[int], piece: int, inference: bool) -> None:
    with pytest.MonkeyPatch.context() as patch, torch.inference_mode(inference):
        patch.setattr(copies, "_PIECE_BYTES", piece)
        patch.setattr(copies, "LARGE_BYTES", 0)
        sources = [torch.randint(0, 2, (size,)).to(TYPES[at % len(TYPES)]) for at, size in enumerate(sizes)]
        targets = [torch.empty_like(source) for source in sources]
        copy_all(list(zip(sources, targets, strict=True)))
        assert all(map(torch.equal, sources, targets))


def test_a_single_element_is_copied_whatever_its_stride(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LARGE_BYTES", 0)
    scale, target = torch.arange(512.0)[7::256][1:], torch.empty(1)  # as what is taken out of a row lies
    assert scale.is_contiguous() and scale.stride() == (256,)
    WeightTable({"scale": scale}).write_all({"scale": target})
    assert target.item() == 263


@pytest.mark.gpu
@pytest.mark.parametrize("count", [10, (33 << 20) + 5, 80 << 20])
def test_copies_to_and_from_a_gpu(count: int) -> None:
    source = torch.randint(0, 256, (count,), dtype=torch.uint8)
    there, back = torch.empty_like(source, device="cuda"), torch.empty_like(source)
    copy_all([(source, there)])
    assert torch.equal(there.cpu(), source)
    there += 1
    copy_all([(there, back)])
    assert torch.equal(back, source + 1)


@pytest.mark.gpu
def test_weights_on_a_gpu_are_read_on_the_host_and_written_from_where_they_lie() -> None:
    lying = torch.randn(1 << 16, device="cuda")
    table = WeightTable({"w": lying, "b": torch.arange(4.0)})
    table.defer("twice", torch.float32, 1 << 16, lambda target: target.copy_(lying * 2), lying.device)
    assert table["w"].device.type == table["twice"].device.type == "cpu"
    assert table.in_place("w") is lying and table.computed()["w"] is lying
    assert table.computed()["twice"].is_cuda
    targets = {key: torch.empty(table.spec(key)[1]) for key in table}
    table.write_all(targets)
    for key, target in targets.items():
        torch.testing.assert_close(target, table[key])


def test_a_build_reads_no_large_weights(network: Any, builder: trt.Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pass reads is copied to the host; products that are joined are joined where their matrices lie."""
    read: list[tuple[str, int]] = []

    def note(table: WeightTable, key: str) -> torch.Tensor:
        found = get(table, key)
        read.append((key, found.nbytes))
        return found

    get = WeightTable.__getitem__
    monkeypatch.setattr(WeightTable, "__getitem__", note)
    x = network.add_input("x", trt.float32, (3, 512))
    none = trt.MatrixOperation.NONE
    for _ in range(2):
        matrix = network.add_constant((512, 512), np.ones((512, 512), np.float32)).get_output(0)
        turned = network.add_shuffle(matrix)
        turned.first_transpose = (1, 0)
        product = network.add_matrix_multiply(x, none, turned.get_output(0), none).get_output(0)
        network.mark_output(network.add_unary(product, trt.UnaryOperation.EXP).get_output(0))
    assert builder.build_serialized_network(network, builder.create_builder_config()) is not None
    assert not [key for key, size in read if size >= 1 << 20]


@pytest.mark.gpu
def test_weights_of_the_api_may_lie_on_a_gpu(load: Any) -> None:
    weights = torch.randn(512, 512, device="cuda", dtype=torch.float16)
    held = trt.Weights._on_device(trt.DataType.HALF, weights)
    assert (held.size, held.nbytes) == (weights.numel(), weights.nbytes)
    assert torch.equal(torch.from_numpy(held.numpy()), weights.cpu().reshape(-1))


@pytest.mark.gpu
def test_a_build_takes_weights_from_the_gpu() -> None:
    """Products of one input are joined there, and neither host nor GPU holds weights that nobody needs."""
    from torch import nn

    import trt_frontends

    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maps = nn.ModuleList(nn.Linear(1024, 1024) for _ in range(3))
            self.last = nn.Linear(1024, 4096, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second, third = (map_(x) for map_ in self.maps)
            return self.last(torch.relu(first) * second + third)

    model = Branches().eval().half().cuda()
    x = torch.randn(7, 1024, device="cuda", dtype=torch.float16)
    with torch.no_grad():
        for level in (0, 3):
            compiled = trt_frontends.compile(model, arg_inputs=(x,), min_block_size=1, optimization_level=level)
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
