// SPDX-License-Identifier: GPL-2.0-only
//! The command that runs before each kill, and can avert it.
//!
//! A helper process of its own runs it, forked before the daemon enters its sandbox: that of the warnings may be busy
//! with one just then. Neither side waits for the other: a question has the time in it until which an answer is of use,
//! and the daemon looks for the answer while it goes on sampling.

use std::io;
use std::time::Duration;

use arrayvec::ArrayVec;
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use super::monotonic;
use super::record::KillRecord;
use super::warn::{Event, Warner};
use crate::config;
use crate::daemon::decide::reason::Before;

/// The niceness of the helper and of the command, which have hardly any time, on a machine that is busy.
const NICE: i32 = -20;
/// Answers to questions that are still open, at most: one per memory that is watched. Older ones nobody waits for.
const MAX_ANSWERS: usize = 16;
/// An answer: the ticket, and which of these it is.
pub(super) const ANSWER_BYTES: usize = 5;
const ANSWERS: [Before; 4] = [Before::Passed, Before::Freed, Before::Failed, Before::TimedOut];
/// What the command exits with to go on, and when it has freed something.
const GO_ON_STATUS: i32 = 0;
const FREED_STATUS: i32 = 10;

/// The daemon's end of the connection to the helper process.
#[derive(Debug)]
pub struct Hook {
    helper: Warner,
    last_ticket: u32,
    answers: ArrayVec<(u32, Before), MAX_ANSWERS>,
}

impl Hook {
    /// Forks the helper, as [`Warner::start`].
    ///
    /// # Errors
    /// When there is no room for another process, or the command is too long.
    pub fn start(settings: &config::Kill) -> io::Result<Self> {
        let hook = Self { helper: Warner::start_with(NICE)?, last_ticket: 0, answers: ArrayVec::new() };
        hook.configure(settings)?;
        Ok(hook)
    }

    /// Sends the helper another configuration.
    ///
    /// # Errors
    /// As [`Warner::configure`].
    pub fn configure(&self, settings: &config::Kill) -> io::Result<()> {
        let (command, time_limit) = (settings.before.clone(), settings.before_limit);
        self.helper.configure(&config::Warn { desktop: false, command, time_limit })
    }

    /// Has the command run for a kill that is due, for `limit` at most. Returns a ticket for the answer; `None` when
    /// the helper is gone or far behind. Does not wait, and allocates nothing.
    pub fn ask(&mut self, kill: &KillRecord, limit: Duration) -> Option<u32> {
        self.last_ticket = self.last_ticket.wrapping_add(1);
        let until = u64::try_from((monotonic() + limit).as_micros()).unwrap_or(u64::MAX);
        let event = Event::before(self.last_ticket, until, kill);
        self.helper.send(&event).then_some(self.last_ticket)
    }

    /// Returns the answer for a ticket, once; `None` as long as there is none. Does not wait, and allocates nothing.
    pub fn answer(&mut self, ticket: u32) -> Option<Before> {
        let mut answer = [0; ANSWER_BYTES];
        loop {
            match recv(&self.helper.socket, &mut answer[..], RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                Ok((_, ANSWER_BYTES)) => {
                    let [ticket @ .., which] = answer;
                    if self.answers.is_full() {
                        self.answers.remove(0);
                    }
                    let before = ANSWERS.get(usize::from(which)).copied().unwrap_or(Before::Failed);
                    self.answers.push((u32::from_le_bytes(ticket), before));
                }
                Err(Errno::AGAIN) => break,
                // The helper is gone.
                Ok(_) | Err(_) => return Some(Before::Failed),
            }
        }
        let found = self.answers.iter().position(|(of, _)| *of == ticket)?;
        Some(self.answers.remove(found).1)
    }
}

/// What the helper answers when the command has exited with this status, was ended after its time (`Ok(None)`), or
/// could not be run.
pub(super) fn answer(ticket: [u8; 4], ran: &io::Result<Option<i32>>) -> [u8; ANSWER_BYTES] {
    let before = match ran {
        Ok(Some(GO_ON_STATUS)) => Before::Passed,
        Ok(Some(FREED_STATUS)) => Before::Freed,
        Ok(None) => Before::TimedOut,
        Ok(Some(_)) | Err(_) => Before::Failed,
    };
    let which = ANSWERS.iter().position(|answer| *answer == before).and_then(|at| u8::try_from(at).ok());
    let [a, b, c, d] = ticket;
    [a, b, c, d, which.unwrap_or(u8::MAX)]
}

#[cfg(test)]
mod tests;
