// SPDX-License-Identifier: GPL-2.0-only
//! `lab faceoff`: compares low-memory killers in a Debian guest under the same loads.
//!
//! [`contestant`] reads the descriptions of the contestants, [`cell`] those of loads and machines, [`rootfs`]
//! makes the guest's disk image, [`snapshot`] boots guests, saves their states and restores one for every run.
//! [`record`] collects the guest's events, [`summary`] evaluates all runs, [`page`], [`plots`] and [`terminal`]
//! show them; [`replay`] decides recorded runs again. The guest's part is `guest faceoff` in `crates/guest`.

pub mod cell;
pub mod contestant;
pub mod page;
pub mod plots;
pub mod record;
pub mod replay;
pub mod rootfs;
pub mod snapshot;
pub mod summary;
pub mod tables;
pub mod terminal;

use fs_err::{self as fs, File};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use protocol::faceoff::{Event, Job};

use cell::Cell;
use contestant::{Contestant, Origin};
use record::Run;
use snapshot::{GuestFailure, Ingredients, SNAPSHOTS};
use summary::{Meta, Summary};

use crate::WrongUsage;
use crate::arch::Arch;
use crate::content::Content;
use crate::context::Context;
use crate::debian;
use crate::host;
use crate::host::write_atomically;
use crate::kernel::{self, Kernel, Tree};
use crate::progress::time_left;
use crate::stolen;
use crate::vm::image;
use crate::vm::probe::{self, Accel};

/// The time from the start of the contestant to that of the load.
const SETTLE_SECONDS: u64 = 3;
/// How long a run may take in addition to these times: for restoring the guest, starting the contestant and
/// sending the results. A guest without free memory notices late that its time is over.
const RUN_OVERHEAD_SECONDS: u64 = 180;

/// The face-off ends after so many failed runs in a row: the cause is not random.
const MAX_FAILED_RUNS_IN_A_ROW: u32 = 5;

/// The options of `lab faceoff`.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Contestants [default: all]
    pub contestants: Vec<String>,
    /// Only this load, on all its machines or on one; "@MACHINE" is all loads there (repeatable) [default:
    /// all]
    #[arg(long = "load", value_name = "LOAD[@MACHINE]")]
    pub loads: Vec<String>,
    /// Run everybody once more with vm.watermark_scale_factor=100, which memreap's package sets
    #[arg(long)]
    pub watermark: bool,
    /// Rounds; each runs every contestant once under every load
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    pub runs: u64,
    /// The seed of the first round's loads; it is incremented in every round
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// The time limit of a load; a slow leak needs 40 s to fill the memory
    #[arg(long = "limit", value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub limit_s: u64,
    /// Keep the logs of all runs, not only of those that failed
    #[arg(long)]
    pub keep: bool,
    /// Continue an earlier face-off
    #[arg(long = "continue")]
    pub resume: bool,
}

/// The result of the face-off.
#[derive(Debug)]
pub struct FaceOff {
    /// The summary, as in `faceoff.json`.
    pub summary: Summary,
    /// All runs, as in `faceoff.jsonl`.
    pub runs: Vec<Run>,
}

/// The first line of `faceoff.jsonl`; the others are [`Run`]s.
#[derive(Serialize, Deserialize)]
struct Header {
    meta: Meta,
}

