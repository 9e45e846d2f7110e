//! The licences of the crates that a wheel contains: most ask that their text comes with copies.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{python, root};

/// The file, which a wheel has beside the licences of msda.
const FILE: &str = "LICENSE-THIRD-PARTY";

/// Writes the file for the wheel of a target.
pub(crate) fn write(target: &str) -> Result<()> {
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for Crate { name, version, licence } in crates(target)? {
        let title = format!("{name} {version} ({licence})");
        let found = licences(&source(&name, &version)?)?;
        if found.is_empty() {
            // The package has none; the expression names the usual texts.
            texts.entry(String::new()).or_default().insert(title.clone());
        }
        for text in found {
            texts.entry(text).or_default().insert(title.clone());
        }
    }
    if texts.is_empty() {
        bail!("{FILE}: got no crates, expected those that msda-python needs");
    }
    let mut all = String::from(
        "The compiled part of msda contains Rust's standard library (MIT OR Apache-2.0) and these crates.\n",
    );
    for (text, crates) in texts {
        let crates: Vec<_> = crates.into_iter().collect();
        all += &format!("\n{}\n{}\n\n{text}", "-".repeat(80), crates.join("\n"));
    }
    std::fs::write(root().join(python::PACKAGE).join(FILE), all).with_context(|| format!("writing {FILE}"))
}

struct Crate {
    name: String,
    version: String,
    licence: String,
}

/// The crates that are linked, without those of msda and those that only run at compile time.
fn crates(target: &str) -> Result<Vec<Crate>> {
    let args = ["tree", "--locked", "--package", "msda-python", "--edges", "normal,no-proc-macro"];
    let format = ["--prefix", "none", "--format", "{p}|{l}", "--target", target];
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let done = Command::new(cargo).args(args).args(format).current_dir(root()).output()?;
    if !done.status.success() {
        bail!("cargo tree: {}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(read(&String::from_utf8_lossy(&done.stdout)))
}

/// Lines of `name vVERSION|licence`; workspace crates have a path behind the version.
fn read(tree: &str) -> Vec<Crate> {
    let line = |line: &str| {
        let (package, licence) = line.split_once('|')?;
        let (name, version) = package.split_once(" v")?;
        let licence = licence.trim_end_matches(" (*)").to_owned();
        (!version.contains(' ')).then(|| Crate { name: name.into(), version: version.into(), licence })
    };
    tree.lines().filter_map(line).collect()
}

/// The folder of a crate in cargo's registry.
fn source(name: &str, version: &str) -> Result<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo"))).context("no home folder")?;
    let registries = home.join("registry/src");
    let folders = std::fs::read_dir(&registries).with_context(|| registries.display().to_string())?;
    let found = folders.flatten().map(|folder| folder.path().join(format!("{name}-{version}")));
    let mut found = found.filter(|folder| folder.is_dir());
    found.next().with_context(|| {
        format!("{name} {version} is not in {}\nhint: run `cargo fetch --locked`", registries.display())
    })
}

/// The texts in a crate's folder.
fn licences(folder: &Path) -> Result<Vec<String>> {
    let mut paths: Vec<_> = folder.read_dir()?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    let is_licence = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        let starts = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"];
        path.is_file() && starts.iter().any(|start| name.starts_with(start))
    };
    let read = |path| Ok(std::fs::read_to_string(path)?.replace("\r\n", "\n").trim().to_owned() + "\n");
    paths.into_iter().filter(is_licence).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_others_are_read_from_a_tree() {
        let tree = "msda-python v0.1.0 (/somewhere)|MIT\nhalf v2.7.1|MIT OR Apache-2.0\n\
                    libloading v0.9.0|ISC (*)\n\n";
        let found: Vec<_> =
            read(tree).into_iter().map(|c| format!("{} {} {}", c.name, c.version, c.licence)).collect();
        assert_eq!(found, ["half 2.7.1 MIT OR Apache-2.0", "libloading 0.9.0 ISC"]);
    }
}
