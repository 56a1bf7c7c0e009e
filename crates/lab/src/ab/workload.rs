// SPDX-License-Identifier: GPL-2.0-only
//! A program of the user's as a scenario: `lab ab --workload`.
//!
//! The program runs in the guest and prints its metrics, one per line, among whatever else it prints:
//! `NAME VALUE UNIT lower|higher`, or the same as JSON,
//! `{"metric": "NAME", "value": VALUE, "unit": "UNIT", "better": "lower"}`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use protocol::results::{Better, Sample};
use scenarios::{Guest, Scenario};

use crate::content::Content;
use crate::format;
use crate::vm::job::{GuestCommand, Job};
use crate::vm::root::RootDisk;

/// The folder of the program in the guest.
const FOLDER: &str = "/workload";

/// A program, and the guest that it runs in.
#[derive(Clone, Debug)]
pub struct Workload {
    program: PathBuf,
    arguments: Vec<String>,
    /// Files and folders of the host, and their absolute paths in the guest.
    copies: Vec<(PathBuf, String)>,
    root: Option<RootDisk>,
    scenario: &'static Scenario,
}

impl Workload {
    /// A workload of a program with its arguments, in this guest and in the file system of this disk, or the initramfs
    /// with busybox. It is called by the name of the program's file.
    ///
    /// # Errors
    /// When there is no such file, or it has no usable name.
    pub fn new(
        program: &Path,
        arguments: Vec<String>,
        copies: Vec<(PathBuf, String)>,
        guest: Guest,
        root: Option<RootDisk>,
    ) -> Result<Self> {
        ensure!(program.is_file(), "{}: no such file", program.display());
        let name = program.file_stem().and_then(|name| name.to_str()).filter(|name| is_name(name));
        let name = name
            .with_context(|| format!("{}: a name of letters, digits, '-', '_' and '.' is needed", program.display()))?;
        // One per process, and used until its end.
        let scenario = Box::leak(Box::new(Scenario {
            name: name.to_owned().leak(),
            about: "",
            sentences: &[],
            guests: vec![guest].leak(),
            controls: &[],
            metrics: &[],
        }));
        Ok(Self { program: program.to_owned(), arguments, copies, root, scenario })
    }

    /// Returns the job, which has no use for memreap and does not change with it. The machine is a scenario's matter.
    pub fn job(&self) -> Job {
        let command = [self.path()].into_iter().chain(self.arguments.iter().cloned()).collect();
        let own = (self.program.clone(), self.path());
        Job {
            overlay: self.copies.iter().cloned().chain([own]).collect(),
            root: self.root.clone(),
            memreap: false,
            ..Job::new(GuestCommand::Exec(command))
        }
    }

    /// Returns the key of what runs, wherever it is on the host: the program, its arguments, the files that come
    /// with it, and its root file system. 64 hexadecimal digits.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn key(&self) -> Result<String> {
        let mut content = Content::default();
        content.add_file(&self.program)?;
        content.add(self.arguments.len().to_le_bytes());
        self.arguments.iter().for_each(|argument| content.add(argument));
        for (from, to) in &self.copies {
            content.add(to);
            content.add_tree(from)?;
        }
        if let Some(root) = &self.root {
            content.add(&root.key);
        }
        Ok(content.key())
    }

    fn path(&self) -> String {
        let file = self.program.file_name().unwrap_or_default();
        format!("{FOLDER}/{}", file.to_string_lossy())
    }
}

/// Whether this can be part of a path and of a table.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// Returns the workload as the only scenario; without one the scenarios of these names, in the given order, or all of
/// them if there is no name.
///
/// # Errors
/// When there is no scenario of that name, or a name is given twice.
pub fn scenarios(workload: Option<&Workload>, names: &[String]) -> Result<Vec<&'static Scenario>> {
    if let Some(workload) = workload {
        return Ok(vec![workload.scenario]);
    }
    if names.is_empty() {
        return Ok(scenarios::all().iter().collect());
    }
    let of_name = |(i, name): (usize, &String)| {
        let known = scenarios::all().iter().map(|scenario| scenario.name);
        let scenario = scenarios::find(name).with_context(|| format::no_such("scenario", name, known))?;
        ensure!(!names[..i].contains(name), "scenario '{name}' is given twice");
        Ok(scenario)
    };
    names.iter().enumerate().map(of_name).collect()
}

