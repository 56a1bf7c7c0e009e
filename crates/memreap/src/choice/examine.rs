// SPDX-License-Identifier: GPL-2.0-only
//! Reads what is to be known of one process, and has the policy judge it.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::time::{Duration, Instant};

use linux::cgroup::{Hierarchy, Namespace, OomPreference, oom_preference};
use linux::process::{self, State, Status};
use linux::scan::{self, Failure, File, Scan};
use linux::{Dir, Pid, Root};
use rustix::io::Errno;

use super::groups;
use super::page_sample::Sizes;
use super::readers::{MAX_COMMAND_LINE_BYTES, Readers};
use super::result::{CommandLine, Cost};
use super::table::{Counters, DYING_TIME, Reading, SystemConstants};
use crate::policy::{Exe, Policy, Subject, Verdict, without_padding};

/// How long reading a command line may take. Most are known before a victim is needed.
const COMMAND_LINE_TIMEOUT: Duration = Duration::from_millis(20);
/// Room for cgroup.procs with a line per process, and for status with as many groups as a process can have: 65,536,
/// of 11 bytes each.
const FILE_BUFFER_BYTES: usize = 1 << 20;
/// Room for all of a cgroup's path: the kernel tells 4 KiB of it at most, below our namespace's, which has as much.
const CGROUP_PATH_BYTES: usize = 12 << 10;
/// Room for the path of an executable, and " (deleted)".
const EXE_BUFFER_BYTES: usize = 4200;
/// How many cgroups' preferences are kept at most.
const MAX_PREFERENCES: usize = 256;
const NO_PREFERENCES: [(u64, OomPreference); MAX_PREFERENCES] = [(0, OomPreference::None); MAX_PREFERENCES];
/// Room for the names in a directory.
const NAMES_BUFFER_BYTES: usize = 32 << 10;

/// How much of a process is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// Its memory, and the rest if the process seems to be another one.
    Memory,
    /// All; the command line, if the policy asks for it and it is not known.
    All,
    /// All of a process that is about to be killed; the command line, if the policy asks for it: a process can rewrite
    /// its own in place, as setproctitle(3) does. And the executable, which is read of no others.
    Victim,
}

/// Reads processes. All memory that it needs is allocated when it is made.
pub(super) struct Examiner {
    pub(super) scan: Arc<Scan>,
    pub(super) readers: Readers,
    pub(super) constants: SystemConstants,
    pub(super) buffer: Vec<u8>,
    pub(super) names: Vec<MaybeUninit<u8>>,
    command_line: Box<[u8; MAX_COMMAND_LINE_BYTES]>,
    exe: Vec<u8>,
    /// The cgroup of the process that was read last with more than [`Detail::Memory`].
    pub(super) cgroup: Vec<u8>,
    /// Where the paths of cgroups begin, with a v2 hierarchy, and its root.
    namespace: Option<Namespace>,
    cgroups: Option<Dir>,
    /// What cgroups ask for, in this refresh or choice, each at the hash of its path modulo the length. To look
    /// takes longer than to read a process, and many share a cgroup.
    preferences: [(u64, OomPreference); MAX_PREFERENCES],
    own: Pid,
    /// The only child of this process that may be chosen.
    pub(super) dummy: Option<Pid>,
    pub(super) cost: Cost,
}

impl Examiner {
    pub(super) fn new(root: &Root, scan: Arc<Scan>, readers: Readers, hierarchy: Option<Hierarchy>) -> Self {
        Self {
            scan,
            readers,
            constants: SystemConstants::find(root),
            buffer: vec![0; FILE_BUFFER_BYTES],
            names: vec![MaybeUninit::uninit(); NAMES_BUFFER_BYTES],
            command_line: Box::new([0; MAX_COMMAND_LINE_BYTES]),
            exe: vec![0; EXE_BUFFER_BYTES],
            cgroup: Vec::with_capacity(CGROUP_PATH_BYTES),
            cgroups: hierarchy.as_ref().and_then(|hierarchy| Dir::open(&hierarchy.path).ok()),
            namespace: hierarchy.map(|hierarchy| hierarchy.namespace),
            preferences: NO_PREFERENCES,
            own: Pid::own(),
            dummy: None,
            cost: Cost::default(),
        }
    }

