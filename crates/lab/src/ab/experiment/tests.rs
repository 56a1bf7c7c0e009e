// SPDX-License-Identifier: GPL-2.0-only
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use super::*;
use crate::ab::results::Verdict;
use crate::progress::unpoisoned;
use crate::vm::channel::Outcome;
use crate::vm::job::GuestCommand;
use crate::vm::logs::Logs;
use protocol::results::{Better, Sample, Series};

const SECOND: Duration = Duration::from_secs(1);
const GUESTS: [Guest; 2] = [
    Guest { name: "multi", mode: Mode::Multi, cpus: 2, mem_mib: 64, timeout: SECOND, cmdline: "" },
    Guest { name: "icount", mode: Mode::Icount, cpus: 1, mem_mib: 32, timeout: SECOND, cmdline: "numa=fake=2" },
];
const SCENARIO: Scenario =
    Scenario { name: "synthetic", about: "", sentences: &[], guests: &GUESTS, controls: &[], metrics: &[] };

struct Fixture {
    _dir: tempfile::TempDir,
    ctx: Context,
    plan: Plan,
}

fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let ctx = Context::below(dir.path());
    let arm = |name: &str| Arm { name: name.into(), bzimage: format!("/boot/{name}").into(), cmdline: String::new() };
    let plan = Plan {
        scenarios: vec![&SCENARIO],
        case: None,
        workload: None,
        // With this one the first six orders are those of the table, one after the other.
        seed: 3,
        pairs: 6,
        arms: [arm("stock"), arm("memreap")],
        controls: Vec::new(),
        guest: None,
        aa: true,
        min_effect: 0.03,
        alpha: 0.05,
        smoke: false,
        resume: false,
        source: None,
        accelerator_reason: None,
        command: None,
    };
    Fixture { _dir: dir, ctx, plan }
}

fn sample(metric: &str, value: f64) -> Sample {
    Sample { metric: metric.into(), unit: "ms".into(), better: Better::Lower, value }
}

fn boot(logs: &Path, outcome: Outcome, samples: Vec<Sample>) -> Boot {
    let logs = Logs::in_folder(logs);
    fs::write(&logs.console, "first line\nKernel panic - not syncing: no\n").unwrap();
    Boot { outcome, samples, release: Some("6.12.117".into()), ..Boot::with_logs(&logs) }
}

/// A stock boot takes 20 ms and a memreap boot 10, a little more each time.
fn healthy(arm: &Arm, logs: &Path, boots: usize) -> Boot {
    let ms = if arm.name == "stock" { 20.0 } else { 10.0 };
    let drift = 1.0 + boots as f64 / 1000.0;
    boot(logs, Outcome::Exit(0), vec![sample("c/time", ms * drift), sample("c/const", 7.0)])
}

type TestBooter<'a> = dyn FnMut(&Arm, &Job, &Path) -> Result<Boot> + Send + 'a;

fn run_fixture(f: &Fixture, booter: &mut TestBooter<'_>) -> Result<Results> {
    let booter = Mutex::new(booter);
    compare_with(f, &|arm, job, logs| (unpoisoned(&booter))(arm, job, logs))
}

fn compare_with(f: &Fixture, boot: &BootOne<'_>) -> Result<Results> {
    let key = |arm: &Arm, job: &Job| Ok(format!("{arm:?} {job:?}"));
    run_with(&f.ctx, "tcg", &f.plan, &Booter { key: &key, boot })
}

#[test]
fn a_boot_of_which_time_was_stolen_is_repeated() {
    let f = fixture();
    let mut boots = 0;
    let results = run_fixture(&f, &mut |arm, job, logs| {
        boots += 1;
        // Of the first one; time is of no importance under icount.
        let stolen = if boots == 1 || job.mode == Mode::Icount { 0.2 } else { 0.01 };
        Ok(Boot { stolen: Some(stolen), ..healthy(arm, logs, boots) })
    })
    .unwrap();
    assert_eq!(boots, 2 * 6 * 3 + 1);
    let stolen: Vec<Option<f64>> = results.runs.iter().map(|run| run.stolen).collect();
    assert_eq!(stolen, [Some(0.01), None]);
}

