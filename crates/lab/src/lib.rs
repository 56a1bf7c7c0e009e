// SPDX-License-Identifier: GPL-2.0-only
//! The lab: builds stock and changed kernels from one configuration, boots them alternately in QEMU, runs the
//! same workload in both, and determines by statistics which is better.
//!
//! A comparison uses these modules in turn: [`kernel`] (sources, topics, a bzImage per arm), [`vm`] (an
//! initramfs, a guest, its [`vm::channel::Outcome`]), [`ab`] (pairs of boots, statistics, report). [`checks`]
//! has the tests that `lab test` runs, [`faceoff`] compares low-memory killers, [`documents`] fills the
//! tables of the documentation. [`commands`] has what a user can type.

mod ab;
mod arch;
mod checks;
mod commands;
mod content;
pub mod context;
mod debian;
mod doctor;
mod documents;
mod faceoff;
mod format;
mod host;
mod html;
pub mod kernel;
pub mod progress;
mod stolen;
mod svg;
pub mod vm;

pub use commands::main;
pub use host::end_children;

/// An error in the arguments. Any other error counts as a problem of the host.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct WrongUsage(pub String);
