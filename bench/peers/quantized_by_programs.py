#!/usr/bin/env python3
"""Makes quantized checkpoints by the packing programs' own code: a tiny random Llama, as GPTQModel, AutoAWQ and
compressed-tensors write it, with the dequantized floats of its matrices.

    python3 bench/peers/quantized_by_programs.py OUT --gptqmodel FOLDER --autoawq FOLDER
    FORETOKEN_QUANTIZED=OUT cargo test -p foretoken-model quantized       (every weight, to the bit)

Each OUT/NAME is a checkpoint whose tensors and `quantization_config` come from the program, next to
`floats.safetensors`: every matrix in f32, scale * (quant - zero) of the packed numbers (for compressed-tensors: of
those that it unpacks), with scales as they are stored. The script chooses quants and zero points itself, by rounding to
nearest, which makes no difference for a reader.

The folders are the unpacked source packages gptqmodel 7.7.0 and autoawq 0.2.9, which need not be built; a program
without a folder is skipped. Needs the packages of quantized.py, compressed-tensors 0.20, and those that GPTQModel
imports (accelerate, pillow, pypcre, logbar, device-smi, threadpoolctl, tokenicer, defuser).
"""

import argparse
import importlib
import json
import sys
import types
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

import quantized

GPTQ_V2 = "gptq_v2"


def llama():
    """The network of quantized.py with its floats before quantization."""
    config = transformers.LlamaConfig(
        vocab_size=quantized.VOCABULARY, hidden_size=quantized.WIDTH, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512, rms_norm_eps=0.01,
        tie_word_embeddings=False)
    torch.manual_seed(quantized.SEED)
    model = transformers.LlamaForCausalLM(config).float().eval()
    with torch.no_grad():
        for weight in model.parameters():
            # Columns are not centred at zero, so zero points differ.
            off = 0.3 * torch.randn(weight.shape[-1]) if weight.ndim == 2 else 1
            weight.copy_((0.2 * torch.randn_like(weight) + 0.2 * off).half())
    return model


def matrices(model):
    """The linear layers that are quantized, by name."""
    return {name: module for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and name != "lm_head"}


def write(folder, model, scheme, tensors, floats):
    """Writes a checkpoint. `tensors` replace the matrices."""
    folder.mkdir(parents=True, exist_ok=True)
    left = {name: tensor.half() for name, tensor in model.state_dict().items() if name.rpartition(".")[0] not in floats}
    save_file({name: tensor.contiguous() for name, tensor in (left | tensors).items()}, folder / "model.safetensors")
    save_file({name: matrix.float().contiguous() for name, matrix in floats.items()}, folder / "floats.safetensors")
    said = dict(model.config.to_diff_dict(), architectures=["LlamaForCausalLM"], quantization_config=scheme)
    (folder / "config.json").write_text(json.dumps(said, indent=2, sort_keys=True, default=str) + "\n")
    print(f"{folder.name}: {len(floats)} matrices", flush=True)


def quantize(linear, group, symmetric):
    """Scales and zero points [outputs, groups] and the floats, which become those of the layer."""
    group = linear.in_features if group == -1 else group
    _, scale, zero, floats = quantized.quantize(linear.weight.detach(), group, symmetric, torch.float16)
    linear.weight.data.copy_(floats)
    return scale, torch.from_numpy(zero).float(), floats


def gptqmodel(out, name, group, symmetric, checkpoint_format="gptq"):
    from gptqmodel import QuantizeConfig
    from gptqmodel.nn_modules.qlinear.torch import TorchLinear
    from gptqmodel.utils.model import convert_gptq_v2_to_v1_format_module

    said = QuantizeConfig(bits=4, group_size=group, sym=symmetric, desc_act=False, format=checkpoint_format)
    model, tensors, floats = llama(), {}, {}
    for key, linear in matrices(model).items():
        scale, zero, floats[key] = quantize(linear, group, symmetric)
        packed = TorchLinear(bits=4, group_size=group, sym=symmetric, desc_act=False, in_features=linear.in_features,
                             out_features=linear.out_features, bias=False, pack_dtype=torch.int32)
        groups = torch.arange(linear.in_features, dtype=torch.int32) // (linear.in_features if group == -1 else group)
        packed.pack(linear, scale, zero, groups)
        if checkpoint_format != GPTQ_V2:
            convert_gptq_v2_to_v1_format_module(packed, said)
        tensors |= {f"{key}.{part}": getattr(packed, part) for part in ("qweight", "qzeros", "scales", "g_idx")}
    scheme = {field: getattr(value, "value", value) for field, value in said.to_dict().items()}
    write(out / name, model, scheme, tensors, floats)


