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
        if let Some((last, first)) = similar(name, &known).split_last() {
            let first = if first.is_empty() { String::new() } else { format!("{} or ", first.join(", ")) };
            text += &format!("\nhint: did you mean {first}{last}?");
        }
        Self(text)
    }

    /// An error of another part about a name.
    pub fn because(why: &anyhow::Error) -> Self {
        Self(format!("{why:#}"))
    }
}

/// The name that is most like `name`, or else all names that contain it.
fn similar<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let name = name.to_lowercase();
    let score = |other: &str| strsim::normalized_damerau_levenshtein(&name, other);
    let best = known.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)));
    match best.filter(|best| score(best) > ALIKE) {
        Some(best) => vec![best],
        None => known.iter().copied().filter(|other| !name.is_empty() && other.contains(&name)).collect(),
    }
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
        let said = Unknown::new("workload", "Encoder", &known).to_string();
        assert!(said.ends_with("\nhint: did you mean detr-encoder or seed-encoder?"), "{said}");
        for name in ["xyz", ""] {
            assert!(!Unknown::new("workload", name, &known).to_string().contains("hint"));
        }
    }
}
