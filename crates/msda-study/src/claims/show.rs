//! Verdicts as people and programs read them.

use std::collections::{BTreeMap, BTreeSet};

use msda_bench::report::{TextTable, beside, number, wrap};
use serde_json::{Value, json};

use super::judge::with_unit;
use super::{Claims, Outcome, Stated, System, Test, Verdict};

/// The width of lines.
const WIDTH: usize = 100;
/// The column where the text of a claim begins.
const COLUMN: usize = 18;

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
    match (outcome.measured, outcome.verdict, &outcome.claim.test) {
        (Some(value), ..) => with_unit(value, &outcome.claim.stated.unit),
        (None, Verdict::Reproduced, Test::Check(_)) => "yes".into(),
        (None, Verdict::Refuted, Test::Check(_)) => "no".into(),
        _ => "-".into(),
    }
}

/// How many claims have which verdict: those that need a measurement, and those that arithmetic
/// decides.
pub fn summary(outcomes: &[Outcome<'_>]) -> String {
    let (arithmetic, measured): (Vec<_>, Vec<_>) = outcomes.iter().partition(|o| o.claim.is_arithmetic());
    let line = |what: &str, own: &[&Outcome<'_>]| {
        let count = |v: Verdict| own.iter().filter(|o| o.verdict == v).count();
        let counts = Verdict::ALL.map(|v| (count(v), v.name())).into_iter().filter(|(n, _)| *n > 0);
        let counts = counts.map(|(n, name)| format!("{n} {name}"));
        let all = std::iter::once(number::count(own.len(), "claim")).chain(counts);
        format!("{what}: {}", all.collect::<Vec<_>>().join(", "))
    };
    format!("{}\n{}", line("measured", &measured), line("arithmetic", &arithmetic))
}

/// The summary in lines of a terminal.
fn heading(outcomes: &[Outcome<'_>]) -> String {
    summary(outcomes).lines().map(|line| wrap(line, WIDTH, 2)).collect()
}

/// The commands that measure missing facts. Commands that differ in one option are one command with
/// several of it.
pub fn commands(outcomes: &[Outcome<'_>]) -> Vec<String> {
    let all: BTreeSet<&str> = outcomes.iter().flat_map(|o| &o.commands).map(String::as_str).collect();
    let mut alike: BTreeMap<(String, &str), String> = BTreeMap::new();
    for command in all {
        let found =
            [" --rung ", " --engine ", " --kernel "].into_iter().find(|option| command.contains(option));
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

/// Outcomes by the system that they are about, in the order of the systems.
fn by_system<'o, 'a>(
    claims: &'o Claims,
    outcomes: &'o [Outcome<'a>],
) -> impl Iterator<Item = (&'o System, Vec<&'o Outcome<'a>>)> {
    let own = |name: &str| outcomes.iter().filter(|o| o.claim.system == name).collect::<Vec<_>>();
    claims.systems.iter().map(move |system| (system, own(&system.name))).filter(|(_, own)| !own.is_empty())
}

/// The totals, and a line for each system: a screen.
pub fn overview(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let mut table = TextTable::default().text("\nsystem", 0).text("\nlines", 0);
    for title in ["repro-\nduced", "better\nhere", "\nrefuted", "other\nGPU", "not mea-\nsurable"] {
        table = table.number(title, 0);
    }
    table = table.number("not yet\nmeasured", 0).number("arith-\nmetic", 0);
    for (system, own) in by_system(claims, outcomes) {
        let count = |counted: &dyn Fn(&Outcome<'_>) -> bool| match own.iter().filter(|o| counted(o)).count() {
            0 => "-".to_owned(),
            n => n.to_string(),
        };
        let counts = Verdict::ALL.map(|v| count(&|o| o.verdict == v && !o.claim.is_arithmetic()));
        let names = [system.name.clone(), system.at.to_string()];
        table.push(names.into_iter().chain(counts).chain([count(&|o| o.claim.is_arithmetic())]));
    }
    format!("{}\n{}", heading(outcomes), table.render(WIDTH, false))
}

/// The totals, then every verdict, system by system.
pub fn terminal(claims: &Claims, outcomes: &[Outcome<'_>], color: bool) -> String {
    let paint =
        |text: &str, code: &str| if color { format!("\x1b[{code}m{text}\x1b[0m") } else { text.into() };
    let mut out = heading(outcomes);
    for (system, own) in by_system(claims, outcomes) {
        out += &format!("\n{}\n", paint(&system.name, "1"));
        for o in own {
            let code = match o.verdict {
                Verdict::Reproduced | Verdict::BetterHere => "32",
                Verdict::Refuted => "31",
                Verdict::OtherGpu | Verdict::NotMeasurable => "2",
                Verdict::NotMeasuredYet => "33",
            };
            let label = format!("{:<COLUMN$}", o.verdict.name());
            let says = beside(&label, &format!("{} ({})", o.claim.says, o.claim.at), WIDTH);
            out += &says.replacen(&label, &paint(&label, code), 1);
            let found = if o.claim.is_arithmetic() { "computed" } else { "measured" };
            let figures = match (&o.claim.test, o.measured) {
                (Test::Measure(..), Some(_)) => {
                    format!("{}: stated {}, {found} {}", o.claim.id, stated(&o.claim.stated), measured(o))
                }
                (Test::Measure(..), None) => format!("{}: stated {}", o.claim.id, stated(&o.claim.stated)),
                _ => o.claim.id.clone(),
            };
            let rest = if o.why.is_empty() { figures } else { format!("{figures}; {}", o.why) };
            out += &paint(&beside(&" ".repeat(COLUMN), &rest, WIDTH), "2");
        }
    }
    out
}

/// All verdicts for programs.
pub fn json(outcomes: &[Outcome<'_>]) -> Value {
    let outcome = |o: &Outcome<'_>| {
        let claim = o.claim;
        let at = |place: &super::Place| json!({ "document": place.document, "lines": place.lines });
        json!({
            "id": claim.id,
            "system": claim.system,
            "at": claim.at.0.iter().map(at).collect::<Vec<_>>(),
            "says": claim.says,
            "stated": claim.stated,
            "measured": o.measured,
            "verdict": o.verdict,
            "arithmetic": claim.is_arithmetic(),
            "why": o.why,
            "missing": o.missing,
            "commands": o.commands,
            "from": o.from,
        })
    };
    Value::Array(outcomes.iter().map(outcome).collect())
}
