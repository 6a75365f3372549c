"""The plan container: what it keeps and what it refuses."""

from __future__ import annotations

import errno
import json
import mmap
import struct
import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import trt_portable as trt
from trt_core import copies
from trt_portable import memory
from trt_portable.plan import plan_file, weight_table
from trt_portable.plan.plan_file import (
    MAGIC,
    PLAN,
    PlanError,
    _open_weights,
    _tensor_table,
    read_plan,
    write_plan,
)
from trt_portable.plan.tables import FORMAT_VERSION
from trt_portable.plan.weight_table import WeightTable

WEIGHTS = {
    "f32": torch.arange(5, dtype=torch.float32),
    "empty": torch.empty(0, 3),
    "mask": torch.tensor([True, False, True]),
    "bf16": torch.arange(9, dtype=torch.bfloat16).reshape(3, 3),
    "fp8": torch.arange(4, dtype=torch.float32).to(torch.float8_e4m3fn),
    "transposed": torch.arange(6, dtype=torch.int64).reshape(2, 3).T,
}


def plan() -> trt.IHostMemory:
    return write_plan({"answer": 42}, WEIGHTS, ("loops",))


def test_round_trip() -> None:
    opened = read_plan(plan())
    assert opened.structure["answer"] == 42
    assert opened.structure["torch_version"] == torch.__version__
    assert opened.weights.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        found = opened.weights[name]
        assert found.dtype is tensor.dtype
        assert found.shape == tensor.shape
        assert torch.equal(found.float(), tensor.float())


def test_read_only_memory_stays_while_weights_in_it_do() -> None:
    content = bytearray(plan())
    given = memoryview(content).toreadonly()
    weights = read_plan(given).weights
    given.release()
    with pytest.raises(BufferError):
        content.clear()
    assert torch.equal(weights["f32"], WEIGHTS["f32"])
    del weights
    content.clear()


@pytest.mark.parametrize("compiled", [b"", b"kernels"])
def test_a_large_plan_lies_in_a_file_with_the_same_bytes(monkeypatch: pytest.MonkeyPatch, compiled: bytes) -> None:
    expected = bytes(write_plan({"answer": 42}, WEIGHTS, compiled=compiled))
    written: list[memory.IHostMemory | None] = []

    def in_file(*arguments: Any) -> memory.IHostMemory | None:
        written.append(memory.filled_in_file(*arguments))
        return written[-1]

    monkeypatch.setattr(plan_file, "LARGE_BYTES", 1)
    monkeypatch.setattr(copies, "LARGE_BYTES", 1)  # by several threads
    monkeypatch.setattr(plan_file, "filled_in_file", in_file)
    found = write_plan({"answer": 42}, WEIGHTS, compiled=compiled)
    assert found is written[0] and isinstance(found, trt.IHostMemory)
    assert bytes(found) == expected and len(found) == found.nbytes == len(expected)
    read_plan(found)
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")  # then it lies in memory
    assert bytes(write_plan({"answer": 42}, WEIGHTS, compiled=compiled)) == expected
    assert written[1] is None


def test_a_file_that_there_is_no_room_for_is_not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    assert memory.filled_in_file(10, lambda _: pytest.fail("there is no room")) is None


def test_large_tensors_of_a_plan_are_computed_once_one_after_the_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_table, "LARGE_BYTES", 1)
    monkeypatch.setattr(plan_file, "LARGE_BYTES", 1)
    alive: list[weakref.ref[torch.Tensor]] = []

    def compute(target: torch.Tensor) -> None:
        assert not any(reference() is not None for reference in alive)
        alive.append(weakref.ref(target))
        target.fill_(len(alive))

    table = WeightTable({"there": torch.ones(2, 3)})
    for name in "abc":
        table.defer(name, torch.float32, 5, compute)
    assert [int(table.computed()[name][0]) for name in "abc"] == [1, 2, 3]  # candidates are timed on these
    opened = read_plan(write_plan({}, table))
    assert [int(opened.weights[name][4]) for name in "abc"] == [1, 2, 3]
    assert len(alive) == 3


