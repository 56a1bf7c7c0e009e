// SPDX-License-Identifier: GPL-2.0-only
//! `lab faceoff --replay`: what the governor of memreap's daemon, its own code, would have decided in runs that were
//! recorded, until their first kill. With `--ablate`, what each of its numbers is for.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flate2::read::MultiGzDecoder;
use fs_err as fs;
use memreap::config::{Act, Level};
use memreap::daemon::decide::governor::{Governor, Thresholds};
use memreap::daemon::decide::replay::first_kill;
use memreap::daemon::decide::sample::Sample;
use memreap::daemon::decide::simulation;
use serde::Serialize;

use super::cell::CellName;
use super::contestant::WATERMARK_SUFFIX;
use super::record::Run;
use super::tables::{Cell, Table};
use super::terminal::drawn;
use crate::ab::stats::median;
use crate::format::number;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// By so much each number is multiplied: without it, half, twice, without end.
const FACTORS: [f64; 4] = [0.0, 0.5, 2.0, f64::INFINITY];
/// By how much later than it could the kernel reports pressure, so that samples come at other moments: each run counts
/// once for each.
const LAGS_MS: [u64; 4] = [0, 50, 100, 150];
/// A frame that is later than this is a stall.
const STALL_MS: f64 = 50.0;
/// When so much more memory is available than at the first signal, the victim's is coming back.
const BACK_KIB: u64 = 100 << 10;
/// A decision that moves by less is the same one: a sample.
const SAME_S: f64 = 0.06;

/// What the governor would have done in a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Replay {
    pub contestant: String,
    /// The load and the machine.
    pub cell: CellName,
    pub seed: u64,
    /// Whether nobody has to die.
    pub fits: bool,
    /// When the first signal was sent in the run, in seconds since the start of the load.
    pub recorded_s: Option<f64>,
    /// Up to when it is known what happened without a kill, in seconds.
    pub until_s: f64,
    /// The longest time between two samples of the last second before that, in seconds.
    pub interval_s: f64,
    /// What it lacks that the governor's samples have.
    pub lacks: &'static str,
    /// The kill, if there would have been one.
    pub kill: Option<Kill>,
    /// For how long the foreground stalled in the run itself, in seconds: before the first signal, from there until
    /// 100 MiB were back, and after that. `None` if that was not recorded.
    pub stalled_s: Option<[f64; 3]>,
}

/// A kill that the governor advises.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kill {
    /// When, in seconds since the start of the load.
    pub at_s: f64,
    /// Why, as in the daemon's journal.
    pub reason: &'static str,
    /// Available memory and free swap, in MiB.
    pub usable_mib: f64,
    /// The numbers behind it.
    pub because: String,
}

/// Reads the runs that have samples from files of `lab faceoff`.
///
/// # Errors
/// When a file cannot be read, or no run has samples.
pub fn read(files: &[PathBuf]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for file in files {
        let (_, more) = text(file).and_then(|text| super::read(&text)).with_context(|| file.display().to_string())?;
        // What the governor decides by is a share of all memory.
        let has_samples = |run: &Run| run.result.is_some() && run.samples.iter().all(|s| s.total > 0);
        runs.extend(more.into_iter().filter(|run| !run.samples.is_empty() && has_samples(run)));
    }
    ensure!(!runs.is_empty(), "no run has samples with all that the governor needs; lab faceoff records them");
    Ok(runs)
}

/// Reads a text file, compressed by gzip or not.
fn text(file: &Path) -> Result<String> {
    if file.extension().is_none_or(|end| end != "gz") {
        return Ok(fs::read_to_string(file)?);
    }
    let mut text = String::new();
    MultiGzDecoder::new(fs::File::open(file)?).read_to_string(&mut text)?;
    Ok(text)
}

/// Returns what the governor would have done in each of these runs.
pub fn all(runs: &[Run]) -> Vec<Replay> {
    runs.iter().map(|run| replay(run, &Act::default(), Thresholds::USUAL, 0)).collect()
}

