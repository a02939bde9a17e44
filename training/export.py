"""Writes what was trained in the forms that engines read: a head as GGUF (architecture `eagle3`, as llama.cpp's
converter writes it, but without a tokenizer: it is its target's) and as a folder of the package `speculators`, which
vLLM reads; a draft model as a folder of Hugging Face or as GGUF, whichever its target is, with the target's tokenizer.

Both are the head that was trained: embeddings are the target's and are not written. Left out: types whose blocks are
longer than 32, which `foretoken quantize` writes of models.
"""
import json
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy
import torch
from safetensors.torch import save_file

NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2",
         "post_attention_layernorm": "ffn_norm"}
OTHERS = {"fc": "fc", "norm": "output_norm", "lm_head": "output", "embed_tokens": "token_embd"}


class About(NamedTuple):
    """What a file says of its origin, and the layers of the target that the head reads."""
    name: str
    license: str | None
    author: str | None
    base: str
    layers: tuple


def permuted(rows, heads):
    """Rows of q or k in the order in which GGUF's Llama turns neighbours."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def start(path, architecture, shape, name):
    """A writer with the keys that all have."""
    writer = gguf.GGUFWriter(f"{path}.part", architecture)
    writer.add_name(name)
    writer.add_block_count(shape.layers)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_layer_norm_rms_eps(shape.epsilon)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_dim)
    return writer


def add_tensors(writer, tensors, shape, kind="q8_0"):
    """Matrices in blocks of this type where blocks of 32 fit their rows, everything else as f32."""
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{kind.upper()}"])
    kind = gguf.GGMLQuantizationType[kind.upper()]
    for name, tensor in tensors.items():
        of = name.removesuffix(".weight")
        if of.startswith("layers."):
            _, layer, of = of.split(".", 2)
            said = f"blk.{layer}.{NAMES[of]}.weight"
        else:
            said = f"{OTHERS[of]}.weight"
        if of.endswith(("q_proj", "k_proj")):
            tensor = permuted(tensor, shape.heads if of.endswith("q_proj") else shape.kv_heads)
        values = tensor.float().contiguous().numpy()
        if values.ndim == 2 and values.shape[1] % 32 == 0:
            writer.add_tensor(said, gguf.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(said, values)


def finish(writer, path):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    os.replace(f"{path}.part", path)


def write_gguf(path, head, target, about, kind):
    writer = start(path, "eagle3", head.shape, about.name)
    if about.license:
        writer.add_license(about.license)
    if about.author:
        writer.add_author(about.author)
    writer.add_base_model_count(1)
    writer.add_base_model_name(0, about.base)
    writer.add_vocab_size(len(target.output))
    writer.add_array("eagle3.extract_layers", list(about.layers))
    writer.add_uint32("eagle3.target_hidden_size", target.shape.width)
    writer.add_bool("eagle3.norm_before_residual", True)
    add_tensors(writer, head.state_dict(), head.shape, kind)
    writer.add_tensor("d2t", head.ids.numpy().astype(numpy.int64))
    finish(writer, path)


def layer_config(shape, vocabulary):
    """A configuration of transformers for layers of this shape."""
    return dict(model_type="llama", attention_bias=False, mlp_bias=False, hidden_act="silu", hidden_size=shape.width,
                intermediate_size=shape.ffn, num_hidden_layers=shape.layers, num_attention_heads=shape.heads,
                num_key_value_heads=shape.kv_heads, head_dim=shape.head_dim, max_position_embeddings=shape.context,
                rms_norm_eps=shape.epsilon, rope_theta=shape.rope_theta,
                rope_parameters=dict(rope_type="default", rope_theta=shape.rope_theta), tie_word_embeddings=False,
                vocab_size=vocabulary)


def write_folder(folder, config, tensors):
    os.makedirs(folder, exist_ok=True)
    (Path(folder) / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, Path(folder) / "model.safetensors",
              metadata={"format": "pt"})


def write_speculators(folder, head, target, about):
    vocabulary = len(target.output)
    config = dict(
        architectures=["Eagle3Speculator"], speculators_model_type="eagle3", draft_vocab_size=len(head.ids),
        norm_before_residual=True, target_hidden_size=None, eagle_aux_hidden_state_layer_ids=list(about.layers),
        tie_word_embeddings=False, torch_dtype="bfloat16",
        transformer_layer_config=layer_config(head.shape, vocabulary),
        speculators_config=dict(
            algorithm="eagle3", default_proposal_method="greedy",
            proposal_methods=[dict(proposal_type="greedy", speculative_tokens=4, accept_tolerance=0.0,
                                   verifier_accept_k=1)],
            verifier=dict(name_or_path=about.base, architectures=["LlamaForCausalLM"])))
    tensors = {name: tensor.to(torch.bfloat16) for name, tensor in head.state_dict().items()}
    tensors["d2t"] = head.ids - torch.arange(len(head.ids))
    tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, head.ids, True)
    write_folder(folder, config, tensors)


def draft_tensors(draft, vocabulary):
    """The draft's tensors by their names, with a row of the output for each token of the target."""
    tensors = {name: tensor for name, tensor in draft.state_dict().items() if "." in name}
    tensors["embed_tokens.weight"] = draft.embed_tokens.detach()
    output = draft.lm_head.detach()[-1].repeat(vocabulary, 1)
    output[draft.ids] = draft.lm_head.detach()[:-1]
    tensors["lm_head.weight"] = output
    return tensors


def write_draft(path, draft, target):
    vocabulary = len(target.output)
    tensors = draft_tensors(draft, vocabulary)
    if target.reader is None:
        config = dict(architectures=["LlamaForCausalLM"], torch_dtype="bfloat16")
        named = {name if name == "lm_head.weight" else f"model.{name}": tensor.to(torch.bfloat16)
                 for name, tensor in tensors.items()}
        write_folder(path, config | layer_config(draft.shape, vocabulary), named)
        for file in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                     "generation_config.json"):
            if (target.path / file).exists():
                shutil.copy(target.path / file, path)
        return
    writer = start(path, "llama", draft.shape, f"{target.name} draft")
    writer.add_vocab_size(vocabulary)
    for key, field in target.reader.fields.items():
        if key.startswith("tokenizer."):
            kinds = [*field.types, None]
            writer.add_key_value(key, field.contents(), kinds[0], sub_type=kinds[1])
    add_tensors(writer, tensors, draft.shape)
    finish(writer, path)
