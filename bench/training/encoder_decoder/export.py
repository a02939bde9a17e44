#!/usr/bin/env python3
"""Converts a small encoder-decoder between a folder of Hugging Face and one GGUF file with 8-bit weights.

    python3 export.py gguf FOLDER OUT.gguf --name NAME --sources ATTRIBUTION
    python3 export.py folder MODEL.gguf OUT

The file has the names and keys of llama.cpp's `t5` architecture: matrices in Q8_0, norms and biases by position in f32,
and the tokenizer. `folder` turns the file into bf16 weights again, for programs that read folders: numbers are those of
the file, rounded to bf16.

Needs numpy, torch, transformers 5 and gguf.
"""
import argparse
import json
import os
import re

import gguf
import numpy as np
import torch
from transformers import T5Config, T5ForConditionalGeneration

from folder import save_folder, untie
from vocabulary import tokenizer_of

PARTS = {
    "SelfAttention.q": "attn_q", "SelfAttention.k": "attn_k", "SelfAttention.v": "attn_v", "SelfAttention.o": "attn_o",
    "SelfAttention.relative_attention_bias": "attn_rel_b", "EncDecAttention.q": "cross_attn_q",
    "EncDecAttention.k": "cross_attn_k", "EncDecAttention.v": "cross_attn_v", "EncDecAttention.o": "cross_attn_o",
    "DenseReluDense.wi_0": "ffn_gate", "DenseReluDense.wi_1": "ffn_up", "DenseReluDense.wo": "ffn_down",
}
NORMS = {"encoder": ["attn_norm", "ffn_norm"], "decoder": ["attn_norm", "cross_attn_norm", "ffn_norm"]}
WHOLE = {"shared.weight": "token_embd.weight", "lm_head.weight": "output.weight",
         "encoder.final_layer_norm.weight": "enc.output_norm.weight",
         "decoder.final_layer_norm.weight": "dec.output_norm.weight"}
EXACT_SCORES = "foretoken.tokenizer.scores"


def gguf_name(name):
    """The name in a GGUF file of a tensor of the folder."""
    if name in WHOLE:
        return WHOLE[name]
    within = re.fullmatch(r"(encoder|decoder)\.block\.(\d+)\.layer\.(\d)\.(.+)\.weight", name)
    half, block, layer, part = within.groups()
    inner = NORMS[half][int(layer)] if part == "layer_norm" else PARTS[part]
    return f"{half[:3]}.blk.{block}.{inner}.weight"


def write_tokenizer(writer, folder):
    """The vocabulary, its scores (rounded, as GGUF has them, and exact) and the kinds of tokens."""
    with open(f"{folder}/tokenizer.json") as text:
        pieces = json.load(text)["model"]["vocab"]
    kinds = {"<pad>": gguf.TokenType.CONTROL, "</s>": gguf.TokenType.CONTROL, "<unk>": gguf.TokenType.UNKNOWN}
    is_byte = re.compile(r"<0x[0-9A-F]{2}>").fullmatch
    writer.add_tokenizer_model("t5")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([piece for piece, _ in pieces])
    writer.add_token_scores([score for _, score in pieces])
    writer.add_key_value(EXACT_SCORES, [float(score) for _, score in pieces], gguf.GGUFValueType.ARRAY,
                         sub_type=gguf.GGUFValueType.FLOAT64)
    writer.add_token_types([gguf.TokenType.BYTE if is_byte(piece) else kinds.get(piece, gguf.TokenType.NORMAL)
                            for piece, _ in pieces])
    writer.add_pad_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_unk_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(True)
    writer.add_remove_extra_whitespaces(False)


def to_gguf(options):
    model = T5ForConditionalGeneration.from_pretrained(options.model, dtype=torch.float32)
    config = model.config
    writer = gguf.GGUFWriter(options.out + ".part", "t5")
    writer.add_name(options.name)
    writer.add_description(options.sources)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    writer.add_context_length(512)
    writer.add_embedding_length(config.d_model)
    writer.add_feed_forward_length(config.d_ff)
    writer.add_block_count(config.num_layers)
    writer.add_decoder_block_count(config.num_decoder_layers)
    writer.add_head_count(config.num_heads)
    writer.add_key_length(config.d_kv)
    writer.add_value_length(config.d_kv)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)
    writer.add_layer_norm_rms_eps(config.layer_norm_epsilon)
    writer.add_relative_attn_buckets_count(config.relative_attention_num_buckets)
    writer.add_decoder_start_token_id(config.decoder_start_token_id)
    write_tokenizer(writer, options.model)
    for name, weight in model.named_parameters():
        values = weight.detach().numpy()
        if values.ndim == 2 and "relative" not in name:
            kind = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(gguf_name(name), values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(options.out + ".part", options.out)


def to_folder(options):
    reader = gguf.GGUFReader(options.model)
    def value(key):
        return reader.get_field(key).contents()
    config = T5Config(
        vocab_size=len(value("tokenizer.ggml.tokens")), d_model=value("t5.embedding_length"),
        d_kv=value("t5.attention.key_length"), d_ff=value("t5.feed_forward_length"), num_layers=value("t5.block_count"),
        num_decoder_layers=value("t5.decoder_block_count"), num_heads=value("t5.attention.head_count"),
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0, pad_token_id=0, eos_token_id=1,
        decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    untie(model)
    tensors = {tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type) for tensor in reader.tensors}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(torch.from_numpy(np.array(tensors[gguf_name(name)])))
    tokenizer = tokenizer_of(list(zip(value("tokenizer.ggml.tokens"), value(EXACT_SCORES))))
    save_folder(model, tokenizer, options.out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, made, help_ in [("gguf", to_gguf, "a folder to a file"), ("folder", to_folder, "a file to a folder")]:
        command = commands.add_parser(name, help=help_)
        command.add_argument("model")
        command.add_argument("out")
        command.set_defaults(made=made)
        if name == "gguf":
            command.add_argument("--name", required=True)
            command.add_argument("--sources", required=True, help="what it was trained on, and under which licences")
    options = parser.parse_args()
    options.made(options)


if __name__ == "__main__":
    main()
