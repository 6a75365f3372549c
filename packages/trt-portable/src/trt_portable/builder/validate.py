"""What must hold before a network is built, and the profiles that a build completes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trt_portable.dtypes import PACKED
from trt_portable.enums import DataType, ErrorCodeTRT
from trt_portable.errors import Refusal
from trt_portable.formats import choose_format
from trt_portable.optimization_profile import IOptimizationProfile, Profile, Range
from trt_portable.plan.engine_info import Shape

if TYPE_CHECKING:
    from trt_portable.builder.config import IBuilderConfig
    from trt_portable.network.layer import ITensor
    from trt_portable.network.network import INetworkDefinition

Finding = tuple[str, Refusal]


def first_refusal(network: INetworkDefinition, config: IBuilderConfig) -> Finding | None:
    """The first reason why a network cannot be built: the subject and the rule it breaks."""
    return next(_refusals(network, config), None)


def _refusals(network: INetworkDefinition, config: IBuilderConfig) -> Iterator[Finding]:
    settings = config._refusal()
    if settings is not None:
        yield "builder configuration", Refusal(settings, ErrorCodeTRT.INVALID_CONFIG)
    if not network._outputs:
        yield "network", Refusal("at least one output is needed: call mark_output")
    yield from network._validate()
    yield from _byte_refusals(network)
    yield from _io_refusals(network)
    try:
        complete_profiles(network, config)
    except Refusal as refusal:
        yield "optimization profile", refusal


def _byte_refusals(network: INetworkDefinition) -> Iterator[Finding]:
    for layer in network._layers:
        for index in range(layer.num_outputs):
            tensor = layer.get_output(index)
            if tensor is not None and tensor.dtype is DataType.UINT8 and not tensor.is_network_output:
                rule = f"{tensor.name!r} has type UINT8, which only inputs and outputs of a network may have"
                yield layer.name, Refusal(rule)


def _io_refusals(network: INetworkDefinition) -> Iterator[Finding]:
    names: set[str] = set()
    for tensor in (*network._inputs, *network._outputs):
        subject = f"tensor {tensor.name!r}"
        if tensor.name in names:
            yield subject, Refusal("names of inputs and outputs must be unique")
        names.add(tensor.name)
        if tensor.dtype in PACKED or tensor.dtype is DataType.E8M0:
            rule = f"{tensor.dtype.name} is not supported at the boundary of an engine"
            yield subject, Refusal(rule, ErrorCodeTRT.UNSUPPORTED_STATE)
        try:
            choose_format(
                tensor.allowed_formats, tensor.dtype, len(tensor.shape), is_shape_tensor=tensor.is_shape_tensor
            )
        except Refusal as refusal:
            yield subject, refusal


def complete_profiles(network: INetworkDefinition, config: IBuilderConfig) -> tuple[Profile, ...]:
    """The configuration's profiles, checked against the network; a default one if it needs none.

    Raises:
        Refusal: A dynamic input or a shape tensor has no range, or a range contradicts the network.
    """
    demanding = [tensor for tensor in network._inputs if -1 in _shape(tensor) or tensor.is_shape_tensor]
    if not config._profiles:
        if demanding:
            tensor = demanding[0]
            kind = "a shape tensor" if tensor.is_shape_tensor else f"dynamic: {_shape(tensor)}"
            raise Refusal(f"input {tensor.name!r} is {kind}, so the configuration needs an optimization profile")
        return (Profile({}, {}),)
    return tuple(_complete(network, profile, f"profile {index}") for index, profile in enumerate(config._profiles))


def _complete(network: INetworkDefinition, profile: IOptimizationProfile, subject: str) -> Profile:
    shapes: dict[str, Range] = {}
    values: dict[str, Range] = {}
    for tensor in network._inputs:
        name = tensor.name
        given = profile._shapes.get(name)
        if given is not None:
            shapes[name] = _checked_shape(tensor, given, subject)
        elif -1 in _shape(tensor):
            raise Refusal(f"{subject} has no shape for the dynamic input {name!r}")
        numbers = profile._values.get(name)
        if not tensor.is_shape_tensor:
            if numbers is not None:
                raise Refusal(f"{subject} has values for {name!r}, which is not a shape tensor")
            continue
        if numbers is None:
            raise Refusal(f"{subject} has no values for the shape tensor {name!r}")
        count = 1
        for extent in _shape(tensor):
            count *= extent
        if len(numbers.min) != count:
            raise Refusal(f"{subject} has {len(numbers.min)} values for {name!r}, which has {count} elements")
        values[name] = numbers
    known = {tensor.name for tensor in network._inputs}
    for name in (*profile._shapes, *profile._values):
        if name not in known:
            raise Refusal(f"{subject} names {name!r}, which is not an input of the network")
    return Profile(shapes, values, profile.extra_memory_target)


def _shape(tensor: ITensor) -> Shape:
    return tuple(tensor.shape)


def _checked_shape(tensor: ITensor, given: Range, subject: str) -> Range:
    declared = _shape(tensor)
    if len(given.min) != len(declared):
        raise Refusal(f"{subject} gives {tensor.name!r} rank {len(given.min)}; the network has {declared}")
    for axis, extent in enumerate(declared):
        found = {given.min[axis], given.opt[axis], given.max[axis]}
        if extent != -1 and found != {extent}:
            raise Refusal(
                f"{subject} gives axis {axis} of {tensor.name!r} {sorted(found)}; the network fixes it to {extent}"
            )
    return given
