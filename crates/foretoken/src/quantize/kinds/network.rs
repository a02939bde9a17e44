//! Properties of a network that the rules of mixtures depend on, besides the tensor itself.
//!
//! Files of unknown architectures can be quantized too, so a key of an unexpected type counts as missing.

use std::collections::BTreeMap;

use foretoken_weights::gguf::{Array, Metadata, Value};

/// Properties of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Whether there is an output head besides the embedding.
    pub has_head: bool,
    /// Whether there is an importance matrix.
    pub has_importances: bool,
    /// Query heads for each head of keys and values.
    pub queries_per_kv_head: usize,
    /// Experts of a layer, 0 if there are none.
    pub experts: usize,
    pub is_falcon: bool,
    /// Whether it has the shape of a 70B model: 80 layers, with an eighth as many values as queries.
    pub is_70b: bool,
    /// Layers, by the file's key.
    layers: usize,
    /// Index of each matrix of values among all of them.
    values: BTreeMap<String, usize>,
    /// Index of each `ffn_down` matrix among all of them.
    ffn_downs: BTreeMap<String, usize>,
}

/// The index of a tensor among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorIndex {
    pub index: usize,
    pub count: usize,
}

impl Network {
    /// Reads the properties from the names of all tensors and the keys.
    pub fn new<'a>(names: impl Iterator<Item = &'a str> + Clone, keys: &Metadata, has_importances: bool) -> Self {
        let architecture = keys.get("general.architecture");
        let architecture = if let Some(Value::String(name)) = architecture { name.as_str() } else { "" };
        let number = |key: &str| first_number(keys.get(&format!("{architecture}.{key}")));
        let heads = number("attention.head_count").unwrap_or(0);
        let queries_per_kv_head = heads.checked_div(number("attention.head_count_kv").unwrap_or(heads)).unwrap_or(0);
        let found = names.clone().filter_map(layer).max().map_or(0, |last| last + 1);
        let layers = number("block_count").unwrap_or(found);
        let is_large = match architecture {
            "llama" => queries_per_kv_head != 1,
            "qwen2" | "deci" | "olmo" => true,
            _ => false,
        };
        Self {
            has_head: names.clone().any(|name| name == "output.weight"),
            has_importances,
            queries_per_kv_head,
            experts: number("expert_count").unwrap_or(0),
            is_falcon: architecture == "falcon",
            is_70b: is_large && layers == 80,
            layers,
            values: numbered(names.clone().filter(|name| has_values(name))),
            ffn_downs: numbered(names.filter(|name| name.contains("ffn_down") && name.ends_with("weight"))),
        }
    }

    /// The index of a matrix of values among all of them.
    pub fn index_of_values(&self, name: &str) -> TensorIndex {
        TensorIndex { index: self.values.get(name).copied().unwrap_or(0), count: self.values.len() }
    }

    /// The index of an `ffn_down` matrix among all of them; in a network with experts, whose layers have different
    /// numbers of these tensors, its layer.
    pub fn index_of_ffn_down(&self, name: &str) -> TensorIndex {
        let index = if self.experts > 1 { layer(name) } else { self.ffn_downs.get(name).copied() };
        TensorIndex { index: index.unwrap_or(0), count: self.layers }
    }
}

impl TensorIndex {
    /// llama.cpp's `use_more_bits`: true in the first and the last eighth, and for every third tensor between.
    pub fn uses_more_bits(self) -> bool {
        let Self { index, count } = self;
        let eighth = count / 8;
        index < eighth || index >= count.saturating_mul(7) / 8 || (index - eighth) % 3 == 2
    }

    /// Whether this is in the first of `parts` equal parts.
    pub fn is_in_first(self, parts: usize) -> bool {
        self.index < self.count / parts
    }
}

/// Whether a matrix computes the values of attention, alone or with others.
pub fn has_values(name: &str) -> bool {
    ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"].iter().any(|part| name.contains(part))
}

/// The indices of tensors in the order of their layers.
fn numbered<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut names: Vec<(Option<usize>, &str)> = names.map(|name| (layer(name), name)).collect();
    names.sort_unstable();
    names.into_iter().enumerate().map(|(index, (_, name))| (name.to_string(), index)).collect()
}

/// The layer of a tensor, as in `blk.7.ffn_up.weight`.
fn layer(name: &str) -> Option<usize> {
    // Larger numbers, which no network has, are ignored, so that sums do not overflow.
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok().filter(|layer| *layer < 1 << 20)
}

/// A whole number, or the first of a list with one for each layer.
fn first_number(value: Option<&Value>) -> Option<usize> {
    match value? {
        Value::Array(array) if !matches!(array, Array::Array(_)) => array.to_integers()?.first().copied(),
        value => value.as_integer()?.try_into().ok(),
    }
}
