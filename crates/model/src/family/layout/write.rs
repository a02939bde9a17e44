//! Export of tensors from one layout to another: from a checkpoint's to that of a GGUF file.
//!
//! A writer has to make what a reader expects ([`Layout`]), so both use the same description, and a part that the file
//! cannot hold is refused by its name. Rows are reordered if the two layouts differ: fused projections are cut, and the
//! rows of queries and keys are permuted if one layout rotates halves of a head and the other interleaved pairs. The
//! keys of the file are made in `family/write.rs`.

mod encoder;
mod experts;

use super::super::tensors::Bias;
use super::{Layout, QkNormNames, Qkv, Up};
use crate::checkpoint::JsonConfig;
use crate::collected::{Collected, Order};
use crate::error::ModelError;
use crate::spec::{Heads, Spec};

impl Layout {
    /// Adds the tensors of a checkpoint, which has this layout, to those collected, in the layout `to`.
    ///
    /// `interleaved` is whether rotated pairs of queries and keys are halves of a head here and interleaved in `to`.
    ///
    /// # Errors
    /// A tensor is missing or contradicts the configuration, or `to` cannot hold one.
    pub(in super::super) fn write(
        &self,
        to: &Layout,
        config: &JsonConfig,
        spec: &Spec,
        interleaved: bool,
        all: &mut Collected<'_>,
    ) -> Result<(), ModelError> {
        let prefix = self.prefix(|name| all.has(name));
        let head = self.heads.iter().copied().find(|head| all.has(&format!("{head}.weight"))).unwrap_or(self.heads[0]);
        let Spec { vocabulary, width, embedding_width, context_max, .. } = *spec;
        let mut writer = Writer { from: self, to, config, spec, interleaved, all };
        let at = |name: &str| format!("{prefix}{name}");
        writer.table((at(self.embedding), to.embedding), [vocabulary, embedding_width])?;
        if let (Some((from, _)), Some((to, _))) = (self.positions, to.positions) {
            writer.table((at(from), to), [context_max, width])?;
        }
        writer.norm("norms behind the embedding", [prefix, ""], [self.embedding_norm, to.embedding_norm])?;
        writer.norm("norms before the head", [prefix, ""], [self.output_norm, to.output_norm])?;
        if !spec.tied_head {
            let rows = Rows { order: Order::Same, unit: self.unit_head };
            let shape = [embedding_width, vocabulary];
            writer.linear([head, to.heads[0]], shape, rows, self.head_bias)?;
        }
        writer.layers(prefix)?;
        writer.inputs(prefix)?;
        writer.encoder(prefix)
    }
}

/// How the rows of a matrix `[outputs, inputs]` are written.
struct Rows {
    order: Order,
    /// Whether the rows are normalized to length 1.
    unit: bool,
}

/// The data that is needed to write a layer.
struct Writer<'a, 'w> {
    from: &'a Layout,
    to: &'a Layout,
    config: &'a JsonConfig,
    spec: &'a Spec,
    interleaved: bool,
    all: &'a mut Collected<'w>,
}

impl Writer<'_, '_> {
    /// An error about a part that only one of the two layouts has, with the field that asks for it.
    fn mismatch(&self, field: &str, part: &str) -> ModelError {
        let expected = format!("{part} as GGUF's {} has them", self.spec.family);
        self.config.refuse(field, expected, "others")
    }

    fn table(&mut self, (from, to): (String, &str), shape: [usize; 2]) -> Result<(), ModelError> {
        self.all.matrix(&format!("{from}.weight"), format!("{to}.weight"), shape, Order::Same, false)
    }

    /// The per-layer embeddings, if there are any.
    fn inputs(&mut self, prefix: &str) -> Result<(), ModelError> {
        let Some(inputs) = self.spec.layer_inputs else { return Ok(()) };
        let all = self.spec.layers * inputs.width;
        let [table, projection, norm] = self.from.inputs.map(|name| format!("{prefix}{name}"));
        let [to_table, to_projection, to_norm] = self.to.inputs;
        self.table((table, to_table), [inputs.vocabulary, all])?;
        self.table((projection, to_projection), [all, self.spec.width])?;
        self.norm_of(&norm, to_norm, &[inputs.width])
    }

