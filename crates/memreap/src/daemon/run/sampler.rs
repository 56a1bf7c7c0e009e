// SPDX-License-Identifier: GPL-2.0-only
//! Samples memory: the machine's, or that of a cgroup with a limit. All files stay open, so that a sample
//! opens nothing, and where memory is short allocates nothing and does not wait.

use std::path::{Path, PathBuf};
use std::time::Instant;

use linux::cgroup::{self, Hierarchy, MemoryStat};
use linux::meminfo::MemInfo;
use linux::psi::Pressure;
use linux::{Root, Source, vmstat};

use crate::config::{Config, EARLY_WATERMARK_SCALE_FACTOR};
use crate::daemon::decide::sample::Sample;

/// Room for the longest of the files: memory.stat.
const BUFFER_BYTES: usize = 16 << 10;
/// Where less than this part of memory is available, and less than `MAX_SHORT_BYTES`, it is short whatever the kernel
/// does about it, ...
const SHORT_DIVISOR: u64 = 32;
/// ... and /proc/vmstat is not read, for which the kernel allocates.
const MAX_SHORT_BYTES: u64 = 1 << 30;

/// Into which files are read.
pub type Buffer = Box<[u8; BUFFER_BYTES]>;

/// Makes a buffer.
pub fn buffer() -> Buffer {
    Box::new([0; BUFFER_BYTES])
}

/// Memory that can run out.
#[derive(Debug)]
pub enum Memory {
    /// All of the machine's.
    Machine(Machine),
    /// Up to a cgroup's limit.
    Limited(Limited),
}

/// The machine's memory.
#[derive(Debug)]
pub struct Machine {
    meminfo: Source,
    pressure: Option<Source>,
    vmstat: Option<Source>,
}

/// A cgroup's memory.
#[derive(Debug)]
pub struct Limited {
    /// Its path in the hierarchy, "/a/b".
    path: PathBuf,
    max: Source,
    current: Source,
    stat: Source,
    /// What it may have in swap, and has; the same of those above it that have such a limit.
    swap: Vec<[Source; 2]>,
    pressure: Option<Source>,
    /// The machine's: the total when the limit is removed, and the swap that there is.
    meminfo: Source,
}

impl Machine {
    /// Opens the files.
    ///
    /// # Errors
    /// When /proc/meminfo cannot be opened.
    pub fn open(root: &Root) -> linux::Result<Self> {
        Ok(Self {
            meminfo: Source::open(root.proc().join("meminfo"))?,
            pressure: pressure(&root.proc().join("pressure/memory"))?,
            vmstat: Source::open(root.proc().join("vmstat")).ok(),
        })
    }

    /// Parses /proc/meminfo; `None` when it cannot be read.
    pub fn info(&self, buffer: &mut [u8]) -> Option<MemInfo> {
        self.meminfo.parse(buffer, MemInfo::parse).ok()
    }

    fn sample(&self, clock: Instant, buffer: &mut [u8]) -> linux::Result<Sample> {
        let stalls = stalls(self.pressure.as_ref(), clock, buffer)?;
        let info = self.meminfo.parse(buffer, MemInfo::parse)?;
        let is_short = info.available < (info.total / SHORT_DIVISOR).min(MAX_SHORT_BYTES);
        let vmstat = self.vmstat.as_ref().filter(|_| !is_short);
        Ok(Sample {
            total: info.total,
            is_limit: false,
            available: info.available,
            free: info.free,
            swap_total: info.swap_total,
            swap_free: info.swap_free,
            scanned: vmstat.and_then(|source| source.parse(buffer, scanned).ok().flatten()),
            ..stalls
        })
    }
}

impl Limited {
    /// Opens the files of the cgroup `path` ("/a/b"; "/" for the caller's own root). `None` when it has no
    /// limit below what the machine has, or the memory controller is off.
    ///
    /// # Errors
    /// When it is gone, or a file is malformed.
    pub fn open(root: &Root, hierarchy: &Hierarchy, path: &Path, buffer: &mut [u8]) -> linux::Result<Option<Self>> {
        let dir = hierarchy.dir(path);
        // The root of all cgroups does not have it.
        let Some(max) = Source::open_if_there(dir.join("memory.max"))? else { return Ok(None) };
        let meminfo = Source::open(root.proc().join("meminfo"))?;
        let machine_bytes = meminfo.parse(buffer, MemInfo::parse)?.total;
        if max.parse(buffer, cgroup::limit)?.is_none_or(|limit| limit >= machine_bytes) {
            return Ok(None);
        }
        // What those above it may have in swap is a limit for it, too.
        let mut swap = Vec::new();
        for dir in dir.ancestors().take_while(|dir| dir.starts_with(&hierarchy.path)) {
            let [max, current] = ["memory.swap.max", "memory.swap.current"].map(|name| dir.join(name));
            let (Some(max), Some(current)) = (Source::open_if_there(max)?, Source::open_if_there(current)?) else {
                continue;
            };
            if swap.is_empty() || max.parse(buffer, cgroup::limit)?.is_some() {
                swap.push([max, current]);
            }
        }
        Ok(Some(Self {
            path: path.to_owned(),
            max,
            current: Source::open(dir.join("memory.current"))?,
            stat: Source::open(dir.join("memory.stat"))?,
            swap,
            pressure: pressure(&dir.join("memory.pressure"))?,
            meminfo,
        }))
    }

