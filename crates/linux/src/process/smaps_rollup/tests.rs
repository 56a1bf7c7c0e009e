// SPDX-License-Identifier: GPL-2.0-only

use proptest::prelude::*;

use super::*;

const HEADING: &str = "55740f66b000-7ffc68773000 ---p 00000000 00:00 0    [rollup]\n";
const REQUIRED: [&str; 7] = ["Rss", "Pss_Anon", "Pss_File", "Pss_Shmem", "Private_Clean", "Private_Dirty", "SwapPss"];

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
    let text = "Rss: 1 kB\nPss: 2 kB\nPss_Dirty: 99 kB\nPss_Anon: 13 kB\nPss_File: 14 kB\n\
                Pss_Shmem: 15 kB\nShared_Clean: 3 kB\nShared_Dirty: 4 kB\nPrivate_Clean: 5 kB\nPrivate_Dirty: 6 kB\nAnonymous: 7 kB\n\
                LazyFree: 8 kB\nShared_Hugetlb: 99 kB\nPrivate_Hugetlb: 9 kB\nSwap: 10 kB\n\
                SwapPss: 11 kB\nLocked: 12 kB\n";
    let kib = |n: u64| n * 1024;
    let rollup = parse(&(HEADING.to_owned() + text)).unwrap();
    let expected = Rollup {
        rss: kib(1),
        pss_anon: kib(13),
        pss_file: kib(14),
        pss_shmem: kib(15),
        private_clean: kib(5),
        private_dirty: kib(6),
        anonymous: kib(7),
        swap_pss: kib(11),
    };
    assert_eq!(rollup, expected);
}

/// What a page is of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Of {
    Anon,
    File,
    Shmem,
}

/// What is said of so many pages of 4 KiB each, mapped by so many processes.
fn rollup_of(pages: &[(Of, u64, u64)]) -> Rollup {
    let mut r = Rollup::default();
    for &(of, pages, mapped_by) in pages {
        let bytes = pages * 4096;
        r.rss += bytes;
        let part = match of {
            Of::Anon => {
                r.anonymous += bytes;
                &mut r.pss_anon
            }
            Of::File => &mut r.pss_file,
            Of::Shmem => &mut r.pss_shmem,
        };
        *part += bytes / mapped_by;
        if mapped_by == 1 {
            r.private_dirty += bytes;
        }
    }
    r
}

#[test]
fn what_comes_back_is_private_and_no_file() {
    use Of::{Anon, File, Shmem};
    const MIB: u64 = 256;
    let mib = |pages: &[(Of, u64, u64)]| rollup_of(pages).comes_back() >> 20;
    assert_eq!(mib(&[(Anon, 127 * MIB, 1)]), 127);
    assert_eq!(mib(&[(Anon, MIB, 1), (File, 200 * MIB, 1)]), 1);
    assert_eq!(mib(&[(Anon, MIB, 1), (File, 200 * MIB, 2)]), 1);
    assert_eq!(mib(&[(Shmem, 30 * MIB, 1), (File, 200 * MIB, 1)]), 30);
    // What a fork shares, alone and with files.
    assert_eq!(mib(&[(Anon, MIB, 1), (Anon, 900 * MIB, 2)]), 1);
    assert_eq!(mib(&[(Anon, MIB, 1), (Anon, 900 * MIB, 9), (File, 200 * MIB, 1)]), 1);
    assert_eq!(mib(&[(Anon, MIB, 1), (Anon, 900 * MIB, 9), (File, 200 * MIB, 9)]), 1);
    assert_eq!(mib(&[(Anon, MIB, 1), (Shmem, 900 * MIB, 9), (File, 200 * MIB, 9)]), 1);
    // Swap is apart.
    let swapped = Rollup { swap_pss: 5 << 20, ..rollup_of(&[(File, MIB, 1)]) };
    assert_eq!(swapped.comes_back(), 5 << 20);
}

proptest! {
    #[test]
    fn any_sizes_in_any_order(
        sizes in prop::array::uniform7(0..=u64::MAX / 1024),
        order in Just((0..7).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let lines = order.iter().map(|&i: &usize| format!("{}: {:>15} kB\n", REQUIRED[i], sizes[i]));
        let text = HEADING.to_owned() + &lines.collect::<String>();
        let r = parse(&text).unwrap();
        let pss = [r.pss_anon, r.pss_file, r.pss_shmem];
        let got = [&[r.rss], &pss[..], &[r.private_clean, r.private_dirty, r.swap_pss]].concat();
        prop_assert_eq!(got, sizes.map(|kib| kib * 1024));
        prop_assert!(r.comes_back() >= r.swap_pss);
        for cut in 0..text.len() {
            prop_assert!(parse(&text[..cut]).is_err());
        }
    }

    #[test]
    fn what_comes_back_is_bounded(
        pages in prop::collection::vec((0_usize..3, 0_u64..1000, 1_u64..5), 0..10),
    ) {
        let pages: Vec<_> = pages
            .into_iter()
            .map(|(of, pages, mapped_by)| ([Of::Anon, Of::File, Of::Shmem][of], pages, mapped_by))
            .collect();
        let sum = |counts: fn(&(Of, u64, u64)) -> bool| {
            pages.iter().filter(|page| counts(page)).map(|(_, pages, _)| pages * 4096).sum::<u64>()
        };
        let rollup = rollup_of(&pages);
        let own = sum(|(of, _, mapped_by)| *of != Of::File && *mapped_by == 1);
        prop_assert!(rollup.comes_back() >= own, "{own} {rollup:?}");
        prop_assert!(rollup.comes_back() <= sum(|(of, ..)| *of != Of::File));
        prop_assert!(rollup.comes_back() <= rollup.private_dirty);
        // Exact where no memory is shared, and where no file is mapped.
        if sum(|(of, _, mapped_by)| *of != Of::File && *mapped_by > 1) == 0
            || sum(|(of, ..)| *of == Of::File) == 0
        {
            prop_assert_eq!(rollup.comes_back(), own);
        }
    }
}