def autoawq(out, name, group):
    gemm = importlib.import_module("awq.modules.linear.gemm")
    model, tensors, floats = llama(), {}, {}
    for key, linear in matrices(model).items():
        scale, zero, floats[key] = quantize(linear, group, False)
        packed = gemm.WQLinear_GEMM.from_linear(linear, 4, group, scales=scale.T.contiguous(),
                                                zeros=zero.T.contiguous())
        tensors |= {f"{key}.{part}": getattr(packed, part) for part in ("qweight", "qzeros", "scales")}
    config = importlib.import_module("awq.models._config").AwqConfig(q_group_size=group)
    write(out / name, model, config.to_transformers_dict(), tensors, floats)


def compressed_tensors(out, name, form, weights, inputs=None):
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.compressors.pack_quantized.helpers import unpack_from_int32
    from compressed_tensors.quantization import (QuantizationArgs, QuantizationConfig, QuantizationScheme,
                                                 apply_quantization_config)
    from compressed_tensors.quantization.utils import calculate_qparams

    args = QuantizationArgs(**weights)
    scheme = QuantizationScheme(targets=["Linear"], weights=args,
                                input_activations=inputs and QuantizationArgs(**inputs))
    config = QuantizationConfig(config_groups={"group_0": scheme}, ignore=["lm_head"], format=form)
    model = llama().to(torch.bfloat16)
    apply_quantization_config(model, config)
    for linear in matrices(model).values():
        group = {"group": args.group_size, "channel": linear.in_features}.get(args.strategy)
        parts = linear.weight.detach().reshape(linear.out_features, -1, group or linear.in_features)
        low, high = parts.amin(-1), parts.amax(-1)
        if group is None:
            low, high = low.amin().reshape(1), high.amax().reshape(1)
        scale, zero = calculate_qparams(low, high, args)
        linear.weight_scale.data.copy_(scale.reshape(linear.weight_scale.shape))
        if hasattr(linear, "weight_zero_point"):
            linear.weight_zero_point.data.copy_(zero.reshape(linear.weight_zero_point.shape))
    compressor = ModelCompressor(quantization_config=config)
    compressor.compress_model(model)
    floats, tensors = {}, {}
    for key, linear in matrices(model).items():
        parts = {part: tensor.detach() for part, tensor in linear.state_dict().items()}
        tensors |= {f"{key}.{part}": tensor for part, tensor in parts.items()}
        shape = torch.Size((linear.out_features, linear.in_features))
        zero = torch.zeros(1)
        if "weight_packed" in parts:
            quants = unpack_from_int32(parts["weight_packed"], 4, shape)
            if "weight_zero_point" in parts:
                zero = unpack_from_int32(parts["weight_zero_point"], 4, parts["weight_scale"].shape, packed_dim=0)
        else:
            quants = parts["weight"]
        scale = parts["weight_scale"].float()
        spread = lambda of: of.repeat_interleave(shape[1] // of.shape[-1], -1) if of.ndim == 2 else of
        floats[key] = (quants.float() - spread(zero.float())) * spread(scale)
    folder = out / name
    write(folder, model, None, tensors, floats)
    compressor.update_config(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gptqmodel", help="its source folder")
    parser.add_argument("--autoawq", help="its source folder")
    arguments = parser.parse_args()
    out = arguments.out
    if arguments.gptqmodel:
        sys.path.insert(0, arguments.gptqmodel)
        gptqmodel(out, "gptq", 32, True)
        gptqmodel(out, "gptq-zeros", 64, False)
        gptqmodel(out, "gptq-v2-zeros", 32, False, GPTQ_V2)
        gptqmodel(out, "gptq-channel", -1, True)
    if arguments.autoawq:
        # Without the package's __init__.py, which imports every model.
        package = sys.modules["awq"] = types.ModuleType("awq")
        package.__path__ = [str(Path(arguments.autoawq) / "awq")]
        for name in ("awq.modules.linear", "awq.models"):
            part = sys.modules[name] = types.ModuleType(name)
            part.__path__ = [str(Path(arguments.autoawq) / name.replace(".", "/"))]
        autoawq(out, "awq", 32)
        autoawq(out, "awq-64", 64)
    integers = lambda symmetric, strategy, group=None: dict(
        num_bits=4, type="int", symmetric=symmetric, strategy=strategy, group_size=group)
    compressed_tensors(out, "packed", "pack-quantized", integers(True, "group", 32))
    compressed_tensors(out, "packed-zeros", "pack-quantized", integers(False, "group", 64))
    compressed_tensors(out, "packed-channel", "pack-quantized", integers(True, "channel"))
    compressed_tensors(out, "packed-channel-zeros", "pack-quantized", integers(False, "channel"))
    for strategy in ("channel", "tensor"):
        weights = dict(num_bits=8, type="float", symmetric=True, strategy=strategy)
        inputs = dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True)
        compressed_tensors(out, f"float8-{strategy}", "float-quantized", weights, inputs)


if __name__ == "__main__":
    main()
