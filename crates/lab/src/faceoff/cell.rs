// SPDX-License-Identifier: GPL-2.0-only
//! What the face-off runs: loads, from `faceoff/loads/*.toml`, on machines, from `faceoff/machines.toml`. A
//! load on a machine is a cell of the grid.

use fs_err as fs;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use protocol::load::Load;

use crate::format;

/// The folder of the loads in the checkout.
pub const LOADS_FOLDER: &str = "faceoff/loads";
/// The machines, in the checkout.
pub const MACHINES_FILE: &str = "faceoff/machines.toml";
/// The machine that is meant where none is named.
const USUAL_MACHINE: &str = "desktop";

/// A virtual machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// What it is, for people.
    pub about: String,
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Swap on zram, in MiB of what goes in.
    #[serde(default)]
    pub zram_mib: u32,
    /// Swap on a disk, in MiB.
    #[serde(default)]
    pub swap_disk_mib: u32,
    /// The speed of each disk, in MB/s; absent for as fast as the host.
    pub disk_mb_per_s: Option<u32>,
    /// Operations per second of each disk; absent for as many as the host can.
    pub disk_iops: Option<u32>,
    /// More parameters for the kernel.
    #[serde(default)]
    pub parameters: String,
}

/// The name of a cell: `LOAD` or `LOAD@MACHINE`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CellName(pub String);

impl CellName {
    fn new(load: &str, machine: &str) -> Self {
        Self(if machine == USUAL_MACHINE { load.to_owned() } else { format!("{load}@{machine}") })
    }
}

impl fmt::Display for CellName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A load on a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// Its name on the command line and in results.
    pub name: CellName,
    /// The name of the load's file.
    pub load_name: String,
    pub load: Load,
    pub machine_name: String,
    pub machine: Machine,
}

impl Cell {
    /// Whether it measures what a contestant costs, not what it does.
    pub fn is_idle(&self) -> bool {
        self.load.idle_s.is_some()
    }
}

/// Reads all loads and machines and returns the cells of the grid, in the order of the loads.
///
/// # Errors
/// When a file cannot be read or is invalid. Names the file and the key.
pub fn all(repo: &Path) -> Result<Vec<Cell>> {
    let file = repo.join(MACHINES_FILE);
    let text = fs::read_to_string(&file)?;
    let machines: BTreeMap<String, Machine> = toml::from_str(&text).with_context(|| file.display().to_string())?;
    for (name, machine) in &machines {
        check_machine(machine).with_context(|| format!("{}: [{name}]", file.display()))?;
    }
    let folder = repo.join(LOADS_FOLDER);
    let mut cells = Vec::new();
    for entry in fs::read_dir(&folder)? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".toml")) else {
            continue;
        };
        let text = fs::read_to_string(&path)?;
        cells.extend(cells_of(name, &text, &machines).with_context(|| path.display().to_string())?);
    }
    // The sort is stable, so the machines of a load stay in its order.
    cells.sort_by(|a: &Cell, b: &Cell| (a.load.order, &a.load_name).cmp(&(b.load.order, &b.load_name)));
    Ok(cells)
}

fn check_machine(machine: &Machine) -> Result<()> {
    ensure!((1..=64).contains(&machine.cpus), "cpus: {} is not between 1 and 64", machine.cpus);
    ensure!(machine.memory_mib >= 256, "memory_mib: {} is too little for Debian", machine.memory_mib);
    Ok(())
}

fn cells_of(name: &str, text: &str, machines: &BTreeMap<String, Machine>) -> Result<Vec<Cell>> {
    // The error names line and key.
    let load: Load = toml::from_str(text)?;
    load.check().map_err(anyhow::Error::msg)?;
    let cell = |machine_name: &String| {
        let Some(machine) = machines.get(machine_name) else {
            bail!("machines: {} (in {MACHINES_FILE})", format::no_such("machine", machine_name, machines.keys()));
        };
        Ok(Cell {
            name: CellName::new(name, machine_name),
            load_name: name.to_owned(),
            load: load.clone(),
            machine_name: machine_name.clone(),
            machine: machine.clone(),
        })
    };
    load.machines.iter().map(cell).collect()
}

/// Returns the cells with these names, in their own order; all if there are no names. A load's name means it
/// on all its machines, `@MACHINE` everything on that machine.
///
/// # Errors
/// When there is no such cell.
pub fn select(all: &[Cell], names: &[String]) -> Result<Vec<Cell>> {
    let means = |name: &String, cell: &Cell| {
        cell.name.0 == *name
            || cell.load_name == *name
            || name.strip_prefix('@') == Some(&cell.machine_name)
            || *name == format!("{}@{}", cell.load_name, cell.machine_name)
    };
    if let Some(unknown) = names.iter().find(|name| !all.iter().any(|cell| means(name, cell))) {
        bail!(format::no_such("load", unknown, all.iter().map(|cell| &cell.name.0)));
    }
    let chosen = |cell: &&Cell| names.is_empty() || names.iter().any(|name| means(name, cell));
    Ok(all.iter().filter(chosen).cloned().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the files of this checkout.
    #[test]
    fn all_loads_and_machines_are_sound() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let all = all(repo).unwrap();
        assert_eq!(all[0].name.0, "hog");
        let chosen = |names: &[&str]| -> Vec<String> {
            let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
            select(&all, &names).unwrap().into_iter().map(|cell| cell.name.0).collect()
        };
        assert_eq!(chosen(&[]).len(), all.len());
        assert_eq!(chosen(&["leak@desktop", "hog@small"]), ["hog@small", "leak"]);
        assert!(chosen(&["hog"]).len() > 1 && chosen(&["@no-psi"]).iter().all(|name| name.ends_with("@no-psi")));
        let error = select(&all, &["hug".into()]).unwrap_err().to_string();
        assert!(error.contains("no load 'hug'; there are: hog, "), "{error}");
    }

    #[test]
    fn errors_name_the_key() {
        let machine = Machine { cpus: 1, memory_mib: 512, ..Machine::default() };
        let machines = BTreeMap::from([("desktop".to_owned(), machine.clone())]);
        let good = "about = \"x\"\norder = 1\nmachines = [\"desktop\"]\n[[process]]\nname = \"p\"\nwho = \"hog\"\n\
                    run = [{ do = \"take\", size = \"everything\" }]\n";
        assert_eq!(cells_of("x", good, &machines).unwrap()[0].name.0, "x");
        for (what, wrong, needle) in [
            ("desktop", "laptop", "machines: no machine 'laptop'; there are: desktop (in faceoff/machines.toml)"),
            ("everything", "all of it", "'all of it' is no size"),
            ("take", "steal", "unknown variant `steal`"),
            ("size", "amount", "amount"),
            ("run =", "prepare =", "none does anything"),
            ("who = \"hog\"", "who = \"pig\"", "pig"),
        ] {
            let error = format!("{:#}", cells_of("x", &good.replace(what, wrong), &machines).unwrap_err());
            assert!(error.contains(needle), "{wrong}: {error}");
        }
        assert!(check_machine(&Machine { cpus: 0, ..machine.clone() }).is_err());
        assert!(check_machine(&Machine { memory_mib: 64, ..machine }).is_err());
    }
}
