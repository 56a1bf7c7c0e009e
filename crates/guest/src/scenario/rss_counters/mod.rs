//! Scenario `rss-counters`: what does it cost to count the pages of a process, and how far off is the
//! count that others see?
//!
//! `instructions`, on one CPU with instructions as time: page faults, forks, execs and threads.
//! `rates`, on two: the same by processes and threads side by side. `errors`, on any number: the RSS
//! of processes that have run on some CPUs, in /proc/PID/stat and as the OOM killer sees it, against
//! the pages that they really have.

mod errors;
mod instructions;
mod rates;

use std::ffi::CString;
use std::{io, ptr};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use super::Scenario;
use super::arguments::Arguments;
use crate::system::sched;
use init::report::Reporter;

/// Names what it reports in a guest of so many CPUs.
type Metrics = fn(usize) -> Vec<String>;
/// Measures and reports.
type Part = fn(&Options, &mut Reporter) -> Result<()>;

/// The parts, in the order in which they are run.
const PARTS: [(&str, Metrics, Part); 3] = [
    ("instructions", instructions::metrics, instructions::measure),
    ("rates", rates::metrics, rates::measure),
    ("errors", errors::metrics, errors::measure),
];

/// `rss-counters [instructions] [rates] [errors] [mib=MIB] [rounds=N]`
pub struct RssCounters;

impl Scenario for RssCounters {
    fn name(&self) -> &'static str {
        "rss-counters"
    }

    fn metrics(&self, args: &[String], cpus: usize) -> Result<Vec<String>> {
        Options::parse(args)?;
        let parts = PARTS.iter().filter(|(part, ..)| args.iter().any(|a| a == part));
        Ok(parts.flat_map(|(_, metrics, _)| metrics(cpus)).collect())
    }

    fn run(&self, args: &[String], out: &mut Reporter) -> Result<()> {
        let options = Options::parse(args)?;
        sched::pin(0)?;
        for (part, _, measure) in PARTS.iter().filter(|(part, ..)| args.iter().any(|a| a == part)) {
            measure(&options, out).with_context(|| format!("part {part}"))?;
        }
        Ok(())
    }
}

struct Options {
    /// MiB that are touched in a round of page faults.
    mib: usize,
    /// Rounds of page faults; of what is shorter, there are [`Options::many`].
    rounds: usize,
}

impl Options {
    fn parse(args: &[String]) -> Result<Self> {
        let parts = PARTS.map(|(part, ..)| part);
        let args = Arguments::new(args, &parts, &["mib", "rounds"])?;
        ensure!(parts.iter().any(|part| args.has(part)), "nothing to do; give some of: {}", parts.join(" "));
        let options = Self { mib: args.get("mib", 32)?, rounds: args.get("rounds", 5)? };
        ensure!((2..=4096).contains(&options.mib), "mib={} is not 2 to 4096", options.mib);
        ensure!((1..=1000).contains(&options.rounds), "rounds={} is not 1 to 1000", options.rounds);
        Ok(options)
    }

    /// Pages that are touched in a round.
    fn pages(&self) -> usize {
        self.mib << 8
    }

    /// Rounds of forks, execs and threads.
    fn many(&self) -> usize {
        80 * self.rounds
    }
}

/// This program, made to do nothing.
struct Program {
    path: CString,
}

impl Program {
    fn new() -> Result<Self> {
        let path = std::env::current_exe().context("this program's path")?;
        Ok(Self { path: CString::new(path.into_os_string().into_encoded_bytes())? })
    }

    /// Runs it in a new process, from the start to the end.
    fn run(&self) -> Result<()> {
        let argv = [self.path.as_ptr().cast_mut(), c"true".as_ptr().cast_mut(), ptr::null_mut()];
        let environment = [ptr::null_mut()];
        let (mut pid, none) = (0, ptr::null());
        // SAFETY: path and arguments are C strings, both arrays end with a null pointer, and there
        // are neither actions nor attributes.
        let error = unsafe {
            libc::posix_spawn(
                &mut pid,
                self.path.as_ptr(),
                none,
                none.cast(),
                argv.as_ptr(),
                environment.as_ptr(),
            )
        };
        ensure!(error == 0, "posix_spawn: {}", io::Error::from_raw_os_error(error));
        let pid = Pid::from_raw(pid).context("posix_spawn gave a pid that is none")?;
        let status = waitid(WaitId::Pid(pid), WaitIdOptions::EXITED).context("waitid")?;
        ensure!(status.and_then(|s| s.exit_status()) == Some(0), "{:?} true: {status:?}", self.path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::arguments::words;
    use super::*;

    #[test]
    fn arguments_have_defaults_and_bounds() {
        let parse = |args: &[&str]| Options::parse(&words(args));
        let options = parse(&["instructions", "errors"]).unwrap();
        assert_eq!((options.pages(), options.rounds, options.many()), (8192, 5, 400));
        assert_eq!(parse(&["rates", "mib=2", "rounds=1"]).unwrap().pages(), 512);
        for bad in ["mib=1", "mib=x", "rounds=0", "rounds=1001", "round=2", "error"] {
            assert!(parse(&["rates", bad]).is_err(), "{bad}");
        }
        assert!(parse(&[]).is_err() && parse(&["mib=2"]).is_err());
    }
}
