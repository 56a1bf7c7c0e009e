//! Threads that read what may have to wait for a process.
//!
//! smaps_rollup and the command line take the lock of the process's memory map, which somebody may
//! hold for seconds just when memory is short. So a thread reads them, and whoever asks waits no
//! longer than he wants. A thread that is stuck is left to itself until it comes back, and another
//! one is asked next time.

use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use linux::Pid;
use linux::process::Rollup;
use linux::scan::{Failure, File, Scan};

use crate::kill::prestarted;

/// Threads that are waited for. One works at a time; the others take over when it is stuck.
const READERS: usize = 4;
/// How much of a command line counts.
pub(super) const COMMAND_LINE: usize = 4096;
/// The niceness of threads that somebody waits for, and of the one that nobody waits for.
const FAVOURED: i32 = -20;
const MEEK: i32 = 5;
/// Room for a system call and a few frames around it.
const STACK: usize = 64 << 10;

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<T> {
    /// What was asked for.
    Read(T),
    /// It cannot be had.
    Failed(Failure),
    /// It was not there in time.
    Late,
}

/// What is a process's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Private {
    /// What comes back when it dies, in bytes.
    pub(super) bytes: u64,
    /// Of that, the anonymous memory, in RAM and in swap: at least so much.
    pub(super) own: u64,
}

impl Private {
    pub(super) fn of(rollup: &Rollup) -> Self {
        let files = rollup.rss.saturating_sub(rollup.anonymous);
        let anonymous = rollup.private_clean.saturating_add(rollup.private_dirty).saturating_sub(files);
        // What is shared counts at most by half in `swap_pss`: that half is as much as is missing from `swap`.
        let swap = rollup.swap_pss.saturating_sub(rollup.swap.saturating_sub(rollup.swap_pss));
        Self { bytes: rollup.comes_back(), own: anonymous.saturating_add(swap) }
    }
}

/// The threads. They end when this is dropped, but for those that are stuck.
pub(super) struct Readers {
    readers: Vec<Arc<Reader>>,
    /// Reads in advance, and is not waited for.
    scout: Arc<Reader>,
}

struct Reader {
    desk: Mutex<Desk>,
    turn: Condvar,
}

struct Desk {
    step: Step,
    /// The answer to a question for a command line.
    text: [u8; COMMAND_LINE],
}

#[derive(Clone, Copy)]
enum Step {
    /// Nothing to do.
    Idle,
    /// To be read.
    Asked(Pid, File),
    /// Being read.
    Reading,
    /// Being read, but nobody waits any more.
    Abandoned,
    /// Read.
    Done(Result<Content, Failure>),
    /// There will be no more questions.
    End,
}

/// What was read.
#[derive(Clone, Copy)]
enum Content {
    Private(Private),
    /// The length of the text.
    Text(usize),
}

impl Readers {
    /// Starts the threads.
    ///
    /// # Errors
    /// When that fails.
    pub(super) fn new(scan: &Arc<Scan>) -> io::Result<Self> {
        let readers = (0..READERS).map(|_| Reader::start(scan, FAVOURED)).collect::<io::Result<_>>()?;
        Ok(Self { readers, scout: Reader::start(scan, MEEK)? })
    }

    /// What is the process's alone, exactly.
    pub(super) fn private(&self, pid: Pid, deadline: Instant) -> Answer<Private> {
        self.ask(pid, File::SmapsRollup, deadline, |content, _| match content {
            Content::Private(private) => Some(private),
            Content::Text(_) => None,
        })
    }

    /// The command line, cut at the length of `buffer`; how long it is.
    pub(super) fn command_line(
        &self,
        pid: Pid,
        deadline: Instant,
        buffer: &mut [u8; COMMAND_LINE],
    ) -> Answer<usize> {
        self.ask(pid, File::Cmdline, deadline, |content, text| match content {
            Content::Text(len) => {
                buffer[..len].copy_from_slice(&text[..len]);
                Some(len)
            }
            Content::Private(_) => None,
        })
    }

