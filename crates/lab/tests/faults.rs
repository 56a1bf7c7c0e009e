// SPDX-License-Identifier: GPL-2.0-only
//! Breaks guests on purpose, in real QEMU boots, and checks that each failure is reported as what it is: the
//! outcome, the exit code, and evidence at the end of the log.
//!
//! The kernel is the lab's own stock build (cached); `LAB_TEST_BZIMAGE=path` selects another one. Failures
//! that only a sanitizer detects are tried with the changed debug build, which other tests need as well, or
//! with `LAB_TEST_DEBUG_BZIMAGE`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on may panic")]

use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use lab::context::Context;
use lab::kernel::{self, Tree, Variant};
use lab::progress::Progress;
use lab::vm::boot::{Boot, boot_with};
use lab::vm::channel::Outcome;
use lab::vm::job::{Arm, GuestCommand, Job, Mode};
use lab::vm::probe::Accel;
use protocol::results::Message;

fn context() -> Context {
    Context::discover(Progress::quiet()).unwrap()
}

/// The kernel of most tests in this file.
fn arm(ctx: &Context) -> Arm {
    static ARM: OnceLock<Arm> = OnceLock::new();
    ARM.get_or_init(|| built(ctx, Tree::Stock, Variant::Slim, "LAB_TEST_BZIMAGE")).clone()
}

/// A kernel with sanitizers.
fn debug_arm(ctx: &Context) -> Arm {
    static ARM: OnceLock<Arm> = OnceLock::new();
    ARM.get_or_init(|| built(ctx, Tree::Memreap, Variant::Debug, "LAB_TEST_DEBUG_BZIMAGE")).clone()
}

fn built(ctx: &Context, tree: Tree, variant: Variant, other: &str) -> Arm {
    let bzimage = match std::env::var_os(other) {
        Some(path) => path.into(),
        None => kernel::build(ctx, tree, variant).unwrap().bzimage,
    };
    Arm { name: tree.to_string(), bzimage, cmdline: String::new() }
}

/// Boots with `job`. Returns also what the guest's command printed.
fn run(name: &str, arm: &Arm, job: &Job) -> (Boot, String) {
    let ctx = context();
    let logs = ctx.out.join("logs/faults").join(name);
    let mut text = String::new();
    let boot = boot_with(&ctx, Accel::Tcg, arm, job, &logs, &mut |message| match message {
        Message::Out(piece) | Message::Err(piece) => text.push_str(piece),
        _ => {}
    })
    .unwrap();
    (boot, text)
}

fn job(command: GuestCommand) -> Job {
    Job { cpus: 1, mem_mib: 256, timeout: Duration::from_secs(60), ..Job::new(command) }
}

fn fault(args: &[&str]) -> Job {
    job(GuestCommand::Scenario { name: "fault".into(), args: args.iter().map(|&a| a.to_owned()).collect() })
}

fn exec(argv: &[&str]) -> Job {
    job(GuestCommand::Exec(argv.iter().map(|&a| a.to_owned()).collect()))
}

/// Boots the scenario `fault` with `args` and checks the exit code and the evidence.
fn broken(args: &[&str], code: u8, evidence: &str) -> Outcome {
    let (boot, _) = run(&args.join("-"), &arm(&context()), &fault(args));
    assert_eq!(boot.outcome.exit_code(), code, "{:?}\n{}", boot.outcome, boot.tail(40));
    let tail = boot.tail(30);
    assert!(tail.contains(evidence), "no '{evidence}' in:\n{tail}");
    assert!(!boot.outcome.is_success());
    boot.outcome
}

#[test]
fn a_warning_fails_a_green_run() {
    let outcome = broken(&["warn"], 121, "lkdtm_WARNING+");
    assert!(matches!(outcome, Outcome::Splat { kind: "WARN", .. }), "{outcome:?}");
    // The guest itself ended without an error.
    let log = std::fs::read_to_string(context().out.join("logs/faults/warn/channel.jsonl")).unwrap();
    assert!(log.ends_with("{\"exit\":0}\n"), "{log}");
}

#[test]
fn an_expected_warning_can_be_allowed() {
    let mut job = fault(&["warn"]);
    job.allow = vec![r"WARNING: .*lkdtm".into()];
    let (boot, _) = run("allowed", &arm(&context()), &job);
    assert_eq!(boot.outcome, Outcome::Exit(0), "{}", boot.tail(40));
}

#[test]
fn a_warning_that_the_console_does_not_show_fails_a_green_run() {
    let job = Job { cmdline: "loglevel=2".into(), ..fault(&["warn"]) };
    let (boot, _) = run("warn-unseen", &arm(&context()), &job);
    assert!(matches!(boot.outcome, Outcome::Splat { kind: "taint", .. }), "{:?}", boot.outcome);
    let console = std::fs::read_to_string(&boot.console_log).unwrap();
    assert!(!console.contains("WARNING:") && !boot.tail(30).is_empty(), "{console}");
}

