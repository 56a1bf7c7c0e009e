// SPDX-License-Identifier: GPL-2.0-only
//! Threads that read files for which one may have to wait.
//!
//! smaps_rollup, maps, pagemap and the command line take the lock of the process's memory map, which may be held for
//! seconds just when memory is short. So a thread reads them, and the caller waits no longer than its deadline. A thread
//! that is stuck is not used until it has finished, and another one is asked meanwhile.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use fastrand::Rng;
use linux::Pid;
use linux::process::Rollup;
use linux::scan::{Failure, File, Scan};

use super::holder;
use super::page_sample::{self, Counts, SampledProcess};
use crate::kill::prestarted;

/// Threads that a caller waits for. One works at a time; the others take over when it is stuck.
const READER_THREADS: usize = 4;
/// How much of a command line is read. The main class of a Java program comes after several KiB of class path.
pub(super) const MAX_COMMAND_LINE_BYTES: usize = 16 << 10;
/// Their niceness.
const NICE: i32 = -20;
/// Room for a system call, a text, and the mappings of a process. All of it is locked.
const STACK_BYTES: usize = 64 << 10;

/// What is to be read.
#[derive(Clone, Copy)]
enum Question {
    /// What comes back of this process, exactly.
    ComesBack(Pid),
    /// The same by a sample that is ready by the deadline.
    Sample(SampledProcess, Instant),
    /// How much of what the first shares the second has, too.
    CommonPart(SampledProcess, Pid),
    /// How much memory it holds by descriptors, as far as that is known by the deadline.
    Held(Pid, Instant),
    CommandLine(Pid),
}

/// What was read.
#[derive(Clone, Copy)]
enum Content {
    Bytes(u64),
    Counts(Counts),
    /// 0 to 1, or too little to say.
    Part(Option<f64>),
    /// The length of the text.
    Text(usize),
}

impl Content {
    fn bytes(self) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }
}

/// The result of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<T> {
    Read(T),
    /// It could not be read.
    Failed(Failure),
    /// It was not read in time.
    Late,
}

/// The threads. They end when this is dropped, except for those that are stuck.
pub(super) struct Readers(Vec<Arc<Reader>>);

struct Reader {
    state: Mutex<State>,
    changed: Condvar,
    /// What the thread reads into: its own while it is reading. As much of it is in memory as was ever needed.
    text: Mutex<Box<[u8]>>,
}

#[derive(Clone, Copy)]
enum State {
    /// Nothing to do.
    Idle,
    /// To be read.
    Asked(Question),
    /// Being read.
    Reading,
    /// Being read, but the caller has given up.
    Abandoned,
    /// Read.
    Done(Result<Content, Failure>),
    /// There will be no more requests.
    End,
}

