//! Arithmetic over facts: ``(`a.time` - `b.time`) / `a.time` * 100``.
//!
//! Names are in backticks, because they contain dots, dashes and colons. There are numbers, `+ - *
//! /`, parentheses, comparisons, `and`, `or`, `min`, `max` and `abs`. True is 1 and false is 0.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

use super::{Facts, Missing};

/// A parsed expression.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Expression {
    text: String,
    node: Node,
}

#[derive(Debug, Clone)]
enum Node {
    Number(f64),
    Name(String),
    Apply(Compute, Vec<Node>),
}

/// What an operator or a function computes of its operands.
type Compute = fn(&[f64]) -> f64;

/// A sign between two operands, how strongly it binds, and what it computes.
type Operator = (&'static str, u8, Compute);

/// Comparisons do not chain.
const COMPARISON: u8 = 2;

/// Longer signs come first.
const OPERATORS: [Operator; 12] = [
    ("or", 0, |x| truth(x[0] != 0.0 || x[1] != 0.0)),
    ("and", 1, |x| truth(x[0] != 0.0 && x[1] != 0.0)),
    ("<=", COMPARISON, |x| truth(x[0] <= x[1])),
    (">=", COMPARISON, |x| truth(x[0] >= x[1])),
    ("==", COMPARISON, |x| truth(x[0] == x[1])),
    ("!=", COMPARISON, |x| truth(x[0] != x[1])),
    ("<", COMPARISON, |x| truth(x[0] < x[1])),
    (">", COMPARISON, |x| truth(x[0] > x[1])),
    ("+", 3, |x| x[0] + x[1]),
    ("-", 3, |x| x[0] - x[1]),
    ("*", 4, |x| x[0] * x[1]),
    ("/", 4, |x| x[0] / x[1]),
];

fn truth(t: bool) -> f64 {
    f64::from(u8::from(t))
}

impl TryFrom<String> for Expression {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self> {
        let mut parser = Parser { text: &text, rest: &text };
        let node = parser.operation(0)?;
        ensure!(parser.rest.is_empty(), "{}", parser.refuse("an operator or its end"));
        Ok(Self { node, text })
    }
}

impl Expression {
    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self> {
        text.to_owned().try_into()
    }

    /// Its text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Its value, or all missing facts.
    pub fn value(&self, facts: &Facts) -> Result<f64, Missing> {
        let mut missing = Missing::new();
        let value = evaluate(&self.node, facts, &mut missing);
        if missing.is_empty() { Ok(value) } else { Err(missing) }
    }

    /// The names of its facts.
    pub fn names(&self) -> Missing {
        self.value(&Facts::default()).err().unwrap_or_default()
    }
}

/// The value. All operands are evaluated, so that all missing facts are reported.
fn evaluate(node: &Node, facts: &Facts, missing: &mut Missing) -> f64 {
    match node {
        Node::Number(x) => *x,
        Node::Name(name) => match facts.get(name) {
            Some(fact) => fact.value,
            None => {
                missing.insert(name.clone());
                f64::NAN
            }
        },
        Node::Apply(function, nodes) => {
            let values: Vec<f64> = nodes.iter().map(|n| evaluate(n, facts, missing)).collect();
            function(&values)
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
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

    fn expect(&mut self, sign: &str) -> Result<()> {
        ensure!(self.take(sign), "{}", self.refuse(&format!("'{sign}'")));
        Ok(())
    }

    /// Operands and the operators between them that bind at least so strongly.
    fn operation(&mut self, least: u8) -> Result<Node> {
        let mut node = self.atom()?;
        let mut most = u8::MAX;
        while let Some((_, level, function)) = OPERATORS
            .into_iter()
            .find(|(sign, level, _)| (least..=most).contains(level) && self.rest.starts_with(sign))
            .filter(|(sign, ..)| self.take(sign))
        {
            node = Node::Apply(function, vec![node, self.operation(level + 1)?]);
            most = if level == COMPARISON { level - 1 } else { level };
        }
        Ok(node)
    }

    fn atom(&mut self) -> Result<Node> {
        const FUNCTIONS: [(&str, Compute); 3] = [
            ("min", |x| x.iter().copied().fold(f64::INFINITY, f64::min)),
            ("max", |x| x.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
            ("abs", |x| x[0].abs()),
        ];
        for (name, function) in FUNCTIONS {
            if self.take(name) {
                self.expect("(")?;
                let mut nodes = vec![self.operation(0)?];
                while self.take(",") {
                    nodes.push(self.operation(0)?);
                }
                self.expect(")")?;
                ensure!(name != "abs" || nodes.len() == 1, "{}", self.refuse("one number for abs"));
                return Ok(Node::Apply(function, nodes));
            }
        }
        if self.take("(") {
            let node = self.operation(0)?;
            self.expect(")")?;
            return Ok(node);
        }
        if self.take("-") {
            return Ok(Node::Apply(|x| -x[0], vec![self.atom()?]));
        }
        if self.take("`") {
            let Some((name, rest)) = self.rest.split_once('`').filter(|(name, _)| !name.is_empty()) else {
                bail!("{}", self.refuse("a name between backticks"));
            };
            self.rest = rest.trim_start();
            return Ok(Node::Name(name.into()));
        }
        self.number()
    }

    /// Digits, a point, an exponent.
    fn number(&mut self) -> Result<Node> {
        let part = |(i, c): (usize, char)| {
            let exponent = i > 0 && matches!(c, 'e' | 'E');
            let sign = matches!(c, '+' | '-') && self.rest[..i].ends_with(['e', 'E']);
            c.is_ascii_digit() || c == '.' || exponent || sign
        };
        let end = self.rest.char_indices().find(|&place| !part(place)).map_or(self.rest.len(), |(i, _)| i);
        let Ok(x) = self.rest[..end].parse() else {
            bail!("{}", self.refuse("a number, a name between backticks or '('"));
        };
        self.rest = self.rest[end..].trim_start();
        Ok(Node::Number(x))
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
            ("min(3, `b-1`, 7) + max(1, 2) + abs(-1)", 5.0),
            ("1 < 2 and 2 <= 2", 1.0),
            ("1 > 2 or 3 != 3", 0.0),
            ("1 < 2 or 1 < 2 and 2 < 1", 1.0),
            ("`b-1` == 2 and (1 >= 2 or 1 < 2)", 1.0),
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
