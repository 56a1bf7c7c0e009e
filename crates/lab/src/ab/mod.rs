// SPDX-License-Identifier: GPL-2.0-only
//! `lab ab`: compares two arms.
//!
//! crates/scenarios lists the scenarios and their guests, [`experiment`] boots the pairs, [`stats`] computes the
//! verdicts, [`results`] is the file format, [`screen`], [`table`], [`report`], [`picture`] and [`junit`] show the
//! results, and [`expect`] checks them against the expectations of a topic.
//! [`sentence`] says of each scenario what matters most, [`sections`] are the documents' about the scenarios.
//! [`workload`] is a program of the user's in place of a scenario.

pub mod expect;
pub mod experiment;
pub mod junit;
pub mod picture;
pub mod ranks;
pub mod report;
pub mod results;
pub mod screen;
pub mod sections;
pub mod sentence;
pub mod stats;
pub mod table;
pub mod workload;
