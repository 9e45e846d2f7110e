//! What tuning found: a line for each class of problems.
//!
//! ```text
//! sm_90 f16 d32 p4.4.4.4 bshd pixels 2^20 = rows:sides=1,split=1,heads=2,block=512,blocks=3,round=4,walk=tiles
//! ```

use std::path::PathBuf;
use std::sync::OnceLock;

use msda::{Error, ErrorKind, Padding, Result, Sampling};

use crate::jit::Cache;
use crate::request::{Request, Target};
use crate::variants::Kernel;

/// What comes with the library.
const SHIPPED: &str = include_str!("tuned.txt");

/// Lines of tuned kernels. Later lines count for more.
#[derive(Debug, Clone, Default)]
pub struct Tuned {
    lines: Vec<(String, Kernel, &'static str)>,
}

impl Tuned {
    /// What comes with the library, and what this machine's tuning found; read once.
    pub fn global() -> &'static Self {
        static TUNED: OnceLock<Tuned> = OnceLock::new();
        TUNED.get_or_init(|| {
            let mut all = Self::parse(SHIPPED, "shipped").unwrap_or_default();
            let own = Self::path().and_then(|path| std::fs::read_to_string(path).ok());
            // A file that cannot be read as a whole counts for nothing.
            if let Some(own) = own.and_then(|text| Self::parse(&text, "this machine").ok()) {
                all.lines.extend(own.lines);
            }
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

    /// Reads lines of `class = kernel`; `#` begins a comment.
    pub fn parse(text: &str, source: &'static str) -> Result<Self> {
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let (class, kernel) = line.split_once(" = ").ok_or_else(|| {
                let subject = format!("line {} of tuned kernels", number + 1);
                Error::new(ErrorKind::Format, subject, format!("'{line}'"), "class = kernel")
            })?;
            lines.push((class.trim().to_owned(), kernel.trim().parse()?, source));
        }
        Ok(Self { lines })
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
        Tuned::parse(SHIPPED, "shipped").unwrap();
        let tuned = Tuned::parse("a b = generic # first\n\na b = rows:split=2\n", "test").unwrap();
        assert_eq!(
            tuned.find("a b").unwrap().0.to_string(),
            "rows:sides=1,split=2,heads=1,block=128,blocks=1,round=1,keep=0,walk=straight"
        );
        assert!(tuned.find("a").is_none());
        for wrong in ["a b", "a = unknown", "a = rows:split=x", "a = rows:walk=away"] {
            assert!(Tuned::parse(wrong, "test").is_err(), "{wrong}");
        }
    }
}
