//! Tuned kernels: one line per class of problems.
//!
//! ```text
//! sm_90 f16 d32 p4.4.4.4 bshd pixels 2^20 = rows:heads_per_block=2,threads=512,walk=tiles
//! ```

use std::path::PathBuf;
use std::sync::OnceLock;

use msda::{Padding, Sampling};

use crate::jit::Cache;
use crate::kernels::Kernel;
use crate::request::{Pass, Request};
use crate::target::Target;

/// The lines that come with the library.
const SHIPPED: &str = include_str!("tuned.txt");

/// Lines of tuned kernels. A later line replaces an earlier one of the same class.
#[derive(Debug, Clone, Default)]
pub struct Tuned {
    lines: Vec<(String, Kernel, &'static str)>,
    problems: Vec<String>,
}

impl Tuned {
    /// The lines of the library and those of this machine, read once.
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

    /// The file of this machine: `MSDA_TUNED`, or `tuned.txt` in the cache folder.
    pub fn path() -> Option<PathBuf> {
        match std::env::var_os("MSDA_TUNED") {
            Some(path) => Some(path.into()).filter(|p: &PathBuf| !p.as_os_str().is_empty()),
            None => Cache::global().folder().map(|folder| folder.join("tuned.txt")),
        }
    }

    /// Reads lines of `class = kernel`; `#` begins a comment. A line that cannot be read is skipped
    /// and listed in [`problems`](Self::problems).
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

    /// The lines that could not be read, with reasons.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The kernel for a request, and the source of its line. If the backward pass has no line, that
    /// of the forward pass counts.
    pub fn kernel(&self, request: &Request<'_>, target: &Target) -> Option<(Kernel, &'static str)> {
        let forward = Request { pass: Pass::Forward, ..*request };
        self.find(&class(request, target)).or_else(|| self.find(&class(&forward, target)))
    }

    /// The kernel for a class, and the source of its line.
    pub fn find(&self, class: &str) -> Option<(Kernel, &'static str)> {
        let line = self.lines.iter().rev().find(|(c, _, _)| c == class)?;
        Some((line.1, line.2))
    }
}

/// The class of a request: the properties that the best kernel depends on. Of sizes only the
/// magnitude counts.
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
    if request.pass != Pass::Forward {
        words.push("backward".into());
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use msda::{Problem, Spec};

    use super::*;
    use crate::driver::Arch;
    use crate::request::{Operands, Wanted};

    #[test]
    fn the_backward_pass_has_its_own_lines_or_those_of_the_forward_pass() {
        let (levels, points) = (vec![(4, 4)], vec![1]);
        let sizes = Spec { batch: 1, queries: 9, heads: 1, channels: 8, levels, points, ..Spec::default() };
        let p = Problem::new(sizes).unwrap();
        let wanted = Wanted { value: true, locations: true, weights: true, reference: false };
        let pass = Pass::Backward(wanted);
        let operands = Operands::for_pass(&p, None, pass);
        let backward = Request { pass, ..Request::new(&p, &operands) };
        let forward = Request { pass: Pass::Forward, ..backward };
        let target = Target { arch: Arch::new(9, 0), sms: 132 };
        let line = |request, threads| format!("{} = rows:threads={threads}\n", class(request, &target));
        let threads = |tuned: &Tuned, request| match tuned.kernel(request, &target) {
            Some((Kernel::Rows(knobs), _)) => knobs.threads,
            other => panic!("{other:?}"),
        };
        let one = Tuned::parse(&line(&forward, 64), "test");
        assert_eq!((threads(&one, &forward), threads(&one, &backward)), (64, 64));
        let both = Tuned::parse(&(line(&forward, 64) + &line(&backward, 256)), "test");
        assert_eq!((threads(&both, &forward), threads(&both, &backward)), (64, 256));
    }

    #[test]
    fn shipped_lines_can_be_read_and_later_lines_win() {
        assert_eq!(Tuned::parse(SHIPPED, "shipped").problems(), [""; 0]);
        let tuned = Tuned::parse("a b = generic # first\n\na b = rows:sample_groups=2\nhello\n", "test");
        assert_eq!(tuned.problems().len(), 1);
        assert_eq!(
            tuned.find("a b").unwrap().0.to_string(),
            "rows:tap_columns=1,sample_groups=2,heads_per_block=1,threads=128,blocks_per_sm=1,samples_per_lane=1,\
             resident_levels=0,walk=straight"
        );
        assert!(tuned.find("a").is_none());
        for wrong in ["a b", "a = unknown", "a = rows:sample_groups=x", "a = rows:walk=away"] {
            assert_eq!(Tuned::parse(wrong, "test").problems().len(), 1, "{wrong}");
        }
    }
}
