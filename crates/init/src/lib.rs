//! PID 1 of the lab's guests, and the channel on which guests report to the host.
//!
//! The host puts this static program into the initramfs as `/init` beside `/job.json`. It mounts the
//! usual file systems, opens the result channel, does the job, reports the exit status and restarts
//! the machine, which ends QEMU. A scenario runs in a process of its own (`/bin/guest scenario NAME
//! ARGS...`, crates/guest), so that whatever happens to it, PID 1 lives to report it.
//!
//! It is a program of its own so that what passed in guests that run no scenario, as selftests do,
//! stays valid when a scenario changes.

mod boot;
mod exec;
mod leaks;
pub mod port;
pub mod report;

use std::process::ExitCode;

pub use boot::power_off;
use report::Reporter;

/// What a Rust program that panics exits with; kept, although the release profile aborts.
pub const PANICKED: u8 = 101;

/// The program.
pub fn main() -> ExitCode {
    if rustix::process::getpid().is_init() {
        boot::run()
    }
    eprintln!("init: this is PID 1 of a lab guest, and nothing else");
    ExitCode::from(2)
}

/// A panic of this program goes to the host as a note, then `end` decides how to end: the
/// process for a scenario, the machine for PID 1.
pub fn report_panics(out: &Reporter, end: impl Fn(&mut Reporter) + Send + Sync + 'static) {
    let Ok(out) = out.try_clone() else { return };
    let out = std::sync::Mutex::new(out);
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("guest: {info}");
        if let Ok(mut out) = out.lock() {
            out.note(&format!("the guest program panicked: {info}"));
            end(&mut out);
        }
    }));
}
