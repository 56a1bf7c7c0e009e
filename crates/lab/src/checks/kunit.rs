// SPDX-License-Identifier: GPL-2.0-only
//! `lab kunit`: runs the KUnit suites of the changed kernel. They are built in and run before PID 1; the
//! kernel's `kunit.py` parses the results from the console.

use fs_err as fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::ab::experiment::Failure;
use crate::arch::Arch;
use crate::checks::passes;
use crate::content::Content;
use crate::context::Context;
use crate::host;
use crate::kernel::{self, Tree, Variant};
use crate::vm::boot::{self, boot};
use crate::vm::job::{Arm, GuestCommand, Job};
use crate::vm::probe;

/// The limit of the guest. KASAN and lockdep are slow under TCG.
const GUEST_TIMEOUT: Duration = Duration::from_secs(600);

/// Run the topics' KUnit tests in the changed kernel
#[derive(clap::Args)]
pub struct KunitOptions {
    /// Only suites (or suite.case) matching this glob
    pub filter: Option<String>,
    /// The kernel's configuration
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    pub variant: Variant,
    /// Print the results as JSON (KCIDB format)
    #[arg(long)]
    pub json: bool,
    /// Skip the run if it passed before with the same kernel, guest and QEMU
    #[arg(long, conflicts_with = "json")]
    pub remembered: bool,
}

/// Runs the suites, prints the results and returns whether all tests passed. If no test ran (the filter
/// matches none, or the kernel has none), that is a failure, and so is a test that was skipped.
///
/// # Errors
/// When the kernel does not build, the guest fails, or `kunit.py` cannot be run.
pub fn run(ctx: &Context, options: &KunitOptions) -> Result<bool> {
    host::ensure_packages(ctx, host::guest_packages(ctx.arch))?;
    let kernel = kernel::build(ctx, Tree::Memreap, options.variant)?;
    // KUnit is disabled by default, so that other boots do not run the tests. The initramfs is unpacked before them:
    // they count free pages.
    let mut cmdline = String::from("kunit.enable=1 kunit.autorun=1 initramfs_async=0");
    // The next allocation of a page tells whether it was poisoned when it became free, and page_owner whether it did.
    if options.variant == Variant::Debug {
        cmdline.push_str(" page_poison=1 page_owner=on");
    }
    // KUnit's own kunit_attach_mm() leaves a reference to each mm_struct, which on x86 is found in some other place.
    if options.variant == Variant::Debug && ctx.arch == Arch::X86_64 {
        cmdline.push_str(" kmemleak=on");
    }
    if let Some(glob) = &options.filter {
        let fits = !glob.contains(|c: char| c.is_whitespace() || c == '"');
        ensure!(fits, "the filter '{glob}' cannot be passed on a kernel command line");
        cmdline.push_str(" kunit.filter_glob=");
        cmdline.push_str(glob);
    }
    let arm = Arm { name: Tree::Memreap.to_string(), bzimage: kernel.bzimage, cmdline };
    let mut job = Job::new(GuestCommand::Exec(vec!["/bin/true".into()]));
    job.timeout = GUEST_TIMEOUT;
    job.memreap = false;
    let (accel, _) = probe::accelerator(ctx, &arm.bzimage)?;
    let mut content = Content::default();
    content.add(boot::content_key(ctx, accel, &arm, &job)?);
    content.add(include_str!("kunit.rs"));
    let key = content.key();
    if options.remembered
        && let Some(tests) = passes::recall::<u64>(ctx, &key)
    {
        println!("{tests} tests passed");
        eprintln!("{}", passes::summary(1, 1).unwrap_or_default());
        return Ok(true);
    }
    let boot = boot(ctx, accel, &arm, &job, &ctx.out.join("logs/kunit"))?;

    // Results are printed even if the guest failed later, but the failure is what is reported.
    let parsed = parse(&kernel.source_dir, &boot.console_log, options.json);
    ensure!(boot.outcome.is_success(), Failure::new("kunit", &boot, 30));
    let (passed, tests) = parsed?;
    if tests == 0 {
        let why = if options.filter.is_some() {
            "no test matches the filter"
        } else {
            "this kernel has no KUnit tests built in (CONFIG_KUNIT and the topics' own symbols)"
        };
        eprintln!("kunit: no test ran: {why}");
    }
    if passed && tests > 0 {
        passes::remember(ctx, &key, &tests)?;
    }
    Ok(passed && tests > 0)
}

/// Parses the console with the tool of the kernel's source, prints the results, and returns whether all tests
/// passed and how many ran.
fn parse(source: &Path, console: &Path, json: bool) -> Result<(bool, u64)> {
    let results = console.with_file_name("kunit.json");
    host::remove_any(&results)?;
    let mut tool = Command::new("python3");
    tool.arg(source.join("tools/testing/kunit/kunit.py"))
        .args(["parse", &format!("--json={}", results.display())])
        .arg(console)
        // The source tree is shared between builds: no __pycache__ in it.
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let log = console.with_file_name("kunit.log");
    let status = host::run_logged(&mut tool, &log, |line| {
        if !json {
            println!("{line}");
        }
    })?;
    let text = fs::read_to_string(&results)
        .with_context(|| format!("kunit.py left no results ({status}); its output:\n{}", host::tail(&log, 15)))?;
    let value: Value = serde_json::from_str(&text).with_context(|| results.display().to_string())?;
    if json {
        println!("{text}");
    }
    for name in cases(&value, &|status| status == "SKIP") {
        eprintln!("kunit: {name} was skipped, which counts as a failure; {} says why", console.display());
    }
    Ok((status.success() && failed(&value) == 0, ran(&value)))
}

/// Returns the names of the cases, at any depth, for whose status `keep` is true.
fn cases<'a>(group: &'a Value, keep: &dyn Fn(&str) -> bool) -> Vec<&'a str> {
    let list = |key: &str| group.get(key).and_then(Value::as_array).into_iter().flatten();
    let text = |case: &'a Value, key: &str| case.get(key).and_then(Value::as_str).unwrap_or_default();
    let here = list("test_cases").filter(|case| keep(text(case, "status"))).map(|case| text(case, "name"));
    here.chain(list("sub_groups").chain(list("test_groups")).flat_map(|g| cases(g, keep))).collect()
}

fn ran(results: &Value) -> u64 {
    cases(results, &|status| matches!(status, "PASS" | "FAIL" | "ERROR")).len() as u64
}

fn failed(results: &Value) -> u64 {
    cases(results, &|status| status != "PASS").len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn cases_are_counted_at_every_depth() {
        let results = json!({
            "sub_groups": [
                { "name": "a", "test_cases": [{"status": "PASS"}, {"name": "b", "status": "SKIP"}] },
                { "name": "b", "sub_groups": [{ "test_cases": [{"status": "FAIL"}] }] },
            ],
        });
        assert_eq!((ran(&results), failed(&results)), (2, 2), "a case that is skipped has failed");
        assert_eq!(cases(&results, &|status| status == "SKIP"), ["b"]);
        assert_eq!((ran(&json!({})), failed(&json!({}))), (0, 0));
    }
}