    fn sample(&self, clock: Instant, buffer: &mut [u8]) -> linux::Result<Sample> {
        let stalls = stalls(self.pressure.as_ref(), clock, buffer)?;
        let machine = self.meminfo.parse(buffer, MemInfo::parse)?;
        let limit = self.max.parse(buffer, cgroup::limit)?.unwrap_or(machine.total);
        let current = self.current.parse(buffer, cgroup::amount)?;
        let stat = self.stat.parse(buffer, MemoryStat::parse)?;
        // However much it may swap out, there is no more than the machine has.
        let (mut swapped, mut swap_free) = (0, machine.swap_free);
        for [max, used] in self.swap.iter().rev() {
            let max = max.parse(buffer, cgroup::limit)?.unwrap_or(u64::MAX);
            // At last its own.
            swapped = used.parse(buffer, cgroup::amount)?;
            swap_free = swap_free.min(max.saturating_sub(swapped));
        }
        // As the kernel estimates MemAvailable: half of the page cache is in use.
        let reclaimable = stat.file / 2 + stat.slab_reclaimable / 2;
        Ok(Sample {
            total: limit,
            is_limit: true,
            available: limit.saturating_sub(current).saturating_add(reclaimable).min(limit),
            free: limit.saturating_sub(current),
            // What is swapped out is not charged to this limit, unless it is to zswap.
            swap_total: swapped.saturating_add(swap_free),
            swap_free,
            ..stalls
        })
    }
}

impl Memory {
    /// Opens all memory that the caller can see: the machine's, or in a container its limit.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn open(root: &Root, hierarchy: Option<&Hierarchy>) -> linux::Result<Self> {
        let machine = Self::Machine(Machine::open(root)?);
        let mut buffer = buffer();
        // That it can be read.
        machine.sample(Instant::now(), &mut buffer[..])?;
        let limited = hierarchy.map(|h| Limited::open(root, h, Path::new("/"), &mut buffer[..])).transpose()?;
        Ok(limited.flatten().map_or(machine, Self::Limited))
    }

    /// Takes a sample, at the time since `clock`.
    ///
    /// # Errors
    /// When a file cannot be read (ENODEV for a cgroup that is gone) or is malformed.
    pub fn sample(&self, clock: Instant, buffer: &mut [u8]) -> linux::Result<Sample> {
        match self {
            Self::Machine(machine) => machine.sample(clock, buffer),
            Self::Limited(limited) => limited.sample(clock, buffer),
        }
    }

    /// Returns the cgroup whose limit it is; `None` for all memory that the caller can see: the machine's, or in a
    /// container its limit.
    pub fn cgroup(&self) -> Option<&Path> {
        match self {
            Self::Limited(limited) if limited.path != Path::new("/") => Some(&limited.path),
            _ => None,
        }
    }
}

/// Completes a configuration by what it does not say: whether the kernel reclaims early, and in a container with a
/// limit, of what oom_score_adj is a share.
pub fn fit_to_machine(config: &mut Config, memory: &Memory) {
    let factor = linux::features::watermark_scale_factor(&Root::system());
    config.act.early_reclaim = matches!(factor, Ok(Some(f)) if f >= EARLY_WATERMARK_SCALE_FACTOR);
    if let Memory::Limited(_) = memory {
        let mut buffer = buffer();
        if let Ok(sample) = memory.sample(Instant::now(), &mut buffer[..]) {
            config.policy.set_total(sample.total);
        }
    }
}

/// PSI can be switched off, and then the file may be there and not be readable.
fn pressure(path: &Path) -> linux::Result<Option<Source>> {
    match Source::open(path) {
        Ok(source) => {
            let mut text = [0; 512];
            Ok(source.parse(&mut text, Pressure::parse).is_ok().then_some(source))
        }
        Err(e) if e.is_unsupported() || e.is_denied() => Ok(None),
        Err(e) => Err(e),
    }
}

/// Parses how many pages the kernel has scanned for the machine: it counts reclaim at limits of cgroups elsewhere.
fn scanned(path: &Path, bytes: &[u8]) -> linux::Result<Option<u64>> {
    let [kswapd, direct] = vmstat::parse(path, bytes, ["pgscan_kswapd", "pgscan_direct"])?;
    Ok(kswapd.zip(direct).map(|(kswapd, direct)| kswapd.saturating_add(direct)))
}

