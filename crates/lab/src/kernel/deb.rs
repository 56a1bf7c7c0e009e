// SPDX-License-Identifier: GPL-2.0-only
//! `lab kernel-deb`: Debian packages of the changed kernel, as the kernel's own `bindeb-pkg` makes them.
//!
//! They are built in `trees/<key>/work-deb-<key>` of the cache. That folder stays until its packages are complete, so
//! what was interrupted goes on from there; an abandoned one is removed by a later build, after a day.

use fs_err as fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use walkdir::WalkDir;

use crate::WrongUsage;
use crate::arch::Arch;
use crate::context::Context;
use crate::host::{self, Pkg};
use crate::kernel::config::{self, Request};
use crate::kernel::make::{self, set_time};
use crate::kernel::source::{self, PackageVersion};
use crate::kernel::topics::{self, Topic};
use crate::kernel::{Tree, Variant, build};
use crate::progress::elapsed;

/// What makes BTF of debug information.
const BTF_PACKAGES: &[Pkg] = &[Pkg::tool("dwarves", "pahole")];
/// Where Debian 12 has the configurations of 6.12; Debian 13 has them in its main archive.
const CONFIG_ARCHIVE: &str = "http://deb.debian.org/debian-security bookworm-security main";
/// The keys of who made the configuration are not here; the build makes one of its own, and signs its modules.
const OWN_KEYS: &str = "\
CONFIG_SYSTEM_TRUSTED_KEYS=\"\"
CONFIG_SYSTEM_REVOCATION_KEYS=\"\"
CONFIG_MODULE_SIG_KEY=\"certs/signing_key.pem\"
";
/// One answer to a choice, and not the others.
const NO_DEBUG_INFO: &str = "\
# CONFIG_DEBUG_INFO_DWARF_TOOLCHAIN_DEFAULT is not set
# CONFIG_DEBUG_INFO_DWARF4 is not set
# CONFIG_DEBUG_INFO_DWARF5 is not set
CONFIG_DEBUG_INFO_NONE=y
";

// How many objects ten options have that are built in, or modules, in Debian's configurations of 6.12; what each object
// takes.
const OBJECTS_PER_10_BUILT_IN: usize = 16;
const OBJECTS_PER_10_MODULES: usize = 25;
const CPU_MS_PER_OBJECT: usize = 1200;
const KIB_PER_OBJECT: usize = 250;
/// How many times as much time and disk it takes with debug information.
const DEBUG_INFO_TIME_FACTOR: usize = 2;
const DEBUG_INFO_DISK_FACTOR: usize = 6;

/// Make Debian packages of the changed kernel: image, headers, libc-dev
///
/// The kernel's release is that of the source and -memreap1, so that it is installed beside any other. Prints the
/// packages' paths. What was interrupted goes on where it was, within a day.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  lab kernel-deb                               configured as the kernel that runs here
  lab kernel-deb --localmod                    the same with the modules that are loaded: much faster
  lab --series 7.3 kernel-deb --config cloud   for virtual machines, as Debian does

How to install, try and remove it: docs/kernel-deb.md")]
pub struct DebOptions {
    /// Configured as the kernel that runs here, as Debian's for clouds or for all machines, or by a .config
    #[arg(long, value_name = "running|cloud|generic|FILE", default_value = "running")]
    pub config: String,
    /// Only with the modules that are loaded here, or that a file has, which lsmod wrote on another machine
    #[arg(long, value_name = "FILE", require_equals = true)]
    pub localmod: Option<Option<PathBuf>>,
    /// Keep debug information and BTF, where the configuration has them: about twice the time, six times the disk
    #[arg(long)]
    pub debug_info: bool,
    /// The number at the end of the release; count up to have two builds of one kernel installed
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub revision: u32,
}

