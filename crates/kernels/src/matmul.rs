//! Products of activations with weights: `out[row, output] = dot(x[row], w[output]) (+ bias) (+ what was there)`.
//!
//! Tasks are blocks of outputs. Each task reads its weights once for all rows, so the weights come from memory once per
//! pass. Several products of one input (q, k and v; gate and up) are one fork-join. A tile prefetches the weights of
//! later tiles while it computes, so that memory and arithmetic work at the same time. Measured on 2 cores of a
//! Sapphire Rapids Xeon, 1.1 billion weights in bf16: a pass of 8 rows takes 1.21 times a pass of one.
//!
//! Weights are packed in panels (`panel.rs`), floats too. Quantized weights are multiplied in integers: activations are
//! quantized to 8 bits once for all products of an input.
//!
//! Rows that are multiplied with different matrices, such as those of different experts, are groups of one fork-join (a
//! grouped matrix product).
//!
//! The sums over k are not split over threads, since results would then depend on the number of threads.

use crate::panel::columns::Columns;
use crate::panel::{self, PANELS_PER_TASK, Panels, PreparedRows};
use crate::{Compute, LANES};

/// One product: weights `[outputs, inputs]`, an optional bias `[outputs]`, and the output.
pub struct Product<'a> {
    /// The weights.
    pub weights: &'a Panels,
    /// The bias, which is added to every row.
    pub bias: Option<&'a [f32]>,
    /// The output `[rows, outputs]`.
    pub out: &'a mut [f32],
    /// Whether results are added to what `out` holds (a residual stream) or replace it.
    pub accumulate: bool,
}

/// Outputs per task, a multiple of those of a panel: few enough to balance the threads, many enough that a task
/// outweighs the cost of scheduling it. It is constant, so that the split does not depend on the number of threads,
/// though results would not change.
const BLOCK: usize = PANELS_PER_TASK * LANES;

/// With fewer multiply-adds than this, about 5 microseconds of one core, threads are not woken.
const SERIAL_BELOW: usize = 100_000;

/// Rows, and the products with the matrices that they are multiplied with.
pub struct Group<'a, 'b> {
    /// The rows `[rows, inputs]`.
    pub x: &'b [f32],
    /// The number of rows.
    pub rows: usize,
    /// The products of these rows.
    pub products: &'b mut [Product<'a>],
}

/// Computes `products` of the same `x` `[rows, inputs]`, all in one fork-join.
///
/// # Panics
/// If a shape does not fit: weights are not `[outputs, inputs]`, or an output is not `[rows, outputs]`.
pub fn products(compute: &Compute, x: &[f32], rows: usize, inputs: usize, products: &mut [Product<'_>]) {
    grouped_products(compute, inputs, &mut [Group { x, rows, products }]);
}

/// Computes products of several groups of rows `[rows, inputs]`, each with its own matrices, all in one fork-join: for
/// instance those of the experts that rows have chosen. A row's results do not depend on other groups.
///
/// # Panics
/// As [`products`].
pub fn grouped_products(compute: &Compute, inputs: usize, groups: &mut [Group<'_, '_>]) {
    let mut all_prepared = compute.prepared.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if all_prepared.len() < groups.len() {
        all_prepared.resize_with(groups.len(), PreparedRows::default);
    }
    let mut blocks = Vec::with_capacity(groups.iter().map(|group| group.products.len()).sum());
    let (mut tasks, mut work) = (0, 0);
    for (number, (Group { x, rows, products }, prepared)) in groups.iter_mut().zip(&mut *all_prepared).enumerate() {
        let rows = *rows;
        // The multiplication is checked, since a product that wraps around could equal the length of a slice of another
        // shape.
        let elements = rows.checked_mul(inputs).filter(|elements| *elements == x.len() && inputs > 0);
        assert!(elements.is_some(), "product: x has {} elements, expected {rows} x {inputs}", x.len());
        if rows == 0 {
            continue;
        }
        prepared.clear();
        for product in products.iter_mut() {
            let outputs = product.out.len() / rows;
            assert_eq!(product.out.len(), rows * outputs, "product: the output is not [{rows}, outputs]");
            let shape = [product.weights.outputs(), product.weights.inputs()];
            assert_eq!(shape, [outputs, inputs], "product: shape of the weights");
            assert!(product.bias.is_none_or(|bias| bias.len() == outputs), "product: the bias is not [{outputs}]");
            let columns = Columns::new(product.out, rows, product.bias, product.accumulate);
            prepared.prepare(compute, x, inputs, product.weights.form());
            blocks.push((tasks, columns, product.weights.hold(), number));
            tasks += outputs.div_ceil(BLOCK);
            work += rows * inputs * outputs;
        }
    }
    let prepared = &*all_prepared;
    let task = |task: usize| {
        let at = blocks.partition_point(|(first, ..)| *first <= task) - 1;
        let (first, columns, weights, number) = &blocks[at];
        let from = (task - first) * BLOCK;
        let to = (from + BLOCK).min(columns.outputs());
        let rows = prepared[*number].rows(columns.rows, inputs, weights.panels.form(), compute.isa);
        panel::run(compute.isa, &rows, columns, weights, from, to);
    };
    if work < SERIAL_BELOW { (0..tasks).for_each(task) } else { compute.pool.run(tasks, &task) }
}

/// Computes one product; see [`products`].
///
/// # Panics
/// As [`products`].
pub fn product(compute: &Compute, x: &[f32], rows: usize, inputs: usize, product: Product<'_>) {
    products(compute, x, rows, inputs, &mut [product]);
}
