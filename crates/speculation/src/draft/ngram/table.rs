//! Counts of n-grams, compact: what followed which context, how often.
//!
//! An n-gram is a token under its context, an (n - 1)-gram, named by its place in the list of its length; the empty
//! context is place 0. Each list has an open-addressed index by (context, token), whose slots hold half a hash beside the place, so that
//! a look-up that fails seldom touches an n-gram. Only the most frequent followers of a context are chained to it: they
//! stand on its *podium*, ordered by count, of equals the first come, and who is not on it is found by the index only.
//!
//! A table with a log can unlearn its latest tokens one by one. Everything learned is undone last first, so a new n-gram
//! is the last of its list, and its slot the last one taken, which may be emptied without a trace.
//!
//! Left out: smoothing and probabilities, and any bound of the memory.

use crate::Token;

/// Most followers of a context that are kept in order.
pub(super) const FOLLOWERS_MAX: usize = 16;
/// Longest n-gram.
pub(super) const ORDER_MAX: usize = 8;

/// No place.
const NONE: u32 = u32::MAX;

/// The places of the contexts that a text ends with, by their length; `NONE` for those that are not known.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct State([u32; ORDER_MAX]);

impl State {
    /// Before the first token: only the empty context.
    pub(super) const START: State = {
        let mut places = [NONE; ORDER_MAX];
        places[0] = 0;
        State(places)
    };

    /// Whether the context of this many tokens was seen.
    pub(super) fn knows(&self, len: usize) -> bool {
        self.0[len] != NONE
    }
}

#[derive(Copy, Clone, Debug, PartialEq)]
struct Gram {
    context: u32,
    token: Token,
    count: u32,
    /// The next on the podium, if it is on it itself.
    next: u32,
}

/// The podium of a context.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Head {
    first: u32,
    /// Who has a greater count than this belongs on the podium: the last one's count, or 0 while there are places.
    floor: u32,
}

const NOBODY: Head = Head { first: NONE, floor: 0 };

/// All n-grams of one length.
#[derive(Clone, Debug, Default)]
struct Level {
    grams: Vec<Gram>,
    /// Half a hash above, place + 1 below; 0 is empty.
    slots: Vec<u64>,
}

/// What was done to a podium, to be undone.
#[derive(Copy, Clone, Debug)]
struct Change {
    gram: u32,
    /// Who lost the last place.
    dropped: u32,
    /// Where it stood before; `FOLLOWERS_MAX` for not at all.
    from: u8,
}

/// Counts of all n-grams up to a length.
#[derive(Clone, Debug)]
pub(super) struct Table {
    order: usize,
    /// By length less 1.
    levels: Vec<Level>,
    /// Podiums of all contexts, by context length.
    heads: Vec<Vec<Head>>,
    log: Option<Vec<Change>>,
    /// Tokens learned.
    len: usize,
}

/// A podium read out.
struct Podium {
    grams: [u32; FOLLOWERS_MAX + 1],
    len: usize,
}

impl Table {
    /// An empty table of n-grams of 1 to `order` tokens. `reversible`: with a log, which costs 12 bytes an n-gram learned.
    pub(super) fn new(order: usize, reversible: bool) -> Table {
        assert!((1..=ORDER_MAX).contains(&order), "n-grams of up to {order} tokens");
        let mut heads = vec![Vec::new(); order];
        heads[0].push(NOBODY);
        let log = reversible.then(Vec::new);
        Table { order, levels: vec![Level::default(); order], heads, log, len: 0 }
    }

    /// Learns the tokens of a text from place `from` on; those before it are context only.
    pub(super) fn learn(&mut self, text: &[Token], from: usize) {
        let mut state = self.state(&text[..from]);
        for (i, &token) in text.iter().enumerate().skip(from) {
            let mut next = State::START;
            for n in 1..=self.order.min(i + 1) {
                let gram = self.count(n, state.0[n - 1], token);
                if n < self.order {
                    next.0[n] = gram;
                }
            }
            state = next;
            self.len += 1;
        }
    }

    /// Unlearns the last tokens of the one text that was learned, down to its first `len`.
    ///
    /// # Panics
    ///
    /// Panics without a log.
    pub(super) fn unlearn(&mut self, len: usize) {
        while self.len > len {
            for n in (1..=self.order.min(self.len)).rev() {
                let change = self.log.as_mut().and_then(Vec::pop).expect("a log entry for each n-gram");
                self.undo(n, change);
            }
            self.len -= 1;
        }
    }

