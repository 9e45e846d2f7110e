//! Lines of the documents: `2:60` is line 60 of document 2.

use std::fmt;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Some lines of one document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The number of the document, from 1.
    pub document: usize,
    /// The lines, from 1, in order.
    pub lines: Vec<usize>,
}

/// Places from text: `1:8; 3:19,54-56`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Places(pub Vec<Place>);

impl TryFrom<String> for Places {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let place = |part: &str| {
            let Some((document, own)) = part.trim().split_once(':') else {
                bail!("got '{part}', expected 'DOCUMENT:LINES'");
            };
            let document = document.parse().with_context(|| format!("'{part}'"))?;
            Ok(Place { document, lines: Lines::try_from(own.to_owned())?.0 })
        };
        Ok(Self(text.split(';').map(place).collect::<Result<_>>()?))
    }
}

/// Lines from text, in order: `7-14,22`.
#[derive(Debug, Clone, Deserialize)]
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

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for &line in &self.lines {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == line => *last = line,
                _ => ranges.push((line, line)),
            }
        }
        let range = |&(first, last): &(usize, usize)| match first == last {
            true => first.to_string(),
            false => format!("{first}-{last}"),
        };
        write!(f, "{}:{}", self.document, ranges.iter().map(range).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for Places {
    /// `1:8 3:19,54`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.iter().map(Place::to_string).collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let parse = |text: &str| Places::try_from(text.to_owned());
        let places = parse("4:61-63,154; 2:60").unwrap();
        assert_eq!(places.0[0], Place { document: 4, lines: vec![61, 62, 63, 154] });
        assert_eq!(places.to_string(), "4:61-63,154 2:60");
        for wrong in ["", "60", "2:", "2:a", "x:1", "2:5,3", "2:9-8"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