def test_tensors_start_at_multiples_of_64_in_a_valid_safetensors_segment() -> None:
    data = bytes(plan())
    at = PLAN.read(memoryview(data))[1].offset
    (table_bytes,) = struct.unpack_from("<Q", data, at)
    table = json.loads(data[at + 8 : at + 8 + table_bytes])
    begin = at + 8 + table_bytes
    assert begin % 64 == 0
    end = 0
    for name, entry in table.items():
        assert entry["data_offsets"][0] == end, "safetensors allows no holes"
        end = entry["data_offsets"][1]
        if name in WEIGHTS:
            assert entry["data_offsets"][0] % 64 == 0
    assert begin + end == len(data)


def test_offsets_beyond_four_gigabytes(tmp_path: Path) -> None:
    """The table and its reader alone, on a file with a hole: what matters is how far apart things are."""
    sizes = {"first": 3 << 30, "second": 2 << 30}
    large = {name: torch.empty(size, dtype=torch.uint8, device="meta") for name, size in sizes.items()}
    table, offsets, data_bytes = _tensor_table(WeightTable({**large, "last": torch.empty(4)}))
    assert offsets["last"] == 5 << 30
    path = tmp_path / "weights"
    with path.open("wb") as file:
        file.write(table)
        file.seek(len(table) + offsets["last"])
        file.write(struct.pack("<4f", 1, 2, 3, 4))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        data, weights, found = _open_weights(memoryview(mapped)[: len(table) + data_bytes])
        assert found == offsets
        assert weights["last"].tolist() == [1, 2, 3, 4]
        assert weights["second"].shape == (2 << 30,)
        del data, weights


def test_host_memory_exports_its_own_bytes() -> None:
    memory = plan()
    view = memoryview(memory)
    assert memory.nbytes == len(memory) == len(view)
    assert memory.dtype is trt.int8
    view[0] = ord("X")
    assert memory[0] == ord("X")
    assert bytes(memory)[:8] != MAGIC


@pytest.mark.parametrize("kind", [bytes, lambda b: memoryview(bytes(b)), lambda b: b])
def test_read_only_memory_is_used_in_place(kind: Any) -> None:
    buffer = kind(plan())
    opened = read_plan(buffer)
    assert opened.owner is buffer
    first = memoryview(buffer).cast("B")
    import numpy

    base = numpy.frombuffer(first, dtype=numpy.uint8).__array_interface__["data"][0]
    assert base < opened.weights["f32"].data_ptr() < base + len(first)


def test_memory_that_there_is_not_is_said_as_python_says_it() -> None:
    with pytest.raises(MemoryError, match="no room for 2,305,843,009,213,693,952 bytes"):
        memory.zeros(1 << 61)


def test_memory_of_the_caller_may_be_reused() -> None:
    buffer = bytearray(plan())
    opened = read_plan(buffer)
    buffer[:] = bytes(len(buffer))
    assert opened.weights["f32"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


@given(st.data())
def test_any_flipped_bit_is_found(data: st.DataObject) -> None:
    damaged = bytearray(plan())
    at = data.draw(st.integers(0, len(damaged) - 1))
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(PlanError):
        read_plan(damaged)


@given(st.integers(0, 1_000_000))
def test_any_truncation_is_found(length: int) -> None:
    whole = bytes(plan())
    with pytest.raises(PlanError):
        read_plan(whole[: length % len(whole)])


@given(st.binary(max_size=300))
def test_foreign_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PlanError):
        read_plan(data)
    with pytest.raises(PlanError):
        read_plan(MAGIC + data)


