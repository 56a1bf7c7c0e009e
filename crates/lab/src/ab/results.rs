// SPDX-License-Identifier: GPL-2.0-only
//! The types of `results.json`: the values and verdicts of one comparison. The format is stable.
//!
//! The fields `stock` and `memreap` are the base and the changed arm, whatever arms are compared;
//! [`Meta::arms`] has the arms' names and kernel parameters. `beside` has the values of the control kernels.
//! Optional fields are left out of the file if they are empty.

use std::fmt;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use protocol::results::{Better, Series};

use crate::ab::stats::median;
use crate::ab::verdict::Verdict;
use crate::format;
use crate::host::write_atomically;

/// The results of one run of `lab ab`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// The conditions of the run.
    pub meta: Meta,
    /// One entry per scenario, guest and metric, in the order in which they were measured.
    pub metrics: Vec<Metric>,
    /// One entry per scenario and guest that says how things develop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<Picture>,
}

/// How things developed in the first boot of each arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Picture {
    /// The scenario's name.
    pub scenario: String,
    /// `multi` or `icount`.
    pub mode: String,
    /// As in [`Metric`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The base arm.
    pub stock: Vec<Series>,
    /// The changed arm.
    pub memreap: Vec<Series>,
}

impl Picture {
    /// Whether a metric is of the same scenario and guest.
    #[must_use]
    pub fn is_of(&self, metric: &Metric) -> bool {
        (self.scenario == metric.scenario && self.cpus == metric.cpus)
            && metric.mode.as_ref() == Some(&self.mode)
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
    /// The largest number of virtual CPUs of any guest.
    pub cpus: u32,
    /// The largest memory of any guest, in MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_mib: Option<u32>,
    /// Pairs per scenario and guest; a pair is one boot of each arm, back to back.
    pub pairs: usize,
    /// The end of the run: UTC, RFC 3339, in seconds.
    pub date: String,
    /// The smallest effect that counts, as a fraction: 0.03 is 3 %.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_effect: Option<f64>,
    /// The family-wise error rate of the verdicts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
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
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub arms: Vec<ArmMeta>,
    /// The guests, by scenario.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<RunMeta>,
    /// Boots that failed and were repeated. The results are complete and only from boots that succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repeated: Vec<RepeatedBoot>,
    /// The seed by which the order of the boots was drawn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Which part of a comparison that runs on several machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Whether the run was interrupted: fewer pairs than planned, no verdicts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

impl Meta {
    /// Returns the base arm's name.
    #[must_use]
    pub fn base(&self) -> &str {
        self.arms.first().map_or("stock", |arm| &arm.name)
    }

    /// Returns the changed arm's name.
    #[must_use]
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

/// A part of a comparison: consecutive pairs of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    /// Which one, from 1 on.
    pub number: usize,
    /// How many there are.
    pub of: usize,
}

impl Shard {
    /// Returns which of `pairs` pairs it has.
    #[must_use]
    pub fn pairs(self, pairs: usize) -> Range<usize> {
        (self.number - 1) * pairs / self.of..self.number * pairs / self.of
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let (number, of) = text.split_once('/')?;
            let shard = Self { number: number.parse().ok()?, of: of.parse().ok()? };
            (1..=shard.of).contains(&shard.number).then_some(shard)
        };
        read().ok_or_else(|| format!("expected K/N with K from 1 to N, found '{text}'"))
    }
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

/// One guest of a scenario.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunMeta {
    /// The scenario's name.
    pub scenario: String,
    /// `multi` or `icount`.
    pub mode: String,
    /// Virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The accelerator, which for `icount` is always `tcg`.
    pub accelerator: String,
    /// Of `multi`, the largest share of the host's CPU time that was stolen in ten seconds of any boot, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stolen: Option<f64>,
}

/// One metric of one scenario in one of its guests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// The scenario's name.
    pub scenario: String,
    /// The metric's name, which begins with its case: `100-vmas/pte-lock-contended`.
    pub metric: String,
    /// `multi` (real concurrency, times) or `icount` (one CPU, instructions).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// The guest's virtual CPUs, if the scenario has several guests of this mode.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<u32>,
    /// The unit of all values.
    pub unit: String,
    /// Which direction is an improvement.
    pub better: Better,
    /// The base arm: one value per boot; entry `i` belongs to pair `i`.
    pub stock: Vec<f64>,
    /// The changed arm: one value per boot; entry `i` belongs to pair `i`.
    pub memreap: Vec<f64>,
    /// The ratio of the arms, oriented so that above 1 is an improvement.
    pub ratio: f64,
    /// The ratio's 95 % interval; `null` with fewer than six pairs.
    pub ci95: Option<[f64; 2]>,
    /// The p-value, adjusted for all metrics of the run (step-down max-T).
    pub p: f64,
    /// The unadjusted p-value of this metric alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p_raw: Option<f64>,
    /// The verdict.
    pub verdict: Verdict,
    /// The values of the scenario's control kernels. They do not affect the fields above.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<ControlValues>,
    /// The A/A control: the base arm compared with itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aa: Option<AaControl>,
}

