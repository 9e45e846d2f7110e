//! Names that a person typed and this program does not know.

use std::fmt;

/// How alike two names must be for one to be a hint for the other; 1 is the same name.
const ALIKE: f64 = 0.7;

/// A name that is not known. A command exits with 2 for it, as for a flag that is not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unknown(String);

impl Unknown {
    /// A name of some kind, such as `engine`, with the names that are known.
    pub fn new(kind: &str, name: &str, known: &[impl AsRef<str>]) -> Self {
        Self::or(kind, name, known, "")
    }

    /// The same with words for what else would be understood, such as `, or a path`.
    pub fn or(kind: &str, name: &str, known: &[impl AsRef<str>], others: &str) -> Self {
        let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
        let mut text = format!("{kind}: got '{name}', expected one of {}{others}", known.join(", "));
        if let Some(like) = most_like(name, &known) {
            text += &format!("\nhint: did you mean {like}?");
        }
        Self(text)
    }

    /// An error of another part about a name.
    pub fn because(why: &anyhow::Error) -> Self {
        Self(format!("{why:#}"))
    }
}

fn most_like<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let score = |other: &str| strsim::normalized_damerau_levenshtein(name, other);
    let best = known.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)))?;
    (score(best) > ALIKE).then_some(best)
}

impl fmt::Display for Unknown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unknown {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_like_a_known_one_is_a_hint() {
        let known = ["detr-encoder", "seed-encoder", "small"];
        let said = Unknown::or("workload", "sede-encoder", &known, ", or a path").to_string();
        assert_eq!(
            said,
            "workload: got 'sede-encoder', expected one of detr-encoder, seed-encoder, small, or a path\n\
             hint: did you mean seed-encoder?"
        );
        assert!(!Unknown::new("workload", "xyz", &known).to_string().contains("hint"));
    }
}
