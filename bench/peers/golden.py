#!/usr/bin/env python3
"""Makes the golden networks of crates/model/tests/golden: tiny random models of each family, with the outputs of
transformers.

    python3 bench/peers/golden.py crates/model/tests/golden mistral qwen2 ...     (or `all`)

FOLDER/NAME gets config.json and model.safetensors (f32) as transformers writes them, and golden.safetensors: `tokens`
(96 of them), their `logits` [96, vocabulary] in f32 with eager attention, `greedy` (the first 16 tokens and the 48
greedy tokens that follow them), and for networks whose rotary frequencies depend on the context, `context`: the context
length that the frequencies were chosen for. transformers chooses them by the length of each input; here they are fixed.
Encoder-decoders also have `source`, which their encoder reads; `tokens` are the decoder's, which begin with its start
token, and some of these networks have more of them, where distances are to exceed the last bucket of positions.

The weights are drawn so that every part of the network affects the logits: matrices are normal with deviation 1.6 /
sqrt(their inputs), embeddings 1 (less if the network multiplies them), biases 0.1, norms 0.2 around their initial value
(1, or 0 if the network adds the 1 itself); the epsilon of the norms is 0.01. The seed is the first from 11 on under
which greedy choices are clear (first and second logit differ by 1e-3 of the largest) and varied (at least 8 different
tokens among the 48).

Needs torch, transformers 5 and safetensors. Families without a class in transformers are made by remote_code.py.
"""
import argparse
import json
import os

import torch
import transformers
from safetensors.torch import save_file
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

VOCABULARY, TOKENS, PROMPT, FOLLOWERS, FIRST_SEED = 64, 96, 16, 48, 11
BASE = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=512)
GROUPED = dict(BASE, num_key_value_heads=2)
# Heads apart from the width: 4 heads of 8 on a width of 24.
APART = dict(GROUPED, hidden_size=24, intermediate_size=40, head_dim=8)
GPT2_STYLE = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_inner=48, n_positions=512)
LOCAL, FULL = "sliding_attention", "full_attention"


def rope(kind, theta=10000.0, **fields):
    return dict(rope_type=kind, rope_theta=theta, **fields)


YARN = rope("yarn", factor=4.0, original_max_position_embeddings=64)
MULTIPLIERS = dict(embedding_multiplier=3.0, attention_multiplier=0.25, residual_multiplier=0.7, logits_scaling=4.0)
# One factor for each rotary pair; lists of 4 for heads of 8, of 3 for heads of 8 with three quarters turned.
LONG = dict(short_factor=[1.0, 1.05, 1.3, 1.9], long_factor=[1.1, 2.4, 5.5, 7.5])
LONG_PARTIAL = dict(short_factor=[1.0, 1.2, 1.7], long_factor=[1.3, 3.1, 7.0])


# Heads that do not divide the width, and distances that fill all buckets within the source.
T5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, decoder_start_token_id=0,
          layer_norm_epsilon=0.01)
T5_NARROW = dict(T5, num_heads=3, relative_attention_num_buckets=8, relative_attention_max_distance=20)

