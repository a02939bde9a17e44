//! The `quantization_config` of a Hugging Face checkpoint: how its quantized matrices are packed.
//!
//! Such checkpoints are written by GPTQ (AutoGPTQ, GPTQModel), AWQ (AutoAWQ) and compressed-tensors (llm-compressor),
//! and many are published in FP8 with a scale for each block of a matrix (`fp8`); gpt-oss is published in MXFP4. Every
//! field that affects the value of a weight is read or refused by name. Which layers are quantized is decided by their
//! tensors, not by lists of names: a layer that is not quantized has a `weight` of floats. Not supported are integers
//! that do not have 4 bits, act-order, experts that are stacked in one tensor, and quantized activations, which a
//! checkpoint may ask for but which affect no weight.

use crate::checkpoint::JsonConfig;
use crate::error::ModelError;
use crate::quantized::{Packing, Quantization};

/// Reads the field; `None` if the checkpoint is not quantized.
///
/// # Errors
/// If it asks for something that is not supported.
pub(crate) fn read(config: &JsonConfig) -> Result<Option<Quantization>, ModelError> {
    const METHOD: &str = "quant_method";
    let Some(fields) = config.optional_object("quantization_config")? else { return Ok(None) };
    let quantization = match fields.optional_str(METHOD)? {
        Some("gptq") => gptq(&fields)?,
        Some("awq") => awq(&fields)?,
        Some("compressed-tensors") => compressed(&fields)?,
        Some("mxfp4") => Quantization::Mxfp4,
        Some("fp8") => fp8(&fields)?,
        other => {
            let found = other.map_or("nothing".to_string(), |other| format!("{other:?}"));
            return Err(fields.refuse(METHOD, "gptq, awq, fp8, mxfp4 or compressed-tensors", found));
        }
    };
    Ok(Some(quantization))
}

/// Refuses a field that is present and differs from this value.
fn only<T: PartialEq + std::fmt::Debug>(
    fields: &JsonConfig,
    field: &str,
    only: T,
    found: Option<T>,
) -> Result<(), ModelError> {
    match found {
        Some(found) if found != only => Err(fields.refuse(field, format!("{only:?}"), format!("{found:?}"))),
        _ => Ok(()),
    }
}

/// Refuses fields that are present and neither null nor false.
fn refuse_any(fields: &JsonConfig, names: &[&str]) -> Result<(), ModelError> {
    for name in names {
        if fields.has(name) && !matches!(fields.optional_bool(name), Ok(Some(false))) {
            return Err(fields.refuse(name, "nothing", "a value"));
        }
    }
    Ok(())
}

/// Checks that the first of these fields that is present is 4.
fn refuse_bits(fields: &JsonConfig, names: &[&str]) -> Result<(), ModelError> {
    let name = names.iter().find(|name| fields.has(name)).unwrap_or(&names[0]);
    match fields.usize(name)? {
        4 => Ok(()),
        bits => Err(fields.refuse(name, "4", bits)),
    }
}

/// Number of inputs that share a scale; -1 means all of them.
fn group(fields: &JsonConfig, names: &[&str]) -> Result<Option<usize>, ModelError> {
    let name = names.iter().find(|name| fields.has(name)).unwrap_or(&names[0]);
    let found = fields.f32(name)?;
    if found == -1.0 {
        return Ok(None);
    }
    if found % 32.0 != 0.0 || !(32.0..=65536.0).contains(&found) {
        return Err(fields.refuse(name, "a multiple of 32, or -1", found));
    }
    Ok(Some(found as usize))
}

fn gptq(fields: &JsonConfig) -> Result<Quantization, ModelError> {
    refuse_bits(fields, &["bits"])?;
    // With act-order, `g_idx` has the group of each input.
    refuse_any(fields, &["desc_act", "act_group_aware", "is_marlin_format"])?;
    // Rules for single layers: layers that are not quantized (`-:`) have floats; other rules are not supported.
    let are_exclusions = |all: JsonConfig| all.fields().all(|name| name.starts_with("-:"));
    if !fields.optional_object("dynamic").is_ok_and(|all| all.is_some_and(are_exclusions)) {
        refuse_any(fields, &["dynamic"])?;
    }
    only(fields, "pack_dtype", "int32", fields.optional_str("pack_dtype")?)?;
    let mut minus_one = true;
    for name in ["checkpoint_format", "format"] {
        match fields.optional_str(name)? {
            None | Some("gptq") => {}
            Some("gptq_v2") => minus_one = false,
            Some(other) => return Err(fields.refuse(name, "gptq or gptq_v2", format!("{other:?}"))),
        }
    }
    Ok(Quantization::Int4 { packing: Packing::Gptq { minus_one }, group: group(fields, &["group_size"])? })
}

/// Floats of 8 bits with a scale for each block, or one for the whole matrix.
fn fp8(fields: &JsonConfig) -> Result<Quantization, ModelError> {
    only(fields, "activation_scheme", "dynamic", fields.optional_str("activation_scheme")?)?;
    only(fields, "fmt", "e4m3", fields.optional_str("fmt")?)?;
    only(fields, "expert_dtype", "fp8", fields.optional_str("expert_dtype")?)?;
    refuse_any(fields, &["modules_to_convert"])?;
    const SIZE: &str = "weight_block_size";
    let block = if fields.has_key(SIZE) { block(fields, SIZE)? } else { Some([128, 128]) };
    Ok(Quantization::Float8 { scales: "weight_scale_inv", block })
}

