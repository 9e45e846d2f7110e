//! Tuned kernels: one line per class of problems, below a header with the GPU and the version of
//! the kernels that were measured.
//!
//! ```text
//! [NVIDIA H200, 132 SMs, kernels 0123456789abcdef]
//! sm_90 f16 d32 p4.4.4.4 bshd pixels 2^20 = rows:heads_per_block=2,threads=512,walk=tiles
//! ```
//!
//! Lines count on GPUs with as many SMs. Lines of other kernels are stale: they are not used, and
//! the reason of the choice says so.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use msda::{Error, ErrorKind, Padding, Sampling};

use crate::driver::Device;
use crate::jit::{Cache, KERNELS};
use crate::kernels::Kernel;
use crate::request::{Pass, Request};
use crate::target::Target;

/// The lines that come with the library.
const SHIPPED: &str = include_str!("tuned.txt");

/// Lines of tuned kernels. A later line replaces an earlier one of the same class.
#[derive(Debug, Clone, Default)]
pub struct Tuned {
    lines: Vec<Line>,
    problems: Vec<String>,
}

#[derive(Debug, Clone)]
struct Line {
    class: String,
    kernel: Kernel,
    section: Section,
    source: &'static str,
}

/// Where the lines of a section count.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Section {
    Everywhere,
    /// On GPUs with this many SMs.
    On(u32),
    /// Nowhere, because they were measured with other kernels.
    Stale,
}

/// The header of lines that were measured: the GPU and the version of the kernels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The name of the GPU.
    pub gpu: String,
    /// Its SMs.
    pub sms: u32,
    /// The [version](crate::jit::Sources::version) of the kernels.
    pub kernels: String,
}

impl Header {
    /// The header for measurements on a device with the kernels of this library.
    pub fn of(device: &Device) -> Self {
        Self { gpu: device.name().to_owned(), sms: device.sms(), kernels: KERNELS.version() }
    }

    /// Whether it was measured with the kernels of this library.
    pub fn is_current(&self) -> bool {
        self.kernels == KERNELS.version()
    }
}

impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}, {} SMs, kernels {}]", self.gpu, self.sms, self.kernels)
    }
}

impl FromStr for Header {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let (rest, kernels) = text.strip_prefix('[')?.strip_suffix(']')?.rsplit_once(", kernels ")?;
            let (gpu, sms) = rest.strip_suffix(" SMs")?.rsplit_once(", ")?;
            Some(Self { gpu: gpu.to_owned(), sms: sms.parse().ok()?, kernels: kernels.to_owned() })
        };
        read().ok_or_else(|| {
            Error::new(ErrorKind::Format, "header", text, "[GPU, NUMBER SMs, kernels VERSION]")
        })
    }
}

