//! Arithmetic over facts: ``(`a.time` - `b.time`) / `a.time` * 100``.
//!
//! Names are in backticks, because they contain dots, dashes and colons. There are numbers, `+ - *
//! /`, parentheses, comparisons, `and`, `min` and `abs`. True is 1 and false is 0.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::{Facts, Missing};

/// An expression that was parsed once, so that it is known to be legal.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Expression(String);

/// A sign between two operands, how strongly it binds, and what it computes.
type Operator = (&'static str, u8, fn(f64, f64) -> f64);

/// Comparisons do not chain.
const COMPARISON: u8 = 1;

/// Longer signs come first.
const OPERATORS: [Operator; 10] = [
    ("and", 0, |x, y| truth(x != 0.0 && y != 0.0)),
    ("<=", COMPARISON, |x, y| truth(x <= y)),
    (">=", COMPARISON, |x, y| truth(x >= y)),
    ("==", COMPARISON, |x, y| truth(x == y)),
    ("<", COMPARISON, |x, y| truth(x < y)),
    (">", COMPARISON, |x, y| truth(x > y)),
    ("+", 2, |x, y| x + y),
    ("-", 2, |x, y| x - y),
    ("*", 3, |x, y| x * y),
    ("/", 3, |x, y| x / y),
];

fn truth(t: bool) -> f64 {
    f64::from(u8::from(t))
}

impl TryFrom<String> for Expression {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        evaluate(&text, &mut |_| f64::NAN)?;
        Ok(Self(text))
    }
}

impl Expression {
    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self> {
        text.to_owned().try_into()
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Its value, or all missing facts.
    pub fn value(&self, facts: &Facts) -> Result<f64, Missing> {
        let mut missing = Missing::new();
        let mut of = |name: &str| match facts.get(name) {
            Some(fact) => fact.value,
            None => {
                missing.insert(name.into());
                f64::NAN
            }
        };
        let value = evaluate(&self.0, &mut of).unwrap_or(f64::NAN);
        if missing.is_empty() { Ok(value) } else { Err(missing) }
    }

    /// The least and the greatest value that it has if its facts vary within their ranges; none if
    /// none of them varies, or one is missing.
    pub fn range(&self, facts: &Facts) -> Option<(f64, f64)> {
        /// More facts than a claim compares.
        const MOST: usize = 8;
        let names = self.names();
        let ranges: Vec<(&str, (f64, f64))> =
            names.iter().filter_map(|name| Some((name.as_str(), facts.get(name)?.range?))).collect();
        if ranges.is_empty() || ranges.len() > MOST {
            return None;
        }
        let mut all = (f64::INFINITY, f64::NEG_INFINITY);
        for ends in 0..1u32 << ranges.len() {
            let mut of = |name: &str| match ranges.iter().position(|(own, _)| *own == name) {
                Some(i) if ends >> i & 1 == 1 => ranges[i].1.1,
                Some(i) => ranges[i].1.0,
                None => facts.get(name).map_or(f64::NAN, |fact| fact.value),
            };
            let value = evaluate(&self.0, &mut of).ok().filter(|value| value.is_finite())?;
            all = (all.0.min(value), all.1.max(value));
        }
        Some(all)
    }

    /// The names of its facts.
    pub fn names(&self) -> Missing {
        self.value(&Facts::default()).err().unwrap_or_default()
    }
}

/// The value of a text, with the values of names. All operands are evaluated.
fn evaluate(text: &str, of: &mut dyn FnMut(&str) -> f64) -> Result<f64> {
    let mut parser = Parser { text, rest: text, of };
    let value = parser.operation(0)?;
    ensure!(parser.rest.is_empty(), "{}", parser.refuse("an operator or its end"));
    Ok(value)
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
    of: &'a mut dyn FnMut(&str) -> f64,
}

impl Parser<'_> {
    fn refuse(&self, expected: &str) -> String {
        format!("expression '{}': got '{}', expected {expected}", self.text, self.rest)
    }

