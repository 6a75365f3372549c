"""Models of transformers: in pipelines, compiled and loaded; captured as one step without caches."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import trt_frontends
import trt_runtime
from trt_core import Input, InputError
from trt_frontends.stored_layers import open_stored_layers
from trt_runtime.diffusion import save_pipeline

pytestmark = pytest.mark.sampled(4)

transformers = pytest.importorskip("transformers")
tokenizers = pytest.importorskip("tokenizers")

STRESSED = "TRT_STRESS" in os.environ
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world", "good", "bad", "day"]
SMALL: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
TOKENS = Input(
    min_shape=(1, 2),
    opt_shape=(2, 8),
    max_shape=(4, 16),
    dtype=torch.int64,
    dimensions={0: "batch", 1: "length"},
)
TEXT = {"input_ids": TOKENS, "attention_mask": TOKENS}


def _tokenizer() -> Any:
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    special = [("[CLS]", 2), ("[SEP]", 3)]
    made.post_processor = tokenizers.processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "attention_mask"],
    )


def _flat(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor) or hasattr(value, "getpixel"):
        return list(np.asarray(value, dtype=np.float64).flatten().tolist())
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _flat(item)]
    return [leaf for item in value for leaf in _flat(item)] if isinstance(value, (list, tuple)) else [value]


def _require_same_in_pipeline(
    path: Path,
    task: str,
    model: Any,
    inputs: dict[str, Input],
    data: Any,
    result_types: Any = (),
    call: Any = None,
    **around: Any,
) -> None:
    """A pipeline around the compiled model, and around the loaded one, says what it says around the model itself."""
    call = call or {}
    compiled = trt_frontends.compile(model.eval(), kwarg_inputs=inputs, min_block_size=1, optimization_level=0)
    trt_frontends.save(compiled, path / "model.trtp")
    loaded = trt_runtime.load(path / "model.trtp", result_types=result_types)
    if task == "document-question-answering":  # which asks for the class of the configuration
        loaded.config = model.config
    wanted = _flat(transformers.pipeline(task, model=model, device="cpu", **around)(data, **call))
    assert wanted
    for module in (compiled, loaded):
        found = _flat(transformers.pipeline(task, model=module, device="cpu", **around)(data, **call))
        assert len(found) == len(wanted)
        for value, other in zip(found, wanted, strict=True):
            assert value == (other if isinstance(other, str | None) else pytest.approx(other, rel=1e-3, abs=1e-5))


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("text-classification", "BertForSequenceClassification"),
        ("fill-mask", "BertForMaskedLM"),
        *([("token-classification", "BertForTokenClassification")] if STRESSED else []),
    ],
)
def test_pipelines_of_text(task: str, kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.BertConfig(**SMALL))
    text = "hello [MASK] day" if task == "fill-mask" else "hello good day"
    _require_same_in_pipeline(tmp_path, task, model, TEXT, text, tokenizer=_tokenizer())


def test_feature_extraction_takes_results_by_position(tmp_path: Path) -> None:
    model = transformers.BertModel(transformers.BertConfig(**SMALL))
    types = [transformers.modeling_outputs.BaseModelOutputWithPoolingAndCrossAttentions]
    _require_same_in_pipeline(
        tmp_path, "feature-extraction", model, TEXT, "hello good day", types, tokenizer=_tokenizer()
    )


WAVES: dict[str, Any] = {
    "conv_dim": [16, 16, 16],
    "conv_stride": [5, 2, 2],
    "conv_kernel": [10, 3, 3],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "classifier_proj_size": 16,
}
BLOCK = {name: value for name, value in SMALL.items() if name not in ("vocab_size", "max_position_embeddings")}
IMAGE: dict[str, Any] = {**BLOCK, "image_size": 32, "patch_size": 8}
SPOKEN: dict[str, Any] = {**SMALL, "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
PIXELS = {"pixel_values": Input((1, 3, 32, 32))}
SIDES = {"height": 32, "width": 32}
WAVE = np.sin(np.arange(1600, dtype=np.float32))


def _made(kind: str, config: str, **given: Any) -> Any:
    torch.manual_seed(0)
    return getattr(transformers, kind)(getattr(transformers, config)(**given))


def _processor(kind: str, size: Any = None, **given: Any) -> dict[str, Any]:
    pytest.importorskip("PIL")
    return {"image_processor": getattr(transformers, kind)(size=size or SIDES, **given)}


def _picture() -> Any:
    pixels = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    return pytest.importorskip("PIL.Image").fromarray(pixels)


def _zero_shot() -> Any:
    words = ["entailment", "neutral", "contradiction"]
    names = {"id2label": dict(enumerate(words)), "label2id": {word: index for index, word in enumerate(words)}}
    model = _made("BertForSequenceClassification", "BertConfig", **SMALL, **names)
    labels = {"candidate_labels": ["good", "bad"], "hypothesis_template": "world {}"}
    return model, TEXT, "hello good day", {"tokenizer": _tokenizer()}, labels


def _document() -> Any:
    model = _made("LayoutLMForQuestionAnswering", "LayoutLMConfig", **SMALL)
    boxes = Input(
        min_shape=(1, 2, 4),
        opt_shape=(2, 8, 4),
        max_shape=(4, 16, 4),
        dtype=torch.int64,
        dimensions={0: "batch", 1: "length"},
    )
    words = [["world", [1, 2, 30, 40]], ["day", [40, 2, 60, 40]]]
    asked = {"question": "hello good", "image": None, "word_boxes": words}
    tokenizer = _tokenizer()
    tokenizer.model_max_length = 64
    return model, {**TEXT, "bbox": boxes, "token_type_ids": TOKENS}, asked, {"tokenizer": tokenizer}, {}


def _zero_shot_images() -> Any:
    model = _made("CLIPModel", "CLIPConfig", text_config=SPOKEN, vision_config=IMAGE, projection_dim=16)
    around = {"tokenizer": _tokenizer(), **_processor("CLIPImageProcessor", crop_size=SIDES)}
    return model, {**TEXT, **PIXELS}, _picture(), around, {"candidate_labels": ["good", "bad day", "world"]}


def _zero_shot_objects() -> Any:
    model = _made(
        "OwlViTForObjectDetection", "OwlViTConfig", text_config=SPOKEN, vision_config=IMAGE, projection_dim=32
    )
    around = {"tokenizer": _tokenizer(), **_processor("OwlViTImageProcessor", crop_size=SIDES)}
    return model, {**TEXT, **PIXELS}, _picture(), around, {"candidate_labels": ["good", "bad"], "threshold": 0.0}


def _objects() -> Any:
    sizes = {**IMAGE, "image_size": [32, 32], "num_detection_tokens": 5, "num_labels": 3}
    model = _made("YolosForObjectDetection", "YolosConfig", **sizes)
    inputs = {**PIXELS, "pixel_mask": Input((1, 32, 32), dtype=torch.int64)}
    return model, inputs, _picture(), _processor("YolosImageProcessor"), {"threshold": 0.0}


def _segments() -> Any:
    stages: dict[str, Any] = {
        "depths": [1, 1],
        "sr_ratios": [2, 1],
        "hidden_sizes": [8, 16],
        "patch_sizes": [7, 3],
        "strides": [4, 2],
    }
    stages |= {"num_encoder_blocks": 2, "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}
    model = _made("SegformerForSemanticSegmentation", "SegformerConfig", **stages, decoder_hidden_size=16, num_labels=3)
    return model, PIXELS, _picture(), _processor("SegformerImageProcessor"), {}


def _depths() -> Any:
    sizes = {**IMAGE, "num_hidden_layers": 4, "neck_hidden_sizes": [8, 8, 16, 16], "fusion_hidden_size": 16}
    model = _made("DPTForDepthEstimation", "DPTConfig", **sizes, backbone_out_indices=[0, 1, 2, 3])
    return model, PIXELS, _picture(), _processor("DPTImageProcessor"), {}


def _image_features() -> Any:
    return _made("ViTModel", "ViTConfig", **IMAGE), PIXELS, _picture(), _processor("ViTImageProcessor"), {}


def _images() -> Any:
    model = _made("ViTForImageClassification", "ViTConfig", **IMAGE)
    return model, PIXELS, _picture(), _processor("ViTImageProcessor"), {}


def _speech() -> Any:
    model = _made("Wav2Vec2ForCTC", "Wav2Vec2Config", **BLOCK, **WAVES, vocab_size=len(WORDS), pad_token_id=0)
    inputs = {"input_values": Input((1, 1600)), "attention_mask": Input((1, 1600), dtype=torch.int32)}
    around = {"tokenizer": _tokenizer(), "feature_extractor": transformers.Wav2Vec2FeatureExtractor()}
    return model, inputs, WAVE, around, {}


def _sounds() -> Any:
    model = _made("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config", **BLOCK, **WAVES)
    around = {"feature_extractor": transformers.Wav2Vec2FeatureExtractor()}
    return model, {"input_values": Input((1, 1600))}, WAVE, around, {}


def _zero_shot_sounds() -> Any:
    sizes = {"spec_size": 32, "num_mel_bins": 8, "patch_size": 4, "patch_stride": [4, 4], "window_size": 2}
    audio = {**sizes, "hidden_size": 32, "depths": [1, 1], "num_attention_heads": [2, 2], "num_classes": 3}
    audio["patch_embeds_hidden_size"] = 16
    model = _made("ClapModel", "ClapConfig", text_config=SPOKEN, audio_config=audio, projection_dim=16)
    inputs = {**TEXT, "input_features": Input((1, 1, 101, 8)), "is_longer": Input((1, 1), dtype=torch.bool)}
    extractor = transformers.ClapFeatureExtractor(feature_size=8, max_length_s=1, truncation="rand_trunc")
    around = {"tokenizer": _tokenizer(), "feature_extractor": extractor}
    return model, inputs, np.tile(WAVE, 30), around, {"candidate_labels": ["good", "bad"]}


TASKS: dict[str, tuple[Any, Any]] = {
    "audio-classification": (_sounds, transformers.modeling_outputs.SequenceClassifierOutput),
    "automatic-speech-recognition": (_speech, transformers.modeling_outputs.CausalLMOutput),
    "depth-estimation": (_depths, transformers.modeling_outputs.DepthEstimatorOutput),
    "document-question-answering": (_document, transformers.modeling_outputs.QuestionAnsweringModelOutput),
    "image-classification": (_images, transformers.modeling_outputs.ImageClassifierOutput),
    "image-feature-extraction": (_image_features, transformers.modeling_outputs.BaseModelOutputWithPooling),
    "image-segmentation": (_segments, transformers.modeling_outputs.SemanticSegmenterOutput),
    "object-detection": (_objects, transformers.models.yolos.modeling_yolos.YolosObjectDetectionOutput),
    "zero-shot-audio-classification": (_zero_shot_sounds, transformers.models.clap.modeling_clap.ClapOutput),
    "zero-shot-classification": (_zero_shot, transformers.modeling_outputs.SequenceClassifierOutput),
    "zero-shot-image-classification": (_zero_shot_images, transformers.models.clip.modeling_clip.CLIPOutput),
    "zero-shot-object-detection": (
        _zero_shot_objects,
        transformers.models.owlvit.modeling_owlvit.OwlViTObjectDetectionOutput,
    ),
}


def test_masks_are_those_of_the_model_with_the_whole_or_its_encoder_compiled(tmp_path: Path) -> None:
    """The pipeline calls a method of the model, which calls the encoder: each is compiled, or that in its place."""
    side, coarse = {"image_size": 64, "patch_size": 16}, {"height": 64, "width": 64}
    vision: dict[str, Any] = {
        **side,
        "hidden_size": 16,
        "output_channels": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    vision |= {"window_size": 2, "global_attn_indexes": [0], "mlp_dim": 32, "num_pos_feats": 8}
    decoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "mlp_dim": 32}
    decoder |= {"iou_head_hidden_dim": 16, "iou_head_depth": 2}
    prompts = {**side, "hidden_size": 16, "mask_input_channels": 4}
    parts = {"vision_config": vision, "prompt_encoder_config": prompts, "mask_decoder_config": decoder}
    model = _made("SamModel", "SamConfig", **parts).eval()
    fine = {"mask_size": {"longest_edge": 16}, "mask_pad_size": {"height": 16, "width": 16}}
    processor = transformers.SamImageProcessor(size={"longest_edge": 64}, pad_size=coarse, **fine)

    def masks_of(module: Any) -> list[Any]:
        around = transformers.pipeline("mask-generation", model=module, image_processor=processor, device="cpu")
        none_left_out = {"pred_iou_thresh": -100.0, "stability_score_thresh": -1.0, "crops_nms_thresh": 1.0}
        found = around(_picture(), points_per_crop=2, **none_left_out)
        return _flat([found["scores"], *found["masks"]])

    wanted = masks_of(model)
    plain = transformers.pipeline("mask-generation", model=model, image_processor=processor, device="cpu")
    call = {"image": _picture(), "points_per_crop": 2}
    fast = trt_frontends.compile_pipeline(plain, call, optimization_level=0, min_block_size=1)
    assert set(fast.model.compiled_methods) == {"get_image_embeddings", "forward"}
    assert plain.model is model and fast.model is not model
    assert masks_of(fast.model) == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    with pytest.raises(InputError, match="is no pipeline of diffusers"):
        save_pipeline(fast, tmp_path / "folder")
    pixels = (torch.zeros(1, 3, 64, 64),)
    compiled = trt_frontends.compile(model.vision_encoder, arg_inputs=pixels, optimization_level=0)
    trt_frontends.save(compiled, tmp_path / "encoder.trtp")
    for encoder in (compiled, trt_runtime.load(tmp_path / "encoder.trtp")):
        model.vision_encoder = encoder
        assert masks_of(model) == pytest.approx(wanted, rel=1e-3, abs=1e-5)
    assert len(wanted) > 64 * 64


@pytest.mark.parametrize("task", TASKS)
def test_pipelines_of_each_task(task: str, tmp_path: Path) -> None:
    make, result_type = TASKS[task]
    model, inputs, data, around, call = make()
    _require_same_in_pipeline(tmp_path, task, model, inputs, data, [result_type], call, **around)


def test_text_generation(tmp_path: Path) -> None:
    """Tokens, sampled ones too, and what pipelines fill in are those of the pipeline around the model itself."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, bos_token_id=2, eos_token_id=3, pad_token_id=None)
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    generator = trt_frontends.compile_generation(
        model, max_length=300, max_batch=2, min_block_size=1, optimization_level=0
    )
    generator.save(tmp_path / "model.trtp")
    loaded = trt_runtime.TextGenerator.load(tmp_path / "model.trtp")

    def around(module: Any, **options: Any) -> Any:
        return transformers.pipeline("text-generation", model=module, tokenizer=_tokenizer(), device="cpu", **options)

    def said(pipeline: Any, text: Any, **options: Any) -> Any:
        torch.manual_seed(5)
        return pipeline(text, **options)

    texts = ["hello good day", "bad", "world day bad"]
    calls: list[tuple[Any, dict[str, Any]]] = [
        ("hello good", {"max_new_tokens": 8, "do_sample": False}),
        ("hello good", {}),
        (texts, {"max_new_tokens": 9, "return_full_text": False, "batch_size": 2}),
        (texts, {"max_new_tokens": 5, "top_k": 3, "temperature": 2.0, "num_return_sequences": 2}),
        ("world day", {"max_new_tokens": 5, "num_beams": 2, "do_sample": False}),
    ]
    plain, short = around(model), around(model, max_length=24, do_sample=False)
    for module in (generator, loaded):
        pipeline = around(module)
        for text, options in calls:
            assert said(pipeline, text, **options) == said(plain, text, **options)
        assert around(module, max_length=24, do_sample=False)("hello") == short("hello")
        assert "text" in repr(pipeline)
        with pytest.raises(InputError, match="guidance_scale"):
            pipeline("hello", generation_config=transformers.GenerationConfig(guidance_scale=1.5))
        with pytest.raises(InputError, match="a GenerationConfig of transformers is needed"):
            module.generate(IDS[:, :2], generation_config={"max_new_tokens": 3})
        with pytest.raises(InputError, match=r"cache_dtype=torch.int8\) keeps codes"):
            pipeline("hello", generation_config=transformers.GenerationConfig(cache_implementation="quantized"))