impl Metric {
    /// Whether the metric was measured in a guest of this kind.
    #[must_use]
    pub fn is_of(&self, run: &RunMeta) -> bool {
        self.scenario == run.scenario
            && self.mode.as_ref() == Some(&run.mode)
            && self.cpus.is_none_or(|cpus| cpus == run.cpus)
    }

    /// Returns the part of the name before the first `/`; empty if there is none.
    #[must_use]
    pub fn case(&self) -> &str {
        self.metric.split_once('/').map_or("", |(case, _)| case)
    }

    /// Returns the median of the base arm's values.
    #[must_use]
    pub fn base_median(&self) -> f64 {
        median(&self.stock)
    }

    /// Returns the median of the changed arm's values.
    #[must_use]
    pub fn changed_median(&self) -> f64 {
        median(&self.memreap)
    }

    /// Returns the median on a control kernel; `None` if the metric was not measured there.
    #[must_use]
    pub fn control_median(&self, arm: &str) -> Option<f64> {
        self.median_on(ArmRole::Control(arm))
    }

    /// Returns the values on an arm; none if the metric was not measured there.
    #[must_use]
    pub fn values_on(&self, arm: ArmRole<'_>) -> &[f64] {
        match arm {
            ArmRole::Base => &self.stock,
            ArmRole::Changed => &self.memreap,
            ArmRole::Control(name) => {
                self.beside.iter().find(|b| b.arm == name).map_or(&[], |b| b.values.as_slice())
            }
        }
    }

    /// Returns the median on an arm; `None` if the metric was not measured there.
    #[must_use]
    pub fn median_on(&self, arm: ArmRole<'_>) -> Option<f64> {
        let values = self.values_on(arm);
        (!values.is_empty()).then(|| median(values))
    }

    /// Returns the name without its case.
    #[must_use]
    pub fn short_name(&self) -> &str {
        self.metric.split_once('/').map_or(&self.metric, |(_, name)| name)
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
    pub stock2: Vec<f64>,
    /// Like [`Metric::ratio`], of `stock2` against `stock`.
    pub ratio: f64,
    /// Like [`Metric::ci95`].
    #[serde(default)]
    pub ci95: Option<[f64; 2]>,
    /// Like [`Metric::p`], adjusted for all A/A controls of the run.
    pub p: f64,
    /// `better` and `worse` mean that the metric differs although the kernels are the same.
    pub verdict: Verdict,
}

impl Results {
    /// Returns a picture of each scenario that has any, that of its first guest.
    pub fn first_pictures(&self) -> impl Iterator<Item = &Picture> {
        let is_first = |i: usize, scenario: &str| self.pictures[..i].iter().all(|p| p.scenario != scenario);
        self.pictures.iter().enumerate().filter(move |(i, p)| is_first(*i, &p.scenario)).map(|(_, p)| p)
    }

    /// Returns the names of the control kernels on which any metric was measured.
    #[must_use]
    pub fn control_names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for control in self.metrics.iter().flat_map(|m| &m.beside) {
            if !names.contains(&control.arm.as_str()) {
                names.push(&control.arm);
            }
        }
        names
    }

    /// Whether a metric got worse.
    #[must_use]
    pub fn anything_worse(&self) -> bool {
        self.metrics.iter().any(|metric| metric.verdict == Verdict::Worse)
    }

