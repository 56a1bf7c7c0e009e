// SPDX-License-Identifier: GPL-2.0-only
//! The types of `results.json`: the values and verdicts of one comparison, guest by guest.
//!
//! A guest is known by its scenario and its name there, for example `reap` and `icount`; nothing else says where a
//! metric was measured. Optional fields are left out of the file if they are empty.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use scenarios::Mode;
use serde::{Deserialize, Serialize};

use protocol::results::{Better, Series};

use crate::ab::stats::median;
use crate::format;
use crate::host::write_atomically;

/// The form of the file. The one before, up to version 0.2.0, had no number.
pub const FORMAT: u32 = 2;

/// The results of one run of `lab ab`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of the lab that wrote them.
    pub version: String,
    /// The conditions of the run.
    pub meta: Meta,
    /// What was measured, by guests in the order in which they were booted.
    pub runs: Vec<Run>,
}

/// A guest of a scenario, and what was measured in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub scenario: String,
    /// The guest's name among those of the scenario: `multi`, `icount`, `icount-64`.
    pub guest: String,
    /// How time passed in it.
    pub mode: Mode,
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The accelerator, which for `icount` is always `tcg`.
    pub accelerator: String,
    /// Of `multi`, the largest share of the host's CPU time that was stolen in ten seconds of any boot, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
    /// The metrics, in the order in which the guest reports them.
    pub metrics: Vec<Metric>,
    /// How things developed, if the guest says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Course>,
}

/// How things developed in the first boot of each arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// In the base arm.
    pub base: Vec<Series>,
    /// In the changed arm.
    pub changed: Vec<Series>,
}

impl Run {
    /// Returns scenario and guest as one name: `reap/icount`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.scenario, self.guest)
    }
}

/// The verdict of a comparison; [`crate::ab::stats`] has the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// The changed arm improves the metric: significantly, and by more than the minimum effect.
    #[serde(rename = "better")]
    Better,
    /// The changed arm makes the metric worse: significantly, and by more than the minimum effect.
    #[serde(rename = "worse")]
    Worse,
    /// The whole interval is within the minimum effect: there is no relevant difference.
    #[serde(rename = "same")]
    Same,
    /// The boots support none of the three statements above.
    #[serde(rename = "no verdict")]
    None,
}

impl Verdict {
    /// Whether this verdict claims a difference between the arms.
    pub fn is_difference(self) -> bool {
        matches!(self, Self::Better | Self::Worse)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Better => "better",
            Self::Worse => "worse",
            Self::Same => "same",
            Self::None => "no verdict",
        })
    }
}

