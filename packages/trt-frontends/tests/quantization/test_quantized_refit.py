"""Refitting engines of quantized models: bit-equal to a new build, or refused before anything is written."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_layers import COLUMNS, DEPTH, MXFP8, NVFP4, InBlocks, QuantLinear
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import RefitError
from trt_frontends import MutableModule, refit_module_weights
from trt_frontends.stored_layers import StoredLinear

pytestmark = pytest.mark.sampled(4)

SETTINGS: dict[str, Any] = {"optimization_level": 0, "min_block_size": 1}
torchao = pytest.importorskip("torchao.quantization")


def by_torchao(config: Any) -> nn.Module:
    model = nn.Sequential(nn.Linear(DEPTH, COLUMNS)).eval().requires_grad_(False)
    torchao.quantize_(model, config)
    return model


def of_checkpoint(**layout: Any) -> nn.Module:
    return nn.Sequential(QuantLinear(**layout, seed=int(torch.randint(1000, ())))).eval()


def in_float8() -> nn.Module:
    library = pytest.importorskip("transformers.integrations.finegrained_fp8")
    layer = library.FP8Linear(DEPTH, COLUMNS, block_size=(128, 128), has_bias=True)
    layer.weight.data = torch.randn(COLUMNS, DEPTH).to(torch.float8_e4m3fn)
    layer.weight_scale_inv.data, layer.bias.data = torch.rand(COLUMNS // 128, DEPTH // 128), torch.randn(COLUMNS)
    return nn.Sequential(layer).eval().requires_grad_(False)


def in_groups_of_int4(size: int) -> nn.Module:
    return by_torchao(torchao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=torchao.PerGroup(size)))


def in_blocks(block: int, bits: tuple[int, int, int, int]) -> nn.Module:
    model = InBlocks(block, bits, quantizes_input=False)  # which draws the same each time
    return nn.Sequential(nn.Linear(DEPTH, 256), model.apply(_drawn)).eval()


def _drawn(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        module.reset_parameters()


MODELS: dict[str, Callable[[], nn.Module]] = {
    "int8": lambda: by_torchao(torchao.Int8WeightOnlyConfig()),
    "int8, activations too": lambda: by_torchao(torchao.Int8DynamicActivationInt8WeightConfig()),
    "float8": lambda: by_torchao(torchao.Float8WeightOnlyConfig()),
    "int4 in groups": lambda: in_groups_of_int4(32),
    "int2 with zero points": lambda: by_torchao(
        torchao.IntxWeightOnlyConfig(
            weight_dtype=torch.int2, granularity=torchao.PerAxis(0), mapping_type=torchao.MappingType.ASYMMETRIC
        )
    ),
    "GPTQ": lambda: of_checkpoint(bits=4, size=128),
    "GPTQ with act-order": lambda: of_checkpoint(bits=4, size=64, ordered=False),
    "AWQ": lambda: of_checkpoint(bits=4, size=128, awq=True),
    "FP8Linear": in_float8,
}


def compiled(model: nn.Module, x: torch.Tensor) -> Any:
    return trt_frontends.compile(model, arg_inputs=(x,), refit=True, **SETTINGS)


def two_of(name: str) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return MODELS[name](), MODELS[name](), torch.randn(3, DEPTH)


@pytest.mark.parametrize("name", MODELS)
def test_other_codes_give_what_a_new_build_gives(name: str, tmp_path: Path) -> None:
    """Weights of torchao kept their codes without a word, and those of checkpoints were said to be missing."""
    model, other, x = two_of(name)
    built = compiled(model, x)
    before, expected = built(x), compiled(other, x)(x)
    assert not torch.equal(before, expected)
    trt_frontends.save(built, tmp_path / "model.trtp")
    for each in (built, trt_runtime.load(tmp_path / "model.trtp")):
        assert torch.equal(refit_module_weights(each, other)(x), expected)
        assert torch.equal(each(x), before)
    if isinstance(model[0], nn.Linear) and name != "FP8Linear":  # weights that are wrappers are in state dicts whole
        for source in (other.state_dict(), torch.export.export(other, (x,))):
            assert torch.equal(refit_module_weights(built, source)(x), expected)


@pytest.mark.parametrize("name", ["GPTQ with act-order", "AWQ"])
def test_layers_packed_for_cpus_refit_engines_of_those_that_are_not(name: str) -> None:
    model, other, x = two_of(name)
    built, fresh = compiled(model, x), compiled(other, x)(x)
    other[0].pack_for_cpus()
    expected = compiled(other, x)(x)
    assert torch.equal(refit_module_weights(built, other)(x), expected)
    torch.testing.assert_close(expected, fresh, rtol=0, atol=2**-7 * float(fresh.abs().max()))


@pytest.mark.parametrize(("block", "bits"), [NVFP4, MXFP8])
def test_codes_that_have_no_type_in_pytorch_are_right_or_refused(block: int, bits: tuple[int, int, int, int]) -> None:
    model, other, x = in_blocks(block, bits), in_blocks(block, bits), torch.randn(3, DEPTH)
    built = compiled(model, x)
    before = built(x)
    try:
        found = refit_module_weights(built, other, in_place=True)
    except RefitError as error:
        assert "cannot be replaced" in str(error)
        assert torch.equal(built(x), before)
    else:
        assert torch.equal(found(x), compiled(other, x)(x))


@pytest.mark.parametrize("name", ["int4 in groups", "GPTQ"])
def test_weights_that_are_quantized_in_another_way_are_refused(name: str) -> None:
    model, _, x = two_of(name)
    built = compiled(model, x)
    before = built(x)
    others = {
        "int4 in groups": (in_groups_of_int4(64), MODELS["int8"](), nn.Sequential(nn.Linear(DEPTH, COLUMNS))),
        "GPTQ": (of_checkpoint(bits=4, size=64), MODELS["int8"](), nn.Sequential(nn.Linear(DEPTH, COLUMNS))),
    }
    for other in others[name]:
        with pytest.raises(RefitError, match=r"is missing|does not fit"):
            refit_module_weights(built, other, in_place=True)
        assert torch.equal(built(x), before)
    with pytest.raises(RefitError, match="quantized in another way" if name != "GPTQ" else "the model itself"):
        refit_module_weights(built, others["int4 in groups"][0].state_dict(), in_place=True)


@pytest.mark.parametrize("name", ["int8", "int4 in groups", "GPTQ"])
def test_mutable_modules_follow_codes_and_keep_them_in_their_file(name: str, tmp_path: Path) -> None:
    model, other, x = two_of(name)
    mutable: Any = MutableModule(copy.deepcopy(model), **SETTINGS)
    mutable(x)
    mutable.load_state_dict(other.state_dict())
    if name == "GPTQ":
        mutable.get_submodule("0").weight = other[0].weight  # PyTorch's side of the stand-in
    expected = other(x)
    torch.testing.assert_close(mutable(x), expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    MutableModule.save(mutable, tmp_path / "model")
    torch.manual_seed(7)
    for given in (None, MODELS[name]()):
        loaded: Any = MutableModule.load(tmp_path / "model", given, **({} if given is None else SETTINGS))
        assert torch.equal(loaded(x), mutable(x))


def test_a_stored_layer_alone_takes_other_codes() -> None:
    def layer() -> nn.Module:
        codes = torch.randint(-127, 128, (COLUMNS, DEPTH), dtype=torch.int8)
        return StoredLinear(codes, torch.rand(COLUMNS, 1) + 0.1, None, dtype=torch.float32).eval()

    model, other, x = layer(), layer(), torch.randn(3, DEPTH)
    assert torch.equal(refit_module_weights(compiled(model, x), other)(x), compiled(other, x)(x))
