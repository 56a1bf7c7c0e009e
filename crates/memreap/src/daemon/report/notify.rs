//! Who is told what: the journal, the service manager, the history, the metrics, the hook.

use std::error::Error as _;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use linux::Pid;
use linux::meminfo::MemInfo;
use linux::pidfd::Signal;
use linux::process::Comm;

use super::history::History;
use super::journal::{Journal, Kind, Priority};
use super::metrics::{Figures, Server};
use super::record::{Kill, Reason};
use super::service::Service;
use super::warn::{Warner, Warning};
use crate::choice::Choice;
use crate::config::Config;
use crate::daemon::decide::governor::Outlook;
use crate::units::Size;

/// The same trouble is not told more often than this.
const AGAIN: Duration = Duration::from_secs(60);

/// All that can be told. No call waits or allocates once it is made.
pub struct Voice {
    journal: Journal,
    service: Service,
    history: Option<History>,
    server: Option<Server>,
    warner: Option<Warner>,
    /// What metrics say.
    pub figures: Figures,
    troubled: Option<Instant>,
    /// Who was last told to be held back.
    held: Option<(Pid, Instant)>,
}

impl Voice {
    /// Opens all that the configuration asks for. What is not possible but can be done without, is told.
    /// Must be made before threads are started: it forks.
    ///
    /// # Errors
    /// When an address for metrics cannot be had: whoever gave it counts on it.
    pub fn open(config: &Config) -> Result<Self> {
        let wanted = config.warn.desktop || config.warn.command.is_some();
        let warner = if wanted {
            let warner = Warner::start().context("cannot start the process that warns")?;
            warner.configure(&config.warn).context("cannot reach the process that warns")?;
            Some(warner)
        } else {
            None
        };
        let service = Service::from_env().context("cannot reach the service manager")?;
        let mut journal = Journal::open().context("cannot open the journal")?;
        let history = config.record.history.as_deref().and_then(|path| match History::open(path) {
            Ok(history) => Some(history),
            Err(e) => {
                let path = linux::escape(path);
                journal.note(
                    Kind::Trouble,
                    Priority::Warning,
                    format_args!("kills are not noted: {path}: {e}"),
                );
                None
            }
        });
        let server = match config.record.metrics.as_deref() {
            Some(address) => {
                let server = Server::listen(address).with_context(|| {
                    format!("cannot give metrics on {}", linux::escape(Path::new(address)))
                })?;
                Some(server)
            }
            None => None,
        };
        Ok(Self {
            journal,
            service,
            history,
            server,
            warner,
            figures: Figures::default(),
            troubled: None,
            held: None,
        })
    }

