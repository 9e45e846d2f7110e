//! The parts of `docs/STUDY.md` that are made from records.

use anyhow::{Result, ensure};
use msda_bench::record::Source;
use msda_bench::report::{number, wrap};

use super::show::{WIDTH, measured, summary};
use super::{Claims, Outcome, Verdict, judge};
use crate::facts::{CHOSEN, Facts, gpus, newest_ladder, of_gpu};
use crate::ladder::RUNGS;

/// A GPU with a record of the ladder, its facts, and the claims judged by them.
struct Column<'a> {
    gpu: Option<String>,
    /// The path of the ladder's record, from the folder of records on.
    record: String,
    facts: Facts,
    outcomes: Vec<Outcome<'a>>,
}

/// The page with the figures of records. A part stands between lines `<!-- begin NAME -->` and
/// `<!-- end NAME -->`.
pub fn page(text: &str, sources: &[Source]) -> Result<String> {
    let claims = Claims::built_in()?;
    let mut columns = Vec::new();
    for gpu in gpus(sources).into_iter().map(Some).chain([None]) {
        let own = of_gpu(sources, gpu.as_deref());
        let ladder = newest_ladder(&own);
        // Without a record of the ladder there is a column without a GPU.
        if ladder.is_some() || gpu.is_none() && columns.is_empty() {
            let label = ladder.map_or("", |source| &source.label);
            let record = label.rfind("records/").map_or(label, |at| &label[at..]).to_owned();
            let facts = Facts::of(&own)?;
            columns.push(Column { outcomes: judge(&claims, &facts, gpu.as_deref()), record, facts, gpu });
        }
    }
    let mut page = text.to_owned();
    for document in &claims.documents {
        let number = document.number;
        page = filled(&page, &format!("document {number}"), &figures(number, &columns))?;
    }
    let ladders: Vec<String> = columns.iter().map(ladder).collect();
    page = filled(&page, "ladder", &ladders.join("\n"))?;
    let totals = columns.iter().map(|column| {
        let [measured, arithmetic] = summary(&column.outcomes);
        wrap(&format!("{}, {measured}. By {arithmetic}.", column.name()), WIDTH, 0)
    });
    filled(&page, "totals", &totals.collect::<Vec<_>>().join("\n"))
}

/// The text with the part between two marks replaced.
fn filled(text: &str, name: &str, part: &str) -> Result<String> {
    let (begin, end) = (format!("<!-- begin {name} -->\n"), format!("<!-- end {name} -->\n"));
    let found = text.split_once(&begin).and_then(|(before, rest)| Some((before, rest.split_once(&end)?.1)));
    ensure!(found.is_some(), "got no part '{name}', expected lines '{}' and '{}'", begin.trim(), end.trim());
    let (before, after) = found.unwrap_or_default();
    Ok(format!("{before}{begin}{part}{end}{after}"))
}

/// A row in Markdown; cells are Markdown themselves.
fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// A row per claim of the page that a document makes first, with a column per GPU.
fn figures(document: usize, columns: &[Column<'_>]) -> String {
    let mut titles = vec!["lines".to_owned(), "you say".into()];
    titles.extend(columns.iter().map(Column::name));
    titles.push("why".into());
    let mut out = row(&titles) + "|" + &"---|".repeat(titles.len()) + "\n";
    for (i, first) in columns[0].outcomes.iter().enumerate() {
        let claim = first.claim;
        if claim.at.places[0].0 == document && first.system.page.iter().any(|own| own.id == claim.id) {
            let mut cells = vec![claim.at.to_string(), claim.says.clone()];
            cells.extend(columns.iter().map(|column| cell(&column.outcomes[i])));
            cells.push(claim.why.clone());
            out += &row(&cells);
        }
    }
    out
}

/// A measured number and the verdict.
fn cell(outcome: &Outcome<'_>) -> String {
    match (measured(outcome).as_str(), outcome.verdict) {
        (_, Verdict::NotMeasuredYet) | ("-", _) => outcome.verdict.name().into(),
        (measured, Verdict::NoResultThere) => measured.into(),
        (measured, verdict) => format!("{measured}: {}", verdict.name()),
    }
}

impl Column<'_> {
    fn name(&self) -> String {
        self.gpu.clone().unwrap_or_else(|| "without records".into())
    }

    /// The time of a rung, or of the kernel that msda chooses.
    fn time(&self, workload: &str, rung: &str) -> Option<f64> {
        self.facts
            .get(&format!("bench.{workload}.f16.forward.cuda:ladder:{rung}.time"))
            .map(|fact| fact.value)
    }
}

/// The ladder of a GPU.
fn ladder(column: &Column<'_>) -> String {
    let mut out = wrap(&format!("{}, `{}`:", column.name(), column.record), WIDTH, 0);
    out += "\n| rung | near µs | anywhere µs | strategy |\n|---|--:|--:|---|\n";
    let chosen = CHOSEN.rsplit(':').next().unwrap_or_default();
    let own = (chosen.to_owned(), "the kernel that msda chooses".to_owned(), true);
    let rungs = RUNGS.iter().map(|rung| (rung.name.clone(), rung.about.clone(), rung.kernel().is_exact()));
    for (name, about, exact) in rungs.chain([own]) {
        let called = if name == chosen { name.clone() } else { format!("ladder:{name}") };
        let error = column.facts.get(&format!("verify.seed-ring-uniform.f16.{called}.worst"));
        // The error of a rung that is within the tolerance says nothing more.
        let error = error.filter(|error| !exact || error.value > 1.0);
        let error = error.map_or(String::new(), |e| format!(" (~{})", number::figure(e.value)));
        let number = |value: Option<f64>| value.map_or("-".into(), number::figure);
        out += &row(&[
            name.clone(),
            number(column.time("seed", &name)),
            number(column.time("seed-ring-uniform", &name)),
            about + &error,
        ]);
    }
    out
}
