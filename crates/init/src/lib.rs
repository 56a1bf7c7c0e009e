// SPDX-License-Identifier: GPL-2.0-only
//! PID 1 of the lab's guests, and the channel on which guests report to the host.
//!
//! The host puts this static program into the initramfs as `/init`, beside `/job.json`. It mounts the usual
//! file systems, opens the result channel, does the job, reports the exit status and restarts the machine,
//! which ends QEMU. A scenario runs in a process of its own (`/bin/guest scenario NAME ARGS...`,
//! crates/guest), so that PID 1 can report whatever happens to it.
//!
//! This is a program of its own so that results of guests that run no scenario, such as those of selftests,
//! stay valid when a scenario changes.

mod boot;
mod exec;
mod leaks;
pub mod port;
pub mod report;
mod root;

use std::process::ExitCode;

pub use boot::power_off;
use report::Reporter;

/// The exit status of a Rust program that panics; it is used although the release profile aborts.
pub const PANIC_STATUS: u8 = 101;

/// The program.
pub fn main() -> ExitCode {
    if rustix::process::getpid().is_init() {
        boot::run()
    }
    eprintln!("init: this runs only as PID 1 of a lab guest");
    ExitCode::from(2)
}

/// Has a panic of this program reported to the host as a note. Then `end` is called, which ends the process
/// of a scenario, or the machine for PID 1.
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