/// Builds the packages, unless that was done before, and returns their paths.
///
/// # Errors
/// When there is no source or configuration or not enough room, or the build fails: the message has the compiler's
/// errors, the end of the log and its path.
pub fn packages(ctx: &Context, options: &DebOptions) -> Result<Vec<PathBuf>> {
    ensure!(ctx.arch == Arch::of_host(), "--arch {}: packages are made for {} here", ctx.arch, Arch::of_host());
    let base = base_config(ctx, &options.config)?;
    let modules = options.localmod.as_ref().map(|file| modules(file.as_deref())).transpose()?;
    make::prepare_host(ctx)?;
    host::ensure_packages(ctx, host::KERNEL_DEB_PACKAGES)?;
    if options.debug_info {
        host::ensure_packages(ctx, BTF_PACKAGES)?;
    }
    let source = source::get(ctx)?;
    let topics = topics::changes(Tree::Memreap, &ctx.repo, &ctx.series)?;
    let release = release(&source.version, options.revision);
    let required = required_config(options.revision, options.debug_info);
    let config = base + &own_config(&required, options.debug_info, &topics);
    let loaded = modules.as_deref().unwrap_or_default();
    let compiler = build::compiler_version(ctx.arch)?;
    let key = build::key(
        &["deb", build::RECIPE_VERSION, &source.version.full, &release, &config, loaded, &compiler],
        &topics,
    )?;
    let target = ctx.out.join("kernel-deb").join(format!("{release}-{}", &key[..8]));
    host::made_once(ctx, &target, |staging| {
        let tree = build::tree(ctx, Tree::Memreap)?;
        // Two builds would write packages of one name.
        let _lock = host::lock(ctx, &tree.join("deb"))?;
        let work = tree.join(format!("work-deb-{}", &key[..16]));
        fs::create_dir_all(&work)?;
        // They are in use from now on, so that no other lab removes them as abandoned.
        [&tree, &work].into_iter().try_for_each(|folder| set_time(folder, SystemTime::now()))?;
        let log = ctx.out.join("logs/kernel-deb.log");
        let config = configure(ctx, &tree, &work, &config, modules.as_deref(), &log)?;
        let missing = check(&config, &required, &topics)?.join("\n  ");
        if !missing.is_empty() {
            ctx.progress.warn(&format!("topics that need what this configuration lacks:\n  {missing}"));
        }
        announce(ctx, &config, &work)?;

        let step = ctx.progress.step(&format!("building {release}"));
        let mut make = make::make(ctx, &tree, &work);
        // The lab has looked for what it needs, which need not be of Debian's packages.
        make.args(["bindeb-pkg", "DPKG_FLAGS=-d"]);
        make.env("KDEB_PKGVERSION", &release).env("KDEB_CHANGELOG_DIST", "unstable");
        make::run_make(ctx, &step, &mut make, &log, None)?;
        fs::create_dir(staging)?;
        // dpkg-buildpackage writes them beside the folder that it runs in.
        for entry in fs::read_dir(&tree)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().contains(&format!("_{release}_")) {
                fs::copy(entry.path(), staging.join(entry.file_name()))?;
                fs::remove_file(entry.path())?;
            }
        }
        host::remove_any(&work)?;
        step.done("built");
        Ok(())
    })?;
    let mut packages = host::files_below(&target)?;
    packages.retain(|file| file.extension().is_some_and(|end| end == "deb"));
    Ok(packages)
}

/// Returns the kernel's release, which is also the packages' version.
fn release(version: &PackageVersion, revision: u32) -> String {
    version.release() + &suffix(revision)
}

fn suffix(revision: u32) -> String {
    format!("-memreap{revision}")
}

/// Returns the text of a configuration, by its name or path.
fn base_config(ctx: &Context, config: &str) -> Result<String> {
    let flavour = match config {
        "running" => {
            let file = "/boot/config-".to_owned() + &rustix::system::uname().release().to_string_lossy();
            if Path::new(&file).exists() {
                return Ok(fs::read_to_string(file)?);
            }
            let remedy = "--config running needs this or /proc/config.gz; give --config generic, or a file";
            return host::output(host::tool("zcat").arg("/proc/config.gz")).context(format!("no {file}: {remedy}"));
        }
        "cloud" => "cloud-",
        "generic" => "",
        file => {
            let wrong = |what| WrongUsage(format!("--config: {file}: {what}"));
            let text =
                fs::read_to_string(file).map_err(|_| wrong("no such file; or one of running, cloud, generic"))?;
            let is_config = text.lines().any(|line| line.starts_with("CONFIG_"));
            return if is_config { Ok(text) } else { Err(wrong("no line begins with CONFIG_").into()) };
        }
    };
    const SCRIPT: &str = "dpkg-deb --fsys-tarfile linux-config-*.deb | tar -xO \"./usr/src/$1\" | xz -d";
    let package = ctx.series.package.replace("source", "config");
    let step = ctx.progress.step(&format!("downloading {package}"));
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let download = || source::download(ctx, &package, folder.path(), &step);
    let downloaded = download().or_else(|e| source::refresh(ctx, e).and_then(|()| download()));
    downloaded.with_context(|| {
        let archive = ctx.series.archive.as_deref().unwrap_or(CONFIG_ARCHIVE);
        format!(
            "--config {config} needs {package}; put \"deb {archive}\" into a file of /etc/apt/sources.list.d and run \
             apt-get update, or give --config running or a file"
        )
    })?;
    let debian = ctx.arch.debian_name();
    let mut bash = Command::new("bash");
    bash.args([
        "-euo",
        "pipefail",
        "-c",
        SCRIPT,
        "bash",
        &format!("{package}/config.{debian}_none_{flavour}{debian}.xz"),
    ]);
    let text = host::output(bash.current_dir(folder.path()))?;
    step.done("");
    Ok(text)
}

