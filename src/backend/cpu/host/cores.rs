//! How many threads to use on this machine.
//!
//! Decode is bound by memory and by its slowest thread, so threads on the little cores of a big.LITTLE chip, or on the
//! second hardware thread of a core (SMT), make it slower. On Linux, sysfs lists both; elsewhere the system's count of
//! usable processors is used.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Threads to use where the caller names no number: the fast physical cores, within what this process may use; at
/// least 1.
pub fn default_thread_count() -> usize {
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    match Cores::of_system() {
        Some(cores) => cores.fast.clamp(1, usable),
        None => usable,
    }
}

/// The physical cores of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cores {
    /// How many there are.
    pub all: usize,
    /// Those that a thread of a pass should run on: with a capacity of at least half of the highest, or where the
    /// system knows no capacities, a highest clock of at least four fifths of the highest.
    pub fast: usize,
}

impl Cores {
    /// This machine's; `None` where the system does not list them.
    pub fn of_system() -> Option<Cores> {
        Cores::listed(Path::new("/sys/devices/system/cpu"))
    }

    /// Those listed in a folder like sysfs's. Without capacities and clocks every core counts as fast.
    fn listed(sysfs: &Path) -> Option<Cores> {
        // A core's capacity and highest clock, by its list of hardware threads.
        let mut cores: BTreeMap<String, (Option<u64>, Option<u64>)> = BTreeMap::new();
        for entry in fs::read_dir(sysfs).ok()?.flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            if number.is_none_or(|n| n.parse::<u32>().is_err()) {
                continue;
            }
            let cpu = entry.path();
            // An offline processor has no topology.
            let Some(siblings) = read::<String>(&cpu.join("topology/thread_siblings_list")) else { continue };
            let core = cores.entry(siblings).or_default();
            core.0 = core.0.max(read(&cpu.join("cpu_capacity")));
            core.1 = core.1.max(read(&cpu.join("cpufreq/cpuinfo_max_freq")));
        }
        let capacity = cores.values().filter_map(|(capacity, _)| *capacity).max().unwrap_or(0);
        let clock = cores.values().filter_map(|(_, clock)| *clock).max().unwrap_or(0);
        let fast = |own: &(Option<u64>, Option<u64>)| match *own {
            (Some(own), _) => own.saturating_mul(2) >= capacity,
            (None, Some(own)) => own.saturating_mul(5) >= clock.saturating_mul(4),
            (None, None) => true,
        };
        let fast = cores.values().filter(|own| fast(own)).count();
        (fast > 0).then_some(Cores { all: cores.len(), fast })
    }
}

/// The one word of a file.
fn read<T: FromStr>(file: &Path) -> Option<T> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The fast cores of a machine, given each processor's siblings and highest clock in kHz.
    fn machine(cpus: &[(&str, Option<u32>)]) -> Option<usize> {
        let cpus: Vec<_> = cpus.iter().map(|&(siblings, khz)| (siblings, None, khz)).collect();
        listed(&cpus).map(|cores| cores.fast)
    }

    /// With the capacity in between.
    fn listed(cpus: &[(&str, Option<u32>, Option<u32>)]) -> Option<Cores> {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("cpufreq")).unwrap();
        for (i, (siblings, capacity, khz)) in cpus.iter().enumerate() {
            let cpu = dir.path().join(format!("cpu{i}"));
            fs::create_dir_all(cpu.join("topology")).unwrap();
            fs::write(cpu.join("topology/thread_siblings_list"), format!("{siblings}\n")).unwrap();
            if let Some(capacity) = capacity {
                fs::write(cpu.join("cpu_capacity"), format!("{capacity}\n")).unwrap();
            }
            if let Some(khz) = khz {
                fs::create_dir_all(cpu.join("cpufreq")).unwrap();
                fs::write(cpu.join("cpufreq/cpuinfo_max_freq"), format!("{khz}\n")).unwrap();
            }
        }
        Cores::listed(dir.path())
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
        assert_eq!(Cores::listed(Path::new("/nowhere at all")), None);
    }

    #[test]
    fn capacities_count_before_clocks() {
        // One prime core, three big ones of another design at nearly its clock, four little ones.
        let names: Vec<String> = (0..8).map(|i| i.to_string()).collect();
        let of = |i: usize| match i {
            0..4 => (Some(325), Some(2_016_000)),
            4..7 => (Some(828), Some(2_803_000)),
            _ => (Some(1024), Some(3_187_000)),
        };
        let cpu = |i: usize| (names[i].as_str(), of(i).0, of(i).1);
        let phone: Vec<_> = (0..8).map(cpu).collect();
        assert_eq!(listed(&phone), Some(Cores { all: 8, fast: 4 }));
        // Little cores with a high clock; big ones with a low one.
        let clocks = [("0", Some(300), Some(3_000_000)), ("1", Some(1024), Some(2_000_000))];
        assert_eq!(listed(&clocks), Some(Cores { all: 2, fast: 1 }));
        assert_eq!(listed(&[("0", Some(0), None), ("1", Some(0), None)]), Some(Cores { all: 2, fast: 2 }));
    }

    #[test]
    fn there_is_always_one() {
        assert!(default_thread_count() >= 1);
    }
}
