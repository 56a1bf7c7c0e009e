// SPDX-License-Identifier: GPL-2.0-only
//! Free memory over time, and when the memory of a killed process was back.

pub mod free_memory;
pub mod recorder;
pub mod recovery;
