//! `msda-study claims`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use msda_bench::record::Source;
use msda_study::claims::{self, Claims, Outcome, Verdict};
use msda_study::facts::{self, Facts};
use serde_json::json;

use super::records;
use msda_bench::terminal::print;

#[derive(clap::Args)]
#[command(
    after_help = "Without an option: the totals and a line per system. Records are read from ./records unless --record \
    names others; without any record, only claims that arithmetic decides are judged.

Verdicts: reproduced; other size; opposite; within noise; your GPU; no result there; cannot be measured; \
    not measured yet.

Examples:
  msda-study claims
  msda-study claims --system persistent
  msda-study claims --document 2 --only opposite
  msda-study claims --page docs/STUDY.md"
)]
pub(crate) struct Args {
    /// Show every claim
    #[arg(long)]
    all: bool,
    /// Show the claims of the document of this number; may be repeated
    #[arg(long, value_name = "N")]
    document: Vec<usize>,
    /// Show the claims about this system, as the first column lists them; may be repeated
    #[arg(long, value_name = "NAME")]
    system: Vec<String>,
    /// Show the claims with this verdict, or the claim of this name; may be repeated
    #[arg(long, value_name = "VERDICT|NAME")]
    only: Vec<String>,
    /// A record, or a folder of records; may be repeated
    #[arg(long, value_name = "FILE|DIR")]
    record: Vec<PathBuf>,
    /// Judge by records of this GPU (a part of its name); that of the newest record when absent
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// List the facts instead
    #[arg(long, conflicts_with = "page")]
    facts: bool,
    /// Write the parts of this page that are made from records instead, with a column per GPU
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let all = Claims::built_in()?;
    args.check(&all)?;
    let sources = records(&args.record)?;
    if sources.is_empty() {
        eprintln!("note: no record here: judged without records\nhint: --record FILE names one");
    }
    if let Some(path) = args.page {
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let page = claims::page(&text, &sources).with_context(|| path.display().to_string())?;
        std::fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
        eprintln!("wrote {}", path.display());
        return Ok(());
    }
    let gpu = one_gpu(&sources, args.gpu.as_deref())?;
    let facts = Facts::of(&facts::of_gpu(&sources, gpu.as_deref()))?;
    if args.facts {
        return print(&list(&facts, args.json)?);
    }
    let mut outcomes = claims::judge(&all, &facts, gpu.as_deref());
    outcomes.retain(|outcome| args.shows(outcome));
    if outcomes.is_empty() {
        bail!("claims: got none with all of these properties, expected at least one");
    }
    if args.json {
        return print(&serde_json::to_string_pretty(&claims::json(&outcomes))?);
    }
    if !args.all && args.document.is_empty() && args.system.is_empty() && args.only.is_empty() {
        print(&claims::overview(&all, &outcomes))?;
        eprintln!("hint: --system NAME, --document N, --only VERDICT or --all shows the claims");
        return Ok(());
    }
    print(&claims::terminal(&all, &outcomes))?;
    for command in claims::commands(&outcomes) {
        eprintln!("hint: {command}");
    }
    Ok(())
}

impl Args {
    /// Refuses documents, systems, verdicts and names that no claim has.
    fn check(&self, all: &Claims) -> Result<()> {
        let numbers: Vec<String> = all.documents.iter().map(|d| d.number.to_string()).collect();
        if let Some(wrong) = self.document.iter().find(|n| !numbers.contains(&n.to_string())) {
            bail!("--document: got {wrong}, expected one of {}", numbers.join(", "));
        }
        let systems: Vec<&str> = all.systems.iter().map(|system| system.name.as_str()).collect();
        if let Some(wrong) = self.system.iter().find(|name| !systems.contains(&name.as_str())) {
            bail!("--system: got '{wrong}', expected one of {}", systems.join(", "));
        }
        let known = |what: &str| verdict(what).is_some() || all.iter().any(|(_, claim)| claim.id == what);
        if let Some(wrong) = self.only.iter().find(|what| !known(what)) {
            bail!(
                "--only: got '{wrong}', expected the name of a claim or a verdict\nhint: verdicts are {}; --all lists names",
                Verdict::ALL.map(Verdict::name).join(", ")
            );
        }
        Ok(())
    }

    /// Whether a claim has the properties that were asked for.
    fn shows(&self, outcome: &Outcome<'_>) -> bool {
        let claim = outcome.claim;
        let only = |what: &String| claim.id == *what || verdict(what) == Some(outcome.verdict);
        (self.document.is_empty() || self.document.iter().any(|n| claim.is_of(*n)))
            && (self.system.is_empty() || self.system.contains(&outcome.system.name))
            && (self.only.is_empty() || self.only.iter().any(only))
    }
}

/// The verdict called `name`; words may be joined by dashes.
fn verdict(name: &str) -> Option<Verdict> {
    Verdict::ALL.into_iter().find(|v| v.name().eq_ignore_ascii_case(&name.replace('-', " ")))
}

/// The wanted GPU of the records, or that of the newest.
fn one_gpu(sources: &[Source], wanted: Option<&str>) -> Result<Option<String>> {
    let all = facts::gpus(sources);
    if wanted.is_none() && all.len() > 1 {
        eprintln!("note: judged by records of {}; --gpu selects another: {}", all[0], all[1..].join(", "));
    }
    let found = all.iter().find(|name| wanted.is_none_or(|part| name.contains(part)));
    match (found, wanted) {
        (None, Some(part)) => bail!("--gpu: got '{part}', expected a part of one of: {}", all.join(", ")),
        _ => Ok(found.cloned()),
    }
}

fn list(facts: &Facts, as_json: bool) -> Result<String> {
    if as_json {
        let fact = |(name, fact): (&str, &facts::Fact)| json!({ "name": name, "value": fact.value, "unit": fact.unit, "from": fact.from });
        return Ok(serde_json::to_string_pretty(&facts.iter().map(fact).collect::<Vec<_>>())?);
    }
    Ok(facts
        .iter()
        .map(|(name, fact)| format!("{name} = {} {}  ({})\n", fact.value, fact.unit, fact.from))
        .collect())
}