#[test]
fn whole_run_yields_verdicts_and_files() {
    let f = fixture();
    let mut boots = Vec::new();
    let results = run_fixture(&f, &mut |arm, job, logs| {
        boots.push((arm.name.clone(), job.cpus, job.cmdline.clone()));
        Ok(healthy(arm, logs, boots.len()))
    })
    .unwrap();
    assert_eq!(boots.len(), 2 * 6 * 3);
    // Kernel parameters are the run's, whatever the arm, and the time after which the job begins.
    let parameters = |cpus| if cpus == 2 { "lab_delay_us=" } else { "numa=fake=2 lab_delay_us=" };
    assert!(boots.iter().all(|(_, cpus, cmdline)| cmdline.starts_with(parameters(*cpus))), "{boots:?}");
    let got: Vec<_> =
        results.metrics().map(|(run, m)| (m.metric.as_str(), run.guest.as_str(), m.verdict, m.base.len())).collect();
    assert_eq!(
        got,
        [
            ("c/time", "multi", Verdict::Better, 6),
            ("c/const", "multi", Verdict::Same, 6),
            ("c/time", "icount", Verdict::Better, 6),
            ("c/const", "icount", Verdict::Same, 6),
        ]
    );
    assert!(results.metrics().all(|(_, m)| m.aa.is_some()));
    assert!(results.aa_controls().all(|aa| aa.verdict == Verdict::Same && aa.base.len() == 6));
    let machines: Vec<_> = results.runs.iter().map(|run| (run.cpus, run.memory_mib)).collect();
    assert_eq!(machines, [(2, 64), (1, 32)]);
    let out = &f.ctx.out;
    assert_eq!(Results::read(&out.join("results.json")).unwrap(), results);
    assert!(out.join("report.html").is_file());
    assert!(!out.join("results-partial.json").exists());
    for boot in ["synthetic-multi/01-stock", "synthetic-icount/06-stock2"] {
        assert!(out.join("boots").join(boot).join("console.log").is_file(), "{boot}");
    }

    // The next run moves these away, even if it fails.
    run_fixture(&f, &mut |_, _, _| bail!("no")).unwrap_err();
    assert!(out.join("previous/results.json").is_file());
    assert!(out.join("previous/boots/synthetic-multi").is_dir());
    assert!(!out.join("results.json").exists());
}

#[test]
fn runs_in_one_folder_wait_for_each_other() {
    let f = fixture();
    let booted = Mutex::new(Vec::new());
    let begun = std::sync::Barrier::new(2);
    let run = |name: &'static str, ms: f64| {
        let once = std::sync::Once::new();
        compare_with(&f, &|_, _, logs| {
            // The second run begins when the first one has a boot, and gets time to disturb it.
            once.call_once(|| {
                if name == "first" {
                    begun.wait();
                    thread::sleep(Duration::from_millis(200));
                }
            });
            unpoisoned(&booted).push(name);
            Ok(boot(logs, Outcome::Exit(0), vec![sample("c/time", ms)]))
        })
    };
    let [first, second] = thread::scope(|scope| {
        let first = scope.spawn(|| run("first", 10.0));
        let second = scope.spawn(|| {
            begun.wait();
            run("second", 20.0)
        });
        [first, second].map(|run| run.join().unwrap().unwrap())
    });
    assert_eq!(booted.into_inner().unwrap(), [["first"; 36], ["second"; 36]].concat());
    let out = &f.ctx.out;
    for (results, folder, ms) in [(first, out.join("previous"), 10.0), (second, out.clone(), 20.0)] {
        assert!(results.metrics().all(|(_, m)| m.base == [ms; 6] && m.changed == [ms; 6]));
        assert_eq!(Results::read(&folder.join("results.json")).unwrap(), results);
        assert!(folder.join("boots/synthetic-icount/06-stock2/console.log").is_file());
        assert!(!folder.join("results-partial.json").exists());
    }
}

