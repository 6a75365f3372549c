"""Whether engines can be built for a device here."""

from __future__ import annotations

import torch

from trt_core import Device, Provider, SettingsError, current_provider


def require_device(device: Device) -> None:
    """Checks that a device is there, before anything is captured or built for it.

    Raises:
        SettingsError: PyTorch sees no such GPU, or the provider knows no such device.
    """
    if device.is_cpu:
        return
    if device.is_dla and current_provider() is Provider.PORTABLE:
        raise SettingsError(
            f"device={device} cannot be built for",
            why="the provider in use is trt_portable, which knows no deep learning accelerator",
            hint="use TensorRT on a board that has one, or build for its GPU",
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.gpu_id >= count:
        raise SettingsError(
            f"device={device} is not here",
            why=f"PyTorch {torch.__version__} sees {count or 'no'} CUDA device{'' if count == 1 else 's'}",
            hint='give device="cpu", or run where the GPU is; explain and dryrun need no device',
        )