/// The conditions of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The kernel release that the base arm reported, for example `6.12.117`.
    pub kernel: String,
    /// The origin of the kernel, for example `linux-source-6.12 6.12.117-1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// QEMU's accelerator: `kvm` or `tcg`.
    pub accelerator: String,
    /// Why this accelerator was chosen, in one line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accelerator_reason: Option<String>,
    /// Pairs per scenario and guest; a pair is one boot of each arm, back to back.
    pub pairs: usize,
    /// The end of the run: UTC, RFC 3339, in seconds.
    pub date: String,
    /// The smallest effect that counts, as a fraction: 0.03 is 3 %.
    pub min_effect: f64,
    /// The family-wise error rate of the verdicts.
    pub alpha: f64,
    /// The host, for example `2 CPUs, Intel(R) Xeon(R)`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// The key of the content of a workload of the user's: 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// The command that reproduces the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The base arm, the changed arm, then the control kernels.
    pub arms: Vec<ArmMeta>,
    /// Boots that failed and were repeated. The results are complete and only from boots that succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeated: Vec<RepeatedBoot>,
    /// The seed by which the order of the boots was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Whether the run was interrupted: fewer pairs than planned, no verdicts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl Meta {
    /// Returns the release of the changed arm's kernel if it is another than the base arm's.
    pub fn other_kernel(&self) -> Option<&str> {
        self.arms.get(1)?.release.as_deref().filter(|release| *release != self.kernel)
    }

    /// Returns the releases of the kernels, base first: `7.3.4`, or `7.3.4 and 6.12.117`.
    pub fn kernels(&self) -> String {
        [Some(self.kernel.as_str()), self.other_kernel()].into_iter().flatten().collect::<Vec<_>>().join(" and ")
    }

    /// Returns the base arm's name.
    pub fn base(&self) -> &str {
        self.arms.first().map_or("stock", |arm| &arm.name)
    }

    /// Returns the changed arm's name.
    pub fn changed(&self) -> &str {
        self.arms.get(1).map_or("memreap", |arm| &arm.name)
    }

    /// Returns what the arm of that name is. `stock` and `memreap` also name the base and the changed arm if
    /// these have other names.
    ///
    /// # Errors
    /// When there is none. The error has the known names.
    pub fn arm<'a>(&self, name: &'a str) -> Result<ArmRole<'a>> {
        let controls = self.arms.iter().skip(2).map(|arm| arm.name.as_str());
        match name {
            _ if name == self.base() => Ok(ArmRole::Base),
            _ if name == self.changed() => Ok(ArmRole::Changed),
            "stock" => Ok(ArmRole::Base),
            "memreap" => Ok(ArmRole::Changed),
            _ if controls.clone().any(|control| control == name) => Ok(ArmRole::Control(name)),
            _ => {
                let known = [self.base(), self.changed()].into_iter().chain(controls);
                bail!(format::no_such("arm", name, known))
            }
        }
    }
}

/// What an arm is in the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArmRole<'a> {
    /// What the other arm is compared with.
    Base,
    /// What is judged.
    Changed,
    /// A control kernel, by its name.
    Control(&'a str),
}

/// An arm of the comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArmMeta {
    /// The arm's name, for example `stock`.
    pub name: String,
    /// Kernel parameters in addition to the lab's own; often empty.
    #[serde(default)]
    pub cmdline: String,
    /// The path of the kernel image.
    #[serde(default)]
    pub bzimage: String,
    /// The release that the kernel reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
}

/// A boot that failed and was repeated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepeatedBoot {
    /// The boot's name, for example `pair 3/8, memreap, reap/multi`.
    pub boot: String,
    /// Why the first attempt failed.
    pub what: String,
    /// The folder with the logs of the first attempt, relative to that of `results.json`.
    pub logs: String,
    /// The lab's exit code for the failure: 3 if QEMU failed, 4 if the guest failed.
    pub exit_code: u8,
}

impl fmt::Display for RepeatedBoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; repeated, logs in {}", self.boot, self.what, self.logs)
    }
}

/// One metric in one guest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// Its name, which begins with its case: `100-vmas/pte-lock-contended`.
    pub metric: String,
    /// The unit of all values.
    pub unit: String,
    /// Which direction is an improvement.
    pub better: Better,
    /// The base arm: one value per boot; entry `i` belongs to pair `i`.
    pub base: Vec<f64>,
    /// The changed arm: one value per boot; entry `i` belongs to pair `i`.
    pub changed: Vec<f64>,
    /// The ratio of the arms, oriented so that above 1 is an improvement.
    pub ratio: f64,
    /// The ratio's 95 % interval; `null` with fewer than six pairs.
    pub ci95: Option<[f64; 2]>,
    /// The p-value, adjusted for all metrics of the comparison (step-down max-T).
    pub p: f64,
    /// The unadjusted p-value of this metric alone.
    pub p_raw: f64,
    pub verdict: Verdict,
    /// The values of the scenario's control kernels. They do not affect the fields above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub controls: Vec<ControlValues>,
    /// The A/A control: the base arm compared with itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa: Option<AaControl>,
}

impl Metric {
    /// Returns the part of the name before the first `/`; empty if there is none.
    pub fn case(&self) -> &str {
        self.metric.split_once('/').map_or("", |(case, _)| case)
    }

    /// Returns the name without its case.
    pub fn short_name(&self) -> &str {
        self.metric.split_once('/').map_or(&self.metric, |(_, name)| name)
    }

