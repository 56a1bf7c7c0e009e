// SPDX-License-Identifier: GPL-2.0-only
//! Runs the kernel's makefiles reproducibly: equal inputs yield equal builds.

use fs_err::{self as fs, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context as _, Result, anyhow, bail};

use crate::context::Context;
use crate::host::{self, Staging};
use crate::kernel::kinds::Kernel;
use crate::progress::Step;

/// Returns why kernels cannot be built below `folder`; `None` if they can.
pub(crate) fn refused_path(folder: &Path) -> Option<&'static str> {
    let text = folder.to_string_lossy();
    let refused = text.contains(|c: char| c.is_whitespace() || c == ':');
    refused.then_some("the kernel's make takes no path with spaces or colons; set MEMREAP_CACHE to another")
}

/// Makes sure that kernels can be built: of the path of the cache and of the packages.
///
/// # Errors
/// When the path is refused, or a package is missing and cannot be installed.
pub(super) fn prepare_host(ctx: &Context) -> Result<()> {
    if let Some(why) = refused_path(&ctx.cache) {
        bail!("{}: {why}", ctx.cache.display());
    }
    host::ensure_packages(ctx, host::KERNEL_BUILD_PACKAGES)?;
    host::ensure_packages(ctx, host::cross_packages(ctx.arch))
}

/// Whether a kernel was built or configured in this tree itself: then make builds nothing from it elsewhere.
pub(super) fn is_built(tree: &Path) -> bool {
    tree.join(".config").exists() || tree.join("include/config").exists()
}

/// Returns a `make` command for `tree` with its output in `out`, which must be directly below `tree`.
/// Time stamps, user, host and build number are fixed, so that equal inputs yield equal builds.
pub(super) fn make(ctx: &Context, tree: &Path, out: &Path) -> Command {
    let arch = if ctx.arch.is_x86() { "x86_64" } else { ctx.arch.kernel_name() };
    make_for(ctx, arch, ctx.arch.tool_prefix(), tree, out)
}

/// Like [`make`], for any architecture, by the kernel's name, and the prefix of its compiler's name.
pub(super) fn make_for(ctx: &Context, arch: &str, prefix: &str, tree: &Path, out: &Path) -> Command {
    let mut output = std::ffi::OsString::from("O=");
    output.push(out);
    let mut command = host::tool("make");
    command
        .arg("-C")
        .arg(tree)
        .arg(output)
        .arg(format!("-j{}", host::cpus()))
        .arg(format!("ARCH={arch}"))
        .arg(format!("CROSS_COMPILE={prefix}"))
        .arg(format!("CC=ccache {prefix}gcc"))
        .args(["HOSTCC=ccache gcc", "LOCALVERSION="])
        .env("KBUILD_BUILD_TIMESTAMP", "Thu Jan  1 00:00:00 UTC 1970")
        .env("KBUILD_BUILD_USER", "memreap")
        .env("KBUILD_BUILD_HOST", "lab")
        .env("KBUILD_BUILD_VERSION", "1")
        .env("CCACHE_DIR", ctx.cache.join("ccache"))
        .env("CCACHE_MAXSIZE", "5G")
        .env("CCACHE_NOHASHDIR", "1")
        // Only the kernel's own tools are compiled with absolute paths.
        .env("CCACHE_BASEDIR", tree);
    command
}

/// Runs make and shows the current file as the step's detail. For builds from nothing, the file `counter` keeps the
/// number of steps of the last run, to show progress in the next one.
///
/// # Errors
/// When make fails: the message has the compiler's errors, the end of the log and its path.
pub(super) fn run_make(
    ctx: &Context,
    step: &Step,
    command: &mut Command,
    log: &Path,
    counter: Option<&Path>,
) -> Result<()> {
    let last = counter.and_then(|path| fs::read_to_string(path).ok()).and_then(|text| text.trim().parse::<u32>().ok());
    let (mut steps, mut warnings, mut errors) = (0_u32, 0_u32, Vec::new());
    let status = host::run_logged(command, log, |line| {
        if let Some((tool, file)) = kbuild_step(line) {
            steps += 1;
            // When more is rebuilt than last time, the number says nothing.
            let expected = last.filter(|&n| steps <= n).map_or(String::new(), |n| format!(" of about {n}"));
            step.detail(&format!("{tool} {file} ({steps}{expected})"));
        } else if line.contains(" warning: ") {
            warnings += 1;
        } else if is_error(line) {
            errors.push(format!("  {line}"));
        }
    })?;
    if !status.success() {
        let errors = if errors.is_empty() { String::new() } else { format!("{}\n", errors.join("\n")) };
        bail!("make failed ({status})\n{errors}the end of {}:\n{}", log.display(), host::tail(log, 30));
    }
    if warnings > 0 {
        ctx.progress.warn(&format!("{warnings} compiler warnings, see {}", log.display()));
    }
    if let Some(path) = counter {
        // Only the display of the next run depends on it, so errors are ignored.
        let _ = fs::write(path, steps.to_string());
    }
    Ok(())
}

/// Parses `  CC      mm/mmap.o` into (`CC`, `mm/mmap.o`).
fn kbuild_step(line: &str) -> Option<(&str, &str)> {
    let (tool, file) = line.strip_prefix("  ")?.split_once(' ')?;
    let is_tool = !tool.is_empty() && tool.chars().all(|c| c.is_ascii_uppercase() || c == '_');
    // The kernel's own tools have absolute paths; show only the part in the tree.
    let file = file.trim().rsplit_once(".partial/").map_or(file.trim(), |(_, short)| short);
    is_tool.then_some((tool, file))
}

