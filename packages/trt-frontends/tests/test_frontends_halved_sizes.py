"""Models that halve sizes, double them again, pad and cut into windows run at every size at which they run in eager."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Sequence
from typing import Final

import pytest
import torch
import torch.nn.functional as F
from function_module import Calls
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from trt_core import Input, InputError
from trt_core.sizes.grid import FailingSizes
from trt_frontends import compile as compile_model

pytestmark = pytest.mark.sampled(4)

HEIGHTS, WIDTHS = range(3, 10), range(4, 9)
USUAL = (2, 2, 8, 8)
STRESSED: Final = "TRT_STRESS" in os.environ
"""Whether more programs are tried than a change has time for."""

captures_poolings = pytest.mark.skipif(
    torch.__version__ < "2.12", reason="PyTorch 2.11 captures a pooling for sizes that divide, or for one size only"
)

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Takes the picture at hand and the one that the model was given."""


def _strided(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, torch.ones(2, 2, 3, 3), stride=2, padding=1)


def _padded_to(x: torch.Tensor, given: torch.Tensor) -> torch.Tensor:
    rows, columns = given.shape[2] - x.shape[2], given.shape[3] - x.shape[3]
    return F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])


def _windows(x: torch.Tensor, _: torch.Tensor, size: int = 2) -> torch.Tensor:
    batch, channels, height, width = x.shape
    x = F.pad(x, (0, (size - width % size) % size, 0, (size - height % size) % size))
    rows, columns = x.shape[2] // size, x.shape[3] // size
    parts = x.view(batch, channels, rows, size, columns, size).permute(0, 2, 4, 3, 5, 1).reshape(-1, size**2, channels)
    parts = parts.softmax(1).view(batch, rows, columns, size, size, channels).permute(0, 5, 1, 3, 2, 4)
    return parts.reshape(batch, channels, rows * size, columns * size)[:, :, :height, :width]


