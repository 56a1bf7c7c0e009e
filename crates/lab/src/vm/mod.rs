// SPDX-License-Identifier: GPL-2.0-only
//! Guests: what is booted ([`job`]), from which initramfs ([`image`]), under which accelerator
//! ([`probe`]), by which QEMU command line ([`qemu`]); what it said ([`logs`], [`console`], [`channel`]);
//! and one boot from start to verdict ([`boot`]).

pub mod accel;
pub mod boot;
pub mod channel;
pub mod console;
pub mod image;
pub mod job;
pub(crate) mod logs;
pub(crate) mod parallel;
pub mod probe;
pub(crate) mod qemu;
mod terminal;
