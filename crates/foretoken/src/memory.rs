//! What a generator will need of memory, and what the system has: told before it is taken, where it does not suffice.
//!
//! Needed are the weights in the form in which they are multiplied, the whole cache, and the same of draft models. What
//! is there is what the kernel says could be had without swapping (`MemAvailable`), or less where a control group (a
//! container, a service) is allowed less. A shortage is told and nothing more: caches are filled as texts grow, and
//! somebody may know better. Left out: what passes need beside, some ten megabytes, and systems other than Linux.

use std::path::Path;

use foretoken_model::{CacheType, Options, WeightType};

use crate::error::Message;
use crate::models::Opened;

/// Bytes that a generator needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// The target's weights.
    pub(crate) weights: usize,
    /// Of these, what floats have that `dtype` could make smaller.
    pub(crate) floats: usize,
    /// The target's keys and values.
    pub(crate) cache: usize,
    /// Weights, keys and values of draft models.
    pub(crate) drafts: usize,
}

impl Need {
    /// What a target needs that is run in this way.
    pub(crate) fn of_target(model: &Opened, options: &Options) -> Self {
        let floats = |tensor: &foretoken_weights::Tensor| is_matrix_of_floats(tensor).then_some(tensor.bytes.len());
        let floats = model.checkpoint.weights.iter().filter_map(floats).sum();
        let floats = if options.weight_type.is_some() { 0 } else { floats };
        Self { weights: weights(model, options.weight_type), floats, cache: cache(model, options), drafts: 0 }
    }

    /// What a draft model needs that is run in this way.
    pub(crate) fn of_draft(model: &Opened, options: &Options) -> usize {
        weights(model, options.weight_type).saturating_add(cache(model, options))
    }

    /// What is to be said if the system has less.
    pub(crate) fn shortage(&self) -> Option<Message> {
        let texts = |path: &Path| std::fs::read_to_string(path).ok();
        self.beyond(available(&texts)?)
    }

    /// What is to be said if there are so many bytes.
    fn beyond(&self, available: usize) -> Option<Message> {
        let Self { weights, floats, cache, drafts } = *self;
        let all = weights.saturating_add(cache).saturating_add(drafts);
        if all <= available {
            return None;
        }
        let mut parts = vec![format!("weights {}", shown(weights)), format!("cache {}", shown(cache))];
        if drafts > 0 {
            parts.push(format!("draft models {}", shown(drafts)));
        }
        let (all, parts, found) = (shown(all), parts.join(", "), shown(available));
        let words = format!("memory: expected {all} ({parts}), found {found}; less is needed with a smaller ");
        let mut message = Message::words(words).and_setting("ctx_size");
        if floats > 0 {
            message = message.and(", ").and_setting("dtype").and(" q8_0 or q4_k");
        }
        Some(message.and(", ").and_setting("cache_type_k").and(" and ").and_setting("cache_type_v").and(" q8_0"))
    }
}

/// Bytes of a model's weights, where its matrices of floats are brought to a type.
fn weights(model: &Opened, wanted: Option<WeightType>) -> usize {
    let of = |tensor: &foretoken_weights::Tensor| match wanted.filter(|_| is_matrix_of_floats(tensor)) {
        None => tensor.bytes.len(),
        Some(wanted) => {
            let elements: usize = tensor.shape.iter().product();
            match wanted.fitting(tensor.shape.last().copied().unwrap_or(1)) {
                WeightType::F32 => 4 * elements,
                WeightType::F16 | WeightType::BF16 => 2 * elements,
                WeightType::Blocks(format) => elements / format.elements() * format.bytes(),
            }
        }
    };
    model.checkpoint.weights.iter().map(of).sum()
}

fn is_matrix_of_floats(tensor: &foretoken_weights::Tensor) -> bool {
    tensor.shape.len() > 1 && ["F32", "F16", "BF16"].contains(&tensor.dtype.name())
}

/// Bytes of a model's keys and values.
fn cache(model: &Opened, options: &Options) -> usize {
    let types: [CacheType; 2] = [options.key_type, options.value_type];
    let positions = options.page_len.saturating_mul(options.pages);
    model.spec.cache_bytes_per_position(types).saturating_mul(positions)
}