/// Returns the lines that make a configuration one for our packages; of two about one option the last one counts.
fn own_config(required: &str, debug_info: bool, topics: &[Topic]) -> String {
    let debug_info = if debug_info { "" } else { NO_DEBUG_INFO };
    format!("\n{OWN_KEYS}{debug_info}{required}{}", config::fragment_text(&topic_requests(topics)))
}

/// Returns those without which there are no packages.
fn required_config(revision: u32, debug_info: bool) -> String {
    let debug_info = if debug_info { "" } else { "# CONFIG_DEBUG_INFO is not set\n" };
    format!("CONFIG_LOCALVERSION=\"{}\"\n{debug_info}", suffix(revision))
}

fn topic_requests(topics: &[Topic]) -> Vec<Request> {
    config::topic_requests(topics, Variant::Slim)
}

/// Returns the names of the modules that are loaded, or that a file of lsmod's has, one per line.
fn modules(file: Option<&Path>) -> Result<String> {
    let loaded = Path::new("/proc/modules");
    let text = match file {
        Some(file) => fs::read_to_string(file)?,
        // A kernel without modules does not have it.
        None => fs::read_to_string(loaded).unwrap_or_default(),
    };
    let mut names: Vec<&str> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    names.retain(|&name| name != "Module");
    // The kernel lists the last one first.
    names.sort_unstable();
    ensure!(
        !names.is_empty(),
        "{}: no module; where the kernel is to run, do `lsmod >FILE`, then give --localmod=FILE",
        file.unwrap_or(loaded).display()
    );
    Ok(names.join("\n") + "\n")
}

/// Writes `work/.config`: `config`, with the kernel's defaults for what that does not say, and of all modules only
/// `modules`, if they are given. Returns it.
fn configure(
    ctx: &Context,
    tree: &Path,
    work: &Path,
    config: &str,
    modules: Option<&str>,
    log: &Path,
) -> Result<String> {
    let [file, list] = [".config", "lsmod"].map(|name| work.join(name));
    fs::write(&file, config)?;
    fs::write(&list, modules.unwrap_or_default())?;
    for target in ["olddefconfig"].into_iter().chain(modules.map(|_| "localmodconfig")) {
        let status = host::run_logged(make::make(ctx, tree, work).arg(target).env("LSMOD", &list), log, |_| {})?;
        ensure!(status.success(), "make {target} failed; the end of {}:\n{}", log.display(), host::tail(log, 30));
    }
    Ok(fs::read_to_string(file)?)
}

/// Returns a line for each topic that a finished configuration cannot have.
///
/// # Errors
/// When it does not have what is required.
fn check(config: &str, required: &str, topics: &[Topic]) -> Result<Vec<String>> {
    let unmet = config::unmet(&config::parse_fragment(required, "lab kernel-deb")?, config);
    ensure!(unmet.is_empty(), "these options did not take effect:\n  {}", unmet.join("\n  "));
    Ok(config::unmet(&topic_requests(topics), config))
}

