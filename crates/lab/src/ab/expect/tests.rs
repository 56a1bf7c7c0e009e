// SPDX-License-Identifier: GPL-2.0-only
use std::collections::BTreeSet;
use std::path::PathBuf;

use super::judge::{NOT_BOOTED, NOT_MEASURED, TOO_FEW_PAIRS};
use super::*;
use scenarios::{Guest, Mode, Scenario};

use crate::ab::results::{ArmMeta, ControlValues, Metric, Run, Verdict, fixture};
use crate::kernel::series;
use protocol::results::Better;

const ALL: RunKind<'_> = RunKind { series: series::DEFAULT, case: None, smoke: false, aa: true };
const SMOKE: RunKind<'_> = RunKind { smoke: true, aa: false, ..ALL };

pub(super) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check_fixture(text: &str) -> Result<Vec<Checked>> {
    check_text(&fixture::results(), text, Path::new("kernel/reap/expect.toml"), ALL)
}

/// Results of a smoke run: one pair, no intervals, no verdicts, no control.
fn one_pair() -> Results {
    let mut results = fixture::results();
    results.meta.pairs = 1;
    for metric in results.metrics_mut() {
        (metric.ci95, metric.aa, metric.verdict) = (None, None, Verdict::None);
    }
    results
}

/// Removes the expectation that every file has: that nothing else got worse.
pub(super) fn own(checked: Vec<Checked>) -> Vec<Checked> {
    checked.into_iter().filter(|c| !c.expected.ends_with("got worse")).collect()
}

fn passes(text: &str) -> Vec<bool> {
    own(check_fixture(text).unwrap()).iter().map(|c| c.state == State::Met).collect()
}

/// Results with all metrics that the scenario reports, in all its guests and on all its kernels.
pub(super) fn all_of(scenario: &Scenario) -> Results {
    let mut results = fixture::results();
    let (arm, like) = (results.meta.arms[0].clone(), results.runs.swap_remove(0));
    let controls = scenario.controls.iter().map(|c| ArmMeta { name: c.name.into(), ..arm.clone() });
    results.meta.arms.extend(controls);
    let of_guest = |guest: &Guest| Run {
        scenario: scenario.name.into(),
        guest: guest.name.into(),
        mode: guest.mode,
        cpus: guest.cpus,
        metrics: (scenario.reported(guest.name, None).into_iter())
            .map(|reported| Metric { metric: reported.name, ..like.metrics[0].clone() })
            .collect(),
        ..like.clone()
    };
    results.runs = scenario.guests.iter().map(of_guest).collect();
    results
}

/// The expectations in `text`, for any series, of metrics or control kernels that `results` do not have.
fn unknown(results: &Results, text: &str, path: &Path) -> Vec<String> {
    let series = series::names(&repository()).unwrap();
    let checked = |series| check_text(results, text, path, RunKind { series, ..ALL }).unwrap();
    let checked = series.iter().flat_map(|series| checked(series));
    let is_unknown = |c: &Checked| c.measured.starts_with(NOT_MEASURED) || c.measured.ends_with(NOT_BOOTED);
    let missing: BTreeSet<String> = checked.filter(is_unknown).map(|c| c.expected).collect();
    missing.into_iter().collect()
}

#[test]
fn what_topics_expect_is_what_scenarios_report() {
    let topics = repository().join("kernel");
    let mut files: BTreeSet<_> =
        fs::read_dir(&topics).unwrap().map(|entry| entry.unwrap().path().join("expect.toml")).collect();
    files.retain(|path| path.is_file());
    let mut wrong = Vec::new();
    for scenario in scenarios::all() {
        let path = topics.join(scenario.name).join("expect.toml");
        assert!(files.remove(&path), "no {}", path.display());
        let text = fs::read_to_string(&path).unwrap();
        let unknown = unknown(&all_of(scenario), &text, &path).into_iter();
        wrong.extend(unknown.map(|what| format!("{}: {what}", scenario.name)));
    }
    assert!(wrong.is_empty(), "no scenario reports:\n{}", wrong.join("\n"));
    assert!(files.is_empty(), "of no scenario: {files:?}");
}