# NAME: (configuration class, its fields, and settings outside the configuration: the context that rotary frequencies
# are chosen for, the deviation of the embeddings).
CASES = {
    # Llama and the scalings of its rotary positions.
    "llama-head-dim": ("Llama", APART),
    "yarn-rope": ("Llama", dict(GROUPED, max_position_embeddings=256, rope_parameters=YARN)),
    "dynamic-rope-below": ("Llama", dict(GROUPED, max_position_embeddings=128,
                                         rope_parameters=rope("dynamic", factor=4.0)), {"context": 128}),
    "dynamic-rope-above": ("Llama", dict(GROUPED, max_position_embeddings=64,
                                         rope_parameters=rope("dynamic", factor=4.0)), {"context": 96}),
    "longrope": ("Llama", dict(GROUPED, rope_parameters=rope(
        "longrope", original_max_position_embeddings=64, factor=8.0, **LONG)), {"context": 512}),
    # Mistral and its relatives.
    "mistral": ("Mistral", dict(GROUPED, sliding_window=32)),
    "mistral-nemo": ("Mistral", dict(APART, sliding_window=None, rope_parameters=rope("default", 1000000.0))),
    "ministral": ("Ministral", dict(APART, num_hidden_layers=4, intermediate_size=32, sliding_window=32,
                                    layer_types=[FULL, LOCAL, LOCAL, LOCAL])),
    "ministral3": ("Ministral3", dict(APART, rope_parameters=rope(
        "yarn", 1000000.0, factor=16.0, original_max_position_embeddings=32, beta_fast=32.0, beta_slow=1.0,
        mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1))),
    # Qwen.
    "qwen2": ("Qwen2", dict(GROUPED, tie_word_embeddings=True)),
    "qwen2-yarn": ("Qwen2", dict(GROUPED, max_position_embeddings=256, rope_parameters=YARN)),
    "qwen2-window": ("Qwen2", dict(GROUPED, intermediate_size=32, num_hidden_layers=3, use_sliding_window=True,
                                   sliding_window=32, max_window_layers=1, tie_word_embeddings=True)),
    "qwen3": ("Qwen3", dict(APART)),
    # Gemma.
    "gemma": ("Gemma", APART, {"embedding": 0.2}),
    "gemma2": ("Gemma2", dict(APART, num_hidden_layers=4, intermediate_size=32, sliding_window=32,
                              query_pre_attn_scalar=12, attn_logit_softcapping=2.0, final_logit_softcapping=1.5),
               {"embedding": 0.2}),
    "gemma3": ("Gemma3Text", dict(APART, num_hidden_layers=4, intermediate_size=32, sliding_window=32,
                                  query_pre_attn_scalar=12, layer_types=[LOCAL, LOCAL, FULL, LOCAL], rope_parameters={
        LOCAL: rope("default"), FULL: rope("linear", 1000000.0, factor=8.0)}), {"embedding": 0.2}),
    "gemma4": ("Gemma4Text", dict(APART, num_hidden_layers=3, sliding_window=32, layer_types=[LOCAL, LOCAL, FULL],
                                  global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True,
                                  hidden_size_per_layer_input=0, final_logit_softcapping=1.5, rope_parameters={
        LOCAL: rope("default"), FULL: rope("proportional", 1000000.0, partial_rotary_factor=0.25)}),
        {"embedding": 0.2}),
    "gemma4-per-layer": ("Gemma4Text", dict(
        APART, intermediate_size=16, num_hidden_layers=4, sliding_window=32, layer_types=[LOCAL, FULL, LOCAL, FULL],
        num_attention_heads=2, num_key_value_heads=1, global_head_dim=16, hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY, num_kv_shared_layers=2, use_double_wide_mlp=True,
        final_logit_softcapping=1.5, rope_parameters={
            LOCAL: rope("default"), FULL: rope("proportional", 1000000.0, partial_rotary_factor=0.25)}),
        {"embedding": 0.2}),
    "gemma4-experts": ("Gemma4Text", dict(
        APART, num_hidden_layers=3, intermediate_size=16, sliding_window=32, layer_types=[LOCAL, LOCAL, FULL],
        global_head_dim=16, num_global_key_value_heads=1, attention_k_eq_v=True, hidden_size_per_layer_input=0,
        final_logit_softcapping=1.5, enable_moe_block=True, num_experts=6, top_k_experts=2, moe_intermediate_size=8,
        rope_parameters={LOCAL: rope("default"), FULL: rope("proportional", 1000000.0, partial_rotary_factor=0.25)}),
        {"embedding": 0.2}),
    # Phi.
    "phi": ("Phi", dict(BASE, partial_rotary_factor=0.5)),
    "phi-qk-norm": ("Phi", dict(GROUPED, partial_rotary_factor=0.5, qk_layernorm=True)),
    "phi3": ("Phi3", dict(GROUPED, sliding_window=32)),
    "phi3-long-below": ("Phi3", dict(GROUPED, original_max_position_embeddings=128, rope_parameters=rope(
        "longrope", **LONG)), {"context": 128}),
    "phi3-long-above": ("Phi3", dict(GROUPED, original_max_position_embeddings=64, rope_parameters=rope(
        "longrope", **LONG)), {"context": 512}),
    "phi4-mini": ("Phi3", dict(GROUPED, tie_word_embeddings=True, original_max_position_embeddings=64,
                               partial_rotary_factor=0.75, rope_parameters=rope("longrope", **LONG_PARTIAL)),
                  {"context": 512}),
    # GPT-NeoX, GPT-J, CodeGen.
    "gpt_neox": ("GPTNeoX", dict(BASE, num_attention_heads=2, rotary_pct=0.25)),
    "gpt_neox-sequential": ("GPTNeoX", dict(BASE, rotary_pct=1.0, use_parallel_residual=False)),
    "gptj": ("GPTJ", dict(GPT2_STYLE, rotary_dim=4)),
    "codegen": ("CodeGen", dict(GPT2_STYLE, rotary_dim=4)),
    # StarCoder.
    "gpt_bigcode": ("GPTBigCode", dict(GPT2_STYLE, n_positions=96, multi_query=True)),
    "gpt_bigcode-multi-head": ("GPTBigCode", dict(GPT2_STYLE, n_positions=96, multi_query=False)),
    "starcoder2": ("Starcoder2", dict(GROUPED, sliding_window=None)),
    "starcoder2-window": ("Starcoder2", dict(GROUPED, sliding_window=32, tie_word_embeddings=False)),
    # OPT, BLOOM, Falcon.
    "opt": ("OPT", dict(vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2,
                        num_attention_heads=4, max_position_embeddings=96)),
    "opt-350m": ("OPT", dict(vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2,
                             num_attention_heads=4, max_position_embeddings=96, word_embed_proj_dim=16,
                             do_layer_norm_before=False)),
    "bloom": ("Bloom", dict(vocab_size=VOCABULARY, hidden_size=24, n_layer=2, n_head=3)),
    "falcon": ("Falcon", dict(BASE, ffn_hidden_size=64, multi_query=True, parallel_attn=True, bias=False,
                              new_decoder_architecture=False)),
    "falcon-new": ("Falcon", dict(BASE, ffn_hidden_size=64, num_kv_heads=2, new_decoder_architecture=True,
                                  bias=False)),
    "falcon-11b": ("Falcon", dict(BASE, ffn_hidden_size=64, num_kv_heads=2, new_decoder_architecture=True, bias=False,
                                  num_ln_in_parallel_attn=1, tie_word_embeddings=False)),
    # In eager mode transformers 5.23 adds Falcon's ALiBi twice, with the mask and again.
    "falcon-rw": ("Falcon", dict(BASE, ffn_hidden_size=64, alibi=True, bias=True, multi_query=False,
                                 parallel_attn=False, new_decoder_architecture=False), dict(attention="sdpa")),
    # GLM, StableLM, OLMo, SmolLM, Granite, Command-R.
    "glm": ("Glm", APART),
    "glm4": ("Glm4", APART),
    "stablelm": ("StableLm", dict(GROUPED, use_qkv_bias=True, partial_rotary_factor=0.5)),
    "stablelm-parallel": ("StableLm", dict(GROUPED, use_parallel_residual=True, qk_layernorm=True,
                                           partial_rotary_factor=0.25, num_attention_heads=2,
                                           num_key_value_heads=1)),
    "olmo2": ("Olmo2", GROUPED),
    "olmo3": ("Olmo3", dict(GROUPED, num_hidden_layers=3, intermediate_size=24, sliding_window=32,
                            layer_types=[LOCAL, LOCAL, FULL],
                            rope_parameters={LOCAL: rope("default", 500000.0), FULL: YARN | {"rope_theta": 500000.0}})),
    "smollm3": ("SmolLM3", dict(GROUPED, num_hidden_layers=3, intermediate_size=32, no_rope_layers=[1, 1, 0],
                                tie_word_embeddings=True)),
    "granite": ("Granite", dict(GROUPED, embedding_multiplier=3.0, attention_multiplier=0.25, residual_multiplier=0.7,
                                logits_scaling=4.0, tie_word_embeddings=True), {"embedding": 0.3}),
    "cohere": ("Cohere", dict(GROUPED, logit_scale=0.25)),
    "cohere-qk-norm": ("Cohere", dict(GROUPED, logit_scale=0.25, use_qk_norm=True)),
    "cohere2": ("Cohere2", dict(GROUPED, num_hidden_layers=3, intermediate_size=32, sliding_window=32,
                                layer_types=[LOCAL, FULL, LOCAL], logit_scale=0.25)),
    # Experts.
    "mixtral": ("Mixtral", dict(GROUPED, intermediate_size=24, num_local_experts=4, num_experts_per_tok=2,
                                sliding_window=None)),
    "qwen2_moe": ("Qwen2Moe", dict(GROUPED, num_hidden_layers=3, intermediate_size=40, moe_intermediate_size=16,
                                   shared_expert_intermediate_size=24, num_experts=6, num_experts_per_tok=2,
                                   mlp_only_layers=[1])),
    "qwen3_moe": ("Qwen3Moe", dict(APART, num_hidden_layers=3, moe_intermediate_size=16, num_experts=6,
                                   num_experts_per_tok=3, decoder_sparse_step=2, norm_topk_prob=True)),
    "olmoe": ("Olmoe", dict(GROUPED, intermediate_size=16, num_experts=8, num_experts_per_tok=3)),
    "granitemoe": ("GraniteMoe", dict(GROUPED, intermediate_size=16, num_local_experts=6, num_experts_per_tok=3,
                                      **MULTIPLIERS, tie_word_embeddings=True), {"embedding": 0.3}),
    "granitemoeshared": ("GraniteMoeShared", dict(GROUPED, intermediate_size=16, num_local_experts=4,
                                                  shared_intermediate_size=24, **MULTIPLIERS), {"embedding": 0.3}),
    "glm4_moe": ("Glm4Moe", dict(APART, num_hidden_layers=3, attention_bias=True, moe_intermediate_size=16,
                                 n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=1,
                                 routed_scaling_factor=1.5)),
    "glm4_moe-groups": ("Glm4Moe", dict(GROUPED, head_dim=8, use_qk_norm=True, moe_intermediate_size=12,
                                        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=4,
                                        topk_group=2, first_k_dense_replace=0, norm_topk_prob=False,
                                        partial_rotary_factor=1.0, routed_scaling_factor=0.5)),
    "ernie4_5_moe": ("Ernie4_5_Moe", dict(GROUPED, num_hidden_layers=3, moe_intermediate_size=12, moe_num_experts=6,
                                          moe_k=2, moe_num_shared_experts=2)),
    "ernie4_5_moe-least": ("Ernie4_5_Moe", dict(GROUPED, num_hidden_layers=4, moe_intermediate_size=16,
                                                moe_num_experts=4, moe_k=2, moe_num_shared_experts=0,
                                                moe_layer_start_index=1, moe_layer_end_index=2, moe_layer_interval=2,
                                                moe_norm_min=0.7, tie_word_embeddings=False)),
    "gpt_oss": ("GptOss", dict(APART, num_hidden_layers=3, intermediate_size=16, num_local_experts=6,
                               num_experts_per_tok=3, sliding_window=32, swiglu_limit=1.5, max_position_embeddings=256,
                               rope_parameters=dict(YARN, truncate=False))),
    # Arcee, Ernie 4.5, Seed-OSS, Hunyuan.
    "arcee": ("Arcee", dict(GROUPED, max_position_embeddings=256, rope_parameters=YARN)),
    "ernie4_5": ("Ernie4_5", APART),
    "ernie4_5-bias": ("Ernie4_5", dict(GROUPED, head_dim=None, use_bias=True, tie_word_embeddings=False)),
    "seed_oss": ("SeedOss", APART),
    "seed_oss-bias": ("SeedOss", dict(APART, attention_bias=False, attention_out_bias=True, mlp_bias=True,
                                      tie_word_embeddings=True)),
    "hunyuan_v1_dense": ("HunYuanDenseV1", dict(APART, max_position_embeddings=32768, rope_parameters=rope(
        "dynamic", factor=1.0, alpha=1000.0, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0))),
    "hunyuan_v1_dense-bias": ("HunYuanDenseV1", dict(GROUPED, head_dim=8, attention_bias=True,
                                                     tie_word_embeddings=True)),
    # T5 (tied, ReLU), with distances beyond the last bucket, T5 1.1 and Flan-T5 (untied, gated), mT5, UMT5 (biases in
    # each layer).
    "t5": ("T5", T5, dict(source=40)),
    "t5-long": ("T5", dict(T5, d_kv=6), dict(source=200, tokens=160)),
    "t5-v1_1": ("T5", dict(T5_NARROW, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False),
                dict(source=40)),
    "mt5": ("MT5", dict(T5_NARROW, num_heads=5, d_kv=4, tie_word_embeddings=False), dict(source=40)),
    "umt5": ("UMT5", dict(T5, tie_word_embeddings=False), dict(source=40)),
}