def _unpadded_windows(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    batch, channels, height, width = x.shape
    parts = x.view(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(-1, 4, channels)
    parts = parts.softmax(1).view(batch, height // 2, width // 2, 2, 2, channels).permute(0, 5, 1, 3, 2, 4)
    return parts.reshape(batch, channels, height, width)


STEPS: dict[str, Step] = {
    "half, rounded down": lambda x, _: F.max_pool2d(x, 2),
    "half, rounded up": lambda x, _: F.avg_pool2d(x, 2, ceil_mode=True),
    "half, by stride": _strided,
    "double": lambda x, _: F.interpolate(x, scale_factor=2),
    "cut to what was given": lambda x, given: x[:, :, : given.shape[2], : given.shape[3]],
    "pad to what was given": _padded_to,
    "resize to what was given": lambda x, given: F.interpolate(x, size=given.shape[2:]),
    "turn": lambda x, _: torch.roll(x, (-1, -1), (2, 3)),
    "windows of 2": _windows,
    "windows of 4": lambda x, given: _windows(x, given, 4),
    "windows without padding": _unpadded_windows,
    "add what was given": lambda x, given: x + given,
    "times two": lambda x, _: x * 2,
}


class Pictures(nn.Module):
    def __init__(self, steps: Sequence[str]) -> None:
        super().__init__()
        self.steps = steps

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        x = given
        for name in self.steps:
            x = STEPS[name](x, given)
        return x


def _check(steps: Sequence[str]) -> None:
    model = Pictures(steps).eval()
    first = Input(min_shape=(2, 2, HEIGHTS[0], WIDTHS[0]), opt_shape=USUAL, max_shape=(2, 2, HEIGHTS[-1], WIDTHS[-1]))
    with torch.no_grad():
        compiled = compile_model(model, arg_inputs=[first], min_block_size=1)
        for height, width in itertools.product(HEIGHTS, WIDTHS):
            x = torch.rand(2, 2, height, width)
            try:
                expected = model(x)
            except RuntimeError:
                with pytest.raises(InputError):
                    compiled(x)
                continue
            torch.testing.assert_close(compiled(x), expected)


@captures_poolings
@pytest.mark.parametrize(
    "steps",
    [
        ("half, by stride", "double", "cut to what was given", "add what was given"),
        *[("half, rounded down", "double", "pad to what was given", "add what was given")] * STRESSED,
        ("half, rounded down", "half, rounded down", "double", "double", "add what was given"),
        ("turn", "windows of 4", "times two"),
        ("windows without padding", "times two"),
    ],
    ids=" and ".join,
)
def test_programs_of_halves_and_windows(steps: Sequence[str]) -> None:
    _check(steps)


@captures_poolings
@settings(max_examples=30 if STRESSED else 3, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=2, max_size=4))
def test_generated_programs_of_halves_and_windows(steps: list[str]) -> None:
    model = Pictures(steps)
    try:
        model(torch.ones(USUAL))
    except RuntimeError:
        return  # no model
    _check(steps)


class Patches(nn.Module):
    """Says the mean of each patch of 8 by 8, and puts the pictures together again."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x: (N, 1, 8*H + 1, 8*W), float32."""
        batch, _, rows, columns = x.shape
        patches = x[:, :, 1:].reshape(batch, rows // 8, 8, columns // 8, 8)
        means = patches.mean((2, 4), keepdim=True)
        return means.flatten(1), (patches - means).reshape(batch, rows - 1, columns)


def test_dimensions_that_are_multiples_are_divided_in_engines() -> None:
    low, usual, high = ((2, 1, 8 * size + 1, 8 * size) for size in (1, 2, 4))
    x = Input(min_shape=low, opt_shape=usual, max_shape=high, dimensions={2: "8*h+1", 3: "8*w"})
    compiled = compile_model(Patches(), arg_inputs=[x], min_block_size=1)
    report = compiled.meta["partition_report"]
    assert len(report.engines) == 1
    assert not report.torch_nodes
    for rows, columns in ((1, 1), (3, 2), (4, 4)):
        given = torch.randn(2, 1, 8 * rows + 1, 8 * columns)
        torch.testing.assert_close(compiled(given), Patches()(given))


class Pairs(nn.Module):
    """Extracts features of two batches together, as optical flow does, and insists that they come back alike."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(2, 3, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x, y: (N, 2, 6, 6), float32."""
        first, second = torch.chunk(self.features(torch.cat((x, y))), 2)
        if first.shape != second.shape:
            raise ValueError("the batches differ")
        return (first * second).view(x.shape[0], 48)


def test_batches_that_a_model_wants_equal_may_both_be_of_one() -> None:
    x, y = (Input(min_shape=(1, 2, 6, 6), opt_shape=(2, 2, 6, 6), max_shape=(4, 2, 6, 6)) for _ in range(2))
    model = Pairs()
    compiled = compile_model(model, arg_inputs=[x, y], min_block_size=1)
    for batch in (1, 2, 4):
        given = torch.randn(2, batch, 2, 6, 6).unbind()
        torch.testing.assert_close(compiled(*given), model(*given), rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError):
        compiled(torch.randn(1, 2, 6, 6), torch.randn(2, 2, 6, 6))


class Windows(nn.Module):
    """Weighs the pixels in windows of 8 by 8."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (batch, channels, 8 n, 8 m), float32."""
        batch, channels, height, width = x.shape
        windows = x.view(batch, channels, height // 8, 8, width // 8, 8).permute(0, 2, 4, 3, 5, 1)
        return windows.reshape(-1, 64, channels).softmax(-1)


def test_multiples_are_taken_at_their_least_values_together() -> None:
    shapes = {"min_shape": (1, 3, 8, 8), "opt_shape": (2, 3, 16, 16), "max_shape": (2, 3, 24, 32)}
    model = Windows()
    compiled = compile_model(model, arg_inputs=[Input(**shapes, dimensions={2: "8*n", 3: "8*m"})], min_block_size=1)
    for shape in (*shapes.values(), (1, 3, 8, 16), (2, 3, 8, 8)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), model(x))


HALVED: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    # x: (batch, 2, 4 to 20), float32
    "a quarter": lambda x: x[..., : x.shape[-1] // 4].exp(),
    "a pool": lambda x: F.interpolate(F.avg_pool1d(x, 4, ceil_mode=True), size=x.shape[-1]),
    "a stride": lambda x: F.conv1d(x, torch.ones(2, 2, 3), stride=4, padding=1),
    "all but three": lambda x: x[..., 3:].cumsum(-1),
    "rows of four": lambda x: x[..., : x.shape[-1] // 4 * 4].unflatten(-1, (-1, 4)).sum(-2),
}


@pytest.mark.parametrize("name", HALVED)
def test_the_usual_size_may_leave_one_of_what_is_halved(name: str) -> None:
    model = Calls(HALVED[name])
    given = Input(min_shape=(1, 2, 4), opt_shape=(1, 2, 4), max_shape=(3, 2, 20))
    compiled = compile_model(model, arg_inputs=[given], min_block_size=1)
    for size in ((1, 2, 4), (2, 2, 4), (1, 2, 5), (3, 2, 13), (2, 2, 20)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


def test_pictures_that_come_to_a_map_of_one_pixel() -> None:
    layers = [layer for _ in range(4) for layer in (nn.Conv2d(3, 3, 3, 2, 1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval().requires_grad_(False)
    given = Input(min_shape=(1, 3, 16, 16), opt_shape=(1, 3, 16, 16), max_shape=(2, 3, 64, 64))
    compiled = compile_model(model, arg_inputs=[given])
    for size in ((1, 3, 16, 16), (2, 3, 64, 64), (1, 3, 16, 50), (2, 3, 33, 16)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


class Patched(nn.Module):
    """Halves pictures with channels last, and puts what is left in a row, as ConvNeXt does."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.halves, self.norm = nn.Conv2d(3, 4, 2, 2), nn.Conv2d(4, 4, 2, 2), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: (N, 3, H, W), float32."""
        x = self.halves(self.norm(self.patches(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2))
        x = x + x.relu()
        return torch.cat([x.mean((2, 3), keepdim=True).flatten(2), x.flatten(2)], 2)


def test_the_usual_picture_may_come_to_a_map_of_one_column() -> None:
    model = Patched().eval().requires_grad_(False)
    given = Input(min_shape=(1, 3, 4, 4), opt_shape=(2, 3, 8, 6), max_shape=(3, 3, 12, 12))
    compiled = compile_model(model, arg_inputs=[given], min_block_size=1)
    for size in ((2, 3, 8, 6), (1, 3, 4, 4), (3, 3, 12, 12), (1, 3, 5, 9), (2, 3, 4, 8)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "branch",
    [
        lambda x: x * 2 if x.shape[-1] == 4 else x + 1,
        lambda x: x[..., : x.shape[-1] // 4] * 2 if x.shape[-1] < 8 else x[..., :1],
    ],
)
def test_the_way_that_the_usual_size_takes_is_not_given_up_for_another(
    branch: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    given = Input(min_shape=(1, 2, 4), opt_shape=(1, 2, 4), max_shape=(3, 2, 20))
    with pytest.raises(InputError, match=r"x\.shape\[2\]|dimension 2 of input x"):
        compile_model(Calls(branch), arg_inputs=[given], min_block_size=1)(torch.randn(1, 2, 20))


def test_what_decides_where_a_condition_fails() -> None:
    import sympy
    from torch.utils._sympy.functions import FloorDiv, Mod

    h, w = sympy.symbols("h w", integer=True, positive=True)
    spans = {"h": range(1, 13), "w": range(1, 10)}
    usual = {"h": 8, "w": 5}
    multiples, alike = [sympy.Eq(Mod(h, 4), 0)], [sympy.Eq(h, w)]
    assert FailingSizes([], spans, usual).of(sympy.Ne(w, 4)) == [{"w": 4}]
    assert FailingSizes([], spans, usual).of(sympy.Ne(w, FloorDiv(h, FloorDiv(h, 4)))) is None  # 5 // (5 // 4) is 5
    assert FailingSizes(multiples, spans, usual).of(sympy.Ne(w, FloorDiv(h, FloorDiv(h, 4)))) == [{"h": 8, "w": 4}]
    assert FailingSizes(alike, spans, usual).of(sympy.Ne(w, 4)) == [{"h": 4, "w": 4}]
    assert FailingSizes([], spans, usual).of(sympy.Ne(w, h)) == [{"h": size, "w": size} for size in range(1, 10)]
    assert FailingSizes([], {"h": range(1, 20), "w": range(1, 20)}, usual).of(sympy.Ne(w, h)) is None  # too many
    at_zero = FailingSizes([], spans, usual).of(sympy.Ne(Mod(8, h - 3), 1))
    assert at_zero == [{"h": 3}, {"h": 10}]  # at 3 it divides by zero
    assert FailingSizes([], {"h": range(1, 1 << 20)}, usual).of(sympy.Ne(h, 4)) is None