# Capture -------------------------------------------------------------------------------------------------------------


def _decoder() -> Any:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=32, n_layer=2, n_head=2, vocab_size=100, bos_token_id=1, eos_token_id=2, n_positions=32
    )
    return transformers.GPT2LMHeadModel(config).eval()


IDS = torch.arange(8)[None]


def test_decoders_are_captured_as_one_step(caplog: pytest.LogCaptureFixture) -> None:
    model = _decoder()
    with caplog.at_level(logging.WARNING):
        compiled = trt_frontends.compile(model, kwarg_inputs={"input_ids": IDS}, optimization_level=0)
    assert "use_cache=False" in caplog.text and model.config.use_cache
    assert [spec.name for spec in compiled.outputs] == ["output['logits']"]
    torch.testing.assert_close(compiled(input_ids=IDS).logits, model(input_ids=IDS).logits, rtol=1e-4, atol=1e-5)


def test_decoders_with_a_configuration_of_their_own_are_captured_without_caches() -> None:
    """T5 copies its configuration for the decoder, which `use_cache` is read from."""
    sizes = {"d_model": 32, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 2}
    torch.manual_seed(0)
    config = transformers.T5Config(**sizes, vocab_size=50, decoder_start_token_id=0)
    model = transformers.T5ForConditionalGeneration(config).eval()
    given = {"input_ids": IDS, "decoder_input_ids": IDS[:, :3]}
    compiled = trt_frontends.compile(model, kwarg_inputs=given, optimization_level=0)
    assert model.config.use_cache and model.decoder.config.use_cache and not model.encoder.config.use_cache
    torch.testing.assert_close(compiled(**given).logits, model(**given).logits, rtol=1e-4, atol=1e-5)


