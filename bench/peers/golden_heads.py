#!/usr/bin/env python3
"""Makes the golden heads of crates/model/tests/golden: tiny random EAGLE-3 heads in the published formats, with the
outputs of the programs that these formats come from.

    python3 bench/peers/golden_heads.py EAGLE crates/model/tests/golden          (all of them)

EAGLE is a checkout of the authors' repository (SafeAILab/EAGLE), whose `eagle/model/cnets.py` computes the heads of the
authors' format; the package `speculators` computes those of its own. FOLDER/NAME gets config.json and
model.safetensors, or head.gguf, and golden.safetensors, f32 throughout:

- `tokens` [10]: the tokens that the rows read, ids of the target. The last three are the head's own likeliest tokens.
- `hidden` [7, 3 * target width]: the target's hidden states for the first seven rows, three layers concatenated.
- `embeddings` [96, width], for heads without an embedding: the target's rows.
- `logits` [10, 40], over the draft vocabulary, and `own` [10, width], the head's own hidden states before its last
  norm: of a pass over seven rows, then of three passes of one row, each with the own hidden state of the row before.

Weights are drawn as golden.py draws them. The GGUF file is the head of the authors' format with the keys and names that
llama.cpp's converter gives it: rows of q and k permuted, and `d2t` as ids of the target instead of offsets.

Needs torch, transformers 5, safetensors, speculators, gguf. It makes neither heads of several layers nor the further
norms of later versions of the package (`fc_norm`, `norm_before_fc`, `norm_output`).
"""
import argparse
import json
import os
import sys
import types

import gguf
import torch
from safetensors.torch import save_file
from speculators.config import SpeculatorsConfig, VerifierConfig
from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
from speculators.proposals.greedy import GreedyTokenProposalConfig
from transformers import LlamaConfig

VOCABULARY, DRAFTED, ROWS, STEPS, FIRST_SEED = 96, 40, 7, 3, 11
LAYERS = [1, 3, 4]
BASE = dict(vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, rms_norm_eps=0.01)
# Heads apart from the width: 3 of 16, with one of keys and values, on a width of 36.
LLAMA3 = dict(BASE, hidden_size=36, num_attention_heads=3, num_key_value_heads=1, head_dim=16, rope_parameters=dict(
    rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16))
SPECULATORS = {"eagle3-speculators": (BASE, True), "eagle3-llama3": (LLAMA3, False)}
AUTHORS = {"eagle3-authors": BASE,
           "eagle3-wide": dict(BASE, rope_theta=5000.0, hidden_size=48, num_attention_heads=6, target_hidden_size=32)}


@torch.no_grad()
def draw(head, seed):
    """Draws the weights, so that every part affects the logits, and the tokens of the draft vocabulary."""
    torch.manual_seed(seed)
    for name, p in head.named_parameters():
        noise = torch.randn_like(p)
        if name == "embed_tokens.weight":
            p.copy_(noise)
        elif p.dim() == 2:
            p.copy_(noise * (1.6 / p.shape[1] ** 0.5))
        else:
            p.copy_(1.0 + noise * 0.2)
    chosen = torch.randperm(VOCABULARY)[:DRAFTED].sort().values
    head.d2t.copy_(chosen - torch.arange(DRAFTED))
    head.t2d.zero_()[chosen] = True
    return chosen


@torch.no_grad()
def run_authors(head, tokens, hidden):
    """Logits and own hidden states of a pass over `hidden`'s rows and of one row more for each further token."""
    own, cache = head(hidden[None], input_ids=tokens[None, :ROWS], use_cache=True)
    all_own = [own]
    for step in range(ROWS, len(tokens)):
        own, cache = head(own[:, -1:], input_ids=tokens[None, step:step + 1], past_key_values=cache, use_cache=True)
        all_own.append(own)
    own = torch.cat(all_own, 1)[0]
    return head.lm_head(head.norm(own)), own


@torch.no_grad()
def run_speculators(head, tokens, hidden):
    """The same by the package's unrolled steps: in step k its row i reads token i + k and its own hidden state of the
    step before, so the last row of the pass continues the text in all steps."""
    steps = len(tokens) - ROWS
    rows = torch.cat([hidden, torch.zeros(steps, hidden.shape[1])])  # rows after the pass: no earlier row sees them
    said, own = [], []
    hooks = [head.lm_head.register_forward_hook(lambda _module, _input, output: said.append(output[0])),
             head.layers[-1].register_forward_hook(lambda _module, _input, output: own.append(output[0]))]
    # The mask of its eager attention is in bf16, and its only values are 0 and -inf.
    head(rows[None], input_ids=tokens[None], document_ids=torch.zeros(1, len(tokens), dtype=torch.long),
         ttt_steps=1 + steps)
    for hook in hooks:
        hook.remove()
    return [torch.cat([of[0][:ROWS]] + [step[ROWS - 1:ROWS] for step in of[1:]]) for of in (said, own)]


def measure(head, run, chosen, width, lends):
    """The tensors of golden.safetensors, and how clear the head's choices are."""
    tokens = torch.randint(1, VOCABULARY, (ROWS,))
    hidden = torch.randn(ROWS, 3 * width)
    for _ in range(STEPS):
        logits, _ = run(head, tokens, hidden)
        tokens = torch.cat([tokens, chosen[logits[-1].argmax()].view(1)])
    logits, own = run(head, tokens, hidden)
    first, second = logits.topk(2).values.T
    golden = dict(tokens=tokens.int(), hidden=hidden, logits=logits, own=own)
    if lends:
        golden["embeddings"] = head.embed_tokens.weight
    return golden, float(((first - second) / logits.abs().max()).min()), len(set(logits.argmax(1).tolist()))


