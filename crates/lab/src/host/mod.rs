// SPDX-License-Identifier: GPL-2.0-only
//! The host: its programs, files and packages, and the end by Ctrl-C.
//!
//! Every child process has its own process group and dies with the lab. Files and folders are built under a
//! temporary name ([`Staging`]). An interrupt kills the children and removes the stagings, so a later run
//! finds either a complete result or none.

mod files;
mod interrupt;
mod packages;
mod process;

pub use files::{Staging, copy_file, files_below, lock, made_once, remove_any, remove_older, write_atomically};
pub use interrupt::{allow_many_files, end_children, exit_cleanly_on_interrupt};
pub use packages::{
    HOSTED_TEST_PACKAGES, KERNEL_BUILD_PACKAGES, KERNEL_DEB_PACKAGES, LINT_PACKAGES, Pkg, Probe, SERIES_PACKAGES,
    SOURCE_PACKAGES, as_root, cross_packages, ensure_packages, find_tool, guest_packages, refresh_apt_lists,
    shared_libraries,
};
pub use process::{Child, command_text, cpus, output, run_logged, run_step, shell_quoted, spawn, tail, tool};