/// Runs the face-off and returns the summary and all runs. Every run is appended to `faceoff.jsonl` in the
/// output folder when it ends; `faceoff.json` and `faceoff.html` are written after every round. A failed run
/// is reported and skipped, unless too many failed in a row.
///
/// # Errors
/// [`WrongUsage`] when a contestant or a load does not exist, or a file of one is invalid; when something cannot be
/// built, the guest does not boot or fails repeatedly, or earlier runs that should be continued were made under other
/// conditions.
pub fn run(ctx: &Context, options: &Options) -> Result<FaceOff> {
    let chosen = || {
        let (all, all_cells) = (contestant::load(&ctx.repo)?, cell::all(&ctx.repo)?);
        anyhow::Ok((chosen_contestants(&all, options)?, cell::select(&all_cells, &options.loads)?, all, all_cells))
    };
    let (contestants, cells, all, all_cells) = chosen().map_err(|e| WrongUsage(format!("{e:#}")))?;
    // Before the payload is made: another face-off's guests read it.
    let _lock = host::lock(ctx, &ctx.out.join("faceoff"))?;
    let test_bed = TestBed::prepare(ctx, &all, &contestants, &all_cells, options)?;
    let mut run_log = RunLog::open(&ctx.out.join("faceoff.jsonl"), test_bed.meta.clone(), options.resume)?;
    test_bed.check_earlier(&all, &all_cells, &run_log.runs)?;
    let todo = plan(&contestants, &cells, usize::try_from(options.runs)?, &run_log.runs);
    let step = ctx.progress.step("face-off");
    let began = Instant::now();
    let mut in_a_row = 0;
    for (done, &(round, cell, contestant)) in todo.iter().enumerate() {
        let left = time_left(began, done, todo.len() - done);
        let name = format!("{}, {}, round {}", cell.name, contestant.name, round + 1);
        step.detail(&format!("run {}/{}: {name}{left}", done + 1, todo.len()));
        let run = stolen::run_undisturbed(
            || test_bed.run_one(ctx, options, contestant, cell, round),
            |run| run.failure.is_none().then_some(run.stolen?),
            |note| ctx.progress.note(&format!("{name}: {note}")),
        )?;
        let failure = run.failure.clone();
        run_log.add(run)?;
        in_a_row = if failure.is_some() { in_a_row + 1 } else { 0 };
        if let Some(failure) = failure {
            ctx.progress.warn(&format!("{name}: {failure}"));
            if in_a_row == MAX_FAILED_RUNS_IN_A_ROW {
                let what = format!("the last {MAX_FAILED_RUNS_IN_A_ROW} runs failed; --continue repeats them");
                return Err(GuestFailure(what).into());
            }
        }
        let round_over = todo.get(done + 1).is_none_or(|next| next.0 != round);
        if round_over {
            write(ctx, &Summary::of(run_log.meta.clone(), &all, &all_cells, &run_log.runs), &run_log.runs)?;
        }
    }
    step.done(&format!("{} runs", run_log.runs.len()));
    let summary = Summary::of(run_log.meta.clone(), &all, &all_cells, &run_log.runs);
    write(ctx, &summary, &run_log.runs)?;
    Ok(FaceOff { summary, runs: run_log.runs })
}

fn write(ctx: &Context, summary: &Summary, runs: &[Run]) -> Result<()> {
    let json = serde_json::to_string_pretty(summary)? + "\n";
    write_atomically(&ctx.out.join("faceoff.json"), &json)?;
    write_atomically(&ctx.out.join("faceoff.html"), &page::html(summary, runs))
}

/// Returns the contestants that take part: those that are named, or all, and on request each of them once more
/// with the early reclaim.
fn chosen_contestants(all: &[Contestant], options: &Options) -> Result<Vec<Contestant>> {
    let named = contestant::select(all, &options.contestants)?;
    if !options.contestants.is_empty() && !options.watermark {
        return Ok(named);
    }
    let is_named = |c: &Contestant| named.iter().any(|n| n.name == c.name || n.name == c.plain_name());
    let is_chosen = |c: &&Contestant| is_named(c) && (options.watermark || !c.has_watermark());
    Ok(all.iter().filter(is_chosen).cloned().collect())
}

/// Returns the runs that are still to be made, in order: in every round all cells, in every cell all
/// contestants back to back. Each round begins with another contestant.
fn plan<'a>(
    contestants: &'a [Contestant],
    cells: &'a [Cell],
    rounds: usize,
    done: &[Run],
) -> Vec<(usize, &'a Cell, &'a Contestant)> {
    let mut todo = Vec::new();
    for round in 0..rounds {
        for cell in cells {
            for place in 0..contestants.len() {
                let contestant = &contestants[(place + round) % contestants.len()];
                let is_it = |run: &Run| {
                    (run.round, &run.cell, &run.contestant) == (round, &cell.name, &contestant.name)
                        && run.failure.is_none()
                };
                if !done.iter().any(is_it) {
                    todo.push((round, cell, contestant));
                }
            }
        }
    }
    todo
}

/// What all runs have in common.
struct TestBed {
    meta: Meta,
    accel: Accel,
    payload: PathBuf,
    image: rootfs::Image,
    guest: PathBuf,
    /// By tree.
    kernels: BTreeMap<String, Kernel>,
}

