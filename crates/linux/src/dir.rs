// SPDX-License-Identifier: GPL-2.0-only
//! An open directory, and the files in it: read into the caller's buffers, without allocating.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RawDir, Statx, StatxFlags};
use rustix::io::Errno;

use crate::{Error, Result, read};

/// Why something could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no such process, or it has no such file, or, where memory was asked for, no memory.
    Gone,
    /// EPERM or EACCES.
    Denied,
    /// The content is not what the kernel writes, or does not fit into the buffer.
    Malformed,
    /// Another error of the kernel's.
    Other(Errno),
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::NOENT | Errno::SRCH => Self::Gone,
            Errno::PERM | Errno::ACCESS => Self::Denied,
            errno => Self::Other(errno),
        }
    }
}

/// An open directory (`O_PATH`). It stays the same directory when another one gets its path.
#[derive(Debug)]
pub struct Dir(OwnedFd);

impl Dir {
    /// Opens a directory.
    ///
    /// # Errors
    /// When there is none, or it may not be searched.
    pub fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => Ok(Self(fd)),
            Err(errno) => Err(Error::io(path, errno)),
        }
    }

    /// Opens a directory in this one. Does not follow a symbolic link.
    ///
    /// # Errors
    /// When there is none, or it may not be searched.
    pub fn open_dir(&self, name: &CStr) -> std::result::Result<Self, Failure> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(Self(rustix::fs::openat(&self.0, name, flags, Mode::empty())?))
    }

    /// Reads all of a file.
    ///
    /// # Errors
    /// When it cannot be read; [`Failure::Malformed`] when it does not fit into `buffer`.
    pub fn read<'b>(&self, name: &CStr, buffer: &'b mut [u8]) -> std::result::Result<&'b [u8], Failure> {
        let (len, whole) = self.fill(name, buffer)?;
        if whole { Ok(&buffer[..len]) } else { Err(Failure::Malformed) }
    }

    /// Reads where a symbolic link leads to.
    ///
    /// # Errors
    /// When it cannot be read; [`Failure::Malformed`] when it does not fit into `buffer`.
    pub fn read_link<'b>(&self, name: &CStr, buffer: &'b mut [u8]) -> std::result::Result<&'b [u8], Failure> {
        let len = rustix::fs::readlinkat_raw(&self.0, name, &mut *buffer)?;
        if len < buffer.len() { Ok(&buffer[..len]) } else { Err(Failure::Malformed) }
    }

    /// Reads as much of a file as fits into `buffer`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read_start<'b>(&self, name: &CStr, buffer: &'b mut [u8]) -> std::result::Result<&'b [u8], Failure> {
        let (len, _) = self.fill(name, buffer)?;
        Ok(&buffer[..len])
    }

    /// Opens a file, to be read again and again.
    ///
    /// # Errors
    /// When there is none, or it may not be read.
    pub fn open_file(&self, name: &CStr) -> std::result::Result<OpenFile, Failure> {
        Ok(OpenFile(read::open_at(&self.0, name)?))
    }

    /// Calls `each` with the lines of a file, without their ends, until it returns false, and up to one that does not
    /// fit into `buffer`. A line without an end is left out.
    ///
    /// # Errors
    /// When the file cannot be read up to there.
    pub fn for_each_line(
        &self,
        name: &CStr,
        buffer: &mut [u8],
        mut each: impl FnMut(&[u8]) -> bool,
    ) -> std::result::Result<(), Failure> {
        let file = read::open_at(&self.0, name)?;
        // A line may be in two pieces.
        let mut kept = 0;
        loop {
            let got = read::some(&file, &mut buffer[kept..])?;
            let len = kept + got;
            let whole = buffer[..len].iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1);
            let mut lines = buffer[..whole].split_inclusive(|b| *b == b'\n');
            if !lines.all(|line| each(&line[..line.len() - 1])) || got == 0 {
                return Ok(());
            }
            buffer.copy_within(whole..len, 0);
            kept = len - whole;
        }
    }

    /// Calls `each` with each name in the directory but "." and "..", and whether it is a directory itself (as far
    /// as the file system says), until it returns false. `buffer` is best some 32 KiB.
    ///
    /// # Errors
    /// When the directory cannot be read to its end.
    pub fn for_each_entry(
        &self,
        buffer: &mut [MaybeUninit<u8>],
        mut each: impl FnMut(&CStr, bool) -> bool,
    ) -> std::result::Result<(), Failure> {
        // Opened anew: each listing has a position of its own.
        let listing = self.open_listing(c".")?;
        let mut entries = RawDir::new(&listing, buffer);
        while let Some(entry) = entries.next() {
            match entry {
                Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
                Ok(entry) => {
                    if !each(entry.file_name(), entry.file_type() == FileType::Directory) {
                        break;
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Writes to an existing file, by one write(2).
    ///
    /// # Errors
    /// When there is no such file, it may not be written, or the kernel refuses the value or takes only a
    /// part of it.
    pub fn write(&self, name: &CStr, bytes: &[u8]) -> std::result::Result<(), Failure> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.0, name, flags, Mode::empty())?;
        match rustix::io::write(&file, bytes)? {
            len if len == bytes.len() => Ok(()),
            _ => Err(Failure::Malformed),
        }
    }

    /// Whether there is a file of this name that may be written.
    pub fn may_write(&self, name: &CStr) -> bool {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.0, name, flags, Mode::empty()).is_ok()
    }

    /// Whether there is something of this name.
    pub fn has(&self, name: &CStr) -> bool {
        rustix::fs::statat(&self.0, name, AtFlags::empty()).is_ok()
    }

    /// Whether it has no directories in it: by its number of links, which file systems that count them, as that of
    /// cgroups does, have at 2 then. Of others nothing is known.
    pub fn is_leaf(&self) -> bool {
        rustix::fs::fstat(&self.0).is_ok_and(|stat| stat.st_nlink == 2)
    }

    /// Returns the device of a file, its number and its blocks, as far as the kernel knows them: a server that does not
    /// answer is not waited for. Follows a symbolic link.
    ///
    /// # Errors
    /// When there is none, or it may not be followed.
    pub fn stat(&self, name: &CStr) -> std::result::Result<Statx, Failure> {
        Ok(rustix::fs::statx(&self.0, name, AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::BLOCKS)?)
    }

    /// Returns the user who owns it.
    pub fn owner(&self) -> Option<u32> {
        rustix::fs::fstat(&self.0).ok().map(|stat| stat.st_uid)
    }

    /// Whether it has an extended attribute with this value.
    pub fn has_attribute(&self, name: &CStr, value: &[u8]) -> bool {
        // Not from a descriptor that is O_PATH.
        let Ok(dir) = self.open_listing(c".") else { return false };
        let mut got = [0; 16];
        rustix::fs::fgetxattr(&dir, name, &mut got[..]).is_ok_and(|len| got[..len] == *value)
    }

    /// Opens another directory by a path below this one, for reading its names.
    fn open_listing(&self, name: &CStr) -> std::result::Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::io::retry_on_intr(|| rustix::fs::openat(&self.0, name, flags, Mode::empty()))
    }

    /// Fills `buffer` with the beginning of a file. Returns the length, and whether that is all of the file.
    fn fill(&self, name: &CStr, buffer: &mut [u8]) -> std::result::Result<(usize, bool), Failure> {
        let file = read::open_at(&self.0, name)?;
        let mut len = 0;
        loop {
            if len == buffer.len() {
                // Whether that is all is not known.
                return Ok((len, false));
            }
            match read::some(&file, &mut buffer[len..])? {
                0 => return Ok((len, true)),
                got => len += got,
            }
        }
    }
}

