//! Compares the memory that a generator needs with what it may take, before anything is allocated.
//!
//! The need is the packed weights, the whole KV cache, the buffers of passes, and the same for draft models. The limit
//! ([`MemoryLimit`]) applies to the whole process; by default it is the free memory of the system ([`available`]). If
//! more is needed, opening fails with an error that lists the parts and the settings that would make them smaller, so
//! that the machine does not swap and the system kills no program. Without a limit a shortage is only reported, since
//! caches are filled as sequences grow. If everything but the routed experts fits, the experts get the rest, and are
//! packed when they are chosen; of other networks the layers get the rest, and are read from a file for every pass.
//! Small allocations are not counted. On systems other than Linux the free memory is unknown.

mod available;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use foretoken_model::Options;

use crate::Error;
use crate::error::Message;

/// The memory that the process may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The free memory at the moment, by the machine, control groups and limits of the process.
    #[default]
    Free,
    /// This number of bytes, including those that the process already has, but never more than the free memory.
    Bytes(usize),
    /// No limit. A shortage is only reported.
    None,
}

static LIMIT: RwLock<MemoryLimit> = RwLock::new(MemoryLimit::Free);

impl MemoryLimit {
    /// Sets the limit of the whole process.
    pub fn choose(self) {
        *LIMIT.write().unwrap_or_else(PoisonError::into_inner) = self;
    }

    /// The limit of the process.
    pub fn chosen() -> Self {
        *LIMIT.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Parses `free`, `none`, or bytes with or without a unit: `6GB`, `512MiB`, `1e9`.
impl FromStr for MemoryLimit {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let wrong = || "expected a size as 6GB or 512MiB, or free or none".to_string();
        match word.to_ascii_lowercase().as_str() {
            "free" => return Ok(Self::Free),
            "none" => return Ok(Self::None),
            _ => {}
        }
        parse_size(word).filter(|bytes| *bytes > 0).map(Self::Bytes).ok_or_else(wrong)
    }
}

/// Parses bytes with or without a unit: `6GB`, `512MiB`, `1e9`, `0`.
pub fn parse_size(word: &str) -> Option<usize> {
    let units = word.find(|c: char| c.is_ascii_alphabetic() && !matches!(c, 'e' | 'E')).unwrap_or(word.len());
    let (number, unit) = word.split_at(units);
    let power = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kb" => 1e3,
        "m" | "mb" => 1e6,
        "g" | "gb" => 1e9,
        "t" | "tb" => 1e12,
        "kib" => 1024.0,
        "mib" => 1024.0 * 1024.0,
        "gib" => 1024.0 * 1024.0 * 1024.0,
        "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let bytes = number.trim().parse::<f64>().ok()? * power;
    (bytes == 0.0 || (1.0..1e18).contains(&bytes)).then_some(bytes as usize)
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Free => f.write_str("free"),
            Self::None => f.write_str("none"),
            Self::Bytes(bytes) => f.write_str(&format_bytes(*bytes)),
        }
    }
}

/// Bytes that a generator needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryNeed {
    /// The target's weights.
    pub(crate) weights: usize,
    /// Of the weights, the matrices of floats, which `dtype` could make smaller.
    pub(crate) floats: usize,
    /// Of the weights, the routed experts, or their room if it is smaller.
    pub(crate) experts: usize,
    /// The least room that the experts need.
    pub(crate) experts_least: usize,
    /// Of the weights, the layers that can be read from a file for every pass, or their room if it is smaller.
    pub(crate) layers: usize,
    /// The least room that the layers need.
    pub(crate) layers_least: usize,
    /// The target's keys and values.
    pub(crate) cache: usize,
    /// The target's buffers for as many rows as a pass may have.
    pub(crate) passes: usize,
    /// Weights, caches and buffers of draft models.
    pub(crate) drafts: usize,
}

impl MemoryNeed {
    /// This need with at most `bytes` for experts.
    pub(crate) fn with_experts_in(self, bytes: usize) -> Self {
        let spared = self.experts.saturating_sub(bytes);
        Self { weights: self.weights.saturating_sub(spared), experts: self.experts - spared, ..self }
    }

    /// This need with at most `bytes` for layers.
    pub(crate) fn with_layers_in(self, bytes: usize) -> Self {
        let spared = self.layers.saturating_sub(bytes);
        Self { weights: self.weights.saturating_sub(spared), layers: self.layers - spared, ..self }
    }

    /// This need with the room that the options give to experts and layers.
    pub(crate) fn within(self, options: &Options) -> Self {
        let need = options.expert_bytes.map_or(self, |bytes| self.with_experts_in(bytes));
        options.layer_bytes.map_or(need, |bytes| need.with_layers_in(bytes))
    }