impl Readers {
    /// Starts the threads.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn new(scan: &Arc<Scan>) -> io::Result<Self> {
        (0..READER_THREADS).map(|_| Reader::start(scan)).collect::<io::Result<_>>().map(Self)
    }

    /// Reads exactly what comes back when a process dies, in bytes.
    pub(super) fn comes_back(&self, pid: Pid, deadline: Instant) -> Answer<u64> {
        self.ask(Question::ComesBack(pid), deadline, &mut []).map(Content::bytes)
    }

    /// Looks up pages of a process.
    pub(super) fn sample(&self, process: SampledProcess, deadline: Instant) -> Answer<Counts> {
        self.ask(Question::Sample(process, deadline), deadline, &mut []).map(|content| match content {
            Content::Counts(counts) => Some(counts),
            _ => None,
        })
    }

    /// Returns the part of the memory that `process` shares which `other` has, too; `None` when it shares hardly any.
    pub(super) fn common_part(&self, process: SampledProcess, other: Pid, deadline: Instant) -> Answer<Option<f64>> {
        self.ask(Question::CommonPart(process, other), deadline, &mut []).map(|content| match content {
            Content::Part(part) => Some(part),
            _ => None,
        })
    }

    /// Returns how much memory a process holds by descriptors of memfds, in bytes.
    pub(super) fn held(&self, pid: Pid, deadline: Instant) -> Answer<u64> {
        // Of too many descriptors a part is better than nothing.
        let part = Instant::now() + deadline.saturating_duration_since(Instant::now()) / 2;
        self.ask(Question::Held(pid, part), deadline, &mut []).map(Content::bytes)
    }

    /// Reads the command line, cut at the length of `buffer`; `None` when it cannot be read in time.
    pub(super) fn command_line<'b>(
        &self,
        pid: Pid,
        deadline: Instant,
        buffer: &'b mut [u8; MAX_COMMAND_LINE_BYTES],
    ) -> Option<&'b [u8]> {
        match self.ask(Question::CommandLine(pid), deadline, buffer) {
            Answer::Read(Content::Text(len)) => buffer.get(..len),
            _ => None,
        }
    }

    fn ask(&self, question: Question, deadline: Instant, text: &mut [u8]) -> Answer<Content> {
        let idle = self.0.iter().find_map(|reader| {
            let state = reader.lock();
            matches!(*state, State::Idle).then_some((reader, state))
        });
        match idle {
            Some((reader, state)) => reader.ask(state, question, deadline, text),
            // All of them are stuck.
            None => Answer::Late,
        }
    }

    /// Has each thread that a caller waits for read this process's own memory, so that what it needs is
    /// there.
    pub(super) fn rehearse(&self, deadline: Instant) {
        for reader in &self.0 {
            reader.ask(reader.lock(), Question::ComesBack(Pid::own()), deadline, &mut []);
            let process = SampledProcess::rehearsal();
            reader.ask(reader.lock(), Question::Sample(process, deadline), deadline, &mut []);
            reader.ask(reader.lock(), Question::CommonPart(process, Pid::own()), deadline, &mut []);
        }
    }
}

