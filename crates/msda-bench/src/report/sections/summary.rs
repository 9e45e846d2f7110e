//! Where and when everything was measured, with what, and what it comes to.

use super::{folded, name};
use crate::record::{Device, GpuState, Record};
use crate::report::group::{is_pinned, positive};
use crate::report::known::machine;
use crate::report::number::{NONE, count, figure};
use crate::report::page::{Finding, Kind, Part, Section, Table};
use crate::report::{rate_unit, under, words};

/// Findings of runs are beside each; those of all of them together come first.
pub(super) fn section(
    records: &[Record],
    of_all: Vec<Finding>,
    missing_elsewhere: Vec<(String, String)>,
) -> Section {
    let mut parts = Vec::new();
    if !of_all.is_empty() {
        parts.push(Part::Findings(of_all));
    }
    if records.len() > 1 {
        parts.push(Part::Table(runs(records)));
    }
    parts.extend(folded(records.iter().map(|r| (name(r), run(r))).collect()));
    let mut missing = missing(records);
    missing.extend(missing_elsewhere);
    if !missing.is_empty() && !records.is_empty() {
        parts.push(Part::Missing(missing));
    }
    Section { title: "Summary", about: about(records), parts }
}

fn about(records: &[Record]) -> String {
    let mut machines: Vec<String> = Vec::new();
    for name in records.iter().map(machine) {
        if !machines.contains(&name) {
            machines.push(name);
        }
    }
    match records {
        [] => "No records".into(),
        [_] => format!("One run on {}", machines[0]),
        _ => format!(
            "{} on {}: {}. Times are compared within one run",
            count(records.len(), "run"),
            count(machines.len(), "kind") + " of machine",
            machines.join("; ")
        ),
    }
}

fn runs(records: &[Record]) -> Table {
    use Kind::{Number, Word};
    let mut table = Table::new(
        "Runs",
        &[
            ("measured", Word),
            ("on", Word),
            ("processors", Number),
            ("driver", Word),
            ("SM clock MHz", Number),
            ("msda", Word),
            ("times", Number),
            ("figures", Number),
        ],
    );
    for r in records {
        let gpu = r.machine.gpu.as_ref();
        let clock = gpu.and_then(|g| clock(g.after.as_ref()).or(clock(g.before.as_ref())));
        let some = |n: usize| if n == 0 { NONE.into() } else { n.to_string() };
        table.push([
            r.created.clone(),
            words::where_measured(r),
            r.machine.cores.to_string(),
            gpu.map_or(NONE.into(), |g| g.driver.clone()),
            clock.map_or(NONE.into(), |mhz| mhz.to_string()),
            r.version.clone(),
            some(r.measurements.len()),
            some(r.figures.len()),
        ]);
    }
    table.without_empty()
}

fn clock(state: Option<&GpuState>) -> Option<u32> {
    state.and_then(|s| s.clocks_mhz.sm)
}

fn run(record: &Record) -> Vec<Part> {
    let m = &record.machine;
    let mut pairs = vec![
        ("measured", record.created.clone()),
        ("msda", record.version.clone()),
        ("GPU", m.gpu.as_ref().map_or(String::new(), words::gpu)),
        ("processor", m.cpu.clone()),
        ("logical processors", m.cores.to_string()),
        ("memory", positive(m.memory_gib).map_or(String::new(), |gib| format!("{} GiB", figure(gib)))),
        ("system", m.os.clone()),
        ("instruction sets", if m.isas.is_empty() { "none".into() } else { m.isas.join(", ") }),
        ("torch", m.torch.clone().unwrap_or("not measured".into())),
    ];
    pairs.retain(|p| !p.1.is_empty());
    let mut parts = Vec::new();
    let findings = words::findings(record);
    if !findings.is_empty() {
        parts.push(Part::Findings(findings));
    } else if record.figures.is_empty() {
        parts.push(Part::Note("Nothing measured".into()));
    }
    parts.push(Part::Pairs(pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()));
    parts.push(Part::Command(record.command.clone()));
    if !record.ceilings.is_empty() {
        use Kind::{Number, Word};
        let columns = [("ceiling", Word), ("threads", Number), ("rate", Number), ("unit", Word)];
        let mut table = Table::new("Ceilings", &columns);
        for c in &record.ceilings {
            table.push([c.name.clone(), under(c), figure(c.rate), rate_unit(&c.name).into()]);
        }
        parts.push(Part::Table(table));
    }
    parts
}

/// What no record has.
fn missing(records: &[Record]) -> Vec<(String, String)> {
    let timed = |device| {
        let own = |r: &Record| r.measurements.iter().any(|m| m.device == device && !is_pinned(&m.engine));
        records.iter().any(own)
    };
    let all = [
        (timed(Device::Cpu) || timed(Device::Cuda), "workloads", "msda bench"),
        (timed(Device::Cuda), "workloads on a GPU", "msda bench --device cuda"),
    ];
    let absent = all.into_iter().filter(|(there, ..)| !there);
    absent.map(|(_, what, command)| (what.into(), command.into())).collect()
}
