//! A head: a small network that continues the target's own hidden states (Li et al. 2024, EAGLE; 2025, EAGLE-3).
//!
//! A row of it reads a token and a hidden row: what was known at the position before, when the token was chosen. For a
//! token of the text that is the target's hidden states of the position before it, for a guess the head's own of the
//! row that it continues. The first token of a text has nothing before it and no row, so row `i` of the head reads
//! token `i + 1` of the text beside the target's hidden states of token `i`; the row of the pending token says the
//! first guess.
//!
//! The target's hidden states are told with each pass ([`News::hidden`]), the prompt's too ([`Needs::prompt_rows`]),
//! and kept here until the head has read them. Of a prompt whose beginning others have computed, only the last rows are
//! told: the head's own text begins with the first token that it was told of, and it drafts from what it knows. What it
//! has cached for good comes from the target's rows alone: rows of guesses go by
//! its own hidden rows, so when guesses are accepted their rows are forgotten, and the tokens read again beside what
//! the target has told of them meanwhile. Where something is missing of what the target should have told, or must be
//! read again and is not here any more, the head is silent for that text from then on, and never guesses from another
//! row.
//!
//! Drafts grow as a draft model's do (`model/expand.rs`, `model/grow.rs`). Left out: what a network does with the rows,
//! and drafts of a head that are run ahead by another drafter: their hidden rows are not known before the rows are.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use crate::model::cache::{Cached, TreeSpan};
use crate::model::expand::{Bounds, Buffers};
use crate::model::grow::Growth;
use crate::{HiddenInput, LogitRows, ScoreAsk, Scorer};
use foretoken_speculation::{Ask, Chance, DraftSettings, Drafter, Needs, News, Opening, ReadAsk};
use foretoken_speculation::{SequenceId, Token, Work};

/// A [`Drafter`] that asks a [`Scorer`] which reads hidden rows of the target.
pub struct HeadDrafter<S> {
    /// The head.
    pub scorer: S,
    /// Draft length: most tokens of a branch.
    pub depth_max: usize,
    /// What requests leave open.
    pub settings: DraftSettings,
    /// Most tokens of a text whose hidden states wait to be read. A text of which more wait, because drafting for it
    /// did not pay for so long, is given up, and its memory given back.
    pub unread_max: usize,
    /// Most bytes of hidden states that wait of all texts together: where it is more, the text that is told next is
    /// given up.
    pub unread_bytes_max: usize,
    work: Work,
    texts: BTreeMap<SequenceId, Text>,
    /// Logits and own hidden states of the passes of one draft.
    rows: LogitRows,
    buffers: Buffers,
}

/// What is kept of one text.
#[derive(Debug, Default)]
struct Text {
    /// The head's rows: for good those of tokens from the second on, and the guesses behind them.
    cached: Cached,
    told: Told,
    /// How many first tokens of the text it was not told of. The head's own text is what follows them, and all else
    /// here counts from there.
    begins: usize,
    /// Whether it is given up: not all that the head would have to read is here.
    lost: bool,
}

/// The target's hidden states of consecutive tokens of a text: those that the head has not read yet, and the last that
/// it has read, since a text can be drafted for twice.
#[derive(Debug, Default)]
struct Told {
    /// `[tokens, width]`.
    values: Vec<f32>,
    width: usize,
    /// The position of the first.
    first: usize,
}

impl Told {
    /// Bytes of them.
    fn bytes(&self) -> usize {
        size_of_val(&self.values[..])
    }

    /// So many first tokens of the text were told.
    fn len(&self) -> usize {
        self.first + self.values.len() / self.width.max(1)
    }

    /// Those of the next token, by layer.
    fn push(&mut self, layers: &[&[f32]]) {
        let width = layers.iter().map(|layer| layer.len()).sum();
        assert!(self.width == 0 || self.width == width, "hidden states of {width} elements, before of {}", self.width);
        self.width = width;
        layers.iter().for_each(|layer| self.values.extend_from_slice(layer));
    }

    /// Those of the tokens in a range.
    fn of(&self, tokens: std::ops::Range<usize>) -> &[f32] {
        &self.values[(tokens.start - self.first) * self.width..(tokens.end - self.first) * self.width]
    }

    /// Forgets all before this token.
    fn forget_before(&mut self, first: usize) {
        self.values.drain(..(first - self.first) * self.width);
        self.first = first;
    }
}

