// SPDX-License-Identifier: GPL-2.0-only
//! `lab stress`: runs stress-ng in guests, with the stock and the changed kernel.
//!
//! stress-ng knows more ways to stress memory management than our scenarios, and is independent of this
//! project. Each class of stressors has its own guest in each kernel. As in all boots, a problem reported by
//! the kernel fails the guest. A failure reported by stress-ng counts against the changed kernel unless the
//! stock kernel has it too. The amount of work is shown, but it is no measurement because guests run
//! concurrently. But no work at all is a failure: a class whose stressors were skipped, or in which the OOM
//! killer never killed, has tested nothing.

use fs_err as fs;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::builder::PossibleValuesParser;
use comfy_table::Table;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use serde::{Deserialize, Serialize};

use crate::WrongUsage;
use crate::checks::boot_and_collect;
use crate::context::Context;
use crate::host::{self, Pkg, Staging};
use crate::kernel::{self, Tree, Variant};
use crate::vm::boot::Boot;
use crate::vm::channel::Outcome;
use crate::vm::job::{Arm, GuestCommand, Job};
use crate::vm::parallel;
use crate::vm::probe::{self, Accel};

/// The package of stress-ng.
const PACKAGES: &[Pkg] = &[Pkg::tool("stress-ng", "stress-ng")];
/// The path of stress-ng in the guest.
const GUEST_PROGRAM: &str = "/usr/bin/stress-ng";
/// The time for the boot, and for stressors that check late whether their time is over: under TCG and with
/// debug checks a single round of some stressors takes a minute.
const TIMEOUT_MARGIN: Duration = Duration::from_secs(300);
/// The prefix of the lines of the guest's script, which distinguishes them from those of stress-ng.
const LAB_LINE_PREFIX: &str = "lab: ";

/// A class of stressors and what it needs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Class {
    name: String,
    about: String,
    /// stress-ng's stressors, with the number of instances of each.
    stressors: BTreeMap<String, u32>,
    /// Options for the stressors.
    #[serde(default)]
    options: String,
    /// The guest's memory; absent for that of any job.
    mem_mib: Option<u32>,
    /// Shell commands to prepare the guest, as root. If one fails, the class fails.
    #[serde(default)]
    setup: String,
    /// Shell commands in the process that executes stress-ng.
    #[serde(default)]
    enter: String,
    /// Counters of /proc/vmstat that must not be 0 at the end, as proof that the class did what it is for.
    #[serde(default)]
    must_count: Vec<String>,
    /// Failures that stress-ng reports at random in any kernel: substrings of the result of [`complaint`].
    #[serde(default)]
    known_complaints: Vec<String>,
}

/// The classes; the tests read them.
static CLASSES: LazyLock<Vec<Class>> = LazyLock::new(|| {
    let file: Result<BTreeMap<String, Vec<Class>>, _> = toml::from_str(include_str!("stress.toml"));
    file.ok().and_then(|mut file| file.remove("class")).unwrap_or_default()
});

/// Run stress-ng in guests, with the stock and the changed kernel
///
/// Each class of stressors gets a guest per kernel. Finding (exit code 1): a failure that stock does not
/// have, or a class that did nothing.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lab stress                              all classes in both debug kernels
  lab stress oom swap --seconds 300       two classes, longer
  lab stress --variant slim --seconds 10  a quick run")]
pub struct StressOptions {
    /// Classes [default: all]
    #[arg(value_parser = PossibleValuesParser::new(CLASSES.iter().map(|class| class.name.as_str())))]
    pub classes: Vec<String>,
    /// The kernels' configuration
    #[arg(long, value_enum, default_value_t = Variant::Debug)]
    pub variant: Variant,
    /// Duration per class and kernel in seconds, a day at most
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=24 * 60 * 60))]
    pub seconds: u64,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
    /// Only list the classes
    #[arg(long)]
    pub list: bool,
}

