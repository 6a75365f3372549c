"""Devices: what names one, and what is refused."""

from __future__ import annotations

import pytest
import torch

from trt_core import Device, InputError
from trt_core.device import copy_together


@pytest.mark.parametrize(
    ("spec", "kind", "index"),
    [
        ("cuda", "cuda", 0),
        ("cuda:3", "cuda", 3),
        (torch.device("cuda", 2), "cuda", 2),
        ("cpu", "cpu", 0),
        (torch.device("cpu"), "cpu", 0),
        (Device("cuda:1"), "cuda", 1),
        (None, "cuda", 0),
    ],
)
def test_reads_every_way_to_name_a_device(spec: object, kind: str, index: int) -> None:
    device = Device(spec)
    assert (device.kind, device.index) == (kind, index)


def test_gpu_id_names_the_gpu() -> None:
    assert Device(gpu_id=2) == Device("cuda:2")
    assert Device("cuda", gpu_id=2) == Device("cuda:2")
    assert Device("gpu:2") == Device("GPU", gpu_id=2) == Device("cuda:2")


def test_the_cpu_has_no_gpu_id() -> None:
    assert Device("cpu").is_cpu
    assert Device("cpu").gpu_id == -1
    assert Device("cuda:1").gpu_id == 1


def test_torch_device_and_text_agree() -> None:
    for name in ("cpu", "cuda:0", "cuda:5"):
        assert Device(name).torch_device == torch.device(name)
        assert str(Device(name)) == name


def test_is_hashable_by_value() -> None:
    assert {Device("cuda"), Device("cuda:0"), Device("cpu")} == {Device("cuda:0"), Device("cpu")}


@pytest.mark.parametrize("spec", ["meta", "xla", "nonsense", 1.5, object(), "cuda:300", "gpu:128", -1, 10**30])
def test_refuses_what_engines_cannot_run_on(spec: object) -> None:
    with pytest.raises(InputError):
        Device(spec)


def test_refuses_two_gpus_in_one_device() -> None:
    with pytest.raises(InputError, match="names two GPUs"):
        Device("cuda:1", gpu_id=0)
    with pytest.raises(InputError, match="another index"):
        Device(Device("cuda:1"), gpu_id=0)
    assert Device(Device("cuda:1"), gpu_id=1) == Device(" CUDA:1 ")


@pytest.mark.parametrize("index", [-1, 128, 300])
def test_refuses_gpus_that_pytorch_has_no_number_for(index: int) -> None:
    with pytest.raises(InputError, match=f"there is no GPU {index}"):
        Device(gpu_id=index)


def test_current_is_the_cpu_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Device.current() == Device("cpu")


def test_current_is_the_current_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 4)
    assert Device.current() == Device("cuda:4")


def test_is_frozen() -> None:
    with pytest.raises(AttributeError):
        Device("cpu").index = 1  # type: ignore[misc]


@pytest.mark.parametrize("device", [Device("dla:1"), Device(dla_core=1), Device("DLA:1"), Device(Device("dla:1"))])
def test_a_deep_learning_accelerator_has_a_core_and_a_gpu(device: Device) -> None:
    assert (device.is_dla, device.dla_core, device.gpu_id) == (True, 1, 0)
    assert device.torch_device == torch.device("cuda", 0)
    assert str(device) == "dla:1"


def test_an_accelerator_may_belong_to_another_gpu_and_fall_back_to_it() -> None:
    device = Device("dla:0", gpu_id=1, allow_gpu_fallback=True)
    assert (device.gpu_id, device.allow_gpu_fallback) == (1, True)
    assert Device(device) == device
    assert str(device) == "dla:0 of cuda:1"
    assert Device("dla") == Device("dla:0") != Device("cuda:0")


@pytest.mark.parametrize(
    "arguments",
    [
        {"spec": "dla:0", "dla_core": 1},
        {"spec": "cuda:0", "dla_core": 1},
        {"dla_core": -1},
        {"spec": "dla:x"},
        {"spec": "cuda:0", "allow_gpu_fallback": True},
    ],
)
def test_refuses_an_accelerator_that_contradicts_itself(arguments: dict[str, object]) -> None:
    with pytest.raises(InputError):
        Device(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("dense", [True, False])
def test_tensors_are_copied_together_whatever_their_types_and_strides(device: str, dense: bool) -> None:
    kinds = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int32]
    kinds += [
        torch.int64,
        torch.bool,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.float8_e8m0fnu,
        torch.uint16,
        torch.uint32,
    ]
    sources = [
        tensor
        for kind in kinds
        for tensor in (
            torch.arange(12, device=device).to(kind).view(3, 4),
            torch.ones(4, 3, device=device).to(kind).t(),
            torch.ones((), device=device).to(kind),
            torch.ones(0, 4, device=device).to(kind),
        )
    ]
    if dense:
        sources = [source.clone(memory_format=torch.contiguous_format) for source in sources]
    sources += [torch.rand(1 << 18, device=device), torch.rand((1 << 18) + 1, device=device)]
    targets = [torch.empty(source.shape, dtype=source.dtype, device=device) for source in sources]
    copy_together(targets, sources)
    copy_together(targets[:1], [torch.ones(3, 4)])  # of another device
    copy_together([], [])
    copy_together(targets[-1:] * 2, sources[-1:] * 2)  # large ones alone
    assert targets[0].eq(1).all()
    for target, source in zip(targets[1:], sources[1:], strict=True):
        assert torch.equal(target.float(), source.float())
