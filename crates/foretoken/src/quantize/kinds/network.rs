//! What the rules of mixtures have to know of a network besides the tensor at hand.
//!
//! Names and keys are those of GGUF files, of any architecture; a key that is missing or of another type counts as not
//! there, since a file of a network that nobody here knows is quantized all the same.

use std::collections::BTreeMap;

use foretoken_weights::gguf::{Array, Metadata, Value};

/// A network, as the rules see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    /// Whether there is a head besides the embedding.
    pub has_head: bool,
    /// Whether importances of columns are known.
    pub is_measured: bool,
    /// Heads that share the keys and values of one.
    pub sharing: usize,
    /// Experts of a layer, 0 where there are none.
    pub experts: usize,
    pub is_falcon: bool,
    /// Of 80 layers, in whose type of network the values are an eighth of the queries.
    pub is_of_70_billion: bool,
    /// Layers, as the file counts them.
    layers: usize,
    /// Numbers of those tensors, among their kind, that mixtures look at; and how many there are.
    values: BTreeMap<String, usize>,
    downs: BTreeMap<String, usize>,
}

/// The number of a tensor among so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub index: usize,
    pub count: usize,
}

impl Network {
    /// Looks through the names of all tensors and the keys.
    pub fn new<'a>(names: impl Iterator<Item = &'a str> + Clone, keys: &Metadata, is_measured: bool) -> Self {
        let architecture = keys.get("general.architecture");
        let architecture = if let Some(Value::String(name)) = architecture { name.as_str() } else { "" };
        let number = |key: &str| first_number(keys.get(&format!("{architecture}.{key}")));
        let heads = number("attention.head_count").unwrap_or(0);
        let sharing = heads.checked_div(number("attention.head_count_kv").unwrap_or(heads)).unwrap_or(0);
        let found = names.clone().filter_map(layer).max().map_or(0, |last| last + 1);
        let layers = number("block_count").unwrap_or(found);
        let is_large = match architecture {
            "llama" => sharing != 1,
            "qwen2" | "deci" | "olmo" => true,
            _ => false,
        };
        Self {
            has_head: names.clone().any(|name| name == "output.weight"),
            is_measured,
            sharing,
            experts: number("expert_count").unwrap_or(0),
            is_falcon: architecture == "falcon",
            is_of_70_billion: is_large && layers == 80,
            layers,
            values: numbered(names.clone().filter(|name| has_values(name))),
            downs: numbered(names.filter(|name| name.contains("ffn_down") && name.ends_with("weight"))),
        }
    }

    /// The place of a matrix of values among all of them.
    pub fn place_of_values(&self, name: &str) -> Place {
        Place { index: self.values.get(name).copied().unwrap_or(0), count: self.values.len() }
    }

    /// The place of a matrix that leads out of a feed-forward part: its layer where there are experts, of which not
    /// every layer has as many tensors.
    pub fn place_of_down(&self, name: &str) -> Place {
        let index = if self.experts > 1 { layer(name) } else { self.downs.get(name).copied() };
        Place { index: index.unwrap_or(0), count: self.layers }
    }
}

impl Place {
    /// Whether this is one that mixtures give more bits: in the first or the last eighth, or every third of those
    /// between.
    pub fn is_worth_more(self) -> bool {
        let Self { index, count } = self;
        let eighth = count / 8;
        index < eighth || index >= count.saturating_mul(7) / 8 || (index - eighth) % 3 == 2
    }

    /// Whether this is in the first of so many parts.
    pub fn is_in_first(self, parts: usize) -> bool {
        self.index < self.count / parts
    }
}

/// Whether a matrix makes the values of attention, alone or with other things.
pub fn has_values(name: &str) -> bool {
    ["attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight"].iter().any(|part| name.contains(part))
}

/// The numbers of tensors by their layers.
fn numbered<'a>(names: impl Iterator<Item = &'a str>) -> BTreeMap<String, usize> {
    let mut names: Vec<(Option<usize>, &str)> = names.map(|name| (layer(name), name)).collect();
    names.sort_unstable();
    names.into_iter().enumerate().map(|(index, (_, name))| (name.to_string(), index)).collect()
}

/// The layer of a tensor, as in `blk.7.ffn_up.weight`.
fn layer(name: &str) -> Option<usize> {
    // Nobody has so many layers, and the numbers stay far from overflowing.
    name.strip_prefix("blk.")?.split('.').next()?.parse().ok().filter(|layer| *layer < 1 << 20)
}

/// A whole number, or the first of several, a layer each.
fn first_number(value: Option<&Value>) -> Option<usize> {
    match value? {
        Value::Array(array) if !matches!(array, Array::Array(_)) => array.to_integers()?.first().copied(),
        value => value.as_integer()?.try_into().ok(),
    }
}