    /// The descriptor that is readable when somebody wants metrics.
    pub fn metrics_fd(&self) -> Option<BorrowedFd<'_>> {
        self.server.as_ref().map(|server| server.as_fd())
    }

    /// Gives metrics to whoever wants them.
    pub fn serve(&mut self) {
        if let Some(server) = &mut self.server {
            self.figures.messages_lost =
                self.journal.lost() + self.warner.as_ref().map_or(0, Warner::dropped);
            server.serve(&self.figures);
        }
    }

    /// How often the service manager wants to hear of us.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.service.watchdog_interval()
    }

    /// We are alive.
    pub fn alive(&self) {
        // A service manager that does not read will know soon enough.
        let _ = self.service.watchdog();
    }

    /// We have started.
    pub fn ready(&mut self, how: fmt::Arguments<'_>) {
        self.journal.note(Kind::Started, Priority::Info, how);
        let _ = self.service.status(how);
        let _ = self.service.ready();
    }

    /// We end.
    pub fn stopping(&mut self) {
        let _ = self.service.stopping();
        self.journal.note(Kind::Started, Priority::Info, format_args!("told to end"));
    }

    /// The configuration is read anew.
    pub fn reloading(&self) {
        let _ = self.service.reloading();
    }

    /// The configuration was read anew; with what is wrong with it the old one is kept.
    pub fn reloaded(&mut self, config: Result<&Config, &str>) {
        match config {
            Ok(config) => {
                self.figures.reloads += 1;
                self.journal.note(Kind::Reloaded, Priority::Info, format_args!("took the new configuration"));
                match &self.warner {
                    Some(warner) => {
                        if let Err(e) = warner.configure(&config.warn) {
                            self.trouble(format_args!("the process that warns is gone: {e}"));
                        }
                    }
                    None if config.warn.desktop || config.warn.command.is_some() => {
                        self.trouble(format_args!("warnings are only turned on by a restart"));
                    }
                    None => {}
                }
            }
            Err(wrong) => {
                self.figures.reloads_failed += 1;
                for line in wrong.lines() {
                    self.journal.note(Kind::Reloaded, Priority::Error, format_args!("{line}"));
                }
                let text = format_args!("the old configuration stays in force");
                self.journal.note(Kind::Reloaded, Priority::Error, text);
            }
        }
        let _ = self.service.ready();
    }

    /// Something that should not happen.
    pub fn trouble(&mut self, what: impl fmt::Display) {
        if self.troubled.is_none_or(|when| when.elapsed() >= AGAIN) {
            self.troubled = Some(Instant::now());
            self.journal.note(Kind::Trouble, Priority::Error, format_args!("{what}"));
        }
    }

    /// Something could not be read.
    pub fn failed(&mut self, error: &linux::Error) {
        self.trouble(Whole(error));
    }

    /// Something that is good to know.
    pub fn note(&mut self, what: fmt::Arguments<'_>) {
        self.journal.note(Kind::Started, Priority::Notice, what);
    }

    /// Something that should be put right.
    pub fn warning(&mut self, what: fmt::Arguments<'_>) {
        self.journal.note(Kind::Trouble, Priority::Warning, what);
    }

    /// A kill may come soon.
    pub fn warn(&mut self, victim: &Choice, because: &str) {
        self.figures.warnings += 1;
        let warning = Warning {
            pid: victim.pid,
            comm: victim.comm,
            uid: victim.uid,
            cgroup: &victim.cgroup,
            bytes: victim.bytes,
            reason: Reason::Forecast,
            because,
        };
        self.journal.warned(&warning);
        if let Some(warner) = &mut self.warner {
            warner.warn(&warning);
        }
    }

    /// Somebody is held back. Told once a minute of the same process.
    pub fn held_back(&mut self, pid: Pid, comm: Comm, because: &str) {
        self.figures.held_back += 1;
        // It may come and go for hours.
        if self.held.is_some_and(|(who, when)| who == pid && when.elapsed() < AGAIN) {
            return;
        }
        self.held = Some((pid, Instant::now()));
        self.journal.note(
            Kind::Warned,
            Priority::Notice,
            format_args!("holding {pid} ({comm}) back: it runs when nobody else wants to; {because}"),
        );
    }

    /// There is nobody to kill, or, with `killed`, kills did not help; and what of the machine's memory no
    /// kill gives back.
    pub fn helpless(&mut self, reason: Reason, killed: bool, because: &str, machine: Option<&MemInfo>) {
        let what = if killed {
            "kills do not help, and the next ones will wait"
        } else {
            "nobody may be killed whose memory would help"
        };
        let (reason, held) = (reason.name(), Unfreed(machine));
        let text = format_args!("{what} ({reason}): {because}{held}");
        self.journal.note(Kind::Trouble, Priority::Error, text);
    }

    /// A victim was asked to end.
    pub fn asked(&mut self, victim: &Choice, signal: Signal, error: Option<&linux::Error>) {
        let (pid, comm) = (victim.pid, victim.comm);
        match error {
            None => self.journal.note(
                Kind::Warned,
                Priority::Warning,
                format_args!("asked {pid} ({comm}) to end, by signal {}", signal.as_raw()),
            ),
            Some(e) => self.trouble(format_args!("cannot ask {pid} ({comm}) to end: {}", Whole(e))),
        }
    }

    /// A kill is over.
    pub fn killed(&mut self, kill: &Kill) {
        self.figures.count(kill);
        self.journal.killed(kill);
        if let Some(history) = &self.history
            && let Err(e) = history.append(kill)
        {
            self.trouble(format_args!("a kill is not noted: {e}"));
        }
        if let Some(warner) = &mut self.warner {
            warner.killed(kill);
        }
    }

    /// What was seen of the machine's memory.
    pub fn outlook(&mut self, outlook: Outlook) {
        self.figures.available = outlook.available;
        self.figures.headroom = outlook.headroom;
        self.figures.forecast = outlook.left;
    }

    /// To be called when there is time: keeps the history from growing for ever.
    pub fn tidy(&mut self) {
        if let Some(history) = &mut self.history
            && let Err(e) = history.tidy()
        {
            self.trouble(format_args!("the history cannot be put aside: {e}"));
        }
    }
}

/// What of the machine's memory no kill gives back.
struct Unfreed<'a>(Option<&'a MemInfo>);

impl fmt::Display for Unfreed<'_> {
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
        )
    }
}

/// An error with what the kernel said: by itself it tells only what for.
struct Whole<'a>(&'a linux::Error);

impl fmt::Display for Whole<'_> {
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

    use super::*;

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
            Unfreed(Some(&info)).to_string(),
            "; no kill gives back tmpfs and shared memory (690 MiB), huge pages (512 MiB), the kernel's slabs and \
             page tables (48 MiB), drivers' memory and the rest (658 MiB)"
        );
        assert_eq!(Unfreed(None).to_string(), "");
    }

    #[test]
    fn an_error_is_told_with_its_cause() {
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let error = linux::Error::Io { path: "/sys/block".into(), source };
        assert_eq!(Whole(&error).to_string(), "/sys/block: Permission denied (os error 13)");
    }
}
