// SPDX-License-Identifier: GPL-2.0-only
//! Reports events to the journal, the service manager, the history, the metrics and the hook.

use std::error::Error as _;
use std::fmt;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::meminfo::MemInfo;
use linux::pidfd::Signal;

use super::history::History;
use super::journal::{EntryKind, Journal, Priority};
use super::metrics::{Metrics, Server};
use super::record::KillRecord;
use super::service::Service;
use super::warn::Warner;
use super::warning::Warning;
use crate::choice::{Choice, Holder, NoVictim};
use crate::config::{Config, Record};
use crate::daemon::decide::governor::Outlook;
use crate::daemon::decide::reason::{Ending, Obstacle, Reason};
use crate::units::Size;

/// Errors are not reported more often than this.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// So many kills wait to be written to the history, at most.
const MAX_UNWRITTEN: usize = 32;

/// All receivers of reports. No call waits or allocates, except for those that say so.
pub struct Notifier {
    journal: Journal,
    service: Service,
    history: Option<History>,
    /// Kills that are not yet in the history.
    unwritten: Vec<KillRecord>,
    server: Option<Server>,
    warner: Option<Warner>,
    /// The metrics.
    pub metrics: Metrics,
    last_error: Option<Instant>,
}

impl Notifier {
    /// Opens all that the configuration asks for. Allocates, and forks: to be called before threads are
    /// started. A history that cannot be opened, and an address for metrics that cannot be listened on, are
    /// reported, and the daemon works without them. Only the default history's folder is made, and not in a dry run.
    ///
    /// # Errors
    /// When the helper process, the service manager or the journal cannot be reached.
    pub fn open(config: &Config, dry_run: bool) -> Result<Self> {
        let wanted = config.warn.desktop || config.warn.command.is_some();
        let warner = if wanted {
            let warner = Warner::start().context("cannot start the process that warns")?;
            warner.configure(&config.warn).context("cannot reach the process that warns")?;
            Some(warner)
        } else {
            None
        };
        let mut journal = Journal::open().context("cannot open the journal")?;
        let service = Service::from_env().unwrap_or_else(|e| {
            journal.log(EntryKind::Trouble, Priority::Warning, format_args!("the service manager is not told: {e}"));
            Service::default()
        });
        if let (false, Some(path)) = (dry_run, &config.record.history)
            && config.record.history == Record::default().history
        {
            // If it fails, neither can the history be opened.
            let _ = path.parent().map(fs::create_dir_all);
        }
        let history = config.record.history.as_deref().and_then(|path| match History::open(path) {
            Ok(history) => Some(history),
            Err(e) => {
                let path = linux::escape(path);
                journal.log(EntryKind::Trouble, Priority::Warning, format_args!("kills are not recorded: {path}: {e}"));
                None
            }
        });
        let server = config.record.metrics.as_deref().and_then(|address| match Server::listen(address) {
            Ok(server) => Some(server),
            Err(e) => {
                let address = linux::escape(Path::new(address));
                journal.log(
                    EntryKind::Trouble,
                    Priority::Warning,
                    format_args!("metrics are not served: {address}: {e}"),
                );
                None
            }
        });
        for line in &config.unmet {
            journal.log(EntryKind::Trouble, Priority::Warning, format_args!("{line}"));
        }
        let unwritten = Vec::with_capacity(MAX_UNWRITTEN);
        let metrics = Metrics::default();
        Ok(Self { journal, service, history, unwritten, server, warner, metrics, last_error: None })
    }

    /// A notifier that writes to /dev/null, and tells nobody.
    ///
    /// # Errors
    /// When there is no /dev/null.
    pub fn silent() -> io::Result<Self> {
        Ok(Self {
            journal: Journal::null()?,
            service: Service::default(),
            history: Some(History::null()?),
            unwritten: Vec::with_capacity(MAX_UNWRITTEN),
            server: None,
            warner: None,
            metrics: Metrics::default(),
            last_error: None,
        })
    }