impl Tuned {
    /// The lines of the library and those of the user's file, read once.
    pub fn global() -> &'static Self {
        static TUNED: OnceLock<Tuned> = OnceLock::new();
        TUNED.get_or_init(|| {
            let mut all = Self::parse(SHIPPED, "shipped");
            let own = match Self::path().map(|path| (std::fs::read_to_string(&path), path)) {
                Some((Ok(text), path)) => Self::parse_file(&text, &path),
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

    /// The user's file: `MSDA_TUNED`, or `tuned.txt` in the cache folder.
    pub fn path() -> Option<PathBuf> {
        match std::env::var_os("MSDA_TUNED") {
            Some(path) => Some(path.into()).filter(|p: &PathBuf| !p.as_os_str().is_empty()),
            None => Cache::global().folder().map(|folder| folder.join("tuned.txt")),
        }
    }

    /// Reads the user's file. Lines without a header are stale.
    pub fn parse_file(text: &str, path: &Path) -> Self {
        let mut all = Self::parse_from(text, "tuned file", Section::Stale);
        for problem in &mut all.problems {
            *problem = format!("{}: {problem}", path.display());
        }
        all
    }

    /// Reads lines of `class = kernel`; `#` begins a comment. A line that cannot be read is skipped
    /// and listed in [`problems`](Self::problems). Lines without a header count everywhere.
    pub fn parse(text: &str, source: &'static str) -> Self {
        Self::parse_from(text, source, Section::Everywhere)
    }

    fn parse_from(text: &str, source: &'static str, first: Section) -> Self {
        let (mut all, mut section) = (Self::default(), first);
        // Whether the section was named, by its header or as a problem.
        let mut named = section != Section::Stale;
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("").trim();
            if line.is_empty() {
                continue;
            }
            let mut problem =
                |why: String| all.problems.push(format!("line {} ({source}): {why}", number + 1));
            if line.starts_with('[') {
                named = true;
                section = match line.parse::<Header>() {
                    Ok(header) if header.is_current() => Section::On(header.sms),
                    Ok(header) => {
                        let now = KERNELS.version();
                        problem(format!(
                            "{header} is stale: the kernels are now {now}; run `msda tune` again"
                        ));
                        Section::Stale
                    }
                    Err(why) => {
                        problem(why.to_string());
                        Section::Stale
                    }
                };
                continue;
            }
            if !std::mem::replace(&mut named, true) {
                problem("no header says the GPU and the kernels; run `msda tune` again".into());
            }
            let read = line.split_once(" = ").ok_or("expected class = kernel".to_owned()).and_then(
                |(class, kernel)| {
                    Ok((class.trim(), kernel.trim().parse().map_err(|e: msda::Error| e.to_string())?))
                },
            );
            match read {
                Ok((class, kernel)) => {
                    let class = class.to_owned();
                    all.lines.push(Line { class, kernel, section: section.clone(), source });
                }
                Err(why) => problem(format!("'{line}': {why}")),
            }
        }
        all
    }

    /// The lines that could not be read and the sections that are stale, with reasons.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// The kernel for a request, and the source of its line. If the backward pass has no line, that
    /// of the forward pass counts.
    pub fn kernel(&self, request: &Request<'_>, target: &Target) -> Option<(Kernel, &'static str)> {
        let [own, forward] = classes(request, target);
        self.find(&own, target.sms).or_else(|| self.find(&forward, target.sms))
    }

    /// The kernel for a class on a GPU with this many SMs, and the source of its line.
    pub fn find(&self, class: &str, sms: u32) -> Option<(Kernel, &'static str)> {
        let counts = |line: &&Line| match line.section {
            Section::Everywhere => true,
            Section::On(own) => own == sms,
            Section::Stale => false,
        };
        let line = self.lines.iter().rev().filter(counts).find(|line| line.class == class)?;
        Some((line.kernel, line.source))
    }

    /// Whether a stale line would have chosen the kernel of a request.
    pub fn is_stale(&self, request: &Request<'_>, target: &Target) -> bool {
        let classes = classes(request, target);
        let stale = |line: &Line| line.section == Section::Stale && classes.contains(&line.class);
        self.lines.iter().any(stale)
    }
}

/// The class of a request, and that of its forward pass.
fn classes(request: &Request<'_>, target: &Target) -> [String; 2] {
    [class(request, target), class(&Request { pass: Pass::Forward, ..*request }, target)]
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
            tuned.find("a b", 132).unwrap().0.to_string(),
            "rows:tap_columns=1,sample_groups=2,heads_per_block=1,threads=128,blocks_per_sm=1,samples_per_lane=1,\
             resident_levels=0,walk=straight"
        );
        assert!(tuned.find("a", 132).is_none());
        for wrong in ["a b", "a = unknown", "a = rows:sample_groups=x", "a = rows:walk=away"] {
            assert_eq!(Tuned::parse(wrong, "test").problems().len(), 1, "{wrong}");
        }
    }

    #[test]
    fn lines_count_on_their_gpu_and_with_their_kernels() {
        let header = Header { gpu: "NVIDIA A, 2 GB".into(), sms: 7, kernels: KERNELS.version() };
        assert_eq!(header.to_string().parse(), Ok(header.clone()));
        let old = Header { kernels: "0123456789abcdef".into(), ..header.clone() };
        let text = format!("{old}\na = generic\nb = generic\n{header}\na = rows:threads=64\n");
        let tuned = Tuned::parse_file(&text, Path::new("my/tuned.txt"));
        assert!(matches!(tuned.find("a", 7), Some((Kernel::Rows(_), "tuned file"))));
        assert!(tuned.find("a", 8).is_none() && tuned.find("b", 7).is_none());
        let [problem] = tuned.problems() else { panic!("{:?}", tuned.problems()) };
        for words in ["my/tuned.txt: line 1", "0123456789abcdef", &KERNELS.version(), "run `msda tune`"] {
            assert!(problem.contains(words), "{problem}");
        }
        for (text, words) in [
            ("a = generic\nb = generic\n", "no header says"),
            ("[NVIDIA A, x SMs, kernels 1]\na = generic\n", "expected [GPU, NUMBER SMs"),
        ] {
            let tuned = Tuned::parse_file(text, Path::new("tuned.txt"));
            assert!(tuned.find("a", 7).is_none());
            assert!(matches!(tuned.problems(), [one] if one.contains(words)), "{:?}", tuned.problems());
        }
    }

    #[test]
    fn a_stale_line_is_known_by_the_request_that_it_is_for() {
        let (levels, points) = (vec![(4, 4)], vec![1]);
        let sizes = Spec { batch: 1, queries: 9, heads: 1, channels: 8, levels, points, ..Spec::default() };
        let p = Problem::new(sizes).unwrap();
        let operands = Operands::for_pass(&p, None, Pass::Forward);
        let (request, target) = (Request::new(&p, &operands), Target { arch: Arch::new(9, 0), sms: 132 });
        let line = format!("{} = generic\n", class(&request, &target));
        assert!(Tuned::parse_file(&line, Path::new("tuned.txt")).is_stale(&request, &target));
        assert!(!Tuned::parse(&line, "test").is_stale(&request, &target));
    }
}