/// The verdict. Later ones are more severe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The changed kernel has no failure that stock does not have, and all stressors did some work.
    Ok,
    /// stress-ng failed only in the changed kernel, or did not do what the class is for.
    Finding,
    /// A guest failed.
    Guest,
}

/// Lists the classes, or runs them in both kernels, prints the results and returns the most severe verdict.
///
/// # Errors
/// When stress-ng cannot be installed, a kernel does not build, or QEMU fails. If a guest panics, hangs or
/// reports a problem, the other classes still run.
pub fn run(ctx: &Context, options: &StressOptions) -> Result<Verdict> {
    if options.list {
        for class in CLASSES.iter() {
            println!("{:<12} {} ({})", class.name, class.about, class.shown());
        }
        return Ok(Verdict::Ok);
    }
    let wrong = || WrongUsage(format!("--arch {}: the host's stress-ng does not run there", ctx.arch));
    ensure!(ctx.arch.is_native(), wrong());
    let is_chosen = |class: &&Class| options.classes.is_empty() || options.classes.contains(&class.name);
    let classes: Vec<&Class> = CLASSES.iter().filter(is_chosen).collect();
    host::ensure_packages(ctx, &[host::guest_packages(ctx.arch), PACKAGES].concat())?;
    let program = host::find_tool("stress-ng").context("no stress-ng in PATH")?;
    let arms = [Tree::Stock, Tree::Memreap]
        .map(|tree| -> Result<Arm> {
            let bzimage = kernel::build(ctx, tree, options.variant)?.bzimage;
            Ok(Arm { name: tree.to_string(), bzimage, cmdline: String::new() })
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let (accel, _) = probe::accelerator(ctx, &arms[1].bzimage)?;
    let boots: Vec<(&Class, &Arm)> =
        classes.iter().flat_map(|&class| arms.iter().map(move |arm| (class, arm))).collect();
    // Nothing is measured, so guests may run concurrently.
    let most = classes.iter().map(|class| class.mem_mib()).max().unwrap_or(0);
    let mut done = parallel::map(parallel::unmeasured_guests(most), &boots, |&(class, arm)| {
        run_one(ctx, accel, arm, class, options.seconds, program.clone())
    })
    .into_iter();

    // Results are printed even if there was an error.
    let mut rows = Vec::new();
    let mut error = None;
    for class in classes {
        match (done.next(), done.next()) {
            (Some(Ok(stock)), Some(Ok(memreap))) => {
                rows.push(Row::new(class, options.seconds, stock, memreap));
            }
            (Some(Err(e)), _) | (_, Some(Err(e))) => error = error.or(Some(e)),
            _ => {}
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else if !rows.is_empty() {
        print!("{}", render(&rows));
    }
    if let Some(error) = error {
        return Err(error);
    }
    Ok(rows.iter().map(|row| row.verdict).max().unwrap_or(Verdict::Ok))
}

impl Class {
    fn mem_mib(&self) -> u32 {
        self.mem_mib.unwrap_or(Job::default().mem_mib)
    }

    /// Returns the stressors, for example `2 vm, 1 rmap`.
    fn shown(&self) -> String {
        let each: Vec<_> = self.stressors.iter().map(|(name, n)| format!("{n} {name}")).collect();
        each.join(", ")
    }

    /// Returns the shell script for the guest.
    fn script(&self, seconds: u64) -> String {
        let mut command =
            format!("stress-ng --verify --metrics --yaml /run/stress.yaml --temp-path /tmp --timeout {seconds}s");
        for (name, instances) in &self.stressors {
            // Writing to a String cannot fail.
            let _ = write!(command, " --{name} {instances}");
        }
        let _ = write!(command, " {}", self.options);
        // The shell must survive to report the end; stress-ng sets the OOM scores of its processes itself.
        // Stdout and stderr share a pipe, so that lines stay in order.
        format!(
            "exec 2>&1
set -e
{setup}
echo -1000 >/proc/self/oom_score_adj
cd /tmp
set +e
(
	set -e
	echo 0 >/proc/self/oom_score_adj
	{enter}
	exec {command}
)
echo \"{LAB_LINE_PREFIX}status $?\"
while read -r name value; do echo \"{LAB_LINE_PREFIX}vmstat $name $value\"; done </proc/vmstat
cat /run/stress.yaml
echo \"{LAB_LINE_PREFIX}end\"
",
            setup = self.setup,
            enter = self.enter,
        )
    }
}

/// Runs a class in a kernel.
fn run_one(ctx: &Context, accel: Accel, arm: &Arm, class: &Class, seconds: u64, program: PathBuf) -> Result<Report> {
    // The script is a file because the command is shown. Each run has its own, which is removed at the end.
    let name = format!("stress-{}-{}-{}", class.name, arm.name, std::process::id());
    let script = Staging::begin(&ctx.out.join(name))?;
    fs::write(script.path(), class.script(seconds))?;
    let in_guest = format!("/stress/{}", class.name);
    let mut job = Job::new(GuestCommand::Exec(vec!["sh".into(), in_guest.clone()]));
    job.name = Some(format!("stress-ng {}", class.name));
    job.mem_mib = class.mem_mib();
    job.memreap = false;
    job.timeout = Duration::from_secs(seconds) + TIMEOUT_MARGIN;
    job.overlay = vec![(program, GUEST_PROGRAM.into()), (script.path().to_path_buf(), in_guest)];
    let folder = ctx.out.join("logs/stress").join(format!("{}-{}", class.name, arm.name));
    let name = format!("{}, {}", class.name, arm.name);
    let (boot, text) = boot_and_collect(ctx, accel, arm, &job, &folder, &name)?;
    Ok(Report::new(class, &boot, &text))
}

/// The result of a class in a kernel.
#[derive(Debug, Serialize)]
struct Report {
    /// Why the guest failed, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    guest: Option<String>,
    /// stress-ng's exit status; `None` if it did not end.
    status: Option<i32>,
    /// The failures, with numbers replaced by `N`.
    failures: BTreeSet<String>,
    /// What was not done although it should have been.
    idle: Vec<String>,
    /// The number of bogo operations by stressor.
    ops: BTreeMap<String, u64>,
    oom_kills: u64,
    /// The folder with the logs.
    logs: PathBuf,
    /// The end of the output if there was a problem.
    #[serde(skip_serializing_if = "String::is_empty")]
    output: String,
}

impl Report {
    fn new(class: &Class, boot: &Boot, text: &str) -> Self {
        let Parsed { status, ops, vmstat, complaints, complete } = Parsed::new(text);
        let guest = (!boot.outcome.is_healthy()).then(|| boot.outcome.to_string());
        let mut failures = BTreeSet::new();
        let mut idle = Vec::new();
        // A guest that failed did not finish, so missing work is no finding.
        if guest.is_none() {
            let known = |text: &String| class.known_complaints.iter().any(|known| text.contains(known.as_str()));
            failures.extend(complaints.into_iter().filter(|text| !known(text)));
            match status {
                Some(0) => {}
                Some(status) => {
                    let text = meaning(status);
                    failures.extend(Some(text).filter(|text| !known(text)));
                }
                None => idle.push("stress-ng was not run".to_owned()),
            }
            let silent = |name: &&String| ops.get(*name).is_none_or(|&n| n == 0);
            idle.extend(class.stressors.keys().filter(silent).map(|name| format!("{name}: 0 bogo ops")));
            let zero = |name: &&String| vmstat.get(*name).is_none_or(|&n| n == 0);
            idle.extend(class.must_count.iter().filter(zero).map(|name| format!("vmstat: 0 {name}")));
            if !complete || boot.outcome != Outcome::Exit(0) {
                idle.push(format!("its script did not finish ({})", boot.outcome));
            }
        }
        let mut output = String::new();
        if guest.is_some() || !failures.is_empty() || !idle.is_empty() {
            const EXCERPT_LINES: usize = 30;
            let said: Vec<_> = text.lines().take_while(|line| !line.starts_with(LAB_LINE_PREFIX)).collect();
            for line in &said[said.len().saturating_sub(EXCERPT_LINES)..] {
                let _ = writeln!(output, "  {line}");
            }
            if guest.is_some() {
                output.push_str(&boot.tail(EXCERPT_LINES));
            }
        }
        let oom_kills = vmstat.get("oom_kill").copied().unwrap_or_default();
        Self { guest, status, failures, idle, ops, oom_kills, logs: boot.logs().to_path_buf(), output }
    }

    /// Returns a summary, for example `ok` or `exit status 2; vm: detected N bit errors`.
    fn outcome(&self) -> String {
        let all: Vec<&str> = self.guest.iter().chain(&self.failures).chain(&self.idle).map(String::as_str).collect();
        if all.is_empty() { "ok".into() } else { all.join("; ") }
    }
}

/// Describes stress-ng's exit status, according to its manual.
fn meaning(status: i32) -> String {
    let what = match status {
        1 => "wrong options, or no resources",
        2 => "a stressor failed",
        3 => "a stressor lacked resources",
        4 => "a stressor is not implemented here",
        5 => "a stressor was killed",
        6 => "a stressor exited unexpectedly",
        7 => "untrustworthy metrics",
        _ => "unknown",
    };
    format!("exit status {status} ({what})")
}

/// The parsed output of the guest.
#[derive(Debug, Default)]
struct Parsed {
    status: Option<i32>,
    ops: BTreeMap<String, u64>,
    vmstat: BTreeMap<String, u64>,
    complaints: BTreeSet<String>,
    /// Whether the script finished.
    complete: bool,
}

impl Parsed {
    fn new(text: &str) -> Self {
        let mut parsed = Self::default();
        let mut stressor = None;
        for line in text.lines() {
            if let Some(ours) = line.strip_prefix(LAB_LINE_PREFIX) {
                let words: Vec<&str> = ours.split_whitespace().collect();
                match words[..] {
                    ["status", status] => parsed.status = status.parse().ok(),
                    ["vmstat", name, value] => {
                        parsed.vmstat.extend(value.parse().map(|value| (name.to_owned(), value)));
                    }
                    ["end"] => parsed.complete = true,
                    _ => {}
                }
            } else if let Some(rest) = line.strip_prefix("stress-ng: ") {
                parsed.complaints.extend(complaint(rest));
            } else if let Some(name) = line.trim_start().strip_prefix("- stressor: ") {
                stressor = Some(name.trim());
            } else if let (Some(name), Some(ops)) = (stressor, line.trim_start().strip_prefix("bogo-ops: ")) {
                // Each stressor has one entry for all its instances.
                parsed.ops.extend(ops.trim().parse().map(|ops| (name.to_owned(), ops)));
                stressor = None;
            }
        }
        parsed
    }
}

/// Returns the failure in a line of stress-ng's log without the prefix `stress-ng: `; `None` if it is no
/// failure. `fail:  [123] vm: detected 3 bit errors` becomes `vm: detected N bit errors`: numbers are
/// replaced because they differ between runs, so that equal failures of two kernels have the same text.
fn complaint(line: &str) -> Option<String> {
    let text = line.strip_prefix("fail:").or_else(|| line.strip_prefix("error:"))?.trim_start();
    let text = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((_, text)) => text.trim(),
        None => text.trim(),
    };
    let is_number = |word: &str| {
        let hex = word.strip_prefix("0x").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_hexdigit()));
        hex || word.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut out = String::new();
    for piece in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let word = piece.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        out.push_str(if is_number(word) { "N" } else { word });
        out.push_str(&piece[word.len()..]);
    }
    Some(out)
}

/// The comparison of a class.
#[derive(Debug, Serialize)]
struct Row {
    class: String,
    stressors: String,
    seconds: u64,
    stock: Report,
    memreap: Report,
    verdict: Verdict,
    /// The problems.
    findings: Vec<String>,
}

impl Row {
    fn new(class: &Class, seconds: u64, stock: Report, memreap: Report) -> Self {
        let mut findings = Vec::new();
        for (name, report) in [("stock", &stock), ("memreap", &memreap)] {
            findings.extend(report.guest.iter().map(|why| format!("{name}: {why}")));
        }
        let failed = !findings.is_empty();
        // If the guest of stock failed, there is nothing to compare with.
        if stock.guest.is_none() {
            let new = memreap.failures.difference(&stock.failures);
            findings.extend(new.map(|why| format!("memreap: {why}, not on stock")));
        }
        // In both kernels: a test that did nothing on stock cannot be compared.
        for (name, report) in [("stock", &stock), ("memreap", &memreap)] {
            findings.extend(report.idle.iter().map(|what| format!("{name}: {what}")));
        }
        let verdict = match (failed, findings.is_empty()) {
            (true, _) => Verdict::Guest,
            (false, false) => Verdict::Finding,
            (false, true) => Verdict::Ok,
        };
        Self { class: class.name.clone(), stressors: class.shown(), seconds, stock, memreap, verdict, findings }
    }

    fn word(&self) -> &'static str {
        match self.verdict {
            Verdict::Guest => "GUEST FAILED",
            Verdict::Finding => "FAILED",
            Verdict::Ok if !self.memreap.failures.is_empty() => "fails as on stock",
            Verdict::Ok => "ok",
        }
    }
}

