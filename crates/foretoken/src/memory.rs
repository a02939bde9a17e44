//! What a generator will need of memory, and what it may take: compared before it is taken.
//!
//! Needed are the weights in the form in which they are multiplied, the whole cache, what passes compute with, and the
//! same of draft models. What may be taken is one number for the whole process, for memory is the process's
//! ([`MemoryLimit`]): what the system has free ([`available`]), unless a door sets another. More than that is refused
//! with its parts and what would make them smaller: a machine that begins to swap, or ends some other program, helps
//! nobody. Who says that there is no limit is told of a shortage and nothing more, since caches are filled as texts
//! grow. Where all but the experts of a network fits, these get what is left, and are brought there when they are
//! chosen. Left out: what is small, and systems other than Linux, which are not asked what they have.

mod available;

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use foretoken_model::{CacheType, ExpertNeed, Options, WeightType};
use foretoken_weights::Tensor;

use crate::Error;
use crate::error::Message;
use crate::models::Opened;

/// How much memory the process may take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemoryLimit {
    /// What the system has free when it is asked: the machine, control groups and limits of the process.
    #[default]
    Free,
    /// So many bytes, what the process already has included; and never more than is free.
    Bytes(usize),
    /// Whatever is asked for. A shortage is told.
    None,
}

static LIMIT: RwLock<MemoryLimit> = RwLock::new(MemoryLimit::Free);

impl MemoryLimit {
    /// Holds for the whole process from now on.
    pub fn choose(self) {
        *LIMIT.write().unwrap_or_else(PoisonError::into_inner) = self;
    }

    /// What holds.
    pub fn chosen() -> Self {
        *LIMIT.read().unwrap_or_else(PoisonError::into_inner)
    }
}

/// As it is written: `free`, `none`, or bytes with a unit or without: `6GB`, `512MiB`, `1e9`.
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

/// Bytes as they are written, with a unit or without: `6GB`, `512MiB`, `1e9`, `0`.
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
            Self::Bytes(bytes) => f.write_str(&shown(*bytes)),
        }
    }
}

/// Bytes that a generator needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// The target's weights.
    pub(crate) weights: usize,
    /// Of these, what floats have that `dtype` could make smaller.
    pub(crate) floats: usize,
    /// Of these, the experts that tokens choose, as far as they have no less room.
    pub(crate) experts: usize,
    /// The least room that they could do with.
    pub(crate) experts_least: usize,
    /// The target's keys and values.
    pub(crate) cache: usize,
    /// What the target computes with, of as many rows as a pass may have.
    pub(crate) passes: usize,
    /// The same of draft models.
    pub(crate) drafts: usize,
}

impl Need {
    /// What a target needs that is run in this way.
    ///
    /// # Errors
    /// As [`Opened::expert_need`].
    pub(crate) fn of_target(model: &Opened, options: &Options) -> Result<Self, Error> {
        let floats = |tensor: &Tensor| is_matrix_of_floats(tensor).then_some(tensor.bytes.len());
        let floats = model.checkpoint.weights.iter().filter_map(floats).sum();
        let floats = if options.weight_type.is_some() { 0 } else { floats };
        let weights = model.checkpoint.weights.iter().map(|tensor| packed_bytes(tensor, options.weight_type)).sum();
        let cache = cache(model, options);
        let ExpertNeed { all: experts, least: experts_least } = model.expert_need(options.weight_type)?;
        let passes = passes(model, options);
        let all = Self { weights, floats, experts, experts_least, cache, passes, drafts: 0 };
        Ok(options.expert_bytes.map_or(all, |bytes| all.with_experts_in(bytes)))
    }

    /// The same with room for so many bytes of experts.
    fn with_experts_in(self, bytes: usize) -> Self {
        let spared = self.experts.saturating_sub(bytes);
        Self { weights: self.weights.saturating_sub(spared), experts: self.experts - spared, ..self }
    }

    fn all(&self) -> usize {
        let Self { weights, cache, passes, drafts, .. } = *self;
        [weights, cache, passes, drafts].into_iter().fold(0, usize::saturating_add)
    }

    /// What a draft model needs that is run in this way.
    ///
    /// # Errors
    /// As [`of_target`](Self::of_target).
    pub(crate) fn of_draft(model: &Opened, options: &Options) -> Result<usize, Error> {
        Ok(Self::of_target(model, options)?.all())
    }

    /// What the first layers of a target need that is run in this way, where their weights are its own.
    pub(crate) fn of_exit(model: &Opened, options: &Options, layers: usize) -> usize {
        let types: [CacheType; 2] = [options.key_type, options.value_type];
        let own = (0..layers.min(model.spec.kv_layers())).map(|layer| model.spec.cache_bytes_of(layer, types));
        let positions = options.page_len.saturating_mul(options.pages);
        own.fold(0, usize::saturating_add).saturating_mul(positions).saturating_add(passes(model, options))
    }

