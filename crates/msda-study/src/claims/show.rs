//! Verdicts as people and programs read them.

use std::collections::BTreeSet;

use msda_bench::report::{Table, beside, number, wrap};
use serde_json::{Value, json};

use super::judge::{with_range, with_unit};
use super::{Claim, Claims, Outcome, System, Verdict};
use crate::facts::command;

/// The width of lines.
const WIDTH: usize = 100;
/// The column where the text of a claim begins.
const COLUMN: usize = 28;

/// The number or range that a claim states; "yes" for a claim without one.
pub fn stated(claim: &Claim) -> String {
    match (claim.value, claim.low, claim.high) {
        (Some(value), ..) => with_unit(value, &claim.unit),
        (None, Some(low), Some(high)) => with_unit(format!("{low} to {high}"), &claim.unit),
        _ => "yes".into(),
    }
}

/// The measured number; "yes" or "no" for a claim without one.
pub fn measured(outcome: &Outcome<'_>) -> String {
    match (outcome.measured, outcome.verdict) {
        (Some(value), _) => with_range(value, outcome.range, &outcome.claim.unit),
        (None, Verdict::Reproduced) => "yes".into(),
        (None, Verdict::Opposite) => "no".into(),
        _ => "-".into(),
    }
}

/// How many claims have which verdict: `30 reproduced; 9 within noise`.
pub fn counts<'o, 'a: 'o>(outcomes: impl Iterator<Item = &'o Outcome<'a>>) -> String {
    let verdicts: Vec<Verdict> = outcomes.map(|o| o.verdict).collect();
    let count = |v: &Verdict| verdicts.iter().filter(|own| *own == v).count();
    let all = Verdict::ALL.iter().filter(|v| count(v) > 0);
    all.map(|v| format!("{} {}", count(v), v.name())).collect::<Vec<_>>().join("; ")
}

/// The verdicts on claims that need a measurement, and on those that arithmetic decides.
pub fn summary(outcomes: &[Outcome<'_>]) -> [String; 2] {
    [(false, "measured"), (true, "arithmetic")].map(|(arithmetic, what)| {
        let own = || outcomes.iter().filter(|o| o.claim.is_arithmetic() == arithmetic);
        format!("{what}: {}: {}", number::count(own().count(), "claim"), counts(own()))
            .trim_end_matches(": ")
            .to_owned()
    })
}

/// The summary in lines of a terminal.
fn heading(outcomes: &[Outcome<'_>]) -> String {
    summary(outcomes).iter().map(|line| wrap(line, WIDTH, 2)).collect()
}

/// The commands that measure missing facts.
pub fn commands(outcomes: &[Outcome<'_>]) -> BTreeSet<&'static str> {
    outcomes.iter().flat_map(|o| &o.missing).map(|name| command(name)).collect()
}

/// Outcomes by the system that they are about, in the order of the systems.
pub fn by_system<'o, 'a>(
    claims: &'o Claims,
    outcomes: &'o [Outcome<'a>],
) -> impl Iterator<Item = (&'o System, Vec<&'o Outcome<'a>>)> {
    let own = |name: &str| outcomes.iter().filter(|o| o.claim.system == name).collect::<Vec<_>>();
    claims.systems.iter().map(move |system| (system, own(&system.name))).filter(|(_, own)| !own.is_empty())
}

/// A line per group of outcomes, with the number of each verdict.
pub fn tally<'o, 'a: 'o, const N: usize>(
    titles: [&str; N],
    groups: impl Iterator<Item = ([String; N], Vec<&'o Outcome<'a>>)>,
) -> Table {
    let verdicts = Verdict::ALL.map(Verdict::title);
    let mut table = Table::default().words(titles).numbers(verdicts);
    for (labels, own) in groups {
        let count = |v| match own.iter().filter(|o| o.verdict == v).count() {
            0 => "-".to_owned(),
            n => n.to_string(),
        };
        table.push(labels.into_iter().chain(Verdict::ALL.map(count)));
    }
    table
}

/// The totals, and a line for each system: a screen.
pub fn overview(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let groups = by_system(claims, outcomes).map(|(s, own)| ([s.name.clone(), s.at.to_string()], own));
    format!("{}\n{}", heading(outcomes), tally(["system", "lines"], groups).text(WIDTH, false))
}

/// The totals, then every verdict, system by system.
pub fn terminal(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let mut out = heading(outcomes);
    for (system, own) in by_system(claims, outcomes) {
        out += &format!("\n{}\n", system.name);
        for o in own {
            let label = format!("{:<COLUMN$}", o.verdict.name());
            out += &beside(&label, &format!("{} ({})", o.claim.says, o.claim.at), WIDTH);
            let found = if o.claim.is_arithmetic() { "computed" } else { "measured" };
            let stated = stated(o.claim);
            let figures = match (&o.claim.measure, o.measured) {
                (Some(_), Some(_)) => format!("{}: stated {stated}, {found} {}", o.claim.id, measured(o)),
                (Some(_), None) => format!("{}: stated {stated}", o.claim.id),
                _ => o.claim.id.clone(),
            };
            let rest = if o.why.is_empty() { figures } else { format!("{figures}; {}", o.why) };
            out += &beside(&" ".repeat(COLUMN), &rest, WIDTH);
        }
    }
    out
}

/// All verdicts for programs.
pub fn json(outcomes: &[Outcome<'_>]) -> Value {
    let outcome = |o: &Outcome<'_>| {
        let claim = o.claim;
        let at =
            claim.at.places.iter().map(|(document, lines)| json!({ "document": document, "lines": lines.0 }));
        json!({
            "id": claim.id,
            "system": claim.system,
            "at": at.collect::<Vec<_>>(),
            "says": claim.says,
            "stated": { "value": claim.value, "low": claim.low, "high": claim.high, "unit": claim.unit },
            "measured": o.measured,
            "range": o.range,
            "verdict": o.verdict,
            "arithmetic": claim.is_arithmetic(),
            "why": o.why,
            "missing": o.missing,
            "commands": commands(std::slice::from_ref(o)),
            "from": o.from,
        })
    };
    Value::Array(outcomes.iter().map(outcome).collect())
}