    /// Returns the median of the base arm's values.
    pub fn base_median(&self) -> f64 {
        median(&self.base)
    }

    /// Returns the median of the changed arm's values.
    pub fn changed_median(&self) -> f64 {
        median(&self.changed)
    }

    /// Returns the values on an arm; none if the metric was not measured there.
    pub fn values_on(&self, arm: ArmRole<'_>) -> &[f64] {
        match arm {
            ArmRole::Base => &self.base,
            ArmRole::Changed => &self.changed,
            ArmRole::Control(name) => self.controls.iter().find(|c| c.arm == name).map_or(&[], |c| c.values.as_slice()),
        }
    }

    /// Returns the median on an arm; `None` if the metric was not measured there.
    pub fn median_on(&self, arm: ArmRole<'_>) -> Option<f64> {
        let values = self.values_on(arm);
        (!values.is_empty()).then(|| median(values))
    }
}

/// The values of a metric on a control kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ControlValues {
    /// The kernel's name in [`Meta::arms`].
    pub arm: String,
    /// One value per boot; entry `i` belongs to pair `i`.
    pub values: Vec<f64>,
}

/// The A/A control of one metric: the base arm's boots compared with second boots of the base arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AaControl {
    /// The second boots of the base arm: one value per boot; entry `i` belongs to pair `i`.
    pub base: Vec<f64>,
    /// Like [`Metric::ratio`], of these against those of [`Metric::base`].
    pub ratio: f64,
    /// Like [`Metric::ci95`].
    pub ci95: Option<[f64; 2]>,
    /// Like [`Metric::p`], adjusted for all A/A controls of the run.
    pub p: f64,
    /// `better` and `worse` mean that the metric differs although the kernels are the same.
    pub verdict: Verdict,
}

impl AaControl {
    /// One that has no values yet.
    pub(crate) fn empty() -> Self {
        Self { base: Vec::new(), ratio: 1.0, ci95: None, p: 1.0, verdict: Verdict::None }
    }
}

impl Results {
    /// Returns the results of these guests, with this version of the lab.
    pub fn new(meta: Meta, runs: Vec<Run>) -> Self {
        Self { format: FORMAT, version: env!("CARGO_PKG_VERSION").to_owned(), meta, runs }
    }

    /// Returns all metrics, each with where it was measured.
    pub fn metrics(&self) -> impl Iterator<Item = (&Run, &Metric)> {
        self.runs.iter().flat_map(|run| run.metrics.iter().map(move |metric| (run, metric)))
    }

    /// Returns the guest of that name of a scenario, if it was booted.
    pub fn run(&self, scenario: &str, guest: &str) -> Option<&Run> {
        self.runs.iter().find(|run| run.scenario == scenario && run.guest == guest)
    }

    /// Returns the names of the scenarios.
    pub fn scenarios(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.runs.iter().map(|run| run.scenario.as_str()).collect();
        names.dedup();
        names
    }

    /// Returns how many metrics have this verdict.
    pub fn count(&self, verdict: Verdict) -> usize {
        self.metrics().filter(|(_, metric)| metric.verdict == verdict).count()
    }

    /// Returns the A/A controls.
    pub fn aa_controls(&self) -> impl Iterator<Item = &AaControl> {
        self.metrics().filter_map(|(_, metric)| metric.aa.as_ref())
    }

    /// Returns of each scenario that says how things develop the first guest that does.
    pub fn pictures(&self) -> impl Iterator<Item = (&Run, &Course)> {
        let all = || self.runs.iter().filter_map(|run| Some((run, run.series.as_ref()?)));
        let is_first = move |run: &Run| {
            all().find(|(other, _)| other.scenario == run.scenario).is_some_and(|(o, _)| o.guest == run.guest)
        };
        all().filter(move |(run, _)| is_first(run))
    }

