//! A virtual environment with torch, made once.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What the comparison needs.
const PACKAGES: [&str; 2] = ["torch", "numpy"];

/// The Python of `.venv` under `root`, with everything installed.
pub(crate) fn ensure(root: &Path) -> Result<PathBuf> {
    let folder = root.join(".venv");
    let python = if cfg!(windows) { folder.join("Scripts/python.exe") } else { folder.join("bin/python") };
    if imports(&python) {
        return Ok(python);
    }
    let base = ["python3", "python"]
        .into_iter()
        .find(|p| works(Command::new(p).args(["-c", "import venv, sys; assert sys.version_info >= (3, 10)"])))
        .context("no Python 3.10 or newer with venv was found\nhint: install python3 and python3-venv")?;
    eprintln!("making {} with {} (once; a few minutes)", folder.display(), PACKAGES.join(" and "));
    crate::run(base, &["-m", "venv", &folder.to_string_lossy()], &[])?;
    let mut install = vec!["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    install.extend(PACKAGES);
    crate::run(&python, &install, &[])?;
    if !imports(&python) {
        bail!("{} was made, but does not import {}", folder.display(), PACKAGES.join(" and "));
    }
    Ok(python)
}

fn imports(python: &Path) -> bool {
    works(Command::new(python).args(["-c", &format!("import {}", PACKAGES.join(", "))]))
}

fn works(command: &mut Command) -> bool {
    command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|s| s.success())
}
