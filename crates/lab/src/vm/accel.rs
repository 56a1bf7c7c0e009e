// SPDX-License-Identifier: GPL-2.0-only
//! QEMU's accelerators.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::format;

/// What executes the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// The host's processor.
    Kvm,
    /// QEMU's emulator.
    Tcg,
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format::name_of(self))
    }
}