def test_caches_are_among_the_results_where_they_are_asked_for(tmp_path: Path) -> None:
    model = _decoder()
    given = {"input_ids": IDS, "use_cache": True}
    compiled = trt_frontends.compile(model, kwarg_inputs=given, optimization_level=0)
    wanted = model(**given)
    name = "cache" if "cache" in wanted else "past_key_values"  # releases of transformers differ
    keys = wanted[name].layers[1].keys
    torch.testing.assert_close(compiled(**given)[name].layers[1].keys, keys, rtol=1e-4, atol=1e-5)
    trt_frontends.save(compiled, tmp_path / "model.trtp")
    loaded = trt_runtime.load(tmp_path / "model.trtp")(**given)
    torch.testing.assert_close(loaded[name].key_cache[1], keys, rtol=1e-4, atol=1e-5)


def test_attention_that_cannot_be_traced_is_replaced_for_the_time_of_capturing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = _decoder()
    expected = model(input_ids=IDS, use_cache=False).logits
    for module in model.modules():
        if hasattr(module, "config"):
            module.config._attn_implementation = "flash_attention_2"
    with caplog.at_level(logging.WARNING):
        compiled = trt_frontends.compile(model, kwarg_inputs={"input_ids": IDS}, optimization_level=0)
    assert "'flash_attention_2' cannot be captured" in caplog.text
    assert model.config._attn_implementation == "flash_attention_2"
    torch.testing.assert_close(compiled(input_ids=IDS).logits, expected, rtol=1e-4, atol=1e-5)


