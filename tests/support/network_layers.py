"""The networks that a model's engines are built from, before any provider has optimized them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from trt_converters.build import new_network
from trt_converters.interpreter import BlockInterpreter
from trt_core import trt
from trt_core.log import provider_logger
from trt_frontends.pipeline import capture_model


def only_network(module: nn.Module, inputs: Sequence[Any]) -> Any:
    """Returns the `trt.INetworkDefinition` of a model that runs in one engine.

    Raises:
        AssertionError: The model needs several engines, or PyTorch for a part of it.
    """
    lowered = capture_model(module, None, inputs, None, {"min_block_size": 1}).lower()
    plan = lowered.plan()
    assert len(plan.blocks) == 1 == len(plan.engines)
    (block,) = lowered.split(plan).blocks.values()
    network = new_network(trt.Builder(provider_logger()))
    BlockInterpreter(block, network, lowered.settings, lowered.ranges).run()
    return network


def layers_of(network: Any) -> list[Any]:
    """Returns the layers in network order."""
    return [network.get_layer(index) for index in range(network.num_layers)]


def count_types(network: Any) -> Counter[str]:
    """Returns how many layers of each type a network has."""
    return Counter(layer.type.name for layer in layers_of(network))


def foldable_layers(network: Any) -> list[str]:
    """Returns the names of layers whose inputs are all known while building.

    Constants of types that constant layers do not have are cast; those casts are not counted.
    """
    known: set[str] = set()
    found = []
    for layer in layers_of(network):
        inputs = [tensor for index in range(layer.num_inputs) if (tensor := layer.get_input(index)) is not None]
        if layer.type.name == "CONSTANT":
            known.add(layer.get_output(0).name)
        elif inputs and all(tensor.name in known for tensor in inputs):
            known |= {layer.get_output(index).name for index in range(layer.num_outputs)}
            if not layer.name.partition(".")[0].endswith("/constant_cast"):
                found.append(f"{layer.type.name} {layer.name}")
    return found