impl TestBed {
    fn prepare(
        ctx: &Context,
        all: &[Contestant],
        chosen: &[Contestant],
        cells: &[Cell],
        options: &Options,
    ) -> Result<Self> {
        host::ensure_packages(ctx, &[host::guest_packages(Arch::X86_64), debian::PACKAGES].concat())?;
        let mut kernels = BTreeMap::new();
        for tree in [Tree::Stock, Tree::Memreap] {
            if chosen.iter().any(|contestant| contestant.kernel == tree) {
                kernels.insert(tree.to_string(), kernel::build(ctx, tree, kernel::Variant::Faceoff)?);
            }
        }
        let first = kernels.values().next().context("there are no contestants")?;
        let (accel, why) = probe::accelerator(ctx, &first.bzimage)?;
        ctx.progress.note(&format!("accelerator: {accel} ({why})"));
        // For all contestants, so that the image does not depend on which of them were selected.
        let image = rootfs::get(ctx, all)?;
        let built = image::build_guest(ctx)?;
        let payload = pack(ctx, all, &built, &image::build_packaged(ctx)?)?;
        let mut content = Content::default();
        content.add(&image.key);
        content.add_file(&payload)?;
        // All of them, so that it does not depend on which were selected.
        for cell in cells {
            content.add(serde_json::to_string(&cell.load)?);
        }
        for contestant in all {
            content.add(serde_json::to_string(&(&contestant.name, &contestant.unit, &contestant.setup))?);
        }
        content.add(SETTLE_SECONDS.to_string());
        let fingerprint = content.key();
        let packages = all.iter().flat_map(|c| &c.packages);
        let meta = Meta {
            date: host::output(std::process::Command::new("date").arg("+%F %T %z"))?.trim().to_owned(),
            accelerator: accel.to_string(),
            seed: options.seed,
            limit_s: options.limit_s,
            kernels: kernels.iter().map(|(tree, kernel)| (tree.clone(), kernel.release.clone())).collect(),
            packages: packages.filter_map(|p| Some((p.clone(), image.packages.get(p)?.clone()))).collect(),
            fingerprint,
        };
        Ok(Self { meta, accel, payload, image, guest: built.join("guest"), kernels })
    }

    /// Returns what the snapshot is made of that a round starts from.
    fn ingredients<'a>(&'a self, contestant: &Contestant, cell: &'a Cell, round: usize) -> Result<Ingredients<'a>> {
        let kernel = self.kernels.get(&contestant.kernel.to_string());
        Ok(Ingredients {
            accel: self.accel,
            kernel: kernel.with_context(|| format!("{}: its kernel was not built", contestant.name))?,
            image: &self.image,
            guest: &self.guest,
            payload: &self.payload,
            machine: &cell.machine,
            number: round % SNAPSHOTS,
        })
    }

    /// Checks that earlier runs, which are to be continued, started from the snapshots that others would now. Those on
    /// a kernel that none of the chosen contestants needs are not checked.
    fn check_earlier(&self, contestants: &[Contestant], cells: &[Cell], runs: &[Run]) -> Result<()> {
        let mut keys = BTreeMap::new();
        for run in runs {
            let contestant = contestants.iter().find(|c| c.name == run.contestant);
            let cell = cells.iter().find(|cell| cell.name == run.cell);
            let (Some(contestant), Some(cell)) = (contestant, cell) else { continue };
            if !self.kernels.contains_key(&contestant.kernel.to_string()) {
                continue;
            }
            let of = (contestant.kernel.to_string(), cell.machine_name.clone(), run.round % SNAPSHOTS);
            let key = match keys.entry(of) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert(self.ingredients(contestant, cell, run.round)?.key()?),
            };
            ensure!(
                run.snapshot == *key,
                "{}, {}: its earlier runs were made on another kernel or machine; start again without --continue",
                run.cell,
                run.contestant
            );
        }
        Ok(())
    }

    fn run_one(
        &self,
        ctx: &Context,
        options: &Options,
        contestant: &Contestant,
        cell: &Cell,
        round: usize,
    ) -> Result<Run> {
        let snapshot = snapshot::make(ctx, self.ingredients(contestant, cell, round)?)?;
        let seed = self.meta.seed + round as u64;
        let limit_s = cell.load.idle_s.or(cell.load.limit_s).unwrap_or(self.meta.limit_s);
        let job = Job {
            contestant: contestant.name.clone(),
            unit: contestant.unit.clone(),
            files: files_dir(ctx, contestant),
            load: cell.load.clone(),
            seed,
            limit_s,
            settle_s: SETTLE_SECONDS,
            setup: contestant.setup.clone(),
        };
        let mut run = Run::new(&contestant.name, &cell.name, round, seed);
        run.snapshot.clone_from(&snapshot.key);
        let step = ctx.progress.step(&format!("{}: {}", cell.name, contestant.name));
        let folder = ctx.out.join("logs/faceoff");
        let logs = folder.join(format!("{}-{}-{}", cell.name, contestant.name, round + 1));
        let limit = Duration::from_secs(SETTLE_SECONDS + limit_s + RUN_OVERHEAD_SECONDS);
        let began = Instant::now();
        let mut watch = None;
        let ended = snapshot.run(&job, &logs, limit, &step, &mut |event| {
            match event {
                Event::Started { .. } => watch = Some(stolen::Watch::start()),
                Event::Result(_) | Event::Idle(_) => run.stolen = watch.take().and_then(stolen::Watch::end),
                _ => {}
            }
            run.take(event);
        });
        run.seconds = began.elapsed().as_secs_f64().round();
        run.failure = match ended {
            Ok(()) if run.is_complete(cell) => None,
            Ok(()) => Some("the guest ended without a result".to_owned()),
            Err(e) => Some(format!("{e:#}")),
        };
        step.done(&in_one_line(&run));
        if run.failure.is_none() && !options.keep {
            host::remove_any(&logs)?;
        }
        Ok(run)
    }
}