impl Text {
    /// The head's own text, of a whole one.
    fn own<'a>(&self, tokens: &'a [Token]) -> &'a [Token] {
        &tokens[self.begins..]
    }

    /// What there is to run of a text whose tokens from the second on these are: in the first pass of a draft, or
    /// without one, the tokens that are not cached, beside what the target told; later the guesses that are not
    /// computed, beside the head's own hidden rows.
    fn span<'a>(&'a self, sequence: SequenceId, tokens: &'a [Token], draft: Option<&Draft>) -> HeadSpan<'a> {
        let Self { cached, told, .. } = self;
        let certain = tokens.len();
        match draft.filter(|draft| draft.growth.root.is_some()) {
            None => {
                let target = told.of(cached.ran.len()..tokens.len());
                let (rows, hidden) = (cached.span(tokens, true), Cow::Borrowed(target));
                HeadSpan { sequence, rows, certain, hidden, are_guesses: false }
            }
            Some(draft) => {
                let own = draft.behind(&cached.parents[cached.computed..]);
                let (rows, hidden) = (cached.span(tokens, false), Cow::Owned(own));
                HeadSpan { sequence, rows, certain, hidden, are_guesses: true }
            }
        }
    }
}

/// A [`ScoreAsk`] with what it borrows.
struct HeadSpan<'a> {
    sequence: SequenceId,
    rows: TreeSpan<'a>,
    certain: usize,
    hidden: Cow<'a, [f32]>,
    are_guesses: bool,
}

impl HeadSpan<'_> {
    fn ask(&self) -> ScoreAsk<'_> {
        let kind = if self.are_guesses { HiddenInput::Own } else { HiddenInput::Target };
        ScoreAsk { hidden_in: kind(&self.hidden), ..self.rows.ask(self.sequence, self.certain) }
    }
}

/// A draft under way.
struct Draft {
    growth: Growth,
    /// The head's own hidden states, `[1 + rows, width]`: those at the pending token's row, then of each guess that was
    /// run, zeros where that could not be.
    own: Vec<f32>,
    width: usize,
}

impl Draft {
    /// Notes the head's own hidden state at its next row.
    fn push(&mut self, hidden: &[f32]) {
        if self.width == 0 {
            self.width = hidden.len();
        }
        self.own.extend_from_slice(hidden);
        if hidden.is_empty() {
            self.own.resize(self.own.len() + self.width, 0.0);
        }
    }

    /// For each of these guesses the head's own hidden state at the row that it continues.
    fn behind(&self, parents: &[Option<u32>]) -> Vec<f32> {
        let of = |parent: &Option<u32>| {
            let row = parent.map_or(0, |parent| 1 + parent as usize);
            &self.own[row * self.width..][..self.width]
        };
        parents.iter().flat_map(of).copied().collect()
    }
}

impl<S: fmt::Debug> fmt::Debug for HeadDrafter<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("HeadDrafter");
        shown.field("scorer", &self.scorer).field("depth_max", &self.depth_max).field("settings", &self.settings);
        shown.finish_non_exhaustive()
    }
}

impl<S: Scorer> HeadDrafter<S> {
    /// A drafter of chains of up to 5 tokens, without a confidence rule, at the target's temperature.
    ///
    /// # Panics
    ///
    /// Panics if the scorer reads no layers of a target.
    pub fn new(scorer: S) -> HeadDrafter<S> {
        assert!(!scorer.target_layers().is_empty(), "a head that reads no layers of a target");
        HeadDrafter {
            scorer,
            depth_max: 5,
            settings: DraftSettings::default(),
            unread_max: 8192,
            unread_bytes_max: 512 << 20,
            work: Work::default(),
            texts: BTreeMap::new(),
            rows: LogitRows::new(),
            buffers: Buffers::default(),
        }
    }

    /// Most tokens of a text that the head can say something behind: the first has no row.
    fn tokens_max(&self) -> usize {
        self.scorer.context_max().saturating_add(1)
    }

    /// Forgets guesses, and rows for good beyond the first `rows`. Whether the rows up to the token `end` can then be
    /// run: all that they read has been told, and is here.
    fn go_back(&mut self, sequence: SequenceId, tokens: &[Token], rows: usize, end: usize) -> bool {
        let text = self.texts.get_mut(&sequence).unwrap_or_else(|| panic!("{sequence:?} was not opened"));
        if text.lost || text.told.len() < end {
            return false;
        }
        let Text { cached, told, .. } = text;
        assert!(tokens[1..].starts_with(&cached.ran), "{sequence:?}: a text was taken back");
        let kept = rows.min(cached.ran.len());
        let in_pass = std::mem::take(&mut cached.in_pass);
        if in_pass || kept < cached.len() {
            cached.truncate(0);
            let left = self.scorer.truncate(sequence, kept);
            cached.ran.truncate(left);
            text.lost = left < told.first;
            if text.lost {
                self.give_up(sequence);
                return false;
            }
        }
        true
    }

