//! What a run says, in sentences computed from it.

use std::collections::BTreeMap;

use super::group::{Group, Row, Setting, groups, is_own, is_peer};
use super::number::{figure, percent, short, times};
use super::page::Finding;
use crate::record::{Device, Gpu, GpuState, Machine, Pass, Record};

/// A row and the workload it belongs to.
type Placed<'g, 'a> = (&'g Group<'a>, &'g Row<'a>);

/// The findings of a run, good and bad alike.
pub(super) fn findings(record: &Record) -> Vec<Finding> {
    let groups = groups(record);
    if groups.is_empty() {
        return Vec::new();
    }
    // The processor and the GPU are never compared.
    let mut by_setting: BTreeMap<Setting, Vec<&Group<'_>>> = BTreeMap::new();
    for group in &groups {
        by_setting.entry(group.setting).or_default().push(group);
    }
    let mut all = Vec::new();
    for groups in by_setting.values() {
        for pass in [Pass::Forward, Pass::Backward] {
            all.extend(fastest(groups, pass));
        }
        all.extend(losses(groups));
        all.extend(peers(groups));
        all.extend(floor(groups));
    }
    let groups: Vec<&Group<'_>> = groups.iter().collect();
    all.push(errors(&groups));
    all.extend(inexact(&groups));
    all
}

/// The processor and what it offers, in one line.
pub(super) fn machine(m: &Machine) -> String {
    let mut parts = vec![m.cpu.clone(), super::number::count(m.cores, "logical processor")];
    if let Some(gib) = super::group::positive(m.memory_gib) {
        parts.push(format!("{} GiB", figure(gib)));
    }
    parts.push(m.os.clone());
    if !m.isas.is_empty() {
        parts.push(m.isas.join(" "));
    }
    parts.push(m.torch.as_ref().map_or("no torch".into(), |v| format!("torch {v}")));
    parts.retain(|p| !p.is_empty());
    parts.join(", ")
}

/// A GPU and how it stood, in one line.
pub(super) fn gpu(gpu: &Gpu) -> String {
    let mut parts = vec![gpu.name.clone()];
    if gpu.memory_bytes > 0 {
        parts.push(format!("{} GiB", figure(gpu.memory_bytes as f64 / f64::from(1 << 30))));
    }
    parts.extend(gpu.sms.map(|n| format!("{n} multiprocessors")));
    parts.push(format!("driver {}", gpu.driver));
    parts.push(format!("CUDA {}", gpu.cuda));
    for (when, state) in [("before", &gpu.before), ("after", &gpu.after)] {
        parts.extend(state.as_ref().and_then(sensors).map(|says| format!("{when}: {says}")));
    }
    parts.join(", ")
}

fn sensors(state: &GpuState) -> Option<String> {
    let says = [
        state.clocks_mhz.sm.map(|mhz| format!("{mhz} MHz")),
        state.clocks_mhz.memory.map(|mhz| format!("memory {mhz} MHz")),
        state.temperature_c.map(|degrees| format!("{degrees} C")),
        state.power_w.filter(|w| w.is_finite()).map(|watts| format!("{watts:.0} W")),
    ];
    let says: Vec<String> = says.into_iter().flatten().collect();
    (!says.is_empty()).then(|| says.join(" "))
}

