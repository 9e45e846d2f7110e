//! Arithmetic over facts: ``(`a.time` - `b.time`) / `a.time` * 100``.
//!
//! Names are in backticks, because they contain dots, dashes and colons. There are numbers, `+ - *
//! /`, parentheses, comparisons, `and`, `or`, `min`, `max` and `abs`. True is 1 and false is 0.

use anyhow::{Result, bail};

use super::{Facts, Missing};

/// A parsed expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Expression(Node);

#[derive(Debug, Clone, PartialEq)]
enum Node {
    Number(f64),
    Name(String),
    Negative(Box<Node>),
    Both(Operator, Box<Node>, Box<Node>),
    Call(Function, Vec<Node>),
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Less,
    LessOrSame,
    More,
    MoreOrSame,
    Same,
    Other,
    And,
    Or,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Function {
    Min,
    Max,
    Abs,
}

impl Expression {
    /// Parses an expression. `full` expands the names in backticks.
    pub fn parse(text: &str, full: impl Fn(&str) -> String) -> Result<Self> {
        let mut parser = Parser { text, at: 0, full: &full };
        let node = parser.either()?;
        parser.space();
        if parser.at < text.len() {
            bail!("expression '{text}': got '{}', expected an operator or its end", parser.rest());
        }
        Ok(Self(node))
    }

    /// Its value, or all missing facts.
    pub fn value(&self, facts: &Facts) -> Result<f64, Missing> {
        let mut missing = Missing::new();
        let value = evaluate(&self.0, facts, &mut missing);
        if missing.is_empty() { Ok(value) } else { Err(missing) }
    }

