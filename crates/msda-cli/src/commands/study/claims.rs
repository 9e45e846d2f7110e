//! `msda study claims`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use msda_bench::record::{Source, sources};
use msda_study::claims::{self, Claims, Outcome};
use msda_study::facts::{self, Facts};
use serde_json::json;

use crate::terminal::{color, print};

/// Where records are looked for when none are named.
const RECORDS: &str = "records";

#[derive(clap::Args)]
#[command(after_help = "Without --record: every JSON file under ./records. \
    Without any record, what follows from definitions is judged and the rest is said to be not measured.

Examples:
  msda study claims
  msda study claims --only 'does not hold'
  msda study claims --only tma --record report/record.json
  msda study claims --facts | grep ladder")]
pub(crate) struct Args {
    /// A record that bench, probe or analyze wrote, or a folder of such; may be repeated
    #[arg(long, value_name = "FILE")]
    record: Vec<PathBuf>,
    /// Judge by the records of this GPU (a part of its name); that of the newest record when absent
    #[arg(long, value_name = "NAME")]
    gpu: Option<String>,
    /// Only claims whose name has this in it, that have this verdict, or of the document of this number; may be
    /// repeated
    #[arg(long, value_name = "WHAT")]
    only: Vec<String>,
    /// List the facts instead
    #[arg(long)]
    facts: bool,
    /// Print Markdown
    #[arg(long)]
    markdown: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let (sources, gpu) = of_one_gpu(records(&args.record)?, args.gpu.as_deref())?;
    let facts = Facts::of(&sources)?;
    if args.facts {
        return print(&list(&facts, args.json)?);
    }
    let all = Claims::built_in()?;
    let mut outcomes = claims::judge(&all, &facts, gpu.as_deref());
    outcomes.retain(|outcome| args.only.is_empty() || args.only.iter().any(|what| is(outcome, what)));
    if outcomes.is_empty() {
        bail!(
            "claims: got none for --only {}, expected a part of a name, a verdict or a document's number\n\
             hint: verdicts are {}",
            args.only.join(" --only "),
            claims::Verdict::ALL.map(claims::Verdict::name).join(", ")
        );
    }
    if args.json {
        return print(&serde_json::to_string_pretty(&claims::json(&all, &outcomes))?);
    }
    if args.markdown {
        return print(&claims::markdown(&all, &outcomes));
    }
    print(&claims::terminal(&all, &outcomes, color()))?;
    for command in claims::commands(&outcomes) {
        eprintln!("hint: {command}");
    }
    Ok(())
}

fn records(named: &[PathBuf]) -> Result<Vec<Source>> {
    if !named.is_empty() {
        return sources(named);
    }
    let usual = Path::new(RECORDS);
    if usual.is_dir() {
        return sources(&[usual.to_owned()]);
    }
    eprintln!("note: no folder '{RECORDS}' here: judged without records\nhint: --record FILE names one");
    Ok(Vec::new())
}

/// The records that count, and their GPU.
fn of_one_gpu(sources: Vec<Source>, wanted: Option<&str>) -> Result<(Vec<Source>, Option<String>)> {
    let all = facts::gpus(&sources);
    let gpu = match wanted {
        None => all.first().cloned(),
        Some(part) => match all.iter().find(|name| name.contains(part)) {
            Some(name) => Some(name.clone()),
            None => bail!("--gpu: got '{part}', expected a part of one of: {}", all.join(", ")),
        },
    };
    if wanted.is_none() && all.len() > 1 {
        eprintln!("note: judged by records of {}; --gpu takes others: {}", all[0], all[1..].join(", "));
    }
    Ok((facts::of_gpu(sources, gpu.as_deref()), gpu))
}

fn is(outcome: &Outcome<'_>, what: &str) -> bool {
    outcome.claim.id.contains(what)
        || outcome.verdict.name() == what.replace('-', " ")
        || what.parse() == Ok(outcome.claim.document)
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