    /// A layer's reader of its per-layer embedding, if it has one, and the multiplier of the stream after the layer.
    fn input_and_multiplier(&mut self, at: [&str; 2]) -> Result<(), ModelError> {
        let (from, to, width) = (self.from, self.to, self.spec.width);
        if let Some(inputs) = self.spec.layer_inputs {
            for (i, shape) in [[width, inputs.width], [inputs.width, width]].into_iter().enumerate() {
                self.matrix(at, [from.input[i], to.input[i]], shape, Order::Same, Bias::None)?;
            }
            let [name, to] = [format!("{}{}", at[0], from.input[2]), format!("{}{}", at[1], to.input[2])];
            self.norm_of(&name, &to, &[width])?;
        }
        match (from.multiplier, to.multiplier) {
            (None, None) => Ok(()),
            (Some(from), Some(to)) => {
                let multiplier = self.all.floats(&format!("{}{from}", at[0]), &[1])?;
                self.all.add(format!("{}{to}", at[1]), vec![1], &multiplier);
                Ok(())
            }
            _ => Err(self.mismatch("model_type", "multipliers behind layers")),
        }
    }

    /// All layers.
    fn layers(&mut self, prefix: &str) -> Result<(), ModelError> {
        for i in 0..self.spec.layers {
            self.layer(i, [&format!("{prefix}{}.{i}.", self.from.layers), &format!("{}.{i}.", self.to.layers)])?;
        }
        Ok(())
    }

    /// Layer `number`, whose names begin with these in the checkpoint and in the file.
    fn layer(&mut self, number: usize, at: [&str; 2]) -> Result<(), ModelError> {
        let (from, to) = (self.from, self.to);
        let Spec { width, heads, .. } = *self.spec;
        let head_dim = self.spec.kv_heads_of(number).head_dim;
        self.norm("norms before attention", at, [from.attention_norm, to.attention_norm])?;
        self.norm("norms behind attention", at, [from.attention_post_norm, to.attention_post_norm])?;
        self.norm("norms before the feed-forward half", at, [from.ffn_norm, to.ffn_norm])?;
        self.norm("norms behind the feed-forward half", at, [from.ffn_post_norm, to.ffn_post_norm])?;
        self.qkv(number, at)?;
        self.qk_norms(number, at)?;
        self.relative_bias(number, at)?;
        let names = [from.attention_output, to.attention_output];
        self.matrix(at, names, [heads * head_dim, width], Order::Same, from.output_bias)?;
        self.cross(at)?;
        match self.spec.experts_of(number) {
            None => self.dense(number, at)?,
            Some(experts) => self.experts(number, experts, at)?,
        }
        self.input_and_multiplier(at)
    }

    /// A dense feed-forward network.
    fn dense(&mut self, number: usize, at: [&str; 2]) -> Result<(), ModelError> {
        let (from, to, width, ffn_width) = (self.from, self.to, self.spec.width, self.spec.ffn_width_of(number));
        let inner = match (from.up, to.up) {
            (Up::Plain(from), Up::Plain(to)) => vec![([from, to], ffn_width)],
            (Up::Fused(from), Up::Fused(to)) => vec![([from, to], 2 * ffn_width)],
            (Up::Gated([gate, up]), Up::Gated([to_gate, to_up])) => {
                vec![([gate, to_gate], ffn_width), ([up, to_up], ffn_width)]
            }
            _ => return Err(self.mismatch("model_type", "matrices of the feed-forward half")),
        };
        for (names, outputs) in inner {
            self.matrix(at, names, [width, outputs], Order::Same, from.ffn_bias)?;
        }
        self.matrix(at, [from.down, to.down], [ffn_width, width], Order::Same, from.ffn_bias)
    }

