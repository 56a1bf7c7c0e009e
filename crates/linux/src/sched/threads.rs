// SPDX-License-Identifier: GPL-2.0-only
//! How all threads of another process are scheduled.

use std::ffi::CStr;
use std::mem::MaybeUninit;

use super::{policy, set_policy};
use crate::Pid;
use crate::dir::{Dir, Failure};
use crate::scan::Scan;

/// The most threads of a process that are changed.
const MAX_THREADS: usize = 1024;
/// Policies with which a thread runs before those that are not real-time already. Their priorities are not known here.
const REAL_TIME: [i32; 3] = [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE];

/// The threads of a process: of the one that had this ID when they were opened, even if another has it now.
#[derive(Debug)]
pub struct Threads(Dir);

impl Threads {
    /// Opens the list of a process's threads.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn open(scan: &Scan, pid: Pid) -> Result<Self, Failure> {
        scan.tasks(pid).map(Self)
    }

    /// Has all threads run before those that are not real-time (`SCHED_RR` at priority 1), if they do not yet. Needs
    /// CAP_SYS_NICE; threads for which the kernel refuses it keep their policy.
    pub fn make_real_time(&self) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut left = MAX_THREADS;
        // Those that cannot be listed keep theirs.
        let _ = self.0.for_each_entry(&mut buffer, |name, _| {
            if let Some(tid) = name.to_str().ok().and_then(|name| name.parse().ok()) {
                left -= 1;
                self.make_one_real_time(tid, name);
            }
            left > 0
        });
    }

    fn make_one_real_time(&self, tid: Pid, name: &CStr) {
        let Ok(before) = policy(tid.get()) else { return };
        let flags = before & libc::SCHED_RESET_ON_FORK;
        if REAL_TIME.contains(&(before - flags)) || set_policy(tid.get(), libc::SCHED_RR | flags, 1).is_err() {
            return;
        }
        // A thread that has exited meanwhile may have left its ID to another one.
        if !self.0.has(name) {
            let _ = set_policy(tid.get(), before, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::Barrier;
    use std::thread;

    use super::*;
    use crate::Root;

    #[test]
    fn a_thread_that_has_got_the_id_of_another_keeps_its_policy() {
        let tree = tempfile::tempdir().unwrap();
        let tasks = tree.path().join("proc/1/task");
        fs::create_dir_all(&tasks).unwrap();
        let (begin, end) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let stranger = scope.spawn(|| {
                set_policy(0, libc::SCHED_BATCH, 0).unwrap();
                // Listed, and not there when it is looked for.
                let tid = rustix::thread::gettid().as_raw_pid();
                symlink("gone", tasks.join(tid.to_string())).unwrap();
                begin.wait();
                end.wait();
                policy(0).unwrap()
            });
            begin.wait();
            let scan = Scan::open(&Root::at(tree.path())).unwrap();
            Threads::open(&scan, Pid::new(1).unwrap()).unwrap().make_real_time();
            end.wait();
            assert_eq!(stranger.join().unwrap(), libc::SCHED_BATCH);
        });
    }
}
