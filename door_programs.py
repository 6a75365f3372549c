import os, sys, traceback, time
import torch, torch.distributed as dist
import rank_programs as rp
import trt_frontends as trt
from trt_core import Input

MOE = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
DS = {**MOE, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1, "num_key_value_heads": 4}
SPECIAL = {
 "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2}, "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
 "qwen3_moe": {**MOE, "num_experts": 4}, "qwen2_moe": {**MOE, "num_experts": 4, "shared_expert_intermediate_size": 64},
 "deepseek_v3": DS, "deepseek_v2": {**DS, "topk_method": "greedy"},
 "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
 "glm4_moe": {**MOE, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
 "dots1": {**MOE, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
 "llama4_text": {"num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size_mlp": 64, "attention_chunk_size": 32},
 "qwen3_next": {**MOE, "num_experts": 4, "shared_expert_intermediate_size": 64, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8},
}
def save_tiny(rank, name, directory, layers=2):
    sys.modules.setdefault("sklearn", None)
    from transformers import AutoConfig, AutoModelForCausalLM
    os.environ |= {"LOCAL_RANK": str(rank), "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2 if dist.get_world_size() < 4 else 4, "max_position_embeddings": 64, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes |= SPECIAL.get(name, {})
    ok = [""]
    if rank == 0:
        try:
            torch.manual_seed(0)
            config = AutoConfig.for_model(name, **sizes)
            AutoModelForCausalLM.from_config(config).save_pretrained(directory)
        except Exception as e:
            ok = [repr(e)[:300]]
    dist.broadcast_object_list(ok, 0)
    if ok[0]: raise ValueError("tiny: " + ok[0])

def models(rank, kinds, ways, directory):
    from transformers import AutoModelForCausalLM
    told = {}
    for kind in kinds:
        for way in ways:
            t=time.time(); r=""
            try:
                folder = f"{directory}/{kind}-{way}"
                save_tiny(rank, kind, folder)
                model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto").eval().requires_grad_(False)
                model.config.use_cache = False
                torch.manual_seed(0)
                x = torch.randint(0, 64, (2, 6))
                try:
                    with torch.no_grad(): model(x)
                except Exception as e:
                    raise ValueError("eager: " + repr(e)[:300]) from None
                rp._hold_to_eager(model, way, Input(min_shape=(2, 4), opt_shape=(2, 6), max_shape=(4, 8), dtype=torch.int64))
                r="ok"
            except BaseException as e:
                r = f"{type(e).__name__}: {str(e)[:700]}"
                if os.environ.get("DOOR_TB"): r += traceback.format_exc()[-3000:]
            told[kind, way] = r
            if rank == 0: print(kind, way, round(time.time()-t), r, flush=True)
    return told
