//! `memreap doctor`.

use anyhow::Result;

use crate::exit::Exit;

/// Looks, and prints what was found.
pub fn run(_json: bool) -> Result<Exit> {
    Ok(Exit::Unfit)
}