# Fields that GGUF files and llama.cpp assume: the feed-forward half four times as wide, scores scaled by the width
# of heads, the usual pattern of layers, norms of q and k in Command-R from 64 layers on, experts in all layers, an
# epsilon and keys of all heads (OLMoE). None takes a field away.
OF_GGUF = {
    "gemma2": dict(query_pre_attn_scalar=8, layer_types=None),
    "gemma3": dict(query_pre_attn_scalar=8, layer_types=None, num_hidden_layers=6),
    "cohere2": dict(layer_types=None, num_hidden_layers=4),
    "smollm3": dict(no_rope_layers=None, num_hidden_layers=4),
    "phi": dict(intermediate_size=128),
    "falcon": dict(ffn_hidden_size=128),
    "falcon-new": dict(ffn_hidden_size=128),
    "falcon-11b": dict(ffn_hidden_size=128),
    "gpt_bigcode": dict(n_inner=128),
    "bloom": dict(seq_length=512),
    "glm": dict(hidden_size=32),
    "cohere-qk-norm": dict(num_hidden_layers=64, intermediate_size=32),
    "gpt2": dict(n_inner=128),
    "qwen2_moe": dict(mlp_only_layers=None),
    "qwen3_moe": dict(decoder_sparse_step=None),
    "olmoe": dict(rms_norm_eps=1e-5, num_key_value_heads=4),
    # Files have one limit, and llama.cpp one kind of YaRN.
    "gpt_oss": dict(hidden_size=32, intermediate_size=32, swiglu_limit=7.0, rope_parameters=YARN),
}
# Networks of OF_GGUF whose golden folder is made by another script.
ELSEWHERE = {"gpt2": ("GPT2", GPT2_STYLE)}