#[test]
fn names_that_no_scenario_reports_are_found() {
    let results = all_of(scenarios::find("reap").unwrap());
    let unknown = |text: &str| unknown(&results, text, Path::new("x")).len();
    let expect = |metric: &str| format!("[[expect]]\nmetric = '{metric}'\nat_least = 1.0\n");
    assert_eq!(unknown(&expect("1-vma/mrelease-90")), 0);
    assert_eq!(unknown(&expect("1-vma/mrelease-91")), 1);
    // Reported, but not in this guest.
    assert_eq!(unknown(&format!("{}guest = 'icount'", expect("1-vma/mrelease-90"))), 1);
    let known = |metric: &str| format!("[[known_worse]]\nmetric = '{metric}'\nat_least = 0.5\n");
    assert_eq!(unknown(&(known("1-vma/kill-cpu") + &known("1-vma/kill-cpus"))), 1);
    for (metric, other, missed) in [("kill-90", "kill-cpu", 0), ("kil-90", "kill-cpu", 1), ("kill-90", "cpu", 1)] {
        let text = format!("arm = 'stock'\nmetric = '1-vma/{metric}'\nnot_worse_than = '1-vma/{other}'");
        assert_eq!(unknown(&format!("[[compare]]\n{text}")), missed, "{text}");
    }
    assert_eq!(unknown("[[bound]]\narm = 'memreap'\nmetric = '2-vmas/kill-90'\nat_most = 1"), 1);
    // Of another scenario.
    assert_eq!(unknown("[[bound]]\narm = 'memreap-batch'\nmetric = '1-vma/kill-90'\nat_most = 1"), 1);
}

#[test]
fn a_promise_is_for_its_series_or_that_of_its_file() {
    let table = |series: &str| {
        format!("[[bound]]\narm = 'memreap'\nmetric = '100-vmas/pte-lock-contended'\n{series}at_most = 0\n")
    };
    let missed = |text: &str, series| {
        let kind = RunKind { series, ..ALL };
        let checked = check_text(&fixture::results(), text, Path::new("x"), kind).unwrap();
        own(checked).iter().filter(|c| c.state == State::Missed).count()
    };
    let all = table("") + &table("series = '7.3'\n");
    assert_eq!(["6.12", "7.3"].map(|series| missed(&all, series)), [1, 2]);
    let of_file = format!("series = '6.12'\n{all}");
    assert_eq!(["6.12", "7.3"].map(|series| missed(&of_file, series)), [1, 1]);
}

#[test]
fn what_was_not_booted_or_not_run_is_not_missed() {
    // With --arm, control kernels are not.
    let control = "arm = 'memreap-off'\nmetric = '1-vma/kill-90'\n";
    let text = format!("[[compare]]\n{control}not_worse_than = '1-vma/kill-90'\n[[bound]]\n{control}at_most = 1\n");
    let states: Vec<State> = own(check_fixture(&text).unwrap()).iter().map(|c| c.state).collect();
    assert_eq!(states, [State::LeftOut; 2]);
    let error = check_fixture(&text.replace("memreap-off", "memreap-of")).unwrap_err().to_string();
    assert!(error.contains("expect.toml:2: no arm 'memreap-of'"), "{error}");
    // With --case, the others are not.
    let expect = |metric| format!("[[expect]]\nmetric = '{metric}'\nguest = 'multi'\nat_least = 1.0\n");
    let text = expect("100-vmas/x") + &expect("1000-vmas/x") + &expect("*/x");
    let of_case = |case| {
        let checked =
            check_text(&all_of(scenarios::find("reap").unwrap()), &text, Path::new("x"), RunKind { case, ..ALL });
        own(checked.unwrap()).iter().map(|c| c.state).collect::<Vec<_>>()
    };
    assert_eq!(of_case(None), [State::Missed; 3]);
    assert_eq!(of_case(Some("100-vmas")), [State::Missed, State::NotRun, State::NotRun]);
}

#[test]
fn a_series_is_two_numbers() {
    let of = |series: &str| check_fixture(&format!("aa_clean = true\nseries = '{series}'\n"));
    assert!(of("6.18").is_ok());
    for wrong in ["7,3", "7", "7.3.4", ""] {
        let error = of(wrong).err().unwrap().to_string();
        assert!(error.contains(&format!("expect.toml:2: {wrong:?} is no series of kernels")), "{error}");
    }
    // Ours are known ones.
    let names = series::names(&repository()).unwrap();
    for scenario in scenarios::all() {
        let text = fs::read_to_string(repository().join("kernel").join(scenario.name).join("expect.toml")).unwrap();
        let said = text.lines().filter_map(|line| line.strip_prefix("series = \"")?.strip_suffix('"'));
        said.for_each(|name| assert!(names.iter().any(|known| known == name), "{}: {name}", scenario.name));
    }
}

