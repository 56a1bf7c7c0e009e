// SPDX-License-Identifier: GPL-2.0-only
//! The scenarios of `lab ab` by their names.

use anyhow::{Result, bail};
use scenarios::Scenario;

use crate::format;

/// Returns the scenarios of these names, in the given order; all of them if there is no name.
///
/// # Errors
/// When there is no scenario of that name, or a name is given twice.
pub fn select(names: &[String]) -> Result<Vec<&'static Scenario>> {
    if names.is_empty() {
        return Ok(scenarios::all().iter().collect());
    }
    let mut selected: Vec<&'static Scenario> = Vec::new();
    for name in names {
        let Some(scenario) = scenarios::find(name) else {
            bail!(format::no_such("scenario", name, scenarios::all().iter().map(|s| s.name)));
        };
        if selected.iter().any(|s| s.name == scenario.name) {
            bail!("scenario '{name}' is given twice");
        }
        selected.push(scenario);
    }
    Ok(selected)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn control_kernels_with_patches_are_built() {
        let controls = scenarios::controls();
        let mut built: Vec<&str> =
            controls.iter().filter(|c| c.parameters.is_none()).map(|c| c.name).collect();
        let mut named = crate::kernel::CONTROLS.to_vec();
        named.sort_unstable();
        built.sort_unstable();
        assert_eq!(built, named, "each is built, and each is compared with");
    }

    #[test]
    fn scenarios_are_selected_by_name() {
        assert_eq!(select(&[]).unwrap().len(), scenarios::all().len());
        assert_eq!(select(&["reap".into()]).unwrap()[0].name, "reap");
        let unknown = select(&["raep".into()]).unwrap_err().to_string();
        assert!(unknown.contains("raep") && unknown.contains("reap"), "{unknown}");
        assert!(select(&["reap".into(), "reap".into()]).is_err());
    }
}
