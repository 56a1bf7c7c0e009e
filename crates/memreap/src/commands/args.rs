// SPDX-License-Identifier: GPL-2.0-only
//! What a user can type. Help, man pages and completions are generated from these definitions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser as _};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use linux::Pid;

use super::history::Since;
use super::kill::plan::{Plan, Show};
use crate::kill::target::Selector;
use crate::kill::{FirstSignal, Method, SetName, SignalFirst};
use crate::units::parse_duration;

/// How long a process has to act on the first signal when no time is given.
const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// What `-h` says in place of the sections at the end of `--help` and of the man page.
const MORE_IN_LONG_HELP: &str = "Exit codes, JSON and examples: --help, or the man page";

const KILL_AFTER_HELP: &str = "\
Names:
  A name must be all of the process's name (comm), or of the base name of argv[0] or of the
  executable. The kernel cuts comm after 15 bytes: a longer name is found by the other two.
  Nothing is matched in part, and threads are never targets.

Many at once:
  --tree, --cgroup, --unit and --user can be given several times. What is named so dies with all
  that it starts meanwhile: the kernel kills a cgroup at once (cgroup.kill); others, and a cgroup
  of which something is spared, are stopped (SIGSTOP) while they are found, and continued if they
  are spared.
  A dry run stops nothing. With --signal-first, that is done after the grace time. Where processes
  are started faster than they are found, what is known is killed after 2 s (exit code 5).
  A cgroup's path begins below /sys/fs/cgroup. A unit is one of the system's manager for root, else
  one of the user's own; without a suffix it is a service. A user is the real one, and not root.

Safety:
  If any target is not found, not permitted, ambiguous or protected, no process is killed (see
  --keep-going). There is a pidfd on every process from the moment it is chosen: when its ID is
  reused by another process meanwhile, that one is not hit. PID 1, memreap itself and its ancestors
  are protected (see --force); kernel threads cannot be killed at all. A name, a tree, a cgroup, a
  unit or a user never means memreap itself.

Exit codes:
  0    killed, and all memory is back (or the process was dead already)
  1    no such process, or a cgroup, unit or user without any
  2    wrong usage, or a method that this kernel does not have
  3    not permitted
  4    refused: the name fits several processes (--all), or the process is protected (--force)
  5    still dying when the time was up, or some that were started meanwhile are left
  6    dead, but the memory is held by another process that shares it
  70   internal error, or /proc cannot be read
  130  interrupted by Ctrl-C; what was killed stays killed
  If several apply, the first of this list: 70, 130, 5, 6, 3, 4, 1. A result that cannot be written
  changes no exit code; stderr says so. A dry run has the exit code of the real run, as far as that
  can be known.

JSON, one object, but none where /proc cannot be read or the command line is wrong (sizes in
bytes, times in seconds; fields may be added without a new version):
  version, command      2, \"kill\"
  dry_run, interrupted  true or false
  exit_code             as above
  method, threads       the method that was tried, and the number of threads
  signal_first          null, or signal and grace_seconds
  timeout_seconds       as given
  before, after         the system's anon, free, available, swap_free; after is null when nothing
                        was done
  freed                 how much less anonymous memory and swap the system uses; null as after
  victims               see below
  sets                  of --tree and the like, each with kind, target, cgroup (path or null),
                        at_once (by cgroup.kill)
  errors                target as typed (of --tree and the like behind that word) or null, pid or
                        null, message, kind: not_found, not_permitted, ambiguous, protected,
                        kernel_thread, unsupported, not_empty, system
 Each victim:
  pid, start_time       together they are unique; the time is in clock ticks after boot
  comm                  its name, printable
  uid, ppid             effective user; parent or null
  rss_anon, swap        what it had
  bytes, exact          what comes back, and whether that is exact
  set                   which of the sets it is of, from 0, or null
  outcome               killed, exited (after the first signal), gone (before any), zombie, shared,
                        dying, spared, refused, would_kill
  method                the one that worked: expedite, mrelease, plain, or null
  seconds, bytes_per_second
                        until the memory was back, or null
  exited_seconds        until the process had exited, or null
  mrelease              null, or calls (after the kill), again (EAGAIN), race_lost

Examples:
  memreap kill 4711
  memreap kill --signal-first SIGTERM --grace 5s postgres
  memreap kill --all --dry-run chrome
  memreap kill --signal-first SIGTERM --unit job-4711.scope";

const DOCTOR_AFTER_HELP: &str = "\
Exit codes:
  0    memreap works here, perhaps with less than it could have
  1    memreap cannot work here