    /// Holds that much for as long as what is given back lives: caches are filled as texts grow, and whoever opens
    /// another model meanwhile is not to be promised the same memory.
    pub(crate) fn promise(&self, options: &Options) -> Promised {
        let need = options.expert_bytes.map_or(*self, |bytes| self.with_experts_in(bytes));
        PROMISED.fetch_add(need.all(), Ordering::Relaxed);
        Promised(need.all())
    }

    /// Compares this with what may be taken. Where a limit holds and only the experts are too many, they get the room
    /// that is left, unless theirs was chosen. `Some`: there is less, which is to be told and no more.
    ///
    /// # Errors
    /// There is less, and a limit holds.
    pub(crate) fn check(&self, options: &mut Options) -> Result<Option<Message>, Error> {
        let mut now = Free::now();
        if now.allows().is_some_and(|allowed| allowed < self.all()) {
            // Allocators keep some of what was freed.
            foretoken_kernels::allocator::give_back();
            now = Free::now();
        }
        let &Free { limit, free, held } = &now;
        if options.expert_bytes.is_none() {
            options.expert_bytes = self.room_for_experts(limit, free, || held);
        }
        let need = options.expert_bytes.map_or(*self, |bytes| self.with_experts_in(bytes));
        let Some(shortage) = need.beyond(limit, free, || held) else { return Ok(None) };
        let missing = need.all().saturating_sub(now.allows().unwrap_or(0));
        if limit == MemoryLimit::None { Ok(Some(shortage)) } else { Err(Error::Memory(shortage, missing)) }
    }

    /// What experts may take of what is allowed, where not all of them fit and what they need at least does.
    fn room_for_experts(&self, limit: MemoryLimit, free: Option<usize>, held: impl Fn() -> usize) -> Option<usize> {
        let (allowed, _) = allowed(limit, free, held).filter(|_| limit != MemoryLimit::None)?;
        let left = allowed.checked_sub(self.all() - self.experts.min(self.all()))?;
        let room = left - left / SYSTEM_PART;
        (self.all() > allowed && self.experts > 0 && room >= self.experts_least).then_some(room)
    }

    /// What is to be said where experts have less room than they take.
    pub(crate) fn note_experts(&self, options: &Options) -> Option<Message> {
        let bytes = options.expert_bytes.filter(|bytes| *bytes < self.experts)?;
        let (experts, room) = (shown(self.experts), shown(bytes));
        let rest = format!(": of {experts} of experts {room} are in memory at a time; texts stay the same");
        Some(Message::setting("expert_memory").and(rest))
    }