fn render(rows: &[Row]) -> String {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_header([
        "class",
        "stressors",
        "s",
        "bogo ops\nstock / memreap",
        "OOM kills\nstock / memreap",
        "stock",
        "memreap",
        "verdict",
    ]);
    for row in rows {
        let ops = row.stressors.split(", ").filter_map(|one| one.split_once(' ')).map(|(_, name)| {
            let of = |report: &Report| report.ops.get(name).map_or("-".to_owned(), u64::to_string);
            format!("{} / {}", of(&row.stock), of(&row.memreap))
        });
        table.add_row([
            row.class.clone(),
            row.stressors.replace(", ", "\n"),
            row.seconds.to_string(),
            ops.collect::<Vec<_>>().join("\n"),
            format!("{} / {}", row.stock.oom_kills, row.memreap.oom_kills),
            row.stock.outcome(),
            row.memreap.outcome(),
            row.word().to_owned(),
        ]);
    }
    let mut text = format!("{table}\n");
    for row in rows.iter().filter(|row| row.verdict != Verdict::Ok) {
        let _ = writeln!(text, "\n{}: {}", row.class, row.findings.join("; "));
        for report in [&row.stock, &row.memreap].into_iter().filter(|report| !report.output.is_empty()) {
            let _ = writeln!(text, "{}\n  (logs: {})", report.output.trim_end(), report.logs.display());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::vm::logs::Logs;

    /// Captured from a guest: two userfaultfd, for 10 s.
    const GOOD: &str = include_str!("../../testdata/stress-ng-good.txt");
    /// Captured from a guest whose kernel has no process_vm_readv(): vm-rw does nothing, and
    /// stress-ng ends in success.
    const NOTHING_DONE: &str = include_str!("../../testdata/stress-ng-nothing-done.txt");

    fn class(name: &str) -> &'static Class {
        CLASSES.iter().find(|class| class.name == name).unwrap()
    }

    static ONE: LazyLock<Class> = LazyLock::new(|| of(&["userfaultfd"]));

    /// A class with these stressors, and nothing else.
    fn of(stressors: &[&str]) -> Class {
        let stressors = stressors.iter().map(|&name| (name.to_owned(), 1)).collect();
        Class { name: "one".into(), stressors, ..Class::default() }
    }

    fn report(class: &Class, outcome: Outcome, text: &str) -> Report {
        let boot = Boot { outcome, ..Boot::with_logs(&Logs::in_folder(Path::new("/none"))) };
        Report::new(class, &boot, text)
    }

    fn row(class: &Class, stock: &str, memreap: &str) -> Row {
        let report = |text| report(class, Outcome::Exit(0), text);
        Row::new(class, 1, report(stock), report(memreap))
    }

    /// The good output with an additional line and this exit status.
    fn failed(line: &str, status: i32) -> String {
        format!("{line}\n{}", GOOD.replace("lab: status 0", &format!("lab: status {status}")))
    }

    #[test]
    fn real_output_is_read() {
        let parsed = Parsed::new(GOOD);
        assert_eq!(parsed.status, Some(0));
        assert_eq!(parsed.ops, BTreeMap::from([("userfaultfd".to_owned(), 48953)]));
        assert_eq!(parsed.vmstat["oom_kill"], 0);
        assert!(parsed.complete && parsed.complaints.is_empty());
        let row = row(&ONE, GOOD, GOOD);
        assert_eq!((row.verdict, row.word(), row.memreap.outcome().as_str()), (Verdict::Ok, "ok", "ok"));
        assert!(row.memreap.output.is_empty());
    }

    #[test]
    fn numbers_in_complaints_are_replaced() {
        let of = |line| complaint(line).unwrap_or_default();
        assert_eq!(
            of("fail:  [123] vm: detected 17 bit errors while stressing memory"),
            "vm: detected N bit errors while stressing memory"
        );
        assert_eq!(of("error: [99] at 0x7f00ab12, 12MB (3.5%)"), "at N, N (N.N%)");
        assert_eq!(of("fail:  no process number"), "no process number");
        for fine in ["info:  [5] dispatching hogs: 2 vm", "metrc: [5] vm 3 4", "warn:  [5] x", "debug: [1] y"] {
            assert_eq!(complaint(fine), None);
        }
    }

    #[test]
    fn a_failure_only_in_the_changed_kernel_is_a_finding() {
        let bits = failed("stress-ng: fail:  [12] vm: detected 3 bit errors while stressing memory", 2);
        let more = failed("stress-ng: fail:  [77] vm: detected 8192 bit errors while stressing memory", 2);
        let new = row(&ONE, GOOD, &bits);
        assert_eq!(new.verdict, Verdict::Finding);
        assert_eq!(
            new.findings,
            [
                "memreap: exit status 2 (a stressor failed), not on stock",
                "memreap: vm: detected N bit errors while stressing memory, not on stock"
            ]
        );
        // The same on stock, with other numbers.
        let same = row(&ONE, &more, &bits);
        assert_eq!((same.verdict, same.word()), (Verdict::Ok, "fails as on stock"));
        assert_eq!(row(&ONE, &bits, GOOD).verdict, Verdict::Ok);
        // A status that stock does not have, and nothing else.
        assert_eq!(row(&ONE, GOOD, &failed("", 5)).verdict, Verdict::Finding);
        assert_eq!(row(&ONE, &failed("", 3), &failed("", 5)).verdict, Verdict::Finding);
        assert!(render(&[new]).contains("detected 3 bit errors"));
    }

    #[test]
    fn known_random_failures_are_no_finding() {
        let known = Class { known_complaints: vec!["untrustworthy".into()], ..ONE.clone() };
        assert_eq!(row(&known, GOOD, &failed("", 7)).verdict, Verdict::Ok);
        assert_eq!(row(&known, GOOD, &failed("", 6)).verdict, Verdict::Finding);
        assert_eq!(row(&ONE, GOOD, &failed("", 7)).verdict, Verdict::Finding);
    }

    #[test]
    fn a_stressor_that_does_nothing_is_a_finding_in_either_kernel() {
        // stress-ng itself calls it a success.
        assert_eq!(Parsed::new(NOTHING_DONE).status, Some(0));
        let class = of(&["vm", "vm-rw", "vm-splice", "mremap"]);
        let row = row(&class, NOTHING_DONE, NOTHING_DONE);
        assert_eq!(row.verdict, Verdict::Finding);
        let idle = ["mremap: 0 bogo ops", "vm-rw: 0 bogo ops"];
        assert_eq!(
            (&row.stock.idle[..], &row.memreap.idle[..]),
            (&idle.map(String::from)[..], &idle.map(String::from)[..])
        );
        assert_eq!(row.findings[1], "stock: vm-rw: 0 bogo ops");
        // The failure is no finding because stock has it too.
        let said = "vm-rw: process_vm_readv failed, errno=N (Function not implemented)";
        assert!(row.memreap.failures.contains(said) && row.findings.len() == 4);

        let zero = GOOD.replace("bogo-ops: 48953", "bogo-ops: 0");
        assert_ne!(zero, GOOD);
        for (stock, memreap) in [(GOOD, zero.as_str()), (&zero, GOOD)] {
            let row = self::row(&ONE, stock, memreap);
            assert_eq!((row.verdict, row.word()), (Verdict::Finding, "FAILED"));
            assert!(row.findings[0].ends_with("userfaultfd: 0 bogo ops"), "{:?}", row.findings);
        }
    }

    #[test]
    fn a_class_must_do_what_it_is_for() {
        for (name, counter) in [("oom", "oom_kill"), ("swap", "pswpout"), ("ksm", "cow_ksm")] {
            let class = Class { must_count: class(name).must_count.clone(), ..ONE.clone() };
            let row = row(&class, GOOD, GOOD);
            assert_eq!(row.verdict, Verdict::Finding, "{name}");
            assert!(row.findings.contains(&format!("memreap: vmstat: 0 {counter}")), "{:?}", row.findings);
        }
        let class = Class { must_count: vec!["oom_kill".into()], ..ONE.clone() };
        let killed = GOOD.replace("lab: vmstat oom_kill 0", "lab: vmstat oom_kill 7");
        let row = row(&class, &killed, &killed);
        assert_eq!((row.verdict, row.memreap.oom_kills), (Verdict::Ok, 7));
        assert!(render(&[row]).contains("7 / 7"));
    }

    #[test]
    fn output_that_is_cut_off_is_a_finding() {
        // No output, only the preparation, and without the end.
        for text in ["", "mkswap: /dev/zram0: No such file\n", GOOD.strip_suffix("lab: end\n").unwrap()] {
            let row = row(&ONE, GOOD, text);
            assert_eq!(row.verdict, Verdict::Finding, "{text}");
            assert!(row.findings.iter().all(|what| what.starts_with("memreap: ")), "{:?}", row.findings);
        }
        // The status of the shell counts too.
        assert!(!report(&ONE, Outcome::Exit(1), GOOD).idle.is_empty());
    }

    #[test]
    fn a_guest_that_fails_counts_more_than_findings() {
        let splat = Outcome::Splat { kind: "WARN", line: "WARNING: x".into() };
        let hang = Outcome::Hang(Duration::from_secs(9));
        let panic = Outcome::Panic("Kernel panic".into());
        for outcome in [splat, hang, panic, Outcome::NoResult, Outcome::Garbage("x".into())] {
            let good = || report(&ONE, Outcome::Exit(0), GOOD);
            let bad = || report(&ONE, outcome.clone(), "");
            for (stock, memreap) in [(good(), bad()), (bad(), good()), (bad(), bad())] {
                let row = Row::new(&ONE, 1, stock, memreap);
                assert_eq!((row.verdict, row.word()), (Verdict::Guest, "GUEST FAILED"));
                assert!(row.findings.iter().all(|what| what.contains(&outcome.to_string())));
            }
        }
        assert!(Verdict::Guest > Verdict::Finding && Verdict::Finding > Verdict::Ok);
    }

    #[test]
    fn the_scripts_are_valid_shell() {
        assert!(CLASSES.len() > 5);
        for class in CLASSES.iter() {
            let script = class.script(7);
            let mut sh = std::process::Command::new("sh");
            assert!(sh.args(["-n", "-c", &script]).status().unwrap().success(), "{script}");
            assert!(script.contains("--timeout 7s"));
            assert!(class.stressors.iter().all(|(name, n)| script.contains(&format!(" --{name} {n}"))));
        }
    }
}