fn shown(bytes: usize) -> String {
    let bytes = bytes as f64;
    if bytes < 1e9 { format!("{:.0} MB", bytes / 1e6) } else { format!("{:.1} GB", bytes / 1e9) }
}

/// Bytes that can be had, as the files of Linux tell it; `None` where there are none.
fn available(read: &dyn Fn(&Path) -> Option<String>) -> Option<usize> {
    let all = field(&read(Path::new("/proc/meminfo"))?, "MemAvailable:")?.saturating_mul(1024);
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().filter_map(|line| left_of_group(line, read));
    left.chain([all]).min()
}

/// The number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<usize> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// What a control group, and those that it lies in, may take more than they have: a line of `/proc/self/cgroup`, of
/// version 2 (`0::/path`) or of the memory controller of version 1.
fn left_of_group(line: &str, read: &dyn Fn(&Path) -> Option<String>) -> Option<usize> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (controllers, path) = (fields.next()?, fields.next()?);
    let (root, limit, usage, of_files) = match controllers {
        "" => ("/sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file ", "active_file "]),
        controllers if controllers.split(',').any(|name| name == "memory") => {
            let of_files = ["total_inactive_file ", "total_active_file "];
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", of_files)
        }
        _ => return None,
    };
    let number = |folder: &Path, name: &str| read(&folder.join(name))?.trim().parse::<usize>().ok();
    let left = |folder: &Path| {
        let limit = number(folder, limit)?;
        let stat = read(&folder.join("memory.stat")).unwrap_or_default();
        // Pages of files are given back when somebody needs them; a model's own file is among them.
        let files = of_files.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(number(folder, usage)?.saturating_sub(files)))
    };
    // In a container the path may be that of outside, which is not there; the root is.
    let inside = Path::new(path.trim_start_matches('/'));
    inside.ancestors().filter_map(|folder| left(&Path::new(root).join(folder))).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading<'a>(files: &'a [(&'a str, &'a str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        |path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_string())
    }

    #[test]
    fn the_least_of_what_the_machine_and_its_groups_have_is_what_there_is() {
        let machine = ("/proc/meminfo", "MemTotal: 9000 kB\nMemAvailable:    8000 kB\n");
        assert_eq!(available(&reading(&[machine])), Some(8_192_000));
        assert_eq!(available(&reading(&[])), None);
        let second = [
            machine,
            ("/proc/self/cgroup", "0::/a/b\n"),
            ("/sys/fs/cgroup/a/memory.max", "4000\n"),
            ("/sys/fs/cgroup/a/memory.current", "3000\n"),
            ("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 500\nactive_file 100\n"),
            ("/sys/fs/cgroup/a/b/memory.max", "max\n"),
            ("/sys/fs/cgroup/a/b/memory.current", "3000\n"),
        ];
        assert_eq!(available(&reading(&second)), Some(1600));
        let first = [
            machine,
            ("/proc/self/cgroup", "9:name=systemd:/\n7:cpu,memory:/gone\n"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/memory.usage_in_bytes", "5000"),
        ];
        assert_eq!(available(&reading(&first)), Some(8_192_000));
    }

    #[test]
    fn a_shortage_names_the_parts_and_what_to_change() {
        let need = Need { weights: 2_000_000_000, floats: 1, cache: 300_000_000, drafts: 0 };
        assert_eq!(need.beyond(2_300_000_000), None);
        let said = |need: Need| need.beyond(1_200_000_000).expect("it does not suffice").to_string();
        let expected = "memory: expected 2.3 GB (weights 2.0 GB, cache 300 MB), found 1.2 GB; less is needed with a \
                        smaller ctx_size, dtype q8_0 or q4_k, cache_type_k and cache_type_v q8_0";
        assert_eq!(said(need), expected);
        let quantized = said(Need { floats: 0, drafts: 50_000_000, ..need });
        assert!(quantized.contains("cache 300 MB, draft models 50 MB), found") && !quantized.contains("dtype"));
    }
}
