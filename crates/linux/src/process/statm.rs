//! /proc/PID/statm.

use std::path::Path;

use crate::{Result, text};

/// What /proc/PID/statm says, in bytes. All 0 for a kernel thread or a zombie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Statm {
    /// The address space.
    pub size: u64,
    /// The pages that are there: anonymous, of files, and shared memory.
    pub resident: u64,
    /// Of those, files' and shared memory's.
    pub shared: u64,
    /// The program's code.
    pub text: u64,
    /// The program's data and stack.
    pub data: u64,
}

impl Statm {
    /// Parses /proc/PID/statm.
    ///
    /// # Errors
    /// When a field is missing or not in its range.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let line = text::single(path, bytes)?;
        let mut fields = line.fields();
        let mut next = || -> Result<u64> {
            let field = fields.next().ok_or_else(|| line.error("fields are missing"))?;
            let pages: u64 = line.number(field)?;
            pages
                .checked_mul(rustix::param::page_size() as u64)
                .ok_or_else(|| line.error("a size beyond 64 bits"))
        };
        let (size, resident, shared, text) = (next()?, next()?, next()?, next()?);
        // A field that is always 0 now: libraries.
        next()?;
        Ok(Self { size, resident, shared, text, data: next()? })
    }
}
