//! The sources of a drafter's network that is an encoder-decoder: it reads the source of its sequence with an encoder
//! of its own, once for all sequences of a tenant with the same one.
//!
//! A source that the network cannot read, or that there are no pages for, costs only the drafts of its sequence.

use std::sync::Arc;

use foretoken_model::{Executor, PageTable, Source, SourceCapacity};
use foretoken_speculation::{Opening, Tenant, Token};

use crate::sources::Sources;

/// The source of a sequence, whose pages are held.
pub(super) struct HeldTokens {
    tenant: Tenant,
    tokens: Arc<[Token]>,
    table: PageTable,
    is_computed: bool,
    /// The source's number, which tells its rows from those of other sources.
    pub(super) number: u64,
}

/// The network has an encoder that cannot read the source.
pub(super) struct Unreadable;

/// Holds the source of a sequence for a network with this capacity for sources; `None` if it has no encoder.
///
/// # Errors
/// There is no source, or it has too many tokens, others than the encoder's, or no pages.
pub(super) fn hold(
    sources: &mut Sources,
    capacity: Option<&SourceCapacity>,
    opening: &Opening<'_>,
) -> Result<Option<HeldTokens>, Unreadable> {
    let Some(capacity) = capacity else { return Ok(None) };
    let (tenant, tokens) = (opening.tenant, Arc::<[Token]>::from(opening.source));
    let is_readable = (1..=capacity.longest()).contains(&tokens.len())
        && tokens.iter().all(|token| (*token as usize) < capacity.vocabulary);
    if !is_readable || !sources.has_room(tenant, &tokens) {
        return Err(Unreadable);
    }
    let number = sources.add_sequence(tenant, &tokens);
    let held = sources.hold(tenant, &tokens);
    Ok(Some(HeldTokens { tenant, tokens, table: held.table, is_computed: held.is_computed, number }))
}

/// Opens a sequence in an executor, with its source if it has one. Returns whether that worked.
pub(super) fn open(executor: &mut dyn Executor, sequence: u64, held: Option<&mut HeldTokens>) -> bool {
    let Some(held) = held else { return executor.open(sequence, None).is_ok() };
    let HeldTokens { tokens, table, is_computed, .. } = held;
    let is_open = executor.open(sequence, Some(Source { tokens, table, is_computed: *is_computed })).is_ok();
    held.is_computed |= is_open;
    is_open
}

/// Releases the source of a sequence that ends.
pub(super) fn release(sources: &mut Sources, held: &HeldTokens) {
    sources.release(held.tenant, &held.tokens, held.is_computed);
    sources.remove_sequence(held.tenant, &held.tokens);
}