JSON, one object:
  version, command, exit_code
             2, \"doctor\", as above
  findings   each with thing, state (ok, off, missing, unknown), found, for, remedy (or null)";

const PICK_AFTER_HELP: &str = "\
Exit codes:
  0    a process would be killed; with --why-not, the answer was found
  1    no process may be killed; with --why-not, there is no such process
  2    wrong usage, or the configuration is wrong
  70   processes or memory cannot be read

JSON, one object (sizes in bytes):
  version, command  1, \"pick\"
  victim            null for none
  candidates        by falling score
  cost              processes, cheap_readings, exact_readings, samples, late_readings, seconds
  why_not           only with --why-not: see below
 Victim and candidates:
  pid, name, uid, user, cgroup
                    the process
  rule              the rule that fits it; null for none
  bytes, exact, error_bytes
                    what comes back; if that is a sample's, with its standard error; if neither
                    exact nor a sample's, a guess. bytes is null for candidates that were not read
                    closely
 Victim only:
  vm_bytes          the size of its address space
  sharers           IDs of processes that share its memory, and would be killed with it
  group             its leaf cgroup: bytes, processes, expendable (all of it may be killed),
                    oom_group, shares (its processes share its memory, so that all of it dies);
                    null for none
 Candidates only:
  bound_bytes       what comes back at most
  score             what counts: bytes, else bound_bytes, weighted by the policy
 Of --why-not:
  pid, name, uid, user, rule, bytes, exact, score
                    as above
  reason            victim, with_victim (it shares its memory or dies with its cgroup), never (by
                    rule or what no rule can change), no_memory (a kernel thread or a zombie),
                    dying, not_permitted, too_small, less
  victim_score      what counts of the victim, if that is why (less); else null
  smallest_bytes    a victim gives back so much at least";

const WATCH_AFTER_HELP: &str = "\
On a terminal the view is drawn at the same place each time; otherwise there is one line per view.
The forecast is made from the samples of the last 5 s. The next victim is chosen as the daemon would
choose it, but only shown. As root, its memory is measured exactly; otherwise other users' is an
upper bound.

Exit codes:
  0    shown as often as told, or ended by Ctrl-C
  2    wrong usage, or the configuration is wrong
  70   internal error

JSON, one object per view (sizes in bytes):
  version, command        3, \"watch\"
  unix_ms                 when
  total, available, swap_free
                          the machine's memory
  pressure                some_avg10 and full_avg10 in percent; null without PSI
  headroom                available memory and what swap can still free
  bytes_per_second        how fast the headroom shrinks; negative when memory comes back
  seconds_left            until it is used up, or null
  next                    the next victim or null: pid, comm, uid, cgroup, bytes, exact, rule, and
                          what the choice cost: processes, cheap_reads, exact_reads, samples,
                          seconds
  kills                   the last of the history, with its fields; null when that cannot be read

Files:
  /etc/memreap.toml                the configuration
  /var/lib/memreap/history.jsonl   recent kills, unless the configuration names another file";

const HISTORY_AFTER_HELP: &str = "\
Each kill has its time, reason, unit, victim and what came back; below, what was known when it was
decided, and what was tried before: the kills of the 90 s before it, and a command that ran first.
A line that is no kill is told on stderr with its file and number; what of it is a whole kill counts.

Exit codes:
  0    shown, also if there is none
  2    wrong usage, the configuration is wrong, or keeps no history
  3    the file may not be read
  70   internal error

JSON, one object:
  version, command  1, \"history\"
  kills             oldest first, with the fields that the daemon has written (memreap daemon
                    --help), and tried: earlier kills, each with unix_ms, pid, comm, ending
  errors            each with file, line (or null), message

Files:
  /var/lib/memreap/history.jsonl     the history, unless the configuration names another file
  /var/lib/memreap/history.jsonl.1   what came before it

Examples:
  memreap history --since 2h
  memreap history --since '2026-11-29 08:00' --unit nginx.service --reason stall";

const DAEMON_AFTER_HELP: &str = "\
Signals:
  SIGHUP           read the configuration again; if it is wrong, report that and keep the old one
  SIGTERM, SIGINT  end

Exit codes:
  0    stopped by a signal; with --check-config, the configuration is right
  2    wrong usage, or the configuration is wrong
  70   cannot start, or internal error