#[test]
fn guests_for_which_memory_is_short_are_booted_one_by_one() {
    let mut f = fixture();
    let guests = vec![Guest { mem_mib: u32::MAX, ..GUESTS[1] }];
    f.plan.scenarios = vec![Box::leak(Box::new(Scenario { guests: guests.leak(), ..SCENARIO }))];
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    compare_with(&f, &|_, _, logs| {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        thread::sleep(Duration::from_millis(2));
        now.fetch_sub(1, Ordering::SeqCst);
        Ok(boot(logs, Outcome::Exit(0), vec![sample("c/time", 1.0)]))
    })
    .unwrap();
    assert_eq!(most.into_inner(), 1);
}

#[test]
fn several_guests_of_one_mode_are_kept_apart() {
    let mut f = fixture();
    let guest = |name, cpus| Guest { name, cpus, ..GUESTS[1] };
    let guests = vec![guest("icount-1", 1), guest("icount-64", 64), GUESTS[0]];
    f.plan.scenarios = vec![Box::leak(Box::new(Scenario { guests: guests.leak(), ..SCENARIO }))];
    let results =
        compare_with(&f, &|_, job, logs| Ok(boot(logs, Outcome::Exit(0), vec![sample("c/cpus", f64::from(job.cpus))])))
            .unwrap();
    let got: Vec<_> = results.metrics().map(|(run, m)| (run.guest.as_str(), m.base[0])).collect();
    assert_eq!(got, [("icount-1", 1.0), ("icount-64", 64.0), ("multi", 2.0)]);
    for boot in ["synthetic-icount-1/01-stock", "synthetic-icount-64/06-stock2", "synthetic-multi/01-stock"] {
        assert!(f.ctx.out.join("boots").join(boot).join("console.log").is_file(), "{boot}");
    }
    let page = fs::read_to_string(f.ctx.out.join("report.html")).unwrap();
    let of_64 = page.split("<h2>synthetic/icount-64</h2>").nth(1).unwrap();
    assert!(of_64.starts_with("\n<p class=\"soft\">Guest: 64 CPUs"), "{}", &of_64[..80]);
}

#[test]
fn one_guest_can_be_chosen() {
    let mut f = fixture();
    f.plan.guest = Some("icount".into());
    let results = run_fixture(&f, &mut |arm, job, logs| {
        assert_eq!(job.mode, Mode::Icount);
        Ok(healthy(arm, logs, 1))
    });
    assert_eq!(results.unwrap().runs.len(), 1);
    f.plan.guest = Some("icount-64".into());
    let error = run_fixture(&f, &mut |arm, _, logs| Ok(healthy(arm, logs, 1))).unwrap_err().to_string();
    assert!(error.contains("synthetic: no guest 'icount-64'; there are: multi, icount"), "{error}");
}

#[test]
fn only_guests_that_have_the_case_are_booted() {
    let names_in = |scenario, guest, case| {
        chosen_guests(&[scenarios::find(scenario).unwrap()], guest, Some(case))
            .map(|chosen| chosen.iter().map(|(_, guest)| guest.name).collect::<Vec<_>>().join(" "))
            .map_err(|e| e.to_string())
    };
    assert_eq!(names_in("expedite", None, "cpu-10").unwrap(), "multi icount");
    // A case of one guest only.
    assert_eq!(names_in("memcg-exit", None, "oom-shared").unwrap(), "multi");
    let error = names_in("memcg-exit", Some("icount"), "oom-shared").unwrap_err();
    assert!(error.starts_with("memcg-exit: no case 'oom-shared'; there are: killed, oom, oom-small"), "{error}");
}

