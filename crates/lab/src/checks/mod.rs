// SPDX-License-Identifier: GPL-2.0-only
//! `lab test` ([`suite`]) and the checks that run in guests: [`kunit`], [`selftests`], [`stress`], [`soak`].

pub mod kunit;
mod passes;
pub mod selftests;
mod skips;
pub mod soak;
pub mod stress;
pub mod suite;
mod tap;
mod times;
