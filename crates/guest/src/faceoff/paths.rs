// SPDX-License-Identifier: GPL-2.0-only
//! Where the face-off's files are in the guest.

/// Where the payload is unpacked.
pub const FOLDER: &str = "/var/lib/faceoff";
/// The file that the foreground app maps.
pub const APP_FILE: &str = "/var/lib/faceoff/app.data";
/// The folder of the files of loads, on the disk.
pub const DATA_FOLDER: &str = "/var/lib/faceoff/data";
/// The folder of files in memory; no limit but the memory's.
pub const TMPFS_FOLDER: &str = "/var/lib/faceoff/tmpfs";
