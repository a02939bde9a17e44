//! The memory that is available to this process, read from Linux's `/proc` and `/sys`.
//!
//! It is the least of three: the kernel's estimate of what is available without swapping (`MemAvailable`), what the
//! control groups (a container, a service) have left of their limits, and what the process has left of its limits of
//! addresses and data (`ulimit -v`, `ulimit -d`). On systems other than Linux it is unknown.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// A function that reads a file of the system; `None` if it does not exist.
pub(super) type Read<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Reads a file of this system. Such files are small and report no length, so room is allocated at once.
pub(super) fn read(path: &Path) -> Option<String> {
    let mut text = String::with_capacity(8192);
    File::open(path).ok()?.read_to_string(&mut text).ok()?;
    Some(text)
}

/// Bytes of anonymous memory of this process.
pub(super) fn held(read: Read<'_>) -> Option<usize> {
    let status = read(Path::new("/proc/self/status"))?;
    field(&status, "RssAnon:")?.checked_mul(1024)
}

/// Bytes that are available; `None` if that is unknown.
pub(super) fn available(read: Read<'_>) -> Option<usize> {
    let machine = read(Path::new("/proc/meminfo"))?;
    let of_machine = |name| Some(field(&machine, name)?.saturating_mul(1024));
    let (all, total) = (of_machine("MemAvailable:")?, of_machine("MemTotal:").unwrap_or(usize::MAX));
    let groups = read(Path::new("/proc/self/cgroup")).unwrap_or_default();
    let left = groups.lines().filter_map(|line| left_of_group(line, total, read));
    left.chain(left_of_process(read)).chain([all]).min()
}

/// Bytes that the process has left of its limits of addresses and of data.
fn left_of_process(read: Read<'_>) -> impl Iterator<Item = usize> + '_ {
    let limits = read(Path::new("/proc/self/limits")).unwrap_or_default();
    let left = move |(limit, used): (&str, &str)| {
        let allowed = field(&limits, limit)?; // no number where it is "unlimited"
        let used = field(&read(Path::new("/proc/self/status"))?, used)?;
        Some(allowed.saturating_sub(used.saturating_mul(1024)))
    };
    [("Max address space", "VmSize:"), ("Max data size", "VmData:")].into_iter().filter_map(left)
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<usize> {
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// Bytes that a control group and its ancestors have left of their limits, the least of them. `line` is a line of
/// `/proc/self/cgroup`, of version 2 (`0::/path`) or of the memory controller of version 1. A limit of the machine's
/// `total` or more is no limit; the usage of such a group is not read, since reading it makes the kernel add up
/// counters of all processors.
fn left_of_group(line: &str, total: usize, read: Read<'_>) -> Option<usize> {
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
        let limit = number(folder, limit).filter(|limit| *limit < total)?;
        let stat = read(&folder.join("memory.stat")).unwrap_or_default();
        // Cached pages of files are reclaimed when memory is needed; a model's own file is among them.
        let files = of_files.iter().filter_map(|name| field(&stat, name)).sum();
        Some(limit.saturating_sub(number(folder, usage)?.saturating_sub(files)))
    };
    // In a container the path may be the host's, which does not exist there; the root does.
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
    fn available_is_the_least_of_the_machine_and_its_groups() {
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
    fn limits_of_the_process_count() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max data size             unlimited            unlimited            bytes     \n\
                      Max address space         1024000              unlimited            bytes     \n";
        let status = ("/proc/self/status", "VmSize:\t     900 kB\nVmData:\t 10 kB\nRssAnon:\t      70 kB\n");
        let files = [("/proc/meminfo", "MemAvailable:    8000 kB\n"), ("/proc/self/limits", limits), status];
        assert_eq!(available(&reading(&files)), Some(1_024_000 - 900 * 1024));
        assert_eq!(held(&reading(&files)), Some(70 * 1024));
    }
}