#[test]
fn a_promise_of_all_cases_is_checked_for_each() {
    let of_each = |metric: &str| {
        let text = format!("[[bound]]\narm = 'memreap'\nmetric = '{metric}'\nat_least = 0\n");
        own(check_fixture(&text).unwrap()).into_iter().filter(|c| c.state == State::Met).count()
    };
    let all = fixture::results().metrics().filter(|(_, m)| m.short_name() == "pte-lock-contended").count();
    assert_eq!([of_each("*/pte-lock-contended"), of_each("*/lock-contended")], [all, 0]);
    assert!(all > 0);
    let compare = "[[compare]]\narm = 'memreap'\nmetric = '*/kill-90'\nnot_worse_than = '1-vma/kill-90'";
    assert!(check_fixture(compare).unwrap_err().to_string().contains("without *"));
}

/// Results in which one metric, of interval `[0.5, 0.7]`, is worse.
fn one_worse() -> Results {
    let mut results = fixture::results();
    results.metrics_mut().for_each(|m| m.verdict = Verdict::Same);
    let worse = &mut results.runs[0].metrics[1];
    (worse.verdict, worse.ratio, worse.ci95) = (Verdict::Worse, 0.6, Some([0.5, 0.7]));
    results
}

#[test]
fn what_gets_worse_must_be_known_and_has_a_floor() {
    let judge = |metric: &str, at_least: f64, more: &str| {
        let text = format!("[[known_worse]]\nmetric = '{metric}'\nat_least = {at_least:?}\n{more}");
        let checked = check_text(&one_worse(), &text, Path::new("x"), ALL).unwrap();
        assert_eq!(checked.len(), 2);
        assert_eq!(checked[1].expected, "nothing else got worse");
        checked.iter().map(|c| c.state == State::Met).collect::<Vec<_>>()
    };
    let name = "100-vmas/mrelease-90";
    assert_eq!(judge("100-vmas/pte-lock-contended", 0.5, ""), [true, false]);
    assert_eq!(judge(name, 0.5, ""), [true, true]);
    // The whole interval must be above the floor.
    assert_eq!(judge(name, 0.51, ""), [false, true]);
    assert_eq!(judge(name, 0.5, "guest = 'multi'"), [true, true]);
    // Known in other guests only.
    assert_eq!(judge(name, 0.5, "guest = 'icount'"), [false, false]);
    let without = check_text(&one_worse(), "aa_clean = true", Path::new("x"), ALL).unwrap();
    assert_eq!((without[1].expected.as_str(), without[1].state), ("nothing got worse", State::Missed));
}

#[test]
fn at_least_is_judged_by_the_lower_end_of_the_interval() {
    let mut results = fixture::results();
    let state = |results: &Results, what: &str| {
        let text = format!("[[expect]]\nmetric = '100-vmas/mrelease-90'\n{what}");
        let checked = own(check_text(results, &text, Path::new("x"), ALL).unwrap());
        (checked[0].state, checked[0].measured.clone())
    };
    let metric = &mut results.runs[0].metrics[1];
    (metric.ratio, metric.ci95, metric.verdict) = (1.5, Some([1.2, 1.9]), Verdict::Better);
    let shown = "1.50x (1.20 - 1.90), better".to_owned();
    assert_eq!(state(&results, "at_least = 1.2"), (State::Met, shown.clone()));
    assert_eq!(state(&results, "at_least = 1.21"), (State::Missed, shown));
    // Identical boots, but for the last digit.
    results.runs[0].metrics[1].ci95 = Some([1.0 - 1e-15, 1.0]);
    assert_eq!(state(&results, "at_least = 1.0").0, State::Met);
    results.runs[0].metrics[1].ci95 = None;
    let few = (State::Missed, "1.50x, too few pairs".to_owned());
    assert_eq!(state(&results, "at_least = 1.0"), few);
    let few = check_text(&one_pair(), "aa_clean = true", Path::new("x"), ALL).unwrap();
    assert_eq!((few[1].state, few[1].measured.as_str()), (State::Missed, TOO_FEW_PAIRS));
    let mut few = fixture::results();
    few.meta.pairs = 5;
    let few = check_text(&few, "aa_clean = true", Path::new("x"), ALL).unwrap();
    assert_eq!((few[0].state, few[0].measured.as_str()), (State::Missed, TOO_FEW_PAIRS));
}

