// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/status.

use std::path::Path;

use crate::process::{Comm, State};
use crate::text::{Line, missing};
use crate::{Pid, Result, text};

/// A user's IDs of a process, in the caller's user namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ids {
    /// Who started it.
    pub real: u32,
    /// Whose rights it has.
    pub effective: u32,
    /// Whose rights it may take again.
    pub saved: u32,
    /// Whose rights it has on files.
    pub fs: u32,
}

/// What /proc/PID/status says. Sizes are in bytes; memory counters may lag behind by some pages
/// per CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The name.
    pub name: Comm,
    /// What it does.
    pub state: State,
    /// The process; for a process itself the same as `pid`.
    pub tgid: Pid,
    /// The thread; for a process itself the same as `tgid`.
    pub pid: Pid,
    /// Its parent; see [`Stat::ppid`](crate::process::Stat::ppid).
    pub ppid: Option<Pid>,
    /// Its user.
    pub uid: Ids,
    /// Whether it has memory of its own: not so for kernel threads and zombies. All sizes are 0
    /// then.
    pub has_memory: bool,
    /// The address space.
    pub vm_size: u64,
    /// Memory: `rss_anon`, `rss_file` and `rss_shmem`.
    pub rss: u64,
    /// Anonymous memory.
    pub rss_anon: u64,
    /// Mapped files.
    pub rss_file: u64,
    /// Shared memory: System V, tmpfs, shared anonymous.
    pub rss_shmem: u64,
    /// Anonymous memory in swap.
    pub swap: u64,
    /// Whether it is writing a core dump, its memory held meanwhile.
    pub core_dumping: bool,
    /// Threads; 0 when it is being reaped.
    pub threads: u32,
    /// Signals pending for the thread; bit 0 is signal 1, as in all of these.
    pub sig_pending: u64,
    /// Signals pending for the process.
    pub shared_pending: u64,
    /// Signals that are blocked.
    pub sig_blocked: u64,
    /// Signals that are ignored.
    pub sig_ignored: u64,
    /// Signals that have a handler.
    pub sig_caught: u64,
    /// The effective capabilities; bit N is capability N.
    pub cap_effective: u64,
}

impl Status {
    /// Parses /proc/PID/status.
    ///
    /// # Errors
    /// When `Name`, `State`, `Tgid`, `Pid`, `PPid`, `Uid` or `Threads` is missing, or a value that
    /// is there is not in its range.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let (mut name, mut state, mut tgid, mut pid, mut ppid) = (None, None, None, None, None);
        let (mut uid, mut threads) = (None, None);
        let (mut vm_size, mut rss, mut rss_anon, mut rss_file) = (None, 0, 0, 0);
        let (mut rss_shmem, mut swap, mut core_dumping) = (0, 0, false);
        let (mut sig_pending, mut shared_pending, mut sig_blocked) = (0, 0, 0);
        let (mut sig_ignored, mut sig_caught, mut cap_effective) = (0, 0, 0);

        for line in text::lines(path, bytes) {
            let line = line?;
            let Some((key, value)) = line.key_value() else {
                return Err(line.error("not a key and a value"));
            };
            match key {
                b"Name" => name = Some(unescape(line)?),
                b"State" => state = Some(letter(line, value)?),
                b"Tgid" => tgid = Some(id(line, value)?),
                b"Pid" => pid = Some(id(line, value)?),
                b"PPid" => ppid = Some(id_or_none(line, value)?),
                b"Uid" => uid = Some(ids(line, value)?),
                b"VmSize" => vm_size = Some(line.kib(value)?),
                b"VmRSS" => rss = line.kib(value)?,
                b"RssAnon" => rss_anon = line.kib(value)?,
                b"RssFile" => rss_file = line.kib(value)?,
                b"RssShmem" => rss_shmem = line.kib(value)?,
                b"VmSwap" => swap = line.kib(value)?,
                b"CoreDumping" => core_dumping = line.number::<u8>(value)? != 0,
                b"Threads" => threads = Some(line.number(value)?),
                b"SigPnd" => sig_pending = line.hex(value)?,
                b"ShdPnd" => shared_pending = line.hex(value)?,
                b"SigBlk" => sig_blocked = line.hex(value)?,
                b"SigIgn" => sig_ignored = line.hex(value)?,
                b"SigCgt" => sig_caught = line.hex(value)?,
                b"CapEff" => cap_effective = line.hex(value)?,
                _ => {}
            }
        }
        Ok(Self {
            name: name.ok_or_else(|| missing(path, bytes, "Name: is missing"))?,
            state: state.ok_or_else(|| missing(path, bytes, "State: is missing"))?,
            tgid: tgid.ok_or_else(|| missing(path, bytes, "Tgid: is missing"))?,
            pid: pid.ok_or_else(|| missing(path, bytes, "Pid: is missing"))?,
            ppid: ppid.ok_or_else(|| missing(path, bytes, "PPid: is missing"))?,
            uid: uid.ok_or_else(|| missing(path, bytes, "Uid: is missing"))?,
            has_memory: vm_size.is_some(),
            vm_size: vm_size.unwrap_or(0),
            rss,
            rss_anon,
            rss_file,
            rss_shmem,
            swap,
            core_dumping,
            threads: threads.ok_or_else(|| missing(path, bytes, "Threads: is missing"))?,
            sig_pending,
            shared_pending,
            sig_blocked,
            sig_ignored,
            sig_caught,
            cap_effective,
        })
    }
}