    /// Consumes a sign and the spaces around it, if it is next.
    fn take(&mut self, sign: &str) -> bool {
        let after = self.rest.trim_start().strip_prefix(sign);
        self.rest = after.unwrap_or(self.rest).trim_start();
        after.is_some()
    }

    /// Operands and the operators between them that bind at least so strongly.
    fn operation(&mut self, least: u8) -> Result<f64> {
        let mut value = self.atom()?;
        let mut most = u8::MAX;
        while let Some((_, level, function)) = OPERATORS
            .into_iter()
            .find(|(sign, level, _)| (least..=most).contains(level) && self.rest.starts_with(sign))
            .filter(|(sign, ..)| self.take(sign))
        {
            value = function(value, self.operation(level + 1)?);
            most = if level == COMPARISON { level - 1 } else { level };
        }
        Ok(value)
    }

    /// An operation up to the closing parenthesis.
    fn inside(&mut self) -> Result<f64> {
        let value = self.operation(0)?;
        ensure!(self.take(")"), "{}", self.refuse("')'"));
        Ok(value)
    }

    fn atom(&mut self) -> Result<f64> {
        if self.take("min(") {
            let mut least = self.operation(0)?;
            while self.take(",") {
                least = least.min(self.operation(0)?);
            }
            ensure!(self.take(")"), "{}", self.refuse("',' or ')'"));
            return Ok(least);
        }
        if self.take("abs(") {
            return Ok(self.inside()?.abs());
        }
        if self.take("(") {
            return self.inside();
        }
        if self.take("-") {
            return Ok(-self.atom()?);
        }
        if self.take("`") {
            let Some((name, rest)) = self.rest.split_once('`').filter(|(name, _)| !name.is_empty()) else {
                bail!("{}", self.refuse("a name between backticks"));
            };
            self.rest = rest.trim_start();
            return Ok((self.of)(name));
        }
        self.number()
    }

    /// The longest number that is next.
    fn number(&mut self) -> Result<f64> {
        let digits = self.rest.starts_with(|c: char| c.is_ascii_digit());
        let number = |end: usize| Some((self.rest.get(..end)?.parse().ok()?, &self.rest[end..]));
        let Some((x, rest)) = (1..=self.rest.len()).rev().find_map(number).filter(|_| digits) else {
            bail!("{}", self.refuse("a number, a name between backticks or '('"));
        };
        self.rest = rest.trim_start();
        Ok(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(text: &str) -> f64 {
        let mut facts = Facts::default();
        facts.insert("bench.seed.f16.forward.cuda:ladder:base+half.time", 4.0, "us", "");
        facts.insert("b-1", 2.0, "", "");
        Expression::parse(text).unwrap().value(&facts).unwrap()
    }

    #[test]
    fn the_usual_rules_of_arithmetic() {
        for (text, expected) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("8 / 2 / 2", 2.0),
            ("2 * 3 + 4 * 5 - 6 / 3", 24.0),
            ("5 - 3 - 1", 1.0),
            ("-2 * -3", 6.0),
            ("1.5e3 + 1e-1", 1500.1),
            ("2-1", 1.0),
            ("`b-1` - 1", 1.0),
            ("`bench.seed.f16.forward.cuda:ladder:base+half.time` / `b-1`", 2.0),
            ("min(3, `b-1`, 7) + abs(-1)", 3.0),
            ("1 < 2 and 2 <= 2", 1.0),
            ("1 > 2 and 2 == 2", 0.0),
            ("`b-1` == 2 and (1 >= 2) == 0", 1.0),
        ] {
            assert!((value(text) - expected).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn everything_that_is_missing_is_said() {
        let e = Expression::parse("`a` / `b` + min(`c`, 1)").unwrap();
        let missing = e.value(&Facts::default()).unwrap_err();
        assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(e.names().len(), 3);
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in ["", "1 +", "(1", "`a", "``", "a.b", "1 2", "min()", "abs(1, 2)", "1 < 2 < 3", "*", "1e"]
        {
            assert!(Expression::parse(text).is_err(), "{text}");
        }
    }
}
