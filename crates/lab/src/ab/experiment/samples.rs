// SPDX-License-Identifier: GPL-2.0-only
//! Collects the samples of all boots and passes them to the statistics.

use std::process::Command;

use anyhow::Result;

use scenarios::{Guest, Scenario};

use crate::ab::catalog::cpus_in_name;
use crate::ab::experiment::order::Role;
use crate::ab::results::{AaControl, ControlValues, Meta, Metric, Picture, Results};
use crate::ab::stats::{self, Comparison, Pairs, Rules};
use crate::ab::verdict::Verdict;
use crate::host;
use protocol::results::{Sample, Series};

/// The samples of one run of a scenario.
pub(super) struct Group {
    scenario: String,
    mode: String,
    cpus: Option<u32>,
    /// The names of the control kernels.
    controls: Vec<String>,
    metrics: Vec<MetricValues>,
    /// How things developed in the first boot of the base and of the changed arm.
    series: [Vec<Series>; 2],
}

/// The values of one metric so far. The arrays are indexed by pair.
struct MetricValues {
    /// The sample of the first boot. All others must have the same name, unit and direction.
    like: Sample,
    base: Vec<f64>,
    changed: Vec<f64>,
    base_again: Vec<f64>,
    /// The control kernels, in the order of [`Group::controls`].
    controls: Vec<Vec<f64>>,
}

impl Group {
    pub(super) fn new(scenario: &Scenario, run: &Guest, controls: impl Iterator<Item = String>) -> Self {
        Self {
            scenario: scenario.name.to_owned(),
            mode: run.mode.to_string(),
            cpus: cpus_in_name(run),
            controls: controls.collect(),
            metrics: Vec::new(),
            series: Default::default(),
        }
    }

    /// Returns the groups of a comparison that has ended.
    pub(super) fn of_results(results: &Results) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for metric in &results.metrics {
            let mode = metric.mode.clone().unwrap_or_default();
            let is_last = groups.last().is_some_and(|group| {
                (&group.scenario, &group.mode, group.cpus) == (&metric.scenario, &mode, metric.cpus)
            });
            if !is_last {
                groups.push(Self {
                    scenario: metric.scenario.clone(),
                    mode,
                    cpus: metric.cpus,
                    controls: metric.beside.iter().map(|control| control.arm.clone()).collect(),
                    metrics: Vec::new(),
                    series: (results.pictures.iter())
                        .find(|picture| picture.is_of(metric))
                        .map(|p| [p.stock.clone(), p.memreap.clone()])
                        .unwrap_or_default(),
                });
            }
            let values = MetricValues {
                like: Sample {
                    metric: metric.metric.clone(),
                    unit: metric.unit.clone(),
                    better: metric.better,
                    value: 0.0,
                },
                base: metric.stock.clone(),
                changed: metric.memreap.clone(),
                base_again: metric.aa.as_ref().map(|aa| aa.stock2.clone()).unwrap_or_default(),
                controls: metric.beside.iter().map(|control| control.values.clone()).collect(),
            };
            if let Some(group) = groups.last_mut() {
                group.metrics.push(values);
            }
        }
        groups
    }

    /// Adds the pairs of another part of the same comparison.
    ///
    /// # Errors
    /// Returns what differs.
    pub(super) fn append(&mut self, more: Self) -> Result<(), String> {
        let of = |group: &Self| {
            let metrics: Vec<_> =
                group.metrics.iter().map(|m| (m.like.clone(), m.base_again.is_empty())).collect();
            (group.scenario.clone(), group.mode.clone(), group.cpus, group.controls.clone(), metrics)
        };
        if of(self) != of(&more) {
            return Err(format!(
                "other metrics, units or control kernels in {}/{}",
                more.scenario, more.mode
            ));
        }
        for (values, more) in self.metrics.iter_mut().zip(more.metrics) {
            values.base.extend(more.base);
            values.changed.extend(more.changed);
            values.base_again.extend(more.base_again);
            for (control, more) in values.controls.iter_mut().zip(more.controls) {
                control.extend(more);
            }
        }
        Ok(())
    }

    /// Adds the samples of one boot. In `role`, the index of a control kernel is that of
    /// [`Group::controls`].
    ///
    /// # Errors
    /// Returns what is wrong with the samples.
    pub(super) fn take(&mut self, role: Role, samples: &[Sample]) -> Result<(), String> {
        if samples.is_empty() {
            return Err("the guest succeeded but delivered no metric".to_owned());
        }
        for (i, sample) in samples.iter().enumerate() {
            let name = &sample.metric;
            if samples[..i].iter().any(|other| other.metric == *name) {
                return Err(format!("metric '{name}' came more than once in one boot"));
            }
            if !sample.value.is_finite() || sample.value < 0.0 {
                return Err(format!("metric '{name}' has the value {}", sample.value));
            }
        }
        if self.metrics.is_empty() {
            self.metrics = samples
                .iter()
                .map(|like| MetricValues {
                    like: like.clone(),
                    base: Vec::new(),
                    changed: Vec::new(),
                    base_again: Vec::new(),
                    controls: vec![Vec::new(); self.controls.len()],
                })
                .collect();
        }
        if let Some(extra) = samples.iter().find(|s| self.metrics.iter().all(|m| m.like.metric != s.metric)) {
            return Err(format!("metric '{}' is new: earlier boots do not have it", extra.metric));
        }
        for metric in &mut self.metrics {
            let like = &metric.like;
            let Some(sample) = samples.iter().find(|s| s.metric == like.metric) else {
                return Err(format!("metric '{}' is missing", like.metric));
            };
            if (&sample.unit, sample.better) != (&like.unit, like.better) {
                return Err(format!(
                    "metric '{}' is in '{}' ({} is better), in earlier boots in '{}' ({})",
                    like.metric, sample.unit, sample.better, like.unit, like.better
                ));
            }
            let values = match role {
                Role::Base => &mut metric.base,
                Role::Changed => &mut metric.changed,
                Role::BaseAgain => &mut metric.base_again,
                Role::ControlKernel(i) => &mut metric.controls[i],
            };
            values.push(sample.value);
        }
        Ok(())
    }

    /// Keeps how things developed, of the first boot of each arm.
    pub(super) fn keep_first(&mut self, role: Role, series: Vec<Series>) {
        let kept = match role {
            Role::Base => &mut self.series[0],
            Role::Changed => &mut self.series[1],
            Role::BaseAgain | Role::ControlKernel(_) => return,
        };
        if kept.is_empty() {
            *kept = series;
        }
    }

    fn picture(&self) -> Option<Picture> {
        let [stock, memreap] = self.series.clone();
        let (scenario, mode, cpus) = (self.scenario.clone(), self.mode.clone(), self.cpus);
        (!stock.is_empty() && !memreap.is_empty()).then_some(Picture { scenario, mode, cpus, stock, memreap })
    }
}