/// A file that stays open. As [`Source`](crate::Source), without its path, so that opening it allocates nothing either.
#[derive(Debug)]
pub struct OpenFile(OwnedFd);

impl OpenFile {
    /// Reads all that it says now.
    ///
    /// # Errors
    /// When it cannot be read; [`Failure::Malformed`] when it has as many bytes as `buffer` or more.
    pub fn read<'b>(&self, buffer: &'b mut [u8]) -> std::result::Result<&'b [u8], Failure> {
        read::again(&self.0, buffer)?.ok_or(Failure::Malformed)
    }
}

impl AsFd for Dir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn lines_are_whole_wherever_reads_end() {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("f"), "one\ntwo\nthree\nfour").unwrap();
        let dir = Dir::open(tree.path()).unwrap();
        for size in [6, 7, 9, 64] {
            let mut lines = Vec::new();
            let mut buffer = vec![0; size];
            dir.for_each_line(c"f", &mut buffer, |line| {
                lines.push(String::from_utf8(line.to_vec()).unwrap());
                true
            })
            .unwrap();
            assert_eq!(lines, ["one", "two", "three"], "{size}");
            let mut count = 0;
            dir.for_each_line(c"f", &mut buffer, |line| {
                count += 1;
                line != b"two"
            })
            .unwrap();
            assert_eq!(count, 2);
        }
        let mut buffer = [0; 4];
        assert_eq!(dir.for_each_line(c"none", &mut buffer, |_| true), Err(Failure::Gone));
        assert_eq!(dir.read_start(c"f", &mut buffer), Ok(&b"one\n"[..]));
        assert_eq!(dir.read(c"f", &mut buffer), Err(Failure::Malformed));
        assert_eq!(dir.read(c"f", &mut [0; 64]).unwrap().len(), 18);
    }

    #[test]
    fn existing_files_are_written_and_none_are_made() {
        let tree = tempfile::tempdir().unwrap();
        fs::create_dir(tree.path().join("a")).unwrap();
        fs::write(tree.path().join("a/f"), "").unwrap();
        std::os::unix::fs::symlink("a", tree.path().join("link")).unwrap();
        let dir = Dir::open(tree.path()).unwrap();
        assert!(dir.open_dir(c"link").is_err());
        let below = dir.open_dir(c"a").unwrap();
        below.write(c"f", b"1").unwrap();
        assert_eq!(fs::read(tree.path().join("a/f")).unwrap(), b"1");
        assert_eq!(below.write(c"new", b"1"), Err(Failure::Gone));
        assert!(below.has(c"f") && !below.has(c"new"));
        let mut names = Vec::new();
        dir.for_each_entry(&mut [MaybeUninit::uninit(); 512], |name, is_dir| {
            names.push((name.to_str().unwrap().to_owned(), is_dir));
            true
        })
        .unwrap();
        names.sort();
        assert_eq!(names.len(), 2, "{names:?}");
        assert!(names.contains(&("a".to_owned(), true)) && names.contains(&("link".to_owned(), false)));
    }
}
