// SPDX-License-Identifier: GPL-2.0-only
//! The messages between the lab and its guests: one set of types for both ends.
//!
//! [`job`] is the lab's request to a guest, [`results`] the guest's answer; [`faceoff`] has both for the
//! face-off's guest, and [`load`] what happens there. All messages are JSON, one value per line ([`mod@line`]). Guest and lab are built from
//! the same checkout, so an unknown field is a bug and is refused, not ignored.

pub mod faceoff;
pub mod job;
pub mod line;
pub mod load;
pub mod results;
