//! Guests: initramfs, QEMU, console, channel, and one boot from start to verdict.

pub mod accel;
pub mod boot;
pub mod channel;
pub mod console;
pub mod image;
pub(crate) mod lanes;
