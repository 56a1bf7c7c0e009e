//! Small files of the kernel that are not kept open, read without an allocation.

use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use arrayvec::ArrayString;
use linux::Pid;
use linux::process::{Stat, Statm};
use rustix::fs::{Mode, OFlags};

/// What one read of a file below `dir` gives, as much of it as fits.
pub(super) fn read<'a>(dir: impl AsFd, name: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let len = rustix::io::read(open(dir, name)?, &mut *buffer).ok()?;
    Some(&buffer[..len])
}

/// The /proc/PID/stat of a process, below `proc`.
pub(super) fn stat(proc: impl AsFd, pid: Pid) -> Option<Stat> {
    Stat::parse(Path::new("stat"), of_process(proc, pid, "stat", &mut [0; 1024])?).ok()
}

/// The /proc/PID/statm of a process, below `proc`. All of it is 0 once the process has left its memory.
pub(super) fn statm(proc: impl AsFd, pid: Pid) -> Option<Statm> {
    Statm::parse(Path::new("statm"), of_process(proc, pid, "statm", &mut [0; 256])?).ok()
}

fn of_process<'a>(proc: impl AsFd, pid: Pid, name: &str, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut path = ArrayString::<32>::new();
    write!(path, "{pid}/{name}\0").ok()?;
    read(proc, CStr::from_bytes_with_nul(path.as_bytes()).ok()?, buffer)
}

/// Calls `each` with the lines of a file below `dir`, without their ends: those of the first `most` bytes and
/// a bufferful, up to one that does not fit into `buffer`. `None` when it cannot be read to there.
pub(super) fn each_line(
    dir: impl AsFd,
    name: &CStr,
    buffer: &mut [u8],
    most: usize,
    mut each: impl FnMut(&[u8]),
) -> Option<()> {
    let file = open(dir, name)?;
    // A line may be in two pieces.
    let (mut kept, mut read) = (0, 0);
    loop {
        let got = rustix::io::read(&file, &mut buffer[kept..]).ok()?;
        let len = kept + got;
        let whole = buffer[..len].iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
        buffer[..whole].split(|b| *b == b'\n').for_each(&mut each);
        read += got;
        if got == 0 || read > most {
            return Some(());
        }
        buffer.copy_within(whole..len, 0);
        kept = len - whole;
    }
}

fn open(dir: impl AsFd, name: &CStr) -> Option<OwnedFd> {
    rustix::fs::openat(dir, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_memory_until_it_is_dead() {
        let proc = rustix::fs::open("/proc", OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        assert!(statm(&proc, Pid::own()).unwrap().resident > 0);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::new(child.id().cast_signed()).unwrap();
        child.kill().unwrap();
        while statm(&proc, pid).unwrap().resident > 0 {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(statm(&proc, pid).is_none());
    }

    #[test]
    fn lines_are_whole_wherever_reads_end() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("f"), "one\ntwo\nthree\nfour").unwrap();
        let root = rustix::fs::open(dir.path(), OFlags::PATH | OFlags::DIRECTORY, Mode::empty()).unwrap();
        for size in [6, 7, 9, 64] {
            let mut lines = Vec::new();
            let mut buffer = vec![0; size];
            each_line(&root, c"f", &mut buffer, 1000, |line| {
                if !line.is_empty() {
                    lines.push(String::from_utf8(line.to_vec()).unwrap());
                }
            })
            .unwrap();
            assert_eq!(lines, ["one", "two", "three"], "{size}");
        }
        let mut buffer = [0; 4];
        assert_eq!(each_line(&root, c"none", &mut buffer, 1000, |_| {}), None);
        assert_eq!(read(&root, c"f", &mut buffer).unwrap(), b"one\n");
    }
}
