//! `lab test`: every check of the project, one after the other, with a count at the end. A
//! failed step does not keep the later ones from running.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;

use crate::context::Context;
use crate::host;
use crate::progress::elapsed;
use crate::series;

/// One check: a command, run in the checkout.
struct Check {
    name: &'static str,
    about: &'static str,
    program: Program,
    args: &'static [&'static str],
    /// A folder of the checkout without which there is nothing to check.
    needs: Option<&'static str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Program {
    Tool(&'static str),
    /// This very program.
    Lab,
}

const fn check(
    name: &'static str,
    about: &'static str,
    program: Program,
    args: &'static [&'static str],
) -> Check {
    Check { name, about, program, args, needs: None }
}

/// Cheap ones first, so that a slip shows early.
const CHECKS: &[Check] = &[
    check("fmt", "formatting", Program::Tool("cargo"), &["fmt", "--all", "--check"]),
    check(
        "clippy",
        "Rust lints",
        Program::Tool("cargo"),
        &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    ),
    check(
        "topics",
        "the topics apply to the oldest and the newest kernel",
        Program::Lab,
        &["topics", "--check-all"],
    ),
    Check {
        name: "hosted",
        about: "kernel code natively, under the sanitizers",
        program: Program::Tool("make"),
        args: &["-C", "kernel/hosted", "test"],
        needs: Some("kernel/hosted"),
    },
    // Before the tests that boot them, which show no progress of a build.
    check("build", "the stock and the changed kernel build", Program::Lab, &["build"]),
    check(
        "rust",
        "Rust unit and integration tests, guests that fail on purpose or run out of memory",
        Program::Tool("cargo"),
        &["test", "--workspace", "--no-fail-fast"],
    ),
    check(
        "series",
        "the exported patches apply and build one by one",
        Program::Lab,
        &["series", "--check", "--out", "target/lab/series"],
    ),
    Check {
        name: "static",
        about: "the topics' code: checkpatch, sparse, W=1",
        program: Program::Lab,
        args: &["static"],
        needs: Some("kernel/checks"),
    },
    check("kunit", "KUnit in the changed debug kernel", Program::Lab, &["kunit", "--variant", "debug"]),
    check(
        "selftests",
        "our selftests and the kernel's mrelease_test in the changed debug kernel",
        Program::Lab,
        &["selftests", "--variant", "debug", "ours", "mm/mrelease_test"],
    ),
    check("smoke", "a comparison with one pair", Program::Lab, &["ab", "reap", "--pairs", "1", "--smoke"]),
];

/// The names of the checks and what each is about, in order.
pub fn checks() -> impl Iterator<Item = (&'static str, &'static str)> {
    CHECKS.iter().map(|c| (c.name, c.about))
}

/// How much of the log of a check that failed is shown, in lines.
const TAIL: usize = 60;

/// How one check went.
struct Done {
    name: &'static str,
    about: &'static str,
    /// Why it failed: the end of its log, or that it could not be run. `None` if it passed.
    failure: Option<String>,
    took: Duration,
}

/// Runs the checks called `only`, or all, prints the summary and returns whether all passed.
///
/// # Errors
/// When a name is unknown, or a package is missing and cannot be installed.
pub fn run(ctx: &Context, only: &[String]) -> Result<bool> {
    if let Some(unknown) = only.iter().find(|o| CHECKS.iter().all(|c| c.name != **o)) {
        let names: Vec<&str> = CHECKS.iter().map(|c| c.name).collect();
        bail!("no check is called \"{unknown}\"; there are: {}", names.join(" "));
    }
    let chosen: Vec<&Check> = CHECKS
        .iter()
        .filter(|c| only.is_empty() || only.iter().any(|o| o == c.name))
        .filter(|c| c.needs.is_none_or(|folder| ctx.in_repo(folder).is_dir()))
        .collect();
    let mut packages = Vec::new();
    if chosen.iter().any(|c| c.program == Program::Lab || c.name == "rust") {
        packages.extend([host::BUILD, host::LAB, host::GIT].concat());
    }
    if chosen.iter().any(|c| c.name == "hosted") {
        packages.extend_from_slice(host::HOSTED);
    }
    if chosen.iter().any(|c| c.name == "static") {
        packages.extend_from_slice(host::LINT);
    }
    host::ensure_packages(ctx, &packages)?;

    let mut done = Vec::new();
    for (i, check) in chosen.iter().enumerate() {
        done.push(run_one(ctx, check, i + 1, chosen.len())?);
    }
    let text = summary(&done);
    let path = ctx.out.join("test-summary.txt");
    fs::write(&path, &text).with_context(|| format!("cannot write {}", path.display()))?;
    print!("{text}");
    Ok(done.iter().all(|d| d.failure.is_none()))
}