#[test]
fn control_kernels_are_booted_where_they_are_needed() {
    let mut f = fixture();
    let arm = |name: &str| Arm { name: name.into(), ..f.plan.arms[0].clone() };
    let controls = vec![arm("unwanted"), arm("second"), arm("first")];
    f.plan.controls = controls;
    let control = |name| scenarios::ControlKernel { name, parameters: None };
    let named = ["first", "second", "absent"].map(control).to_vec().leak();
    f.plan.scenarios.push(Box::leak(Box::new(Scenario { name: "with", controls: named, ..SCENARIO })));
    let booted = Mutex::new(Vec::new());
    let results = compare_with(&f, &|arm, job, logs| {
        let GuestCommand::Scenario { name, .. } = &job.command else { panic!() };
        unpoisoned(&booted).push(format!("{name} {}", arm.name));
        let value = match arm.name.as_str() {
            "first" => 100.0,
            "second" => 200.0,
            _ => 7.0,
        };
        Ok(boot(logs, Outcome::Exit(0), vec![sample("c/time", value)]))
    })
    .unwrap();
    let booted = booted.into_inner().unwrap();
    let times = |boot: &str| booted.iter().filter(|b| *b == boot).count();
    assert_eq!([times("with first"), times("with second"), times("with stock")], [12, 12, 24]);
    assert_eq!(booted.len(), 2 * 6 * 3 + 2 * 6 * 5);
    for (run, metric) in results.metrics() {
        let controls: Vec<_> = metric.controls.iter().map(|c| (c.arm.as_str(), c.values.clone())).collect();
        match run.scenario.as_str() {
            "with" => assert_eq!(controls, [("first", vec![100.0; 6]), ("second", vec![200.0; 6])]),
            _ => assert!(controls.is_empty()),
        }
        assert_eq!((metric.verdict, metric.base.len()), (Verdict::Same, 6));
    }
    let names: Vec<&str> = results.meta.arms.iter().map(|arm| arm.name.as_str()).collect();
    assert_eq!(names, ["stock", "memreap", "unwanted", "second", "first"]);
    assert!(results.meta.arms[4].release.is_some() && results.meta.arms[2].release.is_none());
}

fn panic() -> Outcome {
    Outcome::Panic("Kernel panic - not syncing: no".into())
}

#[test]
fn boot_that_fails_twice_ends_the_run_with_an_error() {
    let mut f = fixture();
    f.plan.aa = false;
    let mut boots = 0;
    let error = run_fixture(&f, &mut |arm, _, logs| {
        boots += 1;
        Ok(if boots >= 3 { boot(logs, panic(), vec![]) } else { healthy(arm, logs, boots) })
    })
    .unwrap_err();
    assert_eq!(boots, 4);
    let failure = error.downcast_ref::<Failure>().unwrap();
    assert_eq!(failure.exit_code, 4);
    let text = failure.to_string();
    let boot = "pair 2/6, memreap, synthetic/multi, second attempt: the kernel panicked";
    for part in [boot, "not syncing: no", "Kernel panic", "02-memreap"] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    let of_second = f.ctx.out.join("boots/synthetic-multi/02-memreap");
    assert!(of_second.join("console.log").is_file() && !of_second.join("boot.json").exists());
    assert!(record::failed_folder(&of_second).join("console.log").is_file());
    // The first pair is kept, without verdicts.
    let partial = Results::read(&f.ctx.out.join("results-partial.json")).unwrap();
    assert!(partial.meta.partial);
    assert_eq!(partial.runs[0].metrics[0].base.len(), 1);
    assert!(partial.metrics().all(|(_, m)| m.verdict == Verdict::None));
    assert!(!f.ctx.out.join("results.json").exists());
}