impl<T> Answer<T> {
    /// What `f` makes of what was read; `None` if that is not what was asked for.
    fn map<U>(self, f: impl FnOnce(T) -> Option<U>) -> Answer<U> {
        match self {
            Self::Read(content) => f(content).map_or(Answer::Failed(Failure::Malformed), Answer::Read),
            Self::Failed(failure) => Answer::Failed(failure),
            Self::Late => Answer::Late,
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for reader in &self.0 {
            *reader.lock() = State::End;
            reader.changed.notify_all();
        }
    }
}

impl Reader {
    fn ask(
        &self,
        mut state: MutexGuard<'_, State>,
        question: Question,
        deadline: Instant,
        text: &mut [u8],
    ) -> Answer<Content> {
        *state = State::Asked(question);
        self.changed.notify_all();
        loop {
            match *state {
                State::Done(result) => {
                    *state = State::Idle;
                    if let Ok(Content::Text(len)) = result {
                        text[..len].copy_from_slice(&self.text()[..len]);
                    }
                    return result.map_or_else(Answer::Failed, Answer::Read);
                }
                State::Asked(..) | State::Reading => {}
                State::Idle | State::Abandoned | State::End => return Answer::Late,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // A request that has not begun is withdrawn.
                *state = if matches!(*state, State::Asked(..)) { State::Idle } else { State::Abandoned };
                return Answer::Late;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn new() -> Arc<Self> {
        let text = vec![0; MAX_COMMAND_LINE_BYTES].into_boxed_slice();
        Arc::new(Self { state: Mutex::new(State::Idle), changed: Condvar::new(), text: Mutex::new(text) })
    }

    fn start(scan: &Arc<Scan>) -> io::Result<Arc<Self>> {
        let (reader, scan) = (Self::new(), Arc::clone(scan));
        let worker = Arc::clone(&reader);
        prestarted::start("reader", STACK_BYTES, move || {
            leave_real_time();
            // That nobody can predict: a process that knows what is looked up could hide its memory.
            let mut random = Rng::with_seed(RandomState::new().build_hasher().finish());
            // None is 0.
            let memfd_device = holder::memfd_device().unwrap_or(0);
            worker.work(|question, buffer| match question {
                Question::CommandLine(pid) => {
                    scan.process(pid, File::Cmdline, buffer).map(|text| Content::Text(text.len()))
                }
                Question::Sample(process, deadline) => {
                    page_sample::sample(&scan, &process, &mut random, deadline, buffer).map(Content::Counts)
                }
                Question::Held(pid, deadline) => holder::held(&scan, pid, memfd_device, deadline).map(Content::Bytes),
                Question::CommonPart(process, other) => {
                    page_sample::common_part(&scan, &process, other, &mut random, buffer).map(Content::Part)
                }
                Question::ComesBack(pid) => {
                    let text = scan.process(pid, File::SmapsRollup, buffer)?;
                    // The path is for the text of an error only.
                    let rollup = Rollup::parse(Path::new(""), text).map_err(|_| Failure::Malformed)?;
                    Ok(Content::Bytes(page_sample::comes_back(&scan, pid, &rollup, buffer)))
                }
            });
        })?;
        Ok(reader)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn text(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.text.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread does: one request after the other.
    fn work(&self, mut read: impl FnMut(Question, &mut [u8]) -> Result<Content, Failure>) {
        let mut state = self.lock();
        loop {
            match *state {
                State::End => return,
                State::Asked(question) => {
                    *state = State::Reading;
                    drop(state);
                    let result = read(question, &mut self.text());
                    state = self.lock();
                    match *state {
                        State::Reading => {
                            *state = State::Done(result);
                            self.changed.notify_all();
                        }
                        State::End => return,
                        _ => *state = State::Idle,
                    }
                }
                _ => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Takes the calling thread out of real time, and sets its niceness. The caller runs in real time, but
/// walking the page tables of a large process uses a CPU for as long as it takes, also when the caller has
/// given up, and the threads that free memory could not run meanwhile.
fn leave_real_time() {
    // Inherited from a thread that may run in real time.
    let _ = linux::sched::set_policy(0, libc::SCHED_OTHER, 0);
    // Fails without CAP_SYS_NICE.
    let _ = linux::sched::set_nice(0, NICE);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use linux::Root;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn what_is_there_is_read() {
        let readers = Readers::new(&Arc::new(Scan::open(&Root::system()).unwrap())).unwrap();
        for _ in 0..20 {
            assert!(matches!(readers.comes_back(Pid::own(), soon()), Answer::Read(bytes) if bytes > 0));
        }
        let mut text = [0; MAX_COMMAND_LINE_BYTES];
        let read = readers.command_line(Pid::own(), soon(), &mut text).unwrap();
        assert_eq!(read, std::fs::read("/proc/self/cmdline").unwrap());
        let none = Pid::new(i32::MAX).unwrap();
        assert_eq!(readers.comes_back(none, soon()), Answer::Failed(Failure::Gone));
    }

    #[test]
    fn one_that_is_stuck_is_replaced_until_it_comes_back() {
        let (stuck, entered) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let readers = Readers(vec![Reader::new(), Reader::new()]);
        for reader in &readers.0 {
            let (reader, stuck, entered) = (Arc::clone(reader), Arc::clone(&stuck), Arc::clone(&entered));
            thread::spawn(move || {
                reader.work(|question, _| {
                    let Question::ComesBack(pid) = question else { unreachable!() };
                    entered.fetch_add(usize::from(pid.get() == 1), Ordering::AcqRel);
                    while pid.get() == 1 && stuck.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Ok(Content::Bytes(pid.get().unsigned_abs().into()))
                });
            });
        }
        let pid = |n| Pid::new(n).unwrap();
        let in_a_moment = || Instant::now() + Duration::from_millis(20);
        // One that was not given a CPU in that moment has not begun, and is not stuck.
        let until_stuck = |readers: &Readers, count| {
            while entered.load(Ordering::Acquire) < count {
                assert_eq!(readers.comes_back(pid(1), in_a_moment()), Answer::Late);
            }
        };
        until_stuck(&readers, 1);
        assert_eq!(readers.comes_back(pid(7), soon()), Answer::Read(7));
        until_stuck(&readers, 2);
        // None is left.
        assert_eq!(readers.comes_back(pid(7), soon()), Answer::Late);
        stuck.store(false, Ordering::Release);
        // The late answer of a request that was given up is dropped.
        let began = Instant::now();
        loop {
            match readers.comes_back(pid(8), soon()) {
                Answer::Late if began.elapsed() < Duration::from_secs(10) => {
                    thread::sleep(Duration::from_millis(1));
                }
                answer => {
                    assert_eq!(answer, Answer::Read(8));
                    break;
                }
            }
        }
    }
}