History, one JSON object per line (also in `memreap watch --json`):
  unix_ms, pid, comm, uid, cgroup, unit, pod, container, parent (a PID or null), parent_comm,
  command_line, processes, bytes, freed (by how much what is free grew, or null), exact, reason,
  because, rule, before (what kill.before did: passed, freed, failed, timed-out, skipped), method,
  ending (back, gone, late, refused, exited, averted, dry-run), available (before and after),
  took_us, choice_us

Files:
  /etc/memreap.toml                the configuration, as far as it differs from the built-in one,
                                   which `memreap generate config` prints
  /var/lib/memreap/history.jsonl   a line for each kill, unless the configuration says otherwise

Examples:
  memreap daemon --check-config --config new.toml
  memreap daemon --dry-run";

/// Gets memory back, fast and predictably, when a machine runs short of it.
#[derive(Debug, Parser)]
#[command(name = "memreap", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Kill processes and get their memory back now
    Kill(KillArgs),
    /// Print which process would be killed now, and why
    Pick(PickArgs),
    /// Show pressure, memory, the next victim and recent kills, live
    Watch(WatchArgs),
    /// Print what the daemon has killed, why, and what came back
    History(HistoryArgs),
    /// Watch memory, and kill before the machine freezes
    Daemon(DaemonArgs),
    /// Print what this kernel offers, what is missing, and what that costs
    Doctor(DoctorArgs),
    /// Print the man pages, shell completions or the built-in configuration
    Generate(GenerateArgs),
}

/// Kill processes and get their memory back now
///
/// Sends SIGKILL, frees the memory on behalf of the dying processes by the fastest method that this
/// kernel has, and prints what came back, how fast and by which method.
#[derive(Args, Debug)]
#[command(
    after_help = MORE_IN_LONG_HELP,
    after_long_help = KILL_AFTER_HELP,
    group = ArgGroup::new("who")
        .args(["targets", "pids", "names", "trees", "cgroups", "units", "users"])
        .multiple(true)
        .required(true)
)]
pub struct KillArgs {
    /// Process IDs (all digits) or names
    #[arg(value_name = "PID|NAME", value_parser = OsStringValueParser::new().try_map(parse_target))]
    targets: Vec<Selector>,
    /// A process ID
    #[arg(long = "pid", value_name = "PID")]
    pids: Vec<Pid>,
    /// A name, even if it is all digits
    #[arg(long = "name", value_name = "NAME", value_parser = OsStringValueParser::new().try_map(parse_name))]
    names: Vec<Selector>,
    /// A process and all that descend from it
    #[arg(long = "tree", value_name = "PID")]
    trees: Vec<Pid>,
    /// All processes of a cgroup and of those below it, by its path
    #[arg(long = "cgroup", value_name = "PATH")]
    cgroups: Vec<PathBuf>,
    /// All processes of a systemd unit
    #[arg(long = "unit", value_name = "NAME", value_parser = parse_unit)]
    units: Vec<String>,
    /// All processes of a user, by name or number
    #[arg(long = "user", value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    users: Vec<String>,
    /// Kill all processes that a name fits
    #[arg(long, short)]
    all: bool,
    /// Kill protected processes too: PID 1, memreap itself, its ancestors
    #[arg(long, short)]
    force: bool,
    /// Kill those that can be killed, even if others cannot
    #[arg(long, short)]
    keep_going: bool,
    /// Send this signal first, and SIGKILL to those that are still there after the grace time
    #[arg(long, short, value_name = "SIGNAL")]
    signal_first: Option<FirstSignal>,
    /// How long to wait after the first signal [default: 2s]
    #[arg(long, short, value_name = "DURATION", requires = "signal_first", value_parser = parse_duration)]
    grace: Option<Duration>,
    /// How long to wait for the end after SIGKILL
    #[arg(long, short, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    /// How to get the memory back
    #[arg(long, short, value_enum, default_value_t = MethodArg::Auto)]
    method: MethodArg,
    /// Do everything but send signals; print what would be killed and what would come back
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Count what comes back exactly: slow for large processes (implied by --dry-run)
    #[arg(long)]
    exact: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Print errors only
    #[arg(long, short, conflicts_with = "json")]
    quiet: bool,
}