fn run_one(ctx: &Context, check: &Check, number: usize, of: usize) -> Result<Done> {
    let program = match check.program {
        Program::Tool(tool) => PathBuf::from(tool),
        Program::Lab => std::env::current_exe().context("cannot find this program's own file")?,
    };
    let mut command = Command::new(program);
    command.args(check.args).current_dir(&ctx.repo);
    // The outer make's job server is not open to us.
    for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL"] {
        command.env_remove(name);
    }
    // These patches go nowhere: a fresh machine without a git identity can check them as well.
    if check.name == "series" && !series::author_known(&ctx.repo) {
        command.envs([
            ("GIT_CONFIG_COUNT", "2"),
            ("GIT_CONFIG_KEY_0", "user.name"),
            ("GIT_CONFIG_VALUE_0", "memreap test"),
            ("GIT_CONFIG_KEY_1", "user.email"),
            ("GIT_CONFIG_VALUE_1", "test@localhost"),
        ]);
    }
    let log = ctx.out.join(format!("logs/test-{}.log", check.name));
    let step = ctx.progress.step(&format!("test {number}/{of} {}: {}", check.name, check.about));
    let began = Instant::now();
    let result = host::run_logged(&mut command, &log, |line| step.detail(line));
    let took = began.elapsed();
    let failure = match result {
        Ok(status) if status.success() => {
            step.done("passed");
            None
        }
        Ok(status) => Some(format!(
            "{}: {status}; the end of {}:\n{}",
            check.name,
            log.display(),
            host::tail(&log, TAIL)
        )),
        Err(e) => Some(format!("{}: {e:#}", check.name)),
    };
    if let Some(failure) = &failure {
        ctx.progress.note(failure);
    }
    Ok(Done { name: check.name, about: check.about, failure, took })
}

/// The table, why the failed ones failed, which may be an hour further up by then, and, alone on the last line,
/// the counts.
fn summary(done: &[Done]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header(["check", "what", "result", "took"]);
    for d in done {
        let result = if d.failure.is_none() { "passed" } else { "FAILED" };
        table.add_row([d.name, d.about, result, &elapsed(d.took)]);
    }
    let failures: Vec<&str> = done.iter().filter_map(|d| d.failure.as_deref()).collect();
    let mut text = format!("{table}\n");
    for failure in &failures {
        text += &format!("\n{}\n\n", failure.trim_end());
    }
    text + &format!("{} passed, {} failed\n", done.len() - failures.len(), failures.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::Progress;

    #[test]
    fn the_last_line_counts() {
        let done = |failure: Option<&str>| {
            let failure = failure.map(String::from);
            Done { name: "n", about: "a", failure, took: Duration::from_secs(61) }
        };
        let text = summary(&[done(None), done(Some("n: it broke\n")), done(None)]);
        assert_eq!(text.lines().last(), Some("2 passed, 1 failed"));
        assert!(text.contains("FAILED") && text.contains("1m01s"), "{text}");
        assert!(text.ends_with("\nn: it broke\n\n2 passed, 1 failed\n"), "{text}");
    }

    #[test]
    fn a_failing_check_is_counted_and_does_not_stop_the_run() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context {
            repo: dir.path().to_path_buf(),
            cache: dir.path().join("cache"),
            out: dir.path().join("out"),
            kernel: None,
            progress: Progress::quiet(),
        };
        for (tool, passes) in [("true", true), ("false", false), ("no-such-tool-here", false)] {
            let check = check("n", "a", Program::Tool(tool), &[]);
            assert_eq!(run_one(&ctx, &check, 1, 1).unwrap().failure.is_none(), passes, "{tool}");
        }
        let error = run(&ctx, &["nonsense".to_owned()]).unwrap_err().to_string();
        assert!(error.starts_with("no check is called \"nonsense\"; there are: fmt clippy"), "{error}");
    }
}