#[test]
fn one_pair_has_to_show_half_of_the_effect() {
    let judge = |mode: Mode, ratio: f64, least: f64, table: &str| {
        let mut results = one_pair();
        let run = results.runs.iter_mut().find(|run| run.mode == mode).unwrap();
        run.metrics[0].ratio = ratio;
        let name = run.metrics[0].metric.clone();
        let text = format!("[[{table}]]\nmetric = '{name}'\nat_least = {least:?}");
        own(check_text(&results, &text, Path::new("x"), SMOKE).unwrap())[0].state
    };
    let (virtual_time, real_time) = (Mode::Icount, Mode::Multi);
    for table in ["expect", "known_worse"] {
        let cases = [(1.25, 1.12, 1.11), (100.0, 10.1, 9.9), (1.0, 0.81, 0.79), (0.5, 0.41, 0.39)];
        for (least, enough, too_little) in cases {
            assert_eq!(judge(virtual_time, enough, least, table), State::Met, "{least}");
            assert_eq!(judge(virtual_time, too_little, least, table), State::Missed, "{least}");
        }
        // In real time only a large ratio can be judged.
        assert_eq!(judge(real_time, 10.1, 100.0, table), State::Met);
        assert_eq!(judge(real_time, 9.9, 100.0, table), State::Missed);
        for least in [0.5, 1.0, 1.25, 9.9] {
            assert_eq!(judge(real_time, 0.1, least, table), State::LeftOut, "{least}");
        }
    }
}

#[test]
fn what_needs_pairs_is_left_out_of_a_smoke_run() {
    let text = r#"
        aa_clean = true
        [[expect]]
        metric = "100-vmas/pte-lock-contended"
        at_least = 33.0
        share_at_most = 0.03
        verdict = "better"
        [[expect]]
        metric = "1-vma/kill-instructions"
        verdict = "same"
        [[expect]]
        metric = "1-vma/freed-descending"
        at_least = 0.5
        share_at_most = 0.4
        [[expect]]
        metric = "gone/metric"
        verdict = "better"
        [[compare]]
        arm = "memreap"
        metric = "100-vmas/mrelease-90"
        not_worse_than = "100-vmas/pte-lock-contended"
        [[bound]]
        arm = "memreap"
        metric = "100-vmas/mrelease-90"
        at_most = 31.0
        each_boot = true
    "#;
    let checked = check_text(&one_pair(), text, Path::new("x"), SMOKE).unwrap();
    fixture::golden("expect-smoke.txt", &render(&checked, None, false));
    assert!(!passed(&checked));
    let left_out: Vec<Checked> = checked.into_iter().filter(|c| c.state == State::LeftOut).collect();
    assert!(passed(&left_out) && left_out.len() == 6);
}

#[test]
fn without_a_control_aa_clean_is_left_out() {
    let mut results = fixture::results();
    results.metrics_mut().for_each(|m| m.aa = None);
    let kind = RunKind { aa: false, ..ALL };
    let judge = |kind| check_text(&results, "aa_clean = true", Path::new("x"), kind).unwrap();
    assert_eq!(judge(ALL)[0].state, State::Missed);
    let checked = &judge(kind)[..1];
    assert!(passed(checked));
    let text = render(checked, None, false);
    assert!(text.contains("left out (--no-aa)"), "{text}");
    assert!(text.ends_with("1 expectations: 0 met, 0 missed, 1 left out\n"), "{text}");
}

#[test]
fn what_guests_that_were_not_booted_must_show_is_left_out() {
    let mut results = fixture::results();
    let state = |results: &Results, more: &str| {
        let text = format!("[[expect]]\nmetric = '100-vmas/absent'\nat_least = 2.0\n{more}");
        own(check_text(results, &text, Path::new("x"), ALL).unwrap())[0].state
    };
    assert_eq!(state(&results, ""), State::Missed);
    results.runs.retain(|run| run.guest == "multi");
    assert_eq!(state(&results, ""), State::NotRun);
    assert_eq!(state(&results, "guest = 'icount'"), State::NotRun);
    // That guest would have sent it.
    assert_eq!(state(&results, "guest = 'multi'"), State::Missed);
    // No scenario of ours, with one guest.
    results.runs[0].scenario = "workload".into();
    assert_eq!(state(&results, ""), State::Missed);
}