fn replay(run: &Run, act: &Act, thresholds: Thresholds, lag_ms: u64) -> Replay {
    let result = run.result.as_ref();
    let recorded_ms = result.and_then(|result| result.first_signal_ms);
    let known = run.samples.iter().filter(|s| recorded_ms.is_none_or(|at| s.t < at));
    let has_psi = run.samples.iter().any(|s| s.some_us > 0);
    let micros = Duration::from_micros;
    let sample = |s: &protocol::faceoff::Sample| Sample {
        at: Duration::from_secs_f64(s.t / 1e3),
        total: s.total * KIB,
        is_limit: false,
        available: s.avail * KIB,
        free: s.free * KIB,
        swap_total: s.swap_total * KIB,
        swap_free: s.swap_free * KIB,
        stalled: has_psi.then(|| [micros(s.some_us), micros(s.full_us)]),
        stalled_within: micros(s.within_us),
        scanned: s.scanned,
    };
    let samples: Vec<Sample> = known.map(sample).collect();
    let early_reclaim = run.contestant.ends_with(WATERMARK_SUFFIX);
    let governor = Governor::new(Act { early_reclaim, ..act.clone() }).with(thresholds);
    let until = samples.last().map_or(Duration::ZERO, |last| last.at);
    let late = samples.windows(2).filter(|pair| pair[1].at + Duration::from_secs(1) > until);
    Replay {
        contestant: run.contestant.clone(),
        cell: run.cell.clone(),
        seed: run.seed,
        fits: result.is_some_and(|result| result.needed_kills == Some(0)),
        recorded_s: recorded_ms.map(|ms| ms / 1e3),
        until_s: until.as_secs_f64(),
        interval_s: late.map(|pair| (pair[1].at - pair[0].at).as_secs_f64()).fold(0.0, f64::max),
        lacks: if samples.iter().all(|s| s.scanned.is_none()) { "whether the kernel scans" } else { "" },
        kill: first_kill(governor, &samples, Duration::from_millis(lag_ms)).map(|decision| Kill {
            at_s: decision.sample.at.as_secs_f64(),
            reason: decision.reason.name(),
            usable_mib: decision.sample.headroom() as f64 / MIB as f64,
            because: decision.because.to_string(),
        }),
        stalled_s: recorded_ms.and_then(|at_ms| stalls(&run.samples, at_ms)),
    }
}

/// See [`Replay::stalled_s`].
fn stalls(samples: &[protocol::faceoff::Sample], signal_ms: f64) -> Option<[f64; 3]> {
    let after = samples.iter().position(|s| s.t >= signal_ms)?;
    let least = samples[after.saturating_sub(1)].avail + BACK_KIB;
    let back = samples[after..].iter().find(|s| s.avail >= least)?;
    let mut stalled = [0.0; 3];
    for pair in samples.windows(2).filter(|pair| pair[1].fg_gap_ms > STALL_MS) {
        let phase = usize::from(pair[1].t >= signal_ms) + usize::from(pair[1].t > back.t);
        stalled[phase] += (pair[1].t - pair[0].t) / 1e3;
    }
    Some(stalled)
}

/// Returns the table of replays, and what is to be known about them.
pub fn table(replays: &[Replay], colour: bool) -> String {
    let seconds = |value: f64| format!("{value:.2}");
    let rows = replays.iter().map(|r| {
        let kill = |text: fn(&Kill) -> String| r.kill.as_ref().map_or_else(|| "-".to_owned(), text);
        vec![
            Cell::new(r.cell.to_string()),
            Cell::new(&r.contestant),
            Cell::new(kill(|kill| kill.reason.to_owned())),
            Cell::new(r.seed.to_string()),
            Cell::alarm_if(r.fits && r.kill.is_some(), kill(|kill| format!("{:.2}", kill.at_s))),
            Cell::new(kill(|kill| number(kill.usable_mib.round()))),
            Cell::new(r.recorded_s.map_or_else(|| "-".to_owned(), seconds)),
            Cell::new(format!("{:.0}", r.interval_s * 1e3)),
            Cell::new(r.stalled_s.map_or_else(|| "-".to_owned(), |s| s.map(seconds).join(", "))),
        ]
    });
    let head =
        vec!["load", "run of", "reason", "seed", "kill, s", "usable, MiB", "recorded, s", "samples, ms", "stalls, s"];
    let mut text = drawn(&Table { rows: rows.collect(), head, text_columns: 3 }, colour);
    text += "A run is known until its first signal (\"recorded\"). Nothing is interpolated: a kill is seen at the next \
             sample. Stalls: before the signal, until 100 MiB were back, after that.\n";
    let lacks = replays.iter().filter(|r| !r.lacks.is_empty()).count();
    if lacks > 0 {
        text += &format!(
            "In {lacks} of {} runs it was not recorded whether the kernel scans: it is taken to.\n",
            replays.len()
        );
    }
    text
}

