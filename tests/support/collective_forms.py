"""Every way in which `torch.distributed` communicates, as functions that a model may call in `forward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn

import trt_frontends as trt
from trt_core import ExportError

ROWS: Final = 4


def _all_gather(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return torch.cat(parts)


def _all_gather_numbers(x: torch.Tensor) -> torch.Tensor:
    number = x.sum()
    parts = [torch.empty_like(number) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, number)
    return x * torch.stack(parts).max()


def _all_gather_coalesced(x: torch.Tensor) -> torch.Tensor:
    given = [x, x[:2] + 1]
    parts = [[torch.empty_like(part) for part in given] for _ in range(dist.get_world_size())]
    dist.all_gather_coalesced(parts, given)
    return torch.cat([part for of_rank in parts for part in of_rank])


def _reduce_scatter(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    dist.reduce_scatter(found, [x * (index + 1) for index in range(dist.get_world_size())])
    return found


def _reduce_scatter_uneven(x: torch.Tensor) -> torch.Tensor:
    found = x.new_empty(_rows(dist.get_rank()), x.shape[1])
    dist.reduce_scatter(found, [x[: _rows(index)] + index for index in range(dist.get_world_size())])
    return found


def _all_to_all(x: torch.Tensor) -> torch.Tensor:
    found = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_to_all(found, [x + index for index in range(dist.get_world_size())])
    return torch.cat(found)


def _all_to_all_single_uneven(x: torch.Tensor) -> torch.Tensor:
    rank, ranks = dist.get_rank(), range(dist.get_world_size())
    given, taken = [_rows(rank + 2 * other) for other in ranks], [_rows(other + 2 * rank) for other in ranks]
    found = x.new_empty(sum(taken), x.shape[1])
    dist.all_to_all_single(found, torch.cat([x[:rows] + index for index, rows in enumerate(given)]), taken, given)
    return found


def _broadcast(x: torch.Tensor) -> torch.Tensor:
    found = x * 2
    dist.broadcast(found, 1)
    return found


def _reduce(x: torch.Tensor) -> torch.Tensor:
    found = x * 2
    dist.reduce(found, 1)
    return found if dist.get_rank() == 1 else x


def _scatter(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    dist.scatter(found, [x + index for index in range(dist.get_world_size())] if dist.get_rank() == 0 else None, 0)
    return found


def _gather(x: torch.Tensor) -> torch.Tensor:
    is_root = dist.get_rank() == 1
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())] if is_root else None
    dist.gather(x * 3, parts, 1)
    return x if parts is None else torch.cat(parts)


def _read_by_one(x: torch.Tensor) -> torch.Tensor:
    found = x * 2
    dist.all_reduce(found)
    return found if dist.get_rank() == 0 else x


def _barrier(x: torch.Tensor) -> torch.Tensor:
    dist.barrier()
    return x * 2


def _all_reduce_coalesced(x: torch.Tensor) -> torch.Tensor:
    parts = [x * 2, x.sum(1)]
    dist.all_reduce_coalesced(parts)
    return parts[0] + parts[1][:, None]


def _coalescing_manager(x: torch.Tensor) -> torch.Tensor:
    first, second = x * 2, x + 1
    with dist._coalescing_manager(async_ops=True) as started:
        dist.all_reduce(first)
        dist.all_reduce(second)
    started.wait()
    return first * second


def _functional_coalesced(x: torch.Tensor) -> torch.Tensor:
    group: Any = dist.group.WORLD
    summed = functional.all_reduce_coalesced([x * 2, x.sum(1)], "sum", group)
    gathered = functional.all_gather_into_tensor_coalesced([x, x + 1], group)
    scattered = functional.reduce_scatter_tensor_coalesced([x * 2, x * 3], "max", [0, 0], group)
    return torch.cat([summed[0] + summed[1][:, None], *gathered, *scattered])


def _handles(x: torch.Tensor) -> torch.Tensor:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    gathering = dist.all_gather(parts, x, async_op=True)
    summed = x * 2
    summing = dist.all_reduce(summed, async_op=True)
    for started in (gathering, summing):
        assert started is not None
        started.wait()
    return torch.cat([*parts, summed])


def _reducing(op: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    def reduce(x: torch.Tensor) -> torch.Tensor:
        found = x * 2
        dist.all_reduce(found, op=op)
        return found

    return reduce


def _rows(index: int) -> int:
    return 1 + index % 3


IN_ENGINES: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "all_gather": _all_gather,
    "all_gather of numbers": _all_gather_numbers,
    "all_gather_coalesced": _all_gather_coalesced,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "broadcast": _broadcast,
    "scatter": _scatter,
    "barrier": _barrier,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "coalescing manager": _coalescing_manager,
    "functional, coalesced": _functional_coalesced,
    "handles": _handles,
    "average": _reducing(dist.ReduceOp.AVG),
    "largest": _reducing(dist.ReduceOp.MAX),
    "product": _reducing(dist.ReduceOp.PRODUCT),
}
"""What engines hold whole."""

PARTLY_IN_TORCH: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "all_to_all_single, uneven": _all_to_all_single_uneven,
    "reduce_scatter, uneven": _reduce_scatter_uneven,
    "reduce": _reduce,
    "gather": _gather,
    "read by one rank": _read_by_one,
}
"""What runs in PyTorch, on some ranks or all: parts of different sizes, and what a rank does for others only."""


def _exchange_pairs(x: torch.Tensor) -> torch.Tensor:
    found = torch.empty_like(x)
    if dist.get_rank() == 0:
        dist.send(x, 1)
    else:
        dist.recv(found, 0)
    return found


def _exchange_objects(x: torch.Tensor) -> torch.Tensor:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, dist.get_rank())
    return x + sum(found)


REFUSED: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "pairs": _exchange_pairs,
    "objects": _exchange_objects,
    "factor": _reducing(dist._make_nccl_premul_sum(2.0)),
}
"""What no graph can hold."""


class Communicating(nn.Module):
    """Communicates between two computations.

    Args:
        forms: How.
    """

    def __init__(self, *forms: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.product = nn.Linear(8, 8)
        self._forms = forms

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """x: (4, 8)."""
        y = self.product(x)
        return [torch.relu(form(y + index)) for index, form in enumerate(self._forms)]


def compile_forms(rank: int, kinds: list[list[str]], way: str, directory: str) -> list[dict[str, Any]]:
    """Compiles models that communicate in some ways each, saves and loads them, and holds both to eager."""
    return [_compile_forms(rank, names, way, f"{directory}-{rank}.trtp") for names in kinds]


def _compile_forms(rank: int, names: list[str], way: str, path: str) -> dict[str, Any]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    known = IN_ENGINES | PARTLY_IN_TORCH
    model = Communicating(*(known[name] for name in names)).eval().requires_grad_(False)
    torch.manual_seed(rank + 1)
    x = torch.randn(ROWS, 8)
    wanted = model(x)
    if way == "torch.compile":
        torch.testing.assert_close(
            torch.compile(model, backend="torch_tensorrt", options={"min_block_size": 1})(x), wanted
        )
        return {}
    compiled = trt.compile(model, arg_inputs=(x,), min_block_size=1)
    torch.testing.assert_close(compiled(x), wanted)
    trt.save(compiled, path)
    torch.testing.assert_close(trt.load(path)(x), wanted)
    report = compiled.meta["partition_report"]
    return {"coverage": report.coverage, "codes": sorted({node.verdict.code for node in report.nodes} - {""})}


def refuse_forms(rank: int) -> dict[str, str]:
    """Tells what is said of models that communicate in ways that no graph can hold."""
    told = {}
    for name, form in REFUSED.items():
        try:
            trt.compile(Communicating(form).eval(), arg_inputs=(torch.randn(ROWS, 8),))
        except ExportError as error:
            told[name] = str(error)
    return told
