//! Sentences with numbers from facts: text in braces is an expression. `{gain a / b}` is a gain in
//! percent.

use anyhow::{Result, bail};
use serde::Deserialize;

use super::judge::rounded;
use crate::facts::{Expression, Facts};

/// A sentence: pieces of text, each with the number that follows it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Words(Vec<(String, Option<Number>)>);

/// A number of a sentence.
#[derive(Debug, Clone)]
struct Number {
    expression: Expression,
    /// Whether it is a gain in percent.
    gain: bool,
}

impl Number {
    /// An expression, or `gain` and a speed-up.
    fn parse(text: &str) -> Result<Self> {
        Ok(match text.strip_prefix("gain ") {
            Some(speedup) => {
                Expression::parse(speedup)?;
                Self { expression: Expression::parse(&format!("({speedup} - 1) * 100"))?, gain: true }
            }
            None => Self { expression: Expression::parse(text)?, gain: false },
        })
    }

    /// The number, rounded to its noise. A gain has its unit, and says whether it is noise.
    fn text(&self, facts: &Facts) -> String {
        let Ok(value) = self.expression.value(facts) else { return ABSENT.into() };
        let range = self.expression.range(facts);
        let number = rounded(value, range);
        let noise = range.is_some_and(|(low, high)| low <= 0.0 && high >= 0.0);
        match (self.gain, noise) {
            (true, true) => format!("{number} % (noise)"),
            (true, false) => format!("{number} %"),
            (false, _) => number,
        }
    }
}

/// The text of a sentence whose numbers no record has.
const ABSENT_CELL: &str = "not measured yet";

/// The text of a number that no record has.
pub const ABSENT: &str = "(not measured yet)";

impl TryFrom<String> for Words {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let (mut pieces, mut rest) = (Vec::new(), text.as_str());
        while let Some((before, after)) = rest.split_once('{') {
            let Some((inside, after)) = after.split_once('}') else {
                bail!("sentence: got '{text}', expected a '}}' for every '{{'");
            };
            pieces.push((before.into(), Some(Number::parse(inside)?)));
            rest = after;
        }
        pieces.push((rest.into(), None));
        Ok(Self(pieces))
    }
}

impl Words {
    /// The sentence with its numbers.
    pub fn text(&self, facts: &Facts) -> String {
        let number = |n: &Option<Number>| n.as_ref().map_or_else(String::new, |n| n.text(facts));
        self.0.iter().map(|(text, n)| text.clone() + &number(n)).collect()
    }

    /// The sentence with its numbers, or that one is missing.
    pub fn complete(&self, facts: &Facts) -> String {
        if self.names().all(|name| facts.get(&name).is_some()) {
            self.text(facts)
        } else {
            ABSENT_CELL.into()
        }
    }

    /// The sentence with its numbers, or what comes before a part with a number that is missing.
    pub fn known(&self, facts: &Facts) -> String {
        let missing = |n: &Number| n.expression.value(facts).is_err();
        match self.0.iter().any(|(_, n)| n.as_ref().is_some_and(missing)) {
            true => self.0[0].0.split(';').next().unwrap_or_default().into(),
            false => self.text(facts),
        }
    }

    /// The names of its facts.
    pub fn names(&self) -> impl Iterator<Item = String> {
        self.0.iter().filter_map(|(_, n)| n.as_ref()).flat_map(|n| n.expression.names())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_put_in() {
        let mut facts = Facts::default();
        facts.insert("a", 2.0, "", "");
        let parse = |text: &str| Words::try_from(text.to_owned());
        for (words, expected) in
            [("", ""), ("{`a`} us, {`a` * 2}", "2 us, 4"), ("{`b`} and {`a`}.", "(not measured yet) and 2.")]
        {
            assert_eq!(parse(words).unwrap().text(&facts), expected);
        }
        let words = parse("on one; on two {`b`}").unwrap();
        assert_eq!(
            (words.complete(&facts), words.known(&facts)),
            ("not measured yet".into(), "on one".into())
        );
        facts.insert("b", 1.96, "", "");
        facts.vary("b", 1.9, 1.97);
        assert_eq!(parse("{gain `a` / `b`}, {gain `b` / `a`}").unwrap().text(&facts), "2 %, -2 %");
        facts.vary("b", 1.9, 2.02);
        assert_eq!(parse("{gain `a` / `b`}; {`b`}").unwrap().text(&facts), "2 % (noise); 1.96");
        for wrong in ["{", "{1", "{a}", "{}", "{gain }"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
