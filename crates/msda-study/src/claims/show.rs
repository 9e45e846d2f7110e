//! Verdicts as people and programs read them.

use std::collections::BTreeSet;

use msda_bench::report::{beside, number, wrap};
use serde_json::{Value, json};

use super::judge::with_range;
use super::{Claims, Outcome, System, Verdict};
use crate::facts::command;

/// The width of lines.
pub(super) const WIDTH: usize = 100;
/// The column where the text of a claim begins.
const COLUMN: usize = 20;

/// The measured number; "yes" or "no" for a claim without one.
pub(super) fn measured(outcome: &Outcome<'_>) -> String {
    match (outcome.measured, outcome.verdict) {
        // Counts of outputs, or of events on the GPU.
        (Some(n), _) if outcome.range.is_none() && n >= 1e6 => format!("{:.1} million", n / 1e6),
        (Some(value), _) => with_range(value, outcome.range, &outcome.claim.judge.unit),
        (None, Verdict::Reproduced) => "yes".into(),
        (None, Verdict::Opposite) => "no".into(),
        _ => "-".into(),
    }
}

/// How many claims have which verdict: `30 reproduced; 9 within noise`.
fn counts<'o, 'a: 'o>(outcomes: impl Iterator<Item = &'o Outcome<'a>>) -> String {
    let verdicts: Vec<Verdict> = outcomes.map(|o| o.verdict).collect();
    let count = |v: &Verdict| verdicts.iter().filter(|own| *own == v).count();
    let all = Verdict::ALL.iter().filter(|v| count(v) > 0);
    all.map(|v| format!("{} {}", count(v), v.name())).collect::<Vec<_>>().join("; ")
}

/// The verdicts on claims that need a measurement, and on those that arithmetic decides.
pub(super) fn summary(outcomes: &[Outcome<'_>]) -> [String; 2] {
    [(false, "measured"), (true, "arithmetic")].map(|(arithmetic, what)| {
        let own = || outcomes.iter().filter(|o| o.claim.judge.is_arithmetic() == arithmetic);
        format!("{what}: {}: {}", number::count(own().count(), "claim"), counts(own()))
            .trim_end_matches(": ")
            .to_owned()
    })
}

/// The commands that measure missing facts.
pub fn commands(outcomes: &[Outcome<'_>]) -> BTreeSet<&'static str> {
    outcomes.iter().flat_map(|o| &o.missing).map(|name| command(name)).collect()
}

/// Outcomes by the system that they are about, in the order of the systems.
fn by_system<'o, 'a>(
    claims: &'o Claims,
    outcomes: &'o [Outcome<'a>],
) -> impl Iterator<Item = (&'o System, Vec<&'o Outcome<'a>>)> {
    let own = |name: &str| outcomes.iter().filter(|o| o.system.name == name).collect::<Vec<_>>();
    claims.systems.iter().map(move |system| (system, own(&system.name))).filter(|(_, own)| !own.is_empty())
}

/// The totals, and a line for each system.
pub fn overview(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let mut out = heading(outcomes) + "\n";
    for (system, own) in by_system(claims, outcomes) {
        let label = format!("{:<18} {:<20} ", system.name, system.at.to_string());
        out += &beside(&label, &counts(own.into_iter()), WIDTH);
    }
    out
}

/// The summary in lines of a terminal.
fn heading(outcomes: &[Outcome<'_>]) -> String {
    summary(outcomes).iter().map(|line| wrap(line, WIDTH, 2)).collect()
}

/// Every verdict, system by system.
pub fn terminal(claims: &Claims, outcomes: &[Outcome<'_>]) -> String {
    let mut out = heading(outcomes);
    for (system, own) in by_system(claims, outcomes) {
        out += &format!("\n{}\n", system.name);
        for o in own {
            let label = format!("{:<COLUMN$}", o.verdict.name());
            out += &beside(&label, &format!("{} ({})", o.claim.says, o.claim.at), WIDTH);
            let parts = [
                format!("{}: {}", o.claim.id, measured(o)),
                o.claim.why.clone(),
                o.facts.join(", "),
                if o.verdict == Verdict::YourGpu { o.claim.judge.on.join(" or ") } else { String::new() },
            ];
            let said: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            out += &beside(&" ".repeat(COLUMN), &said.join("; "), WIDTH);
        }
    }
    out
}

/// All verdicts for programs.
pub fn json(outcomes: &[Outcome<'_>]) -> Value {
    let outcome = |o: &Outcome<'_>| {
        let claim = o.claim;
        let at = claim.at.places.iter();
        json!({
            "id": claim.id,
            "system": o.system.name,
            "at": at.map(|(n, lines)| json!({ "document": n, "lines": lines.0 })).collect::<Vec<_>>(),
            "says": claim.says,
            "stated": claim.judge.figure,
            "measured": o.measured,
            "range": o.range,
            "unit": claim.judge.unit,
            "verdict": o.verdict,
            "arithmetic": claim.judge.is_arithmetic(),
            "why": claim.why,
            "facts": o.facts,
            "missing": o.missing,
            "commands": commands(std::slice::from_ref(o)),
            "from": o.from,
        })
    };
    Value::Array(outcomes.iter().map(outcome).collect())
}
