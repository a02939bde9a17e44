#!/usr/bin/env python3
"""Makes the quantized golden networks of crates/model/tests/golden: a tiny random Llama in each format in which
quantized Hugging Face checkpoints are packed, with the outputs of transformers for the dequantized weights; and a
gpt-oss whose experts are MXFP4, as the published ones are (quantized-mxfp4).

    python3 bench/peers/quantized.py crates/model/tests/golden          (all of them)

FOLDER/NAME gets config.json and model.safetensors, packed here from known integers (or bits of floats), as AutoGPTQ,
AutoAWQ and compressed-tensors pack them; and golden.safetensors: `tokens` (32 of them), their `logits` in f32 with
eager attention of the network whose matrices are scale * (quant - zero), and `weight`, one of these matrices ([32, 64],
`k_proj` of layer 1). The packing programs are not used; quantized_by_programs.py compares what they write themselves.

Needs numpy, torch, transformers 5 and safetensors.
"""
import json
import os
import sys

import numpy
import torch
import transformers
from safetensors.torch import save_file
from transformers.integrations.mxfp4 import FP4_VALUES, convert_moe_packed_tensors

VOCABULARY, TOKENS, WIDTH, SEED = 64, 32, 64, 11
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
COMPRESSED = dict(quant_method="compressed-tensors", quantization_status="compressed", ignore=["lm_head"],
                  kv_cache_scheme=None)


def int4_scheme(symmetric, group):
    weights = dict(num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group, dynamic=False,
                   actorder=None, block_structure=None)
    return dict(COMPRESSED, format="pack-quantized", config_groups=dict(group_0=dict(
        targets=["Linear"], weights=weights, input_activations=None, output_activations=None)))


def float8_scheme(strategy):
    of = dict(num_bits=8, type="float", symmetric=True, group_size=None, block_structure=None)
    inputs = dict(of, strategy="token", dynamic=True)
    return dict(COMPRESSED, format="float-quantized", config_groups=dict(group_0=dict(
        targets=["Linear"], weights=dict(of, strategy=strategy, dynamic=False), input_activations=inputs,
        output_activations=None)))


def gptq_scheme(sym, group):
    return dict(quant_method="gptq", bits=4, group_size=group, sym=sym, desc_act=False, checkpoint_format="gptq")


# NAME: (packing, inputs of a group, whether zero points are 8, type of the scales, the configuration).
CASES = {
    "quantized-gptq": ("gptq", 32, True, torch.float16, gptq_scheme(True, 32)),
    "quantized-gptq-zeros": ("gptq", 64, False, torch.float16, gptq_scheme(False, 64)),
    "quantized-awq": ("awq", 32, False, torch.float16, dict(
        quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=None)),
    "quantized-packed": ("packed", 64, True, torch.bfloat16, int4_scheme(True, 64)),
    "quantized-packed-zeros": ("packed", 32, False, torch.bfloat16, int4_scheme(False, 32)),
    "quantized-float8": ("float8", 0, True, torch.bfloat16, float8_scheme("channel")),
    "quantized-float8-tensor": ("float8", 0, True, torch.float32, float8_scheme("tensor")),
}


