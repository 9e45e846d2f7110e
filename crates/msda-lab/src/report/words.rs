//! What a run says, in sentences computed from it.

use super::group::{Group, Row, groups, is_torch};
use super::number::{figure, percent, short, times};
use crate::record::{Machine, Pass, Record};

/// One finding: a few words that carry it, and a sentence that says where it comes from.
pub(super) struct Finding {
    pub lead: String,
    pub text: String,
}

/// A row and the workload it belongs to.
type Placed<'g, 'a> = (&'g Group<'a>, &'g Row<'a>);

/// The findings of a run, good and bad alike.
pub(super) fn findings(record: &Record) -> Vec<Finding> {
    let groups = groups(record);
    if groups.is_empty() {
        return vec![Finding {
            lead: "Nothing measured".into(),
            text: "the record holds no measurement".into(),
        }];
    }
    let mut all = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        all.extend(fastest(&groups, pass));
    }
    all.extend(losses(&groups));
    all.extend(floor(&groups));
    all.push(errors(&groups));
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

/// The best of each workload, over torch where torch was measured.
fn fastest(groups: &[Group<'_>], pass: Pass) -> Option<Finding> {
    let of_pass = || groups.iter().filter(move |g| g.pass == pass);
    let torch = of_pass().any(|g| g.rows.iter().any(|r| r.over_torch().is_some()));
    let gain = |r: &Row<'_>| if torch { r.over_torch() } else { r.speedup() };
    let best: Vec<(Placed<'_, '_>, f64)> =
        of_pass().filter_map(|g| most(g.rows.iter().map(|r| (g, r)), gain)).collect();
    let &((group, row), top) = best.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;

    let title = capital(&pass.to_string());
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
fn losses(groups: &[Group<'_>]) -> Option<Finding> {
    let compared: Vec<Placed<'_, '_>> = placed(groups).filter(|(_, r)| r.over_torch().is_some()).collect();
    if compared.is_empty() {
        return None;
    }
    let slower: Vec<_> = compared.iter().copied().filter(|(_, r)| r.over_torch() < Some(1.0)).collect();
    let Some(((group, row), _)) = most(slower.iter().copied(), |r| r.over_torch().map(|v| 1.0 / v)) else {
        return Some(Finding {
            lead: "Nothing slower than torch".into(),
            text: format!("of {} comparisons", compared.len()),
        });
    };
    Some(Finding {
        lead: format!("Slower than torch in {} of {} comparisons", slower.len(), compared.len()),
        text: format!(
            "the furthest behind is {} on {} {}: {}",
            row.name(),
            group.workload,
            group.pass,
            times(row.over_torch())
        ),
    })
}

/// How near to the machine's limit.
fn floor(groups: &[Group<'_>]) -> Option<Finding> {
    let own = || placed(groups).filter(|(_, r)| !is_torch(&r.measured.engine));
    let ((group, row), top) = most(own(), Row::reached)?;
    let mut shares: Vec<f64> = groups
        .iter()
        .filter_map(|g| {
            let own = g.rows.iter().filter(|r| !is_torch(&r.measured.engine) && r.within());
            own.filter_map(Row::reached).max_by(f64::total_cmp)
        })
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
    Some(Finding { lead: format!("Up to {} of the floor reached", percent(Some(top))), text })
}

/// How right the results were.
fn errors(groups: &[Group<'_>]) -> Finding {
    let total = placed(groups).count();
    let wrong: Vec<_> = placed(groups).filter(|(_, r)| !r.within()).collect();
    if let Some((group, row)) = wrong.first() {
        return Finding {
            lead: format!("{} of {total} results outside the tolerance", wrong.len()),
            text: format!("among them {} on {} {}", row.name(), group.workload, group.pass),
        };
    }
    let worst = placed(groups).filter_map(|(_, r)| r.error_share()).max_by(f64::total_cmp);
    Finding {
        lead: if total == 1 {
            "The result is within the tolerance".into()
        } else {
            format!("All {total} results within the tolerance")
        },
        text: worst
            .map_or(String::new(), |w| format!("the largest error is {} of what is allowed", short(w))),
    }
}

fn placed<'g, 'a>(groups: &'g [Group<'a>]) -> impl Iterator<Item = Placed<'g, 'a>> {
    groups.iter().flat_map(|g| g.rows.iter().map(move |r| (g, r)))
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
