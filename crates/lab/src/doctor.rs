// SPDX-License-Identifier: GPL-2.0-only
//! `lab doctor`: checks what the lab needs of the host and says how to get what is missing.

use std::path::Path;
use std::process::Command;

use anyhow::Result;
use serde::Serialize;

use crate::context::Context;
use crate::debian;
use crate::host::{self, Pkg};
use crate::kernel;
use crate::kernel::source;
use crate::vm::parallel;
use crate::vm::probe::{self, Accel};

/// The space for a source tree, stock and changed builds of two variants, and ccache.
const MIN_FREE_DISK_GIB: u64 = 8;
/// The memory for the largest guest and a compiler at the same time.
const MIN_AVAILABLE_MEMORY_MIB: u64 = 3 * 1024;

/// The state of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    /// Nothing to do.
    Ok,
    /// The lab works, but slower or with limits.
    Warn,
    /// The lab does not work.
    Missing,
}

/// The result for one item.
#[derive(Clone, Debug, Serialize)]
struct Finding {
    what: String,
    state: State,
    found: String,
    /// What to do about it, unless it is ok.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Finding {
    fn ok(what: &str, found: impl Into<String>) -> Self {
        Self { what: what.to_owned(), state: State::Ok, found: found.into(), remedy: None }
    }

