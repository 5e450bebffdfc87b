//! How many threads to use on this machine.
//!
//! Decode is bound by memory and by its slowest thread, so threads on the little cores of a big.LITTLE chip, or on the
//! second hardware thread of a core (SMT), make it slower. On Linux, sysfs lists both; elsewhere the system's count of
//! usable processors is used.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Threads to use where the caller names no number: the fast physical cores, within what this process may use; at
/// least 1.
pub fn default_thread_count() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    match fast_cores(Path::new("/sys/devices/system/cpu")) {
        Some(fast) => fast.clamp(1, usable),
        None => usable,
    }
}

/// Physical cores whose highest clock is at least four fifths of the machine's highest. Without clocks in the folder
/// every core counts; without cores the result is `None`.
fn fast_cores(sysfs: &Path) -> Option<usize> {
    let mut cores = Vec::new();
    for entry in fs::read_dir(sysfs).ok()?.flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
        if number.is_none_or(|n| n.parse::<u32>().is_err()) {
            continue;
        }
        // An offline processor has no topology.
        let Ok(siblings) = fs::read_to_string(entry.path().join("topology/thread_siblings_list")) else { continue };
        let clock = fs::read_to_string(entry.path().join("cpufreq/cpuinfo_max_freq"));
        let clock = clock.ok().and_then(|khz| khz.trim().parse::<u64>().ok());
        cores.push((siblings, clock));
    }
    let highest = cores.iter().filter_map(|(_, clock)| *clock).max().unwrap_or(0);
    let fast = |clock: &Option<u64>| clock.is_none_or(|khz| khz * 5 >= highest * 4);
    let fast: BTreeSet<&str> = cores.iter().filter(|(_, clock)| fast(clock)).map(|(s, _)| s.trim()).collect();
    (!fast.is_empty()).then_some(fast.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(cpus: &[(&str, Option<u32>)]) -> Option<usize> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cpufreq")).unwrap();
        for (i, (siblings, khz)) in cpus.iter().enumerate() {
            let cpu = dir.path().join(format!("cpu{i}"));
            fs::create_dir_all(cpu.join("topology")).unwrap();
            fs::write(cpu.join("topology/thread_siblings_list"), format!("{siblings}\n")).unwrap();
            if let Some(khz) = khz {
                fs::create_dir_all(cpu.join("cpufreq")).unwrap();
                fs::write(cpu.join("cpufreq/cpuinfo_max_freq"), format!("{khz}\n")).unwrap();
            }
        }
        fast_cores(dir.path())
    }

    #[test]
    fn little_cores_and_second_halves_do_not_count() {
        let phone = [("0", 1_800), ("1", 1_800), ("2", 2_350), ("3", 2_350), ("4", 2_850), ("5", 2_850)];
        let phone: Vec<_> = phone.iter().map(|&(s, mhz)| (s, Some(mhz * 1000))).collect();
        assert_eq!(machine(&phone), Some(4));
        let smt = [("0-1", Some(5_000_000)), ("0-1", Some(5_000_000)), ("2-3", Some(4_800_000)), ("2-3", None)];
        assert_eq!(machine(&smt), Some(2));
        assert_eq!(machine(&[("0", None), ("1", None), ("2", None)]), Some(3));
        assert_eq!(machine(&[]), None);
        assert_eq!(fast_cores(Path::new("/nowhere at all")), None);
    }

    #[test]
    fn there_is_always_one() {
        assert!(default_thread_count() >= 1);
    }
}