/// Returns the result of a run in one line, for the terminal.
fn in_one_line(run: &Run) -> String {
    if run.failure.is_some() {
        return "failed".to_owned();
    }
    if let Some(idle) = &run.idle {
        return format!("PSS {:.0} KiB, CPU {:.0} ms, {:.0} wake-ups", idle.pss_kib, idle.cpu_ms, idle.wakeups);
    }
    let Some(result) = &run.result else { return "no result".to_owned() };
    let wrong: Vec<String> = run.wrong().iter().map(|(who, n)| format!("{n} {who}")).collect();
    let wrong = if wrong.is_empty() { String::new() } else { format!(", WRONG: {}", wrong.join(", ")) };
    format!("longest stall {:.0} ms{wrong}", result.longest_stall_ms)
}

/// Returns the folder of a contestant's files in the payload, if it has any.
fn files_dir(ctx: &Context, contestant: &Contestant) -> Option<String> {
    let there = packed(ctx).join("contestants").join(contestant.files_of()).join("files").is_dir();
    there.then(|| format!("contestants/{}/files", contestant.files_of()))
}

fn packed(ctx: &Context) -> PathBuf {
    ctx.out.join("faceoff/payload")
}

/// Makes the payload disk: the guest program, memreap and the contestants' files.
fn pack(ctx: &Context, contestants: &[Contestant], built: &Path, packaged: &Path) -> Result<PathBuf> {
    let built = |program: &str| if program == "memreap" { packaged } else { built }.join(program);
    let folder = packed(ctx);
    host::remove_any(&folder)?;
    host::copy_file(&built("guest"), &folder.join("guest"))?;
    for contestant in contestants.iter().filter(|c| c.files_of() == c.name) {
        let to = folder.join("contestants").join(&contestant.name).join("files");
        let own = ctx.in_repo(contestant::CONTESTANTS_FOLDER).join(&contestant.name).join("files");
        if own.is_dir() {
            for file in host::files_below(&own)? {
                host::copy_file(&file, &to.join(file.strip_prefix(&own)?))?;
            }
        }
        for (path, from) in &contestant.install {
            let from = match from {
                Origin::Built(program) => built(program),
                Origin::Crate(name, version) => image::build_crate(ctx, name, version)?,
                Origin::File(file) => file.clone(),
            };
            host::copy_file(&from, &to.join(path.trim_start_matches('/')))
                .with_context(|| format!("{}: install: {path}", contestant.name))?;
        }
    }
    let disk = ctx.out.join("faceoff/payload.tar");
    snapshot::pack_payload(&folder, &disk)?;
    Ok(disk)
}

/// The file `faceoff.jsonl`: all runs, each written when it has ended.
struct RunLog {
    file: File,
    meta: Meta,
    runs: Vec<Run>,
}

impl RunLog {
    /// Starts a new log and keeps the last one as `.previous`, or continues the last one.
    fn open(path: &Path, meta: Meta, resume: bool) -> Result<Self> {
        if resume {
            let text = fs::read_to_string(path)
                .with_context(|| format!("nothing to continue: cannot read {}", path.display()))?;
            let (header, runs) = read(&text).with_context(|| path.display().to_string())?;
            let same = |m: &Meta| (m.fingerprint.clone(), m.seed, m.limit_s, m.accelerator.clone());
            ensure!(
                same(&header.meta) == same(&meta),
                "{}: its runs were made with other programs, contestants' files or loads, another seed or limit; \
                 start again without --continue",
                path.display()
            );
            // An interrupted write may have left an incomplete line.
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            let file = File::options().append(true).open(path)?;
            file.set_len(whole as u64)?;
            // There may be kernels now that were not needed before.
            let kernels = header.meta.kernels.into_iter().chain(meta.kernels).collect();
            return Ok(Self { file, meta: Meta { kernels, ..header.meta }, runs });
        }
        if path.exists() {
            let previous = path.with_extension("jsonl.previous");
            fs::rename(path, &previous)?;
        }
        let mut file = File::create(path)?;
        writeln!(file, "{}", serde_json::to_string(&Header { meta: meta.clone() })?)?;
        Ok(Self { file, meta, runs: Vec::new() })
    }