#[test]
fn a_guest_without_all_of_its_cpus_fails() {
    let job = Job { cpus: 2, cmdline: "maxcpus=1".into(), ..exec(&["true"]) };
    let (boot, _) = run("cpus", &arm(&context()), &job);
    assert!(matches!(boot.outcome, Outcome::Garbage(_)), "{:?}", boot.outcome);
    assert!(boot.tail(30).contains("\"cpus\":1"), "{}", boot.tail(30));
}

/// Like [`fault`], for the debug kernel, which is slower and needs more memory.
fn debug_fault(args: &[&str]) -> Job {
    Job { mem_mib: 512, timeout: Duration::from_secs(180), ..fault(args) }
}

/// Whether the guest itself ended without an error, whatever its kernel logged.
fn guest_succeeded(name: &str) -> bool {
    let log = context().out.join("logs/faults").join(name).join("channel.jsonl");
    std::fs::read_to_string(log).unwrap().ends_with("{\"exit\":0}\n")
}

#[test]
fn a_green_run_of_a_sound_debug_kernel_stays_green() {
    let job = Job { timeout: Duration::from_secs(180), mem_mib: 512, ..exec(&["true"]) };
    let (boot, _) = run("debug", &debug_arm(&context()), &job);
    assert_eq!(boot.outcome, Outcome::Exit(0), "{}", boot.tail(40));
}

#[test]
fn undefined_behaviour_fails_a_green_run() {
    let (boot, _) = run("ub", &debug_arm(&context()), &debug_fault(&["ub"]));
    assert!(matches!(boot.outcome, Outcome::Splat { kind: "UBSAN", .. }), "{:?}", boot.outcome);
    let tail = boot.tail(30);
    assert!(tail.contains("array-index-out-of-bounds in ") && tail.contains("lkdtm_ARRAY_BOUNDS+"), "{tail}");
    assert!(guest_succeeded("ub"), "{}", boot.tail(40));
}

/// The debug kernel with kmemleak.
fn leak_checking_arm() -> Arm {
    Arm { cmdline: "kmemleak=on".into(), ..debug_arm(&context()) }
}

#[test]
fn a_leak_fails_a_green_run() {
    let mut job = debug_fault(&["leak"]);
    // The scenario provokes the leak by a fault.
    job.allow = ["BUG: unable to handle page fault", "Oops: "].map(String::from).into();
    let (boot, _) = run("leak", &leak_checking_arm(), &job);
    assert!(matches!(boot.outcome, Outcome::Splat { kind: "memory leak", .. }), "{:?}", boot.outcome);
    // With the function that allocated it.
    let tail = boot.tail(30);
    assert!(tail.contains("kmemleak: unreferenced object 0x"), "{tail}");
    assert!(tail.contains("lkdtm_EXEC_KMALLOC+"), "{tail}");
    assert!(guest_succeeded("leak"), "{}", boot.tail(40));
}

#[test]
fn a_run_without_leaks_stays_green() {
    let job = Job { timeout: Duration::from_secs(180), mem_mib: 512, ..exec(&["true"]) };
    let (boot, _) = run("no-leak", &leak_checking_arm(), &job);
    assert_eq!(boot.outcome, Outcome::Exit(0), "{}", boot.tail(40));
}

#[test]
fn a_leak_detector_that_is_off_is_no_proof() {
    let mut turned_off = leak_checking_arm();
    turned_off.cmdline += " kmemleak=off";
    let without = Arm { cmdline: "kmemleak=on".into(), ..arm(&context()) };
    for (name, arm, why) in
        [("leaks-off", turned_off, "kmemleak has turned itself off"), ("leaks-none", without, "CONFIG_DEBUG_KMEMLEAK")]
    {
        let job = Job { timeout: Duration::from_secs(180), mem_mib: 512, ..exec(&["true"]) };
        let (boot, _) = run(name, &arm, &job);
        assert_eq!(boot.outcome, Outcome::Exit(1), "{}", boot.tail(40));
        assert!(boot.notes.iter().any(|n| n.contains(why)), "{:?}", boot.notes);
    }
}

#[test]
fn an_oops_is_a_splat() {
    let outcome = broken(&["oops"], 121, "lkdtm_EXCEPTION");
    assert!(matches!(outcome, Outcome::Splat { kind: "BUG", .. }), "{outcome:?}");
}

#[test]
fn a_panic_is_a_panic() {
    let outcome = broken(&["panic"], 120, "Kernel panic - not syncing: dumptest");
    assert!(matches!(outcome, Outcome::Panic(_)), "{outcome:?}");
}

#[test]
fn a_hang_is_killed_in_time() {
    let mut job = fault(&["hang"]);
    // Several times what a guest that boots beside others needs to say that.
    job.timeout = Duration::from_secs(20);
    let (boot, _) = run("hang", &arm(&context()), &job);
    assert!(matches!(boot.outcome, Outcome::Hang(_)), "{:?}", boot.outcome);
    assert_eq!(boot.outcome.exit_code(), 122);
    assert!(boot.elapsed < 2 * job.timeout, "{:?}", boot.elapsed);
    // The last progress that it reported.
    assert!(boot.tail(20).contains("about to break: hang"), "{}", boot.tail(20));
}

