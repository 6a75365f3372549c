"""Complex computations become ones on real tensors, as a whole or not at all."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from trt_core import CompilationSettings, Device
from trt_core.verdicts import LEFT_COMPLEX
from trt_lowering import export_module, lower
from trt_lowering.passes.split_complex import MOST_POINTS

pytestmark = pytest.mark.sampled(4)

COMPOSED = ("aten::fft_", "aten::stft", "aten::real", "aten::imag", "aten::mT", "aten::_neg_view", "aten::rsub")


class Calls(nn.Module):
    def __init__(self, function, **state):
        super().__init__()
        self.function = function
        for name, value in state.items():
            self.register_buffer(name, value)

    def forward(self, *args):
        return self.function(*args, **dict(self.named_buffers()))


def _lower(function, *args, dynamic_shapes=None, state=None, **changes):
    program = export_module(Calls(function, **(state or {})).eval(), args, dynamic_shapes=dynamic_shapes)
    chosen = CompilationSettings(device=Device("cpu")).replace(**changes)
    return lower(program, chosen, preserve=lambda target: not target.name().startswith(COMPOSED))


def _complex_nodes(gm):
    values = [(node, node.meta.get("val")) for node in gm.graph.nodes if node.op != "output"]
    return [node for node, value in values if isinstance(value, torch.Tensor) and value.is_complex()]


def _agree(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


TRANSFORMS = {
    "fft": lambda x, **k: torch.view_as_real(torch.fft.fft(x, **k)),
    "ifft": lambda x, **k: torch.fft.ifft(torch.complex(x, x.sin()), **k).abs(),
    "rfft": lambda x, **k: torch.view_as_real(torch.fft.rfft(x, **k)),
    "irfft": lambda x, **k: torch.fft.irfft(torch.complex(x, x.cos()), **k),
    "ihfft": lambda x, **k: torch.fft.ihfft(x, **k).imag,
    "hfft": lambda x, **k: torch.fft.hfft(torch.complex(x, x.cos()), **k),
}
SEVERAL = {
    "fft2": lambda x, **k: torch.view_as_real(torch.fft.fft2(x, **k)),
    "rfftn": lambda x, **k: torch.view_as_real(torch.fft.rfftn(x, **k)),
    "irfftn": lambda x, **k: torch.fft.irfftn(torch.complex(x, x.cos()), **k),
}


@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("transform", [torch.fft.fft, torch.fft.ifft, torch.fft.rfft])
def test_results_lie_in_memory_as_they_did(dim, transform):
    def function(x):
        return transform(x, dim=dim)

    x = torch.randn(5, 6, 7)
    gm = _lower(function, x)
    assert next(node.target for node in _complex_nodes(gm)) is torch.ops.aten.complex.default
    found, wanted = gm(x), function(x)
    _agree(found, wanted)
    assert found.stride() == wanted.stride()


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(sorted(TRANSFORMS)),
    st.lists(st.integers(2, 7), min_size=1, max_size=3),
    st.integers(0, 2),
    st.sampled_from([None, 1, 4, 5, 8]),
    st.sampled_from(["forward", "backward", "ortho"]),
)
def test_a_transform_is_a_product_whatever_its_dimension_length_and_norm(name, shape, dim, points, norm):
    x, dim = torch.randn(shape), dim % len(shape)
    wanted = TRANSFORMS[name](x, n=points, dim=dim, norm=norm)
    gm = _lower(lambda value: TRANSFORMS[name](value, n=points, dim=dim, norm=norm), x)
    assert not [(node, node.meta.get(LEFT_COMPLEX)) for node in _complex_nodes(gm)]
    _agree(gm(x), wanted)


@pytest.mark.parametrize("name", SEVERAL)
@pytest.mark.parametrize("dims", [(0, 2), (-1, 0)])
def test_transforms_of_several_dimensions(name, dims):
    x = torch.randn(4, 3, 5)
    gm = _lower(lambda value: SEVERAL[name](value, dim=dims, norm="ortho"), x)
    assert not [(node, node.meta.get(LEFT_COMPLEX)) for node in _complex_nodes(gm)]
    _agree(gm(x), SEVERAL[name](x, dim=dims, norm="ortho"))


def _pairs(x):
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2).contiguous())


CHAINS = {
    "rotary": lambda x, w: torch.view_as_real(_pairs(x) * w).flatten(-2),
    "sums": lambda x, w: torch.view_as_real(_pairs(x) + w - 2 + 1j + x[..., :2]).sum(-1),
    "minus a pair": lambda x, w: (x[..., :2] - _pairs(x)).imag,
    "broadcast": lambda x, w: torch.view_as_real(x[..., :1] + w),
    "products": lambda x, w: torch.view_as_real((_pairs(x) * 2j) @ (w.mT * x[0, :4, :2].mean())),
    "quotients": lambda x, w: torch.view_as_real(_pairs(x) / (w + 3) / 2 / (1 + 2j)),
    "a number over a pair": lambda x, w: torch.view_as_real(torch.ones_like(w) * 3 / (w * w + 2)),
    "conjugate": lambda x, w: (_pairs(x) * w.conj()).real - (_pairs(x).conj()).imag,
    "squares": lambda x, w: (_pairs(x) ** 2).abs() + torch.view_as_real(_pairs(x).square()).sum(-1),
    "exponential": lambda x, w: torch.view_as_real(torch.exp(_pairs(x)) * torch.exp(1j * x[..., :2])),
    "polar": lambda x, w: torch.polar(x[..., :2].abs(), x[..., 2:]).imag,
    "einsum": lambda x, w: torch.view_as_real(torch.einsum("bij,ij->bi", _pairs(x), w)),
    "moves": lambda x, w: torch.cat([_pairs(x).transpose(0, 1)[:2], w.new_ones(2, 2, 2)], 0).unbind(1)[0].real,
    "zeros": lambda x, w: torch.view_as_real(torch.where(x[..., :2] > 0, _pairs(x), torch.zeros_like(w))),
    "a slice is set": lambda x, w: torch.fft.irfft(_set(torch.fft.rfft(x, dim=1), w), n=4, dim=1),
    "a real one": lambda x, w: torch.fft.fft(x.to(torch.complex64), dim=1).abs(),
    "stft": lambda x, w: torch.stft(x.reshape(2, -1), 8, return_complex=True, window=torch.hann_window(8)).abs(),
    "filled": lambda x, w: torch.view_as_real(_pairs(x) * w.new_full((2,), 2.0) + torch.full_like(w, 1 - 2j)),
    "filled with numbers of another type": lambda x, w: torch.where(
        torch.zeros_like(w, dtype=torch.bool), 1.0, (_pairs(x) * w).real * w.new_ones(2, dtype=torch.float32)
    ),
    "padded": lambda x, w: torch.view_as_real(torch.constant_pad_nd(_pairs(x), [1, 0], 2.0)),
}


def _set(spectrum, w):
    made = torch.zeros_like(spectrum)
    made[:, :2] = spectrum[:, :2] * w[:2, :1]
    return made


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_operators_are_computed_in_real_numbers(name):
    x, w = torch.randn(2, 4, 4), torch.randn(4, 2, dtype=torch.complex64)
    gm = _lower(lambda value, w: CHAINS[name](value, w), x, state={"w": w})
    assert not [(node, node.meta.get(LEFT_COMPLEX)) for node in _complex_nodes(gm)]
    _agree(gm(x), CHAINS[name](x, w))


MIXED = {
    "where, of integers": lambda z, whole, mask: torch.where(mask, z, whole),
    "where, of booleans": lambda z, whole, mask: torch.where(mask, mask, z),
    "where, of a number": lambda z, whole, mask: torch.where(mask, z, 2.0),
    "where, of a complex number": lambda z, whole, mask: torch.where(mask, 2 + 3j, z),
    "cat": lambda z, whole, mask: torch.cat([whole, z, mask]),
    "copy": lambda z, whole, mask: z.clone().copy_(whole) + z,
    "scatter": lambda z, whole, mask: torch.slice_scatter(z.select_scatter(whole[0], 0, 1), whole[:2], 0, 0, 2),
    "indices": lambda z, whole, mask: z.gather(0, whole % 4)[whole[0] % 4],
    "ones of another type": lambda z, whole, mask: z * torch.ones_like(z, dtype=torch.int32),
    "a boolean": lambda z, whole, mask: ((z - z.real) * mask).to(torch.bool) * z,
    "a large quotient": lambda z, whole, mask: z / (z * z * 1e-25) * 1e-25,
    "a small quotient": lambda z, whole, mask: z / (z * 1e25),
    "a quotient by a small number": lambda z, whole, mask: z / (1e-25 + 1e-25j),
    "a large length": lambda z, whole, mask: (z * 1e25).abs() * z,
    "a small length": lambda z, whole, mask: (z * 1e-25).abs() * 1e25 * z,
    "a length of zero and an infinite one": lambda z, whole, mask: torch.where(mask, z * 0, z * math.inf).abs() + 0 * z,
}


@pytest.mark.parametrize("name", MIXED)
def test_what_is_real_or_of_another_type_stays_so_beside_complex_tensors(name):
    def function(z, whole, mask):
        return torch.view_as_real(MIXED[name](z * (1 + 1j), whole, mask))

    whole = torch.arange(16).view(4, 4)
    inputs = (torch.randn(4, 4, dtype=torch.complex64) + 1, whole, whole > 5)
    gm = _lower(function, *inputs)
    assert all(node.op == "placeholder" for node in _complex_nodes(gm))
    wanted = function(*inputs)
    torch.testing.assert_close(gm(*inputs), wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool, None])
def test_tensors_filled_like_complex_ones_have_the_type_that_is_asked_for(dtype):
    def function(z):
        made = z * (1 + 1j)
        return torch.ones_like(made, dtype=dtype), made.new_ones(3, dtype=dtype), made.abs()

    z = torch.randn(3, dtype=torch.complex64)
    _agree(_lower(function, z)(z), function(z))


def test_a_real_part_that_is_a_copy_has_memory_of_its_own():
    z = torch.randn(3, dtype=torch.complex64)
    gm = _lower(lambda z: (z.to(torch.float32), z.abs()), z)
    found = gm(z)[0]
    assert found.untyped_storage().data_ptr() != z.untyped_storage().data_ptr()
    assert torch.equal(found, z.real) and found.stride() == (1,)


def test_the_batch_may_vary():
    x = torch.randn(3, 6)
    gm = _lower(
        lambda value: torch.fft.fft(value).abs(), x, dynamic_shapes=(({0: torch.export.Dim("batch", min=2, max=9)},),)
    )
    assert not [(node, node.meta.get(LEFT_COMPLEX)) for node in _complex_nodes(gm)]
    _agree(gm(torch.ones(7, 6)), torch.fft.fft(torch.ones(7, 6)).abs())


def test_complex_inputs_and_results_are_taken_apart_at_the_ends():
    x = torch.randn(3, 4, dtype=torch.complex64)

    def function(value):
        return torch.fft.fft(value * 2, dim=1), value.abs()

    gm = _lower(function, x)
    kept = [node.op if node.op == "placeholder" else node.target.name() for node in _complex_nodes(gm)]
    assert kept == ["placeholder", "aten::complex"]
    _agree(gm(x), function(x))


LEFT = {
    "too long": (lambda x: torch.fft.fft(x, n=MOST_POINTS + 1).abs(), f"{MOST_POINTS + 1} points"),
    "angle": (lambda x: torch.fft.fft(x).angle(), "an angle"),
    "no rule": (lambda x: torch.linalg.det(torch.fft.fft(x @ x.mT)).abs(), "has no form in real ones"),
    "double": (lambda x: torch.fft.fft(x.double()).abs(), "torch.complex128"),
    "memory of an input": (lambda x: (torch.view_as_complex(x), torch.view_as_complex(x).abs()), "memory of another"),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_cannot_be_said_in_real_numbers_stays_whole_with_the_reason(name):
    function, reason = LEFT[name]
    x = torch.randn(2, 2)
    gm = _lower(function, x)
    notes = [node.meta[LEFT_COMPLEX] for node in _complex_nodes(gm) if node.op == "call_function"]
    assert notes
    assert all(reason in note for note in notes)
    assert not any(name.startswith("_lowered_constant") for name, _ in gm.named_buffers())  # nothing is left behind
    _agree(gm(x), function(x))


VARYING = {
    "there and back": lambda x: torch.fft.irfft(torch.fft.rfft(x, norm="ortho").exp(), n=x.shape[1], norm="ortho"),
    "both dimensions": lambda x: torch.fft.ifft2(torch.fft.fft2(x) * 2).real,
    "a convolution": lambda x: torch.fft.irfft(torch.fft.rfft(x, x.shape[1] + 2) * 3j, x.shape[1] + 2),
    "the other dimension": lambda x: torch.view_as_real(torch.fft.rfft(x, dim=0, norm="forward")),
    "half of a spectrum": lambda x: torch.fft.hfft(torch.complex(x, x.sin())),
    "of which the extent is read": lambda x: torch.fft.fft(x).abs() * torch.fft.rfft(x).shape[1],
}


@pytest.mark.parametrize("name", VARYING)
def test_transforms_along_a_dimension_that_varies(name):
    dims = (({0: torch.export.Dim("rows", min=2, max=9), 1: torch.export.Dim("columns", min=2, max=40)},),)
    gm = _lower(VARYING[name], torch.randn(3, 6), dynamic_shapes=dims)
    assert not _complex_nodes(gm)
    for size in ((2, 2), (3, 5), (4, 8), (9, 40), (5, 39)):
        x = torch.randn(size)
        _agree(gm(x), VARYING[name](x))


@pytest.mark.parametrize(
    ("most", "said"), [(MOST_POINTS + 1, f"up to {MOST_POINTS + 1} points"), (None, "any number of")]
)
def test_a_dimension_that_may_be_long_stays(most, said):
    dims = (({1: torch.export.Dim("length", min=2, max=most)},),)
    gm = _lower(lambda value: torch.fft.fft(value).abs(), torch.randn(3, 6), dynamic_shapes=dims)
    assert said in _complex_nodes(gm)[0].meta[LEFT_COMPLEX]


def test_operators_that_a_setting_keeps_hold_their_region():
    x = torch.randn(2, 4)
    gm = _lower(lambda value: torch.fft.fft(value).abs(), x, torch_executed_ops={"torch.ops.aten._fft_r2c"})
    assert "torch_executed_ops" in _complex_nodes(gm)[0].meta[LEFT_COMPLEX]


def test_one_region_does_not_hold_another():
    x = torch.randn(2, 4)
    gm = _lower(lambda value: (torch.fft.fft(value).abs(), torch.fft.fft(value.sin()).angle()), x)
    assert len(_complex_nodes(gm)) == 1
    _agree(gm(x)[0], torch.fft.fft(x).abs())