fn unescape(line: Line<'_>) -> Result<Comm> {
    // Not the value that `key_value` returns: the name may start with spaces.
    let shown = line.bytes.strip_prefix(b"Name:\t").ok_or_else(|| line.error("no tab before the name"))?;
    unescaped(shown).ok_or_else(|| {
        line.error("not a name: too long, or a backslash with neither n nor a backslash after it")
    })
}

/// The name, in which the kernel has written a line end as "\n" and a backslash as "\\".
pub(crate) fn unescaped(shown: &[u8]) -> Option<Comm> {
    // Escaped, each byte may take two.
    let mut name = [0; Comm::MAX];
    let mut len = 0;
    let mut bytes = shown.iter();
    while let Some(&byte) = bytes.next() {
        let byte = match byte {
            b'\\' => match bytes.next() {
                Some(b'n') => b'\n',
                Some(b'\\') => b'\\',
                _ => return None,
            },
            byte => byte,
        };
        *name.get_mut(len)? = byte;
        len += 1;
    }
    Comm::new(&name[..len])
}

/// The state in "R (running)".
fn letter(line: Line<'_>, value: &[u8]) -> Result<State> {
    match value {
        &[letter] | &[letter, b' ', ..] if letter.is_ascii_alphabetic() => Ok(State::from_letter(letter)),
        _ => Err(line.error("a state is one letter")),
    }
}

fn id(line: Line<'_>, value: &[u8]) -> Result<Pid> {
    Pid::new(line.number(value)?).ok_or_else(|| line.error("a process ID is above 0"))
}

fn id_or_none(line: Line<'_>, value: &[u8]) -> Result<Option<Pid>> {
    if value == b"0" { Ok(None) } else { id(line, value).map(Some) }
}

