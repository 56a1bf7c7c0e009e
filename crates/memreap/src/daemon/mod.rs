// SPDX-License-Identifier: GPL-2.0-only
//! `memreap daemon`: watches memory, and kills before the machine freezes.
//!
//! [`decide`] says when to act, [`crate::choice`] which process to kill, [`act`] kills it and gets its memory
//! back, [`report`] informs the journal, the service manager and others, and [`run`] starts all of it and
//! waits for events.

pub mod act;
pub mod decide;
pub mod report;
pub mod run;
