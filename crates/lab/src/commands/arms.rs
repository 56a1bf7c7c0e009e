// SPDX-License-Identifier: GPL-2.0-only
//! The arms that a user names: options that several commands have, and the kernels that they stand for.

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Result;

use crate::context::Context;
use crate::kernel::source;
use crate::kernel::user::{Sources, UserKernel, build_user};
use crate::kernel::{self, Kernel, Tree, Variant};
use crate::vm::job::Arm;
use crate::vm::root::RootSource;
use scenarios::ControlKernel;

/// The value of `--arm`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArmSpec {
    /// A kernel that the lab builds, of the series that is named, or else of that of the command.
    Built(Tree, Option<String>),
    /// A control kernel that is the changed kernel with parameters: name and parameters.
    WithParameters(&'static str, &'static str),
    /// A bzImage file.
    File(Arm),
    /// A kernel of the user's sources: name, sources and parameters.
    Sources(String, Sources, String),
}

impl ArmSpec {
    /// Its form in the help.
    pub const FORM: &str = "stock|memreap|CONTROL[-SERIES]|NAME=KERNEL[,PARAMETERS]";
}

impl FromStr for ArmSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, rest)) = text.split_once('=') else {
            let control = scenarios::controls().into_iter().find(|control| control.name == text);
            if let Some(ControlKernel { name, parameters: Some(parameters) }) = control {
                return Ok(Self::WithParameters(name, parameters));
            }
            let (tree, series) = match text.rsplit_once('-') {
                Some((tree, series)) if series.contains('.') => (tree, Some(series.to_owned())),
                _ => (text, None),
            };
            let tree: Tree = tree.parse().map_err(|e| format!("{e}; or give NAME=BZIMAGE"))?;
            return Ok(Self::Built(tree, series));
        };
        let (file, cmdline) = rest.split_once(',').unwrap_or((rest, ""));
        if name.is_empty() || file.is_empty() {
            return Err("expected NAME=KERNEL[,PARAMETERS]".to_owned());
        }
        if let Some(sources) = sources(file)? {
            return Ok(Self::Sources(name.to_owned(), sources, cmdline.to_owned()));
        }
        let bzimage = std::path::absolute(file).map_err(|e| format!("{file}: {e}"))?;
        if !bzimage.is_file() {
            return Err(format!("{file}: no such file"));
        }
        Ok(Self::File(Arm { name: name.to_owned(), bzimage, cmdline: cmdline.to_owned() }))
    }
}

/// Reads FOLDER[@COMMIT][+PATCH]... or debian+PATCH...; `None` for a file.
fn sources(text: &str) -> Result<Option<Sources>, String> {
    if Path::new(text).is_file() {
        return Ok(None);
    }
    if Path::new(text).is_dir() {
        return Ok(Some(Sources { folder: Some(text.into()), commit: None, patches: Vec::new() }));
    }
    let mut parts = text.split('+');
    let tree = parts.next().unwrap_or_default();
    let (folder, commit) = match tree.rsplit_once('@') {
        Some((folder, commit)) if !Path::new(tree).is_dir() => (folder, Some(commit.to_owned())),
        // With patches; or a folder with that name.
        _ => (tree, None),
    };
    let patches: Vec<PathBuf> = parts.map(PathBuf::from).collect();
    if let Some(missing) = patches.iter().find(|patch| !patch.is_file()) {
        return Err(format!("{}: no such patch", missing.display()));
    }
    let folder = match folder {
        "debian" if !Path::new(folder).is_dir() => None,
        folder if Path::new(folder).is_dir() => Some(folder.into()),
        folder => return Err(format!("{folder}: no such file or folder")),
    };
    Ok(Some(Sources { folder, commit, patches }))
}

/// The value of `--copy`: the path on the host and that in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopySpec(pub PathBuf, pub String);

impl FromStr for CopySpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (host, guest) = text.rsplit_once(':').ok_or("expected HOST:GUEST")?;
        if !guest.starts_with('/') {
            return Err(format!("{guest}: the path in the guest must be absolute"));
        }
        if !Path::new(host).exists() {
            return Err(format!("{host}: no such file or folder"));
        }
        Ok(Self(host.into(), guest.to_owned()))
    }
}

/// Builds a kernel, or finds it in the cache, and returns it with its arm.
pub fn built(ctx: &Context, tree: Tree, variant: Variant, cmdline: &str) -> Result<(Arm, Kernel)> {
    let kernel = kernel::build(ctx, tree, variant)?;
    let arm = Arm { name: tree.to_string(), bzimage: kernel.bzimage.clone(), cmdline: cmdline.to_owned() };
    Ok((arm, kernel))
}

/// Like [`built`], for a control kernel that is the changed kernel with parameters.
pub fn changed(ctx: &Context, name: &str, variant: Variant, parameters: &str) -> Result<(Arm, Kernel)> {
    let (arm, kernel) = built(ctx, Tree::Memreap, variant, parameters)?;
    Ok((Arm { name: name.to_owned(), ..arm }, kernel))
}

