// SPDX-License-Identifier: GPL-2.0-only
//! `lab ab`: two arms compared. [`catalog`] has the scenarios and their guests, [`experiment`] boots the
//! pairs, [`stats`] compares them, [`results`] is what was found; [`table`] and [`report`] show it, and
//! [`expect`] holds it against what a topic promises.

pub mod catalog;
pub mod expect;
pub mod experiment;
pub mod ranks;
pub mod report;
pub mod results;
pub mod stats;
pub mod table;
pub mod verdict;
