// SPDX-License-Identifier: GPL-2.0-only
//! Virtio-serial ports, found by the names that QEMU gave them.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// Where the kernel lists the ports.
pub const FOLDER: &str = "/sys/class/virtio-ports";

/// Returns the device node of the port that QEMU's `virtserialport,name=` calls `name`. `None` if there is no
/// such port (yet).
///
/// # Errors
/// When the list of ports exists and cannot be read.
pub fn find(name: &str) -> Result<Option<PathBuf>> {
    let ports = match fs::read_dir(FOLDER) {
        Ok(ports) => ports,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e).context(FOLDER),
    };
    for port in ports.flatten() {
        let found = fs::read_to_string(port.path().join("name")).unwrap_or_default();
        if found.trim_end() == name {
            return Ok(Some(PathBuf::from("/dev").join(port.file_name())));
        }
    }
    Ok(None)
}