    fn add(&mut self, run: Run) -> Result<()> {
        let line = serde_json::to_string(&run)? + "\n";
        self.file.write_all(line.as_bytes()).context("cannot write faceoff.jsonl")?;
        self.runs.push(run);
        Ok(())
    }
}

/// Parses a log. A last line without a line end is ignored.
fn read(text: &str) -> Result<(Header, Vec<Run>)> {
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = whole.lines();
    let header = serde_json::from_str(lines.next().unwrap_or_default()).context("line 1")?;
    let runs = lines
        .enumerate()
        .map(|(n, line)| serde_json::from_str(line).with_context(|| format!("line {}", n + 2)))
        .collect::<Result<_>>()?;
    Ok((header, runs))
}

#[cfg(test)]
mod tests {
    use super::summary::tests::{cells, contestant, run};
    use super::*;

    #[test]
    fn another_contestant_is_first_in_each_round() {
        let cells = cells();
        let who = ["a", "b", "c"].map(|name| contestant(name, name));
        let order = |done: &[Run]| -> String {
            plan(&who, &cells, 2, done)
                .iter()
                .map(|(round, cell, who)| format!("{round}{}{} ", &cell.name.0[..1], who.name))
                .collect()
        };
        assert_eq!(order(&[]), "0ha 0hb 0hc 0la 0lb 0lc 1hb 1hc 1ha 1lb 1lc 1la ");
        let mut failed = run("c", "leak", 0, 1.0, None);
        failed.failure = Some("panic".into());
        let done = [run("a", "hog", 0, 1.0, None), run("b", "hog", 1, 1.0, None), failed];
        assert_eq!(order(&done), "0hb 0hc 0la 0lb 0lc 1hc 1ha 1lb 1lc 1la ");
    }

    #[test]
    fn the_early_reclaim_is_a_factor() {
        let all: Vec<Contestant> = ["a", "a+watermark", "b", "b+watermark"].map(|name| contestant(name, name)).to_vec();
        let chosen = |names: &[&str], watermark| -> Vec<String> {
            let contestants = names.iter().map(|&name| name.to_owned()).collect();
            let options = Options {
                contestants,
                watermark,
                loads: Vec::new(),
                runs: 1,
                seed: 1,
                limit_s: 1,
                keep: false,
                resume: false,
            };
            chosen_contestants(&all, &options).unwrap().into_iter().map(|c| c.name).collect()
        };
        assert_eq!(chosen(&[], false), ["a", "b"]);
        assert_eq!(chosen(&[], true), ["a", "a+watermark", "b", "b+watermark"]);
        assert_eq!(chosen(&["b"], true), ["b", "b+watermark"]);
        assert_eq!(chosen(&["b+watermark"], false), ["b+watermark"]);
    }

    #[test]
    fn a_log_is_continued_only_under_the_same_conditions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("faceoff.jsonl");
        let meta = |fingerprint: &str| Meta { fingerprint: fingerprint.into(), ..Meta::default() };
        assert!(RunLog::open(&path, meta("1"), true).err().unwrap().to_string().contains("nothing to continue"));
        let mut run_log = RunLog::open(&path, meta("1"), false).unwrap();
        run_log.add(run("a", "hog", 0, 1.0, None)).unwrap();
        let mut failed = run("b", "hog", 0, 1.0, None);
        failed.failure = Some("panic".into());
        run_log.add(failed).unwrap();
        run_log.file.write_all(b"{\"contestant\":\"c").unwrap();
        drop(run_log);

        let mut run_log = RunLog::open(&path, meta("1"), true).unwrap();
        // One that failed stays on record.
        assert_eq!(run_log.runs.iter().map(|r| r.contestant.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        run_log.add(run("b", "hog", 0, 2.0, None)).unwrap();
        drop(run_log);
        let kernels = BTreeMap::from([("memreap".to_owned(), "6.12.1".to_owned())]);
        let run_log = RunLog::open(&path, Meta { kernels, ..meta("1") }, true).unwrap();
        assert_eq!((run_log.runs.len(), run_log.meta.kernels.len()), (3, 1));
        assert!(RunLog::open(&path, meta("2"), true).err().unwrap().to_string().contains("start again"));
        assert!(RunLog::open(&path, meta("2"), false).unwrap().runs.is_empty());
        assert!(path.with_extension("jsonl.previous").exists());
    }
}