def build(name, seed):
    """The model of a case with weights drawn from `seed`, and the context that its frequencies are fixed for."""
    family, fields, *apart = CASES[name]
    apart = apart[0] if apart else {}
    config = getattr(transformers, family + "Config")(**fields)
    for key in ("bos_token_id", "eos_token_id", "pad_token_id"):
        value = getattr(config, key, None)
        if isinstance(value, list) or (value is not None and not 0 <= value < VOCABULARY):
            setattr(config, key, 0)
    for key in ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if hasattr(config, key) and key not in fields:
            setattr(config, key, 0.01)
    attention = apart.get("attention", "eager")
    kind = transformers.AutoModelForSeq2SeqLM if "source" in apart else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation=attention).eval().float()
    if fields.get("tie_word_embeddings") is False and "source" in apart:
        # transformers 5 ties T5's head unless a file has one of its own, as published files do.
        model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())
    torch.manual_seed(seed)
    with torch.no_grad():
        draw(model, apart.get("embedding", 1.0))
    if "context" in apart:
        fix_frequencies(model, apart["context"])
    return model, apart.get("context")


def is_router(module):
    return "Router" in type(module).__name__


def draw(model, embedding):
    drawn = set()
    for module in model.modules():
        for name, p in module.named_parameters(recurse=False):
            if p.data_ptr() in drawn:  # a tied head
                continue
            drawn.add(p.data_ptr())
            noise = torch.randn_like(p)
            if isinstance(module, nn.Embedding):
                p.copy_(noise * embedding)
            elif is_router(module) and name.endswith("scale"):
                p.copy_(1.0 + noise * 0.2)
            elif isinstance(module, nn.Linear) and name == "weight" or is_router(module) or p.dim() == 3:
                p.copy_(noise * (1.6 / p.shape[-1] ** 0.5))
            elif type(module).__name__ == "Conv1D" and name == "weight":  # [inputs, outputs]
                p.copy_(noise * (1.6 / p.shape[0] ** 0.5))
            elif name in ("bias", "e_score_correction_bias", "gate_up_proj_bias", "down_proj_bias"):
                p.copy_(noise * 0.1)
            elif name == "sinks":  # of the size of scores
                p.copy_(noise * 2.0)
            elif "Norm" in type(module).__name__ and name == "weight":
                start = float(p.flatten()[0])
                assert start in (0.0, 1.0) and bool((p == start).all()), (type(module).__name__, p)
                p.copy_(start + noise * 0.2)
            else:
                raise AssertionError(f"{type(module).__name__}.{name}: no rule for its weights")
    for module in model.modules():
        if hasattr(module, "key_value_proj_dim"):  # T5 does not scale scores, so its queries are drawn smaller
            module.q.weight.mul_(module.key_value_proj_dim ** -0.5)
    for name, b in model.named_buffers():
        if name.endswith("layer_scalar"):
            b.copy_(0.9 + torch.randn_like(b) * 0.1)
        if name.endswith("e_score_correction_bias"):
            b.copy_(torch.randn_like(b) * 0.1)