/// Returns the configuration that the user asks for, else one that can read the guest's disk if there is one.
pub fn variant_or_default(given: Option<Variant>, root: Option<&RootSource>) -> Variant {
    given.unwrap_or(if root.is_some() { Variant::Faceoff } else { Variant::Slim })
}

/// Returns the arm that the user asks for, after building its kernel if need be, and what that is from: its sources, or
/// the path of an image. `cmdline` is for the lab's own trees, `fragment` for sources of the user's, with which the
/// symbols of it that they do not have are returned, too.
pub fn arm(
    ctx: &Context,
    spec: ArmSpec,
    variant: Variant,
    cmdline: &str,
    fragment: Option<&Path>,
) -> Result<(Arm, String, Option<Vec<String>>)> {
    let mut of_arm = ctx.clone();
    let (arm, kernel) = match spec {
        ArmSpec::File(arm) => {
            let source = arm.bzimage.display().to_string();
            return Ok((arm, source, None));
        }
        ArmSpec::Sources(name, sources, cmdline) => {
            let UserKernel { bzimage, source, lacks } = build_user(ctx, &sources, variant, fragment)?;
            return Ok((Arm { name, bzimage, cmdline }, source, Some(lacks)));
        }
        ArmSpec::WithParameters(name, parameters) => changed(ctx, name, variant, parameters)?,
        ArmSpec::Built(tree, None) => built(ctx, tree, variant, cmdline)?,
        ArmSpec::Built(tree, Some(name)) => {
            of_arm = of_arm.with_kernel(Some(&name), None)?;
            let (arm, kernel) = built(&of_arm, tree, variant, cmdline)?;
            (Arm { name: format!("{tree}-{name}"), ..arm }, kernel)
        }
    };
    let version = source::get(&of_arm)?.version;
    let from = match version.is_imported() {
        true => format!("--kernel, {}", version.full),
        false => format!("Debian {}, {}", of_arm.series.package, kernel.release),
    };
    Ok((arm, format!("{from}, {variant}{}", ctx.arch.suffix()), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arms_are_read() {
        assert_eq!("stock".parse(), Ok(ArmSpec::Built(Tree::Stock, None)));
        assert_eq!("memreap-7.3".parse(), Ok(ArmSpec::Built(Tree::Memreap, Some("7.3".into()))));
        assert_eq!("stock-precise".parse(), Ok(ArmSpec::Built(Tree::Control("stock-precise"), None)));
        assert_eq!("memreap-batch".parse(), Ok(ArmSpec::WithParameters("memreap-batch", "memreap.swap_defer=0")));
        assert!("memreap-nothing".parse::<ArmSpec>().unwrap_err().contains("no tree 'memreap-nothing'"));
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_path_buf();
        let spec = format!("mine={},a=b c,d", path.display());
        let arm = Arm { name: "mine".into(), bzimage: path, cmdline: "a=b c,d".into() };
        assert_eq!(spec.parse(), Ok(ArmSpec::File(arm)));
        assert!("mine=/no/such/file".parse::<ArmSpec>().unwrap_err().contains("no such file"));
        let folder = tempfile::tempdir().unwrap();
        let (tree, patch) = (folder.path().display(), path_of_patch(folder.path()));
        let parsed = |text: String| match text.parse().unwrap() {
            ArmSpec::Sources(name, sources, parameters) => (name, sources.to_string(), parameters),
            other => panic!("{other:?}"),
        };
        for sources in [
            format!("{tree}"),
            format!("{tree}@v6.12~3"),
            format!("{tree}@HEAD+{patch}"),
            format!("{tree}+{patch}+{patch}"),
            format!("debian+{patch}"),
        ] {
            let parts = ("mine".to_owned(), sources.clone(), "a=b,c".to_owned());
            assert_eq!(parsed(format!("mine={sources},a=b,c")), parts);
        }
        let missing = format!("mine={tree}+/no/such.patch").parse::<ArmSpec>().unwrap_err();
        assert_eq!(missing, "/no/such.patch: no such patch");
        for bad in ["mine", "=x", "mine="] {
            assert!(bad.parse::<ArmSpec>().is_err(), "{bad}");
        }
    }

    fn path_of_patch(folder: &Path) -> String {
        let path = folder.join("fix.patch");
        std::fs::write(&path, "").unwrap();
        path.display().to_string()
    }

    #[test]
    fn copies_are_read() {
        assert_eq!("/etc:/x/y".parse(), Ok(CopySpec("/etc".into(), "/x/y".into())));
        for bad in ["/etc", "/etc:relative", "/no/such:/x"] {
            assert!(bad.parse::<CopySpec>().is_err(), "{bad}");
        }
    }
}
