//! Verdicts as people and programs read them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::judge::with_unit;
use super::{Claim, Claims, Outcome, Stated, Verdict};

/// The width of lines.
const WIDTH: usize = 100;
/// The column where the text of a claim begins.
const COLUMN: usize = 16;

/// The number or range that a claim states; "yes" for a claim without one.
pub fn stated(stated: &Stated) -> String {
    let unit = match stated.unit.as_str() {
        "" => String::new(),
        "x" => "x".into(),
        unit => format!(" {unit}"),
    };
    match (stated.value, stated.low, stated.high) {
        (Some(value), ..) => format!("{value}{unit}"),
        (None, Some(low), Some(high)) => format!("{low} to {high}{unit}"),
        _ => "yes".into(),
    }
}

/// The measured number; "yes" or "no" for a claim without one.
pub fn measured(outcome: &Outcome<'_>) -> String {
    match (outcome.measured, outcome.verdict) {
        (Some(value), _) => with_unit(value, &outcome.claim.stated.unit),
        (None, Verdict::Holds) => "yes".into(),
        (None, Verdict::DoesNotHold) => "no".into(),
        _ => "-".into(),
    }
}

/// The document and its lines that state a claim: `2:60`, `4:61-65,154`.
pub fn source(claim: &Claim) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &line in &claim.lines {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == line => *last = line,
            _ => ranges.push((line, line)),
        }
    }
    let range = |&(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    format!("{}:{}", claim.document, ranges.iter().map(range).collect::<Vec<_>>().join(","))
}

