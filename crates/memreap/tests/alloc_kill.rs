// SPDX-License-Identifier: GPL-2.0-only
//! Nothing is allocated, in any thread, from the decision to kill until the memory is back: with no memory
//! left, it would have to wait for the victim.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

mod common;
mod strict;

use std::fs::{self, File};
use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{NO_VICTIM, in_a_shortage, unique};
use linux::cgroup::Hierarchy;
use linux::scan::Scan;
use linux::{Dir, Root};
use memreap::choice::Chooser;
use memreap::config::Config;
use memreap::daemon::act::reapers::Reapers;
use memreap::daemon::decide::control_loop::{ControlLoop, Next};
use memreap::daemon::report::history;
use memreap::daemon::report::hook::Hook;
use memreap::daemon::report::notify::Notifier;
use memreap::daemon::run::sampler::{Machine, Memory};
use memreap::daemon::run::system::{LiveWorld, MAX_LIMITS, System};
use memreap::kill::Method;
use strict::without_allocating;

/// Longer than any kill takes.
const LONG: Duration = Duration::from_secs(20);

/// A grandchild with much memory: children of the process that chooses are never killed.
struct Grandchild(Child);

impl Grandchild {
    fn start(name: &str) -> Self {
        let script = format!(
            "perl -e '$0 = \"{name}\"; $| = 1; my $x = \"x\" x (32 << 20); print \"ready\\n\"; sleep 120' & wait"
        );
        let mut shell = Command::new("sh").args(["-c", &script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        shell.stdout.take().unwrap().read_exact(&mut ready).unwrap();
        Self(shell)
    }

    /// Whether it has been dead for long enough that the shell, which waits for it, has ended.
    fn is_dead(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

/// What is left ends with the namespace, or its sleep.
impl Drop for Grandchild {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn killing_allocates_nothing() {
    in_a_shortage("kill");
}

#[test]
#[ignore = "runs in a namespace"]
fn kill() {
    let root = Root::system();
    let dir = tempfile::tempdir().unwrap();
    let (name, past) = (unique(), dir.path().join("history"));
    let config = format!(
        "act = {{ low = 100, critical = 99.9 }}\n\
         kill = {{ whole_cgroup = \"always\", before = [\"/bin/true\"], before_limit = \"1s\" }}\n\
         warn.command = [\"/bin/true\"]\n\
         record = {{ history = {past:?}, metrics = {:?} }}\n\
         [[rule]]\nlabel = \"the one\"\nname = \"{name}\"\nexe = \"/**/perl*\"\nweight = 1\n{NO_VICTIM}",
        dir.path().join("metrics")
    );
    fs::write(dir.path().join("config"), config).unwrap();
    let config = Config::load(Some(&dir.path().join("config"))).unwrap();
    let hook = Hook::start(&config.kill).unwrap();
    let notifier = Notifier::open(&config, false).unwrap();
    let hierarchy = Hierarchy::find(&root).unwrap();
    let cgroups = hierarchy.as_ref().map(|h| Dir::open(&h.path).unwrap());
    let memory = Memory::Machine(Machine::open(&root).unwrap());
    let chooser = Chooser::new(&root, 1000).unwrap();
    let reapers = Reapers::new(Method::best(), false).unwrap();
    let mut control_loop = ControlLoop::<LiveWorld<'static>>::new(&config, memory, MAX_LIMITS);
    let scan = Scan::open(&root).unwrap();
    let mut system = System::new(chooser, reapers, config, false, scan, cgroups, notifier).unwrap();
    system.hook = Some(hook);
    let noted = File::open(&past).unwrap();
    let [mut innocent, mut victim] = [Grandchild::start(&unique()), Grandchild::start(&name)];
    let began = Instant::now();

    without_allocating(|| {
        let mut more = 10;
        // What comes after the kill is the decision that no victim is left.
        while more > 0 && began.elapsed() < LONG {
            let pause = match control_loop.step(&mut system) {
                Next::After(pause) => pause,
                Next::Rest => Duration::from_millis(10),
            };
            system.notifier.write_history();
            more -= u32::from(rustix::fs::fstat(&noted).unwrap().st_size > 0);
            std::thread::sleep(pause);
        }
    });

    let entries = history::read(&past, 9).unwrap();
    assert_eq!(entries.len(), 1, "{entries:?}");
    let entry = &entries[0];
    assert_eq!((entry.comm.as_str(), entry.ending.as_str()), (name.as_str(), "back"), "{entry:?}");
    assert!(["passed", "timed-out"].contains(&entry.before.as_str()), "{entry:?}");
    // Exact or, on a busy machine, estimated.
    assert!(entry.bytes >= 32 << 20, "{entry:?}");
    let until = Instant::now() + LONG;
    while !victim.is_dead() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(victim.is_dead() && !innocent.is_dead());
}
