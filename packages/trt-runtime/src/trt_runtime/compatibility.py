"""Whether a plan can run in this process: provider, versions, device."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from trt_core.errors import PlanError
from trt_core.files.typed import digits
from trt_core.held_arguments import held_to_signature
from trt_core.provider import Provider, current_provider, provider_module
from trt_core.wording import message_of
from trt_runtime.header import PlanHeader

_REBUILD = "compile the model again here"


@held_to_signature
def check_compatible(
    header: PlanHeader, *, device: torch.device | None = None, where: str = "", warns: bool = True
) -> None:
    """Checks that an engine was built for what runs it now.

    Args:
        header: Header of the engine.
        device: The device to run on; by default the current one of the kind that the header names.
        where: The file that the header comes from, for the message.
        warns: Whether this is the first that is said of it.

    Raises:
        PlanError: The message says what does not match, and what to do.

    Warns:
        UserWarning: An engine of the portable provider was built with another PyTorch release: it runs, and
            may round differently.
    """
    provider = current_provider()
    if header.provider != provider.value:
        raise PlanError(
            f"{header.title} was built by the provider {header.provider!r}, this process uses {provider.value!r}",
            where=where,
            hint=f"set TRT_PROVIDER={header.provider} (and install it), or {_REBUILD}",
        )
    if provider is Provider.TENSORRT:
        _check_tensorrt_version(header, str(provider_module().__version__), where)
    elif warns:
        _warn_about_torch(header)
    if header.device == "cuda":
        _check_gpu(header, device, where)


def _check_tensorrt_version(header: PlanHeader, running: str, where: str) -> None:
    built = header.provider_version
    if built == running:
        return
    if header.version_compatible:
        if _numbers(built)[:1] == _numbers(running)[:1] and _numbers(built) <= _numbers(running):
            return
        hint = f"install TensorRT {built} or a later one of the same major version, or {_REBUILD}"
    else:
        hint = f"install TensorRT {built}, or {_REBUILD} (version_compatible=True allows later ones)"
    raise PlanError(
        f"{header.title} was built by TensorRT {built}, this process uses {running}", where=where, hint=hint
    )


def _numbers(version: str) -> tuple[int, ...]:
    found = map(digits, version.split("."))
    return tuple(number for number in found if number is not None)


def _warn_about_torch(header: PlanHeader) -> None:
    built, running = (_minor(text) for text in (header.torch_version, str(torch.__version__)))
    if built != running:
        warnings.warn(
            message_of(
                f"{header.title} was built with PyTorch {built} and runs with {running}; results may be rounded "
                "differently"
            ),
            stacklevel=3,
        )


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _check_gpu(header: PlanHeader, device: Any, where: str) -> None:
    if not torch.cuda.is_available():
        raise PlanError(
            f"{header.title} was built for a CUDA device, and none is available",
            where=where,
            hint="run it on a machine with a GPU, or compile the model for the CPU (portable provider)",
        )
    built = header.compute_capability
    if built is None:
        return
    running = torch.cuda.get_device_capability(device)
    if running == built or (header.hardware_compatible and (8, 0) <= built <= running):
        return
    raise PlanError(
        f"{header.title} was built for compute capability {_dotted(built)}, the device has {_dotted(running)}",
        where=where,
        hint=f"run it on the kind of GPU that it was built on, or {_REBUILD} "
        "(hardware_compatible=True allows later GPUs)",
    )


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"
