// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/status.

use super::{Comm, State};
use crate::Pid;
use crate::text::number;

/// What is needed of /proc/PID/status: name, users and memory. Sizes are in bytes; memory counters may lag behind by some pages per CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The name.
    pub comm: Comm,
    /// What it does.
    pub state: State,
    /// The process; for a thread another than the ID that was asked for.
    pub tgid: Pid,
    /// Its parent, if that is in the PID namespace of /proc.
    pub ppid: Option<Pid>,
    /// Its real user.
    pub uid: u32,
    /// Its effective user.
    pub effective_uid: u32,
    /// It has memory of its own: not so for kernel threads, zombies, and dead first threads.
    pub has_memory: bool,
    /// The address space.
    pub vm_size: u64,
    /// Anonymous memory.
    pub rss_anon: u64,
    /// Shared memory.
    pub rss_shmem: u64,
    /// Anonymous memory in swap.
    pub swap: u64,
    /// It is writing a core dump, its memory held meanwhile.
    pub core_dumping: bool,
    /// Threads; 0 when it is being reaped.
    pub threads: u32,
    /// It has been sent SIGKILL, and has not yet got to it.
    pub killed: bool,
}

impl Status {
    /// Parses /proc/PID/status; `None` when it does not make sense.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        /// SIGKILL in a set of signals.
        const KILL: u64 = 1 << 8;
        let (mut comm, mut state, mut tgid, mut ppid, mut uids) = (None, None, None, None, None);
        let (mut threads, mut vm_size) = (None, None);
        let (mut killed, mut core_dumping) = (false, false);
        let (mut rss_anon, mut rss_shmem, mut swap) = (0, 0, 0);
        for line in bytes.split_inclusive(|&b| b == b'\n') {
            // What has no end may be cut in a number.
            let line = line.strip_suffix(b"\n")?;
            let colon = line.iter().position(|&b| b == b':')?;
            let value = line[colon + 1..].trim_ascii_start();
            match &line[..colon] {
                b"Name" => comm = Some(Comm::unescaped(line.strip_prefix(b"Name:\t")?)?),
                b"State" => state = Some(State::from_letter(*value.first()?)),
                b"Tgid" => tgid = Some(Pid::new(number(value)?)?),
                b"PPid" => ppid = Some(Pid::new(number(value)?)),
                b"Uid" => {
                    let mut ids = value.split(u8::is_ascii_whitespace).map(number);
                    uids = Some((ids.next()??, ids.next()??));
                }
                b"VmSize" => vm_size = Some(kib(value)?),
                b"RssAnon" => rss_anon = kib(value)?,
                b"RssShmem" => rss_shmem = kib(value)?,
                b"VmSwap" => swap = kib(value)?,
                b"CoreDumping" => core_dumping = number::<u8>(value)? != 0,
                b"Threads" => threads = Some(number(value)?),
                b"SigPnd" | b"ShdPnd" => killed |= hex(value)? & KILL != 0,
                _ => {}
            }
        }
        let (uid, effective_uid) = uids?;
        Some(Self {
            comm: comm?,
            state: state?,
            tgid: tgid?,
            ppid: ppid?,
            uid,
            effective_uid,
            has_memory: vm_size.is_some(),
            vm_size: vm_size.unwrap_or(0),
            rss_anon,
            rss_shmem,
            swap,
            core_dumping,
            threads: threads?,
            killed,
        })
    }
}

fn kib(value: &[u8]) -> Option<u64> {
    number::<u64>(value.strip_suffix(b" kB")?.trim_ascii_start())?.checked_mul(1024)
}

fn hex(value: &[u8]) -> Option<u64> {
    let digits = std::str::from_utf8(value).ok().filter(|s| !s.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SELF: &str = "Name:\ta\\nb\nState:\tD (disk sleep)\nTgid:\t7\nPid:\t7\nPPid:\t0\nUid:\t1\t2\t3\t4\n\
        NSsid:\t6\t1\nVmSize:\t  10 kB\nRssAnon:\t 1 kB\nRssFile:\t 2 kB\nRssShmem:\t 3 kB\nVmSwap:\t 4 kB\n\
        CoreDumping:\t1\nThreads:\t5\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n";

    #[test]
    fn all_that_is_needed_is_found() {
        let status = Status::parse(SELF.as_bytes()).unwrap();
        let expected = Status {
            comm: Comm::new(b"a\nb").unwrap(),
            state: State::Other(b'D'),
            tgid: Pid::new(7).unwrap(),
            ppid: None,
            uid: 1,
            effective_uid: 2,
            has_memory: true,
            vm_size: 10 << 10,
            rss_anon: 1 << 10,
            rss_shmem: 3 << 10,
            swap: 4 << 10,
            core_dumping: true,
            threads: 5,
            killed: true,
        };
        assert_eq!(status, expected);
        for line in ["Name:", "State:", "Tgid:", "PPid:", "Uid:", "Threads:"] {
            let without: String = SELF.split_inclusive('\n').filter(|l| !l.starts_with(line)).collect();
            assert_eq!(Status::parse(without.as_bytes()), None, "{line}");
        }
        for (good, bad) in [
            ("a\\nb", "a\\tb"),
            ("Tgid:\t7", "Tgid:\t0"),
            ("1\t2\t3\t4", "1"),
            ("1\t2\t3\t4", "1\t4294967296\t3\t4"),
            (" 4 kB", " -4 kB"),
            (" 4 kB", " 18446744073709551615 kB"),
            ("kB", "MB"),
            (":\t5", ":\t"),
            ("100\n", "+100\n"),
        ] {
            assert_eq!(Status::parse(SELF.replacen(good, bad, 1).as_bytes()), None, "{bad}");
        }
        assert_eq!(Status::parse(&SELF.as_bytes()[..SELF.len() - 1]), None);
        assert_eq!(Status::parse(b""), None);
    }

    proptest! {
        #[test]
        fn the_lines_of_a_status_come_in_any_order(
            lines in Just(SELF.split_inclusive('\n').collect::<Vec<_>>()).prop_shuffle(),
            cut in any::<prop::sample::Index>(),
        ) {
            let text = lines.concat().into_bytes();
            prop_assert_eq!(Status::parse(&text), Status::parse(SELF.as_bytes()));
            // Cut within a line, it is none and never a smaller number.
            let cut = cut.index(text.len());
            if cut > 0 && text[cut - 1] != b'\n' {
                prop_assert_eq!(Status::parse(&text[..cut]), None);
            }
        }

        #[test]
        fn a_changed_status_is_no_other_status(at in any::<prop::sample::Index>(), byte: u8) {
            let mut bytes = SELF.as_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            crate::fuzzing::scan(&bytes);
        }
    }
}