    /// Returns the descriptor that is readable when a client wants metrics.
    pub fn metrics_fd(&self) -> Option<BorrowedFd<'_>> {
        self.server.as_ref().map(|server| server.as_fd())
    }

    /// Answers requests for metrics.
    pub fn serve_metrics(&mut self) {
        if let Some(server) = &mut self.server {
            self.metrics.messages_lost = self.journal.lost() + self.warner.as_ref().map_or(0, Warner::dropped);
            server.serve(&self.metrics);
        }
    }

    /// Returns how often [`Notifier::watchdog`] must be called; `None` without a watchdog.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.service.watchdog_interval()
    }

    /// Tells the service manager that the daemon is alive.
    pub fn watchdog(&self) {
        // When it fails the next one is in time.
        let _ = self.service.watchdog();
    }

    /// The daemon has started; `how` says how it works.
    pub fn ready(&mut self, how: fmt::Arguments<'_>) {
        self.journal.log(EntryKind::Started, Priority::Info, how);
        let _ = self.service.status(how);
        let _ = self.service.ready();
    }

    /// The daemon is about to end. Writes the history.
    pub fn stopping(&mut self) {
        self.write_history();
        let _ = self.service.stopping();
        self.journal.log(EntryKind::Started, Priority::Info, format_args!("stopping"));
    }

    /// The configuration is about to be read again.
    pub fn reloading(&self) {
        let _ = self.service.reloading();
    }

    /// The configuration was read again. With an error, which says what is wrong with it, the old one is
    /// kept.
    pub fn reloaded(&mut self, config: Result<&Config, &str>) {
        match config {
            Ok(config) => {
                self.metrics.reloads += 1;
                self.journal.log(
                    EntryKind::Reloaded,
                    Priority::Info,
                    format_args!("the new configuration is in force"),
                );
                match &self.warner {
                    Some(warner) => {
                        if let Err(e) = warner.configure(&config.warn) {
                            self.warning(format_args!("the process that warns is gone: {e}"));
                        }
                    }
                    None if config.warn.desktop || config.warn.command.is_some() => {
                        self.warning(format_args!("warnings can be turned on only by a restart"));
                    }
                    None => {}
                }
            }
            Err(wrong) => {
                self.metrics.reloads_failed += 1;
                for line in wrong.lines() {
                    self.journal.log(EntryKind::Reloaded, Priority::Error, format_args!("{line}"));
                }
                let text = format_args!("the old configuration stays in force");
                self.journal.log(EntryKind::Reloaded, Priority::Error, text);
            }
        }
        let _ = self.service.ready();
    }

    /// An error. Reported once a minute at most, so not for what is said only once.
    pub fn error(&mut self, what: impl fmt::Display) {
        if self.last_error.is_none_or(|when| when.elapsed() >= REPEAT_INTERVAL) {
            self.last_error = Some(Instant::now());
            self.journal.log(EntryKind::Trouble, Priority::Error, format_args!("{what}"));
        }
    }

    /// Something could not be read. Reported as [`Notifier::error`].
    pub fn read_failed(&mut self, error: &linux::Error) {
        self.error(WithCauses(error));
    }

    /// Information about the start.
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        self.journal.log(EntryKind::Started, Priority::Notice, what);
    }

    /// A problem that the administrator should solve.
    pub fn warning(&mut self, what: fmt::Arguments<'_>) {
        self.journal.log(EntryKind::Trouble, Priority::Warning, what);
    }

    /// A kill may come soon.
    pub fn warn(&mut self, victim: &Choice, because: &str) {
        self.metrics.warnings += 1;
        let warning = Warning {
            pid: victim.pid,
            comm: victim.comm,
            uid: victim.uid,
            cgroup: &victim.cgroup,
            bytes: victim.bytes,
            because,
        };
        self.journal.warned(&warning);
        if let Some(warner) = &mut self.warner {
            warner.warn(&warning);
        }
    }

    /// No kill ends the shortage. `machine` is for what of the machine's memory no kill gives back.
    pub fn no_kill_helps(
        &mut self,
        reason: Reason,
        obstacle: Obstacle,
        because: &str,
        machine: Option<&MemInfo>,
        holder: Option<Holder>,
    ) {
        let what = match obstacle {
            Obstacle::KillsFail => "kills do not help, and the next ones will wait",
            Obstacle::NoVictim(NoVictim::None) => "no process may be killed whose memory would help",
            Obstacle::NoVictim(NoVictim::Late) => "no process can be chosen, because the kernel does not answer",
        };
        let (reason, rest) = (reason.name(), NotFreedByKills(machine, holder));
        let text = format_args!("{what} ({reason}): {because}{rest}");
        self.journal.log(EntryKind::Trouble, Priority::Error, text);
    }

    /// A victim was sent the first signal, or would be but for a dry run, or the kernel refused that.
    pub fn first_signal_sent(&mut self, victim: &Choice, signal: Signal, dry_run: bool, error: Option<&linux::Error>) {
        let (pid, comm) = (victim.pid, victim.comm);
        let asked = if dry_run { "would ask" } else { "asked" };
        match error {
            None => self.journal.log(
                EntryKind::Warned,
                Priority::Warning,
                format_args!("{asked} {pid} ({comm}) to end, by signal {}", signal.as_raw()),
            ),
            Some(e) => self.error(format_args!("cannot ask {pid} ({comm}) to end: {}", WithCauses(e))),
        }
    }

    /// A kill has ended. It is in the history after [`Notifier::write_history`].
    pub fn killed(&mut self, kill: &KillRecord) {
        self.metrics.count(kill);
        self.journal.killed(kill);
        if self.unwritten.len() < MAX_UNWRITTEN {
            self.unwritten.push(kill.clone());
        } else {
            self.error(format_args!("a kill was not recorded: there were too many in one shortage"));
        }
        if let Some(warner) = self.warner.as_mut().filter(|_| kill.ending != Ending::Averted) {
            warner.killed(kill);
        }
    }

    /// Writes kills to the history. To be called while no kill is imminent: it can wait for memory, and for what other
    /// users have the disk do.
    pub fn write_history(&mut self) {
        let unwritten = self.unwritten.drain(..);
        let Some(history) = &mut self.history else { return };
        let written = unwritten.map(|kill| history.append(&kill)).fold(Ok(()), io::Result::and);
        if let Err(e) = written {
            self.error(format_args!("a kill was not recorded: {e}"));
        }
    }

    /// Sets the metrics of memory.
    pub fn set_outlook(&mut self, outlook: Outlook) {
        self.metrics.available = outlook.available;
        self.metrics.headroom = outlook.headroom;
        self.metrics.forecast = outlook.time_left;
    }
}

