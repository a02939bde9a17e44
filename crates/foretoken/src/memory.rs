//! The memory that a generator needs and may take, compared before anything is allocated.
//!
//! The need is the weights as they are packed, the whole cache, the buffers of passes, and the same for draft models.
//! The limit is one number for the whole process ([`MemoryLimit`]): what the system has free ([`available`]), unless a
//! front end sets another. If more is needed, opening fails with an error that lists the parts and what would make them
//! smaller, rather than making the machine swap or the system kill some program. Without a limit a shortage is only
//! reported, since caches are filled as sequences grow. Where everything but the experts of a network fits, the experts
//! get what is left, and are packed when they are chosen. Small allocations are not counted, and systems other than
//! Linux are not asked what is free.

mod available;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use foretoken_model::Options;

use crate::Error;
use crate::error::Message;

/// How much memory the process may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// What the system has free when it is asked: the machine, control groups and limits of the process.
    #[default]
    Free,
    /// So many bytes, including what the process already has; and never more than is free.
    Bytes(usize),
    /// No limit. A shortage is reported.
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
pub(crate) struct Need {
    /// The target's weights.
    pub(crate) weights: usize,
    /// Of these, the matrices of floats, which `dtype` could make smaller.
    pub(crate) floats: usize,
    /// Of these, the experts that tokens choose, or their room if it is smaller.
    pub(crate) experts: usize,
    /// The least room that the experts need.
    pub(crate) experts_least: usize,
    /// The target's keys and values.
    pub(crate) cache: usize,
    /// The target's buffers for as many rows as a pass may have.
    pub(crate) passes: usize,
    /// The same of draft models.
    pub(crate) drafts: usize,
}

impl Need {
    /// The same with room for so many bytes of experts.
    pub(crate) fn with_experts_in(self, bytes: usize) -> Self {
        let spared = self.experts.saturating_sub(bytes);
        Self { weights: self.weights.saturating_sub(spared), experts: self.experts - spared, ..self }
    }

    /// All of it.
    pub(crate) fn all(&self) -> usize {
        let Self { weights, cache, passes, drafts, .. } = *self;
        [weights, cache, passes, drafts].into_iter().fold(0, usize::saturating_add)
    }

    /// Reserves that much until the returned value is dropped: caches are filled as sequences grow, and a model that is
    /// opened meanwhile must not get the same memory.
    pub(crate) fn reserve(&self, options: &Options) -> MemoryReservation {
        let need = options.expert_bytes.map_or(*self, |bytes| self.with_experts_in(bytes));
        RESERVED.fetch_add(need.all(), Ordering::Relaxed);
        MemoryReservation(need.all())
    }

    /// Compares the need with what may be taken. Where there is a limit and only the experts exceed it, they get the
    /// room that is left, unless their room was set. Returns a shortage that is only to be reported.
    ///
    /// # Errors
    /// There is less, and there is a limit.
    pub(crate) fn check(&self, options: &mut Options) -> Result<Option<Message>, Error> {
        let mut now = MemoryState::now();
        if now.allows().is_some_and(|allowed| allowed < self.all()) {
            // Allocators keep some of what was freed.
            foretoken_kernels::allocator::release_free_memory();
            now = MemoryState::now();
        }
        let &MemoryState { limit, free, held } = &now;
        if options.expert_bytes.is_none() {
            options.expert_bytes = self.room_for_experts(limit, free, || held);
        }
        let need = options.expert_bytes.map_or(*self, |bytes| self.with_experts_in(bytes));
        let Some(shortage) = need.shortage_message(limit, free, || held) else { return Ok(None) };
        let missing = need.all().saturating_sub(now.allows().unwrap_or(0));
        if limit == MemoryLimit::None { Ok(Some(shortage)) } else { Err(Error::Memory(shortage, missing)) }
    }

