// SPDX-License-Identifier: GPL-2.0-only
//! Reads the file of a configuration, whatever kind of file it is.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

/// The largest file that is taken for a configuration. The errors in one that is no TOML can take more than 400 times
/// as much memory, of which the daemon may have little.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// How often a file that changes while it is read is read again.
const MAX_TRIES: usize = 3;

/// The text of the file and whether other users can change it, or what is wrong with it; `None` when there is
/// none.
pub(super) fn read(path: &Path) -> Result<Option<(String, bool)>, String> {
    for _ in 0..MAX_TRIES {
        // A FIFO without a writer would be waited for.
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
        let file = match opened {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(|e| cannot(&e))?,
        };
        let before = file.metadata().map_err(|e| cannot(&e))?;
        if !before.is_file() {
            return Err("is not a regular file: name the file that holds the configuration".to_owned());
        }
        let mut bytes = Vec::new();
        (&file).take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| cannot(&e))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(format!("is larger than {} KiB: this cannot be a configuration", MAX_FILE_BYTES >> 10));
        }
        if same(&before, &file).map_err(|e| cannot(&e))? {
            return match String::from_utf8(bytes) {
                Ok(text) => Ok(Some((text, others_can_write(&before)))),
                Err(e) => {
                    let at = e.utf8_error().valid_up_to();
                    let line = 1 + e.as_bytes()[..at].iter().filter(|b| **b == b'\n').count();
                    Err(format!("is not UTF-8 in line {line}: save it with that encoding"))
                }
            };
        }
    }
    Err("changes while it is read: write a new file and rename it to this name".to_owned())
}

fn cannot(error: &io::Error) -> String {
    let remedy = match error.kind() {
        io::ErrorKind::PermissionDenied => ": let memreap's user read it",
        _ => "",
    };
    format!("cannot be read: {error}{remedy}")
}

/// Whether a user other than root and the caller can change the file.
fn others_can_write(file: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    file.mode() & 0o022 != 0 || ![0, own].contains(&file.uid())
}

/// Whether the file is still what it was. Half a file can be a configuration, too.
fn same(before: &Metadata, file: &File) -> io::Result<bool> {
    let after = file.metadata()?;
    let facts = |m: &Metadata| (m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec());
    Ok(facts(before) == facts(&after))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn what_is_no_file_is_told_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &fifo,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let large = dir.path().join("large");
        File::create(&large).unwrap().set_len(1 << 40).unwrap();
        let latin = dir.path().join("latin");
        fs::write(&latin, b"[act]\n# gr\xfc\xdfe\n").unwrap();

        let began = Instant::now();
        let wrong = |path: &Path| read(path).unwrap_err();
        assert!(wrong(&fifo).contains("not a regular file"));
        assert!(wrong(dir.path()).contains("not a regular file"));
        assert!(wrong(Path::new("/dev/zero")).contains("not a regular file"));
        assert!(wrong(&large).contains("larger than 64 KiB"));
        assert!(wrong(&latin).contains("not UTF-8 in line 2"));
        assert!(wrong(Path::new("/proc/self/mem/x")).contains("cannot be read"));
        assert_eq!(read(&dir.path().join("none")), Ok(None));
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_file_is_read_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.toml");
        let text = "# ä\n".repeat(10_000);
        fs::write(&path, &text).unwrap();
        for (mode, others_can_write) in [(0o644, false), (0o664, true), (0o646, true), (0o600, false)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(read(&path), Ok(Some((text.clone(), others_can_write))), "{mode:o}");
        }
    }
}