fn is_error(line: &str) -> bool {
    [" error: ", "fatal error:", "undefined reference", "multiple definition", "objtool: error"]
        .iter()
        .any(|sign| line.contains(sign))
}

/// Sets a modification time.
///
/// # Errors
/// When the file cannot be opened or changed.
pub(super) fn set_time(path: &Path, time: SystemTime) -> Result<()> {
    File::open(path)
        .and_then(|f| f.set_modified(time))
        .with_context(|| format!("cannot set the time of {}", path.display()))
}

/// Copies a tree by hard links. That is fast, and safe as long as no file is written in place.
///
/// # Errors
/// When `cp` fails, for example across file systems.
pub(crate) fn hard_link_copy(from: &Path, to: &Path) -> Result<()> {
    host::output(Command::new("cp").arg("-al").arg(from).arg(to))
        .with_context(|| format!("cannot copy {}", from.display()))?;
    Ok(())
}

/// Installs the kernel's user-space headers and returns the folder that has them in `include/`. They are
/// cached per source tree.
///
/// # Errors
/// When make fails.
pub fn install_headers(ctx: &Context, kernel: &Kernel) -> Result<PathBuf> {
    let name = kernel.source_dir.file_name().ok_or_else(|| anyhow!("the kernel has no source folder"))?;
    // System calls have other numbers on another architecture.
    let name = format!("{}{}", name.to_string_lossy(), if ctx.arch.is_native() { "" } else { ctx.arch.kernel_name() });
    let target = ctx.cache.join("headers").join(name);
    host::made_once(ctx, &target, |staging| {
        let step = ctx.progress.step("installing the kernel's headers");
        let work = Staging::folder(&kernel.source_dir.join("work-headers"))?;
        let log = ctx.out.join("logs/headers.log");
        // `headers_install` needs rsync, only to copy the result.
        run_make(ctx, &step, make(ctx, &kernel.source_dir, work.path()).arg("headers"), &log, None)?;
        fs::create_dir(staging)?;
        fs::rename(work.path().join("usr/include"), staging.join("include"))?;
        step.done("");
        Ok(())
    })?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_of_make_lines_are_distinguished() {
        assert_eq!(kbuild_step("  CC      mm/mmap.o"), Some(("CC", "mm/mmap.o")));
        assert_eq!(kbuild_step("  LD [M]  x.ko"), Some(("LD", "[M]  x.ko")));
        assert_eq!(kbuild_step("  CC      /c/work-1.partial/tools/x.o"), Some(("CC", "tools/x.o")));
        assert_eq!(kbuild_step("make[1]: Entering directory"), None);
        assert_eq!(kbuild_step("   12 | int x"), None);
        assert!(is_error("../mm/a.c:3:1: error: unknown type"));
        assert!(!is_error("  CC      lib/error.o"));
    }

    /// Set in the process that the test below starts to inspect its environment.
    const INNER_PROCESS_VARIABLE: &str = "LAB_TEST_ENVIRONMENT";

    #[test]
    fn the_users_settings_reach_no_build() {
        if std::env::var_os(INNER_PROCESS_VARIABLE).is_some() {
            return what_a_build_sees();
        }
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "kernel::make::tests::the_users_settings_reach_no_build", "--nocapture"])
            .env(INNER_PROCESS_VARIABLE, "1")
            .env("TMPDIR", "/tmp")
            .envs(["LLVM", "LLVM_IAS", "KCFLAGS", "KCPPFLAGS", "KAFLAGS", "KBUILD_CFLAGS_KERNEL"].map(dirty))
            .envs(["CC", "LD", "CFLAGS", "CPATH", "GCC_EXEC_PREFIX", "W", "C", "V", "O"].map(dirty))
            .envs(["CCACHE_DISABLE", "CCACHE_DIR", "INSTALL_MOD_PATH", "KCONFIG_CONFIG"].map(dirty))
            .envs(["MAKEFILES", "SOURCE_DATE_EPOCH", "LANG", "LC_MESSAGES"].map(dirty))
            .env("KBUILD_BUILD_USER", "dirty")
            .env("MAKEFLAGS", "-n")
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let (_, seen) = text.split_once("<<").unwrap();
        let (seen, _) = seen.split_once(">>").unwrap();
        assert!(seen.contains("PATH=/") && seen.contains("TMPDIR=/tmp\n"), "{seen}");
        for ours in ["KBUILD_BUILD_USER=memreap\n", "CCACHE_DIR=/nowhere/ccache\n", "LC_ALL=C\n"] {
            assert!(seen.contains(ours), "no {ours} in {seen}");
        }
        assert!(!seen.contains("dirty") && !seen.contains(INNER_PROCESS_VARIABLE), "{seen}");
    }

    fn dirty(name: &str) -> (&str, &str) {
        (name, "dirty")
    }

    /// Prints the environment that a command in a makefile sees if the makefile is run as the kernel's.
    fn what_a_build_sees() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("Makefile"), "all:\n\t@env; echo '$(LLVM) $(KCFLAGS)'\n").unwrap();
        let ctx = Context { cache: "/nowhere".into(), ..Context::below(dir.path()) };
        println!("<<{}>>", host::output(&mut make(&ctx, dir.path(), Path::new("out"))).unwrap());
    }

    #[test]
    fn a_cache_path_that_make_refuses_is_refused() {
        assert!(refused_path(Path::new("/home/a b/.cache")).is_some());
        assert!(refused_path(Path::new("/home/a/.cache")).is_none());
    }
}
