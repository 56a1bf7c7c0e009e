// SPDX-License-Identifier: GPL-2.0-only
//! Finds processes, kills them and gets their memory back.

pub mod engine;
pub mod method;
pub(crate) mod prestarted;
pub mod set;
pub mod signal;
pub mod target;
pub mod victim;

pub use engine::{Armed, KernelFeatures, WaitEnd, Whole};
pub use method::Method;
pub use prestarted::raise_priority;
pub use set::SetName;
pub use signal::{FirstSignal, SignalFirst};
pub use victim::{Fate, Outcome, Victim};