    fn bad(what: &str, state: State, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.to_owned(), state, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// Checks all items.
///
/// # Errors
/// Only for problems of the lab itself, such as a cache that cannot be written.
fn examine(ctx: &Context) -> Result<Vec<Finding>> {
    let mut findings = vec![machine(), cores(), memory(), disk(&ctx.cache)];
    for (what, packages, state) in [
        ("packages for kernels", host::KERNEL_BUILD_PACKAGES, State::Missing),
        ("packages for the source", host::SOURCE_PACKAGES, State::Missing),
        ("packages for guests", host::guest_packages(ctx.arch), State::Missing),
        ("packages for another architecture", host::cross_packages(ctx.arch), State::Missing),
        ("packages for the series", host::SERIES_PACKAGES, State::Missing),
        ("packages for hosted tests", host::HOSTED_TEST_PACKAGES, State::Warn),
        ("packages for Debian images (face-off, --root)", debian::PACKAGES, State::Warn),
        ("packages for lints", host::LINT_PACKAGES, State::Warn),
    ] {
        findings.push(packages_finding(what, packages, state));
    }
    findings.push(tool("compiler", "gcc", &["--version"], "gcc"));
    findings.push(tool("qemu", ctx.arch.qemu(), &["--version"], host::guest_packages(ctx.arch)[0].name));
    findings.push(accelerator(ctx)?);
    findings.push(tool("ccache", "ccache", &["--version"], "ccache"));
    findings.push(kernels(ctx));
    Ok(findings)
}

fn machine() -> Finding {
    match std::env::consts::ARCH {
        known @ ("x86_64" | "aarch64") => Finding::ok("machine", known),
        other => Finding::bad("machine", State::Missing, other, "the lab runs on x86_64 and aarch64"),
    }
}

fn cores() -> Finding {
    let cores = host::cpus();
    if cores >= 2 {
        return Finding::ok("cores", cores.to_string());
    }
    let remedy = "contention between two guest CPUs cannot be measured on one core";
    Finding::bad("cores", State::Warn, cores.to_string(), remedy)
}

fn memory() -> Finding {
    match parallel::available_mib() {
        Some(mib) if mib >= MIN_AVAILABLE_MEMORY_MIB => Finding::ok("memory", format!("{mib} MiB available")),
        Some(mib) => {
            let remedy = format!("free some memory: guests and compilers need {MIN_AVAILABLE_MEMORY_MIB} MiB");
            Finding::bad("memory", State::Warn, format!("{mib} MiB available"), remedy)
        }
        None => Finding::bad("memory", State::Warn, "unknown", "no MemAvailable in /proc/meminfo"),
    }
}

/// Checks the free space where the cache is or will be.
fn disk(cache: &Path) -> Finding {
    let shown = cache.display();
    if let Some(why) = kernel::refused_path(cache) {
        return Finding::bad("cache", State::Missing, shown.to_string(), why);
    }
    let existing = cache.ancestors().find(|d| d.is_dir()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(existing) {
        Ok(fs) => {
            let gib = (fs.f_bavail * fs.f_frsize) >> 30;
            let found = format!("{gib} GiB free for {shown}");
            if gib >= MIN_FREE_DISK_GIB {
                return Finding::ok("disk", found);
            }
            let remedy = format!(
                "{MIN_FREE_DISK_GIB} GiB are used at most; set MEMREAP_CACHE to a larger disk, or: lab clean-cache"
            );
            Finding::bad("disk", State::Warn, found, remedy)
        }
        Err(e) => Finding::bad("disk", State::Missing, format!("{shown}: {e}"), "set MEMREAP_CACHE to a usable folder"),
    }
}

fn packages_finding(what: &str, packages: &[Pkg], state: State) -> Finding {
    let missing: Vec<&str> = packages.iter().filter(|p| !p.is_present()).map(|p| p.name).collect();
    if missing.is_empty() {
        return Finding::ok(what, "all installed");
    }
    let names = missing.join(" ");
    let remedy = format!("sudo apt-get install --no-install-recommends {names}");
    Finding::bad(what, state, format!("missing: {names}"), remedy)
}

fn tool(what: &str, program: &str, args: &[&str], package: &str) -> Finding {
    match host::output(Command::new(program).args(args)) {
        Ok(text) => Finding::ok(what, text.lines().next().unwrap_or_default()),
        Err(e) => {
            let remedy = format!("sudo apt-get install --no-install-recommends {package}");
            Finding::bad(what, State::Missing, e.to_string(), remedy)
        }
    }
}

fn accelerator(ctx: &Context) -> Result<Finding> {
    if host::find_tool(ctx.arch.qemu()).is_none() {
        let remedy = "install qemu first";
        return Ok(Finding::bad("accelerator", State::Missing, "no QEMU to try KVM with", remedy));
    }
    Ok(match probe::known(ctx)? {
        None => Finding::ok("accelerator", "kvm: /dev/kvm opens; the first boot tells whether kernels run"),
        Some((Accel::Kvm, why)) => Finding::ok("accelerator", format!("kvm: {why}")),
        Some((Accel::Tcg, why)) => {
            let remedy =
                "guests are emulated: slower, but comparisons are valid. For KVM, give this user access to /dev/kvm";
            Finding::bad("accelerator", State::Warn, format!("tcg: {why}"), remedy)
        }
    })
}

fn kernels(ctx: &Context) -> Finding {
    let names = |versions: &[source::PackageVersion]| {
        versions.iter().map(source::PackageVersion::release).collect::<Vec<_>>().join(" ")
    };
    let (listed, cached) = (source::listed(ctx), source::cached(ctx));
    let what = "kernel sources";
    match (listed.is_empty(), cached.is_empty()) {
        (false, _) => Finding::ok(what, format!("apt offers {}", names(&listed))),
        (true, false) => Finding::bad(
            what,
            State::Warn,
            format!("apt offers none; cached: {}", names(&cached)),
            "sudo apt-get update",
        ),
        (true, true) => Finding::bad(
            what,
            State::Missing,
            format!("apt offers no {}", ctx.series.package),
            "add Debian 12's security archive or Debian 13 to apt's sources, then: sudo apt-get update",
        ),
    }
}

/// Prints what is found, and returns whether the lab works on this host.
///
/// # Errors
/// As [`examine`].
pub fn run(ctx: &Context, json: bool) -> Result<bool> {
    let findings = examine(ctx)?;
    if json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", render(&findings));
    }
    Ok(healthy(&findings))
}

fn healthy(findings: &[Finding]) -> bool {
    findings.iter().all(|f| f.state != State::Missing)
}

/// Renders the findings: a line for each, followed by its remedy.
fn render(findings: &[Finding]) -> String {
    let mut text = String::new();
    for f in findings {
        let sign = match f.state {
            State::Ok => "ok",
            State::Warn => "warn",
            State::Missing => "MISSING",
        };
        text += &format!("{sign:<8}{:<27}{}\n", f.what, f.found);
        if let Some(remedy) = &f.remedy {
            text += &format!("{:<8}  -> {remedy}\n", "");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_comes_with_its_remedy() {
        let absent = [Pkg::tool("a-package", "no-such-tool-here")];
        let finding = packages_finding("x", &absent, State::Missing);
        assert_eq!(finding.state, State::Missing);
        let text = render(std::slice::from_ref(&finding));
        assert!(text.contains("MISSING") && text.contains("apt-get install --no-install-recommends a-package"));
        assert!(!healthy(&[Finding::ok("y", "fine"), finding]));
    }

    #[test]
    fn warnings_do_not_make_it_unhealthy() {
        let findings = [Finding::ok("y", "fine"), Finding::bad("z", State::Warn, "slow", "buy")];
        assert!(healthy(&findings));
        let json = serde_json::to_value(&findings).unwrap();
        assert_eq!((&json[0]["state"], &json[1]["remedy"]), (&"ok".into(), &"buy".into()));
        assert!(json[0].get("remedy").is_none());
    }
}