    /// Returns the lab's exit code if boots failed and were repeated: 4 if a guest failed, 3 if only QEMU
    /// did; `None` if no boot failed.
    #[must_use]
    pub fn exit_code(&self) -> Option<u8> {
        self.meta.repeated.iter().map(|repeated| repeated.exit_code).max()
    }

    /// Reads a `results.json`.
    ///
    /// # Errors
    /// When the file cannot be read or does not have this format. The error names file and line.
    pub fn read(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path)
            .with_context(|| format!("{}: cannot read the results", path.display()))?;
        Self::parse(path, &text)
    }

    /// Parses the text of the `results.json` at `path`, which errors name.
    ///
    /// # Errors
    /// When it does not have this format. The error names file and line.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        // serde_json's own message ends in "at line L column C".
        serde_json::from_str(text).with_context(|| {
            format!("{}: not a results file of this version of the lab; run `lab ab` again", path.display())
        })
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
        for metric in results.metrics.iter_mut().skip(1) {
            let values = metric.stock.iter().map(|v| v * 1000.0).collect();
            metric.beside.push(ControlValues { arm: arm.name.clone(), values });
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

    /// Eight pairs and four metrics, one for each verdict; some names need escaping.
    pub(crate) fn results() -> Results {
        let arm = |name: &str, cmdline: &str| ArmMeta {
            name: name.into(),
            cmdline: cmdline.into(),
            bzimage: format!("cache/{name}/bzImage"),
            release: Some("6.12.117".into()),
        };
        let run = |mode: &str, cpus| RunMeta {
            scenario: "reap".into(),
            mode: mode.into(),
            cpus,
            memory_mib: 1536,
            accelerator: "tcg".into(),
            stolen: (mode == "multi").then_some(0.014),
        };
        let control = |stock2, ratio, p, verdict| {
            Some(AaControl { stock2, ratio, ci95: Some([ratio - 0.06, ratio + 0.06]), p, verdict })
        };
        Results {
            meta: Meta {
                kernel: "6.12.117".into(),
                source: Some("linux-source-6.12 6.12.117-1".into()),
                accelerator: "tcg".into(),
                accelerator_reason: Some("KVM: no answer within 5 s".into()),
                cpus: 2,
                memory_mib: Some(1536),
                pairs: 8,
                date: "2026-11-21T12:00:00Z".into(),
                min_effect: Some(0.03),
                alpha: Some(0.05),
                host: Some("2 CPUs, Example <CPU> & Co".into()),
                workload: None,
                command: Some("lab ab reap --pairs 8".into()),
                arms: vec![arm("stock", ""), arm("memreap", "memreap.example=\"1\"")],
                runs: vec![run("multi", 2), run("icount", 1)],
                repeated: Vec::new(),
                seed: None,
                shard: None,
                partial: false,
            },
            metrics: vec![
                Metric {
                    scenario: "reap".into(),
                    metric: "100-vmas/pte-lock-contended".into(),
                    mode: Some("multi".into()),
                    cpus: None,
                    unit: "count".into(),
                    better: Better::Lower,
                    stock: vec![612.0, 580.0, 655.0, 601.0, 590.0, 633.0, 570.0, 645.0],
                    memreap: vec![5.0, 3.0, 0.0, 8.0, 4.0, 6.0, 5.0, 2.0],
                    ratio: 140.25,
                    ci95: Some([96.5, 310.0]),
                    p: 2.0 / 256.0,
                    p_raw: Some(2.0 / 256.0),
                    verdict: Verdict::Better,
                    beside: Vec::new(),
                    aa: control(
                        vec![600.0, 610.0, 640.0, 588.0, 602.0, 618.0, 599.0, 630.0],
                        1.001,
                        0.94,
                        Verdict::Same,
                    ),
                },
                Metric {
                    scenario: "reap".into(),
                    metric: "100-vmas/mrelease-90".into(),
                    mode: Some("multi".into()),
                    cpus: None,
                    unit: "ms".into(),
                    better: Better::Lower,
                    stock: vec![31.25, 29.5, 30.1, 33.4, 28.75, 30.9, 31.6, 29.9],
                    memreap: vec![29.4, 30.2, 28.8, 31.0, 30.3, 28.1, 29.6, 30.6],
                    ratio: 1.0318,
                    ci95: Some([0.9912, 1.0711]),
                    p: 0.6484375,
                    p_raw: Some(0.140625),
                    verdict: Verdict::None,
                    beside: Vec::new(),
                    aa: control(
                        vec![30.2, 30.9, 29.1, 31.7, 30.6, 29.2, 32.0, 30.4],
                        1.004,
                        0.71,
                        Verdict::None,
                    ),
                },
                Metric {
                    scenario: "reap".into(),
                    metric: "1-vma/freed-descending".into(),
                    mode: Some("multi".into()),
                    cpus: None,
                    unit: "percent".into(),
                    better: Better::Higher,
                    stock: vec![98.0, 97.5, 98.2, 97.9, 98.4, 98.1, 97.7, 98.0],
                    memreap: vec![49.0, 52.0, 50.5, 51.0, 48.7, 49.9, 50.2, 51.3],
                    ratio: 0.5133,
                    ci95: Some([0.5055, 0.5221]),
                    p: 2.0 / 256.0,
                    p_raw: Some(2.0 / 256.0),
                    verdict: Verdict::Worse,
                    beside: Vec::new(),
                    aa: control(
                        vec![98.1, 97.6, 98.0, 98.2, 97.8, 98.3, 97.9, 98.1],
                        1.0004,
                        0.97,
                        Verdict::Same,
                    ),
                },
                Metric {
                    scenario: "reap".into(),
                    metric: "1-vma/kill-instructions".into(),
                    mode: Some("icount".into()),
                    cpus: None,
                    unit: "instructions".into(),
                    better: Better::Lower,
                    stock: (0..8).map(|i| 48_210_000.0 + 9.0 * f64::from(i)).collect(),
                    memreap: (0..8).map(|i| 48_209_000.0 + 7.0 * f64::from(i)).collect(),
                    ratio: 1.00002,
                    ci95: Some([1.00001, 1.00003]),
                    p: 2.0 / 256.0,
                    p_raw: Some(2.0 / 256.0),
                    verdict: Verdict::Same,
                    beside: Vec::new(),
                    aa: control(
                        (0..8).map(|i| 48_210_000.0 + 8.0 * f64::from(i)).collect(),
                        1.0,
                        1.0,
                        Verdict::Same,
                    ),
                },
            ],
            pictures: Vec::new(),
        }
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
    #![allow(clippy::unwrap_used)]

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
    fn required_fields_are_enough() {
        let least = r#"{"meta": {"kernel": "6.12", "accelerator": "kvm", "cpus": 2, "pairs": 1,
            "date": "2026-01-01T00:00:00Z"}, "metrics": [{"scenario": "s", "metric": "c/m",
            "unit": "ms", "better": "higher", "stock": [1], "memreap": [2], "ratio": 2.0,
            "ci95": null, "p": 1.0, "verdict": "no verdict"}]}"#;
        let results: Results = serde_json::from_str(least).unwrap();
        assert_eq!((results.meta.base(), results.meta.changed()), ("stock", "memreap"));
        let metric = &results.metrics[0];
        assert_eq!((metric.case(), metric.short_name()), ("c", "m"));
        assert_eq!((metric.verdict, metric.ci95), (Verdict::None, None));
    }

    #[test]
    fn errors_name_file_and_place() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("results.json");
        let missing = format!("{:#}", Results::read(&path).unwrap_err());
        assert!(missing.contains("results.json"), "{missing}");
        fs::write(&path, "{\n  \"meta\": 3\n}").unwrap();
        let wrong = format!("{:#}", Results::read(&path).unwrap_err());
        assert!(wrong.contains("results.json") && wrong.contains("line 2"), "{wrong}");
    }

    #[test]
    fn only_rows_of_numbers_are_joined() {
        let value = serde_json::json!({"a": [1, 2.5], "b": [], "c": ["[\n1", 2], "d": [{"e": [3]}]});
        let text = rows_on_one_line(&serde_json::to_string_pretty(&value).unwrap());
        assert!(text.contains("[1, 2.5]") && text.contains("[3]"), "{text}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&text).unwrap(), value);
    }
}
