// SPDX-License-Identifier: GPL-2.0-only
//! Builds the initramfs: `/init`, busybox, the job, and for jobs that need them the scenarios and `memreap`.
//!
//! The kernel accepts several concatenated cpio archives; later ones override earlier ones. The first archive
//! is the same for all boots, the second has the job's overlay and `/job.json`. They are written here because an arm
//! may be a bzImage without a build folder, and so without `usr/gen_init_cpio`.

use fs_err::{self as fs, File};
use std::collections::BTreeSet;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use cpio::newc;
use sha2::{Digest as _, Sha256};

use crate::content::hex;
use crate::context::Context;
use crate::host;
use crate::progress::unpoisoned;
use crate::vm::job::{GuestCommand, Job};

/// How long an image is kept that no boot uses: each selftest and each change of the guest makes one of some megabytes.
const UNUSED_IMAGE_LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Builds the initramfs for `job` and returns its path in the output folder. The name is a hash of the
/// content, so that the command of a boot can be repeated and equal jobs share one file.
///
/// # Errors
/// When the guest's programs do not build, busybox is missing or not static, an overlay file
/// cannot be read, or the file cannot be written.
pub fn build(ctx: &Context, job: &Job) -> Result<PathBuf> {
    let Common { mut image, guest, memreap } = common(ctx)?;
    let mut cpio = Newc::default();
    if let GuestCommand::Scenario { .. } = job.command {
        cpio.file("/bin/guest", 0o755, &guest)?;
    }
    if job.memreap {
        cpio.file("/bin/memreap", 0o755, &memreap)?;
    }
    // A file system with programs has its own libraries.
    let (below, libraries) = if job.root.is_some() { (protocol::job::OVERLAY, false) } else { ("", true) };
    for (from, to) in &job.overlay {
        add_overlay(&mut cpio, from, &format!("{below}{to}"), libraries)?;
    }
    let request = protocol::job::Job { command: job.command.clone(), has_root: job.root.is_some() };
    cpio.file(protocol::job::PATH, 0o644, &serde_json::to_vec(&request)?)?;
    image.extend(cpio.finish()?);

    let folder = ctx.out.join("initrd");
    // Threads of this process take a mutex first: the file lock would note that another lab is being waited
    // for.
    static WITHIN_PROCESS: Mutex<()> = Mutex::new(());
    let _turn = unpoisoned(&WITHIN_PROCESS);
    let _lock = host::lock(ctx, &folder)?;
    fs::create_dir_all(&folder)?;
    let path = folder.join(format!("{}.cpio", hex(&Sha256::digest(&image)[..8])));
    if path.exists() {
        // The modification time is the time of last use.
        File::options().append(true).open(&path)?.set_modified(SystemTime::now())?;
    } else {
        host::remove_older(&folder, UNUSED_IMAGE_LIFETIME);
        let staging = host::Staging::begin(&path)?;
        fs::write(staging.path(), &image)?;
        staging.publish(&path)?;
    }
    Ok(path)
}

/// The parts that are the same for all guests.
#[derive(Clone)]
struct Common {
    /// The archive that every guest has.
    image: Vec<u8>,
    /// The program with the scenarios, for guests that run a scenario.
    guest: Vec<u8>,
    /// The program memreap, for guests that need it.
    memreap: Vec<u8>,
}

