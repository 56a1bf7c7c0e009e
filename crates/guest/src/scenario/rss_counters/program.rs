// SPDX-License-Identifier: GPL-2.0-only
//! A program that does nothing, to measure what it costs to run one.

use std::ffi::CString;
use std::{io, ptr};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// This program, with the argument that makes it do nothing.
pub struct Program {
    path: CString,
}

impl Program {
    /// Finds the program.
    ///
    /// # Errors
    /// When its path is not known.
    pub fn new() -> Result<Self> {
        let path = std::env::current_exe().context("this program's path")?;
        Ok(Self { path: CString::new(path.into_os_string().into_encoded_bytes())? })
    }

    /// Runs it in a new process, to its end.
    ///
    /// # Errors
    /// When it cannot be started, or fails.
    pub fn run(&self) -> Result<()> {
        let argv = [self.path.as_ptr().cast_mut(), c"true".as_ptr().cast_mut(), ptr::null_mut()];
        let environment = [ptr::null_mut()];
        let (mut pid, none) = (0, ptr::null());
        // SAFETY: path and arguments are C strings, both arrays end with a null pointer, and there
        // are neither actions nor attributes.
        let error = unsafe {
            libc::posix_spawn(&mut pid, self.path.as_ptr(), none, none.cast(), argv.as_ptr(), environment.as_ptr())
        };
        ensure!(error == 0, "posix_spawn: {}", io::Error::from_raw_os_error(error));
        let pid = Pid::from_raw(pid).context("posix_spawn gave a pid that is none")?;
        let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).context("waitid")?;
        ensure!(status.and_then(|s| s.exit_status()) == Some(0), "{:?} true: {status:?}", self.path);
        Ok(())
    }
}
