//! The host's free memory, and the account of what the CPU backend has allocated.
//!
//! On Linux and Android it is what can be allocated without swapping (`MemAvailable`), and control groups may allow
//! less. Pages of files count as available in both: they can be dropped and read again. Elsewhere it is unknown.
//! `ELIZA_MEMORY_LIMIT` is an artificial limit for tests, in bytes, for everything on the account.

use crate::backend::memory::{Account, Memory, parse_bytes};
use crate::gguf::shown;
use crate::{Error, Result};
use std::path::Path;
use std::sync::{Arc, LazyLock};

/// What the CPU backend holds, in all models and engines of the process.
pub fn account() -> &'static Arc<Account> {
    static ACCOUNT: LazyLock<Arc<Account>> = LazyLock::new(Arc::default);
    &ACCOUNT
}

/// The host's memory: used, total, available.
///
/// # Errors
/// [`Error::InvalidArgument`] where `ELIZA_MEMORY_LIMIT` is no size.
pub fn memory() -> Result<Memory> {
    let used = account().bytes();
    let artificial = match std::env::var("ELIZA_MEMORY_LIMIT") {
        Ok(text) if !text.is_empty() => {
            let bad =
                || Error::InvalidArgument(format!("ELIZA_MEMORY_LIMIT: `{}` is no size such as 512M", shown(&text)));
            Some(parse_bytes(&text).ok_or_else(bad)?.saturating_sub(used.total()))
        }
        _ => None,
    };
    let root = Path::new("/");
    let available = [system(root), artificial].into_iter().flatten().min();
    Ok(Memory { used, total: total(root), available, of_host: true })
}

/// Bytes of memory of the system whose `/proc` and `/sys` are under `root`.
fn total(root: &Path) -> Option<u64> {
    let known = cfg!(any(target_os = "linux", target_os = "android"));
    let info = known.then(|| std::fs::read_to_string(root.join("proc/meminfo")).ok()).flatten()?;
    field(&info, "MemTotal:").map(|kib| kib * 1024)
}

/// Bytes that this process can still allocate; the system's `/proc` and `/sys` are under `root`.
fn system(root: &Path) -> Option<u64> {
    if !cfg!(any(target_os = "linux", target_os = "android")) {
        return None;
    }
    let read = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let available = field(&read("proc/meminfo")?, "MemAvailable:").map(|kib| kib * 1024)?;
    let groups = read("proc/self/cgroup").unwrap_or_default();
    let limits = groups.lines().filter_map(|line| group_room(root, line));
    Some(limits.fold(available, u64::min))
}

/// Bytes left in a control group of `/proc/self/cgroup` and in its ancestors; `None` where none of them has a limit.
fn group_room(root: &Path, line: &str) -> Option<u64> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, own) = (parts.next()?, parts.next()?);
    // Version 2 has one hierarchy without a name; in version 1 memory has a hierarchy of its own.
    let (mount, limit, usage, file_pages) = match controllers {
        "" => ("sys/fs/cgroup", "memory.max", "memory.current", ["inactive_file", "active_file"]),
        names if names.split(',').any(|name| name == "memory") => {
            let file_pages = ["total_inactive_file", "total_active_file"];
            ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", file_pages)
        }
        _ => return None,
    };
    let room = |group: &Path| {
        let read = |name: &str| std::fs::read_to_string(root.join(mount).join(group).join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let stat = read("memory.stat").unwrap_or_default();
        let droppable: u64 = file_pages.iter().filter_map(|name| field(&stat, name)).sum();
        Some(number(limit)?.saturating_sub(number(usage)?.saturating_sub(droppable)))
    };
    // In a container the group's own path may not be visible; then the mount itself is the group.
    Path::new(own.trim_start_matches('/')).ancestors().filter_map(room).min()
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().map(str::split_whitespace);
    let mut words = lines.find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    fn files(all: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in all {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    const INFO: (&str, &str) = ("proc/meminfo", "MemTotal:  9000 kB\nMemFree:  10 kB\nMemAvailable:    4000 kB\n");

    #[test]
    fn this_machine_has_memory() {
        let memory = memory().unwrap();
        assert!(memory.available.unwrap() > 1 << 20 && memory.total >= memory.available, "{memory:?}");
    }

    #[test]
    fn the_lowest_limit_counts() {
        let room = |more: &[(&str, &str)]| system(files(&[&[INFO], more].concat()).path());
        assert_eq!(system(files(&[]).path()), None);
        assert_eq!(room(&[]), Some(4_096_000));
        assert_eq!(
            room(&[("proc/self/cgroup", "0::/a/b\n"), ("sys/fs/cgroup/a/b/memory.max", "max\n")]),
            Some(4_096_000)
        );
        // The group's own limit leaves more than that of the group around it; file pages can be dropped.
        let two = [
            ("proc/self/cgroup", "0::/a/b\n"),
            ("sys/fs/cgroup/a/b/memory.max", "3000000\n"),
            ("sys/fs/cgroup/a/b/memory.current", "500000\n"),
            ("sys/fs/cgroup/a/memory.max", "2000000\n"),
            ("sys/fs/cgroup/a/memory.current", "1900000\n"),
            ("sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 300000\nactive_file 100000\n"),
        ];
        assert_eq!(room(&two), Some(500_000));
        // A container that sees only its own part of the tree.
        let own = [
            ("proc/self/cgroup", "0::/docker/7\n"),
            ("sys/fs/cgroup/memory.max", "1000\n"),
            ("sys/fs/cgroup/memory.current", "400\n"),
        ];
        assert_eq!(room(&own), Some(600));
        let first = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/x\n"),
            ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1000\n"),
            ("sys/fs/cgroup/memory/x/memory.usage_in_bytes", "900\n"),
            ("sys/fs/cgroup/memory/x/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n"),
        ];
        assert_eq!(room(&first), Some(150));
    }
}