    /// Returns the names of the control kernels on which any metric was measured.
    pub fn control_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for control in self.metrics().flat_map(|(_, metric)| &metric.controls) {
            if !names.contains(&control.arm.as_str()) {
                names.push(&control.arm);
            }
        }
        names
    }

    /// Whether a metric got worse.
    pub fn anything_worse(&self) -> bool {
        self.count(Verdict::Worse) > 0
    }

    /// Returns the lab's exit code if boots failed and were repeated: 4 if a guest failed, 3 if only QEMU
    /// did; `None` if no boot failed.
    pub fn exit_code(&self) -> Option<u8> {
        self.meta.repeated.iter().map(|repeated| repeated.exit_code).max()
    }

    /// Reads a `results.json`.
    ///
    /// # Errors
    /// When the file cannot be read or does not have this format. The error names file and line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("{}: cannot read the results", path.display()))?;
        Self::parse(path, &text)
    }

    /// Parses the text of the `results.json` at `path`, which errors name.
    ///
    /// # Errors
    /// When it does not have this format. The error names the file, and the line or the version that wrote it.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        /// The part that is the same in all forms but the first, which had none of it.
        #[derive(Deserialize)]
        struct Header {
            format: Option<u32>,
            version: Option<String>,
        }
        // serde_json's own message ends in "at line L column C".
        let bad = || format!("{}: not a results file of the lab", path.display());
        let Header { format, version } = serde_json::from_str(text).with_context(bad)?;
        ensure!(
            format == Some(FORMAT),
            "{}: written by version {} of the lab in an {} form, which this one ({}) does not read; run `lab ab` again",
            path.display(),
            version.as_deref().unwrap_or("0.2.0 or before"),
            if format > Some(FORMAT) { "unknown" } else { "earlier" },
            env!("CARGO_PKG_VERSION")
        );
        serde_json::from_str(text).with_context(bad)
    }

    /// Returns the text of the file: pretty-printed JSON, each array of numbers on one line, final newline.
    ///
    /// # Errors
    /// When it cannot be expressed in JSON.
    pub fn to_json(&self) -> Result<String> {
        let pretty = serde_json::to_string_pretty(self).context("results.json")?;
        Ok(rows_on_one_line(&pretty) + "\n")
    }

    /// Writes the file atomically.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        write_atomically(path, &self.to_json()?)
    }
}

/// Joins the lines of arrays of plain numbers, so that metrics and diffs are short. It is safe on any JSON:
/// strings cannot contain a raw line break, so only arrays match.
fn rows_on_one_line(pretty: &str) -> String {
    let mut out = String::with_capacity(pretty.len());
    let mut rest = pretty;
    while let Some(open) = rest.find("[\n") {
        let (before, array) = rest.split_at(open);
        out.push_str(before);
        match array.find(']') {
            Some(close) if !array[1..close].contains(['[', '{', '"']) => {
                let row: Vec<&str> = array[1..close].split_whitespace().collect();
                out.push('[');
                out.push_str(&row.join(" "));
                out.push(']');
                rest = &array[close + 1..];
            }
            _ => {
                out.push('[');
                rest = &array[1..];
            }
        }
    }
    out + rest
}

/// A small comparison for the tests of table, report and results.
#[cfg(test)]
pub(crate) mod fixture {
    use super::*;

    /// The same, with a control kernel on which one metric was not measured.
    pub(crate) fn results_with_control_kernel() -> Results {
        let mut results = results();
        let arm = ArmMeta { name: "precise <1>".into(), ..results.meta.arms[0].clone() };
        for metric in results.metrics_mut().skip(1) {
            let values = metric.base.iter().map(|v| v * 1000.0).collect();
            metric.controls.push(ControlValues { arm: arm.name.clone(), values });
        }
        results.meta.arms.push(arm);
        results
    }

    /// The same, with boots that failed and were repeated.
    pub(crate) fn results_with_repeated() -> Results {
        let mut results = results();
        let of = |pair, what: &str, exit_code| RepeatedBoot {
            boot: format!("pair {pair}/8, memreap, reap/multi"),
            what: what.into(),
            logs: "boots/x".into(),
            exit_code,
        };
        results.meta.repeated = vec![of(2, "the kernel panicked: <no>", 4), of(3, "QEMU failed: x", 3)];
        results
    }

