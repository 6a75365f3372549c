"""Objects of the API take no attributes but their own."""

from __future__ import annotations

from typing import Any

import pytest

import trt_portable as trt


@pytest.fixture
def objects(builder: Any, logger: Any, network: Any) -> dict[str, Any]:
    """One object of every class that the API makes."""
    x = network.add_input("x", trt.float32, (1, 2, 3, 4))
    layer = network.add_identity(x)
    network.mark_output(layer.get_output(0))
    config = builder.create_builder_config()
    config.set_flag(trt.BuilderFlag.REFIT)
    runtime = trt.Runtime(logger)
    engine = runtime.deserialize_cuda_engine(builder.build_serialized_network(network, config))
    kinds = (trt.AttentionNormalizationOp.SOFTMAX, trt.CausalMaskKind.NONE)
    made = [
        *(builder, network, x, layer, config, runtime, engine),
        network.add_attention_v2(x, x, x, *kinds),
        network.add_loop(),
        network.add_if_conditional(),
        builder.create_optimization_profile(),
        config.create_timing_cache(b""),
        engine.create_execution_context(),
        engine.create_engine_inspector(),
        engine.create_runtime_config(),
        engine.create_serialization_config(),
        trt.Refitter(engine, logger),
        trt.get_plugin_registry(),
    ]
    return {type(item).__name__: item for item in made}


def test_unknown_attributes_are_refused(objects: dict[str, Any]) -> None:
    for name, item in objects.items():
        with pytest.raises(AttributeError, match="foo"):
            item.foo = 1
        assert not hasattr(item, "foo"), name


def test_known_attributes_can_be_set(objects: dict[str, Any]) -> None:
    for name in ("INetworkDefinition", "ITensor", "IIdentityLayer", "IExecutionContext", "IAttention", "ILoop"):
        objects[name].name = "other"
        assert objects[name].name == "other"
    objects["IBuilderConfig"].builder_optimization_level = 1
    assert objects["IBuilderConfig"].builder_optimization_level == 1


def test_derived_classes_take_their_own() -> None:
    class Mine(trt.Builder):
        pass

    mine = Mine(trt.Logger())
    mine.foo = 1  # type: ignore[attr-defined]
    assert mine.foo == 1  # type: ignore[attr-defined]