/// The part of a sample that is about stalls, and when it was taken.
fn stalls(pressure: Option<&Source>, clock: Instant, buffer: &mut [u8]) -> linux::Result<Sample> {
    let at = clock.elapsed();
    let stalled = match pressure.map(|source| source.parse(buffer, Pressure::parse)) {
        Some(Ok(pressure)) => pressure.full.map(|full| [pressure.some.total, full.total]),
        Some(Err(e)) if !e.is_unsupported() => return Err(e),
        // Not there, or switched off since (cgroup.pressure).
        _ => None,
    };
    Ok(Sample { at, stalled, stalled_within: clock.elapsed() - at, ..Sample::default() })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use linux::cgroup::Namespace;

    use super::*;

    #[test]
    fn where_memory_is_not_short_the_sample_says_whether_the_machine_reclaims() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proc")).unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join("proc").join(name), text).unwrap();
        write("vmstat", "pgscan_kswapd 5\npgscan_direct 2\npgscan_direct_throttle 9\npgscan_anon 99\n");
        let scanned = |available_kib: u64| {
            let rest = "MemTotal: 4096 kB\nMemFree: 0 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n";
            write("meminfo", &format!("MemAvailable: {available_kib} kB\n{rest}"));
            let machine = Machine::open(&Root::at(dir.path())).unwrap();
            machine.sample(Instant::now(), &mut [0; 512]).unwrap().scanned
        };
        assert_eq!((scanned(128), scanned(127)), (Some(7), None));
        write("vmstat", "pgscan_kswapd_normal 5\n");
        assert_eq!(scanned(128), None);
    }

    #[test]
    fn a_limit_that_changes_is_followed() {
        const MIB: u64 = 1 << 20;
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: String| fs::write(dir.path().join(name), text).unwrap();
        write("memory.current", format!("{}\n", 700 * MIB));
        write("memory.stat", "anon 1\n".to_owned());
        let path = dir.path().to_owned();
        let hierarchy = Hierarchy { path, controls_memory: true, namespace: Namespace::default() };
        fs::create_dir(dir.path().join("proc")).unwrap();
        let has = |total_kib: u64, swap_kib: u64| {
            let lines = [("MemTotal", total_kib), ("MemFree", 0), ("MemAvailable", 0), ("SwapTotal", swap_kib)];
            let text: String = lines.iter().map(|(name, kib)| format!("{name}: {kib} kB\n")).collect();
            write("proc/meminfo", text + &format!("SwapFree: {swap_kib} kB\n"));
        };
        has(4096 << 10, 0);
        let root = Root::at(dir.path());
        let open = |limit: &str| {
            write("memory.max", format!("{limit}\n"));
            Limited::open(&root, &hierarchy, Path::new("/"), &mut [0; 512]).unwrap()
        };
        let limited = open(&(800 * MIB).to_string()).unwrap();
        for (limit, total) in [("1073741824", 1024), ("838860800", 800), ("max", 4096)] {
            write("memory.max", format!("{limit}\n"));
            let sample = limited.sample(Instant::now(), &mut [0; 512]).unwrap();
            assert_eq!((sample.total, sample.available), (total * MIB, (total - 700) * MIB), "{limit}");
        }
        // A cgroup without a limit for swap has the machine's, and no more than there is.
        for (max, of_machine, free) in [("max", 0, 0), ("max", 100, 100), ("1048576", 100, 1)] {
            has(4096 << 10, of_machine << 10);
            write("memory.swap.max", format!("{max}\n"));
            write("memory.swap.current", "0\n".to_owned());
            let sample = open("838860800").unwrap().sample(Instant::now(), &mut [0; 512]).unwrap();
            assert_eq!((sample.swap_total, sample.swap_free), (free * MIB, free * MIB), "{max} {of_machine}");
        }
        // Nor more than one above it has.
        write("memory.swap.max", format!("{}\n", 90 * MIB));
        write("memory.swap.current", format!("{}\n", 30 * MIB));
        fs::create_dir(dir.path().join("below")).unwrap();
        for (file, text) in [
            ("memory.max", 800 * MIB),
            ("memory.current", 700 * MIB),
            ("memory.swap.max", 80 * MIB),
            ("memory.swap.current", 10 * MIB),
        ] {
            write(&format!("below/{file}"), format!("{text}\n"));
        }
        write("below/memory.stat", "anon 1\n".to_owned());
        let below = Limited::open(&root, &hierarchy, Path::new("/below"), &mut [0; 512]).unwrap().unwrap();
        let sample = below.sample(Instant::now(), &mut [0; 512]).unwrap();
        assert_eq!((sample.swap_total, sample.swap_free), (70 * MIB, 60 * MIB));
        // The machine's memory runs out first, and there may be more of it later.
        for none in ["max", "4294967296", "8589934592"] {
            assert!(open(none).is_none(), "{none}");
        }
    }
}