    /// Is silent for a text from now on.
    fn give_up(&mut self, sequence: SequenceId) {
        let text = self.texts.get_mut(&sequence).expect("an open text");
        *text = Text { lost: true, ..Text::default() };
        self.scorer.close(sequence);
    }

    /// One pass over the rows that the drafts miss.
    fn run(&mut self, asks: &[Ask<'_>], drafts: &mut [Draft]) {
        for draft in drafts.iter() {
            let text = self.texts.get_mut(&asks[draft.growth.ask].sequence);
            text.expect("opened, or going back had failed").cached.in_pass = true;
        }
        let mut spans: Vec<HeadSpan<'_>> = Vec::with_capacity(drafts.len());
        for draft in drafts.iter() {
            let ask = &asks[draft.growth.ask];
            let text = &self.texts[&ask.sequence];
            spans.push(text.span(ask.sequence, &text.own(ask.tokens)[1..], Some(draft)));
        }
        let score_asks: Vec<ScoreAsk<'_>> = spans.iter().map(HeadSpan::ask).collect();
        let mut row = self.rows.len();
        self.scorer.score(&score_asks, &mut self.rows);
        self.work.passes += 1;
        let wanted: Vec<usize> = spans.iter().map(|span| span.rows.wanted.len()).collect();
        let (found, all) = (self.rows.len() - row, wanted.iter().sum::<usize>());
        assert!(found == all, "{found} rows for {all} wanted");
        for (draft, wanted) in drafts.iter_mut().zip(wanted) {
            let rows = row..row + wanted;
            row = rows.end;
            let Ask { sequence, tokens, .. } = &asks[draft.growth.ask];
            let text = self.texts.get_mut(sequence).expect("opened, or nothing was run");
            let own = text.own(tokens);
            let Text { cached, told, .. } = text;
            cached.in_pass = false;
            // Without any logits the ask was refused; single rows without them are there and say nothing.
            if rows.clone().all(|row| self.rows.row(row).is_none()) {
                continue;
            }
            rows.clone().for_each(|row| draft.push(self.rows.hidden(row)));
            if draft.growth.root.is_none() {
                draft.growth.root = Some(rows.start);
                self.work.read += note_read(cached, told, &own[1..]);
            } else {
                draft.growth.rows.extend(rows);
                cached.computed = draft.growth.rows.len();
            }
        }
    }
}

/// Notes that the head has read a text, whose tokens from the second on these are; how many were new.
fn note_read(cached: &mut Cached, told: &mut Told, tokens: &[Token]) -> u64 {
    let new = &tokens[cached.ran.len()..];
    cached.ran.extend_from_slice(new);
    told.forget_before(tokens.len() - 1);
    new.len() as u64
}

impl<S: Scorer> Drafter for HeadDrafter<S> {
    fn name(&self) -> &str {
        "head"
    }

    fn needs(&self) -> Needs {
        Needs { hidden_layers: self.scorer.target_layers().to_vec(), prompt_rows: true, ..Needs::default() }
    }

    fn work(&self) -> Option<Work> {
        Some(Work { not_numbers: self.scorer.not_numbers(), ..self.work })
    }

    fn unread(&self, sequence: SequenceId, len: usize) -> usize {
        // Of a text that is too long for it, or given up, nothing would be read.
        let text = self.texts.get(&sequence).filter(|text| !text.lost);
        let own = text.map(|text| (text, len.saturating_sub(text.begins)));
        own.filter(|(_, len)| *len <= self.tokens_max())
            .map_or(0, |(text, len)| len.saturating_sub(1 + text.cached.ran.len()))
    }

    fn open(&mut self, opening: &Opening<'_>) {
        let before = self.texts.insert(opening.sequence, Text::default());
        assert!(before.is_none(), "{:?} was opened twice", opening.sequence);
        self.scorer.open(opening.sequence, opening.tenant);
    }

