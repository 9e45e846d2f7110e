//! Lines of the documents: `2:60` is line 60 of document 2.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Places from text: `1:8; 3:19,54-56`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Places {
    text: String,
    /// Documents, from 1, each with its lines.
    pub places: Vec<(usize, Lines)>,
}

impl TryFrom<String> for Places {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let place = |part: &str| {
            let Some((document, own)) = part.trim().split_once(':') else {
                bail!("got '{part}', expected 'DOCUMENT:LINES'");
            };
            let document = document.parse().with_context(|| format!("'{part}'"))?;
            Ok((document, Lines::try_from(own.to_owned())?))
        };
        let places = text.split(';').map(place).collect::<Result<_>>()?;
        Ok(Self { text, places })
    }
}

impl Places {
    /// The lines of a document.
    pub fn of(&self, document: usize) -> impl Iterator<Item = usize> {
        self.places.iter().filter(move |(own, _)| *own == document).flat_map(|(_, lines)| lines.0.clone())
    }
}

impl fmt::Display for Places {
    /// `1:8 3:19,54-56`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text.replace(';', ""))
    }
}

/// Lines from text, in order: `7-14,22`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Lines(pub Vec<usize>);

impl TryFrom<String> for Lines {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let mut all = Vec::new();
        for part in text.split(',').map(str::trim) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |n: &str| n.parse::<usize>().with_context(|| format!("lines: got '{text}'"));
            all.extend(number(first)?..=number(last)?);
        }
        ensure!(!all.is_empty() && all.is_sorted(), "lines: got '{text}', expected numbers in order");
        Ok(Self(all))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let parse = |text: &str| Places::try_from(text.to_owned());
        let places = parse("4:61-63,154; 2:60").unwrap();
        assert_eq!(places.places, [(4, Lines(vec![61, 62, 63, 154])), (2, Lines(vec![60]))]);
        assert_eq!(places.to_string(), "4:61-63,154 2:60");
        for wrong in ["", "60", "2:", "2:a", "x:1", "2:5,3", "2:9-8"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
