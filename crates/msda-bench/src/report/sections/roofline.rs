//! Rooflines: speed against intensity, under what the machine can do at best.

use super::describe::{by_pass, class, describe, legend};
use super::{folded, name};
use crate::record::{Ceiling, Device, Record};
use crate::report::Extension;
use crate::report::group::{Group, Row, groups, is_pinned, positive, threads};
use crate::report::known::machine;
use crate::report::page::{Part, Plot, Section};
use crate::report::svg::palette::Palette;
use crate::report::svg::{Shape, roofline};

pub(super) fn section(
    records: &[Record],
    extensions: &[Box<dyn Extension>],
    palette: &Palette,
) -> Option<Section> {
    let mut all = Vec::new();
    for record in records {
        let groups = groups(record);
        for device in [Device::Cuda, Device::Cpu] {
            let drawn = |row: &Row<'_>| {
                row.measured.device == device && row.intensity().is_some() && row.flop_rate().is_some()
            };
            if let Some(most) =
                groups.iter().flat_map(|g| &g.rows).filter(|r| drawn(r)).map(|r| r.measured.threads).max()
            {
                let drawn = |row: &Row<'_>| drawn(row) && row.measured.threads == most;
                let where_ = if device == Device::Cuda { "GPU" } else { "processor" };
                let chart = Chart { records, extensions, record, device, threads: most, palette };
                all.push((format!("{where_}: {}", name(record)), chart.parts(&groups, drawn)));
            }
        }
    }
    (!all.is_empty()).then(|| Section {
        title: "Roofline",
        about: "Arithmetic done a second against arithmetic for each byte gathered. Slopes are rates at which bytes \
                can be had, the level line is the rate of multiply-adds; nothing is above both for long"
            .into(),
        parts: folded(all),
    })
}

struct Chart<'a> {
    records: &'a [Record],
    extensions: &'a [Box<dyn Extension>],
    record: &'a Record,
    device: Device,
    threads: usize,
    palette: &'a Palette,
}

impl Chart<'_> {
    fn parts(&self, groups: &[Group<'_>], drawn: impl Fn(&Row<'_>) -> bool) -> Vec<Part> {
        let rows = || groups.iter().flat_map(|g| &g.rows).filter(|r| drawn(r));
        let mut dtypes: Vec<&str> = Vec::new();
        for row in rows() {
            if !dtypes.contains(&row.measured.dtype.as_str()) {
                dtypes.push(&row.measured.dtype);
            }
        }
        let (roofs, mut note) = match self.device {
            Device::Cpu => self.of_processor(),
            Device::Cuda => self.of_gpu(),
        };
        if roofs.is_empty() {
            note += "No ceiling was measured. ";
        }
        note += "The fastest of each dtype has its workload's name and a pinned kernel has its own, where there is room";
        let mut parts = vec![legend(rows(), self.palette, &dtypes), Part::Note(note)];
        let mut plots = Vec::new();
        for (pass, groups) in by_pass(groups) {
            let rows: Vec<(&Group<'_>, &Row<'_>)> = groups
                .iter()
                .flat_map(|g| g.rows.iter().map(move |r| (*g, r)))
                .filter(|(_, r)| drawn(r))
                .collect();
            if rows.is_empty() {
                continue;
            }
            let label =
                format!("Roofline of {} measurements, {pass}: GFLOP/s against FLOP per byte", rows.len());
            let svg = roofline::roofline(&roofs, &points(&rows, self.palette), &label);
            plots.push(Plot { title: pass.to_string(), detail: String::new(), svg });
        }
        parts.push(Part::Plots(plots));
        parts
    }

    fn of_processor(&self) -> (Vec<roofline::Roof>, String) {
        // Points under the ceilings of other threads would mislead, so only one count is drawn.
        let ceilings = || self.record.ceilings.iter().filter(|c| c.device == Device::Cpu);
        let limit = if ceilings().any(|c| c.threads == self.threads) {
            self.threads
        } else {
            ceilings().map(|c| c.threads).max().unwrap_or(self.threads)
        };
        let roofs: Vec<roofline::Roof> = ceilings()
            .filter(|c| c.threads == limit && positive(c.rate).is_some())
            .map(|c| roofline::Roof { name: c.name.clone(), rate: c.rate, flat: c.name == crate::work::FMA })
            .collect();
        let mut note = format!("Measurements with {}", threads(self.threads));
        if !roofs.is_empty() && limit != self.threads {
            note += &format!(", under ceilings of {}", threads(limit));
        }
        (roofs, note + ". ")
    }

    /// The rate of the L1 caches, and the ceilings that extensions know of the same GPU.
    fn of_gpu(&self) -> (Vec<roofline::Roof>, String) {
        let own = self.record.ceilings.iter();
        let l1 = own.filter(|c| c.device == Device::Cuda && c.name == crate::work::GATHER_L1).cloned();
        let machine = machine(self.record);
        let more = self.extensions.iter().flat_map(|e| e.ceilings(self.records, &machine));
        let roof = |c: Ceiling| roofline::Roof {
            flat: c.name.starts_with(crate::work::FMA),
            name: c.name,
            rate: c.rate,
        };
        (l1.chain(more).filter(|c| positive(c.rate).is_some()).map(roof).collect(), String::new())
    }
}

fn points(rows: &[(&Group<'_>, &Row<'_>)], palette: &Palette) -> Vec<roofline::Point> {
    let point = |&(group, row): &(&Group<'_>, &Row<'_>)| {
        let m = row.measured;
        let rate = row.flop_rate()?;
        let peers = rows.iter().filter(|(_, r)| r.measured.dtype == m.dtype);
        let best = peers.filter_map(|(_, r)| r.flop_rate()).fold(0.0, f64::max);
        let label = match m.engine.rsplit_once(':').filter(|_| is_pinned(&m.engine)) {
            Some((_, kernel)) => Some(kernel.into()),
            None => (rate >= best).then(|| group.workload.into()),
        };
        Some(roofline::Point {
            intensity: row.intensity()?,
            rate,
            class: class(&m.engine, palette) + " open",
            shape: Shape::of(&m.dtype),
            title: describe(group, row),
            label,
        })
    };
    // The chosen kernel is drawn over the pinned ones.
    let (pinned, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, r)| is_pinned(&r.measured.engine));
    pinned.into_iter().chain(others).filter_map(point).collect()
}