/// How many claims have which verdict.
pub fn summary(outcomes: &[Outcome<'_>]) -> String {
    let counts = Verdict::ALL.map(|v| (v, count(outcomes, v))).map(|(v, n)| match (v, n) {
        (Verdict::Holds, 1) => "1 holds".into(),
        (Verdict::Holds, n) => format!("{n} hold"),
        (Verdict::DoesNotHold, n) if n != 1 => format!("{n} do not hold"),
        (v, n) => format!("{n} {}", v.name()),
    });
    format!("{} claims: {}", outcomes.len(), counts.join(", "))
}

fn count(outcomes: &[Outcome<'_>], verdict: Verdict) -> usize {
    outcomes.iter().filter(|o| o.verdict == verdict).count()
}

/// The commands that measure missing facts. Commands that differ in one option are one command with
/// several of it.
pub fn commands(outcomes: &[Outcome<'_>]) -> Vec<String> {
    let all: BTreeSet<&str> = outcomes.iter().flat_map(|o| &o.commands).map(String::as_str).collect();
    let mut alike: BTreeMap<(String, &str), String> = BTreeMap::new();
    for command in all {
        let found = [" --engine ", " --kernel "].into_iter().find(|option| command.contains(option));
        let Some((option, (before, after))) =
            found.and_then(|option| Some((option, command.split_once(option)?)))
        else {
            alike.entry((command.to_owned(), "")).or_default();
            continue;
        };
        let (value, end) = after.split_once(' ').unwrap_or((after, ""));
        let options = alike.entry((before.to_owned(), end)).or_default();
        *options += &format!("{option}{value}");
    }
    let join = |((before, end), options): ((String, &str), String)| {
        if end.is_empty() { before + &options } else { before + &options + " " + end }
    };
    alike.into_iter().map(join).collect()
}

/// Outcomes by the system that they are about, in the order in which the documents come to the
/// systems. Comparisons of several systems and statements without facts are last.
fn by_system<'o, 'a>(outcomes: &'o [Outcome<'a>]) -> Vec<(String, Vec<&'o Outcome<'a>>)> {
    let mut groups: Vec<(String, Vec<&Outcome<'_>>)> = Vec::new();
    for outcome in outcomes {
        let group = outcome.claim.group();
        match groups.iter_mut().find(|(name, _)| *name == group) {
            Some((_, own)) => own.push(outcome),
            None => groups.push((group, vec![outcome])),
        }
    }
    let last = [super::SEVERAL, super::STATEMENT];
    groups.sort_by_key(|(name, _)| last.iter().position(|l| l == name).map_or(0, |i| i + 1));
    groups
}

/// The totals, and a line for each system: a screen.
pub fn overview(outcomes: &[Outcome<'_>]) -> String {
    let mut out = format!("{}\n\n{:<16}{:>8}", summary(outcomes), "system", "claims");
    for verdict in Verdict::ALL {
        out += &format!("{:>width$}", verdict.name(), width = verdict.name().len() + 2);
    }
    out.push('\n');
    for (name, own) in by_system(outcomes) {
        out += &format!("{name:<16}{:>8}", own.len());
        for verdict in Verdict::ALL {
            let n = own.iter().filter(|o| o.verdict == verdict).count();
            let text = if n == 0 { "-".into() } else { n.to_string() };
            out += &format!("{text:>width$}", width = verdict.name().len() + 2);
        }
        out.push('\n');
    }
    out
}

/// The totals, then every verdict, system by system.
pub fn terminal(outcomes: &[Outcome<'_>], color: bool) -> String {
    let paint =
        |text: &str, code: &str| if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() };
    let mut out = format!("{}\n", summary(outcomes));
    for (name, own) in by_system(outcomes) {
        out += &format!("\n{}\n", paint(&name, "1"));
        for o in own {
            let code = match o.verdict {
                Verdict::Holds => "32",
                Verdict::DoesNotHold => "31",
                Verdict::NotComparable => "2",
                Verdict::NotMeasured => "33",
            };
            let says = wrapped(&format!("{} ({})", o.claim.says, source(o.claim)), COLUMN);
            out += &format!("{}  {says}\n", paint(&format!("{:<14}", o.verdict.name()), code));
            let figures =
                format!("{}: stated {}, measured {}", o.claim.id, stated(&o.claim.stated), measured(o));
            let rest = if o.why.is_empty() { figures } else { format!("{figures}; {}", o.why) };
            out += &format!("{:COLUMN$}{}\n", "", paint(&wrapped(&rest, COLUMN), "2"));
        }
    }
    out
}

/// Words in lines that begin at a column.
fn wrapped(text: &str, column: usize) -> String {
    let (mut out, mut length) = (String::new(), column);
    for word in text.split_whitespace() {
        let size = word.chars().count();
        if length > column && length + 1 + size > WIDTH {
            out += &format!("\n{:column$}", "");
            length = column;
        } else if length > column {
            out.push(' ');
            length += 1;
        }
        out += word;
        length += size;
    }
    out
}

/// The totals, then one table per document.
pub fn markdown(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut out = format!("{}.\n", summary(outcomes));
    for document in &claims.documents {
        let own: Vec<_> = outcomes.iter().filter(|o| o.claim.document == document.number).collect();
        if own.is_empty() {
            continue;
        }
        out += &format!("\n## {}. {}\n\n", document.number, document.title);
        out +=
            "| lines | system | claim | stated | measured | verdict | why |\n|---|---|---|---|---|---|---|\n";
        for o in own {
            let verdict = match o.verdict {
                Verdict::Holds | Verdict::DoesNotHold => format!("**{}**", o.verdict.name()),
                _ => o.verdict.name().into(),
            };
            let cells = [
                &source(o.claim),
                &o.claim.group(),
                &o.claim.says,
                &stated(&o.claim.stated),
                &measured(o),
                &verdict,
                &o.why,
            ];
            out += &format!("| {} |\n", cells.map(|text| cell(text)).join(" | "));
        }
    }
    out
}

/// All verdicts for programs.
pub fn json(claims: &Claims, outcomes: &[Outcome<'_>]) -> Value {
    let outcome = |o: &Outcome<'_>| {
        let claim = o.claim;
        json!({
            "id": claim.id,
            "document": claim.document,
            "title": claims.document(claim).map(|d| &d.title),
            "at": claim.at,
            "lines": claim.lines,
            "systems": claim.systems(),
            "says": claim.says,
            "stated": claim.stated,
            "measured": o.measured,
            "verdict": o.verdict,
            "why": o.why,
            "missing": o.missing,
            "commands": o.commands,
            "from": o.from,
        })
    };
    Value::Array(outcomes.iter().map(outcome).collect())
}