/// Computes the results of all groups. The groups of a partial run have different numbers of pairs, so each
/// is compared separately and there are no verdicts.
///
/// # Errors
/// When the statistics reject the values.
pub(super) fn conclude(meta: &Meta, groups: &[Group], rules: Rules, partial: bool) -> Result<Results> {
    let families: Vec<&[Group]> = if partial { groups.chunks(1).collect() } else { vec![groups] };
    let mut metrics = Vec::new();
    for family in families {
        let collected: Vec<(&Group, &MetricValues)> =
            family.iter().flat_map(|g| g.metrics.iter().map(move |m| (g, m))).collect();
        let main = compare(&collected, rules, |m| &m.changed)?;
        let has_control = collected.iter().any(|(_, m)| !m.base_again.is_empty());
        let control = match has_control {
            true => compare(&collected, rules, |m| &m.base_again)?.into_iter().map(Some).collect(),
            false => vec![None; main.len()],
        };
        for (((group, m), main), control) in collected.into_iter().zip(main).zip(control) {
            let mut metric = metric(group, m, &main, control.as_ref());
            if partial {
                metric.verdict = Verdict::None;
            }
            metrics.push(metric);
        }
    }
    let base = meta.arms.first().and_then(|arm| arm.release.clone());
    let kernel = base.unwrap_or_else(|| "of unknown release".to_owned());
    let meta = Meta { kernel, date: utc_now()?, partial, ..meta.clone() };
    Ok(Results { meta, metrics, pictures: groups.iter().filter_map(Group::picture).collect() })
}

fn compare(
    collected: &[(&Group, &MetricValues)],
    rules: Rules,
    other: impl Fn(&MetricValues) -> &[f64],
) -> Result<Vec<Comparison>> {
    let pairs: Vec<Pairs<'_>> = collected
        .iter()
        .map(|(_, m)| Pairs { base: &m.base, changed: other(m), better: m.like.better })
        .collect();
    Ok(stats::compare(&pairs, rules)?)
}

fn metric(group: &Group, m: &MetricValues, main: &Comparison, aa: Option<&Comparison>) -> Metric {
    Metric {
        scenario: group.scenario.clone(),
        metric: m.like.metric.clone(),
        mode: Some(group.mode.clone()),
        cpus: group.cpus,
        unit: m.like.unit.clone(),
        better: m.like.better,
        stock: m.base.clone(),
        memreap: m.changed.clone(),
        ratio: main.ratio,
        ci95: main.ci95,
        p: main.p,
        p_raw: Some(main.p_raw),
        beside: group
            .controls
            .iter()
            .zip(&m.controls)
            .map(|(arm, values)| ControlValues { arm: arm.clone(), values: values.clone() })
            .collect(),
        verdict: main.checked_by(aa),
        aa: aa.map(|aa| AaControl {
            stock2: m.base_again.clone(),
            ratio: aa.ratio,
            ci95: aa.ci95,
            p: aa.p,
            verdict: aa.verdict,
        }),
    }
}

/// Returns the time in RFC 3339, in seconds.
fn utc_now() -> Result<String> {
    Ok(host::output(Command::new("date").args(["-u", "+%FT%TZ"]))?.trim().to_owned())
}
