// SPDX-License-Identifier: GPL-2.0-only
//! /proc/PID/stat.

use std::path::Path;
use std::str::FromStr;

use crate::process::Comm;
use crate::{Error, Pid, Result};

/// What /proc/PID/stat says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its name.
    pub comm: Comm,
    /// What it does.
    pub state: State,
    /// Its parent; `None` for the first process, kernel threads' first, and one whose parent is
    /// in an outer PID namespace.
    pub ppid: Option<Pid>,
    /// PF_* of the kernel, of which few are the same in all versions.
    pub flags: u32,
    /// Page faults, all threads, that had to wait for a disk or for swap.
    pub majflt: u64,
    /// -20 to 19, the lower the more CPU.
    pub nice: i32,
    /// When it was started, in clock ticks since boot. Distinguishes two processes that had
    /// the same ID one after the other, unless both started within one tick.
    pub start_time: u64,
    /// Scheduling policy (SCHED_*).
    pub policy: u32,
    /// Where its arguments are; 0 for who may not trace it. Each program that it executes has them at
    /// another, random address.
    pub arg_start: u64,
}

/// What a process does: the letter in /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Z: exited, not yet waited for.
    Zombie,
    /// Another letter.
    Other(u8),
}

impl State {
    pub(crate) fn from_letter(letter: u8) -> Self {
        if letter == b'Z' { Self::Zombie } else { Self::Other(letter) }
    }
}

/// PF_KTHREAD, the same since Linux 2.6.
const PF_KTHREAD: u32 = 0x0020_0000;

impl Stat {
    /// Whether it is a thread of the kernel, which no signal kills.
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// Parses /proc/PID/stat.
    ///
    /// # Errors
    /// When a field is missing or not in its range.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let error = |what| Error::parse(path, 1, what, bytes);
        let line = bytes.strip_suffix(b"\n").ok_or_else(|| error("the line is cut off"))?;
        // The name may have parentheses and line ends itself; what is behind it has none.
        let open = line.iter().position(|&b| b == b'(').ok_or_else(|| error("no name in parentheses"))?;
        let close = line.iter().rposition(|&b| b == b')').ok_or_else(|| error("no name in parentheses"))?;
        let name = line.get(open + 1..close).ok_or_else(|| error("no name in parentheses"))?;
        let rest = line[close + 1..].strip_prefix(b" ").ok_or_else(|| error("no state"))?;
        let mut fields = Fields { path, bytes, rest: rest.split(|&b| b == b' ') };

        Ok(Self {
            comm: Comm::new(name).ok_or_else(|| error("too long for a name"))?,
            state: match fields.next()? {
                &[letter] if letter.is_ascii_alphabetic() => State::from_letter(letter),
                _ => return Err(error("a state is one letter")),
            },
            ppid: match fields.number::<i32>()? {
                0 => None,
                ppid => Some(Pid::new(ppid).ok_or_else(|| error("the parent's ID is negative"))?),
            },
            // After pgrp, session, tty_nr, tpgid.
            flags: fields.skip(4)?.number()?,
            // After minflt, cminflt.
            majflt: fields.skip(2)?.number()?,
            // After cmajflt, utime, stime, cutime, cstime, priority.
            nice: fields.skip(6)?.number()?,
            // After num_threads, itrealvalue.
            start_time: fields.skip(2)?.number()?,
            // After vsize, rss, rsslim, startcode, endcode, startstack, kstkesp, kstkeip, signal, blocked,
            // sigignore, sigcatch, wchan, nswap, cnswap, exit_signal, processor, rt_priority.
            policy: fields.skip(18)?.number()?,
            // After delayacct_blkio_ticks, guest_time, cguest_time, start_data, end_data, start_brk.
            arg_start: fields.skip(6)?.number()?,
        })
    }
}

/// The fields behind the name.
struct Fields<'a, I> {
    path: &'a Path,
    bytes: &'a [u8],
    rest: I,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Fields<'a, I> {
    fn next(&mut self) -> Result<&'a [u8]> {
        self.rest.next().ok_or_else(|| Error::parse(self.path, 1, "fields are missing", self.bytes))
    }

    fn skip(&mut self, count: usize) -> Result<&mut Self> {
        for _ in 0..count {
            self.next()?;
        }
        Ok(self)
    }

    fn number<T: FromStr>(&mut self) -> Result<T> {
        let field = self.next()?;
        crate::text::number(field)
            .ok_or_else(|| Error::parse(self.path, 1, "a field is not a number in its range", self.bytes))
    }
}

#[cfg(test)]
mod tests;