    /// Tokens of the longest n-grams.
    pub(super) fn order(&self) -> usize {
        self.order
    }

    /// Number of tokens learned.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The contexts that a text ends with.
    pub(super) fn state(&self, text: &[Token]) -> State {
        let last = &text[text.len().saturating_sub(self.order - 1)..];
        last.iter().fold(State::START, |state, &token| self.step(&state, token))
    }

    /// The contexts after another token.
    pub(super) fn step(&self, state: &State, token: Token) -> State {
        let mut next = State::START;
        for n in 1..self.order {
            if state.knows(n - 1) {
                next.0[n] = self.find(n, state.0[n - 1], token).unwrap_or(NONE);
            }
        }
        next
    }

    /// How often the context of this many tokens was seen.
    pub(super) fn total(&self, state: &State, len: usize) -> u32 {
        match len {
            0 => u32::try_from(self.len).unwrap_or(u32::MAX),
            _ => self.levels[len - 1].grams[state.0[len] as usize].count,
        }
    }

    /// The most frequent followers of the context of this many tokens with their counts, the first the most frequent.
    pub(super) fn followers(&self, state: &State, len: usize) -> impl Iterator<Item = (Token, u32)> + '_ {
        let grams = &self.levels[len].grams;
        let mut at = self.heads[len][state.0[len] as usize].first;
        std::iter::from_fn(move || {
            let gram = *grams.get(at as usize)?;
            at = gram.next;
            Some((gram.token, gram.count))
        })
    }

    /// Bytes of memory, those reserved included.
    pub(super) fn bytes(&self) -> usize {
        let level = |level: &Level| level.grams.capacity() * size_of::<Gram>() + level.slots.capacity() * 8;
        self.levels.iter().map(level).sum::<usize>()
            + self.heads.iter().map(|heads| heads.capacity() * size_of::<Head>()).sum::<usize>()
            + self.log.as_ref().map_or(0, |log| log.capacity() * size_of::<Change>())
    }

    /// Counts an n-gram once more and returns its place.
    fn count(&mut self, n: usize, context: u32, token: Token) -> u32 {
        let place = self.find(n, context, token).unwrap_or_else(|| {
            if n < self.order {
                push(&mut self.heads[n], NOBODY);
            }
            self.levels[n - 1].push(context, token)
        });
        let gram = &mut self.levels[n - 1].grams[place as usize];
        gram.count = gram.count.saturating_add(1);
        let mut change = Change { gram: place, dropped: NONE, from: FOLLOWERS_MAX as u8 };
        if gram.count > self.heads[n - 1][context as usize].floor {
            self.promote(n, context, &mut change);
        }
        if let Some(log) = &mut self.log {
            log.push(change);
        }
        place
    }

    /// Moves an n-gram whose count has grown to where it belongs on the podium.
    fn promote(&mut self, n: usize, context: u32, change: &mut Change) {
        let grams = &self.levels[n - 1].grams;
        let count = grams[change.gram as usize].count;
        let mut podium = self.podium(n, context);
        let before = podium.take(change.gram);
        change.from = before.unwrap_or(FOLLOWERS_MAX) as u8;
        let behind = podium.grams[..podium.len].iter().position(|&other| grams[other as usize].count < count);
        podium.insert(behind.unwrap_or(podium.len), change.gram);
        if podium.len > FOLLOWERS_MAX {
            podium.len = FOLLOWERS_MAX;
            change.dropped = podium.grams[FOLLOWERS_MAX];
            self.levels[n - 1].grams[change.dropped as usize].next = NONE;
        }
        self.set_podium(n, context, &podium);
    }

    fn undo(&mut self, n: usize, change: Change) {
        let level = &mut self.levels[n - 1];
        let gram = &mut level.grams[change.gram as usize];
        gram.count -= 1;
        let (context, left) = (gram.context, gram.count);
        let mut podium = self.podium(n, context);
        if podium.take(change.gram).is_some() {
            self.levels[n - 1].grams[change.gram as usize].next = NONE;
            if usize::from(change.from) < FOLLOWERS_MAX {
                podium.insert(usize::from(change.from), change.gram);
            } else if change.dropped != NONE {
                podium.insert(podium.len, change.dropped);
            }
            self.set_podium(n, context, &podium);
        }
        if left == 0 {
            self.levels[n - 1].pop();
            if n < self.order {
                self.heads[n].pop();
            }
        }
    }

    fn podium(&self, n: usize, context: u32) -> Podium {
        let mut podium = Podium { grams: [NONE; FOLLOWERS_MAX + 1], len: 0 };
        let mut at = self.heads[n - 1][context as usize].first;
        while at != NONE {
            podium.grams[podium.len] = at;
            podium.len += 1;
            at = self.levels[n - 1].grams[at as usize].next;
        }
        podium
    }

    fn set_podium(&mut self, n: usize, context: u32, podium: &Podium) {
        let grams = &mut self.levels[n - 1].grams;
        let mut next = NONE;
        for &place in podium.grams[..podium.len].iter().rev() {
            grams[place as usize].next = next;
            next = place;
        }
        let full = podium.len == FOLLOWERS_MAX;
        let floor = if full { grams[podium.grams[FOLLOWERS_MAX - 1] as usize].count } else { 0 };
        self.heads[n - 1][context as usize] = Head { first: next, floor };
    }

    fn find(&self, n: usize, context: u32, token: Token) -> Option<u32> {
        let level = &self.levels[n - 1];
        let slot = level.slot(hash(context, token), |gram| gram.context == context && gram.token == token)?;
        (level.slots[slot] as u32).checked_sub(1)
    }
}