#[test]
fn boot_that_fails_is_repeated_and_reported() {
    let f = fixture();
    let mut boots = 0;
    let results = run_fixture(&f, &mut |arm, _, logs| {
        boots += 1;
        let qemu = Outcome::Qemu("gone".into());
        Ok(match boots {
            6 => boot(logs, panic(), vec![sample("c/time", 1.0)]),
            9 => boot(logs, qemu, vec![]),
            _ => healthy(arm, logs, boots),
        })
    })
    .unwrap();
    assert_eq!(boots, 2 * 6 * 3 + 2);
    assert!(results.metrics().all(|(_, m)| m.base.len() == 6 && m.verdict != Verdict::None));
    let repeated = &results.meta.repeated;
    let reported: Vec<_> = repeated.iter().map(|r| (r.boot.as_str(), r.exit_code)).collect();
    let of = |pair, arm| format!("pair {pair}/6, {arm}, synthetic/multi");
    assert_eq!(reported, [(of(2, "stock").as_str(), 4), (of(3, "stock2").as_str(), 3)]);
    assert!(repeated[0].what.contains("not syncing: no") && repeated[1].what.contains("gone"));
    assert_eq!(results.exit_code(), Some(4));
    for repeated in repeated {
        let logs = f.ctx.out.join(&repeated.logs);
        assert!(logs.join("console.log").is_file(), "{logs:?}");
        assert!(logs.with_extension("").join("console.log").is_file(), "{logs:?}");
    }
    assert_eq!(Results::read(&f.ctx.out.join("results.json")).unwrap(), results);
}

/// A boot whose value depends only on the path of its logs.
fn steady(logs: &Path) -> Boot {
    let name = logs.strip_prefix(logs.ancestors().nth(2).unwrap()).unwrap().display().to_string();
    let ms = name.bytes().fold(0.1, |sum: f64, byte| (sum * 1.7 + f64::from(byte)) % 10.0) + 20.0 / 3.0;
    boot(logs, Outcome::Exit(0), vec![sample("c/time", ms)])
}

/// The plan's kernels as files, and their contents as keys.
fn with_kernels(f: &mut Fixture) {
    for arm in &mut f.plan.arms {
        arm.bzimage = f.ctx.repo.join(&arm.name);
        fs::write(&arm.bzimage, "a kernel").unwrap();
    }
}

/// Runs the plan until `limit` boots have been made. The first attempt at the boot named `fails` fails.
/// Returns the results and the names of the boots.
fn run_some(f: &Fixture, limit: usize, fails: &str) -> (Result<Results>, Vec<String>) {
    let made = Mutex::new(Vec::new());
    let key = |arm: &Arm, job: &Job| Ok(format!("{} {} {job:?}", fs::read_to_string(&arm.bzimage)?, arm.cmdline));
    let make = |_: &Arm, _: &Job, logs: &Path| {
        let mut made = unpoisoned(&made);
        if made.len() == limit {
            bail!("interrupted");
        }
        let name = logs.file_name().unwrap().to_string_lossy().into_owned();
        let fails = name == fails && !made.contains(&name);
        made.push(name);
        Ok(if fails { boot(logs, panic(), vec![]) } else { steady(logs) })
    };
    let results = run_with(&f.ctx, "tcg", &f.plan, &Booter { key: &key, boot: &make });
    (results, made.into_inner().unwrap())
}

#[test]
fn continued_run_has_the_results_of_an_uninterrupted_one() {
    let mut whole = fixture();
    with_kernels(&mut whole);
    let (expected, all) = run_some(&whole, usize::MAX, "");
    let expected = expected.unwrap().runs;
    for limit in [0, 1, 17, 18, 19, 35, 36] {
        let mut f = fixture();
        with_kernels(&mut f);
        f.plan.resume = true;
        let (first, made) = run_some(&f, limit, "");
        assert_eq!(first.is_ok(), limit == all.len());
        assert_eq!(made.len(), limit);
        let (results, rest) = run_some(&f, usize::MAX, "");
        assert_eq!(rest.len(), all.len() - limit);
        assert_eq!(results.unwrap().runs, expected);
        assert!(!f.ctx.out.join("previous").exists());
        // Without `resume`, all boots are made.
        f.plan.resume = false;
        assert_eq!(run_some(&f, usize::MAX, "").1.len(), all.len());
        assert!(f.ctx.out.join("previous/boots/synthetic-multi").is_dir());
    }
}