/// Finds the metrics in what a workload has printed.
///
/// # Errors
/// When a line looks like a metric and is none: what is measured must not get lost because of a typing error.
pub fn metrics(output: &str) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for line in output.lines() {
        if line.trim_start().starts_with('{') && line.contains("\"metric\"") {
            samples.push(serde_json::from_str(line).with_context(|| format!("not a metric: {line}"))?);
            continue;
        }
        let [metric, value, unit, better] = line.split_whitespace().collect::<Vec<_>>()[..] else { continue };
        let better = match better {
            "lower" => Better::Lower,
            "higher" => Better::Higher,
            _ => continue,
        };
        let Ok(value) = value.parse::<f64>() else { bail!("not a metric: {line} ('{value}' is not a number)") };
        samples.push(Sample { metric: metric.to_owned(), unit: unit.to_owned(), better, value });
    }
    Ok(samples)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_found_among_other_output() {
        let output = "starting up\nfault-time 12.5 ns lower\n{\"metric\": \"rate\", \"value\": 3, \"unit\": \
                      \"MB/s\", \"better\": \"higher\"}\nis this a metric\nreads 1e3 1/s higher\n";
        let found = metrics(output).unwrap();
        let shown: Vec<_> = found.iter().map(|s| format!("{} {} {} {}", s.metric, s.value, s.unit, s.better)).collect();
        assert_eq!(shown, ["fault-time 12.5 ns lower", "rate 3 MB/s higher", "reads 1000 1/s higher"]);
        assert_eq!(metrics("nothing here\n").unwrap(), []);
    }

    #[test]
    fn a_metric_with_a_typing_error_is_not_lost() {
        for line in ["time 12,5 ms lower", "{\"metric\": \"x\", \"value\": 1}", " { \"value\": 1, \"metric\": \"x\" }"]
        {
            let error = format!("{:#}", metrics(&format!("ok\n{line}\n")).unwrap_err());
            assert!(error.contains(line), "{error}");
        }
    }

    #[test]
    fn the_program_is_copied_beside_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bench.sh");
        std::fs::write(&program, "").unwrap();
        let copies = vec![(PathBuf::from("/etc/passwd"), "/data".to_owned())];
        let guest = Guest { mem_mib: 500, ..scenarios::all()[0].guests[0] };
        let root = RootDisk { image: "/x/root.ext4".into(), key: "k".to_owned() };
        let workload = Workload::new(&program, vec!["--fast".to_owned()], copies, guest, Some(root)).unwrap();
        assert_eq!(workload.scenario.name, "bench");
        assert_eq!(workload.scenario.guests[0].mem_mib, 500);
        let job = workload.job();
        let to: Vec<String> = job.overlay.into_iter().map(|(_, to)| to).collect();
        assert_eq!(to, ["/data", "/workload/bench.sh"]);
        assert_eq!(job.root.unwrap().key, "k");
        let GuestCommand::Exec(command) = job.command else { panic!() };
        assert_eq!(command, ["/workload/bench.sh", "--fast"]);
        for bad in [dir.path().join("none.sh"), dir.path().to_owned()] {
            assert!(Workload::new(&bad, Vec::new(), Vec::new(), guest, None).is_err(), "{}", bad.display());
        }
    }

    #[test]
    fn scenarios_are_selected_by_name() {
        let select = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            scenarios(None, &names)
        };
        assert_eq!(select(&[]).unwrap().len(), scenarios::all().len());
        assert_eq!(select(&["reap"]).unwrap()[0].name, "reap");
        let unknown = select(&["raep"]).unwrap_err().to_string();
        assert!(unknown.contains("raep") && unknown.contains("reap"), "{unknown}");
        assert!(select(&["reap", "reap"]).is_err());
    }
}