    /// The room for experts, where not all of them fit and the least that they need does.
    fn room_for_experts(&self, limit: MemoryLimit, free: Option<usize>, held: impl Fn() -> usize) -> Option<usize> {
        let (allowed, _) = allowed(limit, free, held).filter(|_| limit != MemoryLimit::None)?;
        let left = allowed.checked_sub(self.all() - self.experts.min(self.all()))?;
        let room = left - left / SYSTEM_PART;
        (self.all() > allowed && self.experts > 0 && room >= self.experts_least).then_some(room)
    }

    /// A note for users where experts have less room than they take.
    pub(crate) fn note_experts(&self, options: &Options) -> Option<Message> {
        let bytes = options.expert_bytes.filter(|bytes| *bytes < self.experts)?;
        let (experts, room) = (format_bytes(self.experts), format_bytes(bytes));
        let rest = format!(": of {experts} of experts {room} are in memory at a time; texts stay the same");
        Some(Message::setting("expert_memory").and(rest))
    }

    /// The message if this is more than is allowed, where `free` bytes are free (`None` if that is unknown) and `held`
    /// bytes are already taken or reserved.
    fn shortage_message(&self, limit: MemoryLimit, free: Option<usize>, held: impl Fn() -> usize) -> Option<Message> {
        let Self { weights, floats, experts, cache, passes, drafts, .. } = *self;
        let all = self.all();
        let (allowed, of_limit) = allowed(limit, free, held)?;
        if all <= allowed {
            return None;
        }
        let of_experts = if experts > 0 { format!(" with experts {}", format_bytes(experts)) } else { String::new() };
        let mut parts =
            vec![format!("weights {}{of_experts}", format_bytes(weights)), format!("cache {}", format_bytes(cache))];
        parts.push(format!("passes {}", format_bytes(passes)));
        if drafts > 0 {
            parts.push(format!("draft models {}", format_bytes(drafts)));
        }
        let found = match limit {
            MemoryLimit::Bytes(bytes) if of_limit => {
                let found = format!("found {}, which is what ", format_bytes(allowed));
                Message::words(found).and_setting("memory_limit").and(format!(" {} leaves", format_bytes(bytes)))
            }
            _ => Message::words(format!("found {} free", format_bytes(allowed))),
        };
        let (all, parts) = (format_bytes(all), parts.join(", "));
        let message = Message::words(format!("memory: expected {all} ({parts}), ")).followed_by(found);
        let mut message = message.and("; less is needed with a smaller ").and_setting("ctx_size");
        if floats > 0 {
            message = message.and(", ").and_setting("dtype").and(" q8_0 or q4_k");
        }
        if experts > 0 {
            message = message.and(", ").and_setting("expert_memory");
        }
        let message = message.and(", ").and_setting("cache_type_k").and(" and ").and_setting("cache_type_v");
        let message = message.and(" q8_0");
        Some(match limit {
            MemoryLimit::None => message,
            _ => message.and("; ").and_setting("memory_limit").and(" none goes on all the same"),
        })
    }
}

/// The memory of process and system at a moment.
struct MemoryState {
    limit: MemoryLimit,
    /// Neither taken nor reserved; `None` if that is unknown.
    free: Option<usize>,
    /// Taken or reserved by this process.
    held: usize,
}

impl MemoryState {
    fn now() -> Self {
        let held = available::held(&available::read).unwrap_or(0);
        let reserved = RESERVED.load(Ordering::Relaxed);
        let free = available::available(&available::read);
        // What was reserved and not taken yet is not free.
        let free = free.map(|free| free.saturating_sub(reserved.saturating_sub(held)));
        Self { limit: MemoryLimit::chosen(), free, held: held.max(reserved) }
    }

    /// Bytes that may be taken, where that is known.
    fn allows(&self) -> Option<usize> {
        allowed(self.limit, self.free, || self.held).map(|(allowed, _)| allowed)
    }
}

/// Bytes that open generators may still take or have taken.
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

/// One part in so many of the experts' room is left to the system, which caches pages of their file there.
const SYSTEM_PART: usize = 8;

