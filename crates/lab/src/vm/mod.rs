// SPDX-License-Identifier: GPL-2.0-only
//! Guests.
//!
//! [`boot`] runs one guest from start to outcome. [`job`] is what to boot and run, [`image`] builds the
//! initramfs, [`root`] a disk with a root file system, [`probe`] chooses the accelerator, [`qemu`] makes the command
//! line. [`logs`], [`console`] and [`channel`] read what the guest writes. [`parallel`] runs several guests at a time.

pub mod boot;
pub mod channel;
pub(crate) mod console;
pub(crate) mod image;
pub mod job;
pub(crate) mod logs;
pub(crate) mod parallel;
pub mod probe;
pub(crate) mod qemu;
pub(crate) mod root;
mod terminal;
