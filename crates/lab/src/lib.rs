//! The lab: builds stock and changed kernels from one configuration, boots both in QEMU in
//! turns, runs the same work in both and says, with statistics, which is better.
//!
//! The way of one comparison through the modules:
//! [`source`] -> [`topics`] -> [`kernel`] (a bzImage per arm), [`image`] (the initramfs),
//! [`boot`] (one guest, one [`channel::Outcome`]), [`experiment`] (pairs of boots),
//! [`stats`] -> [`results`] -> [`table`] and [`report`].

pub mod accel;
pub mod boot;
pub mod catalog;
pub mod channel;
pub mod console;
pub mod content;
pub mod context;
pub mod doctor;
pub mod expect;
pub mod experiment;
pub mod faceoff;
pub mod host;
pub mod image;
mod kept;
pub mod kernel;
pub mod kunit;
mod lanes;
mod passes;
pub mod progress;
pub mod ranks;
pub mod report;
pub mod results;
pub mod selftests;
pub mod series;
mod skips;
pub mod soak;
pub mod source;
pub mod stats;
pub mod stress;
pub mod suite;
pub mod table;
mod tap;
mod times;
pub mod topics;