def fix_frequencies(model, context):
    """Fixes the frequencies to those for `context`, instead of choosing them by the length of each input."""
    rotary = model.model.rotary_emb
    rotary.inv_freq, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, seq_len=context)
    rotary.rope_type = "default"


@torch.no_grad()
def measure(model, source=None, tokens=TOKENS):
    """Logits and greedy followers of random tokens; how clear and how varied the greedy choices are."""
    tokens = torch.randint(1, VOCABULARY, (1, tokens))
    golden, ask = {}, lambda ids: model(input_ids=ids, use_cache=False).logits[0].float()
    if source is not None:
        source = torch.randint(1, VOCABULARY, (1, source))
        tokens[0, 0] = model.config.decoder_start_token_id
        golden["source"] = source[0].int()
        ask = lambda ids: model(input_ids=source, decoder_input_ids=ids, use_cache=False).logits[0].float()
    logits = ask(tokens)
    greedy, clear = tokens[:, :PROMPT], float("inf")
    for _ in range(FOLLOWERS):
        row = ask(greedy)[-1]
        first, second = row.topk(2).values
        clear = min(clear, float((first - second) / row.abs().max()))
        greedy = torch.cat([greedy, row.argmax().view(1, 1)], 1)
    varied = len(set(greedy[0, PROMPT:].tolist()))
    golden.update(tokens=tokens[0].int(), logits=logits.contiguous(), greedy=greedy[0].int())
    return golden, clear, varied