    impl Results {
        pub(crate) fn metrics_mut(&mut self) -> impl Iterator<Item = &mut Metric> {
            self.runs.iter_mut().flat_map(|run| &mut run.metrics)
        }
    }

    /// Eight pairs and four metrics, one for each verdict; some names need escaping.
    pub(crate) fn results() -> Results {
        let arm = |name: &str, cmdline: &str| ArmMeta {
            name: name.into(),
            cmdline: cmdline.into(),
            bzimage: format!("cache/{name}/bzImage"),
            release: Some("6.12.117".into()),
        };
        let run = |mode: Mode, cpus, metrics| Run {
            scenario: "reap".into(),
            guest: mode.to_string(),
            mode,
            cpus,
            memory_mib: 1536,
            accelerator: "tcg".into(),
            stolen: (mode == Mode::Multi).then_some(0.014),
            metrics,
            series: None,
        };
        let p = 2.0 / 256.0;
        let metric = |metric: &str, unit: &str, [base, changed, again]: [[f64; 8]; 3]| Metric {
            metric: metric.into(),
            unit: unit.into(),
            better: Better::Lower,
            base: base.to_vec(),
            changed: changed.to_vec(),
            ratio: 1.0,
            ci95: None,
            p,
            p_raw: p,
            verdict: Verdict::None,
            controls: Vec::new(),
            aa: Some(AaControl { base: again.to_vec(), ratio: 1.0, ci95: None, p: 1.0, verdict: Verdict::Same }),
        };
        let control = |metric: Metric, ratio: f64, p, verdict| {
            let aa = metric.aa.map(|aa| {
                let ci95 = Some([ratio - 0.06, ratio + 0.06]);
                AaControl { ratio, ci95, p, verdict, ..aa }
            });
            Metric { aa, ..metric }
        };
        let contended = Metric {
            ratio: 140.25,
            ci95: Some([96.5, 310.0]),
            verdict: Verdict::Better,
            ..metric(
                "100-vmas/pte-lock-contended",
                "count",
                [
                    [612.0, 580.0, 655.0, 601.0, 590.0, 633.0, 570.0, 645.0],
                    [5.0, 3.0, 0.0, 8.0, 4.0, 6.0, 5.0, 2.0],
                    [600.0, 610.0, 640.0, 588.0, 602.0, 618.0, 599.0, 630.0],
                ],
            )
        };
        let time = Metric {
            ratio: 1.0318,
            ci95: Some([0.9912, 1.0711]),
            p: 0.6484375,
            p_raw: 0.140625,
            ..metric(
                "100-vmas/mrelease-90",
                "ms",
                [
                    [31.25, 29.5, 30.1, 33.4, 28.75, 30.9, 31.6, 29.9],
                    [29.4, 30.2, 28.8, 31.0, 30.3, 28.1, 29.6, 30.6],
                    [30.2, 30.9, 29.1, 31.7, 30.6, 29.2, 32.0, 30.4],
                ],
            )
        };
        let descending = Metric {
            better: Better::Higher,
            ratio: 0.5133,
            ci95: Some([0.5055, 0.5221]),
            verdict: Verdict::Worse,
            ..metric(
                "1-vma/freed-descending",
                "percent",
                [
                    [98.0, 97.5, 98.2, 97.9, 98.4, 98.1, 97.7, 98.0],
                    [49.0, 52.0, 50.5, 51.0, 48.7, 49.9, 50.2, 51.3],
                    [98.1, 97.6, 98.0, 98.2, 97.8, 98.3, 97.9, 98.1],
                ],
            )
        };
        let each = |first: f64, step: f64| std::array::from_fn(|i| first + step * i as f64);
        let instructions = Metric {
            ratio: 1.00002,
            ci95: Some([1.00001, 1.00003]),
            verdict: Verdict::Same,
            ..metric(
                "1-vma/kill-instructions",
                "instructions",
                [each(48_210_000.0, 9.0), each(48_209_000.0, 7.0), each(48_210_000.0, 8.0)],
            )
        };
        let multi = vec![
            control(contended, 1.001, 0.94, Verdict::Same),
            control(time, 1.004, 0.71, Verdict::None),
            control(descending, 1.0004, 0.97, Verdict::Same),
        ];
        let icount = vec![control(instructions, 1.0, 1.0, Verdict::Same)];
        let meta = Meta {
            kernel: "6.12.117".into(),
            source: Some("linux-source-6.12 6.12.117-1".into()),
            accelerator: "tcg".into(),
            accelerator_reason: Some("KVM: no answer within 5 s".into()),
            pairs: 8,
            date: "2026-11-21T12:00:00Z".into(),
            min_effect: 0.03,
            alpha: 0.05,
            host: Some("2 CPUs, Example <CPU> & Co".into()),
            workload: None,
            command: Some("lab ab reap --pairs 8".into()),
            arms: vec![arm("stock", ""), arm("memreap", "memreap.example=\"1\"")],
            repeated: Vec::new(),
            seed: None,
            partial: false,
        };
        Results::new(meta, vec![run(Mode::Multi, 2, multi), run(Mode::Icount, 1, icount)])
    }

