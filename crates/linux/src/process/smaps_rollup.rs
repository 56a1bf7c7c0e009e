//! /proc/PID/smaps_rollup.

use std::path::Path;

use crate::text::missing;
use crate::{Result, text};

/// What /proc/PID/smaps_rollup says, in bytes: the sums over all mappings, from the page tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rollup {
    /// Pages that are there.
    pub rss: u64,
    /// The same, each divided by the number of processes that map it.
    pub pss: u64,
    /// Mapped by others too, not written to.
    pub shared_clean: u64,
    /// Mapped by others too, written to.
    pub shared_dirty: u64,
    /// Mapped by this process only, not written to. Comes back when it dies if it is anonymous;
    /// what is a file's stays in the page cache, easy to reclaim.
    pub private_clean: u64,
    /// Mapped by this process only, written to.
    pub private_dirty: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// Freed by the process with MADV_FREE, not yet taken by the kernel.
    pub lazy_free: u64,
    /// Huge pages of hugetlbfs of this process only; not in `rss`, and they go back to the pool.
    pub private_hugetlb: u64,
    /// Anonymous memory in swap.
    pub swap: u64,
    /// The same, each divided by the number of processes that share it.
    pub swap_pss: u64,
    /// Locked in memory, as far as in `pss`.
    pub locked: u64,
}

impl Rollup {
    /// Parses /proc/PID/smaps_rollup.
    ///
    /// # Errors
    /// When `Rss`, `Pss`, `Private_Clean`, `Private_Dirty`, `Swap` or `SwapPss` is missing, or a
    /// size does not fit into 64 bits.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut rss, mut pss, mut private_clean, mut private_dirty) = (None, None, None, None);
        let (mut swap, mut swap_pss) = (None, None);
        let mut rollup = Self::default();
        // The first line is the address range.
        for line in text::lines(path, bytes).skip(1) {
            let line = line?;
            let Some((key, value)) = line.key_value() else {
                return Err(line.error("not a key and a value"));
            };
            match key {
                b"Rss" => rss = Some(line.kib(value)?),
                b"Pss" => pss = Some(line.kib(value)?),
                b"Shared_Clean" => rollup.shared_clean = line.kib(value)?,
                b"Shared_Dirty" => rollup.shared_dirty = line.kib(value)?,
                b"Private_Clean" => private_clean = Some(line.kib(value)?),
                b"Private_Dirty" => private_dirty = Some(line.kib(value)?),
                b"Anonymous" => rollup.anonymous = line.kib(value)?,
                b"LazyFree" => rollup.lazy_free = line.kib(value)?,
                b"Private_Hugetlb" => rollup.private_hugetlb = line.kib(value)?,
                b"Swap" => swap = Some(line.kib(value)?),
                b"SwapPss" => swap_pss = Some(line.kib(value)?),
                b"Locked" => rollup.locked = line.kib(value)?,
                _ => {}
            }
        }
        Ok(Self {
            rss: rss.ok_or_else(|| missing(path, bytes, "Rss: is missing"))?,
            pss: pss.ok_or_else(|| missing(path, bytes, "Pss: is missing"))?,
            private_clean: private_clean.ok_or_else(|| missing(path, bytes, "Private_Clean: is missing"))?,
            private_dirty: private_dirty.ok_or_else(|| missing(path, bytes, "Private_Dirty: is missing"))?,
            swap: swap.ok_or_else(|| missing(path, bytes, "Swap: is missing"))?,
            swap_pss: swap_pss.ok_or_else(|| missing(path, bytes, "SwapPss: is missing"))?,
            ..rollup
        })
    }

    /// What is this process's alone: pages and its share of swap. What comes back when it dies,
    /// but for file pages in it, which stay in the page cache.
    pub fn private(&self) -> u64 {
        self.private_clean.saturating_add(self.private_dirty).saturating_add(self.swap_pss)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HEADING: &str = "55740f66b000-7ffc68773000 ---p 00000000 00:00 0    [rollup]\n";
    const REQUIRED: [&str; 6] = ["Rss", "Pss", "Private_Clean", "Private_Dirty", "Swap", "SwapPss"];

    fn parse(text: &str) -> Result<Rollup> {
        Rollup::parse(Path::new("/proc/1/smaps_rollup"), text.as_bytes())
    }

    #[test]
    fn each_required_line_is_missed() {
        for left_out in REQUIRED {
            let lines = REQUIRED.iter().filter(|key| **key != left_out).map(|key| format!("{key}: 1 kB\n"));
            let error = parse(&(HEADING.to_owned() + &lines.collect::<String>())).unwrap_err().to_string();
            assert!(error.contains(&format!("{left_out}: is missing")), "{error}");
        }
    }

    #[test]
    fn names_that_begin_alike_are_told_apart() {
        let text = "Rss: 1 kB\nPss: 2 kB\nPss_Dirty: 99 kB\nPss_Anon: 99 kB\nShared_Clean: 3 kB\n\
                    Shared_Dirty: 4 kB\nPrivate_Clean: 5 kB\nPrivate_Dirty: 6 kB\nAnonymous: 7 kB\n\
                    LazyFree: 8 kB\nShared_Hugetlb: 99 kB\nPrivate_Hugetlb: 9 kB\nSwap: 10 kB\n\
                    SwapPss: 11 kB\nLocked: 12 kB\n";
        let kib = |n: u64| n * 1024;
        let rollup = parse(&(HEADING.to_owned() + text)).unwrap();
        let expected = Rollup {
            rss: kib(1),
            pss: kib(2),
            shared_clean: kib(3),
            shared_dirty: kib(4),
            private_clean: kib(5),
            private_dirty: kib(6),
            anonymous: kib(7),
            lazy_free: kib(8),
            private_hugetlb: kib(9),
            swap: kib(10),
            swap_pss: kib(11),
            locked: kib(12),
        };
        assert_eq!(rollup, expected);
        assert_eq!(rollup.private(), kib(5 + 6 + 11));
    }

    proptest! {
        #[test]
        fn any_sizes_in_any_order(
            sizes in prop::array::uniform6(0..=u64::MAX / 1024),
            order in Just(vec![0, 1, 2, 3, 4, 5]).prop_shuffle(),
        ) {
            let lines = order.iter().map(|&i: &usize| format!("{}: {:>15} kB\n", REQUIRED[i], sizes[i]));
            let text = HEADING.to_owned() + &lines.collect::<String>();
            let r = parse(&text).unwrap();
            let got = [r.rss, r.pss, r.private_clean, r.private_dirty, r.swap, r.swap_pss];
            prop_assert_eq!(got, sizes.map(|kib| kib * 1024));
            prop_assert!(r.private() >= r.private_clean.max(r.private_dirty).max(r.swap_pss));
            for cut in 0..text.len() {
                prop_assert!(parse(&text[..cut]).is_err());
            }
        }
    }
}