#[test]
fn golden_table_of_met_and_missed() {
    let text = r#"
        aa_clean = true
        [[expect]]
        metric = "100-vmas/pte-lock-contended"
        at_least = 33.0
        share_at_most = 0.03
        verdict = "better"
        [[expect]]
        metric = "100-vmas/mrelease-90"
        at_least = 1.25
        [[expect]]
        metric = "gone/metric"
        verdict = "same"
        [[compare]]
        arm = "memreap"
        metric = "100-vmas/mrelease-90"
        not_worse_than = "100-vmas/pte-lock-contended"
    "#;
    let checked = check_fixture(text).unwrap();
    assert!(!passed(&checked));
    fixture::golden("expect.txt", &render(&checked, None, false));
}

#[test]
fn expectations_select_by_scenario_and_guest() {
    let of = |file: &str, more: &str| {
        passes(&format!("{file}\n[[expect]]\nmetric = '1-vma/kill-instructions'\nverdict = 'same'\n{more}"))
    };
    assert_eq!(of("", ""), [true]);
    assert_eq!(of("", "guest = 'icount'"), [true]);
    assert_eq!(of("", "share_at_most = 1.0"), [true]);
    assert_eq!(of("", "share_at_most = 0.99"), [false]);
    assert_eq!(of("", "guest = 'multi'"), [false]);
    assert_eq!(of("scenario = 'reap'", ""), [true]);
    assert_eq!(of("scenario = 'other'", ""), [false]);
}

#[test]
fn of_nothing_there_is_no_share() {
    let judge = |changed: f64, most: f64| {
        let mut results = fixture::results();
        let metric = &mut results.runs[0].metrics[0];
        (metric.base, metric.changed) = (vec![0.0], vec![changed]);
        let name = metric.metric.clone();
        let text = format!("[[expect]]\nmetric = '{name}'\nshare_at_most = {most:?}");
        let of_kind = |kind| own(check_text(&results, &text, Path::new("x"), kind).unwrap())[0].state;
        [ALL, SMOKE].map(of_kind)
    };
    assert_eq!(judge(0.0, 0.5), [State::Missed; 2]);
    assert_eq!(judge(0.0, 0.0), [State::Met; 2]);
    assert_eq!(judge(1.0, 0.0), [State::Missed; 2]);
}

#[test]
fn a_metric_in_two_guests_must_pass_in_both() {
    let mut results = fixture::results();
    let twin = Metric { ci95: Some([2.0, 200.0]), ..results.runs[0].metrics[0].clone() };
    results.runs[1].metrics.push(twin);
    let text = "[[expect]]\nmetric = '100-vmas/pte-lock-contended'\nat_least = 33.0";
    let checked = check_text(&results, text, Path::new("x"), ALL).unwrap();
    assert_eq!(own(checked).iter().map(|c| c.state == State::Met).collect::<Vec<_>>(), [true, false]);
}

#[test]
fn guests_are_distinguished_by_their_names() {
    let mut results = fixture::results();
    for (cpus, factor) in [(16, 1.0), (64, 10.0)] {
        let mut run = results.runs[1].clone();
        run.guest = format!("icount-{cpus}");
        let metric = Metric { ci95: Some([factor; 2]), changed: vec![factor], ..results.runs[0].metrics[1].clone() };
        run.metrics = ["a", "b"].map(|name| Metric { metric: name.into(), ..metric.clone() }).to_vec();
        results.runs.push(run);
    }
    let judge = |text: &str| {
        let checked = own(check_text(&results, text, Path::new("x"), ALL).unwrap());
        checked.iter().map(|c| (c.expected.contains("-64)"), c.state == State::Met)).collect::<Vec<_>>()
    };
    let expect = "[[expect]]\nmetric = 'a'\nat_least = 5.0";
    assert_eq!(judge(expect), [(false, false), (true, true)]);
    assert_eq!(judge(&format!("{expect}\nguest = 'icount-64'")), [(true, true)]);
    assert!(!judge(&format!("{expect}\nguest = 'icount-8'"))[0].1);
    let compare = "[[compare]]\narm = 'memreap'\nmetric = 'b'\nnot_worse_than = 'a'";
    let passes: Vec<bool> = judge(compare).iter().map(|&(_, pass)| pass).collect();
    assert_eq!(passes, [true, true]);
}

