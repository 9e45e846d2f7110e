//! What tuning found: a line for each class of problems.
//!
//! ```text
//! sm_90 f16 d32 p4.4.4.4 bshd pixels 2^20 = rows:sides=1,split=1,heads=2,block=512,blocks=3,round=4,walk=tiles
//! ```

use std::path::PathBuf;
use std::sync::OnceLock;

use msda::{Padding, Sampling};

use crate::jit::Cache;
use crate::kernels::Kernel;
use crate::request::{Request, Target};

/// What comes with the library.
const SHIPPED: &str = include_str!("tuned.txt");

/// Lines of tuned kernels. Later lines count for more.
#[derive(Debug, Clone, Default)]
pub struct Tuned {
    lines: Vec<(String, Kernel, &'static str)>,
    problems: Vec<String>,
}

impl Tuned {
    /// What comes with the library, and what this machine's tuning found; read once.
    pub fn global() -> &'static Self {
        static TUNED: OnceLock<Tuned> = OnceLock::new();
        TUNED.get_or_init(|| {
            let mut all = Self::parse(SHIPPED, "shipped");
            let own = match Self::path().map(|path| (std::fs::read_to_string(&path), path)) {
                Some((Ok(text), _)) => Self::parse(&text, "this machine"),
                Some((Err(why), path)) if why.kind() != std::io::ErrorKind::NotFound => {
                    Self { problems: vec![format!("{}: {why}", path.display())], ..Self::default() }
                }
                _ => Self::default(),
            };
            all.lines.extend(own.lines);
            all.problems.extend(own.problems);
            all
        })
    }

    /// The file of this machine's tuning: `MSDA_TUNED`, or `tuned.txt` in the cache's folder.
    pub fn path() -> Option<PathBuf> {
        match std::env::var_os("MSDA_TUNED") {
            Some(path) => Some(path.into()).filter(|p: &PathBuf| !p.as_os_str().is_empty()),
            None => Cache::global().folder().map(|folder| folder.join("tuned.txt")),
        }
    }

    /// Reads lines of `class = kernel`; `#` begins a comment. A line that cannot be read counts for nothing, and is kept
    /// as a problem.
    pub fn parse(text: &str, source: &'static str) -> Self {
        let mut all = Self::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let read = line.split_once(" = ").ok_or("expected class = kernel".to_owned()).and_then(
                |(class, kernel)| {
                    Ok((class.trim(), kernel.trim().parse().map_err(|e: msda::Error| e.to_string())?))
                },
            );
            match read {
                Ok((class, kernel)) => all.lines.push((class.to_owned(), kernel, source)),
                Err(why) => all.problems.push(format!("line {} ({source}): '{line}': {why}", number + 1)),
            }
        }
        all
    }

    /// What could not be read.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The kernel for a class, and where that is from.
    pub fn find(&self, class: &str) -> Option<(Kernel, &'static str)> {
        let line = self.lines.iter().rev().find(|(c, _, _)| c == class)?;
        Some((line.1, line.2))
    }
}

/// The class of a request: what the best kernel depends on. Sizes count by their magnitude.
pub fn class(request: &Request<'_>, target: &Target) -> String {
    let p = request.problem;
    let t = p.types();
    let points: Vec<String> = p.points().iter().map(ToString::to_string).collect();
    let mut words = vec![
        target.arch.to_string(),
        t.value.to_string(),
        format!("d{}", p.channels()),
        format!("p{}", points.join(".")),
        p.layout().name().into(),
    ];
    let options = [
        (t.locations != t.value, format!("loc{}", t.locations)),
        (t.weights != t.value, format!("w{}", t.weights)),
        (p.sampling() == Sampling::Nearest, "nearest".into()),
        (p.padding() == Padding::Border, "border".into()),
        (request.operands.reference_numbers() > 0, format!("fused{}", request.operands.reference_numbers())),
    ];
    words.extend(options.into_iter().filter(|(on, _)| *on).map(|(_, word)| word));
    words.push(if request.queries_are_pixels() { "pixels" } else { "free" }.into());
    words.push(format!("2^{}", (p.batch() * p.queries() * p.heads()).max(1).ilog2()));
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shipped_can_be_read_and_later_lines_count_for_more() {
        assert_eq!(Tuned::parse(SHIPPED, "shipped").problems(), [""; 0]);
        let tuned = Tuned::parse("a b = generic # first\n\na b = rows:split=2\nhello\n", "test");
        assert_eq!(tuned.problems().len(), 1);
        assert_eq!(
            tuned.find("a b").unwrap().0.to_string(),
            "rows:sides=1,split=2,heads=1,block=128,blocks=1,round=1,keep=0,walk=straight"
        );
        assert!(tuned.find("a").is_none());
        for wrong in ["a b", "a = unknown", "a = rows:split=x", "a = rows:walk=away"] {
            assert_eq!(Tuned::parse(wrong, "test").problems().len(), 1, "{wrong}");
        }
    }
}