    /// Reads again from now on what cgroups ask for.
    pub(super) fn forget_preferences(&mut self) {
        self.preferences = NO_PREFERENCES;
    }

    /// Reads the system's counters.
    pub(super) fn counters(&mut self) -> Result<Counters, Failure> {
        Counters::read(&self.scan, &self.constants, &mut self.buffer)
    }

    /// Reads what is to be known of a process. `old` is what was known of it.
    pub(super) fn examine(
        &mut self,
        pid: Pid,
        old: Option<&Reading>,
        policy: &Policy,
        now: &Counters,
        detail: Detail,
    ) -> Result<Reading, Failure> {
        self.cost.cheap = self.cost.cheap.saturating_add(1);
        let status = self.status(pid)?;
        if status.tgid != pid {
            // A thread.
            return Err(Failure::Gone);
        }
        // When a process's first thread exits before the others, the process looks like a zombie without
        // memory; the other threads have it.
        let leader_exited = !status.has_memory && status.state == State::Zombie && status.threads > 1;
        let (memory_tid, memory) =
            if leader_exited { self.other_thread(pid).unwrap_or((pid, status)) } else { (pid, status) };
        let mut reading = Reading {
            comm: status.comm,
            uid: status.uid,
            memory_tid,
            has_memory: memory.has_memory,
            dying_until: None,
            vm_size: memory.vm_size,
            core_dumping: memory.core_dumping,
            sizes: Sizes { anon: memory.rss_anon, shared: memory.rss_shmem, swap: memory.swap },
            counter_error: self.constants.counter_error(memory.threads).saturating_mul(2),
            counters: *now,
            verdict: Verdict::PLAIN,
            judged_hash: 0,
            command_line_known: false,
            exe_known: false,
            cgroup_hash: 0,
        };
        let old = old.filter(|old| (old.comm, old.uid) == (status.comm, status.uid));
        let known = old.and_then(|old| old.dying_until);
        reading.dying_until = if status.killed || memory.killed {
            Some(known.unwrap_or_else(|| Instant::now() + DYING_TIME))
        } else {
            // The kernel refused the signal, and would again.
            known.filter(|until| Instant::now() < *until)
        };
        if !reading.has_memory {
            return Ok(reading);
        }
        if detail == Detail::Memory
            && let Some(old) = old
        {
            reading.verdict = old.verdict;
            reading.judged_hash = old.judged_hash;
            reading.command_line_known = old.command_line_known;
            reading.exe_known = old.exe_known;
            reading.cgroup_hash = old.cgroup_hash;
            return Ok(reading);
        }
        self.judge(pid, &status, &mut reading, old, policy, detail)?;
        Ok(reading)
    }

