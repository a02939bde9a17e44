"""Reads a head that was written before (`export.py`), so that training goes on from its weights with other texts.

The optimizer's state is not part of such a file: a run begins anew, from better weights, and with the draft vocabulary
of its own texts; rows of tokens that the head did not say begin as the target's. GGUF of architecture `eagle3` and
folders of `speculators`, each with the keys that `export.py` writes. Left out: heads of other programs whose layers
differ from those that are trained here, which are refused by key.
"""
import json
from pathlib import Path

import gguf
import numpy
import torch
from safetensors import SafetensorError, safe_open

from export import NAMES, OTHERS
from problem import Problem, expect


class Begun:
    """A head that was read: `shape` as the target's, `ids`, `layers` of the target that it reads, and its tensors."""

    def __init__(self, path, target):
        self.name = f"--from {path}"
        path = Path(path)
        tensors = self.read_folder(path) if path.is_dir() else self.read_gguf(path)
        missing = {"fc.weight", "norm.weight", "lm_head.weight"} - tensors.keys()
        expect(not missing and self.ids is not None, self.name, "a head with fc, norm, output and d2t", sorted(tensors))
        rises = len(self.ids) > 0 and bool((self.ids.diff() > 0).all())
        expect(rises and 0 <= int(self.ids[0]) and int(self.ids[-1]) < len(target.output),
               f"{self.name}: d2t", f"rising tokens below {len(target.output)}", self.ids.tolist()[:8])
        self.tensors = tensors

    def read_folder(self, path):
        try:
            config = json.loads((path / "config.json").read_text())
            with safe_open(path / "model.safetensors", "pt") as file:
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            layer = config["transformer_layer_config"]
            self.said = dict(width=layer["hidden_size"], heads=layer["num_attention_heads"],
                             kv_heads=layer["num_key_value_heads"], head_dim=layer["head_dim"],
                             ffn=layer["intermediate_size"], layers=layer["num_hidden_layers"])
            self.layers = tuple(config["eagle_aux_hidden_state_layer_ids"])
            expect(config["norm_before_residual"] is True, f"{self.name}: norm_before_residual", True, False)
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise Problem(f"{self.name}: expected a head of speculators, found: {error!r}") from error
        offsets = tensors.pop("d2t", None)
        self.ids = None if offsets is None else offsets.long() + torch.arange(len(offsets))
        return {name: tensor.float() for name, tensor in tensors.items() if name != "t2d"}

    def read_gguf(self, path):
        try:
            reader = gguf.GGUFReader(path)
            key = lambda name: reader.fields[name].contents()
            expect(key("general.architecture") == "eagle3", f"{self.name}: general.architecture", "eagle3",
                   key("general.architecture"))
            self.said = dict(width=key("eagle3.embedding_length"), heads=key("eagle3.attention.head_count"),
                             kv_heads=key("eagle3.attention.head_count_kv"),
                             head_dim=key("eagle3.attention.key_length"), ffn=key("eagle3.feed_forward_length"),
                             layers=key("eagle3.block_count"))
            self.layers = tuple(key("eagle3.extract_layers"))
            expect(key("eagle3.norm_before_residual"), f"{self.name}: norm_before_residual", True, False)
        except (OSError, ValueError, KeyError) as error:
            raise Problem(f"{self.name}: expected a GGUF file of a head, found: {error!r}") from error
        of = {tensor.name: tensor for tensor in reader.tensors}
        ids = of.pop("d2t", None)
        self.ids = None if ids is None else torch.from_numpy(ids.data.astype(numpy.int64))
        long = {f"blk.{layer}.{short}": f"layers.{layer}.{name}"
                for layer in range(self.said["layers"]) for name, short in NAMES.items()}
        long |= {short: name for name, short in OTHERS.items()}
        tensors = {}
        for name, tensor in of.items():
            values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
            of_file = name.removesuffix(".weight")
            expect(of_file in long, f"{self.name}: {name}", f"one of {sorted(long)[:4]}...", "a tensor unknown here")
            if of_file.endswith(("attn_q", "attn_k")):
                heads = self.said["heads"] if of_file.endswith("attn_q") else self.said["kv_heads"]
                values = turned_back(values, heads)
            tensors[f"{long[of_file]}.weight"] = torch.from_numpy(values.copy())
        return tensors

    def fit(self, shape, layers):
        """The shape that is asked for, changed to the head's; what contradicts is refused. `layers` are those of the
        target that the texts have."""
        expect(self.layers == layers, f"{self.name}: layers of the target", f"{layers} (--hidden)", self.layers)
        expect(self.said["width"] == shape.width, f"{self.name}: width", f"{shape.width} (the target's)",
               self.said["width"])
        return shape._replace(**self.said)

    def give(self, network):
        """Puts its weights into a network of its shape. The output's rows of tokens that it does not say stay."""
        expect(self.tensors["lm_head.weight"].shape == (len(self.ids), network.shape.width), f"{self.name}: output",
               [len(self.ids), network.shape.width], list(self.tensors["lm_head.weight"].shape))
        rows = network.lm_head.weight.detach().clone()
        at = torch.searchsorted(network.ids, self.ids).clamp(max=len(network.ids) - 1)
        known = network.ids[at] == self.ids
        rows[at[known]] = self.tensors["lm_head.weight"][known]
        try:
            network.load_state_dict(self.tensors | {"lm_head.weight": rows})
        except RuntimeError as error:
            raise Problem(f"{self.name}: {' '.join(str(error).split())}") from error


def turned_back(rows, heads):
    """Rows of q or k in the order of Hugging Face: what `export.permuted` changed."""
    return rows.reshape(heads, len(rows) // heads // 2, 2, -1).swapaxes(1, 2).reshape(rows.shape)