#[test]
fn comparisons_within_an_arm_know_direction_and_tolerance() {
    let mut results = fixture::results();
    let mut slower = results.runs[0].metrics[1].clone();
    slower.metric = "100-vmas/mrelease2-90".into();
    slower.changed.iter_mut().for_each(|v| *v *= 1.04);
    results.runs[0].metrics.push(slower);
    let compare = |first: &str, second: &str, tolerance: f64| {
        let text = format!(
            "[[compare]]\narm = 'memreap'\nmetric = '100-vmas/{first}'\n\
             not_worse_than = '100-vmas/{second}'\ntolerance = {tolerance:?}"
        );
        own(check_text(&results, &text, Path::new("x"), ALL).unwrap())[0].state == State::Met
    };
    assert!(compare("mrelease2-90", "mrelease-90", 0.05));
    assert!(!compare("mrelease2-90", "mrelease-90", 0.03));
    assert!(compare("mrelease-90", "mrelease2-90", 0.0));
}

#[test]
fn any_two_arms_are_compared_by_a_factor() {
    let mut results = fixture::results();
    let control = |arm: &str| ArmMeta { name: arm.into(), ..results.meta.arms[0].clone() };
    let arms = [control("third"), control("unused")];
    results.meta.arms.extend(arms);
    let metric = &mut results.runs[0].metrics[1];
    metric.changed = vec![2.0];
    metric.controls = vec![ControlValues { arm: "third".into(), values: vec![20.0, 30.0, 40.0] }];
    let name = metric.metric.clone();
    let compare = |arm: &str, than: &str, more: &str| {
        let text = format!(
            "[[compare]]\narm = '{arm}'\nmetric = '{name}'\nnot_worse_than = '{name}'\n\
             than_arm = '{than}'\n{more}"
        );
        check_text(&results, &text, Path::new("x"), ALL).map(|checked| own(checked)[0].state == State::Met)
    };
    assert!(compare("memreap", "third", "").unwrap());
    assert!(compare("memreap", "third", "times = 15.0").unwrap());
    assert!(!compare("memreap", "third", "times = 15.1").unwrap());
    assert!(compare("memreap", "third", "times = 15.1\ntolerance = 0.01").unwrap());
    assert!(!compare("third", "memreap", "").unwrap());
    assert!(!compare("memreap", "unused", "").unwrap());
    let error = compare("memreap", "fourth", "").unwrap_err().to_string();
    assert!(error.contains("no arm 'fourth'; there are: stock, memreap, third, unused"), "{error}");
    let metric = &mut results.runs[0].metrics[1];
    (metric.better, metric.changed) = (Better::Higher, vec![450.0]);
    let text = format!(
        "[[compare]]\narm = 'memreap'\nmetric = '{name}'\nnot_worse_than = '{name}'\n\
         than_arm = 'third'\ntimes = "
    );
    let judge = |times| own(check_text(&results, &format!("{text}{times:?}"), Path::new("x"), ALL).unwrap());
    assert!(judge(15.0)[0].state == State::Met && judge(15.1)[0].state == State::Missed);
    assert!(judge(15.0)[0].expected.contains("at least 15.0x as good as"), "{}", judge(15.0)[0].expected);
}

#[test]
fn a_bound_is_for_one_arm_and_its_median() {
    let mut results = fixture::results();
    results.runs[0].metrics[0].base = vec![90.0, 100.0, 1000.0];
    results.runs[0].metrics[0].changed = vec![1.0, 2.0, 50.0];
    let bound = |arm: &str, at_most: f64, more: &str| {
        let metric = "100-vmas/pte-lock-contended";
        let text = format!("[[bound]]\narm = '{arm}'\nmetric = '{metric}'\nat_most = {at_most:?}\n{more}");
        let checked = own(check_text(&results, &text, Path::new("x"), ALL).unwrap());
        (checked[0].state == State::Met, checked[0].measured.clone())
    };
    assert_eq!(bound("memreap", 2.0, ""), (true, "2 count".to_owned()));
    assert!(!bound("memreap", 1.9, "").0);
    assert!(bound("stock", 100.0, "guest = 'multi'").0 && !bound("stock", 99.0, "").0);
    assert!(bound("stock", 1000.0, "guest = 'icount'").1.contains("have no"));
}