/// Returns the common parts, built once per process: the guest must not change during a comparison because
/// its source is edited meanwhile.
fn common(ctx: &Context) -> Result<Common> {
    static CACHED: Mutex<Option<Common>> = Mutex::new(None);
    let mut made = unpoisoned(&CACHED);
    if let Some(common) = &*made {
        return Ok(common.clone());
    }
    let built = build_guest(ctx)?;
    let mut cpio = Newc::default();
    for dir in ["/dev", "/proc", "/sys", "/tmp", "/run", "/root", "/etc", "/bin", "/sbin", "/usr/bin"] {
        cpio.dir(dir)?;
    }
    // The kernel opens the console before PID 1 can mount devtmpfs.
    cpio.char_device("/dev/console", 0o600, 5, 1)?;
    cpio.char_device("/dev/null", 0o666, 1, 3)?;
    cpio.file("/init", 0o755, &fs::read(built.join("init"))?)?;
    cpio.file("/etc/passwd", 0o644, b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")?;
    cpio.file("/etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;

    cpio.file("/bin/busybox", 0o755, &fs::read(busybox(ctx)?)?)?;
    // By the host's, which can run here.
    for applet in host::output(host::tool("busybox").arg("--list"))?.lines() {
        if applet != "busybox" {
            cpio.symlink(&format!("/bin/{applet}"), "/bin/busybox")?;
        }
    }
    let program = |name| fs::read(built.join(name));
    let common = Common { image: cpio.finish()?, guest: program("guest")?, memreap: program("memreap")? };
    *made = Some(common.clone());
    Ok(common)
}

/// Builds the static programs for the guest and returns their folder. They have their own target folder
/// because their flags differ, and because a cargo that runs this lab may have locked the usual one.
pub(crate) fn build_guest(ctx: &Context) -> Result<PathBuf> {
    let packages = ["init", "guest", "memreap"];
    build_static(ctx, "release", &packages, ctx.arch.guest_features(), "building the guest's programs")
}

/// Builds memreap with the profile of its package (optimised for memory use), but static; returns its folder.
pub(crate) fn build_packaged(ctx: &Context) -> Result<PathBuf> {
    build_static(ctx, "dist", &["memreap"], &[], "building memreap as it is packaged")
}

/// Builds the program `name` of the crate of that name on crates.io, static as well, unless that was done before;
/// returns its path in the cache.
pub(crate) fn build_crate(ctx: &Context, name: &str, version: &str) -> Result<PathBuf> {
    let step = ctx.progress.step(&format!("building {name} {version}"));
    let folder = ctx.cache.join("crates").join(format!("{name}-{version}"));
    let _lock = host::lock(ctx, &folder)?;
    let mut cargo = cargo(ctx, "install");
    cargo.args(["--locked", "--quiet", "--target", ctx.arch.rust_target(), "--root"]);
    cargo.arg(&folder).arg(format!("{name}@={version}"));
    host::run_step(&step, &mut cargo, &ctx.out.join("logs").join(format!("{name}.log")))?;
    step.done("");
    Ok(folder.join("bin").join(name))
}

/// A cargo that builds static programs.
fn cargo(ctx: &Context, subcommand: &str) -> Command {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg(subcommand);
    cargo.env("RUSTFLAGS", "-C target-feature=+crt-static").env_remove("CARGO_ENCODED_RUSTFLAGS");
    if !ctx.arch.is_native() {
        let variable = ctx.arch.rust_target().replace('-', "_").to_uppercase();
        cargo.env(format!("CARGO_TARGET_{variable}_LINKER"), format!("{}gcc", ctx.arch.tool_prefix()));
    }
    cargo
}

fn build_static(ctx: &Context, profile: &str, packages: &[&str], features: &[&str], what: &str) -> Result<PathBuf> {
    let step = ctx.progress.step(what);
    let folder = ctx.in_repo("target/guest");
    host::ensure_packages(ctx, host::cross_packages(ctx.arch))?;
    ensure_rust_target(ctx)?;
    let mut cargo = cargo(ctx, "build");
    cargo
        .args(["--locked", "--profile", profile])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .args(features)
        .args(["--target", ctx.arch.rust_target(), "--manifest-path"])
        .arg(ctx.in_repo("Cargo.toml"))
        .arg("--target-dir")
        .arg(&folder);
    host::run_step(&step, &mut cargo, &ctx.out.join("logs/guest.log"))?;
    step.done("");
    Ok(folder.join(ctx.arch.rust_target()).join(profile))
}

/// Installs what of Rust is needed for programs of the guest's architecture.
///
/// # Errors
/// When it is missing and there is no rustup.
fn ensure_rust_target(ctx: &Context) -> Result<()> {
    if ctx.arch.is_native() {
        return Ok(());
    }
    let target = ctx.arch.rust_target();
    // In the user's environment, as cargo: it says where rustup keeps what (RUSTUP_HOME).
    let sysroot = host::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    if Path::new(sysroot.trim()).join("lib/rustlib").join(target).is_dir() {
        return Ok(());
    }
    ensure!(
        host::find_tool("rustup").is_some(),
        "Rust's libraries for {target} are missing; install them (rustup target add {target}, or the package \
         libstd-rust-dev of that architecture)"
    );
    let step = ctx.progress.step(&format!("installing Rust's libraries for {target}"));
    let log = ctx.out.join("logs/rustup.log");
    host::run_step(&step, Command::new("rustup").args(["target", "add", target]), &log)?;
    step.done("");
    Ok(())
}

/// Returns a static busybox; for another architecture than the host's from Debian's package, which is kept in
/// the cache.
///
/// # Errors
/// When it is not installed, or cannot be downloaded.
fn busybox(ctx: &Context) -> Result<PathBuf> {
    if ctx.arch.is_native() {
        return host::find_tool("busybox")
            .context("no busybox in PATH; install it with: sudo apt-get install busybox-static");
    }
    // apt as on a machine of that architecture, and without this one's state.
    const SCRIPT: &str = r#"set -eu
        mkdir -p "$1/apt/lists/partial" "$1/apt/archives/partial"; : >"$1/apt/status"; cd "$1"
        set -- -qq -o APT::Architecture="$2" -o APT::Architectures="$2" -o Dir::State="$PWD/apt" \
            -o Dir::State::status="$PWD/apt/status" -o Dir::Cache="$PWD/apt"
        apt-get "$@" update; apt-get "$@" download busybox-static
        dpkg-deb -x busybox-static_*.deb .; rm -r apt *.deb"#;
    let debian = ctx.arch.debian_name();
    let home = ctx.cache.join(format!("busybox-{debian}"));
    host::made_once(ctx, &home, |staging| {
        let step = ctx.progress.step(&format!("downloading busybox for {debian}"));
        let mut shell = host::tool("sh");
        shell.args(["-c", SCRIPT, "sh"]).arg(staging).arg(debian);
        host::run_step(&step, &mut shell, &ctx.out.join("logs/busybox.log"))?;
        step.done("");
        Ok(())
    })?;
    Ok(home.join("bin/busybox"))
}

/// Adds a file or a folder with its content; links are followed. With `libraries` the shared libraries of executables
/// are added at the paths that they have on the host.
fn add_overlay(cpio: &mut Newc, from: &Path, to: &str, libraries: bool) -> Result<()> {
    let meta = fs::metadata(from)?;
    if meta.is_dir() {
        cpio.dir(to)?;
        let mut entries = fs::read_dir(from)?.collect::<std::io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let to = format!("{to}/{}", entry.file_name().to_string_lossy());
            add_overlay(cpio, &entry.path(), &to, libraries)?;
        }
        return Ok(());
    }
    let content = fs::read(from)?;
    let executable = meta.permissions().mode() & 0o111 != 0;
    cpio.file(to, if executable { 0o755 } else { 0o644 }, &content)?;
    if libraries && executable && content.starts_with(b"\x7fELF") {
        for library in host::shared_libraries(from)? {
            let name = library.to_string_lossy().into_owned();
            if !cpio.has(&name) {
                cpio.file(&name, 0o755, &fs::read(&library)?)?;
            }
        }
    }
    Ok(())
}

/// Writes a cpio archive in the kernel's "newc" format, with the folders that files are in. Equal calls yield equal
/// bytes.
#[derive(Default)]
struct Newc {
    bytes: Vec<u8>,
    names: BTreeSet<String>,
}

impl Newc {
    const DIR: u32 = 0o040_000;
    const FILE: u32 = 0o100_000;
    const LINK: u32 = 0o120_000;
    const CHAR: u32 = 0o020_000;

    fn has(&self, path: &str) -> bool {
        self.names.contains(path.trim_start_matches('/'))
    }

    fn dir(&mut self, path: &str) -> Result<()> {
        self.entry(path, Self::DIR | 0o755, (0, 0), &[])
    }

    fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> Result<()> {
        self.entry(path, Self::FILE | mode, (0, 0), content)
    }

    fn symlink(&mut self, path: &str, target: &str) -> Result<()> {
        self.entry(path, Self::LINK | 0o777, (0, 0), target.as_bytes())
    }

    fn char_device(&mut self, path: &str, mode: u32, major: u32, minor: u32) -> Result<()> {
        self.entry(path, Self::CHAR | mode, (major, minor), &[])
    }

    /// Adds an entry, and before it the folders that it is in.
    fn entry(&mut self, path: &str, mode: u32, device: (u32, u32), content: &[u8]) -> Result<()> {
        let name = path.trim_start_matches('/');
        ensure!(
            path.starts_with('/') && !name.is_empty() && !name.contains('\0'),
            "'{path}' is no absolute path for a file in the guest"
        );
        if let Some((parent, _)) = name.rsplit_once('/')
            && !self.names.contains(parent)
        {
            self.dir(&format!("/{parent}"))?;
        }
        if mode & Self::DIR == Self::DIR && self.names.contains(name) {
            return Ok(());
        }
        self.names.insert(name.to_owned());
        let size = u32::try_from(content.len()).with_context(|| format!("/{name}: 4 GiB or more"))?;
        let entry = newc::Builder::new(name).mode(mode).nlink(1).rdev_major(device.0).rdev_minor(device.1);
        let mut entry = entry.write(&mut self.bytes, size);
        entry.write_all(content)?;
        entry.finish()?;
        Ok(())
    }

    fn finish(self) -> Result<Vec<u8>> {
        Ok(newc::trailer(self.bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The host's cpio can read the archives.
    #[test]
    fn cpio_agrees_on_the_format() {
        let mut newc = Newc::default();
        newc.char_device("/dev/console", 0o600, 5, 1).unwrap();
        newc.file("/a/b/hello", 0o755, b"hello\n").unwrap();
        newc.symlink("/a/link", "/a/b/hello").unwrap();
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("x.cpio");
        fs::write(&archive, newc.finish().unwrap()).unwrap();
        if host::find_tool("cpio").is_none() {
            testing::skipped("no cpio here");
            return;
        }
        let listing = host::output(Command::new("cpio").args(["-itv", "--quiet", "-F"]).arg(&archive)).unwrap();
        let lines: Vec<Vec<&str>> = listing.lines().map(|l| l.split_whitespace().collect()).collect();
        let modes: Vec<_> = lines.iter().map(|l| l[0]).collect();
        assert_eq!(modes, ["drwxr-xr-x", "crw-------", "drwxr-xr-x", "drwxr-xr-x", "-rwxr-xr-x", "lrwxrwxrwx"]);
        assert!(listing.contains("5,   1"), "{listing}");
        assert!(listing.contains("a/link -> /a/b/hello"), "{listing}");
        let extract = "cd \"$1\" && cpio -id --quiet a/b/hello < x.cpio && cat a/b/hello";
        let content = host::output(Command::new("sh").args(["-c", extract, "sh"]).arg(dir.path())).unwrap();
        assert_eq!(content, "hello\n");
    }

    #[test]
    fn an_overlay_brings_its_libraries() {
        let mut newc = Newc::default();
        add_overlay(&mut newc, Path::new("/bin/ls"), "/opt/ls", true).unwrap();
        assert!(newc.has("/opt/ls"));
        assert!(newc.names.iter().any(|n| n.contains("libc.so")), "{:?}", newc.names);
        assert!(newc.names.iter().any(|n| n.contains("ld-linux")), "{:?}", newc.names);
        let mut alone = Newc::default();
        add_overlay(&mut alone, Path::new("/bin/ls"), "/opt/ls", false).unwrap();
        assert_eq!(alone.names.iter().collect::<Vec<_>>(), ["opt", "opt/ls"]);
    }

    #[test]
    fn a_missing_overlay_is_named() {
        let error = add_overlay(&mut Newc::default(), Path::new("/no/such"), "/x", true).unwrap_err();
        assert!(format!("{error:#}").contains("/no/such"), "{error:#}");
        let error = Newc::default().file("relative", 0o644, b"").unwrap_err();
        assert!(error.to_string().contains("'relative' is no absolute path"), "{error}");
    }
}
