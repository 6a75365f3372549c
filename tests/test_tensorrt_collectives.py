"""Collectives in engines of TensorRT: the layers, the preview that allows them, and the communicator of each context.

The portable provider stands in for TensorRT, and a process group that plays the other ranks for NCCL's; each call is
held to the signatures of both versions of the real bindings.
"""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
import torch.distributed as dist
from binding_calls import CallChecker
from torch import nn

import trt_frontends
import trt_portable
from trt_converters import build
from trt_converters.aten import collectives
from trt_converters.support import ConverterSupport
from trt_core import BuildError, CompilationSettings, ExecutionError, PlanError, Provider, Reason, process_groups
from trt_core.process_groups import GroupMembers, communicator, has_communicators
from trt_runtime import engine_context
from trt_runtime.header import PlanHeader

ADDRESS: Final = 0x7F0012345678
X: Final = torch.arange(8.0).reshape(2, 4)


class Summed(nn.Module):
    """Sums over a process group, or over several."""

    def __init__(self, *groups: str) -> None:
        super().__init__()
        self.groups = groups

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional: Any = torch.ops._c10d_functional
        for group in self.groups:
            x = functional.wait_tensor(functional.all_reduce(x * 2, "sum", group)) + 1
        return x


class Given(nn.Module):
    """Takes what one rank has."""

    def __init__(self, group: str, source: int) -> None:
        super().__init__()
        self.group, self.source = group, source

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        functional: Any = torch.ops._c10d_functional
        return functional.wait_tensor(functional.broadcast(x * 2, self.source, self.group)) + 1  # type: ignore[no-any-return]


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects() -> None:
    """What other tests left behind is not searched after each test."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _ranks() -> Iterator[None]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
    yield
    gc.collect()  # engines of equal models are shared, with what their contexts were given
    dist.destroy_process_group()


@pytest.fixture
def as_tensorrt(monkeypatch: pytest.MonkeyPatch) -> CallChecker:
    monkeypatch.setattr(collectives, "has_communicators", lambda: True)
    for module in (collectives, build):
        monkeypatch.setattr(module, "current_provider", lambda: Provider.TENSORRT)
    return CallChecker(trt_portable, monkeypatch)


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch) -> list[tuple[GroupMembers, int]]:
    """Answers with the last address of a list for each group, and notes who asked."""
    asked = [(GroupMembers("", ()), ADDRESS)]

    def found(members: GroupMembers, device: torch.device) -> int:
        asked.append((members, asked[-1][1]))
        return asked[-1][1]

    monkeypatch.setattr(engine_context, "communicator", found)
    return asked


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Lists the addresses that contexts are given."""
    addresses: list[int | None] = []
    give = trt_portable.IExecutionContext.set_communicator

    def set_communicator(native: Any, communicator: Any) -> bool:
        addresses.append(_pointer(communicator))
        return give(native, communicator)

    monkeypatch.setattr(trt_portable.IExecutionContext, "set_communicator", set_communicator)
    return addresses


def _group(*ranks: int) -> str:
    return str(dist.new_group(list(ranks)).group_name)


def _compiled(model: nn.Module) -> Any:
    return trt_frontends.compile(model.eval(), arg_inputs=(X,), min_block_size=1, optimization_level=0)