#[test]
fn a_bound_may_be_for_each_boot_and_from_below() {
    let mut results = fixture::results();
    results.runs[0].metrics[0].changed = vec![1.0, 2.0, 50.0];
    let judge = |results: &Results, more: &str, kind| {
        let metric = "100-vmas/pte-lock-contended";
        let text = format!("[[bound]]\narm = 'memreap'\nmetric = '{metric}'\n{more}");
        let checked = own(check_text(results, &text, Path::new("x"), kind).unwrap());
        (checked[0].state, checked[0].measured.clone())
    };
    let each = "at_most = 2.0\neach_boot = true";
    assert_eq!(judge(&results, each, ALL), (State::Missed, "50 count".to_owned()));
    assert_eq!(judge(&results, "at_most = 50\neach_boot = true", ALL).0, State::Met);
    assert_eq!(judge(&results, "at_least = 2.0", ALL).0, State::Met);
    assert_eq!(judge(&results, "at_least = 2.0\neach_boot = true", ALL), (State::Missed, "1 count".to_owned()));
    assert_eq!(judge(&results, "at_least = 2.1\nat_most = 3", ALL).0, State::Missed);
    // The value of one boot is no median.
    results.runs[0].metrics[0].changed = vec![3.0];
    assert_eq!(judge(&results, "at_most = 2.0", SMOKE).0, State::LeftOut);
    assert_eq!(judge(&results, each, SMOKE).0, State::Missed);
}

#[test]
fn aa_clean_needs_controls_that_see_nothing() {
    let judge = |results: &Results| own(check_text(results, "aa_clean = true", Path::new("x"), ALL).unwrap());
    let mut results = fixture::results();
    assert!(passed(&judge(&results)));
    results.runs[0].metrics[1].aa.as_mut().unwrap().verdict = Verdict::Worse;
    assert!(judge(&results)[0].measured.contains("mrelease-90"));
    assert!(!passed(&judge(&results)));
    // A difference in another scenario's control is another topic's problem.
    let own_scenario = format!("scenario = '{}'\naa_clean = true", results.runs[0].scenario);
    results.runs.push(Run { scenario: "another".into(), ..results.runs[0].clone() });
    results.runs[0].metrics[1].aa.as_mut().unwrap().verdict = Verdict::Same;
    assert!(passed(&own(check_text(&results, &own_scenario, Path::new("x"), ALL).unwrap())));
    results.runs[0].metrics[2].aa = None;
    assert!(!passed(&judge(&results)));
}

#[test]
fn errors_name_file_line_and_remedy() {
    for (text, said) in [
        ("aa_clean = true\n[[expect]]\nmetrics = 'a'", ":3: unknown field `metrics`"),
        ("\n[[expect]]\nmetric = 'a'", ":3: give at_least"),
        ("[[expect]]\nmetric = 'a'\nverdict = 'good'", ":3: unknown variant"),
        ("[[compare]]\narm = 'x'\nmetric = 'a'\nnot_worse_than = 'b'", ":2: no arm 'x'"),
        ("\n[[bound]]\narm = 'x'\nmetric = 'a'\nat_most = 1", ":3: no arm 'x'"),
        ("[[bound]]\narm = 'stock'\nmetric = 'a'", ":2: give at_most or at_least"),
        ("a = = 1", ":1: "),
        ("aa_clean = true\nknown_worse = [\n'a',\n'b']", ":3: "),
        (
            "known_worse = ['a']",
            "invalid type: string \"a\", expected a table for each metric that may get worse: [[known_worse]] with metric = \"...\" and at_least = the ratio",
        ),
        ("[[known_worse]]\nmetric = 'a'", ":1: missing field `at_least`"),
        ("", "expects nothing"),
    ] {
        let error = format!("{:#}", check_fixture(text).unwrap_err());
        assert!(error.starts_with("kernel/reap/expect.toml"), "{error}");
        assert!(error.contains(said), "{said:?} is not in: {error}");
    }
}