    /// Adds a matrix of a layer; `shape` has the numbers of its inputs and outputs.
    fn matrix(
        &mut self,
        at: [&str; 2],
        names: [&str; 2],
        shape: [usize; 2],
        order: Order,
        bias: Bias,
    ) -> Result<(), ModelError> {
        let [from, to] = [0, 1].map(|side| format!("{}{}", at[side], names[side]));
        let order = match (self.from.transposed, order) {
            (false, order) => order,
            (true, Order::Same) => Order::Transposed,
            (true, _) => unreachable!("{from}: columns in another order"),
        };
        self.linear([&from, &to], shape, Rows { order, unit: false }, bias)
    }

    /// `weight` and, if it is required, `bias` of a linear layer.
    fn linear(
        &mut self,
        [from, to]: [&str; 2],
        [inputs, outputs]: [usize; 2],
        rows: Rows,
        bias: Bias,
    ) -> Result<(), ModelError> {
        if let Bias::Required = bias {
            let biases = self.all.floats(&format!("{from}.bias"), &[outputs])?;
            let biases: Vec<f32> = match &rows.order {
                Order::Rows(order) => order.iter().map(|row| biases[*row]).collect(),
                Order::Same | Order::Transposed => biases,
            };
            self.all.add(format!("{to}.bias"), vec![biases.len()], &biases);
        }
        let shape = if rows.order == Order::Transposed { [inputs, outputs] } else { [outputs, inputs] };
        self.all.matrix(&format!("{from}.weight"), format!("{to}.weight"), shape, rows.order, rows.unit)
    }

    fn qkv(&mut self, number: usize, at: [&str; 2]) -> Result<(), ModelError> {
        let Spec { width, heads, .. } = *self.spec;
        let Heads { count, head_dim } = self.spec.kv_heads_of(number);
        let (queries, keys, bias) = (heads * head_dim, count * head_dim, self.from.qkv_bias);
        let lens = [queries, keys, keys];
        match (self.from.qkv, self.to.qkv) {
            (Qkv::Three(from), Qkv::Three(to)) => {
                let parts = match self.spec.attention_of(number).values_are_keys {
                    _ if number >= self.spec.kv_layers() => 1,
                    true => 2,
                    false => 3,
                };
                for part in 0..parts {
                    let order = self.permuted(part, (0..lens[part]).collect());
                    self.matrix(at, [from[part], to[part]], [width, lens[part]], order, bias)?;
                }
                Ok(())
            }
            (Qkv::Fused(from, fusion), to) => {
                let ranges = fusion
                    .row_ranges(self.spec)
                    .map_err(|expected| ModelError::config(self.config.file(), "number of heads", expected, heads))?;
                let rows = ranges.map(|ranges| ranges.into_iter().flatten().collect::<Vec<usize>>());
                let shape = [width, queries + 2 * keys];
                match to {
                    Qkv::Three(to) => {
                        for (part, rows) in rows.into_iter().enumerate() {
                            let order = self.permuted(part, rows);
                            self.matrix(at, [from, to[part]], shape, order, bias)?;
                        }
                        Ok(())
                    }
                    Qkv::Fused(to, _) if !self.interleaved => {
                        let order = in_order(rows.concat(), shape[1]);
                        self.matrix(at, [from, to], shape, order, bias)
                    }
                    Qkv::Fused(..) => Err(self.mismatch("model_type", "rotated pairs")),
                }
            }
            (Qkv::Three(_), Qkv::Fused(..)) => Err(self.mismatch("model_type", "queries, keys and values")),
        }
    }

    /// The order of the rows of queries, keys or values (`part` 0, 1, 2) in the file: if pairs are interleaved there,
    /// then within each head of queries and keys the rows of the second half go between those of the first.
    fn permuted(&self, part: usize, rows: Vec<usize>) -> Order {
        let head = self.spec.head_dim;
        if !self.interleaved || part == 2 {
            let whole = if let Qkv::Three(_) = self.from.qkv { rows.len() } else { usize::MAX };
            return in_order(rows, whole);
        }
        let interleave = |heads: &[usize]| (0..head).map(|i| heads[i % 2 * (head / 2) + i / 2]).collect::<Vec<_>>();
        Order::Rows(rows.chunks_exact(head).flat_map(interleave).collect())
    }