def as_published(path):
    """Writes an untied T5 as published files have it: transformers 5 says that it is tied, whatever it is."""
    config = json.load(open(path))
    config["tie_word_embeddings"] = False
    config.pop("scale_decoder_outputs", None)
    with open(path, "w") as file:
        file.write(json.dumps(config, indent=2, sort_keys=True) + "\n")
    folder = os.path.dirname(path)
    reloaded = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert not torch.equal(reloaded.lm_head.weight, reloaded.shared.weight), folder


def make(root, name):
    apart = CASES[name][2] if len(CASES[name]) > 2 else {}
    lengths = {key: apart[key] for key in ("source", "tokens") if key in apart}
    for seed in range(FIRST_SEED, FIRST_SEED + 200):
        model, context = build(name, seed)
        golden, clear, varied = measure(model, **lengths)
        if clear >= 1e-3 and varied >= 8:
            break
    else:
        raise SystemExit(f"{name}: no seed gives clear and varied greedy choices")
    if context is not None:
        golden["context"] = torch.tensor([context], dtype=torch.int32)
    folder = os.path.join(root, name)
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "generation_config.json"))
    if "source" in apart and CASES[name][1].get("tie_word_embeddings") is False:
        as_published(os.path.join(folder, "config.json"))
    save_file(golden, os.path.join(folder, "golden.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: seed {seed}, {size / 1000:.0f} kB, logits {float(golden['logits'].min()):.2f} to "
          f"{float(golden['logits'].max()):.2f}, clear by {clear:.4f}, {varied} different followers", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the folder for the folders of the cases")
    parser.add_argument("cases", nargs="+", help="names of cases, or `all`: " + ", ".join(CASES))
    parser.add_argument("--gguf", action="store_true", help="the networks that GGUF files describe completely")
    arguments = parser.parse_args()
    if arguments.gguf:
        for case, changes in OF_GGUF.items():
            family, fields, *apart = CASES.get(case) or ELSEWHERE[case]
            fields = {field: value for field, value in {**fields, **changes}.items() if value is not None}
            CASES[case] = (family, fields, *apart)
        arguments.cases = OF_GGUF if arguments.cases == ["all"] else arguments.cases
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for case in CASES if arguments.cases == ["all"] else arguments.cases:
        make(arguments.folder, case)
