//! Passes the commit to the compiler as `MSDA_COMMIT`. The Python package has the same file.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let commit = from_git().or_else(from_package);
    println!("cargo::rustc-env=MSDA_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
}

/// Asks the repository that this file belongs to. A package of sources may lie inside another one.
fn from_git() -> Option<String> {
    let git = |args: &[&str]| {
        let done = Command::new("git").args(["--git-dir", "../../.git"]).args(args).output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    // The log has a new line after each commit.
    println!("cargo::rerun-if-changed={}", git(&["rev-parse", "--git-path", "logs/HEAD"])?);
    git(&["rev-parse", "--short=9", "HEAD"])
}

/// Reads the file that `cargo package` or `cargo xtask release` puts into a package of sources.
fn from_package() -> Option<String> {
    let files = [".cargo_vcs_info.json", "vcs_info.json"];
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok())?;
    text.split_once("\"sha1\": \"")?.1.get(..9).map(str::to_owned)
}