    /// Reads the rest of what the policy asks for, and has the policy judge the process, unless it has judged
    /// the same before.
    fn judge(
        &mut self,
        pid: Pid,
        status: &Status,
        reading: &mut Reading,
        old: Option<&Reading>,
        policy: &Policy,
        detail: Detail,
    ) -> Result<(), Failure> {
        let file = self.scan.process(pid, File::OomScoreAdj, &mut self.buffer)?;
        let oom_score_adj = scan::adjustment(file).ok_or(Failure::Malformed)?;
        self.cgroup.clear();
        let mut preference = OomPreference::None;
        if let Some(namespace) = &self.namespace {
            let file = match self.scan.process(pid, File::Cgroup, &mut self.buffer) {
                // The path is longer than a page. Who nests cgroups so deep is not safe in them.
                Err(Failure::Other(Errno::NAMETOOLONG)) => b"",
                file => file?,
            };
            let relative = process::cgroup(file);
            let path = namespace.resolve(relative).unwrap_or([b"", relative]);
            // Whole, whatever a choice says of it: what a rule is for may be at its end. Never more than there is room
            // for: nothing may be allocated.
            self.cgroup.extend(path.iter().copied().flatten().take(CGROUP_PATH_BYTES));
            let hash = groups::hash(&self.cgroup);
            reading.cgroup_hash = hash;
            let kept = &mut self.preferences[hash as usize % MAX_PREFERENCES];
            if kept.0 != hash
                && let Some(root) = &self.cgroups
            {
                *kept = (hash, oom_preference(root, &self.cgroup, 0));
            }
            preference = kept.1;
        }
        // Tells programs of the same name apart, without waiting for the process.
        let arguments = if policy.needs_command_line() {
            self.scan.stat(reading.memory_tid).map_or(0, |stat| stat.arg_start)
        } else {
            0
        };
        let mut hasher = DefaultHasher::new();
        (status.comm, status.uid, reading.cgroup_hash, oom_score_adj).hash(&mut hasher);
        (preference, arguments).hash(&mut hasher);
        reading.judged_hash = hasher.finish();
        let with_command_line = policy.needs_command_line() && detail != Detail::Memory;
        reading.exe_known = detail == Detail::Victim && policy.needs_exe();
        // It may run another program of the same name by now.
        let exe_known = reading.exe_known || old.is_some_and(|old| old.exe_known);
        let same = old.filter(|old| {
            old.judged_hash == reading.judged_hash && (old.command_line_known || !with_command_line) && !exe_known
        });
        let mut command_line = Some(&[][..]);
        if with_command_line && (same.is_none() || detail == Detail::Victim) {
            let deadline = Instant::now() + COMMAND_LINE_TIMEOUT;
            command_line = self.readers.command_line(reading.memory_tid, deadline, &mut self.command_line);
            reading.command_line_known = command_line.is_some();
            // What a rule asks for may be in the part that was cut off.
            command_line = command_line.filter(|text| text.len() < MAX_COMMAND_LINE_BYTES);
        }
        // When it cannot be read in time, what was known has to do: a few processes that keep their memory maps locked
        // would protect all others.
        if let Some(old) = same.filter(|_| !reading.command_line_known) {
            reading.verdict = old.verdict;
            reading.command_line_known = old.command_line_known;
        } else {
            let exe = if reading.exe_known {
                let path = self.scan.exe(reading.memory_tid, &mut self.exe);
                // Programs go on when they are updated.
                path.map_or(Exe::Unreadable, |path| Exe::Path(path.strip_suffix(b" (deleted)").unwrap_or(path)))
            } else {
                Exe::Unread
            };
            reading.verdict = policy.judge(&Subject {
                pid,
                comm: status.comm.as_bytes(),
                command_line,
                exe,
                uid: status.uid,
                cgroup: &self.cgroup,
                oom_score_adj,
                preference,
            });
        }
        // Whatever the policy says.
        reading.verdict.never |= status.ppid == Some(self.own) && self.dummy != Some(pid);
        Ok(())
    }

    /// Reads the beginning of a process's command line, if that can be had within a moment.
    pub(super) fn command_line(&mut self, pid: Pid) -> CommandLine {
        let deadline = Instant::now() + COMMAND_LINE_TIMEOUT;
        let text = self.readers.command_line(pid, deadline, &mut self.command_line).unwrap_or_default();
        without_padding(text)
            .iter()
            .map(|b| if *b == 0 { b' ' } else { *b })
            .take(CommandLine::new().capacity())
            .collect()
    }

    fn status(&mut self, pid: Pid) -> Result<Status, Failure> {
        Status::parse(self.scan.process(pid, File::Status, &mut self.buffer)?).ok_or(Failure::Malformed)
    }

    /// Returns a thread that still has the process's memory.
    fn other_thread(&mut self, pid: Pid) -> Option<(Pid, Status)> {
        let (scan, buffer) = (&self.scan, &mut self.buffer);
        let mut found = None;
        let listed = scan.threads(pid, &mut self.names, |thread| {
            found = scan
                .process(thread, File::Status, buffer)
                .ok()
                .and_then(Status::parse)
                .filter(|status| status.tgid == pid && status.has_memory)
                .map(|status| (thread, status));
            found.is_none()
        });
        listed.ok().and(found)
    }
}