    /// This need with a rank's part of the weights. What else is in parts depends on the network.
    pub(crate) fn of_rank(self, ranks: usize) -> Self {
        let part = |bytes: usize| bytes.div_ceil(ranks.max(1));
        let Self { weights, floats, experts, experts_least, .. } = self;
        let [weights, floats, experts, experts_least] = [weights, floats, experts, experts_least].map(part);
        Self { weights, floats, experts, experts_least, ..self }
    }

    /// All bytes together.
    pub(crate) fn total(&self) -> usize {
        let Self { weights, cache, passes, drafts, .. } = *self;
        [weights, cache, passes, drafts].into_iter().fold(0, usize::saturating_add)
    }

    /// Reserves these bytes until the returned value is dropped: caches are filled as sequences grow, and a model that
    /// is opened meanwhile must not get the same memory.
    pub(crate) fn reserve(&self, options: &Options) -> MemoryReservation {
        let bytes = self.within(options).total();
        RESERVED.fetch_add(bytes, Ordering::Relaxed);
        MemoryReservation(bytes)
    }

    /// Compares the need with the memory that may be taken. If there is a limit and only the experts, or the layers,
    /// exceed it, sets their room in `options` to what is left, unless it is set. Without a limit, returns the message
    /// of a shortage.
    ///
    /// # Errors
    /// There is a limit, and less memory than needed.
    pub(crate) fn check(&self, options: &mut Options) -> Result<Option<Message>, Error> {
        let mut now = MemoryState::now();
        if now.allowed().is_some_and(|allowed| allowed < self.total()) {
            // Allocators keep some of what was freed.
            foretoken_kernels::allocator::release_free_memory();
            now = MemoryState::now();
        }
        let &MemoryState { limit, free, held } = &now;
        if options.expert_bytes.is_none() {
            options.expert_bytes = self.room_for(self.experts, self.experts_least, (limit, free, held));
        }
        if options.layer_bytes.is_none() {
            options.layer_bytes = self.room_for(self.layers, self.layers_least, (limit, free, held));
        }
        let need = self.within(options);
        let Some(shortage) = need.shortage_message(limit, free, held) else { return Ok(None) };
        let missing = need.total().saturating_sub(now.allowed().unwrap_or(0));
        if limit == MemoryLimit::None { Ok(Some(shortage)) } else { Err(Error::Memory(shortage, missing)) }
    }

    /// The room for a part of the need, the experts or the layers, if not all of it fits and `least` does. `memory`:
    /// the arguments of [`allowed`].
    fn room_for(&self, part: usize, least: usize, memory: (MemoryLimit, Option<usize>, usize)) -> Option<usize> {
        let (limit, free, held) = memory;
        let (allowed, _) = allowed(limit, free, held).filter(|_| limit != MemoryLimit::None)?;
        let left = allowed.checked_sub(self.total() - part.min(self.total()))?;
        let room = left - left / SYSTEM_PART;
        (self.total() > allowed && part > 0 && room >= least).then_some(room)
    }

    /// A note for users if not all experts are in memory at a time.
    pub(crate) fn note_experts(&self, options: &Options) -> Option<Message> {
        let bytes = options.expert_bytes.filter(|bytes| *bytes < self.experts)?;
        let (experts, room) = (format_bytes(self.experts), format_bytes(bytes));
        let rest = format!(": of {experts} of experts {room} are in memory at a time; texts stay the same");
        Some(Message::setting("expert_memory").and(rest))
    }

    /// Whether not all layers are in memory at a time.
    pub(crate) fn reads_layers(&self, options: &Options) -> bool {
        options.layer_bytes.is_some_and(|bytes| bytes < self.layers)
    }

    /// A note for users if not all layers are in memory at a time.
    pub(crate) fn note_layers(&self, options: &Options) -> Option<Message> {
        let bytes = options.layer_bytes.filter(|_| self.reads_layers(options))?;
        let (layers, room) = (format_bytes(self.layers), format_bytes(bytes));
        let rest = format!(": {layers} of layers are read from a file for every pass, but for {room}");
        Some(Message::setting("offload").and(rest).and("; texts stay the same"))
    }