#[test]
fn boots_of_another_kernel_or_plan_are_repeated() {
    let mut f = fixture();
    with_kernels(&mut f);
    f.plan.resume = true;
    run_some(&f, usize::MAX, "").0.unwrap();
    fs::write(&f.plan.arms[1].bzimage, "another kernel").unwrap();
    let (results, made) = run_some(&f, usize::MAX, "");
    results.unwrap();
    assert_eq!(made.len(), 2 * 6);
    assert!(made.iter().all(|name| name.ends_with("-memreap")), "{made:?}");
    // More pairs: the existing ones are reused.
    f.plan.pairs = 7;
    assert_eq!(run_some(&f, usize::MAX, "").1.len(), 2 * 3);
    f.plan.arms.iter_mut().for_each(|arm| arm.cmdline = "quiet".into());
    assert_eq!(run_some(&f, usize::MAX, "").1.len(), 2 * 3 * 7);
    // A record that cannot be read is ignored.
    fs::write(f.ctx.out.join("boots/synthetic-multi/01-stock/boot.json"), "{").unwrap();
    assert_eq!(run_some(&f, 0, "").0.unwrap_err().to_string(), "pair 1/7, stock, synthetic/multi");
    assert!(!f.ctx.out.join("results.json").exists() && !f.ctx.out.join("report.html").exists());
}

#[test]
fn a_kernel_that_is_built_anew_meanwhile_ends_the_run() {
    let mut f = fixture();
    with_kernels(&mut f);
    let bzimage = &f.plan.arms[1].bzimage;
    let boots = AtomicUsize::new(0);
    let key = |arm: &Arm, _: &Job| Ok(fs::read_to_string(&arm.bzimage)?);
    let make = |_: &Arm, _: &Job, logs: &Path| {
        if boots.fetch_add(1, Ordering::Relaxed) == 6 {
            fs::write(bzimage, "another kernel").unwrap();
        }
        Ok(steady(logs))
    };
    let booter = Booter { key: &key, boot: &make };
    let error = run_with(&f.ctx, "tcg", &f.plan, &booter).unwrap_err().to_string();
    assert!(error.contains(", memreap, synthetic/multi: the kernel or a file"), "{error}");
}

#[test]
fn continued_run_reports_what_failed_before() {
    let mut f = fixture();
    with_kernels(&mut f);
    f.plan.resume = true;
    // Interrupted after the boot that failed and was repeated successfully.
    run_some(&f, 9, "03-stock2").0.unwrap_err();
    let (results, made) = run_some(&f, usize::MAX, "");
    assert_eq!(made.len(), 2 * 6 * 3 - 8);
    let repeated = results.unwrap().meta.repeated;
    assert_eq!(repeated.len(), 1);
    assert_eq!((repeated[0].boot.as_str(), repeated[0].exit_code), ("pair 3/6, stock2, synthetic/multi", 4));
    // It was another kernel's failure.
    fs::write(&f.plan.arms[0].bzimage, "another kernel").unwrap();
    assert!(run_some(&f, usize::MAX, "").0.unwrap().meta.repeated.is_empty());
    assert!(!f.ctx.out.join(&repeated[0].logs).exists());
}

#[test]
fn missing_qemu_is_a_problem_of_the_host() {
    let f = fixture();
    let qemu = Outcome::Qemu("No such file or directory".into());
    let error = run_fixture(&f, &mut |_, _, logs| Ok(boot(logs, qemu.clone(), vec![]))).unwrap_err();
    assert_eq!(error.downcast_ref::<Failure>().unwrap().exit_code, 3);
}

