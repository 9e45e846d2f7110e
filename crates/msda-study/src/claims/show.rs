//! Verdicts as people and programs read them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::judge::with_unit;
use super::{Claims, Outcome, Stated, Verdict};

/// The width that lines keep within.
const WIDTH: usize = 100;

/// What a claim states, as it states it, or that it is a yes or no.
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

/// What was measured, or what a yes or no turned out to be.
pub fn measured(outcome: &Outcome<'_>) -> String {
    match (outcome.measured, outcome.verdict) {
        (Some(value), _) => with_unit(value, &outcome.claim.stated.unit),
        (None, Verdict::Holds) => "yes".into(),
        (None, Verdict::DoesNotHold) => "no".into(),
        _ => "-".into(),
    }
}

/// How many claims have which verdict.
pub fn summary(outcomes: &[Outcome<'_>]) -> String {
    let count = |v: Verdict| (v, outcomes.iter().filter(|o| o.verdict == v).count());
    let counts = Verdict::ALL.map(count).map(|(v, n)| match (v, n) {
        (Verdict::Holds, 1) => "1 holds".into(),
        (Verdict::Holds, n) => format!("{n} hold"),
        (Verdict::DoesNotHold, n) if n != 1 => format!("{n} do not hold"),
        (v, n) => format!("{n} {}", v.name()),
    });
    format!("{} claims: {}", outcomes.len(), counts.join(", "))
}

/// The commands that measure what is missing; those of one workload as one.
pub fn commands(outcomes: &[Outcome<'_>]) -> Vec<String> {
    let all: BTreeSet<&str> = outcomes.iter().flat_map(|o| &o.commands).map(String::as_str).collect();
    // Those that differ in one option are one command that has it several times.
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

/// All verdicts as text, document by document.
pub fn terminal(claims: &Claims, outcomes: &[Outcome<'_>], color: bool) -> String {
    let paint =
        |text: &str, code: &str| if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() };
    let mut out = String::new();
    for document in &claims.documents {
        let own: Vec<_> = outcomes.iter().filter(|o| o.claim.document == document.number).collect();
        if own.is_empty() {
            continue;
        }
        let title = format!("{}. {}", document.number, document.title);
        out += &format!("{}{}\n", if out.is_empty() { "" } else { "\n" }, paint(&title, "1"));
        for o in own {
            let code = match o.verdict {
                Verdict::Holds => "32",
                Verdict::DoesNotHold => "31",
                Verdict::NotComparable => "2",
                Verdict::NotMeasured => "33",
            };
            let says = wrapped(&o.claim.says, 16);
            out += &format!("{}  {says}\n", paint(&format!("{:<14}", o.verdict.name()), code));
            let figures =
                format!("{}: stated {}, measured {}", o.claim.id, stated(&o.claim.stated), measured(o));
            let rest = if o.why.is_empty() { figures } else { format!("{figures}; {}", o.why) };
            out += &format!("{:16}{}\n", "", paint(&wrapped(&rest, 16), "2"));
        }
    }
    out + &format!("\n{}\n", summary(outcomes))
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

/// All verdicts as tables, one a document.
pub fn markdown(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut out = format!("{}.\n", summary(outcomes));
    for document in &claims.documents {
        let own: Vec<_> = outcomes.iter().filter(|o| o.claim.document == document.number).collect();
        if own.is_empty() {
            continue;
        }
        out += &format!("\n## {}. {}\n\n", document.number, document.title);
        out += "| claim | stated | measured | verdict | why |\n|---|---|---|---|---|\n";
        for o in own {
            let verdict = match o.verdict {
                Verdict::Holds | Verdict::DoesNotHold => format!("**{}**", o.verdict.name()),
                _ => o.verdict.name().into(),
            };
            let cells = [&o.claim.says, &stated(&o.claim.stated), &measured(o), &verdict, &o.why];
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