    /// The names of its facts.
    pub fn names(&self) -> Missing {
        self.value(&Facts::default()).err().unwrap_or_default()
    }
}

fn evaluate(node: &Node, facts: &Facts, missing: &mut Missing) -> f64 {
    match node {
        Node::Number(x) => *x,
        Node::Name(name) => facts.get(name).map_or_else(
            || {
                missing.insert(name.clone());
                f64::NAN
            },
            |fact| fact.value,
        ),
        Node::Negative(node) => -evaluate(node, facts, missing),
        Node::Both(operator, a, b) => {
            // Evaluate both, so that all missing facts are reported.
            let (a, b) = (evaluate(a, facts, missing), evaluate(b, facts, missing));
            operator.of(a, b)
        }
        Node::Call(function, nodes) => {
            let values: Vec<f64> = nodes.iter().map(|n| evaluate(n, facts, missing)).collect();
            match function {
                Function::Min => values.into_iter().fold(f64::INFINITY, f64::min),
                Function::Max => values.into_iter().fold(f64::NEG_INFINITY, f64::max),
                Function::Abs => values[0].abs(),
            }
        }
    }
}

impl Operator {
    fn of(self, a: f64, b: f64) -> f64 {
        let truth = |t: bool| f64::from(u8::from(t));
        match self {
            Self::Add => a + b,
            Self::Subtract => a - b,
            Self::Multiply => a * b,
            Self::Divide => a / b,
            Self::Less => truth(a < b),
            Self::LessOrSame => truth(a <= b),
            Self::More => truth(a > b),
            Self::MoreOrSame => truth(a >= b),
            Self::Same => truth(a == b),
            Self::Other => truth(a != b),
            Self::And => truth(a != 0.0 && b != 0.0),
            Self::Or => truth(a != 0.0 || b != 0.0),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    full: &'a dyn Fn(&str) -> String,
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Consumes the first matching sign; longer signs come first.
    fn take(&mut self, signs: &[(&str, Operator)]) -> Option<Operator> {
        self.space();
        let (sign, operator) = signs.iter().find(|(sign, _)| self.rest().starts_with(sign))?;
        self.at += sign.len();
        Some(*operator)
    }

    fn expect(&mut self, sign: char) -> Result<()> {
        self.space();
        if !self.rest().starts_with(sign) {
            bail!("expression '{}': got '{}', expected '{sign}'", self.text, self.rest());
        }
        self.at += sign.len_utf8();
        Ok(())
    }

    fn left_to_right(
        &mut self,
        signs: &[(&str, Operator)],
        inner: impl Fn(&mut Self) -> Result<Node>,
    ) -> Result<Node> {
        let mut node = inner(self)?;
        while let Some(operator) = self.take(signs) {
            node = Node::Both(operator, Box::new(node), Box::new(inner(self)?));
        }
        Ok(node)
    }

    fn either(&mut self) -> Result<Node> {
        self.left_to_right(&[("or", Operator::Or)], Self::both)
    }

    fn both(&mut self) -> Result<Node> {
        self.left_to_right(&[("and", Operator::And)], Self::comparison)
    }

    fn comparison(&mut self) -> Result<Node> {
        const SIGNS: [(&str, Operator); 6] = [
            ("<=", Operator::LessOrSame),
            (">=", Operator::MoreOrSame),
            ("==", Operator::Same),
            ("!=", Operator::Other),
            ("<", Operator::Less),
            (">", Operator::More),
        ];
        let node = self.sum()?;
        Ok(match self.take(&SIGNS) {
            Some(operator) => Node::Both(operator, Box::new(node), Box::new(self.sum()?)),
            None => node,
        })
    }

    fn sum(&mut self) -> Result<Node> {
        self.left_to_right(&[("+", Operator::Add), ("-", Operator::Subtract)], Self::product)
    }

    fn product(&mut self) -> Result<Node> {
        self.left_to_right(&[("*", Operator::Multiply), ("/", Operator::Divide)], Self::atom)
    }

    fn atom(&mut self) -> Result<Node> {
        self.space();
        let (text, rest) = (self.text, self.rest());
        for (name, function) in [("min", Function::Min), ("max", Function::Max), ("abs", Function::Abs)] {
            if rest.starts_with(name) {
                self.at += name.len();
                return self.call(function);
            }
        }
        match rest.chars().next() {
            Some('(') => {
                self.at += 1;
                let node = self.either()?;
                self.expect(')')?;
                Ok(node)
            }
            Some('-') => {
                self.at += 1;
                Ok(Node::Negative(Box::new(self.atom()?)))
            }
            Some('`') => match rest[1..].split_once('`') {
                Some((name, _)) if !name.trim().is_empty() => {
                    self.at += name.len() + 2;
                    Ok(Node::Name((self.full)(name)))
                }
                _ => bail!("expression '{text}': got '{rest}', expected a name between backticks"),
            },
            _ => self.number(),
        }
    }

    fn call(&mut self, function: Function) -> Result<Node> {
        self.expect('(')?;
        let mut nodes = vec![self.either()?];
        loop {
            self.space();
            if !self.rest().starts_with(',') {
                break;
            }
            self.at += 1;
            nodes.push(self.either()?);
        }
        self.expect(')')?;
        if function == Function::Abs && nodes.len() != 1 {
            bail!("expression '{}': got abs of {} numbers, expected one", self.text, nodes.len());
        }
        Ok(Node::Call(function, nodes))
    }

    /// Digits, a point, an exponent.
    fn number(&mut self) -> Result<Node> {
        let rest = self.rest();
        let mut end = 0;
        for (i, c) in rest.char_indices() {
            let exponent = i > 0 && matches!(c, 'e' | 'E');
            let sign = matches!(c, '+' | '-') && rest[..i].ends_with(['e', 'E']);
            if !(c.is_ascii_digit() || c == '.' || exponent || sign) {
                break;
            }
            end = i + c.len_utf8();
        }
        let Ok(x) = rest[..end].parse() else {
            bail!(
                "expression '{}': got '{rest}', expected a number, a name between backticks or '('",
                self.text
            );
        };
        self.at += end;
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
        Expression::parse(text, str::to_owned).unwrap().value(&facts).unwrap()
    }

    #[test]
    fn the_usual_rules_of_arithmetic() {
        for (text, expected) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("8 / 2 / 2", 2.0),
            ("5 - 3 - 1", 1.0),
            ("-2 * -3", 6.0),
            ("1.5e3 + 1e-1", 1500.1),
            ("2-1", 1.0),
            ("`b-1` - 1", 1.0),
            ("`bench.seed.f16.forward.cuda:ladder:base+half.time` / `b-1`", 2.0),
            ("min(3, `b-1`, 7) + max(1, 2) + abs(-1)", 5.0),
            ("1 < 2 and 2 <= 2", 1.0),
            ("1 > 2 or 3 != 3", 0.0),
            ("`b-1` == 2 and (1 >= 2 or 1 < 2)", 1.0),
        ] {
            assert!((value(text) - expected).abs() < 1e-9, "{text}");
        }
    }

    #[test]
    fn everything_that_is_missing_is_said() {
        let e = Expression::parse("`a` / `b` + min(`c`, 1)", |name| format!("x.{name}")).unwrap();
        let missing = e.value(&Facts::default()).unwrap_err();
        assert_eq!(missing.into_iter().collect::<Vec<_>>(), ["x.a", "x.b", "x.c"]);
        assert_eq!(e.names().len(), 3);
    }

    #[test]
    fn what_is_no_expression_is_refused() {
        for text in ["", "1 +", "(1", "`a", "``", "a.b", "1 2", "min()", "abs(1, 2)", "1 < 2 < 3", "*", "1e"]
        {
            assert!(Expression::parse(text, str::to_owned).is_err(), "{text}");
        }
    }
}