fn ids(line: Line<'_>, value: &[u8]) -> Result<Ids> {
    let mut fields = value.split(u8::is_ascii_whitespace);
    let mut next = || line.number(fields.next().ok_or_else(|| line.error("four IDs are expected"))?);
    Ok(Ids { real: next()?, effective: next()?, saved: next()?, fs: next()? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parse(bytes: &[u8]) -> Result<Status> {
        Status::parse(Path::new("/proc/1/status"), bytes)
    }

    /// What every process has, kernel threads too.
    const REQUIRED: [&str; 7] = [
        "Name:\tkthreadd\n",
        "State:\tS (sleeping)\n",
        "Tgid:\t77\n",
        "Pid:\t78\n",
        "PPid:\t0\n",
        "Uid:\t1\t2\t3\t4294967295\n",
        "Threads:\t9\n",
    ];

    const OTHERS: [&str; 15] = [
        "Umask:\t0022\n",
        "Groups:\t4 24 \n",
        "NStgid:\t77\t1\n",
        "VmSize:\t   1001 kB\n",
        "VmRSS:\t   1003 kB\n",
        "RssAnon:\t   1004 kB\n",
        "RssFile:\t   1005 kB\n",
        "RssShmem:\t   1006 kB\n",
        "VmSwap:\t   1008 kB\n",
        "CoreDumping:\t1\n",
        "SigPnd:\t0000000000000001\n",
        "ShdPnd:\t0000000000000100\n",
        "SigBlk:\t0000000000010000\n",
        "SigIgn:\t0000000000001000\n",
        "CapEff:\t000001fffeffffff\n",
    ];

    #[test]
    fn each_required_line_is_missed() {
        for left_out in REQUIRED {
            let text: String = REQUIRED.into_iter().filter(|line| *line != left_out).collect();
            let key = left_out.split_once(':').unwrap().0;
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(&format!("{key}: is missing")), "{error}");
        }
    }

    #[test]
    fn a_kernel_thread_has_no_memory() {
        let status = parse(REQUIRED.concat().as_bytes()).unwrap();
        assert!(!status.has_memory);
        assert_eq!((status.rss, status.rss_anon, status.swap), (0, 0, 0));
        assert_eq!(status.ppid, None);
    }

    #[test]
    fn each_line_has_its_field() {
        let status = parse((REQUIRED.concat() + &OTHERS.concat()).as_bytes()).unwrap();
        let pid = |n| Pid::new(n).unwrap();
        let kib = |n: u64| n * 1024;
        let expected = Status {
            name: Comm::new(b"kthreadd").unwrap(),
            state: State::Sleeping,
            tgid: pid(77),
            pid: pid(78),
            ppid: None,
            uid: Ids { real: 1, effective: 2, saved: 3, fs: u32::MAX },
            has_memory: true,
            vm_size: kib(1001),
            rss: kib(1003),
            rss_anon: kib(1004),
            rss_file: kib(1005),
            rss_shmem: kib(1006),
            swap: kib(1008),
            core_dumping: true,
            threads: 9,
            sig_pending: 1,
            shared_pending: 0x100,
            sig_blocked: 0x10000,
            sig_ignored: 0x1000,
            sig_caught: 0,
            cap_effective: 0x01ff_feff_ffff,
        };
        assert_eq!(status, expected);
    }

    #[test]
    fn values_out_of_range_are_errors() {
        for wrong in [
            "Name: a\n",
            "Name:\ta\\\n",
            "Name:\ta\\t\n",
            "State:\t\n",
            "State:\tSS\n",
            "Pid:\t0\n",
            "PPid:\t-1\n",
            "Uid:\t1\t2\t3\n",
            "Uid:\t1\t2\t3\t4294967296\n",
            "VmRSS:\t18014398509481984 kB\n",
            "VmRSS:\t1 MB\n",
            "VmSwap:\t-1 kB\n",
            "SigPnd:\t10000000000000000\n",
            "SigPnd:\t+1\n",
            "Threads:\t\n",
            "VmRSS:\t1 kB",
            "no colon\n",
        ] {
            assert!(parse((REQUIRED.concat() + wrong).as_bytes()).is_err(), "{wrong:?}");
        }
        let long = format!("Name:\t{}\n", "x".repeat(Comm::MAX + 1));
        assert!(parse((REQUIRED.concat() + &long).as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn any_name_survives_its_escapes(name in prop::collection::vec(1u8.., 0..=15)) {
            let mut text = b"Name:\t".to_vec();
            for &byte in &name {
                match byte {
                    b'\n' => text.extend(b"\\n"),
                    b'\\' => text.extend(b"\\\\"),
                    byte => text.push(byte),
                }
            }
            text.extend(b"\n");
            text.extend(REQUIRED[1..].concat().bytes());
            let status = parse(&text).unwrap();
            prop_assert_eq!(status.name.as_bytes(), &name[..]);
        }

        #[test]
        fn lines_in_any_order(
            lines in Just([&REQUIRED[..], &OTHERS[..]].concat()).prop_shuffle(),
            cut in any::<prop::sample::Index>(),
        ) {
            let status = parse(lines.concat().as_bytes()).unwrap();
            let in_order = parse((REQUIRED.concat() + &OTHERS.concat()).as_bytes()).unwrap();
            prop_assert_eq!(&status, &in_order);
            // Cut within a line, it is an error and never a smaller number.
            let text = lines.concat();
            let cut = cut.index(text.len());
            if cut > 0 && text.as_bytes()[cut - 1] != b'\n' {
                prop_assert!(parse(&text.as_bytes()[..cut]).is_err());
            }
        }
    }
}