def _layers(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Lists what `add_dist_collective` is called with."""
    calls: list[tuple[Any, ...]] = []
    network = trt_portable.INetworkDefinition
    add = network.add_dist_collective

    def noted(self: Any, *operands: Any) -> Any:
        calls.append(operands[1:])
        return add(self, *operands)

    monkeypatch.setattr(network, "add_dist_collective", noted)
    return calls


def _pointer(capsule: Any) -> int | None:
    read = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return read(capsule, None)  # type: ignore[no-any-return]


def test_a_context_is_given_the_communicator_of_its_group(
    as_tensorrt: CallChecker, connected: list[tuple[GroupMembers, int]], given: list[int | None]
) -> None:
    world = str(dist.group.WORLD.group_name)  # type: ignore[union-attr]
    compiled = _compiled(Summed(world))
    for _ in range(3):
        assert torch.equal(compiled(X), Summed(world)(X))
    assert {group for group, _ in connected[1:]} == {GroupMembers(world, (0, 1, 2, 3))}
    assert given == [ADDRESS]  # all ranks connect together: once
    connected.append((connected[-1][0], ADDRESS + 64))  # the group was made anew
    compiled(X)
    assert given == [ADDRESS, ADDRESS + 64]
    assert ("INetworkDefinition", "add_dist_collective") in as_tensorrt.seen
    assert ("IBuilderConfig", "set_preview_feature") not in as_tensorrt.seen  # 11 needs none
    assert not as_tensorrt.wrong, "\n".join(as_tensorrt.wrong)


@pytest.mark.usefixtures("connected")
def test_the_bindings_take_what_a_context_is_given(as_tensorrt: CallChecker) -> None:
    _compiled(Summed(_group(0, 1)))(X)
    assert ("IExecutionContext", "set_communicator") in as_tensorrt.seen
    assert not as_tensorrt.wrong, "\n".join(as_tensorrt.wrong)


def test_ranks_are_those_of_the_communicator(as_tensorrt: CallChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = _layers(monkeypatch)
    group = _group(0, 3)
    header = _header(_compiled(Given(group, 1)))
    assert layers
    assert all(call[2:] == (1, [0, 1]) for call in layers)
    assert header.process_group == GroupMembers(group, (0, 3))
    assert PlanHeader.from_text(header.text) == header


def _header(compiled: Any) -> PlanHeader:
    (header,) = [module.header for module in compiled.modules() if hasattr(module, "header")]
    assert isinstance(header, PlanHeader)
    return header


def test_the_portable_provider_finds_groups_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    layers = _layers(monkeypatch)
    header = _header(_compiled(Given(_group(0, 3), 1)))
    assert all(call[2:] == (3, [0, 3]) for call in layers)
    assert header.process_group is None
    assert "process_group" not in header.to_json()


def test_before_11_the_builder_is_asked_for_it(as_tensorrt: CallChecker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Any, bool]] = []
    preview = object()
    monkeypatch.setattr(trt_portable.PreviewFeature, "MULTIDEVICE_RUNTIME_10_16", preview, raising=False)
    monkeypatch.setattr(
        trt_portable.IBuilderConfig, "set_preview_feature", lambda self, feature, on: asked.append((feature, on))
    )
    _compiled(Summed(_group(0, 1)))
    assert asked == [(preview, True)]


def _verdicts(model: nn.Module) -> list[Any]:
    program = torch.export.export(model.eval(), (X,))
    support = ConverterSupport(CompilationSettings())
    operator = torch.ops._c10d_functional.all_reduce.default
    return [support.verdict(node) for node in program.graph.nodes if node.target is operator]


@pytest.mark.usefixtures("as_tensorrt")
def test_an_engine_communicates_in_one_group() -> None:
    first, second = _group(0, 1), _group(0, 2)
    refused = [verdict.reason for verdict in _verdicts(Summed(first, second, second))]
    assert refused == [Reason.UNSUPPORTED_ARGUMENT, None, None]


@pytest.mark.usefixtures("as_tensorrt")
@pytest.mark.parametrize(("version", "supported"), [((10, 15), False), ((10, 16), True), ((11, 4), True)])
def test_layers_are_made_where_tensorrt_has_all_of_it(
    version: tuple[int, int], supported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trt_converters.support.provider_version", lambda: version)
    (verdict,) = _verdicts(Summed(_group(0, 1)))
    assert verdict.reason is (None if supported else Reason.PROVIDER_VERSION)


@pytest.mark.usefixtures("as_tensorrt")
def test_without_communicators_pytorch_communicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "has_communicators", has_communicators)
    monkeypatch.delattr(dist, "ProcessGroupNCCL", raising=False)
    (verdict,) = _verdicts(Summed(_group(0, 1)))
    assert verdict.reason is Reason.PROVIDER_VERSION
    assert "communicators of NCCL" in str(verdict)


def test_builds_with_nccl_have_communicators() -> None:
    assert has_communicators() is dist.is_nccl_available()


@pytest.mark.parametrize(
    "group",
    [None, [], {}, {"name": "0"}, {"name": 0, "ranks": [0, 1]}, {"name": "0", "ranks": [0]}]
    + [{"name": "0", "ranks": ranks} for ranks in ([], [0, 0], [-1, 0], ["0", "1"], [0.0, 1.0])],
)
def test_headers_with_groups_that_are_none_are_refused(group: Any) -> None:
    values = _header(_compiled(nn.ReLU())).to_json()
    assert PlanHeader.from_json({**values, "process_group": {"name": "0", "ranks": [1, 0]}}).process_group is not None
    with pytest.raises(PlanError, match=r"process.group"):
        PlanHeader.from_json({**values, "process_group": group})


@pytest.mark.usefixtures("as_tensorrt")
def test_an_engine_of_several_groups_is_refused() -> None:
    graph = torch.export.export(Summed(_group(0, 1), _group(0, 2)), (X,)).module()
    with pytest.raises(BuildError, match="communicates in 2 process groups"):
        build._process_group(graph, "twofold")  # type: ignore[arg-type]


class Backend:
    """What a process group runs on, whose communicator is made on demand."""

    def __init__(self, address: int) -> None:
        self.address, self.found = address, 0
        self.devices: list[torch.device] = []

    def _get_backend(self, device: torch.device) -> Backend:
        return self

    def _comm_ptr(self) -> int:
        return self.found

    def eager_connect_single_device(self, device: torch.device) -> None:
        self.devices.append(device)
        self.found = self.address


GPU: Final = torch.device("cuda:1")
PAIR: Final = GroupMembers("0", (0, 1))


def test_a_communicator_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = Backend(ADDRESS)
    monkeypatch.setattr(process_groups, "find_group", lambda members: backend)
    assert [communicator(PAIR, GPU), communicator(PAIR, GPU)] == [ADDRESS, ADDRESS]
    assert backend.devices == [GPU]


def test_a_communicator_that_is_not_made_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_groups, "find_group", lambda members: Backend(0))
    with pytest.raises(LookupError, match="NCCL has not connected"):
        communicator(PAIR, GPU)


@pytest.mark.usefixtures("as_tensorrt")
def test_a_group_without_nccl_is_said() -> None:
    compiled = _compiled(Summed(_group(0, 1)))
    with pytest.raises(ExecutionError, match=r"ranks 0, 1.*\n*.*no communicator of NCCL"):
        compiled(X)


@pytest.mark.usefixtures("as_tensorrt", "connected")
def test_a_refused_communicator_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse: Callable[..., bool] = lambda native, communicator: False  # noqa: E731
    monkeypatch.setattr(trt_portable.IExecutionContext, "set_communicator", refuse)
    with pytest.raises(ExecutionError, match="refuses the communicator of the ranks 0, 1"):
        _compiled(Summed(_group(0, 1)))(X)