    /// Begins to read in advance what is the process's alone; false when the last such reading is not over.
    pub(super) fn begin(&self, pid: Pid) -> bool {
        let mut desk = self.scout.lock();
        let idle = matches!(desk.step, Step::Idle);
        if idle {
            desk.step = Step::Asked(pid, File::SmapsRollup);
            self.scout.turn.notify_all();
        }
        idle
    }

    /// What was read in advance. When it is late it goes on, and can be asked for again.
    pub(super) fn finish(&self, deadline: Instant) -> Answer<Private> {
        let mut desk = self.scout.lock();
        loop {
            if let Step::Done(result) = desk.step {
                desk.step = Step::Idle;
                return match result {
                    Ok(Content::Private(private)) => Answer::Read(private),
                    Ok(Content::Text(_)) => Answer::Failed(Failure::Malformed),
                    Err(failure) => Answer::Failed(failure),
                };
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Answer::Late;
            }
            desk = self.scout.turn.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ask<T>(
        &self,
        pid: Pid,
        file: File,
        deadline: Instant,
        take: impl FnOnce(Content, &[u8; COMMAND_LINE]) -> Option<T>,
    ) -> Answer<T> {
        let idle = self.readers.iter().find_map(|reader| {
            let desk = reader.lock();
            matches!(desk.step, Step::Idle).then_some((reader, desk))
        });
        // All of them are stuck.
        let Some((reader, mut desk)) = idle else { return Answer::Late };
        desk.step = Step::Asked(pid, file);
        reader.turn.notify_all();
        loop {
            match desk.step {
                Step::Done(result) => {
                    desk.step = Step::Idle;
                    return match result {
                        Ok(content) => {
                            take(content, &desk.text).map_or(Answer::Failed(Failure::Malformed), Answer::Read)
                        }
                        Err(failure) => Answer::Failed(failure),
                    };
                }
                Step::Asked(..) | Step::Reading => {}
                Step::Idle | Step::Abandoned | Step::End => return Answer::Late,
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // One that has not even begun need not.
                desk.step = if matches!(desk.step, Step::Asked(..)) { Step::Idle } else { Step::Abandoned };
                return Answer::Late;
            }
            desk = reader.turn.wait_timeout(desk, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        for reader in self.readers.iter().chain([&self.scout]) {
            reader.lock().step = Step::End;
            reader.turn.notify_all();
        }
    }
}

impl Reader {
    fn new() -> Arc<Self> {
        let desk = Desk { step: Step::Idle, text: [0; COMMAND_LINE] };
        Arc::new(Self { desk: Mutex::new(desk), turn: Condvar::new() })
    }

    fn start(scan: &Arc<Scan>, nice: i32) -> io::Result<Arc<Self>> {
        let (reader, scan) = (Self::new(), Arc::clone(scan));
        let worker = Arc::clone(&reader);
        prestarted::start("reader", STACK, move || {
            run_at(nice);
            worker.work(|pid, file, buffer| match file {
                File::Cmdline => {
                    scan.process(pid, file, buffer).map(|text| (Content::Text(text.len()), text))
                }
                _ => {
                    let text = scan.process(pid, file, buffer)?;
                    // The path is for the text of an error only.
                    let rollup = Rollup::parse(Path::new(""), text).map_err(|_| Failure::Malformed)?;
                    Ok((Content::Private(Private::of(&rollup)), &[]))
                }
            });
        })?;
        Ok(reader)
    }

    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The life of a thread.
    fn work(
        &self,
        mut read: impl for<'b> FnMut(Pid, File, &'b mut [u8]) -> Result<(Content, &'b [u8]), Failure>,
    ) {
        let mut buffer = [0; COMMAND_LINE];
        let mut desk = self.lock();
        loop {
            match desk.step {
                Step::End => return,
                Step::Asked(pid, file) => {
                    desk.step = Step::Reading;
                    drop(desk);
                    let result = read(pid, file, &mut buffer);
                    desk = self.lock();
                    match desk.step {
                        Step::Reading => {
                            if let Ok((_, text)) = result {
                                desk.text[..text.len()].copy_from_slice(text);
                            }
                            desk.step = Step::Done(result.map(|(content, _)| content));
                            self.turn.notify_all();
                        }
                        Step::End => return,
                        _ => desk.step = Step::Idle,
                    }
                }
                _ => desk = self.turn.wait(desk).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

/// Gives the calling thread its share of a CPU, and not all of it. The one that asks runs in real time; so
/// must not this one: walking the page tables of a large process takes a CPU for as long as it takes, also when
/// nobody waits for it any more, and those who would free memory could not run meanwhile.
fn run_at(nice: i32) {
    // Whoever started it may run in real time.
    let _ = linux::sched::set_policy(0, libc::SCHED_OTHER, 0);
    // Not in reach of everybody (CAP_SYS_NICE).
    let _ = rustix::process::setpriority_process(None, nice);
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;
    use std::time::Duration;

    use linux::Root;

    use super::*;

    fn private(pid: i32) -> Private {
        Private { bytes: pid.unsigned_abs().into(), own: 0 }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    #[test]
    fn what_is_there_is_read() {
        let readers = Readers::new(&Arc::new(Scan::open(&Root::system()).unwrap())).unwrap();
        for _ in 0..20 {
            assert!(
                matches!(readers.private(Pid::own(), soon()), Answer::Read(private) if private.bytes > 0 && private.own <= private.bytes)
            );
        }
        let mut text = [0; COMMAND_LINE];
        let Answer::Read(len) = readers.command_line(Pid::own(), soon(), &mut text) else { panic!() };
        assert_eq!(&text[..len], std::fs::read("/proc/self/cmdline").unwrap());
        let none = Pid::new(i32::MAX).unwrap();
        assert_eq!(readers.private(none, soon()), Answer::Failed(Failure::Gone));
    }

    #[test]
    fn one_that_is_stuck_is_replaced_until_it_comes_back() {
        let (stuck, entered) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::new(0)));
        let readers = Readers { readers: vec![Reader::new(), Reader::new()], scout: Reader::new() };
        for reader in readers.readers.iter().chain([&readers.scout]) {
            let (reader, stuck, entered) = (Arc::clone(reader), Arc::clone(&stuck), Arc::clone(&entered));
            thread::spawn(move || {
                reader.work(|pid, _, _| {
                    entered.fetch_add(usize::from(pid.get() == 1), Ordering::AcqRel);
                    while pid.get() == 1 && stuck.load(Ordering::Acquire) {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Ok((Content::Private(private(pid.get())), &[]))
                });
            });
        }
        let pid = |n| Pid::new(n).unwrap();
        let in_a_moment = || Instant::now() + Duration::from_millis(20);
        // One that was not given a CPU in that moment has not begun, and is not stuck.
        let until_stuck = |readers: &Readers, count| {
            while entered.load(Ordering::Acquire) < count {
                assert_eq!(readers.private(pid(1), in_a_moment()), Answer::Late);
            }
        };
        until_stuck(&readers, 1);
        assert_eq!(readers.private(pid(7), soon()), Answer::Read(private(7)));
        until_stuck(&readers, 2);
        // Nobody is left but the one that reads in advance, and that is stuck as well.
        assert_eq!(readers.private(pid(7), soon()), Answer::Late);
        assert!(readers.begin(pid(1)));
        assert_eq!(readers.finish(in_a_moment()), Answer::Late);
        assert!(!readers.begin(pid(7)));
        stuck.store(false, Ordering::Release);
        // What was read in advance is still of use.
        assert_eq!(readers.finish(soon()), Answer::Read(private(1)));
        assert!(readers.begin(pid(9)));
        assert_eq!(readers.finish(soon()), Answer::Read(private(9)));
        // Its late answer is nobody's.
        let began = Instant::now();
        loop {
            match readers.private(pid(8), soon()) {
                Answer::Late if began.elapsed() < Duration::from_secs(10) => {
                    thread::sleep(Duration::from_millis(1));
                }
                answer => {
                    assert_eq!(answer, Answer::Read(private(8)));
                    break;
                }
            }
        }
    }
}
