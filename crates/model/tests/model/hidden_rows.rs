//! Tests of hidden states of rows whose logits are not wanted.

use foretoken_model::{Checkpoint, Executor, Model, Options, PageId, Span};
use foretoken_testkit::rows::first_difference;

use crate::fixture;
use crate::rows::{RowOutput, demo, forward, hidden_states, load};

/// Hidden states of rows without logits equal those of rows with both, and no logits are computed for them.
#[test]
fn hidden_states_do_not_need_the_head() {
    let tables = [vec![PageId(0)]];
    for path in [fixture("llama"), fixture("gpt2"), demo()] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        let mut model = load(&checkpoint, Options { page_len: 32, ..Options::for_positions(32, 2) });
        let layers: Vec<usize> = (0..model.spec().layers).rev().collect();
        let states = |model: &mut Model, wanted: &[u32], hidden: &[u32]| -> RowOutput {
            let (tokens, parents) = (&[5, 3, 8, 1, 9], &[]);
            let span = Span { tables: &tables, start: 0, tokens, parents, wanted, hidden, ..Span::default() };
            forward(model, &[span], &layers);
            (0..hidden.len()).flat_map(|row| hidden_states(model, &layers, row)).collect()
        };
        let together = states(&mut model, &[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]);
        let last = model.outputs().row(4).to_vec();
        assert_eq!(first_difference(&states(&mut model, &[4], &[0, 1, 2, 3, 4]), &together), None);
        assert_eq!(first_difference(model.outputs().row(0), &last), None);
        assert_eq!(first_difference(&states(&mut model, &[], &[0, 1, 2, 3, 4]), &together), None);
        let row = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| model.outputs().row(0).len()));
        assert!(row.is_err(), "logits of a row that was not wanted");
    }
}