    /// The message of a shortage, if there is one. Arguments as in [`allowed`].
    fn shortage_message(&self, limit: MemoryLimit, free: Option<usize>, held: usize) -> Option<Message> {
        let Self { weights, floats, experts, experts_least, layers_least, cache, passes, drafts, .. } = *self;
        let total = self.total();
        let (allowed, is_limited) = allowed(limit, free, held)?;
        if total <= allowed {
            return None;
        }
        let mut parts = format!("weights {}", format_bytes(weights));
        if experts > 0 {
            let suffice = format_bytes(experts_least);
            parts += &format!(" with experts {}, of which {suffice} at a time suffice", format_bytes(experts));
        }
        if layers_least > 0 {
            parts += &format!(" with layers, of which {} at a time suffice", format_bytes(layers_least));
        }
        parts += &format!(", cache {}, passes {}", format_bytes(cache), format_bytes(passes));
        if drafts > 0 {
            parts += &format!(", draft models {}", format_bytes(drafts));
        }
        let found = match limit {
            MemoryLimit::Bytes(bytes) if is_limited => {
                let found = format!("found {}, which is what ", format_bytes(allowed));
                Message::words(found).and_setting("memory_limit").and(format!(" {} leaves", format_bytes(bytes)))
            }
            _ => Message::words(format!("found {} free", format_bytes(allowed))),
        };
        let need = Message::words(format!("memory: expected {} ({parts}), ", format_bytes(total)));
        let mut message = need.followed_by(found).and("; less is needed with a smaller ").and_setting("ctx_size");
        if floats > 0 {
            message = message.and(", ").and_setting("dtype").and(" q8_0 or q4_k");
        }
        if experts > 0 {
            message = message.and(", ").and_setting("expert_memory");
        }
        message = message.and(", ").and_setting("cache_type_k").and(" and ").and_setting("cache_type_v").and(" q8_0");
        Some(match limit {
            MemoryLimit::None => message,
            _ => message.and("; ").and_setting("memory_limit").and(" none goes on all the same"),
        })
    }
}

/// The memory of process and system at a moment.
struct MemoryState {
    limit: MemoryLimit,
    /// Bytes that are neither taken nor reserved; `None` if that is unknown.
    free: Option<usize>,
    /// Bytes that this process has taken or reserved.
    held: usize,
}

impl MemoryState {
    fn now() -> Self {
        let held = available::held(&available::read).unwrap_or(0);
        let reserved = RESERVED.load(Ordering::Relaxed);
        let free = available::available(&available::read);
        // Reserved bytes that are not taken yet are not free.
        let free = free.map(|free| free.saturating_sub(reserved.saturating_sub(held)));
        Self { limit: MemoryLimit::chosen(), free, held: held.max(reserved) }
    }

    /// Bytes that may be taken; `None` if that is unknown.
    fn allowed(&self) -> Option<usize> {
        allowed(self.limit, self.free, self.held).map(|(allowed, _)| allowed)
    }
}

/// Bytes that open generators have reserved.
static RESERVED: AtomicUsize = AtomicUsize::new(0);

/// Memory that is reserved for a generator, in bytes; dropped after everything that uses it.
#[derive(Debug)]
pub(crate) struct MemoryReservation(pub(crate) usize);

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        RESERVED.fetch_sub(self.0, Ordering::Relaxed);
        // Another model may be opened next.
        foretoken_kernels::allocator::release_free_memory();
    }
}

/// One eighth of the room of experts or layers is left to the system, which caches pages of files there.
const SYSTEM_PART: usize = 8;

/// Bytes that may be taken, and whether the limit decides that rather than the free memory; `None` if that is unknown.
/// `free`: bytes that are free, if that is known; `held`: bytes that the process has taken or reserved.
fn allowed(limit: MemoryLimit, free: Option<usize>, held: usize) -> Option<(usize, bool)> {
    let left = match limit {
        MemoryLimit::Bytes(bytes) => Some(bytes.saturating_sub(held)),
        MemoryLimit::Free | MemoryLimit::None => None,
    };
    let allowed = free.into_iter().chain(left).min()?;
    Some((allowed, left == Some(allowed)))
}

