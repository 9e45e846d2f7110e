//! What a release needs: one version everywhere, crates that can be published, wheels, sources.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::{cargo, files, kernels, root, wheel};

/// `cargo xtask publish [--dry-run]`: cargo finds the crates and their order.
pub(crate) fn publish() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(2).collect();
    if !args.iter().all(|arg| arg == "--dry-run") {
        bail!("got {}, expected nothing or --dry-run", args.join(" "));
    }
    consistent(&root())?;
    if args.is_empty() {
        dated()?;
    }
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    cargo(&[&["publish", "--workspace", "--locked"], &args[..]].concat(), &[])
}

/// `cargo xtask release --check [--target TARGET]...`: all that a release needs, or fewer wheels.
pub(crate) fn command() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(2).collect();
    let Some((_, targets)) = args.split_first().filter(|(first, _)| *first == "--check") else {
        bail!("expected --check\nhint: the workflow of releases uploads; nothing is uploaded from here");
    };
    consistent(&root())?;
    let changed = files::git(&root(), &["status", "--porcelain"])?;
    if !changed.is_empty() {
        bail!("got changes that are not committed, expected none:\n{changed}");
    }
    if !files::git(&root(), &["tag", "--points-at", "HEAD", "v*"])?.trim().is_empty() {
        dated()?;
    }
    kernels()?;
    let wheels = wheel::make_all(targets)?;
    let sources = wheel::sources()?;
    let seconds = wheel::install()?;
    cargo(&["publish", "--workspace", "--locked", "--dry-run"], &[])?;
    print!("{}", wheel::table(&wheels)?);
    println!("{}: built with pip, without a network", sources.display());
    println!("The wheel for this machine was installed in {seconds:.1} s, without Rust on the path.");
    println!("The crates can be published. Nothing was uploaded.");
    if !targets.is_empty() {
        println!("Skipped: wheels for all other targets.");
    }
    Ok(())
}

/// Refuses files that name different versions of msda or of Rust.
fn consistent(root: &Path) -> Result<()> {
    let read =
        |path: &str| std::fs::read_to_string(root.join(path)).with_context(|| format!("reading {path}"));
    let manifest = read("Cargo.toml")?;
    let version = value(&manifest, "version = ").context("Cargo.toml: no version")?;
    let rust = value(&manifest, "rust-version = ").context("Cargo.toml: no rust-version")?;
    // A file, how its line begins, and what that line must have.
    let named = [
        ("CHANGELOG.md", "## ", version),
        ("CITATION.cff", "version:", version),
        ("rust-toolchain.toml", "channel", rust),
        ("crates/msda/README.md", "Rust ", rust),
    ];
    for (path, start, text) in named.into_iter().filter(|(path, ..)| root.join(path).exists()) {
        let line = read(path)?.lines().find(|line| line.starts_with(start)).map(str::to_owned);
        let line = line.with_context(|| format!("{path}: no line begins with `{start}`"))?;
        if !line.contains(text) {
            bail!("{path}: got `{line}`, expected {text}, as in Cargo.toml");
        }
    }
    if read("crates/msda-cli/build.rs")? != read("bindings/python/build.rs")? {
        bail!("bindings/python/build.rs: expected a copy of crates/msda-cli/build.rs");
    }
    for line in manifest.lines().filter(|line| line.starts_with("msda") && line.contains("path = ")) {
        if !line.contains(&format!("version = \"{version}\"")) {
            bail!("Cargo.toml: got `{line}`, expected version {version}");
        }
    }
    Ok(())
}

/// Refuses a release whose tag is not that of the version, and one whose changelog does not begin
/// with the version and the day of the commit.
fn dated() -> Result<()> {
    let read = |path: &str| std::fs::read_to_string(root().join(path));
    let (manifest, changelog) = (read("Cargo.toml")?, read("CHANGELOG.md")?);
    let version = value(&manifest, "version = ").context("Cargo.toml: no version")?;
    check_tags(&files::git(&root(), &["tag", "--points-at", "HEAD", "v*"])?, version)?;
    check_date(&changelog, version, files::git(&root(), &["log", "-1", "--format=%cs"])?.trim())
}

/// `tags` are those of the commit, one per line.
fn check_tags(tags: &str, version: &str) -> Result<()> {
    let expected = format!("v{version}");
    if tags.lines().ne([expected.as_str()]) {
        bail!("got the tags `{}` of this commit, expected `{expected}` alone", tags.trim());
    }
    Ok(())
}

fn check_date(changelog: &str, version: &str, day: &str) -> Result<()> {
    let expected = format!("## {version}, {day}");
    match changelog.lines().find(|line| line.starts_with("## ")) {
        Some(line) if line == expected => Ok(()),
        line => bail!("CHANGELOG.md: got `{}`, expected `{expected}`", line.unwrap_or_default()),
    }
}

/// The text in quotes after a key at the start of a line.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key))?.split('"').nth(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_has_the_tag_of_its_version() {
        assert!(check_tags("v0.1.0\n", "0.1.0").is_ok());
        for tags in ["", "v0.11.0\n", "v0.1.0\nv0.2.0\n"] {
            assert!(check_tags(tags, "0.1.0").is_err(), "{tags}");
        }
    }

    #[test]
    fn a_release_has_the_day_of_its_commit() {
        let text = "# Changelog\n\n## 0.2.0, 2026-12-01\n\n## 0.1.0, 2026-11-18\n";
        check_date(text, "0.2.0", "2026-12-01").unwrap();
        for (text, day) in [(text, "2026-12-02"), ("## 0.2.0, not released yet\n", "2026-12-01"), ("", "")] {
            let error = check_date(text, "0.2.0", day).unwrap_err().to_string();
            assert!(error.contains(&format!("expected `## 0.2.0, {day}`")), "{error}");
        }
    }

    #[test]
    fn one_version_is_everywhere() {
        consistent(&root()).unwrap();
        // Each file of a copy is refused if it alone is changed.
        let manifest = std::fs::read_to_string(root().join("Cargo.toml")).unwrap();
        let version = value(&manifest, "version = ").unwrap();
        let rust = value(&manifest, "rust-version = ").unwrap();
        let copy = tempfile::tempdir().unwrap();
        let paths = [
            "Cargo.toml",
            "CHANGELOG.md",
            "CITATION.cff",
            "rust-toolchain.toml",
            "crates/msda/README.md",
            "crates/msda-cli/build.rs",
            "bindings/python/build.rs",
        ];
        let text = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
        let write = |path: &str, text: &str| {
            let to = copy.path().join(path);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::write(to, text).unwrap();
        };
        let paths = paths.into_iter().filter(|path| root().join(path).exists());
        paths.clone().for_each(|path| write(path, &text(path)));
        consistent(copy.path()).unwrap();
        for path in paths {
            let old = text(path);
            let changed = old.replace(version, "9.9.9").replace(rust, "9.9").replace("unknown", "none");
            assert_ne!(old, changed, "{path}");
            write(path, &changed);
            assert!(consistent(copy.path()).is_err(), "{path}");
            write(path, &old);
        }
    }
}