/// Says what a build takes, and without what it is.
///
/// # Errors
/// When the disk has less room.
fn announce(ctx: &Context, config: &str, work: &Path) -> Result<()> {
    let count = |end: &str| config.lines().filter(|line| line.ends_with(end)).count();
    let objects = (count("=y") * OBJECTS_PER_10_BUILT_IN + count("=m") * OBJECTS_PER_10_MODULES) / 10;
    let (time, disk) = match config.lines().any(|line| line == "CONFIG_DEBUG_INFO=y") {
        true => (DEBUG_INFO_TIME_FACTOR, DEBUG_INFO_DISK_FACTOR),
        false => (1, 1),
    };
    if disk == 1 {
        ctx.progress.note("without debug information and BTF; --debug-info keeps what the configuration has of them");
    }
    let milliseconds = objects * CPU_MS_PER_OBJECT * time / host::cpus();
    let time = elapsed(Duration::from_millis(milliseconds as u64));
    let needed_kib = (objects * KIB_PER_OBJECT * disk) as u64;
    let stat = rustix::fs::statvfs(work).with_context(|| work.display().to_string())?;
    // What an interrupted build has taken is no longer free.
    let taken = WalkDir::new(work).into_iter().flatten().filter_map(|entry| entry.metadata().ok());
    let free_kib = (stat.f_bavail * stat.f_frsize + taken.map(|file| file.len()).sum::<u64>()) >> 10;
    let [needed, free] = [needed_kib, free_kib].map(|kib| format!("{} MiB", kib >> 10));
    let (cpus, shown) = (host::cpus(), work.display());
    ensure!(
        free_kib >= needed_kib,
        "{shown}: {free} of disk are free, and about {objects} files need {needed}; set MEMREAP_CACHE to a larger one, \
         or give --localmod"
    );
    ctx.progress.note(&format!(
        "about {objects} files to compile: {time} on {cpus} CPUs unless ccache has them, and {needed} of the {free} in \
         {shown}"
    ));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::series::{self, Series};

    #[test]
    fn our_lines_come_last_and_are_checked() {
        let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let topics = topics::load(&repo, &Series::load(&repo, series::DEFAULT).unwrap()).unwrap();
        let required = required_config(2, false);
        let own = own_config(&required, false, &topics);
        // No line of it overrides another one.
        config::parse_fragment(&own, "f").unwrap();
        for line in ["CONFIG_LOCALVERSION=\"-memreap2\"", "CONFIG_DEBUG_INFO_NONE=y", "CONFIG_SYSTEM_TRUSTED_KEYS=\"\""]
        {
            assert!(own.lines().any(|own| own == line), "{line} in {own}");
        }
        assert_eq!(check(&own, &required, &topics).unwrap(), Vec::<String>::new());
        // As olddefconfig leaves it without KSM.
        let without = own.replace("CONFIG_MEMREAP_KSM_RMAP=y\n", "");
        let missing = check(&without, &required, &topics).unwrap();
        assert_eq!(missing, ["kernel/topics.toml: CONFIG_MEMREAP_KSM_RMAP=y became n"]);
        let error = check(&(own + "CONFIG_DEBUG_INFO=y\n"), &required, &topics).unwrap_err().to_string();
        assert!(error.ends_with("CONFIG_DEBUG_INFO=n became y"), "{error}");
        let kept = own_config(&required_config(1, true), true, &topics);
        assert!(!kept.contains("DEBUG_INFO"), "{kept}");
    }

    #[test]
    fn a_newer_kernel_or_revision_is_an_upgrade() {
        let release = |full, revision| release(&PackageVersion::parse("6.12", full).unwrap(), revision);
        let first = release("6.12.117-1~deb12u1", 1);
        assert_eq!(first, "6.12.117-memreap1");
        if host::find_tool("dpkg").is_none() {
            testing::skipped("no dpkg here");
            return;
        }
        for newer in [release("6.12.118+0123abcd", 1), release("6.12.117-1~deb12u1", 2)] {
            host::output(Command::new("dpkg").args(["--compare-versions", &newer, "gt", &first])).unwrap();
        }
    }

    #[test]
    fn what_is_no_configuration_is_wrong_usage() {
        let ctx = Context::below(Path::new("/nowhere"));
        for (file, what) in [("/etc/passwd", "no line begins with CONFIG_"), ("/no/such", "no such file; or one of")] {
            let error = base_config(&ctx, file).unwrap_err();
            assert!(error.is::<WrongUsage>() && error.to_string().contains(what), "{error}");
        }
    }

    #[test]
    fn modules_are_read_as_lsmod_and_the_kernel_write_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("lsmod");
        let read = |text: &str| {
            fs::write(&file, text).unwrap();
            modules(Some(&file))
        };
        assert_eq!(read("Module         Size  Used by\next4  1 0\ncrc16 1 1 ext4\n").unwrap(), "crc16\next4\n");
        assert_eq!(read("ext4 1015808 1 - Live 0x0000000000000000\n").unwrap(), "ext4\n");
        assert!(read("Module         Size  Used by\n").unwrap_err().to_string().contains("do `lsmod >FILE`"));
    }

    #[test]
    fn a_disk_that_is_too_small_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let ctx = Context::below(dir.path());
        announce(&ctx, "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"m\"\n", dir.path()).unwrap();
        let huge = "CONFIG_A=m\n".repeat(1 << 21) + "CONFIG_DEBUG_INFO=y\n";
        let error = announce(&ctx, &huge, dir.path()).unwrap_err().to_string();
        assert!(error.contains(" files need ") && error.contains("MEMREAP_CACHE"), "{error}");
    }
}