    /// What is to be said if this is more than is allowed, where so many bytes are free (none: nothing is known) and so
    /// many are already held.
    fn beyond(&self, limit: MemoryLimit, free: Option<usize>, held: impl Fn() -> usize) -> Option<Message> {
        let Self { weights, floats, experts, cache, passes, drafts, .. } = *self;
        let all = self.all();
        let (allowed, of_limit) = allowed(limit, free, held)?;
        if all <= allowed {
            return None;
        }
        let of_experts = if experts > 0 { format!(" with experts {}", shown(experts)) } else { String::new() };
        let mut parts = vec![format!("weights {}{of_experts}", shown(weights)), format!("cache {}", shown(cache))];
        parts.push(format!("passes {}", shown(passes)));
        if drafts > 0 {
            parts.push(format!("draft models {}", shown(drafts)));
        }
        let found = match limit {
            MemoryLimit::Bytes(bytes) if of_limit => {
                let found = format!("found {}, which is what ", shown(allowed));
                Message::words(found).and_setting("memory_limit").and(format!(" {} leaves", shown(bytes)))
            }
            _ => Message::words(format!("found {} free", shown(allowed))),
        };
        let (all, parts) = (shown(all), parts.join(", "));
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

/// What there is of memory at a moment.
struct Free {
    limit: MemoryLimit,
    /// Not taken and not promised; `None`: nothing is known.
    free: Option<usize>,
    /// Taken or promised by this process.
    held: usize,
}

impl Free {
    fn now() -> Self {
        let held = available::held(&available::read).unwrap_or(0);
        let promised = PROMISED.load(Ordering::Relaxed);
        let free = available::available(&available::read);
        // What was promised and not taken yet is not free.
        let free = free.map(|free| free.saturating_sub(promised.saturating_sub(held)));
        Self { limit: MemoryLimit::chosen(), free, held: held.max(promised) }
    }

    /// Bytes that may be taken, where that is known.
    fn allows(&self) -> Option<usize> {
        allowed(self.limit, self.free, || self.held).map(|(allowed, _)| allowed)
    }
}

/// Bytes that open generators may still take or have taken.
static PROMISED: AtomicUsize = AtomicUsize::new(0);

/// Memory that a generator was promised, in bytes; dropped behind all that takes it.
#[derive(Debug)]
pub(crate) struct Promised(pub(crate) usize);

impl Drop for Promised {
    fn drop(&mut self) {
        PROMISED.fetch_sub(self.0, Ordering::Relaxed);
        // Whoever closes one model may be about to open another.
        foretoken_kernels::allocator::give_back();
    }
}

/// One part in so many of what experts could take is left to the system, which keeps pages of their file there.
const SYSTEM_PART: usize = 8;

/// What is allowed, where so many bytes are free (none: nothing is known) and so many are already held, and whether it
/// is the limit that says so. None: nothing is known.
fn allowed(limit: MemoryLimit, free: Option<usize>, held: impl Fn() -> usize) -> Option<(usize, bool)> {
    let of_limit = match limit {
        MemoryLimit::Bytes(bytes) => Some(bytes.saturating_sub(held())),
        MemoryLimit::Free | MemoryLimit::None => None,
    };
    let allowed = free.into_iter().chain(of_limit).min()?;
    Some((allowed, of_limit == Some(allowed)))
}

/// Bytes of a tensor in the form in which it is multiplied, where matrices of floats are brought to a type. Floats of 8
/// bits are multiplied as f32.
fn packed_bytes(tensor: &Tensor, wanted: Option<WeightType>) -> usize {
    match wanted.filter(|_| is_matrix_of_floats(tensor)) {
        None if tensor.dtype.name() == "F8_E4M3" => tensor.bytes.len().saturating_mul(4),
        None => tensor.bytes.len(),
        Some(wanted) => {
            let elements: usize = tensor.shape.iter().product();
            match wanted.fitting(tensor.shape.last().copied().unwrap_or(1)) {
                WeightType::F32 => 4 * elements,
                WeightType::F16 | WeightType::BF16 => 2 * elements,
                WeightType::Blocks(format) => elements / format.elements() * format.bytes(),
            }
        }
    }
}

fn is_matrix_of_floats(tensor: &Tensor) -> bool {
    tensor.shape.len() > 1 && ["F32", "F16", "BF16"].contains(&tensor.dtype.name())
}

/// Bytes of a model's keys and values.
fn cache(model: &Opened, options: &Options) -> usize {
    let types: [CacheType; 2] = [options.key_type, options.value_type];
    let positions = options.page_len.saturating_mul(options.pages);
    model.spec.cache_bytes_per_position(types).saturating_mul(positions)
}

/// Rows of a pass whose logits are wanted, as far as one reckons with them: those of a draft tree.
const WANTED_ROWS: usize = 64;

/// Bytes that a pass of the most rows computes with: about eight vectors of the stream's width a row, two of the
/// feed-forward half's or four of each expert that it goes through, all in floats, and logits.
fn passes(model: &Opened, options: &Options) -> usize {
    let spec = &model.spec;
    let of_experts = spec.experts.as_ref().map_or(0, |experts| {
        let shared = experts.shared.map_or(0, |shared| shared.ffn_width);
        // Each once more as it lies for products, for which every expert keeps room.
        let each = spec.width.saturating_add(experts.ffn_width).saturating_mul(4);
        each.saturating_mul(experts.chosen).saturating_add(experts.count).saturating_add(shared.saturating_mul(2))
    });
    let dense = spec.ffn_width.saturating_mul(2);
    let inside = match &spec.experts {
        Some(experts) if experts.beside_dense => dense.saturating_add(of_experts),
        _ => dense.max(of_experts),
    };
    let row = spec.width.saturating_mul(8).saturating_add(inside);
    let rows = row.saturating_mul(options.rows_max.min(options.pages.saturating_mul(options.page_len)));
    rows.saturating_add(spec.vocabulary.saturating_mul(WANTED_ROWS)).saturating_mul(4)
}

fn shown(bytes: usize) -> String {
    let bytes = bytes as f64;
    if bytes < 1e9 { format!("{:.0} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) }
}

#[cfg(test)]
mod tests {
    use foretoken_weights::{Bytes, Dtype, Layout};

    use super::*;

    #[test]
    fn a_shortage_names_the_parts_and_what_to_change() {
        let need = Need { weights: 2_000_000_000, floats: 1, cache: 300_000_000, ..Need::default() };
        let beyond = |need: Need, limit, free| need.beyond(limit, free, || 200_000_000).map(|it| it.to_string());
        assert_eq!(beyond(need, MemoryLimit::Free, Some(2_300_000_000)), None);
        assert_eq!(beyond(need, MemoryLimit::Free, None), None);
        let expected = "memory: expected 2.3 GB (weights 2.0 GB, cache 300 MB, passes 0 MB), found 1.2 GB free; less \
                        is needed with a smaller ctx_size, dtype q8_0 or q4_k, cache_type_k and cache_type_v q8_0";
        let told = beyond(need, MemoryLimit::None, Some(1_200_000_000)).expect("it does not suffice");
        assert_eq!(told, expected);
        let refused = beyond(need, MemoryLimit::Free, Some(1_200_000_000)).expect("it does not suffice");
        assert_eq!(refused, format!("{expected}; memory_limit none goes on all the same"));
        let quantized = Need { floats: 0, drafts: 50_000_000, ..need };
        let quantized = beyond(quantized, MemoryLimit::None, Some(1_200_000_000)).expect("it does not suffice");
        assert!(quantized.contains("draft models 50 MB), found") && !quantized.contains("dtype"), "{quantized}");
        // What is already held counts where a limit was named, and what is free holds there too.
        let limited = beyond(need, MemoryLimit::Bytes(2_400_000_000), Some(9_000_000_000)).expect("200 MB are held");
        assert!(limited.contains("found 2.2 GB, which is what memory_limit 2.4 GB leaves;"), "{limited}");
        assert_eq!(beyond(need, MemoryLimit::Bytes(2_500_000_000), Some(9_000_000_000)), None);
        let unfree = beyond(need, MemoryLimit::Bytes(2_500_000_000), Some(1_000_000)).expect("it is not free");
        assert!(unfree.contains("found 1 MB free;"), "{unfree}");
    }

    #[test]
    fn weights_are_counted_as_they_are_multiplied() {
        let tensor = |dtype: Dtype, shape: &[usize]| {
            let bytes = Bytes::from_vec(vec![0; dtype.size_of(shape).expect("a size")]);
            Tensor { name: "a".to_string(), dtype, shape: shape.to_vec(), bytes }
        };
        let float8 = Dtype::Other(Layout { name: "F8_E4M3", elements: 1, bytes: 1 });
        let all = [tensor(Dtype::BF16, &[32, 64]), tensor(float8, &[32, 64]), tensor(Dtype::F32, &[64])];
        let found = |wanted| all.each_ref().map(|tensor| packed_bytes(tensor, wanted));
        assert_eq!(found(None), [4096, 8192, 256]);
        assert_eq!(found("q8_0".parse().ok()), [64 * 34, 8192, 256]);
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
        assert_eq!(room(need, MemoryLimit::None, 10_400_000_000), None, "whoever wants no limit gets all");
        assert_eq!([room(need, free, 2_500_000_000), room(need, free, 1_000_000_000)], [None; 2], "not even the least");
        assert_eq!(room(dense, free, 1_000_000_000), None);
        let few = need.with_experts_in(7_000_000_000);
        assert_eq!((few.all(), few.experts), (9_400_000_000, 7_000_000_000));
        assert_eq!(need.with_experts_in(usize::MAX), need);
        let told = few.beyond(free, Some(5_000_000_000), || 0).expect("it does not suffice").to_string();
        assert!(
            told.contains("(weights 9.0 GB with experts 7.0 GB, cache") && told.contains(", expert_memory,"),
            "{told}"
        );
        let options = Options { expert_bytes: Some(7_000_000_000), ..Options::for_positions(1, 1) };
        let note = need.note_experts(&options).map(|note| note.to_string());
        let expected = "expert_memory: of 16.0 GB of experts 7.0 GB are in memory at a time; texts stay the same";
        assert_eq!(note.as_deref(), Some(expected));
        assert_eq!(dense.note_experts(&options), None);
    }

    #[test]
    fn a_limit_is_read_as_people_write_sizes() {
        let read = |word: &str| word.parse::<MemoryLimit>();
        assert_eq!(read("6GB"), Ok(MemoryLimit::Bytes(6_000_000_000)));
        assert_eq!(read("1.5 GiB"), Ok(MemoryLimit::Bytes(3 << 29)));
        assert_eq!(read("512m"), Ok(MemoryLimit::Bytes(512_000_000)));
        assert_eq!((read("1e9"), read("100")), (Ok(MemoryLimit::Bytes(1_000_000_000)), Ok(MemoryLimit::Bytes(100))));
        assert_eq!((read("Free"), read("none")), (Ok(MemoryLimit::Free), Ok(MemoryLimit::None)));
        assert_eq!((parse_size("0"), parse_size("2 KiB"), parse_size("-1")), (Some(0), Some(2048), None));
        for wrong in ["", "-1GB", "0", "6XB", "GB", "nan", "inf", "1e30GB", "6GB6"] {
            let said = read(wrong).expect_err(wrong);
            assert_eq!(said, "expected a size as 6GB or 512MiB, or free or none", "{wrong}");
        }
    }
}