/// The bytes that are allowed, and whether the limit decides that, where `free` bytes are free (`None` if that is
/// unknown) and `held` bytes are already taken or reserved. `None` if nothing is known.
fn allowed(limit: MemoryLimit, free: Option<usize>, held: impl Fn() -> usize) -> Option<(usize, bool)> {
    let of_limit = match limit {
        MemoryLimit::Bytes(bytes) => Some(bytes.saturating_sub(held())),
        MemoryLimit::Free | MemoryLimit::None => None,
    };
    let allowed = free.into_iter().chain(of_limit).min()?;
    Some((allowed, of_limit == Some(allowed)))
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
        let need = Need { weights: 2_000_000_000, floats: 1, cache: 300_000_000, ..Need::default() };
        let shortage_message =
            |need: Need, limit, free| need.shortage_message(limit, free, || 200_000_000).map(|it| it.to_string());
        assert_eq!(shortage_message(need, MemoryLimit::Free, Some(2_300_000_000)), None);
        assert_eq!(shortage_message(need, MemoryLimit::Free, None), None);
        let expected = "memory: expected 2.3 GB (weights 2.0 GB, cache 300 MB, passes 0 MB), found 1.2 GB free; less \
                        is needed with a smaller ctx_size, dtype q8_0 or q4_k, cache_type_k and cache_type_v q8_0";
        let message = shortage_message(need, MemoryLimit::None, Some(1_200_000_000)).expect("it does not suffice");
        assert_eq!(message, expected);
        let refused = shortage_message(need, MemoryLimit::Free, Some(1_200_000_000)).expect("it does not suffice");
        assert_eq!(refused, format!("{expected}; memory_limit none goes on all the same"));
        let quantized = Need { floats: 0, drafts: 50_000_000, ..need };
        let quantized =
            shortage_message(quantized, MemoryLimit::None, Some(1_200_000_000)).expect("it does not suffice");
        assert!(quantized.contains("draft models 50 MB), found") && !quantized.contains("dtype"), "{quantized}");
        // What is already held counts towards a limit, which is never more than what is free.
        let limited =
            shortage_message(need, MemoryLimit::Bytes(2_400_000_000), Some(9_000_000_000)).expect("200 MB are held");
        assert!(limited.contains("found 2.2 GB, which is what memory_limit 2.4 GB leaves;"), "{limited}");
        assert_eq!(shortage_message(need, MemoryLimit::Bytes(2_500_000_000), Some(9_000_000_000)), None);
        let unfree =
            shortage_message(need, MemoryLimit::Bytes(2_500_000_000), Some(1_000_000)).expect("it is not free");
        assert!(unfree.contains("found 1 MB free;"), "{unfree}");
    }

    #[test]
    fn experts_get_what_the_rest_leaves() {
        let dense = Need { weights: 2_000_000_000, cache: 400_000_000, ..Need::default() };
        let need = Need { weights: 18_000_000_000, experts: 16_000_000_000, experts_least: 100_000_000, ..dense };
        let room = |need: Need, limit, free| need.room_for_experts(limit, Some(free), || 0);
        let free = MemoryLimit::Free;
        assert_eq!(room(need, free, 18_400_000_000), None, "all fit");
        assert_eq!(room(need, free, 10_400_000_000), Some(7_000_000_000));
        assert_eq!(room(need, MemoryLimit::Bytes(10_400_000_000), 90_000_000_000), Some(7_000_000_000));
        assert_eq!(room(need, MemoryLimit::None, 10_400_000_000), None, "no limit: all experts are packed");
        assert_eq!([room(need, free, 2_500_000_000), room(need, free, 1_000_000_000)], [None; 2], "not even the least");
        assert_eq!(room(dense, free, 1_000_000_000), None);
        let few = need.with_experts_in(7_000_000_000);
        assert_eq!((few.all(), few.experts), (9_400_000_000, 7_000_000_000));
        assert_eq!(need.with_experts_in(usize::MAX), need);
        let message = few.shortage_message(free, Some(5_000_000_000), || 0).expect("it does not suffice").to_string();
        assert!(
            message.contains("(weights 9.0 GB with experts 7.0 GB, cache") && message.contains(", expert_memory,"),
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
