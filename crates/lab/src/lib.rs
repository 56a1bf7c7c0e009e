// SPDX-License-Identifier: GPL-2.0-only
//! The lab: builds stock and changed kernels from one configuration, boots both in QEMU alternating, runs the
//! same work in both and says, with statistics, which is better.
//!
//! The way of one comparison through the modules:
//! [`kernel`] (sources, topics, a bzImage per arm), [`vm`] (an initramfs, one guest, one
//! [`vm::channel::Outcome`]), [`ab`] (pairs of boots, statistics, report). [`checks`] are the tests that
//! `lab test` runs, [`faceoff`] compares low-memory killers.

pub mod ab;
pub mod checks;
mod content;
pub mod context;
pub mod doctor;
pub mod documents;
pub mod faceoff;
pub mod format;
pub mod host;
mod html;
pub mod kernel;
pub mod progress;
pub mod vm;