#[test]
fn metrics_must_be_the_same_in_every_boot() {
    let good = || vec![sample("a", 1.0), sample("b", 2.0)];
    let other_unit = Sample { unit: "us".into(), ..sample("b", 2.0) };
    let cases: HashMap<&str, Vec<Sample>> = HashMap::from([
        ("metric 'b' is missing", vec![sample("a", 1.0)]),
        ("metric 'c' is new", vec![sample("a", 1.0), sample("b", 1.0), sample("c", 1.0)]),
        ("metric 'a' came more than once", vec![sample("a", 1.0), sample("a", 1.0)]),
        ("metric 'b' is in 'us'", vec![sample("a", 1.0), other_unit]),
        ("metric 'a' has the value NaN", vec![sample("a", f64::NAN), sample("b", 1.0)]),
        ("delivered no metric", vec![]),
    ]);
    for (said, second) in cases {
        let f = fixture();
        let mut boots = 0;
        let error = run_fixture(&f, &mut |_, _, logs| {
            boots += 1;
            let samples = if boots == 2 { second.clone() } else { good() };
            Ok(boot(logs, Outcome::Exit(0), samples))
        })
        .unwrap_err();
        let failure = error.downcast_ref::<Failure>().unwrap();
        assert_eq!(failure.exit_code, 4);
        assert!(failure.to_string().contains(said), "{said:?} is not in: {failure}");
        // A continued run repeats this boot.
        let kept = |boot: &str| f.ctx.out.join("boots/synthetic-multi").join(boot).join("boot.json").exists();
        assert!(kept("01-stock") && !kept("01-memreap"));
    }
}

#[test]
fn smoke_run_is_one_pair_in_its_own_folder() {
    let mut f = fixture();
    f.plan.smoke = true;
    let mut boots = 0;
    let results = run_fixture(&f, &mut |arm, _, logs| {
        boots += 1;
        Ok(healthy(arm, logs, boots))
    })
    .unwrap();
    assert_eq!((boots, results.meta.pairs), (4, 1));
    assert!(results.metrics().all(|(_, m)| m.verdict == Verdict::None && m.aa.is_none()));
    assert!(f.ctx.out.join("smoke/results.json").is_file());
    assert!(!f.ctx.out.join("results.json").exists());
}

#[test]
fn invalid_plans_are_refused_before_any_boot() {
    type Spoil = fn(&mut Plan);
    let spoils: [Spoil; 8] = [
        |p| p.pairs = 0,
        |p| p.pairs = 21,
        |p| p.alpha = 1.5,
        // With eight pairs p is 2/256 or more.
        |p| (p.pairs, p.alpha) = (8, 0.0078),
        |p| p.arms[1].name = "stock".into(),
        // Their boots would share a folder.
        |p| p.arms[1].name = "stock2".into(),
        |p| (p.arms[0].name, p.arms[1].name) = ("x y".into(), "x_y".into()),
        |p| p.controls = vec![p.arms[1].clone()],
    ];
    for spoil in spoils {
        let mut f = fixture();
        spoil(&mut f.plan);
        let refused = run_fixture(&f, &mut |_, _, _| panic!("booted"));
        assert!(refused.unwrap_err().is::<WrongUsage>());
    }
}

#[test]
fn the_first_boot_of_each_arm_says_how_things_develop() {
    let results = run_fixture(&fixture(), &mut |arm, _, logs| {
        let what = logs.file_name().unwrap().to_str().unwrap().to_owned();
        Ok(Boot { series: vec![Series { what, points: vec![[0.0, 1.0]] }], ..healthy(arm, logs, 1) })
    })
    .unwrap();
    let courses = results.runs.iter().map(|run| run.series.as_ref().unwrap());
    let drawn: Vec<[&str; 2]> = courses.map(|c| [&c.base[0].what[..], &c.changed[0].what]).collect();
    assert_eq!(drawn, [["01-stock", "01-memreap"]; 2], "in each guest");
}