def find(name, make, run, width, lends):
    """The head of the first seed under which its choices are clear and varied."""
    for seed in range(FIRST_SEED, FIRST_SEED + 200):
        head = make().eval().float()
        golden, clear, varied = measure(head, run, draw(head, seed), width, lends)
        if clear >= 1e-3 and varied >= 5:
            print(f"{name}: seed {seed}, logits {float(golden['logits'].min()):.2f} to "
                  f"{float(golden['logits'].max()):.2f}, clear by {clear:.4f}, {varied} different choices")
            return head, {key: value.detach().contiguous() for key, value in golden.items()}
    raise SystemExit(f"{name}: no seed gives clear and varied choices")


def speculators_head(layer, norm_before_residual):
    layer = LlamaConfig(**layer)
    layer._attn_implementation = "eager"
    return Eagle3DraftModel(Eagle3SpeculatorConfig(
        transformer_layer_config=layer, draft_vocab_size=DRAFTED, norm_before_residual=norm_before_residual,
        eagle_aux_hidden_state_layer_ids=LAYERS, speculators_config=SpeculatorsConfig(
            algorithm="eagle3", default_proposal_method="greedy",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]))))


def authors_config(fields):
    return dict(architectures=["LlamaForCausalLMEagle3"], model_type="llama", draft_vocab_size=DRAFTED,
                hidden_act="silu", bos_token_id=1, eos_token_id=2, pad_token_id=0, initializer_range=0.02,
                tie_word_embeddings=False, torch_dtype="float32", use_cache=True, **fields)


def authors_settings(fields):
    """The settings that their class reads; their configuration class has other defaults in transformers 5."""
    return types.SimpleNamespace(pretraining_tp=1, rope_scaling=None, **authors_config(fields))


def write_authors(folder, fields, head, golden):
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(authors_config(fields), file, indent=2)
        file.write("\n")
    tensors = {name: tensor.contiguous() for name, tensor in head.state_dict().items()
               if name != "embed_tokens.weight" or "embeddings" not in golden}
    save_file(tensors, os.path.join(folder, "model.safetensors"))


def permuted(rows, heads):
    """Rows of q or k in the order of GGUF's Llama, which rotates neighbours, as llama.cpp's converter permutes them."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path, fields, head, chosen):
    writer = gguf.GGUFWriter(path, "eagle3")
    width, heads, kv_heads = (fields[key] for key in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    writer.add_block_count(1)
    writer.add_context_length(fields["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(fields["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(width // heads)
    writer.add_value_length(width // heads)
    writer.add_layer_norm_rms_eps(fields["rms_norm_eps"])
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_array("eagle3.extract_layers", LAYERS)
    writer.add_uint32("eagle3.target_hidden_size", width)
    writer.add_bool("eagle3.norm_before_residual", False)
    names = {"fc": "fc", "norm": "output_norm", "lm_head": "output"}
    of_layer = {"input_layernorm": "attn_norm", "hidden_norm": "attn_norm_2", "self_attn.q_proj": "attn_q",
                "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
                "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
                "mlp.down_proj": "ffn_down"}
    names |= {f"midlayer.{of}": f"blk.0.{name}" for of, name in of_layer.items()}
    for of, name in names.items():
        tensor = head.state_dict()[f"{of}.weight"]
        if name.endswith(("attn_q", "attn_k")):
            tensor = permuted(tensor, heads if name.endswith("q") else kv_heads)
        writer.add_tensor(f"{name}.weight", tensor.contiguous().numpy())
    writer.add_tensor("d2t", chosen.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("eagle", help="a checkout of SafeAILab/EAGLE")
    parser.add_argument("folder", help="the folder for the folders of the heads")
    arguments = parser.parse_args()
    sys.path.insert(0, arguments.eagle)
    from eagle.model.cnets import Model
    torch.set_num_threads(1)

    def folder(name):
        path = os.path.join(arguments.folder, name)
        os.makedirs(path, exist_ok=True)
        return path

    def write_golden(name, golden):
        save_file(golden, os.path.join(folder(name), "golden.safetensors"))

    for name, (layer, norm_before_residual) in SPECULATORS.items():
        head, golden = find(name, lambda: speculators_head(layer, norm_before_residual), run_speculators,
                            layer["hidden_size"], False)
        head.save_pretrained(folder(name))
        os.remove(os.path.join(folder(name), "config.py"))
        write_golden(name, golden)
    for name, fields in AUTHORS.items():
        own_embeddings = "target_hidden_size" in fields
        head, golden = find(name, lambda: Model(authors_settings(fields)), run_authors,
                            fields.get("target_hidden_size", fields["hidden_size"]), not own_embeddings)
        write_authors(folder(name), fields, head, golden)
        write_golden(name, golden)
        if name == "eagle3-authors":
            ids = head.d2t + torch.arange(DRAFTED)
            write_gguf(os.path.join(folder("eagle3-gguf"), "head.gguf"), fields, head, ids)
            write_golden("eagle3-gguf", golden)


if __name__ == "__main__":
    main()