impl KillArgs {
    /// What the arguments mean.
    pub fn resolve(self) -> Plan {
        let mut selectors = self.targets;
        selectors.extend(self.pids.into_iter().map(Selector::Pid));
        selectors.extend(self.names);
        let trees = self.trees.into_iter().map(SetName::Tree);
        let cgroups = self.cgroups.into_iter().map(SetName::Cgroup);
        let units = self.units.into_iter().map(SetName::Unit);
        let users = self.users.into_iter().map(SetName::User);
        selectors.extend(trees.chain(cgroups).chain(units).chain(users).map(Selector::Set));
        Plan {
            selectors,
            all: self.all,
            force: self.force,
            keep_going: self.keep_going,
            signal_first: self
                .signal_first
                .map(|signal| SignalFirst { signal, grace: self.grace.unwrap_or(DEFAULT_GRACE) }),
            timeout: self.timeout,
            method: self.method.into(),
            dry_run: self.dry_run,
            exact: self.exact || self.dry_run,
            show: match (self.json, self.quiet) {
                (true, _) => Show::Json,
                (_, true) => Show::Nothing,
                _ => Show::Text,
            },
        }
    }
}

/// How to get the memory back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MethodArg {
    /// The best that this kernel has
    Auto,
    /// The kernel frees the memory as part of the kill (memreap's topic expedite)
    Expedite,
    /// Threads of memreap free it by process_mrelease(2)
    Mrelease,
    /// The dying process frees it, as after kill(1)
    Plain,
}

impl From<MethodArg> for Option<Method> {
    fn from(arg: MethodArg) -> Self {
        match arg {
            MethodArg::Auto => None,
            MethodArg::Expedite => Some(Method::Expedite),
            MethodArg::Mrelease => Some(Method::Mrelease),
            MethodArg::Plain => Some(Method::Plain),
        }
    }
}

/// Print which process would be killed now, and why
#[derive(Args, Debug)]
#[command(after_help = MORE_IN_LONG_HELP, after_long_help = PICK_AFTER_HELP)]
pub struct PickArgs {
    /// The configuration whose policy counts [default: /etc/memreap.toml if there is one]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Print how each of the first candidates was judged, and what the choice cost
    #[arg(long, short)]
    pub explain: bool,
    /// Print why this process would not be killed: which rule or reason spares it, or which process
    /// would be taken instead and by how much
    #[arg(long, short, value_name = "PID")]
    pub why_not: Option<Pid>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Show pressure, memory, the next victim and recent kills, live
#[derive(Args, Debug)]
#[command(after_help = MORE_IN_LONG_HELP, after_long_help = WATCH_AFTER_HELP)]
pub struct WatchArgs {
    /// The configuration whose policy counts [default: /etc/memreap.toml if there is one]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// The time between two views; at least 100ms
    #[arg(long, short, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub interval: Duration,
    /// Show so many views, then end
    #[arg(long, short = 'n', value_name = "TIMES", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Print one JSON object per view
    #[arg(long)]
    pub json: bool,
}

/// Print what the daemon has killed, why, and what came back
#[derive(Args, Debug)]
#[command(after_help = MORE_IN_LONG_HELP, after_long_help = HISTORY_AFTER_HELP)]
pub struct HistoryArgs {
    /// The configuration that names the file [default: /etc/memreap.toml if there is one]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Only kills since then: so long ago (90m, 2h, 3d), or a time (YYYY-MM-DD [HH:MM[:SS]])
    #[arg(long, short, value_name = "TIME", value_parser = Since::parse)]
    pub since: Option<Since>,
    /// Only kills of this unit
    #[arg(long, short, value_name = "NAME")]
    pub unit: Option<String>,
    /// Only kills for this reason
    #[arg(long, short, value_name = "NAME", value_parser = ["critical", "stall", "polite"])]
    pub reason: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Watch memory, and kill before the machine freezes
#[derive(Args, Debug)]
#[command(after_help = MORE_IN_LONG_HELP, after_long_help = DAEMON_AFTER_HELP)]
pub struct DaemonArgs {
    /// The configuration [default: /etc/memreap.toml if there is one]
    #[arg(long, short, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Read the configuration, print what is wrong with it, and end
    #[arg(long)]
    pub check_config: bool,
    /// Do everything but send signals
    #[arg(long, short = 'n')]
    pub dry_run: bool,
}

/// Print what this kernel offers, what is missing, and what that costs
#[derive(Args, Debug)]
#[command(after_help = MORE_IN_LONG_HELP, after_long_help = DOCTOR_AFTER_HELP)]
pub struct DoctorArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Print the man pages, shell completions or the built-in configuration
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// Which of them.
    #[command(subcommand)]
    pub what: Generate,
}

/// What can be generated.
#[derive(Debug, Subcommand)]
pub enum Generate {
    /// Write memreap.1, memreap-kill.1 and so on into a folder
    Man {
        /// The folder, made if it is not there
        folder: PathBuf,
    },
    /// Print the completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the built-in configuration: every key with its default, and all rules
    Config,
}

/// All digits is a process ID, all else a name.
fn parse_target(text: OsString) -> Result<Selector, String> {
    match text.to_str() {
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse().map(Selector::Pid).map_err(|e: linux::InvalidPid| e.to_string())
        }
        _ => parse_name(text),
    }
}