    /// Compares `text` with `testdata/NAME`; writes that file first if the variable BLESS is set.
    pub(crate) fn golden(name: &str, text: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata").join(name);
        if std::env::var_os("BLESS").is_some() {
            write_atomically(&path, text).expect("cannot write the golden file");
        }
        let expected = fs::read_to_string(&path).unwrap_or_default();
        assert!(
            text == expected,
            "{} is not what is printed now; if that is wanted: BLESS=1 cargo test -p lab\n{text}",
            path.display()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_json_and_back() {
        let results = fixture::results();
        let text = results.to_json().unwrap();
        fixture::golden("results.json", &text);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/results.json");
        results.write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        assert_eq!(Results::read(&path).unwrap(), results);
    }

    #[test]
    fn failed_boots_decide_the_exit_code() {
        let mut results = fixture::results_with_repeated();
        assert_eq!(results.exit_code(), Some(4));
        results.meta.repeated.remove(0);
        assert_eq!(results.exit_code(), Some(3));
        assert_eq!(fixture::results().exit_code(), None);
    }

    #[test]
    fn a_file_of_another_form_says_who_wrote_it() {
        let error = |text: &str| Results::parse(Path::new("x.json"), text).unwrap_err().to_string();
        let old = error("{\"meta\": {\"kernel\": \"6.12\"}, \"metrics\": []}");
        assert!(old.contains("x.json: written by version 0.2.0 or before of the lab in an earlier form"), "{old}");
        let new = error("{\"format\": 3, \"version\": \"7.0.0\", \"meta\": 1}");
        assert!(new.contains("written by version 7.0.0 of the lab in an unknown form"), "{new}");
    }

    #[test]
    fn a_name_has_a_case_or_none() {
        let mut metric = fixture::results().runs[0].metrics[0].clone();
        assert_eq!((metric.case(), metric.short_name()), ("100-vmas", "pte-lock-contended"));
        metric.metric = "camera-ms".into();
        assert_eq!((metric.case(), metric.short_name()), ("", "camera-ms"));
    }

    #[test]
    fn errors_name_file_and_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.json");
        let missing = format!("{:#}", Results::read(&path).unwrap_err());
        assert!(missing.contains("results.json"), "{missing}");
        fs::write(&path, "{\n  \"format\": 2,\n  \"version\": \"0.2.0\", \"meta\": 3\n}").unwrap();
        let wrong = format!("{:#}", Results::read(&path).unwrap_err());
        assert!(wrong.contains("results.json") && wrong.contains("line 3"), "{wrong}");
    }

    #[test]
    fn only_rows_of_numbers_are_joined() {
        let value = serde_json::json!({"a": [1, 2.5], "b": [], "c": ["[\n1", 2], "d": [{"e": [3]}]});
        let text = rows_on_one_line(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.contains("[1, 2.5]") && text.contains("[3]"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