fn format_bytes(bytes: usize) -> String {
    let bytes = bytes as f64;
    if bytes < 1e9 { format!("{:.0} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_the_parts_and_what_to_change() {
        let need = MemoryNeed { weights: 2_000_000_000, floats: 1, cache: 300_000_000, ..MemoryNeed::default() };
        let shortage_message =
            |need: MemoryNeed, limit, free| need.shortage_message(limit, free, 200_000_000).map(|it| it.to_string());
        assert_eq!(shortage_message(need, MemoryLimit::Free, Some(2_300_000_000)), None);
        assert_eq!(shortage_message(need, MemoryLimit::Free, None), None);
        let expected = "memory: expected 2.3 GB (weights 2.0 GB, cache 300 MB, passes 0 MB), found 1.2 GB free; less \
                        is needed with a smaller ctx_size, dtype q8_0 or q4_k, cache_type_k and cache_type_v q8_0";
        let message = shortage_message(need, MemoryLimit::None, Some(1_200_000_000)).expect("it does not suffice");
        assert_eq!(message, expected);
        let refused = shortage_message(need, MemoryLimit::Free, Some(1_200_000_000)).expect("it does not suffice");
        assert_eq!(refused, format!("{expected}; memory_limit none goes on all the same"));
        let quantized = MemoryNeed { floats: 0, drafts: 50_000_000, ..need };
        let quantized =
            shortage_message(quantized, MemoryLimit::None, Some(1_200_000_000)).expect("it does not suffice");
        assert!(quantized.contains("draft models 50 MB), found") && !quantized.contains("dtype"), "{quantized}");
        // Memory that is already held counts towards a limit, and no more than the free memory is allowed.
        let limited =
            shortage_message(need, MemoryLimit::Bytes(2_400_000_000), Some(9_000_000_000)).expect("200 MB are held");
        assert!(limited.contains("found 2.2 GB, which is what memory_limit 2.4 GB leaves;"), "{limited}");
        assert_eq!(shortage_message(need, MemoryLimit::Bytes(2_500_000_000), Some(9_000_000_000)), None);
        let unfree =
            shortage_message(need, MemoryLimit::Bytes(2_500_000_000), Some(1_000_000)).expect("it is not free");
        assert!(unfree.contains("found 1 MB free;"), "{unfree}");
    }

    #[test]
    fn a_rank_needs_its_part_of_the_weights() {
        let need = MemoryNeed {
            weights: 900,
            floats: 300,
            experts: 601,
            experts_least: 30,
            cache: 7,
            passes: 8,
            drafts: 9,
            ..MemoryNeed::default()
        };
        assert_eq!(need.of_rank(1), need);
        assert_eq!(need.of_rank(3), MemoryNeed { weights: 300, floats: 100, experts: 201, experts_least: 10, ..need });
    }

    #[test]
    fn experts_get_what_the_rest_leaves() {
        let dense = MemoryNeed { weights: 2_000_000_000, cache: 400_000_000, ..MemoryNeed::default() };
        let need = MemoryNeed { weights: 18_000_000_000, experts: 16_000_000_000, experts_least: 100_000_000, ..dense };
        let room =
            |need: MemoryNeed, limit, free| need.room_for(need.experts, need.experts_least, (limit, Some(free), 0));
        let free = MemoryLimit::Free;
        assert_eq!(room(need, free, 18_400_000_000), None, "all fit");
        assert_eq!(room(need, free, 10_400_000_000), Some(7_000_000_000));
        assert_eq!(room(need, MemoryLimit::Bytes(10_400_000_000), 90_000_000_000), Some(7_000_000_000));
        assert_eq!(room(need, MemoryLimit::None, 10_400_000_000), None, "no limit: all experts are packed");
        assert_eq!([room(need, free, 2_500_000_000), room(need, free, 1_000_000_000)], [None; 2], "not even the least");
        assert_eq!(room(dense, free, 1_000_000_000), None);
        let few = need.with_experts_in(7_000_000_000);
        assert_eq!((few.total(), few.experts), (9_400_000_000, 7_000_000_000));
        assert_eq!(need.with_experts_in(usize::MAX), need);
        let message = few.shortage_message(free, Some(5_000_000_000), 0).expect("it does not suffice").to_string();
        assert!(
            message.contains("(weights 9.0 GB with experts 7.0 GB, of which 100 MB at a time suffice, cache")
                && message.contains(", expert_memory,"),
            "{message}"
        );
        let options = Options { expert_bytes: Some(7_000_000_000), ..Options::for_positions(1, 1) };
        let note = need.note_experts(&options).map(|note| note.to_string());
        let expected = "expert_memory: of 16.0 GB of experts 7.0 GB are in memory at a time; texts stay the same";
        assert_eq!(note.as_deref(), Some(expected));
        assert_eq!(dense.note_experts(&options), None);
    }

    #[test]
    fn sizes_are_parsed_with_and_without_units() {
        let read = |word: &str| word.parse::<MemoryLimit>();
        assert_eq!(read("6GB"), Ok(MemoryLimit::Bytes(6_000_000_000)));
        assert_eq!(read("1.5 GiB"), Ok(MemoryLimit::Bytes(3 << 29)));
        assert_eq!(read("512m"), Ok(MemoryLimit::Bytes(512_000_000)));
        assert_eq!((read("1e9"), read("100")), (Ok(MemoryLimit::Bytes(1_000_000_000)), Ok(MemoryLimit::Bytes(100))));
        assert_eq!((read("Free"), read("none")), (Ok(MemoryLimit::Free), Ok(MemoryLimit::None)));
        assert_eq!((parse_size("0"), parse_size("2 KiB"), parse_size("-1")), (Some(0), Some(2048), None));
        for wrong in ["", "-1GB", "0", "6XB", "GB", "nan", "inf", "1e30GB", "6GB6"] {
            let error = read(wrong).expect_err(wrong);
            assert_eq!(error, "expected a size as 6GB or 512MiB, or free or none", "{wrong}");
        }
    }
}
