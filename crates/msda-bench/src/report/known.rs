//! Figures of probes and analyses, grouped by machine.

use super::{by_key, names};
use crate::record::{Figure, Record};

/// The figures of a machine.
pub struct Known {
    /// The name of its GPU, or of its processor if it has no GPU.
    pub machine: String,
    /// Its figures in the order of the records. If two have the same name, the newer one counts.
    pub figures: Vec<Figure>,
}

/// The figures of all records whose names begin with a prefix.
pub fn known(records: &[Record], prefix: &str) -> Vec<Known> {
    let own = |f: &&Figure| f.name.starts_with(prefix) && f.value.is_finite();
    let mut oldest_first: Vec<&Record> =
        records.iter().filter(|r| r.figures.iter().any(|f| own(&f))).collect();
    oldest_first.sort_by(|a, b| a.created.cmp(&b.created));
    let of_machine = |(machine, records): (String, Vec<&Record>)| {
        let figures = records.into_iter().flat_map(|r| &r.figures).filter(own);
        let newest = |(_, same): (_, Vec<&Figure>)| same.last().copied().cloned();
        Known { machine, figures: by_key(figures, |f| &f.name).into_iter().filter_map(newest).collect() }
    };
    by_key(oldest_first, |r| machine(r)).into_iter().map(of_machine).collect()
}

/// The name of a record's machine: its GPU, or its processor and the number of logical processors.
pub fn machine(record: &Record) -> String {
    let m = &record.machine;
    m.gpu.as_ref().map_or_else(|| names::cpu(m), |gpu| gpu.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Machine;

    #[test]
    fn the_newest_figure_of_a_machine_counts() {
        let record = |created: &str, cpu: &str, value| Record {
            created: created.into(),
            figures: [("probe.x", value), ("probe.none", f64::NAN), ("other.y", 1.0)]
                .map(|(name, value)| Figure { name: name.into(), value, unit: String::new() })
                .into(),
            ..Record::new("", Machine { cpu: cpu.into(), ..Machine::default() })
        };
        let all = [record("2026-03", "a", 3.0), record("2026-01", "a", 1.0), record("2026-02", "b", 2.0)];
        let known = known(&all, "probe.");
        let of = |machine: &str| known.iter().find(|k| k.machine.starts_with(machine)).unwrap();
        let values = |machine| of(machine).figures.iter().map(|f| f.value).collect::<Vec<_>>();
        assert_eq!((values("a"), values("b")), (vec![3.0], vec![2.0]));
    }
}
