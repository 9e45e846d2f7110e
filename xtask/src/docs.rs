//! The documentation site: the documents of the repository as pages (`docs/mkdocs.yml`).

use anyhow::Result;

use crate::{files, root, run, venv};

/// Makes the site in `target/site`. A page that is not in the table of contents, and a link or an
/// anchor that leads nowhere, are errors.
pub(crate) fn build() -> Result<()> {
    let python = venv::ensure(&root())?.python;
    run(&python, &["scripts/tested.py", "--check"], &[])?;
    // The generator takes pages from one folder that may not be the root: it gets a copy.
    let source = root().join("target/site-source");
    let _ = std::fs::remove_dir_all(&source);
    files::copy(&root(), &source)?;
    // With `--quiet` warnings would not count. The variable turns an advertisement off.
    let args = ["-m", "mkdocs", "build", "--strict", "--config-file", "docs/mkdocs.yml"];
    run(python, &args, &[("NO_MKDOCS_2_WARNING", "1".as_ref())])?;
    eprintln!("the site is in {}", root().join("target/site").display());
    Ok(())
}