class Wrapped(nn.Module):
    """Logits alone of a mixture whose experts are a loop over those that are hit, which depends on data."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "vocab_size": 64}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        config = transformers.MixtralConfig(num_local_experts=4, num_experts_per_tok=2, **sizes, **heads)
        self.mixture = transformers.MixtralForCausalLM._from_config(config, experts_implementation="eager")

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.mixture(ids, use_cache=False).logits


def test_models_without_experts_are_not_told_how_experts_are_captured(caplog: pytest.LogCaptureFixture) -> None:
    model = transformers.BertModel(transformers.BertConfig(**SMALL)).eval()
    with caplog.at_level(logging.WARNING, logger="torch_tensorrt"):
        trt_frontends.explain(model, inputs=[Input((1, 4), dtype=torch.int64, tensor_domain=(0, len(WORDS)))])
    assert "experts" not in caplog.text


def test_loops_over_experts_are_captured_as_grouped_products(caplog: pytest.LogCaptureFixture) -> None:
    model, ids = Wrapped().eval(), torch.randint(0, 64, (2, 5))
    if not hasattr(model.mixture.config, "_experts_implementation"):
        pytest.skip("this release of transformers has one way to compute experts")
    with caplog.at_level(logging.WARNING), torch.no_grad():
        expected = model(ids)
        result = trt_frontends.compile(model, arg_inputs=(ids,), optimization_level=0)
    assert "'eager' cannot be captured" in caplog.text
    assert model.mixture.config._experts_implementation == "eager"
    assert result.meta["partition_report"].coverage == 1.0
    torch.testing.assert_close(result(ids), expected, rtol=1e-4, atol=1e-5)


_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_ROUTED: dict[str, Any] = {**_EXPERTS, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}
_LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
_LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES: dict[str, dict[str, Any]] = {
    "Mixtral": _LOCAL,
    "Qwen2Moe": {"num_experts": 4, "shared_expert_intermediate_size": 32, **_EXPERTS},
    "Qwen3Moe": {"num_experts": 4, "head_dim": 8, **_EXPERTS},
    "DeepseekV2": {"n_shared_experts": 1, "num_key_value_heads": 4, **_LATENT, **_ROUTED},
    "DeepseekV3": {"n_shared_experts": 1, "num_key_value_heads": 4, **_LATENT, **_ROUTED},
    "GptOss": {"head_dim": 8, "sliding_window": 16, **_LOCAL},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Phimoe": _LOCAL,
    "GraniteMoe": _LOCAL,
    "Glm4Moe": {"head_dim": 8, **_ROUTED},
    "Ernie4_5_Moe": {"moe_num_experts": 4, "moe_k": 2, "moe_intermediate_size": 32, "moe_layer_start_index": 0},
    "Dots1": {"n_shared_experts": 1, "head_dim": 8, **_ROUTED},
}
WAYS = ("grouped_mm", "batched_mm", "eager")
KINDS = ("Mixtral", "Qwen2Moe", "DeepseekV3", "GptOss", "Ernie4_5_Moe")
"""Families whose experts are chosen, shared, grouped, biased and counted in ways of their own."""


@pytest.mark.parametrize(
    ("family", "way"), [(each, WAYS[at % 3]) for at, each in enumerate(FAMILIES) if STRESSED or each in KINDS]
)
def test_mixtures_of_experts_are_one_engine(family: str, way: str) -> None:
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip("this release of transformers does not have it")
    sizes = {**SMALL, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "pad_token_id": 0}
    model, ids = Wrapped().eval(), torch.randint(1, len(WORDS), (2, 6))
    config = getattr(transformers, f"{family}Config")(**{**sizes, **FAMILIES[family]})
    torch.manual_seed(0)
    model.mixture = (
        getattr(transformers, f"{family}ForCausalLM")._from_config(config, experts_implementation=way).eval()
    )
    with torch.no_grad():
        expected = model(ids)
    result = trt_frontends.compile(model, arg_inputs=(ids,), optimization_level=0)
    assert result.meta["partition_report"].coverage == 1.0
    assert sum(isinstance(child, trt_runtime.TRTModule) for child in result.modules()) == 1
    torch.testing.assert_close(result(ids), expected, rtol=1e-4, atol=1e-5)


LOOPS: dict[str, dict[str, Any]] = {
    "JetMoe": {"num_key_value_heads": 2, "kv_channels": 8, **_LOCAL},
    "Dbrx": {"d_model": 32, "n_heads": 4, "n_layers": 1, "vocab_size": len(WORDS), "max_seq_len": 64}
    | {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}}
    | {"ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2}},
    "LongcatFlash": {**_LATENT, "num_layers": 1, "n_routed_experts": 4, "zero_expert_num": 2, "moe_topk": 3}
    | {"ffn_hidden_size": 48, "expert_ffn_hidden_size": 32, "head_dim": 8},
}


def _with_loops(family: str, seed: int) -> Any:
    if not hasattr(transformers, f"{family}Config"):
        pytest.skip("this release of transformers does not have it")
    torch.manual_seed(seed)
    own = {"pad_token_id": 0} if family == "Dbrx" else {**SMALL, "pad_token_id": 0}
    config = getattr(transformers, f"{family}Config")(**{**own, **LOOPS[family]})
    model = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.2)
    return model


@pytest.mark.parametrize("family", LOOPS)
def test_what_stands_for_experts_that_read_counts_gives_what_they_do(family: str) -> None:
    model, ids = _with_loops(family, 0), torch.randint(1, len(WORDS), (3, 11))
    with torch.no_grad():
        expected = model(ids).logits
        with open_stored_layers(model) as opened:
            kinds = {type(module).__module__ for module in opened.modules()}
            torch.testing.assert_close(opened(ids).logits, expected, rtol=1e-3, atol=1e-4)
    assert "trt_frontends.stored_layers" in kinds


@pytest.mark.parametrize("family", LOOPS if STRESSED else ["JetMoe", "Dbrx"])
def test_experts_that_read_counts_are_one_engine_with_other_weights_and_lengths(family: str) -> None:
    models = [_with_loops(family, seed) for seed in range(2)]
    tokens = Input(min_shape=(1, 2), opt_shape=(2, 6), max_shape=(3, 16), dtype=torch.int64)
    how: dict[str, Any] = {"optimization_level": 0, "refit": True}
    compiled = trt_frontends.compile(models[0], kwarg_inputs={"input_ids": tokens}, **how)
    assert compiled.meta["partition_report"].coverage == 1.0
    assert sum(isinstance(child, trt_runtime.TRTModule) for child in compiled.modules()) == 1
    for model in models:
        if model is not models[0]:
            compiled = trt_frontends.refit_module_weights(compiled, model, kwarg_inputs={"input_ids": tokens})
        for shape in ((1, 2), (3, 11)):
            ids = torch.randint(1, len(WORDS), shape)
            with torch.no_grad():
                torch.testing.assert_close(compiled(input_ids=ids).logits, model(ids).logits, rtol=1e-3, atol=1e-4)