/// The numbers of outputs and inputs of a block.
fn block(fields: &JsonConfig, name: &str) -> Result<Option<[usize; 2]>, ModelError> {
    let Some(sizes) = fields.optional_usizes(name)? else { return Ok(None) };
    match sizes[..] {
        [outputs, inputs] if [outputs, inputs].iter().all(|size| (1..=65536).contains(size)) => {
            Ok(Some([outputs, inputs]))
        }
        _ => Err(fields.refuse(name, "two numbers from 1 to 65536", format!("{sizes:?}"))),
    }
}

fn awq(fields: &JsonConfig) -> Result<Quantization, ModelError> {
    refuse_bits(fields, &["bits", "w_bit"])?;
    let version = fields.optional_str("version")?.unwrap_or("gemm");
    if !version.eq_ignore_ascii_case("gemm") {
        return Err(fields.refuse("version", "gemm", format!("{version:?}")));
    }
    only(fields, "zero_point", true, fields.optional_bool("zero_point")?)?;
    Ok(Quantization::Int4 { packing: Packing::Awq, group: group(fields, &["group_size", "q_group_size"])? })
}

fn compressed(fields: &JsonConfig) -> Result<Quantization, ModelError> {
    const FORMAT: &str = "format";
    only(fields, "quantization_status", "compressed", fields.optional_str("quantization_status")?)?;
    refuse_any(fields, &["kv_cache_scheme"])?;
    if let Some(sparsity) = fields.optional_object("sparsity_config")? {
        only(&sparsity, FORMAT, "dense", sparsity.optional_str(FORMAT)?)?;
    }
    if let Some(transform) = fields.optional_object("transform_config")? {
        refuse_any(&transform, &["config_groups"])?;
    }
    let groups = fields.optional_objects("config_groups")?;
    let [scheme] = groups.as_slice() else {
        return Err(fields.refuse("config_groups", "one group", groups.len()));
    };
    let found = scheme.optional_str(FORMAT)?.or(fields.optional_str(FORMAT)?);
    refuse_any(scheme, &["output_activations"])?;
    let weights = scheme
        .optional_object("weights")?
        .ok_or_else(|| scheme.refuse("weights", "how they are quantized", "nothing"))?;
    match found {
        Some("pack-quantized") => packed(scheme, &weights),
        Some("float-quantized") => float8(scheme, &weights),
        other => {
            let found = other.map_or("nothing".to_string(), |other| format!("{other:?}"));
            Err(fields.refuse(FORMAT, "pack-quantized or float-quantized", found))
        }
    }
}

/// Packed integers.
fn packed(scheme: &JsonConfig, weights: &JsonConfig) -> Result<Quantization, ModelError> {
    refuse_any(scheme, &["input_activations"])?;
    refuse_bits(weights, &["num_bits"])?;
    only(weights, "type", "int", weights.optional_str("type")?)?;
    refuse_any(weights, &["dynamic", "block_structure"])?;
    // These two values only describe how the weights were found; with others, `weight_g_idx` has the group of each
    // input.
    if let Some(order) = weights.optional_str("actorder")?.filter(|order| !matches!(*order, "static" | "weight")) {
        return Err(weights.refuse("actorder", "nothing or static", format!("{order:?}")));
    }
    let group = match weights.optional_str("strategy")? {
        Some("group") => group(weights, &["group_size"])?,
        Some("channel") => None,
        other => {
            return Err(weights.refuse("strategy", "group or channel", format!("{:?}", other.unwrap_or("nothing"))));
        }
    };
    let symmetric = weights.optional_bool("symmetric")?.unwrap_or(true);
    Ok(Quantization::Int4 { packing: Packing::Compressed { symmetric }, group })
}

/// Floats of 8 bits.
fn float8(scheme: &JsonConfig, weights: &JsonConfig) -> Result<Quantization, ModelError> {
    match weights.usize("num_bits")? {
        8 => {}
        bits => return Err(weights.refuse("num_bits", "8", bits)),
    }
    only(weights, "type", "float", weights.optional_str("type")?)?;
    only(weights, "symmetric", true, weights.optional_bool("symmetric")?)?;
    refuse_any(weights, &["dynamic", "actorder"])?;
    const BLOCK: &str = "block_structure";
    let block = match weights.optional_str("strategy")? {
        Some("tensor" | "channel") => refuse_any(weights, &[BLOCK]).map(|()| None)?,
        Some("block") => {
            let missing = || weights.refuse(BLOCK, "two numbers from 1 to 65536", "nothing");
            Some(block(weights, BLOCK)?.ok_or_else(missing)?)
        }
        other => {
            let found = format!("{:?}", other.unwrap_or("nothing"));
            return Err(weights.refuse("strategy", "tensor, channel or block", found));
        }
    };
    if let Some(inputs) = scheme.optional_object("input_activations")? {
        // A static scale clips activations, which changes the network.
        if inputs.optional_bool("dynamic")? != Some(true) {
            return Err(inputs.refuse("dynamic", "true", "false"));
        }
    }
    Ok(Quantization::Float8 { scales: "weight_scale", block })
}