/// The machine's memory that no kill gives back, and who holds most of it by descriptors, as text.
struct NotFreedByKills<'a>(Option<&'a MemInfo>, Option<Holder>);

impl fmt::Display for NotFreedByKills<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(info) = self.0 else { return Ok(()) };
        let kernel = info.slab_unreclaimable.saturating_add(info.page_tables);
        let known = [
            info.free,
            info.buffers,
            info.cached,
            info.swap_cached,
            info.anon,
            info.slab_reclaimable,
            kernel,
            info.hugetlb,
        ];
        let rest = known.into_iter().fold(info.total, u64::saturating_sub);
        write!(
            f,
            "; no kill gives back tmpfs and shared memory ({}), huge pages ({}), the kernel's slabs and page tables \
             ({}), drivers' memory and the rest ({})",
            Size(info.shmem),
            Size(info.hugetlb),
            Size(kernel),
            Size(rest)
        )?;
        match self.1 {
            Some(Holder { pid, comm, bytes }) => {
                write!(f, "; {pid} ({comm}) holds {} in memory files (memfd)", Size(bytes))
            }
            None => Ok(()),
        }
    }
}

/// An error with its causes: by itself it names only the file or call.
struct WithCauses<'a>(&'a linux::Error);

impl fmt::Display for WithCauses<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::super::history;
    use super::super::record::tests::kill;
    use super::*;

    #[test]
    fn the_history_waits_until_it_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let mut notifier = Notifier::silent().unwrap();
        notifier.history = Some(History::open(&path).unwrap());
        let kills = || history::read(&path, 2 * MAX_UNWRITTEN).unwrap().len();
        notifier.killed(&kill("one"));
        assert_eq!(kills(), 0);
        notifier.write_history();
        assert_eq!(kills(), 1);
        for _ in 0..MAX_UNWRITTEN {
            notifier.killed(&kill("more"));
        }
        assert_eq!((kills(), notifier.last_error), (1, None));
        notifier.killed(&kill("too many"));
        notifier.stopping();
        assert_eq!((kills(), notifier.last_error.is_some()), (1 + MAX_UNWRITTEN, true));
    }

    #[test]
    fn what_is_said_once_does_not_depend_on_other_errors() {
        let mut config = Config::default();
        config.warn.desktop = true;
        let mut notifier = Notifier::silent().unwrap();
        notifier.reloaded(Ok(&config));
        // Not an error, of which there is one a minute.
        assert_eq!(notifier.last_error, None);
    }

    #[test]
    fn what_no_kill_frees_is_named() {
        const MIB: u64 = 1 << 20;
        let info = MemInfo {
            total: 2048 * MIB,
            free: 30 * MIB,
            cached: 700 * MIB,
            anon: 100 * MIB,
            shmem: 690 * MIB,
            slab_unreclaimable: 40 * MIB,
            page_tables: 8 * MIB,
            hugetlb: 512 * MIB,
            ..MemInfo::default()
        };
        assert_eq!(
            NotFreedByKills(Some(&info), None).to_string(),
            "; no kill gives back tmpfs and shared memory (690 MiB), huge pages (512 MiB), the kernel's slabs and \
             page tables (48 MiB), drivers' memory and the rest (658 MiB)"
        );
        assert_eq!(NotFreedByKills(None, None).to_string(), "");
        let (pid, comm) = (linux::Pid::own(), linux::process::Comm::new(b"x").unwrap());
        let holder = Holder { pid, comm, bytes: 500 * MIB };
        let text = NotFreedByKills(Some(&info), Some(holder)).to_string();
        assert!(text.ends_with(&format!("; {pid} (x) holds 500 MiB in memory files (memfd)")), "{text}");
    }

    #[test]
    fn an_error_is_told_with_its_cause() {
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let error = linux::Error::Io { path: "/sys/block".into(), source };
        assert_eq!(WithCauses(&error).to_string(), "/sys/block: Permission denied (os error 13)");
    }
}
