// SPDX-License-Identifier: GPL-2.0-only
//! Collects the samples of all boots and passes them to the statistics.

use std::process::Command;

use anyhow::Result;
use scenarios::{Guest, Mode, Scenario};

use crate::ab::experiment::order::Role;
use crate::ab::results::{AaControl, ControlValues, Course, Meta, Metric, Results, Run, Verdict};
use crate::ab::stats::{self, Comparison, Pairs, Rules};
use crate::host;
use protocol::results::{Sample, Series};

/// Returns a guest in which nothing was measured yet. `accelerator` is that of `multi`.
pub(super) fn empty(scenario: &Scenario, guest: &Guest, accelerator: &str) -> Run {
    let accelerator = if guest.mode == Mode::Multi { accelerator } else { "tcg" };
    Run {
        scenario: scenario.name.to_owned(),
        guest: guest.name.to_owned(),
        mode: guest.mode,
        cpus: guest.cpus,
        memory_mib: guest.mem_mib,
        accelerator: accelerator.to_owned(),
        stolen: None,
        metrics: Vec::new(),
        series: None,
    }
}

/// Returns a metric that has no values yet, like this sample. `controls` are the names of the control kernels.
fn metric(like: &Sample, controls: &[String]) -> Metric {
    Metric {
        metric: like.metric.clone(),
        unit: like.unit.clone(),
        better: like.better,
        base: Vec::new(),
        changed: Vec::new(),
        ratio: 1.0,
        ci95: None,
        p: 1.0,
        p_raw: 1.0,
        verdict: Verdict::None,
        controls: controls.iter().map(|arm| ControlValues { arm: arm.clone(), values: Vec::new() }).collect(),
        aa: None,
    }
}

/// Adds the samples of one boot. In `role`, the index of a control kernel is that of `controls`, their names.
///
/// # Errors
/// Returns what is wrong with the samples.
pub(super) fn add(run: &mut Run, controls: &[String], role: Role, samples: &[Sample]) -> Result<(), String> {
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
    if run.metrics.is_empty() {
        run.metrics = samples.iter().map(|like| metric(like, controls)).collect();
    }
    if let Some(extra) = samples.iter().find(|s| run.metrics.iter().all(|m| m.metric != s.metric)) {
        return Err(format!("metric '{}' is new: earlier boots do not have it", extra.metric));
    }
    for metric in &mut run.metrics {
        let Some(sample) = samples.iter().find(|s| s.metric == metric.metric) else {
            return Err(format!("metric '{}' is missing", metric.metric));
        };
        if (&sample.unit, sample.better) != (&metric.unit, metric.better) {
            return Err(format!(
                "metric '{}' is in '{}' ({} is better), in earlier boots in '{}' ({})",
                metric.metric, sample.unit, sample.better, metric.unit, metric.better
            ));
        }
        let values = match role {
            Role::Base => &mut metric.base,
            Role::Changed => &mut metric.changed,
            Role::BaseAgain => &mut metric.aa.get_or_insert_with(AaControl::empty).base,
            Role::ControlKernel(i) => &mut metric.controls[i].values,
        };
        values.push(sample.value);
    }
    Ok(())
}

/// Keeps how things developed, of the first boot of each arm.
pub(super) fn keep_first(run: &mut Run, role: Role, series: Vec<Series>) {
    let course = run.series.get_or_insert_with(Course::default);
    let kept = match role {
        Role::Base => &mut course.base,
        Role::Changed => &mut course.changed,
        Role::BaseAgain | Role::ControlKernel(_) => return,
    };
    if kept.is_empty() {
        *kept = series;
    }
}

/// Computes the results of all guests. Those of a partial run have different numbers of pairs, so each
/// is compared separately and there are no verdicts.
///
/// # Errors
/// When the statistics reject the values.
pub(super) fn conclude(meta: &Meta, runs: &[Run], rules: Rules, partial: bool) -> Result<Results> {
    let mut runs = runs.to_vec();
    let families: Vec<&mut [Run]> = if partial { runs.chunks_mut(1).collect() } else { vec![runs.as_mut_slice()] };
    for family in families {
        let main = compare(family, rules, |m| &m.changed)?;
        let has_control = family.iter().flat_map(|run| &run.metrics).any(|m| m.aa.is_some());
        let control = has_control
            .then(|| compare(family, rules, |m| m.aa.as_ref().map_or(&[], |aa| aa.base.as_slice())))
            .transpose()?;
        for (i, metric) in family.iter_mut().flat_map(|run| &mut run.metrics).enumerate() {
            let (main, control) = (&main[i], control.as_ref().map(|all| &all[i]));
            metric.verdict = if partial { Verdict::None } else { main.checked_by(control) };
            (metric.ratio, metric.ci95, metric.p, metric.p_raw) = (main.ratio, main.ci95, main.p, main.p_raw);
            if let Some((aa, control)) = metric.aa.as_mut().zip(control) {
                (aa.ratio, aa.ci95, aa.p, aa.verdict) = (control.ratio, control.ci95, control.p, control.verdict);
            }
        }
    }
    for run in &mut runs {
        run.series = run.series.take().filter(|course| !course.base.is_empty() && !course.changed.is_empty());
    }
    let base = meta.arms.first().and_then(|arm| arm.release.clone());
    let kernel = base.unwrap_or_else(|| "of unknown release".to_owned());
    Ok(Results::new(Meta { kernel, date: utc_now()?, partial, ..meta.clone() }, runs))
}

fn compare(runs: &[Run], rules: Rules, other: impl Fn(&Metric) -> &[f64]) -> Result<Vec<Comparison>> {
    let metrics = runs.iter().flat_map(|run| &run.metrics);
    let pairs: Vec<Pairs<'_>> = metrics.map(|m| Pairs { base: &m.base, changed: other(m), better: m.better }).collect();
    stats::compare(&pairs, rules)
}

/// Returns the time in RFC 3339, in seconds.
fn utc_now() -> Result<String> {
    Ok(host::output(Command::new("date").args(["-u", "+%FT%TZ"]))?.trim().to_owned())
}
