//! The files of the project, without what builds and commands leave behind.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The tracked files under `root`, as paths from there. Where `root` is no repository, or git does
/// not work: all files, but hidden folders and those that `.gitignore` names without wildcards.
pub(crate) fn tracked(root: &Path) -> Result<Vec<PathBuf>> {
    let list = if root.join(".git").exists() {
        git(root, &["ls-files", "-z"])
    } else {
        Err(anyhow::anyhow!("{} is not a git repository", root.display()))
    };
    match list {
        Ok(list) => {
            let paths = list.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from);
            // A deleted file is tracked until the deletion is added.
            Ok(paths.filter(|path| root.join(path).is_file()).collect())
        }
        Err(why) => {
            eprintln!("note: {why:#}: looking at all files, not only at tracked ones");
            walk(root)
        }
    }
}

/// Runs git in a folder; returns its output.
pub(crate) fn git(root: &Path, args: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    // A hook of git sets these, for its own repository.
    for name in ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"] {
        git.env_remove(name);
    }
    let done = git.arg("-C").arg(root).args(args).output().context("starting git")?;
    if !done.status.success() {
        bail!("git {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    String::from_utf8(done.stdout).context("names of files that are not UTF-8")
}

fn walk(root: &Path) -> Result<Vec<PathBuf>> {
    let ignored = fs::read_to_string(root.join(".gitignore")).unwrap_or_default();
    // `/name` means this path from the root, `name/` a folder of this name anywhere.
    let is_ignored = |path: &Path| {
        ignored.lines().any(|line| match line.strip_prefix('/') {
            Some(from_root) => path == Path::new(from_root.trim_end_matches('/')),
            None => path.ends_with(line.trim_end_matches('/')),
        })
    };
    let (mut files, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let entry = entry?;
            let path = entry.path().strip_prefix(root)?.to_owned();
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if is_ignored(&path) || path == Path::new(".git") {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true if hidden => {}
                true => folders.push(entry.path()),
                false => files.push(path),
            }
        }
    }
    Ok(files)
}

/// Copies the tracked files under `root` to a new folder, as a clone would have them.
pub(crate) fn copy(root: &Path, to: &Path) -> Result<()> {
    for path in tracked(root)? {
        let target = to.join(&path);
        fs::create_dir_all(target.parent().context("a file in a folder")?)?;
        fs::copy(root.join(&path), &target).with_context(|| format!("copying {}", path.display()))?;
    }
    if root.join(".git").exists() {
        git(to, &["init", "--quiet"])?;
        git(to, &["add", "--all", "--force"])?;
    }
    Ok(())
}
