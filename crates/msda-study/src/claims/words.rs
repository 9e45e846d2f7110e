//! Sentences with numbers from facts.
//!
//! | in braces | result |
//! |---|---|
//! | an expression | its value |
//! | `?EXPRESSION\|TEXT\|TEXT` | the first text if the expression is true, otherwise the second |
//! | `fastest NAME, NAME` | the rung with the least time, and its time |

use anyhow::{Result, bail};
use serde::Deserialize;

use super::judge::shown;
use crate::engines::RUNG;
use crate::facts::{Expression, Facts};

/// A sentence.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(try_from = "String")]
pub struct Words(Vec<Piece>);

#[derive(Debug, Clone)]
enum Piece {
    Plain(String),
    Number(Expression),
    Either(Expression, Words, Words),
    Fastest(Vec<(String, Expression)>),
}

/// The text of a number that no record has.
pub const ABSENT: &str = "(not measured yet)";

impl TryFrom<String> for Words {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        Self::parse(&text)
    }
}

impl Words {
    /// Parses a sentence.
    pub fn parse(text: &str) -> Result<Self> {
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let Some(end) = end_of_braces(after) else {
                bail!("sentence: got '{text}', expected a '}}' for every '{{'");
            };
            pieces.push(Piece::Plain(before.into()));
            pieces.push(piece(&after[..end])?);
            rest = &after[end + 1..];
        }
        pieces.push(Piece::Plain(rest.into()));
        Ok(Self(pieces))
    }

    /// The sentence with its numbers.
    pub fn text(&self, facts: &Facts) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Plain(text) => text.clone(),
            Piece::Number(e) => e.value(facts).map_or_else(|_| ABSENT.into(), shown),
            Piece::Either(e, yes, no) => match e.value(facts) {
                Ok(0.0) => no.text(facts),
                Ok(_) => yes.text(facts),
                Err(_) => ABSENT.into(),
            },
            Piece::Fastest(rungs) => fastest(rungs, facts),
        };
        self.0.iter().map(piece).collect()
    }

    /// The names of its facts.
    pub fn names(&self) -> Vec<String> {
        let of = |piece: &Piece| match piece {
            Piece::Plain(_) => Vec::new(),
            Piece::Number(e) => e.names().into_iter().collect(),
            Piece::Either(e, yes, no) => e.names().into_iter().chain(yes.names()).chain(no.names()).collect(),
            Piece::Fastest(rungs) => rungs.iter().flat_map(|(_, e)| e.names()).collect(),
        };
        self.0.iter().flat_map(of).collect()
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|piece| matches!(piece, Piece::Plain(text) if text.is_empty()))
    }
}

/// The rung with the least time. None unless all are measured: the fastest could be missing.
fn fastest(rungs: &[(String, Expression)], facts: &Facts) -> String {
    let times: Option<Vec<(&str, f64)>> =
        rungs.iter().map(|(name, e)| Some((name.as_str(), e.value(facts).ok()?))).collect();
    let least = times.and_then(|times| times.into_iter().min_by(|a, b| a.1.total_cmp(&b.1)));
    least.map_or_else(|| ABSENT.into(), |(name, time)| format!("`{name}` with {} us", shown(time)))
}

fn piece(inside: &str) -> Result<Piece> {
    if let Some(names) = inside.strip_prefix("fastest ") {
        let rung = |name: &str| {
            let time = format!("`bench.seed.f16.forward.{RUNG}{}.time`", name.trim());
            Ok((name.trim().to_owned(), Expression::parse(&time)?))
        };
        return Ok(Piece::Fastest(names.split(',').map(rung).collect::<Result<_>>()?));
    }
    let Some(condition) = inside.strip_prefix('?') else {
        return Ok(Piece::Number(Expression::parse(inside)?));
    };
    let [condition, yes, no] = branches(condition)[..] else {
        bail!("sentence: got '{{{inside}}}', expected '{{?EXPRESSION|TEXT|TEXT}}'");
    };
    Ok(Piece::Either(Expression::parse(condition)?, Words::parse(yes)?, Words::parse(no)?))
}

/// Where the brace that is open ends.
fn end_of_braces(text: &str) -> Option<usize> {
    let mut depth = 1;
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// The texts between bars that stand outside of inner braces.
fn branches(text: &str) -> Vec<&str> {
    let (mut all, mut begin, mut depth) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            '|' if depth == 0 => {
                all.push(&text[begin..i]);
                begin = i + 1;
            }
            _ => {}
        }
    }
    all.push(&text[begin..]);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(words: &str) -> String {
        let mut facts = Facts::default();
        facts.insert("a", 2.0, "", "");
        facts.insert("bench.seed.f16.forward.cuda:ladder:x.time", 3.0, "us", "");
        facts.insert("bench.seed.f16.forward.cuda:ladder:y+z.time", 2.5, "us", "");
        Words::parse(words).unwrap().text(&facts)
    }

    #[test]
    fn numbers_choices_and_the_fastest() {
        for (words, expected) in [
            ("{`a`} us", "2 us"),
            ("{?`a` > 1|more, {`a` * 2}|less} end", "more, 4 end"),
            ("{?`a` > 3|more|less {`a`}}", "less 2"),
            ("{`b`} and {?`b` > 1|x|y}", "(not measured yet) and (not measured yet)"),
            ("{fastest x, y+z}", "`y+z` with 2.50 us"),
            ("{fastest x, missing}", ABSENT),
        ] {
            assert_eq!(text(words), expected);
        }
        for wrong in ["{", "{1", "{?1|a}", "{?1|a|b|c}", "{?|a|b}", "{a}"] {
            assert!(Words::parse(wrong).is_err(), "{wrong}");
        }
    }
}