def test_messages_say_what_does_not_match() -> None:
    whole = bytes(plan())
    with pytest.raises(PlanError, match="tensorrt provider"):
        read_plan(b"ftrt" + whole[4:])
    with pytest.raises(PlanError, match=r"truncated.* bytes, and its header says"):
        read_plan(whole[:-1])
    with pytest.raises(PlanError, match=f"it has {len(whole) + 1} bytes, and its header says {len(whole)}"):
        read_plan(whole + b"\0")
    for version in (1, FORMAT_VERSION - 1, FORMAT_VERSION + 1):
        other = bytearray(whole)
        struct.pack_into("<I", other, 8, version)
        with pytest.raises(PlanError, match=f"format version {version}, .* reads {FORMAT_VERSION}; .*build"):
            read_plan(other)
    with pytest.raises(PlanError, match="checksum"):
        read_plan(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(PlanError, match="does not know: telepathy"):
        read_plan(write_plan({}, {}, ("telepathy",)))


@given(st.data())
def test_a_runtime_survives_what_passes_the_checksum(data: st.DataObject) -> None:
    """Plans whose structure is nonsense under a right checksum give None, never a crash."""
    value = st.recursive(
        st.none() | st.integers(-3, 3) | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
        max_leaves=5,
    )
    parts = data.draw(st.fixed_dictionaries({"network": value, "engine": value}))
    assert trt.Runtime(trt.Logger(trt.Logger.INTERNAL_ERROR)).deserialize_cuda_engine(write_plan(parts, {})) is None


def _built() -> trt.IHostMemory:
    """y = relu(x * c), c a constant of 4 elements."""
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    x = network.add_input("x", trt.DataType.FLOAT, (4,))
    constant = network.add_constant((4,), trt.Weights(torch.ones(4).numpy())).get_output(0)
    product = network.add_elementwise(x, constant, trt.ElementWiseOperation.PROD).get_output(0)
    result = network.add_activation(product, trt.ActivationType.RELU).get_output(0)
    result.name = "y"
    network.mark_output(result)
    built = builder.build_serialized_network(network, builder.create_builder_config())
    assert built is not None
    return built


CHANGES: dict[str, Any] = {
    "a use of weights is gone": lambda plan: plan["engine"]["weight_slots"].pop(),
    "a use of weights is there twice": lambda plan: plan["engine"]["weight_slots"].append(
        plan["engine"]["weight_slots"][0]
    ),
    "weights of another size": lambda plan: plan["engine"]["weight_slots"][0].update(count=5),
    "weights of another type": lambda plan: plan["engine"]["weight_slots"][0].update(dtype="INT32"),
    "a count that is text": lambda plan: plan["engine"]["weight_slots"][0].update(count="4"),
    "extents that are lists": lambda plan: plan["engine"]["io"][0].update(shape=[[4]]),
    "nine extents": lambda plan: plan["engine"]["io"][0].update(shape=[1] * 9),
    "an extent of -2": lambda plan: plan["engine"]["io"][0].update(shape=[-2]),
    "two bindings of one name": lambda plan: plan["engine"]["io"][0].update(name="y"),
    "an alias of nothing": lambda plan: plan["engine"]["io"][1].update(aliased_input="z"),
    "no profile": lambda plan: plan["engine"].update(profiles=[]),
    "a profile of another rank": lambda plan: plan["engine"]["profiles"][0]["shapes"].update(x=[[1, 1]] * 3),
    "layers out of order": lambda plan: plan["network"]["layers"].reverse(),
    "a layer is gone": lambda plan: plan["network"]["layers"].pop(),
    "features that are no names": lambda plan: plan.update(features=[[]]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_plans_that_contradict_themselves_are_refused_when_loaded(change: Any) -> None:
    built = read_plan(_built())
    structure = json.loads(json.dumps(built.structure))
    runtime = trt.Runtime(trt.Logger())
    assert runtime.deserialize_cuda_engine(write_plan(structure, built.weights)) is not None
    change(structure)
    assert runtime.deserialize_cuda_engine(write_plan(structure, built.weights)) is None


@pytest.mark.parametrize("dtype", [trt.DataType.BF16, trt.DataType.INT32, trt.DataType.INT64, trt.DataType.INT8])
def test_constants_without_elements_keep_their_type(dtype: trt.DataType) -> None:
    builder = trt.Builder(trt.Logger())
    network = builder.create_network()
    constant = network.add_constant((2, 0), trt.Weights(dtype, 0, 0)).get_output(0)
    x = network.add_input("x", dtype, (2, 1))
    joined = network.add_concatenation([constant, x])
    joined.axis = 1
    for tensor in (constant, joined.get_output(0)):
        network.mark_output(network.add_identity(tensor).get_output(0))
    plan = builder.build_serialized_network(network, builder.create_builder_config())
    assert plan is not None
    engine = trt.Runtime(trt.Logger()).deserialize_cuda_engine(plan)
    assert [engine.get_tensor_dtype(name) for name in engine] == [dtype] * 3
