// SPDX-License-Identifier: GPL-2.0-only
//! What the lab and its guests say to each other: one set of types for both ends.
//!
//! [`job`] is what the lab asks of a guest, [`results`] what the guest answers, and [`faceoff`] both for
//! the face-off's guest. Everything is JSON, one value per line ([`line`]). Guest and lab are built from
//! one checkout, so a field that one end does not know is a mistake: it is refused, not ignored.

pub mod faceoff;
pub mod job;
pub mod line;
pub mod results;