    /// Weight and bias of a normalization of the stream.
    fn norm(&mut self, part: &str, at: [&str; 2], names: [Option<&str>; 2]) -> Result<(), ModelError> {
        let width = self.spec.width;
        match names {
            [None, None] => Ok(()),
            [Some(from), Some(to)] => self.norm_of(&format!("{}{from}", at[0]), &format!("{}{to}", at[1]), &[width]),
            _ => Err(self.mismatch("model_type", part)),
        }
    }

    /// Norms of queries and keys.
    fn qk_norms(&mut self, number: usize, at: [&str; 2]) -> Result<(), ModelError> {
        let Heads { count, head_dim } = self.spec.kv_heads_of(number);
        let sides = if number < self.spec.kv_layers() { &[self.spec.heads, count][..] } else { &[self.spec.heads] };
        let (from, to) = match (self.from.qk_norms, self.to.qk_norms) {
            (QkNormNames::None, QkNormNames::None) => return Ok(()),
            (QkNormNames::SharedByHeads(from), QkNormNames::SharedByHeads(to))
            | (QkNormNames::PerHead(from) | QkNormNames::PerHeadTensors(from), QkNormNames::PerHead(to))
            | (QkNormNames::WholeRow(from), QkNormNames::WholeRow(to)) => (from, to),
            _ => {
                let field = if self.config.has("use_qk_norm") { "use_qk_norm" } else { "qk_layernorm" };
                return Err(self.mismatch(field, "norms of queries and keys"));
            }
        };
        for (i, heads) in sides.iter().copied().enumerate() {
            let (name, to) = (format!("{}{}", at[0], from[i]), format!("{}{}", at[1], to[i]));
            match self.from.qk_norms {
                QkNormNames::PerHeadTensors(_) => {
                    let names: Vec<String> = (0..heads).map(|head| format!("{name}.{head}")).collect();
                    self.plain_norm(&names, &[head_dim], &to, &[heads, head_dim])?;
                }
                QkNormNames::PerHead(_) => self.plain_norm(&[name], &[heads, head_dim], &to, &[heads, head_dim])?,
                QkNormNames::WholeRow(_) => self.norm_of(&name, &to, &[heads * head_dim])?,
                QkNormNames::SharedByHeads(_) | QkNormNames::None => self.norm_of(&name, &to, &[head_dim])?,
            }
        }
        Ok(())
    }

    /// A normalization, with a bias if the family's norms have one.
    fn norm_of(&mut self, from: &str, to: &str, shape: &[usize]) -> Result<(), ModelError> {
        self.plain_norm(&[from.to_string()], shape, to, shape)?;
        if self.from.norm_bias {
            let bias = self.all.floats(&format!("{from}.bias"), shape)?;
            self.all.add(format!("{to}.bias"), shape.to_vec(), &bias);
        }
        Ok(())
    }

    /// The weight of a normalization: these tensors of shape `each`, concatenated to one of `shape`.
    fn plain_norm(&mut self, from: &[String], each: &[usize], to: &str, shape: &[usize]) -> Result<(), ModelError> {
        let mut weight = Vec::new();
        for name in from {
            weight.extend(self.all.floats(&format!("{name}.weight"), each)?);
        }
        if self.from.one_plus {
            weight.iter_mut().for_each(|weight| *weight += 1.0);
        }
        self.all.add(format!("{to}.weight"), shape.to_vec(), &weight);
        Ok(())
    }
}

/// The order of these rows of a matrix with `count` rows: [`Order::Same`] if they are all rows in order.
fn in_order(rows: Vec<usize>, count: usize) -> Order {
    let same = rows.len() == count && rows.iter().enumerate().all(|(i, row)| i == *row);
    if same { Order::Same } else { Order::Rows(rows) }
}