    fn read(&mut self, asks: &[ReadAsk<'_>]) {
        // For each the tokens that are read then.
        let mut reading: Vec<(&ReadAsk<'_>, usize)> = Vec::with_capacity(asks.len());
        let tokens_max = self.tokens_max();
        for ask in asks {
            let text = self.texts.get(&ask.sequence).unwrap_or_else(|| panic!("{:?} was not opened", ask.sequence));
            let (own, until) = (text.own(ask.tokens), ask.until.saturating_sub(text.begins));
            let (read, until) = (text.cached.ran.len(), until.min(text.told.len() + 1));
            let fits = own.len() <= tokens_max && read + 1 < until;
            if fits && self.go_back(ask.sequence, own, read, until - 1) {
                self.texts.get_mut(&ask.sequence).expect("an open text").cached.in_pass = true;
                reading.push((ask, until));
            }
        }
        if reading.is_empty() {
            return;
        }
        let mut spans: Vec<HeadSpan<'_>> = Vec::with_capacity(reading.len());
        for (ask, until) in &reading {
            let text = &self.texts[&ask.sequence];
            spans.push(text.span(ask.sequence, &text.own(ask.tokens)[1..*until], None));
        }
        let score_asks: Vec<ScoreAsk<'_>> = spans.iter().map(HeadSpan::ask).collect();
        self.rows.clear();
        self.scorer.score(&score_asks, &mut self.rows);
        // What was refused was not run.
        self.work.passes += u64::from((0..reading.len()).any(|row| self.rows.row(row).is_some()));
        for (row, (ask, until)) in reading.into_iter().enumerate() {
            let text = self.texts.get_mut(&ask.sequence).expect("opened, or nothing was run");
            let own = text.own(ask.tokens);
            let Text { cached, told, .. } = text;
            cached.in_pass = false;
            if self.rows.row(row).is_some() {
                self.work.read += note_read(cached, told, &own[1..until]);
            }
        }
    }

    fn draft(&mut self, asks: &mut [Ask<'_>], chance: &mut dyn Chance) {
        let mut drafts: Vec<Draft> = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter_mut().enumerate() {
            ask.settings = ask.settings.or(self.settings);
            // Before the target's first pass nothing is known of it, and the text of one token has no row.
            let own = self.texts.get(&ask.sequence).map_or(ask.tokens, |text| text.own(ask.tokens));
            let Some(rows) = own.len().checked_sub(2) else { continue };
            let fits = ask.has_room() && self.depth_max > 0 && own.len() <= self.tokens_max();
            // The last token's row says the first guess: if it was run before, it is run again.
            if fits && self.go_back(ask.sequence, own, rows, rows + 1) {
                let sampling = ask.settings.has_filters().then(|| ask.settings.sampling(ask.sampling));
                drafts.push(Draft { growth: Growth::new(i, sampling), own: Vec::new(), width: 0 });
            }
        }
        let bounds = Bounds { depth_max: self.depth_max, tokens_max: self.tokens_max() };
        while !drafts.is_empty() {
            if drafts.iter().all(|draft| draft.growth.is_fresh()) {
                self.rows.clear();
            }
            self.run(asks, &mut drafts);
            drafts.retain_mut(|Draft { growth, .. }| {
                let ask = &mut asks[growth.ask];
                let text = self.texts.get_mut(&ask.sequence).expect("opened, or nothing was run");
                self.buffers.advance(&mut text.cached, growth, &self.rows, bounds, ask, chance)
            });
        }
    }

    fn observe(&mut self, news: &[News<'_>]) {
        let layers = self.scorer.target_layers().len();
        for news in news {
            let others = self.texts.iter().filter(|(sequence, _)| **sequence != news.sequence);
            let waiting: usize = others.map(|(_, text)| text.told.bytes()).sum();
            let Some(text) = self.texts.get_mut(&news.sequence).filter(|text| !text.lost) else { continue };
            // Of the last token nothing is known yet, and an accepted one behind an end is none of the text.
            if text.told.len() == 0 && text.cached.ran.is_empty() && !news.hidden.is_empty() {
                text.begins = news.hidden_from;
            }
            let positions = news.hidden_from..news.tokens.len() - 1;
            for (position, states) in positions.zip(news.hidden.chunks(layers)) {
                // What was computed again was told before, or is not known of.
                let Some(position) = position.checked_sub(text.begins) else { continue };
                match position.cmp(&text.told.len()) {
                    std::cmp::Ordering::Less => {}
                    std::cmp::Ordering::Equal => text.told.push(states),
                    std::cmp::Ordering::Greater => text.lost = true,
                }
            }
            text.lost |= text.told.len() - text.cached.ran.len() > self.unread_max;
            text.lost |= waiting + text.told.bytes() > self.unread_bytes_max;
            if text.lost {
                self.give_up(news.sequence);
            }
        }
    }

    fn close(&mut self, sequence: SequenceId) {
        if self.texts.remove(&sequence).is_some_and(|text| !text.lost) {
            self.scorer.close(sequence);
        }
    }
}

#[cfg(test)]
mod tests;
