//! Counts of n-grams, compact: what followed which context, how often.
//!
//! An n-gram is a token under its context, an (n - 1)-gram, named by its number in the list of its length; the empty
//! context is number 0. Each list has an open-addressed index by (context, token), whose slots hold a hash beside the
//! number: a look-up that fails seldom touches an n-gram, and growing touches none. Only the most frequent followers of a
//! context are chained to it: they are its *top followers*, ordered by count, of equals the latest first, and who is not
//! among them is found by the index only.
//!
//! Left out: smoothing and probabilities, and any bound of the memory.

use crate::Token;

/// Most followers of a context that are kept in order.
pub(super) const FOLLOWERS_MAX: usize = 16;
/// Longest n-gram.
pub(super) const ORDER_MAX: usize = 8;

/// No n-gram.
const NONE: u32 = u32::MAX;

/// The numbers of the contexts that a text ends with, by their length; `NONE` for those that are not known.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) struct State([u32; ORDER_MAX]);

impl State {
    /// Before the first token: only the empty context.
    pub(super) const START: State = {
        let mut numbers = [NONE; ORDER_MAX];
        numbers[0] = 0;
        State(numbers)
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
    /// The next of the top followers, if it is one itself.
    next: u32,
}

/// The top followers of a context.
#[derive(Copy, Clone, Debug, PartialEq)]
struct Head {
    first: u32,
    /// Who has a greater count than this belongs to them: the last one's count, or less than 0 by the number of
    /// those that there is still room for.
    floor: i32,
}

const NOBODY: Head = Head { first: NONE, floor: -(FOLLOWERS_MAX as i32) };
/// Counts stop here.
const COUNT_MAX: u32 = i32::MAX as u32;

/// All n-grams of one length.
#[derive(Clone, Debug, Default)]
struct Level {
    grams: Vec<Gram>,
    /// A hash above, number + 1 below; 0 is empty.
    slots: Vec<u64>,
}

/// Counts of all n-grams up to a length.
#[derive(Clone, Debug)]
pub(super) struct Table {
    order: usize,
    /// By length less 1.
    levels: Vec<Level>,
    /// Top followers of all contexts, by context length.
    heads: Vec<Vec<Head>>,
    /// Tokens learned.
    len: usize,
}

impl Table {
    /// An empty table of n-grams of 1 to `order` tokens.
    pub(super) fn new(order: usize) -> Table {
        assert!((1..=ORDER_MAX).contains(&order), "n-grams of up to {order} tokens");
        let mut heads = vec![Vec::new(); order];
        heads[0].push(NOBODY);
        Table { order, levels: vec![Level::default(); order], heads, len: 0 }
    }

    /// Learns the tokens of a text from the `from`th on; those before it are context only.
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
    }

    /// Counts an n-gram once more and returns its number.
    fn count(&mut self, n: usize, context: u32, token: Token) -> u32 {
        let number = self.find(n, context, token).unwrap_or_else(|| {
            if n < self.order {
                push(&mut self.heads[n], NOBODY);
            }
            self.levels[n - 1].push(context, token)
        });
        let gram = &mut self.levels[n - 1].grams[number as usize];
        gram.count = (gram.count + 1).min(COUNT_MAX);
        if gram.count as i32 > self.heads[n - 1][context as usize].floor {
            self.promote(n, context, number);
        }
        number
    }