/// A part of a path: more would lead elsewhere.
fn parse_unit(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains('/') {
        return Err("a unit's name, such as nginx.service; --cgroup takes a path".to_owned());
    }
    Ok(text.to_owned())
}

fn parse_name(text: OsString) -> Result<Selector, String> {
    if text.is_empty() {
        return Err("a name cannot be empty".to_owned());
    }
    Ok(Selector::Name(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use clap::CommandFactory as _;
    use clap::error::ErrorKind;

    use super::*;

    fn plan(args: &[&str]) -> Result<Plan, ErrorKind> {
        match Cli::try_parse_from(["memreap", "kill"].iter().chain(args)).map_err(|e| e.kind())?.command {
            Command::Kill(args) => Ok(args.resolve()),
            other => panic!("{other:?}"),
        }
    }

    fn pid(pid: i32) -> Selector {
        Selector::Pid(Pid::new(pid).unwrap())
    }

    #[test]
    fn definitions_are_sound() {
        Cli::command().debug_assert();
    }

    /// A longer line that is indented is broken, and the rest begins at the margin.
    #[test]
    fn what_follows_the_options_fits_in_100_columns() {
        for command in Cli::command().get_subcommands() {
            let text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
            let is_broken = |line: &&str| line.starts_with(' ') && line.chars().count() > 100;
            assert_eq!(text.lines().find(is_broken), None, "{}", command.get_name());
        }
    }

    #[test]
    fn digits_are_a_pid_unless_said_otherwise() {
        let plan = plan(&["12", "x1", "--name", "34", "--pid", "56"]).unwrap();
        let name = |name: &str| Selector::Name(name.into());
        assert_eq!(plan.selectors, [pid(12), name("x1"), pid(56), name("34")]);
    }

    #[test]
    fn a_name_need_not_be_utf8() {
        let name = OsString::from_vec(b"a\xff".to_vec());
        assert_eq!(parse_target(name.clone()), Ok(Selector::Name(name)));
    }

    #[test]
    fn defaults() {
        let plan = plan(&["x"]).unwrap();
        assert_eq!(plan.timeout, Duration::from_secs(10));
        assert_eq!((plan.signal_first, plan.method, plan.show), (None, None, Show::Text));
        assert!(!(plan.all || plan.force || plan.keep_going || plan.dry_run || plan.exact));
    }

    #[test]
    fn a_first_signal_brings_a_grace_time() {
        let first = plan(&["x", "--signal-first", "term"]).unwrap().signal_first.unwrap();
        assert_eq!((first.signal.to_string().as_str(), first.grace), ("SIGTERM", DEFAULT_GRACE));
        let first = plan(&["x", "-s", "HUP", "-g", "100ms"]).unwrap().signal_first.unwrap();
        assert_eq!(first.grace, Duration::from_millis(100));
    }

    #[test]
    fn a_dry_run_counts_exactly() {
        assert!(plan(&["x", "-n"]).unwrap().exact);
    }

    #[test]
    fn wrong_usage_is_found() {
        use ErrorKind::*;
        for (args, kind) in [
            (&[][..], MissingRequiredArgument),
            (&[""], ValueValidation),
            (&["0"], ValueValidation),
            (&["99999999999"], ValueValidation),
            (&["--pid", "x"], ValueValidation),
            (&["--tree", "0"], ValueValidation),
            (&["--unit", "../a.service"], ValueValidation),
            (&["--user", ""], InvalidValue),
            (&["--cgroup", ""], InvalidValue),
            (&["-5"], UnknownArgument),
            (&["x", "--grace", "2s"], MissingRequiredArgument),
            (&["x", "--signal-first", "KILL"], ValueValidation),
            (&["x", "--timeout", "2 parsecs"], ValueValidation),
            (&["x", "--method", "magic"], InvalidValue),
            (&["x", "--json", "--quiet"], ArgumentConflict),
        ] {
            assert_eq!(plan(args).unwrap_err(), kind, "{args:?}");
        }
    }
}
