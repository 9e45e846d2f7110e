//! Lines of prose and comments have at most 100 columns. Tables, code and addresses of pages may
//! have more.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::files;

const MOST: usize = 100;

/// What a line of a file is.
#[derive(Clone, Copy)]
enum Prose {
    /// All lines, without code and tables.
    Text,
    /// Lines that begin with this mark.
    Comment(&'static str),
}

impl Prose {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "md" => Some(Self::Text),
            "rs" | "cu" | "cuh" => Some(Self::Comment("//")),
            "py" | "pyi" | "sh" | "toml" | "yml" => Some(Self::Comment("#")),
            _ => None,
        }
    }

    /// The numbers of the lines that are too long.
    fn too_long(self, text: &str) -> Vec<usize> {
        let mut in_code = false;
        let mut numbers = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            in_code ^= trimmed.starts_with("```");
            let (counts, words) = match self {
                Self::Text => (!in_code, trimmed),
                Self::Comment(mark) => {
                    (trimmed.starts_with(mark), trimmed.trim_start_matches(['/', '!', '#', ' ']))
                }
            };
            let free = words.starts_with('|') || words.contains("://");
            if counts && !free && line.chars().count() > MOST {
                numbers.push(i + 1);
            }
        }
        numbers
    }
}

/// Refuses tracked files under `root` with lines of prose that are too long.
pub(crate) fn check(root: &Path) -> Result<()> {
    let mut wrong = Vec::new();
    for path in files::tracked(root)? {
        let Some(prose) = Prose::of(&path) else { continue };
        let text =
            fs::read_to_string(root.join(&path)).with_context(|| format!("reading {}", path.display()))?;
        wrong.extend(prose.too_long(&text).iter().map(|line| format!("{}:{line}", path.display())));
    }
    wrong.sort();
    if !wrong.is_empty() {
        bail!("lines of prose or comments with more than {MOST} columns:\n  {}", wrong.join("\n  "));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prose_is_short_and_tables_and_code_may_be_long() {
        let long = "x ".repeat(60);
        let rust = Prose::Comment("//");
        assert_eq!(rust.too_long(&format!("// {long}\n    /// {long}\nlet a = 1; // {long}")), [1, 2]);
        assert_eq!(rust.too_long(&format!("//! | {long}\n// see https://example.org/{long}")), []);
        let text = format!("{long}\n| {long}\n```\n{long}\n```\n{long}");
        assert_eq!(Prose::Text.too_long(&text), [1, 6]);
        assert_eq!(Prose::Text.too_long(&"é".repeat(100)), []);
    }

    #[test]
    fn only_tracked_files_are_checked() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir(root.join("report")).unwrap();
        fs::write(root.join("README.md"), "short\n").unwrap();
        fs::write(root.join("report/report.md"), "x ".repeat(60)).unwrap();
        if let Err(why) = files::git(root, &["init", "--quiet"]) {
            return eprintln!("skipped: {why:#}");
        }
        files::git(root, &["add", "README.md"]).unwrap();
        check(root).unwrap();
        files::git(root, &["add", "report/report.md"]).unwrap();
        let why = check(root).unwrap_err().to_string();
        assert!(why.ends_with("columns:\n  report/report.md:1"), "{why}");
        fs::remove_file(root.join("report/report.md")).unwrap();
        check(root).unwrap();
    }

    #[test]
    fn without_a_repository_outputs_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join(".gitignore"), "/report\n*.pyc\nbuild/\n").unwrap();
        for name in ["report", "docs/build", ".venv", "docs/report"] {
            fs::create_dir_all(root.join(name)).unwrap();
            fs::write(root.join(name).join("page.md"), "x ".repeat(60)).unwrap();
        }
        let why = check(root).unwrap_err().to_string();
        assert!(why.ends_with("columns:\n  docs/report/page.md:1"), "{why}");
    }
}