/// Where a list of groups was measured, to stand after a name.
fn place(groups: &[&Group<'_>]) -> &'static str {
    groups.first().map_or("", |g| g.setting.words())
}

/// The best of each workload, over torch where torch was measured.
fn fastest(groups: &[&Group<'_>], pass: Pass) -> Option<Finding> {
    let of_pass = || groups.iter().copied().filter(move |g| g.pass == pass);
    let torch = of_pass().any(|g| g.rows.iter().any(|r| r.over_torch().is_some()));
    let gain = |r: &Row<'_>| if torch { r.over_torch() } else { r.speedup() };
    let best: Vec<(Placed<'_, '_>, f64)> =
        of_pass().filter_map(|g| most(own(g).map(|r| (g, r)), gain)).collect();
    let &((group, row), top) = best.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;

    let title = capital(&pass.to_string()) + place(groups);
    if of_pass().all(|g| g.rows.iter().all(Row::is_baseline)) {
        return Some(Finding {
            lead: format!("{title}: nothing to compare with"),
            text: format!("{} on {}: {} ms", row.name(), group.workload, figure(row.measured.time.median)),
        });
    }
    let over = row.baseline_name().unwrap_or_default();
    let lead = if torch {
        format!("{title}: up to {} the speed of torch", times(Some(top)))
    } else {
        format!("{title}: up to {} the speed of the slowest engine", times(Some(top)))
    };
    let mut text = format!("{} on {}, over {over}", row.name(), group.workload);
    if best.len() > 1 {
        let low = best.iter().map(|b| b.1).fold(f64::INFINITY, f64::min);
        let mean = (best.iter().map(|b| b.1.ln()).sum::<f64>() / best.len() as f64).exp();
        text += &format!(
            "; the best of each of {} workloads lies between {} and {}, geometric mean {}",
            best.len(),
            times(Some(low)),
            times(Some(top)),
            times(Some(mean))
        );
    }
    if !torch {
        text += "; torch was not measured";
    }
    Some(Finding { lead, text })
}

/// What is slower than torch: reported like what is faster.
fn losses(groups: &[&Group<'_>]) -> Option<Finding> {
    let compared: Vec<Placed<'_, '_>> = placed(groups).filter(|(_, r)| r.over_torch().is_some()).collect();
    if compared.is_empty() {
        return None;
    }
    let slower: Vec<_> = compared.iter().copied().filter(|(_, r)| r.over_torch() < Some(1.0)).collect();
    let Some(((group, row), _)) = most(slower.iter().copied(), |r| r.over_torch().map(|v| 1.0 / v)) else {
        return Some(Finding {
            lead: format!("Nothing slower than torch{}", place(groups)),
            text: format!("of {} comparisons", compared.len()),
        });
    };
    Some(Finding {
        lead: format!(
            "Slower than torch in {} of {} comparisons{}",
            slower.len(),
            compared.len(),
            place(groups)
        ),
        text: format!(
            "the furthest behind is {} on {} {}: {}",
            row.name(),
            group.workload,
            group.pass,
            times(row.over_torch())
        ),
    })
}

/// Our fastest against the fastest peer, for each workload, pass and type where both were measured.
fn peers(groups: &[&Group<'_>]) -> Option<Finding> {
    let mut ratios: Vec<(f64, String)> = Vec::new();
    for group in groups {
        for rows in group.rows.chunk_by(|a, b| a.measured.dtype == b.measured.dtype) {
            let fastest = |all: &mut dyn Iterator<Item = &Row<'_>>| {
                all.filter_map(|r| Some((r.median()?, r.name()))).min_by(|a, b| a.0.total_cmp(&b.0))
            };
            let ours = fastest(&mut rows.iter().filter(|r| is_own(&r.measured.engine) && r.within()));
            let theirs = fastest(&mut rows.iter().filter(|r| is_peer(&r.measured.engine)));
            if let (Some(ours), Some(theirs)) = (ours, theirs) {
                let ratio = theirs.0 / ours.0;
                let where_ = format!("{} {}, {} and {}", group.workload, group.pass, ours.1, theirs.1);
                ratios.push((ratio, format!("{} ({where_})", times(Some(ratio)))));
            }
        }
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let won = ratios.iter().filter(|r| r.0 > 1.0).count();
    let ((_, worst), (_, best)) = (ratios.first()?, ratios.last()?);
    Some(Finding {
        lead: format!(
            "Faster than the fastest peer in {won} of {} comparisons{}",
            ratios.len(),
            place(groups)
        ),
        text: if ratios.len() == 1 { best.clone() } else { format!("from {worst} to {best}") },
    })
}

/// How near to the machine's limit.
fn floor(groups: &[&Group<'_>]) -> Option<Finding> {
    let all = groups.iter().flat_map(|&g| own(g).map(move |r| (g, r)));
    let ((group, row), top) = most(all, Row::reached)?;
    let mut shares: Vec<f64> = groups
        .iter()
        .filter_map(|g| own(g).filter(|r| r.within()).filter_map(Row::reached).max_by(f64::total_cmp))
        .collect();
    shares.sort_by(f64::total_cmp);
    let mut text =
        format!("{} on {} {}, bound by {}", row.name(), group.workload, group.pass, row.measured.work.bound);
    if let [low, .., _] = shares.as_slice() {
        let median = shares[shares.len() / 2];
        text += &format!(
            "; the best of each workload and pass reaches {} at worst, {} at the median",
            percent(Some(*low)),
            percent(Some(median))
        );
    }
    let lead = format!("Up to {} of the floor reached{}", percent(Some(top)), place(groups));
    Some(Finding { lead, text })
}

/// How right the results were of all that is held to the tolerance.
fn errors(groups: &[&Group<'_>]) -> Finding {
    let held = || placed(groups).filter(|(_, r)| !r.measured.check.inexact);
    let total = held().count();
    let wrong: Vec<_> = held().filter(|(_, r)| r.is_wrong()).collect();
    if let Some((group, row)) = wrong.first() {
        return Finding {
            lead: format!("{} of {total} results outside the tolerance", wrong.len()),
            text: format!("among them {} on {} {}", row.name(), group.workload, group.pass),
        };
    }
    let worst = held().filter_map(|(_, r)| r.error_share()).max_by(f64::total_cmp);
    Finding {
        lead: match total {
            0 => "No result was held to the tolerance".into(),
            1 => "The result is within the tolerance".into(),
            _ => format!("All {total} results within the tolerance"),
        },
        text: worst
            .map_or(String::new(), |w| format!("the largest error is {} of what is allowed", short(w))),
    }
}

/// Results that may exceed the tolerance, and by how much they do.
fn inexact(groups: &[&Group<'_>]) -> Option<Finding> {
    let marked = || placed(groups).filter(|(_, r)| r.measured.check.inexact);
    let share = |r: &Row<'_>| r.error_share().unwrap_or(0.0);
    let (group, row) = marked().max_by(|a, b| share(a.1).total_cmp(&share(b.1)))?;
    Some(Finding {
        lead: format!("{} not held to the tolerance", super::number::count(marked().count(), "result")),
        text: format!(
            "the largest error is {} times what an exact engine is allowed: {} on {} {}",
            short(share(row)),
            row.name(),
            group.workload,
            group.pass
        ),
    })
}

/// The rows of a group that are ours.
fn own<'g, 'a>(group: &'g Group<'a>) -> impl Iterator<Item = &'g Row<'a>> {
    group.rows.iter().filter(|r| is_own(&r.measured.engine))
}

fn placed<'g, 'a>(groups: &[&'g Group<'a>]) -> impl Iterator<Item = Placed<'g, 'a>> {
    groups.iter().flat_map(|&g| g.rows.iter().map(move |r| (g, r)))
}

/// The row with the largest value among those whose result is right.
fn most<'g, 'a>(
    rows: impl Iterator<Item = Placed<'g, 'a>>,
    value: impl Fn(&Row<'a>) -> Option<f64>,
) -> Option<(Placed<'g, 'a>, f64)>
where
    'a: 'g,
{
    rows.filter(|(_, r)| r.within())
        .filter_map(|place| value(place.1).map(|v| (place, v)))
        .max_by(|a, b| a.1.total_cmp(&b.1))
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}

/// What a record was measured on, for headings: the processors that its measurements ran on.
pub(super) fn where_measured(record: &Record) -> String {
    let on = |device| record.measurements.iter().any(|m| m.device == device);
    let figures = record.measurements.is_empty();
    let gpu = record.machine.gpu.as_ref().map(|gpu| gpu.name.clone()).filter(|_| on(Device::Cuda) || figures);
    let cpu = Some(record.machine.cpu.clone()).filter(|_| on(Device::Cpu) || gpu.is_none());
    cpu.into_iter().chain(gpu).collect::<Vec<_>>().join(" and ")
}
