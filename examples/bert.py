"""Compiles a BERT encoder for batches of 1 to 4 and sequences of 8 to 64 tokens; the mask is a keyword input.

Usage: python examples/bert.py
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

import trt_frontends
from trt_frontends import Input


def main() -> None:
    """Compiles and compares."""
    torch.manual_seed(0)
    config = BertConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256)
    model = BertModel(config, add_pooling_layer=False).eval()

    shapes = {"min_shape": (1, 8), "opt_shape": (2, 32), "max_shape": (4, 64)}
    tokens = Input(**shapes, dtype=torch.int64, tensor_domain=(0, config.vocab_size), name="input_ids")
    mask = Input(**shapes, dtype=torch.int64, tensor_domain=(1, 2), name="attention_mask")

    compiled = trt_frontends.compile(model, kwarg_inputs={"input_ids": tokens, "attention_mask": mask})
    for shape in ((1, 8), (3, 20), (4, 64)):
        ids = torch.randint(0, config.vocab_size, shape)
        attention_mask = torch.ones(shape, dtype=torch.int64)
        attention_mask[0, -3:] = 0  # the first sequence ends earlier
        with torch.no_grad():
            found = compiled(input_ids=ids, attention_mask=attention_mask)["last_hidden_state"]
            expected = model(input_ids=ids, attention_mask=attention_mask).last_hidden_state
        print(f"{shape}: largest difference from eager {(found - expected).abs().max():.1e}")


if __name__ == "__main__":
    main()
