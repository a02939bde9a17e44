//! Tests of what a head is asked to run: which hidden state goes with which token, and when drafting stops. (Its laws
//! and rows over many passes are tested with a toy head in `foretoken_testkit`.)

use std::sync::Arc;

use super::*;
use crate::trial::Likeliest;
use foretoken_speculation::budget::Limits;
use foretoken_speculation::{DraftTree, Probes, Promise, Sampling};

const SEQUENCE: SequenceId = SequenceId(3);

/// A span that was run: its start, its tokens and how many of them were computed, and the hidden states with their
/// kind.
type ScoredSpan = (usize, Vec<Token>, usize, char, Vec<f32>);

/// A network in which token t is followed by t + 1 or, less probably, by t + 2; its own hidden state is the token.
#[derive(Debug, Default)]
struct Successor {
    asked: Vec<ScoredSpan>,
    /// Rows that are cached.
    rows: usize,
    /// The tokens of its rows, if these are not all.
    row_tokens: Option<Arc<[Token]>>,
    /// Whether it runs nothing.
    refuses: bool,
    /// Whether it cannot roll back without dropping everything.
    forgets: bool,
    closed: usize,
}

impl Scorer for Successor {
    fn open(&mut self, _opening: &Opening<'_>) {}
    fn score(&mut self, asks: &[ScoreAsk<'_>], rows: &mut LogitRows) {
        for ask in asks {
            let (kind, hidden) = match ask.hidden_in {
                HiddenInput::None => panic!("no hidden rows: {ask:?}"),
                HiddenInput::Target(rows) => ('t', rows),
                HiddenInput::Own(rows) => ('o', rows),
            };
            assert!(ask.certain >= ask.start && self.rows >= ask.start + ask.computed, "{} rows: {ask:?}", self.rows);
            self.asked.push((ask.start, ask.tokens.to_vec(), ask.computed, kind, hidden.to_vec()));
            if self.refuses {
                ask.wanted.iter().for_each(|_| rows.push(None));
                continue;
            }
            self.rows = ask.start + ask.tokens.len();
            for row in ask.wanted {
                let token = ask.tokens[*row as usize];
                let mut logits = [0.0; 10];
                (logits[(token as usize + 1) % 10], logits[(token as usize + 2) % 10]) = (5.0, 4.5);
                rows.set_row_tokens(self.row_tokens.clone());
                match &self.row_tokens {
                    None => rows.push_with_hidden(&logits, &[token as f32]),
                    Some(row_tokens) => {
                        let own: Vec<f32> = row_tokens.iter().map(|token| logits[*token as usize]).collect();
                        rows.push_with_hidden(&own, &[token as f32]);
                    }
                }
            }
        }
    }
    fn target_layers(&self) -> &[usize] {
        &[4, 1]
    }
    fn truncate(&mut self, _sequence: SequenceId, len: usize) -> usize {
        self.rows = if self.forgets { 0 } else { len };
        self.rows
    }
    fn keep_path(&mut self, _sequence: SequenceId, start: usize, rows: &[u32]) {
        panic!("drafted rows {rows:?} after {start} are kept");
    }
    fn close(&mut self, _sequence: SequenceId) {
        self.closed += 1;
    }
    fn context_max(&self) -> usize {
        9
    }
}

fn drafter() -> HeadDrafter<Successor> {
    let mut drafter = HeadDrafter::new(Successor::default());
    drafter.open(&Opening::new(SEQUENCE, &[]));
    drafter
}

fn draft(drafter: &mut HeadDrafter<Successor>, tokens: &[Token], nodes: usize) -> DraftTree {
    draft_by(drafter, tokens, nodes, &Sampling { temperature: 0.0, ..Sampling::default() })
}

fn draft_by(drafter: &mut HeadDrafter<Successor>, tokens: &[Token], nodes: usize, sampling: &Sampling) -> DraftTree {
    drafter.scorer.asked.clear();
    let mut tree = DraftTree::new();
    let ask = Ask {
        sequence: SEQUENCE,
        tokens,
        prompt_len: 1,
        written_len: tokens.len(),
        constraint: None,
        sampling,
        promise: Promise::Exact,
        seed: 0,
        request: 0,
        outlook: None,
        limits: Limits::nodes(nodes),
        settings: DraftSettings::default(),
        tree: &mut tree,
        probes: &mut Probes::default(),
        source: 0,
    };
    drafter.draft(&mut [ask], &mut Likeliest::default());
    tree
}

/// Gives the hidden states of the tokens from `from` on, except the last: of layers 4 and 1 the position and 100 more.
fn give_states(drafter: &mut HeadDrafter<Successor>, tokens: &[Token], from: usize) {
    let states: Vec<[f32; 1]> =
        (from..tokens.len() - 1).flat_map(|at| [at as f32, at as f32 + 100.0]).map(|state| [state]).collect();
    let hidden: Vec<&[f32]> = states.iter().map(|state| &state[..]).collect();
    drafter.observe(&[StepOutput {
        sequence: SEQUENCE,
        tokens,
        emitted: &[],
        tree: &DraftTree::new(),
        path: &[],
        probes: &[],
        hidden_from: from,
        hidden: &hidden,
    }]);
}

fn read(drafter: &mut HeadDrafter<Successor>, tokens: &[Token], until: usize) {
    drafter.scorer.asked.clear();
    let (sampling, promise) = (&Sampling::default(), Promise::Exact);
    drafter.read(&[ReadAsk { sequence: SEQUENCE, tokens, prompt_len: 1, until, sampling, promise }]);
}

#[test]
fn written_tokens_are_read_with_the_targets_states_and_drafted_ones_with_the_heads() {
    let mut drafter = drafter();
    assert_eq!(drafter.needs(), Needs { hidden_layers: vec![4, 1], prompt_rows: true, ..Needs::default() });
    let text = [7, 8, 3];
    assert!(draft(&mut drafter, &text, 3).is_empty() && draft(&mut drafter, &text[..1], 3).is_empty());
    assert_eq!(drafter.scorer.asked, [], "nothing is known yet");
    give_states(&mut drafter, &text, 0);
    assert_eq!(draft(&mut drafter, &text, 3).tokens(), [4, 5, 6]);
    let first = (0, vec![8, 3], 0, 't', vec![0.0, 100.0, 1.0, 101.0]);
    let guesses = [(2, vec![4], 0, 'o', vec![3.0]), (2, vec![4, 5], 1, 'o', vec![4.0])];
    assert_eq!(drafter.scorer.asked, [[first].as_slice(), &guesses].concat());
    // Two drafted tokens were accepted: they are read again, with the target's hidden states.
    let text = [7, 8, 3, 4, 5, 9];
    assert_eq!(drafter.unread(SEQUENCE, 6), 3);
    give_states(&mut drafter, &text, 2);
    assert_eq!(draft(&mut drafter, &text, 1).tokens(), [0]);
    let again = (2, vec![4, 5, 9], 0, 't', vec![2.0, 102.0, 3.0, 103.0, 4.0, 104.0]);
    assert_eq!(drafter.scorer.asked, [again]);
    // Asked for the same tokens again it runs the last row again, for its logits.
    assert_eq!(draft(&mut drafter, &text, 1).tokens(), [0]);
    assert_eq!(drafter.scorer.asked, [(4, vec![9], 0, 't', vec![4.0, 104.0])]);
    assert_eq!(drafter.work().map(|work| (work.read, work.passes)), Some((2 + 3 + 1, 3 + 1 + 1)));
}

#[test]
fn a_head_with_a_reduced_vocabulary_drafts_its_tokens_and_has_no_confidence_in_others() {
    let mut drafter = drafter();
    drafter.scorer.row_tokens = Some([2, 5, 6, 9].into());
    give_states(&mut drafter, &[7, 8, 3], 0);
    let tree = draft(&mut drafter, &[7, 8, 3], 3);
    assert_eq!(tree.tokens(), [5, 6, 2], "3 is followed by 4, which has no logit, or 5, and 6 by none that has one");
    let first = tree.nodes().next().unwrap();
    // One of four logits is 4.5, the others are 0.
    assert!((tree.acceptance(first) - 1.0 / (1.0 + 3.0 * (-4.5f32).exp())).abs() < 1e-6);
    let banned = Sampling { temperature: 0.0, banned_tokens: vec![2, 5, 6, 9], ..Sampling::default() };
    let tree = draft_by(&mut drafter, &[7, 8, 3], 1, &banned);
    let acceptance = tree.nodes().map(|node| tree.acceptance(node)).next();
    assert_eq!((tree.tokens(), acceptance), (&[0][..], Some(0.0)));
}

#[test]
fn siblings_are_read_with_the_states_of_their_own_parents() {
    let mut drafter = drafter();
    drafter.settings.p_split = Some(0.2);
    give_states(&mut drafter, &[1, 2], 0);
    let tree = draft(&mut drafter, &[1, 2], 9);
    assert!(!tree.is_chain());
    let mut seen = 0;
    for (_, tokens, computed, kind, hidden) in &drafter.scorer.asked[1..] {
        assert_eq!((*kind, hidden.len()), ('o', tokens.len() - computed));
        for (token, own) in tokens[*computed..].iter().zip(hidden) {
            // The state is the parent's token, which the token exceeds by one or two.
            assert!([1, 2].contains(&(*token as i32 - *own as i32)), "{token} after {own}");
            seen += 1;
        }
    }
    assert!(seen >= 3, "{seen}");
}

#[test]
fn a_prompt_is_read_as_far_as_its_states_are_here() {
    let (mut drafter, text) = (drafter(), [5, 6, 7, 8, 9]);
    read(&mut drafter, &text, 4);
    assert_eq!(drafter.scorer.asked, []);
    give_states(&mut drafter, &text[..3], 0);
    read(&mut drafter, &text, 2);
    assert_eq!(drafter.scorer.asked, [(0, vec![6], 0, 't', vec![0.0, 100.0])]);
    read(&mut drafter, &text, 5);
    assert_eq!(drafter.scorer.asked, [(1, vec![7], 0, 't', vec![1.0, 101.0])]);
    assert_eq!(drafter.unread(SEQUENCE, 5), 2);
    // Rows that are computed again change nothing, and what is refused is asked for again.
    give_states(&mut drafter, &text, 0);
    drafter.scorer.refuses = true;
    read(&mut drafter, &text, 5);
    assert!(draft(&mut drafter, &text, 2).is_empty());
    drafter.scorer.refuses = false;
    assert_eq!(draft(&mut drafter, &text, 1).tokens(), [0]);
    assert_eq!(drafter.scorer.asked, [(2, vec![8, 9], 0, 't', vec![2.0, 102.0, 3.0, 103.0])]);
}

#[test]
fn drafting_stops_where_states_are_missing() {
    let text = [5, 6, 7, 8, 9];
    let drafted = |missed, unread_max, forgets| {
        let mut drafter = drafter();
        (drafter.unread_max, drafter.scorer.forgets) = (unread_max, forgets);
        give_states(&mut drafter, &text[..3], 0);
        let first = draft(&mut drafter, &text[..3], 2).len();
        give_states(&mut drafter, &text, missed);
        let second = draft(&mut drafter, &text, 2).len();
        let (unread, closed) = (drafter.unread(SEQUENCE, 5), drafter.scorer.closed);
        drafter.close(SEQUENCE);
        assert_eq!(drafter.scorer.closed, 1, "once");
        (first, second, unread, closed)
    };
    assert_eq!(drafted(2, 9, false), (2, 2, 0, 0));
    assert_eq!(drafted(3, 9, false), (2, 0, 0, 1), "the states of a token are missing");
    assert_eq!(drafted(2, 1, false), (0, 0, 0, 1), "more states wait than may");
    assert_eq!(drafted(2, 9, true), (2, 0, 0, 1), "forgotten states would have to be read again");
}

#[test]
fn a_head_skips_a_beginning_without_states() {
    let (mut drafter, text) = (drafter(), [5, 6, 7, 8, 3]);
    assert_eq!(draft(&mut drafter, &text[..4], 2).len(), 0, "there are no states");
    // The first two tokens have no states.
    give_states(&mut drafter, &text[..4], 2);
    assert_eq!((drafter.unread(SEQUENCE, 4), draft(&mut drafter, &text[..4], 1).tokens()), (1, &[9][..]));
    assert_eq!(drafter.scorer.asked, [(0, vec![8], 0, 't', vec![2.0, 102.0])]);
    give_states(&mut drafter, &text, 3);
    assert_eq!(draft(&mut drafter, &text, 1).tokens(), [4]);
    assert_eq!(drafter.scorer.asked, [(1, vec![3], 0, 't', vec![3.0, 103.0])]);
    // Rows that are computed again, those of the beginning too, are ignored.
    give_states(&mut drafter, &text, 0);
    assert_eq!((drafter.unread(SEQUENCE, 5), draft(&mut drafter, &text, 1).tokens()), (0, &[4][..]));
}

#[test]
fn waiting_states_of_all_sequences_are_bounded() {
    let drafted = |unread_bytes_max: usize| {
        let mut drafter = drafter();
        drafter.unread_bytes_max = unread_bytes_max;
        // States of two tokens, two layers of one number each.
        give_states(&mut drafter, &[5, 6, 7], 0);
        (draft(&mut drafter, &[5, 6, 7], 2).len(), drafter.scorer.closed)
    };
    assert_eq!((drafted(16), drafted(15)), ((2, 0), (0, 1)));
}

#[test]
fn a_sequence_that_is_too_long_is_not_drafted_for() {
    let mut drafter = drafter();
    // The first token has no row: nine rows are a sequence of ten tokens, after which one can be drafted.
    let text: Vec<Token> = (0..11).map(|at| at % 10).collect();
    give_states(&mut drafter, &text[..9], 0);
    assert_eq!(draft(&mut drafter, &text[..9], 4).len(), 2);
    give_states(&mut drafter, &text[..10], 8);
    assert_eq!(draft(&mut drafter, &text[..10], 4).len(), 1);
    give_states(&mut drafter, &text, 9);
    assert_eq!((draft(&mut drafter, &text, 4).len(), drafter.unread(SEQUENCE, 11)), (0, 0));
}

#[test]
#[should_panic(expected = "written tokens were taken back")]
fn written_tokens_are_never_taken_back() {
    let mut drafter = drafter();
    give_states(&mut drafter, &[5, 6, 7], 0);
    draft(&mut drafter, &[5, 6, 7], 1);
    draft(&mut drafter, &[5, 8, 7], 1);
}
