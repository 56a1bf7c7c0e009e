// SPDX-License-Identifier: GPL-2.0-only

use fastrand::Rng;

use super::*;

type Entry = fn(&[u8]) -> bool;

/// What the fuzzers start from, with the parser each text is for.
const SEEDS: [(&[u8], Entry); 15] = [
    (include_bytes!("../../fuzz/seeds/stat/process"), stat),
    (include_bytes!("../../fuzz/seeds/stat/kernel-thread"), stat),
    (include_bytes!("../../fuzz/seeds/stat/parentheses"), stat),
    (include_bytes!("../../fuzz/seeds/scan/process"), scan),
    (include_bytes!("../../fuzz/seeds/scan/kernel-thread"), scan),
    (include_bytes!("../../fuzz/seeds/smaps_rollup/process"), smaps_rollup),
    (include_bytes!("../../fuzz/seeds/mountinfo/mounts"), mountinfo),
    (include_bytes!("../../fuzz/seeds/psi/memory"), psi),
    (include_bytes!("../../fuzz/seeds/psi/some"), psi),
    (include_bytes!("../../fuzz/seeds/meminfo/host"), meminfo),
    (b"nr_free_pages 1939119\na 0\nexpedite_kill 18446744073709551615\n", vmstat),
    (b"Filename Type Size Used Priority\n/dev/zram0 partition 4194300 12 100\n/a\\040b file 8 0 -2\n", swaps),
    (b"    4096       74    12288        0    12288        0        0        0        0\n", zram),
    (b"6.12.43+deb13-amd64\n", release),
    (b"3191 1612 393 6 0 122 0\n", statm),
];

#[test]
fn seeds_are_what_they_are_meant_to_be() {
    for (i, (bytes, entry)) in SEEDS.into_iter().enumerate() {
        assert!(entry(bytes), "seed {i} is refused");
    }
}

/// Texts on which parsers have failed before, here and elsewhere.
const PIECES: [&[u8]; 16] = [
    b"18446744073709551615",
    b"18446744073709551616",
    b"18014398509989999 kB",
    b"-1",
    b"+1",
    b"0",
    b"\n",
    b" ",
    b")",
    b"(",
    b"\\",
    b"\0",
    b"\xff\xfe",
    b"\x1b[2J",
    b":",
    b"nan",
];

fn mutate(bytes: &mut Vec<u8>, random: &mut Rng) {
    for _ in 0..=random.usize(..3) {
        let at = random.usize(..=bytes.len());
        let end = at + random.usize(..=(bytes.len() - at).min(24));
        match random.u8(..7) {
            // A few bytes become a piece, are taken out, or come twice.
            0 | 1 => drop(bytes.splice(at..end, PIECES[random.usize(..PIECES.len())].iter().copied())),
            2 => drop(bytes.drain(at..end)),
            3 => bytes.extend_from_within(at..end),
            // A byte is another, or has another bit.
            4 if at < bytes.len() => bytes[at] = random.u8(..),
            5 if at < bytes.len() => bytes[at] ^= 1 << random.u8(..8),
            6 => bytes.truncate(at),
            _ => {}
        }
    }
}

#[test]
fn mutated_files_do_no_harm() {
    let mut random = Rng::with_seed(0);
    for round in 0..20_000 {
        let (seed, entry) = SEEDS[round % SEEDS.len()];
        let mut bytes = seed.to_vec();
        mutate(&mut bytes, &mut random);
        entry(&bytes);
        // Another file's text is refused early and seldom worth the time.
        if round % 16 == 0 {
            all(&bytes);
        }
    }
}

#[test]
fn random_bytes_do_no_harm() {
    let mut random = Rng::with_seed(1);
    for _ in 0..2000 {
        let bytes: Vec<u8> = (0..random.usize(..100)).map(|_| random.u8(..)).collect();
        all(&bytes);
    }
}
