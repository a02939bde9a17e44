//! The trait [`Chance`], the only source of randomness, and the addresses that keep its draws apart.
//!
//! Nothing in this crate makes a random number. It asks [`Chance`] for a draw at an [`Address`], which says where in
//! the generation the draw belongs. The engine answers with a counter-based generator, a hash of the address, so that
//! drafting more or less never shifts the noise of a later token. Tests answer by walking every outcome and adding up
//! exact probabilities.
//!
//! The rule about addresses: under *rejection* no two draws ever share one, because the proof (in the documentation of
//! the crate) needs the draft's draw, the coin and the last draw to be independent. This includes the draws of
//! different requests of one seed: drafters learn from the outputs of earlier requests, and if the coins of such an
//! output were repeated, what was learned would predict them. So each request has a number besides its seed. Under
//! *exact* the opposite is wanted: drafter and target race with the same noise at the same position, and therefore
//! often agree; the output is the target's own pick whatever the drafter did with the noise. This noise has no request
//! number: same seed, same text.

use crate::{Law, LawId, Token};

/// What a draw is for.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// The exponential race at a position: under *exact* the target's pick and the drafter's, else the target's if
    /// nothing was offered.
    Token,
    /// The drafter's own draw, under *rejection*.
    Draft,
    /// Whether a proposal is accepted, under *rejection*.
    Coin,
    /// The target's own token after every proposal was rejected, under *rejection*.
    Residual,
}

/// One pass of one request. The addresses of all its draws under *rejection* contain this.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pass {
    /// The request's seed.
    pub seed: u64,
    /// The request's number: two requests with one seed need different numbers if a drafter may remember the first
    /// while it drafts for the second. *exact* does not use it.
    pub request: u64,
    /// First position that the pass chooses, counted from the beginning of the prompt: the length of the sequence with
    /// its pending token.
    pub start: u64,
}

/// The place of a draw in a generation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address {
    /// The request's seed.
    pub seed: u64,
    /// The request's number ([`Pass::request`]); 0 for the race under *exact*, which is the same in every request.
    pub request: u64,
    /// First position that this pass chooses, 0 for [`Purpose::Token`]. A position that was drafted and not reached is
    /// drafted again in a later pass, which starts later: this field keeps the two apart.
    pub pass: u64,
    /// Index of the token being chosen in the whole sequence, prompt included.
    pub position: u64,
    /// What the draw is for.
    pub purpose: Purpose,
    /// Which law (for a draft) or which offer (for a coin) of the pass; otherwise 0.
    pub index: u32,
}

impl Address {
    /// The race at a position under *exact*. It depends on nothing but seed and position, so speculation cannot shift
    /// it.
    pub fn token(seed: u64, position: u64) -> Address {
        Address { seed, request: 0, pass: 0, position, purpose: Purpose::Token, index: 0 }
    }

    /// The target's pick under *rejection* if nothing was offered. In the request of number 0 this is
    /// [`Address::token`].
    pub fn plain(pass: Pass, position: u64) -> Address {
        Address { request: pass.request, ..Address::token(pass.seed, position) }
    }

    /// A drafter's draw under *rejection*, from a law that was added to the tree before the draw.
    pub fn draft(pass: Pass, position: u64, law: LawId) -> Address {
        Address::of(pass, position, Purpose::Draft, law.index() as u32)
    }

    /// The coin of one offer.
    pub fn coin(pass: Pass, position: u64, offer: u32) -> Address {
        Address::of(pass, position, Purpose::Coin, offer)
    }

    /// The draw from the residual after all offers were rejected; at most one in a pass.
    pub fn residual(pass: Pass, position: u64) -> Address {
        Address::of(pass, position, Purpose::Residual, 0)
    }

    fn of(pass: Pass, position: u64, purpose: Purpose, index: u32) -> Address {
        Address { seed: pass.seed, request: pass.request, pass: pass.start, position, purpose, index }
    }
}

/// A source of chance. Its answers are a function of the address and the law alone.
pub trait Chance {
    /// Writes into `out` (cleared first) `count` different tokens drawn from the law one after the other without
    /// replacement, or its whole support if that is smaller. The first is the one that a single draw gives, and does
    /// not depend on `count`.
    ///
    /// In the engine this is the exponential race: every token of the support gets noise E from (address, token), and
    /// the tokens with the `count` smallest E / p win, in this order; of ties the lowest token comes first.
    fn draw(&mut self, law: &Law, count: usize, address: Address, out: &mut Vec<Token>);

    /// Returns true with this probability, 0 to 1: never at 0 and always at 1.
    fn coin(&mut self, probability: f64, address: Address) -> bool;

    /// Returns one token drawn from the law. A point mass needs no noise.
    fn pick(&mut self, law: &Law, address: Address) -> Token {
        if law.is_point() {
            return law.tokens()[0];
        }
        let mut out = Vec::with_capacity(1);
        self.draw(law, 1, address, &mut out);
        assert!(out.len() == 1, "a draw of one token gave {}", out.len());
        out[0]
    }
}
