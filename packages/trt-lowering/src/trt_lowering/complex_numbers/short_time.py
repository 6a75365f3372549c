"""The short-time Fourier transform, in operators that name no strides."""

from __future__ import annotations

import torch


def short_time_fourier_transform(
    self: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
    align_to_window: bool | None = None,
) -> torch.Tensor:
    """Decomposes `aten::stft.center`, whose own kernel cuts frames out by strides.

    Args:
        self: (T,) or (N, T).
        n_fft, hop_length, win_length, center, pad_mode, normalized, onesided, return_complex: As `torch.stft` has them.
        window: (win_length,).
        align_to_window: Asked for by inverse transforms only.

    Returns:
        (N, frequencies, frames), complex; without N as the input, and with the parts in a last dimension of 2 where
        `return_complex` is False.
    """
    if align_to_window or not return_complex:
        raise NotImplementedError("forms of the short-time Fourier transform that PyTorch deprecates")
    signal = self if self.dim() == 2 else self.unsqueeze(0)
    if center:
        signal = torch.nn.functional.pad(signal.unsqueeze(1), [n_fft // 2] * 2, mode=pad_mode).squeeze(1)
    frames = signal.unfold(-1, n_fft, hop_length or n_fft // 4)
    length = win_length or n_fft
    if window is not None or length < n_fft:
        shape = torch.ones(length, dtype=self.dtype, device=self.device) if window is None else window
        left = (n_fft - length) // 2
        frames = frames * torch.nn.functional.pad(shape, [left, n_fft - length - left])
    norm = "ortho" if normalized else "backward"
    one_side = not self.is_complex() if onesided is None else onesided
    found = torch.fft.rfft(frames, norm=norm) if one_side else torch.fft.fft(frames, norm=norm)
    found = found.transpose(1, 2)
    squeezed: torch.Tensor = found if self.dim() == 2 else found.squeeze(0)
    return squeezed