/// What one value of a number does, compared with the usual one, in some loads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Effect {
    /// Loads that fit, ...
    pub fits: usize,
    /// ... and how many of them had a kill.
    pub needless: usize,
    /// Loads that do not fit in which the usual number kills, ...
    pub unfit: usize,
    /// ... and in how many of them there was no kill as long as is known.
    pub missed: usize,
    /// In how many of all another decision was made: by more than a sample earlier or later, or none.
    pub changed: usize,
    /// How much later kills are in loads that do not fit, in seconds: in the median, and the most. What is missed is as
    /// late as is known.
    pub delay_s: [f64; 2],
}

/// A number with another value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tried {
    pub name: String,
    /// By how much it is multiplied; `None` for infinity.
    pub factor: Option<f64>,
    /// In runs of even seeds, by which numbers are chosen.
    pub tuning: Effect,
    /// In those of odd seeds, which judge that.
    pub held_out: Effect,
    /// In simulated machines.
    pub simulated: Effect,
}

/// Whether a load fits, when the kill was, and until when that is known, in seconds.
type Outcome = (bool, Option<f64>, f64);

fn effect(usual: &[Outcome], now: &[Outcome]) -> Effect {
    let (mut effect, mut delays) = (Effect::default(), Vec::new());
    for (&(fits, before, _), &(_, after, until)) in usual.iter().zip(now) {
        let delay = before.map(|before| after.unwrap_or(until.max(before)) - before);
        let same = before.is_some() == after.is_some() && delay.is_none_or(|delay| delay.abs() < SAME_S);
        effect.changed += usize::from(!same);
        if fits {
            effect.fits += 1;
            effect.needless += usize::from(after.is_some());
        } else if let Some(delay) = delay {
            effect.unfit += 1;
            effect.missed += usize::from(after.is_none());
            delays.push(delay);
        }
    }
    if !delays.is_empty() {
        effect.delay_s = [median(&delays), delays.into_iter().fold(f64::NEG_INFINITY, f64::max)];
    }
    effect
}

/// Everything with these numbers: the runs of even seeds, those of odd ones, the simulated machines.
fn outcomes(runs: &[Run], act: &Act, thresholds: Thresholds) -> [Vec<Outcome>; 3] {
    let outcome = |(run, lag_ms): (&Run, u64)| {
        let Replay { fits, kill, until_s, .. } = replay(run, act, thresholds, lag_ms);
        (fits, kill.map(|kill| kill.at_s), until_s)
    };
    let of = |run| LAGS_MS.map(|lag_ms| outcome((run, lag_ms)));
    let [tuning, held_out] = [0, 1].map(|odd| runs.iter().filter(|run| run.seed % 2 == odd).flat_map(of).collect());
    let simulated = simulation::try_out(act, thresholds);
    let simulated =
        simulated.iter().map(|s| (s.fits, s.killed_after.map(|at| at.as_secs_f64()), s.until.as_secs_f64()));
    [tuning, held_out, simulated.collect()]
}

/// Tries other values of each number of the decision and of each setting. The first is the usual ones, named "".
pub fn ablate(runs: &[Run], progress: impl Fn(&str)) -> Vec<Tried> {
    let usual = outcomes(runs, &Act::default(), Thresholds::USUAL);
    let tried = |name: &str, factor: f64, [tuning, held_out, simulated]: &[Vec<Outcome>; 3]| Tried {
        name: name.to_owned(),
        factor: factor.is_finite().then_some(factor),
        tuning: effect(&usual[0], tuning),
        held_out: effect(&usual[1], held_out),
        simulated: effect(&usual[2], simulated),
    };
    let mut rows = vec![tried("", 1.0, &usual)];
    let settings = ["act.low", "act.critical", "act.stall"];
    let numbers: Vec<&str> = Thresholds::USUAL.clone().each().map(|(name, _)| name).collect();
    for (name, factor) in settings.into_iter().chain(numbers).flat_map(|name| FACTORS.map(|f| (name, f))) {
        progress(name);
        let (mut act, mut thresholds) = (Act::default(), Thresholds::USUAL);
        let scaled = |level: Level| Level { share: level.share * factor, most: (level.most as f64 * factor) as u64 };
        match name {
            "act.low" => act.low = scaled(act.low),
            "act.critical" => act.critical = scaled(act.critical),
            "act.stall" => act.stall *= factor,
            _ => thresholds.each().filter(|(other, _)| *other == name).for_each(|(_, value)| *value *= factor),
        }
        rows.push(tried(name, factor, &outcomes(runs, &act, thresholds)));
    }
    rows
}

