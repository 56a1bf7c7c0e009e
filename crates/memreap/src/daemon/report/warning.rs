// SPDX-License-Identifier: GPL-2.0-only
//! A warning that a kill may come soon.

use std::fmt;

use linux::process::Comm;
use linux::{Pid, escape};

use crate::units::Size;

/// A process that will be killed if memory goes on shrinking.
#[derive(Clone, Copy, Debug)]
pub struct Warning<'a> {
    /// Its ID.
    pub pid: Pid,
    /// Its name.
    pub comm: Comm,
    /// Its user.
    pub uid: u32,
    /// Its cgroup; empty without one.
    pub cgroup: &'a [u8],
    /// What would come back, in bytes.
    pub bytes: u64,
    /// Why it would be killed, in numbers for people.
    pub because: &'a str,
}

impl fmt::Display for Warning<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pid, comm, uid, bytes, because, .. } = self;
        write!(f, "about to kill {pid} ({comm}), user {uid}, for {}", Size(*bytes))?;
        if !because.is_empty() {
            write!(f, "; {}", escape(because.as_bytes()))?;
        }
        Ok(())
    }
}