    /// Moves an n-gram whose count has grown to where it belongs among the top followers: behind those who have more.
    /// Followers are far from each other in memory, so it looks at no more of them than it must.
    fn promote(&mut self, n: usize, context: u32, gram: u32) {
        let head = &mut self.heads[n - 1][context as usize];
        let grams = &mut self.levels[n - 1].grams;
        let count = grams[gram as usize].count;
        let (mut before, mut at) = (NONE, head.first);
        while at != NONE && at != gram && grams[at as usize].count > count {
            (before, at) = (at, grams[at as usize].next);
        }
        let full = head.floor >= 0;
        if at == gram {
            if full && grams[gram as usize].next == NONE {
                head.floor = count as i32;
            }
            return;
        }
        let behind = std::mem::replace(&mut grams[gram as usize].next, at);
        match before {
            NONE => head.first = gram,
            before => grams[before as usize].next = gram,
        }
        if count == 1 {
            // New, so there was room; the last one's count is at most this.
            head.floor = if head.floor == -1 { 1 } else { head.floor + 1 };
            return;
        }
        // Where it stood before, or who has to go.
        let (mut second, mut last) = (before, gram);
        while at != NONE && at != gram {
            (second, last, at) = (last, at, grams[at as usize].next);
        }
        if at == gram {
            grams[last as usize].next = behind;
            if full && behind == NONE {
                head.floor = grams[last as usize].count as i32;
            }
        } else {
            assert!(full, "a follower of context {context} was not among the first where there was room");
            grams[second as usize].next = NONE;
            head.floor = grams[second as usize].count as i32;
        }
    }

    fn find(&self, n: usize, context: u32, token: Token) -> Option<u32> {
        let level = &self.levels[n - 1];
        let slot = level.slot(hash(context, token), |gram| gram.context == context && gram.token == token)?;
        (level.slots[slot] as u32).checked_sub(1)
    }
}

impl Level {
    /// The slot where those of this hash belong.
    fn home(&self, hash: u32) -> usize {
        ((u64::from(hash) * self.slots.len() as u64) >> 32) as usize
    }

    fn after(&self, slot: usize) -> usize {
        if slot + 1 == self.slots.len() { 0 } else { slot + 1 }
    }

    /// The slot of the n-gram of this hash that `is_it`, or the empty slot where it would be; `None` without slots.
    fn slot(&self, hash: u32, is_it: impl Fn(&Gram) -> bool) -> Option<usize> {
        let mut at = self.home(hash);
        loop {
            let slot = *self.slots.get(at)?;
            if slot == 0 || ((slot >> 32) as u32 == hash && is_it(&self.grams[slot as u32 as usize - 1])) {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// Puts a filled slot into the first free place from its home on.
    fn put(&mut self, filled: u64) {
        let slot = self.slot((filled >> 32) as u32, |_| false).expect("slots were made");
        self.slots[slot] = filled;
    }

    fn push(&mut self, context: u32, token: Token) -> u32 {
        let number = u32::try_from(self.grams.len()).ok().filter(|&number| number < NONE - 1);
        let number = number.expect("fewer than 2^32 n-grams of a length");
        push(&mut self.grams, Gram { context, token, count: 0, next: NONE });
        // At most five in six are taken, and a third more are made, so that three in five are at least.
        if self.grams.len() * 6 > self.slots.len() * 5 {
            let slots = (self.slots.len() / 3 * 4).max(16);
            let before = std::mem::replace(&mut self.slots, vec![0; slots]);
            // Homes go by the order of the hashes in either, so this runs through both from front to back.
            before.into_iter().filter(|&slot| slot != 0).for_each(|slot| self.put(slot));
        }
        self.put(u64::from(hash(context, token)) << 32 | u64::from(number + 1));
        number
    }
}

/// Pushes, and where room is needed makes a quarter more: doubling would leave half the memory idle.
fn push<T>(list: &mut Vec<T>, item: T) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 4).max(16));
    }
    list.push(item);
}

/// Multiply and fold, twice.
fn hash(context: u32, token: Token) -> u32 {
    let fold = |a: u64, b: u64| {
        let product = u128::from(a) * u128::from(b);
        product as u64 ^ (product >> 64) as u64
    };
    let key = u64::from(context) << 32 | u64::from(token);
    (fold(fold(key ^ 0x9e37_79b9_7f4a_7c15, 0xa076_1d64_78bd_642f), 0xe703_7ed1_a0b4_28db) >> 32) as u32
}