impl Podium {
    /// Takes an n-gram off and says where it stood.
    fn take(&mut self, gram: u32) -> Option<usize> {
        let at = self.grams[..self.len].iter().position(|&other| other == gram)?;
        self.grams.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(at)
    }

    fn insert(&mut self, at: usize, gram: u32) {
        self.grams.copy_within(at..self.len, at + 1);
        self.grams[at] = gram;
        self.len += 1;
    }
}

impl Level {
    /// The slot of the n-gram of this hash that `is_it`, or the empty slot where it would be; `None` without slots.
    fn slot(&self, hash: u64, is_it: impl Fn(&Gram) -> bool) -> Option<usize> {
        let mut at = ((u128::from(hash) * self.slots.len() as u128) >> 64) as usize;
        loop {
            let slot = *self.slots.get(at)?;
            let half_equal = (slot ^ hash << 32) >> 32 == 0;
            if slot == 0 || (half_equal && is_it(&self.grams[slot as u32 as usize - 1])) {
                return Some(at);
            }
            at = if at + 1 == self.slots.len() { 0 } else { at + 1 };
        }
    }

    fn take_slot(&mut self, place: u32) {
        let gram = self.grams[place as usize];
        let hash = hash(gram.context, gram.token);
        let slot = self.slot(hash, |_| false).expect("slots were made");
        self.slots[slot] = hash << 32 | u64::from(place + 1);
    }

    fn push(&mut self, context: u32, token: Token) -> u32 {
        let place = u32::try_from(self.grams.len()).ok().filter(|&place| place < NONE - 1);
        let place = place.expect("fewer than 2^32 n-grams of a length");
        push(&mut self.grams, Gram { context, token, count: 0, next: NONE });
        // At most five in six are taken, and a third more are made, so that three in five are at least.
        if self.grams.len() * 6 > self.slots.len() * 5 {
            let slots = (self.slots.len() / 3 * 4).max(16);
            self.slots = vec![0; slots];
            (0..place).for_each(|place| self.take_slot(place));
        }
        self.take_slot(place);
        place
    }

    /// Removes the n-gram that was pushed last.
    fn pop(&mut self) {
        let place = self.grams.len() - 1;
        let gram = self.grams[place];
        let slot = self.slot(hash(gram.context, gram.token), |other| *other == gram).expect("slots were made");
        assert!(self.slots[slot] as u32 as usize == place + 1, "n-gram {place} is not the last of its slots");
        self.slots[slot] = 0;
        self.grams.pop();
    }
}

/// Pushes, and where room is needed makes a quarter more: doubling would leave half the memory idle.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 4).max(16));
    }
    list.push(item);
}

/// Multiply and fold, twice: the index goes by the upper bits, the half kept in the slot is the lower.
fn hash(context: u32, token: Token) -> u64 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let key = u64::from(context) << 32 | u64::from(token);
    fold(fold(key ^ 0x9e37_79b9_7f4a_7c15, 0xa076_1d64_78bd_642f), 0xe703_7ed1_a0b4_28db)
}

/// Equal in everything but the sizes of the indexes.
impl PartialEq for Table {
    fn eq(&self, other: &Table) -> bool {
        let grams = |table: &Table| table.levels.iter().map(|level| level.grams.clone()).collect::<Vec<_>>();
        self.len == other.len && grams(self) == grams(other) && self.heads == other.heads
    }
}
