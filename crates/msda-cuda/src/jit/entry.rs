//! One compiled unit in a folder of the cache.

use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::{Assembled, Compiled};

/// What folders that are being written begin with.
pub(super) const UNFINISHED: &str = ".msda-";

const SOURCE: &str = "kernel.cu";
const CUBIN: &str = "kernel.cubin";
const LOG: &str = "kernel.log";
pub(super) const META: &str = "meta";

/// The entry of a unit: none when there is none, and an error that says why when it is of no use.
pub(super) fn read(root: &Path, unit: &Assembled) -> Result<Option<Compiled>, String> {
    let folder = root.join(&unit.name);
    let file = |name: &str| fs::read(folder.join(name)).map_err(|error| format!("{name}: {error}"));
    if !folder.try_exists().map_err(|error| error.to_string())? {
        return Ok(None);
    }
    let meta = String::from_utf8_lossy(&file(META)?).into_owned();
    let (cubin, log) = (file(CUBIN)?, String::from_utf8_lossy(&file(LOG)?).into_owned());
    let compiler =
        meta.lines().find_map(|line| line.strip_prefix("compiler ")).unwrap_or_default().to_owned();
    let compiled = Compiled { cubin, log, source: unit.text.clone(), compiler };
    if meta != describe(unit, &compiled) {
        return Err(format!("{META} does not fit the files or the kernel"));
    }
    Ok(Some(compiled))
}

/// Writes the entry of a unit. When somebody else did meanwhile, theirs stays and is returned.
pub(super) fn write(root: &Path, unit: &Assembled, compiled: &Compiled) -> io::Result<Option<Compiled>> {
    let new = written(root, unit, compiled)?;
    let target = root.join(&unit.name);
    let mut attempts = 0;
    loop {
        let Err(error) = fs::rename(new.path(), &target) else {
            let _ = new.keep();
            return Ok(None);
        };
        if let Ok(Some(theirs)) = read(root, unit) {
            return Ok(Some(theirs));
        }
        attempts += 1;
        if attempts > 4 {
            return Err(error);
        }
        // Something of no use is in the way: it goes where it is deleted. Somebody else may be doing the same.
        let aside = unfinished(root)?;
        let _ = fs::rename(&target, aside.path().join("old"));
    }
}

/// Writes the entry of a unit in place of what is there.
pub(super) fn replace(root: &Path, unit: &Assembled, compiled: &Compiled) -> io::Result<()> {
    let new = written(root, unit, compiled)?;
    let (target, aside) = (root.join(&unit.name), unfinished(root)?);
    let _ = fs::rename(&target, aside.path().join("old"));
    match fs::rename(new.path(), &target) {
        Ok(()) => {
            let _ = new.keep();
            Ok(())
        }
        // Somebody else was faster.
        Err(_) if target.is_dir() => Ok(()),
        Err(error) => Err(error),
    }
}

/// The files of an entry, beside where they belong.
fn written(root: &Path, unit: &Assembled, compiled: &Compiled) -> io::Result<TempDir> {
    fs::create_dir_all(root)?;
    let new = unfinished(root)?;
    fs::write(new.path().join(SOURCE), &unit.text)?;
    fs::write(new.path().join(CUBIN), &compiled.cubin)?;
    fs::write(new.path().join(LOG), &compiled.log)?;
    fs::write(new.path().join(META), describe(unit, compiled))?;
    Ok(new)
}

/// What makes an entry one: it is of this unit, and its files are what was written.
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

/// A folder beside the entries, deleted when dropped. As readable for others as the cache itself.
fn unfinished(root: &Path) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.tempdir_in(root)
}