def quantize(weight, group, symmetric, dtype):
    """Quants [outputs, inputs], scales and zero points [outputs, groups] and the dequantized floats."""
    outputs, inputs = weight.shape
    parts = weight.reshape(outputs, inputs // group, group)
    low, high = parts.amin(-1), parts.amax(-1)
    scale = parts.abs().amax(-1) / 7 if symmetric else (high - low) / 15
    scale = scale.to(dtype).float()
    zero = torch.full_like(scale, 8) if symmetric else (-low / scale).round().clamp(1, 15)
    quants = (parts / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    floats = ((quants - zero[..., None]) * scale[..., None]).reshape(outputs, inputs)
    return quants.reshape(outputs, inputs).int().numpy(), scale, zero.int().numpy(), floats


def words(values, order=range(8)):
    """Eight values of the last axis in each word, the first of the order in the lowest bits."""
    eights = values.astype(numpy.uint32).reshape(*values.shape[:-1], -1, 8)
    packed = sum(eights[..., of] << numpy.uint32(4 * place) for place, of in enumerate(order))
    return torch.from_numpy(numpy.ascontiguousarray(packed).view(numpy.int32))


def integers(how, weight, group, symmetric, dtype):
    quants, scale, zero, floats = quantize(weight, group, symmetric, dtype)
    turned = scale.T.contiguous().to(dtype)
    if how == "gptq":
        groups = torch.arange(weight.shape[1], dtype=torch.int32) // group
        return dict(qweight=words(quants).T.contiguous(), qzeros=words(zero.T - 1), scales=turned, g_idx=groups), floats
    if how == "awq":
        return dict(qweight=words(quants.T, AWQ_ORDER), qzeros=words(zero.T, AWQ_ORDER), scales=turned), floats
    tensors = dict(weight_packed=words(quants), weight_scale=scale.to(dtype),
                   weight_shape=torch.tensor(weight.shape, dtype=torch.int64))
    if not symmetric:
        tensors["weight_zero_point"] = words(zero.T).T.contiguous()
    return tensors, floats


def float8(weight, strategy, dtype):
    largest = weight.abs().amax(1, keepdim=True) if strategy == "channel" else weight.abs().amax().reshape(1)
    scale = (largest / 448).to(dtype)
    quants = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
    return dict(weight=quants, weight_scale=scale), quants.float() * scale.float()


def make(folder, name):
    how, group, symmetric, dtype, scheme = CASES[name]
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=64 if how == "float8" else 128,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        rms_norm_eps=0.01, tie_word_embeddings=False, attn_implementation="eager")
    torch.manual_seed(SEED)
    model = transformers.LlamaForCausalLM(config).float().eval()
    tensors = {}
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.copy_((1 + 0.2 * torch.randn_like(weight)).half())
            elif "embed" in key or "lm_head" in key:
                weight.copy_((torch.randn_like(weight) / (1 if "embed" in key else 5)).half())
            else:
                # Columns are not centred at zero, so zero points differ.
                drawn = (torch.randn_like(weight) + 0.3 * torch.randn(weight.shape[1])) * 1.6 / weight.shape[1] ** 0.5
                if how == "float8":
                    parts, floats = float8(drawn, scheme["config_groups"]["group_0"]["weights"]["strategy"], dtype)
                else:
                    parts, floats = integers(how, drawn, group, symmetric, dtype)
                weight.copy_(floats)
                tensors |= {key.removesuffix("weight") + part: tensor for part, tensor in parts.items()}
                continue
            tensors[key] = weight.half()
        tokens = torch.randint(VOCABULARY, (TOKENS,))
        logits = model(tokens[None]).logits[0]
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    said = dict(config.to_diff_dict(), architectures=["LlamaForCausalLM"], quantization_config=scheme)
    with open(os.path.join(path, "config.json"), "w") as file:
        file.write(json.dumps(said, indent=2, sort_keys=True, default=str) + "\n")
    save_file(tensors, os.path.join(path, "model.safetensors"))
    weight = model.model.layers[1].self_attn.k_proj.weight.detach().clone()
    golden = dict(tokens=tokens.int(), logits=logits.contiguous(), weight=weight)
    save_file(golden, os.path.join(path, "golden.safetensors"))


def mxfp4(weight):
    """Blocks and scales of matrices [experts, outputs, inputs], and their floats as transformers dequantizes them,
    [experts, inputs, outputs]."""
    values = torch.tensor(FP4_VALUES)
    parts = weight.reshape(*weight.shape[:2], -1, 32)
    exponent = (parts.abs().amax(-1) / 6).log2().ceil()
    nearest = (parts / 2 ** exponent[..., None]).unsqueeze(-1).sub(values).abs().argmin(-1).to(torch.uint8)
    blocks, scales = nearest[..., ::2] | nearest[..., 1::2] << 4, (exponent + 127).to(torch.uint8)
    return blocks.contiguous(), scales, convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)


def make_mxfp4(folder, name="quantized-mxfp4"):
    config = transformers.GptOssConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=16,
        max_position_embeddings=256, rms_norm_eps=0.01, pad_token_id=None, bos_token_id=None, eos_token_id=None,
        rope_parameters=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, truncate=False,
                             original_max_position_embeddings=64), attn_implementation="eager")
    torch.manual_seed(SEED)
    model = transformers.GptOssForCausalLM(config).float().eval()
    tensors = {}
    with torch.no_grad():
        for key, weight in model.named_parameters():
            noise = torch.randn_like(weight)
            if weight.ndim == 3:
                drawn = noise.transpose(1, 2) * 1.6 / weight.shape[1] ** 0.5
                tensors[key + "_blocks"], tensors[key + "_scales"], floats = mxfp4(drawn)
                weight.copy_(floats)
                continue
            size = {"norm": 0.2, "embed": 1.0, "lm_head": 0.2, "_proj.weight": 0.2, "router.weight": 0.2, "sinks": 2.0}
            weight.copy_(noise * next((size for part, size in size.items() if part in key), 0.1) + ("norm" in key))
            weight.copy_(weight.bfloat16())
            tensors[key] = weight.bfloat16()
        tokens = torch.randint(VOCABULARY, (TOKENS,))
        logits = model(tokens[None]).logits[0]
    path = os.path.join(folder, name)
    os.makedirs(path, exist_ok=True)
    scheme = dict(quant_method="mxfp4", modules_to_not_convert=["model.layers.*.self_attn", "lm_head"])
    said = dict(config.to_diff_dict(), architectures=["GptOssForCausalLM"], quantization_config=scheme)
    with open(os.path.join(path, "config.json"), "w") as file:
        file.write(json.dumps(said, indent=2, sort_keys=True, default=str) + "\n")
    save_file(tensors, os.path.join(path, "model.safetensors"))
    golden = dict(tokens=tokens.int(), logits=logits.contiguous())
    experts = model.model.layers[1].mlp.experts
    # Of expert 2 of layer 1: gate, up and down, [outputs, inputs].
    golden["gate"], golden["up"] = (experts.gate_up_proj[2, :, i::2].T.contiguous() for i in (0, 1))
    golden["down"] = experts.down_proj[2].T.contiguous()
    save_file({key: value.detach() for key, value in golden.items()}, os.path.join(path, "golden.safetensors"))


if __name__ == "__main__":
    for case in CASES:
        make(sys.argv[1], case)
    make_mxfp4(sys.argv[1])
