//! One compiled unit in the cache folder.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use msda_trust as trust;

use super::{Assembled, Compiled};

/// The prefix of folders that are not finished.
pub(super) const UNFINISHED: &str = ".msda-";

const SOURCE: &str = "kernel.cu";
const CUBIN: &str = "kernel.cubin";
const LOG: &str = "kernel.log";
pub(super) const META: &str = "meta";

/// Digits of the hash in the name of an entry.
pub(super) const HASH_DIGITS: usize = 16;

/// The name of the folder of a unit and a compiler.
fn name(unit: &Assembled, compiler: &str) -> String {
    let mut hash = blake3::Hasher::new();
    hash.update(&unit.hash).update(compiler.as_bytes());
    format!("{}-{}", stem(unit), &hash.finalize().to_hex()[..HASH_DIGITS])
}

/// The part of the name that does not depend on the compiler.
fn stem(unit: &Assembled) -> &str {
    unit.name.rsplit_once('-').map_or(&unit.name, |(stem, _)| stem)
}

/// Reads the entry of a unit and a compiler; without a compiler, an entry of any. None when there
/// is no entry; an error that says why when it cannot be used.
///
/// Cubins run on the GPU with the user's rights, so the cache folder, the entry and its files must
/// be private, and the files must have the hashes that `meta` says.
pub(super) fn read(
    root: &Path,
    unit: &Assembled,
    compiler: Option<&str>,
) -> Result<Option<Compiled>, String> {
    if !root.try_exists().map_err(|error| error.to_string())? {
        return Ok(None);
    }
    let root = trust::check_private(root)?;
    let Some(compiler) = compiler else { return read_any(&root, unit) };
    let folder = root.join(name(unit, compiler));
    // A dangling link has no target, but is in the way.
    if fs::symlink_metadata(&folder).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        return Ok(None);
    }
    read_folder(&folder, unit).map(Some)
}

/// Reads an entry of any compiler: the last by name of those that can be used, else the error of
/// one.
fn read_any(root: &Path, unit: &Assembled) -> Result<Option<Compiled>, String> {
    let names = root.read_dir().map_err(|error| error.to_string())?.flatten().map(|entry| entry.file_name());
    let of_unit = |name: &str| name.rsplit_once('-').is_some_and(|(other, _)| other == stem(unit));
    let mut names: Vec<_> = names.filter_map(|name| name.into_string().ok()).filter(|n| of_unit(n)).collect();
    names.sort();
    let mut wrong = None;
    for name in names.iter().rev() {
        match read_folder(&root.join(name), unit) {
            Ok(compiled) => return Ok(Some(compiled)),
            Err(why) => wrong = Some(why),
        }
    }
    wrong.map_or(Ok(None), Err)
}

fn read_folder(folder: &Path, unit: &Assembled) -> Result<Compiled, String> {
    trust::check_own(folder)?;
    let file = |name: &str| {
        let path = folder.join(name);
        trust::check_own(&path)?;
        fs::read(path).map_err(|error| format!("{name}: {error}"))
    };
    let meta = String::from_utf8_lossy(&file(META)?).into_owned();
    let own = blake3::Hash::from(unit.hash).to_hex();
    if meta.lines().find_map(|line| line.strip_prefix("hash ")).is_some_and(|hash| hash != own.as_str()) {
        return Err(format!("{} is of other sources or options", folder.display()));
    }
    let (cubin, log) = (file(CUBIN)?, String::from_utf8_lossy(&file(LOG)?).into_owned());
    let compiler =
        meta.lines().find_map(|line| line.strip_prefix("compiler ")).unwrap_or_default().to_owned();
    let compiled = Compiled { cubin, log, source: unit.text.clone(), compiler };
    let named = folder.file_name().is_some_and(|own| own == name(unit, &compiled.compiler).as_str());
    if meta != describe(unit, &compiled) || !named {
        return Err(format!("{META} does not match the kernel or its files"));
    }
    Ok(compiled)
}

/// Writes the entry of a unit. When another process wrote it meanwhile, that entry stays and is
/// returned.
pub(super) fn write(root: &Path, unit: &Assembled, compiled: &Compiled) -> io::Result<Option<Compiled>> {
    let new = written(root, unit, compiled)?;
    let target = root.join(name(unit, &compiled.compiler));
    let mut attempts = 0;
    loop {
        let Err(error) = fs::rename(new.path(), &target) else {
            let _ = new.keep();
            return Ok(None);
        };
        if let Ok(Some(theirs)) = read(root, unit, Some(&compiled.compiler)) {
            return Ok(Some(theirs));
        }
        attempts += 1;
        if attempts > 4 {
            return Err(error);
        }
        // A damaged entry is in the way: move it to a folder that is deleted. Another process may
        // do the same.
        let aside = unfinished(root)?;
        let _ = fs::rename(&target, aside.path().join("old"));
    }
}

/// Writes the entry of a unit and replaces an existing one.
pub(super) fn replace(root: &Path, unit: &Assembled, compiled: &Compiled) -> io::Result<()> {
    let new = written(root, unit, compiled)?;
    let (target, aside) = (root.join(name(unit, &compiled.compiler)), unfinished(root)?);
    let _ = fs::rename(&target, aside.path().join("old"));
    match fs::rename(new.path(), &target) {
        Ok(()) => {
            let _ = new.keep();
            Ok(())
        }
        // Another process was faster.
        Err(_) if target.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates the cache folder for this user alone, or checks the one that exists.
pub(super) fn make_root(root: &Path) -> io::Result<PathBuf> {
    create_folder(root)?;
    trust::check_private(root).map_err(|why| io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Creates a folder, and missing folders above it, for this user alone.
pub(super) fn create_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

/// Lets every user read the cache folder, or an entry.
pub(super) fn publish(folder: &Path) -> io::Result<()> {
    let allow = |path: &Path, mode: u32| {
        #[cfg(unix)]
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
        let _ = (path, mode);
        io::Result::Ok(())
    };
    allow(folder, 0o755)?;
    let files = [SOURCE, CUBIN, LOG, META].map(|name| folder.join(name));
    files.iter().filter(|path| path.is_file()).try_for_each(|path| allow(path, 0o644))
}

/// The files of an entry, in an unfinished folder.
fn written(root: &Path, unit: &Assembled, compiled: &Compiled) -> io::Result<TempDir> {
    make_root(root)?;
    let new = unfinished(root)?;
    let file = |name: &str, bytes: &[u8]| {
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        options.open(new.path().join(name))?.write_all(bytes)
    };
    file(SOURCE, unit.text.as_bytes())?;
    file(CUBIN, &compiled.cubin)?;
    file(LOG, compiled.log.as_bytes())?;
    file(META, describe(unit, compiled).as_bytes())?;
    Ok(new)
}

/// The content of `meta`: the unit and the hashes of its files.
fn describe(unit: &Assembled, compiled: &Compiled) -> String {
    let sum = |bytes: &[u8]| format!("{} {}", bytes.len(), blake3::hash(bytes).to_hex());
    format!(
        "unit {}\nhash {}\ncompiler {}\n{CUBIN} {}\n{LOG} {}\n",
        unit.name,
        blake3::Hash::from(unit.hash).to_hex(),
        compiled.compiler,
        sum(&compiled.cubin),
        sum(compiled.log.as_bytes()),
    )
}

/// A folder beside the entries, readable for this user alone and deleted when dropped.
fn unfinished(root: &Path) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    builder.tempdir_in(root)
}
