// SPDX-License-Identifier: GPL-2.0-only
//! `lab doctor`.

use anyhow::Result;
use clap::Args;

use crate::context::Context;
use crate::doctor;

use super::exit;

/// Check what the lab needs of this host and say how to get what is missing
#[derive(Args)]
pub struct DoctorArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub json: bool,
}

/// Prints what was found, and returns the exit code.
pub fn run(ctx: &Context, args: &DoctorArgs) -> Result<u8> {
    let findings = doctor::examine(ctx)?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        print!("{}", doctor::render(&findings));
    }
    Ok(if doctor::healthy(&findings) { 0 } else { exit::HOST })
}