#[test]
fn garbage_on_the_channel_is_quoted() {
    let outcome = broken(&["garbage"], 124, "this is no message");
    let Outcome::Garbage(line) = &outcome else { panic!("{outcome:?}") };
    assert!(line.starts_with("this is no message ("), "{line}");
}

#[test]
fn a_silent_end_is_no_result() {
    assert_eq!(broken(&["silent"], 123, "reboot: Restarting system"), Outcome::NoResult);
}

#[test]
fn a_status_comes_through() {
    assert_eq!(broken(&["exit", "3"], 3, "about to break"), Outcome::Exit(3));
}

#[test]
fn a_panic_of_the_guest_program_is_noted() {
    let (boot, _) = run("rust-panic", &arm(&context()), &fault(&["rust-panic"]));
    assert_eq!(boot.outcome, Outcome::Exit(101), "{}", boot.tail(40));
    assert!(boot.notes.iter().any(|n| n.contains("a panic on request")), "{:?}", boot.notes);
}

#[test]
fn an_unknown_scenario_says_what_there_is() {
    let job = job(GuestCommand::Scenario { name: "no-such".into(), args: Vec::new() });
    let (boot, _) = run("unknown", &arm(&context()), &job);
    assert_eq!(boot.outcome, Outcome::Exit(1));
    assert!(boot.notes.iter().any(|n| n.contains("no scenario 'no-such'")), "{:?}", boot.notes);
}

#[test]
fn a_command_s_output_and_status_come_through() {
    let script = "echo to-stdout; echo to-stderr >&2; cat /etc/extra; exit 7";
    let mut job = exec(&["sh", "-c", script]);
    let extra = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&extra, "overlaid\n").unwrap();
    job.overlay = vec![(extra.path().into(), "/etc/extra".into())];
    // With icount the guest has another clock; it must boot as well.
    job.mode = Mode::Icount;
    let (boot, text) = run("exec", &arm(&context()), &job);
    assert_eq!(boot.outcome, Outcome::Exit(7), "{}", boot.tail(40));
    for part in ["to-stdout\n", "to-stderr\n", "overlaid\n"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn a_command_killed_by_a_signal_is_128_and_more() {
    let (boot, _) = run("signal", &arm(&context()), &exec(&["sh", "-c", "kill -9 $$"]));
    assert_eq!(boot.outcome, Outcome::Exit(137), "{}", boot.tail(40));
}

#[test]
fn a_missing_command_is_127() {
    let (boot, text) = run("missing", &arm(&context()), &exec(&["/no/such/program"]));
    assert_eq!(boot.outcome, Outcome::Exit(127), "{}", boot.tail(40));
    assert!(text.contains("/no/such/program"), "{text}");
}

#[test]
fn a_file_that_is_no_kernel_is_reported_by_qemu() {
    let bad = Arm { name: "bad".into(), bzimage: "/etc/hostname".into(), cmdline: String::new() };
    let (boot, _) = run("no-kernel", &bad, &exec(&["true"]));
    assert_eq!(boot.outcome.exit_code(), 3, "{:?}", boot.outcome);
    assert!(boot.tail(10).contains("/etc/hostname"), "{}", boot.tail(10));
}

/// The command `lab boot`, with the same kernel as the tests above.
fn lab(args: &[&str]) -> Command {
    let ctx = context();
    let arm = arm(&ctx);
    let mut lab = Command::new(env!("CARGO_BIN_EXE_lab"));
    lab.current_dir(&ctx.repo).env("LAB_ACCEL", "tcg").arg("boot");
    lab.args(["--arm", &format!("test={}", arm.bzimage.display())]).args(args);
    lab
}

#[test]
fn lab_boot_returns_the_command_s_status_and_output() {
    let out = lab(&["--", "sh", "-c", "echo hello; exit 7"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(7), "{stderr}");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "hello\n", "{stderr}");
}

#[test]
fn lab_boot_reports_a_warning_with_its_evidence() {
    let warn = "echo WARNING > /sys/kernel/debug/provoke-crash/DIRECT; exit 0";
    let out = lab(&["--", "sh", "-c", warn]).output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(121), "{stderr}");
    assert!(stderr.contains("lkdtm_WARNING+"), "{stderr}");
}

#[test]
fn lab_boot_without_qemu_says_so() {
    let out = lab(&["--", "true"]).env("LAB_QEMU", "/nonexistent/qemu").output().unwrap();
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(3), "{stderr}");
    assert!(stderr.contains("/nonexistent/qemu"), "{stderr}");
}

#[test]
fn the_test_kernel_exists() {
    assert!(Path::new(&arm(&context()).bzimage).is_file());
}