/// Returns the table of an ablation.
pub fn ablation(rows: &[Tried], colour: bool) -> String {
    let shown = |effect: &Effect| {
        let Effect { fits, needless, unfit, missed, changed, delay_s: [median, most] } = effect;
        let delay = format!("{median:+.2} s (at most {most:+.2})");
        Cell::alarm_if(
            *needless + *missed > 0,
            format!("{needless}/{fits} needless, {missed}/{unfit} missed, {changed} changed, {delay}"),
        )
    };
    let rows = rows.iter().map(|row| {
        let factor = row.factor.map_or_else(|| "for ever".to_owned(), |factor| format!("x {factor}"));
        let name = if row.name.is_empty() { "as it is" } else { &row.name };
        vec![Cell::new(name), Cell::new(factor), shown(&row.tuning), shown(&row.held_out), shown(&row.simulated)]
    });
    let head = vec!["number", "times", "even seeds", "odd seeds, held out", "simulated"];
    drawn(&Table { rows: rows.collect(), head, text_columns: 2 }, colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_belongs_to_what_the_run_waits_for() {
        let sample = |(t, avail, fg_gap_ms)| protocol::faceoff::Sample { t, avail, fg_gap_ms, ..Default::default() };
        let run = [
            (0.0, 900_000, 8.0),
            (100.0, 60_000, 90.0),
            (200.0, 50_000, 190.0),
            (300.0, 50_000, 290.0),
            (400.0, 160_000, 390.0),
            (500.0, 900_000, 60.0),
            (600.0, 900_000, 50.0),
        ]
        .map(sample);
        let stalled = stalls(&run, 250.0).unwrap().map(|s| (s * 1e3).round());
        assert_eq!(stalled, [200.0, 200.0, 100.0]);
        // It is not known when memory was back, or there is no sample since.
        assert_eq!(stalls(&run[..4], 250.0), None);
        assert_eq!(stalls(&run, 700.0), None);
    }

    /// The runs of this checkout that have samples.
    fn recorded() -> Vec<Run> {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        read(&[repo.join("docs/results/faceoff/2026-11-28-setting.jsonl.gz")]).unwrap()
    }

    /// In how many of the daemon's own runs the governor does what it did: kills within 0.3 s before the signal, for
    /// samples are 50 ms apart and a choice takes up to 250 ms, or kills nobody.
    fn as_it_was(runs: &[Run], act: &Act, thresholds: Thresholds) -> usize {
        let own = runs.iter().filter(|run| run.contestant == "memreap+watermark");
        let same = |replay: &Replay| match (replay.recorded_s, &replay.kill) {
            (Some(recorded), Some(kill)) => recorded - kill.at_s < 0.3,
            (recorded, kill) => recorded.is_none() && kill.is_none(),
        };
        own.map(|run| replay(run, act, thresholds, 0)).filter(same).count()
    }

    #[test]
    fn what_the_daemon_did_is_seen_again() {
        let (runs, act, usual) = (recorded(), Act::default(), Thresholds::USUAL);
        assert_eq!(runs.len(), 140);
        // In two of 35, of `hog@small`, 34 MiB were left in the last sample, and in the daemon's, which came later, 30.
        assert_eq!(as_it_was(&runs, &act, usual), 33);
        let needless = all(&runs).into_iter().filter(|replay| replay.fits && replay.kill.is_some());
        assert_eq!(needless.collect::<Vec<_>>(), []);
        // Other numbers decide otherwise.
        let critical = |share| Act { critical: memreap::config::Level { share, ..act.critical }, ..act.clone() };
        for (share, stall) in [(0.1, 99.3), (4.0, 99.3), (1.0, 50.0), (1.0, 101.0)] {
            assert!(as_it_was(&runs, &Act { stall, ..critical(share) }, usual) < 30, "{share} {stall}");
        }
    }

    #[test]
    fn an_effect_counts_what_changed() {
        let usual = [
            (true, None, 9.0),
            (true, None, 9.0),
            (false, Some(4.0), 5.0),
            (false, Some(3.0), 5.0),
            (false, None, 5.0),
        ];
        let now = [
            (true, None, 9.0),
            (true, Some(2.0), 2.0),
            (false, Some(4.5), 5.0),
            (false, None, 5.0),
            (false, None, 5.0),
        ];
        let expected = Effect { fits: 2, needless: 1, unfit: 2, missed: 1, changed: 3, delay_s: [1.25, 2.0] };
        assert_eq!(effect(&usual, &now), expected);
        assert_eq!(
            effect(&usual, &usual),
            Effect { needless: 0, missed: 0, changed: 0, delay_s: [0.0; 2], ..expected }
        );
    }
}
